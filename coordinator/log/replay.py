"""Reading the log back into memory, so that the event loop is never held up for long.

A load goes in two steps that take turns: `fetch` reads the next piece of the files, and blocks, so
it runs in a thread; `batches` checks and unpacks what was fetched, a batch at a time, so whoever
takes them can stop for a breath after any of them. A batch that is larger than what a breath
allows is yielded in parts: nobody is served what is half loaded.
"""

import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol

from coordinator.log.directory import Directory
from coordinator.log.errors import LogCorrupt, LogFailed
from coordinator.log.format import (
    BATCH_BYTES_MAX,
    FORMAT,
    HEADER,
    HEADER_BYTES,
    LENGTH_MAX,
    LENGTH_MIN,
    PREFIX,
    Batch,
    Index,
    RawBatch,
    count_items,
    decode_batch,
    end_offset_of,
    unpack_in_parts,
    unpack_items,
    unpacked_batch,
)
from coordinator.log.segments import WINDOW_BYTES, Chain, SegmentReader, damaged
from coordinator.log.state_files import SegmentInfo

# ------------------------------------------------------------------------------------------
# Reading the log back into memory, so that the event loop is never held up for long.

# A batch with more bytes than this is yielded in parts of so many entries: unpacking as many
# takes a millisecond, and replaying them one or two.
PART_BYTES: Final = 64 * 1024
PART_ITEMS: Final = 1_000
_ONE: Final = b"\x91"  # How the msgpack array of a single entry begins.
_PREFIX_BYTES: Final = PREFIX.size
_REST_BYTES: Final = HEADER_BYTES - PREFIX.size


class Replay(Protocol):
    """One pass over a part of the log.

    Attributes:
        total_bytes: What there is to read.
        ends: Partition -> offset behind the last entry that was yielded.
    """

    total_bytes: int
    ends: dict[int, int]

    @property
    def done_bytes(self) -> int:
        """What was read and yielded."""

    def fetch(self) -> None:
        """Read the next piece; once there is none, `at_end` is true. Blocks.

        Raises:
            LogCorrupt: Damage; what was yielded before must not be served.
            LogFailed: A file can't be read.
        """

    @property
    def at_end(self) -> bool:
        """Whether everything was yielded."""

    def batches(self) -> Iterator[Batch]:
        """Yield what was fetched; to be taken to its end before the next `fetch`.

        Raises:
            LogCorrupt: As above.
        """


def all_batches(replay: Replay) -> Iterator[Batch]:
    """Yield everything, for whoever may be held up."""
    replay.fetch()
    while not replay.at_end:
        yield from replay.batches()
        replay.fetch()


def read_from(
    directory: Directory,
    places: Iterable[tuple[str, int, "array[int]"]],
    from_offset: int,
    max_bytes: int | None,
) -> Iterator[Batch]:
    """Yield the batches of one partition from the one that holds *from_offset*.

    Args:
        directory: Where the files are.
        places: Per segment its name, bytes of batches, and where the partition's begin.
        from_offset: The first batch may begin below it.
        max_bytes: End after the batch for which so much was read of the disk.

    Raises:
        LogCorrupt: Damage.
        LogFailed: A file can't be read.
    """
    spent_bytes = 0
    try:
        for name, data_bytes, positions in places:
            reader = SegmentReader(directory, name, data_bytes)
            first = reader.first_at_or_before(positions, from_offset)
            for position in positions[first:]:
                raw, window = reader.at(position)
                batch = decode_batch(window, raw)
                if end_offset_of(batch) > from_offset:
                    yield batch
                    if max_bytes is not None and spent_bytes + reader.read_bytes >= max_bytes:
                        return
            spent_bytes += reader.read_bytes
    except OSError as exc:
        raise LogFailed(f"the log can't be read: {exc}") from exc


