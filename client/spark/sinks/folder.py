"""A folder of Parquet files that takes each range once, from all drivers of a group.

Spark writes the rows of a batch to a staging folder of its own, so drivers don't disturb each
other. The finished files are moved to their place, where nobody counts them yet; then one change
of the manifest adds them together with the new positions. A driver that dies before leaves files
that `vacuum` deletes; one that dies after leaves a range that is known when it comes again.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql.types import StructField, StructType

from client.spark.sinks.manifest import Change, DataFile, Manifest, State
from client.spark.sinks.ranges import (
    Decision,
    OnGap,
    OnReset,
    PartitionKey,
    SinkError,
    SinkRange,
    Transform,
    Verdict,
    accepted_rows,
    checked_policy,
    counted_ranges,
    decide_all,
    log_skipped,
    looks_into,
    persisted,
)
from client.spark.sinks.table import merge_schemas, missing_rows, schema_of, write_files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Somebody else's change of the manifest comes between ours at most so often in a row; each time
# that other one got on.
TRIES_MAX: Final = 1_000

logger = logging.getLogger(__name__)


class FolderSink:
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
        self.path = Path(path)
        self.group = group
        self._transform = transform
        self._partition_by = tuple(partition_by)
        self._files_per_batch = files_per_batch
        self._compression = compression
        self._merge_schema = merge_schema
        self._policy = checked_policy(on_gap, on_reset, looks_into(log))
        self._fsync = fsync
        self._clock = clock
        self._manifest = Manifest(self.path, fsync=fsync)
        self._state: State | None = None

    def __call__(self, batch: "DataFrame", batch_id: int) -> None:
        """Write the ranges of *batch* that are new, all or none of them.

        Raises:
            SinkError: a range must not be taken, or the batch doesn't fit.

        """
        with persisted(batch):
            ranges = counted_ranges(batch)
            for _ in range(TRIES_MAX):
                state = self._refreshed()
                decisions = decide_all(self.group, ranges, state.positions, self._policy)
                if not any(d.changes for d in decisions.values()) or self._write(
                    batch, batch_id, decisions, self._expected_rows(ranges, decisions)
                ):
                    log_skipped(decisions)
                    return
            raise SinkError(
                f"{self.path}: other drivers keep writing the ranges of batch "
                f"{batch_id}; do two groups of the same name write here?"
            )

    def positions(self) -> dict[PartitionKey, int]:
        """Return up to where the folder has each partition of each group."""
        return {key: stored.end for key, stored in self._refreshed().positions.items()}

    def forget(self, topic: str | None = None, partition: int | None = None) -> int:
        """Take whatever range comes next, of one partition, of a topic, or of the group.

        The rows stay. For a log that was made anew, and to write rows once more.

        Returns:
            How many partitions were forgotten.

        """
        for _ in range(TRIES_MAX):
            state = self._refreshed()
            keys = [
                key
                for key in state.positions
                if key.group == self.group
                and topic in (None, key.topic)
                and partition in (None, key.partition)
            ]
            if not keys:
                return 0
            change = Change(kind="forget", at_ms=self._now_ms(), positions=dict.fromkeys(keys))
            if self._commit(state, change):
                return len(keys)
        raise SinkError(f"{self.path} is changed faster than its positions can be forgotten")

    def __getstate__(self) -> dict[str, object]:
        """Spark Connect sends the sink to the server; what was loaded is loaded there again."""
        return {**self.__dict__, "_state": None}

    def _expected_rows(
        self, counted: Mapping[SinkRange, int], decisions: Mapping[PartitionKey, Decision]
    ) -> int | None:
        """Return how many rows must be in the files; None if that isn't known."""
        written = [d for d in decisions.values() if d.verdict is Verdict.WRITE]
        if self._transform is not None or any(d.from_offset != d.range.start for d in written):
            return None
        return sum(counted[d.range] for d in written)

    def _write(
        self,
        batch: "DataFrame",
        batch_id: int,
        decisions: Mapping[PartitionKey, Decision],
        expected: int | None,
    ) -> bool:
        """Write and count the rows; return False if one of the partitions moved meanwhile."""
        changed = {key: d for key, d in decisions.items() if d.changes}
        state = self._refreshed()
        files: dict[str, DataFile] = {}
        schema = partition_by = None
        if any(d.verdict is Verdict.WRITE for d in changed.values()):
            rows = accepted_rows(batch, decisions.values())
            rows = rows if self._transform is None else self._transform(rows)
            schema, partition_by = self._checked_schema(rows.schema, state)
            files = self._stage(rows, partition_by or state.partition_by)
            found = sum(file.rows for file in files.values())
            if expected is not None and found != expected:
                raise missing_rows(self.path, found, expected)
        change = Change(
            kind="append",
            at_ms=self._now_ms(),
            add=files,
            positions={key: d.after for key, d in changed.items()},
            schema=schema,
            partition_by=partition_by,
        )
        for _ in range(TRIES_MAX):
            if any(state.positions.get(key) != d.before for key, d in changed.items()):
                break
            if self._commit(state, change):
                logger.debug("%s: batch %d is version %d", self.path, batch_id, state.version + 1)
                return True
            before, state = state, self._refreshed()
            if (before.schema, before.partition_by) != (state.schema, state.partition_by):
                break
        for name in files:
            (self.path / name).unlink()
        return False

    def _checked_schema(
        self, given: StructType, state: State
    ) -> tuple[str | None, tuple[str, ...] | None]:
        """Return what of the table's form this batch changes."""
        new = StructType([StructField(field.name, field.dataType) for field in given])
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

    def _stage(self, rows: "DataFrame", partition_by: Sequence[str]) -> dict[str, DataFile]:
        """Let Spark write the rows, then move the files to where they will count."""
        if self._files_per_batch is not None:
            rows = rows.coalesce(self._files_per_batch)
        return write_files(
            rows, self.path, partition_by, compression=self._compression, fsync=self._fsync
        )

    def _refreshed(self) -> State:
        self._state = (
            self._manifest.load() if self._state is None else self._manifest.refresh(self._state)
        )
        return self._state

    def _commit(self, state: State, change: Change) -> bool:
        after = self._manifest.commit(state, change)
        self._state = after or self._state
        return after is not None

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
