"""The reader core when the coordinator is away, forgets to answer, or removes the reader."""

import pytest

from client.exceptions import FatalError
from client.offsets import OffsetAndMetadata
from client.spark.errors import (
    CoordinatedSourceError,
    CoordinatorTimeout,
    FencedError,
    StatefulQueryError,
)
from client.spark.source.core import PAUSE_MAX_S
from protocol.errors import ErrorCode
from protocol.partition import TopicPartition
from tests.fakes.group_session import FakeGroup, Fault
from tests.spark.helpers import Checkpoint, MemoryLog, Query, ranges, tp


def make(ends: dict[int, int]) -> tuple[FakeGroup, MemoryLog]:
    """Return a group and a log with these partitions."""
    return FakeGroup([tp(p) for p in ends]), MemoryLog(ends)


def test_an_outage_makes_triggers_idle_and_nothing_is_lost() -> None:
    """An exception would end the query."""
    group, log = make({0: 30})
    query = Query(group, log)
    query.trigger()
    group.outage = True

    assert query.triggers(20) == []
    assert group.offset(tp(0)) == 0
    assert max(query.clock.slept) == PAUSE_MAX_S
    assert query.clock.slept[:3] == [0.1, 0.2, 0.4]

    group.outage = False
    assert ranges(query.triggers(3)) == [(0, 10, 20), (0, 20, 30)]
    assert group.offset(tp(0)) == 30


def test_after_an_outage_the_pauses_start_short_again() -> None:
    """Each outage is a new one."""
    group, log = make({0: 30})
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
    group, log = make({0: 30})
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
    group, log = make({0: 30})
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
    group, log = make({0: 30})
    query = Query(group, log)
    group.faults = [Fault.REQUEST_LOST] * 4

    assert query.triggers(4) == []
    assert ranges(query.triggers(1)) == [(0, 0, 10)]


def test_during_an_outage_a_commit_in_doubt_stays_in_doubt() -> None:
    """A refusal to connect says nothing about the earlier attempt."""
    group, log = make({0: 30})
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
    group, log = make({0: 10})
    query = Query(group, log, max_rows=None, failOnDataLoss="false")
    query.trigger()
    log.starts[0], log.ends[0] = 50, 60
    group.faults = [Fault.REQUEST_LOST]
    query.trigger()
    log.ends[0] = 90

    assert ranges(query.triggers(2)) == [(0, 50, 60), (0, 60, 90)]


def test_a_commit_that_surely_was_not_stored_is_planned_anew() -> None:
    """Nothing binds us, so the batch may take what has come meanwhile."""
    group, log = make({0: 13})
    query = Query(group, log)
    query.trigger()
    group.outage = True
    query.trigger()
    group.outage = False
    log.ends[0] = 20

    assert ranges(query.triggers(1)) == [(0, 10, 20)]


def test_a_conflict_with_somebody_elses_offset_takes_theirs() -> None:
    """An operator's reset beats what the reader believes."""
    group, log = make({0: 100})
    query = Query(group, log)
    query.trigger()
    group.reset(tp(0), 50, "gc1:50:1")

    assert ranges(query.triggers(1)) == [(0, 50, 60)]
    assert group.offsets[tp(0)] == OffsetAndMetadata(50, "gc1:60:1")


def test_a_conflict_on_one_partition_does_not_hold_up_the_others() -> None:
    """The rest of the commit was stored."""
    group, log = make({0: 100, 1: 100})
    query = Query(group, log)
    query.trigger()
    group.reset(tp(0), 50)

    assert ranges(query.triggers(1)) == [(0, 50, 60), (1, 10, 20)]


def test_a_fenced_reader_drops_its_positions_and_goes_on() -> None:
    """One frozen process must not end the query, and must not move offsets."""
    group, log = make({0: 100, 1: 100})
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
    group, log = make({0: 100})
    query = Query(group, log, onFence="fail")
    query.trigger()
    group.evict(query.session, noticed=False)

    with pytest.raises(FencedError, match="onFence"):
        query.trigger()


def test_a_refused_query_ends_before_another_batch() -> None:
    """What the guard saw is in the message; nothing is committed, so no restart creeps forward."""
    group, log = make({0: 100})
    reasons: list[str | None] = [None, None, "it is stateful"]
    query = Query(group, log, refused=lambda: reasons.pop(0))
    query.triggers(2)

    with pytest.raises(StatefulQueryError, match="it is stateful"):
        query.trigger()
    assert group.offset(tp(0)) == 10
    assert len(query.sunk) == 2


