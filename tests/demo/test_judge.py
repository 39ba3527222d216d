"""The judge of the demo: what it must accept, and everything that it must not."""

import pytest

from demo.judge import Eviction, Repeated, Written, judge

EXPIRED = Eviction("one", "session expired")


def wrote(
    driver: str, batch: int, start: int, end: int, *, generation: int = 1, partition: int = 0
) -> Written:
    """Return a range that was written whole."""
    rows = end - start
    return Written(driver, batch, partition, start, end, generation, rows, rows, start, end - 1)


def problems(
    written: list[Written], *evictions: Eviction, ends: dict[int, int] | None = None
) -> tuple[str, ...]:
    """Judge a log whose one partition ends at 20, unless *ends* says otherwise."""
    return judge(written, evictions, {0: 20} if ends is None else ends).problems


def test_every_row_once_is_well() -> None:
    """The plain case: two drivers, one after the other."""
    verdict = judge([wrote("one", 1, 0, 10), wrote("two", 1, 10, 20)], [], {0: 20})

    assert verdict.problems == ()
    assert (verdict.rows, verdict.distinct_rows, verdict.repeated) == (20, 20, ())


def test_the_batch_in_flight_of_an_evicted_driver_may_be_done_again() -> None:
    """The promise allows it, and it is counted."""
    verdict = judge(
        [
            wrote("one", 7, 0, 10),
            wrote("one", 8, 10, 20),
            wrote("two", 3, 10, 20, generation=2),
        ],
        [EXPIRED],
        {0: 20},
    )

    assert verdict.problems == ()
    assert verdict.repeated == (Repeated("one", 8, ranges=1, rows=10),)
    assert (verdict.rows, verdict.distinct_rows, verdict.repeated_rows) == (30, 20, 10)


def test_a_batch_over_several_partitions_is_one_batch() -> None:
    """A batch has a range of each partition that the driver owned."""
    verdict = judge(
        [
            wrote("one", 8, 0, 10),
            wrote("one", 8, 0, 5, partition=1),
            wrote("two", 3, 0, 10, generation=2),
            wrote("two", 3, 0, 5, generation=2, partition=1),
        ],
        [EXPIRED],
        {0: 10, 1: 5},
    )

    assert verdict.problems == ()
    assert verdict.repeated == (Repeated("one", 8, ranges=2, rows=15),)


def test_a_repetition_without_an_eviction_is_a_problem() -> None:
    """A hand-over between living drivers must repeat nothing."""
    found = problems([wrote("one", 1, 0, 20), wrote("two", 1, 0, 20, generation=2)])

    assert len(found) == 1
    assert "1 batches of one were done again" in found[0]


def test_an_eviction_of_another_driver_explains_nothing() -> None:
    """Else one kill would excuse any number of faults elsewhere."""
    assert problems(
        [wrote("one", 1, 0, 20), wrote("two", 1, 0, 20, generation=2)],
        Eviction("two", "session expired"),
    )


def test_one_eviction_explains_one_batch_only() -> None:
    """More than one batch means that finished work was not committed."""
    assert problems(
        [
            wrote("one", 1, 0, 10),
            wrote("one", 2, 10, 20),
            wrote("two", 1, 0, 10, generation=2),
            wrote("two", 2, 10, 20, generation=2),
        ],
        EXPIRED,
    )


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ([(0, 10)], "rows 10 to 19 are missing"),
        ([(10, 20)], "rows 0 to 9 are missing"),
        ([(0, 5), (10, 20)], "rows 5 to 9 are missing"),
        ([], "rows 0 to 19 are missing"),
        ([(0, 12), (10, 20)], "rows 10 to 11 are in two different ranges"),
        ([(0, 10), (10, 25)], "rows 20 to 24 are in two different ranges, or beyond"),
    ],
)
def test_holes_and_overlaps_are_found(ranges: list[tuple[int, int]], said: str) -> None:
    """A lost row, and a range that was done again with other bounds."""
    found = problems([wrote("one", i, start, end) for i, (start, end) in enumerate(ranges)])

    assert len(found) == 1
    assert said in found[0]


def test_a_partition_that_the_log_does_not_have_is_found() -> None:
    """Rows that nobody appended are no success either."""
    assert problems([wrote("one", 1, 0, 20), wrote("one", 1, 0, 1, partition=9)])


def test_two_owners_in_one_generation_are_found() -> None:
    """That they wrote the same is luck; the promise is broken."""
    found = problems([wrote("one", 1, 0, 20), wrote("two", 1, 0, 20)], EXPIRED)

    assert any("one and two both wrote it in generation 1" in problem for problem in found)


@pytest.mark.parametrize(
    ("rows", "offsets", "first", "last"),
    [(19, 19, 0, 19), (20, 19, 0, 19), (20, 20, 1, 19), (20, 20, 0, 18), (21, 20, 0, 19)],
)
def test_a_range_that_is_not_whole_is_found(rows: int, offsets: int, first: int, last: int) -> None:
    """Its bounds alone could hide a lost row."""
    assert problems([Written("one", 1, 0, 0, 20, 1, rows, offsets, first, last)])
