"""The reader core when something fails; each fault also has a test with real Spark."""

import ast
import json
import logging
import random
import threading
from collections.abc import Collection, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from client.exceptions import CoordinatorUnavailable, FatalError, RetriableError
from client.offsets import OffsetAndMetadata
from client.spark.errors import (
    CheckpointError,
    CoordinatedSourceError,
    CoordinatorTimeout,
    DataLossError,
    FencedError,
    LogFailed,
    StatefulQueryError,
)
from client.spark.logs.partition_log import LogError, LogUnavailable
from client.spark.source.core import PAUSE_MAX_S
from client.spark.source.log_calls import (
    LAG_MAX_S,
    RETRY_MAX_S,
    TOPIC_ID_PERIOD_S,
    LogCalls,
    Watchdog,
)
from client.spark.source.stream_offsets import OffsetFormatError
from protocol.errors import ErrorCode
from protocol.partition import TopicPartition
from tests.fakes.group_session import FakeGroup, Fault
from tests.spark.fault_support import FAULTS, FaultyLog, expect_all, finish, make, shows
from tests.spark.helpers import (
    Checkpoint,
    Clock,
    MemoryLog,
    Offset,
    Query,
    group_and_log,
    options,
    ranges,
    tp,
)

# --- The coordinator is away, forgets to answer, or removes the reader ---------------------


def test_an_outage_makes_triggers_idle_and_nothing_is_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An exception would end the query."""
    group, log = group_and_log({0: 30})
    query = Query(group, log)
    query.trigger()
    group.outage = True

    assert query.triggers(20) == []
    assert group.offset(tp(0)) == 0
    # At first, and then the longer it takes the less often.
    assert caplog.text.count("no new batch, trying again: ") == 5
    assert max(query.clock.slept) == PAUSE_MAX_S
    assert query.clock.slept[:3] == [0.1, 0.2, 0.4]

    group.outage = False
    caplog.set_level(logging.INFO)
    assert ranges(query.triggers(3)) == [(0, 10, 20), (0, 20, 30)]
    assert group.offset(tp(0)) == 30
    assert caplog.text.count(f"batches go on, after {sum(query.clock.slept):.1f} s") == 1


def test_after_an_outage_the_pauses_start_short_again() -> None:
    """Each outage is a new one."""
    group, log = group_and_log({0: 30})
    query = Query(group, log)
    query.trigger()
    for _ in range(2):
        query.clock.slept.clear()
        group.outage = True
        query.triggers(2)
        group.outage = False
        query.triggers(1)

        assert query.clock.slept == [0.1, 0.2]


@pytest.mark.parametrize("fault", [Fault.ANSWER_LOST, Fault.REQUEST_LOST])
def test_an_unanswered_commit_is_repeated_byte_for_byte(fault: Fault) -> None:
    """Anything else could overtake the first copy."""
    group, log = group_and_log({0: 30})
    query = Query(group, log)
    query.trigger()
    group.faults = [fault, fault]
    log.ends[0] = 100

    assert query.triggers(2) == []
    log.ends[0] = 200
    query.max_rows = 50
    assert ranges(query.triggers(1)) == [(0, 10, 20)]

    if fault is Fault.REQUEST_LOST:
        first, second, third = query.session.requests[1:]
        assert first == second == third


def test_a_lost_answer_is_found_by_its_conflict() -> None:
    """The repeated commit no longer meets the offset that it expects: it is our own value."""
    group, log = group_and_log({0: 30})
    query = Query(group, log)
    query.trigger()
    group.faults = [Fault.ANSWER_LOST]
    query.trigger()
    assert group.offset(tp(0)) == 10

    assert ranges(query.triggers(1)) == [(0, 10, 20)]
    _, lost, repeated, proof = query.session.requests
    assert lost == repeated
    assert proof[0] == lost[0]  # What was read back may be run once a commit has shown that.


def test_a_batch_never_starts_before_its_pin_is_certain() -> None:
    """Another member could start another range at the same offset."""
    group, log = group_and_log({0: 30})
    query = Query(group, log)
    group.faults = [Fault.REQUEST_LOST] * 4

    assert query.triggers(4) == []
    assert ranges(query.triggers(1)) == [(0, 0, 10)]


def test_during_an_outage_a_commit_in_doubt_stays_in_doubt() -> None:
    """A refusal to connect says nothing about the earlier attempt."""
    group, log = group_and_log({0: 30})
    query = Query(group, log)
    query.trigger()
    group.faults = [Fault.REQUEST_LATE]
    query.trigger()
    group.outage = True
    query.triggers(2)
    query.max_rows = 3
    group.outage = False

    assert ranges(query.triggers(1)) == [(0, 10, 20)]
    group.deliver_late()
    assert group.offsets[tp(0)] == OffsetAndMetadata(10, "gc1:20:0")


def test_a_pin_behind_lost_rows_is_not_changed_after_its_commit_was_repeated() -> None:
    """The range that ended before the lost rows is settled by the same commit."""
    group, log = group_and_log({0: 10})
    query = Query(group, log, max_rows=None, failOnDataLoss="false")
    query.trigger()
    log.starts[0], log.ends[0] = 50, 60
    group.faults = [Fault.REQUEST_LOST]
    query.trigger()
    log.ends[0] = 90

    assert ranges(query.triggers(2)) == [(0, 50, 60), (0, 60, 90)]


def test_a_commit_that_surely_was_not_stored_is_planned_anew() -> None:
    """Nothing binds us, so the batch may take what has come meanwhile."""
    group, log = group_and_log({0: 13})
    query = Query(group, log)
    query.trigger()
    group.outage = True
    query.trigger()
    group.outage = False
    log.ends[0] = 20

    assert ranges(query.triggers(1)) == [(0, 10, 20)]


def test_a_conflict_with_somebody_elses_offset_takes_theirs() -> None:
    """An operator's reset beats what the reader believes."""
    group, log = group_and_log({0: 100})
    query = Query(group, log)
    query.trigger()
    group.reset(tp(0), 50, "gc1:50:1")

    assert ranges(query.triggers(1)) == [(0, 50, 60)]
    assert group.offsets[tp(0)] == OffsetAndMetadata(50, "gc1:60:1")


