"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup, and the expiry of members.

Static members
==============

A group instance id outlives the member ids that hold it (KIP-345).

A client that starts with an instance id gets a new member id each time. If the instance is in the
group already, the new id replaces the old one, in any state of the group: position, leadership and
partitions stay, and the old id is fenced. A member that restarts within its session therefore moves
no partition.

A fenced id stays fenced, also after a restart of the daemon: if the last stable generation is in
the log with the old id, it is written again with the new one, and every answer waits for that.

In a Stable group the new member is answered at once, in the same generation, if the basis of the
assignment is unchanged: the protocol that wins the vote, and the topics. Otherwise the group
rebalances. Kafka ignores changed topics here; they would never be assigned.
"""

from typing import Final

from coordinator.group import history
from coordinator.group.core import Caller, Core, Decision, Now, Outcome
from coordinator.group.group import Group
from coordinator.group.member import (
    CONSUMER,
    NOTHING,
    Member,
    PendingId,
    Timer,
    TimerKind,
    read_assignment,
)
from coordinator.group.rebalance import (
    end_report,
    join_answer,
    maybe_complete_join,
    maybe_start_rebalance,
    rebalance_if_topics_changed,
    start_rebalance,
)
from coordinator.group.records import GroupMetadata, GroupOwned, MemberMetadata
from coordinator.group.refusals import (
    STORAGE_EXHAUSTED,
    STORAGE_FULL,
    instance_holder,
    member_refusal,
    refusal,
    seconds,
    shortened,
    unknown_member,
    with_reason,
)
from coordinator.group.states import GroupState, Trigger
from coordinator.group.totals import Share
from protocol.consumer import decode_subscription
from protocol.errors import ErrorCode
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    SyncGroupRequest,
    SyncGroupResponse,
    join_error,
    sync_error,
)
from protocol.partition import INT32_MAX, NO_GENERATION

# Maximum number of different patterns in a group: each is matched with up to 100,000 topics.
PATTERNS_MAX: Final = 32

# Refusal of a whole request: the error, and its text.
_Refusal = tuple[int, str | None]
_TOO_LARGE = "the members' subscriptions fill the largest answer or record that fits"

_ALIVE: Final = HeartbeatResponse(ErrorCode.NONE.value)
_REJOIN: Final = HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS.value)


def join(core: Core, request: JoinGroupRequest, token: object, caller: Caller, now: Now) -> Outcome:
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    replaced = _replaced_member(group, request)
    refused = _join_refusal(core, group, request, replaced, caller, now)
    if refused is not None:
        error, message = refused
        echoed = "" if error == ErrorCode.GROUP_MAX_SIZE_REACHED else request.member_id
        d.answer(token, join_error(error, echoed, message))
    elif replaced is not None:
        assert group is not None
        _replace_static(d, group, replaced, request, token, caller)
    elif not request.member_id:
        group = group or _make_group(d, request.group_id, caller)
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


def _join_refusal(
    core: Core,
    group: Group | None,
    request: JoinGroupRequest,
    replaced: Member | None,
    caller: Caller,
    now: Now,
) -> _Refusal | None:
    """Return why the whole request is refused, None if it isn't."""
    if core.storage_exhausted:
        return ErrorCode.STORAGE_FULL, STORAGE_EXHAUSTED
    config = core.config
    pattern = request.topic_pattern
    problem = None if pattern is None else core.registry.pattern_problem(pattern)
    if problem is not None:
        return ErrorCode.INVALID_REGULAR_EXPRESSION, f"pattern {pattern!r}: {problem}"
    member_id, instance_id = request.member_id, request.group_instance_id
    if group is None:
        return _no_group(core, request, caller)
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
    joiner = None if has_place else core.totals.share(caller.principal)
    return _over_limit(core, group, pattern, joiner, is_member=is_member)


