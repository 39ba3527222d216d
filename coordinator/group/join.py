"""JoinGroup."""

from coordinator.group.core import Core, Decision
from coordinator.group.effects import Caller, Now, Outcome
from coordinator.group.group import Group
from coordinator.group.member import Member, PendingId
from coordinator.group.rebalance import joined, maybe_complete_join, members_lost, start_rebalance
from coordinator.group.records import GroupMetadata
from coordinator.group.states import GroupState, Trigger
from protocol.errors import ErrorCode
from protocol.failures import join_error
from protocol.messages import JoinGroupRequest
from protocol.types import INT32_MAX

# What the leader's answer and the group's record hold besides their members.
HEAD_BYTES = 2_048


def join(core: Core, request: JoinGroupRequest, token: object, caller: Caller, now: Now) -> Outcome:
    """Answer or park a JoinGroup."""
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    error = _refusal(core, group, request)
    if error:
        d.answer(token, join_error(error, _echoed(error, request.member_id)))
    elif not request.member_id:
        _give_id(d, group, request, token, caller)
    else:
        assert group is not None
        member = group.members.get(request.member_id)
        if member is None:
            _join_with_given_id(d, group, request, token, caller)
        else:
            _rejoin(d, group, member, request, token)
    return d.outcome


def _echoed(error: int, member_id: str) -> str:
    return "" if error == ErrorCode.GROUP_MAX_SIZE_REACHED else member_id


def _refusal(core: Core, group: Group | None, request: JoinGroupRequest) -> int:
    """Return why nothing of the request is done, 0 if it goes on."""
    config = core.config
    timeout_ms = request.session_timeout_ms
    if not (
        config.group_min_session_timeout_ms <= timeout_ms <= config.group_max_session_timeout_ms
    ):
        return ErrorCode.INVALID_SESSION_TIMEOUT
    member_id = request.member_id
    if group is None:
        if member_id:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not (request.protocol_type and request.protocols):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.STORAGE_FULL if core.storage_full else 0
    is_member = member_id in group.members
    if not member_id and len(group.members) + len(group.pending) >= config.group_max_size:
        return ErrorCode.GROUP_MAX_SIZE_REACHED
    if not group.supports(request.protocol_type, request.protocols):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if member_id and not is_member and member_id not in group.pending:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not is_member and core.storage_full:
        return ErrorCode.STORAGE_FULL
    if not is_member and group.generation == INT32_MAX:
        return ErrorCode.QUOTA_EXCEEDED
    return 0


def _give_id(
    d: Decision, group: Group | None, request: JoinGroupRequest, token: object, caller: Caller
) -> None:
    """Give out a member id, so that a lost answer leaves no member behind."""
    if group is None:
        # The group is there from now on for whoever looks, also after a crash.
        d.emit(GroupMetadata(request.group_id, "", 0, None, None, d.now.wall_ms, ()))
        group = d.core.groups[request.group_id]
    member_id = f"{caller.client_id}-{d.core.new_uuid()}"
    pending = PendingId(group, member_id, request.session_timeout_ms)
    group.pending[member_id] = pending
    d.core.timers.arm(pending.timer, d.now.mono_ms + pending.session_timeout_ms)
    d.answer(token, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id), pending)


def _join_with_given_id(
    d: Decision, group: Group, request: JoinGroupRequest, token: object, caller: Caller
) -> None:
    d.forget_pending(group, group.pending[request.member_id])
    member = Member(
        group,
        request.member_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        heard_ms=d.now.mono_ms,
    )
    if _is_too_large(d.core, group, member.answer_bytes(), member.record_bytes()):
        d.answer(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
        maybe_complete_join(d, group)
        return
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member)
    if group.is_initial:
        group.member_added = True
    d.event(
        "group.member_added",
        member_id=member.member_id,
        client_id=member.client_id,
        client_host=member.client_host,
        generation=group.generation,
    )
    d.park_join(group, member, token)
    d.core.timers.arm(member.timer, d.now.mono_ms + d.core.config.new_member_join_timeout_ms)
    _go_on(d, group, member, request, Trigger.MEMBER_JOINED, "member joined")


def _go_on(
    d: Decision,
    group: Group,
    member: Member,
    request: JoinGroupRequest,
    trigger: Trigger,
    cause: str,
) -> None:
    if group.state is GroupState.PREPARING:
        maybe_complete_join(d, group)
    else:
        start_rebalance(d, group, trigger, cause, member.member_id, request.reason or "")


def _is_too_large(core: Core, group: Group, answer_bytes: int, record_bytes: int) -> bool:
    """Say whether a member of that size, on top of the others, leaves no room for an answer."""
    config = core.config
    answer = HEAD_BYTES + group.answer_bytes + answer_bytes
    record = HEAD_BYTES + group.record_bytes + record_bytes + config.max_assignments_bytes
    return answer > config.max_response_bytes or record > config.max_batch_bytes


def _rejoin(
    d: Decision, group: Group, member: Member, request: JoinGroupRequest, token: object
) -> None:
    is_unchanged = member.protocols == request.protocols
    if is_unchanged and group.state is not GroupState.PREPARING:
        is_leader = member.member_id == group.leader
        if group.state is GroupState.COMPLETING or not is_leader:
            member.heard_ms = d.now.mono_ms
            in_completing = group.state is GroupState.COMPLETING
            response = joined(group, member.member_id, show_members=in_completing)
            d.answer(token, response, member)
            return
    if not is_unchanged and not _update(d, group, member, request, token):
        return
    if _is_surplus(d.core, group, member):
        d.answer(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
        size = d.core.config.group_max_size
        d.remove(group, member, "group full", f"group.max.size is {size}")
        members_lost(d, group, "group full", member.member_id)
        return
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    d.park_join(group, member, token)
    cause = "leader rejoined" if is_unchanged else "member changed its protocols"
    _go_on(d, group, member, request, Trigger.MEMBER_REJOINED, cause)


def _update(
    d: Decision, group: Group, member: Member, request: JoinGroupRequest, token: object
) -> bool:
    """Take over the new protocols unless they are too large for the group."""
    answer_bytes, record_bytes = member.answer_bytes(), member.record_bytes()
    before = member.protocols
    group.update(member, request.protocols)
    grew = member.answer_bytes() > answer_bytes or member.record_bytes() > record_bytes
    if grew and _is_too_large(d.core, group, 0, 0):
        group.update(member, before)
        d.answer(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, ""))
        d.remove(group, member, "group full", "its protocols grew past the limit of the group")
        members_lost(d, group, "group full", member.member_id)
        return False
    return True


def _is_surplus(core: Core, group: Group, member: Member) -> bool:
    """Say whether the group, loaded with more members than fit, is full without this one."""
    return (
        group.state is GroupState.PREPARING
        and member.join is None
        and group.parked_joins >= core.config.group_max_size
    )
