"""Creates a data folder from batches of another source, in the form that a compaction leaves.

All segments but the newest are compacted ones, the newest is empty, and the folder has the marker
of a clean stop. The meta file is written last: until then the folder is no data folder.
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

# Stretch of the journal, in bytes, of a segment without batches: the next one needs another base.
_NOTHING_BYTES: Final = 1


def check_is_new(directory: Directory) -> None:
    """Raise LogRefused if the folder has any file but the lock."""
    if any(name != LOCK_NAME for name in directory.names()):
        raise LogRefused("the folder is not empty")


class NewFolder:
    """Writer of a new data folder. Each method that writes may raise OSError."""

    def __init__(self, directory: Directory, meta: Meta, *, segment_bytes: int) -> None:
        """Begin in an empty folder.

        Args:
            directory: The folder.
            meta: Content of the meta file.
            segment_bytes: Size of batches after which a segment is sealed.
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
        """Append a batch, given as *pieces* to be joined; the partition then ends at *end_offset*.

        A partition's batches must come in the order of their offsets.
        """
        if self._writer is not None and self._writer.data_bytes >= self._segment_bytes:
            self._seal(self._writer)
        self._open().add(partition, pieces)
        self._ends[partition] = end_offset

    def finish(self, ends: Mapping[int, int], compacted_below: Mapping[int, int]) -> None:
        """Write the state files, which make the folder a data folder.

        Args:
            ends: Partition -> end offset, also if its last entries are missing.
            compacted_below: Partition -> offset below which tombstones may be missing.
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
        """Remove all files but the lock; for a folder that wasn't finished."""
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
