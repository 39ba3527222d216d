"""The faults of the coordinator and of members, with real Spark.

See tests/spark/fault_support.py. A coordinator that restarts is in test_spark_session.py, a
member that freezes in test_spark_drivers.py.
"""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from client.blocking import connect_blocking
from client.exceptions import CoordinatorUnavailable
from client.offsets import OffsetAndMetadata
from client.spark import drain_and_stop
from protocol.partition import TopicPartition
from tests.integration.fault_support import GatedSink, Scene
from tests.integration.spark_support import Daemon, Driver, Feeder, group_of, wait_until
from tests.spark.fault_support import shows

pytestmark = [pytest.mark.integration, pytest.mark.spark]

OUTAGE_S = 60.0


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path, feeder: Feeder) -> Iterator[Scene]:
    """A sink and a checkpoint over the feeder's topic."""
    yield Scene(spark, tmp_path, feeder.root)
    for query in spark.streams.active:
        query.stop()


def expect_all_once(scene: Scene, coordinator: Daemon, feeder: Feeder) -> None:
    """Wait until all is committed; check that all was written, once."""
    with group_of(coordinator) as group:
        wait_until("all rows", lambda: group.offsets() == feeder.ends())
    scene.written().expect_all(feeder.ends())
    assert scene.written().repeated == []


@pytest.mark.nightly
@shows("coordinator down at start")
def test_a_query_that_starts_before_the_coordinator_waits_for_it(
    scene: Scene, coordinator: Daemon, feeder: Feeder
) -> None:
    """Nobody has to start things in order."""
    feeder.append(10)
    coordinator.kill()
    query = scene.start(coordinator.address)
    time.sleep(3)
    assert query.isActive

    coordinator.start()

    expect_all_once(scene, coordinator, feeder)
    drain_and_stop(query)


@pytest.mark.nightly
@shows("coordinator down during a batch")
@pytest.mark.parametrize("after", [False, True])
def test_a_coordinator_that_restarts_during_a_batch_costs_nothing(
    scene: Scene, coordinator: Daemon, feeder: Feeder, *, after: bool
) -> None:
    """The batch is committed when there is somebody to commit to."""
    feeder.append(10)
    sink = GatedSink(scene.sink, after=after)
    query = scene.start(coordinator.address, gate=sink)
    assert sink.reached.wait(60)
    coordinator.kill()
    sink.gate.set()
    time.sleep(2)  # The batch ends, and its commit fails.
    feeder.append(10)

    coordinator.start()

    expect_all_once(scene, coordinator, feeder)
    drain_and_stop(query)


@pytest.mark.nightly
@shows("coordinator down for 60 s")
def test_an_outage_of_a_minute_is_an_idle_minute(
    scene: Scene, coordinator: Daemon, feeder: Feeder
) -> None:
    """Many times the session timeout; AvailableNow waits as well, and is complete in the end."""
    feeder.append(10)
    query = scene.start(coordinator.address, coordinatorTimeout="3m")
    expect_all_once(scene, coordinator, feeder)
    coordinator.kill()
    feeder.append(10)
    time.sleep(OUTAGE_S)
    assert query.isActive

    coordinator.start()

    expect_all_once(scene, coordinator, feeder)
    drain_and_stop(query)


@pytest.mark.nightly
@shows("coordinator loading")
def test_a_coordinator_that_loads_for_long_is_waited_for(
    scene: Scene, coordinator: Daemon, feeder: Feeder
) -> None:
    """It takes connections meanwhile, and answers that it is loading."""
    feeder.append(10)
    offsets = {TopicPartition("t", p): OffsetAndMetadata(1, "x" * 100) for p in range(5_000)}
    with connect_blocking(coordinator.address) as client:
        for group in range(100):
            client.commit(f"many-{group}", offsets)
    coordinator.kill()
    loading: list[str] = []

    def watch() -> None:
        while not query_seen.is_set():
            try:
                with connect_blocking(coordinator.address, request_timeout_ms=200) as client:
                    client.fetch_offsets("g")
            except CoordinatorUnavailable as error:
                loading.append(str(error))

    query_seen = threading.Event()
    query = scene.start(coordinator.address)
    watching = threading.Thread(target=watch)
    watching.start()

    coordinator.start()

    expect_all_once(scene, coordinator, feeder)
    query_seen.set()
    watching.join()
    assert any("LOAD" in error for error in loading), loading[-3:]
    drain_and_stop(query)


@pytest.mark.nightly
@shows("killed before the sink", "killed after the sink", "killed after the commit log")
@pytest.mark.parametrize("die", ["before the sink", "after the sink", "after the commit log"])
def test_a_kill_repeats_at_most_the_batch_in_flight(
    scene: Scene, coordinator: Daemon, feeder: Feeder, tmp_path: Path, die: str
) -> None:
    """Driver, JVM and Python workers die at once; the restart begins with Spark's replay."""
    feeder.append(5)
    driver = Driver("a", tmp_path, feeder.root, coordinator.address, die=die)
    try:
        driver.go()
        with group_of(coordinator) as group:
            # Each batch is written before there are rows for the next one.
            for _ in range(2):
                wait_until("a batch", lambda: group.offsets() == feeder.ends())
                feeder.append(5)
            wait_until("the kill", driver.ended)
    finally:
        driver.kill()
    feeder.append(5)
    scene.sink, scene.checkpoint = driver.sink, tmp_path / "a-checkpoint"

    query = scene.start(coordinator.address)

    with group_of(coordinator) as group:
        wait_until("all rows", lambda: group.offsets() == feeder.ends())
    drain_and_stop(query)
    scene.written().expect_all(feeder.ends())
    repeated = scene.written().repeated
    assert len(repeated) <= (0 if die == "before the sink" else feeder.num_partitions)


@pytest.mark.nightly
@shows("two queries on one checkpoint")
def test_of_two_queries_on_one_checkpoint_one_ends_and_the_other_misses_nothing(
    scene: Scene, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """Spark notices at the first batch that both write; the other goes on with all partitions."""
    feeder.feed(5, period_s=0.3)
    driver = Driver("a", tmp_path, feeder.root, coordinator.address)
    scene.sink, scene.checkpoint = driver.sink, tmp_path / "a-checkpoint"
    try:
        driver.go()
        driver.wait_rows()
        query = scene.start(coordinator.address)
        driver.tell("watch")
        wait_until(
            "the end of one", lambda: not query.isActive or bool(driver.lines.named("stopped"))
        )
        ends = feeder.stop()
        with group_of(coordinator) as group:
            wait_until("all rows", lambda: group.offsets() == ends)
        failure = str(query.exception() or driver.lines.wait("stopped")["failure"])
        assert "CONCURRENT_STREAM_LOG_UPDATE" in failure
        scene.written().expect_all(ends)
        # What was in flight at the one that ended.
        assert len(scene.written().repeated) <= feeder.num_partitions
    finally:
        driver.kill()
