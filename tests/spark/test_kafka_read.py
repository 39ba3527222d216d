"""How a range of a Kafka partition is read, without a broker."""

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from client.spark.logs import kafka_log
from client.spark.logs.kafka_log import parse_kafka_options
from client.spark.logs.partition_log import LogUnavailable
from protocol.partition import TopicPartition

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