def test_a_conflict_on_one_partition_does_not_hold_up_the_others() -> None:
    """The rest of the commit was stored."""
    group, log = group_and_log({0: 100, 1: 100})
    query = Query(group, log)
    query.trigger()
    group.reset(tp(0), 50)

    assert ranges(query.triggers(1)) == [(0, 50, 60), (1, 10, 20)]


def test_a_fenced_reader_drops_its_positions_and_goes_on() -> None:
    """One frozen process must not end the query, and must not move offsets."""
    group, log = group_and_log({0: 100, 1: 100})
    frozen = Query(group, log, client_id="z")
    frozen.trigger()
    group.evict(frozen.session, noticed=False)
    heir = Query(group, log, client_id="a", checkpoint=Checkpoint(["{}"], 1))
    heir.triggers(3)
    assert group.offset(tp(1)) == 20

    for _ in range(3):
        frozen.trigger()
        heir.trigger()

    assert ranges(frozen.sunk)[:2] == [(0, 0, 10), (1, 0, 10)]
    both = sorted(ranges(frozen.sunk[2:] + heir.sunk))
    assert len(both) == len(set(both))  # Only the batch in flight ran twice.
    assert group.owners[tp(1)] == frozen.session.member_id


def test_a_fence_ends_the_query_where_that_is_asked_for() -> None:
    """Some sinks need a human after a possible duplicate."""
    group, log = group_and_log({0: 100})
    query = Query(group, log, onFence="fail")
    query.trigger()
    group.evict(query.session, noticed=False)

    with pytest.raises(FencedError, match="onFence"):
        query.trigger()


def test_a_refused_query_ends_before_another_batch() -> None:
    """What the guard saw is in the message; nothing is committed, so no restart creeps forward."""
    group, log = group_and_log({0: 100})
    reasons: list[str | None] = [None, None, "it is stateful"]
    query = Query(group, log, refused=lambda: reasons.pop(0))
    query.triggers(2)

    with pytest.raises(StatefulQueryError, match="it is stateful") as raised:
        query.trigger()
    assert group.offset(tp(0)) == 10
    assert len(query.sunk) == 2
    assert "has committed flights-0 from 0 to 10. To take" in str(raised.value)
    assert " reset-offsets g --at localhost:9310 --from-file <(" in str(raised.value)
    assert str(raised.value).endswith(" flights,0,0)")


