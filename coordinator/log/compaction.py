"""Compacts the log: finds the live entries of sealed segments and copies them to new files.

Theory of operation
===================

A key is (partition, scope, type, key). The last entry of each key is *live*, unless

* a scope tombstone (an entry of type 1001) of the same scope follows it, or
* the entry is an old tombstone (its value is nil; scope tombstones are tombstones, too).

A wide entry stands for several keys. Each of its keys is live if this entry is the last one of
the key. A wide entry stays as it is, is dropped, or is cut to one wide entry for each run of live
keys. The cut ones may take more bytes than the original, as each repeats the common parts: a
batch can grow.

Replaying the live entries gives the same state as replaying the whole log. Tombstones are kept
for a while for readers that follow the changes; the manifest records for each partition up to
which offset some were dropped.

A compaction takes a prefix of the journal's sealed segments, always from the first one on: then
no older entry is left for a tombstone to hide, and the tombstone may be dropped. The live offsets
are found first (`LiveSearch`), in as many passes as the memory bound requires; then their entries
are copied in the order of the log. An output covers a whole number of sources.

The journal isn't changed here: the outputs have temporary names, which the next start removes.
`compact_child` runs the job in a process of its own, `swap` replaces the sources by the outputs,
and `coordinator.runtime.compactor` decides when.
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

# Memory for the keys of one pass, in bytes. A million keys of 100 bytes take four passes.
PASS_BYTES: Final = 48 * 1024 * 1024
# Memory of one key in a dict: the bytes object, the int of the offset, the slot of both.
_KEY_BYTES: Final = 150
_SCOPE_BYTES: Final = 450
_SLOTS: Final = 1 << 48

# Bytes of the log between two reports of progress.
STEP_BYTES: Final = 256 * 1024

# Partition, base offset, timestamp in ms, and the packed entries of one batch.
PackedBatch = tuple[int, int, int, bytes]


class Job(NamedTuple):
    """Input of one compaction.

    Attributes:
        segments: The sources: sealed, the first ones of the journal, without a gap.
        num_partitions: Offsets partitions of the log.
        segment_bytes: Approximate limit of an output's size.
        drop_before_ms: Tombstones with an older timestamp are dropped.
        prefix: Beginning of the outputs' names, used by no other file.
        leave_free_bytes: The compaction fails when less than this is free on the disk.
        key: Secret of the data folder.
    """

    segments: tuple[SegmentInfo, ...]
    num_partitions: int
    segment_bytes: int
    drop_before_ms: int
    prefix: str
    leave_free_bytes: int
    key: FlushKey


class Compacted(NamedTuple):
    """Result of a compaction: segments on disk that still have temporary names.

    Attributes:
        outputs: New segments that cover the same stretch of the journal as the sources.
        dropped_below: Per partition, the offset below which tombstones were dropped.
        live_entries: Number of live offsets: a wide entry counts once for each key.
    """

    outputs: tuple[SegmentInfo, ...]
    dropped_below: dict[int, int]
    live_entries: int


class Live(NamedTuple):
    """Live offsets of a log, ascending per partition; `dropped_below` as in `Compacted`."""

    offsets: "dict[int, array[int]]"
    dropped_below: dict[int, int]


class LiveCursor:
    """Membership test for live offsets. Ask in the order of the log, once for each offset."""

    def __init__(self, live: Live) -> None:
        self._offsets = live.offsets
        # Partition -> number of its live offsets that were returned already.
        self._asked = dict.fromkeys(live.offsets, 0)

    def take(self, partition: int, end: int) -> "Sequence[int]":
        """Return the live offsets before *end* that were not returned yet."""
        offsets = self._offsets.get(partition)
        if offsets is None:
            return ()
        at = self._asked[partition]
        stop = self._asked[partition] = bisect_left(offsets, end, at)
        return offsets[at:stop]

    def is_live(self, partition: int, offset: int) -> bool:
        return offset in self.take(partition, offset + 1)

    @property
    def is_at_end(self) -> bool:
        """Whether all live offsets were returned."""
        return self._asked == {p: len(offsets) for p, offsets in self._offsets.items()}


class Progress(NamedTuple):
    """Progress of a compaction. `read_bytes` counts each pass over the sources."""

    read_bytes: int
    written_bytes: int


Work = Generator[Progress, None, Compacted]


class LiveSearch:
    """Finds the live offsets. Feed the whole log to `take`, in order, until `is_done`.

    Each pass covers the scopes in a range of *slots* (partition, then a checksum of the scope's
    name). A pass that would take too much memory gives up the upper half of its range and leaves
    it to the next pass.
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
        # (partition, scope) -> packed type and key -> offset, or ~offset of an entry to drop.
        self._scopes: dict[tuple[int, str], dict[bytes, int]] = {}
        self._used_bytes = 0
        self._pack = msgpack.Packer(autoreset=True).pack

    def take(self, batch: PackedBatch) -> None:
        """Process the next batch.

        Raises:
            LogCorrupt: The entries of the batch are malformed.
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
        """Collect the live offsets of this pass, and choose the slots of the next one."""
        self.passes += 1
        for (partition, _), keys in self._scopes.items():
            found = self._found.setdefault(partition, array("Q"))
            found.extend([offset for offset in keys.values() if offset >= 0])
            dropped = max([~offset + 1 for offset in keys.values() if offset < 0], default=0)
            if dropped > self._dropped_below.get(partition, 0):
                self._dropped_below[partition] = dropped
        self._scopes = {}
        self._used_bytes = 0
        # A range as wide as this one is likely to fit into memory in the next pass.
        width = self._high - self._low
        left = [p for p in self._partitions if (p + 1) << 32 > self._high]
        self.is_done = not left
        self._low = max(self._high, min(left, default=0) << 32)
        self._high = min(_SLOTS, self._low + width)

    def result(self) -> Live:
        """Return the live offsets; only when `is_done`."""
        assert self.is_done
        offsets = {p: array("Q", sorted(found)) for p, found in sorted(self._found.items())}
        return Live(offsets, dict(sorted(self._dropped_below.items())))

    def _put(self, keys: dict[bytes, int], type_: int, key: tuple[Any, ...], offset: int) -> None:
        """Record the keys that a wide entry stands for, the first of them at *offset*."""
        pack = self._pack
        start = pack((type_, (*key[:-1], 0)))[:-1]  # Without the placeholder 0, one byte.
        known = len(keys)
        keys.update(zip([start + pack(element) for element in key[-1]], count(offset)))
        added = len(keys) - known
        # A dict keeps the order of insertion, so the new keys are its last ones.
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
            return  # A single slot can't be split.
        self._high = middle
        for name in [name for name in self._scopes if _slot(name) >= middle]:
            self._forget(name)


def _slot(name: tuple[int, str]) -> int:
    partition, scope = name
    return partition << 32 | zlib.crc32(scope.encode())


def checked_items(packed: bytes) -> tuple[Items, int]:
    """Return the entries of a batch as msgpack has them, and the delta behind the last one.

    Unlike a load, also check that each scope is text.

    Raises:
        LogCorrupt: The entries are malformed in spite of a valid checksum.
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
    """Return the entries of a batch that a compaction keeps.

    A wide entry with some live keys becomes one wide entry for each run of live keys.

    Args:
        items: All entries of the batch.
        base_offset: Base offset of the batch.
        live: The live offsets of the batch, ascending.

    Raises:
        LogCorrupt: The batch has no entry at a live offset.
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
            # Within a run of consecutive offsets, offset minus index in `live` is constant.
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
    """Return the live offsets of a log; each call of *read* yields it from its beginning."""
    search = LiveSearch(drop_before_ms, pass_bytes=pass_bytes)
    while not search.is_done:
        for batch in read():
            search.take(batch)
        search.end_pass()
    return search.result()


def is_due(manifest: Manifest, min_cleanable_ratio: float) -> bool:
    """Return whether enough was sealed since the last compaction for another one.

    With a ratio of 0.5, as many dirty bytes are needed as the last compaction left clean ones.
    Under a steady load of overwrites the log then stays below twice the live data plus one
    segment, and the work of all compactions is proportional to the bytes written.
    """
    clean_bytes, dirty_bytes = sealed_sizes(manifest.segments)
    return dirty_bytes > 0 and dirty_bytes >= min_cleanable_ratio * (clean_bytes + dirty_bytes)


def live_share(job: Job, compacted: Compacted) -> float | None:
    """Return the live share, 0 to 1, of the bytes written between two compactions.

    The share is the growth of the live data divided by the dirty bytes; None without dirty bytes.
    """
    clean_bytes, dirty_bytes = sealed_sizes(job.segments)
    if dirty_bytes == 0:
        return None
    return min(1.0, max(0.0, (data_bytes(compacted.outputs) - clean_bytes) / dirty_bytes))


def goes_into_same_output(output_bytes: int, source: SegmentInfo, segment_bytes: int) -> bool:
    """Return whether *source* is added to an output that already has *output_bytes*.

    The live part of the source isn't known before the copy. To avoid many small outputs, an
    output may grow past *segment_bytes*, but not past twice that.
    """
    assert source.data_bytes is not None
    most_bytes = output_bytes + source.data_bytes
    if most_bytes <= segment_bytes:
        return True
    return output_bytes < segment_bytes // 2 and most_bytes <= 2 * segment_bytes


def compact(directory: Directory, job: Job, *, step_bytes: int = STEP_BYTES) -> Work:
    """Do *job* in small steps; the generator's return value is the result.

    To abort, close the generator and remove the files that begin with `job.prefix`.

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
    """Do all of *work*, call *report* at each step, and close the generator."""
    try:
        while True:
            report(next(work))
    except StopIteration as end:
        compacted: Compacted = end.value
        return compacted
    finally:
        work.close()