def _over_limit(
    core: Core, group: Group, pattern: str | None, joiner: Share | None, *, is_member: bool
) -> _Refusal | None:
    """Return the limit that would be exceeded; *joiner*: the share of an additional member."""
    patterns = len(group.patterns)
    if pattern is not None and pattern not in group.patterns and patterns >= PATTERNS_MAX:
        text = f"the members have {patterns} different patterns already"
        return ErrorCode.QUOTA_EXCEEDED, text
    if not is_member and core.storage_full:
        return ErrorCode.STORAGE_FULL, STORAGE_FULL
    if joiner is not None and (over := joiner.refusal("members")) is not None:
        return ErrorCode.QUOTA_EXCEEDED, over
    if not is_member and group.generation == INT32_MAX:
        return ErrorCode.QUOTA_EXCEEDED, f"generation {INT32_MAX} is the last one; delete the group"
    return None


def _no_group(core: Core, request: JoinGroupRequest, caller: Caller) -> _Refusal | None:
    if request.member_id:
        return ErrorCode.UNKNOWN_MEMBER_ID, unknown_member(None, request.member_id, None)
    if not (request.protocol_type and request.protocols):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "no protocol type, or no protocols"
    if core.storage_full:
        return ErrorCode.STORAGE_FULL, STORAGE_FULL
    share = core.share(None, caller)
    text = share.refusal("groups") or share.refusal("members")
    return None if text is None else (ErrorCode.QUOTA_EXCEEDED, text)


def _misfit(group: Group, request: JoinGroupRequest) -> str:
    if not group.members:
        return "no protocol type, or no protocols"
    if request.protocol_type != group.protocol_type:
        return f"protocol type {request.protocol_type!r}, the group has {group.protocol_type!r}"
    everyone = len(group.members)
    names = ", ".join(name for name, count in group.support.items() if count == everyone)
    offered = ", ".join(protocol.name for protocol in request.protocols)
    return f"protocols {shortened(offered)}; all members support {shortened(names)}"


def _make_group(d: Decision, group_id: str, caller: Caller) -> Group:
    group = d.core.make_group(group_id, caller, d.outcome)
    # From here on the group is visible, also after a crash.
    d.emit(GroupMetadata(group_id, "", 0, None, None, d.wall_ms, ()))
    return group


def _give_id(
    d: Decision, group: Group, request: JoinGroupRequest, token: object, caller: Caller
) -> None:
    """Give out a member id first, so that a lost answer leaves no member behind."""
    member_id = f"{caller.client_id}-{d.core.new_uuid()}"
    timer = Timer(TimerKind.PENDING, group.group_id, member_id)
    pending = PendingId(
        member_id,
        request.session_timeout_ms,
        timer,
        caller.client_id,
        caller.client_host,
        principal=caller.owner,
    )
    group.pending[member_id] = pending
    d.core.count_member(pending, 1)
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
    """Add the client as a member, and park its JoinGroup."""
    member = _new_member(d, group, member_id, request, caller)
    if not d.core.has_room(group, member.answer_bytes(), member.record_bytes()):
        d.answer(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, "", _TOO_LARGE))
        maybe_complete_join(d, group)
        return
    if not group.members:
        group.protocol_type = request.protocol_type
        _hand_over(d, group, caller)
    group.add(member)
    d.core.count_member(member, 1)
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
    rewrite_record(d, group, member)
    d.park_join(group, member, token)
    d.core.timers.arm(member.timer, d.now.mono_ms + d.core.config.new_member_join_timeout_ms)
    cause = "member joined"
    detail = with_reason(cause, request.reason)
    maybe_start_rebalance(d, group, Trigger.MEMBER_JOINED, cause, member, detail)


