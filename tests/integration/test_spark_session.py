"""The coordinated source in one real Spark session, against a real daemon."""

import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from client.spark import GroupOffsetListener, drain_and_stop
from client.spark.source.stream_offsets import READER_KEY
from tests.integration.spark_support import (
    GROUP,
    TOPIC,
    AppendingSink,
    Daemon,
    Feeder,
    Written,
    group_of,
    stream,
    wait_until,
)
from tests.spark.fault_support import shows

pytestmark = [pytest.mark.integration, pytest.mark.spark]


def start(
    spark: SparkSession,
    coordinator: Daemon,
    feeder: Feeder,
    sink: Path,
    *,
    available_now: bool = False,
    **given: str,
) -> StreamingQuery:
    """Start a query that appends to *sink*, with a checkpoint beside it."""
    writer = (
        stream(spark, coordinator.address, feeder.root, **given)
        .writeStream.foreachBatch(AppendingSink(sink))
        .option("checkpointLocation", str(sink.with_suffix(".checkpoint")))
    )
    if available_now:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def test_a_stream_has_the_columns_of_the_log_and_of_the_range(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder
) -> None:
    """Sinks use the range columns as an idempotency key."""
    columns = stream(spark, coordinator.address, feeder.root).columns

    assert columns == [
        "topic",
        "partition",
        "offset",
        "id",
        "name",
        "range_start",
        "range_end",
        "generation",
    ]


