"""The faults of logs, as the reader's core meets them."""

import threading
from collections.abc import Iterator
from itertools import pairwise

import pytest

from client.spark.errors import DataLossError, LogFailed
from client.spark.logs.partition_log import LogError, LogUnavailable
from client.spark.source.log_calls import LAG_MAX_S, RETRY_MAX_S, TOPIC_ID_PERIOD_S, Watchdog
from tests.fakes.group_session import FakeGroup
from tests.spark.fault_support import FaultyLog, expect_all, finish, make, shows
from tests.spark.helpers import Checkpoint, Clock, MemoryLog, Query, ranges, tp


def shrink(group: FakeGroup, log: FaultyLog) -> None:
    """Take partition 1 away."""
    del log.ends[1], log.starts[1]
    log.failing[1] = LogError("no partition folder")
    group.partitions.remove(tp(1))


@shows("topic shrinks")
@pytest.mark.parametrize("restarted", [False, True])
def test_a_partition_that_vanishes_ends_the_query(restarted: bool) -> None:
    """Its unread rows are gone; the rest is committed first."""
    group, log = make({0: 25, 1: 25})
    query = Query(group, log)
    query.trigger()
    if restarted:
        query.crash_before_commit_log()
        query = Query(group, log, checkpoint=query.checkpoint)
    shrink(group, log)

    def go_on() -> None:
        query.triggers(3)
        query.clock.now_s += LAG_MAX_S
        query.triggers(1)

    with pytest.raises(DataLossError, match=r"no longer has flights-1:.*'onDataLoss'"):
        go_on()
    assert group.offset(tp(0)) == (0 if restarted else 25)


@shows("topic shrinks")
@pytest.mark.parametrize("replayed", [False, True])
@pytest.mark.parametrize("policy", ["earliest", "latest"])
def test_a_query_goes_on_without_a_partition_on_request(policy: str, replayed: bool) -> None:
    """The other partitions never stop."""
    group, log = make({0: 25, 1: 25})
    query = Query(group, log, onDataLoss=policy)
    query.trigger()
    shrink(group, log)
    sunk = query.sunk
    if replayed:
        query.crash_before_commit_log()
        query = Query(group, log, checkpoint=query.checkpoint, onDataLoss=policy)
    query.triggers(3)
    query.clock.now_s += LAG_MAX_S
    written = finish(query)

    expect_all(sunk[:1] + [t for t in written if t.tp == tp(0)], {0: 25}, repeated=2)
    assert replayed or set(group.owners) == {tp(0)}


def test_a_partition_that_is_missing_for_a_moment_is_waited_for() -> None:
    """A folder on a network file system may be listed late."""
    group, log = make({0: 25, 1: 25})
    query = Query(group, log)
    query.trigger()
    ends = dict(log.ends)
    shrink(group, log)
    assert ranges(query.triggers(2)) == [(0, 10, 20), (0, 20, 25)]
    query.clock.now_s += LAG_MAX_S - 1

    log.ends, log.failing = ends, {}
    log.starts[1] = 0
    group.partitions.append(tp(1))

    expect_all(finish(query), ends)


def recreate(group: FakeGroup, log: FaultyLog, query: Query) -> None:
    """Make the topic anew, with as many rows as before; the reader asks for ids now and then."""
    query.triggers(2)
    log.id = "new"
    query.clock.now_s += TOPIC_ID_PERIOD_S


@shows("topic recreated")
def test_a_topic_made_anew_ends_the_query_although_its_offsets_fit() -> None:
    """Its first rows would silently be skipped."""
    group, log = make({0: 15})
    log.id = "old"
    query = Query(group, log)
    recreate(group, log, query)

    with pytest.raises(DataLossError, match=r"flights-0: offset 15.*made anew"):
        query.triggers(2)
    assert group.offset(tp(0)) == 15


@shows("topic recreated")
@pytest.mark.parametrize(("policy", "written"), [("earliest", [(0, 0, 10)]), ("latest", [])])
@pytest.mark.parametrize("unfinished", [False, True])
def test_a_topic_made_anew_is_another_one_to_sinks(
    policy: str, written: list[tuple[int, int, int]], unfinished: bool
) -> None:
    """The counter of resets tells its rows from the old ones with the same offsets."""
    group, log = make({0: 15})
    log.id = "old"
    query = Query(group, log, onDataLoss=policy)
    query.trigger()
    if not unfinished:
        query.triggers(2)
    recreate(group, log, query)
    log.ends[0] = 12

    assert ranges(query.triggers(2 if unfinished else 1))[:1] == written
    assert group.offsets[tp(0)].metadata.endswith(":1:new")
    assert [finish(query)[-1].range.end] == ([12] if policy == "earliest" else [15])
    assert group.offset(tp(0)) == 12


