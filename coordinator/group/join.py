"""JoinGroup."""

from typing import Final

from coordinator.group import static
from coordinator.group.config import GroupConfig
from coordinator.group.core import Core, Decision
from coordinator.group.effects import Caller, Now, Outcome
from coordinator.group.group import Group
from coordinator.group.member import Member, PendingId
from coordinator.group.rebalance import joined, maybe_complete_join, member_parked, members_lost
from coordinator.group.records import GroupMetadata
from coordinator.group.states import GroupState, Trigger
from coordinator.group.words import (
    STORAGE_FULL,
    cut,
    refusal,
    seconds,
    unknown_member,
    with_reason,
)
from protocol.errors import ErrorCode
from protocol.failures import join_error
from protocol.messages import JoinGroupRequest
from protocol.types import INT32_MAX

# Different patterns in a group. Each is matched with every topic, and one that is new takes up to
# a quarter of a second for 100,000 of them.
PATTERNS_MAX: Final = 32

# Why nothing of a request is done: the error, and the same in words.
_Refusal = tuple[int, str | None]
_TOO_LARGE = "the members' subscriptions fill the largest answer or record that fits"


def join(core: Core, request: JoinGroupRequest, token: object, caller: Caller, now: Now) -> Outcome:
    """Answer or park a JoinGroup."""
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    replaced = static.replaced(group, request)
    refused = _refusal(core, group, request, replaced, now)
    if refused is not None:
        error, message = refused
        d.answer(token, join_error(error, _echoed(error, request.member_id), message))
    elif replaced is not None:
        assert group is not None
        static.replace(d, group, replaced, request, token, caller)
    elif not request.member_id:
        group = group or _make_group(d, request.group_id)
        if request.group_instance_id is None:
            _give_id(d, group, request, token, caller)
        else:
            member_id = f"{request.group_instance_id}-{core.new_uuid()}"
            _add(d, group, member_id, request, token, caller)
    else:
        assert group is not None
        member = group.members.get(request.member_id)
        if member is None:
            d.forget_pending(group, group.pending[request.member_id])
            _add(d, group, request.member_id, request, token, caller)
        else:
            _rejoin(d, group, member, request, token)
    return d.outcome


def _echoed(error: int, member_id: str) -> str:
    return "" if error == ErrorCode.GROUP_MAX_SIZE_REACHED else member_id


def _refusal(
    core: Core, group: Group | None, request: JoinGroupRequest, replaced: Member | None, now: Now
) -> _Refusal | None:
    """Return why nothing of the request is done, None if it goes on."""
    config = core.config
    timeout_ms = request.session_timeout_ms
    if not (
        config.group_min_session_timeout_ms <= timeout_ms <= config.group_max_session_timeout_ms
    ):
        return ErrorCode.INVALID_SESSION_TIMEOUT, _span(config, timeout_ms)
    pattern = request.topic_pattern
    problem = None if pattern is None else core.registry.pattern_problem(pattern)
    if problem is not None:
        return ErrorCode.INVALID_REGULAR_EXPRESSION, f"pattern {pattern!r}: {problem}"
    member_id, instance_id = request.member_id, request.group_instance_id
    if group is None:
        return _no_group(core, request)
    is_member = replaced is not None or member_id in group.members
    size = len(group.members) + len(group.pending)
    has_place = is_member or member_id in group.pending
    if not has_place and size >= config.group_max_size:
        return (
            ErrorCode.GROUP_MAX_SIZE_REACHED,
            f"the group has {size} members, group.max.size is {config.group_max_size}",
        )
    if not group.supports(request.protocol_type, request.protocols, replaced):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, _misfit(group, request)
    if member_id and (instance_id is not None or member_id not in group.pending):
        _, unknown = group.find(member_id, instance_id)
        if unknown:
            return unknown, refusal(group, unknown, member_id, instance_id, -1, now.mono_ms)
    return _over_limit(core, group, pattern, is_member=is_member)


def _over_limit(
    core: Core, group: Group, pattern: str | None, *, is_member: bool
) -> _Refusal | None:
    patterns = len(group.patterns)
    if pattern is not None and pattern not in group.patterns and patterns >= PATTERNS_MAX:
        text = f"the members have {patterns} different patterns already"
        return ErrorCode.QUOTA_EXCEEDED, text
    if not is_member and core.storage_full:
        return ErrorCode.STORAGE_FULL, STORAGE_FULL
    if not is_member and group.generation == INT32_MAX:
        return ErrorCode.QUOTA_EXCEEDED, f"generation {INT32_MAX} is the last one; delete the group"
    return None