class SegmentReplay:
    """Reads one segment from its first batch to its last, checked."""

    def __init__(
        self,
        directory: Directory,
        segment: SegmentInfo,
        data_bytes: int,
        num_partitions: int,
        ends: dict[int, int],
        *,
        part_bytes: int = BATCH_BYTES_MAX,
    ) -> None:
        """Begin at byte 0.

        Args:
            directory: Where the file is.
            segment: The row of the manifest.
            data_bytes: Where its batches end.
            num_partitions: Offsets partitions of the folder.
            ends: Partition -> end offset; moves along with what is yielded.
            part_bytes: A batch with more bytes is yielded in parts; by default none is.
        """
        self.total_bytes = data_bytes
        self.done_bytes = 0
        self._directory = directory
        self._segment = segment
        self._chain = Chain(segment, num_partitions)
        self._num_partitions = num_partitions
        self._ends = ends
        self._part_bytes = part_bytes
        self._window = b""
        self._is_checked = False  # The window is one large batch, and its checksum is right.

    @property
    def at_end(self) -> bool:
        """Whether everything was yielded."""
        return self.done_bytes >= self.total_bytes

    def fetch(self) -> None:
        """Read the next window, or the whole of a batch that is larger."""
        left = self.total_bytes - self.done_bytes
        if not left:
            return
        name, position = self._segment.name, self.done_bytes
        window = self._directory.read(name, position, min(left, WINDOW_BYTES))
        self._is_checked = False
        if len(window) >= HEADER_BYTES:
            length, crc = PREFIX.unpack_from(window)
            size_bytes = _PREFIX_BYTES + length
            if len(window) < size_bytes <= left and length <= LENGTH_MAX:
                window = self._directory.read(name, position, size_bytes)
                # Here, in a thread, and not in the event loop.
                self._is_checked = zlib.crc32(memoryview(window)[_PREFIX_BYTES:]) == crc
                if not self._is_checked:
                    raise damaged(name, position, self.total_bytes)
        self._window = window

    def batches(self) -> Iterator[Batch]:
        """Yield the batches that are whole in the window."""
        # This loop is most of reading small batches: 1,000,000 of one entry take 1.7 s.
        window, base = self._window, self.done_bytes
        size_bytes, is_checked, part_bytes = len(window), self._is_checked, self._part_bytes
        header, crc32, make = HEADER.unpack_from, zlib.crc32, Batch._make
        ends, is_compacted = self._ends, self._segment.compacted
        num_partitions = self._num_partitions
        known_flush = None
        at = 0
        while at + HEADER_BYTES <= size_bytes:
            fields = header(window, at)
            length, crc, format_, partition, epoch, offset, flush_start, time_ms = fields
            body_at = at + _PREFIX_BYTES
            end = body_at + length
            if end > size_bytes or not LENGTH_MIN <= length <= LENGTH_MAX:
                break
            body = window[body_at:end]
            if not is_checked and crc32(body) != crc:
                break
            if flush_start != known_flush or partition >= num_partitions or format_ != FORMAT:
                self._chain.check(base + at, RawBatch(at, end, *fields[2:]))
                known_flush = flush_start
            expected = ends.get(partition, 0)
            # Compaction leaves gaps, but never goes back.
            if offset != expected and (offset < expected or not is_compacted):
                raise self._out_of_place(base + at, partition, offset, expected)
            packed = body[_REST_BYTES:]
            if length > part_bytes or is_compacted:
                raw = RawBatch(at, end, *fields[2:])
                for batch in self._unpacked(base, raw, packed):
                    ends[partition] = end_offset_of(batch)
                    yield batch
            else:
                count = 1 if packed[:1] == _ONE else count_items(packed)
                if not count:
                    raise self._unreadable(base + at, "there are none")
                ends[partition] = offset + count
                yield make((partition, epoch, offset, time_ms, count, packed, None))
            at = end
        if not at:
            raise damaged(self._segment.name, base, self.total_bytes)
        self.done_bytes = base + at

    def _unpacked(self, base: int, raw: RawBatch, packed: bytes) -> Iterator[Batch]:
        """Yield a batch whose last entry says where it ends, as there may be gaps, or its parts."""
        try:
            if len(packed) <= self._part_bytes:
                items = unpack_items(packed)
                yield unpacked_batch(raw, items)._replace(packed=packed)
                return
            for items in unpack_in_parts(packed, PART_ITEMS):
                yield unpacked_batch(raw, items)
        except ValueError as exc:
            raise self._unreadable(base + raw.start, str(exc)) from exc

    def _unreadable(self, position: int, reason: str) -> LogCorrupt:
        where = f"segment {self._segment.name}: the entries of the batch at byte {position}"
        return LogCorrupt(f"{where} can't be read: {reason}")

    def _out_of_place(
        self, position: int, partition: int, offset: int, expected: int
    ) -> LogCorrupt:
        return LogCorrupt(
            f"segment {self._segment.name}: the batch at byte {position} begins at offset "
            f"{offset} of partition {partition}, not at {expected}"
        )


