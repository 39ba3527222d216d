"""How far partitions reached in each of the last minutes: what a lag in seconds is read off.

Theory of operation
===================

No record is ever seen here, but whoever reads a topic says how far it reaches. The end of each
partition is kept as it was when each of the last 60 minutes began, beside when the end of the
moment was reported. That is a curve that never falls. It passed a committed offset at some
time: there the record lies that is to be read next, and so long the group is behind. Between two
points the curve is a straight line. What was sampled between two reports is put on the line
between those, once the second one comes.

Before the first minute there is one point more: what the end was before the first report that
changed it. After a load that is the last one in the log. So two reports are enough.

Who has committed less than the oldest point is behind for at least as long as that is old. An end
that goes back is that of another topic with the same name: its past is forgotten.

All times are monotonic, so a clock that is set moves no lag, and makes no end look younger than it
is; but the time of the day is kept, too, of when an end was last told at all. The log has that of
the last change only, as nothing is logged for an end that stays.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from coordinator.group.lag_samples import MINUTE_MS, SAMPLES_KEPT, UNKNOWN
from coordinator.group.minutes import BLOCK_BITS, Block, Minutes
from protocol.messages import EndOffset

# Behind the minutes of a column.
_CHANGED: Final = SAMPLES_KEPT  # When the end of the moment was first told.
_TOLD: Final = SAMPLES_KEPT + 1  # When it was last told, by the clock of the day.
_HEARD: Final = SAMPLES_KEPT + 2  # The same, monotonic.
_FIRST_MS: Final = SAMPLES_KEPT + 3
_FIRST_END: Final = SAMPLES_KEPT + 4


class TopicEnds(Minutes):
    """The ends of one topic."""

    COLUMN = array("q", [UNKNOWN]) * (SAMPLES_KEPT + 5)
    CARRIES = True

    __slots__ = ()

    def note_change(self, end: EndOffset, mono_ms: int, wall_ms: int) -> tuple[Block, int]:
        """Note that *end* is the latest that was told, as its record says."""
        found = self.find(end.partition)
        assert found is not None
        block, at = found
        block.cells[at + _CHANGED] = mono_ms - max(wall_ms - end.reported_ms, 0)
        return found

    def told_ms(self, end: EndOffset) -> int:
        """Return when *end* was last told, by the clock of the day."""
        found = self.find(end.partition)
        if found is None:
            return end.reported_ms
        block, at = found
        cells: array[int] = block.cells
        return max(end.reported_ms, cells[at + _TOLD])

    def age_ms(self, end: EndOffset, mono_ms: int, wall_ms: int) -> int:
        """Return for how long nobody has told of *end*."""
        found = self.find(end.partition)
        if found is None:  # Within a minute of the load.
            return max(wall_ms - end.reported_ms, 0)
        block, at = found
        cells: array[int] = block.cells
        heard_ms = cells[at + _HEARD]
        return max(mono_ms - (cells[at + _CHANGED] if heard_ms == UNKNOWN else heard_ms), 0)

    def behind_ms(
        self, ends: Iterable[EndOffset | None], committed: Iterable[int], now_ms: int
    ) -> list[int]:
        """Return for each of *ends* how long ago it passed what is *committed* of its partition.

        It is 0 if nothing is left to do, and `UNKNOWN` if that isn't known, as of no end (None).
        The ends are those of the moment.
        """
        # One loop without a call for each: a scrape asks for a hundred thousand.
        blocks, step = self._blocks, len(self.COLUMN)
        found = []
        for end, offset in zip(ends, committed, strict=True):
            if end is None:
                found.append(UNKNOWN)
                continue
            if offset >= end.end_offset:
                found.append(0)
                continue
            block = blocks.get(end.partition >> BLOCK_BITS)
            place = -1 if block is None else block.place(end.partition)
            passed_ms = None
            if block is not None and place >= 0:
                passed_ms = _passed_ms(block, place * step, offset, end.end_offset)
            found.append(UNKNOWN if passed_ms is None else max(now_ms - passed_ms, 0))
        return found


class EndsHistory:
    """The ends of all topics. Soft: it begins anew with every load."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, TopicEnds] = {}

    def forget(self, topic: str) -> None:
        """Forget a topic."""
        self._topics.pop(topic, None)

    def told(
        self, topic: str, end: EndOffset, before: EndOffset | None, mono_ms: int, wall_ms: int
    ) -> None:
        """Note that *end* was told now, and *before* (it may be the same) the time before."""
        ends = self._of(topic)
        found = ends.find(end.partition)
        if found is None:
            ends.make((end.partition,), mono_ms // MINUTE_MS)
            found = ends.note_change(before or end, mono_ms, wall_ms)
        block, at = found
        cells = block.cells
        cells[at + _TOLD], cells[at + _HEARD] = wall_ms, mono_ms
        if before is None or before.end_offset == end.end_offset:
            return
        if end.end_offset < before.end_offset:
            cells[at : at + SAMPLES_KEPT] = _NO_SAMPLES
            cells[at + _FIRST_END] = UNKNOWN
        else:
            if cells[at + _FIRST_END] == UNKNOWN:
                cells[at + _FIRST_MS] = cells[at + _CHANGED]
                cells[at + _FIRST_END] = before.end_offset
            _straighten(block, at, before.end_offset, end.end_offset, mono_ms)
        cells[at + _CHANGED] = mono_ms

    def sample(
        self, topic: str, ends: Iterable[EndOffset], minute: int, mono_ms: int, wall_ms: int
    ) -> None:
        """Note *ends* of a topic as they are when *minute* begins, which is about now."""
        kept = self._of(topic)
        by_partition = {end.partition: end for end in ends}
        numbers = {partition: end.end_offset for partition, end in by_partition.items()}
        for partition in kept.put(minute, numbers):
            kept.note_change(by_partition[partition], mono_ms, wall_ms)

    def _of(self, topic: str) -> TopicEnds:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = TopicEnds()
        return found

    def of(self, topic: str) -> TopicEnds:
        """Return the history of one topic, an empty one if there is none; not to be kept."""
        return self._topics.get(topic, _NOTHING)


_NOTHING: Final = TopicEnds()
_NO_SAMPLES: Final = TopicEnds.COLUMN[:SAMPLES_KEPT]


def _straighten(block: Block, at: int, before: int, end: int, now_ms: int) -> None:
    """Put the newest sample, if it was taken between two reports, on the line between them.

    Who reports ends once a minute would else be up to a minute late. But a topic that stood still
    for longer did stand still: its reporter tells of changes only.
    """
    cells: array[int] = block.cells
    sampled_ms, changed_ms = block.minute * MINUTE_MS, cells[at + _CHANGED]
    slot = at + block.minute % SAMPLES_KEPT
    if 0 < sampled_ms - changed_ms <= MINUTE_MS and sampled_ms <= now_ms and cells[slot] == before:
        more = (end - before) * (sampled_ms - changed_ms) // (now_ms - changed_ms)
        cells[slot] = before + more


def _passed_ms(block: Block, at: int, committed: int, end: int) -> int | None:
    """Return when the column at *at* passed *committed*, which is below *end*."""
    cells: array[int] = block.cells
    newest = at + block.minute % SAMPLES_KEPT
    # The last point that isn't above it, and the first one that is: after the newest sample?
    before, before_ms = cells[newest], block.minute * MINUTE_MS
    after, after_ms = end, cells[at + _CHANGED]
    known_ms = None  # When a sample was above it; nothing tells how long before.
    if before > committed:
        # The ring is two ascending runs; what isn't known is below everything.
        if cells[at] <= committed:
            first = bisect_right(cells, committed, at, newest)
            ago = newest - first
        else:
            first = bisect_right(cells, committed, newest + 1, at + SAMPLES_KEPT)
            ago = newest - first + SAMPLES_KEPT
            first -= SAMPLES_KEPT * (first == at + SAMPLES_KEPT)
        sampled_ms = before_ms - ago * MINUTE_MS
        after = cells[first]
        after_ms = known_ms = min(sampled_ms, after_ms) if after == end else sampled_ms
        if ago == SAMPLES_KEPT - 1:
            return known_ms
        before = cells[first - 1 if first > at else at + SAMPLES_KEPT - 1]
        before_ms = sampled_ms - MINUTE_MS
    if before == UNKNOWN:
        before, before_ms = cells[at + _FIRST_END], cells[at + _FIRST_MS]
        if before == UNKNOWN:
            return known_ms
        if before > committed:
            return before_ms
    return before_ms + (after_ms - before_ms) * (committed - before) // (after - before)
