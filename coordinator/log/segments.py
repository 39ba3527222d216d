"""Segment files: readers that check batch by batch, and a writer for complete segments."""

import bisect
import errno
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.log.directory import Directory, File
from coordinator.log.errors import LogCorrupt, LogIncompatible
from coordinator.log.format import (
    BATCH_BYTES_MAX,
    FORMAT,
    HEADER,
    HEADER_BYTES,
    NODE_PARTITION,
    TRAILER,
    Index,
    RawBatch,
    batch_at,
    decode_footer,
    encode_footer,
)
from coordinator.log.state_files import SegmentInfo

WINDOW_BYTES: Final = 1024 * 1024
# Bytes written and synced at a time. A sync of a whole segment would delay the journal's syncs for
# as long as the disk takes for it.
PIECE_BYTES: Final = 1024 * 1024
_BASE_OFFSET_FIELD: Final = 5


@dataclass(slots=True)
class ActiveSegment:
    """The newest segment. `end` and `positions` cover durable batches only.

    Attributes:
        base: Journal position of the first byte.
        end: Journal position behind the last durable batch.
        zeroed_bytes: Byte of the file at which the zeros behind the batches end, on disk.
        is_zeroed: Whether more zeros are written when these are used up.
    """

    name: str
    base: int
    end: int
    positions: "dict[int, array[int]]"
    file: File
    zeroed_bytes: int = 0
    is_zeroed: bool = True

    @property
    def data_bytes(self) -> int:
        """Size of the durable batches."""
        return self.end - self.base


def damaged(name: str, position: int, size_bytes: int) -> LogCorrupt:
    """Return the error for an unreadable batch at byte *position*."""
    return LogCorrupt(
        f"segment {name}: the batch at byte {position} of {size_bytes} is damaged, "
        "and it was complete once; a repair would lose acknowledged data"
    )


class SegmentReader:
    """Fetches batches of one segment by byte position, through a window that moves forward."""

    def __init__(self, directory: Directory, name: str, size_bytes: int) -> None:
        self.name = name
        self.size_bytes = size_bytes
        self.read_bytes = 0  # Bytes read from disk so far, without `first_at_or_before`.
        self._directory = directory
        self._start = 0
        self._window = b""

    def at(self, position: int) -> tuple[RawBatch, bytes]:
        """Return the batch at byte *position*, and the buffer its `start` and `end` refer to.

        Raises:
            LogCorrupt: No valid batch begins at *position*.
        """
        offset = position - self._start
        if offset >= 0:
            raw = batch_at(self._window, offset)
            if raw is not None:
                return raw, self._window
        left = self.size_bytes - position
        for window_bytes in (WINDOW_BYTES, HEADER_BYTES + BATCH_BYTES_MAX):
            self._start = position
            size_bytes = min(left, window_bytes)
            self._window = self._directory.read(self.name, position, size_bytes)
            self.read_bytes += len(self._window)
            raw = batch_at(self._window, 0)
            if raw is not None:
                return raw, self._window
            if window_bytes >= left:
                break
        raise damaged(self.name, position, self.size_bytes)

    def first_at_or_before(self, positions: "array[int]", offset: int) -> int:
        """Return the index of the last of *positions* whose batch begins at or below *offset*."""
        return max(0, bisect.bisect_right(positions, offset, key=self._base_offset) - 1)

    def _base_offset(self, position: int) -> int:
        header = self._directory.read(self.name, position, HEADER.size)
        if len(header) < HEADER.size:
            message = f"segment {self.name} ends within the batch at byte {position}"
            raise LogCorrupt(message)
        base_offset: int = HEADER.unpack(header)[_BASE_OFFSET_FIELD]
        return base_offset