def test_a_refused_query_tells_of_its_own_run_only() -> None:
    """A run that goes on where the group is takes nothing back of those before."""
    group, log = group_and_log({0: 100, 1: 100, 2: 10})
    before = Query(group, log)
    before.triggers(2)
    before.core.stop()
    reasons: list[str | None] = [None, None, None, "it is stateful"]
    query = Query(group, log, client_id="late", refused=lambda: reasons.pop(0))
    query.triggers(3)

    with pytest.raises(StatefulQueryError, match=r"it is stateful") as raised:
        query.trigger()

    assert "flights-0 from 10 to 30, flights-1 from 10 to 30. To take" in str(raised.value)


def test_rows_that_a_refused_query_left_out_are_taken_back_as_well() -> None:
    """They were deleted here, and may be elsewhere: the group was there when the run began."""
    group, log = group_and_log({0: 100})
    before = Query(group, log)
    before.triggers(2)
    before.core.stop()
    log.starts[0] = 50
    reasons: list[str | None] = [None, "it is stateful"]
    query = Query(group, log, refused=lambda: reasons.pop(0), onDataLoss="earliest")
    query.trigger()

    with pytest.raises(StatefulQueryError, match="has committed flights-0 from 10 to 50"):
        query.trigger()


def test_a_commit_whose_answer_was_lost_is_taken_back_as_well() -> None:
    """It may be stored, and nobody asks for it any more."""
    group, log = group_and_log({0: 100})
    reasons: list[str | None] = [None, None, "it is stateful"]
    query = Query(group, log, refused=lambda: reasons.pop(0))
    query.trigger()
    group.faults = [Fault.ANSWER_LOST]
    query.trigger()
    assert group.offset(tp(0)) == 10

    with pytest.raises(StatefulQueryError, match="has committed flights-0 from 0 to 10"):
        query.trigger()


def test_a_query_that_is_refused_at_once_has_committed_nothing() -> None:
    """Its group is where it was."""
    group, log = group_and_log({0: 100})
    query = Query(group, log, refused=lambda: "it is stateful")

    with pytest.raises(StatefulQueryError, match=r"it is stateful\. Nothing of this run is comm"):
        query.trigger()


@pytest.mark.parametrize("noticed", [True, False])
def test_a_lost_reader_commits_what_nobody_else_touched(noticed: bool) -> None:
    """It was alone: the committed offset is still where its batch began."""
    group, log = group_and_log({0: 100})
    query = Query(group, log)
    query.trigger()
    group.evict(query.session, noticed=noticed)

    assert ranges(query.triggers(1)) == [(0, 10, 20)]
    assert group.offset(tp(0)) == 10


def test_a_lost_reader_commits_nothing_over_a_reset() -> None:
    """The same offset under another reset counter is another range."""
    group, log = group_and_log({0: 100})
    query = Query(group, log)
    query.trigger()
    group.evict(query.session)
    group.reset(tp(0), 0, "gc1:0:1")

    assert ranges(query.triggers(1)) == [(0, 0, 10)]


def test_a_partition_that_is_not_ours_makes_the_reader_rejoin() -> None:
    """Its view of the generation is wrong somewhere."""
    group, log = group_and_log({0: 100})
    query = Query(group, log)
    query.trigger()
    group.owners[tp(0)] = "somebody"

    assert ranges(query.triggers(2)) == [(0, 10, 20), (0, 20, 30)]
    assert group.generation == 2


