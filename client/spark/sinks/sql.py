"""A table of an SQL database that takes each range once, in one transaction with its position.

The positions stand in a table of their own in the same database. A transaction first moves the
positions, each under the condition that it is still what was read before, then inserts the rows.
So of two drivers that bring the same range one waits for the other's row lock, finds the
position moved, and rolls back. What the coordinator believes doesn't matter to that.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from client.spark.sinks.batches import (
    Transform,
    accepted_rows,
    log_skipped,
    persisted,
    ranges_of,
)
from client.spark.sinks.gaps import looks_into
from client.spark.sinks.ranges import (
    Decision,
    OnGap,
    OnReset,
    PartitionKey,
    SinkError,
    Stored,
    Verdict,
    checked_policy,
    decide_all,
)
from client.spark.sinks.sql_text import PARAMSTYLES, Dialect, insert_rows, position_statements
from client.spark.sinks.staging import JdbcStaging, Staged, StagingTables

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

logger = logging.getLogger(__name__)


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
