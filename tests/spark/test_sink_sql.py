"""The SQL sink on SQLite, with a connection that breaks wherever it can."""

import pickle
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from client.spark.sinks import JdbcStaging, SinkError, SqlSink
from client.spark.sinks.ranges import Decision, PartitionKey, SinkRange, Stored, Verdict
from client.spark.sinks.sql import LEFT_OVER_S, Dialect, Positions, StagingTables
from tests.fakes.frames import Frame, batch_of

COLUMNS = "topic, partition, offset, name, range_start, range_end, generation"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database with the table for the rows, and the one for the positions."""
    made = tmp_path / "sink.db"
    db = sqlite3.connect(made)
    db.execute(f"CREATE TABLE events ({COLUMNS})")
    db.close()
    sink_of(made).create_tables()
    return made


def sink_of(path: Path, connect: Callable[[], Any] | None = None, **given: Any) -> SqlSink:
    """Return a sink into the table of *path*."""
    return SqlSink(connect or partial(sqlite3.connect, path), table="events", group="g", **given)


def offsets(path: Path) -> dict[int, list[int]]:
    """Return the offsets of each partition, repeats included."""
    found: dict[int, list[int]] = {}
    db = sqlite3.connect(path)
    for partition, offset in db.execute("SELECT partition, offset FROM events ORDER BY 1, 2"):
        found.setdefault(partition, []).append(offset)
    db.close()
    return found


class Broken(Exception):
    """What the database's driver says when the connection is lost."""


class Fragile:
    """A connection that is lost at its n-th call, before the call or after it."""

    def __init__(self, db: Any, countdown: list[int], *, after: bool) -> None:
        self._db = db
        self._countdown = countdown
        self._after = after
        self.autocommit = False

    def cursor(self) -> Self:
        """One object is enough for both."""
        self._cursor = self._db.cursor()
        return self

    @property
    def rowcount(self) -> int:
        """How many rows the last statement touched."""
        return int(self._cursor.rowcount)

    def execute(self, *args: Any) -> None:
        """Count, then run."""
        self._call(self._cursor.execute, *args)

    def executemany(self, *args: Any) -> None:
        """Count, then run."""
        self._call(self._cursor.executemany, *args)

    def fetchall(self) -> Any:
        """Return rows."""
        return self._cursor.fetchall()

    def commit(self) -> None:
        """Count, then commit."""
        self._call(self._db.commit)

    def rollback(self) -> None:
        """A lost connection rolls back by itself."""
        self._db.rollback()

    def close(self) -> None:
        """Close."""
        self._db.close()

    def _call(self, call: Callable[..., object], *args: Any) -> None:
        self._countdown[0] -= 1
        lost = self._countdown[0] == 0
        if not lost or self._after:
            call(*args)
        if lost:
            raise Broken


@settings(max_examples=40)
@given(lost_at=st.integers(1, 7), after=st.booleans(), moved=st.booleans())
def test_whichever_call_is_the_last_one_the_next_run_completes_the_batch(
    tmp_path_factory: pytest.TempPathFactory, lost_at: int, after: bool, moved: bool
) -> None:
    """Also a lost answer to COMMIT, of which nobody knows what it was."""
    path = tmp_path_factory.mktemp("fragile") / "sink.db"
    db = sqlite3.connect(path)
    db.execute(f"CREATE TABLE events ({COLUMNS})")
    db.close()
    sink_of(path).create_tables()
    if moved:
        sink_of(path)(batch_of((0, 0, 2, 1), (1, 0, 2, 1)), 0)
    start = 2 if moved else 0
    batch = batch_of((0, start, start + 3, 1), (1, start, start + 2, 1))
    countdown = [lost_at]

    def connect() -> Fragile:
        return Fragile(sqlite3.connect(path), countdown, after=after)

    fragile = sink_of(path, connect, paramstyle="qmark")
    try:
        fragile(batch, 1)
    except Broken:
        assert set(offsets(path).get(0, [])) in (set(range(start)), set(range(start + 3)))
    sink_of(path)(batch, 1)

    assert offsets(path) == {0: list(range(start + 3)), 1: list(range(start + 2))}


def overtaken_by(path: Path, *ranges: tuple[int, int, int, int]) -> SqlSink:
    """Return a sink that another driver overtakes once, when it has read the positions."""
    connections = iter(range(99))

    def connect() -> sqlite3.Connection:
        if next(connections) == 1:  # The next one after that for the positions.
            sink_of(path)(batch_of(*ranges), 0)
        return sqlite3.connect(path)

    return sink_of(path, connect)


