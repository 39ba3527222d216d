"""The work of a compaction: reads sealed segments and writes what is live of them to new files.

It changes nothing that the journal knows: its outputs have temporary names, which a start
removes. Who may do it, and when the outputs take the place of the sources, is for others to say.
"""

import errno
from array import array
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple

import msgpack

from coordinator.log.compaction import (
    Compacted,
    Job,
    Live,
    LiveSearch,
    PackedBatch,
    checked_items,
    goes_into_same_output,
)
from coordinator.log.directory import Directory, File
from coordinator.log.errors import LogCorrupt
from coordinator.log.footer import Index, encode_footer
from coordinator.log.format import HEADER_BYTES, RawBatch, encode_batch
from coordinator.log.segments import Chain, SegmentReader, read_footer
from coordinator.log.state_files import TEMPORARY_SUFFIX, SegmentInfo

# So much is written and synced at a time: a sync of a whole segment would hold up those of the
# journal for as long as the disk takes for it.
PIECE_BYTES: Final = 1024 * 1024
# How often a reader of progress hears something.
STEP_BYTES: Final = 256 * 1024


class Progress(NamedTuple):
    """How far a compaction is. Sources are read several times."""

    read_bytes: int
    written_bytes: int


Work = Generator[Progress, None, Compacted]


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
    writer = _Writer(directory, job)
    try:
        for progress in _copy(directory, job, live, writer):
            if read_bytes + progress.read_bytes - reported >= step_bytes:
                reported = read_bytes + progress.read_bytes
                yield Progress(reported, progress.written_bytes)
        return Compacted(writer.outputs, live.dropped_below, sum(map(len, live.offsets.values())))
    finally:
        writer.close()


def finish(work: Work) -> Compacted:
    """Do all of *work* at once."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            compacted: Compacted = end.value
            return compacted


def _packed_batches(directory: Directory, job: Job) -> Iterator[tuple[PackedBatch, int]]:
    """Yield the batches of all sources, checked, each with its size."""
    ends: dict[int, int] = {}
    for segment in job.segments:
        for raw, window in _batches_of(directory, segment, job.num_partitions):
            expected = ends.get(raw.partition, 0)
            # Where nothing was compacted, the next batch begins where this one ends.
            if raw.base_offset < expected:
                message = (
                    f"segment {segment.name} goes back in partition {raw.partition}, from "
                    f"{expected} to {raw.base_offset}"
                )
                raise LogCorrupt(message)
            ends[raw.partition] = raw.base_offset + 1
            packed = window[raw.start + HEADER_BYTES : raw.end]
            batch = (raw.partition, raw.base_offset, raw.timestamp_ms, packed)
            yield batch, raw.end - raw.start
        ends.update(read_footer(directory, segment).end_offsets)


def _batches_of(
    directory: Directory, segment: SegmentInfo, num_partitions: int
) -> Iterator[tuple[RawBatch, bytes]]:
    data_bytes = segment.data_bytes
    assert data_bytes is not None
    reader = SegmentReader(directory, segment.name, data_bytes)
    chain = Chain(segment, num_partitions)
    position = 0
    while position < data_bytes:
        raw, window = reader.at(position)
        chain.check(position, raw)
        yield raw, window
        position += raw.end - raw.start


def _copy(directory: Directory, job: Job, live: Live, writer: "_Writer") -> Iterator[Progress]:
    """Write the live entries, in the order of the log; yield after each batch."""
    left = {partition: iter(offsets) for partition, offsets in live.offsets.items()}
    next_live = {partition: next(offsets, -1) for partition, offsets in left.items()}
    read_bytes = 0
    for segment in job.segments:
        writer.begin_source(segment)
        for raw, window in _batches_of(directory, segment, job.num_partitions):
            kept = []
            wanted = next_live.get(raw.partition, -1)
            packed = window[raw.start + HEADER_BYTES : raw.end]
            items = checked_items(packed)
            for item in items:
                if raw.base_offset + item[0] == wanted:
                    kept.append(item)
                    wanted = next(left[raw.partition], -1)
            if kept:
                next_live[raw.partition] = wanted
                writer.add(raw, packed if len(kept) == len(items) else msgpack.packb(kept))
            read_bytes += raw.end - raw.start
            yield Progress(read_bytes, writer.written_bytes)
        writer.end_source(read_footer(directory, segment))
    writer.finish()
    if any(offset >= 0 for offset in next_live.values()):
        raise LogCorrupt("the segments changed while they were compacted")


class _Writer:
    """Writes outputs, one after the other, each synced in pieces and sealed with its index."""

    def __init__(self, directory: Directory, job: Job) -> None:
        self.written_bytes = 0
        self._directory = directory
        self._job = job
        self._outputs: list[SegmentInfo] = []
        self._file: File | None = None
        self._name = ""
        self._base = 0
        self._end = 0
        self._data_bytes = 0
        self._positions: dict[int, array[int]] = {}
        self._end_offsets: dict[int, int] = {}
        self._cluster_id = ""
        self._pieces: list[bytes] = []
        self._pending_bytes = 0

    def begin_source(self, source: SegmentInfo) -> None:
        """Open an output for *source*, or go on with the one that is open."""
        if self._file is not None:
            if goes_into_same_output(self._data_bytes, source, self._job.segment_bytes):
                return
            self._seal()
        self._name = f"{self._job.prefix}-{len(self._outputs)}{TEMPORARY_SUFFIX}"
        self._file = self._directory.create(self._name)
        self._base = self._end = source.base
        self._data_bytes = 0
        self._positions = {}

    def add(self, raw: RawBatch, packed: bytes) -> None:
        """Write what is left of a batch, under the header that it had."""
        fields = (raw.partition, raw.leader_epoch, raw.base_offset, 0, raw.timestamp_ms)
        positions = self._positions.setdefault(raw.partition, array("I"))
        positions.append(self._data_bytes)
        self._pieces += encode_batch(fields, packed)
        self._data_bytes += HEADER_BYTES + len(packed)
        self._pending_bytes += HEADER_BYTES + len(packed)
        if self._pending_bytes >= PIECE_BYTES:
            self._write_out()

    def end_source(self, index: Index) -> None:
        """Note up to where the output reaches now."""
        self._end = index.end
        self._end_offsets = index.end_offsets
        self._cluster_id = index.cluster_id

    @property
    def outputs(self) -> tuple[SegmentInfo, ...]:
        """What was written, once it is finished."""
        return tuple(self._outputs)

    def finish(self) -> None:
        """Seal the last output; the bytes of all are on disk, and the swap sees to their names."""
        self._seal()

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _seal(self) -> None:
        index = Index(self._base, self._end, self._end_offsets, self._positions, self._cluster_id)
        self._pieces.append(encode_footer(index))
        self._write_out()
        self.close()
        info = SegmentInfo(self._name, self._base, self._end, self._data_bytes, compacted=True)
        self._outputs.append(info)

    def _write_out(self) -> None:
        assert self._file is not None
        data = b"".join(self._pieces)
        if self._directory.free_bytes() - len(data) < self._job.leave_free_bytes:
            raise OSError(errno.ENOSPC, "too little room on the disk for a compaction")
        self._file.append(data)
        self._file.sync()
        self.written_bytes += len(data)
        self._pieces = []
        self._pending_bytes = 0
