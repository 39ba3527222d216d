"""The sinks on real Spark: every way in which a range can come twice, or not at all."""

import sqlite3
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from client.spark import FolderSink, SqlSink
from client.spark.sinks import positions, read
from tests.integration.spark_support import TOPIC, Daemon, Feeder, group_of, stream

pytestmark = [pytest.mark.integration, pytest.mark.spark]
nightly = pytest.mark.nightly

GROUP = "g"
HOUR_S = 3600.0


def batch_of(spark: SparkSession, *ranges: tuple[int, int, int, int]) -> DataFrame:
    """Return the rows of ranges (partition, start, end, generation), as the source makes them."""
    rows = [
        (TOPIC, partition, offset, f"n{offset}", start, end, generation)
        for partition, start, end, generation in ranges
        for offset in range(start, end)
    ]
    columns = "topic string, partition int, offset long, name string, range_start long"
    return spark.createDataFrame(rows, f"{columns}, range_end long, generation int")


def offsets(rows: DataFrame) -> dict[int, list[int]]:
    """Return the offsets of each partition, sorted, repeats included."""
    found: dict[int, list[int]] = {}
    for partition, offset in sorted(rows.select("partition", "offset").collect()):
        found.setdefault(partition, []).append(offset)
    return found


def test_all_drivers_of_a_group_share_one_folder_and_each_row_is_in_it_once(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """The promise: a checkpoint that is lost repeats nothing, in the same folder."""
    feeder.append(25)
    out = tmp_path / "out"

    for checkpoint in ("one", "two"):
        query = (
            stream(spark, coordinator.address, feeder.root, maxRowsPerPartition="10")
            .writeStream.foreachBatch(FolderSink(out, group=GROUP, fsync=False))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        if checkpoint == "one":
            feeder.append(5)
            with group_of(coordinator) as group:  # As after a crash before the commit.
                group.client.commit(
                    GROUP,
                    {
                        tp: value._replace(offset=20, metadata="gc1:25:0")
                        for tp, value in group.client.fetch_offsets(GROUP).items()
                    },
                )

    assert offsets(read(spark, out)) == {p: list(range(end)) for p, end in feeder.ends().items()}
    assert {key.partition: at.end for key, at in positions(out).items()} == feeder.ends()


def test_rows_and_position_of_an_sql_table_change_together(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A repeat, a late reader and a crash between rows and COMMIT leave each row there once."""
    path = tmp_path / "sink.db"
    make_table(path)
    sink = SqlSink(partial(sqlite3.connect, path), table="events", group=GROUP)
    sink.create_tables()
    sink(batch_of(spark, (0, 0, 3, 1), (1, 5, 7, 1)), 0)
    sink(batch_of(spark, (0, 3, 6, 2), (1, 5, 7, 2)), 7)
    sink(batch_of(spark, (0, 0, 3, 1)), 0)

    assert table_offsets(path) == {0: list(range(6)), 1: [5, 6]}
    assert {key.partition: end for key, end in sink.positions().items()} == {0: 6, 1: 7}


def make_table(path: Path) -> None:
    """Make the table that the tests write to."""
    with sqlite3.connect(path) as db:
        columns = "topic TEXT, partition INTEGER, offset INTEGER, name TEXT"
        ranges = "range_start INTEGER, range_end INTEGER, generation INTEGER"
        db.execute(f"CREATE TABLE events ({columns}, {ranges})")
    db.close()


def table_offsets(path: Path) -> dict[int, list[int]]:
    """Return the offsets of each partition, sorted, repeats included."""
    db = sqlite3.connect(path)
    found: dict[int, list[int]] = {}
    for partition, offset in db.execute(
        "SELECT partition, offset FROM events ORDER BY partition, offset"
    ):
        found.setdefault(partition, []).append(offset)
    db.close()
    return found
