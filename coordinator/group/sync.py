"""SyncGroup: the second barrier of a rebalance."""

from coordinator.group.core import Core, Decision
from coordinator.group.effects import Now, Outcome
from coordinator.group.group import Group
from coordinator.group.member import NOTHING, Member, read_assignment
from coordinator.group.rebalance import start_rebalance
from coordinator.group.states import GroupState, Trigger
from protocol.errors import ErrorCode
from protocol.failures import sync_error
from protocol.messages import SyncGroupRequest, SyncGroupResponse


def sync(core: Core, request: SyncGroupRequest, token: object, now: Now) -> Outcome:
    """Answer or park a SyncGroup; the leader's brings the assignment into force."""
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    error = _refusal(group, request)
    if error:
        d.answer(token, sync_error(error))
        return d.outcome
    assert group is not None
    member = group.members[request.member_id]
    if not member.synced:
        member.synced = True
        group.unsynced -= 1
    if group.state is GroupState.STABLE:
        member.heard_ms = now.mono_ms
        d.answer(token, assigned(group, member), member)
    else:
        d.park_sync(member, token)
        if member.member_id == group.leader:
            _assign(d, group, member, request)
    if group.state is GroupState.STABLE and not group.unsynced:
        core.timers.cancel(group.sync_timer)
    return d.outcome


def _refusal(group: Group | None, request: SyncGroupRequest) -> int:
    if group is None or request.member_id not in group.members:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if request.generation_id != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    for asked, actual in (
        (request.protocol_type, group.protocol_type),
        (request.protocol_name, group.protocol),
    ):
        # A group that has not voted yet has no name to differ from.
        if asked is not None and actual is not None and asked != actual:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return 0


def assigned(group: Group, member: Member) -> SyncGroupResponse:
    """Return the SyncGroup answer of a stable group for *member*."""
    return SyncGroupResponse(
        ErrorCode.NONE.value, group.protocol_type, group.protocol, member.assignment
    )


def _assign(d: Decision, group: Group, leader: Member, request: SyncGroupRequest) -> None:
    problem = _take_over(group, request)
    if problem:
        # The leader's own answer is 42 where everyone else's is 27, so it goes first.
        for member in group.members.values():
            member.assignment, member.owned = b"", NOTHING
        d.remove(group, leader, "bad assignment", problem, ErrorCode.INVALID_REQUEST)
        start_rebalance(d, group, Trigger.MEMBER_LOST, "bad assignment", leader.member_id)
        return
    assignments = {m.member_id: m.assignment for m in group.members.values()}
    d.emit(group.to_record(d.now.wall_ms, assignments))
    group.move(Trigger.ASSIGNED)
    for member in group.members.values():
        if member.sync is not None:
            d.finish_sync(member, assigned(group, member))
            d.core.touch(member, d.now.mono_ms)
    d.event("group.stable", generation=group.generation, members=len(group.members))


def _take_over(group: Group, request: SyncGroupRequest) -> str:
    """Give the members what the leader sent; return what is wrong with it, "" if nothing."""
    given = dict(request.assignments)
    if len(given) != len(request.assignments):
        return "the leader named a member twice"
    for member_id in given:
        if member_id not in group.members:
            return f"the leader named {member_id!r}, which is no member"
    owners: dict[tuple[str, int], str] = {}
    for member in group.members.values():
        # A drained member gets nothing whatever the leader sends.
        member.assignment = b"" if member.drained else given.get(member.member_id, b"")
        listed = read_assignment(group.protocol_type, member.assignment)
        member.owned = None if listed is None else frozenset(listed)
        for topic_partition in listed or ():
            first = owners.setdefault(topic_partition, member.member_id)
            if first != member.member_id:
                return f"{_name(topic_partition)} given to both {first} and {member.member_id}"
        if listed is not None and len(frozenset(listed)) != len(listed):
            return f"one partition given to {member.member_id} twice"
    return ""


def _name(topic_partition: tuple[str, int]) -> str:
    return f"{topic_partition[0]}-{topic_partition[1]}"
