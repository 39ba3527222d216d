"""A table of an SQL database that takes each range once, in one transaction with its position.

The positions stand in a table of their own in the same database. A transaction first moves the
positions, each under the condition that it is still what was read before, then inserts the rows.
So of two drivers that bring the same range one waits for the other's row lock, finds the
position moved, and rolls back. What the coordinator believes doesn't matter to that.
"""

import logging
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from client.spark.sinks.ranges import (
    Decision,
    OnGap,
    OnReset,
    PartitionKey,
    SinkError,
    Stored,
    Transform,
    Verdict,
    accepted_rows,
    checked_policy,
    decide_all,
    log_skipped,
    looks_into,
    persisted,
    ranges_of,
)

# ------------------------------------------------------------------------------------------
# The SQL that the sink runs, for any parameter style of the DB-API. Pure.

# ruff: noqa: S608 - Names are quoted here, and values are parameters.


PARAMSTYLES: Final = ("qmark", "numeric", "named", "format", "pyformat")

_POSITION_COLUMNS: Final = (
    "group_id",
    "topic",
    "partition_id",
    "range_start",
    "range_end",
    "generation",
    "late_end",
)


class Dialect(NamedTuple):
    """How a database wants its parameters and its names."""

    paramstyle: str = "qmark"
    quote: str = '"'

    def name(self, text: str) -> str:
        """Quote a name; dots separate a schema from a table."""
        return ".".join(map(self.column, text.split(".")))

    def column(self, text: str) -> str:
        """Quote a column's name, in which dots are dots."""
        quoted = f"{self.quote}{text.replace(self.quote, self.quote * 2)}{self.quote}"
        # Where parameters are marked by a percent sign, any other one is doubled.
        return quoted.replace("%", "%%") if "format" in self.paramstyle else quoted

    def parameters(self, count: int, first: int = 1) -> list[str]:
        """Return *count* markers; all values are passed as one sequence."""
        markers: dict[str, Callable[[int], str]] = {
            "qmark": lambda _: "?",
            "format": lambda _: "%s",
            "pyformat": lambda _: "%s",
            "numeric": lambda n: f":{n}",
            "named": lambda n: f":{n}",
        }
        return [markers[self.paramstyle](n) for n in range(first, first + count)]


class Statements(NamedTuple):
    """The statements about positions, for one table that keeps them."""

    create: str
    select: str
    insert: str
    update: str
    delete: str


def position_statements(dialect: Dialect, table: str) -> Statements:
    """Return the statements for the table that keeps positions."""
    name = dialect.name(table)
    columns = ", ".join(_POSITION_COLUMNS)
    keys = _POSITION_COLUMNS[:3]
    values = _POSITION_COLUMNS[3:]
    marks = dialect.parameters(len(_POSITION_COLUMNS))
    setting = ", ".join(
        f"{column} = {mark}"
        for column, mark in zip(values, dialect.parameters(len(values)), strict=True)
    )
    where = _equal(dialect, keys, first=1 + len(values))
    # The whole row must be as it was read: end and generation alone could come again.
    unchanged = _equal(dialect, values[:3], first=1 + len(values) + len(keys))
    late = dialect.parameters(1, first=1 + len(values) + len(keys) + 3)[0]
    return Statements(
        create=(
            f"CREATE TABLE IF NOT EXISTS {name} (group_id VARCHAR(255) NOT NULL, "
            "topic VARCHAR(249) NOT NULL, partition_id INTEGER NOT NULL, "
            "range_start BIGINT NOT NULL, range_end BIGINT NOT NULL, "
            "generation INTEGER NOT NULL, late_end BIGINT NOT NULL, "
            "PRIMARY KEY (group_id, topic, partition_id))"
        ),
        select=(
            f"SELECT {', '.join(_POSITION_COLUMNS[1:])} FROM {name} "
            f"WHERE {_equal(dialect, keys[:1], first=1)}"
        ),
        insert=f"INSERT INTO {name} ({columns}) VALUES ({', '.join(marks)})",
        update=f"UPDATE {name} SET {setting} WHERE {where} AND {unchanged} AND late_end = {late}",
        delete=f"DELETE FROM {name} WHERE {_equal(dialect, keys, first=1)}",
    )


