"""A folder of Parquet files that takes each range once, from all drivers of a group.

Spark writes the rows of a batch to a staging folder of its own, so drivers don't disturb each
other. The finished files are moved to their place, where nobody counts them yet; then one change
of the manifest adds them together with the new positions. A driver that dies before leaves files
that `vacuum` deletes; one that dies after leaves a range that is known when it comes again.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.types import StructField, StructType

from client.spark.sinks.manifest import Change, DataFile, Manifest, State
from client.spark.sinks.ranges import (
    Decision,
    OnGap,
    OnReset,
    PartitionKey,
    RangeSink,
    SinkError,
    SinkRange,
    Stored,
    Transform,
    Verdict,
    checked_policy,
)
from client.spark.sinks.table import (
    TRIES_MAX,
    merge_schemas,
    missing_rows,
    now_ms,
    schema_of,
    write_files,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class FolderSink(RangeSink):
    """Writes batches of a coordinated source to a folder; hand it to ``foreachBatch``.

    All drivers of the group, also after a restart with a new checkpoint, write to the same
    folder. Read it with `read`, which sees each range once and whole batches only.

    Args:
        path: the folder, under the same path for the driver and all executors, on a file system
            with hard links.
        group: the group that reads.
        transform: shapes the rows before they are written; it may drop some or all.
        partition_by: columns to make sub-folders of. Fixed by the first batch.
        files_per_batch: the most files per batch and sub-folder; None for one per task.
        compression: what Spark's Parquet writer calls it.
        merge_schema: whether later batches may bring new columns.
        on_gap: what to do when rows before a range never came: ``error`` or ``accept``.
        on_reset: what to do when rows come again because the group's offsets were moved back:
            ``error``, ``skip`` them, or ``append`` them once more.
        log: the options of the log that the query reads, if its offsets have gaps, as those of
            Kafka have: the sink then looks whether a gap holds rows.
        fsync: whether files are on disk before they count.
        clock: returns the time in seconds since 1970.

    Raises:
        ValueError: an argument is impossible.

    """

    tries_max = TRIES_MAX

    def __init__(
        self,
        path: str | Path,
        *,
        group: str,
        transform: Transform | None = None,
        partition_by: Sequence[str] = (),
        files_per_batch: int | None = None,
        compression: str = "zstd",
        merge_schema: bool = False,
        on_gap: OnGap = "error",
        on_reset: OnReset = "error",
        log: Mapping[str, str] | None = None,
        fsync: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not group:
            raise ValueError("group is empty: name the group that reads")
        if files_per_batch is not None and files_per_batch < 1:
            raise ValueError(f"files_per_batch is {files_per_batch}, it must be at least 1")
        policy = checked_policy(on_gap, on_reset, log)
        super().__init__(str(path), group, transform, policy, clock)
        self.path = Path(path)
        self._partition_by = tuple(partition_by)
        self._files_per_batch = files_per_batch
        self._compression = compression
        self._merge_schema = merge_schema
        self._fsync = fsync
        self._manifest = Manifest(self.path, fsync=fsync)
        self._state: State | None = None

    def __getstate__(self) -> dict[str, object]:
        """Spark Connect sends the sink to the server; what was loaded is loaded there again."""
        return {**self.__dict__, "_state": None}

    def _stored(self) -> Mapping[PartitionKey, Stored]:
        return self._refreshed().positions

    def _store(
        self,
        rows: "DataFrame | None",
        changed: Mapping[PartitionKey, Decision],
        counted: Mapping[SinkRange, int],
    ) -> bool:
        state = self._refreshed()
        files: dict[str, DataFile] = {}
        schema = partition_by = None
        if rows is not None:
            schema, partition_by = self._checked_schema(rows.schema, state)
            files = self._write(rows, partition_by or state.partition_by)
            self._check_count(files, changed, counted)
        change = Change(
            kind="append",
            at_ms=now_ms(self._clock),
            add=files,
            positions={key: d.after for key, d in changed.items()},
            schema=schema,
            partition_by=partition_by,
        )
        for _ in range(TRIES_MAX):
            if any(state.positions.get(key) != d.before for key, d in changed.items()):
                break
            if self._commit(state, change):
                return True
            before, state = state, self._refreshed()
            if (before.schema, before.partition_by) != (state.schema, state.partition_by):
                break
        for name in files:
            (self.path / name).unlink()
        return False

    def _forget(self, keys: Collection[PartitionKey]) -> bool:
        state = self._state or self._refreshed()
        gone = Change(kind="forget", at_ms=now_ms(self._clock), positions=dict.fromkeys(keys))
        return self._commit(state, gone)

    def _write(self, rows: "DataFrame", partition_by: Sequence[str]) -> dict[str, DataFile]:
        """Let Spark write the rows to where they will count."""
        if self._files_per_batch is not None:
            rows = rows.coalesce(self._files_per_batch)
        return write_files(
            rows, self.path, partition_by, compression=self._compression, fsync=self._fsync
        )

    def _check_count(
        self,
        files: Mapping[str, DataFile],
        changed: Mapping[PartitionKey, Decision],
        counted: Mapping[SinkRange, int],
    ) -> None:
        """Raise `SinkError` unless all rows are in the files, as far as their number is known."""
        written = [d for d in changed.values() if d.verdict is Verdict.WRITE]
        if self._transform is not None or any(d.from_offset != d.range.start for d in written):
            return
        found = sum(file.rows for file in files.values())
        expected = sum(counted[d.range] for d in written)
        if found != expected:
            raise missing_rows(self.path, found, expected)

    def _checked_schema(
        self, rows: StructType, state: State
    ) -> tuple[str | None, tuple[str, ...] | None]:
        """Return what of the table's form this batch changes."""
        new = StructType([StructField(field.name, field.dataType) for field in rows])
        if state.schema is None:
            unknown = set(self._partition_by) - set(new.names)
            if unknown:
                raise SinkError(f"partition_by names columns that the rows lack: {sorted(unknown)}")
            return new.json(), self._partition_by
        if self._partition_by != state.partition_by:
            raise SinkError(
                f"partition_by is {list(self._partition_by)}, but {self.path} has "
                f"{list(state.partition_by)}; it stays as the first batch had it"
            )
        merged = merge_schemas(schema_of(state), new, str(self.path), grow=self._merge_schema)
        return (None if merged is None else merged.json()), None

    def _refreshed(self) -> State:
        self._state = (
            self._manifest.load() if self._state is None else self._manifest.refresh(self._state)
        )
        return self._state

    def _commit(self, state: State, change: Change) -> bool:
        after = self._manifest.commit(state, change)
        self._state = after or self._state
        return after is not None
