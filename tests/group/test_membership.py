"""Heartbeats, sessions, leaving, vanished clients, slow disks."""

import pytest

from tests.group.context import (
    DELAY_MS,
    REBALANCE_MS,
    SESSION_MS,
    Context,
    assignment,
    subscription,
)


def test_a_member_that_is_not_heard_of_is_removed() -> None:
    """With the measured gap, for whoever has to find out why."""
    context = Context()
    silent, alive = context.stable_group(2)
    context.advance(SESSION_MS - 1)
    context.beat(alive, 1)

    assert context.state == "Stable"

    context.advance(1)

    assert context.state == "PreparingRebalance"
    assert [
        {
            "group": "etl",
            "member_id": silent,
            "client_id": "spark0",
            "client_host": "10.0.0.1",
            "reason": "session expired",
            "detail": "no heartbeat for 10.0 s, session timeout 10.0 s",
            "generation": 1,
            "partitions": ["flights-0"],
        }
    ] == context.events_named("group.member_removed")


def test_the_last_member_to_expire_leaves_an_empty_group() -> None:
    """One generation later, so that nothing it says counts any more."""
    context = Context()
    members = context.stable_group(1)
    context.advance(SESSION_MS)

    assert (context.state, context.generation) == ("Empty", 2)
    assert context.commit(members[0], 1) == 25


@pytest.mark.parametrize("how", ["beat", "commit"])
def test_hearing_from_a_member_gives_it_a_full_session(how: str) -> None:
    """Any sign of life counts."""
    context = Context()
    (member,) = context.stable_group(1)
    for _ in range(5):
        context.advance(SESSION_MS - 1)
        assert (context.beat if how == "beat" else context.commit)(member, 1) == 0

    assert context.state == "Stable"


def test_a_heartbeat_in_a_rebalance_says_rejoin_and_counts() -> None:
    """The member may be in a long batch."""
    context = Context()
    busy, other = context.stable_group(2)
    context.join(other, protocols={"range": subscription("trains")})
    for _ in range(4):
        assert context.beat(busy, 1) == 27
        context.advance(SESSION_MS - 1)

    assert context.removals() == []


def test_heartbeats_that_reveal_nothing_new_skip_the_gate() -> None:
    """0 and 27 don't wait for the disk; what says that something changed does."""
    context = Context()
    leader, follower = context.stable_group(2)
    context.close_gate()
    context.beat(leader, 1)
    context.beat(leader, 0)
    context.leave(follower)
    context.beat(leader, 1)
    context.beat(follower, 1)

    assert [gated for *_, gated, _ in context.in_gate] == [False, True, True, False, True]


def test_those_who_wait_for_us_do_not_expire() -> None:
    """A parked request is our debt, not theirs."""
    context = Context()
    members = context.stable_group(2, rebalance_ms=100_000)
    token = context.join(members[0])
    for _ in range(20):
        assert context.is_parked(token)
        context.beat(members[1], 1)
        context.advance(5_000)

    assert [(members[1], "rebalance timeout")] == context.removals()
    assert context.joined(token).generation_id == 2


def test_a_session_starts_anew_when_a_parked_join_is_answered() -> None:
    """The member has a full session to send its SyncGroup."""
    context = Context()
    members = context.completing_group(2)
    context.advance(SESSION_MS - 1)

    assert context.removals() == []

    context.advance(1)

    assert members == [member for member, _ in context.removals()]


def test_leaving_is_one_rebalance_for_all_who_leave() -> None:
    """An operator who removes half of a group causes one disturbance."""
    context = Context()
    members = context.stable_group(4)

    assert context.leave(members[1], "spark-ffff", members[2], members[1]) == [0, 25, 0, 25]
    assert len(context.events_named("group.rebalance_started")) == 2
    assert [(members[1], "left"), (members[2], "left")] == context.removals()


def test_a_leaver_whose_join_is_parked_is_told_so() -> None:
    """Every request gets exactly one answer."""
    context = Context()
    context.stable_group(2)
    newcomer = context.new_id()
    joining = context.join(newcomer)
    context.leave(newcomer)

    assert (context.joined(joining).error, context.joined(joining).member_id) == (25, "")