def test_a_full_disk_at_the_coordinator_makes_triggers_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is refused for certain, and will be accepted when there is room."""
    group, log = group_and_log({0: 100})
    query = Query(group, log)
    query.trigger()
    with monkeypatch.context() as patch:
        patch.setattr(group, "apply", lambda *_: {tp(0): ErrorCode.STORAGE_FULL})
        assert query.triggers(3) == []

    assert ranges(query.triggers(1)) == [(0, 10, 20)]


def test_a_refusal_for_good_ends_the_query_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Repeating it would loop for ever."""
    group, log = group_and_log({0: 100})
    query = Query(group, log)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    monkeypatch.setattr(group, "apply", lambda *_: {TopicPartition("flights", 0): code})

    with pytest.raises(CoordinatedSourceError, match=r"flights-0.*UNKNOWN_TOPIC_OR_PARTITION"):
        query.trigger()


def test_a_fatal_error_of_the_client_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a session timeout that the server doesn't allow."""
    group, log = group_and_log({0: 100})
    query = Query(group, log)

    def refuse(*_: object) -> None:
        raise FatalError("INVALID_SESSION_TIMEOUT")

    monkeypatch.setattr(group, "join", refuse)

    with pytest.raises(FatalError, match="INVALID_SESSION_TIMEOUT"):
        query.trigger()


def test_the_first_offset_waits_for_the_coordinator_and_then_gives_up() -> None:
    """A wrong address should end the query, not hang it."""
    group, log = group_and_log({0: 10})
    group.outage = True
    query = Query(group, log)

    with pytest.raises(
        CoordinatorTimeout, match=r"waited 30 s in vain .* \(option 'coordinatorTimeout', coord"
    ):
        query.trigger()
    assert 30 <= query.clock.now_s < 30 + PAUSE_MAX_S


