"""Static members: a group instance id outlives the member ids that hold it (KIP-345)."""

# Theory of operation
# ===================
#
# A client that starts with an instance id gets a new member id each time. If the instance is in
# the group already, the new id takes the place of the old one, in whatever state the group is:
# its order, leadership and partitions stay, and the old id is fenced. So a member that restarts
# within its session moves no partition.
#
# A fenced id stays fenced, restart or not: where the last stable generation is in the log with
# the old id, it is written again with the new one, and every answer waits for that.
#
# In a stable group the newcomer is answered at once, in the same generation, if nothing that
# the assignment depends on has changed: the protocol that all vote for, and the topics. Else
# the group rebalances. Kafka ignores changed topics here; they would never be assigned.

from coordinator.group.core import Decision
from coordinator.group.effects import Caller
from coordinator.group.group import Group
from coordinator.group.member import CONSUMER, NOTHING, Member
from coordinator.group.rebalance import joined, member_parked
from coordinator.group.records import MemberMetadata
from coordinator.group.states import GroupState, Trigger
from coordinator.group.words import held, with_reason
from protocol.errors import ErrorCode
from protocol.failures import join_error, sync_error
from protocol.messages import JoinGroupRequest


def replaced(group: Group | None, request: JoinGroupRequest) -> Member | None:
    """Return the member whose place the sender of *request* takes, None if it takes none."""
    if group is None or request.member_id or request.group_instance_id is None:
        return None
    member_id = group.static.get(request.group_instance_id)
    return None if member_id is None else group.members[member_id]


def new_member(
    d: Decision, group: Group, member_id: str, request: JoinGroupRequest, caller: Caller
) -> Member:
    """Return a member as *request* describes it, not yet in the group."""
    return Member(
        group,
        member_id,
        client_id=caller.client_id,
        client_host=caller.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        protocols=request.protocols,
        heard_ms=d.now.mono_ms,
        group_instance_id=request.group_instance_id,
        topic_pattern=request.topic_pattern,
    )


def replace(
    d: Decision,
    group: Group,
    old: Member,
    request: JoinGroupRequest,
    token: object,
    caller: Caller,
) -> None:
    """Put the sender of *request* in the place of *old*, and answer it or park its JoinGroup."""
    member_id = f"{request.group_instance_id}-{d.core.new_uuid()}"
    member = new_member(d, group, member_id, request, caller)
    answer_bytes = member.answer_bytes() - old.answer_bytes()
    record_bytes = member.record_bytes() - old.record_bytes()
    if max(answer_bytes, record_bytes) > 0 and not d.core.has_room(
        group, answer_bytes, record_bytes
    ):
        text = "its subscription has no room in the largest answer or record that fits"
        d.answer(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, "", text))
        return
    detail = _swap(d, group, old, member)
    if (
        group.state is GroupState.STABLE
        and not _may_be_drained(old)
        and _wants_the_same(group, old, member)
        and group.vote() == group.protocol
    ):
        put_on_record(d, group, member, is_current=True)
        d.answer(token, joined(group, member.member_id, skip_assignment=True), member)
        return
    put_on_record(d, group, member)
    d.park_join(group, member, token)
    detail = with_reason(detail, request.reason)
    cause = "static member replaced"
    member_parked(d, group, Trigger.MEMBER_REJOINED, cause, member, detail)


def _swap(d: Decision, group: Group, old: Member, member: Member) -> str:
    """Let *member* be what *old* was, fence the old id, and say so in words."""
    group.replace(old, member)
    assert member.group_instance_id is not None
    fence = held(group, member.group_instance_id)
    if old.join is not None:
        error = join_error(ErrorCode.FENCED_INSTANCE_ID, old.member_id, fence)
        d.finish_join(group, old, error)
    if old.sync is not None:
        d.finish_sync(old, sync_error(ErrorCode.FENCED_INSTANCE_ID, fence))
    d.core.timers.cancel(old.timer)
    by = f"member {member.member_id} (client {member.client_id}) from host {member.client_host}"
    group.bury(old.member_id, f"replaced by {by}")
    # It is no newcomer: nothing but the rebalance bounds the wait of its first JoinGroup.
    member.is_new = False
    member.read_topics(group.protocol_type, group.protocol)
    d.core.touch(member, d.now.mono_ms)
    d.event(
        "group.member_replaced",
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        replaced=old.member_id,
        generation=group.generation,
    )
    return f"instance id {member.group_instance_id!r}: {old.member_id} replaced by {by}"


def _may_be_drained(old: Member) -> bool:
    """Say whether the newcomer would wait for partitions that nobody gives it.

    A crash forgets the mark; who has nothing then may have had it.
    """
    return old.drained or (old.is_loaded and old.owned == NOTHING)


def _wants_the_same(group: Group, old: Member, member: Member) -> bool:
    """Say whether the assignment that *old* had a part in suits *member*."""
    if old.topic_pattern != member.topic_pattern:
        return False
    if old.topics is None or member.topics is None:
        # Topics of a consumer that can't be read may differ wherever the bytes do.
        protocol = group.protocol
        return group.protocol_type != CONSUMER or (
            old.metadata_for(protocol) == member.metadata_for(protocol)
        )
    return frozenset(old.topics) == frozenset(member.topics)


def put_on_record(d: Decision, group: Group, member: Member, *, is_current: bool = False) -> None:
    """Write the last stable generation again where *member*'s instance had another id in it.

    Also for an instance that had left since: a crash brings back what was stable, and must not
    bring back a member that fences the living one. *is_current*: the member is all that the
    record says of it now.
    """
    stable = group.stable
    instance_id = member.group_instance_id
    if stable is None or instance_id is None:
        return
    old = next((m for m in stable.members if m.group_instance_id == instance_id), None)
    if old is None:
        return
    new = old._replace(member_id=member.member_id)
    if is_current:
        new = MemberMetadata(
            member.member_id,
            instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.metadata_for(group.protocol),
            old.assignment,
            member.topic_pattern,
        )
    leader = member.member_id if stable.leader == old.member_id else stable.leader
    members = tuple(new if m is old else m for m in stable.members)
    d.emit(stable._replace(leader=leader, members=members))