OUT_OF_BOUNDS = [pytest.param(3, 5, 9, id="deleted"), pytest.param(12, 0, 9, id="cut")]


@shows("offsets out of bounds, error")
@pytest.mark.parametrize(("committed", "earliest", "end"), OUT_OF_BOUNDS)
def test_rows_that_are_gone_end_the_query_by_default(
    committed: int, earliest: int, end: int
) -> None:
    """The message says which, and what the choices are."""
    group, log = make({0: end})
    log.starts[0] = earliest
    group.reset(tp(0), committed)
    query = Query(group, log)

    def go_on() -> None:
        query.trigger()
        query.clock.now_s += LAG_MAX_S
        query.trigger()

    words = rf"flights-0: offset {committed} .* holds {earliest} to 9.*onDataLoss.*earliest.*latest"
    with pytest.raises(DataLossError, match=words):
        go_on()


@shows("offsets out of bounds, earliest", "offsets out of bounds, latest")
@pytest.mark.parametrize("policy", ["earliest", "latest"])
@pytest.mark.parametrize(("committed", "earliest", "end"), OUT_OF_BOUNDS)
@pytest.mark.parametrize("pin", ["", "gc1:14:2"])
def test_rows_that_are_gone_are_skipped_on_request(
    committed: int, earliest: int, end: int, policy: str, pin: str
) -> None:
    """From the first row that is there, or from the next one that comes."""
    group, log = make({0: end})
    log.starts[0] = earliest
    group.reset(tp(0), committed, pin)
    query = Query(group, log, onDataLoss=policy)
    query.trigger()
    query.clock.now_s += LAG_MAX_S
    query.triggers(2)
    log.ends[0] = 16

    written = ranges(finish(query))

    assert written[0][1] == (earliest if policy == "earliest" else end)
    assert written[-1][2] == 16
    assert all(before[2] == after[1] for before, after in pairwise(written))
    resets = (2 if pin else 0) + (end < committed or (bool(pin) and end < 14))
    assert group.offsets[tp(0)].metadata == f"gc1:16:{resets}"


def test_the_rest_of_a_planned_range_that_was_cut_off_is_judged_too() -> None:
    """It was there once; waiting for ever without a word helps nobody."""
    group, log = make({0: 9})
    group.reset(tp(0), 5, "gc1:12:0")
    query = Query(group, log)
    assert query.triggers(3) == []
    query.clock.now_s += LAG_MAX_S

    with pytest.raises(DataLossError, match=r"offset 5 comes next \(up to 12, as planned before\)"):
        query.trigger()


@shows("log raises")
@pytest.mark.parametrize("error", [LogError("broken"), KeyError("x"), ValueError("y")])
def test_a_log_that_raises_for_good_ends_the_query_by_name(error: Exception) -> None:
    """Topic, partition, method, class and cause: all that its author needs."""
    group, log = make({0: 20, 1: 20})
    log.failing[1] = error
    words = rf"flights-1: bounds\(\) of the log FaultyLog failed: {type(error).__name__}"

    with pytest.raises(LogFailed, match=words):
        Query(group, log).trigger()


