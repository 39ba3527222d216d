"""Makes a data folder of batches that come from elsewhere, as a compaction would have left it.

Its segments are compacted ones, the newest is empty, and it was stopped in good order. The meta
file comes last: before, it is no data folder.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from coordinator.log.directory import LOCK_NAME, Directory
from coordinator.log.errors import LogRefused
from coordinator.log.recovery import create_segment
from coordinator.log.segments import SegmentWriter
from coordinator.log.state_files import (
    CleanStop,
    Manifest,
    Meta,
    SegmentInfo,
    first_serial,
    segment_name,
    write_clean_stop,
    write_manifest,
    write_meta,
)

# Of the journal, for a segment that has lost all its batches: it must not be where the next one is.
_NOTHING_BYTES: Final = 1


def check_is_new(directory: Directory) -> None:
    """Refuse a folder that isn't empty, but for the lock. Raises LogRefused."""
    if any(name != LOCK_NAME for name in directory.names()):
        raise LogRefused("the folder is not empty")


class NewFolder:
    """A folder that is being made. Each method that writes may raise OSError."""

    def __init__(self, directory: Directory, meta: Meta, *, segment_bytes: int) -> None:
        """Begin in an empty folder.

        Args:
            directory: The folder.
            meta: Whose it will be.
            segment_bytes: About how large a segment is.
        """
        self._directory = directory
        self._meta = meta
        self._segment_bytes = segment_bytes
        self._serial = first_serial(meta.cluster_id)
        self._segments: list[SegmentInfo] = []
        self._ends: dict[int, int] = {}
        self._base = 0
        self._writer: SegmentWriter | None = None

    def add(self, partition: int, end_offset: int, pieces: Sequence[bytes]) -> None:
        """Append a batch, which is in *pieces*, and with which the partition ends so far."""
        if self._writer is not None and self._writer.data_bytes >= self._segment_bytes:
            self._seal(self._writer)
        self._open().add(partition, pieces)
        self._ends[partition] = end_offset

    def finish(self, ends: Mapping[int, int], compacted_below: Mapping[int, int]) -> None:
        """Make it a data folder.

        Args:
            ends: By partition, its end offset, where its last entries are gone, too.
            compacted_below: By partition, the offset below which tombstones may be missing.
        """
        self._ends.update(ends)
        if self._ends:
            self._seal(self._open())
        directory, meta = self._directory, self._meta
        name, file = create_segment(directory, self._base, self._serial)
        file.close()
        newest = SegmentInfo(name, self._base, None, None, compacted=False)
        manifest = Manifest(
            (*self._segments, newest),
            dict(compacted_below),
            self._serial + 1,
            cluster_id=meta.cluster_id,
        )
        write_manifest(directory, manifest)
        write_clean_stop(directory, CleanStop(name, self._base))
        write_meta(directory, meta)

    def undo(self) -> None:
        """Remove what is there; it was never finished."""
        if self._writer is not None:
            self._writer.close()
        with suppress(OSError):
            for name in self._directory.names():
                if name != LOCK_NAME:
                    self._directory.remove(name)

    def _open(self) -> SegmentWriter:
        if self._writer is None:
            name = segment_name(self._base, self._serial)
            self._writer = SegmentWriter(self._directory, name)
        return self._writer

    def _seal(self, writer: SegmentWriter) -> None:
        base, data_bytes = self._base, writer.data_bytes
        end = base + max(data_bytes, _NOTHING_BYTES)
        writer.seal(base, end, self._ends, self._meta.cluster_id)
        name = segment_name(base, self._serial)
        self._segments.append(SegmentInfo(name, base, end, data_bytes, compacted=True))
        self._base, self._serial, self._writer = end, self._serial + 1, None
