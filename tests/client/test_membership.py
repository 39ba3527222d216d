"""The membership machine: events in, actions out, from joining to leaving."""

import itertools

import pytest
from msgspec import structs

from client.exceptions import ClientClosed, CoordinatorUnavailable, FatalError
from client.membership import (
    REACTIONS,
    Asked,
    Assigned,
    Assignment,
    Compute,
    GaveUp,
    Membership,
    Reaction,
    State,
    reaction,
)
from protocol import consumer
from protocol.errors import ErrorCode
from protocol.messages import (
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupRequest,
    LeaveGroupRequest,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tests.client.machine import (
    CONFIG,
    T0,
    T1,
    heartbeat,
    joined,
    joining,
    one_send,
    stable,
    synced,
    syncing,
)


def test_a_new_member_follows_the_id_that_it_is_given_at_once() -> None:
    """MEMBER_ID_REQUIRED is half of a handshake, not a failure: there is no pause."""
    machine = Membership(CONFIG)
    first = joining(machine)
    again = one_send(machine.answered(first, joined(error=ErrorCode.MEMBER_ID_REQUIRED), 0))

    assert first.member_id == ""
    assert isinstance(again.request, JoinGroupRequest)
    assert (again.request.member_id, again.rejoins) == ("me", 0)


def test_an_id_that_is_required_twice_is_an_error() -> None:
    """A server that goes on asking for an id must not get requests for ever."""
    machine = Membership(CONFIG)
    required = joined(error=ErrorCode.MEMBER_ID_REQUIRED)
    again = one_send(machine.answered(joining(machine), required, 0))
    assert isinstance(again.request, JoinGroupRequest)

    (gave_up,) = machine.answered(again.request, required, 0)

    assert isinstance(gave_up, GaveUp)
    assert machine.state == State.FAILED


def test_a_parked_request_may_take_the_rebalance_timeout_and_some() -> None:
    """The coordinator answers when the slowest member is back, not within a request timeout."""
    machine = Membership(CONFIG)

    assert one_send(machine.want_assignment()).parked_ms == 65_000


def test_a_follower_sends_no_assignments_and_gets_its_own() -> None:
    """The partitions come sorted, each once, whatever order the leader wrote."""
    machine = Membership(CONFIG)
    request = syncing(machine)

    assert request.assignments == ()

    actions = machine.answered(request, synced(T1, T0, T1), 0)
    expected = Assignment(1, "me", (T0, T1), is_leader=False)

    assert [Assigned(expected)] == actions
    assert (expected, False, False) == (
        machine.assignment,
        machine.rebalance_needed,
        machine.lost,
    )


def test_a_leader_computes_before_it_syncs() -> None:
    """The computation may need the caller's code, which the machine never calls."""
    machine = Membership(CONFIG)
    actions = machine.answered(joining(machine), joined(leader="me"), 0)

    assert [Compute(1, "range", (JoinGroupMember("me", None, b""),))] == actions

    assignments = (MemberAssignment("me", b"x"),)
    request = one_send(machine.computed(1, assignments)).request

    assert isinstance(request, SyncGroupRequest)
    assert (1, assignments) == (request.generation_id, request.assignments)


def test_a_leader_that_need_not_assign_syncs_at_once() -> None:
    """skip_assignment: the group's assignment stands."""
    machine = Membership(CONFIG)
    response = structs.replace(joined(leader="me"), skip_assignment=True)

    assert isinstance(
        one_send(machine.answered(joining(machine), response, 0)).request, SyncGroupRequest
    )


def test_a_computation_that_fails_reaches_the_user_and_can_be_repeated() -> None:
    """The bug is in the caller's function; the member id stays."""
    machine = Membership(CONFIG)
    machine.answered(joining(machine), joined(leader="me"), 0)
    bug = LookupError()

    assert [GaveUp(bug)] == machine.compute_failed(1, bug)
    assert joining(machine).member_id == "me"


def test_unreadable_assignment_bytes_give_nothing() -> None:
    """Another client's leader may write anything; owning by mistake would be worse."""
    machine = Membership(CONFIG)
    request = syncing(machine)
    machine.answered(request, SyncGroupResponse(0, "consumer", "range", b"\x00"), 0)

    assert machine.assignment is not None
    assert machine.assignment.partitions == ()


def test_a_group_that_chose_an_assignor_that_was_not_offered_is_an_error() -> None:
    """Computing with another one than the others expect would break promise 3."""
    machine = Membership(CONFIG)
    machine.answered(joining(machine), structs.replace(joined(), protocol_name="sticky"), 0)

    assert machine.state == State.FAILED


def test_a_sync_for_another_assignor_is_an_error() -> None:
    """The same, seen at the second barrier."""
    machine = Membership(CONFIG)
    machine.answered(syncing(machine), structs.replace(synced(), protocol_name="sticky"), 0)

    assert machine.state == State.FAILED


JOIN_TABLE = {
    ErrorCode.UNKNOWN_MEMBER_ID: "",
    ErrorCode.ILLEGAL_GENERATION: "me",
    ErrorCode.REBALANCE_IN_PROGRESS: "me",
    ErrorCode.SUPERSEDED: "me",
}


@pytest.mark.parametrize("code", JOIN_TABLE)
def test_a_refused_join_is_repeated_with_the_right_id(code: ErrorCode) -> None:
    """25 means the id is gone; the others keep it, or the place in the group is lost."""
    machine = stable()
    machine.rebalance_needed = True
    again = one_send(machine.answered(joining(machine), joined(error=code), 0))

    assert isinstance(again.request, JoinGroupRequest)
    assert (JOIN_TABLE[code], 1) == (again.request.member_id, again.rejoins)


@pytest.mark.parametrize("code", JOIN_TABLE)
def test_a_refused_sync_leads_back_to_joining(code: ErrorCode) -> None:
    """The same table holds at the second barrier."""
    machine = Membership(CONFIG)
    again = one_send(machine.answered(syncing(machine), synced(error=code), 0))

    assert isinstance(again.request, JoinGroupRequest)
    assert (JOIN_TABLE[code], 1) == (again.request.member_id, again.rejoins)


def test_joins_that_come_to_nothing_are_counted_until_one_succeeds() -> None:
    """The driver pauses from the second on, so that two sides can't spin."""
    machine = Membership(CONFIG)
    request = joining(machine)
    counts = []
    for _ in range(3):
        action = one_send(machine.answered(request, joined(error=ErrorCode.SUPERSEDED), 0))
        assert isinstance(action.request, JoinGroupRequest)
        request = action.request
        counts.append(action.rejoins)

    assert counts == [1, 2, 3]

    sync = one_send(machine.answered(request, joined(), 0)).request
    assert isinstance(sync, SyncGroupRequest)
    machine.answered(sync, synced(), 0)
    machine.rebalance_needed = True

    assert one_send(machine.want_assignment()).rejoins == 0


@pytest.mark.parametrize(("asked", "code"), [*itertools.product(Asked, [*ErrorCode, 4711, -7])])
def test_no_code_outside_the_table_counts_as_success(asked: Asked, code: int) -> None:
    """A newer server's code must never be taken for "ok"."""
    if (asked, code) not in REACTIONS:
        assert Reaction.FAIL is reaction(asked, code)


@pytest.mark.parametrize("code", [23, 24, 26, 42, 81, 82, 4711])
def test_a_join_that_no_repetition_cures_fails_for_good(code: int) -> None:
    """The user has to change something; asking again says the same without asking anyone."""
    machine = Membership(CONFIG)
    (gave_up,) = machine.answered(joining(machine), joined(error=code), 0)

    assert isinstance(gave_up, GaveUp)
    assert isinstance(gave_up.error, FatalError)
    assert code == gave_up.error.code
    assert [gave_up] == machine.want_assignment()


def test_a_coordinator_that_stays_away_ends_this_attempt_only() -> None:
    """The next one begins with the same member id."""
    machine = stable()
    machine.rebalance_needed = True
    away = CoordinatorUnavailable("away")

    assert [GaveUp(away)] == machine.unanswered(joining(machine), away, 0)
    assert (machine.state, machine.rebalance_needed, machine.lost) == (State.OUTSIDE, True, True)
    assert joining(machine).member_id == "me"


def test_a_join_that_was_not_understood_fails_the_member() -> None:
    """Such as a server that knows no JoinGroup."""
    machine = Membership(CONFIG)
    machine.unanswered(joining(machine), FatalError("what?"), 0)

    assert machine.state == State.FAILED


def test_asking_while_a_join_is_under_way_joins_it() -> None:
    """Two tasks that want the assignment get the same one."""
    machine = Membership(CONFIG)
    joining(machine)

    assert machine.want_assignment() == []


def test_asking_in_stable_changes_nothing() -> None:
    """assignment() is called before every batch."""
    assert stable().want_assignment() == []


def test_a_requested_rejoin_changes_the_subscription_bytes() -> None:
    """An unchanged follower would be answered without a rebalance."""
    machine = stable()
    machine.request_rejoin("t has more partitions" + "!" * 300)
    request = joining(machine)

    assert request.protocols[0].metadata != joining(Membership(CONFIG)).protocols[0].metadata
    assert request.reason is not None
    assert request.reason.startswith("t has more partitions")
    assert len(request.reason) == 255


def test_a_rejoin_that_is_requested_during_a_join_comes_after_it() -> None:
    """The join under way may have been decided without it."""
    machine = Membership(CONFIG)
    sync = syncing(machine)
    machine.request_rejoin("again")
    machine.answered(sync, synced(T0), 0)

    assert (machine.state, machine.rebalance_needed) == (State.STABLE, True)


def test_the_reason_is_given_once() -> None:
    """The next rebalance has another one."""
    machine = Membership(CONFIG)

    assert joining(machine).reason == "new"

    machine = stable()
    machine.rebalance_needed = True

    assert joining(machine).reason is None


@pytest.mark.parametrize("asked", ["join", "sync"])
def test_a_refusal_carries_the_coordinators_own_words(asked: str) -> None:
    """The code alone doesn't say which limit, or who is in the way."""
    machine = Membership(CONFIG)
    words = "instance id 'i' is held by member i-7 from host 192.0.2.9"
    if asked == "join":
        refused = structs.replace(joined(error=82), message=words)
        (gave_up,) = machine.answered(joining(machine), refused, 0)
    else:
        (gave_up,) = machine.answered(
            syncing(machine), structs.replace(synced(error=82), message=words), 0
        )

    assert isinstance(gave_up, GaveUp)
    assert words in str(gave_up.error)
    assert "FENCED_INSTANCE_ID (82)" in str(gave_up.error)


def test_an_assignor_that_fails_to_pack_its_data_is_the_callers_to_know() -> None:
    """It is the caller's code; the machine goes on working."""
    broken = [True]

    def user_data(name: str, *_: object) -> bytes | None:
        if broken[0]:
            raise LookupError(name)
        return b"x"

    machine = Membership(CONFIG, user_data)
    (gave_up,) = machine.want_assignment()

    assert isinstance(gave_up, GaveUp)
    assert isinstance(gave_up.error, LookupError)

    broken[0] = False

    assert joining(machine).protocols


def test_what_an_assignor_sends_along_is_about_the_last_assignment() -> None:
    """A sticky one gives the same again, although an eager member claims nothing."""
    heard: list[tuple[object, ...]] = []

    def user_data(*about: object) -> bytes | None:
        heard.append(about)
        return b"data"

    machine = Membership(CONFIG._replace(assignor_names=("range",)), user_data)
    machine.answered(syncing(machine), synced(T0), 0)
    machine.request_rejoin("test")
    request = joining(machine)

    assert heard == [("range", ("t",), (), -1), ("range", ("t",), (T0,), 1)]
    decoded = consumer.decode_subscription(request.protocols[0].metadata)
    assert decoded is not None
    assert (decoded.user_data, decoded.owned_partitions) == (b"data", ())


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
