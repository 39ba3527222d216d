"""Salvages a folder's journal: what of it can be read, whatever happened, and what is lost."""

from collections.abc import Iterator
from typing import NamedTuple

from coordinator.log.directory import Directory
from coordinator.log.errors import LogCorrupt, LogIncompatible
from coordinator.log.format import FORMAT, NODE_PARTITION, Batch, decode_batch
from coordinator.log.offline.survey import Found, Gap, Source, Stretch, Survey, scan


class Kept(NamedTuple):
    """A batch that belongs to the journal."""

    source: Source
    found: Found
    batch: Batch


class Damage(NamedTuple):
    """Bytes of a file, or offsets of a partition, that are not there any more.

    `is_torn`: no more than the end of a write that a crash interrupted; nobody was told of it.
    """

    source: Source
    start: int
    end: int
    what: str
    is_torn: bool = False


class Salvage:
    """One pass over a folder's journal, source by source.

    Offsets never go back: a batch that is there twice is yielded once.

    Attributes:
        ends: Per partition, the offset behind what was read so far.
    """

    def __init__(
        self, directory: Directory, survey: Survey, num_partitions: int = NODE_PARTITION
    ) -> None:
        self.ends: dict[int, int] = {}
        self._directory = directory
        self._survey = survey
        self._num_partitions = num_partitions

    def read_all(self) -> Iterator[Kept | Damage]:
        """Yield what `read` does of all sources."""
        for source in self._survey.sources:
            yield from self.read(source)

    def read(self, source: Source) -> Iterator[Kept | Damage]:
        """Yield the batches of the next source, and between them what is wrong.

        Raises:
            LogIncompatible: A newer release wrote a batch.
            OSError: The disk fails.
        """
        if source.file is None:
            yield Damage(source, 0, 0, "the segment is missing")
        else:
            yield from _SourceReader(
                self._directory, self._survey, source, self._num_partitions, self.ends
            ).items()
        if source.footer is not None:
            if not source.segment.compacted:
                yield from _lost_behind(source, self.ends)
            if any(source.footer.end_offsets.get(p, -1) < end for p, end in self.ends.items()):
                at = source.data_bytes
                yield Damage(source, at, at, "its index goes back behind what is in front of it")
            for partition, end in source.footer.end_offsets.items():
                self.ends[partition] = max(end, self.ends.get(partition, 0))


class _SourceReader:
    """One pass over one segment."""

    def __init__(
        self,
        directory: Directory,
        survey: Survey,
        source: Source,
        num_partitions: int,
        ends: dict[int, int],
    ) -> None:
        segment = source.segment
        assert source.file is not None
        self._directory = directory
        self._survey = survey
        self._source = source
        self._ends = ends
        self._stretch = Stretch(
            source.file, source.data_bytes, segment.base, segment.end, num_partitions
        )
        # Where the flush began that the last batch was in, or where the bytes behind it that
        # can't be read begin; and how far behind its place everything lies.
        self._flush_start = -1
        self._gap_start: int | None = None
        self._shift = 0

    def items(self) -> Iterator[Kept | Damage]:
        """Yield what is there, then what is missing at the end."""
        stretch, source = self._stretch, self._source
        for item in scan(self._directory, stretch):
            if type(item) is Gap:
                if self._is_torn_tail(item):
                    what = "the end of a write that was never finished"
                    yield Damage(source, item.start, stretch.data_bytes, what, is_torn=True)
                    return
                self._gap_start = item.start
                yield Damage(source, item.start, item.end, "these bytes can't be read")
            else:
                assert type(item) is Found
                yield from self._checked(item)
        wanted = source.segment.data_bytes
        if wanted is None:
            wanted = self._survey.known_end(source.segment) - source.segment.base
        if wanted > stretch.data_bytes:
            yield Damage(source, stretch.data_bytes, wanted, "these bytes are not there any more")

    def _is_torn_tail(self, gap: Gap) -> bool:
        """Ask what the recovery asks: was a flush that began behind the gap ever complete?"""
        if self._source.segment.end is not None or self._survey.was_closed:
            return False
        position = self._source.segment.base + gap.start
        if position < self._survey.durable:
            return False
        behind = scan(self._directory, self._stretch, gap.end)
        return not any(type(i) is Found and i.raw.flush_start > position for i in behind)

    def _checked(self, found: Found) -> Iterator[Kept | Damage]:
        source, raw = self._source, found.raw
        if raw.format != FORMAT:
            message = (
                f"segment {source.file}: the batch at byte {found.start} is of format "
                f"{raw.format}, and this release reads {FORMAT} only"
            )
            raise LogIncompatible(message)
        try:
            batch = decode_batch(found.data, raw)
        except LogCorrupt as exc:
            yield Damage(source, found.start, found.end, str(exc))
            return
        expected = self._ends.get(raw.partition, 0)
        if not self._may_be_here(raw.partition) or batch.base_offset < expected:
            what = f"a batch from elsewhere: partition {raw.partition}, offset {raw.base_offset}"
            yield Damage(source, found.start, found.end, what)
            return
        if self._displaces(found):
            what = f"what was written at position {raw.flush_start} of the journal is here"
            yield Damage(source, found.start, found.start, what)
        if batch.base_offset > expected and not source.segment.compacted:
            what = _offsets_lost(raw.partition, expected, batch.base_offset)
            yield Damage(source, found.start, found.start, what)
        self._ends[raw.partition] = batch.end_offset
        yield Kept(source, found, batch)

    def _may_be_here(self, partition: int) -> bool:
        return partition < self._stretch.num_partitions or partition == NODE_PARTITION

    def _displaces(self, found: Found) -> bool:
        """Say whether from here on batches aren't where their flushes were written."""
        flush_start = found.raw.flush_start
        if self._source.segment.compacted:
            return flush_start != 0
        position = self._source.segment.base + found.start + self._shift
        is_right = flush_start in {position, self._flush_start}
        if self._gap_start is not None:
            lost_bytes = found.start - self._gap_start
            is_right |= position - lost_bytes <= flush_start <= position
            self._gap_start = None
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
    """Return what a person calls it."""
    return "the node's own partition" if partition == NODE_PARTITION else f"partition {partition}"


def _offsets_lost(partition: int, first: int, end: int) -> str:
    name = partition_name(partition)
    if end - first == 1:
        return f"offset {first} of {name} is lost"
    return f"offsets {first} to {end - 1} of {name} are lost"