def insert_rows(dialect: Dialect, table: str, columns: Sequence[str]) -> str:
    """Return the statement that inserts one row."""
    names = ", ".join(map(dialect.column, columns))
    marks = ", ".join(dialect.parameters(len(columns)))
    return f"INSERT INTO {dialect.name(table)} ({names}) VALUES ({marks})"


def insert_from(dialect: Dialect, table: str, staging: str, columns: Sequence[str]) -> str:
    """Return the statement that moves all rows of a staging table."""
    names = ", ".join(map(dialect.column, columns))
    return (
        f"INSERT INTO {dialect.name(table)} ({names}) SELECT {names} FROM {dialect.name(staging)}"
    )


def create_like(dialect: Dialect, staging: str, table: str, columns: Sequence[str]) -> str:
    """Return the statement that makes an empty staging table with the columns of *table*."""
    names = ", ".join(map(dialect.column, columns))
    return (
        f"CREATE TABLE {dialect.name(staging)} AS "
        f"SELECT {names} FROM {dialect.name(table)} WHERE 1 = 0"
    )


def _equal(dialect: Dialect, columns: Sequence[str], first: int) -> str:
    marks = dialect.parameters(len(columns), first)
    return " AND ".join(f"{column} = {mark}" for column, mark in zip(columns, marks, strict=True))


# ------------------------------------------------------------------------------------------
# Tables to which executors write a batch by JDBC, before a transaction moves it.
#
# Spark writes each task in a transaction of its own, so a batch that failed in the middle, or a
# task that ran twice, leaves too few or too many rows. They are in a table that nobody reads, with
# a name that is used once; it is moved only if it holds as many rows as the batch.

# ruff: noqa: S608 - Names are quoted, and values are parameters.


if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Nobody writes a batch for so long; what is older was left by a crash.
LEFT_OVER_S: Final = 24 * 3600

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JdbcStaging:
    """How executors reach the database.

    Args:
        url: such as ``jdbc:postgresql://host/db``; the driver's jar must be on Spark's class
            path.
        properties: Spark's options for it, such as ``user``, ``password``, ``driver`` and
            ``batchsize``. They are not shown.

    """

    url: str
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def write(self, rows: "DataFrame", table: str) -> None:
        """Write the rows to a table that exists; its name is quoted already."""
        rows.write.format("jdbc").options(
            **{"batchsize": "10000", **self.properties, "url": self.url, "dbtable": table}
        ).mode("append").save()


class Staged(NamedTuple):
    """A staging table, and how many rows it has to hold."""

    name: str
    target: str
    columns: tuple[str, ...]
    rows: int

    def move(self, cursor: Any, dialect: Dialect) -> None:
        """Insert its rows into the target.

        Raises:
            SinkError: there are too many or too few.

        """
        cursor.execute(f"SELECT COUNT(*) FROM {dialect.name(self.name)}")
        (found,) = cursor.fetchone()
        if found != self.rows:
            raise SinkError(
                f"the staging table {self.name} has {found} rows, the batch has {self.rows}: a "
                "task of Spark ran twice, or transform= returns other rows each time. Restart "
                "the query; switch spark.speculation off"
            )
        cursor.execute(insert_from(dialect, self.target, self.name, self.columns))