def test_a_replay_waits_for_the_coordinator() -> None:
    """An empty answer would mark the batch as done, and skip it."""
    group, log = group_and_log({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    crashed.crash_before_commit_log()
    group.outage = True
    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)

    def heal() -> None:
        group.outage = again.clock.now_s < 20

    again.clock.on_sleep = heal

    assert ranges(again.triggers(1)) == [(0, 0, 10)]


def test_a_replay_gives_up_after_the_timeout() -> None:
    """The batch stays undone, and a restart tries again."""
    group, log = group_and_log({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.triggers(2)
    crashed.checkpoint.commits -= 1
    group.outage = True
    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)

    with pytest.raises(CoordinatorTimeout, match="replay"):
        again.trigger()
    assert again.checkpoint.commits == 1


def test_a_replay_waits_for_the_assignment() -> None:
    """Without one, nothing says whose the ranges are."""
    group, log = group_and_log({0: 40})
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    crashed.checkpoint.commits -= 1
    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)

    def expire() -> None:
        if again.clock.now_s > 10:
            group.evict(crashed.session)

    again.clock.on_sleep = expire

    assert ranges(again.triggers(1)) == [(0, 0, 10)]


def test_available_now_reads_what_was_there_and_ends() -> None:
    """Rows that come later belong to the next run."""
    group, log = group_and_log({0: 23, 1: 5})
    query = Query(group, log)
    query.core.prepare_available_now()
    log.ends.update({0: 100, 1: 100})

    done = [query.trigger() for _ in range(4)]

    assert done == [True, True, True, False]
    assert ranges(query.sunk) == [(0, 0, 10), (1, 0, 5), (0, 10, 20), (0, 20, 23)]
    assert [group.offset(tp(p)) for p in (0, 1)] == [23, 5]


def test_available_now_blocks_through_an_outage() -> None:
    """Returning start would end the query as if it were complete."""
    group, log = group_and_log({0: 23})
    query = Query(group, log)
    query.core.prepare_available_now()
    query.trigger()
    group.outage = True

    def heal() -> None:
        group.outage = query.clock.now_s < 20

    query.clock.on_sleep = heal

    assert ranges(query.triggers(3)) == [(0, 10, 20), (0, 20, 23)]


def test_available_now_gives_up_after_the_timeout() -> None:
    """Incomplete must not look complete."""
    group, log = group_and_log({0: 23})
    query = Query(group, log)
    query.core.prepare_available_now()
    query.trigger()
    group.outage = True

    with pytest.raises(CoordinatorTimeout, match="the next batch"):
        query.trigger()


def test_available_now_takes_a_pinned_range_whole() -> None:
    """Cutting it would group_and_log a second key for the same rows."""
    group, log = group_and_log({0: 23})
    query = Query(group, log)
    query.core.prepare_available_now()
    log.ends[0] = 40
    group.reset(tp(0), 20, "gc1:30:0")

    assert ranges(query.triggers(2)) == [(0, 20, 30)]


@pytest.mark.parametrize(("committed", "pin"), [(20, "gc1:30:0"), (23, "gc1:30:0"), (30, "")])
def test_available_now_is_not_complete_before_what_was_planned_shows(
    committed: int, pin: str
) -> None:
    """The rows were in the log before, so they belong to this run; its view of them lags."""
    group, log = group_and_log({0: 23})
    group.reset(tp(0), committed, pin)
    query = Query(group, log)
    query.core.prepare_available_now()

    with pytest.raises(CoordinatorTimeout, match=r"comes next.*, but the log ends at 23"):
        query.trigger()


def test_a_replay_of_rows_that_the_log_no_longer_shows_is_left_to_the_next_trigger() -> None:
    """Reading them would fail, at each restart again."""
    group, log = group_and_log({0: 10})
    crashed = Query(group, log, client_id="a")
    crashed.trigger()
    crashed.crash_before_commit_log()
    log.ends[0] = 4
    again = Query(group, log, client_id="a2", checkpoint=crashed.checkpoint)
    assert again.triggers(2) == []
    assert group.offset(tp(0)) == 0

    log.ends[0] = 10

    assert ranges(again.triggers(1)) == [(0, 0, 10)]


def test_a_drained_reader_commits_and_owns_nothing() -> None:
    """So that stopping it afterwards repeats nothing."""
    group, log = group_and_log({0: 100})
    query = Query(group, log, client_id="me")
    query.trigger()
    assert not group.drain("me")

    assert query.triggers(3) == []

    assert group.drain("me")
    assert group.offset(tp(0)) == 10
    assert group.offsets[tp(0)].metadata == "gc1:10:0"


# --- Outages, frozen and killed members ----------------------------------------------------


def heal_at(group: FakeGroup, query: Query, seconds: float) -> None:
    """End the outage when the query has waited for so long."""

    def heal() -> None:
        group.outage = query.clock.now_s < seconds

    query.clock.on_sleep = heal


@shows("coordinator down at start")
def test_a_query_that_starts_before_the_coordinator_waits_for_it() -> None:
    """Both may come up after a power failure, in any order."""
    group, log = make({0: 25, 1: 5})
    group.outage = True
    query = Query(group, log)
    heal_at(group, query, 20)

    expect_all(finish(query), log.ends)


@shows("coordinator down during a batch")
def test_a_coordinator_that_is_away_when_a_batch_ends_costs_nothing() -> None:
    """The batch is committed when the coordinator is back."""
    group, log = make({0: 25, 1: 5})
    query = Query(group, log)
    steps = query.steps()
    while not query.sunk:
        next(steps)
    group.outage = True
    list(steps)
    assert query.triggers(5)[2:] == []
    assert group.offset(tp(0)) == 0

    group.outage = False

    expect_all(finish(query), log.ends)
    assert group.offset(tp(0)) == 25


@shows("coordinator down for 60 s")
@pytest.mark.parametrize("available_now", [False, True])
def test_an_outage_of_a_minute_is_an_idle_minute(available_now: bool) -> None:
    """Longer than a session, so that the group may be gone when it ends."""
    group, log = make({0: 25, 1: 5})
    query = Query(group, log, coordinatorTimeout="90s")
    if available_now:
        query.core.prepare_available_now()
    query.trigger()
    group.outage = True
    heal_at(group, query, 60)

    while group.outage:
        query.trigger()
    group.evict(query.session, noticed=False)

    assert query.clock.now_s >= 60
    expect_all(finish(query), log.ends)


@shows("coordinator restarted")
@pytest.mark.parametrize("forgotten", [False, True])
def test_a_restarted_coordinator_is_an_idle_moment(forgotten: bool) -> None:
    """Whether it still knows the member or not: nobody else touched the partitions."""
    group, log = make({0: 50, 1: 5})
    query = Query(group, log)
    for _ in range(3):
        query.trigger()
        group.outage = True
        query.triggers(3)
        group.outage = False
        if forgotten:
            group.evict(query.session, noticed=False)

    expect_all(finish(query), log.ends)


@shows("coordinator loading")
@pytest.mark.parametrize("call", ["join", "commit", "fetch"])
def test_a_loading_coordinator_is_waited_for(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers, but not yet with what counts."""
    group, log = make({0: 25, 1: 5})
    query = Query(group, log)
    query.trigger()
    group.evict(query.session)

    def loading(*_: object) -> None:
        raise CoordinatorUnavailable("COORDINATOR_LOAD_IN_PROGRESS")

    with monkeypatch.context() as patch:
        patch.setattr(query.session if call == "fetch" else group, call, loading)
        assert query.triggers(4) == []

    expect_all(finish(query), log.ends)


@shows("member frozen past its session and thawed")
@pytest.mark.parametrize("step", range(2, 7))
def test_a_frozen_reader_costs_its_batch_in_flight_and_no_more(step: int) -> None:
    """Its sink can't be stopped, but it can't move offsets, nor start another batch."""
    group, log = make({0: 40, 1: 40})
    frozen = Query(group, log, client_id="a")
    frozen.trigger()
    steps = frozen.steps()
    for _ in range(step):
        next(steps)
    group.evict(frozen.session, noticed=False)
    heir = Query(group, log, client_id="b", checkpoint=Checkpoint(["{}"], 1), max_rows=7)
    heir.triggers(2)
    before = {p: group.offset(tp(p)) for p in (0, 1)}

    list(steps)  # Thawed: the batch goes on where it was.

    assert {p: group.offset(tp(p)) for p in (0, 1)} == before
    expect_all(finish(frozen, heir), log.ends, repeated=2)


def killed(group: FakeGroup, log: FaultyLog, sunk: int, *, committed: bool = False) -> Query:
    """Return a reader that died in its second batch, after so many ranges of it."""
    query = Query(group, log, client_id="a")
    query.trigger()
    steps = query.steps()
    while len(query.checkpoint.offsets) < 2 or len(query.sunk) < 2 + sunk:
        next(steps)
    if committed:
        list(steps)
    group.evict(query.session)
    return query


def restarts(group: FakeGroup, log: FaultyLog, dead: Query) -> Iterator[list[Query]]:
    """Yield who goes on: the same query, or another one and then the same."""
    again = Query(group, log, client_id="a2", checkpoint=dead.checkpoint, max_rows=13)
    yield [again]
    heir = Query(group, log, client_id="b", checkpoint=Checkpoint(["{}"], 1), max_rows=7)

    def hand_over() -> None:
        heir.trigger()

    again.clock.on_sleep = hand_over
    yield [heir, again]


@pytest.mark.parametrize("who", [0, 1], ids=["restarted", "taken over"])
@pytest.mark.parametrize(
    ("sunk", "committed", "repeated"),
    [
        pytest.param(0, False, 0, id="before the sink"),
        pytest.param(1, False, 1, id="within the sink"),
        pytest.param(2, False, 2, id="after the sink"),
        pytest.param(2, True, 2, id="after the commit log"),
    ],
)
@shows("killed before the sink", "killed after the sink", "killed after the commit log")
def test_a_kill_repeats_at_most_what_was_in_flight(
    sunk: int, committed: bool, repeated: int, who: int
) -> None:
    """Wherever it strikes: no gap, and the replay adds nothing to what a take-over repeats."""
    group, log = make({0: 40, 1: 40})
    dead = killed(group, log, sunk, committed=committed)

    survivors = list(restarts(group, log, dead))[who]
    if who:
        survivors[0].triggers(3)
    written = finish(*survivors)

    expect_all(dead.sunk + written, log.ends, repeated=repeated)
    assert ranges(written)[:2] == [(0, 10, 20), (1, 10, 20)]  # With the bounds of the dead one.


class ConcurrentUpdateError(Exception):
    """CONCURRENT_STREAM_LOG_UPDATE: another query wrote this batch."""


class SharedCheckpoint:
    """One of several runs on the same checkpoint, each with Spark's own memory of where it is."""

    def __init__(self, query: Query, offsets: dict[int, str], commits: set[int]) -> None:
        self.query = query
        self.dead = False
        self._offsets = offsets
        self._commits = commits
        self._life = self._run()

    def step(self) -> None:
        """Go one step; if another query was faster, this one ends, and its reader leaves."""
        if not self.dead:
            try:
                next(self._life)
            except ConcurrentUpdateError:
                self.dead = True
                self.query.group.evict(self.query.session)

    def _run(self) -> Iterator[None]:
        batch = max(self._offsets, default=-1)
        start = json.loads(self._offsets.get(batch, "{}"))
        if batch >= 0 and batch not in self._commits:  # The replay.
            yield from self._batch(batch, {}, start)
        while True:
            yield
            end = self.query.core.latest_offset(start, 10)
            if end == start:
                continue
            yield
            batch += 1
            if batch in self._offsets:
                raise ConcurrentUpdateError
            self._offsets[batch] = json.dumps(end)
            yield from self._batch(batch, start, json.loads(self._offsets[batch]))
            start = json.loads(self._offsets[batch])

    def _batch(self, batch: int, start: Offset, end: Offset) -> Iterator[None]:
        for task in self.query.core.partitions(start, end):
            yield
            self.query.sunk.append(task)
        yield
        if batch in self._commits:
            raise ConcurrentUpdateError
        self._commits.add(batch)


@shows("two queries on one checkpoint")
@pytest.mark.parametrize("seed", range(40))
def test_of_two_queries_on_one_checkpoint_one_ends_and_the_other_misses_nothing(seed: int) -> None:
    """Spark lets the first to write a batch win; the group must not have lost the other's share."""
    rng = random.Random(seed)
    group, log = make({0: 90, 1: 90})
    disk: tuple[dict[int, str], set[int]] = ({}, set())
    first = SharedCheckpoint(Query(group, log, client_id="a"), *disk)
    for _ in range(rng.randrange(1, 12)):
        first.step()
    second = SharedCheckpoint(Query(group, log, client_id="b"), *disk)
    second.query.clock.on_sleep = first.step
    for _ in range(200):
        rng.choice([first, second]).step()

    assert first.dead != second.dead
    survivor = second if first.dead else first
    for _ in range(100):
        survivor.step()
    expect_all(first.query.sunk + second.query.sunk, log.ends, repeated=2)


# --- Logs ----------------------------------------------------------------------------------


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
    policy: str,
    written: list[tuple[int, int, int]],
    unfinished: bool,
    caplog: pytest.LogCaptureFixture,
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
    goes_on = f"goes on at {0 if policy == 'earliest' else 12} (option 'onDataLoss' is '{policy}')"
    assert caplog.text.count(goes_on) == 1
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
    committed: int,
    earliest: int,
    end: int,
    policy: str,
    pin: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """From the first row that is there, or from the next one that comes; and never silently."""
    group, log = make({0: end})
    log.starts[0] = earliest
    group.reset(tp(0), committed, pin)
    query = Query(group, log, onDataLoss=policy)
    query.trigger()
    query.clock.now_s += LAG_MAX_S
    query.triggers(2)
    log.ends[0] = 16

    written = ranges(finish(query))

    begin = earliest if policy == "earliest" else end
    assert written[0][1] == begin
    assert written[-1][2] == 16
    assert caplog.text.count(f"the log holds {earliest} to {end}. ") == 1
    assert caplog.text.count(f"Reading goes on at {begin} (option 'onDataLoss'") == 1
    assert all(before[2] == after[1] for before, after in pairwise(written))
    # An offset without a pin was stored by somebody else, and counts as a reset.
    resets = (2 if pin else 1) + (end < committed or (bool(pin) and end < 14))
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
            if self.blocks.is_set() and not self.open.is_set():
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


# --- Faults of a log that meet a hand-over, a start or each other --------------------------


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


# --- Checkpoints ---------------------------------------------------------------------------


def begun(**reader: str) -> Checkpoint:
    """Return a checkpoint with one finished batch, of the reader with these fields."""
    about = {"v": 1, "coordinator": "h:1", "group": "g", "client_id": "old", **reader}
    return Checkpoint([json.dumps({"flights-0": {"s": 0, "e": 5, "g": 1}, "@": about})], 1)


@pytest.mark.parametrize("replayed", [False, True])
@shows("checkpoint of another group")
def test_a_checkpoint_of_another_group_is_refused(replayed: bool) -> None:
    """Batch ids and output folders go with it; nothing is joined or moved."""
    group, log = make({0: 20})
    checkpoint = begun(group="other")
    checkpoint.commits -= replayed
    query = Query(group, log, checkpoint=checkpoint)

    with pytest.raises(CheckpointError, match=r"group 'other', but option 'group' is 'g'"):
        query.core.partitions({}, json.loads(checkpoint.offsets[0])) if replayed else (
            query.trigger()
        )
    assert not group.members


def test_a_checkpoint_knows_its_group_by_any_address() -> None:
    """Coordinators move."""
    group, log = make({0: 20})
    group.reset(tp(0), 0, "gc1:5:0")

    expect_all(finish(Query(group, log, checkpoint=begun(coordinator="moved:1"))), log.ends)


@pytest.mark.parametrize("about", [{}, {"topics": ["flights", "orders"]}])
@shows("checkpoint of another topic set")
def test_a_checkpoint_of_other_topics_only_is_refused(about: dict[str, list[str]]) -> None:
    """Somebody gave the query the wrong folder."""
    group, log = make({0: 20})
    end = {"orders-0": {"s": 0, "e": 5, "g": 1}, "@": {**json.loads(begun().offsets[0])["@"]}}
    query = Query(group, log, checkpoint=Checkpoint([json.dumps(end)], 1))

    with pytest.raises(CheckpointError, match=r"topics 'orders', which.*option 'topics'"):
        query.trigger()
    assert not group.members
    end["@"].update(about)  # With a topic in common it was only changed.
    if about:
        query = Query(group, log, checkpoint=Checkpoint([json.dumps(end)], 1))
        expect_all(finish(query), log.ends)


@pytest.mark.parametrize(
    ("offset", "error", "words"),
    [
        ({"flights-0": {"from": 1}, "@": {"v": 2}}, OffsetFormatError, "version 2.*new checkpoint"),
        ({"flights": {"0": 20}}, OffsetFormatError, "did not write"),
        (20, OffsetFormatError, "did not write"),
    ],
)
@shows("checkpoint from a newer version")
def test_a_checkpoint_that_this_release_cannot_read_is_refused(
    offset: object, error: type[Exception], words: str
) -> None:
    """Also of another source; the message says what to do."""
    group, log = make({0: 20})

    with pytest.raises(error, match=words):
        Query(group, log, checkpoint=Checkpoint([json.dumps(offset)], 1)).trigger()
    with pytest.raises(error, match=words):
        Query(group, log).core.partitions({}, offset)  # type: ignore[arg-type] # As Spark would.
    assert not group.members


# --- Each fault has its evidence -----------------------------------------------------------


TESTS = Path(__file__).parent.parent

# How many of the tests with real Spark may run each time; the others are for the night.
AT_DAY_MAX = 6


def shown(folder: str) -> Iterator[tuple[str, str, bool]]:
    """Yield (fault, test, whether it runs at night only) of the tests in a folder."""
    for file in (TESTS / folder).glob("test_*.py"):
        for node in ast.parse(file.read_text()).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            nightly = any("nightly" in ast.unparse(mark) for mark in node.decorator_list)
            for mark in node.decorator_list:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "shows":
                    for fault in mark.args:
                        yield ast.literal_eval(fault), node.name, nightly


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("folder", ["spark", "integration"])
def test_each_fault_is_shown(fault: str, folder: str) -> None:
    """A row of the table without a test is a promise without evidence."""
    assert [test for shown_fault, test, _ in shown(folder) if shown_fault == fault]


def test_no_core_test_of_a_fault_waits_for_the_night() -> None:
    """They take milliseconds."""
    assert not [test for _, test, nightly in shown("spark") if nightly]


def test_few_tests_with_real_spark_run_each_time() -> None:
    """They share a budget of minutes with everything else."""
    by_day = {test for _, test, nightly in shown("integration") if not nightly}

    assert 0 < len(by_day) <= AT_DAY_MAX
