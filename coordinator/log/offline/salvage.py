"""Salvages a folder's journal: yields the readable batches, and descriptions of the losses."""

from collections.abc import Iterator
from typing import NamedTuple

from coordinator.log.directory import Directory
from coordinator.log.errors import LogCorrupt, LogIncompatible
from coordinator.log.format import (
    FORMAT,
    NODE_PARTITION,
    Batch,
    decode_batch,
    find_later_flush,
    is_own_header,
)
from coordinator.log.offline.survey import Found, Gap, Source, Stretch, Survey, scan
from coordinator.log.state_files import SegmentInfo


class Kept(NamedTuple):
    """A readable batch that belongs to the journal."""

    source: Source
    found: Found
    batch: Batch


class Damage(NamedTuple):
    """Bytes of a file, or offsets of a partition, that are lost.

    `is_torn`: the bytes are only the end of a write that a crash interrupted, never acknowledged.
    """

    source: Source
    start: int
    end: int
    what: str
    is_torn: bool = False


class Salvage:
    """One pass over a folder's journal, source by source.

    Offsets never go back: a batch that occurs twice is yielded once.

    Attributes:
        ends: Partition -> offset behind the last entry that was read.
    """

    def __init__(self, directory: Directory, survey: Survey, num_partitions: int) -> None:
        self.ends: dict[int, int] = {}
        self._directory = directory
        self._survey = survey
        self._num_partitions = num_partitions

    def read_all(self) -> Iterator[Kept | Damage]:
        """Yield the results of `read` for all sources."""
        for source in self._survey.sources:
            yield from self.read(source)

    def read(self, source: Source) -> Iterator[Kept | Damage]:
        """Yield the batches of the next source, and in between the damages.

        Raises:
            LogIncompatible: A newer release wrote a batch.
            OSError: The disk fails.
        """
        if source.file is None:
            yield Damage(source, 0, 0, "the segment is missing")
        else:
            yield from self._read_file(source, source.file)
        if source.footer is not None:
            if not source.segment.compacted:
                yield from _lost_behind(source, self.ends)
            if any(source.footer.end_offsets.get(p, -1) < end for p, end in self.ends.items()):
                at = source.data_bytes
                yield Damage(source, at, at, "its index goes back behind what is in front of it")
            for partition, end in source.footer.end_offsets.items():
                self.ends[partition] = max(end, self.ends.get(partition, 0))

    def _read_file(self, source: Source, file: str) -> Iterator[Kept | Damage]:
        """Yield batches and damages of a file, then a damage if its end is missing."""
        segment, size_bytes = source.segment, source.data_bytes
        stretch = Stretch(
            file,
            size_bytes,
            segment.base,
            segment.end,
            self._num_partitions,
            segment.format,
            self._survey.key,
        )
        displacement = _Displacement(segment)
        for item in scan(self._directory, stretch):
            if type(item) is Gap:
                if self._is_torn_tail(source, item):
                    what = "the end of a write that was never finished"
                    yield Damage(source, item.start, size_bytes, what, is_torn=True)
                    return
                displacement.gap_start = item.start
                yield Damage(source, item.start, item.end, "these bytes can't be read")
            else:
                assert type(item) is Found
                yield from self._checked(source, item, displacement)
        wanted = segment.data_bytes
        if wanted is None:
            wanted = self._survey.known_end(segment) - segment.base
        if wanted > size_bytes:
            yield Damage(source, size_bytes, wanted, "these bytes are not there any more")
        elif segment.end is None and self._survey.lacks_end:
            yield Damage(source, size_bytes, size_bytes, "more may have been behind this")

    def _is_torn_tail(self, source: Source, gap: Gap) -> bool:
        """Return whether the gap is a torn tail: as in the recovery, no later flush follows it."""
        segment, key = source.segment, self._survey.key
        is_known = not (self._survey.was_closed or self._survey.lacks_end)
        if segment.end is not None or source.file is None or not is_known:
            return False
        position = segment.base + gap.start
        # Bytes before the durable position were complete once. Without the folder's key, a later
        # flush can't be told from a forged one.
        if position < self._survey.durable or (key is None and segment.format > 1):
            return False
        behind = self._directory.read(source.file, gap.start)
        return find_later_flush(behind, 0, position, segment.format, key) is None

    def _checked(
        self, source: Source, found: Found, displacement: "_Displacement"
    ) -> Iterator[Kept | Damage]:
        raw = found.raw
        if raw.format > FORMAT:
            message = (
                f"segment {source.file}: the batch at byte {found.start} is of format "
                f"{raw.format}, and this release reads up to {FORMAT}"
            )
            raise LogIncompatible(message)
        try:
            batch = decode_batch(found.data, raw)
        except LogCorrupt as exc:
            yield Damage(source, found.start, found.end, str(exc))
            return
        expected = self.ends.get(raw.partition, 0)
        is_ours = raw.partition < self._num_partitions or raw.partition == NODE_PARTITION
        is_ours &= raw.format == source.segment.format and batch.base_offset >= expected
        is_displaced = is_ours and displacement.begins_at(found)
        if is_displaced:
            # After removed bytes, a forged batch that a client sent may lie where one should be.
            is_ours = is_own_header(found.data, 0, self._survey.key)
        if not is_ours:
            what = f"a batch from elsewhere: partition {raw.partition}, offset {raw.base_offset}"
            yield Damage(source, found.start, found.end, what)
            return
        if is_displaced:
            what = f"what was written at position {raw.flush_start} of the journal is here"
            yield Damage(source, found.start, found.start, what)
        if batch.base_offset > expected and not source.segment.compacted:
            what = _offsets_lost(raw.partition, expected, batch.base_offset)
            yield Damage(source, found.start, found.start, what)
        self.ends[raw.partition] = batch.end_offset
        yield Kept(source, found, batch)


class _Displacement:
    """Distance of a segment's batches from the positions that their flushes were written to.

    Attributes:
        gap_start: First byte of the unreadable bytes before the next batch; None without any.
    """

    def __init__(self, segment: SegmentInfo) -> None:
        self.gap_start: int | None = None
        self._segment = segment
        self._flush_start = -1  # flush_start of the last batch.
        self._shift = 0

    def begins_at(self, found: Found) -> bool:
        """Return whether the distance changes at this batch.

        In a compacted segment: whether the batch is one that was never compacted.
        """
        flush_start = found.raw.flush_start
        if self._segment.compacted:
            return flush_start != 0
        position = self._segment.base + found.start + self._shift
        is_right = flush_start in {position, self._flush_start}
        if self.gap_start is not None:
            lost_bytes = found.start - self.gap_start
            is_right |= position - lost_bytes <= flush_start <= position
            self.gap_start = None
        self._flush_start = flush_start
        if not is_right:
            self._shift += flush_start - position
        return not is_right


def _lost_behind(source: Source, ends: dict[int, int]) -> Iterator[Damage]:
    assert source.footer is not None
    for partition, end in source.footer.end_offsets.items():
        known = ends.get(partition, 0)
        if known < end:
            what = _offsets_lost(partition, known, end)
            yield Damage(source, source.data_bytes, source.data_bytes, what)


def partition_name(partition: int) -> str:
    """Return the partition's name in messages for an operator."""
    return "the node's own partition" if partition == NODE_PARTITION else f"partition {partition}"


def _offsets_lost(partition: int, first: int, end: int) -> str:
    name = partition_name(partition)
    if end - first == 1:
        return f"offset {first} of {name} is lost"
    return f"offsets {first} to {end - 1} of {name} are lost"