def _hand_over(d: Decision, group: Group, caller: Caller) -> None:
    """Transfer an unused group to its first member, if the member's quotas have room for it.

    The group thus follows a renamed principal, and groups from the time before authentication get
    an owner.
    """
    if caller.owner not in {None, group.owner} and d.core.share(None, caller).has_room_for(
        groups=1, offsets=group.offset_count, log_bytes=group.log_bytes
    ):
        assert caller.owner is not None
        d.emit(GroupOwned(group.group_id, caller.owner))


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
            response = join_answer(group, member.member_id, show_members=in_completing)
            d.answer(token, response, member)
            return
    if not is_unchanged and not _update(d, group, member, request, token):
        return
    if _is_surplus(d.core, group, member):
        detail = f"group full: group.max.size is {d.core.config.group_max_size}"
        d.answer(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, "", detail))
        d.remove(group, member, "group full", detail)
        maybe_start_rebalance(d, group, Trigger.MEMBER_LOST, "group full", member, detail)
        return
    member.session_timeout_ms = request.session_timeout_ms
    member.rebalance_timeout_ms = d.core.rebalance_timeout_ms(request.rebalance_timeout_ms)
    d.park_join(group, member, token)
    cause = "leader rejoined" if is_unchanged else "member changed its protocols"
    detail = with_reason(cause, request.reason)
    maybe_start_rebalance(d, group, Trigger.MEMBER_REJOINED, cause, member, detail)


def _update(
    d: Decision, group: Group, member: Member, request: JoinGroupRequest, token: object
) -> bool:
    """Apply the new protocols unless they are too large for the group."""
    answer_bytes, record_bytes = member.answer_bytes(), member.record_bytes()
    before = member.protocols, member.topic_pattern
    group.update(member, request.protocols, request.topic_pattern)
    grew = member.answer_bytes() > answer_bytes or member.record_bytes() > record_bytes
    if grew and not d.core.has_room(group, 0, 0):
        group.update(member, *before)
        detail = "group full: its protocols grew past the limit of the group"
        d.answer(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, "", _TOO_LARGE))
        d.remove(group, member, "group full", detail)
        maybe_start_rebalance(d, group, Trigger.MEMBER_LOST, "group full", member, detail)
        return False
    return True


def _is_surplus(core: Core, group: Group, member: Member) -> bool:
    """Return whether an overfull loaded group has enough members without this one."""
    return (
        group.state is GroupState.PREPARING
        and member.join is None
        and group.parked_joins >= core.config.group_max_size
    )


def _replaced_member(group: Group | None, request: JoinGroupRequest) -> Member | None:
    """Return the member that the client of *request* replaces, None if it replaces none."""
    if group is None or request.member_id or request.group_instance_id is None:
        return None
    member_id = group.static.get(request.group_instance_id)
    return None if member_id is None else group.members[member_id]


def _new_member(
    d: Decision, group: Group, member_id: str, request: JoinGroupRequest, caller: Caller
) -> Member:
    """Return a member with the fields of *request*, not yet in the group."""
    return Member(
        member_id,
        request.session_timeout_ms,
        Timer(TimerKind.SESSION, group.group_id, member_id),
        caller.client_id,
        caller.client_host,
        rebalance_timeout_ms=d.core.rebalance_timeout_ms(request.rebalance_timeout_ms),
        protocols=request.protocols,
        heard_ms=d.now.mono_ms,
        group_instance_id=request.group_instance_id,
        principal=caller.owner,
        topic_pattern=request.topic_pattern,
    )


def _replace_static(
    d: Decision,
    group: Group,
    old: Member,
    request: JoinGroupRequest,
    token: object,
    caller: Caller,
) -> None:
    """Replace *old* by the client of *request*, and answer its JoinGroup or park it."""
    member_id = f"{request.group_instance_id}-{d.core.new_uuid()}"
    member = _new_member(d, group, member_id, request, caller)
    answer_bytes = member.answer_bytes() - old.answer_bytes()
    record_bytes = member.record_bytes() - old.record_bytes()
    if max(answer_bytes, record_bytes) > 0 and not d.core.has_room(
        group, answer_bytes, record_bytes
    ):
        text = "its subscription has no room in the largest answer or record that fits"
        d.answer(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, "", text))
        return
    detail = _take_place(d, group, old, member)
    d.core.count_member(old, -1)
    d.core.count_member(member, 1)
    if (
        group.state is GroupState.STABLE
        and not (_may_be_drained(old) or _was_to_give_up(group, old))
        and _wants_the_same(group, old, member)
        and group.vote() == group.protocol
    ):
        rewrite_record(d, group, member, is_current=True)
        d.answer(token, join_answer(group, member.member_id, skip_assignment=True), member)
        return
    rewrite_record(d, group, member)
    d.park_join(group, member, token)
    detail = with_reason(detail, request.reason)
    cause = "static member replaced"
    maybe_start_rebalance(d, group, Trigger.MEMBER_REJOINED, cause, member, detail)


