"""What the reader core does with batches that it, or a forerunner, planned before."""

import json

import pytest

from client.spark.errors import CoordinatedSourceError
from tests.fakes.group_session import FakeGroup
from tests.spark.helpers import Checkpoint, MemoryLog, Query, ranges, tp


def make(ends: dict[int, int]) -> tuple[FakeGroup, MemoryLog]:
    """Return a group and a log with these partitions."""
    return FakeGroup([tp(p) for p in ends]), MemoryLog(ends)


def test_a_replay_of_an_uncommitted_batch_runs_it_again() -> None:
    """The sink may have seen none or all of it; at-least-once needs it again, as it was."""
    group, log = make({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.triggers(1)
    crashed.crash_before_commit_log()
    log.ends[0] = 60

    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)

    assert ranges(again.triggers(3)) == [(0, 0, 10), (0, 10, 20), (0, 20, 30)]
    assert group.offset(tp(0)) == 20


def test_a_replay_skips_what_the_group_is_past() -> None:
    """Another reader took over and committed; running the range again adds duplicates only."""
    group, log = make({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    crashed.crash_before_commit_log()
    group.reset(tp(0), 10, "gc1:20:0")

    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)

    assert ranges(again.triggers(1)) == []
    assert ranges(again.triggers(1)) == [(0, 10, 20)]


def test_a_replay_skips_what_is_not_ours() -> None:
    """Its owner will run it, with the same bounds."""
    group, log = make({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    crashed.crash_before_commit_log()
    heir = Query(group, log, client_id="0-heir", max_rows=10)
    heir.trigger()
    again = Query(group, log, client_id="z", checkpoint=crashed.checkpoint)

    def heir_goes_on() -> None:
        heir.trigger()

    again.clock.on_sleep = heir_goes_on

    assert again.triggers(1) == []
    assert heir.session.member_id in group.owners.values()


def test_a_replay_of_rows_that_are_gone_can_be_skipped_on_request() -> None:
    """Else each restart would begin with the same batch and fail in it again."""
    group, log = make({0: 20})
    checkpoint = Checkpoint()
    crashed = Query(group, log, checkpoint=checkpoint)
    for _ in zip(range(4), crashed.steps(), strict=False):
        pass  # Up to the log of the batch, before its sink.
    group.evict(crashed.session)
    log.starts[0] = 15

    again = Query(group, log, checkpoint=checkpoint, failOnDataLoss="false")

    assert ranges(again.triggers(2)) == [(0, 15, 20)]


def test_a_skipped_range_is_never_committed() -> None:
    """What an earlier process ran is not ours to vouch for."""
    group, log = make({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    crashed.crash_before_commit_log()
    group.reset(tp(0), 0, "")  # Reset: the pin is gone, so this is no longer that range.

    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)
    again.trigger()
    assert again.sunk == []
    again.trigger()

    assert ranges(again.sunk) == [(0, 0, 10)]
    assert group.offset(tp(0)) == 0


def test_a_replay_keeps_to_the_pin_that_stands_now() -> None:
    """Whoever ran the range since has other bounds, and a sink must see one of the two only."""
    group, log = make({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    crashed.crash_before_commit_log()
    group.reset(tp(0), 0, "gc1:5:0")

    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)

    assert ranges(again.triggers(2)) == [(0, 0, 5)]


def test_a_replay_after_a_reset_is_committed() -> None:
    """It was planned under the counter of resets that the pin has."""
    group, log = make({0: 40})
    group.reset(tp(0), 0, "gc1:0:3")
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    crashed.crash_before_commit_log()

    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)

    assert ranges(again.triggers(2)) == [(0, 0, 10), (0, 10, 20)]
    assert group.offsets[tp(0)].metadata == "gc1:20:3"


def test_a_restart_after_the_commit_log_runs_at_most_that_batch_again() -> None:
    """Spark finished it, the coordinator never heard of it: the coordinator's position counts."""
    group, log = make({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    group.evict(crashed.session)

    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint, max_rows=7)

    assert ranges(again.triggers(2)) == [(0, 0, 10), (0, 10, 17)]


def test_a_batch_with_news_of_another_source_only_runs_nothing_of_ours() -> None:
    """In a union start equals end; the end offset still holds the last ranges."""
    group, log = make({0: 5})
    query = Query(group, log)
    query.triggers(2)
    last = json.loads(query.checkpoint.offsets[-1])

    assert query.core.partitions(last, last) == []


def test_the_same_batch_may_be_planned_twice() -> None:
    """A sink with two actions, or a union with itself."""
    group, log = make({0: 5})
    query = Query(group, log)
    end = query.core.latest_offset(query.core.initial_offset(), 10)

    assert query.core.partitions({}, end) == query.core.partitions({}, end) != []


def test_a_batch_that_was_never_planned_is_refused() -> None:
    """It would be run without a pin."""
    group, log = make({0: 5})
    query = Query(group, log)
    query.trigger()

    with pytest.raises(CoordinatedSourceError, match="did not plan"):
        query.core.partitions({}, {"flights-0": {"s": 7, "e": 9, "g": 1}})


def test_a_planned_batch_that_spark_did_not_run_is_planned_again() -> None:
    """Only what was run may be committed."""
    group, log = make({0: 40})
    query = Query(group, log)
    start = query.core.initial_offset()
    first = query.core.latest_offset(start, 10)

    assert query.core.latest_offset(start, 33) == first
    assert group.offset(tp(0)) == 0


def test_a_foreign_checkpoint_is_named_as_such() -> None:
    """Two queries on one checkpoint corrupt each other."""
    group, log = make({0: 0})
    foreign = Checkpoint(['{"flights": {"0": 20}}'], 1)
    query = Query(group, log, checkpoint=foreign)

    with pytest.raises(ValueError, match="checkpoint of its own"):
        query.trigger()
