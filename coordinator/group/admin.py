"""What operators ask for: describe, list, delete, and the drain of a member."""

from coordinator.group.core import Core, Decision
from coordinator.group.effects import Now, Outcome
from coordinator.group.member import Member
from coordinator.group.rebalance import start_rebalance
from coordinator.group.records import GroupDeleted
from coordinator.group.states import GroupState, Trigger
from protocol.errors import ErrorCode
from protocol.failures import describe_error
from protocol.messages import (
    DescribedGroup,
    DescribedMember,
    DrainedMember,
    DrainMemberRequest,
    DrainMemberResponse,
    ListedGroup,
    ListGroupsRequest,
)

CLASSIC = "classic"


def describe(core: Core, group_id: str) -> DescribedGroup:
    """Return a group as operators see it; an unknown one is Dead, with error 69."""
    group = core.groups.get(group_id)
    if group is None:
        error = ErrorCode.GROUP_ID_NOT_FOUND
        return describe_error(group_id, error.value, f"Group {group_id} not found.")
    # What the members agreed on counts only while they agree.
    is_stable = group.state is GroupState.STABLE
    protocol = group.protocol if is_stable else None
    return DescribedGroup(
        ErrorCode.NONE.value,
        None,
        group_id,
        group.state.value,
        group.protocol_type,
        protocol or "",
        group.generation,
        tuple(
            DescribedMember(
                m.member_id,
                m.group_instance_id,
                m.client_id,
                m.client_host,
                m.metadata_for(protocol),
                m.assignment,
            )
            for m in group.members.values()
        ),
        core.config.offsets_retention_ms if group.retention_ms is None else group.retention_ms,
    )


def list_groups(core: Core, request: ListGroupsRequest) -> tuple[ListedGroup, ...]:
    """Return the groups that pass both filters, by id; an unknown name matches nothing."""
    states = frozenset(state.lower() for state in request.states)
    types = frozenset(type_.lower() for type_ in request.types)
    if types and CLASSIC not in types:
        return ()
    return tuple(
        ListedGroup(group_id, group.protocol_type, group.state.value, CLASSIC)
        for group_id, group in sorted(core.groups.items())
        if not states or group.state.value.lower() in states
    )


def delete(core: Core, group_id: str, now: Now) -> tuple[Outcome, int]:
    """Delete a group without members; member ids that were given out are forgotten with it."""
    d = Decision(core, group_id, now)
    group = core.groups.get(group_id)
    if group is None:
        return d.outcome, ErrorCode.GROUP_ID_NOT_FOUND.value
    if group.state is not GroupState.EMPTY:
        return d.outcome, ErrorCode.NON_EMPTY_GROUP.value
    for pending in list(group.pending.values()):
        d.forget_pending(group, pending)
    group.move(Trigger.REMOVED)
    d.emit(GroupDeleted(group_id))
    d.event("group.deleted", generation=group.generation, offsets=group.offset_count)
    return d.outcome, ErrorCode.NONE.value


def drain(core: Core, request: DrainMemberRequest, token: object, now: Now) -> Outcome:
    """Mark the members with a client id as drained and say which own nothing any more."""
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    if group is None:
        _refuse(d, token, ErrorCode.GROUP_ID_NOT_FOUND)
        return d.outcome
    asked = [m for m in group.members.values() if m.client_id == request.client_id]
    if not asked:
        _refuse(d, token, ErrorCode.UNKNOWN_MEMBER_ID)
        return d.outcome
    fresh = [m for m in asked if not m.drained]
    for member in fresh:
        member.drained = True
        d.event("group.drain_asked", member_id=member.member_id, client_id=member.client_id)
    if fresh and group.state is not GroupState.PREPARING:
        detail = f"drain of client {request.client_id} asked"
        start_rebalance(d, group, Trigger.DRAIN_ASKED, "drain asked", fresh[0], detail)
    members = tuple(DrainedMember(m.member_id, _owns_nothing(m)) for m in asked)
    d.answer(token, DrainMemberResponse(ErrorCode.NONE.value, members))
    return d.outcome


def _owns_nothing(member: Member) -> bool:
    return not member.claimed and (not member.assignment or member.owned == frozenset())


def _refuse(d: Decision, token: object, error: ErrorCode) -> None:
    d.answer(token, DrainMemberResponse(error.value, ()))
