"""A stopped data folder for the commands that look at it or repair it."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

from coordinator.cli.output import end
from coordinator.group import records, topic_records
from coordinator.log.compaction import Live, PackedBatch, find_live
from coordinator.log.directory import Directory
from coordinator.log.errors import (
    EXIT_WRITE_FAILED,
    LogCorrupt,
    LogError,
    LogIncompatible,
    LogLocked,
    LogRefused,
)
from coordinator.log.format import HEADER_BYTES, NODE_PARTITION, Batch
from coordinator.log.inspect import Verdict, inspect
from coordinator.log.os_directory import OsDirectory
from coordinator.log.os_read_only import ReadOnlyDirectory
from coordinator.log.salvage import Damage, Kept, Salvage
from coordinator.log.survey import Survey

# Tombstones of this age and younger are shown as live: all of them.
_KEEP_TOMBSTONES_MS: Final = -(2**62)


@contextmanager
def complaining() -> Iterator[None]:
    """End the process, with the status that says why, if the folder or the disk is no good."""
    try:
        yield
    except LogLocked as exc:
        end(f"{exc}: stop the daemon first", exc.exit_status)
    except LogError as exc:
        end(str(exc), exc.exit_status)
    except BrokenPipeError:  # Of the standard output: it was piped into something like head.
        raise
    except OSError as exc:
        end(f"the disk fails: {exc}", EXIT_WRITE_FAILED)


@contextmanager
def stopped(data_dir: Path, *, read_only: bool) -> Iterator[Directory]:
    """Hold the folder's lock; what can't go on ends the process."""
    with complaining():
        # First, as the other one would make a folder that isn't there.
        directory: OsDirectory = ReadOnlyDirectory(data_dir)
        if not read_only:
            directory = OsDirectory(data_dir)
        directory.lock()
        try:
            yield directory
        finally:
            directory.unlock()


def verdict_of(directory: Directory) -> Verdict | LogRefused | None:
    """Return what the daemon would say of the folder; None of one in which nothing was kept."""
    try:
        return inspect(directory, _check_records)
    except LogRefused as exc:
        return exc


def everything(
    directory: Directory, survey: Survey, num_partitions: int
) -> Iterator[Kept | Damage]:
    """Yield what can be read of the whole journal, and what can't."""
    reader = Salvage(directory, survey, num_partitions)
    return chain.from_iterable(map(reader.read, survey.sources))


def live_of(directory: Directory, survey: Survey, num_partitions: int) -> "LiveOffsets":
    """Find what a compaction would keep."""

    def packed() -> Iterator[PackedBatch]:
        for item in everything(directory, survey, num_partitions):
            if type(item) is Kept:
                batch = item.batch
                data = item.found.data[HEADER_BYTES:]
                yield batch.partition, batch.base_offset, batch.timestamp_ms, data

    return LiveOffsets(find_live(packed, _KEEP_TOMBSTONES_MS))


class LiveOffsets:
    """Says of each entry whether it is live. Ask in the order of the log, once of each."""

    def __init__(self, live: Live) -> None:
        self._left = {partition: iter(offsets) for partition, offsets in live.offsets.items()}
        self._next = {partition: next(offsets, -1) for partition, offsets in self._left.items()}

    def take(self, partition: int, offset: int) -> bool:
        """Return whether the entry is live."""
        if self._next.get(partition) != offset:
            return False
        self._next[partition] = next(self._left[partition], -1)
        return True


def _check_records(batch: Batch) -> None:
    """See that the daemon could load the batch."""
    read = topic_records.read_items if batch.partition == NODE_PARTITION else records.read_items
    place = f"(the batch at offset {batch.base_offset} of partition {batch.partition})"
    try:
        for _ in read(batch.items):
            pass
    except records.UnknownRecord as exc:
        raise LogIncompatible(f"the log is a newer release's: {exc} {place}") from exc
    except records.RecordError as exc:
        raise LogCorrupt(f"the log is damaged: {exc} {place}") from exc