class JournalReplay:
    """Reads all segments, oldest first."""

    def __init__(
        self,
        directory: Directory,
        segments: Iterable[tuple[SegmentInfo, int]],
        num_partitions: int,
        read_index: Callable[[SegmentInfo], Index],
        *,
        part_bytes: int,
    ) -> None:
        """Begin with the first of *segments*, each with the bytes of its batches."""
        segments = list(segments)
        self.total_bytes = sum(data_bytes for _, data_bytes in segments)
        self.at_end = False
        self._directory = directory
        self._segments = iter(segments)
        self._num_partitions = num_partitions
        self._read_index = read_index
        self._part_bytes = part_bytes
        self.ends: dict[int, int] = {}
        self._before_bytes = 0  # Of the segments that were read.
        self._current: tuple[SegmentInfo, SegmentReplay] | None = None

    @property
    def done_bytes(self) -> int:
        """What was yielded."""
        return self._before_bytes + (self._current[1].done_bytes if self._current else 0)

    def fetch(self) -> None:
        """Read the next window, of the next segment if this one is at its end."""
        try:
            while self._current is None or self._current[1].at_end:
                if self._current is not None:
                    self._leave(*self._current)
                following = next(self._segments, None)
                if following is None:
                    self.at_end = True
                    return
                segment, data_bytes = following
                opened = SegmentReplay(
                    self._directory,
                    segment,
                    data_bytes,
                    self._num_partitions,
                    self.ends,
                    part_bytes=self._part_bytes,
                )
                self._current = segment, opened
            self._current[1].fetch()
        except OSError as exc:
            raise LogFailed(f"the log can't be read: {exc}") from exc

    def _leave(self, segment: SegmentInfo, replay: SegmentReplay) -> None:
        self._before_bytes += replay.total_bytes
        self._current = None
        if segment.end is not None:
            # Compaction may have dropped the last entries of a partition.
            self.ends.update(self._read_index(segment).end_offsets)

    def batches(self) -> Iterator[Batch]:
        """Yield what was fetched."""
        assert self._current is not None
        return self._current[1].batches()


# ------------------------------------------------------------------------------------------
# Reading one partition of the log back into memory, through the index of each segment.


class PartitionReplay:
    """Reads what is durable of one partition, through the index of each segment."""

    def __init__(
        self,
        directory: Directory,
        partition: int,
        places: Iterable[tuple[str, int, "array[int]"]],
        total_bytes: int,
        *,
        part_bytes: int,
    ) -> None:
        """Begin with the first of *places*: name, bytes of batches, and where ours begin."""
        self.total_bytes = total_bytes  # Of all partitions: the index knows no sizes.
        self.done_bytes = 0
        self.at_end = False
        self._directory = directory
        self._partition = partition
        self._places = iter(places)
        self._part_bytes = part_bytes
        self._reader: SegmentReader | None = None
        self._positions: Iterator[int] = iter(())
        self._fetched: list[tuple[RawBatch, bytes]] = []
        self.ends = {partition: 0}

    def fetch(self) -> None:
        """Read about a window's worth of batches; their checksums are right."""
        self._fetched = []
        try:
            while not self._fetched:
                if self._reader is None and not self._open_next():
                    self.at_end = True
                    return
                self._fetch_some()
        except OSError as exc:
            raise LogFailed(f"the log can't be read: {exc}") from exc

    def _open_next(self) -> bool:
        following = next(self._places, None)
        if following is None:
            return False
        name, data_bytes, positions = following
        self._reader = SegmentReader(self._directory, name, data_bytes)
        self._positions = iter(positions)
        return True

    def _fetch_some(self) -> None:
        reader = self._reader
        assert reader is not None
        before_bytes = reader.read_bytes
        for position in self._positions:
            self._fetched.append(reader.at(position))
            if reader.read_bytes - before_bytes >= WINDOW_BYTES:
                break
        else:
            self._reader = None
        self.done_bytes += reader.read_bytes - before_bytes

    def batches(self) -> Iterator[Batch]:
        """Yield what was fetched."""
        for raw, window in self._fetched:
            end = self.ends[self._partition]
            if raw.partition != self._partition or raw.base_offset < end:
                raise LogCorrupt(
                    f"the index of partition {self._partition} leads to offset {raw.base_offset} "
                    f"of partition {raw.partition}, behind offset {end}"
                )
            for batch in _parts(raw, window, self._part_bytes):
                self.ends[self._partition] = end_offset_of(batch)
                yield batch


def _parts(raw: RawBatch, window: bytes, part_bytes: int) -> Iterator[Batch]:
    packed = memoryview(window)[raw.start + HEADER_BYTES : raw.end]
    try:
        if len(packed) <= part_bytes:
            yield unpacked_batch(raw, unpack_items(bytes(packed)))
            return
        for items in unpack_in_parts(packed, PART_ITEMS):
            yield unpacked_batch(raw, items)
    except ValueError as exc:
        where = f"the entries at offset {raw.base_offset} of partition {raw.partition}"
        raise LogCorrupt(f"{where} can't be read: {exc}") from exc