class StagingTables(NamedTuple):
    """Makes and drops staging tables, and keeps a list of them in the table *registry*."""

    dialect: Dialect
    target: str
    registry: str

    @property
    def create(self) -> str:
        """The statement that makes the list."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.dialect.name(self.registry)} "
            "(name VARCHAR(255) NOT NULL PRIMARY KEY, created_s BIGINT NOT NULL)"
        )

    def make(self, db: Any, columns: Sequence[str], rows: int, *, now_s: int) -> Staged:
        """Make a staging table for *rows* rows, and drop what crashed drivers left."""
        self._drop_left_over(db, now_s)
        schema, dot, _ = self.target.rpartition(".")
        name = f"{schema}{dot}gc_stage_{uuid.uuid4().hex[:16]}"
        cursor = db.cursor()
        marks = ", ".join(self.dialect.parameters(2))
        listed = self.dialect.name(self.registry)
        cursor.execute(f"INSERT INTO {listed} VALUES ({marks})", (name, now_s))
        cursor.execute(create_like(self.dialect, name, self.target, columns))
        db.commit()
        return Staged(name, self.target, tuple(columns), rows)

    def drop(self, db: Any, name: str) -> None:
        """Drop a staging table. What goes wrong is only logged: it is dropped a day later."""
        try:
            cursor = db.cursor()
            cursor.execute(f"DROP TABLE IF EXISTS {self.dialect.name(name)}")
            (mark,) = self.dialect.parameters(1)
            listed = self.dialect.name(self.registry)
            cursor.execute(f"DELETE FROM {listed} WHERE name = {mark}", (name,))
            db.commit()
        except Exception:
            logger.warning("the staging table %s is not dropped yet", name, exc_info=True)
            db.rollback()

    def _drop_left_over(self, db: Any, now_s: int) -> None:
        cursor = db.cursor()
        (mark,) = self.dialect.parameters(1)
        listed = self.dialect.name(self.registry)
        cursor.execute(
            f"SELECT name FROM {listed} WHERE created_s < {mark}",
            (now_s - LEFT_OVER_S,),
        )
        names = [name for (name,) in cursor.fetchall()]
        db.rollback()
        for name in names:
            self.drop(db, name)


# ------------------------------------------------------------------------------------------
# A table of an SQL database that takes each range once, in one transaction with its position.

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

# What a driver's `connect` returns, and its cursor: the DB-API has no types of its own.
Connection = Any
Cursor = Any

WriteRows = Callable[[Cursor, "pa.Table"], object]

# Somebody else's transaction comes between ours at most so often in a row.
TRIES_MAX: Final = 100
ROWS_PER_CALL: Final = 5_000

_NONE: Final = -1


class SqlSink:
    """Writes batches of a coordinated source to an SQL table; hand it to ``foreachBatch``.

    The rows of a batch come to the driver and are inserted by it. For batches too large for
    that, give a `JdbcStaging`: then the executors write them to a table of their own first,
    and the transaction only moves them.

    Args:
        connect: makes a DB-API connection that is not in autocommit mode. Called for every
            batch, in the process that runs ``foreachBatch``.
        table: the table for the rows, maybe with its schema before a dot. It must exist, with
            the columns that the rows have.
        group: the group that reads.
        transform: shapes the rows before they are written; it may drop some or all.
        write: inserts the rows (a cursor and an Arrow table are passed) in place of plain
            INSERTs, such as upserts or COPY. It must not commit.
        staging: lets executors write the rows.
        positions_table: where the positions are kept; `create_tables` makes it.
        paramstyle: how the database marks parameters; found out from the driver if None.
        quote: what names are quoted with.
        on_gap: what to do when rows before a range never came: ``error`` or ``accept``.
        on_reset: what to do when rows come again because the group's offsets were moved back:
            ``error``, ``skip`` them, or ``append`` them once more.
        log: the options of the log that the query reads, if its offsets have gaps, as those of
            Kafka have: the sink then looks whether a gap holds rows.
        clock: returns the time in seconds since 1970.

    Raises:
        ValueError: an argument is impossible.

    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        *,
        table: str,
        group: str,
        transform: Transform | None = None,
        write: WriteRows | None = None,
        staging: JdbcStaging | None = None,
        positions_table: str = "group_positions",
        paramstyle: str | None = None,
        quote: str = '"',
        on_gap: OnGap = "error",
        on_reset: OnReset = "error",
        log: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        for name, value in (
            ("table", table),
            ("group", group),
            ("positions_table", positions_table),
        ):
            if not value:
                raise ValueError(f"{name} is empty")
        if paramstyle is not None and paramstyle not in PARAMSTYLES:
            raise ValueError(f"paramstyle is {paramstyle!r}: it must be one of {PARAMSTYLES}")
        if write is not None and staging is not None:
            raise ValueError("write and staging exclude each other: staged rows are moved by SQL")
        self.group = group
        self._connect = connect
        self._table = table
        self._transform = transform
        self._write = write
        self._staging = staging
        self._positions_table = positions_table
        self._paramstyle = paramstyle
        self._quote = quote
        self._policy = checked_policy(on_gap, on_reset, looks_into(log))
        self._clock = clock

    def __call__(self, batch: "DataFrame", batch_id: int) -> None:
        """Write the ranges of *batch* that are new, all or none of them.

        Raises:
            SinkError: a range must not be taken, or the batch doesn't fit.
            Exception: whatever the database's driver raises; nothing was written then, or the
                answer to COMMIT was lost, which the next run of the batch finds out.

        """
        with persisted(batch):
            ranges = ranges_of(batch)
            for _ in range(TRIES_MAX):
                decisions = decide_all(self.group, ranges, self._stored(), self._policy)
                if not any(d.changes for d in decisions.values()) or self._store(batch, decisions):
                    log_skipped(decisions)
                    return
        raise SinkError(
            f"{self._table}: other drivers keep writing the ranges of batch {batch_id}; do two "
            "groups of the same name write here?"
        )

    def create_tables(self) -> None:
        """Make the table of the positions (and of staging tables) if it isn't there."""
        with self._connection() as (db, dialect):
            statements = [position_statements(dialect, self._positions_table).create]
            if self._staging is not None:
                statements.append(self._staging_tables(dialect).create)
            for statement in statements:
                try:
                    db.cursor().execute(statement)
                    db.commit()
                except Exception as error:
                    # Two at once collide even with IF NOT EXISTS; then it is there.
                    if not _is_integrity(error):
                        raise
                    db.rollback()

    def positions(self) -> dict[PartitionKey, int]:
        """Return up to where the table has each partition of the group."""
        return {key: stored.end for key, stored in self._stored().items()}

    def forget(self, topic: str | None = None, partition: int | None = None) -> int:
        """Take whatever range comes next, of one partition, of a topic, or of the group.

        The rows stay. For a log that was made anew, and to write rows once more.

        Returns:
            How many partitions were forgotten.

        """
        keys = [
            key
            for key in self._stored()
            if topic in (None, key.topic) and partition in (None, key.partition)
        ]
        with self._connection() as (db, dialect):
            delete = position_statements(dialect, self._positions_table).delete
            cursor = db.cursor()
            for key in sorted(keys):
                cursor.execute(delete, tuple(key))
            db.commit()
        return len(keys)

    def _stored(self) -> dict[PartitionKey, Stored]:
        with self._connection() as (db, dialect):
            cursor = db.cursor()
            cursor.execute(
                position_statements(dialect, self._positions_table).select, (self.group,)
            )
            found = {
                PartitionKey(self.group, topic, partition): Stored(
                    start, end, generation, None if late == _NONE else late
                )
                for topic, partition, start, end, generation, late in cursor.fetchall()
            }
            db.rollback()
        return found

    def _store(self, batch: "DataFrame", decisions: Mapping[PartitionKey, Decision]) -> bool:
        """Write rows and positions; return False if one of the partitions moved meanwhile."""
        changed = {key: d for key, d in decisions.items() if d.changes}
        rows = None
        if any(d.verdict is Verdict.WRITE for d in changed.values()):
            rows = accepted_rows(batch, decisions.values())
            rows = rows if self._transform is None else self._transform(rows)
        if rows is None:
            return self._transact(changed, lambda _cursor, _dialect: None)
        if self._staging is None:
            # Before the transaction: it holds locks, and this may take long.
            table = rows.toArrow()
            return self._transact(
                changed, lambda cursor, dialect: self._insert(cursor, dialect, table)
            )
        with self._staged(rows) as staged:
            return self._transact(changed, staged.move)

    def _transact(
        self,
        changed: Mapping[PartitionKey, Decision],
        write: Callable[[Cursor, Dialect], object],
    ) -> bool:
        with self._connection() as (db, dialect):
            try:
                cursor = db.cursor()
                # In the same order in all drivers, so that they can't wait for each other.
                for key, decision in sorted(changed.items(), key=lambda item: item[0]):
                    if not self._move(cursor, dialect, key, decision):
                        db.rollback()
                        return False
                write(cursor, dialect)
                db.commit()
            except Exception as error:
                with suppress(Exception):  # Of a lost connection; then nothing is stored anyway.
                    db.rollback()
                if not _is_conflict(error):
                    raise
                logger.info("%s: another transaction was first: %s", self._table, error)
                return False
        return True

    def _move(
        self, cursor: Cursor, dialect: Dialect, key: PartitionKey, decision: Decision
    ) -> bool:
        """Set a partition's position if it is still what it was; say whether."""
        statements = position_statements(dialect, self._positions_table)
        after = _row(decision.after)
        if decision.before is None:
            try:
                cursor.execute(statements.insert, (*key, *after))
            except Exception as error:
                if not _is_integrity(error):
                    raise
                return False
            return True
        cursor.execute(statements.update, (*after, *key, *_row(decision.before)))
        return bool(cursor.rowcount == 1)

    def _insert(self, cursor: Cursor, dialect: Dialect, table: "pa.Table") -> None:
        if self._write is not None:
            self._write(cursor, table)
            return
        statement = insert_rows(dialect, self._table, table.column_names)
        for part in table.to_batches(max_chunksize=ROWS_PER_CALL):
            columns = [column.to_pylist() for column in part.columns]
            cursor.executemany(statement, list(zip(*columns, strict=True)))

    @contextmanager
    def _staged(self, rows: "DataFrame") -> Iterator[Staged]:
        assert self._staging is not None
        with persisted(rows):
            with self._connection() as (db, dialect):
                staged = self._staging_tables(dialect).make(
                    db, rows.columns, rows.count(), now_s=int(self._clock())
                )
            try:
                self._staging.write(rows, dialect.name(staged.name))
                yield staged
            finally:
                self._drop_staged(staged.name)

    def _drop_staged(self, name: str) -> None:
        """Drop a staging table; what was stored stays stored if the database is away by now."""
        try:
            with self._connection() as (db, dialect):
                self._staging_tables(dialect).drop(db, name)
        except Exception:
            logger.warning("the staging table %s is not dropped yet", name, exc_info=True)

    def _staging_tables(self, dialect: Dialect) -> StagingTables:
        return StagingTables(dialect, self._table, self._positions_table + "_staging")

    @contextmanager
    def _connection(self) -> Iterator[tuple[Connection, Dialect]]:
        db = self._connect()
        try:
            if _in_autocommit(db):
                raise SinkError(
                    "connect() returns a connection in autocommit mode, in which rows and "
                    "positions can't be stored together; switch autocommit off"
                )
            yield db, Dialect(self._paramstyle or _paramstyle(db), self._quote)
        finally:
            db.close()


