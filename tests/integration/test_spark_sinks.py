"""The sinks on real Spark: every way in which a range can come twice, or not at all."""

import sqlite3
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from bench.processes import free_port
from client.spark import DeltaSink, JdbcStaging, SinkError, SqlSink
from client.spark.sinks import each_range
from tests.integration.postgres_support import Postgres, needs_jdbc, needs_postgres, postgres
from tests.integration.spark_support import TOPIC, Daemon, Feeder, group_of, stream
from tests.spark.delta_support import offsets

pytestmark = [pytest.mark.integration, pytest.mark.spark]
nightly = pytest.mark.nightly

GROUP = "g"
COLUMNS = "topic TEXT, partition INTEGER, offset_ BIGINT, name TEXT"


def batch_of(spark: SparkSession, *ranges: tuple[int, int, int, int]) -> DataFrame:
    """Return the rows of ranges (partition, start, end, generation), as the source makes them."""
    rows = [
        (TOPIC, partition, offset, f"n{offset}", start, end, generation)
        for partition, start, end, generation in ranges
        for offset in range(start, end)
    ]
    columns = "topic string, partition int, offset long, name string, range_start long"
    return spark.createDataFrame(rows, f"{columns}, range_end long, generation int")


def by_partition(rows: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Return the offsets of each partition, sorted, repeats included."""
    found: dict[int, list[int]] = {}
    for partition, offset in sorted(rows):
        found.setdefault(partition, []).append(offset)
    return found


def test_a_delta_table_takes_each_range_once_whoever_brings_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A new owner, a late one, a restart with a new checkpoint: none repeats a row."""
    given: dict[str, Any] = {"fsync": False, "partition_by": ["partition"], "files_per_batch": 1}
    DeltaSink(tmp_path, GROUP, **given)(batch_of(spark, (0, 0, 3, 1), (1, 5, 7, 1)), 0)
    again = DeltaSink(tmp_path, GROUP, **given)
    again(batch_of(spark, (0, 3, 6, 2), (1, 5, 7, 2)), 0)
    again(batch_of(spark, (0, 0, 3, 1)), 1)

    assert by_partition(offsets(tmp_path)) == {0: list(range(6)), 1: [5, 6]}
    assert len(DeltaTable(tmp_path).file_uris()) == 3


@nightly
def test_spark_sees_the_rows_as_it_wrote_them(spark: SparkSession, tmp_path: Path) -> None:
    """Executors write what Arrow makes of Spark's types; each must come back."""
    batch = batch_of(spark, (0, 0, 3, 1)).selectExpr(
        "*",
        "timestamp_seconds(offset) AS at",
        "cast('2026-01-02 03:04:05.678901' AS timestamp_ntz) AS local",
        "date_add(date'1969-12-31', cast(offset AS int)) AS day",
        "cast(offset / 3 AS decimal(20, 5)) AS price",
        "named_struct('a', offset, 'b', array(name, null)) AS pair",
        "map(name, offset) AS pairs",
        "cast(name AS binary) AS raw",
        "cast('nan' AS double) AS ratio",
        "cast(null AS string) AS nothing",
    )

    DeltaSink(tmp_path, GROUP)(batch, 0)

    written = spark.read.parquet(*DeltaTable(tmp_path).file_uris()).select(batch.columns)
    assert written.schema.toNullable() == batch.schema.toNullable()
    assert repr(sorted(written.collect())) == repr(sorted(batch.collect()))


@nightly
def test_all_drivers_of_a_group_share_one_table_and_each_row_is_in_it_once(
    spark: SparkSession, coordinator: Daemon, feeder: Feeder, tmp_path: Path
) -> None:
    """The promise: a checkpoint that is lost repeats nothing, in the same table."""
    feeder.append(25)
    out = tmp_path / "out"
    sink = DeltaSink(out, GROUP, fsync=False)

    for checkpoint in ("one", "two"):
        query = (
            stream(spark, coordinator.address, feeder.root, maxRowsPerPartition="10")
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(150)
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

    assert by_partition(offsets(out)) == {p: list(range(end)) for p, end in feeder.ends().items()}
    assert {key.partition: end for key, end in sink.positions().items()} == feeder.ends()


@nightly
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
    found = by_partition(db.execute("SELECT partition, offset FROM events").fetchall())
    db.close()
    return found


def renamed(rows: DataFrame) -> DataFrame:
    """Return the columns of the table."""
    return rows.selectExpr("topic", "partition", "offset AS offset_", "name")


@pytest.fixture(scope="module")
def server() -> Any:
    """One PostgreSQL for all tests."""
    with postgres(free_port()) as running:
        yield running


@pytest.fixture
def db(server: Postgres) -> Any:
    """A connection to it, and an empty table."""
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS events, group_positions, group_positions_staging")
        connection.execute(f"CREATE TABLE events ({COLUMNS})")
        yield connection


def rows_of(db: Any) -> dict[int, list[int]]:
    """Return the offsets of each partition, sorted, repeats included."""
    found: dict[int, list[int]] = {}
    for partition, offset in db.execute(
        "SELECT partition, offset_ FROM events ORDER BY 1, 2"
    ).fetchall():
        found.setdefault(partition, []).append(offset)
    return found


def copy(cursor: Any, rows: pa.Table) -> None:
    """Insert by COPY, the fastest way that PostgreSQL has."""
    with cursor.copy("COPY events (topic, partition, offset_, name) FROM STDIN") as copying:
        for row in rows.to_pylist():
            copying.write_row(list(row.values()))


@nightly
@needs_postgres
@needs_jdbc
@pytest.mark.parametrize("way", ["insert", "copy", "staging"])
def test_a_table_of_postgresql_takes_each_range_once(
    spark: SparkSession, server: Postgres, db: Any, way: str
) -> None:
    """By each of the ways to write rows."""
    given: dict[str, Any] = {"copy": {"write": copy}}.get(way, {})
    if way == "staging":
        given = {"staging": JdbcStaging(server.jdbc_url, {"driver": "org.postgresql.Driver"})}
    sink = SqlSink(
        partial(psycopg.connect, server.conninfo),
        table="public.events",
        group=GROUP,
        transform=renamed,
        **given,
    )
    sink.create_tables()
    sink.create_tables()  # By the next driver.
    sink(batch_of(spark, (0, 0, 30, 1), (1, 5, 7, 1)), 0)
    sink(batch_of(spark, (0, 30, 60, 2), (1, 5, 7, 2)), 7)
    sink(batch_of(spark, (0, 0, 30, 1)), 0)

    assert rows_of(db) == {0: list(range(60)), 1: [5, 6]}
    assert {key.partition: end for key, end in sink.positions().items()} == {0: 60, 1: 7}
    left = db.execute("SELECT count(*) FROM pg_tables WHERE tablename LIKE 'gc_stage_%'")
    assert left.fetchone() == (0,)


@nightly
@needs_postgres
def test_a_batch_that_fails_in_the_database_leaves_nothing(
    spark: SparkSession, server: Postgres, db: Any
) -> None:
    """Rows without their position would come twice, a position without its rows never."""
    db.execute("ALTER TABLE events ADD CHECK (offset_ <> 7)")
    sink = SqlSink(
        partial(psycopg.connect, server.conninfo), table="events", group=GROUP, transform=renamed
    )
    sink.create_tables()

    with pytest.raises(psycopg.errors.CheckViolation):
        sink(batch_of(spark, (0, 0, 5, 1), (1, 5, 9, 1)), 0)
    assert rows_of(db) == {}
    assert sink.positions() == {}

    db.execute("ALTER TABLE events DROP CONSTRAINT events_offset__check")
    sink(batch_of(spark, (0, 0, 5, 1), (1, 5, 9, 1)), 0)
    assert rows_of(db) == {0: [0, 1, 2, 3, 4], 1: [5, 6, 7, 8]}


@nightly
@needs_postgres
def test_a_position_stays_locked_until_its_rows_are_committed(
    spark: SparkSession, server: Postgres, db: Any
) -> None:
    """Else two drivers could both find it unmoved, and both write the range."""
    sink = SqlSink(
        partial(psycopg.connect, server.conninfo), table="events", group=GROUP, transform=renamed
    )
    sink.create_tables()
    sink(batch_of(spark, (0, 0, 5, 1)), 0)
    calls = []

    def overtake(cursor: Any, rows: pa.Table) -> None:
        # The late one has moved the position and not committed yet: the new owner has to wait.
        calls.append(rows.num_rows)
        with psycopg.connect(server.conninfo) as other:
            other.execute("SET lock_timeout = '300ms'")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                other.execute("UPDATE group_positions SET generation = 9 WHERE partition_id = 0")
        copy(cursor, rows)

    late = SqlSink(
        partial(psycopg.connect, server.conninfo),
        table="events",
        group=GROUP,
        transform=renamed,
        write=overtake,
    )
    late(batch_of(spark, (0, 5, 8, 1)), 1)
    sink(batch_of(spark, (0, 5, 8, 2)), 1)

    assert calls == [3]
    assert rows_of(db) == {0: list(range(8))}


@nightly
@needs_jdbc
def test_executors_write_large_batches_to_sqlite_by_jdbc(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The same without a server."""
    path = tmp_path / "sink.db"
    make_table(path)
    sink = SqlSink(
        partial(sqlite3.connect, path, timeout=30),
        table="events",
        group=GROUP,
        staging=JdbcStaging(f"jdbc:sqlite:{path}", {"driver": "org.sqlite.JDBC"}),
    )
    sink.create_tables()
    batch = batch_of(spark, (0, 0, 300, 1), (1, 0, 200, 1)).coalesce(1)  # SQLite: one writer.
    sink(batch, 0)
    sink(batch, 0)

    assert table_offsets(path) == {0: list(range(300)), 1: list(range(200))}


@nightly
def test_ranges_whose_rows_are_all_filtered_out_are_no_gap(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A filter before the sink would hide them; as transform= it doesn't."""

    def odd(rows: DataFrame) -> DataFrame:
        return rows.where("offset % 2 = 1 AND offset < 5")

    sink = DeltaSink(tmp_path, GROUP, transform=odd, fsync=False)
    for number in range(3):
        sink(batch_of(spark, (0, 4 * number, 4 * number + 4, 1)), number)

    assert by_partition(offsets(tmp_path)) == {0: [1, 3]}
    with pytest.raises(SinkError, match="hand it to the sink as transform="):
        sink(batch_of(spark, (0, 16, 20, 1)), 3)


@nightly
def test_a_sink_of_ones_own_gets_one_frame_per_range(spark: SparkSession) -> None:
    """For stores with idempotent writes."""
    found = {
        each.key: each.rows.count()
        for each in each_range(batch_of(spark, (0, 0, 3, 1), (1, 5, 9, 1)), GROUP)
    }

    assert found == {f"g/{TOPIC}/0/3": 3, f"g/{TOPIC}/1/9": 4}
