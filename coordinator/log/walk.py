"""All batches of a segment file that can be read, in front of damage and behind it."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from coordinator.log.directory import Directory
from coordinator.log.format import (
    BATCH_BYTES_MAX,
    FORMAT,
    HEADER_BYTES,
    NODE_PARTITION,
    PREFIX,
    REST,
    RawBatch,
    batch_at,
)

_WINDOW_BYTES: Final = 1024 * 1024
_LENGTH_MAX: Final = BATCH_BYTES_MAX - PREFIX.size


class Stretch(NamedTuple):
    """Where to look: the first *data_bytes* of a file, and what a batch in it may be."""

    file: str
    data_bytes: int
    base: int  # Journal position of the first byte.
    end: int | None  # And behind the last one, None if that isn't known.
    num_partitions: int


class Found(NamedTuple):
    """A batch whose checksum is right. `raw` speaks of `data`, which is only the batch."""

    start: int  # Byte in the file.
    raw: RawBatch
    data: bytes

    @property
    def end(self) -> int:
        """The byte behind it."""
        return self.start + len(self.data)


class Gap(NamedTuple):
    """Bytes that are no batch."""

    start: int
    end: int


def walk(directory: Directory, stretch: Stretch, start: int = 0) -> Iterator[Found | Gap]:
    """Yield everything from byte *start* on, without a hole, in bounded memory.

    Raises:
        OSError: The disk fails.
    """
    window = _Window(directory, stretch)
    while start < stretch.data_bytes:
        found = window.batch_at(start)
        if found is None:
            found = _next(window, stretch, start + 1)
            gap_end = stretch.data_bytes if found is None else found.start
            yield Gap(start, gap_end)
            if found is None:
                return
        yield found
        start = found.end


def is_compacted(directory: Directory, file: str, data_bytes: int) -> bool:
    """Say whether a segment was compacted: in all of its batches flush_start is 0."""
    stretch = Stretch(file, data_bytes, 0, None, NODE_PARTITION)
    starts = (item.raw.flush_start for item in walk(directory, stretch) if type(item) is Found)
    first = next(starts, None)
    # In the journal's first flush it is 0, too: then the next flush tells.
    return first == 0 and not any(starts)


class _Window:
    """The part of the file that is in memory."""

    def __init__(self, directory: Directory, stretch: Stretch) -> None:
        self._directory = directory
        self._stretch = stretch
        self._start = 0
        self._data = b""

    def read(self, start: int, size_bytes: int) -> bytes:
        """Return that many bytes, fewer at the end of the data."""
        size_bytes = min(size_bytes, self._stretch.data_bytes - start)
        offset = start - self._start
        if offset < 0 or offset + size_bytes > len(self._data):
            wanted = min(max(size_bytes, _WINDOW_BYTES), self._stretch.data_bytes - start)
            self._data = self._directory.read(self._stretch.file, start, wanted)
            self._start, offset = start, 0
        return self._data[offset : offset + size_bytes]

    def batch_at(self, start: int) -> Found | None:
        """Return the whole valid batch that begins there."""
        header = self.read(start, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return None
        length, _ = PREFIX.unpack_from(header)
        if not REST.size <= length <= _LENGTH_MAX:
            return None
        data = self.read(start, PREFIX.size + length)
        raw = batch_at(data, 0)
        return None if raw is None else Found(start, raw, data)


def _next(window: _Window, stretch: Stretch, start: int) -> Found | None:
    """Return the first batch that begins at or behind *start*.

    As in `find_later_flush`, what is cheap comes first: of random bytes hardly any get to the crc.
    """
    marker = bytes((FORMAT,))
    while start + HEADER_BYTES <= stretch.data_bytes:
        data = window.read(start, _WINDOW_BYTES)
        if len(data) < HEADER_BYTES:
            return None
        at = data.find(marker, PREFIX.size)
        while at >= 0 and at - PREFIX.size + HEADER_BYTES <= len(data):
            if _may_be(stretch, data, at):
                found = window.batch_at(start + at - PREFIX.size)
                if found is not None:
                    return found
            at = data.find(marker, at + 1)
        # The next window begins with the first header that wasn't whole in this one.
        start += len(data) - HEADER_BYTES + 1
    return None


def _may_be(stretch: Stretch, data: bytes, at: int) -> bool:
    _, partition, _, _, flush_start, _ = REST.unpack_from(data, at)
    if partition >= stretch.num_partitions and partition != NODE_PARTITION:
        return False
    # 0 in a compacted segment. Bytes may have been removed, so a batch may lie before its place.
    return flush_start == 0 or (
        stretch.base <= flush_start and (stretch.end is None or flush_start < stretch.end)
    )
