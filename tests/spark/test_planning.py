"""What comes next: positions, pins, and batches of bounded size."""

import pytest
from hypothesis import given, strategies as st

from client.offsets import OffsetAndMetadata
from client.spark.source.planning import (
    SHARE_MIN,
    Demand,
    Finished,
    Limits,
    Position,
    Seen,
    Step,
    commit_for,
    is_stored,
    plan_partition,
    share_rows,
)
from client.spark.source.stream_offsets import IDENTITY, Range
from protocol.partition import TopicPartition
from tests.fakes.group_session import FakeGroup
from tests.spark.fault_support import expect_all, finish
from tests.spark.helpers import MemoryLog, Query, ranges, tp

positions = st.builds(
    Position.pinned,
    st.none() | st.integers(0, 2**62),
    st.integers(0, 2**62),
    st.integers(0, 10**18),
    st.just("") | st.from_regex(IDENTITY, fullmatch=True),
)


@given(
    before=st.dictionaries(st.integers(0, 9), st.just(Position(None)) | positions),
    needs=st.lists(positions, min_size=10, max_size=10),
)
def test_what_a_commit_has_stored_is_known_as_a_fetch_would_tell_it(
    before: dict[int, Position], needs: list[Position]
) -> None:
    """The reader doesn't read its own pins: after a commit it goes on with what it planned."""
    known = {TopicPartition("flights", partition): stored for partition, stored in before.items()}
    steps = {tp: Step(0, 0, needs[tp.partition]) for tp in known}

    commit = commit_for(steps, known)

    assert commit.positions == {
        tp: step.needs
        for tp, step in steps.items()
        if step.needs.offset is not None and step.needs != known[tp]
    }
    assert commit.positions == {tp: Position.of(stored) for tp, stored in commit.offsets.items()}
    assert commit.offsets == {
        tp: OffsetAndMetadata(stored.offset, stored.metadata)
        for tp, stored in commit.positions.items()
        if stored.offset is not None
    }
    assert commit.expected == {
        tp: -1 if known[tp].offset is None else known[tp].offset for tp in commit.offsets
    }


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (None, False),
        (Position(None), False),
        (Position.pinned(4, 9, 0, ""), False),
        (Position.pinned(5, 9, 0, ""), True),
    ],
)
def test_a_range_is_stored_once_its_end_is(stored: Position | None, expected: bool) -> None:
    """What is kept for longer could be committed over somebody's reset."""
    assert is_stored(Finished(Range(0, 5, 1), 0), stored) == expected


def test_metadata_of_somebody_else_is_no_pin() -> None:
    """Another client may have committed; its offset counts, and no range is planned."""
    position = Position.of(OffsetAndMetadata(7, "mine"))

    assert position == Position(7, "mine")
    assert position.pinned_end is None


def test_which_log_an_offset_is_of_is_not_forgotten_while_the_log_can_not_tell() -> None:
    """Else one that is made anew meanwhile would be read as if it went on."""
    position = Position.pinned(5, 5, 0, "first")

    step = plan_partition(
        TopicPartition("flights", 0), position, None, Seen(0, 9), Limits(None, None, (), "error")
    )

    assert step.needs == Position.pinned(5, 9, 0, "first")


@pytest.mark.parametrize("metadata", ["", "gk1:orders-1.4:ok", "by hand"])
def test_what_others_have_committed_is_where_a_reader_begins(metadata: str) -> None:
    """A group moves to the source with nothing but its offsets, whoever committed them."""
    tp = TopicPartition("flights", 0)
    limits = Limits(10, None, frozenset(), "error")

    step = plan_partition(
        tp, Position.of(OffsetAndMetadata(30, metadata)), None, Seen(0, 100), limits
    )

    assert (step.at, step.stop) == (30, 40)


# --- Batches of bounded size ---------------------------------------------------------------


DEMANDS = st.dictionaries(
    st.integers(0, 30).map(tp),
    st.builds(Demand, st.integers(0, 2_000), st.booleans(), st.integers(0, 9)),
)
ROWS_MAX = st.integers(1, 5_000)


@given(demands=DEMANDS, rows_max=ROWS_MAX, share_min=st.integers(1, 300))
def test_a_batch_is_full_but_not_more_than_full(
    demands: dict[TopicPartition, Demand], rows_max: int, share_min: int
) -> None:
    """Only one pinned range that is larger by itself may exceed it; nothing that fits is left."""
    shares = share_rows(demands, rows_max, share_min)

    total = sum(shares.values())
    pinned = {p: demand.rows for p, demand in demands.items() if demand.pinned and shares[p]}
    fresh = sum(demand.rows for demand in demands.values() if not demand.pinned)
    assert shares.keys() == demands.keys()
    assert all(0 <= shares[p] <= demand.rows for p, demand in demands.items())
    if total > rows_max:
        assert [total] == list(pinned.values())
    else:
        assert total - sum(pinned.values()) == min(fresh, rows_max - sum(pinned.values()))


