"""End offsets of partitions in each of the last minutes, from which a lag in seconds is computed.

Theory of operation
===================

The coordinator sees no messages of topics, only the end offsets that clients report. For each
partition the end is kept as of the start of each of the last 60 minutes, together with the time at
which the current end was reported. These points form a curve that never falls. The time at which it
passed a committed offset is the time of the next message to read: the group is behind since then.
The curve is linear between two points. A sample taken between two reports is moved onto the line
between them when the second one arrives.

There is one more point before the first minute: the end before the first report that changed it.
Two reports are therefore enough.

A group with a commit below the oldest point is behind for at least the age of that point. An end
that goes back belongs to another topic with the same name: its history is dropped.

The curve depends only on log records, as they are replayed. Every node of a cluster therefore has
the same curve, and a load restores what its log has. An unchanged report is logged at most once in
ten seconds, for all partitions of a topic in one entry; until then only the node that received the
report knows of it.

A record has the wall-clock time of the node that received the report, which is converted to
monotonic time at replay. From then on all times are monotonic, so that setting a clock changes no
lag, and makes no end look younger. If the clocks of nodes differ, their lags differ by as much.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from coordinator.group.lag_samples import MINUTE_MS, SAMPLES_KEPT, UNKNOWN
from coordinator.group.minutes import BLOCK_BITS, Block, Minutes
from protocol.messages import EndOffset

# Minimum time between two logged repeats of unchanged reports per topic, in ms.
REPEAT_LOG_MS: Final = 10_000

# Indexes of cells after the minutes of a column.
_END: Final = SAMPLES_KEPT  # The current end.
_CHANGED: Final = SAMPLES_KEPT + 1  # Time of the first report of the current end.
_HEARD: Final = SAMPLES_KEPT + 2  # Time of its latest report.
_FIRST_MS: Final = SAMPLES_KEPT + 3
_FIRST_END: Final = SAMPLES_KEPT + 4


class TopicEnds(Minutes):
    """The ends of one topic.

    Attributes:
        repeats: Partition -> wall-clock time of the latest unchanged report that is not logged yet.
        logged_ms: Monotonic time of the latest logged repeat, or else of the topic's first end.
    """

    COLUMN = array("q", [UNKNOWN]) * (SAMPLES_KEPT + 5)
    CARRIED = _END

    __slots__ = ("logged_ms", "repeats")

    def __init__(self) -> None:
        super().__init__()
        self.repeats: dict[int, int] = {}
        self.logged_ms = 0

    def told_ms(self, end: EndOffset) -> int:
        """Return the wall-clock time of the latest report of *end*."""
        return self.repeats.get(end.partition, end.reported_ms)

    def repeats_to_log(self, mono_ms: int) -> dict[int, int]:
        """Return the part of `repeats` that is due to be logged."""
        return self.repeats if mono_ms >= self.logged_ms + REPEAT_LOG_MS else {}

    def age_ms(self, end: EndOffset, mono_ms: int, wall_ms: int) -> int:
        """Return the time since the latest report of *end*, in ms."""
        found = self.find(end.partition)
        if found is None:  # The topic was forgotten just before.
            return max(wall_ms - end.reported_ms, 0)
        block, at = found
        cells: array[int] = block.cells
        return max(mono_ms - cells[at + _HEARD], 0)

    def behind_ms(
        self, ends: Iterable[EndOffset | None], committed: Iterable[int], now_ms: int
    ) -> list[int]:
        """Return for each of *ends* how long ago it passed the *committed* offset, in ms.

        The result is 0 without a lag. It is `UNKNOWN` if the time is unknown, without an end
        (None), or with an end below the commit. The ends must be the current ones.
        """
        # One loop without function calls per item: a metrics request needs a hundred thousand.
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
    """The ends of all topics. Soft: a load rebuilds it from the log."""

    __slots__ = ("_topics",)

    def __init__(self) -> None:
        self._topics: dict[str, TopicEnds] = {}

    def forget(self, topic: str) -> None:
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
        """Note a repeated report of *end*, which is not logged yet."""
        self.told(topic, partition, end, mono_ms)
        self._topics[topic].repeats[partition] = wall_ms

    def logged(self, topic: str, mono_ms: int) -> None:
        """Note that unchanged reports were logged, the latest of them from *mono_ms*."""
        self._topics[topic].logged_ms = mono_ms

    def of(self, topic: str) -> TopicEnds:
        """Return the history of one topic, an empty one if unknown; the caller must not keep it."""
        return self._topics.get(topic, _NOTHING)


_NOTHING: Final = TopicEnds()
_NO_SAMPLES: Final = TopicEnds.COLUMN[:SAMPLES_KEPT]


def _straighten(block: Block, at: int, before: int, end: int, now_ms: int) -> None:
    """Move the newest sample onto the line between two reports, if it was taken between them.

    Otherwise the curve of a client that reports once a minute would be up to a minute late. A topic
    unchanged for longer is left alone: its reporter sends changes only, so its end really stood
    still.
    """
    cells: array[int] = block.cells
    sampled_ms, changed_ms = block.minute * MINUTE_MS, cells[at + _CHANGED]
    slot = at + block.minute % SAMPLES_KEPT
    if 0 < sampled_ms - changed_ms <= MINUTE_MS and sampled_ms <= now_ms and cells[slot] == before:
        more = (end - before) * (sampled_ms - changed_ms) // (now_ms - changed_ms)
        cells[slot] = before + more


def _passed_ms(block: Block, at: int, committed: int, end: int, now_ms: int) -> int | None:
    """Return when the column at *at* passed *committed*, which is below *end*.

    For an end that never changed, only its first report is known; return that after a minute,
    before it None.
    """
    cells: array[int] = block.cells
    newest = at + block.minute % SAMPLES_KEPT
    # Find the last point not above *committed* and the first one above it, at first assuming that
    # both are after the newest sample.
    before, before_ms = cells[newest], block.minute * MINUTE_MS
    after, after_ms = end, cells[at + _CHANGED]
    known_ms = None  # Time of a sample above *committed*, an upper bound of the result.
    if before > committed:
        # The ring consists of two ascending runs; unknown cells are below all others.
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