def _take_place(d: Decision, group: Group, old: Member, member: Member) -> str:
    """Replace *old* by *member*, fence the old id, and return the detail in words."""
    group.replace(old, member)
    assert member.group_instance_id is not None
    fence = instance_holder(group, member.group_instance_id)
    if old.join is not None:
        error = join_error(ErrorCode.FENCED_INSTANCE_ID, old.member_id, fence)
        d.finish_join(group, old, error)
    if old.sync is not None:
        d.finish_sync(old, sync_error(ErrorCode.FENCED_INSTANCE_ID, fence))
    d.core.timers.cancel(old.timer)
    by = f"member {member.member_id} (client {member.client_id}) from host {member.client_host}"
    group.note_removal(old.member_id, f"replaced by {by}")
    # Not new: only the rebalance limits the wait of its first JoinGroup.
    member.is_new = False
    member.read_topics(group.protocol_type, group.protocol)
    d.core.restart_session(member, d.now.mono_ms)
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
    """Return whether the new member would wait for partitions that it never gets.

    A crash loses the drained mark: a loaded member without partitions may have had it.
    """
    return old.drained or (old.is_loaded and old.owned == NOTHING)


def _was_to_give_up(group: Group, old: Member) -> bool:
    """Return whether a rebalance is still missing that reassigns partitions taken from *old*.

    A cooperative member starts that rebalance after giving them up. The new member can't know.
    """
    if group.protocol_type != CONSUMER or old.owned is None:
        return False
    read = decode_subscription(old.metadata_for(group.protocol))
    return read is not None and not old.owned.issuperset(read.owned_partitions)


def _wants_the_same(group: Group, old: Member, member: Member) -> bool:
    """Return whether *member* can take over the assignment of *old*."""
    if old.topic_pattern != member.topic_pattern:
        return False
    if old.topics is None or member.topics is None:
        # Opaque topics of a consumer may differ wherever the bytes differ.
        protocol = group.protocol
        return group.protocol_type != CONSUMER or (
            old.metadata_for(protocol) == member.metadata_for(protocol)
        )
    return frozenset(old.topics) == frozenset(member.topics)


def rewrite_record(d: Decision, group: Group, member: Member, *, is_current: bool = False) -> None:
    """Write the last stable generation again if it has *member*'s instance with another id.

    Also for an instance that had left since: a crash restores the stable generation, and must not
    restore a member that fences the living one. *is_current*: replace all fields of the record's
    member except its assignment, not only its id and principal.
    """
    stable = group.stable
    instance_id = member.group_instance_id
    if stable is None or instance_id is None:
        return
    old = next((m for m in stable.members if m.group_instance_id == instance_id), None)
    if old is None:
        return
    new = old._replace(member_id=member.member_id, principal=member.principal)
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
            member.principal,
        )
    leader = member.member_id if stable.leader == old.member_id else stable.leader
    members = tuple(new if m is old else m for m in stable.members)
    d.emit(stable._replace(leader=leader, members=members))


def sync(
    core: Core, request: SyncGroupRequest, token: object, _caller: Caller, now: Now
) -> Outcome:
    """Answer or park a SyncGroup; the leader's contains the assignment and applies it."""
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    error = _sync_refusal(group, request)
    if error:
        return d.answer(token, sync_error(error, _sync_text(group, request, error, now)))
    assert group is not None
    member = group.members[request.member_id]
    assigns = member.member_id == group.leader and group.state is not GroupState.STABLE
    if assigns and core.storage_exhausted:
        return d.answer(token, sync_error(ErrorCode.STORAGE_FULL, STORAGE_EXHAUSTED), member)
    if not member.synced:
        member.synced = True
        group.unsynced -= 1
    if group.state is GroupState.STABLE:
        member.heard_ms = now.mono_ms
        d.answer(token, _sync_answer(group, member), member)
    else:
        d.park_sync(member, token)
        if assigns:
            _assign(d, group, member, request)
    if group.state is GroupState.STABLE and not group.unsynced:
        core.timers.cancel(group.sync_timer)
    return d.outcome


