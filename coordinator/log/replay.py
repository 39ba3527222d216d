"""Reads the log back, all of it or one partition, without blocking the event loop for long.

A load alternates between two steps. `fetch` reads the next piece of the files; it blocks, so it
runs in a thread. `batches` checks and unpacks that piece, one batch at a time, so the caller can
yield to other tasks after each batch. A large batch is yielded in parts for the same reason; this
is safe, as no request is answered from a log that isn't completely loaded. A caller that needs the
entries only uses `portions`, which combine many batches: for small batches, most of the cost is
per batch.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

from coordinator.log.directory import Directory
from coordinator.log.errors import LogCorrupt, LogFailed
from coordinator.log.format import (
    HEADER,
    HEADER_BYTES_OF,
    LENGTH_MAX,
    LENGTH_MIN,
    NOT_SHORT,
    PART_BYTES,
    PART_KEYS,
    PLACE,
    PREFIX,
    PREFIX_BYTES,
    SHORT_BYTES,
    Batch,
    Index,
    Item,
    Items,
    RawBatch,
    check_items,
    decode_batch,
    decode_short,
    parts_of,
    unpack_any,
    unpack_in_parts,
    unpack_items,
)
from coordinator.log.segments import WINDOW_BYTES, FlushChain, SegmentReader, damaged
from coordinator.log.state_files import SegmentInfo, data_bytes

# Keys after which a portion ends, at the end of a batch or of a part of one. Few, so that the
# entries are still in the processor's cache when they are replayed.
PORTION_KEYS: Final = 200

# Partition -> entries in their order. The order between partitions is lost; it doesn't matter.
Gathered = defaultdict[int, list[Item]]


class IndexedSegment(NamedTuple):
    """A segment, the size of its batches, and the byte positions of one partition's batches."""

    name: str
    data_bytes: int
    positions: "array[int]"


class Replay(Protocol):
    """One pass over a part of the log.

    Attributes:
        total_bytes: Size of the data to read.
        ends: Partition -> offset behind the last entry that was yielded.
    """

    total_bytes: int
    ends: dict[int, int]

    @property
    def done_bytes(self) -> int:
        """Bytes read and yielded so far."""

    def fetch(self) -> None:
        """Read the next piece, or set `at_end` if there is none. Blocks.

        Raises:
            LogCorrupt: Damage; requests must not be answered from the entries yielded before.
            LogFailed: A file can't be read.
        """

    @property
    def at_end(self) -> bool:
        """Whether everything was yielded."""

    def batches(self) -> Iterator[Batch]:
        """Yield the fetched batches; exhaust the iterator before the next `fetch`.

        Raises:
            LogCorrupt: As for `fetch`.
        """

    def portions(self) -> Iterator[tuple[Gathered, int]]:
        """Yield, instead of batches, the entries of many of them and the number of their keys.

        The yielded dict is cleared when the next portion is taken. Raises as `batches`.
        """


def all_batches(replay: Replay) -> Iterator[Batch]:
    """Yield all batches of *replay*; blocks while reading."""
    replay.fetch()
    while not replay.at_end:
        yield from replay.batches()
        replay.fetch()


