"""Kafka topics as a partitioned log, on a real broker."""

import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from client.spark.logs.kafka_log import KafkaLog
from client.spark.logs.partition_log import LogError, LogUnavailable
from client.spark.logs.testkit import CHECKS, Check, LogSubject
from client.spark.options import OptionError
from client.spark.sinks import DeltaSink, SinkError
from protocol.partition import TopicPartition
from tests.fakes.frames import batch_of
from tests.integration.kafka_support import ANSWER_S, Broker
from tests.integration.spark_support import Daemon, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.fixture
def topic() -> str:
    """A name of its own for each test."""
    return f"t-{uuid4().hex}"


def log_of(kafka: Broker, **given: str) -> KafkaLog:
    """Return a log that doesn't wait for long."""
    return KafkaLog({"kafka.bootstrap.servers": kafka.address, "log.timeout": "10s", **given})


def values(log: KafkaLog, topic: str, start: int, end: int) -> dict[int, bytes]:
    """Read a range of partition 0: the value by offset."""
    return {
        row["offset"]: row["value"]
        for batch in log.read(topic, 0, start, end)
        for row in batch.to_pylist()
    }


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Return values that name their place."""
    return [b"%d" % i for i in range(first, first + count)]


@pytest.mark.nightly
def test_any_cut_of_a_topic_is_read_whole(kafka: Broker, topic: str) -> None:
    """Also when one consumer reads one range after another."""
    kafka.create(topic, 2)
    kafka.produce(topic, {0: numbered(40), 1: numbered(3)})
    log = log_of(kafka)

    assert log.partitions(topic) == [0, 1]
    assert topic in log.topics()
    assert not [name for name in log.topics() if name.startswith("__")]
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert log.all_bounds(both) == {both[0]: (0, 40), both[1]: (0, 3)}
    assert log.hosts(topic, 1) == ("127.0.0.1",)
    for start, end in [(0, 40), (0, 1), (39, 40), (7, 7), (5, 23), (23, 40)]:
        assert values(log, topic, start, end) == {i: b"%d" % i for i in range(start, end)}


@pytest.mark.nightly
def test_keys_times_and_headers_come_with_the_values(kafka: Broker, topic: str) -> None:
    """They are what Spark's own Kafka source has."""
    kafka.create(topic, 1)
    producer = Producer({"bootstrap.servers": kafka.address})
    producer.produce(topic, b"v", b"k", timestamp=1_700_000_000_123, headers=[("a", b"1")])
    producer.produce(topic, None, None, timestamp=1_700_000_000_124)
    producer.flush(ANSWER_S)
    log = log_of(kafka, **{"log.includeheaders": "true"})

    (batch,) = log.read(topic, 0, 0, 2)

    first, second = batch.to_pylist()
    assert first["timestamp"].timestamp() == pytest.approx(1_700_000_000.123)
    del first["timestamp"], second["timestamp"]
    assert first == {
        "offset": 0,
        "key": b"k",
        "value": b"v",
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"1"}],
    }
    assert second == {
        "offset": 1,
        "key": None,
        "value": None,
        "timestampType": 0,
        "headers": None,
    }
    assert batch.schema.remove(0) == log.schema(topic)


@pytest.mark.nightly
def test_a_time_is_found_in_each_partition(kafka: Broker, topic: str) -> None:
    """A partition without so late a row begins at its end."""
    kafka.create(topic, 2)
    producer = Producer({"bootstrap.servers": kafka.address})
    for at in range(5):
        producer.produce(topic, b"x", partition=0, timestamp=1_700_000_000_000 + at * 1000)
    producer.produce(topic, b"x", partition=1, timestamp=1_600_000_000_000)
    producer.flush(ANSWER_S)
    both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]

    found = log_of(kafka).offsets_at(both, 1_700_000_001_500)

    assert found == {both[0]: 2, both[1]: 1}


def _transactions(kafka: Broker, topic: str) -> Producer:
    """Write rows 0-4 committed (marker 5), 6-8 aborted (marker 9), 10-11 left open."""
    producer = Producer({"bootstrap.servers": kafka.address, "transactional.id": topic})
    producer.init_transactions(ANSWER_S)
    for first, count, finish in [
        (0, 5, producer.commit_transaction),
        (6, 3, producer.abort_transaction),
    ]:
        producer.begin_transaction()
        for value in numbered(count, first):
            producer.produce(topic, value, partition=0)
        producer.flush(ANSWER_S)
        finish(ANSWER_S)
    producer.begin_transaction()
    for value in numbered(2, 10):
        producer.produce(topic, value, partition=0)
    producer.flush(ANSWER_S)
    return producer


@pytest.mark.nightly
def test_only_committed_transactions_are_read(kafka: Broker, topic: str) -> None:
    """Their markers are gaps, and the bounds end before what is still open."""
    kafka.create(topic, 1)
    producer = _transactions(kafka, topic)
    log = log_of(kafka)

    assert log.bounds(topic, 0) == (0, 10)
    assert values(log, topic, 0, 10) == {i: b"%d" % i for i in range(5)}
    assert values(log, topic, 5, 10) == {}
    assert values(log, topic, 8, 9) == {}

    producer.commit_transaction(ANSWER_S)
    wait_until("the last marker", lambda: log.bounds(topic, 0) == (0, 13))
    assert values(log, topic, 5, 13) == {10: b"10", 11: b"11"}


