"""Faults of a log that meet a hand-over, a start or each other."""

import threading
from collections.abc import Collection
from typing import Any

import pytest

from client.exceptions import RetriableError
from client.spark.errors import DataLossError, LogFailed
from client.spark.logs.partition_log import LogError, LogUnavailable
from client.spark.source.log_calls import LAG_MAX_S, LogCalls, Watchdog
from protocol.partition import TopicPartition
from tests.fakes.group_session import FakeGroup
from tests.spark.fault_support import FaultyLog, expect_all, finish, make
from tests.spark.helpers import Checkpoint, Clock, MemoryLog, Query, options, ranges, tp


class DownLog(FaultyLog):
    """A log with methods that can't be asked, each for all topics or for one."""

    def __init__(self, ends: dict[int, int]) -> None:
        super().__init__(ends)
        self.down: dict[str, str] = {}

    def _check(self, method: str, topic: str) -> None:
        if self.down.get(method, "-") in {"", topic}:
            raise LogUnavailable("away")

    def partitions(self, topic: str) -> list[int]:
        """Return them, or fail."""
        self._check("partitions", topic)
        return super().partitions(topic)

    def hosts(self, topic: str, partition: int) -> list[str]:
        """Return none, or fail."""
        self._check("hosts", topic)
        return []


def make_down(ends: dict[int, int]) -> tuple[FakeGroup, DownLog]:
    """Return a group and a log with these partitions."""
    return FakeGroup([tp(p) for p in ends]), DownLog(ends)


def test_a_partition_may_be_missing_for_a_moment_more_than_once() -> None:
    """Two short gaps, hours apart, are not one long one."""
    group, log = make({0: 5, 1: 5})
    query = Query(group, log)
    query.triggers(2)
    for _ in range(2):
        log.ends.pop(1)
        query.clock.now_s += 5
        query.triggers(1)
        log.ends[1] = 5
        query.clock.now_s += 3_600
        query.triggers(1)

    log.ends[1] = 15

    assert ranges(finish(query)) == [(0, 0, 5), (1, 0, 5), (1, 5, 15)]


def test_a_failure_of_long_ago_does_not_count_against_a_partition_that_came_back() -> None:
    """While another reader had it, nobody here asked for it."""
    group, log = make({0: 50, 1: 50})
    first = Query(group, log, client_id="a")
    first.triggers(2)
    log.failing[1] = LogUnavailable("away")
    first.triggers(1)
    second = Query(group, MemoryLog(log.ends), client_id="b", checkpoint=Checkpoint(["{}"], 1))
    for _ in range(3):
        second.trigger()
        first.trigger()
    assert {tp(0), tp(1)} != {t for t, o in group.owners.items() if o == first.session.member_id}
    first.clock.now_s += 3_600
    first.triggers(1)
    group.evict(second.session)

    first.triggers(2)
    log.failing.clear()
    first.clock.now_s += 5

    expect_all([*finish(first), *second.sunk], {0: 50, 1: 50}, repeated=1)


@pytest.mark.parametrize("hours", [0, 1])
def test_where_partitions_lie_is_a_hint_whose_failure_ends_nothing(hours: int) -> None:
    """Asked at each rebalance only, so that two failures may be weeks apart."""
    log = DownLog({0: 1})
    log.down["hosts"] = ""
    clock = Clock()
    calls = LogCalls(log, options(), clock)
    assert calls.hosts("flights", 0) == ()

    clock.now_s += hours * 3_600

    assert calls.hosts("flights", 0) == ()


def test_a_log_that_is_away_at_the_start_does_not_turn_latest_into_earliest() -> None:
    """Nothing may be concluded from a look that failed."""
    group, log = make_down({0: 50})
    log.down["partitions"] = ""
    query = Query(group, log, startingOffsets="latest")
    query.clock.on_sleep = log.down.clear
    query.triggers(2)
    log.ends[0] = 55

    assert ranges(finish(query)) == [(0, 50, 55)]


@pytest.mark.parametrize("policy", ["error", "earliest"])
def test_a_replay_goes_on_without_a_topic_that_dropped_out_of_the_pattern(policy: str) -> None:
    """The same as in a running query."""
    group, log = make({0: 10})
    log.others["flown"] = {0: 5}
    gone = TopicPartition("flown", 0)
    group.partitions.append(gone)
    given: dict[str, Any] = {"topicsPattern": "fl.*", "onDataLoss": policy}
    query = Query(group, log, **given)
    query.triggers(1)
    assert len(query.sunk) == 2
    query.crash_before_commit_log()
    group.partitions.remove(gone)
    del log.others["flown"]

    again = Query(group, log, checkpoint=query.checkpoint, **given)

    assert ranges(finish(again)) == [(0, 0, 10)]


@pytest.mark.parametrize("failure", ["rows are gone", "the log fails for good"])
def test_what_is_finished_is_committed_before_another_partition_ends_the_query(
    failure: str,
) -> None:
    """Else a restart would repeat a batch that nothing was wrong with."""
    group, log = make({0: 10, 1: 50})
    query = Query(group, log)
    assert ranges(query.triggers(2)) == [(0, 0, 10), (1, 0, 10), (1, 10, 20)]
    if failure == "rows are gone":
        log.starts[0], log.ends[0] = 40, 60
    else:
        log.failing[0] = LogError("broken")

    with pytest.raises((DataLossError, LogFailed)):
        query.triggers(1)

    assert group.offset(tp(1)) == 20


