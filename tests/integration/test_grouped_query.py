"""`GroupedKafkaQuery` and `starting_offsets` against a real broker, daemon and Spark."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.sql import DataFrame, SparkSession

from client.blocking import connect_blocking
from client.spark import (
    GroupedKafkaQuery,
    GroupedQueryError,
    GroupedQueryFailed,
    GroupedRun,
    StartingOffsetsError,
    starting_offsets,
    starting_offsets_at,
)
from protocol.types import TopicPartition
from tests.integration.kafka_support import Broker, needs_connector
from tests.integration.spark_support import Daemon, group_of, wait_until

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


def test_a_group_of_the_listener_is_where_a_fresh_checkpoint_begins(scene: Scene) -> None:
    """Migration, or a checkpoint that was lost: Spark takes the text as it is."""
    with connect_blocking(scene.coordinator.address) as client:
        client.commit("lag", {TopicPartition(scene.topic, 0): 7})
    kafka = {"bootstrap.servers": scene.kafka.address}
    text = starting_offsets(scene.coordinator.address, "lag", [scene.topic], "latest", kafka=kafka)
    start_s = datetime.now(UTC)
    begun = starting_offsets_at(start_s, [scene.topic], kafka=kafka)
    (
        scene.spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", scene.kafka.address)
        .option("subscribe", scene.topic)
        .option("startingOffsets", text)
        .load()
        .writeStream.foreachBatch(scene.rows)
        .option("checkpointLocation", str(scene.root))
        .trigger(availableNow=True)
        .start()
        .awaitTermination(60)
    )

    assert json.loads(text) == {scene.topic: {"0": 7, "1": -1}}
    assert json.loads(begun) == {scene.topic: {"0": 10, "1": 10}}
    assert set(scene.rows.seen) == {"0-7", "0-8", "0-9"}


@pytest.mark.nightly
def test_offsets_that_do_not_fit_the_topic_are_told(scene: Scene) -> None:
    """A topic that was made anew must not be read from somewhere in the middle."""
    kafka = {"bootstrap.servers": scene.kafka.address}
    address, topic = scene.coordinator.address, scene.topic
    with connect_blocking(address) as client:
        client.commit("lag", {TopicPartition(topic, 0): 700})
        client.commit("gone", {TopicPartition(topic, 5): 1})
    with pytest.raises(StartingOffsetsError, match=r"at offset 700 .* holds 0 to 10"):
        starting_offsets(address, "lag", [topic], kafka=kafka)
    text = starting_offsets(address, "lag", [topic], kafka=kafka, out_of_range="earliest")
    with pytest.raises(StartingOffsetsError, match="has 2 partitions"):
        starting_offsets(address, "gone", [topic], kafka=kafka)
    with pytest.raises(StartingOffsetsError, match="nobody knows the partitions"):
        starting_offsets(address, "new", [topic])

    assert json.loads(text) == {topic: {"0": -2, "1": -2}}


@pytest.mark.nightly
def test_two_queries_share_a_topic_and_a_planned_stop_repeats_nothing(scene: Scene) -> None:
    """Joining and leaving cost a stop between two batches, and no message."""
    scene.kafka.produce(scene.topic, {p: [f"{p}-{i}" for i in range(10, 400)] for p in range(2)})
    first, second = scene.query(), scene.query()
    with running(first) as failures:
        wait_until("rows of the first", lambda: len(scene.rows.seen) > 50)
        with running(second) as more_failures:
            wait_until("a share for each", lambda: len(second.status.committed) == 1)
            wait_until("the other share", lambda: len(first.status.committed) == 1)
            scene.kafka.produce(scene.topic, {p: [f"{p}-more"] for p in range(2)})
            wait_until("all rows", lambda: len(scene.rows.seen) == 802)
        wait_until("all back", lambda: len(first.status.committed) == 2)
    assert not failures + more_failures

    assert scene.offsets() == {0: 401, 1: 401}
    assert set(scene.rows.seen.values()) == {1}
    assert scene.checkpoints() == []


@pytest.mark.nightly
def test_a_failing_sink_is_tried_again_and_ends_the_query_if_it_goes_on(scene: Scene) -> None:
    """From the group's offsets, without a gap; and not for ever."""
    scene.rows.fail_at = "1-3"
    query = scene.query(
        max_failures=1,
        kafka_options={"kafka.bootstrap.servers": scene.kafka.address, "maxOffsetsPerTrigger": "2"},
    )
    with pytest.raises(GroupedQueryFailed, match="the sink fails"):
        query.run()
    scene.rows.fail_at = None
    scene.query(build=available_now(scene.rows)).run()

    assert len(scene.rows.seen) == 20
    assert set(scene.rows.seen.values()) == {1}
    assert scene.offsets() == {0: 10, 1: 10}


@pytest.mark.nightly
def test_a_stateful_query_and_a_shared_file_sink_are_refused(scene: Scene, tmp_path: Path) -> None:
    """Both lose rows with a new checkpoint per run, and neither says so."""
    out = str(tmp_path / "out")

    def files(df: DataFrame, run: GroupedRun | None) -> Any:
        path = out if run is None else f"{out}/{run.name}"
        return df.writeStream.format("parquet").option("path", path).trigger(availableNow=True)

    with pytest.raises(GroupedQueryError, match="skips batch ids"):
        scene.query(build=lambda df: files(df, None)).run()
    with pytest.raises(GroupedQueryError, match="stateful"):
        scene.query(build=lambda df: available_now(scene.rows)(df.dropDuplicates(["value"]))).run()
    assert scene.offsets() == {0: 0, 1: 0}
    scene.query(build=files).run()

    assert scene.offsets() == {0: 10, 1: 10}
    assert scene.spark.read.parquet(f"{out}/grouped-*").count() == 20


@pytest.mark.nightly
def test_the_coordinator_may_be_away_for_a_while(scene: Scene) -> None:
    """The query goes on, and what it did meanwhile is committed later."""
    query = scene.query(outage_limit_s=60.0)
    with running(query) as failures:
        wait_until("all committed", lambda: scene.offsets() == {0: 10, 1: 10})
        scene.coordinator.kill()
        scene.kafka.produce(scene.topic, {0: ["during"]})
        wait_until("rows in the outage", lambda: "during" in scene.rows.seen)
        scene.coordinator.start()
        wait_until("committed at last", lambda: scene.offsets() == {0: 11, 1: 10})
    assert not failures

    assert set(scene.rows.seen.values()) == {1}
