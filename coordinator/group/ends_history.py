"""How far partitions reached in each of the last minutes: what a lag in seconds is read off.

Theory of operation
===================

No record is ever seen here, but whoever reads a topic says how far it reaches. The end of each
partition is kept as it was when each of the last 60 minutes began, beside when the end of the
moment was reported. That is a curve that never falls. It passed a committed offset at some
time: there the record lies that is to be read next, and so long the group is behind. Between two
points the curve is a straight line. What a minute began with between two reports is put on the
line between those, once the second one comes.

Before the first minute there is one point more: what the end was before the first report that
changed it. So two reports are enough.

Who has committed less than the oldest point is behind for at least as long as that is old. An end
that goes back is that of another topic with the same name: its past is forgotten.

The curve is made of the records of the log alone, as they are replayed: so every node of a cluster
has the same one, and a load has what its log has. A report that changes nothing is logged once in
ten seconds at most, for all partitions of a topic in one entry; until then only the node that took
the report knows of it.

A record says by the clock of the day of which node it was reported, and when that was is worked out
as it is replayed. From then on all times are monotonic, so a clock that is set moves no lag, and
makes no end look younger than it is. Nodes whose clocks differ tell lags that differ by as much.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from coordinator.group.lag_samples import MINUTE_MS, SAMPLES_KEPT, UNKNOWN
from coordinator.group.minutes import BLOCK_BITS, Block, Minutes
from protocol.messages import EndOffset

# How often reports that change nothing are logged at most, for each topic.
REPEAT_LOG_MS: Final = 10_000

# Behind the minutes of a column.
_END: Final = SAMPLES_KEPT  # Of the moment.
_CHANGED: Final = SAMPLES_KEPT + 1  # When that was first reported.
_HEARD: Final = SAMPLES_KEPT + 2  # When it was last reported.
_FIRST_MS: Final = SAMPLES_KEPT + 3
_FIRST_END: Final = SAMPLES_KEPT + 4


class TopicEnds(Minutes):
    """The ends of one topic.

    Attributes:
        repeats: Partition -> when its end was last reported, unchanged, by the clock of the day, if
            the log doesn't have that yet.
        logged_ms: When such reports were last logged, or else the topic's first end, monotonic.
    """

    COLUMN = array("q", [UNKNOWN]) * (SAMPLES_KEPT + 5)
    CARRIED = _END

    __slots__ = ("logged_ms", "repeats")

    def __init__(self) -> None:
        super().__init__()
        self.repeats: dict[int, int] = {}
        self.logged_ms = 0

    def told_ms(self, end: EndOffset) -> int:
        """Return when *end* was last reported, by the clock of the day."""
        return self.repeats.get(end.partition, end.reported_ms)

    def repeats_to_log(self, mono_ms: int) -> dict[int, int]:
        """Return what of `repeats` is to be logged by now."""
        return self.repeats if mono_ms >= self.logged_ms + REPEAT_LOG_MS else {}

    def age_ms(self, end: EndOffset, mono_ms: int, wall_ms: int) -> int:
        """Return for how long nobody has told of *end*."""
        found = self.find(end.partition)
        if found is None:  # The topic was forgotten a moment ago.
            return max(wall_ms - end.reported_ms, 0)
        block, at = found
        cells: array[int] = block.cells
        return max(mono_ms - cells[at + _HEARD], 0)

    def behind_ms(
        self, ends: Iterable[EndOffset | None], committed: Iterable[int], now_ms: int
    ) -> list[int]:
        """Return for each of *ends* how long ago it passed what is *committed* of its partition.

        It is 0 if nothing is left to do, and `UNKNOWN` if that isn't known, as of no end (None) or
        of one that is behind the commit. The ends are those of the moment.
        """
        # One loop without a call for each: a scrape asks for a hundred thousand.
        blocks, step = self._blocks, len(self.COLUMN)
        found = []
        for end, offset in zip(ends, committed, strict=True):
            if end is None or end.end_offset < offset:
                found.append(UNKNOWN)
                continue
            if offset == end.end_offset:
                found.append(0)
                continue
            block = blocks.get(end.partition >> BLOCK_BITS)
            place = -1 if block is None else block.place(end.partition)
            passed_ms = None
            if block is not None and place >= 0:
                passed_ms = _passed_ms(block, place * step, offset, end.end_offset, now_ms)
            found.append(UNKNOWN if passed_ms is None else max(now_ms - passed_ms, 0))
        return found


class EndsHistory:
    """The ends of all topics. Soft: a load makes it anew of what its log has."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, TopicEnds] = {}

    def forget(self, topic: str) -> None:
        """Forget a topic."""
        self._topics.pop(topic, None)

    def told(self, topic: str, partition: int, end: int, mono_ms: int) -> None:
        """Note that *end* was reported at *mono_ms*, changed or not."""
        ends = self._topics.get(topic)
        if ends is None:
            ends = self._topics[topic] = TopicEnds()
            ends.logged_ms = mono_ms
        if ends.repeats:
            ends.repeats.pop(partition, None)
        found = ends.find(partition)
        if found is None:
            block, at = ends.add(partition, mono_ms // MINUTE_MS)
            cells = block.cells
            cells[at + _END] = end
            cells[at + _CHANGED] = cells[at + _HEARD] = mono_ms
            return
        block, at = found
        cells = block.cells
        before = cells[at + _END]
        cells[at + _HEARD] = mono_ms = max(mono_ms, cells[at + _HEARD])
        if end == before:
            return
        if block.minute < mono_ms // MINUTE_MS:
            ends.turn(block, mono_ms // MINUTE_MS)
        if end < before:
            cells[at : at + SAMPLES_KEPT] = _NO_SAMPLES
            cells[at + _FIRST_END] = UNKNOWN
        else:
            if cells[at + _FIRST_END] == UNKNOWN:
                cells[at + _FIRST_MS] = cells[at + _CHANGED]
                cells[at + _FIRST_END] = before
            _straighten(block, at, before, end, mono_ms)
        cells[at + _CHANGED] = mono_ms
        cells[at + _END] = end

    def repeated(self, topic: str, partition: int, end: int, mono_ms: int, wall_ms: int) -> None:
        """Note that *end* was reported again just now, which the log may have later."""
        self.told(topic, partition, end, mono_ms)
        self._topics[topic].repeats[partition] = wall_ms

    def logged(self, topic: str, mono_ms: int) -> None:
        """Note that reports that change nothing were logged, the latest of them of *mono_ms*."""
        self._topics[topic].logged_ms = mono_ms

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


def _passed_ms(block: Block, at: int, committed: int, end: int, now_ms: int) -> int | None:
    """Return when the column at *at* passed *committed*, which is below *end*.

    Of an end that never changed it is known only since when it is there, and that after a minute.
    """
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
            is_known = known_ms is not None or now_ms - after_ms >= MINUTE_MS
            return after_ms if is_known else None
        if before > committed:
            return before_ms
    return before_ms + (after_ms - before_ms) * (committed - before) // (after - before)
