"""A group of Kafka 0.8's consumers as znodes: members, subscriptions, owners of partitions. Pure.

The layout is that of Kafka 0.8 (its wiki, "Kafka data structures in Zookeeper"):

  /consumers/GROUP/ids/CONSUMER               the member's subscription; ephemeral
  /consumers/GROUP/owners/TOPIC/PARTITION     the consumer's thread that owns it; ephemeral
  /brokers/topics/TOPIC                       the topic's partitions

The group has no leader. Each consumer reads the subscriptions and the partitions, computes the same
result by the same formula (`share_of`), and creates the owner nodes of its own share. All of this
must therefore be written, read and sorted exactly as consumers of Kafka 0.8 do.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from protocol.partition import TopicPartition

CONSUMERS: Final = "/consumers"
TOPICS: Final = "/brokers/topics"

# Kafka's internal topic. Patterns of consumers of Kafka 0.8 don't match it, by default.
INTERNAL_TOPIC: Final = "__consumer_offsets"
# Most threads of a consumer for one topic; more than any topic has partitions. Bounds the names of
# threads that `share_of` makes and sorts.
THREADS_MAX: Final = 10_000
PARTITION_MAX: Final = 2**31 - 1


def ids_path(group: str, *consumer_id: str) -> str:
    """Return the path of the directory of a group's members, or of one member."""
    return "/".join((CONSUMERS, group, "ids", *consumer_id))


def owner_path(group: str, tp: TopicPartition) -> str:
    """Return the path of a partition's owner node; the session that created it is the owner."""
    return f"{CONSUMERS}/{group}/owners/{tp.topic}/{tp.partition}"


def topic_path(topic: str) -> str:
    """Return the path of the node with a topic's partitions."""
    return f"{TOPICS}/{topic}"


def consumer_id(group: str, host: str, now_ms: int, unique: int) -> str:
    """Return a member's id in the form of Kafka 0.8; *unique* is a random number of 32 bits."""
    return f"{group}_{host}-{now_ms}-{unique:08x}"


def thread_id(consumer: str, number: int) -> str:
    """Return the name of a consumer's thread: the contents of an owner's node."""
    return f"{consumer}-{number}"


class Kind(StrEnum):
    """Kind of a subscription, with the values of Kafka 0.8."""

    STATIC = "static"
    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


class Subscription(NamedTuple):
    """The topics that one consumer reads, and its threads for each.

    Attributes:
        kind: Whether topics are named, or matched by a regular expression.
        threads: Number of threads that share a topic's partitions, by topic. For a white list or
            a black list the only key is the text of the regular expression.
        expression: The regular expression; None if topics are named.

    """

    kind: Kind
    threads: Mapping[str, int]
    expression: re.Pattern[str] | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether the topics are matched, so that new topics can change them."""
        return self.expression is not None

    def threads_by_topic(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Return the number of threads for each topic of the subscription.

        *topics* are all existing topics; only a pattern needs them.
        """
        if self.expression is None:
            return self.threads
        (number,) = self.threads.values()
        wanted = self.kind is Kind.WHITE_LIST
        return {
            topic: number
            for topic in topics
            if topic != INTERNAL_TOPIC and (self.expression.fullmatch(topic) is not None) == wanted
        }


def named(threads: Mapping[str, int]) -> Subscription:
    """Return a subscription to these topics, with a number of threads each.

    Raises:
        ValueError: A number isn't from 1 to `THREADS_MAX`, or *threads* is empty.
    """
    if not threads:
        raise ValueError("a consumer reads at least one topic")
    for topic, number in threads.items():
        _check_threads(topic, number)
    return Subscription(Kind.STATIC, dict(threads))


def matched(kind: Kind, expression: str, number: int) -> Subscription:
    """Return a subscription to the topics that a Java expression matches, or doesn't, by *kind*.

    As in Kafka 0.8 the expression may be a list of names: a comma means "or"; spaces, and quotes
    around the text, are ignored.

    Raises:
        ValueError: The expression is invalid, or Java and Python read it differently.
    """
    text = re.sub("^[\"']+|[\"']+$", "", expression.strip().replace(",", "|").replace(" ", ""))
    _check_threads(text, number)
    return Subscription(kind, {text: number}, java_expression(text))


def _check_threads(name: str, number: object) -> None:
    if type(number) is not int or not 1 <= number <= THREADS_MAX:
        raise ValueError(f"{name!r} has {number!r} threads; they are 1 to {THREADS_MAX}")