def _span(config: GroupConfig, timeout_ms: int) -> str:
    shortest = seconds(config.group_min_session_timeout_ms)
    longest = seconds(config.group_max_session_timeout_ms)
    return f"a session timeout of {seconds(timeout_ms)}; {shortest} to {longest} are allowed"


def _no_group(core: Core, request: JoinGroupRequest) -> _Refusal | None:
    if request.member_id:
        return ErrorCode.UNKNOWN_MEMBER_ID, unknown_member(None, request.member_id, None)
    if not (request.protocol_type and request.protocols):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol type, or no protocols"
    return (ErrorCode.STORAGE_FULL, STORAGE_FULL) if core.storage_full else None


def _misfit(group: Group, request: JoinGroupRequest) -> str:
    if not group.members:
        return "no protocol type, or no protocols"
    if request.protocol_type != group.protocol_type:
        return f"protocol type {request.protocol_type!r}, the group has {group.protocol_type!r}"
    everyone = len(group.members)
    names = ", ".join(name for name, count in group.support.items() if count == everyone)
    offered = ", ".join(protocol.name for protocol in request.protocols)
    return f"protocols {cut(offered)}; all members support {cut(names)}"


def _make_group(d: Decision, group_id: str) -> Group:
    # The group is there from now on for whoever looks, also after a crash.
    d.emit(GroupMetadata(group_id, "", 0, None, None, d.wall_ms, ()))
    return d.core.groups[group_id]


def _give_id(
    d: Decision, group: Group, request: JoinGroupRequest, token: object, caller: Caller
) -> None:
    """Give out a member id, so that a lost answer leaves no member behind."""
    member_id = f"{caller.client_id}-{d.core.new_uuid()}"
    pending = PendingId(group, member_id, request.session_timeout_ms)
    group.pending[member_id] = pending
    d.core.timers.arm(pending.timer, d.now.mono_ms + pending.session_timeout_ms)
    d.answer(token, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id), pending)


def _add(
    d: Decision,
    group: Group,
    member_id: str,
    request: JoinGroupRequest,
    token: object,
    caller: Caller,
) -> None:
    """Make the sender a member, and park its JoinGroup."""
    member = static.new_member(d, group, member_id, request, caller)
    if not d.core.has_room(group, member.answer_bytes(), member.record_bytes()):
        d.answer(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, "", _TOO_LARGE))
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
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        generation=group.generation,
    )
    static.put_on_record(d, group, member)
    d.park_join(group, member, token)
    d.core.timers.arm(member.timer, d.now.mono_ms + d.core.config.new_member_join_timeout_ms)
    cause = "member joined"
    detail = with_reason(cause, request.reason)
    member_parked(d, group, Trigger.MEMBER_JOINED, cause, member, detail)


def _rejoin(
    d: Decision, group: Group, member: Member, request: JoinGroupRequest, token: object
) -> None:
    is_unchanged = (
        member.protocols == request.protocols and member.topic_pattern == request.topic_pattern
    )
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
        detail = f"group full: group.max.size is {d.core.config.group_max_size}"
        d.answer(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, "", detail))
        d.remove(group, member, "group full", detail)
        members_lost(d, group, "group full", member, detail)
        return
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = request.rebalance_timeout_ms
    d.park_join(group, member, token)
    cause = "leader rejoined" if is_unchanged else "member changed its protocols"
    detail = with_reason(cause, request.reason)
    member_parked(d, group, Trigger.MEMBER_REJOINED, cause, member, detail)


def _update(
    d: Decision, group: Group, member: Member, request: JoinGroupRequest, token: object
) -> bool:
    """Take over the new protocols unless they are too large for the group."""
    answer_bytes, record_bytes = member.answer_bytes(), member.record_bytes()
    before = member.protocols, member.topic_pattern
    group.update(member, request.protocols, request.topic_pattern)
    grew = member.answer_bytes() > answer_bytes or member.record_bytes() > record_bytes
    if grew and not d.core.has_room(group, 0, 0):
        group.update(member, *before)
        detail = "group full: its protocols grew past the limit of the group"
        d.answer(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, "", _TOO_LARGE))
        d.remove(group, member, "group full", detail)
        members_lost(d, group, "group full", member, detail)
        return False
    return True


def _is_surplus(core: Core, group: Group, member: Member) -> bool:
    """Say whether the group, loaded with more members than fit, is full without this one."""
    return (
        group.state is GroupState.PREPARING
        and member.join is None
        and group.parked_joins >= core.config.group_max_size
    )
