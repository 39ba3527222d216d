"""Makes a log snapshot: the live contents of a journal's log, in chunks.

A child process with its own session reads the newest snapshot and the log after it, folds both as
a compaction does, and writes chunks under a new name. The chunks are unused until the leader
installs them. The work is one generator, which yields requests and is sent their replies.
"""

import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgpack

from coordinator.cluster.engine import (
    READ_CHUNKS_MAX,
    READ_ENTRIES_MAX,
    Code,
    ListLog,
    ReadChunks,
    ReadEntries,
    ReadSnapshot,
    Reply,
    Request,
    Snapshot,
    WriteChunk,
)
from coordinator.cluster.entries import ENTRY_BYTES_MAX, Joiner, decode, raw_batches
from coordinator.cluster.follower import SnapshotReader
from coordinator.log.compaction import (
    LiveCursor,
    PackedBatch,
    checked_items,
    find_live,
    live_items,
)
from coordinator.log.errors import LogCorrupt, LogFailed
from coordinator.log.format import RawBatch, encode_batch

CHUNK_BYTES: Final = ENTRY_BYTES_MAX
_ZLIB_LEVEL: Final = 6
_ALL_MS: Final = 2**63  # Later than any timestamp.

Asking = Generator[Request, Reply, Snapshot]


def make_snapshot(journal: int, name: str, rest: Callable[[int], None] = lambda _: None) -> Asking:
    """Write the chunks of a snapshot *name* of the whole log; return it, for `install`.

    The snapshot has no tombstones: it has nothing older for them to hide, and readers of the
    stream of changes read the kept log.

    Args:
        journal: Number of the journal.
        name: Random name, unique to this snapshot.
        rest: Called after each batch with its size in bytes.

    Raises:
        LogCorrupt: The log or its snapshot is damaged.
        LogFailed: The connection broke, or the log was trimmed while it was read: begin again.
    """
    source = Source(rest)
    yield from read_all(journal, source)
    fold = Fold(source)
    data = (b"".join(pieces) for _, _, pieces in fold.batches(lambda _: 0))
    written = yield from write_chunks(journal, name, data)
    below = fold.compacted_below
    return replace(written, index=source.index, ends=source.ends, compacted_below=below)


def write_chunks(journal: int, name: str, batches: Iterable[bytes]) -> Asking:
    """Write the chunks of a snapshot *name* of these packed batches; return its description.

    The caller fills in index, ends and compacted_below.

    Raises:
        LogFailed: The connection broke: begin again.
    """
    chunks = size_bytes = crc32 = 0
    for data in _chunks(batches):
        _checked((yield WriteChunk(journal, name, chunks, data)), Code.EXISTS)
        chunks += 1
        size_bytes += len(data)
        crc32 = zlib.crc32(data, crc32)
    return Snapshot(name=name, chunks=chunks, size_bytes=size_bytes, crc32=crc32)


def _checked(reply: Reply, *others: Code) -> Reply:
    if reply.code is not Code.OK and reply.code not in others:
        raise LogFailed(f"a request for a snapshot was answered {reply.code.name}: {reply.value}")
    return reply


class Source:
    """Input of a fold: the chunks and units that were read. Each pass unpacks them anew.

    Attributes:
        index: Index of the last entry in it.
        ends: Partition -> end offset.
        compacted_below: Copied from the snapshot.
    """

    def __init__(self, rest: Callable[[int], None] = lambda _: None) -> None:
        """Start empty; *rest* is called after each batch of a pass with its size in bytes."""
        self.index = 0
        self.ends: dict[int, int] = {}
        self.compacted_below: dict[int, int] = {}
        self._rest = rest
        self._snapshot = Snapshot()
        self._chunks: list[bytes] = []
        self._units: list[bytes] = []

    def begin(self, snapshot: Snapshot) -> None:
        """Start with *snapshot*; `add_chunks` follows."""
        self._snapshot, self._chunks, self._units = snapshot, [], []
        self.index, self.ends = snapshot.index, {**snapshot.ends}
        self.compacted_below = snapshot.compacted_below

    def add_chunks(self, chunks: Iterable[bytes]) -> None:
        self._chunks += chunks

    def add_unit(self, body: bytes, index: int) -> None:
        """Add the next unit of the log; *index* is that of its last entry."""
        # Compress again, to save memory: an unpacked log is much larger than in ZooKeeper.
        self._units.append(zlib.compress(body, 1))
        self.index = index
        for raw in raw_batches(body):
            _, end_delta = checked_items(body[raw.entries_at : raw.end])
            self.ends[raw.partition] = raw.base_offset + end_delta

    def batches(self) -> Iterator[tuple[RawBatch, bytes]]:
        """Yield all batches in the order of the log, each with its packed entries."""
        for data in self._unpacked():
            for raw in raw_batches(data):
                yield raw, data[raw.entries_at : raw.end]
                self._rest(raw.end - raw.start)

    def _unpacked(self) -> Iterator[bytes]:
        reader = SnapshotReader(self._snapshot)
        yield from map(reader.unpack, self._chunks)
        reader.finish()
        yield from map(zlib.decompress, self._units)

    def packed_batches(self) -> Iterator[PackedBatch]:
        """Yield the batches of `batches` in the form that `find_live` takes."""
        for raw, packed in self.batches():
            yield raw.partition, raw.base_offset, raw.timestamp_ms, packed


