"""The listener on real queries: a Kafka cluster's own group, several sources, catching up."""

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyspark
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.query import StreamingQuery

from bench.peer_jars import spark_jars
from client.spark import GroupOffsetListener
from client.spark.listener.checkpoint import LocalFiles, SparkFiles, read_finished
from tests.integration.kafka_support import Broker, needs_connector
from tests.integration.spark_support import (
    DEADLINE_S,
    ROOT,
    TOPIC,
    Daemon,
    Feeder,
    group_of,
    stream,
    wait_until,
)

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def new_topic(kafka: Broker, ends: Mapping[int, int]) -> str:
    """Make a topic with so many messages per partition."""
    topic = f"t{uuid4().hex[:8]}"
    kafka.create(topic, len(ends))
    kafka.produce(topic, {p: [f"v{i}" for i in range(n)] for p, n in ends.items()})
    return topic


def broker_offsets(kafka: Broker, group: str) -> dict[tuple[str, int], int]:
    """Return what the broker itself says of a group, as KEDA, Burrow and Kafka UI ask it."""
    request = ConsumerGroupTopicPartitions(group)
    answer = kafka.admin.list_consumer_group_offsets([request])[group].result(30)
    return {(tp.topic, tp.partition): tp.offset for tp in answer.topic_partitions}


def shows(kafka: Broker, group: str, offsets: dict[tuple[str, int], int]) -> bool:
    """Say whether the broker shows exactly these."""
    return broker_offsets(kafka, group) == offsets


def kafka_stream(spark: SparkSession, kafka: Broker, topic: str, **options: str) -> DataFrame:
    """Return Spark's own Kafka source."""
    given = {"kafka.bootstrap.servers": kafka.address, "subscribe": topic}
    return (
        spark.readStream.format("kafka")
        .options(**given, startingOffsets="earliest", **options)
        .load()
        .selectExpr("cast(value AS string) AS value")
    )


def run(frame: DataFrame, checkpoint: Path, name: str | None = None) -> StreamingQuery:
    """Run a query to the end of what is there."""
    writer = frame.writeStream.format("noop").trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = (writer.queryName(name) if name else writer).start()
    assert query.awaitTermination(120)
    return query


@contextmanager
def listening(spark: SparkSession, listener: GroupOffsetListener) -> Iterator[GroupOffsetListener]:
    """Have a listener hear of the session's queries."""
    spark.streams.addListener(listener)
    try:
        yield listener
    finally:
        spark.streams.removeListener(listener)
        listener.close(30)


@needs_connector
def test_a_kafka_clusters_own_group_shows_a_querys_offsets(
    spark: SparkSession, kafka: Broker, coordinator: Daemon, tmp_path: Path
) -> None:
    """The wish that Spark's users have had for years: lag tools see the query."""
    ends = {0: 5, 1: 3}
    topic, group = new_topic(kafka, ends), f"g{uuid4().hex[:8]}"
    listener = GroupOffsetListener(coordinator.address, group, kafka=kafka.address)
    with listening(spark, listener):
        run(kafka_stream(spark, kafka, topic, maxOffsetsPerTrigger="4"), tmp_path / "ck")

        shown = {(topic, p): end for p, end in ends.items()}
        wait_until("Kafka's group", partial(shows, kafka, group, shown))
        with group_of(coordinator, group) as ours:
            wait_until("the coordinator's group", lambda: ours.offsets() == ends)
        (query,) = listener.metrics().queries
        assert query.lag == 0
        assert not query.dropped_events
        assert all(target.error is None for target in listener.metrics().targets)


@needs_connector
@pytest.mark.nightly
def test_a_listener_shows_what_was_finished_before_it_was_there(
    spark: SparkSession, kafka: Broker, coordinator: Daemon, tmp_path: Path
) -> None:
    """A query without news has no event; its checkpoint knows."""
    topic, group = new_topic(kafka, {0: 5, 1: 3}), f"g{uuid4().hex[:8]}"
    frame = kafka_stream(spark, kafka, topic)
    for version in ("1", "2"):
        spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", version)
        run(frame, tmp_path / version)
    spark.conf.unset("spark.sql.streaming.offsetLog.formatVersion")
    for version in ("1", "2"):
        name = group + version
        with listening(spark, GroupOffsetListener(None, name, kafka=kafka.address)):
            query = run(frame, tmp_path / version)
            assert query.lastProgress is None or not query.lastProgress["numInputRows"]
            wait_until("the offsets", partial(shows, kafka, name, {(topic, 0): 5, (topic, 1): 3}))


