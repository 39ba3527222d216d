"""`GroupedKafkaQuery` and `starting_offsets` against a real broker, daemon and Spark."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession

from client.spark import (
    GroupedKafkaQuery,
)
from tests.integration.kafka_support import Broker, needs_connector
from tests.integration.spark_support import Daemon, group_of

pytestmark = [pytest.mark.integration, pytest.mark.spark, needs_connector]

GROUP = "g"


@pytest.fixture
def topic(kafka: Broker) -> str:
    """A topic of its own, with two partitions of ten values each."""
    name = f"orders-{uuid4().hex[:8]}"
    kafka.create(name, 2)
    kafka.produce(name, {p: [f"{p}-{i}" for i in range(10)] for p in range(2)})
    return name


class Rows:
    """Collects what a query reads."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.fail_at: str | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Take the values of a batch."""
        values = [row[0] for row in batch.selectExpr("CAST(value AS STRING)").collect()]
        if self.fail_at in values:
            raise ValueError("the sink fails")
        self.seen.update(values)


class Scene:
    """What all queries of a test share."""

    def __init__(
        self, spark: SparkSession, coordinator: Daemon, kafka: Broker, topic: str, folder: Path
    ) -> None:
        self.spark = spark
        self.coordinator = coordinator
        self.kafka = kafka
        self.topic = topic
        self.root = folder / "ck"
        self.rows = Rows()

    def query(self, **given: Any) -> GroupedKafkaQuery:
        """Return a query that appends to `rows`, with a few arguments changed."""
        arguments: dict[str, Any] = {
            "coordinator": self.coordinator.address,
            "group": GROUP,
            "topics": [self.topic],
            "kafka_options": {
                "kafka.bootstrap.servers": self.kafka.address,
                "maxOffsetsPerTrigger": "10",
            },
            "build": lambda df: df.writeStream.foreachBatch(self.rows),
            "checkpoint_root": str(self.root),
            "session_timeout_s": 10.0,
            "rebalance_timeout_s": 30.0,
            "coordinator_timeout_s": 30.0,
            **given,
        }
        return GroupedKafkaQuery(self.spark, **arguments)

    def offsets(self) -> dict[int, int]:
        """Return what the group has committed."""
        with group_of(self.coordinator) as group:
            return group.offsets()

    def checkpoints(self) -> list[str]:
        """Return the checkpoints that are there."""
        folder = self.root / GROUP
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture
def scene(
    spark: SparkSession, coordinator: Daemon, kafka: Broker, topic: str, tmp_path: Path
) -> Scene:
    """A topic with twenty values, and no query."""
    return Scene(spark, coordinator, kafka, topic, tmp_path)


@contextmanager
def running(query: GroupedKafkaQuery) -> Iterator[list[BaseException]]:
    """Run it in a thread; stop it at the end."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            query.run()
        except BaseException as error:  # noqa: BLE001 - handed to the test.
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield failures
    finally:
        query.stop()
        thread.join(60)
        assert not thread.is_alive()


def available_now(rows: Rows) -> Any:
    """Return a `build` of a query that ends by itself."""
    return lambda df: df.writeStream.foreachBatch(rows).trigger(availableNow=True)


def test_a_query_that_ends_by_itself_commits_and_leaves_nothing_behind(scene: Scene) -> None:
    """The daily job: all of what is there, each message once, the next one goes on behind it."""
    scene.query(build=available_now(scene.rows)).run()

    assert scene.offsets() == {0: 10, 1: 10}
    scene.kafka.produce(scene.topic, {0: ["more"]})
    scene.query(build=available_now(scene.rows)).run()

    assert len(scene.rows.seen) == 21
    assert set(scene.rows.seen.values()) == {1}
    assert scene.offsets() == {0: 11, 1: 10}
    assert scene.checkpoints() == []