@pytest.mark.parametrize("noticed", [True, False])
def test_a_lost_reader_commits_what_nobody_else_touched(noticed: bool) -> None:
    """It was alone: the committed offset is still where its batch began."""
    group, log = make({0: 100})
    query = Query(group, log)
    query.trigger()
    group.evict(query.session, noticed=noticed)

    assert ranges(query.triggers(1)) == [(0, 10, 20)]
    assert group.offset(tp(0)) == 10


def test_a_lost_reader_commits_nothing_over_a_reset() -> None:
    """The same offset under another reset counter is another range."""
    group, log = make({0: 100})
    query = Query(group, log)
    query.trigger()
    group.evict(query.session)
    group.reset(tp(0), 0, "gc1:0:1")

    assert ranges(query.triggers(1)) == [(0, 0, 10)]


def test_a_partition_that_is_not_ours_makes_the_reader_rejoin() -> None:
    """Its view of the generation is wrong somewhere."""
    group, log = make({0: 100})
    query = Query(group, log)
    query.trigger()
    group.owners[tp(0)] = "somebody"

    assert ranges(query.triggers(2)) == [(0, 10, 20), (0, 20, 30)]
    assert group.generation == 2


def test_a_full_disk_at_the_coordinator_makes_triggers_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is refused for certain, and will be accepted when there is room."""
    group, log = make({0: 100})
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
    group, log = make({0: 100})
    query = Query(group, log)
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    monkeypatch.setattr(group, "apply", lambda *_: {TopicPartition("flights", 0): code})

    with pytest.raises(CoordinatedSourceError, match=r"flights-0.*UNKNOWN_TOPIC_OR_PARTITION"):
        query.trigger()


def test_a_fatal_error_of_the_client_ends_the_query(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a session timeout that the server doesn't allow."""
    group, log = make({0: 100})
    query = Query(group, log)

    def refuse(*_: object) -> None:
        raise FatalError("INVALID_SESSION_TIMEOUT")

    monkeypatch.setattr(group, "join", refuse)

    with pytest.raises(FatalError, match="INVALID_SESSION_TIMEOUT"):
        query.trigger()


def test_the_first_offset_waits_for_the_coordinator_and_then_gives_up() -> None:
    """A wrong address should end the query, not hang it."""
    group, log = make({0: 10})
    group.outage = True
    query = Query(group, log)

    with pytest.raises(CoordinatorTimeout, match=r"within 30 s \(option 'coordinatorTimeout'\)"):
        query.trigger()
    assert 30 <= query.clock.now_s < 30 + PAUSE_MAX_S


def test_a_replay_waits_for_the_coordinator() -> None:
    """An empty answer would mark the batch as done, and skip it."""
    group, log = make({0: 40})
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
    group, log = make({0: 40})
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
    group, log = make({0: 40})
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
    group, log = make({0: 23, 1: 5})
    query = Query(group, log)
    query.core.prepare_available_now()
    log.ends.update({0: 100, 1: 100})

    done = [query.trigger() for _ in range(4)]

    assert done == [True, True, True, False]
    assert ranges(query.sunk) == [(0, 0, 10), (1, 0, 5), (0, 10, 20), (0, 20, 23)]
    assert [group.offset(tp(p)) for p in (0, 1)] == [23, 5]


def test_available_now_blocks_through_an_outage() -> None:
    """Returning start would end the query as if it were complete."""
    group, log = make({0: 23})
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
    group, log = make({0: 23})
    query = Query(group, log)
    query.core.prepare_available_now()
    query.trigger()
    group.outage = True

    with pytest.raises(CoordinatorTimeout, match="the next batch"):
        query.trigger()


def test_available_now_takes_a_pinned_range_whole() -> None:
    """Cutting it would make a second key for the same rows."""
    group, log = make({0: 23})
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
    group, log = make({0: 23})
    group.reset(tp(0), committed, pin)
    query = Query(group, log)
    query.core.prepare_available_now()

    with pytest.raises(CoordinatorTimeout, match=r"comes next.*, but the log ends at 23"):
        query.trigger()


def test_a_replay_of_rows_that_the_log_no_longer_shows_is_left_to_the_next_trigger() -> None:
    """Reading them would fail, at each restart again."""
    group, log = make({0: 10})
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
    group, log = make({0: 100})
    query = Query(group, log, client_id="me")
    query.trigger()
    assert not group.drain("me")

    assert query.triggers(3) == []

    assert group.drain("me")
    assert group.offset(tp(0)) == 10
    assert group.offsets[tp(0)].metadata == "gc1:10:0"
