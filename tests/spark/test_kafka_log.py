"""The Kafka log without Kafka: its options, how it reads, and the rows it makes."""

import builtins
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from client.spark.logs import kafka_log
from client.spark.logs.kafka_log import KafkaLog, columns, parse_kafka_options, record_batch
from client.spark.logs.partition_log import LogUnavailable, load_log
from client.spark.options import OptionError
from protocol.partition import TopicPartition

SERVERS = {"kafka.bootstrap.servers": "b:9092"}


def test_what_begins_with_kafka_goes_to_librdkafka() -> None:
    """Security, tuning: whatever it knows."""
    config = parse_kafka_options(
        {**SERVERS, "Kafka.security.protocol": "SASL_SSL", "path": "/x", "topics": "t"}
    )

    assert config.consumer["security.protocol"] == "SASL_SSL"
    assert config.admin["security.protocol"] == "SASL_SSL"
    assert "path" not in config.consumer
    assert config.consumer["auto.offset.reset"] == "error"
    assert config.consumer["group.id"] == "group-coordinator-reader"
    assert config.committed_only
    assert (config.include_headers, config.timeout_s) == (False, 30.0)


def test_a_users_value_goes_before_a_default() -> None:
    """The defaults are for speed only."""
    config = parse_kafka_options(
        {
            **SERVERS,
            "group": "etl",
            "kafka.fetch.wait.max.ms": "77",
            "kafka.group.id": "mine",
            "kafka.isolation.level": "read_uncommitted",
            "log.timeout": "1500ms",
            "log.includeHeaders": "TRUE",
        }
    )

    assert config.consumer["fetch.wait.max.ms"] == "77"
    assert config.consumer["group.id"] == "mine"
    assert config.consumer["client.id"] == "group-coordinator-etl"
    assert not config.committed_only
    assert (config.include_headers, config.timeout_s) == (True, 1.5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "option 'kafka.bootstrap.servers' is missing"),
        ({"kafka.bootstrap.servers": " "}, "option 'kafka.bootstrap.servers' is missing"),
        ({**SERVERS, "kafka.auto.offset.reset": "latest"}, "'kafka.auto.offset.reset' can't be"),
        ({**SERVERS, "kafka.enable.auto.commit": "true"}, "'kafka.enable.auto.commit' can't be"),
        ({**SERVERS, "kafka.sasl.jaas.config": "x"}, "for Kafka's Java client.*sasl.username"),
        ({**SERVERS, "kafka.ssl.truststore.location": "x"}, "Java client.*ssl.ca.location"),
        ({**SERVERS, "kafka.isolation.level": "dirty"}, "'kafka.isolation.level' is 'dirty'"),
        ({**SERVERS, "log.includeheaders": "yes"}, "'log.includeHeaders' is 'yes'"),
        ({**SERVERS, "log.timeout": "soon"}, "'log.timeout' is 'soon'"),
        ({**SERVERS, "log.timeout": "0s"}, "'log.timeout' is '0s'"),
        ({**SERVERS, "log.timeuot": "1s"}, "'log.timeuot' is unknown to a Kafka log"),
    ],
)
def test_a_wrong_option_is_named(given: Mapping[str, str], message: str) -> None:
    """Before anything is connected."""
    with pytest.raises(OptionError, match=message):
        KafkaLog(given)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ImportError alone doesn't say what to install."""
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("confluent_kafka"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    for module in [m for m in sys.modules if m.startswith("client.spark.logs.kafka_")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(builtins, "__import__", without)

    with pytest.raises(OptionError, match=r"pip install group-coordinator\[kafka\]"):
        load_log({"log": "kafka", **SERVERS})


# --- Ranges --------------------------------------------------------------------------------


CONFIG = parse_kafka_options({"kafka.bootstrap.servers": "nowhere:1", "log.timeout": "30s"})
TP = TopicPartition("t", 0)


class Message:
    """A row."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        """Where it is."""
        return self._offset

    def error(self) -> None:
        """It is one."""


class Broker:
    """Gives what is asked of a consumer; time passes only here and in the test."""

    def __init__(self, answers: list[list[Message]]) -> None:
        self.answers = iter(answers)
        self.last_error = ""
        self.consumer = self
        self.now_s = 0.0

    def assign(self, _partitions: list[Any]) -> None:
        """Begin."""

    def unassign(self) -> None:
        """End."""

    def close(self) -> None:
        """End early."""

    def consume(self, _count: int, _timeout_s: float) -> list[Message]:
        """Return what is there."""
        return next(self.answers, [])

    def poll(self, timeout_s: float) -> None:
        """Wait for nothing."""
        self.now_s += timeout_s


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """Three rows, with nothing for a moment after the first."""
    made = Broker([[Message(0)], [], [Message(1), Message(2)]])
    monkeypatch.setattr(kafka_log, "take_consumer", lambda _config: made)
    monkeypatch.setattr(kafka_log, "give_back", lambda _lease: None)
    monkeypatch.setattr(kafka_log, "time", SimpleNamespace(monotonic=lambda: made.now_s))
    return made


def test_a_task_may_be_busy_with_rows_for_longer_than_the_timeout(broker: Broker) -> None:
    """That time is the task's, not Kafka's."""
    found = []
    for rows in kafka_log.RangeReader(CONFIG, TP, 0, 3):
        found += [row.offset() for row in rows]
        broker.now_s += 3600

    assert found == [0, 1, 2]


def test_a_silent_broker_is_given_up_after_the_timeout(broker: Broker) -> None:
    """Else the batch would wait for ever."""
    with pytest.raises(LogUnavailable, match="nothing from offset 3 on within 30 s"):
        list(kafka_log.RangeReader(CONFIG, TP, 0, 4))

    assert 30 < broker.now_s < 31


# --- Messages as rows ----------------------------------------------------------------------


class Sent(NamedTuple):
    """A message as confluent-kafka shows it."""

    at: int
    time: tuple[int, int]
    given_headers: list[tuple[str, bytes | None]] | None = None

    def offset(self) -> int:
        """Return the offset."""
        return self.at

    def key(self) -> bytes | None:
        """Return the key."""
        return None

    def value(self) -> bytes | None:
        """Return the value."""
        return b"v%d" % self.at

    def timestamp(self) -> tuple[int, int]:
        """Return kind and milliseconds."""
        return self.time

    def headers(self) -> list[tuple[str, bytes | None]] | None:
        """Return the headers."""
        return self.given_headers


@pytest.mark.parametrize("include_headers", [True, False])
def test_messages_become_rows_of_the_promised_columns(include_headers: bool) -> None:
    """Times may be unknown, or of both kinds; Spark's own source counts them from -1."""
    sent = [
        Sent(4, (1, 1500), [("a", b"1"), ("a", None)]),
        Sent(6, (2, 2500)),
        Sent(9, (0, -1), []),
    ]

    batch = record_batch(sent, include_headers=include_headers)

    rows: list[dict[str, Any]] = batch.to_pylist()
    assert batch.schema.remove(0) == columns(include_headers=include_headers)
    assert [row["offset"] for row in rows] == [4, 6, 9]
    assert [row["value"] for row in rows] == [b"v4", b"v6", b"v9"]
    assert [row["timestampType"] for row in rows] == [0, 1, -1]
    assert [row["timestamp"] and row["timestamp"].timestamp() for row in rows] == [1.5, 2.5, None]
    if include_headers:
        first = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
        assert [row["headers"] for row in rows] == [first, None, []]


def test_times_of_one_kind_are_the_usual_case() -> None:
    """Then the kind isn't looked at row by row."""
    batch = record_batch([Sent(0, (1, 7)), Sent(1, (1, 8))], include_headers=False)

    assert batch["timestampType"].to_pylist() == [0, 0]
    assert batch["timestamp"].null_count == 0
