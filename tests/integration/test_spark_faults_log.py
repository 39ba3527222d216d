"""The faults of checkpoints and logs, with real Spark: see tests/spark/fault_support.py."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from client.spark import FolderLogWriter, drain_and_stop
from tests.integration.fault_support import Scene
from tests.integration.kafka_support import Broker
from tests.integration.spark_support import (
    DEADLINE_S,
    SCHEMA,
    SESSION_TIMEOUT_MS,
    TOPIC,
    Daemon,
    Feeder,
    group_of,
    rows,
    stream,
    wait_until,
)
from tests.spark.fault_support import shows

pytestmark = [pytest.mark.integration, pytest.mark.spark]

FAULTY = "tests.integration.faulty_log:FaultyLog"


@pytest.fixture
def scene(spark: SparkSession, tmp_path: Path, feeder: Feeder) -> Iterator[Scene]:
    """A sink and a checkpoint over the feeder's topic."""
    yield Scene(spark, tmp_path, feeder.root)
    for query in spark.streams.active:
        query.stop()


@pytest.mark.nightly
@shows("checkpoint of another group", "checkpoint of another topic set")
@shows("checkpoint from a newer version")
def test_a_checkpoint_of_something_else_is_refused(
    scene: Scene, coordinator: Daemon, feeder: Feeder
) -> None:
    """The message says of what, and what to do; the right query can still go on with it."""
    feeder.append(10)
    scene.run(coordinator.address)
    FolderLogWriter.create(feeder.root, "orders", SCHEMA, 1).close()
    address = coordinator.address

    other_group = scene.failure(scene.start(address, group="other"))
    assert "the checkpoint is of group 'g', but option 'group' is 'other'" in other_group
    other_topics = scene.failure(scene.start(address, topics="orders"))
    assert "the checkpoint is of the topics 'events', which this query doesn't" in other_topics
    scene.edit_last_offset(r'"v": ?1', '"v": 2')
    assert "has format version 2, this release reads version 1" in scene.failure(
        scene.start(address)
    )

    scene.edit_last_offset('"v": 2', '"v": 1')
    feeder.append(10)
    scene.run(address)
    scene.written().expect_all(feeder.ends())
    assert scene.written().repeated == []


@pytest.mark.nightly
def test_a_checkpoint_of_another_source_is_refused(
    spark: SparkSession, scene: Scene, coordinator: Daemon
) -> None:
    """Spark hands us its offset as it is."""
    rate = spark.readStream.format("rate").load().writeStream.format("noop")
    query = rate.option("checkpointLocation", str(scene.checkpoint)).start()
    query.processAllAvailable()
    query.stop()

    failure = scene.failure(scene.start(coordinator.address))
    assert "an offset that the coordinated source did not write" in failure


@pytest.mark.nightly
@shows("topic shrinks")
def test_a_partition_that_vanished_ends_the_query(
    scene: Scene, coordinator: Daemon, feeder: Feeder
) -> None:
    """After a restart at once, in a running query when no listing can lag that long."""
    feeder.append(10)
    running = scene.start(coordinator.address, coordinatorTimeout="3m")
    with group_of(coordinator) as group:
        wait_until("the rows", lambda: group.offsets() == feeder.ends())
    shutil.rmtree(feeder.root / TOPIC / "3")
    assert "no longer has events-3" in scene.failure(running)

    failure = scene.failure(scene.start(coordinator.address))
    assert "no longer has events-3" in failure
    assert "'onDataLoss' to 'earliest' or 'latest' to go on without" in failure

    for partition in range(3):
        feeder.append_to(partition, 10)
    scene.run(coordinator.address, onDataLoss="earliest")
    scene.written().expect_all({**dict.fromkeys(range(3), 20), 3: 10})
    assert scene.written().repeated == []


@pytest.mark.nightly
@shows("topic recreated")
@pytest.mark.parametrize("policy", ["error", "earliest", "latest"])
def test_a_topic_made_anew_is_noticed_although_its_offsets_fit(
    scene: Scene, coordinator: Daemon, feeder: Feeder, policy: str
) -> None:
    """Rows that have the offsets of others would be skipped, or taken for them."""
    feeder.append(10)
    scene.run(coordinator.address)
    feeder.close()
    shutil.rmtree(feeder.root / TOPIC)
    with FolderLogWriter.create(feeder.root, TOPIC, SCHEMA, 4) as writer:
        for partition in range(4):
            writer.append(partition, rows(partition * 1_000_000, 15))

    if policy == "error":
        failure = scene.failure(scene.start(coordinator.address))
        assert "The log was made anew, so its rows are others" in failure
        return
    scene.run(coordinator.address, onDataLoss=policy)
    new = [key for key in scene.written().ranges if key[2] == 15]
    assert sorted(new) == [(p, 0, 15) for p in range(4) if policy == "earliest"]
    with group_of(coordinator) as group:
        assert group.offsets() == dict.fromkeys(range(4), 15)


