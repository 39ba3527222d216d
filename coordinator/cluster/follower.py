"""A node's position in the log of one journal, and the places of its batches in the log.

`Tail` gets the entries that were read or written, and unpacks them for replay. `journal` sends the
requests; this module sends none.
"""

import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from coordinator.cluster.engine import Snapshot
from coordinator.cluster.entries import Joiner, batches_in, decode, raw_batches
from coordinator.log.errors import LogCorrupt
from coordinator.log.format import LENGTH_MAX, PREFIX, PREFIX_BYTES, Batch


class _Unit(NamedTuple):
    """A unit of the kept log.

    Attributes:
        first: Index of its first entry.
        last: Index of its last entry.
        size_bytes: Size of its entries in the log.
        end_bytes: Total size of all units ever noted, up to this one.
    """

    first: int
    last: int
    size_bytes: int
    end_bytes: int


class Tail:
    """The log of one journal, as far as this node has read or written it.

    Attributes:
        applied: Index of the last entry that was replayed or written, even of an incomplete unit.
        newest: Index and bytes of the last entry that was read or written, replayed or not; None
            for the bytes if only the snapshot has the entry.
        ends: Partition -> end offset of the replayed batches.
        is_dropped: The tail was replaced: its iterators end.
    """

    def __init__(self) -> None:
        self.applied = 0
        self.newest: tuple[int, bytes | None] = (0, None)
        self.ends: dict[int, int] = {}
        self.is_dropped = False
        self._joiner = Joiner()
        self._units: deque[_Unit] = deque()
        # Partition -> base offset of each kept batch, and index of the first entry of its unit.
        self._batches: dict[int, tuple[list[int], list[int]]] = {}
        self._first_of_unit = 1
        self._unit_bytes = 0
        # Cache of `sizes_behind`: its last argument, and the total size of all units up to it.
        self._behind = (0, 0)

    # --- reading ------------------------------------------------------------------------

    def take(self, entries: Sequence[bytes]) -> Iterator[Batch]:
        """Return the batches of *entries*, the first of which follows `applied`.

        The iterator raises:
            LogCorrupt: An entry is damaged, or can't follow the one before it.
            LogIncompatible: A newer release wrote it.
        """
        self.newest = self.applied + len(entries), entries[-1]
        return self._take(entries)

    def _take(self, entries: Sequence[bytes]) -> Iterator[Batch]:
        for data in entries:
            if self.is_dropped:
                return
            index = self.applied + 1
            part = decode(data, index)
            body = self._joiner.take(index, part)
            if not part.part:
                self._first_of_unit, self._unit_bytes = index, 0
            self._unit_bytes += len(data)
            self.applied = index
            if body is not None:
                self._note_unit(self._first_of_unit, index, self._unit_bytes)
                yield from self._taken(body, self._first_of_unit)

    def _taken(self, body: bytes, first: int) -> Iterator[Batch]:
        before: tuple[int, int] = (-1, -1)
        for batch in batches_in(body, self.ends, has_gaps=False):
            if self.is_dropped:
                return
            if before != (batch.partition, batch.base_offset):
                before = (batch.partition, batch.base_offset)
                self._note(*before, first)
            yield batch

    def load(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """Yield the *batches* of a snapshot until the tail is dropped."""
        for batch in batches:
            if self.is_dropped:
                return
            yield batch

    def loaded(self, snapshot: Snapshot) -> None:
        """Continue after *snapshot*, which was replayed completely."""
        self.applied = snapshot.index
        self.newest = snapshot.index, None
        # A fold may have dropped the last entries of a partition.
        self.ends.update(snapshot.ends)

    def keep(self, index: int, entries: Sequence[bytes]) -> None:
        """Note entries from *index* on that are still in the log, though the snapshot has them.

        Raises:
            LogCorrupt, LogIncompatible: As `take`.
        """
        for at, data in enumerate(entries, start=index):
            part = decode(data, at)
            if not part.part:
                self._first_of_unit, self._unit_bytes = at, 0
            elif not self._joiner.begun:
                continue  # The beginning of its unit was trimmed.
            self._unit_bytes += len(data)
            body = self._joiner.take(at, part)
            if body is not None:
                self._note_unit(self._first_of_unit, at, self._unit_bytes)
                for raw in raw_batches(body):
                    self._note(raw.partition, raw.base_offset, self._first_of_unit)

    def keep_nothing(self) -> None:
        """Forget the kept units: they were trimmed while they were read."""
        self._joiner = Joiner()
        self._units.clear()
        self._batches.clear()

    # --- writing ------------------------------------------------------------------------

    def begin_to_write(self) -> None:
        """Discard an incomplete unit of a former leader."""
        self._joiner = Joiner()

    def wrote(self, entries: Sequence[bytes], batches: Iterable[tuple[int, int, int]]) -> None:
        """Note a whole unit that this node has appended.

        Args:
            entries: All entries of the unit.
            batches: Partition, base offset and end offset of each of its batches.
        """
        first = self.applied + 1
        self.applied += len(entries)
        self.newest = self.applied, entries[-1]
        self._note_unit(first, self.applied, sum(map(len, entries)))
        for partition, base_offset, end_offset in batches:
            self._note(partition, base_offset, first)
            self.ends[partition] = end_offset

    def _note_unit(self, first: int, last: int, size_bytes: int) -> None:
        before = self._units[-1].end_bytes if self._units else 0
        self._units.append(_Unit(first, last, size_bytes, before + size_bytes))

    def _note(self, partition: int, base_offset: int, index: int) -> None:
        offsets, indexes = self._batches.setdefault(partition, ([], []))
        offsets.append(base_offset)
        indexes.append(index)

    # --- the kept log -------------------------------------------------------------------

    @property
    def kept_bytes(self) -> int:
        """Total size of the kept units, in the snapshot or not."""
        units = self._units
        return units[-1].end_bytes - units[0].end_bytes + units[0].size_bytes if units else 0

    def sizes_behind(self, index: int) -> tuple[int, int]:
        """Return the number of bytes and of entries after *index*."""
        units = self._units
        if not units or units[-1].last <= index:
            return 0, 0
        if self._behind[0] != index:
            up_to = max([unit.end_bytes for unit in units if unit.last <= index], default=0)
            self._behind = index, max(up_to, units[0].end_bytes - units[0].size_bytes)
        return units[-1].end_bytes - self._behind[1], units[-1].last - index

    def forget(self, snapshot_index: int, keep_bytes: int) -> int:
        """Forget units that needn't be kept; return the index of the first kept entry.

        Args:
            snapshot_index: Units that end after this index are kept.
            keep_bytes: Minimum size of the kept units, if there are as many bytes.
        """
        units = self._units
        while len(units) > 1 and units[0].last <= snapshot_index:
            if units[-1].end_bytes - units[0].end_bytes < keep_bytes:
                break
            units.popleft()
        kept_from = units[0].first if units else self.applied + 1
        for partition, (offsets, indexes) in self._batches.items():
            gone = bisect_left(indexes, kept_from)
            if gone:
                self._batches[partition] = (offsets[gone:], indexes[gone:])
        return kept_from

    @property
    def compacted_below(self) -> dict[int, int]:
        """Per partition, the lowest offset that `place_of` finds; its end offset if none."""
        return {
            partition: (self._batches.get(partition, _NO_BATCHES)[0] or (end,))[0]
            for partition, end in self.ends.items()
        }

    def place_of(self, partition: int, offset: int) -> int | None:
        """Return the index of the first entry of the unit with *offset*, None from the end on."""
        if offset >= self.ends.get(partition, 0):
            return None
        offsets, indexes = self._batches[partition]
        return indexes[bisect_right(offsets, offset) - 1]


_NO_BATCHES: Final[tuple[list[int], list[int]]] = ([], [])


class SnapshotReader:
    """Decompresses the chunks of a snapshot: one stream of batches, cut anywhere."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._stream = zlib.decompressobj()
        self._left = b""
        self._crc32 = 0
        self._read_bytes = 0

    def feed(self, chunk: bytes, ends: dict[int, int]) -> Iterator[Batch]:
        """Yield the batches that *chunk* completes.

        Args:
            chunk: The next chunk.
            ends: Partition -> end offset; updated before each yield.

        Raises:
            LogCorrupt: The snapshot is damaged.
        """
        yield from batches_in(self.unpack(chunk), ends, has_gaps=True)

    def unpack(self, chunk: bytes) -> bytes:
        """Return the packed batches that *chunk* completes. Raises LogCorrupt."""
        self._crc32 = zlib.crc32(chunk, self._crc32)
        self._read_bytes += len(chunk)
        try:
            data = self._left + self._stream.decompress(chunk)
        except zlib.error as exc:
            raise LogCorrupt(f"snapshot {self._snapshot.name} can't be read: {exc}") from exc
        whole = _whole_bytes(data)
        self._left = data[whole:]
        return data[:whole]

    def finish(self) -> None:
        """Check that the chunks are complete and undamaged. Raises LogCorrupt."""
        snapshot = self._snapshot
        found = (self._read_bytes, self._crc32)
        if found != (snapshot.size_bytes, snapshot.crc32) or self._left:
            raise LogCorrupt(f"snapshot {snapshot.name} is damaged")
        if snapshot.chunks and not self._stream.eof:
            raise LogCorrupt(f"snapshot {snapshot.name} ends too early")


def _whole_bytes(data: bytes) -> int:
    """Return the end of the last whole batch, in bytes. Raises LogCorrupt."""
    at = 0
    while at + PREFIX_BYTES <= len(data):
        (length, _) = PREFIX.unpack_from(data, at)
        if length > LENGTH_MAX:
            raise LogCorrupt(f"a batch of {length} bytes is none")
        if at + PREFIX_BYTES + length > len(data):
            break
        at += PREFIX_BYTES + length
    return at
