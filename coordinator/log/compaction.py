"""Compacts the log: finds what is live in sealed segments, and writes it to new files.

Theory of operation
===================

A key is (partition, scope, type, key). Of a log, these entries are *live*:

* the last one of each key, unless
* a scope tombstone (an entry of type 1001) of the same scope is behind it, or
* it is a tombstone (its value is nil; scope tombstones are such, too) and old enough.

A wide entry stands for several keys, and of it those are live that are the last ones of their key:
it is left as it is, goes, or is cut to one wide entry for each run of live keys. These may take
more bytes than it did, as each repeats what is common to all keys: a batch can grow.

The fold of the live entries is the fold of the log. Tombstones are kept for a while for those
who follow the changes; for each partition it is noted up to where some were dropped.

A compaction works on a prefix of the journal's sealed segments, always from the first one on:
then a tombstone has nothing older left to hide and may go. It finds the live offsets first
(`LiveSearch`), which takes as many passes as memory asks for, and then copies their entries
in the order of the log. An output covers a whole number of sources.

Nothing that the journal knows is changed here: the outputs have temporary names, which a start
removes. `compact_child` does the work in a process of its own, `swap` puts the outputs in the
place of the sources, and `coordinator.runtime.compactor` says when.
"""

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import count, groupby, islice
from typing import Any, Final, NamedTuple

import msgpack

from coordinator.log.directory import Directory
from coordinator.log.errors import LogCorrupt
from coordinator.log.format import (
    SCOPE_TOMBSTONE,
    FlushKey,
    Index,
    Item,
    Items,
    RawBatch,
    encode_batch,
    is_wide,
    slice_item,
    unpack_items,
)
from coordinator.log.segments import FlushChain, SegmentReader, SegmentWriter, read_footer
from coordinator.log.state_files import (
    TEMPORARY_SUFFIX,
    Manifest,
    SegmentInfo,
    data_bytes,
    sealed_sizes,
)

# What the keys of one pass may take. A million keys of a hundred bytes take four passes.
PASS_BYTES: Final = 48 * 1024 * 1024
# In a dict: the bytes object of a key, the int of its offset, their slot.
_KEY_BYTES: Final = 150
_SCOPE_BYTES: Final = 450
_SLOTS: Final = 1 << 48