@given(demands=DEMANDS, rows_max=ROWS_MAX)
def test_pinned_ranges_are_whole_and_come_first(
    demands: dict[TopicPartition, Demand], rows_max: int
) -> None:
    """Cutting one makes a second key for the same rows; leaving all out would never end."""
    shares = share_rows(demands, rows_max)

    pinned = {p for p, demand in demands.items() if demand.pinned and demand.rows}
    taken = {p for p in pinned if shares[p]}
    left = rows_max - sum(demands[p].rows for p in taken)
    assert all(shares[p] == demands[p].rows for p in taken)
    assert bool(taken) == bool(pinned)
    assert all(demands[p].rows > left for p in pinned - taken)


@given(demands=DEMANDS, rows_max=ROWS_MAX, share_min=st.integers(1, 300))
def test_shares_are_equal_but_for_what_is_not_needed(
    demands: dict[TopicPartition, Demand], rows_max: int, share_min: int
) -> None:
    """Max-min fairness: who gets less than another got all it had, or waits for its turn."""
    shares = share_rows(demands, rows_max, share_min)

    fresh = sorted(
        (p for p, demand in demands.items() if demand.rows and not demand.pinned),
        key=lambda p: (demands[p].served, p),
    )
    served = [p for p in fresh if shares[p]]
    assert served == fresh[: len(served)]  # In their turn.
    hungry = [shares[p] for p in served[:-1] if shares[p] < demands[p].rows]
    if hungry:
        level = min(hungry)
        assert all(shares[p] <= level + 1 for p in served)
        assert len(hungry) < 2 or level >= min(share_min, rows_max)


def test_what_small_partitions_leave_goes_to_the_others() -> None:
    """A batch that could be full should be."""
    demands = {tp(p): Demand(rows) for p, rows in enumerate([10, 5_000, 200, 5_000])}

    assert list(share_rows(demands, 1_000).values()) == [10, 395, 200, 395]


@pytest.mark.parametrize("rows_max", [7, SHARE_MIN, 5 * SHARE_MIN])
def test_no_partition_starves(rows_max: int) -> None:
    """However many there are, and though the first ones always have more."""
    num_partitions = 23
    log = MemoryLog(dict.fromkeys(range(num_partitions), 10_000))
    group = FakeGroup([tp(p) for p in log.ends])
    query = Query(group, log, max_rows=None, maxRowsPerBatch=str(rows_max))
    rounds = -(-num_partitions // max(1, rows_max // SHARE_MIN))

    written = query.triggers(2 * rounds)

    counts = [sum(task.tp == tp(p) for task in written) for p in range(num_partitions)]
    assert min(counts) >= 2
    assert sum(task.range.end - task.range.start for task in written) == 2 * rounds * rows_max


def test_a_batch_holds_at_most_the_limit_over_all_partitions() -> None:
    """Both limits count, and the batch is bounded whatever the number of partitions."""
    log = MemoryLog({0: 1_000, 1: 1_000, 2: 20})
    query = Query(FakeGroup([tp(p) for p in log.ends]), log, max_rows=300, maxRowsPerBatch="420")

    assert ranges(query.triggers(1)) == [(0, 0, 200), (1, 0, 200), (2, 0, 20)]
    assert ranges(query.triggers(1)) == [(0, 200, 410), (1, 200, 410)]
    expect_all(finish(query), log.ends)


def test_a_new_owner_with_a_smaller_limit_takes_over_range_by_range() -> None:
    """What it can't take at once stays pinned with its bounds."""
    log = MemoryLog({0: 500, 1: 500, 2: 500})
    group = FakeGroup([tp(p) for p in log.ends])
    dead = Query(group, log, client_id="a", max_rows=None)
    dead.trigger()
    group.evict(dead.session)

    heir = Query(group, log, client_id="b", max_rows=10, maxRowsPerBatch="1100")

    assert ranges(heir.triggers(1)) == [(0, 0, 500), (1, 0, 500)]
    assert ranges(heir.triggers(1)) == [(2, 0, 500)]


def test_available_now_ends_when_all_is_read_though_batches_are_small() -> None:
    """A partition that waits for its turn is not done."""
    log = MemoryLog({0: 250, 1: 90})
    query = Query(FakeGroup([tp(0), tp(1)]), log, max_rows=None, maxRowsPerBatch="50")
    query.core.prepare_available_now()

    while query.trigger():
        pass

    expect_all(query.sunk, log.ends)
