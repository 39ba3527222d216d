"""Heartbeat, LeaveGroup, and what happens to members that are not heard from."""

from coordinator.group.core import HEARTBEAT, Core, Decision
from coordinator.group.effects import Now, Outcome, Reply
from coordinator.group.group import Group
from coordinator.group.member import Member, PendingId
from coordinator.group.rebalance import maybe_complete_join, members_lost
from coordinator.group.states import GroupState
from protocol.errors import ErrorCode
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
)

_ALIVE = HEARTBEAT[ErrorCode.NONE]
_REJOIN = HEARTBEAT[ErrorCode.REBALANCE_IN_PROGRESS]


def heartbeat(core: Core, request: HeartbeatRequest, token: object, now: Now) -> Outcome:
    """Answer a heartbeat at once; 0 and 27 reveal nothing new and so skip the gate."""
    outcome = Outcome(request.group_id)
    response, member = _beat(core, request)
    gated = member is None
    if member is not None:
        core.heard(member, now.mono_ms)
    outcome.replies.append(Reply(token, response, gated, None))
    return outcome


def _beat(core: Core, request: HeartbeatRequest) -> tuple[HeartbeatResponse, Member | None]:
    group = core.groups.get(request.group_id)
    member = None if group is None else group.members.get(request.member_id)
    if group is None or member is None:
        return HEARTBEAT[ErrorCode.UNKNOWN_MEMBER_ID], None
    if request.generation_id != group.generation and not (
        # After a crash at a generation that was told but never assigned, some members
        # know of it and some don't; both only need to join again.
        group.is_recovering
        and group.stable is not None
        and request.generation_id == group.stable.generation
    ):
        return HEARTBEAT[ErrorCode.ILLEGAL_GENERATION], None
    return (_REJOIN if group.state is GroupState.PREPARING else _ALIVE), member


def leave(core: Core, request: LeaveGroupRequest, token: object, now: Now) -> Outcome:
    """Remove the named members, with one rebalance for all of them."""
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    first_lost = ""
    results: list[LeftMember] = []
    for leaving in request.members:
        error: int = ErrorCode.UNKNOWN_MEMBER_ID
        if group is not None and leaving.member_id in group.members:
            _remove_leaving(d, group, leaving)
            first_lost = first_lost or leaving.member_id
            error = ErrorCode.NONE
        elif group is not None and leaving.member_id in group.pending:
            # It was no member yet, so a stable group is not disturbed.
            d.forget_pending(group, group.pending[leaving.member_id])
            error = ErrorCode.NONE
        results.append(LeftMember(leaving.member_id, leaving.group_instance_id, int(error)))
    d.answer(token, LeaveGroupResponse(ErrorCode.NONE.value, tuple(results)))
    if group is not None:
        if first_lost:
            members_lost(d, group, "member left", first_lost)
        else:
            maybe_complete_join(d, group)
    return d.outcome


def _remove_leaving(d: Decision, group: Group, leaving: LeavingMember) -> None:
    member = group.members[leaving.member_id]
    d.remove(group, member, "left", leaving.reason or "")


def session_fired(d: Decision, group: Group, member: Member) -> None:
    """Remove a member whose session ended."""
    gap_ms = d.now.mono_ms - member.heard_ms
    if member.join is not None and member.is_new:
        # Nothing else bounds the wait of a first JoinGroup.
        detail = f"its first JoinGroup was parked for {gap_ms} ms"
    elif member.join is not None or member.sync is not None:
        return  # We owe it the answer; its session starts anew with that.
    else:
        detail = f"not heard of for {gap_ms} ms, session timeout {member.session_timeout_ms} ms"
    d.remove(group, member, "session expired", detail)
    members_lost(d, group, "session expired", member.member_id)


def pending_fired(d: Decision, group: Group, pending: PendingId) -> None:
    """Take back an id that was given out and not used in time."""
    d.forget_pending(group, pending)
    maybe_complete_join(d, group)


def withdraw(core: Core, token: object, now: Now) -> Outcome | None:
    """Forget the parked request of a client that vanished; its session runs on from here."""
    member = core.parked.pop(token, None)
    if member is None:
        return None
    group = member.group
    if member.join is not None and member.join.token == token:
        member.join = None
        member.is_new = False
        group.parked_joins -= 1
    else:
        member.sync = None
        member.synced = False
        group.unsynced += 1
    core.touch(member, now.mono_ms)
    return Outcome(group.group_id)
