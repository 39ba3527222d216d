"""The benchmarks' arithmetic."""

import pytest
from hypothesis import given, strategies as st

from bench.measures import (
    NS_PER_S,
    Latency,
    due_count,
    intended_ns,
    latency_of,
    median,
    percentile,
)


@pytest.mark.parametrize(
    ("share", "expected"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.001, 1), (0.991, 100)]
)
def test_a_percentile_is_the_nearest_rank(share: float, expected: int) -> None:
    """Interpolation would report latencies that nobody had."""
    assert percentile(range(1, 101), share) == expected


def test_the_percentile_of_one_value_is_that_value() -> None:
    """Short runs must not fall off either end."""
    assert [percentile([7], share) for share in (0.01, 0.5, 0.99, 1.0)] == [7, 7, 7, 7]


@pytest.mark.parametrize(("values", "share"), [([], 0.5), ([1], 0.0), ([1], 1.5)])
def test_a_percentile_that_does_not_exist_is_refused(values: list[int], share: float) -> None:
    """A made-up 0 would look like a very good result."""
    with pytest.raises(ValueError, match=r"no measurements|not in"):
        percentile(values, share)


@given(st.lists(st.integers(0, 10**12), min_size=1), st.floats(0.001, 1.0))
def test_no_more_than_the_share_lies_below_a_percentile(values: list[int], share: float) -> None:
    """The definition itself, whatever the numbers are."""
    ordered = sorted(values)
    value = percentile(ordered, share)
    assert sum(other < value for other in ordered) < share * len(ordered)
    assert sum(other <= value for other in ordered) >= share * len(ordered) - 1e-6


def test_latencies_are_summed_up_in_microseconds_in_any_order() -> None:
    """The generator records nanoseconds as they come."""
    samples_ns = [5_000, 1_000, 3_000, 2_000, 4_000]
    assert latency_of(samples_ns) == Latency(p50_us=3.0, p99_us=5.0, max_us=5.0)


@pytest.mark.parametrize(
    ("values", "expected"), [([3.0], 3.0), ([9, 1, 5], 5), ([4, 1, 2, 3], 2.5)]
)
def test_the_median_of_repetitions(values: list[float], expected: float) -> None:
    """Ratios are of medians, so one bad repetition must not move them much."""
    assert median(values) == expected


def test_the_median_of_nothing_is_refused() -> None:
    """A row that was not measured has no ratio."""
    with pytest.raises(ValueError, match="no measurements"):
        median([])


def test_intended_times_are_even_and_know_nothing_of_answers() -> None:
    """Four a second from 10 s on, whatever the server does."""
    start_ns = 10 * NS_PER_S
    times = [intended_ns(start_ns, 4.0, index) for index in range(5)]
    assert [(t - start_ns) / NS_PER_S for t in times] == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_after_a_stall_everything_that_was_meant_to_leave_is_due() -> None:
    """The requests of a stall must be sent, and count, all of them."""
    assert due_count(0, 1000.0, 0) == 1
    assert due_count(0, 1000.0, 3 * NS_PER_S) == 3001
    assert due_count(NS_PER_S, 1000.0, 0) == 0


@given(
    st.integers(0, 10**15),
    st.floats(0.5, 1e6, allow_nan=False),
    st.integers(0, 10**11),
)
def test_due_requests_are_exactly_those_with_an_intended_time_not_after_now(
    start_ns: int, rate_per_s: float, elapsed_ns: int
) -> None:
    """Rounding must neither send a request early nor lose one."""
    count = due_count(start_ns, rate_per_s, start_ns + elapsed_ns)
    assert intended_ns(start_ns, rate_per_s, count - 1) <= start_ns + elapsed_ns
    assert intended_ns(start_ns, rate_per_s, count) > start_ns + elapsed_ns
