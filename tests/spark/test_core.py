"""The reader core in the order in which Spark calls it, with one reader or a few."""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from client.exceptions import CoordinatorUnavailable, FatalError
from client.offsets import OffsetAndMetadata
from client.spark.errors import (
    CoordinatedSourceError,
    CoordinatorTimeout,
    DataLossError,
    FencedError,
)
from client.spark.source.core import ReaderCore
from client.spark.source.log_calls import LAG_MAX_S
from client.spark.source.planning import Limits, Position, Seen, plan_partition
from client.spark.source.stream_offsets import Range, decode_end
from protocol.errors import ErrorCode
from protocol.partition import TopicPartition
from tests.fakes.group_session import FakeGroup, FakeSession, Fault
from tests.spark.helpers import Checkpoint, MemoryLog, Query, group_and_log, options, ranges, tp


def test_nothing_is_joined_before_the_first_call() -> None:
    """Spark makes readers in planning workers too; those must not become members."""
    group, log = group_and_log({0: 5})

    Query(group, log)

    assert not group.members


def test_the_initial_offset_joins_and_says_the_same_twice() -> None:
    """Spark asks twice before the first batch."""
    group, log = group_and_log({0: 5})
    query = Query(group, log)

    assert query.core.initial_offset() == query.core.initial_offset() == {}
    assert len(group.members) == 1
    assert group.generation == 1


def test_a_batch_holds_at_most_the_limit_per_partition() -> None:
    """Batch size bounds the time that a rebalance waits."""
    group, log = group_and_log({0: 25, 1: 4})
    query = Query(group, log, max_rows=10)

    assert ranges(query.triggers(1)) == [(0, 0, 10), (1, 0, 4)]
    assert ranges(query.triggers(1)) == [(0, 10, 20)]
    assert ranges(query.triggers(1)) == [(0, 20, 25)]


def test_without_a_limit_a_batch_takes_all() -> None:
    """ReadAllAvailable must ignore the option."""
    group, log = group_and_log({0: 25_000})

    assert ranges(Query(group, log, max_rows=None).triggers(1)) == [(0, 0, 25_000)]


def test_the_end_offset_describes_itself() -> None:
    """A replay and a drain have nothing else to go by."""
    group, log = group_and_log({0: 5})
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
            "cluster": "cluster-1",
            "generation": 1,
            "at": {"flights": {"0": [0, "gc1:5:0"]}},
        },
    }


def test_what_spark_finished_is_committed_on_the_next_trigger() -> None:
    """Spark's own commit() is a batch late and never comes for the last one."""
    group, log = group_and_log({0: 5})
    query = Query(group, log)
    query.trigger()
    assert group.offset(tp(0)) == 0

    assert not query.trigger()

    assert group.offset(tp(0)) == 5
    assert group.offsets[tp(0)].metadata == "gc1:5:0"


def test_commit_and_pin_are_one_request() -> None:
    """One fsync per batch, and never a committed offset without its pin."""
    group, log = group_and_log({0: 20})
    query = Query(group, log, max_rows=10)
    query.triggers(2)

    assert [dict(commit) for commit, _ in query.session.requests] == [
        {tp(0): (0, "gc1:10:0", -1)},
        {tp(0): (10, "gc1:20:0", -1)},
    ]
    assert [expected for _, expected in query.session.requests] == [{tp(0): -1}, {tp(0): 0}]


def test_an_idle_trigger_commits_nothing() -> None:
    """Spark triggers many times a second."""
    group, log = group_and_log({0: 5})
    query = Query(group, log)
    query.triggers(2)
    sent = len(query.session.requests)

    query.triggers(10)

    assert len(query.session.requests) == sent


def test_an_idle_reader_publishes_its_name_with_one_empty_batch() -> None:
    """A drain finds the reader in the last progress, which needs a batch to exist."""
    group, log = group_and_log({0: 0})
    query = Query(group, log, client_id="me")

    assert query.trigger()
    assert not query.trigger()

    end = decode_end(json.loads(query.checkpoint.offsets[0]))
    assert end.ranges == {}
    assert end.reader is not None
    assert end.reader.client_id == "me"


def test_a_member_without_partitions_returns_start() -> None:
    """More drivers than partitions is not an error."""
    group, log = group_and_log({0: 5})
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
    group, log = group_and_log({0: 40, 1: 40})
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
    group, log = group_and_log({0: 40, 1: 40})
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
    group, log = group_and_log({0: 10, 1: 10})
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
    group, log = group_and_log({0: 40, 1: 40})
    first = Query(group, log, client_id="a")
    first.trigger()
    group.session("b").request_rejoin("")
    group.start_rebalance()
    first.trigger()

    metadata = [[v.metadata for v in commit.values()] for commit in group.commits]
    assert metadata == [["gc1:10:0"] * 2, ["gc1:10:0"] * 2, ["gc1:20:0"] * 2]


def test_a_new_owner_begins_with_exactly_the_pinned_range() -> None:
    """Ranges must be the same for every member, whatever its batch size is."""
    group, log = group_and_log({0: 40})
    crashed = Query(group, log, client_id="a", max_rows=25)
    crashed.trigger()
    group.evict(crashed.session)

    heir = Query(group, log, client_id="b", max_rows=10)

    assert ranges(heir.triggers(2)) == [(0, 0, 25), (0, 25, 35)]