@shows("log raises")
@pytest.mark.parametrize("error", [LogUnavailable("later"), OSError("stale"), TimeoutError()])
def test_a_log_that_is_away_for_a_while_holds_up_nothing_else(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The other partitions go on, and what is finished is committed."""
    group, log = make({0: 40, 1: 40})
    query = Query(group, log)
    query.trigger()
    log.failing[1] = error

    assert ranges(query.triggers(3)) == [(0, 10, 20), (0, 20, 30), (0, 30, 40)]
    assert group.offset(tp(1)) == 10
    assert "flights-1: bounds() of the log FaultyLog failed, trying again" in caplog.text
    query.clock.now_s += RETRY_MAX_S
    log.failing.clear()

    expect_all(finish(query), log.ends)


def test_a_log_that_fails_is_asked_with_pauses() -> None:
    """Spark triggers a hundred times a second."""
    group, log = make({0: 40})
    log.failing[0] = OSError("stale")
    query = Query(group, log)
    query.triggers(50)
    assert log.asked[0] == 1

    for _ in range(100):
        query.clock.now_s += 0.5
        query.triggers(1)

    assert 10 < log.asked[0] < 25


def test_a_log_that_stays_away_ends_the_query_after_its_timeout() -> None:
    """For ever would be loss, seen from downstream."""
    group, log = make({0: 40})
    log.failing[0] = OSError("stale")
    query = Query(group, log, logTimeout="20s")
    for _ in range(2):
        query.trigger()
        query.clock.now_s += 10

    with pytest.raises(LogFailed, match=r"20.0 s, longer than option 'logTimeout' allows.*stale"):
        query.trigger()


@pytest.mark.parametrize("bad", [None, (5, 3), (-1, 3), ("0", "3"), (1,)])
def test_bounds_that_make_no_sense_are_refused(bad: object) -> None:
    """Ranges made of them would be nonsense, too."""
    group, log = make({0: 40})
    log.bounds = lambda *_: bad  # type: ignore[assignment,method-assign] # On purpose.

    with pytest.raises(LogFailed, match=r"flights-0: bounds\(\) of the log FaultyLog returned"):
        Query(group, log).trigger()


@pytest.mark.parametrize("bad", [None, [0, 0], [-1], ["x"], 3])
def test_partitions_that_make_no_sense_are_refused(bad: object) -> None:
    """They are shared out by number."""
    group, log = make({0: 40})
    log.partitions = lambda _: bad  # type: ignore[assignment,method-assign,return-value] # On purpose.

    with pytest.raises(LogFailed, match=r"flights: partitions\(\) of the log FaultyLog returned"):
        Query(group, log).trigger()


class BlockingLog(FaultyLog):
    """A log that doesn't answer for partition 1 while it is closed."""

    def __init__(self, ends: dict[int, int]) -> None:
        super().__init__(ends)
        self.open = threading.Event()
        self.open.set()
        self.blocks = threading.Event()

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Block, perhaps."""
        if partition == 1 and not self.open.is_set():
            self.blocks.set()
            assert self.open.wait(60)
            self.blocks.clear()
        return super().bounds(topic, partition)

    def wait(self, done: threading.Event, seconds: float) -> bool:
        """Wait for a call, but not for one that blocks."""
        while not done.wait(0.001):
            if self.blocks.is_set():
                self.clock.now_s += seconds
                return False
        return True

    clock = Clock()


@pytest.fixture
def blocking() -> Iterator[BlockingLog]:
    """Return a log with two partitions; its thread ends with the test."""
    log = BlockingLog({0: 40, 1: 40})
    log.clock = Clock()
    yield log
    log.open.set()


def watched(group: FakeGroup, log: BlockingLog, log_timeout: str) -> Query:
    """Return a reader of *log* whose calls are given up after 10 s."""
    watchdog = Watchdog(10.0, clock=log.clock, wait=log.wait)
    query = Query(
        group, log, client_id="a", run=watchdog.run, clock=log.clock, logTimeout=log_timeout
    )
    query.trigger()
    return query


@shows("log blocks")
def test_while_a_log_blocks_the_reader_commits_and_hands_over(blocking: BlockingLog) -> None:
    """It must not be removed from the group for somebody else's hang."""
    group = FakeGroup([tp(0), tp(1)])
    query = watched(group, blocking, "5m")
    blocking.open.clear()

    assert query.triggers(2)[2:] == []
    assert [group.offset(tp(p)) for p in (0, 1)] == [20, 10]
    heir = Query(group, MemoryLog({0: 40, 1: 40}), client_id="b", checkpoint=Checkpoint(["{}"], 1))
    for _ in range(3):
        heir.trigger()
        query.trigger()
    assert heir.session.member_id in group.owners.values()

    blocking.open.set()
    blocking.clock.now_s += RETRY_MAX_S

    expect_all(finish(query, heir), blocking.ends)


@shows("log blocks")
def test_a_log_that_blocks_for_too_long_ends_the_query_by_name(blocking: BlockingLog) -> None:
    """The call can't be interrupted, but the user can be told."""
    query = watched(FakeGroup([tp(0), tp(1)]), blocking, "60s")
    blocking.open.clear()

    def go_on() -> None:
        for _ in range(20):
            query.trigger()
            blocking.clock.now_s += RETRY_MAX_S

    words = r"has failed for .*'logTimeout'.*: LogUnavailable: flights-1: bounds\(\) has not answ"
    with pytest.raises(LogFailed, match=words):
        go_on()


def test_a_replay_of_a_range_that_the_log_cannot_show_now_is_left_for_later() -> None:
    """Its pin stands, so the next trigger runs it with the same bounds."""
    group, log = make({0: 25})
    query = Query(group, log)
    query.trigger()
    query.crash_before_commit_log()
    log.failing[0] = OSError("stale")
    again = Query(group, log, checkpoint=query.checkpoint)
    assert again.triggers(2) == []
    log.failing.clear()
    again.clock.now_s += RETRY_MAX_S

    assert ranges(finish(again)) == [(0, 0, 10), (0, 10, 20), (0, 20, 25)]


def test_available_now_waits_for_a_log_that_is_away() -> None:
    """Without its ends nobody knows when the run is complete."""
    group, log = make({0: 25, 1: 25})
    log.failing[1] = OSError("stale")
    query = Query(group, log)

    def come_back() -> None:
        if query.clock.now_s > 5:
            log.failing.clear()

    query.clock.on_sleep = come_back
    query.core.prepare_available_now()
    log.failing[1] = OSError("stale")
    query.clock.on_sleep = log.failing.clear

    expect_all(finish(query), log.ends)