def read_from(
    directory: Directory,
    segments: Iterable[IndexedSegment],
    from_offset: int,
    max_bytes: int | None,
) -> Generator[Batch, None, None]:
    """Yield the batches of one partition from the one that holds *from_offset*.

    Args:
        directory: The data folder.
        segments: The segments that have batches of the partition.
        from_offset: Lowest offset that is wanted; the first batch may begin below it.
        max_bytes: Bytes read from disk after which to end; None: no limit.

    Raises:
        LogCorrupt: Damage.
        LogFailed: A file can't be read.
    """
    spent_bytes = 0
    try:
        for segment in segments:
            reader = SegmentReader(directory, segment.name, segment.data_bytes)
            first = reader.first_at_or_before(segment.positions, from_offset)
            for position in segment.positions[first:]:
                raw, window = reader.at(position)
                batch = decode_batch(window, raw)
                if batch.end_offset > from_offset:
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
        size_bytes: int,
        num_partitions: int,
        ends: dict[int, int],
    ) -> None:
        """Begin at byte 0.

        Args:
            directory: The data folder.
            segment: The segment as the manifest lists it.
            size_bytes: Size of its batches.
            num_partitions: Offsets partitions of the folder.
            ends: Partition -> end offset; updated with each batch.
        """
        self.total_bytes = size_bytes
        self.done_bytes = 0
        self._directory = directory
        self.segment = segment
        self._chain = FlushChain(segment, num_partitions)
        self._num_partitions = num_partitions
        self._ends = ends
        self._window = b""
        self._is_checked = False  # The window is one large batch whose checksum was verified.

    @property
    def at_end(self) -> bool:
        """Whether everything was yielded."""
        return self.done_bytes >= self.total_bytes

    def fetch(self) -> None:
        """Read the next window; if its first batch is larger, all of that batch."""
        left = self.total_bytes - self.done_bytes
        if not left:
            return
        name, position = self.segment.name, self.done_bytes
        window = self._directory.read(name, position, min(left, WINDOW_BYTES))
        self._is_checked = False
        if len(window) >= HEADER.size:
            length, crc = PREFIX.unpack_from(window)
            size_bytes = PREFIX_BYTES + length
            if len(window) < size_bytes <= left and length <= LENGTH_MAX:
                window = self._directory.read(name, position, size_bytes)
                # Computed here, in the thread, to keep the crc of a large batch off the event loop.
                self._is_checked = crc32(memoryview(window)[PREFIX_BYTES:]) == crc
                if not self._is_checked:
                    raise damaged(name, position, self.total_bytes)
        self._window = window

    def batches(self) -> Iterator[Batch]:
        """Yield the batches that are complete in the window."""
        return self._read(None)

    def portions(self) -> Iterator[tuple[Gathered, int]]:
        """Yield the entries of the batches that are complete in the window."""
        gathered: Gathered = defaultdict(list)
        for num_keys in self._read(gathered):
            yield gathered, num_keys
            gathered.clear()

    def _read(self, gathered: Gathered | None) -> Iterator[Any]:
        """Yield batches; with *gathered*, append the entries to it and yield numbers of keys."""
        # Most of the cost of reading small batches is this loop, so it makes few calls.
        window, base = self._window, self.done_bytes
        size_bytes, is_checked = len(window), self._is_checked
        last_at = size_bytes - HEADER.size
        place, ends = PLACE.unpack_from, self._ends
        num_partitions, known_format = self._num_partitions, self.segment.format
        header_bytes = HEADER_BYTES_OF[known_format]
        short_length = header_bytes - PREFIX_BYTES + SHORT_BYTES
        known_flush = None
        at = num_gathered = 0
        while at <= last_at:
            length, crc, format_, partition, offset, flush_start = place(window, at)
            body = at + PREFIX_BYTES
            end = body + length
            if end > size_bytes or length < LENGTH_MIN:
                break
            if not is_checked and crc32(window[body:end]) != crc:
                break
            if flush_start != known_flush or partition >= num_partitions or format_ != known_format:
                raw = RawBatch(at, end, *HEADER.unpack_from(window, at)[2:])
                self._chain.check(base + at, raw)
                known_flush = flush_start
            if offset != ends.get(partition, 0):
                self._check_gap(base + at, partition, offset)
            try:
                items = (
                    decode_short(window[at + header_bytes : end])
                    if gathered is not None and length <= short_length
                    else None
                )
            except NOT_SHORT:
                items = None
            if (
                items
                and gathered is not None
                # Inlined `is_wide`.
                and not ((key := items[0][4]) and type(key[-1]) is tuple)
            ):
                ends[partition] = offset + 1
                gathered[partition].append(items[0])
                num_gathered += 1
            elif gathered is not None and length <= PART_BYTES:
                items, end_delta, num_keys = self._unpacked(at, end, items)
                ends[partition] = offset + end_delta
                gathered[partition] += items
                num_gathered += num_keys
            else:
                num_gathered = yield from self._read_parts(at, end, gathered, num_gathered)
            if num_gathered >= PORTION_KEYS:
                yield num_gathered
                num_gathered = 0
            at = end
        yield from self._leave_window(at, num_gathered)

    def _unpacked(self, at: int, end: int, short: Items | None) -> tuple[Items, int, int]:
        """Return the entries of a batch in the window, as `unpack_items`; *short* if given."""
        has_gaps = self.segment.compacted
        try:
            if short:
                return short, *check_items(short, has_gaps=has_gaps)
            packed = self._window[at + HEADER_BYTES_OF[self.segment.format] : end]
            return unpack_any(packed, has_gaps=has_gaps)
        except ValueError as exc:
            raise self._unreadable(at, exc) from exc

    def _read_parts(
        self, at: int, end: int, gathered: Gathered | None, num_gathered: int
    ) -> Generator[Any, None, int]:
        """Read a batch of the window in parts, as `_read`; return the new *num_gathered*."""
        _, _, format_, partition, epoch, offset, _, time_ms = HEADER.unpack_from(self._window, at)
        packed = self._window[at + HEADER_BYTES_OF[format_] : end]
        has_gaps = self.segment.compacted
        try:
            for items, end_delta, num_keys in (
                (unpack_items(packed, has_gaps=has_gaps),)
                if len(packed) <= PART_BYTES
                else unpack_in_parts(packed, PART_KEYS, has_gaps=has_gaps)
            ):
                self._ends[partition] = end_offset = offset + end_delta
                if gathered is None:
                    yield Batch(partition, epoch, offset, time_ms, items, end_offset, num_keys)
                    continue
                gathered[partition] += items
                num_gathered += num_keys
                if num_gathered >= PORTION_KEYS:
                    yield num_gathered
                    num_gathered = 0
        except ValueError as exc:
            raise self._unreadable(at, exc) from exc
        return num_gathered

    def _unreadable(self, at: int, exc: ValueError) -> LogCorrupt:
        position = self.done_bytes + at
        where = f"segment {self.segment.name}: the entries of the batch at byte {position}"
        return LogCorrupt(f"{where} can't be read: {exc}")

    def _leave_window(self, read_bytes: int, num_gathered: int) -> Iterator[int]:
        if not read_bytes:
            raise damaged(self.segment.name, self.done_bytes, self.total_bytes)
        if num_gathered:
            yield num_gathered
        self.done_bytes += read_bytes

    def _check_gap(self, position: int, partition: int, offset: int) -> None:
        """Raise LogCorrupt if offsets go back, or have a gap though nothing was compacted."""
        expected = self._ends.get(partition, 0)
        if offset < expected or not self.segment.compacted:
            raise LogCorrupt(
                f"segment {self.segment.name}: the batch at byte {position} begins at offset "
                f"{offset} of partition {partition}, not at {expected}"
            )


