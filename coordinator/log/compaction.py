"""What is live in the log, and what a compaction is to do. No I/O in this file."""

# Theory of operation
# ===================
#
# A key is (partition, scope, type, key). Of a log, these entries are *live*:
#
# * the last one of each key, unless
# * a scope tombstone (an entry of type 1001) of the same scope is behind it, or
# * it is a tombstone (its value is nil; scope tombstones are such, too) and old enough.
#
# The fold of the live entries is the fold of the log. Tombstones are kept for a while for those
# who follow the changes; for each partition it is noted up to where some were dropped.
#
# A compaction works on a prefix of the journal's sealed segments, always from the first one on:
# then a tombstone has nothing older left to hide and may go. It finds the live offsets first
# (`LiveSearch`), which takes as many passes as memory asks for, and then copies their entries
# in the order of the log. An output covers a whole number of sources.

import zlib
from array import array
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import msgpack

from coordinator.log.errors import LogCorrupt
from coordinator.log.format import SCOPE_TOMBSTONE, Items, unpack_items
from coordinator.log.state_files import Manifest, SegmentInfo, segment_name

# What the keys of one pass may take. A million keys of a hundred bytes take four passes.
PASS_BYTES: Final = 48 * 1024 * 1024
# In a dict: the bytes object of a key, the int of its offset, their slot.
_KEY_BYTES: Final = 150
_SCOPE_BYTES: Final = 450

# Partition, base offset, timestamp in ms, and the packed entries of one batch.
PackedBatch = tuple[int, int, int, bytes]


class Job(NamedTuple):
    """What a compaction is to do.

    Attributes:
        segments: The sources: sealed, the first ones of the journal, without a gap.
        num_partitions: Of the log.
        segment_bytes: About how large an output may be.
        drop_before_ms: Tombstones of an older timestamp are dropped.
        prefix: What the names of the outputs begin with; nobody else uses it.
        leave_free_bytes: Less room than this on the disk ends the compaction.
    """

    segments: tuple[SegmentInfo, ...]
    num_partitions: int
    segment_bytes: int
    drop_before_ms: int
    prefix: str
    leave_free_bytes: int


class Compacted(NamedTuple):
    """What a compaction has made: segments on disk that still have temporary names.

    Attributes:
        outputs: They cover what the sources did.
        dropped_below: Per partition, the offset below which tombstones were dropped.
        live_entries: How many entries are left.
    """

    outputs: tuple[SegmentInfo, ...]
    dropped_below: dict[int, int]
    live_entries: int


class Live(NamedTuple):
    """The live entries of a log: per partition their offsets, ascending; see `Compacted`."""

    offsets: "dict[int, array[int]]"
    dropped_below: dict[int, int]


class Sizes(NamedTuple):
    """Bytes of batches in the sealed segments: those that were compacted, and the others."""

    clean_bytes: int
    dirty_bytes: int