@pytest.mark.nightly
@shows("topic recreated")
def test_a_kafka_topic_made_anew_is_noticed_by_its_id(
    spark: SparkSession, coordinator: Daemon, kafka: Broker, tmp_path: Path
) -> None:
    """Its offsets begin at 0 again, and soon fit."""
    kafka.create("anew", 1)
    kafka.produce("anew", {0: ["a", "b"]})
    rows_of = (
        spark.readStream.format("coordinated")
        .option("coordinator", coordinator.address)
        .option("group", "g")
        .option("topics", "anew")
        .option("log", "kafka")
        .option("kafka.bootstrap.servers", kafka.address)
        .load()
    )
    writer = (
        rows_of.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "ck"))
        .trigger(availableNow=True)
    )
    assert writer.start().awaitTermination(60)
    kafka.delete("anew")
    time.sleep(1)  # Kafka takes a moment to forget the name.
    kafka.create("anew", 1)
    kafka.produce("anew", {0: ["c", "d", "e"]})

    with pytest.raises(Exception, match=r"anew-0: offset 2 comes next.*made anew"):
        writer.start().awaitTermination(60)


@shows("offsets out of bounds, error")
def test_rows_that_were_deleted_end_the_query(
    scene: Scene, coordinator: Daemon, feeder: Feeder
) -> None:
    """The message names the partition, the offsets and the choices."""
    lose_rows(scene, coordinator, feeder)

    failure = scene.failure(scene.start(coordinator.address))

    assert "offset 5 comes next, but the log holds 10 to 15" in failure
    assert "'onDataLoss' to 'earliest'" in failure


@pytest.mark.nightly
@shows("offsets out of bounds, earliest", "offsets out of bounds, latest")
@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_rows_that_were_deleted_are_skipped_on_request(
    scene: Scene, coordinator: Daemon, feeder: Feeder, policy: str
) -> None:
    """Only those that are gone, or all that are there."""
    lose_rows(scene, coordinator, feeder)
    scene.run(coordinator.address, onDataLoss=policy)
    feeder.append(5)
    scene.run(coordinator.address, onDataLoss=policy)

    ranges = sorted(key[1:] for key in scene.written().ranges if key[0] == 2)
    assert ranges == [(0, 5), *([(10, 15)] if policy == "earliest" else []), (15, 20)]
    assert scene.written().repeated == []


@pytest.mark.nightly
@pytest.mark.parametrize("policy", ["error", "earliest"])
def test_a_log_that_was_cut_is_waited_for_and_then_judged(
    scene: Scene, coordinator: Daemon, feeder: Feeder, policy: str
) -> None:
    """A listing may lag for a while; a log without an id then counts as made anew."""
    feeder.append(5)
    feeder.append(5)
    scene.run(coordinator.address)
    for chunk in (feeder.root / TOPIC).glob("*/*5-*10.arrow"):
        chunk.unlink()

    query = scene.start(coordinator.address, coordinatorTimeout="3m", onDataLoss=policy)
    if policy == "error":
        failure = scene.failure(query)
        assert "offset 10 comes next, but the log holds 0 to 5. The log was cut" in failure
        return
    wait_until(
        "a second copy",
        lambda: (
            len(scene.written().repeated) == 0
            and any(key[1:] == (0, 5) for key in scene.written().ranges)
        ),
        120,
    )
    query.stop()


def lose_rows(scene: Scene, coordinator: Daemon, feeder: Feeder) -> None:
    """Read five rows of each partition, and lose the next five."""
    feeder.append(5)
    scene.run(coordinator.address)
    feeder.append(5)
    feeder.append(5)
    for chunk in (feeder.root / TOPIC).glob("*/*"):
        if int(chunk.name.partition("-")[0]) < 10:
            chunk.unlink()


