"""SyncGroup: the second barrier of a rebalance."""

from coordinator.group import history, topics
from coordinator.group.core import Core, Decision
from coordinator.group.effects import Now, Outcome
from coordinator.group.group import Group
from coordinator.group.member import NOTHING, Member, read_assignment
from coordinator.group.rebalance import start_rebalance
from coordinator.group.states import GroupState, Trigger
from coordinator.group.words import cut, refusal
from protocol.errors import ErrorCode
from protocol.failures import sync_error
from protocol.messages import SyncGroupRequest, SyncGroupResponse


def sync(core: Core, request: SyncGroupRequest, token: object, now: Now) -> Outcome:
    """Answer or park a SyncGroup; the leader's brings the assignment into force."""
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    error = _refusal(group, request)
    if error:
        d.answer(token, sync_error(error, _in_words(group, request, error, now)))
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
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    _, error = group.find(request.member_id, request.group_instance_id)
    if error:
        return error
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


def _in_words(group: Group | None, request: SyncGroupRequest, error: int, now: Now) -> str | None:
    _, generation_id, member_id, instance_id, *_ = request
    if error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL and group is not None:
        asked = f"{request.protocol_type} {request.protocol_name}"
        return f"protocol {asked}, the group has {group.protocol_type} {group.protocol}"
    return refusal(group, error, member_id, instance_id, generation_id, now.mono_ms)


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
        cause = "bad assignment"
        start_rebalance(d, group, Trigger.MEMBER_LOST, cause, leader, f"{cause}: {problem}")
        return
    _let_hand_over(group)
    assignments = {m.member_id: m.assignment for m in group.members.values()}
    d.emit(group.to_record(d.wall_ms, assignments))
    history.assigning(d, group)
    group.move(Trigger.ASSIGNED)
    for member in group.members.values():
        if member.sync is not None:
            d.finish_sync(member, assigned(group, member))
            d.core.touch(member, d.now.mono_ms)
    d.event("group.stable", generation=group.generation, members=len(group.members))
    history.ended(d, group, history.STABLE)
    topics.recheck(d, group)


def _let_hand_over(group: Group) -> None:
    """Leave to each member what it had in the last assigned generation and nobody has now."""
    owned = [member.owned for member in group.members.values()]
    taken = None if None in owned else frozenset().union(*(o for o in owned if o))
    for member in group.members.values():
        # Nobody knows who owns what an assignment that can't be read names.
        member.former = NOTHING if taken is None else member.former - taken


def _take_over(group: Group, request: SyncGroupRequest) -> str:
    """Give the members what the leader sent; return what is wrong with it, "" if nothing."""
    given = dict(request.assignments)
    if len(given) != len(request.assignments):
        return "the leader named a member twice"
    for member_id in given:
        if member_id not in group.members:
            return f"the leader named {member_id!r}, which is no member"
    taken: set[tuple[str, int]] = set()
    for member in group.members.values():
        # A drained member gets nothing whatever the leader sends.
        member.assignment = b"" if member.drained else given.get(member.member_id, b"")
        listed = read_assignment(group.protocol_type, member.assignment)
        if listed is None:
            member.owned = None
            continue
        owned = frozenset(listed)
        if not taken.isdisjoint(owned):
            return _given_twice(group, member, min(taken & owned))
        if len(owned) != len(listed):
            return f"one partition given to {member.member_id} twice"
        member.owned = owned
        taken |= owned
    return ""


def _given_twice(group: Group, member: Member, topic_partition: tuple[str, int]) -> str:
    first = next(m for m in group.members.values() if m.owned and topic_partition in m.owned)
    topic, partition = topic_partition
    # The topic comes from the assignment's bytes: nothing has looked at its length.
    name = f"{cut(topic)}-{partition}"
    return f"{name} given to both {first.member_id} and {member.member_id}"
