"""The membership machine after joining: heartbeats, fences, leaving."""

import pytest

from client.exceptions import ClientClosed, CoordinatorUnavailable, FatalError
from client.membership import GaveUp, Membership, State
from protocol.messages import (
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from tests.client.machine import (
    CONFIG,
    T0,
    heartbeat,
    joined,
    joining,
    one_send,
    stable,
    synced,
    syncing,
)


def test_a_computation_for_an_older_generation_is_dropped() -> None:
    """It was about other members."""
    machine = Membership(CONFIG)
    machine.answered(joining(machine), joined(generation=4, leader="me"), 0)

    assert machine.computed(3, ()) == []
    assert machine.compute_failed(3, ValueError()) == []


def test_heartbeats_come_at_a_third_of_the_session() -> None:
    """Two may get lost before the third would come too late."""
    machine = stable()

    assert machine.next_deadline_ms() == 3_000
    assert machine.tick(2_999) == []

    request = heartbeat(machine)

    assert (request.generation_id, request.member_id) == (1, "me")
    assert machine.next_deadline_ms() is None

    machine.answered(request, HeartbeatResponse(0), 3_100)

    assert machine.next_deadline_ms() == 6_100


def test_heartbeats_come_at_least_every_three_seconds() -> None:
    """A rebalance is noticed by heartbeats: a long session must not make that slow."""
    assert CONFIG._replace(session_timeout_ms=1_800_000).heartbeat_interval_ms == 3_000


def test_the_computing_leader_sends_heartbeats() -> None:
    """Listing partitions may take longer than the session."""
    machine = Membership(CONFIG)
    machine.answered(joining(machine), joined(leader="me"), 500)

    assert machine.next_deadline_ms() == 3_500


def test_nothing_ticks_outside_and_while_joining() -> None:
    """A parked member doesn't expire, and one without a generation has no session."""
    machine = Membership(CONFIG)

    assert machine.next_deadline_ms() is None

    joining(machine)

    assert machine.next_deadline_ms() is None


def test_a_rebalance_is_noted_and_the_partitions_stay() -> None:
    """The user chooses when to hand over."""
    machine = stable()
    request = heartbeat(machine)
    actions = machine.answered(request, HeartbeatResponse(27), 3_000)

    assert actions == []
    assert (machine.rebalance_needed, machine.lost) == (True, False)
    assert machine.next_deadline_ms() == 6_000
    assert joining(machine).member_id == "me"


@pytest.mark.parametrize(("code", "member_id"), [(22, "me"), (25, "")])
def test_a_lost_generation_or_membership_ends_the_heartbeats(code: int, member_id: str) -> None:
    """They would say the same for ever."""
    machine = stable()
    machine.answered(heartbeat(machine), HeartbeatResponse(code), 3_000)

    assert (machine.rebalance_needed, machine.lost) == (True, True)
    assert machine.next_deadline_ms() is None
    assert member_id == joining(machine).member_id


@pytest.mark.parametrize("code", [82, 24, 35, 4711])
def test_a_heartbeat_with_a_fatal_code_fails_the_member(code: int) -> None:
    """Fenced, or something that this client doesn't know: the user must hear of it."""
    machine = stable()
    machine.answered(heartbeat(machine), HeartbeatResponse(code), 3_000)

    assert (machine.state, machine.rebalance_needed, machine.lost) == (State.FAILED, True, True)


@pytest.mark.parametrize("code", [22, 25, 27, 82])
def test_an_answer_of_an_older_generation_means_nothing(code: int) -> None:
    """It left before the rejoin and came after it."""
    machine = stable()
    late = heartbeat(machine)
    machine.rebalance_needed = True
    sync = one_send(machine.answered(joining(machine), joined(2), 0)).request
    assert isinstance(sync, SyncGroupRequest)
    machine.answered(sync, synced(T0), 0)

    assert machine.answered(late, HeartbeatResponse(code), 0) == []
    assert machine.observe(code, 1, "me") == []
    assert (
        machine.state,
        machine.rebalance_needed,
        machine.lost,
    ) == (State.STABLE, False, False)


@pytest.mark.parametrize("code", [22, 25, 27])
def test_while_syncing_only_the_sync_decides(code: int) -> None:
    """The parked SyncGroup is answered, too; two rejoins would be one too many."""
    machine = Membership(CONFIG)
    syncing(machine)
    machine.answered(heartbeat(machine), HeartbeatResponse(code), 3_000)

    assert (machine.state, machine.rebalance_needed) == (State.SYNCING, False)


def test_late_answers_to_older_joins_and_syncs_mean_nothing() -> None:
    """Only the request that is awaited counts."""
    machine = Membership(CONFIG)
    first = joining(machine)
    again = one_send(machine.answered(first, joined(error=27), 0)).request
    assert isinstance(again, JoinGroupRequest)

    assert machine.answered(first, joined(9), 0) == []
    assert machine.unanswered(first, CoordinatorUnavailable("late"), 0) == []
    assert machine.state == State.JOINING


def test_an_unanswered_heartbeat_is_followed_by_another() -> None:
    """Only the coordinator says when a session is over."""
    machine = stable()
    machine.unanswered(heartbeat(machine), CoordinatorUnavailable("away"), 12_000)

    assert (machine.rebalance_needed, machine.lost) == (False, False)
    assert machine.next_deadline_ms() == 15_000


def test_a_heartbeat_that_was_not_understood_fails_the_member() -> None:
    """Without heartbeats there is no membership."""
    machine = stable()
    machine.unanswered(heartbeat(machine), FatalError("what?"), 3_000)

    assert machine.state == State.FAILED


def test_leaving_names_the_member_and_is_final() -> None:
    """Nothing that still arrives brings it back."""
    machine = stable()
    late = heartbeat(machine)
    request = one_send(machine.leave("bye")).request

    assert isinstance(request, LeaveGroupRequest)
    assert (request.members[0].member_id, request.members[0].reason) == ("me", "bye")
    assert machine.leave(None) == []
    assert machine.answered(late, HeartbeatResponse(27), 0) == []
    assert machine.next_deadline_ms() is None
    (gave_up,) = machine.want_assignment()
    assert isinstance(gave_up, GaveUp)
    assert isinstance(gave_up.error, ClientClosed)
    assert machine.state == State.LEFT


def test_leaving_while_joining_tells_whoever_waits() -> None:
    """Nobody waits for an assignment that can't come any more."""
    machine = Membership(CONFIG)
    joining(machine)
    (gave_up,) = machine.leave(None)

    assert isinstance(gave_up, GaveUp)


def test_who_never_had_an_id_leaves_without_a_word() -> None:
    """The coordinator doesn't know it."""
    assert Membership(CONFIG).leave(None) == []


def test_answers_that_come_after_leaving_bring_nobody_back() -> None:
    """The coordinator may have answered just before it read the goodbye."""
    machine = Membership(CONFIG)
    join = joining(machine)
    machine.leave(None)

    assert machine.answered(join, joined(), 0) == []

    machine = Membership(CONFIG)
    sync = syncing(machine)
    machine.leave(None)

    assert machine.answered(sync, synced(T0), 0) == []
    assert machine.state is State.LEFT


def test_a_new_generation_does_not_wait_for_the_heartbeat_of_the_old_one() -> None:
    """It may hang in retries for as long as a session lasts."""
    machine = stable()
    old = heartbeat(machine)
    machine.rebalance_needed = True
    sync = one_send(machine.answered(joining(machine), joined(2), 10_000)).request

    assert isinstance(sync, SyncGroupRequest)
    assert machine.next_deadline_ms() == 13_000

    current = heartbeat(machine, 13_000)
    machine.answered(old, HeartbeatResponse(22), 13_500)

    assert machine.next_deadline_ms() is None  # The current one is still on its way.

    machine.answered(current, HeartbeatResponse(0), 14_000)

    assert machine.next_deadline_ms() == 17_000


def test_a_lost_member_that_joined_again_owns_its_partitions() -> None:
    """What was lost was the old generation's."""
    machine = stable()
    machine.answered(heartbeat(machine), HeartbeatResponse(22), 3_000)
    sync = one_send(machine.answered(joining(machine), joined(2), 4_000)).request
    assert isinstance(sync, SyncGroupRequest)
    machine.answered(sync, synced(T0), 4_000)

    assert (machine.lost, machine.rebalance_needed) == (False, False)
    assert machine.next_deadline_ms() == 7_000