@shows("log raises")
def test_a_log_that_raises_ends_the_query_by_name(
    scene: Scene, coordinator: Daemon, feeder: Feeder
) -> None:
    """What its author needs is in the message; after the repair the query goes on."""
    feeder.append(5)
    (feeder.root / "raise").touch()

    failure = scene.failure(scene.start(coordinator.address, log=FAULTY))

    assert "events-1: bounds() of the log FaultyLog failed: LogError: broken on purp" in failure
    (feeder.root / "raise").unlink()
    scene.run(coordinator.address, log=FAULTY)
    scene.written().expect_all(feeder.ends())


@pytest.mark.nightly
@shows("log raises")
def test_a_log_that_is_away_for_a_while_is_waited_for(
    scene: Scene, coordinator: Daemon, feeder: Feeder
) -> None:
    """The other partitions go on; one that stays away ends the query."""
    feeder.append(5)
    (feeder.root / "away").touch()
    query = scene.start(coordinator.address, log=FAULTY, logTimeout="30s")
    with group_of(coordinator) as group:
        wait_until("the others", lambda: group.offsets() == {0: 5, 2: 5, 3: 5})
        (feeder.root / "away").unlink()
        wait_until("all", lambda: group.offsets() == feeder.ends())
    drain_and_stop(query)
    scene.written().expect_all(feeder.ends())
    assert scene.written().repeated == []

    (feeder.root / "away").touch()
    failure = scene.failure(scene.start(coordinator.address, log=FAULTY, logTimeout="3s"))
    assert "longer than option 'logTimeout' allows (3 s): LogUnavailable: away" in failure


@pytest.mark.nightly
@shows("log blocks")
def test_while_a_log_blocks_its_reader_stays_in_the_group_and_hands_over(
    spark: SparkSession, scene: Scene, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """Heartbeats go on, what is finished is committed, and another member gets its share."""
    feeder.append(5)
    query = scene.start(coordinator.address, log=FAULTY, rebalanceTimeout="8s", logTimeout="60s")
    with group_of(coordinator) as group:
        wait_until("all", lambda: group.offsets() == feeder.ends())
        (feeder.root / "block").touch()
        feeder.append(5)
        time.sleep(2 * SESSION_TIMEOUT_MS / 1000)  # Longer than a silent member would last.
        group.wait_members(1)

        (tmp_path / "other").mkdir()
        other = Scene(spark, tmp_path / "other", feeder.root)
        second = other.start(coordinator.address, rebalanceTimeout="8s")
        group.wait_members(2)
        wait_until("the share of the second", lambda: list(group.offsets().values()).count(10) >= 2)
        assert coordinator.evictions() == 0
        (feeder.root / "block").unlink()
        wait_until("all", lambda: group.offsets() == feeder.ends())
    for each in (query, second):
        drain_and_stop(each)
    both = other.sink.read_text() + scene.sink.read_text()
    scene.sink.write_text(both)
    scene.written().expect_all(feeder.ends())
    assert scene.written().repeated == []

    (feeder.root / "block").touch()
    failure = scene.failure(scene.start(coordinator.address, log=FAULTY, logTimeout="4s"))
    (feeder.root / "block").unlink()
    assert "events-1: bounds() has not answered for" in failure


def take_back(error: str) -> None:
    """Run the command in an error, if anything was committed."""
    command = re.search(r"group-coordinator groups reset-offsets .*\)", error)
    if command is None:
        assert "Nothing of this run is committed" in error
        return
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(
        ["bash", "-c", f"{command[0]} --yes"],
        env={**os.environ, "PATH": path},
        timeout=DEADLINE_S,
        check=True,
    )


@pytest.mark.nightly
def test_a_stateful_query_ends_with_an_error(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """Else it would be wrong after a rebalance; with the option it goes on.

    What was committed before is taken back by the command that the error names.
    """
    feeder.feed(5)
    for name, given in (("fails", {}), ("warns", {"onStateful": "warn"})):
        query = (
            stream(spark, coordinator.address, feeder.root, group=name, **given)
            .dropDuplicates(["id"])
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / name))
            .start()
        )
        if name == "fails":
            match = r"is stateful \(dedupe\) and reads a coordinated"
            with pytest.raises(StreamingQueryException, match=match) as raised:
                query.awaitTermination(60)
            with group_of(coordinator, name) as group:
                wait_until("the reader left", lambda: group.state() in ("empty", "dead"))
                take_back(str(raised.value))
                assert set(group.offsets().values()) <= {0}
        else:
            with group_of(coordinator, name) as group:
                wait_until("many rows", lambda: min(group.offsets().values(), default=0) > 50)
            assert query.isActive
        query.stop()
