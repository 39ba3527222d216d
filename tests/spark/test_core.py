"""The reader core in the order in which Spark calls it, with one reader or a few."""

import json

import pytest

from client.exceptions import CoordinatorUnavailable
from client.offsets import OffsetAndMetadata
from client.spark.errors import DataLossError
from client.spark.source.core import ReaderCore
from client.spark.source.log_calls import LAG_MAX_S
from client.spark.source.stream_offsets import Range, decode_end
from tests.fakes.group_session import FakeGroup
from tests.spark.helpers import Checkpoint, MemoryLog, Query, options, ranges, tp


def make(ends: dict[int, int]) -> tuple[FakeGroup, MemoryLog]:
    """Return a group and a log with these partitions."""
    return FakeGroup([tp(p) for p in ends]), MemoryLog(ends)


def test_nothing_is_joined_before_the_first_call() -> None:
    """Spark makes readers in planning workers too; those must not become members."""
    group, log = make({0: 5})

    Query(group, log)

    assert not group.members


def test_the_initial_offset_joins_and_says_the_same_twice() -> None:
    """Spark asks twice before the first batch."""
    group, log = make({0: 5})
    query = Query(group, log)

    assert query.core.initial_offset() == query.core.initial_offset() == {}
    assert len(group.members) == 1
    assert group.generation == 1


def test_a_batch_holds_at_most_the_limit_per_partition() -> None:
    """Batch size bounds the time that a rebalance waits."""
    group, log = make({0: 25, 1: 4})
    query = Query(group, log, max_rows=10)

    assert ranges(query.triggers(1)) == [(0, 0, 10), (1, 0, 4)]
    assert ranges(query.triggers(1)) == [(0, 10, 20)]
    assert ranges(query.triggers(1)) == [(0, 20, 25)]


def test_without_a_limit_a_batch_takes_all() -> None:
    """ReadAllAvailable must ignore the option."""
    group, log = make({0: 25_000})

    assert ranges(Query(group, log, max_rows=None).triggers(1)) == [(0, 0, 25_000)]


def test_the_end_offset_describes_itself() -> None:
    """A replay and a drain have nothing else to go by."""
    group, log = make({0: 5})
    query = Query(group, log, client_id="me")
    query.trigger()

    assert json.loads(query.checkpoint.offsets[0]) == {
        "flights-0": {"s": 0, "e": 5, "g": 1},
        "@": {
            "v": 1,
            "coordinator": "localhost:9310",
            "group": "g",
            "client_id": "me",
            "topics": ["flights"],
            "stateful": "fail",
        },
    }


def test_what_spark_finished_is_committed_on_the_next_trigger() -> None:
    """Spark's own commit() is a batch late and never comes for the last one."""
    group, log = make({0: 5})
    query = Query(group, log)
    query.trigger()
    assert group.offset(tp(0)) == 0

    assert not query.trigger()

    assert group.offset(tp(0)) == 5
    assert group.offsets[tp(0)].metadata == "gc1:5:0"


def test_commit_and_pin_are_one_request() -> None:
    """One fsync per batch, and never a committed offset without its pin."""
    group, log = make({0: 20})
    query = Query(group, log, max_rows=10)
    query.triggers(2)

    assert [dict(commit) for commit, _ in query.session.requests] == [
        {tp(0): (0, "gc1:10:0", -1)},
        {tp(0): (10, "gc1:20:0", -1)},
    ]
    assert [expected for _, expected in query.session.requests] == [{tp(0): -1}, {tp(0): 0}]


def test_an_idle_trigger_commits_nothing() -> None:
    """Spark triggers many times a second."""
    group, log = make({0: 5})
    query = Query(group, log)
    query.triggers(2)
    sent = len(query.session.requests)

    query.triggers(10)

    assert len(query.session.requests) == sent


def test_an_idle_reader_publishes_its_name_with_one_empty_batch() -> None:
    """A drain finds the reader in the last progress, which needs a batch to exist."""
    group, log = make({0: 0})
    query = Query(group, log, client_id="me")

    assert query.trigger()
    assert not query.trigger()

    end = decode_end(json.loads(query.checkpoint.offsets[0]))
    assert end.ranges == {}
    assert end.reader is not None
    assert end.reader.client_id == "me"


