"""Cooperative and static readers: what stays goes on, what goes is committed and settled first."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from client.exceptions import FatalError
from client.spark.errors import CoordinatedSourceError, CoordinatorTimeout, FencedError
from protocol.errors import ErrorCode
from protocol.partition import TopicPartition
from tests.fakes.group_session import FakeGroup, FakeSession, Fault
from tests.spark.helpers import Checkpoint, MemoryLog, Query, ranges, tp


def make(ends: dict[int, int]) -> tuple[FakeGroup, MemoryLog]:
    """Return a group and a log with these partitions."""
    return FakeGroup([tp(p) for p in ends]), MemoryLog(ends)


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
    group, log = make({0: 100, 1: 100})
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
    group, log = make({0: 100, 1: 100})
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
    group, log = make({0: 100, 1: 100})
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
    group, log = make({0: 100, 1: 100, 2: 100})
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
    group, log = make({0: 100})
    query = reader(group, log)
    start = query.core.initial_offset()
    query.core.latest_offset(start, 10)  # Planned and pinned, but Spark doesn't run it.
    query.session.swift = query.session.asked = True
    group.evict(query.session, noticed=False)
    group.reset(tp(0), 40, "gc1:45:0")

    assert ranges(query.triggers(3)) == [(0, 40, 45), (0, 45, 55), (0, 55, 65)]
    assert query.session.losses == 1


@pytest.mark.parametrize("waits", [False, True])
def test_a_loss_within_the_hand_over_ends_the_query_where_that_is_asked_for(waits: bool) -> None:
    """It is as much a fence as one that a heartbeat tells of, also if the join has to wait."""
    group, log = make({0: 10})
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
    group, log = make({0: 10})
    query = reader(group, log, onFence="fail", assignor=assignor)
    query.triggers(3)
    group.evict(query.session)

    with pytest.raises(FencedError, match="onFence"):
        query.trigger()


def test_a_member_without_partitions_may_be_removed_where_a_fence_ends_the_query() -> None:
    """Nothing of it can run twice."""
    group, log = make({0: 100})
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
    group, log = make({0: 100})
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
    group, log = make({0: 100})
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
    group, log = make({0: 100})
    query = reader(group, log, "me")
    query.trigger()
    assert not group.drain("me")

    query.triggers(4)

    assert group.drain("me")
    last = max(end for _, _, end in ranges(query.sunk))
    assert group.offsets[tp(0)][:2] == (last, f"gc1:{last}:0")


def test_eager_and_cooperative_readers_share_a_group() -> None:
    """Readers are replaced one by one when they change from one to the other."""
    group, log = make({0: 60, 1: 60})
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
    group, log = make({0: 30, 1: 30})
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
    group, log = make({0: 20})
    query = reader(group, log)
    query.core.initial_offset()
    first = query.session
    assert first.cooperative

    query.core.prepare_available_now()

    assert (first.left, query.session.cooperative) == (True, False)
    assert ranges(query.triggers(3)) == [(0, 0, 10), (0, 10, 20)]


def test_a_static_reader_comes_back_without_a_rebalance() -> None:
    """That is what it is for."""
    group, log = make({0: 100, 1: 100})
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
    group, log = make({0: 100})
    query = reader(group, log, groupInstanceId="me", onFence="fail")
    query.trigger()
    newcomer(group)
    group.go_on_without(query.session)

    with pytest.raises(FencedError, match="onFence"):
        query.trigger()


def test_two_readers_of_one_name_end_with_a_reason() -> None:
    """The older one can't know that it was replaced; its user must."""
    group, log = make({0: 100})
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
    group, log = make({0: 100})
    query = reader(group, log)

    def refuse(_session: FakeSession) -> None:
        raise FatalError("no common", code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)

    monkeypatch.setattr(group, "join", refuse)

    with pytest.raises(CoordinatedSourceError, match=r"option 'assignor'.*'cooperative,range'"):
        query.trigger()


def test_a_static_leader_that_was_restarted_notices_what_grew_meanwhile() -> None:
    """It took over an assignment that it didn't compute, and nobody else watches the topic."""
    group, log = make({0: 10})
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
    group, log = make({0: 10})
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
    group, log = make({0: 10})
    query = Query(group, log, assignor="cooperative", topicsPattern="fl.*")
    query.triggers(2)
    log.others["flown"] = {0: 5}
    query.session.asked = True

    query.triggers(1)

    assert query.session.topics == ("flights", "flown")


def test_a_pattern_lets_go_of_topics_that_are_gone() -> None:
    """A deleted topic is no reason to end a query that reads all that match."""
    group, log = make({0: 10})
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
    group, log = make({0: 10})
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
    group, log = make({0: 10})
    query = Query(group, log, assignor="cooperative", topicsPattern="fl.*")
    query.trigger()
    log.others["flown"] = {0: 5}
    log.columns["flown"] = pa.schema([("other", pa.int32())])
    query.clock.now_s += 5

    with pytest.raises(CoordinatedSourceError, match="'flown' matches, but its columns"):
        query.trigger()


def test_available_now_reads_all_topics_that_match() -> None:
    """As they were when it started."""
    group, log = make({0: 10})
    log.others["flown"] = {0: 5}
    group.partitions.append(TopicPartition("flown", 0))
    query = Query(group, log, assignor="cooperative", topicsPattern="fl.*")
    query.core.prepare_available_now()
    log.others["flown"][0] = 50

    written = query.triggers(3)

    assert {(task.tp.topic, task.range.end) for task in written} == {("flights", 10), ("flown", 5)}


def test_a_reader_waits_where_it_would_have_nothing_else_to_do() -> None:
    """A reader that comes first into a group waits for those that were there, but not for ever."""
    group, log = make({0: 10})
    stuck = reader(group, log, "stuck")
    stuck.trigger()
    query = Query(group, log, client_id="b", assignor="cooperative")

    with pytest.raises(CoordinatorTimeout, match="first assignment"):
        query.core.initial_offset()
