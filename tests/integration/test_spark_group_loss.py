"""A coordinator whose folder is gone, with real Spark."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from client.spark import drain_and_stop
from tests.integration.fault_support import Scene
from tests.integration.spark_support import Daemon, Feeder, Written, group_of, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.fixture
def scenes(spark: SparkSession, tmp_path: Path, feeder: Feeder) -> Iterator[list[Scene]]:
    """Two queries, each with a reader process, a sink and a checkpoint of its own."""
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    yield [Scene(spark, folder, feeder.root) for folder in folders]
    for query in spark.streams.active:
        query.stop()


def start(scene: Scene, coordinator: Daemon, policy: str) -> StreamingQuery:
    """Start a query that begins at the log's end."""
    return scene.start(
        coordinator.address, startingOffsets="latest", warmUp="false", onGroupLoss=policy
    )


def wait_for_all(coordinator: Daemon, feeder: Feeder) -> None:
    """Wait until the group is at the end of the log."""
    with group_of(coordinator) as group:
        wait_until("all rows", lambda: group.offsets() == feeder.ends())


def test_a_lost_folder_ends_the_queries_or_is_made_good_by_them(
    scenes: list[Scene], coordinator: Daemon, feeder: Feeder
) -> None:
    """With 'latest', which used to skip what came since then without a word."""
    queries = [start(scene, coordinator, "error") for scene in scenes]
    with group_of(coordinator) as group:
        group.wait_members(2)
    wait_for_all(coordinator, feeder)
    for _ in range(2):
        feeder.append(10)
        wait_for_all(coordinator, feeder)

    coordinator.lose()
    feeder.append(10)
    coordinator.start()
    failures = [scene.failure(query) for scene, query in zip(scenes, queries, strict=True)]

    assert all("no longer has what it had of group 'g'" in failure for failure in failures)
    assert all("onGroupLoss" in failure for failure in failures)
    with group_of(coordinator) as group:
        assert group.offsets() == {}

    queries = [start(scene, coordinator, "checkpoint") for scene in scenes]
    wait_for_all(coordinator, feeder)
    repeated = Written(*(scene.sink for scene in scenes)).repeated
    coordinator.lose()
    feeder.append(10)
    coordinator.start()
    wait_for_all(coordinator, feeder)

    for query in queries:
        drain_and_stop(query)
    written = Written(*(scene.sink for scene in scenes))
    written.expect_all(feeder.ends())
    assert len(repeated) <= feeder.num_partitions  # The last batch of each checkpoint.
    assert written.repeated == repeated  # Those that ran meanwhile repeated nothing.