def test_a_member_without_partitions_returns_start() -> None:
    """More drivers than partitions is not an error."""
    group, log = make({0: 5})
    first = Query(group, log, client_id="a")
    first.trigger()
    second = Query(group, log, client_id="b", checkpoint=Checkpoint(["{}"], 1))
    for _ in range(3):
        second.trigger()
        first.trigger()

    assert second.sunk == []
    assert not second.trigger()


def test_a_rebalance_between_live_readers_repeats_nothing() -> None:
    """The promise for planned growth."""
    group, log = make({0: 40, 1: 40})
    first = Query(group, log, client_id="a")
    first.triggers(2)
    second = Query(group, log, client_id="b", checkpoint=Checkpoint(["{}"], 1))
    for _ in range(8):
        second.trigger()
        first.trigger()

    assert sorted(ranges(first.sunk + second.sunk)) == [
        (p, at, at + 10) for p in (0, 1) for at in (0, 10, 20, 30)
    ]
    assert ranges(second.sunk) != []


def test_partitions_are_given_away_only_between_batches() -> None:
    """A partition that moved inside of a batch would be written by two readers."""
    group, log = make({0: 40, 1: 40})
    first = Query(group, log, client_id="a")
    steps = first.steps()
    next(steps)  # Before latestOffset.
    next(steps)  # Planned, not yet run.
    second = Query(group, log, client_id="b", checkpoint=Checkpoint(["{}"], 1))
    second.trigger()

    assert group.rebalancing
    assert set(group.owners.values()) == {first.session.member_id}
    list(steps)
    assert group.rebalancing
    first.trigger()
    assert not group.rebalancing
    assert group.offset(tp(1)) == 10


def test_the_second_initial_offset_gives_nothing_away() -> None:
    """It comes between the first batch's plan and its start: its ranges would run twice."""
    group, log = make({0: 10, 1: 10})
    a, b = Query(group, log, client_id="a"), Query(group, log, client_id="b")
    start = a.core.initial_offset()
    end = a.core.latest_offset(start, 10)
    with pytest.raises(CoordinatorUnavailable):
        b.session.assignment()
    assert a.session.rebalance_needed

    assert a.core.initial_offset() == {}

    assert set(group.owners.values()) == {a.session.member_id}
    assert [task.tp for task in a.core.partitions(start, end)] == [tp(0), tp(1)]


def test_a_hand_over_commits_first_and_clears_the_pins() -> None:
    """A range that was planned but never started must not bind the next owner."""
    group, log = make({0: 40, 1: 40})
    first = Query(group, log, client_id="a")
    first.trigger()
    group.session("b").request_rejoin("")
    group.start_rebalance()
    first.trigger()

    metadata = [[v.metadata for v in commit.values()] for commit in group.commits]
    assert metadata == [["gc1:10:0"] * 2, ["gc1:10:0"] * 2, ["gc1:20:0"] * 2]


def test_a_new_owner_begins_with_exactly_the_pinned_range() -> None:
    """Ranges must be the same for every member, whatever its batch size is."""
    group, log = make({0: 40})
    crashed = Query(group, log, client_id="a", max_rows=25)
    crashed.trigger()
    group.evict(crashed.session)

    heir = Query(group, log, client_id="b", max_rows=10)

    assert ranges(heir.triggers(2)) == [(0, 0, 25), (0, 25, 35)]


def test_a_pinned_range_that_the_log_does_not_show_yet_waits() -> None:
    """A listing can lag on a network file system; a shorter range would be another key."""
    group, log = make({0: 5})
    group.reset(tp(0), 0, "gc1:8:0")
    query = Query(group, log)
    assert query.triggers(2) == []

    log.ends[0] = 9

    assert ranges(query.triggers(2)) == [(0, 0, 8), (0, 8, 9)]


def test_the_first_offset_may_be_the_latest() -> None:
    """What is in the log already is then nobody's business, also after a restart."""
    group, log = make({0: 40, 1: 0})
    query = Query(group, log, startingOffsets="latest")
    query.triggers(1)
    assert [group.offset(tp(p)) for p in (0, 1)] == [40, 0]

    log.ends.update({0: 42, 1: 3})

    assert ranges(query.triggers(1)) == [(0, 40, 42), (1, 0, 3)]