def test_available_now_reads_all_rows_and_commits_them(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """A run that looks complete must be complete, in the sink and at the coordinator."""
    feeder.append(25)
    sink = tmp_path / "sink.jsonl"
    # Four ranges a batch, in fewer tasks.
    limits = {"maxRowsPerPartition": "10", "minTasks": "3"}
    query = start(spark, coordinator, feeder, sink, available_now=True, **limits)

    assert query.awaitTermination(60)

    written = Written(sink)
    written.expect_all(feeder.ends())
    assert not written.repeated
    with group_of(coordinator) as group:
        assert group.offsets() == feeder.ends()
        wait_until("the reader left", lambda: group.member_ids() == [])

    feeder.append(5)  # A second run on the same checkpoint takes what came since.
    query = start(spark, coordinator, feeder, sink, available_now=True)
    assert query.awaitTermination(60)
    again = Written(sink)
    again.expect_all(feeder.ends())
    assert not again.repeated


def test_a_run_of_one_batch_is_refused_before_it_writes(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """Each run would write the same rows; the first line says what to use."""
    feeder.append(5)
    sink = tmp_path / "sink.jsonl"
    query = (
        stream(spark, coordinator.address, feeder.root)
        .writeStream.foreachBatch(AppendingSink(sink))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(once=True)
        .start()
    )

    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(60)

    assert "use trigger(availableNow=True)" in str(raised.value).splitlines()[0]
    assert "Traceback" not in str(raised.value)
    assert not sink.exists()
    with group_of(coordinator) as group:
        assert group.offsets() == {}


def test_two_readers_of_a_group_in_one_query_end_it_at_its_start(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """They would wait for each other; one DataFrame that is used twice is one reader."""
    feeder.append(5)
    both = [stream(spark, coordinator.address, feeder.root) for _ in range(2)]

    def failure(name: str, rows: DataFrame) -> StreamingQueryException | None:
        writer = rows.writeStream.format("noop").queryName(name).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / name)).start()
        try:
            assert query.awaitTermination(100)
        except StreamingQueryException as error:
            return error
        finally:
            query.stop()
        return None

    joined = both[0].alias("a").join(both[0].alias("b"), "id")
    with group_of(coordinator) as group:
        for name, rows in (("union", both[0].union(both[1])), ("joined", joined)):
            first, *_ = str(failure(name, rows)).splitlines()
            assert f"query {name} has 2 readers of group 'g'" in first
            assert group.state() == "dead"

        assert failure("once", both[0].union(both[0])) is None
        assert group.offsets() == feeder.ends()


def test_a_query_warms_up_while_others_read(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """Spark runs a batch without rows whose tasks are empty; then it has all of them."""
    feeder.append(5)
    counts = {TOPIC: feeder.num_partitions}
    with group_of(coordinator) as group, group.client.join(GROUP, [TOPIC], counts) as other:
        other.assignment()
        query = start(spark, coordinator, feeder, tmp_path / "sink.jsonl", assignor="range")
        wait_until("the first batch", lambda: bool(query.recentProgress))
        other.leave()
        wait_until("the rows", lambda: group.offsets() == feeder.ends())
        first, *_ = query.recentProgress
        query.stop()

    assert first["numInputRows"] == 0
    assert set(json.loads(first["sources"][0]["endOffset"])) == {READER_KEY}
    Written(tmp_path / "sink.jsonl").expect_all(feeder.ends())


def test_a_drain_stops_without_a_duplicate(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """The promise for planned stops: what was written is committed, to the row."""
    feeder.feed(20)
    sink = tmp_path / "sink.jsonl"
    query = start(spark, coordinator, feeder, sink)
    wait_until("some rows", sink.exists)

    drain_and_stop(query, timeout=60)

    assert not query.isActive
    written = Written(sink)
    ends = {p: max(end for q, _, end in written.ranges if q == p) for p in feeder.ends()}
    with group_of(coordinator) as group:
        assert group.offsets() == ends

    query = start(spark, coordinator, feeder, sink)
    ends = feeder.stop()
    with group_of(coordinator) as group:
        wait_until("the rest", lambda: group.offsets() == ends)
    drain_and_stop(query)
    written = Written(sink)
    written.expect_all(ends)
    assert not written.repeated


def test_a_plain_stop_leaves_the_group_at_once(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """The others should not wait for the session to end: Spark only sends SIGTERM."""
    feeder.append(5)
    query = start(spark, coordinator, feeder, tmp_path / "sink.jsonl", sessionTimeout="40s")
    with group_of(coordinator) as group:
        group.wait_members(1)
        wait_until("the commit", lambda: group.offsets() == feeder.ends())

        query.stop()

        wait_until("the reader left", lambda: group.member_ids() == [], deadline_s=15)
    assert coordinator.evictions() == 0


@shows("coordinator restarted")
def test_a_restart_of_the_daemon_is_an_idle_moment(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """An outage must not end the query, nor repeat anything."""
    feeder.append(10)
    sink = tmp_path / "sink.jsonl"
    query = start(spark, coordinator, feeder, sink)
    with group_of(coordinator) as group:
        wait_until("the first rows", lambda: group.offsets() == feeder.ends())

    coordinator.kill()
    feeder.append(10)
    coordinator.start()

    with group_of(coordinator) as group:
        wait_until("the second rows", lambda: group.offsets() == feeder.ends())
    assert query.isActive
    drain_and_stop(query)
    written = Written(sink)
    written.expect_all(feeder.ends())
    assert not written.repeated


def test_the_listener_shows_the_offsets_in_a_group_of_its_own(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """Lag tools see the query."""
    listener = GroupOffsetListener(coordinator.address, "lag")
    spark.streams.addListener(listener)
    try:
        feeder.append(10)
        query = start(spark, coordinator, feeder, tmp_path / "sink.jsonl", available_now=True)
        assert query.awaitTermination(60)
        with group_of(coordinator, "lag") as group:
            wait_until("the offsets", lambda: group.offsets() == feeder.ends())
    finally:
        spark.streams.removeListener(listener)
        listener.close()


def test_a_stateful_query_is_warned_of(
    spark: SparkSession,
    coordinator: Daemon,
    feeder: Feeder,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It would be wrong after a rebalance, without any error."""
    feeder.append(3)
    query = (
        stream(spark, coordinator.address, feeder.root)
        .dropDuplicates(["id"])
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )

    assert query.awaitTermination(60)

    wait_until("the warning", lambda: "WRONG after a rebalance" in caplog.text)


def test_a_wrong_option_fails_before_anything_starts(spark: SparkSession, feeder: Feeder) -> None:
    """The first line names it, without a traceback."""
    with pytest.raises(AnalysisException) as raised:
        stream(spark, "127.0.0.1:1", feeder.root, maxRowsPerPartition="many")

    text = str(raised.value)
    assert "option 'maxRowsPerPartition' is 'many'" in text.splitlines()[0]
    assert "Traceback" not in text


def test_a_refused_session_timeout_is_said_in_the_first_line(
    spark: SparkSession, feeder: Feeder, coordinator: Daemon, tmp_path: Path
) -> None:
    """With the option and the coordinator's bounds, and without a traceback."""
    query = (
        stream(spark, coordinator.address, feeder.root, sessionTimeout="100ms")
        .writeStream.foreachBatch(AppendingSink(tmp_path / "sink.jsonl"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )

    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(60)

    text = str(raised.value)
    assert (
        "option 'sessionTimeout' is 100 ms, which the coordinator refuses" in text.splitlines()[0]
    )
    assert "between 500 (group.min.session.timeout.ms)" in text.splitlines()[0]
    assert "Traceback" not in text


def test_a_coordinator_that_is_never_there_ends_the_query_with_its_name(
    spark: SparkSession, feeder: Feeder, tmp_path: Path
) -> None:
    """A first start with a wrong address should not hang for ever."""
    query = (
        stream(
            spark,
            "127.0.0.1:1",
            feeder.root,
            sessionTimeout="1s",
            requestTimeout="1s",
            coordinatorTimeout="2s",
        )
        .writeStream.foreachBatch(AppendingSink(tmp_path / "sink.jsonl"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )

    with pytest.raises(Exception, match=r"coordinatorTimeout.*127\.0\.0\.1:1"):
        query.awaitTermination(60)
