"""Current end offsets of partitions: from the coordinator's registry, Kafka, or a log."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from client.blocking import connect_blocking
from client.security import Given
from client.spark.logs.partition_log import load_log
from protocol.messages import DescribedTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("begin_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("sampled_at", pa.timestamp("us", tz="UTC")),
    ]
)
# Default time for an answer of Kafka, in seconds.
KAFKA_S: Final = 30.0


class End(NamedTuple):
    """Begin and end of one partition at one time; *begin_offset* is None if unknown."""

    topic: str
    partition: int
    begin_offset: int | None
    end_offset: int
    sampled_at: datetime


def registry_ends(
    spark: "SparkSession",
    coordinator: str,
    *,
    topics: Sequence[str] | None = None,
    pattern: str | None = None,
    security: Given = None,
) -> "DataFrame":
    """Return the end offsets that were reported to the coordinator, with the time of the report.

    Args:
        spark: the session.
        coordinator: ``host:port``, or several of them separated by commas.
        topics: names of the topics; None for those that match *pattern*, or all.
        pattern: a regular expression in RE2's syntax.
        security: as for `client.connect`.

    Raises:
        CoordinatorUnavailable: no coordinator could be reached in time.

    """
    addresses = [address.strip() for address in coordinator.split(",")]
    with connect_blocking(addresses, client_id="lag", security=security) as client:
        described = client.describe_topics(topics, pattern, with_end_offsets=True)
    return frame(spark, registered(described))


def registered(described: Iterable[DescribedTopic]) -> list[End]:
    """Return the end offsets in the registry's descriptions of topics."""
    return [
        End(
            topic.topic,
            end.partition,
            None,
            end.end_offset,
            datetime.fromtimestamp(end.reported_ms / 1000, UTC),
        )
        for topic in described
        for end in topic.end_offsets
    ]


def kafka_ends(
    spark: "SparkSession",
    config: Mapping[str, str],
    *,
    topics: Sequence[str] | None = None,
    timeout_s: float = KAFKA_S,
) -> "DataFrame":
    """Return the begin and end offsets of the partitions of a Kafka cluster.

    Args:
        spark: the session.
        config: settings of confluent-kafka's clients, at least ``bootstrap.servers``.
        topics: names of the topics; None for all except Kafka's internal ones.
        timeout_s: how long to wait for each answer.

    Raises:
        ImportError: confluent-kafka isn't installed.
        confluent_kafka.KafkaException: Kafka refuses, or doesn't answer in time.
        ValueError: a topic doesn't exist.

    """
    try:
        from confluent_kafka import KafkaException, TopicPartition  # noqa: PLC0415 - An extra.
        from confluent_kafka.admin import AdminClient, OffsetSpec  # noqa: PLC0415 - An extra.
    except ImportError as error:
        raise ImportError(
            "the end offsets of Kafka need confluent-kafka: pip install group-coordinator[kafka]"
        ) from error
    admin = AdminClient(dict(config))
    found = admin.list_topics(timeout=timeout_s).topics
    names = [name for name in found if not name.startswith("__")] if topics is None else topics
    unknown = [name for name in names if name not in found]
    if unknown:
        raise ValueError(f"Kafka has no topic {', '.join(map(repr, sorted(unknown)))}")
    partitions = [
        TopicPartition(name, partition) for name in names for partition in found[name].partitions
    ]

    def bounds(spec: Any) -> dict[tuple[str, int], int]:
        futures = admin.list_offsets(dict.fromkeys(partitions, spec), request_timeout=timeout_s)
        return {(tp.topic, tp.partition): one.result().offset for tp, one in futures.items()}

    if not partitions:
        return frame(spark, [])
    try:
        begins = bounds(OffsetSpec.earliest())  # type: ignore[no-untyped-call]  # It has no types.
        ends = bounds(OffsetSpec.latest())  # type: ignore[no-untyped-call]  # The same.
    except KafkaException as error:
        raise KafkaException(error.args[0], f"no end offsets of {', '.join(names)}") from error
    now = datetime.now(UTC)
    return frame(spark, [End(*key, begins[key], end, now) for key, end in ends.items()])


def log_ends(
    spark: "SparkSession", options: Mapping[str, str], topics: Sequence[str]
) -> "DataFrame":
    """Return the begin and end offsets of the partitions of a `PartitionLog`.

    Args:
        spark: the session.
        options: as for the format ``coordinated``: ``log`` and the options of that log.
        topics: names of the topics.

    Raises:
        OptionError: the option ``log`` names no log.
        LogError: the log can't be read.

    """
    log = load_log({name.lower(): value for name, value in options.items()})
    now = datetime.now(UTC)
    return frame(
        spark,
        [
            End(topic, partition, *log.bounds(topic, partition), now)
            for topic in topics
            for partition in log.partitions(topic)
        ],
    )


def frame(spark: "SparkSession", ends: Iterable[End]) -> "DataFrame":
    """Return ends as a DataFrame."""
    columns = list(zip(*ends, strict=True)) or [() for _ in SCHEMA]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return spark.createDataFrame(pa.Table.from_arrays(arrays, schema=SCHEMA))
