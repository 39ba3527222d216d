"""A group of Kafka 0.8's consumers as znodes: who is in it, what they read, who has what. Pure.

The layout is that of Kafka 0.8 (its wiki, "Kafka data structures in Zookeeper"):

  /consumers/GROUP/ids/CONSUMER               what it subscribes to; ephemeral
  /consumers/GROUP/owners/TOPIC/PARTITION     the consumer's thread that has it; ephemeral
  /brokers/topics/TOPIC                       the topic's partitions

Nobody decides for the group. Each consumer reads the first and the last, comes to the same
result by the same formula (`share_of`), and makes the nodes of its own share. So all of this is
written, read and sorted exactly as the consumers of old do it.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from protocol.partition import TopicPartition

CONSUMERS: Final = "/consumers"
TOPICS: Final = "/brokers/topics"

# The consumers of old leave it out of what a pattern matches, by default.
INTERNAL_TOPIC: Final = "__consumer_offsets"
# More than any topic has partitions. Each has a name, and all names of a topic are sorted.
THREADS_MAX: Final = 10_000
PARTITION_MAX: Final = 2**31 - 1


def ids_path(group: str, *consumer_id: str) -> str:
    """Return the directory of a group's members, or one of them."""
    return "/".join((CONSUMERS, group, "ids", *consumer_id))


def owner_path(group: str, tp: TopicPartition) -> str:
    """Return the node whose maker has the partition."""
    return f"{CONSUMERS}/{group}/owners/{tp.topic}/{tp.partition}"


def topic_path(topic: str) -> str:
    """Return the node with a topic's partitions."""
    return f"{TOPICS}/{topic}"


def consumer_id(group: str, host: str, now_ms: int, unique: int) -> str:
    """Return a member's id as 0.8 makes it; *unique* is a random number of 32 bits."""
    return f"{group}_{host}-{now_ms}-{unique:08x}"


def thread_id(consumer: str, number: int) -> str:
    """Return the name of a consumer's thread, which is what an owner's node holds."""
    return f"{consumer}-{number}"


class Kind(StrEnum):
    """How a subscription names its topics, in 0.8's words."""

    STATIC = "static"
    WHITE_LIST = "white_list"
    BLACK_LIST = "black_list"


class Subscription(NamedTuple):
    """What one consumer reads.

    Attributes:
        kind: Whether topics are named, or matched.
        threads: How many threads share a topic's partitions, by topic; of the two lists, by the
            one regular expression that stands for the topics.
        expression: That expression; None where topics are named.

    """

    kind: Kind
    threads: Mapping[str, int]
    expression: re.Pattern[str] | None = None

    @property
    def is_pattern(self) -> bool:
        """Whether it depends on which topics there are."""
        return self.expression is not None

    def threads_by_topic(self, topics: Iterable[str]) -> Mapping[str, int]:
        """Return how many threads it has for each topic that it reads.

        *topics* are those that exist; they matter to a pattern only.
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
        ValueError: A number makes no sense, or there is no topic.
    """
    if not threads:
        raise ValueError("a consumer reads at least one topic")
    for topic, number in threads.items():
        _check_threads(topic, number)
    return Subscription(Kind.STATIC, dict(threads))


def matched(kind: Kind, expression: str, number: int) -> Subscription:
    """Return a subscription to what an expression of Java matches, or does not, by *kind*.

    0.8 takes lists of names, too: a comma stands for "or", spaces and quotes around it for nothing.

    Raises:
        ValueError: It is no expression, or none that Java and Python take for the same.
    """
    text = re.sub("^[\"']+|[\"']+$", "", expression.strip().replace(",", "|").replace(" ", ""))
    _check_threads(text, number)
    return Subscription(kind, {text: number}, java_expression(text))


def _check_threads(name: str, number: object) -> None:
    if type(number) is not int or not 1 <= number <= THREADS_MAX:
        raise ValueError(f"{name!r} has {number!r} threads; they are 1 to {THREADS_MAX}")


# What both languages take for the same; all topics are ASCII. A backslash in front of anything
# that is no letter or digit takes away its meaning in both.
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
    """Return a regular expression of Java's as one of Python's.

    A member that read another's expression in its own way would come to another share, and one
    partition would have two that want it, or none.

    Raises:
        ValueError: It is none, or has something that only one of the two knows.
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
    """Return what stands in a member's node, byte for byte as 0.8 writes it."""
    fields = {
        "version": 1,
        "subscription": dict(subscription.threads),
        "pattern": subscription.kind.value,
        "timestamp": str(now_ms),
    }
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decode_registration(data: bytes) -> Subscription:
    """Read a member's node.

    0.8 asks for ``subscription`` and ``pattern`` only; what is neither of the lists is static.

    Raises:
        ValueError: It is something else; the message says what is wrong.
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
    """Read a topic's node; return its partitions in order.

    Raises:
        ValueError: It is something else; the message says what is wrong.
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
    """Return what one member is to own, and the thread of each, by 0.8's range formula.

    Of each topic the partitions are laid out by number and all members' threads by name, as Java
    sorts it (so thread 10 comes before thread 2). With p partitions and t threads each thread
    gets p // t in a row, and each of the first p % t threads one more.

    Args:
        consumer: The member's id, a key of *members*.
        members: Who is in the group, and what each reads.
        topics: Those that exist, for the patterns among them.
        partitions: Of the member's topics, in order; a topic that isn't there has none.
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
