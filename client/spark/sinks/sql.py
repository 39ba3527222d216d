"""A table of an SQL database that takes each range once, in one transaction with its position.

The positions stand in a table of their own in the same database. A transaction first moves the
positions, each under the condition that it is still what was read before, then inserts the rows.
So of two drivers that bring the same range one waits for the other's row lock, finds the
position moved, and rolls back. What the coordinator believes doesn't matter to that.

With `JdbcStaging`, executors write a batch to a staging table before a transaction moves it. Spark
writes each task in a transaction of its own, so a batch that failed in the middle, or a task that
ran twice, leaves too few or too many rows. They are in a table that nobody reads, with a name that
is used once; it is moved only if it holds as many rows as the batch.
"""
# ruff: noqa: S608 - Names are quoted here, and values are parameters.

import logging
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from client.spark.sinks.ranges import (
    Decision,
    OnGap,
    OnReset,
    PartitionKey,
    RangeSink,
    SinkError,
    Stored,
    Transform,
    checked_policy,
    persisted,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

# What a driver's `connect` returns, and its cursor: the DB-API has no types of its own.
Connection = Any
Cursor = Any

WriteRows = Callable[[Cursor, "pa.Table"], object]

PARAMSTYLES: Final = ("qmark", "numeric", "named", "format", "pyformat")
ROWS_PER_CALL: Final = 5_000

# Nobody writes a batch for so long; what is older was left by a crash.
LEFT_OVER_S: Final = 24 * 3600

NOT_DROPPED: Final = "the staging table %s is not dropped yet"
_KEYS: Final = ("group_id", "topic", "partition_id")
_VALUES: Final = ("range_start", "range_end", "generation", "late_end")


class Dialect(NamedTuple):
    """How a database wants its parameters and its names, and the statements about rows."""

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
        if self.paramstyle == "qmark":
            return ["?"] * count
        if "format" in self.paramstyle:
            return ["%s"] * count
        return [f":{n}" for n in range(first, first + count)]

    def equal(self, columns: Sequence[str], first: int = 1) -> list[str]:
        """Return the conditions that columns equal parameters, which begin with the *first* one."""
        marks = self.parameters(len(columns), first)
        return [f"{column} = {mark}" for column, mark in zip(columns, marks, strict=True)]

    def insert(self, table: str, columns: Sequence[str]) -> str:
        """Return the statement that inserts one row."""
        names = ", ".join(map(self.column, columns))
        marks = ", ".join(self.parameters(len(columns)))
        return f"INSERT INTO {self.name(table)} ({names}) VALUES ({marks})"


class Positions(NamedTuple):
    """The table that keeps positions."""

    dialect: Dialect
    table: str

    @property
    def create(self) -> str:
        """The statement that makes the table."""
        return (
            f"CREATE TABLE IF NOT EXISTS {self.dialect.name(self.table)} "
            "(group_id VARCHAR(255) NOT NULL, "
            "topic VARCHAR(249) NOT NULL, partition_id INTEGER NOT NULL, "
            "range_start BIGINT NOT NULL, range_end BIGINT NOT NULL, "
            "generation INTEGER NOT NULL, late_end BIGINT NOT NULL, "
            "PRIMARY KEY (group_id, topic, partition_id))"
        )

    def read(self, cursor: Cursor, group: str) -> dict[PartitionKey, Stored]:
        """Return the positions of *group*."""
        (of_group,) = self.dialect.equal(_KEYS[:1])
        columns = ", ".join((*_KEYS[1:], *_VALUES))
        cursor.execute(
            f"SELECT {columns} FROM {self.dialect.name(self.table)} WHERE {of_group}", (group,)
        )
        return {
            PartitionKey(group, topic, partition): Stored.of_numbers(*numbers)
            for topic, partition, *numbers in cursor.fetchall()
        }

    def move(self, cursor: Cursor, key: PartitionKey, decision: Decision) -> bool:
        """Set a position if it is still what it was; say whether."""
        name = self.dialect.name(self.table)
        after = decision.after.numbers()
        if decision.before is None:
            columns = ", ".join((*_KEYS, *_VALUES))
            marks = ", ".join(self.dialect.parameters(len(_KEYS) + len(_VALUES)))
            try:
                cursor.execute(f"INSERT INTO {name} ({columns}) VALUES ({marks})", (*key, *after))
            except Exception as error:
                if not _is_integrity(error):
                    raise
                return False
            return True
        setting = ", ".join(self.dialect.equal(_VALUES))
        # The whole row must be as it was read: end and generation alone could come again.
        unchanged = " AND ".join(self.dialect.equal((*_KEYS, *_VALUES), first=1 + len(_VALUES)))
        cursor.execute(
            f"UPDATE {name} SET {setting} WHERE {unchanged}",
            (*after, *key, *decision.before.numbers()),
        )
        return bool(cursor.rowcount == 1)

    def delete(self, cursor: Cursor, key: PartitionKey) -> None:
        """Forget a position."""
        where = " AND ".join(self.dialect.equal(_KEYS))
        cursor.execute(f"DELETE FROM {self.dialect.name(self.table)} WHERE {where}", tuple(key))


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

    def move(self, cursor: Cursor, dialect: Dialect) -> None:
        """Insert its rows into the target.

        Raises:
            SinkError: there are too many or too few.

        """
        name = dialect.name(self.name)
        cursor.execute(f"SELECT COUNT(*) FROM {name}")
        (found,) = cursor.fetchone()
        if found != self.rows:
            raise SinkError(
                f"the staging table {self.name} has {found} rows, the batch has {self.rows}: a "
                "task of Spark ran twice, or transform= returns other rows each time. Restart "
                "the query; switch spark.speculation off"
            )
        columns = ", ".join(map(dialect.column, self.columns))
        cursor.execute(
            f"INSERT INTO {dialect.name(self.target)} ({columns}) SELECT {columns} FROM {name}"
        )


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

    def make(self, db: Connection, columns: Sequence[str], rows: int, *, now_s: int) -> Staged:
        """Make a staging table for *rows* rows, and drop what crashed drivers left."""
        self._drop_left_over(db, now_s)
        schema, dot, _ = self.target.rpartition(".")
        name = f"{schema}{dot}gc_stage_{uuid.uuid4().hex[:16]}"
        cursor = db.cursor()
        marks = ", ".join(self.dialect.parameters(2))
        listed = self.dialect.name(self.registry)
        cursor.execute(f"INSERT INTO {listed} VALUES ({marks})", (name, now_s))
        names = ", ".join(map(self.dialect.column, columns))
        cursor.execute(
            f"CREATE TABLE {self.dialect.name(name)} AS "
            f"SELECT {names} FROM {self.dialect.name(self.target)} WHERE 1 = 0"
        )
        db.commit()
        return Staged(name, self.target, tuple(columns), rows)

    def drop(self, db: Connection, name: str) -> None:
        """Drop a staging table. What goes wrong is only logged: it is dropped a day later."""
        try:
            cursor = db.cursor()
            cursor.execute(f"DROP TABLE IF EXISTS {self.dialect.name(name)}")
            (is_named,) = self.dialect.equal(["name"])
            listed = self.dialect.name(self.registry)
            cursor.execute(f"DELETE FROM {listed} WHERE {is_named}", (name,))
            db.commit()
        except Exception:
            logger.warning(NOT_DROPPED, name, exc_info=True)
            db.rollback()

    def _drop_left_over(self, db: Connection, now_s: int) -> None:
        cursor = db.cursor()
        (mark,) = self.dialect.parameters(1)
        listed = self.dialect.name(self.registry)
        cursor.execute(
            f"SELECT name FROM {listed} WHERE created_s < {mark}", (now_s - LEFT_OVER_S,)
        )
        names = [name for (name,) in cursor.fetchall()]
        db.rollback()
        for name in names:
            self.drop(db, name)


class SqlSink(RangeSink):
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

    tries_max = 100

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
        super().__init__(table, group, transform, checked_policy(on_gap, on_reset, log), clock)
        self._connect = connect
        self._table = table
        self._write = write
        self._staging = staging
        self._positions_table = positions_table
        self._paramstyle = paramstyle
        self._quote = quote

    def create_tables(self) -> None:
        """Make the table of the positions (and of staging tables) if it isn't there."""
        with self._connection() as (db, dialect):
            statements = [self._positions(dialect).create]
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

    def _stored(self) -> dict[PartitionKey, Stored]:
        with self._connection() as (db, dialect):
            found = self._positions(dialect).read(db.cursor(), self.group)
            db.rollback()
        return found

    def _forget(self, keys: Collection[PartitionKey]) -> bool:
        with self._connection() as (db, dialect):
            cursor = db.cursor()
            for key in sorted(keys):
                self._positions(dialect).delete(cursor, key)
            db.commit()
        return True

    def _store(self, rows: "DataFrame | None", changed: Mapping[PartitionKey, Decision]) -> bool:
        if rows is None:
            return self._transact(changed, lambda _cursor, _dialect: None)
        if self._staging is not None:
            with self._staged(rows, self._staging) as staged:
                return self._transact(changed, staged.move)
        # Before the transaction: it holds locks, and this may take long.
        table = rows.toArrow()
        return self._transact(changed, lambda cursor, dialect: self._insert(cursor, dialect, table))

    def _transact(
        self, changed: Mapping[PartitionKey, Decision], write: Callable[[Cursor, Dialect], object]
    ) -> bool:
        with self._connection() as (db, dialect):
            try:
                cursor = db.cursor()
                # In the same order in all drivers, so that they can't wait for each other.
                for key, decision in sorted(changed.items(), key=lambda item: item[0]):
                    if not self._positions(dialect).move(cursor, key, decision):
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

    def _insert(self, cursor: Cursor, dialect: Dialect, table: "pa.Table") -> None:
        if self._write is not None:
            self._write(cursor, table)
            return
        statement = dialect.insert(self._table, table.column_names)
        for part in table.to_batches(max_chunksize=ROWS_PER_CALL):
            columns = [column.to_pylist() for column in part.columns]
            cursor.executemany(statement, list(zip(*columns, strict=True)))

    @contextmanager
    def _staged(self, rows: "DataFrame", staging: JdbcStaging) -> Iterator[Staged]:
        with persisted(rows):
            with self._connection() as (db, dialect):
                staged = self._staging_tables(dialect).make(
                    db, rows.columns, rows.count(), now_s=int(self._clock())
                )
            try:
                staging.write(rows, dialect.name(staged.name))
                yield staged
            finally:
                # What was stored stays stored if the database is away by now.
                try:
                    with self._connection() as (db, dialect):
                        self._staging_tables(dialect).drop(db, staged.name)
                except Exception:
                    logger.warning(NOT_DROPPED, staged.name, exc_info=True)

    def _positions(self, dialect: Dialect) -> Positions:
        return Positions(dialect, self._positions_table)

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