def test_a_leaver_whose_sync_is_parked_is_told_so() -> None:
    """It is a member no more, and 27 would make it join again."""
    context = Context()
    members = context.completing_group(2)
    parked = context.sync(members[1], 1)
    context.leave(members[1])

    assert context.synced(parked).error == 25


def test_the_last_one_missing_completes_the_join_by_leaving() -> None:
    """The others need not wait for the timer."""
    context = Context()
    members = context.stable_group(2)
    token = context.join(members[0])
    context.leave(members[1])

    assert context.joined(token).generation_id == 2


def test_an_id_that_leaves_disturbs_nobody() -> None:
    """It was no member yet."""
    context = Context()
    context.stable_group(2)
    pending = context.new_id()

    assert context.leave(pending) == [0]
    assert context.state == "Stable"
    assert context.joined(context.join(pending)).error == 25


def test_an_id_that_leaves_lets_the_join_complete() -> None:
    """It was the last one missing."""
    context = Context()
    (member,) = context.stable_group(1)
    pending = context.new_id()
    token = context.join(member)

    assert context.is_parked(token)

    context.leave(pending)

    assert context.joined(token).generation_id == 2


def test_leaving_in_the_initial_delay_does_not_end_it_early() -> None:
    """Others are still expected."""
    context = Context()
    members = [context.new_id(), context.new_id()]
    token, _ = (context.join(member) for member in members)
    context.leave(members[1])

    assert context.is_parked(token)

    context.advance(DELAY_MS)

    assert context.is_parked(token)  # The second member had extended the delay.

    context.advance(DELAY_MS)

    assert context.joined(token).generation_id == 1


def test_a_group_whose_first_member_leaves_in_the_delay_is_empty_at_once() -> None:
    """There is nobody to wait for."""
    context = Context()
    member = context.new_id()
    context.join(member)
    context.leave(member)

    assert (context.state, context.generation) == ("Empty", 1)


# --- clients that vanish ----------------------------------------------------------------


def test_a_vanished_clients_join_does_not_count() -> None:
    """The generation would have a member that nobody told of it."""
    context = Context()
    members = context.stable_group(2)
    gone = context.join(members[0])
    context.withdraw(gone)
    token = context.join(members[1], protocols={"range": subscription("trains")})
    context.advance(SESSION_MS - 1)

    assert context.is_parked(token)

    context.advance(1)

    assert context.joined(token).generation_id == 2
    assert [(members[0], "session expired")] == context.removals()


def test_a_vanished_client_can_come_back_with_its_id() -> None:
    """A broken connection is no reason to lose the place."""
    context = Context()
    members = context.stable_group(2)
    context.withdraw(context.join(members[0]))
    tokens = [context.join(member) for member in members]

    assert [context.joined(token).generation_id for token in tokens] == [2, 2]


def test_a_vanished_newcomer_in_the_initial_delay_is_waited_for() -> None:
    """The delay ends, its session runs on."""
    context = Context()
    gone, stays = context.new_id(), context.new_id()
    context.withdraw(context.join(gone))
    token = context.join(stays)
    context.advance(2 * DELAY_MS)

    assert context.is_parked(token)

    context.advance(SESSION_MS)

    assert context.joined(token).generation_id == 1
    assert [(gone, "session expired")] == context.removals()