def test_a_pinned_range_that_the_log_does_not_show_yet_waits() -> None:
    """A listing can lag on a network file system; a shorter range would be another key."""
    group, log = group_and_log({0: 5})
    group.reset(tp(0), 0, "gc1:8:0")
    query = Query(group, log)
    assert query.triggers(2) == []

    log.ends[0] = 9

    assert ranges(query.triggers(2)) == [(0, 0, 8), (0, 8, 9)]


def test_the_first_offset_may_be_the_latest() -> None:
    """What is in the log already is then nobody's business, also after a restart."""
    group, log = group_and_log({0: 40, 1: 0})
    query = Query(group, log, startingOffsets="latest")
    query.triggers(1)
    assert [group.offset(tp(p)) for p in (0, 1)] == [40, 0]

    log.ends.update({0: 42, 1: 3})

    assert ranges(query.triggers(1)) == [(0, 40, 42), (1, 0, 3)]


@pytest.mark.parametrize("latest_comes_first", [True, False])
def test_latest_does_not_skip_what_appears_while_the_group_works(latest_comes_first: bool) -> None:
    """The first rows of a new partition are as new as all others."""
    group, log = group_and_log({0: 40})
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
    group, log = group_and_log({0: 40, 1: 40})
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
    group, log = group_and_log({0: 40, 1: 40})
    first = Query(group, log, client_id="a", startingOffsets="latest")
    first.core.initial_offset()
    group.session("b").request_rejoin("")
    group.start_rebalance()
    log.ends.update({0: 50, 1: 50})

    first.core.latest_offset({}, 10)

    assert group.commits[0] == dict.fromkeys((tp(0), tp(1)), OffsetAndMetadata(50, "gc1:50:0"))


def test_rows_that_are_gone_end_the_query() -> None:
    """Going on silently would be loss."""
    group, log = group_and_log({0: 9})
    log.starts[0] = 5
    group.reset(tp(0), 3)
    query = Query(group, log)

    with pytest.raises(DataLossError, match=r"flights-0: offset 3 comes next.*onDataLoss"):
        query.trigger()


def test_a_log_that_ends_too_early_may_only_lag_for_a_while() -> None:
    """A new owner's file system may show less than the last owner's did."""
    group, log = group_and_log({0: 9})
    group.reset(tp(0), 12)
    query = Query(group, log)
    query.triggers(2)
    query.clock.now_s += LAG_MAX_S - 1
    assert query.triggers(1) == []

    log.ends[0] = 15

    assert ranges(query.triggers(1)) == [(0, 12, 15)]


def test_what_is_committed_is_not_committed_once_more_after_a_reset() -> None:
    """An operator who moves the group back while a reader is lost means that its rows run again."""
    group, log = group_and_log({0: 10})
    query = Query(group, log)
    query.triggers(2)
    assert group.offset(tp(0)) == 10
    group.evict(query.session)
    group.reset(tp(0), 0)

    assert ranges(query.triggers(1)) == [(0, 0, 10)]


def test_each_time_that_a_log_ends_too_early_is_a_lag_of_its_own() -> None:
    """Two short ones, far apart, are no loss."""
    group, log = group_and_log({0: 9})
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
    group, log = group_and_log({0: 9, 1: 9})
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
    group, log = group_and_log({0: 9})
    group.reset(tp(0), 12)
    query = Query(group, log)
    query.triggers(2)
    query.clock.now_s += LAG_MAX_S

    with pytest.raises(DataLossError, match="offset 12 comes next, but the log holds 0 to 9"):
        query.trigger()


def test_a_log_made_anew_is_read_from_its_start_on_request() -> None:
    """The raised counter tells sinks that the same bounds are other rows now."""
    group, log = group_and_log({0: 20})
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
    group, log = group_and_log({0: 20})
    query = Query(group, log)
    query.trigger()
    log.ends[0] = 8

    query.trigger()

    assert group.offset(tp(0)) == 10


def test_rows_that_are_gone_can_be_skipped_on_request() -> None:
    """An operator who knows may say so."""
    group, log = group_and_log({0: 9})
    log.starts[0] = 5
    group.reset(tp(0), 3, "gc1:7:0")
    query = Query(group, log, failOnDataLoss="false")

    assert ranges(query.triggers(1)) == [(0, 5, 9)]


def test_new_partitions_of_a_topic_are_shared_out() -> None:
    """Nobody else watches the topic."""
    group, log = group_and_log({0: 5})
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
    group, log = group_and_log({0: 50})
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
    group, log = group_and_log({0: 5})
    query = Query(group, log)
    query.core.stop()
    query.trigger()

    query.core.stop()
    query.core.stop()

    assert not group.members


def test_the_progress_shows_the_ends_of_what_we_own() -> None:
    """For lag in Spark's own reports."""
    group, log = group_and_log({0: 50, 1: 7})
    query = Query(group, log)
    assert query.core.report_latest() is None

    query.trigger()

    assert query.core.report_latest() == {"flights-0": 50, "flights-1": 7}


