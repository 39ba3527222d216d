"""A lag in seconds, read off the curve of ends."""

from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from coordinator.group.ends_history import EndsHistory
from coordinator.group.lag_samples import MINUTE_MS, SAMPLES_KEPT, UNKNOWN
from protocol.messages import EndOffset

# By which the clock of the day is ahead of the other.
WALL_MS = 1_700_000_000_000


class Curve:
    """The history of some partitions, told of as a node does it."""

    def __init__(self, mono_ms: int = 1_000 * MINUTE_MS) -> None:
        self.history = EndsHistory()
        self.mono_ms = mono_ms
        self.ends: dict[int, EndOffset] = {}

    def report(self, end_offset: int, partition: int = 0) -> None:
        """Tell of an end, as a client does."""
        before = self.ends.get(partition)
        wall_ms = self.mono_ms + WALL_MS
        if before is None or before.end_offset != end_offset:
            self.ends[partition] = EndOffset(partition, end_offset, wall_ms)
            self.history.told("t", partition, end_offset, self.mono_ms)
        else:
            self.history.repeated("t", partition, end_offset, self.mono_ms, wall_ms)

    def advance(self, by_ms: int) -> None:
        """Let time pass."""
        self.mono_ms += by_ms

    def restart(self) -> None:
        """Forget what is soft, and load what a compaction has left."""
        self.history = EndsHistory()
        for end in self.ends.values():
            at_ms = end.reported_ms - WALL_MS
            self.history.told("t", end.partition, end.end_offset, at_ms)

    def behind_ms(self, committed: int, partition: int = 0) -> int:
        """Return how long one partition is behind."""
        ends = [self.ends[partition]]
        (behind_ms,) = self.history.of("t").behind_ms(ends, [committed], self.mono_ms)
        return behind_ms


def test_a_steady_topic_is_read_off_exactly() -> None:
    """Ten records a second: who has not read the last thousand is 100 seconds behind."""
    curve = Curve()
    for second in range(2 * 60 * 60):
        curve.report(10 * second)
        curve.advance(1_000)
    end = 10 * (2 * 60 * 60 - 1)

    assert curve.behind_ms(end) == 0
    assert curve.behind_ms(end + 5) == UNKNOWN
    assert curve.behind_ms(end - 10) == 2_000
    assert curve.behind_ms(end - 1_000) == 101_000
    assert curve.behind_ms(end - 30_000) == 3_001_000


def test_a_report_during_a_scrape_makes_nobody_early() -> None:
    """A scrape has one time for all, and takes a second: ends may be told after that time."""
    curve = Curve()
    curve.report(100)
    curve.advance(10_000)
    curve.report(200)
    curve.mono_ms -= 3_000

    assert curve.behind_ms(190) == 0
    assert curve.behind_ms(110) == 6_000


def test_two_reports_are_enough() -> None:
    """Nobody waits for a minute to begin to see the first seconds."""
    curve = Curve()
    curve.report(100)

    assert curve.behind_ms(100) == 0
    assert curve.behind_ms(99) == UNKNOWN

    curve.advance(10_000)
    curve.report(200)

    assert [curve.behind_ms(c) for c in (200, 175, 150, 100, 0)] == [
        0,
        2_500,
        5_000,
        10_000,
        10_000,
    ]


def test_what_stood_in_the_log_before_a_restart_is_a_point() -> None:
    """Else every deployment would hide for a minute who is behind."""
    curve = Curve()
    curve.report(100)
    curve.restart()

    assert curve.behind_ms(99) == UNKNOWN

    curve.advance(10_000)
    curve.report(200)

    assert curve.behind_ms(150) == 5_000