def test_of_two_drivers_with_the_same_range_one_waits_and_rolls_back(path: Path) -> None:
    """The late one decided on positions that are not true any more when it writes."""
    late = overtaken_by(path, (0, 0, 3, 2), (1, 0, 2, 2))

    late(batch_of((0, 0, 3, 1)), 0)

    assert offsets(path) == {0: [0, 1, 2], 1: [0, 1]}


def test_a_driver_that_was_overtaken_in_a_later_range_is_refused_by_the_condition(
    path: Path,
) -> None:
    """The condition of the UPDATE, beside that of the first INSERT."""
    sink_of(path)(batch_of((0, 0, 3, 1), (1, 0, 3, 1)), 0)
    late = overtaken_by(path, (1, 3, 5, 2))

    late(batch_of((0, 3, 4, 1), (1, 3, 5, 1)), 0)

    assert offsets(path) == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3, 4]}


def test_rows_are_shaped_and_written_as_told(path: Path) -> None:
    """Upserts and COPY are the database's own affair; the transaction is the sink's."""

    def shape(rows: object) -> object:
        assert isinstance(rows, Frame)
        return rows.select("partition", "offset")

    def write(cursor: Any, rows: pa.Table) -> None:
        values = [(row["partition"], row["offset"] * 10) for row in rows.to_pylist()]
        cursor.executemany("INSERT INTO events (partition, offset) VALUES (?, ?)", values)

    sink_of(path, transform=shape)(batch_of((0, 0, 2, 1)), 0)
    sink_of(path, transform=shape, write=write)(batch_of((0, 2, 4, 1)), 1)

    assert offsets(path) == {0: [0, 1, 20, 30]}


def test_of_a_range_that_reaches_over_the_position_only_the_new_rows_are_written(
    path: Path,
) -> None:
    """After a reset, with a sink that leaves out what it has."""
    sink = sink_of(path, on_reset="skip")
    sink(batch_of((0, 0, 5, 1), (1, 0, 2, 1)), 0)
    sink(batch_of((0, 3, 8, 1), (1, 0, 2, 2)), 1)

    assert offsets(path) == {0: list(range(8)), 1: [0, 1]}


def test_forget_lets_rows_be_written_once_more(path: Path) -> None:
    """After a reset that is meant."""
    sink = sink_of(path)
    sink(batch_of((0, 0, 3, 4), (1, 0, 2, 4)), 0)
    with pytest.raises(SinkError, match=r"forget\(\)"):
        sink(batch_of((0, 0, 2, 4)), 1)

    assert sink.forget("events", 0) == 1
    sink(batch_of((0, 0, 2, 4)), 1)

    assert offsets(path)[0] == [0, 0, 1, 1, 2]
    assert sink.positions() == {
        PartitionKey("g", "events", 0): 2,
        PartitionKey("g", "events", 1): 2,
    }


def test_a_connection_in_autocommit_mode_is_refused(path: Path) -> None:
    """Rows without their position, or the other way round, would be the first thing it makes."""
    with pytest.raises(SinkError, match="autocommit"):
        sink_of(path, lambda: sqlite3.connect(path, isolation_level=None)).positions()


@pytest.mark.parametrize(
    ("given_arguments", "words"),
    [
        ({"table": ""}, "table is empty"),
        ({"group": ""}, "group is empty"),
        ({"paramstyle": "?"}, "paramstyle is '\\?'"),
        ({"write": print, "staging": JdbcStaging("jdbc:x")}, "exclude each other"),
        ({"on_reset": "replace"}, "on_reset is 'replace'"),
    ],
)
def test_an_impossible_argument_is_named(given_arguments: dict[str, Any], words: str) -> None:
    """At the start of the query, not in its first batch."""
    with pytest.raises(ValueError, match=words):
        SqlSink(print, **{"table": "t", "group": "g", **given_arguments})


def test_a_driver_that_does_not_say_how_it_marks_parameters_is_asked_for(path: Path) -> None:
    """A guess would fail in the database with words about syntax."""
    connect = partial(Fragile, sqlite3.connect(path), [99], after=False)

    with pytest.raises(SinkError, match="set paramstyle="):
        sink_of(path, connect).positions()


def test_a_password_is_not_shown() -> None:
    """Sinks end up in logs and in tracebacks."""
    staging = JdbcStaging("jdbc:postgresql://host/db", {"password": "secret"})

    assert "secret" not in repr(staging)
    assert pickle.loads(pickle.dumps(staging)) == staging