@pytest.mark.parametrize("latest_comes_first", [True, False])
def test_latest_does_not_skip_what_appears_while_the_group_works(latest_comes_first: bool) -> None:
    """The first rows of a new partition are as new as all others."""
    group, log = make({0: 40})
    query = Query(group, log, startingOffsets="latest")
    query.triggers(1)
    group.partitions.append(tp(1))
    log.starts[1], log.ends[1] = 0, 7
    if not latest_comes_first:  # Also a reader that first hears of the partition at its start.
        group.evict(query.session)
        query = Query(group, log, client_id="b", startingOffsets="latest")
    query.clock.now_s += 5

    assert ranges(query.triggers(2)) == [(1, 0, 7)]


def test_readers_that_start_together_all_begin_at_the_latest_offset() -> None:
    """Whoever commits second must not take the group for one that was at work before."""
    group, log = make({0: 40, 1: 40})
    a = Query(group, log, client_id="a", startingOffsets="latest")
    b = Query(group, log, client_id="b", startingOffsets="latest")
    b.session.assignment()

    def join_together() -> None:
        b.core.initial_offset()

    a.clock.on_sleep = join_together
    a.trigger()
    assert [group.offset(tp(p)) for p in (0, 1)] == [40, None]

    assert a.triggers(2) + b.triggers(2) == []
    assert [group.offset(tp(p)) for p in (0, 1)] == [40, 40]


def test_a_start_at_the_latest_offset_is_kept_before_a_hand_over() -> None:
    """The next owner joins a group that has offsets, and would begin at the log's start."""
    group, log = make({0: 40, 1: 40})
    first = Query(group, log, client_id="a", startingOffsets="latest")
    first.core.initial_offset()
    group.session("b").request_rejoin("")
    group.start_rebalance()
    log.ends.update({0: 50, 1: 50})

    first.core.latest_offset({}, 10)

    assert group.commits[0] == dict.fromkeys((tp(0), tp(1)), OffsetAndMetadata(50, "gc1:50:0"))


def test_rows_that_are_gone_end_the_query() -> None:
    """Going on silently would be loss."""
    group, log = make({0: 9})
    log.starts[0] = 5
    group.reset(tp(0), 3)
    query = Query(group, log)

    with pytest.raises(DataLossError, match=r"flights-0: offset 3 comes next.*onDataLoss"):
        query.trigger()


def test_a_log_that_ends_too_early_may_only_lag_for_a_while() -> None:
    """A new owner's file system may show less than the last owner's did."""
    group, log = make({0: 9})
    group.reset(tp(0), 12)
    query = Query(group, log)
    query.triggers(2)
    query.clock.now_s += LAG_MAX_S - 1
    assert query.triggers(1) == []

    log.ends[0] = 15

    assert ranges(query.triggers(1)) == [(0, 12, 15)]


def test_what_is_committed_is_not_committed_once_more_after_a_reset() -> None:
    """An operator who moves the group back while a reader is lost means that its rows run again."""
    group, log = make({0: 10})
    query = Query(group, log)
    query.triggers(2)
    assert group.offset(tp(0)) == 10
    group.evict(query.session)
    group.reset(tp(0), 0)

    assert ranges(query.triggers(1)) == [(0, 0, 10)]


def test_each_time_that_a_log_ends_too_early_is_a_lag_of_its_own() -> None:
    """Two short ones, far apart, are no loss."""
    group, log = make({0: 9})
    group.reset(tp(0), 12)
    query = Query(group, log)
    query.triggers(2)
    log.ends[0] = 15
    assert ranges(query.triggers(2)) == [(0, 12, 15)]
    query.clock.now_s += LAG_MAX_S

    log.ends[0] = 9
    assert query.triggers(1) == []
    log.ends[0] = 18

    assert ranges(query.triggers(1)) == [(0, 15, 18)]


def test_each_time_that_a_partition_is_gone_is_a_lag_of_its_own() -> None:
    """A listing that misses it now and then is no loss."""
    group, log = make({0: 9, 1: 9})
    query = Query(group, log, discoveryInterval="1h")
    query.triggers(2)
    end = log.ends.pop(1)
    query.triggers(1)
    log.ends[1] = end
    query.triggers(1)
    query.clock.now_s += LAG_MAX_S

    del log.ends[1]
    assert query.triggers(1) == []
    log.ends[1] = end + 5

    assert ranges(query.triggers(1)) == [(1, 9, 14)]


