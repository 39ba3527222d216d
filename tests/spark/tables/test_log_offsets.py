"""Where a stream of changes stands, and what its next batch takes."""

import json

import pytest
from hypothesis import given, strategies as st

from client.spark.tables.offset_log import (
    LogOffsetError,
    LogRange,
    decode_positions,
    encode_positions,
    next_positions,
    ranges,
    share,
)

POSITIONS = st.dictionaries(st.integers(0, 49), st.integers(-1, 2**62), max_size=5)


@given(POSITIONS)
def test_an_offset_comes_back_from_the_checkpoint_as_it_was(positions: dict[int, int]) -> None:
    """Spark keeps it as JSON."""
    offset = json.loads(json.dumps(encode_positions(positions, "c1")))

    assert decode_positions(offset, "c1") == positions


@pytest.mark.parametrize(
    ("offset", "message"),
    [
        ({"0": 1}, "did not write"),
        ({"flights": {"0": 20}}, "did not write"),
        ({"@": {"v": 1, "cluster_id": "c1"}, "0": "1"}, "did not write"),
        ({"@": {"v": 1, "cluster_id": "c1"}, "x": 1}, "did not write"),
        ({"@": {"v": 1, "cluster_id": "c1"}, "0": -2}, "did not write"),
        ({"@": {"v": 2, "cluster_id": "c1"}}, "format version 2, this release reads version 1"),
        ({"@": {"v": 1, "cluster_id": "c9"}}, "cluster id 'c9', option 'coordinator' names"),
    ],
)
def test_a_checkpoint_of_something_else_is_refused(offset: dict[str, object], message: str) -> None:
    """Positions of another log would skip changes without a word."""
    with pytest.raises(LogOffsetError, match=message):
        decode_positions(offset, "c1")


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 1_000), max_size=10),
    st.none() | st.integers(1, 5_000),
)
def test_a_limit_is_shared_fairly(waiting: dict[int, int], limit: int | None) -> None:
    """Nobody starves, nothing is left over while somebody waits, and the large pay for it."""
    given_ = share(waiting, limit)
    behind = {number for number, count in waiting.items() if count > 0}

    assert given_.keys() == behind
    assert all(1 <= given_[number] <= waiting[number] for number in given_)
    if limit is None or sum(waiting.values()) <= limit:
        assert given_ == {number: waiting[number] for number in behind}
    elif limit >= len(behind):
        assert sum(given_.values()) == limit
    cut = [given_[number] for number in given_ if given_[number] < waiting[number]]
    assert max(cut, default=0) - min(cut, default=0) <= 1
    assert all(given_[number] <= min(cut, default=10**9) + 1 for number in given_) or not cut


@given(
    st.dictionaries(st.integers(0, 4), st.tuples(st.integers(-1, 100), st.integers(0, 300))),
    st.integers(1, 50),
)
def test_batches_follow_each_other_without_a_gap(
    logs: dict[int, tuple[int, int]], limit: int
) -> None:
    """Every position up to the end is in exactly one batch, after one snapshot at most."""
    at = {number: min(start, end) for number, (start, end) in logs.items()}
    ends = {number: end for number, (_, end) in logs.items()}
    taken: list[LogRange] = []
    while True:
        following = next_positions(at, ends, limit, rescans=False)
        if following == at:
            break
        batch = ranges(at, following)
        changes = [one for one in batch if not one.is_snapshot]
        assert sum(one.end - one.start for one in changes) <= max(limit, len(changes))
        taken += batch
        at = following

    assert at == ends
    for number, (start, end) in logs.items():
        mine = [one for one in taken if one.number == number]
        edges = [one.start for one in mine] + [end]
        assert [one.end for one in mine] == edges[1:]
        assert edges[0] == min(start, end)


def test_a_log_that_ends_before_the_checkpoint_was_restored() -> None:
    """Its positions mean other changes now: said, or begun anew, never read on."""
    with pytest.raises(LogOffsetError, match=r"partition 3 ends at 5, before .* position 9"):
        next_positions({3: 9}, {3: 5}, None, rescans=False)

    again = next_positions({3: 9, 4: 1}, {3: 5, 4: 2}, None, rescans=True)

    assert again == {3: -1, 4: 2}
    assert ranges({3: 9, 4: 1}, again) == [LogRange(4, 1, 2)]
    assert ranges(again, next_positions(again, {3: 5, 4: 2}, None, rescans=True)) == [
        LogRange(3, -1, 5)
    ]