def test_a_topic_that_stands_still_keeps_the_time_of_its_last_record() -> None:
    """The record that is left waits as long as nothing follows it."""
    curve = Curve()
    curve.report(0)
    curve.advance(30_000)
    curve.report(10)
    curve.advance(20 * MINUTE_MS)
    curve.report(10)

    assert curve.behind_ms(9) == 20 * MINUTE_MS + 3_000
    assert curve.history.of("t").told_ms(curve.ends[0]) == curve.mono_ms + WALL_MS

    curve.advance(5 * SAMPLES_KEPT * MINUTE_MS)

    assert curve.behind_ms(9) == (5 * SAMPLES_KEPT + 20) * MINUTE_MS + 3_000


@pytest.mark.parametrize("is_loaded", [True, False])
def test_a_clock_that_is_set_back_makes_no_end_younger(is_loaded: bool) -> None:
    """The alert on ends that nobody tells of would be blind for as long as the clock is behind."""
    curve = Curve()
    curve.report(10)
    if is_loaded:
        curve.restart()
    told_ms = curve.mono_ms
    curve.advance(20 * MINUTE_MS)

    set_back_ms = curve.mono_ms + WALL_MS - 60 * MINUTE_MS
    age_ms = curve.history.of("t").age_ms(curve.ends[0], curve.mono_ms, set_back_ms)

    assert age_ms == curve.mono_ms - told_ms


def test_a_partition_that_comes_later_has_no_part_in_the_minutes_before() -> None:
    """Its neighbours may have stood still for an hour: what is filled in then is not its past."""
    curve = Curve()
    curve.report(1, partition=0)
    curve.advance(30 * MINUTE_MS)
    curve.report(100, partition=1)
    curve.advance(30 * MINUTE_MS)
    curve.report(200, partition=1)

    assert curve.behind_ms(50, partition=1) == 30 * MINUTE_MS


def test_a_topic_that_stood_still_for_minutes_did_so() -> None:
    """Its reporter tells of changes only; a line would make the first new record look old."""
    curve = Curve()
    curve.report(0)
    curve.advance(30 * MINUTE_MS + 30_000)
    curve.report(10)

    assert curve.behind_ms(5) == 15_000


