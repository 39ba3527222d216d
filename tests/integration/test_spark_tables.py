"""The tables in one real Spark session, against a real daemon."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession, functions as F  # noqa: N812 - Spark's way.
from pyspark.sql.streaming.query import StreamingQuery

from client.blocking import BlockingClient, connect_blocking
from client.offsets import OffsetAndMetadata
from client.spark import write_group_offsets
from protocol.partition import TopicPartition
from tests.integration.spark_support import Daemon

pytestmark = [pytest.mark.integration, pytest.mark.spark]


@pytest.fixture
def client(coordinator: Daemon) -> Iterator[BlockingClient]:
    """A client, and twenty groups with thirty offsets each."""
    with connect_blocking(coordinator.address, client_id="test") as connected:
        for number in range(20):
            connected.commit(f"g{number}", offsets_of(number))
        yield connected


def offsets_of(group: int) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return what a group has committed."""
    return {
        TopicPartition(topic, partition): OffsetAndMetadata(100 * group + partition, f"m{group}")
        for topic in ("a", "b", "c")
        for partition in range(10)
    }


def table(spark: SparkSession, coordinator: Daemon, name: str, **options: str) -> DataFrame:
    """Return one of the tables."""
    return spark.read.format(name).options(coordinator=coordinator.address, **options).load()


def write(rows: DataFrame, coordinator: Daemon, **options: str) -> None:
    """Write offsets."""
    writer = rows.write.format("group_offsets").mode("append")
    writer.options(coordinator=coordinator.address, **options).save()


def test_offsets_are_read_filtered_and_written(
    spark: SparkSession, coordinator: Daemon, client: BlockingClient, tmp_path: Path
) -> None:
    """A migration: what one group has committed becomes another's, as a table in between."""
    offsets = table(spark, coordinator, "group_offsets")
    some = offsets.where("`group` in ('g3', 'g4') and topic = 'b' and partition < 4")
    rows = {tuple(row[:6]) for row in some.collect()}

    assert offsets.count() == 600
    assert rows == {(f"g{g}", "b", p, 100 * g + p, None, f"m{g}") for g in (3, 4) for p in range(4)}
    report = tmp_path / "report.jsonl"
    copy = offsets.where("`group` = 'g7'").withColumn("group", F.lit("g7-copy"))
    write(copy, coordinator, report=str(report))

    assert client.fetch_offsets("g7-copy") == offsets_of(7)
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert len(lines) == 30
    assert {line["status"] for line in lines} == {"written"}


@pytest.mark.nightly
def test_conditions_are_pushed_down_where_that_is_asked_for(
    spark: SparkSession, coordinator: Daemon, client: BlockingClient
) -> None:
    """Spark leaves them to the reader: no filter on groups and topics is left in its plan."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        offsets = table(spark, coordinator, "group_offsets", pushFilters="true")
        some = offsets.where("`group` in ('g3', 'g4') and topic = 'b' and partition < 4")
        rows = {tuple(row[:4]) for row in some.collect()}
        plan = some._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")

    assert rows == {(f"g{g}", "b", p, 100 * g + p) for g in (3, 4) for p in range(4)}
    (condition,) = [line for line in plan.splitlines() if "Filter " in line]
    assert "partition" in condition
    assert "topic" not in condition
    assert "group#" not in condition


def follow(
    spark: SparkSession, coordinator: Daemon, folder: Path, **options: str
) -> StreamingQuery:
    """Append all changes so far to Parquet files."""
    stream = spark.readStream.format("group_offset_log")
    changes = stream.options(coordinator=coordinator.address, **options).load()
    writer = changes.writeStream.format("parquet").option("path", str(folder / "changes"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint"))
    return query.trigger(availableNow=True).start()


@pytest.mark.nightly
def test_changes_are_followed_over_restarts(
    spark: SparkSession, coordinator: Daemon, client: BlockingClient, tmp_path: Path
) -> None:
    """The newest rows are the state, after a snapshot, changes, a restart of the daemon, more."""
    assert follow(spark, coordinator, tmp_path).awaitTermination(120)
    client.commit("g1", {TopicPartition("a", 1): 9_999})
    client.delete_offsets("g2", [TopicPartition("a", 2)])
    coordinator.kill()
    coordinator.start()
    client.delete_groups(["g3"])
    assert follow(spark, coordinator, tmp_path, maxChangesPerBatch="2").awaitTermination(120)

    changes = spark.read.parquet(str(tmp_path / "changes"))
    assert changes.where("kind = 'snapshot'").count() == 600
    after = changes.where("kind not in ('snapshot', 'snapshot begins')")
    assert {(row["kind"], row["group"], row["offset"]) for row in after.collect()} == {
        ("committed", "g1", 9_999),
        ("removed", "g2", None),
        ("group deleted", "g3", None),
    }


@pytest.mark.nightly
def test_members_and_rebalances_are_rows(
    spark: SparkSession, coordinator: Daemon, client: BlockingClient
) -> None:
    """Who owns what, and why it moved, for queries beside the offsets."""
    with client.join("live", ["t"], {"t": 2}) as member:
        member.assignment(30)
        members = table(spark, coordinator, "group_members").collect()
        rebalances = table(spark, coordinator, "group_rebalances").where("`group` = 'live'")

        assert [(row["group"], row["member_id"], row["topics"]) for row in members] == [
            ("live", member.member_id, ["t"])
        ]
        assert [tuple(one) for one in members[0]["assignment"]] == [("t", 0), ("t", 1)]
        assert [row["trigger"] for row in rebalances.collect()] == ["member joined"]


@pytest.mark.nightly
def test_a_group_in_use_is_written_only_by_force(
    spark: SparkSession, coordinator: Daemon, client: BlockingClient
) -> None:
    """Its member begins again at the new offsets, and not at those that it has in memory."""
    rows = spark.createDataFrame(
        [("live", "t", 0, 5), ("g1", "a", 0, 5)],
        "group string, topic string, partition int, offset long",
    )
    with client.join("live", ["t"], {"t": 1}, session_timeout_ms=2_000) as member:
        member.assignment(30)
        member.commit({TopicPartition("t", 0): 77})
        with pytest.raises(Exception, match="it is in use"):
            write(rows, coordinator)
        assert client.fetch_offsets("g1") == offsets_of(1)

        planned = write_group_offsets(rows, coordinator.address, dry_run=True, force=True)
        assert [(one.group, one.status) for one in planned] == [
            ("g1", "planned"),
            ("live", "planned"),
        ]

        write(rows, coordinator, force="true")
        member.assignment(30)

        assert member.fetch() == {TopicPartition("t", 0): OffsetAndMetadata(5)}
        assert client.fetch_offsets("g1")[TopicPartition("a", 0)].offset == 5


@pytest.mark.nightly
def test_rows_that_make_no_sense_end_the_job_with_their_reason(
    spark: SparkSession, coordinator: Daemon, client: BlockingClient
) -> None:
    """The message comes through Spark, names what is wrong, and nothing was written."""
    offsets = table(spark, coordinator, "group_offsets", groups="g5")
    for rows, message in (
        (offsets.union(offsets), "a partition of a group can be written only once"),
        (offsets.drop("offset"), "the rows have no column offset"),
        (offsets.withColumn("offset", F.lit(-5)), "every offset is a number from 0"),
    ):
        with pytest.raises(Exception, match=message):
            write(rows, coordinator)

    with pytest.raises(Exception, match="option 'report' is missing"):
        write(offsets, coordinator, dryRun="true")
    assert client.fetch_offsets("g5") == offsets_of(5)