@needs_connector
@pytest.mark.nightly
def test_an_outage_of_either_side_harms_neither_the_query_nor_the_other(
    spark: SparkSession, kafka: Broker, coordinator: Daemon, tmp_path: Path
) -> None:
    """A dashboard must never stop a pipeline."""
    topic, group = new_topic(kafka, {0: 5}), f"g{uuid4().hex[:8]}"
    frame = kafka_stream(spark, kafka, topic)

    with listening(spark, GroupOffsetListener(coordinator.address, group, kafka="127.0.0.1:1")):
        run(frame, tmp_path / "a")
        with group_of(coordinator, group) as ours:
            wait_until("the coordinator's group", lambda: ours.offsets() == {0: 5})

    coordinator.kill()
    listener = GroupOffsetListener(coordinator.address, group, kafka=kafka.address)
    with listening(spark, listener):
        run(frame, tmp_path / "b")
        wait_until("Kafka's group", partial(shows, kafka, group, {(topic, 0): 5}))
        wait_until("a failure", lambda: listener.metrics().targets[0].failures > 0)
        kafka.produce(topic, {0: ["one more"]})
        run(frame, tmp_path / "b")
        coordinator.start()
        with group_of(coordinator, group) as ours:
            wait_until("healed", lambda: ours.offsets() == {0: 6})