# How often a reader of progress hears something.
STEP_BYTES: Final = 256 * 1024

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
        key: The folder's.
    """

    segments: tuple[SegmentInfo, ...]
    num_partitions: int
    segment_bytes: int
    drop_before_ms: int
    prefix: str
    leave_free_bytes: int
    key: FlushKey


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


class LiveCursor:
    """Tells which offsets are live. Ask in the order of the log, once of each."""

    def __init__(self, live: Live) -> None:
        self._offsets = live.offsets
        # Partition -> how many of its live offsets were asked for.
        self._asked = dict.fromkeys(live.offsets, 0)

    def take(self, partition: int, end: int) -> "Sequence[int]":
        """Return the live offsets before *end* that were not asked for yet."""
        offsets = self._offsets.get(partition)
        if offsets is None:
            return ()
        at = self._asked[partition]
        stop = self._asked[partition] = bisect_left(offsets, end, at)
        return offsets[at:stop]

    def is_live(self, partition: int, offset: int) -> bool:
        """Return whether the entry at *offset* is."""
        return offset in self.take(partition, offset + 1)

    @property
    def is_at_end(self) -> bool:
        """Whether all live entries were asked for."""
        return self._asked == {p: len(offsets) for p, offsets in self._offsets.items()}


class Progress(NamedTuple):
    """How far a compaction is. Sources are read several times."""

    read_bytes: int
    written_bytes: int


Work = Generator[Progress, None, Compacted]


class LiveSearch:
    """Finds what is live. Show it the whole log, in order, until `is_done`.

    Each pass looks at the scopes in a range of *slots* (partition, then a checksum of the
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
        self._high = _SLOTS
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
        for delta, type_, _, scope, key, value in checked_items(packed)[0]:
            name = (partition, scope)
            keys = scopes.get(name)
            if keys is None or type_ == SCOPE_TOMBSTONE:
                if not self._low <= _slot(name) < self._high:
                    continue
                self._forget(name)
                keys = scopes[name] = {}
                self._used_bytes += _SCOPE_BYTES + len(scope)
            offset = base_offset + delta
            if is_wide(key):
                self._put(keys, type_, key, offset)
                continue
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
        self._high = min(_SLOTS, self._low + width)

    def result(self) -> Live:
        """Return what is live, once the search is done."""
        assert self.is_done
        offsets = {p: array("Q", sorted(found)) for p, found in sorted(self._found.items())}
        return Live(offsets, dict(sorted(self._dropped_below.items())))

    def _put(self, keys: dict[bytes, int], type_: int, key: tuple[Any, ...], offset: int) -> None:
        """Note the keys that a wide entry stands for, the first of them at *offset*."""
        pack = self._pack
        start = pack((type_, (*key[:-1], 0)))[:-1]  # All but the last element: 0 takes one byte.
        known = len(keys)
        keys.update(zip([start + pack(element) for element in key[-1]], count(offset)))
        added = len(keys) - known
        # New keys are the last ones of the dict.
        self._used_bytes += _KEY_BYTES * added + sum(map(len, islice(reversed(keys), added)))

    def _forget(self, name: tuple[int, str]) -> None:
        keys = self._scopes.pop(name, None)
        if keys is not None:
            self._used_bytes -= _SCOPE_BYTES + len(name[1])
            self._used_bytes -= _KEY_BYTES * len(keys) + sum(map(len, keys))

    def _give_up_half(self) -> None:
        slots = sorted({_slot(name) for name in self._scopes})
        middle = slots[len(slots) // 2]
        if middle == slots[0]:
            return  # One scope, which can't be split.
        self._high = middle
        for name in [name for name in self._scopes if _slot(name) >= middle]:
            self._forget(name)


def _slot(name: tuple[int, str]) -> int:
    partition, scope = name
    return partition << 32 | zlib.crc32(scope.encode())


def checked_items(packed: bytes) -> tuple[Items, int]:
    """Return the entries of a batch as msgpack has them, and the delta behind the last one.

    They are looked at more closely than a load does.

    Raises:
        LogCorrupt: They are not as they are written, in spite of a right checksum.
    """
    try:
        items, end_delta, _ = unpack_items(packed)
    except ValueError as exc:
        raise LogCorrupt(f"the entries of a batch can't be read: {exc}") from exc
    for item in items:
        if type(item[3]) is not str:
            raise LogCorrupt("the entries of a batch can't be read: a scope is no text")
    return items, end_delta


def live_items(items: Items, base_offset: int, live: Sequence[int]) -> list[Item]:
    """Return what a compaction leaves of the entries of a batch.

    A wide one of which some keys are live becomes as many as there are runs of live keys.

    Args:
        items: All that the batch has.
        base_offset: Where it begins.
        live: The live ones of its offsets, ascending.

    Raises:
        LogCorrupt: The batch has no entry at one of them.
    """
    kept: list[Item] = []
    at = 0
    for item in items:
        begin, key = base_offset + item[0], item[4]
        width = len(key[-1]) if is_wide(key) else 1
        stop = bisect_left(live, begin + width, at)
        if stop > at and live[at] < begin:
            break
        if stop - at == width:
            kept.append(item)
        else:
            # What two offsets of a run differ by, their places in `live` do, too.
            for _, run in groupby(range(at, stop), lambda place: live[place] - place):
                first, *more = run
                start = live[first] - begin
                kept.append(slice_item(item, start, start + 1 + len(more)))
        at = stop
    if at != len(live):
        raise LogCorrupt(f"there is no entry at offset {live[at]}")
    return kept


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


def is_due(manifest: Manifest, min_cleanable_ratio: float) -> bool:
    """Return whether enough was sealed since the last compaction for another one.

    With a ratio of 0.5, as much as that compaction left: under a steady load of overwrites the
    log then stays below twice what is live plus one segment, and all work of compactions is in
    proportion to what was written.
    """
    clean_bytes, dirty_bytes = sealed_sizes(manifest.segments)
    return dirty_bytes > 0 and dirty_bytes >= min_cleanable_ratio * (clean_bytes + dirty_bytes)


def live_share(job: Job, compacted: Compacted) -> float | None:
    """Return how much of what was written between two compactions is live, from 0 to 1.

    That is by how much the live data grew, in proportion to what was dirty; None if nothing was.
    """
    clean_bytes, dirty_bytes = sealed_sizes(job.segments)
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


def compact(directory: Directory, job: Job, *, step_bytes: int = STEP_BYTES) -> Work:
    """Do *job*, in small steps; the value at the end says what was made.

    Whoever stops it in the middle closes the generator and removes the files of `job.prefix`.

    Raises:
        LogCorrupt: A source is damaged.
        OSError: The disk fails, or has too little room.
    """
    search = LiveSearch(job.drop_before_ms)
    read_bytes = reported = 0
    while not search.is_done:
        for batch, size_bytes in _packed_batches(directory, job):
            search.take(batch)
            read_bytes += size_bytes
            if read_bytes - reported >= step_bytes:
                reported = read_bytes
                yield Progress(read_bytes, 0)
        search.end_pass()
    live = search.result()
    outputs = _Outputs(directory, job)
    try:
        for copied_bytes in _copy(directory, job, live, outputs):
            if read_bytes + copied_bytes - reported >= step_bytes:
                reported = read_bytes + copied_bytes
                yield Progress(reported, outputs.written_bytes)
        live_entries = sum(map(len, live.offsets.values()))
        return Compacted(tuple(outputs.sealed), live.dropped_below, live_entries)
    finally:
        outputs.close()


def finish(work: Work, report: Callable[[Progress], object] = bool) -> Compacted:
    """Do all of *work*, tell *report* at each step, and close it."""
    try:
        while True:
            report(next(work))
    except StopIteration as end:
        compacted: Compacted = end.value
        return compacted
    finally:
        work.close()


def _packed_batches(directory: Directory, job: Job) -> Iterator[tuple[PackedBatch, int]]:
    """Yield the batches of all sources, checked, each with its size."""
    ends: dict[int, int] = {}
    for segment in job.segments:
        for raw, packed in batches_of(directory, segment, job.num_partitions):
            expected = ends.get(raw.partition, 0)
            # Where nothing was compacted, the next batch begins where this one ends.
            if raw.base_offset < expected:
                message = (
                    f"segment {segment.name} goes back in partition {raw.partition}, from "
                    f"{expected} to {raw.base_offset}"
                )
                raise LogCorrupt(message)
            ends[raw.partition] = raw.base_offset + 1
            batch = (raw.partition, raw.base_offset, raw.timestamp_ms, packed)
            yield batch, raw.end - raw.start
        ends.update(read_footer(directory, segment).end_offsets)


def batches_of(
    directory: Directory, segment: SegmentInfo, num_partitions: int
) -> Iterator[tuple[RawBatch, bytes]]:
    """Yield the batches of one sealed segment, checked, each with its packed entries.

    Raises:
        LogIncompatible: A newer release wrote it.
        LogCorrupt: Damage.
    """
    size_bytes = segment.data_bytes
    assert size_bytes is not None
    reader = SegmentReader(directory, segment.name, size_bytes)
    chain = FlushChain(segment, num_partitions)
    position = 0
    while position < size_bytes:
        raw, window = reader.at(position)
        chain.check(position, raw)
        yield raw, window[raw.entries_at : raw.end]
        position += raw.end - raw.start


def _copy(directory: Directory, job: Job, live: Live, outputs: "_Outputs") -> Iterator[int]:
    """Write the live entries, in the order of the log; yield after each batch the bytes so far."""
    cursor = LiveCursor(live)
    read_bytes = 0
    for segment in job.segments:
        outputs.begin_source(segment)
        for raw, packed in batches_of(directory, segment, job.num_partitions):
            items, end_delta = checked_items(packed)
            live_here = cursor.take(raw.partition, raw.base_offset + end_delta)
            if live_here:
                kept = live_items(items, raw.base_offset, live_here)
                outputs.add(raw, packed if kept == [*items] else msgpack.packb(kept))
            read_bytes += raw.end - raw.start
            yield read_bytes
        outputs.end_source(read_footer(directory, segment))
    outputs.finish()
    if not cursor.is_at_end:
        raise LogCorrupt("the segments changed while they were compacted")


class _Outputs:
    """The outputs of a compaction: one after the other, each sealed with its index.

    Attributes:
        sealed: Those that are whole, on disk.
    """

    def __init__(self, directory: Directory, job: Job) -> None:
        self.sealed: list[SegmentInfo] = []
        self._directory = directory
        self._job = job
        self._writer: SegmentWriter | None = None
        self._name = ""
        self._base = 0
        self._last: Index | None = None  # Of the source that was copied last.
        self._sealed_bytes = 0
        self._checks: dict[int, int] = {}  # By leader epoch.

    @property
    def written_bytes(self) -> int:
        """What is on disk."""
        return self._sealed_bytes + (self._writer.written_bytes if self._writer else 0)

    def begin_source(self, source: SegmentInfo) -> None:
        """Open an output for *source*, or go on with the one that is open."""
        if self._writer is not None:
            if goes_into_same_output(self._writer.data_bytes, source, self._job.segment_bytes):
                return
            self.finish()
        self._name = f"{self._job.prefix}-{len(self.sealed)}{TEMPORARY_SUFFIX}"
        self._writer = SegmentWriter(
            self._directory, self._name, leave_free_bytes=self._job.leave_free_bytes
        )
        self._base = source.base

    def add(self, raw: RawBatch, packed: bytes) -> None:
        """Write what is left of a batch, under the header that it had."""
        assert self._writer is not None
        epoch = raw.leader_epoch
        check = self._checks.get(epoch)
        if check is None:
            check = self._checks[epoch] = self._job.key.check(epoch, 0)
        fields = (raw.partition, epoch, raw.base_offset, 0, raw.timestamp_ms, check)
        self._writer.add(raw.partition, encode_batch(fields, packed))

    def end_source(self, index: Index) -> None:
        """Note what the source says of itself, which is true of the output up to here."""
        self._last = index

    def finish(self) -> None:
        """Seal the output that is open; its bytes are on disk, its name need not be."""
        writer, last = self._writer, self._last
        assert writer is not None
        assert last is not None
        writer.seal(self._base, last.end, last.end_offsets, last.cluster_id)
        self.sealed.append(
            SegmentInfo(self._name, self._base, last.end, writer.data_bytes, compacted=True)
        )
        self._sealed_bytes += writer.written_bytes
        self._writer = None

    def close(self) -> None:
        """Give the file back that is open, if there is one."""
        if self._writer is not None:
            self._writer.close()