def _sync_refusal(group: Group | None, request: SyncGroupRequest) -> int:
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
        # Before the vote the group has no protocol to compare with.
        if asked is not None and actual is not None and asked != actual:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return 0


def _sync_text(group: Group | None, request: SyncGroupRequest, error: int, now: Now) -> str | None:
    if error == ErrorCode.INCONSISTENT_GROUP_PROTOCOL and group is not None:
        asked = f"{request.protocol_type} {request.protocol_name}"
        return f"protocol {asked}, the group has {group.protocol_type} {group.protocol}"
    return member_refusal(group, error, request, now.mono_ms)


def _sync_answer(group: Group, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        ErrorCode.NONE.value, group.protocol_type, group.protocol, member.assignment
    )


def _assign(d: Decision, group: Group, leader: Member, request: SyncGroupRequest) -> None:
    problem = hand_out_assignment(group, request)
    if problem:
        # The leader's own answer is 42 and all others get 27, so the leader is answered first.
        for member in group.members.values():
            member.assignment, member.owned = b"", NOTHING
        d.remove(group, leader, "bad assignment", problem, ErrorCode.INVALID_REQUEST)
        cause = "bad assignment"
        start_rebalance(d, group, Trigger.MEMBER_LOST, cause, leader, f"{cause}: {problem}")
        return
    _let_hand_over(group)
    assignments = {m.member_id: m.assignment for m in group.members.values()}
    d.emit(group.to_record(d.wall_ms, assignments))
    assert group.rebalance is not None
    group.rebalance.sync_completed(group.members.values(), d.now.mono_ms)
    group.move(Trigger.ASSIGNED)
    for member in group.members.values():
        if member.sync is not None:
            d.finish_sync(member, _sync_answer(group, member))
            d.core.restart_session(member, d.now.mono_ms)
    d.event("group.stable", generation=group.generation, members=len(group.members))
    end_report(d, group, history.STABLE)
    rebalance_if_topics_changed(d, group)


def _let_hand_over(group: Group) -> None:
    """Limit `former` of each member to partitions without an owner in this generation."""
    owned = [member.owned for member in group.members.values()]
    taken = None if None in owned else frozenset().union(*(o for o in owned if o))
    for member in group.members.values():
        # An opaque assignment hides its partitions, so that any of them may be owned.
        member.former = NOTHING if taken is None else member.former - taken


def hand_out_assignment(group: Group, request: SyncGroupRequest) -> str:
    """Apply the leader's assignments; return what is wrong with them, "" if nothing."""
    given = {one.member_id: one.assignment for one in request.assignments}
    if len(given) != len(request.assignments):
        return "the leader named a member twice"
    for member_id in given:
        if member_id not in group.members:
            return f"the leader named {member_id!r}, which is no member"
    taken: set[tuple[str, int]] = set()
    for member in group.members.values():
        # A drained member gets nothing, whatever the leader assigned.
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
    # The topic comes from the assignment's bytes, where its length is not limited.
    name = f"{shortened(topic)}-{partition}"
    return f"{name} given to both {first.member_id} and {member.member_id}"


def heartbeat(
    core: Core, request: HeartbeatRequest, token: object, _caller: Caller, now: Now
) -> Outcome:
    """Answer a heartbeat at once; 0 and 27 reveal nothing new and therefore skip the reply gate."""
    outcome = Outcome(request.group_id)
    response, member = _heartbeat(core, request, now)
    gated = member is None
    if member is not None:
        core.heard(member, now.mono_ms)
    outcome.replies.append((token, response, response.error, gated, None))
    return outcome