# One element of a regular expression that Java and Python read alike; names of topics are ASCII.
# In both a backslash makes any character literal, except a letter or digit.
_COMMON: Final = re.compile(
    r"""
      \\ (?: [dDwWsSbB] | [^a-zA-Z0-9] )
    | \[ \^? (?: \\ (?: [dDwWsS] | [^a-zA-Z0-9] ) | [^][\\&~|-] | -(?!-) )+ \]
    | \( (?: \? (?: : | = | ! | <= | <! ) | (?!\?) )
    | \{ [0-9]+ \}
    | [^][\\{}(]
    """,
    re.VERBOSE,
)


def java_expression(text: str) -> re.Pattern[str]:
    """Compile a regular expression of Java for Python.

    If members read one expression differently, they compute different shares: two members want the
    same partition, or none does.

    Raises:
        ValueError: The expression is invalid, or Java and Python read it differently.
    """
    at = 0
    while at < len(text):
        if (part := _COMMON.match(text, at)) is None:
            raise ValueError(f"{text!r}: not for Java and Python alike from {text[at:]!r} on")
        at = part.end()
    try:
        return re.compile(text, re.ASCII)
    except (re.error, OverflowError, RecursionError) as exc:
        raise ValueError(f"{text!r} is no regular expression: {exc}") from None


def encode_registration(subscription: Subscription, now_ms: int) -> bytes:
    """Return the contents of a member's node, byte for byte as Kafka 0.8 writes them."""
    fields = {
        "version": 1,
        "subscription": dict(subscription.threads),
        "pattern": subscription.kind.value,
        "timestamp": str(now_ms),
    }
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decode_registration(data: bytes) -> Subscription:
    """Decode the contents of a member's node.

    As in Kafka 0.8, only ``subscription`` and ``pattern`` are required; any pattern other than the
    two lists is static.

    Raises:
        ValueError: The contents are invalid; the message says why.
    """
    fields = _json_object(data)
    threads = fields.get("subscription")
    kind = fields.get("pattern")
    if not isinstance(threads, dict) or not isinstance(kind, str):
        raise ValueError("it has no subscription, or no pattern")  # noqa: TRY004 - as below
    for name, number in threads.items():
        _check_threads(name, number)
    if kind not in {Kind.WHITE_LIST, Kind.BLACK_LIST} or not threads:
        return Subscription(Kind.STATIC, threads)
    expression, number = next(iter(threads.items()))
    return matched(Kind(kind), expression, number)


def decode_partitions(data: bytes) -> tuple[int, ...]:
    """Decode the contents of a topic's node; return its partitions in order.

    Raises:
        ValueError: The contents are invalid; the message says why.
    """
    partitions = _json_object(data).get("partitions")
    if not isinstance(partitions, dict):
        raise ValueError("it has no partitions")  # noqa: TRY004 - As all that is wrong in a node.
    for name in partitions:
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise ValueError(f"{name[:20]!r} is no partition")
        if int(name) > PARTITION_MAX:
            raise ValueError(f"{name!r} is no partition")
    return tuple(sorted({int(name) for name in partitions}))


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"it is no JSON: {exc}") from None
    if not isinstance(fields, dict):
        raise ValueError("it is no JSON object")  # noqa: TRY004 - As all that is wrong in a node.
    return fields


def share_of(
    consumer: str,
    members: Mapping[str, Subscription],
    topics: Collection[str],
    partitions: Mapping[str, tuple[int, ...]],
) -> dict[TopicPartition, str]:
    """Return one member's share, with the thread of each partition, by Kafka 0.8's range formula.

    For each topic, partitions are sorted by number, and the threads of all members by name, in
    Java's order (thread 10 comes before thread 2). With p partitions and t threads each thread
    gets p // t consecutive partitions, and each of the first p % t threads one more.

    Args:
        consumer: The member's id, a key of *members*.
        members: The subscription of each member of the group.
        topics: All existing topics; needed if a subscription is a pattern.
        partitions: The partitions of the member's topics, in order; a missing topic has none.
    """
    share = {}
    by_member = {name: one.threads_by_topic(topics) for name, one in members.items()}
    for topic, own in by_member[consumer].items():
        threads = sorted(
            (
                thread_id(name, number)
                for name, reads in by_member.items()
                for number in range(reads.get(topic, 0))
            ),
            key=_as_java_sorts,
        )
        place = {thread: i for i, thread in enumerate(threads)}
        each, more = divmod(len(partitions.get(topic, ())), len(threads))
        for number in range(own):
            thread = thread_id(consumer, number)
            i = place[thread]
            first = each * i + min(i, more)
            for partition in partitions.get(topic, ())[first : first + each + (i < more)]:
                share[TopicPartition(topic, partition)] = thread
    return share


def _as_java_sorts(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")