@pytest.mark.parametrize("minute", range(SAMPLES_KEPT))
def test_the_curve_is_the_same_wherever_the_ring_begins(minute: int) -> None:
    """Whoever has all but what came after a pause is not behind by the pause."""
    curve = Curve((1_000 + minute) * MINUTE_MS)
    for end in (0, 10, 10, 10, 10, 20, 20):
        curve.advance(MINUTE_MS // 2)
        curve.report(end)
        curve.advance(MINUTE_MS // 2)

    # From the sample before the report of 20, which was half a minute later.
    assert curve.behind_ms(10) == 2 * MINUTE_MS
    assert curve.behind_ms(9) > 5 * MINUTE_MS


def test_who_is_behind_by_more_than_is_kept_is_so_at_least() -> None:
    """A lower bound that rises by a second each second is what an alert needs."""
    curve = Curve()
    for minute in range(3 * SAMPLES_KEPT):
        curve.report(minute)
        curve.advance(MINUTE_MS)
    curve.advance(15_000)

    assert curve.behind_ms(0) == SAMPLES_KEPT * MINUTE_MS + 15_000


def test_a_topic_that_was_made_anew_has_no_past() -> None:
    """Offsets of another topic say nothing about this one."""
    curve = Curve()
    for minute in range(5):
        curve.report(100 * minute)
        curve.advance(MINUTE_MS)
    curve.report(3)

    assert curve.behind_ms(1) == UNKNOWN

    curve.advance(10_000)
    curve.report(13)

    assert curve.behind_ms(8) == 5_000

    curve.history.forget("t")

    assert curve.behind_ms(8) == UNKNOWN


def test_partitions_have_columns_of_their_own_whatever_their_numbers_are() -> None:
    """Most topics have the first few; one of a host has some in between."""
    curve = Curve()
    partitions = [0, 1, 127, 128, 5_000, 99_999]
    for step in range(3):
        for factor, partition in enumerate(partitions[: 2 * step + 2], 1):
            curve.report(step * factor * 60, partition)
        curve.advance(MINUTE_MS)

    for factor, partition in enumerate(partitions[:4], 1):
        newest = 2 * factor * 60
        assert curve.behind_ms(newest - factor, partition) == 61_000
    assert curve.behind_ms(1, 99_999) == MINUTE_MS


@given(
    st.lists(st.tuples(st.integers(0, 3 * MINUTE_MS), st.integers(0, 50)), max_size=60),
    st.integers(0, 70 * MINUTE_MS),
)
def test_who_has_read_more_is_never_further_behind(
    steps: list[tuple[int, int]], later_ms: int
) -> None:
    """And nobody is behind by more than there is a past, or by less than since the last change."""
    curve = Curve()
    start_ms = curve.mono_ms
    end = 0
    curve.report(end)
    for wait_ms, more in steps:
        curve.advance(wait_ms)
        end += more
        curve.report(end)
    changed_ms = curve.ends[0].reported_ms - WALL_MS
    curve.advance(later_ms)
    behind = [curve.behind_ms(committed) for committed in range(end + 1)]

    assert all(a >= b for a, b in pairwise(behind))
    assert (behind[-1], curve.behind_ms(end + 1)) == (0, UNKNOWN)
    assert all(
        one == UNKNOWN or curve.mono_ms - changed_ms <= one <= curve.mono_ms - start_ms
        for one in behind[:end]
    )


@given(
    st.integers(1, 1_000),
    st.lists(st.integers(1, MINUTE_MS), min_size=1, max_size=80),
    st.integers(0, 10**9),
)
def test_a_straight_line_is_exact_whenever_it_was_reported(
    rate: int, waits_ms: list[int], back: int
) -> None:
    """What is between two points is guessed by a line: on a line that is no guess."""
    curve = Curve()
    start_ms = curve.mono_ms
    curve.report(0)
    for wait_ms in waits_ms:
        curve.advance(wait_ms)
        curve.report((curve.mono_ms - start_ms) * rate)
    committed = max(curve.ends[0].end_offset - back, 0)
    exact_ms = min(back // rate, curve.mono_ms - start_ms)
    if exact_ms < (SAMPLES_KEPT - 1) * MINUTE_MS:
        assert abs(curve.behind_ms(committed) - exact_ms) <= 1


FAR_APART = [0, 1, 127, 128, 999, 1_000, 1_400]
# Partitions beside which nobody looks, which begin minutes for their neighbours.
OTHERS = [2, 126, 129, 1_001]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 3 * MINUTE_MS),
            st.dictionaries(st.sampled_from(FAR_APART + OTHERS), st.integers(0, 30), max_size=4),
        ),
        max_size=40,
    )
)
def test_ends_that_go_back_in_a_long_topic_are_as_if_each_partition_were_alone(
    steps: list[tuple[int, dict[int, int]]],
) -> None:
    """A walk over more than 1,000 ends once kept the end of before for one that went back during
    it; nothing walks over them any more, and no report looks at another partition's end.
    """
    together, alone = Curve(), {partition: Curve() for partition in FAR_APART}
    for partition in FAR_APART + OTHERS:
        together.report(15, partition)
    for curve in alone.values():
        curve.report(15)
    for wait_ms, ends in steps:
        for curve in (together, *alone.values()):
            curve.advance(wait_ms)
        for partition, end in ends.items():
            together.report(end, partition)
            if partition in alone:
                alone[partition].report(end)

    for partition, curve in alone.items():
        behind = [together.behind_ms(committed, partition) for committed in range(32)]
        known = [one for one in behind if one != UNKNOWN]
        assert all(a >= b for a, b in pairwise(known))
        since_ms = curve.mono_ms - (curve.ends[0].reported_ms - WALL_MS)
        for committed, one in enumerate(behind):
            # A minute that began for a neighbour is one in which the end is known to have stood.
            assert one == curve.behind_ms(committed) or (
                (one, curve.behind_ms(committed)) == (since_ms, UNKNOWN)
            )
