"""Where a fresh checkpoint of Spark's Kafka source begins: at the offsets of a group, or a time.

The result is the JSON text of the option ``startingOffsets``: ``{"orders": {"0": 23, "1": -2}}``.
Spark wants every partition of every topic in it, and fails clearly if one is missing.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from client.blocking import BlockingClient, connect_blocking
from client.kafka_groups.cluster import KafkaUnavailable
from client.security import Given
from client.spark.errors import CoordinatedSourceError
from protocol.partition import TopicPartition

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

logger = logging.getLogger(__name__)

# Where a partition begins: "earliest", "latest", an offset, or the first message at or after a
# time.
Where = str | int | datetime

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

# For a partition without an offset: one position for all, or one per topic or partition.
Default = Where | Mapping[str, Where] | Mapping[TopicPartition, Where]

# Returns the offset that each position stands for, as `KafkaTopics.offsets` does.
OffsetsOf = Callable[[Mapping[TopicPartition, Where]], Mapping[TopicPartition, int]]

# Spark's numbers for "wherever it begins (ends) when the query starts".
_NUMBERS: Final = {EARLIEST: -2, LATEST: -1}

REQUEST_TIMEOUT_S: Final = 30.0


class StartingOffsetsError(CoordinatedSourceError):
    """The offsets of the group do not fit the topics; the message says what to do."""


class KafkaTopicError(CoordinatedSourceError):
    """A topic or partition that is not there, or a request that the cluster refuses for good."""


def starting_offsets(
    coordinator: str,
    group: str,
    topics: Collection[str],
    default: Default = EARLIEST,
    *,
    partitions: Mapping[str, int] | None = None,
    kafka: Mapping[str, str] | None = None,
    out_of_range: str = "error",
    request_timeout_s: float = REQUEST_TIMEOUT_S,
    security: Given = None,
) -> str:
    """Return what the option ``startingOffsets`` must be to go on where *group* is.

    ::

        spark.readStream.format("kafka").option("subscribe", "orders").option(
            "startingOffsets", starting_offsets("host:9310", "etl-orders", ["orders"])
        )

    Which partitions the topics have is asked of Kafka if *kafka* is given, else taken from
    *partitions*, else from the coordinator's registry. For a topic that is not registered either
    it is the partitions that the group has offsets for.

    Args:
        coordinator: "host:port", or several separated by commas.
        group: whose committed offsets to begin at.
        topics: all topics that the query reads.
        default: where a partition begins that the group has no offset for: "earliest",
            "latest", an offset, or a `datetime` (with a time zone) for the first message at or
            after it, which needs *kafka*; or a mapping with one of these per topic or
            `TopicPartition`.
        partitions: how many partitions each topic has.
        kafka: confluent-kafka's settings, such as ``{"bootstrap.servers": "host:9092"}``. With
            it, the offsets are checked against what Kafka holds.
        out_of_range: where a partition begins whose committed offset Kafka doesn't hold (any
            more): "error" to raise, "earliest" or "latest". Checked with *kafka* only.
        request_timeout_s: how long each question goes on trying.
        security: as of `client.connect`.

    Raises:
        StartingOffsetsError: the group has offsets of partitions that are not there or not
            held any more, or nobody knows the partitions of a topic.
        KafkaTopicError: Kafka has no such topic.
        CoordinatorUnavailable: the coordinator, or Kafka, can't be reached.
        ValueError: an argument makes no sense; the message names it.

    """
    check_topics(topics)
    check_default(default)
    if out_of_range not in {"error", EARLIEST, LATEST}:
        raise ValueError(
            f"out_of_range is {out_of_range!r}: it must be 'error', 'earliest' or 'latest'"
        )
    cluster = KafkaTopics(kafka, request_timeout_s) if kafka is not None else None
    with connect_blocking(
        coordinator.split(","),
        client_id="spark-starting-offsets",
        request_timeout_ms=round(request_timeout_s * 1000),
        security=security,
    ) as client:
        stored = client.fetch_offsets(group)
        committed = {tp: value.offset for tp, value in stored.items() if tp.topic in topics}
        known = {
            topic: cluster.partitions(topic) if cluster else _partitions(client, topic, partitions)
            for topic in topics
        }
    found = choose(group, committed, known, default)
    if cluster is not None:
        found = checked(group, committed, found, out_of_range, cluster.offsets)
    return offsets_json(found)


def starting_offsets_at(
    when: datetime,
    topics: Collection[str],
    *,
    kafka: Mapping[str, str],
    request_timeout_s: float = REQUEST_TIMEOUT_S,
) -> str:
    """Return what ``startingOffsets`` must be to begin with the messages of a time.

    Other than ``startingTimestamp``, the offsets are fixed now: a query that starts later
    begins at the same messages, and a partition without messages since then begins at its end
    (Spark fails there by default).

    Args:
        when: each partition begins with its first message at or after this time.
        topics: all topics that the query reads.
        kafka: confluent-kafka's settings, such as ``{"bootstrap.servers": "host:9092"}``.
        request_timeout_s: how long each question goes on trying.

    Raises:
        KafkaTopicError: Kafka has no such topic.
        KafkaUnavailable: Kafka can't be reached.
        ValueError: an argument makes no sense; the message names it.

    """
    check_topics(topics)
    check_default(when)
    cluster = KafkaTopics(kafka, request_timeout_s)
    wanted: dict[TopicPartition, Where] = {
        TopicPartition(topic, partition): when
        for topic in topics
        for partition in cluster.partitions(topic)
    }
    return offsets_json(cluster.offsets(wanted))


# --- Without a coordinator or Kafka ----------------------------------------------------------


def choose(
    group: str,
    committed: Mapping[TopicPartition, int],
    known: Mapping[str, Iterable[int] | None],
    default: Default,
) -> dict[TopicPartition, Where]:
    """Return where each partition begins: where the group is, else at the default.

    Args:
        group: for messages.
        committed: the group's offsets of these topics.
        known: the partitions per topic, None where nobody knows them.
        default: for partitions without an offset.

    Raises:
        StartingOffsetsError: see `starting_offsets`.

    """
    found: dict[TopicPartition, Where] = {}
    for topic, numbers in known.items():
        offsets = {tp: offset for tp, offset in committed.items() if tp.topic == topic}
        if numbers is None:
            if not offsets:
                raise StartingOffsetsError(
                    f"nobody knows the partitions of topic {topic!r}, and group {group!r} has no "
                    "offsets of it: give kafka={'bootstrap.servers': …} or "
                    f"partitions={{{topic!r}: <how many>}}, or register the topic"
                )
            logger.warning(
                "topic %r is not registered; taking the %d partitions that group %r has "
                "offsets of for all of them",
                topic,
                len(offsets),
                group,
            )
            found.update(offsets)
            continue
        there = {TopicPartition(topic, number) for number in numbers}
        if gone := sorted(offsets.keys() - there):
            raise StartingOffsetsError(
                f"group {group!r} has offsets of {', '.join(map(str, gone))}, but topic "
                f"{topic!r} has {len(there)} partitions: was it made anew? Check the names, or "
                "delete those offsets of the group"
            )
        found.update({tp: offsets.get(tp, where_of(default, tp)) for tp in there})
    return found


def checked(
    group: str,
    committed: Mapping[TopicPartition, int],
    found: Mapping[TopicPartition, Where],
    out_of_range: str,
    offsets_of: OffsetsOf,
) -> dict[TopicPartition, Where]:
    """Return *found* with times as offsets, and with committed offsets that Kafka holds.

    Raises:
        StartingOffsetsError: one that it doesn't hold, and *out_of_range* is "error".
        CoordinatorUnavailable: Kafka can't be reached.

    """
    times = {tp: where for tp, where in found.items() if isinstance(where, datetime)}
    result = {**found, **offsets_of(times)}
    ours = [tp for tp in found if tp in committed]
    earliest = offsets_of(dict.fromkeys(ours, EARLIEST))
    ends = offsets_of(dict.fromkeys(ours, LATEST))
    for tp in ours:
        if earliest[tp] <= committed[tp] <= ends[tp]:
            continue
        if out_of_range == "error":
            raise StartingOffsetsError(
                f"group {group!r} is at offset {committed[tp]} of {tp}, but Kafka holds "
                f"{earliest[tp]} to {ends[tp]}: messages were deleted before they were read, or "
                "the topic was made anew. Reset the group, or choose out_of_range='earliest' or "
                "'latest'"
            )
        logger.warning(
            "%s: group %r is at %d, Kafka holds %d to %d; beginning at the %s",
            tp,
            group,
            committed[tp],
            earliest[tp],
            ends[tp],
            out_of_range,
        )
        result[tp] = out_of_range
    return result


def where_of(default: Default, tp: TopicPartition) -> Where:
    """Return the default of one partition.

    Raises:
        StartingOffsetsError: the default is a mapping that has neither it nor its topic.

    """
    if not isinstance(default, Mapping):
        return default
    positions = cast("Mapping[object, Where]", default)  # Its keys may be mixed, too.
    where = positions.get(tp, positions.get(tp.topic))
    if where is None:
        raise StartingOffsetsError(
            f"the default names neither {tp} nor topic {tp.topic!r}, and the group has no offset "
            "there"
        )
    return where


def offsets_json(found: Mapping[TopicPartition, Where]) -> str:
    """Return Spark's JSON text for these positions.

    Raises:
        StartingOffsetsError: one is a time.

    """
    topics: dict[str, dict[str, int]] = {}
    for tp, where in sorted(found.items()):
        if isinstance(where, datetime):
            raise StartingOffsetsError(
                f"{tp} is to begin at a time, which only Kafka can turn into an offset: give "
                "kafka={'bootstrap.servers': …}"
            )
        number = where if isinstance(where, int) else _NUMBERS[where]
        topics.setdefault(tp.topic, {})[str(tp.partition)] = number
    return json.dumps(topics)


def check_topics(topics: Collection[str]) -> None:
    """Raise `ValueError` unless these are topic names."""
    if isinstance(topics, str) or not topics or not all(topics):
        raise ValueError(f"topics is {topics!r}: it must be a list of topic names")


def check_default(default: Default) -> None:
    """Raise `ValueError` unless it is a position, or a mapping of positions."""
    positions = default.values() if isinstance(default, Mapping) else (default,)
    for where in positions:
        is_known = (
            (isinstance(where, str) and where in _NUMBERS)
            or (isinstance(where, datetime) and where.tzinfo is not None)
            or (isinstance(where, int) and not isinstance(where, bool) and where >= 0)
        )
        if not is_known:
            raise ValueError(
                f"default is {where!r}: it must be 'earliest', 'latest', an offset from 0 on, or a "
                "datetime with a time zone"
            )


def _partitions(
    client: BlockingClient, topic: str, counts: Mapping[str, int] | None
) -> Iterable[int] | None:
    if counts is not None and topic in counts:
        return range(counts[topic])
    count = client.describe_topics([topic])[0].partition_count
    return range(count) if count >= 0 else None


# --- What Kafka says of its topics -----------------------------------------------------------


class KafkaTopics:
    """Asks a cluster about its topics. Needs confluent-kafka, which is loaded on first use.

    Args:
        settings: of confluent-kafka, such as ``bootstrap.servers``.
        answer_s: how long one question may take, in seconds.

    Raises:
        KafkaTopicError: confluent-kafka is not installed, or refuses the settings.

    """

    def __init__(self, settings: Mapping[str, str], answer_s: float) -> None:
        self._where = settings.get("bootstrap.servers", "?")
        self._answer_s = answer_s
        try:
            from confluent_kafka import KafkaException  # noqa: PLC0415 - an optional extra.
            from confluent_kafka.admin import AdminClient  # noqa: PLC0415 - the same.
        except ImportError as error:
            raise KafkaTopicError(
                "asking Kafka for partitions and offsets needs confluent-kafka: "
                "pip install group-coordinator[kafka]"
            ) from error
        try:
            # Its own logger, because librdkafka else writes to standard error.
            self._admin = AdminClient(dict(settings), logger=logger)
        except (KafkaException, ValueError) as error:
            raise KafkaTopicError(f"settings of confluent-kafka: {error}") from error

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic, sorted.

        Raises:
            KafkaTopicError: there is no such topic.
            KafkaUnavailable: no answer in time.

        """
        from confluent_kafka import KafkaError, KafkaException  # noqa: PLC0415 - an optional extra.

        what = f"the partitions of {topic!r}"
        try:
            found = self._admin.list_topics(topic, timeout=self._answer_s).topics[topic]
        except KafkaException as error:
            raise self._failed(what, error.args[0]) from error
        if found.error is None:
            return sorted(found.partitions)
        if found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaTopicError(
                f"there is no topic {topic!r} at {self._where}: check the name, or create it"
            )
        raise self._failed(what, found.error)

    def offsets(self, wanted: Mapping[TopicPartition, Where]) -> dict[TopicPartition, int]:
        """Return the offset that each partition's `Where` stands for.

        A time after the last message is the end of the partition.

        Raises:
            KafkaTopicError: there is no such partition.
            KafkaUnavailable: no answer in time.

        """
        found = {tp: where for tp, where in wanted.items() if isinstance(where, int)}
        found |= self._listed({tp: w for tp, w in wanted.items() if not isinstance(w, int)})
        # A time after the last message has no offset: what comes next is at the end.
        late = {tp: LATEST for tp, offset in found.items() if offset < 0}
        return found | self._listed(late)

    def _listed(self, wanted: Mapping[TopicPartition, str | datetime]) -> dict[TopicPartition, int]:
        import confluent_kafka as kafka  # noqa: PLC0415 - an optional extra.

        if not wanted:
            return {}
        request = {kafka.TopicPartition(*tp): _spec(where) for tp, where in wanted.items()}
        try:
            futures = self._admin.list_offsets(request, request_timeout=self._answer_s)
            return {
                TopicPartition(tp.topic, tp.partition): future.result(self._answer_s * 2).offset
                for tp, future in futures.items()
            }
        except kafka.KafkaException as error:
            if error.args[0].code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise KafkaTopicError(
                    f"not all of {_listing(wanted)} are there at {self._where}"
                ) from error
            raise self._failed(f"the offsets of {_listing(wanted)}", error.args[0]) from error
        except TimeoutError as error:
            raise KafkaUnavailable(
                f"no answer about the offsets of {_listing(wanted)} from {self._where}"
            ) from error

    def _failed(self, what: str, error: "KafkaError") -> Exception:
        # What librdkafka itself says (no broker, timed out) has negative codes: it passes.
        passes = error.retriable() or error.code() < 0
        return (KafkaUnavailable if passes else KafkaTopicError)(
            f"no answer about {what} from {self._where}: {error.str()}"
        )


def _spec(where: str | datetime) -> Any:
    from confluent_kafka.admin import OffsetSpec  # noqa: PLC0415 - an optional extra.

    if isinstance(where, datetime):
        return OffsetSpec.for_timestamp(int(where.timestamp() * 1000))
    spec: Any = OffsetSpec  # Its methods have no types.
    return spec.earliest() if where == EARLIEST else spec.latest()


def _listing(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(str(tp) for tp in sorted(partitions))