class JournalReplay:
    """Reads all segments, oldest first."""

    def __init__(
        self,
        directory: Directory,
        segments: Sequence[SegmentInfo],
        newest_bytes: int,
        num_partitions: int,
        read_index: Callable[[SegmentInfo], Index],
    ) -> None:
        """Begin with the first of *segments*; the newest has *newest_bytes* of batches."""
        self.total_bytes = data_bytes(segments) + newest_bytes
        self.ends: dict[int, int] = {}
        self.at_end = False
        self._directory = directory
        self._segments = iter(segments)
        self._newest_bytes = newest_bytes
        self._num_partitions = num_partitions
        self._read_index = read_index
        self._before_bytes = 0  # Size of the segments that were read completely.
        self._current: SegmentReplay | None = None

    @property
    def done_bytes(self) -> int:
        """Bytes yielded so far."""
        return self._before_bytes + (self._current.done_bytes if self._current else 0)

    def fetch(self) -> None:
        """Read the next window, from the next segment if this one is at its end."""
        try:
            while self._current is None or self._current.at_end:
                if self._current is not None:
                    self._leave(self._current)
                segment = next(self._segments, None)
                if segment is None:
                    self.at_end = True
                    return
                size_bytes = self._newest_bytes if segment.end is None else segment.data_bytes
                assert size_bytes is not None
                self._current = SegmentReplay(
                    self._directory, segment, size_bytes, self._num_partitions, self.ends
                )
            self._current.fetch()
        except OSError as exc:
            raise LogFailed(f"the log can't be read: {exc}") from exc

    def _leave(self, replay: SegmentReplay) -> None:
        self._before_bytes += replay.total_bytes
        self._current = None
        if replay.segment.end is not None:
            # A compaction may have dropped the last entries of a partition.
            self.ends.update(self._read_index(replay.segment).end_offsets)

    def batches(self) -> Iterator[Batch]:
        assert self._current is not None
        return self._current.batches()

    def portions(self) -> Iterator[tuple[Gathered, int]]:
        assert self._current is not None
        return self._current.portions()