def test_a_log_that_stays_too_short_ends_the_query() -> None:
    """It was made anew, or cut: what comes next never comes."""
    group, log = make({0: 9})
    group.reset(tp(0), 12)
    query = Query(group, log)
    query.triggers(2)
    query.clock.now_s += LAG_MAX_S

    with pytest.raises(DataLossError, match="offset 12 comes next, but the log holds 0 to 9"):
        query.trigger()


def test_a_log_made_anew_is_read_from_its_start_on_request() -> None:
    """The raised counter tells sinks that the same bounds are other rows now."""
    group, log = make({0: 20})
    query = Query(group, log, failOnDataLoss="false")
    query.triggers(3)
    log.ends[0] = 8
    assert query.triggers(2) == []
    query.clock.now_s += LAG_MAX_S

    assert ranges(query.triggers(1)) == [(0, 0, 8)]
    assert group.offsets[tp(0)] == OffsetAndMetadata(0, "gc1:8:1")
    query.triggers(1)
    assert group.offsets[tp(0)] == OffsetAndMetadata(8, "gc1:8:1")


def test_what_is_finished_is_committed_before_a_shorter_log_is_judged() -> None:
    """Its rows are in the sink, whatever became of the log."""
    group, log = make({0: 20})
    query = Query(group, log)
    query.trigger()
    log.ends[0] = 8

    query.trigger()

    assert group.offset(tp(0)) == 10


def test_rows_that_are_gone_can_be_skipped_on_request() -> None:
    """An operator who knows may say so."""
    group, log = make({0: 9})
    log.starts[0] = 5
    group.reset(tp(0), 3, "gc1:7:0")
    query = Query(group, log, failOnDataLoss="false")

    assert ranges(query.triggers(1)) == [(0, 5, 9)]


def test_new_partitions_of_a_topic_are_shared_out() -> None:
    """Nobody else watches the topic."""
    group, log = make({0: 5})
    query = Query(group, log)
    query.triggers(2)
    group.partitions.append(tp(1))
    log.ends[1] = 5
    log.starts[1] = 0
    assert query.triggers(2) == []
    query.clock.now_s += 5

    assert ranges(query.triggers(2)) == [(1, 0, 5)]
    assert query.session.rejoins == ["the topics' partitions changed"]


def test_a_long_batch_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """Past the rebalance timeout the group evicts a healthy reader."""
    group, log = make({0: 50})
    query = Query(group, log)
    query.trigger()
    query.clock.now_s += 29
    query.trigger()
    assert "rebalanceTimeout" not in caplog.text

    query.clock.now_s += 31
    query.trigger()

    assert "31.0 s between two triggers" in caplog.text


def test_stop_leaves_the_group_and_may_come_before_any_join() -> None:
    """Spark stops readers that it never used."""
    group, log = make({0: 5})
    query = Query(group, log)
    query.core.stop()
    query.trigger()

    query.core.stop()
    query.core.stop()

    assert not group.members


def test_the_progress_shows_the_ends_of_what_we_own() -> None:
    """For lag in Spark's own reports."""
    group, log = make({0: 50, 1: 7})
    query = Query(group, log)
    assert query.core.report_latest() is None

    query.trigger()

    assert query.core.report_latest() == {"flights-0": 50, "flights-1": 7}


def test_an_equal_range_in_a_group_made_anew_is_still_a_new_batch() -> None:
    """Spark takes an equal offset for "nothing new"."""
    group, log = make({0: 5})
    query = Query(group, log)
    query.trigger()
    group.evict(query.session)
    group.offsets.clear()
    group.generation = 0

    query.trigger()

    assert query.trigger() is False
    assert ranges(query.sunk) == [(0, 0, 5), (0, 0, 5)]


def test_the_range_of_a_task_carries_its_generation() -> None:
    """It is a column of every row."""
    group, log = make({0: 5})
    core: ReaderCore = Query(group, log).core

    (task,) = core.partitions({}, core.latest_offset(core.initial_offset(), 10))

    assert task.range == Range(0, 5, 1)
    assert options().group == "g"
