"""Makes a snapshot: what the log of a journal comes to, in chunks.

A child process does it, with a session of its own: it reads the newest snapshot and the log behind
it, folds both as a compaction does, and writes chunks under a new name. They mean nothing until the
leader installs them. All of it is one generator, which yields requests and is sent their answers.
"""

import zlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from typing import Final

import msgpack

from coordinator.cluster.engine import (
    READ_CHUNKS_MAX,
    READ_ENTRIES_MAX,
    Code,
    ReadChunks,
    ReadEntries,
    ReadSnapshot,
    Reply,
    Request,
    Snapshot,
    WriteChunk,
)
from coordinator.cluster.entries import ENTRY_BYTES_MAX, Joiner, decode
from coordinator.cluster.follower import SnapshotReader
from coordinator.log.compaction import (
    Live,
    LiveCursor,
    PackedBatch,
    checked_items,
    find_live,
    live_items,
)
from coordinator.log.errors import LogCorrupt, LogFailed
from coordinator.log.format import RawBatch, batch_at, encode_batch

CHUNK_BYTES: Final = ENTRY_BYTES_MAX
_ZLIB_LEVEL: Final = 6

Asking = Generator[Request, Reply, Snapshot]


def make_snapshot(journal: int, name: str, drop_before_ms: int) -> Asking:
    """Write the chunks of a snapshot *name* of all there is; return it, for `install`.

    Args:
        journal: Of which.
        name: Random; nobody else uses it.
        drop_before_ms: Tombstones of an older timestamp are dropped.

    Raises:
        LogCorrupt: Damage.
        LogFailed: The connection broke, or the log was trimmed meanwhile: begin anew.
    """
    source = _Source()
    before = yield from _read_all(journal, source)
    live = find_live(source.packed_batches, drop_before_ms)
    written = yield from write_chunks(journal, name, _folded(source, live))
    below = {**before.compacted_below}
    for partition, offset in live.dropped_below.items():
        below[partition] = max(offset, below.get(partition, 0))
    return replace(written, index=source.index, ends=source.ends, compacted_below=below)


def write_chunks(journal: int, name: str, batches: Iterable[bytes]) -> Asking:
    """Write the chunks of a snapshot *name* of these packed batches; return it, as far as it goes.

    Raises:
        LogFailed: The connection broke: begin anew.
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


class _Source:
    """What is folded: chunks and units, as they were read; they are unpacked at each pass.

    Attributes:
        index: The last entry in it.
        ends: Partition -> end offset.
    """

    def __init__(self) -> None:
        self.index = 0
        self.ends: dict[int, int] = {}
        self._snapshot = Snapshot()
        self._chunks: list[bytes] = []
        self._units: list[bytes] = []

    def begin(self, snapshot: Snapshot) -> None:
        self._snapshot, self._chunks, self._units = snapshot, [], []
        self.index, self.ends = snapshot.index, {**snapshot.ends}

    def add_chunks(self, chunks: Iterable[bytes]) -> None:
        self._chunks += chunks

    def add_unit(self, body: bytes, index: int) -> None:
        # Compressed again: the log of a journal may be much larger than what it takes there.
        self._units.append(zlib.compress(body, 1))
        self.index = index
        for raw in _raw_batches(body):
            _, end_delta = checked_items(body[raw.entries_at : raw.end])
            self.ends[raw.partition] = raw.base_offset + end_delta

    def raw_batches(self) -> Iterator[tuple[RawBatch, bytes]]:
        """Yield all batches in the order of the log, each with its packed entries."""
        reader = SnapshotReader(self._snapshot)
        for chunk in self._chunks:
            data = reader.unpack(chunk)
            for raw in _raw_batches(data):
                yield raw, data[raw.entries_at : raw.end]
        reader.finish()
        for unit in self._units:
            data = zlib.decompress(unit)
            for raw in _raw_batches(data):
                yield raw, data[raw.entries_at : raw.end]

    def packed_batches(self) -> Iterator[PackedBatch]:
        """Yield the same for who looks for what is live."""
        for raw, packed in self.raw_batches():
            yield raw.partition, raw.base_offset, raw.timestamp_ms, packed


def _raw_batches(data: bytes) -> Iterator[RawBatch]:
    at = 0
    while at < len(data):
        raw = batch_at(data, at)
        if raw is None:
            raise LogCorrupt(f"there is no batch at byte {at} of {len(data)}")
        yield raw
        at = raw.end


def _read_all(journal: int, source: _Source) -> Generator[Request, Reply, Snapshot]:
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
    while entries := _checked((yield ReadEntries(journal, index + 1, READ_ENTRIES_MAX))).value:
        for data in entries:
            index += 1
            body = joiner.take(index, decode(data, index))
            if body is not None:
                source.add_unit(body, index)
    if index == snapshot.index:
        # Nothing behind it: or it was trimmed, and there is another one.
        newest = _checked((yield ReadSnapshot(journal))).value
        if newest != snapshot:
            raise LogFailed("there is a newer snapshot")
    return snapshot


def _folded(source: _Source, live: Live) -> Iterator[bytes]:
    """Yield what is left of the batches, in the order of the log, under the headers they had."""
    cursor = LiveCursor(live)
    for raw, packed in source.raw_batches():
        items, end_delta = checked_items(packed)
        live_here = cursor.take(raw.partition, raw.base_offset + end_delta)
        if live_here:
            kept = live_items(items, raw.base_offset, live_here)
            left = packed if kept == [*items] else msgpack.packb(kept)
            fields = (raw.partition, raw.leader_epoch, raw.base_offset, 0, raw.timestamp_ms, 0)
            yield b"".join(encode_batch(fields, left))


def _chunks(batches: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the stream of *batches*, compressed, in chunks."""
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