def test_a_vanished_clients_sync_counts_as_not_sent() -> None:
    """The sync timer sees to it."""
    context = Context()
    members = context.completing_group(2)
    context.withdraw(context.sync(members[1], 1))
    context.sync(members[0], 1, {})
    for _ in range(REBALANCE_MS // 5_000):
        context.beat(members[0], 1)
        context.beat(members[1], 1)
        context.advance(5_000)

    assert [(members[1], "sync timeout")] == context.removals()


def test_withdrawing_what_is_not_parked_is_nothing() -> None:
    """A client may vanish at any time."""
    context = Context()
    (member,) = context.stable_group(1)
    token = context.sync(member, 1)

    assert context.shard.withdraw(token, context.now) is None
    assert context.shard.withdraw(99_999, context.now) is None


# --- slow disks and stalled processes -----------------------------------------------------


def test_a_member_with_a_reply_in_the_gate_does_not_expire() -> None:
    """A slow disk evicts nobody."""
    context = Context()
    (member,) = context.stable_group(1)
    context.close_gate()
    context.commit(member, 1)
    context.advance(5 * SESSION_MS)

    assert context.state == "Stable"

    context.open_gate()
    context.advance(SESSION_MS - 1)

    assert context.state == "Stable"

    context.advance(1)

    assert context.state == "Empty"


def test_a_reply_that_hardly_waited_does_not_refresh_the_session() -> None:
    """Else the answer to a repeated SyncGroup would keep a silent member alive."""
    context = Context()
    (member,) = context.stable_group(1)
    context.advance(9_000)
    context.close_gate()
    context.sync(member, 1)
    context.advance(1)
    context.open_gate()
    context.advance(999)

    assert context.removals() == [(member, "session expired")]


def test_a_session_that_ends_in_the_gate_starts_anew_however_short_the_wait() -> None:
    """The timer was ignored; without a new one the member would live for ever."""
    context = Context()
    (member,) = context.stable_group(1)
    context.advance(9_995)
    context.close_gate()
    context.sync(member, 1)
    context.advance(10)
    context.open_gate()
    context.advance(SESSION_MS - 1)

    assert context.removals() == []

    context.advance(1)

    assert context.removals() == [(member, "session expired")]


def test_an_id_in_the_gate_does_not_expire() -> None:
    """Its owner doesn't know it yet."""
    context = Context()
    context.close_gate()
    member = context.new_id()
    context.advance(5 * SESSION_MS)
    context.open_gate()

    assert context.is_parked(context.join(member))


def test_the_sync_timer_spares_those_who_wait_for_the_disk() -> None:
    """They don't know their generation yet."""
    context = Context()
    context.new_id()
    member = context.new_id()
    context.close_gate()
    context.join(member, session_ms=100_000)
    context.advance(DELAY_MS + 3 * REBALANCE_MS)

    assert (context.state, context.removals()) == ("CompletingRebalance", [])

    context.open_gate()
    context.sync(member, 1, {member: assignment("flights-0")})

    assert context.state == "Stable"


def test_the_join_timer_spares_those_who_wait_for_the_disk() -> None:
    """They can't know of the rebalance before."""
    context = Context()
    members = context.completing_group(2)
    context.close_gate()
    parked = context.sync(members[1], 1)
    token = context.join(members[0], protocols={"range": subscription("trains")})

    assert context.synced(parked).error == 27

    context.advance(2 * REBALANCE_MS)

    assert context.is_parked(token)

    context.open_gate()
    context.beat(members[1], 1)
    context.advance(REBALANCE_MS)

    assert context.joined(token).generation_id == 2


def test_a_rebalance_timeout_of_zero_does_not_make_us_spin() -> None:
    """While the disk stalls, there is nothing to do."""
    context = Context()
    members = context.completing_group(2, rebalance_ms=0, session_ms=60_000)
    context.close_gate()
    context.sync(members[1], 1)
    context.join(members[0], rebalance_ms=0, protocols={"range": subscription("trains")})
    context.shard.expire(context.now)
    deadline_ms = context.shard.next_deadline_ms()

    assert deadline_ms is not None
    assert deadline_ms > context.mono_ms


def test_a_stalled_process_evicts_nobody() -> None:
    """The time that we slept is nobody's fault."""
    context = Context()
    context.stable_group(2)
    context.shard.shift_deadlines(60_000)
    context.advance(60_000 + SESSION_MS - 1)

    assert context.state == "Stable"

    context.advance(1)

    assert context.state == "Empty"


def test_deadlines_after_a_stall_count_from_now() -> None:
    """What is armed later isn't moved."""
    context = Context()
    (member,) = context.stable_group(1)
    context.shard.shift_deadlines(60_000)
    context.beat(member, 1)
    context.advance(SESSION_MS)

    assert context.state == "Empty"


def test_many_sessions_that_end_at_once_are_handled_in_slices() -> None:
    """Others' requests must get in between."""
    context = Context()
    context.completing_group(300)
    context.mono_ms += SESSION_MS
    outcomes = context.shard.expire(context.now)

    assert sum(e.name == "group.member_removed" for o in outcomes for e in o.events) == 256

    deadline_ms = context.shard.next_deadline_ms()

    assert deadline_ms is not None
    assert deadline_ms <= context.mono_ms
