"""Heartbeat, LeaveGroup, and what happens to members that are not heard from."""

from coordinator.group.core import HEARTBEAT, Core, Decision
from coordinator.group.effects import Now, Outcome, Reply
from coordinator.group.group import Group
from coordinator.group.member import Member, PendingId
from coordinator.group.rebalance import maybe_complete_join, members_lost
from coordinator.group.states import GroupState
from coordinator.group.words import refusal, seconds, unknown_member, with_reason
from protocol.errors import ErrorCode
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
)
from protocol.types import NO_GENERATION

_ALIVE = HEARTBEAT[ErrorCode.NONE]
_REJOIN = HEARTBEAT[ErrorCode.REBALANCE_IN_PROGRESS]


def heartbeat(core: Core, request: HeartbeatRequest, token: object, now: Now) -> Outcome:
    """Answer a heartbeat at once; 0 and 27 reveal nothing new and so skip the gate."""
    outcome = Outcome(request.group_id)
    response, member = _beat(core, request, now)
    gated = member is None
    if member is not None:
        core.heard(member, now.mono_ms)
    outcome.replies.append(Reply(token, response, gated, None))
    return outcome


def _beat(
    core: Core, request: HeartbeatRequest, now: Now
) -> tuple[HeartbeatResponse, Member | None]:
    group = core.groups.get(request.group_id)
    member = None if group is None else group.members.get(request.member_id)
    if group is None or member is None or request.group_instance_id is not None:
        error = ErrorCode.UNKNOWN_MEMBER_ID.value
        if group is not None:
            member, error = group.find(request.member_id, request.group_instance_id)
        if group is None or member is None:
            return _refused(group, request, error, now), None
    if request.generation_id != group.generation and not (
        # After a crash at a generation that was told but never assigned, some members
        # know of it and some don't; both only need to join again.
        group.is_recovering
        and group.stable is not None
        and request.generation_id == group.stable.generation
    ):
        return _refused(group, request, ErrorCode.ILLEGAL_GENERATION.value, now), None
    return (_REJOIN if group.state is GroupState.PREPARING else _ALIVE), member


def _refused(
    group: Group | None, request: HeartbeatRequest, error: int, now: Now
) -> HeartbeatResponse:
    _, generation_id, member_id, instance_id = request
    text = refusal(group, error, member_id, instance_id, generation_id, now.mono_ms)
    return HeartbeatResponse(error, text)


def leave(core: Core, request: LeaveGroupRequest, token: object, now: Now) -> Outcome:
    """Remove the named members, with one rebalance for all of them."""
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    removed: list[tuple[Member, str]] = []
    results: list[LeftMember] = []
    for leaving in request.members:
        error: int = ErrorCode.UNKNOWN_MEMBER_ID.value
        message: str | None = unknown_member(None, leaving.member_id, None)
        if group is not None:
            error, message = _leave(d, group, leaving, removed)
        results.append(LeftMember(leaving.member_id, leaving.group_instance_id, error, message))
    d.answer(token, LeaveGroupResponse(ErrorCode.NONE.value, tuple(results)))
    if group is not None:
        if removed:
            member, detail = removed[0]
            detail += f" (and {len(removed) - 1} more)" if len(removed) > 1 else ""
            members_lost(d, group, "member left", member, detail)
        else:
            maybe_complete_join(d, group)
    return d.outcome


def _leave(
    d: Decision, group: Group, leaving: LeavingMember, removed: list[tuple[Member, str]]
) -> tuple[int, str | None]:
    """Take one member out, or say why not."""
    member_id, instance_id, reason = leaving
    if member_id in group.pending:
        # It was no member yet, so a stable group is not disturbed.
        d.forget_pending(group, group.pending[member_id])
        return ErrorCode.NONE.value, None
    what = "left"
    if not member_id and instance_id in group.static:
        # An operator knows the instance, and not under which id it came back last.
        member_id = group.static[instance_id]
        what = f"instance id {instance_id!r} removed on request"
    member, error = group.find(member_id, instance_id)
    if member is None:
        text = refusal(group, error, member_id, instance_id, NO_GENERATION, d.now.mono_ms)
        return error, text
    detail = with_reason(what, reason)
    d.remove(group, member, "left", detail)
    removed.append((member, detail))
    return ErrorCode.NONE.value, None


def session_fired(d: Decision, group: Group, member: Member) -> None:
    """Remove a member whose session ended."""
    gap_ms = d.now.mono_ms - member.heard_ms
    if member.join is not None and member.is_new:
        # Nothing else bounds the wait of a first JoinGroup.
        detail = f"its first JoinGroup was parked for {seconds(gap_ms)}"
    elif member.join is not None or member.sync is not None:
        return  # We owe it the answer; its session starts anew with that.
    else:
        timeout = seconds(member.session_timeout_ms)
        detail = f"no heartbeat for {seconds(gap_ms)}, session timeout {timeout}"
    d.remove(group, member, "session expired", detail)
    members_lost(d, group, "session expired", member, detail)


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