class Statements:
    """A connection and its cursor that keep what they are told, and find one row everywhere."""

    rowcount = 1

    def __init__(self) -> None:
        self.told: list[str] = []

    def cursor(self) -> Self:
        """One object is enough for both."""
        return self

    def execute(self, statement: str, _parameters: object = ()) -> None:
        """Keep the statement."""
        self.told.append(statement)

    def fetchone(self) -> tuple[int]:
        """Return a count."""
        return (1,)

    def fetchall(self) -> list[object]:
        """Return nothing."""
        return []

    def commit(self) -> None:
        """Do nothing."""

    rollback = commit


def test_the_statements_suit_the_database() -> None:
    """Each driver has its own way to mark a parameter."""
    oracle, psycopg, mysql = Dialect("numeric"), Dialect("pyformat"), Dialect(quote="`")
    db = Statements()
    decision = Decision(
        SinkRange("t", 0, 3, 5, 1), Verdict.WRITE, 3, Stored(0, 3, 1), Stored(3, 5, 1)
    )

    assert psycopg.insert("a.b", ["x", '50%"']) == (
        'INSERT INTO "a"."b" ("x", "50%%""") VALUES (%s, %s)'
    )
    assert Positions(oracle, "p").move(db, PartitionKey("g", "t", 0), decision)
    assert db.told[-1].endswith(
        "WHERE group_id = :5 AND topic = :6 AND partition_id = :7 AND range_start = :8 "
        "AND range_end = :9 AND generation = :10 AND late_end = :11"
    )
    staged = StagingTables(mysql, "b", "s").make(db, ["x"], 1, now_s=0)
    assert db.told[-1] == f"CREATE TABLE `{staged.name}` AS SELECT `x` FROM `b` WHERE 1 = 0"
    staged.move(db, oracle)
    assert db.told[-1] == f'INSERT INTO "b" ("x") SELECT "x" FROM "{staged.name}"'


def test_staged_rows_are_moved_only_if_they_are_all_there(path: Path) -> None:
    """A task of Spark that ran twice has written its rows twice."""
    dialect = Dialect()
    tables = StagingTables(dialect, "events", "staging")
    db = sqlite3.connect(path)
    db.execute(tables.create)
    staged = tables.make(db, ["partition", "offset"], 2, now_s=1_000)
    db.execute(f'INSERT INTO "{staged.name}" VALUES (0, 0)')

    with pytest.raises(SinkError, match="has 1 rows, the batch has 2"):
        staged.move(db.cursor(), dialect)
    db.execute(f'INSERT INTO "{staged.name}" VALUES (0, 1)')
    staged.move(db.cursor(), dialect)
    db.commit()
    db.execute(f'INSERT INTO "{staged.name}" VALUES (0, 1)')
    with pytest.raises(SinkError, match="has 3 rows, the batch has 2"):
        staged.move(db.cursor(), dialect)

    assert offsets(path) == {0: [0, 1]}
    left = tables.make(db, ["partition"], 2, now_s=1_000 + LEFT_OVER_S)
    assert table_count(db) == 2
    tables.make(db, ["partition"], 2, now_s=1_001 + 2 * LEFT_OVER_S)  # Drops both.
    assert table_count(db) == 1
    tables.drop(db, left.name)  # Dropped already; nobody minds.
    db.close()


def table_count(db: sqlite3.Connection) -> int:
    """Return how many staging tables there are."""
    (found,) = db.execute("SELECT COUNT(*) FROM sqlite_master WHERE name LIKE 'gc_stage_%'")
    (listed,) = db.execute("SELECT COUNT(*) FROM staging")
    # An index of a primary key has another name.
    assert found == listed
    return int(found[0])


class Staging(JdbcStaging):
    """Writes as executors do, and lets the database go away once the rows are moved."""

    def write(self, rows: Any, table: str) -> None:
        """Insert the rows."""
        db = sqlite3.connect(self.url)
        marks = ", ".join("?" * len(rows.columns))
        db.executemany(f"INSERT INTO {table} VALUES ({marks})", rows.collect())
        db.commit()
        db.close()


def test_a_database_that_goes_away_after_the_commit_fails_no_batch(path: Path) -> None:
    """Only the staging table is left, for a later batch to drop."""
    left = [3]  # Connections: positions, staging table, transaction.

    def connect() -> sqlite3.Connection:
        left[0] -= 1
        if left[0] < 0:
            raise Broken
        return sqlite3.connect(path)

    sink = sink_of(path, connect, staging=Staging(str(path)))
    left[0] = 4
    sink.create_tables()
    left[0] = 3

    sink(batch_of((0, 0, 3, 1)), 0)

    assert offsets(path) == {0: [0, 1, 2]}
    left[0] = 9
    assert list(sink.positions().values()) == [3]