def _row(stored: Stored) -> tuple[int, int, int, int]:
    late_end = _NONE if stored.late_end is None else stored.late_end
    return stored.start, stored.end, stored.generation, late_end


def _in_autocommit(db: Connection) -> bool:
    if callable(getattr(db, "get_autocommit", None)):
        return bool(db.get_autocommit())
    if getattr(db, "autocommit", None) is True:
        return True
    # What sqlite3 calls it. -1 is its way of saying: see isolation_level.
    return (
        type(db).__module__ == "sqlite3"
        and db.isolation_level is None
        and getattr(db, "autocommit", -1) == -1
    )


def _paramstyle(db: Connection) -> str:
    """Return what the module says that the connection comes from."""
    parts = type(db).__module__.split(".")
    for length in range(len(parts), 0, -1):
        module = sys.modules.get(".".join(parts[:length]))
        style = getattr(module, "paramstyle", None)
        if style in PARAMSTYLES:
            return str(style)
    raise SinkError(
        f"{type(db).__module__} doesn't say how it marks parameters; set paramstyle= to one of "
        f"{', '.join(PARAMSTYLES)}"
    )


def _is_integrity(error: Exception) -> bool:
    """The DB-API gives this class a name, but no common ancestor."""
    return any(one.__name__ == "IntegrityError" for one in type(error).__mro__)


def _is_conflict(error: Exception) -> bool:
    """Say whether the database asks for the transaction once more (SQLSTATE class 40)."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return isinstance(state, str) and state.startswith("40")
