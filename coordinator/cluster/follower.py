"""What a node holds of the log of one journal: how far it is, and where in the log it lies.

`Tail` is fed with what was read or written, and unpacks it for whoever replays it. It asks nothing
itself: `journal` does.
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
        first: Its first index; likewise `last`.
        size_bytes: As it lies there.
        end_bytes: Of all units that were ever noted up to this one.
    """

    first: int
    last: int
    size_bytes: int
    end_bytes: int


class Tail:
    """The log of one journal up to where this node has it.

    Attributes:
        applied: The last index that was read or written, of a unit that is not whole, too.
        newest: The index and the bytes of the last entry that was read or written, whether its
            batches were taken or not; no bytes if the snapshot alone has it.
        ends: Partition -> end offset, as far as the batches were taken.
        is_dropped: Nobody wants its batches any more.
    """

    def __init__(self) -> None:
        self.applied = 0
        self.newest: tuple[int, bytes | None] = (0, None)
        self.ends: dict[int, int] = {}
        self.is_dropped = False
        self._joiner = Joiner()
        self._units: deque[_Unit] = deque()
        # Partition -> base offset of each batch that is kept, and the first index of its unit.
        self._batches: dict[int, tuple[list[int], list[int]]] = {}
        self._first_of_unit = 1
        self._unit_bytes = 0
        # An index that was asked for, and the bytes of all units up to it.
        self._behind = (0, 0)

    # --- what is read -------------------------------------------------------------------

    def take(self, entries: Sequence[bytes]) -> Iterator[Batch]:
        """Return the batches of the *entries* that follow what is applied.

        The iterator raises:
            LogCorrupt: Damage, or nothing that may follow.
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
        """Yield the *batches* of a snapshot, while they are wanted."""
        for batch in batches:
            if self.is_dropped:
                return
            yield batch

    def loaded(self, snapshot: Snapshot) -> None:
        """Go on behind *snapshot*, all of which was taken."""
        self.applied = snapshot.index
        self.newest = snapshot.index, None
        # A fold may have dropped the last entries of a partition.
        self.ends.update(snapshot.ends)

    def keep(self, index: int, entries: Sequence[bytes]) -> None:
        """Take note of entries from *index* on that the snapshot has, and the log still, too.

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
        """Forget all that was kept: it was trimmed meanwhile."""
        self._joiner = Joiner()
        self._units.clear()
        self._batches.clear()

    # --- what is written ----------------------------------------------------------------

    def begin_to_write(self) -> None:
        """Drop what a former leader has left of a unit."""
        self._joiner = Joiner()

    def wrote(self, entries: Sequence[bytes], batches: Iterable[tuple[int, int, int]]) -> None:
        """Take note of a whole unit that this node has appended.

        Args:
            entries: All of it.
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

    # --- what is kept -------------------------------------------------------------------

    @property
    def kept_bytes(self) -> int:
        """Of all units that are kept, in the snapshot or not."""
        units = self._units
        return units[-1].end_bytes - units[0].end_bytes + units[0].size_bytes if units else 0

    def sizes_behind(self, index: int) -> tuple[int, int]:
        """Return how many bytes and entries there are behind *index*."""
        units = self._units
        if not units or units[-1].last <= index:
            return 0, 0
        if self._behind[0] != index:
            up_to = max([unit.end_bytes for unit in units if unit.last <= index], default=0)
            self._behind = index, max(up_to, units[0].end_bytes - units[0].size_bytes)
        return units[-1].end_bytes - self._behind[1], units[-1].last - index

    def forget(self, snapshot_index: int, keep_bytes: int) -> int:
        """Forget where the units lie that need not be kept; return where the kept ones begin.

        Args:
            snapshot_index: What is behind it is kept.
            keep_bytes: So much is kept, at least, of what there is.
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
        """Per partition, the lowest offset that `place_of` knows."""
        return {
            partition: (self._batches.get(partition, _NO_BATCHES)[0] or (end,))[0]
            for partition, end in self.ends.items()
        }

    def place_of(self, partition: int, offset: int) -> int | None:
        """Return the first index of the unit that holds *offset*, None if it is behind the end."""
        if offset >= self.ends.get(partition, 0):
            return None
        offsets, indexes = self._batches[partition]
        return indexes[bisect_right(offsets, offset) - 1]


_NO_BATCHES: Final[tuple[list[int], list[int]]] = ([], [])


class SnapshotReader:
    """Unpacks the chunks of a snapshot: one stream of batches, compressed and cut anywhere."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._stream = zlib.decompressobj()
        self._left = b""
        self._crc32 = 0
        self._read_bytes = 0

    def feed(self, chunk: bytes, ends: dict[int, int]) -> Iterator[Batch]:
        """Yield the batches that *chunk* makes whole.

        Args:
            chunk: The next one.
            ends: Partition -> end offset; moves along with what is yielded.

        Raises:
            LogCorrupt: Damage.
        """
        yield from batches_in(self.unpack(chunk), ends, has_gaps=True)

    def unpack(self, chunk: bytes) -> bytes:
        """Return the batches that *chunk* makes whole, packed. Raises LogCorrupt."""
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
        """Check that this was all. Raises LogCorrupt."""
        snapshot = self._snapshot
        found = (self._read_bytes, self._crc32)
        if found != (snapshot.size_bytes, snapshot.crc32) or self._left:
            raise LogCorrupt(f"snapshot {snapshot.name} is damaged")
        if snapshot.chunks and not self._stream.eof:
            raise LogCorrupt(f"snapshot {snapshot.name} ends too early")


def _whole_bytes(data: bytes) -> int:
    """Return where the last whole batch ends."""
    at = 0
    while at + PREFIX_BYTES <= len(data):
        (length, _) = PREFIX.unpack_from(data, at)
        if length > LENGTH_MAX:
            raise LogCorrupt(f"a batch of {length} bytes is none")
        if at + PREFIX_BYTES + length > len(data):
            break
        at += PREFIX_BYTES + length
    return at