def test_an_equal_range_in_a_group_made_anew_is_still_a_new_batch() -> None:
    """Spark takes an equal offset for "nothing new"."""
    group, log = group_and_log({0: 5})
    query = Query(group, log, onGroupLoss="startingOffsets")
    query.trigger()
    group.evict(query.session)
    group.offsets.clear()
    group.generation = 0

    query.trigger()

    assert query.trigger() is False
    assert ranges(query.sunk) == [(0, 0, 5), (0, 0, 5)]


def test_the_range_of_a_task_carries_its_generation() -> None:
    """It is a column of every row."""
    group, log = group_and_log({0: 5})
    core: ReaderCore = Query(group, log).core

    (task,) = core.partitions({}, core.latest_offset(core.initial_offset(), 10))

    assert task.range == Range(0, 5, 1)
    assert options().group == "g"


# --- Batches that were planned before ------------------------------------------------------


def test_a_replay_of_an_uncommitted_batch_runs_it_again() -> None:
    """The sink may have seen none or all of it; at-least-once needs it again, as it was."""
    group, log = group_and_log({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.triggers(1)
    crashed.crash_before_commit_log()
    log.ends[0] = 60

    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)

    assert ranges(again.triggers(3)) == [(0, 0, 10), (0, 10, 20), (0, 20, 30)]
    assert group.offset(tp(0)) == 20


def test_a_replay_skips_what_the_group_is_past() -> None:
    """Another reader took over and committed; running the range again adds duplicates only."""
    group, log = group_and_log({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    crashed.crash_before_commit_log()
    group.reset(tp(0), 10, "gc1:20:0")

    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)

    assert ranges(again.triggers(1)) == []
    assert ranges(again.triggers(1)) == [(0, 10, 20)]


def test_a_replay_skips_what_is_not_ours() -> None:
    """Its owner will run it, with the same bounds."""
    group, log = group_and_log({0: 40})
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
    group, log = group_and_log({0: 20})
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
    group, log = group_and_log({0: 40})
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
    group, log = group_and_log({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    crashed.crash_before_commit_log()
    group.reset(tp(0), 0, "gc1:5:0")

    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)

    assert ranges(again.triggers(2)) == [(0, 0, 5)]


def test_a_replay_after_a_reset_is_committed() -> None:
    """It was planned under the counter of resets that the pin has."""
    group, log = group_and_log({0: 40})
    group.reset(tp(0), 0, "gc1:0:3")
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    crashed.crash_before_commit_log()

    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)

    assert ranges(again.triggers(2)) == [(0, 0, 10), (0, 10, 20)]
    assert group.offsets[tp(0)].metadata == "gc1:20:3"


def test_a_restart_after_the_commit_log_runs_at_most_that_batch_again() -> None:
    """Spark finished it, the coordinator never heard of it: the coordinator's position counts."""
    group, log = group_and_log({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    group.evict(crashed.session)

    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint, max_rows=7)

    assert ranges(again.triggers(2)) == [(0, 0, 10), (0, 10, 17)]


def test_a_batch_with_news_of_another_source_only_runs_nothing_of_ours() -> None:
    """In a union start equals end; the end offset still holds the last ranges."""
    group, log = group_and_log({0: 5})
    query = Query(group, log)
    query.triggers(2)
    last = json.loads(query.checkpoint.offsets[-1])

    assert query.core.partitions(last, last) == []


def test_the_same_batch_may_be_planned_twice() -> None:
    """A sink with two actions, or a union with itself."""
    group, log = group_and_log({0: 5})
    query = Query(group, log)
    end = query.core.latest_offset(query.core.initial_offset(), 10)

    assert query.core.partitions({}, end) == query.core.partitions({}, end) != []


def test_a_batch_that_was_never_planned_is_refused() -> None:
    """It would be run without a pin."""
    group, log = group_and_log({0: 5})
    query = Query(group, log)
    query.trigger()

    with pytest.raises(CoordinatedSourceError, match="did not plan"):
        query.core.partitions({}, {"flights-0": {"s": 7, "e": 9, "g": 1}})


def test_a_planned_batch_that_spark_did_not_run_is_planned_again() -> None:
    """Only what was run may be committed."""
    group, log = group_and_log({0: 40})
    query = Query(group, log)
    start = query.core.initial_offset()
    first = query.core.latest_offset(start, 10)

    assert query.core.latest_offset(start, 33) == first
    assert group.offset(tp(0)) == 0


def test_a_foreign_checkpoint_is_named_as_such() -> None:
    """Two queries on one checkpoint corrupt each other."""
    group, log = group_and_log({0: 0})
    foreign = Checkpoint(['{"flights": {"0": 20}}'], 1)
    query = Query(group, log, checkpoint=foreign)

    with pytest.raises(ValueError, match="checkpoint of its own"):
        query.trigger()


# --- Streams that begin at a time ----------------------------------------------------------


class TimedLog(MemoryLog):
    """The row with offset n was written at n seconds."""

    def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the first offset of that second or later."""
        return {
            asked: max(
                self.starts[asked.partition], min(-(-timestamp_ms // 1000), self._end(asked))
            )
            for asked in partitions
        }

    def _end(self, asked: TopicPartition) -> int:
        return self.ends[asked.partition]


def test_partitions_without_an_offset_begin_at_the_time() -> None:
    """Those with one go on; one without so late a row begins at its end, for good."""
    log, group = TimedLog({0: 20, 1: 5}), FakeGroup([tp(0), tp(1)])
    query = Query(group, log, startingTimestamp="12000")

    assert ranges(query.triggers(2)) == [(0, 12, 20)]
    log.ends = {0: 21, 1: 8}
    assert ranges(query.triggers(1)) == [(0, 20, 21), (1, 5, 8)]

    restarted = Query(group, log, client_id="b", startingTimestamp="0")
    query.core.stop()
    log.ends = {0: 22, 1: 8}
    assert ranges(restarted.triggers(2))[-1] == (0, 21, 22)


def test_a_start_before_the_log_is_the_logs_start() -> None:
    """Old rows are gone; that is no loss to a group that never had them."""
    log, group = TimedLog({0: 20}), FakeGroup([tp(0)])
    log.starts[0] = 15

    assert ranges(Query(group, log, startingTimestamp="3000").triggers(2)) == [(0, 15, 20)]


def test_a_log_without_times_ends_the_query_and_says_so() -> None:
    """Beginning anywhere else would be wrong."""
    query = Query(FakeGroup([tp(0)]), MemoryLog({0: 3}), startingTimestamp="3000")

    with pytest.raises(CoordinatedSourceError, match="doesn't know when its rows were written"):
        query.triggers(2)


@settings(deadline=None)
@given(
    found=st.integers(0, 30),
    earliest=st.integers(0, 10),
    rows=st.integers(0, 10),
    stored=st.none() | st.integers(0, 20),
)
def test_a_time_only_counts_where_nothing_is_stored(
    found: int, earliest: int, rows: int, stored: int | None
) -> None:
    """And never outside of what the log holds."""
    seen = Seen(earliest, earliest + rows)
    position = Position(None)
    if stored is not None:
        at = min(max(stored, seen.earliest), seen.end)
        position = Position.pinned(at, at, 0, "")
    limits = Limits(None, None, (), "error", start_at={tp(0): found})

    step = plan_partition(tp(0), position, None, seen, limits)

    expected = position.offset if position.offset is not None else found
    assert step.at == min(max(expected, seen.earliest), seen.end)
    assert step.stop == seen.end
    assert step.needs.offset == step.at  # So that nobody else begins elsewhere.


# --- Readers that come into a group at work ------------------------------------------------


@pytest.fixture
def group() -> FakeGroup:
    """A group of two partitions."""
    return FakeGroup([tp(0), tp(1)])


@pytest.fixture
def log() -> MemoryLog:
    """A log with rows for many batches."""
    return MemoryLog({0: 100, 1: 100})


def at_work(group: FakeGroup, log: MemoryLog, **given: Any) -> Query:
    """Return a reader that has read a batch of both partitions."""
    query = Query(group, log, client_id="at-work", **given)
    assert query.trigger()
    return query


def test_the_first_batch_has_no_rows_while_others_read(group: FakeGroup, log: MemoryLog) -> None:
    """Compiling takes Spark seconds, in which nobody should wait for this reader's partitions."""
    other = at_work(group, log)
    new = Query(group, log, client_id="new", warms_up=True)

    assert new.trigger()

    assert (new.core.warming_up, new.sunk, len(group.members)) == (True, [], 1)
    assert ranges(other.triggers(1)) == [(0, 10, 20), (1, 10, 20)]


def test_the_second_batch_joins(group: FakeGroup, log: MemoryLog) -> None:
    """It goes on where the group is."""
    other = at_work(group, log)
    new = Query(group, log, client_id="new", warms_up=True)
    new.trigger()

    for _ in range(4):
        new.trigger()
        other.trigger()

    assert not new.core.warming_up
    assert new.sunk
    assert len(group.members) == 2
    written = sorted(ranges(new.sunk + other.sunk))
    assert len(written) == len(set(written))


def test_who_is_alone_begins_at_once(group: FakeGroup, log: MemoryLog) -> None:
    """Nobody else reads meanwhile."""
    new = Query(group, log, warms_up=True)

    assert ranges(new.triggers(1)) == [(0, 0, 10), (1, 0, 10)]


def test_a_static_reader_whose_place_waits_for_it_begins_at_once(
    group: FakeGroup, log: MemoryLog
) -> None:
    """Its partitions are nobody else's until its session ends."""
    at_work(group, log, groupInstanceId="me")
    new = Query(group, log, client_id="new", warms_up=True, groupInstanceId="me")

    assert ranges(new.triggers(1)) == [(0, 0, 10), (1, 0, 10)]


def test_a_replay_is_warm_enough(group: FakeGroup, log: MemoryLog) -> None:
    """A reader that takes up a batch has started its workers with it."""
    old = at_work(group, log)
    for place in old.steps():
        if len(old.checkpoint.offsets) > old.checkpoint.commits:
            assert place is None
            break
    group.evict(old.session)
    new = Query(group, log, client_id="new", checkpoint=old.checkpoint, warms_up=True)

    assert ranges(new.triggers(2)) == [(0, 10, 20), (1, 10, 20), (0, 20, 30), (1, 20, 30)]


def test_a_reader_that_was_killed_is_no_other(group: FakeGroup, log: MemoryLog) -> None:
    """It is a member until its session ends, and with a long interval nobody would read for one."""
    killed = at_work(group, log)
    again = Query(group, log, client_id="again", checkpoint=killed.checkpoint, warms_up=True)

    again.trigger()

    assert not again.core.warming_up


def test_a_batch_without_rows_is_replayed_as_one(group: FakeGroup, log: MemoryLog) -> None:
    """The driver may die in it; whoever takes it up joins, and is then idle in an outage."""
    other = at_work(group, log)
    died = Query(group, log, client_id="died", warms_up=True)
    for _ in zip(range(4), died.steps(), strict=False):
        pass  # Up to the log of the batch, before its sink.
    assert (len(died.checkpoint.offsets), died.checkpoint.commits) == (1, 0)
    again = Query(group, log, client_id="again", checkpoint=died.checkpoint, warms_up=True)

    def let_the_other_go_on() -> None:
        other.trigger()

    again.clock.on_sleep = let_the_other_go_on

    assert again.trigger()

    assert (again.sunk, len(group.members)) == ([], 2)
    group.evict(again.session)
    group.outage = True
    assert not again.trigger()
    group.outage = False
    again.triggers(2)
    assert again.sunk


def test_an_outage_is_waited_for_as_ever(group: FakeGroup, log: MemoryLog) -> None:
    """Whether others read is not known then, and joining says why it can't go on."""
    at_work(group, log)
    new = Query(group, log, client_id="new", warms_up=True)
    assert new.trigger()
    group.outage = True
    late = Query(group, log, client_id="late", warms_up=True, coordinatorTimeout="46s")

    with pytest.raises(Exception, match=r"in vain for the first assignment \(option 'coord"):
        late.trigger()


def test_available_now_does_not_warm_up(group: FakeGroup, log: MemoryLog) -> None:
    """A batch without rows would look like the end."""
    new = Query(group, log, warms_up=True)
    new.core.prepare_available_now()  # It is a member that reads from here on, and sees itself.

    assert ranges(new.triggers(1)) == [(0, 0, 10), (1, 0, 10)]


def test_a_partition_that_the_log_lost_is_missed_before_the_warm_up(
    group: FakeGroup, log: MemoryLog
) -> None:
    """The end of the batch without rows names no partition: a restart would miss nothing."""
    old = at_work(group, log)
    group.evict(old.session)
    group.partitions.remove(tp(1))
    at_work(group, MemoryLog({0: 100}))
    checkpoint = old.checkpoint

    for _ in range(2):
        new = Query(group, MemoryLog({0: 100}), checkpoint=checkpoint, warms_up=True)
        with pytest.raises(DataLossError, match="flights-1"):
            new.trigger()


def test_a_description_that_is_refused_ends_no_query(
    group: FakeGroup, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether others read is a hint; joining says what is really wrong."""
    new = Query(group, log, warms_up=True)

    def refuse(_before: str) -> bool:
        raise FatalError("the answer would be too large")

    monkeypatch.setattr(new.session, "others_read", refuse)

    assert ranges(new.triggers(1)) == [(0, 0, 10), (1, 0, 10)]


def test_a_long_warm_up_is_no_long_batch(
    group: FakeGroup, log: MemoryLog, caplog: pytest.LogCaptureFixture
) -> None:
    """No rebalance waits for a reader that hasn't joined."""
    at_work(group, log)
    new = Query(group, log, client_id="new", warms_up=True)
    new.trigger()
    new.clock.now_s += 59

    new.trigger()

    assert "between two triggers" not in caplog.text


# --- Cooperative and static readers, and patterns ------------------------------------------


def reader(group: FakeGroup, log: MemoryLog, client_id: str = "a", **given: Any) -> Query:
    """Return a cooperative reader that has published its name."""
    return Query(
        group,
        log,
        checkpoint=Checkpoint(["{}"], 1),
        client_id=client_id,
        max_rows=10,
        **{"assignor": "cooperative", **given},
    )


def newcomer(group: FakeGroup) -> FakeSession:
    """Return a member that waits for its first assignment."""
    session = group.session("new", cooperative=True)
    group.join(session)
    return session


def test_what_is_kept_is_read_while_the_group_waits_for_others() -> None:
    """A member inside of a long batch holds up the rebalance, but nobody else."""
    group, log = group_and_log({0: 100, 1: 100})
    slow, quick = reader(group, log, "a"), reader(group, log, "b")
    for _ in range(4):
        slow.trigger()
        quick.trigger()
    (kept,) = {task.tp for task in quick.triggers(1)}
    newcomer(group)
    assert group.rebalancing

    written = ranges(quick.triggers(3))

    assert group.rebalancing  # Still waits for the slow one.
    first = written[0][1]
    assert written == [(kept.partition, at, at + 10) for at in (first, first + 10, first + 20)]


def test_what_goes_is_committed_before_it_is_given_up() -> None:
    """Its next owner has to begin where we ended, in a range of its own size."""
    group, log = group_and_log({0: 100, 1: 100})
    query = reader(group, log)
    query.triggers(2)
    newcomer(group)

    query.trigger()  # Joins, and reads both while it does.
    assert group.generation == 2
    gone = tp(1)
    assert ranges(query.sunk[-2:]) == [(0, 20, 30), (1, 20, 30)]
    assert gone not in group.owners

    query.trigger()  # Hears what goes.

    assert group.offsets[gone][:2] == (30, "gc1:30:0")
    assert ranges(query.sunk[-1:]) == [(0, 30, 40)]
    assert query.session.claim().owned == (tp(0),)


def test_what_goes_stays_ours_until_its_commit_is_certain() -> None:
    """Given up before, its last range would run twice."""
    group, log = group_and_log({0: 100, 1: 100})
    query = reader(group, log)
    query.trigger()
    newcomer(group)
    query.trigger()
    group.faults = [Fault.REQUEST_LOST] * 3
    before = group.generation

    assert query.triggers(3) == []
    assert query.session.claim().owned == (tp(0), tp(1))
    assert group.offset(tp(1)) == 10

    query.trigger()
    assert group.offset(tp(1)) == 20
    assert query.session.claim().owned == (tp(0),)
    assert group.generation == before


def test_positions_of_kept_partitions_are_not_fetched_again() -> None:
    """With a thousand partitions that would cost more than the batch."""
    group, log = group_and_log({0: 100, 1: 100, 2: 100})
    query = reader(group, log)
    query.trigger()
    assert query.session.fetched == [[tp(0), tp(1), tp(2)]]
    one = reader(group, log, "b")
    for _ in range(5):
        one.trigger()
        query.trigger()
    given = set(one.session.fetched[0])
    group.evict(one.session)
    query.triggers(2)

    assert [set(tps) for tps in query.session.fetched[1:]] == [given]


def test_a_loss_that_no_heartbeat_told_of_makes_positions_uncertain() -> None:
    """The heir may have moved them; a range that we had pinned needs no commit to be run."""
    group, log = group_and_log({0: 100})
    query = reader(group, log)
    start = query.core.initial_offset()
    query.core.latest_offset(start, 10)  # Planned and pinned, but Spark doesn't run it.
    query.session.swift = query.session.asked = True
    group.evict(query.session, noticed=False)
    group.reset(tp(0), 40, "gc1:45:0")

    assert ranges(query.triggers(3)) == [(0, 40, 45), (0, 45, 55), (0, 55, 65)]
    assert query.session.losses == 1


def test_a_loss_between_two_triggers_makes_positions_uncertain() -> None:
    """The client may have joined again by itself, so that nothing else tells of it."""
    group, log = group_and_log({0: 100})
    query = reader(group, log)
    query.core.latest_offset(query.core.initial_offset(), 10)  # Pinned, and not run.
    query.session.losses += 1
    group.reset(tp(0), 40, "gc1:45:0")

    assert ranges(query.triggers(2)) == [(0, 40, 45), (0, 45, 55)]


@pytest.mark.parametrize("waits", [False, True])
def test_a_loss_within_the_hand_over_ends_the_query_where_that_is_asked_for(waits: bool) -> None:
    """It is as much a fence as one that a heartbeat tells of, also if the join has to wait."""
    group, log = group_and_log({0: 10})
    query = reader(group, log, onFence="fail")
    query.triggers(3)
    query.session.swift = query.session.asked = True
    group.evict(query.session, noticed=False)
    if waits:
        other = newcomer(group)
        other.deaf = True
        assert query.triggers(1) == []
        group.evict(other)

    with pytest.raises(FencedError, match="onFence"):
        query.trigger()


@pytest.mark.parametrize("assignor", ["cooperative", "range"])
def test_an_idle_reader_that_was_removed_is_fenced_as_well(assignor: str) -> None:
    """There is no commit that would tell it."""
    group, log = group_and_log({0: 10})
    query = reader(group, log, onFence="fail", assignor=assignor)
    query.triggers(3)
    group.evict(query.session)

    with pytest.raises(FencedError, match="onFence"):
        query.trigger()


def test_a_member_without_partitions_may_be_removed_where_a_fence_ends_the_query() -> None:
    """Nothing of it can run twice."""
    group, log = group_and_log({0: 100})
    a, b = reader(group, log, "a"), reader(group, log, "b", onFence="fail")
    for _ in range(4):
        a.trigger()
        b.trigger()
    idle = a if not a.session.claim().owned else b
    assert idle is b
    group.evict(b.session)

    assert b.triggers(1) == []


def test_a_frozen_reader_does_not_run_what_its_heir_has_pinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fetch isn't fenced: only a commit shows that the group still counts on us."""
    group, log = group_and_log({0: 100})
    frozen = reader(group, log, "frozen")
    heir = reader(group, log, "heir")
    fetch = frozen.session.fetch

    def freeze(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, object]:
        if not heir.session.member_id:
            group.evict(frozen.session, noticed=False)
            heir.trigger()
        return fetch(partitions)

    monkeypatch.setattr(frozen.session, "fetch", freeze)

    assert frozen.triggers(1) == []
    assert ranges(heir.sunk) == [(0, 0, 10)]


def test_a_replay_does_not_run_what_its_heir_has_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, where no batch has been planned yet."""
    group, log = group_and_log({0: 100})
    crashed = reader(group, log, "crashed")
    crashed.trigger()
    crashed.crash_before_commit_log()
    again = Query(group, log, client_id="z", checkpoint=crashed.checkpoint, assignor="cooperative")
    heir = reader(group, log, "heir")
    fetch = again.session.fetch

    def freeze(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, object]:
        if not heir.session.member_id:
            group.evict(again.session, noticed=False)
            heir.trigger()
        return fetch(partitions)

    monkeypatch.setattr(again.session, "fetch", freeze)

    def heir_goes_on() -> None:
        heir.trigger()

    again.clock.on_sleep = heir_goes_on

    assert again.triggers(1) == []
    assert ranges(heir.sunk)[0] == (0, 0, 10)


def test_a_drained_cooperative_reader_commits_and_owns_nothing() -> None:
    """Letting go takes two rounds; the drain is over after the second."""
    group, log = group_and_log({0: 100})
    query = reader(group, log, "me")
    query.trigger()
    assert not group.drain("me")

    query.triggers(4)

    assert group.drain("me")
    last = max(end for _, _, end in ranges(query.sunk))
    assert group.offsets[tp(0)][:2] == (last, f"gc1:{last}:0")


def test_eager_and_cooperative_readers_share_a_group() -> None:
    """Readers are replaced one by one when they change from one to the other."""
    group, log = group_and_log({0: 60, 1: 60})
    old = reader(group, log, "old", assignor="cooperative,range")
    new = reader(group, log, "new")
    for _ in range(14):
        new.trigger()
        old.trigger()

    both = sorted(ranges(old.sunk + new.sunk))
    assert both == [(p, at, at + 10) for p in (0, 1) for at in range(0, 60, 10)]
    assert old.sunk != []
    assert new.sunk != []


def test_available_now_hands_over_everything_at_a_rebalance() -> None:
    """What moves in two rounds is nobody's in between, and would look like nothing left."""
    group, log = group_and_log({0: 30, 1: 30})
    query = reader(group, log)
    query.core.prepare_available_now()

    assert not query.session.cooperative
    query.triggers(1)
    newcomer(group)
    query.clock.on_sleep = lambda: group.go_on_without(query.session)
    query.triggers(1)
    assert query.session.claim().owned == ()


def test_available_now_may_be_asked_for_after_the_join() -> None:
    """Spark's order of calls is not promised."""
    group, log = group_and_log({0: 20})
    query = reader(group, log)
    query.core.initial_offset()
    first = query.session
    assert first.cooperative

    query.core.prepare_available_now()

    assert (first.left, query.session.cooperative) == (True, False)
    assert ranges(query.triggers(3)) == [(0, 0, 10), (0, 10, 20)]


def test_a_static_reader_comes_back_without_a_rebalance() -> None:
    """That is what it is for."""
    group, log = group_and_log({0: 100, 1: 100})
    other = reader(group, log, "other", groupInstanceId="o")
    old = reader(group, log, "old", groupInstanceId="me")
    for _ in range(4):
        other.trigger()
        old.trigger()
    before = group.generation
    owned = old.session.claim().owned
    old.core.stop()
    assert set(group.instances) == {"o", "me"}

    new = reader(group, log, "new", groupInstanceId="me")
    new.triggers(2)
    other.triggers(2)

    assert group.generation == before
    assert new.session.claim().owned == owned
    assert {task.tp for task in new.sunk} == set(owned)


def test_a_static_reader_that_was_left_behind_is_fenced() -> None:
    """It keeps its place, but not its partitions: others may have run its batch."""
    group, log = group_and_log({0: 100})
    query = reader(group, log, groupInstanceId="me", onFence="fail")
    query.trigger()
    newcomer(group)
    group.go_on_without(query.session)

    with pytest.raises(FencedError, match="onFence"):
        query.trigger()


def test_two_readers_of_one_name_end_with_a_reason() -> None:
    """The older one can't know that it was replaced; its user must."""
    group, log = group_and_log({0: 100})
    old = reader(group, log, "old", groupInstanceId="me")
    old.trigger()
    new = reader(group, log, "new", groupInstanceId="me")
    new.trigger()

    with pytest.raises(
        CoordinatedSourceError, match=r"option 'groupInstanceId': another reader.*'me'"
    ):
        old.trigger()
    assert ranges(new.triggers(1)) == [(0, 10, 20)]


def test_a_group_of_the_release_before_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It offers range only, so a cooperative reader can't be let in; the way out is an option."""
    group, log = group_and_log({0: 100})
    query = reader(group, log)

    def refuse(_session: FakeSession) -> None:
        raise FatalError("no common", code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    monkeypatch.setattr(group, "join", refuse)

    with pytest.raises(CoordinatedSourceError, match=r"option 'assignor'.*'cooperative,range'"):
        query.trigger()


def test_a_static_leader_that_was_restarted_notices_what_grew_meanwhile() -> None:
    """It took over an assignment that it didn't compute, and nobody else watches the topic."""
    group, log = group_and_log({0: 10})
    old = reader(group, log, "old", groupInstanceId="me")
    old.triggers(2)
    old.core.stop()
    group.partitions.append(tp(1))
    log.ends[1] = 7
    new = reader(group, log, "new", groupInstanceId="me")
    new.triggers(2)

    new.clock.now_s += 5
    new.triggers(3)
    assert ranges(new.sunk)[-1] == (1, 0, 7)
    new.clock.now_s += 5
    new.triggers(2)
    assert new.session.rejoins == ["the topics' partitions changed"]


def test_a_pattern_takes_in_topics_that_come_later() -> None:
    """Each reader says anew what it reads, and the group shares the new topic out."""
    group, log = group_and_log({0: 10})
    query = Query(group, log, assignor="cooperative", topicsPattern="fl.*")
    query.triggers(2)
    late = TopicPartition("flown", 0)
    log.others["flown"] = {0: 5}
    group.partitions.append(late)
    log.others["orders"] = {0: 5}
    query.clock.now_s += 5

    written = query.triggers(4)

    assert [(task.tp, task.range.end) for task in written] == [(late, 5)]
    assert query.session.topics == ("flights", "flown")
    assert query.session.rejoins == ["the topics changed"]


def test_a_rebalance_is_used_to_look_for_topics() -> None:
    """Else each reader would ask for a rebalance of its own."""
    group, log = group_and_log({0: 10})
    query = Query(group, log, assignor="cooperative", topicsPattern="fl.*")
    query.triggers(2)
    log.others["flown"] = {0: 5}
    query.session.asked = True

    query.triggers(1)

    assert query.session.topics == ("flights", "flown")


def test_a_pattern_lets_go_of_topics_that_are_gone() -> None:
    """A deleted topic is no reason to end a query that reads all that match."""
    group, log = group_and_log({0: 10})
    log.others["flown"] = {0: 5}
    gone = TopicPartition("flown", 0)
    group.partitions.append(gone)
    query = Query(group, log, assignor="cooperative", topicsPattern="fl.*")
    query.triggers(2)
    group.partitions.remove(gone)
    del log.others["flown"]
    log.ends[0] = 20

    query.clock.now_s += 5

    assert ranges(query.triggers(3)) == [(0, 10, 20)]


@pytest.mark.parametrize("available_now", [False, True])
def test_a_pattern_that_matches_nothing_yet_is_idle(available_now: bool) -> None:
    """The topics may come later; AvailableNow has nothing to do."""
    group, log = group_and_log({0: 10})
    query = Query(group, log, assignor="cooperative", topicsPattern="orders.*")
    if available_now:
        query.core.prepare_available_now()
    assert query.trigger()  # The empty batch that publishes its name.
    assert not query.trigger()
    assert not group.members
    if available_now:
        return

    group.partitions = [TopicPartition("orders", 0)]
    log.others["orders"] = {0: 5}
    assert query.triggers(2) == []
    query.clock.now_s += 5

    assert [task.tp for task in query.triggers(2)] == group.partitions


def test_a_topic_with_other_columns_ends_the_query_before_it_is_read() -> None:
    """Left out in silence its rows would be missed; read, they would not fit."""
    group, log = group_and_log({0: 10})
    query = Query(group, log, assignor="cooperative", topicsPattern="fl.*")
    query.trigger()
    log.others["flown"] = {0: 5}
    log.columns["flown"] = pa.schema([("other", pa.int32())])
    query.clock.now_s += 5

    with pytest.raises(CoordinatedSourceError, match="'flown' matches, but its columns"):
        query.trigger()


def test_available_now_reads_all_topics_that_match() -> None:
    """As they were when it started."""
    group, log = group_and_log({0: 10})
    log.others["flown"] = {0: 5}
    group.partitions.append(TopicPartition("flown", 0))
    query = Query(group, log, assignor="cooperative", topicsPattern="fl.*")
    query.core.prepare_available_now()
    log.others["flown"][0] = 50

    written = query.triggers(3)

    assert {(task.tp.topic, task.range.end) for task in written} == {("flights", 10), ("flown", 5)}


def test_a_reader_waits_where_it_would_have_nothing_else_to_do() -> None:
    """A reader that comes first into a group waits for those that were there, but not for ever."""
    group, log = group_and_log({0: 10})
    stuck = reader(group, log, "stuck")
    stuck.trigger()
    query = Query(group, log, client_id="b", assignor="cooperative")

    with pytest.raises(CoordinatorTimeout, match="first assignment"):
        query.core.initial_offset()


def test_a_coordinator_that_dies_between_the_rounds_of_a_rebalance_repeats_nothing() -> None:
    """It takes no commit before the next generation; what moves is committed then, and goes."""
    group, log = group_and_log({0: 10, 1: 10, 2: 10, 3: 10})
    query = reader(group, log, assignor="cooperative")
    query.trigger()
    other = group.session("other", cooperative=True)
    other.topics = ("flights",)
    group.join(other)
    group.restart_between_rounds()

    query.trigger()
    group.join(other)
    query.triggers(4)

    assert {group.offset(tp(p)) for p in range(4)} == {10}
    assert len(query.session.claim().owned) < 4
    assert len(query.sunk) == 4