@pytest.mark.nightly
def test_markers_and_aborted_rows_are_no_gap_to_a_sink(
    kafka: Broker, topic: str, tmp_path: Path
) -> None:
    """A range of nothing else comes to no sink, so the next one begins later than it expects."""
    kafka.create(topic, 1)
    _transactions(kafka, topic).commit_transaction(ANSWER_S)
    log = {"log": "kafka", "kafka.bootstrap.servers": kafka.address}
    sink = DeltaSink(tmp_path / "a", "g", log=log)
    short = DeltaSink(tmp_path / "b", "g", log=log)

    sink(batch_of((0, 0, 5, 1), topic=topic), 0)
    sink(batch_of((0, 10, 13, 1), topic=topic), 1)
    short(batch_of((0, 0, 4, 1), topic=topic), 0)
    with pytest.raises(SinkError, match="up to 4 only"):
        short(batch_of((0, 10, 13, 1), topic=topic), 1)

    assert list(sink.positions().values()) == [13]


@pytest.mark.nightly
def test_uncommitted_rows_are_read_if_asked_for(kafka: Broker, topic: str) -> None:
    """As Spark's own source does."""
    kafka.create(topic, 1)
    producer = _transactions(kafka, topic)
    log = log_of(kafka, **{"kafka.isolation.level": "read_uncommitted"})

    assert log.bounds(topic, 0) == (0, 12)
    assert sorted(values(log, topic, 0, 12)) == [0, 1, 2, 3, 4, 6, 7, 8, 10, 11]
    producer.abort_transaction(ANSWER_S)


@pytest.mark.nightly
def test_a_compacted_topic_is_read_over_its_gaps(kafka: Broker, topic: str) -> None:
    """Whatever of a range is left; also a range of which nothing is."""
    kafka.create(
        topic,
        1,
        **{
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.001",
            "segment.ms": "100",
            "segment.bytes": "1048576",
            "delete.retention.ms": "0",
        },
    )
    producer = Producer({"bootstrap.servers": kafka.address})
    log = log_of(kafka)
    for i in range(50):
        producer.produce(topic, b"%d" % i, key=b"%d" % (i % 5), partition=0)
    producer.flush(ANSWER_S)
    count = 50

    def cleaned() -> bool:
        # A segment is only cleaned once another one was begun.
        nonlocal count
        producer.produce(topic, b"%d" % count, key=b"last", partition=0)
        producer.flush(ANSWER_S)
        count += 1
        time.sleep(0.5)
        return len(values(log, topic, 0, 50)) <= 5

    wait_until("the cleaner", cleaned, 90)

    assert values(log, topic, 0, 50) == {i: b"%d" % i for i in range(45, 50)}
    assert values(log, topic, 10, 20) == {}
    assert values(log, topic, 10, 47) == {45: b"45", 46: b"46"}
    assert log.bounds(topic, 0) == (0, count)


@pytest.mark.nightly
def test_deleted_rows_are_not_passed_over(kafka: Broker, topic: str) -> None:
    """The log's start moves; a range from before it is an error, at once."""
    kafka.create(topic, 1)
    kafka.produce(topic, {0: numbered(10)})
    log = log_of(kafka)
    assert len(values(log, topic, 0, 10)) == 10

    kafka.delete_records(topic, 0, 4)

    assert log.bounds(topic, 0) == (4, 10)
    assert sorted(values(log, topic, 4, 10)) == [4, 5, 6, 7, 8, 9]
    with pytest.raises(LogError, match=rf"{topic}-0: the rows from 2 to 10 are missing"):
        values(log, topic, 2, 10)


@pytest.mark.nightly
def test_a_topic_grows_while_it_is_read(kafka: Broker, topic: str) -> None:
    """More rows, and more partitions."""
    kafka.create(topic, 1)
    log = log_of(kafka)
    assert log.bounds(topic, 0) == (0, 0)
    assert list(log.read(topic, 0, 0, 0)) == []

    kafka.produce(topic, {0: numbered(3)})
    assert log.bounds(topic, 0) == (0, 3)
    kafka.grow(topic, 3)

    wait_until("the new partitions", lambda: log.partitions(topic) == [0, 1, 2])
    assert log.bounds(topic, 2) == (0, 0)
    assert len(values(log, topic, 0, 3)) == 3


