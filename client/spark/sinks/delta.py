"""A Delta table that takes each range once, from all drivers of a group.

The executors write the rows of a batch to Parquet files, which nobody counts yet, and tell of
which ranges they are. Then the driver decides about the ranges, and commits the files to the
table's log, together with the new positions, in one transaction. If only some of the ranges are
new, as after a crash of another driver, the rows of these are written once more, to other files.

A driver that dies before the commit leaves files that a vacuum deletes; one that dies after it
leaves ranges that are known when they come again.
"""

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    FractionalType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from client.spark.sinks.delta_files import WRITTEN_SCHEMA, Writer, Written
from client.spark.sinks.delta_log import TableLog, positions_of, transactions_of
from client.spark.sinks.ranges import (
    RANGE_COLUMNS,
    Decision,
    OnGap,
    OnReset,
    PartitionKey,
    RangeSink,
    SinkError,
    SinkRange,
    Stored,
    Transform,
    check_range_columns,
    checked_policy,
    checked_ranges,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CODECS: Final = ("zstd", "snappy", "gzip", "brotli", "lz4", "none")

# Not decimals: the library misreads negative ones with a fraction, and then the whole table.
_PARTITION_TYPES: Final = (
    BooleanType,
    DateType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
_PLAIN_TYPES: Final = (*_PARTITION_TYPES, BinaryType, FractionalType)


class DeltaSink(RangeSink):
    """Writes batches of a coordinated source to a Delta table; hand it to ``foreachBatch``.

    All drivers of the group, also after a restart with a new checkpoint, write to the same
    table. Whatever reads Delta tables sees each range once, and whole batches only. The first
    batch makes the table, unless it is there.

    Args:
        path: where the table is: a folder under the same path for the driver and all executors,
            or a URL of an object store that delta-rs knows.
        group: the group that reads.
        transform: shapes the rows before they are written; it may drop some or all.
        partition_by: the columns by which the table is partitioned. Fixed by the first batch.
        files_per_batch: the most files per batch and partition of the table; None for one per
            task.
        compression: of the Parquet files: zstd, snappy, gzip, brotli, lz4 or none.
        merge_schema: whether later batches may bring new columns.
        on_gap: what to do when rows before a range never came: ``error`` or ``accept``.
        on_reset: what to do when rows come again because the group's offsets were moved back:
            ``error``, ``skip`` them, or ``append`` them once more.
        log: the options of the log that the query reads, if its offsets have gaps, as those of
            Kafka have: the sink then looks whether a gap holds rows.
        storage_options: what delta-rs is told about an object store, such as keys.
        fsync: whether rows and commits in a local folder are on disk before they count.
        clock: returns the time in seconds since 1970.

    Raises:
        ValueError: an argument is impossible.
    """

    tries_max = 1_000

    def __init__(
        self,
        path: str | Path,
        group: str,
        *,
        transform: Transform | None = None,
        partition_by: Sequence[str] = (),
        files_per_batch: int | None = None,
        compression: str = "zstd",
        merge_schema: bool = False,
        on_gap: OnGap = "error",
        on_reset: OnReset = "error",
        log: Mapping[str, str] | None = None,
        storage_options: Mapping[str, str] | None = None,
        fsync: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not group:
            raise ValueError("group is empty: name the group that reads")
        if files_per_batch is not None and files_per_batch < 1:
            raise ValueError(f"files_per_batch is {files_per_batch}, it must be at least 1")
        if compression not in _CODECS:
            raise ValueError(
                f"compression is {compression!r}: it must be one of {', '.join(_CODECS)}"
            )
        # Executors may have another working folder.
        uri = str(path) if "://" in str(path) else str(Path(path).absolute())
        policy = checked_policy(on_gap, on_reset, log)
        super().__init__(uri, group, transform, policy, clock)
        self._partition_by = tuple(partition_by)
        self._files_per_batch = files_per_batch
        self._compression = compression
        self._merge_schema = merge_schema
        self._storage_options = dict(storage_options or {})
        self._fsync = fsync
        self._log: TableLog | None = None

    def __getstate__(self) -> dict[str, object]:
        """Spark Connect sends the sink to the server; the table is opened there."""
        return {**self.__dict__, "_log": None}

    def __call__(self, batch: "DataFrame", batch_id: int) -> None:
        """Write the ranges of *batch* that are new, all or none of them.

        Raises:
            SinkError: a range must not be taken, or the batch doesn't fit.

        """
        if self._transform is not None:  # It may drop ranges, or the columns that tell of them.
            super().__call__(batch, batch_id)
            return
        check_range_columns(batch)
        log = self._opened()
        log.refresh()
        self._fit_table(log, batch)
        files = self._write(batch)
        unused = True

        def store(rows: "DataFrame | None", changed: Mapping[PartitionKey, Decision]) -> bool:
            nonlocal unused
            if rows is not batch:
                return self._store(rows, changed)
            unused = False
            return self._store(rows, changed, files)

        try:
            ranges = checked_ranges(SinkRange(*one) for file in files for one in file.ranges)
            self._take(batch, batch_id, ranges, store)
        finally:
            # Those of a commit that failed stay: it may count, and only its answer was lost.
            if unused:
                log.delete(files)

    def _opened(self) -> TableLog:
        if self._log is None:
            self._log = TableLog(self._where, self._storage_options, fsync=self._fsync)
        return self._log

    def _stored(self) -> Mapping[PartitionKey, Stored]:
        log = self._opened()
        log.refresh()
        return positions_of(log.transactions)

    def _store(
        self,
        rows: "DataFrame | None",
        changed: Mapping[PartitionKey, Decision],
        files: Sequence[Written] | None = None,
    ) -> bool:
        log = self._opened()
        if rows is not None:
            self._fit_table(log, rows)
            if files is None:
                files = self._write(rows)
            for field in log.schema or ():
                if not field.nullable and any(file.has_nulls(field.name) for file in files):
                    raise SinkError(
                        f"column {field.name!r} has nulls, and {self._where} takes none there"
                    )
        moved = {key: (d.before, d.after) for key, d in changed.items()}
        return self._commit(log, files or [], moved)

    def _forget(self, keys: Collection[PartitionKey]) -> bool:
        log = self._opened()
        stored = positions_of(log.transactions)
        return self._commit(log, [], {key: (stored.get(key), None) for key in keys})

    def _commit(
        self,
        log: TableLog,
        files: Sequence[Written],
        moved: Mapping[PartitionKey, tuple[Stored | None, Stored | None]],
    ) -> bool:
        """Add the files and move the positions, unless somebody else has moved one of them."""
        form = log.schema, log.partition_by
        transactions: dict[str, int] = {}
        for key, (before, after) in moved.items():
            transactions |= transactions_of(key, before, after)
        for _ in range(self.tries_max):
            stored = positions_of(log.transactions)
            if any(stored.get(key) != before for key, (before, _) in moved.items()):
                return False
            if form != (log.schema, log.partition_by):
                return False
            if lost := log.missing(files):
                raise SinkError(
                    f"{self._where}: Spark wrote the rows, but file {lost[0]!r} is not there, or "
                    "is cut off; nothing was counted. The path must be the same place for the "
                    "driver and all executors, and a vacuum must spare files that are younger "
                    "than the longest batch"
                )
            if log.commit(files, transactions, at_ms=int(self._clock() * 1000)):
                return True
            log.refresh()
        return False

    def _write(self, rows: "DataFrame") -> list[Written]:
        """Let the executors write the rows to where they will count."""
        if self._files_per_batch is not None:
            rows = rows.coalesce(self._files_per_batch)
        if self._partition_by:
            rows = rows.sortWithinPartitions(*(f"`{name}`" for name in self._partition_by))
        writer = Writer(
            self._where,
            self._storage_options,
            self._partition_by,
            self._compression,
            self._fsync,
            RANGE_COLUMNS if self._transform is None else (),
        )
        found = rows.mapInArrow(writer.write, WRITTEN_SCHEMA).collect()
        return [Written(*json.loads(text)) for (text,) in found]

    def _fit_table(self, log: TableLog, rows: "DataFrame") -> None:
        """Make the table if there is none, and see whether it takes such rows."""
        columns = StructType([StructField(f.name, f.dataType) for f in rows.schema]).toNullable()
        check_columns(columns, self._partition_by)
        if log.schema is None:
            log.create(columns, self._partition_by)
        assert log.schema is not None
        if self._partition_by != log.partition_by:
            raise SinkError(
                f"partition_by is {list(self._partition_by)}, but {self._where} has "
                f"{list(log.partition_by)}; it stays as the first batch had it"
            )
        if added := new_columns(log.schema, columns, self._where, grow=self._merge_schema):
            log.add_columns(added)
            self._fit_table(log, rows)  # Somebody else may have added others.


def check_columns(rows: StructType, partition_by: Sequence[str]) -> None:
    """Raise `SinkError` unless a Delta table takes such rows, partitioned by these columns."""
    types = {field.name: field.dataType for field in rows}
    for name, kind in types.items():
        if not _is_known(kind):
            raise SinkError(
                f"column {name!r} is {kind.simpleString()}, which Delta tables don't have; cast it "
                "in transform="
            )
    if unknown := sorted(set(partition_by) - types.keys()):
        raise SinkError(f"partition_by names columns that the rows lack: {unknown}")
    for name in partition_by:
        if not isinstance(types[name], _PARTITION_TYPES):
            raise SinkError(
                f"partition_by names {name!r}, but a column of type {types[name].simpleString()} "
                "can't be one of a table's partitions"
            )
    if not types.keys() - set(partition_by):
        raise SinkError("partition_by names all columns: at least one must be left for the files")


def _is_known(kind: DataType) -> bool:
    match kind:
        case StructType():
            return all(_is_known(field.dataType) for field in kind)
        case ArrayType():
            return _is_known(kind.elementType)
        case MapType():
            return _is_known(kind.keyType) and _is_known(kind.valueType)
        case _:
            return isinstance(kind, _PLAIN_TYPES)


def new_columns(old: StructType, rows: StructType, where: str, *, grow: bool) -> list[StructField]:
    """Return the columns that only *rows* have.

    Raises:
        SinkError: a column changed its type, is missing, or may not be added.

    """
    types = {field.name: field.dataType for field in old.toNullable()}
    for field in rows:
        if field.name in types and types[field.name] != field.dataType:
            raise SinkError(
                f"column {field.name!r} is {field.dataType.simpleString()}, but "
                f"{types[field.name].simpleString()} in {where}; cast it in transform="
            )
    for field in old:
        if not field.nullable and field.name not in rows.names:
            raise SinkError(f"the rows have no column {field.name!r}, which {where} requires")
    added = [field for field in rows if field.name not in types]
    if added and not grow:
        raise SinkError(
            f"{where} has no column {', '.join(repr(field.name) for field in added)}; set "
            "merge_schema=True to add new columns, or drop them in transform="
        )
    return added