@needs_connector
@pytest.mark.nightly
def test_a_kafka_group_with_members_is_left_alone(
    spark: SparkSession, kafka: Broker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its consumers' offsets are theirs; the user learns that the group is taken."""
    topic, group = new_topic(kafka, {0: 5}), f"g{uuid4().hex[:8]}"
    with (
        kafka.consumer(topic, group),
        listening(spark, GroupOffsetListener(None, group, kafka=kafka.address)) as listener,
    ):
        run(kafka_stream(spark, kafka, topic), tmp_path / "ck")
        wait_until("the refusal", lambda: listener.metrics().targets[0].refused == 1)
        assert "has members" in str(listener.metrics().targets[0].error)
    assert caplog.text.count("has members") == 1


class CounterSource(DataSource):
    """A Python source whose offset has a form of its own."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "counter"

    def schema(self) -> str:
        """Return its column."""
        return "value string"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - Spark's name.
        """Return the reader."""
        return CounterReader()


class CounterReader(DataSourceStreamReader):
    """Two rows, and that was it."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name.
        """Begin with nothing."""
        return {"count": 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - The old form.
        """Return the end."""
        return {"count": 2}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return one task."""
        return [InputPartition(end["count"])]

    def read(self, partition: InputPartition) -> Iterator[tuple[str]]:
        """Return the rows."""
        yield from [("a",), ("b",)]


@needs_connector
@pytest.mark.nightly
def test_all_kinds_of_sources_of_one_query_are_shown(
    spark: SparkSession, kafka: Broker, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """Matched by topic, never by their place in the query."""
    feeder.append(7)
    topic, group = new_topic(kafka, {0: 5, 1: 3}), f"g{uuid4().hex[:8]}"
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.txt").write_text("x\n")
    spark.dataSource.register(CounterSource)
    frame = (
        spark.readStream.format("text")
        .load(str(folder))
        .union(stream(spark, coordinator.address, feeder.root).selectExpr("name AS value"))
        .union(spark.readStream.format("counter").load())
        .union(kafka_stream(spark, kafka, topic))
    )
    shown = {(topic, 0): 5, (topic, 1): 3, ("in", 0): 1, ("counts", 0): 2}
    shown |= {(TOPIC, p): 7 for p in range(feeder.num_partitions)}
    listener = GroupOffsetListener(
        coordinator.address,
        group,
        file_topics={str(folder): "in"},
        decode=lambda offset: {("counts", 0): offset["count"]} if "count" in offset else None,
    )

    with listening(spark, listener), group_of(coordinator, group) as ours:

        def offsets(name: str) -> dict[tuple[str, int], int]:
            found = ours.client.fetch_offsets(name)
            return {(tp.topic, tp.partition): value.offset for tp, value in found.items()}

        # A source of the old form would have Spark run a single batch with availableNow.
        writer = frame.writeStream.format("noop").queryName("all")
        query = writer.option("checkpointLocation", str(tmp_path / "ck")).start()
        wait_until("all offsets", lambda: offsets(group) == shown)
        query.stop()

        caught_up = GroupOffsetListener(
            coordinator.address,
            f"{group}-2",
            file_topics={str(folder): "in"},
            decode=lambda offset: {("counts", 0): offset["count"]} if "count" in offset else None,
        )
        caught_up.catch_up(str(tmp_path / "ck"))
        wait_until("the same", lambda: offsets(f"{group}-2") == shown)
        caught_up.close()


@pytest.mark.nightly
def test_spark_reads_a_checkpoint_as_this_machine_does(spark: SparkSession, tmp_path: Path) -> None:
    """Where a checkpoint lies must not matter; an object store is seen through Spark."""
    checkpoint = tmp_path / "a checkpoint"
    (tmp_path / "in").mkdir()
    for name in "abc":
        (tmp_path / "in" / name).write_text("x\n")
    source = spark.readStream.format("text").option("maxFilesPerTrigger", 1)
    run(source.load(str(tmp_path / "in")), checkpoint)

    here = read_finished(LocalFiles(str(checkpoint)))

    assert [batch.batch_id for batch in here.batches] == [0, 1, 2]
    assert read_finished(SparkFiles(spark, f"file:{checkpoint}")) == here
    later = read_finished(SparkFiles(spark, str(checkpoint)), after=1)
    assert later.batches == here.batches[2:]
    nothing = read_finished(SparkFiles(spark, f"file:{tmp_path}/none"))
    assert nothing == (None, ())


@pytest.mark.nightly
def test_metrics_are_logged_and_written_for_prometheus(
    spark: SparkSession,
    coordinator: Daemon,
    feeder: Feeder,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Alerts are made of them."""
    feeder.append(3)
    prom = tmp_path / "lag.prom"
    listener = GroupOffsetListener(
        coordinator.address, "lag", "flow", metrics_every_s=0.2, metrics_file=str(prom)
    )
    with caplog.at_level(logging.INFO, "client.spark.listener.metrics"):
        with listening(spark, listener):
            run(stream(spark, coordinator.address, feeder.root), tmp_path / "ck", "flow")
            wait_until("its end", lambda: not listener.metrics().queries[0].active)
        lines = [json.loads(r.message) for r in caplog.records if r.name.endswith(".metrics")]

    assert lines[-1]["queries"][0]["lag"] == 0
    assert 'topic="events",partition="3"' in prom.read_text()


@needs_connector
@pytest.mark.nightly
def test_a_spark_connect_client_shows_its_queries(
    kafka: Broker, coordinator: Daemon, tmp_path: Path
) -> None:
    """The listener runs in the client; it has no JVM, and the checkpoint lies on the server."""
    topic, group = new_topic(kafka, {0: 5, 1: 3}), f"g{uuid4().hex[:8]}"
    given = {
        "coordinator": coordinator.address,
        "kafka": kafka.address,
        "topic": topic,
        "checkpoints": str(tmp_path / "ck"),
    }
    shown = {(topic, 0): 5, (topic, 1): 3}
    with connect_server(tmp_path) as port:
        # The second run has no news of its own; it has to catch up.
        for run_group in (group, f"{group}-2"):
            done = connect_client({**given, "port": port, "group": run_group})
            assert not done["failed"]
            assert json.loads(done["read"][-1]["0"]) == {topic: {"0": 5, "1": 3}}
            assert [target["error"] for target in done["metrics"]["targets"]] == [None, None]
            assert broker_offsets(kafka, run_group) == shown
            with group_of(coordinator, run_group) as ours:
                assert ours.offsets() == {0: 5, 1: 3}


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """Run Spark's Connect server in processes of its own; yield its port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": port,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "768m",
        "spark.jars": spark_jars("spark-kafka") or "",
        "spark.local.dir": str(folder / "scratch"),
        "spark.sql.streaming.checkpointLocation": str(folder / "ck"),
        "spark.ui.enabled": "false",
    }
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", "local[2]"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    with (folder / "connect.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, "spark-internal"],
            cwd=folder,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        # A client that comes too early pauses for ever longer.
        said = folder / "connect.log"
        wait_until("Connect", lambda: "server started" in said.read_text(), 2 * DEADLINE_S)
        yield port
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def connect_client(given: dict[str, str]) -> dict[str, Any]:
    """Run `connect_driver.py` and return what it says at its end."""
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).parent / "connect_driver.py"), json.dumps(given)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith('{"event": "done"')]
    assert lines, ran.stderr[-3000:]
    said: dict[str, Any] = json.loads(lines[0])
    return said