def _packed_batches(directory: Directory, job: Job) -> Iterator[tuple[PackedBatch, int]]:
    """Yield the batches of all sources, checked, each with its size in bytes."""
    ends: dict[int, int] = {}
    for segment in job.segments:
        for raw, packed in batches_of(directory, segment, job.num_partitions):
            expected = ends.get(raw.partition, 0)
            # Only a lower bound: the end of the previous batch isn't known without unpacking it.
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
    """Write the live entries in the order of the log; after each batch, yield the bytes read."""
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
    """Outputs of a compaction, written one after the other, each sealed with its index.

    Attributes:
        sealed: The outputs that are complete and on disk.
    """

    def __init__(self, directory: Directory, job: Job) -> None:
        self.sealed: list[SegmentInfo] = []
        self._directory = directory
        self._job = job
        self._writer: SegmentWriter | None = None
        self._name = ""
        self._base = 0
        self._last: Index | None = None  # Index of the source that was copied last.
        self._sealed_bytes = 0
        self._checks: dict[int, int] = {}  # Leader epoch -> check of the header.

    @property
    def written_bytes(self) -> int:
        """Bytes on disk, of sealed outputs and the open one."""
        return self._sealed_bytes + (self._writer.written_bytes if self._writer else 0)

    def begin_source(self, source: SegmentInfo) -> None:
        """Open an output for *source*, or continue the open one if *source* fits."""
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
        """Write the rest of a batch; the header stays, but flush_start is 0, with its check."""
        assert self._writer is not None
        epoch = raw.leader_epoch
        check = self._checks.get(epoch)
        if check is None:
            check = self._checks[epoch] = self._job.key.check(epoch, 0)
        fields = (raw.partition, epoch, raw.base_offset, 0, raw.timestamp_ms, check)
        self._writer.add(raw.partition, encode_batch(fields, packed))

    def end_source(self, index: Index) -> None:
        """Keep the source's index: its end and end offsets also hold for the output so far."""
        self._last = index

    def finish(self) -> None:
        """Seal the open output; its bytes are synced, its name may not be."""
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
        """Close the open file, if there is one."""
        if self._writer is not None:
            self._writer.close()