def read_all(journal: int, source: Source) -> Generator[Request, Reply, None]:
    """Read the newest snapshot of a journal, and the log after it, into *source*.

    Raises:
        LogCorrupt: The log or its snapshot is damaged.
        LogFailed: The connection broke, or the log was trimmed while it was read: begin again.
    """
    snapshot: Snapshot = _checked((yield ReadSnapshot(journal))).value
    source.begin(snapshot)
    chunk = 0
    while chunk < snapshot.chunks:
        count = min(READ_CHUNKS_MAX, snapshot.chunks - chunk)
        chunks = _checked((yield ReadChunks(journal, snapshot.name, chunk, count))).value
        if not chunks:
            raise LogFailed("there is a newer snapshot")
        source.add_chunks(chunks)
        chunk += len(chunks)
    joiner, index = Joiner(), snapshot.index
    listing = _checked((yield ListLog(journal, index + 1)), Code.MISSING)
    listed = max(listing.value or (0,))
    while entries := _checked((yield ReadEntries(journal, index + 1, READ_ENTRIES_MAX))).value:
        for data in entries:
            index += 1
            body = joiner.take(index, decode(data, index))
            if body is not None:
                source.add_unit(body, index)
    if index == snapshot.index or index < listed:
        # No entry after the snapshot, or a gap: either may mean that the log was trimmed and
        # a newer snapshot installed since.
        newest = _checked((yield ReadSnapshot(journal))).value
        if newest != snapshot:
            raise LogFailed("there is a newer snapshot")
    if index < listed:
        raise LogCorrupt(f"entry {index + 1} is missing, and entry {listed} is there")


class Fold:
    """Live entries of a source.

    Attributes:
        compacted_below: By partition, the offset below which tombstones may be missing.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        self._live = live = find_live(source.packed_batches, _ALL_MS)
        self.compacted_below = {**source.compacted_below}
        for partition, offset in live.dropped_below.items():
            known = self.compacted_below.get(partition, 0)
            self.compacted_below[partition] = max(offset, known)

    def batches(self, check: Callable[[int], int]) -> Iterator[tuple[int, int, Sequence[bytes]]]:
        """Yield the batches reduced to their live entries, in log order, headers unchanged.

        Each item is the partition, the end offset of the batch, and its encoded pieces. *check*
        computes the header's check from the batch's epoch.
        """
        cursor = LiveCursor(self._live)
        for raw, packed in self._source.batches():
            items, end_delta = checked_items(packed)
            end_offset = raw.base_offset + end_delta
            live = cursor.take(raw.partition, end_offset)
            if live:
                kept = live_items(items, raw.base_offset, live)
                left = packed if kept == [*items] else msgpack.packb(kept)
                epoch = raw.leader_epoch
                fields = (raw.partition, epoch, raw.base_offset, 0, raw.timestamp_ms, check(epoch))
                yield raw.partition, end_offset, encode_batch(fields, left)


def _chunks(batches: Iterable[bytes]) -> Iterator[bytes]:
    """Yield *batches*, compressed as one stream, in chunks of `CHUNK_BYTES`."""
    ready = bytearray()
    for piece in _compressed(batches):
        ready += piece
        while len(ready) >= CHUNK_BYTES:
            yield bytes(ready[:CHUNK_BYTES])
            del ready[:CHUNK_BYTES]
    if ready:
        yield bytes(ready)


def _compressed(batches: Iterable[bytes]) -> Iterator[bytes]:
    stream = zlib.compressobj(_ZLIB_LEVEL)
    for batch in batches:
        yield stream.compress(batch)
    yield stream.flush()