class FlushChain:
    """Checks that the batches of a segment are at the positions their flushes were written to.

    A checksum can't detect that bytes were removed, repeated, or copied from another segment.
    """

    def __init__(self, segment: SegmentInfo, num_partitions: int) -> None:
        self._segment = segment
        self._num_partitions = num_partitions
        self._flush_start: int | None = None

    def check(self, position: int, raw: RawBatch) -> None:
        """Check the next batch, *raw* at byte *position*.

        Raises:
            LogIncompatible: A newer release wrote the batch.
            LogCorrupt: The batch does not belong here.
        """
        if raw.format > FORMAT:
            message = f"is of format {raw.format}, and this release reads up to {FORMAT}"
            raise LogIncompatible(self._where(position) + message)
        if raw.format != self._segment.format:
            message = f"is of format {raw.format}, in a segment of {self._segment.format}"
            raise LogCorrupt(self._where(position) + message)
        if raw.partition >= self._num_partitions and raw.partition != NODE_PARTITION:
            message = f"is of partition {raw.partition}, of {self._num_partitions}"
            raise LogCorrupt(self._where(position) + message)
        flush_start = raw.flush_start
        if self._segment.compacted:
            allowed = flush_start == 0
        else:
            allowed = flush_start in (self._flush_start, self._segment.base + position)
        if not allowed:
            message = f"is valid, but was written elsewhere (by the flush at {flush_start})"
            raise LogCorrupt(self._where(position) + message)
        self._flush_start = flush_start

    def _where(self, position: int) -> str:
        return f"segment {self._segment.name}: the batch at byte {position} "


def read_footer(directory: Directory, segment: SegmentInfo) -> Index:
    """Return the index of a sealed segment.

    Raises:
        LogCorrupt: No valid index follows the size of data that the manifest says.
    """
    assert segment.data_bytes is not None
    size_bytes = directory.size(segment.name)
    index = None
    if size_bytes >= segment.data_bytes + TRAILER.size:
        index = decode_footer(directory.read(segment.name, segment.data_bytes))
    found = None if index is None else (index.base, index.end, index.format)
    if index is None or found != (segment.base, segment.end, segment.format):
        message = (
            f"segment {segment.name} has {size_bytes} bytes and no valid index behind its "
            f"{segment.data_bytes} bytes of data: it was cut, replaced or damaged after it was "
            "sealed"
        )
        raise LogCorrupt(message)
    return index


class SegmentWriter:
    """Writes one complete segment: batches, synced in pieces, and an index if it is sealed.

    Each method that writes may raise OSError.

    Attributes:
        data_bytes: Size of the batches that were added.
        written_bytes: Bytes of the file that are on disk.
    """

    def __init__(
        self, directory: Directory, name: str, *, leave_free_bytes: int | None = None
    ) -> None:
        """Create the file *name*.

        Args:
            directory: The data folder.
            name: Usually a temporary name; the folder isn't synced.
            leave_free_bytes: Writes fail with ENOSPC if they leave less than this free on disk.
        """
        self.data_bytes = 0
        self.written_bytes = 0
        self._directory = directory
        self._leave_free_bytes = leave_free_bytes
        self._file = directory.create(name)
        self._positions: dict[int, array[int]] = {}
        self._pieces: list[bytes] = []
        self._pending_bytes = 0

    def add(self, partition: int, pieces: Sequence[bytes]) -> None:
        """Append one batch, given as *pieces* to be joined."""
        self._positions.setdefault(partition, array("I")).append(self.data_bytes)
        size_bytes = sum(map(len, pieces))
        self._pieces += pieces
        self.data_bytes += size_bytes
        self._pending_bytes += size_bytes
        if self._pending_bytes >= PIECE_BYTES:
            self._write_out()

    def seal(
        self,
        base: int,
        end: int,
        end_offsets: Mapping[int, int],
        cluster_id: str,
        format_: int = FORMAT,
    ) -> None:
        """Append the index, and sync and close the file."""
        index = Index(base, end, dict(end_offsets), self._positions, cluster_id, format_)
        self._pieces.append(encode_footer(index))
        self.finish()

    def finish(self) -> None:
        """Sync and close the file, without an index."""
        try:
            self._write_out()
        finally:
            self.close()

    def close(self) -> None:
        """Close the file without syncing; idempotent."""
        self._file.close()

    def _write_out(self) -> None:
        data = b"".join(self._pieces)
        if self._leave_free_bytes is not None:
            left_bytes = self._directory.free_bytes() - len(data)
            if left_bytes < self._leave_free_bytes:
                raise OSError(errno.ENOSPC, "too little room on the disk for a compaction")
        if data:
            self._file.write(data, self.written_bytes)
        self._file.sync()
        self.written_bytes += len(data)
        self._pieces = []
        self._pending_bytes = 0