@pytest.mark.nightly
def test_a_topic_that_was_made_anew_shows(kafka: Broker, topic: str) -> None:
    """By its id and its bounds; what is beyond its end is an error, not a wait without end."""
    kafka.create(topic, 1)
    kafka.produce(topic, {0: numbered(10)})
    log = log_of(kafka, **{"log.timeout": "3s"})
    before = log.topic_id(topic)
    assert len(values(log, topic, 0, 10)) == 10

    kafka.delete(topic)

    def gone() -> bool:
        try:
            log.partitions(topic)
        except LogError as error:
            return "there is none at" in str(error)
        return False

    wait_until("the deletion", gone)
    kafka.create(topic, 1)
    kafka.produce(topic, {0: [b"new-0", b"new-1"]})

    wait_until("the new topic", lambda: log.bounds(topic, 0) == (0, 2))
    assert log.topic_id(topic) not in {before, None}
    assert values(log, topic, 0, 2) == {0: b"new-0", 1: b"new-1"}
    with pytest.raises(LogError, match=f"{topic}-0: "):
        values(log, topic, 0, 10)


@pytest.mark.nightly
def test_what_is_not_there_is_named(kafka: Broker, topic: str) -> None:
    """A wrong topic is the most likely mistake; looking must not make it."""
    log = log_of(kafka)
    for _ in range(2):
        with pytest.raises(LogError, match=f"topic '{topic}': there is none at Kafka"):
            log.partitions(topic)
    with pytest.raises(LogError, match="there is none"):
        log.bounds(topic, 0)
    with pytest.raises(LogError, match=rf"{topic}"):
        values(log, topic, 0, 1)

    kafka.create(topic, 1)
    with pytest.raises(LogError, match="has no partition 7"):
        log.bounds(topic, 7)


@pytest.mark.nightly
def test_librdkafka_refuses_what_it_does_not_know(kafka: Broker, topic: str) -> None:
    """With the property's name."""
    with pytest.raises(OptionError, match=r"kafka\.….*no\.such\.property"):
        log_of(kafka, **{"kafka.no.such.property": "1"}).partitions(topic)


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address that is bound and never answers."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@pytest.mark.nightly
def test_a_broker_that_is_away_is_waited_for_with_a_bound(nowhere: str) -> None:
    """Every call ends, with the address, the option, and why."""
    log = KafkaLog({"kafka.bootstrap.servers": nowhere, "log.timeout": "2s"})
    for call in (
        lambda: log.partitions("t"),
        lambda: log.bounds("t", 0),
        log.topics,
        lambda: log.topic_id("t"),
        lambda: list(log.read("t", 0, 0, 1)),
    ):
        began_s = time.monotonic()
        with pytest.raises(LogUnavailable, match=rf"{nowhere}.* 2 s \(option 'log.timeout'\)"):
            call()
        assert time.monotonic() - began_s < 15


def test_the_coordinated_source_reads_a_kafka_topic(
    spark: SparkSession, coordinator: Daemon, kafka: Broker, topic: str
) -> None:
    """With transactions in it: what is missing in a range is no loss."""
    kafka.create(topic, 2)
    producer = _transactions(kafka, topic)
    producer.commit_transaction(ANSWER_S)
    kafka.produce(topic, {1: numbered(4)})
    rows = (
        spark.readStream.format("coordinated")
        .options(
            **{
                "coordinator": coordinator.address,
                "group": topic,
                "topics": topic,
                "log": "kafka",
                "kafka.bootstrap.servers": kafka.address,
                "maxRowsPerPartition": "3",
            }
        )
        .load()
    )
    query = (
        rows.writeStream.format("memory")
        .queryName(topic.replace("-", "_"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)

    found = spark.sql(
        "select partition, offset, cast(value as string), range_start, range_end "
        f"from {topic.replace('-', '_')}"
    ).collect()

    assert sorted((row[0], row[1], row[2]) for row in found) == [
        *((0, i, str(i)) for i in (0, 1, 2, 3, 4, 10, 11)),
        *((1, i, str(i)) for i in range(4)),
    ]
    assert all(row.range_start <= row.offset < row.range_end for row in found)


@pytest.mark.nightly
def test_the_admin_client_is_only_told_what_it_knows(
    kafka: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    """It writes a warning for each consumer's property."""
    assert log_of(kafka).topics() is not None

    assert "CONFWARN" not in capfd.readouterr().err


class KafkaSubject(LogSubject):
    """A topic with two partitions for the conformance kit."""

    patience_s = 10.0

    def __init__(self, kafka: Broker, topic: str) -> None:
        self.topic = topic
        self._kafka = kafka
        self._count = 0
        kafka.create(topic, 2)

    def options(self) -> Mapping[str, str]:
        """Return the options of a Kafka log."""
        servers = {"kafka.bootstrap.servers": self._kafka.address}
        return {"log": "kafka", "log.timeout": "5s", **servers}

    def append(self, partition: int, count: int) -> None:
        """Append values that are all different."""
        self._kafka.produce(self.topic, {partition: numbered(count, self._count)})
        self._count += count

    def delete_before(self, partition: int, offset: int) -> None:
        """Delete records."""
        self._kafka.delete_records(self.topic, partition, offset)

    def grow(self) -> None:
        """Add a partition."""
        self._kafka.grow(self.topic, 3)


@pytest.mark.nightly
@pytest.mark.parametrize("check", CHECKS, ids=str)
def test_the_kafka_log_keeps_the_rules(check: Check, kafka: Broker, topic: str) -> None:
    """All that the coordinated source relies on."""
    check(KafkaSubject(kafka, topic))