class LiveSearch:
    """Finds what is live. Show it the whole log, in order, until `is_done`.

    Each pass looks at the scopes in a range of *places* (partition, then a checksum of the
    name). A pass that would take too much memory gives up the upper half of its range, which is
    left to the next one.
    """

    def __init__(self, drop_before_ms: int, *, pass_bytes: int = PASS_BYTES) -> None:
        self.is_done = False
        self.passes = 0
        self._drop_before_ms = drop_before_ms
        self._pass_bytes = pass_bytes
        self._found: dict[int, array[int]] = {}
        self._dropped_below: dict[int, int] = {}
        self._partitions: set[int] = set()
        self._low = 0
        self._high = _PLACES
        # (partition, scope) -> packed type and key -> offset, or ~offset of what is to be dropped.
        self._scopes: dict[tuple[int, str], dict[bytes, int]] = {}
        self._used_bytes = 0
        self._pack = msgpack.Packer(autoreset=True).pack

    def take(self, batch: PackedBatch) -> None:
        """Look at the next batch.

        Raises:
            LogCorrupt: Its entries are not as they are written.
        """
        partition, base_offset, timestamp_ms, packed = batch
        self._partitions.add(partition)
        if not self._low >> 32 <= partition <= (self._high - 1) >> 32:
            return
        is_old = timestamp_ms < self._drop_before_ms
        pack, scopes = self._pack, self._scopes
        for delta, type_, _, scope, key, value in checked_items(packed):
            name = (partition, scope)
            keys = scopes.get(name)
            if keys is None or type_ == SCOPE_TOMBSTONE:
                if not self._low <= _place(name) < self._high:
                    continue
                self._forget(name)
                keys = scopes[name] = {}
                self._used_bytes += _SCOPE_BYTES + len(scope)
            offset = base_offset + delta
            packed_key = pack((type_, key))
            if packed_key not in keys:
                self._used_bytes += _KEY_BYTES + len(packed_key)
            keys[packed_key] = ~offset if is_old and value is None else offset
        if self._used_bytes > self._pass_bytes:
            self._give_up_half()

    def end_pass(self) -> None:
        """Note that the whole log was shown."""
        self.passes += 1
        for (partition, _), keys in self._scopes.items():
            found = self._found.setdefault(partition, array("Q"))
            found.extend([offset for offset in keys.values() if offset >= 0])
            dropped = max([~offset + 1 for offset in keys.values() if offset < 0], default=0)
            if dropped > self._dropped_below.get(partition, 0):
                self._dropped_below[partition] = dropped
        self._scopes = {}
        self._used_bytes = 0
        # As much as went into this pass is likely to go into the next.
        width = self._high - self._low
        left = [p for p in self._partitions if (p + 1) << 32 > self._high]
        self.is_done = not left
        self._low = max(self._high, min(left, default=0) << 32)
        self._high = min(_PLACES, self._low + width)

    def result(self) -> Live:
        """Return what is live, once the search is done."""
        assert self.is_done
        offsets = {p: array("Q", sorted(found)) for p, found in sorted(self._found.items())}
        return Live(offsets, dict(sorted(self._dropped_below.items())))

    def _forget(self, name: tuple[int, str]) -> None:
        keys = self._scopes.pop(name, None)
        if keys is not None:
            self._used_bytes -= _SCOPE_BYTES + len(name[1])
            self._used_bytes -= _KEY_BYTES * len(keys) + sum(map(len, keys))

    def _give_up_half(self) -> None:
        places = sorted({_place(name) for name in self._scopes})
        middle = places[len(places) // 2]
        if middle == places[0]:
            return  # One scope, which can't be split.
        self._high = middle
        for name in [name for name in self._scopes if _place(name) >= middle]:
            self._forget(name)


_PLACES: Final = 1 << 48


def _place(name: tuple[int, str]) -> int:
    partition, scope = name
    return partition << 32 | zlib.crc32(scope.encode())


def checked_items(packed: bytes) -> Items:
    """Return the entries of a batch as msgpack has them, looked at more closely than a load does.

    Raises:
        LogCorrupt: They are not as they are written, in spite of a right checksum.
    """
    try:
        items = unpack_items(packed)
        delta = -1
        for item in items:
            last, (delta, _, _, scope, _, _) = delta, item
            if delta <= last or type(scope) is not str:
                raise ValueError(f"delta {delta} after {last}")  # noqa: TRY301 - one way out
    except (ValueError, TypeError) as exc:
        raise LogCorrupt(f"the entries of a batch can't be read: {exc}") from exc
    return items


def find_live(
    read: Callable[[], Iterable[PackedBatch]],
    drop_before_ms: int,
    *,
    pass_bytes: int = PASS_BYTES,
) -> Live:
    """Return what is live of the log that each call of *read* shows from its beginning."""
    search = LiveSearch(drop_before_ms, pass_bytes=pass_bytes)
    while not search.is_done:
        for batch in read():
            search.take(batch)
        search.end_pass()
    return search.result()


def sealed_sizes(manifest: Manifest) -> Sizes:
    """Return how much of the sealed segments was compacted, and how much not."""
    clean_bytes = data_bytes(s for s in manifest.segments if s.compacted)
    return Sizes(clean_bytes, data_bytes(manifest.segments) - clean_bytes)


def is_due(manifest: Manifest, min_cleanable_ratio: float) -> bool:
    """Return whether enough was sealed since the last compaction for another one.

    With a ratio of 0.5, as much as that compaction left: under a steady load of overwrites the
    log then stays below twice what is live plus one segment, and all work of compactions is in
    proportion to what was written.
    """
    clean_bytes, dirty_bytes = sealed_sizes(manifest)
    return dirty_bytes > 0 and dirty_bytes >= min_cleanable_ratio * (clean_bytes + dirty_bytes)


def plan(
    manifest: Manifest,
    *,
    num_partitions: int,
    segment_bytes: int,
    drop_before_ms: int,
    prefix: str,
    leave_free_bytes: int,
) -> Job | None:
    """Return the compaction of everything that is sealed, None if that is nothing."""
    sealed = tuple(segment for segment in manifest.segments if segment.end is not None)
    if not sealed:
        return None
    return Job(sealed, num_partitions, segment_bytes, drop_before_ms, prefix, leave_free_bytes)


def data_bytes(segments: Iterable[SegmentInfo]) -> int:
    """Return how much is in sealed segments."""
    return sum([segment.data_bytes or 0 for segment in segments])


def live_share(job: Job, compacted: Compacted) -> float | None:
    """Return how much of what was written between two compactions is live, from 0 to 1.

    That is by how much the live data grew, in proportion to what was dirty; None if nothing was.
    """
    clean_bytes = data_bytes(s for s in job.segments if s.compacted)
    dirty_bytes = data_bytes(job.segments) - clean_bytes
    if dirty_bytes == 0:
        return None
    return min(1.0, max(0.0, (data_bytes(compacted.outputs) - clean_bytes) / dirty_bytes))


def goes_into_same_output(output_bytes: int, source: SegmentInfo, segment_bytes: int) -> bool:
    """Return whether *source* is added to an output that has so many bytes already.

    How much of the source is live is not known before it is copied. So an output grows past
    *segment_bytes* rather than that many small ones are left, but not past twice that.
    """
    assert source.data_bytes is not None
    most_bytes = output_bytes + source.data_bytes
    if most_bytes <= segment_bytes:
        return True
    return output_bytes < segment_bytes // 2 and most_bytes <= 2 * segment_bytes


def announced(manifest: Manifest, compacted: Compacted) -> tuple[Manifest, tuple[str, ...]]:
    """Return the manifest that knows which files are about to come, and their names."""
    names = tuple(
        segment_name(output.base, manifest.next_serial + number)
        for number, output in enumerate(compacted.outputs)
    )
    manifest = manifest._replace(
        next_serial=manifest.next_serial + len(names),
        dispensable=(*manifest.dispensable, *names),
    )
    return manifest, names


def replaced(
    manifest: Manifest,
    sources: tuple[SegmentInfo, ...],
    compacted: Compacted,
    names: tuple[str, ...],
) -> Manifest:
    """Return the manifest with the outputs, now called *names*, in place of the sources.

    Raises:
        ValueError: The sources aren't the manifest's first segments, or the outputs don't cover
            exactly what they do.
    """
    if manifest.segments[: len(sources)] != sources:
        raise ValueError("the sources of the compaction are not the journal's first segments")
    position: int | None = sources[0].base
    for output in compacted.outputs:
        if output.base != position:
            raise ValueError(f"a gap at position {position} of the compacted journal")
        position = output.end
    if position != sources[-1].end:
        raise ValueError("the compaction ends in another place than its sources")
    outputs = [o._replace(name=n) for o, n in zip(compacted.outputs, names, strict=True)]
    below = dict(manifest.compacted_below)
    for partition, offset in compacted.dropped_below.items():
        below[partition] = max(offset, below.get(partition, 0))
    kept = [name for name in manifest.dispensable if name not in names]
    return manifest._replace(
        segments=(*outputs, *manifest.segments[len(sources) :]),
        compacted_below=below,
        dispensable=(*kept, *(source.name for source in sources)),
    )