class PartitionReplay:
    """Reads the durable batches of one partition, through the index of each segment."""

    def __init__(
        self,
        directory: Directory,
        partition: int,
        segments: Iterable[IndexedSegment],
        total_bytes: int,
    ) -> None:
        """Begin with the first of *segments*, which have the positions of *partition*'s batches."""
        self.total_bytes = total_bytes  # Of all partitions, as the index has no sizes.
        self.done_bytes = 0
        self.at_end = False
        self._directory = directory
        self._partition = partition
        self._segments = iter(segments)
        self._reader: SegmentReader | None = None
        self._positions: Iterator[int] = iter(())
        self._fetched: list[tuple[RawBatch, bytes]] = []
        self.ends = {partition: 0}

    def fetch(self) -> None:
        """Read batches of about `WINDOW_BYTES` in all, and verify their checksums."""
        self._fetched = []
        try:
            while not self._fetched:
                if self._reader is None:
                    segment = next(self._segments, None)
                    if segment is None:
                        self.at_end = True
                        return
                    self._reader = SegmentReader(self._directory, segment.name, segment.data_bytes)
                    self._positions = iter(segment.positions)
                self._fetch_from(self._reader)
        except OSError as exc:
            raise LogFailed(f"the log can't be read: {exc}") from exc

    def _fetch_from(self, reader: SegmentReader) -> None:
        before_bytes = reader.read_bytes
        for position in self._positions:
            self._fetched.append(reader.at(position))
            if reader.read_bytes - before_bytes >= WINDOW_BYTES:
                break
        else:
            self._reader = None
        self.done_bytes += reader.read_bytes - before_bytes

    def batches(self) -> Iterator[Batch]:
        for raw, window in self._fetched:
            end = self.ends[self._partition]
            if raw.partition != self._partition or raw.base_offset < end:
                raise LogCorrupt(
                    f"the index of partition {self._partition} leads to offset {raw.base_offset} "
                    f"of partition {raw.partition}, behind offset {end}"
                )
            for batch in parts_of(raw, window[raw.entries_at : raw.end]):
                self.ends[self._partition] = batch.end_offset
                yield batch

    def portions(self) -> Iterator[tuple[Gathered, int]]:
        gathered: Gathered = defaultdict(list)
        num_gathered = 0
        for batch in self.batches():
            gathered[self._partition] += batch.items
            num_gathered += batch.num_keys
            if num_gathered >= PORTION_KEYS:
                yield gathered, num_gathered
                gathered.clear()
                num_gathered = 0
        if num_gathered:
            yield gathered, num_gathered