def test_partitions_are_handed_over_while_a_new_topic_cannot_be_asked() -> None:
    """Whatever the log can't tell, the group must not wait for it."""
    group, log = make_down({0: 50, 1: 50})
    query = Query(group, log, topicsPattern="fl.*", client_id="a")
    query.triggers(2)
    log.others["flown"] = {0: 5}
    log.down["partitions"] = "flown"
    second = Query(group, MemoryLog(log.ends), client_id="b", checkpoint=Checkpoint(["{}"], 1))
    second.trigger()
    assert group.rebalancing

    query.triggers(2)
    second.trigger()

    assert second.session.member_id in group.owners.values()
    expect_all([*finish(query, second)], {0: 50, 1: 50})


def test_a_log_that_fails_for_good_does_not_keep_what_is_finished_from_the_heir() -> None:
    """A hand-over needs nothing of the log."""
    group, log = make({0: 50, 1: 50})
    query = Query(group, log, client_id="a")
    query.triggers(2)
    second = Query(group, MemoryLog(log.ends), client_id="b", checkpoint=Checkpoint(["{}"], 1))
    second.trigger()
    log.failing[1] = LogError("broken")

    query.triggers(1)

    assert [group.offset(tp(p)) for p in (0, 1)] == [20, 20]


def test_rows_that_are_gone_are_judged_although_the_group_rebalances_all_the_time() -> None:
    """A hand-over of other partitions says nothing about them."""
    group, log = make({0: 10, 1: 1_000})
    query = Query(group, log, assignor="cooperative", client_id="a")
    query.triggers(2)
    log.ends[0] = 5

    def go_on() -> None:
        for _ in range(5):
            query.clock.now_s += LAG_MAX_S / 3
            query.session.asked = True
            query.triggers(2)

    with pytest.raises(DataLossError, match="offset 10 comes next"):
        go_on()


def test_a_partition_on_its_way_when_its_static_owner_restarts_is_not_left_over() -> None:
    """The restarted reader doesn't know that the group waits for it to ask once more."""
    group, log = make({0: 50, 1: 50})
    given: dict[str, Any] = {"assignor": "cooperative", "groupInstanceId": "b"}
    static = Query(group, log, client_id="b", **given)
    static.triggers(2)
    leader = Query(
        group, log, client_id="a", assignor="cooperative", checkpoint=Checkpoint(["{}"], 1)
    )
    leader.trigger()
    static.trigger()
    assert len(group.owners) == 1
    restarted = Query(group, log, client_id="c", checkpoint=static.checkpoint, **given)

    for _ in range(20):
        restarted.trigger()
        leader.trigger()
        leader.clock.now_s += 5

    assert [group.offset(tp(p)) for p in (0, 1)] == [50, 50]


class AtOnceLog(FaultyLog):
    """A log that is asked for all bounds at once, as Kafka is."""

    def all_bounds(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return all bounds, or fail as a whole."""
        if any(one.partition not in self.ends for one in partitions):
            raise LogError("no such partition")
        return {one: self.bounds(*one) for one in partitions}


@pytest.mark.parametrize("policy", ["error", "earliest"])
def test_a_partition_that_vanishes_from_a_log_asked_at_once_is_told_from_the_others(
    policy: str,
) -> None:
    """Kafka refuses the whole request for one partition of a topic that was made anew."""
    group, log = FakeGroup([tp(0), tp(1)]), AtOnceLog({0: 100, 1: 100})
    query = Query(group, log, onDataLoss=policy)
    query.triggers(1)
    del log.ends[1]
    group.partitions.remove(tp(1))

    assert ranges(query.triggers(2)) == [(0, 10, 20), (0, 20, 30)]
    query.clock.now_s += LAG_MAX_S

    if policy == "error":
        with pytest.raises(DataLossError, match="no longer has flights-1"):
            query.triggers(1)
        assert group.offset(tp(0)) == 30
    else:
        finish(query)
        assert group.offset(tp(0)) == 100


def test_calls_behind_one_that_blocks_wait_for_it_once() -> None:
    """A thousand topics would otherwise take as many seconds, and a hand-over with them."""
    answers = threading.Event()
    clock = Clock()
    waits: list[float] = []

    def wait(done: threading.Event, seconds: float) -> bool:
        if done.wait(0.05):
            return True
        waits.append(seconds)
        clock.now_s += seconds
        return False

    class BlockingLog(FaultyLog):
        def bounds(self, topic: str, partition: int) -> tuple[int, int]:
            answers.wait(60)
            return super().bounds(topic, partition)

    log = BlockingLog(dict.fromkeys(range(50), 1))
    calls = LogCalls(log, options(), clock, Watchdog(10.0, clock=clock, wait=wait).run)
    calls.view([tp(0)])
    waits.clear()

    for partition in range(1, 50):
        assert isinstance(calls.view([tp(partition)])[tp(partition)], RetriableError)
    answers.set()

    assert sum(waits) <= 2