def _heartbeat(
    core: Core, request: HeartbeatRequest, now: Now
) -> tuple[HeartbeatResponse, Member | None]:
    group = core.groups.get(request.group_id)
    member = None if group is None else group.members.get(request.member_id)
    if group is None or member is None or request.group_instance_id is not None:
        error = ErrorCode.UNKNOWN_MEMBER_ID.value
        if group is not None:
            member, error = group.find(request.member_id, request.group_instance_id)
        if group is None or member is None:
            return _heartbeat_refused(group, request, error, now), None
    if request.generation_id != group.generation and not (
        # After a crash at a generation that was announced but never assigned, some members know it
        # and some don't; both only need to join again.
        group.is_recovering
        and group.stable is not None
        and request.generation_id == group.stable.generation
    ):
        return _heartbeat_refused(group, request, ErrorCode.ILLEGAL_GENERATION.value, now), None
    return (_REJOIN if group.state is GroupState.PREPARING else _ALIVE), member


def _heartbeat_refused(
    group: Group | None, request: HeartbeatRequest, error: int, now: Now
) -> HeartbeatResponse:
    return HeartbeatResponse(error, member_refusal(group, error, request, now.mono_ms))


def leave(
    core: Core, request: LeaveGroupRequest, token: object, _caller: Caller, now: Now
) -> Outcome:
    """Remove the given members, with one rebalance for all of them."""
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
            maybe_start_rebalance(d, group, Trigger.MEMBER_LOST, "member left", member, detail)
        else:
            maybe_complete_join(d, group)
    return d.outcome


def _leave(
    d: Decision, group: Group, leaving: LeavingMember, removed: list[tuple[Member, str]]
) -> tuple[int, str | None]:
    """Remove one member; return an error and its text, 0 if it was removed."""
    member_id, instance_id, reason = leaving.member_id, leaving.group_instance_id, leaving.reason
    if member_id in group.pending:
        # Not a member yet, so that a Stable group does not rebalance.
        d.forget_pending(group, group.pending[member_id])
        return ErrorCode.NONE.value, None
    what = "left"
    if not member_id and instance_id in group.static:
        # An operator knows the instance id, but not its current member id.
        member_id = group.static[instance_id]
        what = f"instance id {instance_id!r} removed on request"
    member, error = group.find(member_id, instance_id)
    if member is None:
        text = refusal(group, error, member_id, instance_id, NO_GENERATION, d.now.mono_ms)
        return error, text
    detail = with_reason(what, reason)
    d.remove(group, member, history.LEFT, detail)
    removed.append((member, detail))
    return ErrorCode.NONE.value, None


def session_fired(d: Decision, group: Group, member: Member) -> None:
    gap_ms = d.now.mono_ms - member.heard_ms
    if member.join is not None and member.is_new:
        # Nothing else limits the wait of a first JoinGroup.
        detail = f"its first JoinGroup was parked for {seconds(gap_ms)}"
    elif member.join is not None or member.sync is not None:
        return  # Its request is still parked; the answer restarts the session.
    else:
        timeout = seconds(member.session_timeout_ms)
        detail = f"no heartbeat for {seconds(gap_ms)}, session timeout {timeout}"
    d.remove(group, member, "session expired", detail)
    maybe_start_rebalance(d, group, Trigger.MEMBER_LOST, "session expired", member, detail)


def pending_fired(d: Decision, group: Group, pending: PendingId) -> None:
    """Revoke an id that was given out and not used in time."""
    if group.rebalance is not None:
        group.rebalance.gone(pending, "never joined", d.now.mono_ms)
    d.forget_pending(group, pending)
    maybe_complete_join(d, group)


def withdraw(core: Core, token: object, now: Now) -> Outcome | None:
    """Drop the parked request of a disconnected client; its session continues from here."""
    member = core.parked.pop(token, None)
    if member is None:
        return None
    group = core.groups[member.timer.group_id]
    if member.join is not None and member.join.token == token:
        member.join = None
        member.is_new = False
        group.parked_joins -= 1
    else:
        member.sync = None
        member.synced = False
        group.unsynced += 1
    core.restart_session(member, now.mono_ms)
    return Outcome(group.group_id)
