"""Requests of operators: describe and change groups, members, offsets and rebalances."""

from collections.abc import Iterator
from typing import Final

from coordinator.group.commits import STORAGE_FULL_TEXT, examine
from coordinator.group.core import TOPICS_NAMED_MAX, Caller, Core, Decision, Now, Outcome
from coordinator.group.group import Group
from coordinator.group.lag import TURN_NAMES, in_order
from coordinator.group.member import CONSUMER, Member
from coordinator.group.rebalance import maybe_start_rebalance
from coordinator.group.records import (
    GroupDeleted,
    GroupRetention,
    OffsetRemoved,
    OffsetsCommitted,
    Record,
)
from coordinator.group.refusals import with_reason
from coordinator.group.states import GroupState, Trigger
from protocol.errors import ErrorCode
from protocol.messages import (
    AlteredTopic,
    AlterGroupRetentionRequest,
    AlterGroupRetentionResponse,
    AlterOffsetsRequest,
    AlterOffsetsResponse,
    DescribedGroup,
    DescribedMember,
    DescribeRebalancesRequest,
    DescribeRebalancesResponse,
    DrainedMember,
    DrainMemberRequest,
    DrainMemberResponse,
    ListedGroup,
    ListGroupsRequest,
    OffsetChange,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    PartitionResult,
    TopicResult,
    describe_error,
)
from protocol.partition import NO_LEADER_EPOCH, NO_OFFSET

CLASSIC: Final = "classic"
_UNKNOWN: Final = -1


def describe(core: Core, group_id: str) -> DescribedGroup:
    """Return the description of a group; an unknown one is Dead, with error 69."""
    group = core.groups.get(group_id)
    if group is None:
        error = ErrorCode.GROUP_ID_NOT_FOUND
        return describe_error(group_id, error.value, f"Group {group_id} not found.")
    # The agreed protocol is valid only in a Stable group.
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


def list_groups(core: Core, request: ListGroupsRequest) -> Iterator[tuple[ListedGroup, ...] | None]:
    """Yield the groups that pass both filters, by id, in parts; None is a pause, too.

    An unknown state or type matches nothing.
    """
    states = frozenset(state.lower() for state in request.states)
    types = frozenset(type_.lower() for type_ in request.types)
    if types and CLASSIC not in types:
        return
    order = yield from in_order(core.groups)
    for at in range(0, len(order), TURN_NAMES):
        yield tuple(
            [
                ListedGroup(group_id, group.protocol_type, group.state.value, CLASSIC)
                for group_id in order[at : at + TURN_NAMES]
                if (group := core.groups.get(group_id)) is not None
                and (not states or group.state.value.lower() in states)
            ]
        )


def delete(core: Core, group_id: str, now: Now) -> tuple[Outcome, int]:
    """Delete a group without members; ids given out are revoked."""
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


def drain(
    core: Core, request: DrainMemberRequest, token: object, caller: Caller, now: Now
) -> Outcome:
    """Mark the members with a client id as drained; answer which ones own nothing any more."""
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    if group is None:
        return d.answer(token, DrainMemberResponse(ErrorCode.GROUP_ID_NOT_FOUND.value, ()))
    asked = [m for m in group.members.values() if m.client_id == request.client_id]
    if caller.only_own:
        asked = [m for m in asked if not caller.is_anothers(m.principal)]
    if not asked:
        return d.answer(token, DrainMemberResponse(ErrorCode.UNKNOWN_MEMBER_ID.value, ()))
    fresh = [m for m in asked if not m.drained]
    for member in fresh:
        member.drained = True
        d.event("group.drain_asked", member_id=member.member_id, client_id=member.client_id)
    if fresh:
        detail = f"drain of client {request.client_id} asked"
        maybe_start_rebalance(d, group, Trigger.DRAIN_ASKED, "drain asked", fresh[0], detail)
    members = tuple(
        DrainedMember(m.member_id, not m.claimed and (not m.assignment or m.owned == frozenset()))
        for m in asked
    )
    return d.answer(token, DrainMemberResponse(ErrorCode.NONE.value, members))


def delete_offsets(
    core: Core, request: OffsetDeleteRequest, token: object, _caller: Caller, now: Now
) -> Outcome:
    """Delete committed offsets of topics that the group doesn't subscribe to (KIP-496).

    The group stays, even without offsets; expiry removes it.
    """
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    if group is None:
        return d.answer(token, OffsetDeleteResponse(ErrorCode.GROUP_ID_NOT_FOUND.value, ()))
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
        # The subscriptions of its members are opaque.
        return d.answer(token, OffsetDeleteResponse(ErrorCode.NON_EMPTY_GROUP.value, ()))
    results = []
    for named in request.topics:
        topic, partitions = named.topic, named.partitions
        error = ErrorCode.NONE.value
        if group.subscribed is None or topic in group.subscribed:
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC.value
        else:
            for partition in partitions:
                if partition in group.offsets.get(topic, ()):
                    d.emit(OffsetRemoved(group.group_id, topic, partition))
        results.append(TopicResult(topic, tuple(PartitionResult(p, error) for p in partitions)))
    if d.outcome.records:
        topics = list(dict.fromkeys(r.topic for r in results))[:TOPICS_NAMED_MAX]
        d.event("offsets.removed", count=len(d.outcome.records), topics=topics, reason="on request")
    return d.answer(token, OffsetDeleteResponse(ErrorCode.NONE.value, tuple(results)))


def alter_offsets(
    core: Core, request: AlterOffsetsRequest, token: object, caller: Caller, now: Now
) -> Outcome:
    """Set offsets of a group, with or without members.

    A partition that a member may commit is refused. With remove_owners, that member is removed in
    the same step instead, so that every later committer has begun at the new offset.
    """
    d = Decision(core, request.group_id, now)
    if core.storage_full:
        error = ErrorCode.STORAGE_FULL.value
        return d.answer(token, AlterOffsetsResponse(error, STORAGE_FULL_TEXT, (), ()))
    group = core.groups.get(request.group_id)
    share = core.share(group, caller)
    text = None if group is not None else share.refusal("groups")
    if text is not None:
        error = ErrorCode.QUOTA_EXCEEDED.value
        return d.answer(token, AlterOffsetsResponse(error, text, (), ()))
    committers = _Committers(core, group)
    results: list[TopicResult] = []
    losers: dict[Member, None] = {}
    count = 0
    for named in request.topics:
        topic, allowed = named.topic, named.partitions
        if not request.remove_owners:
            allowed = tuple([p for p in allowed if not committers.of(topic, p.partition)])
        offsets, found, _ = examine(core, group, share, None, AlteredTopic(topic, allowed))
        errors = {one.partition: one.error for one in found}
        owned = ErrorCode.PARTITION_OWNED.value
        numbers = [p.partition for p in named.partitions]
        answers = [PartitionResult(p, errors.get(p, owned)) for p in numbers]
        results.append(TopicResult(topic, tuple(answers)))
        if offsets:
            if group is None:
                group = core.make_group(request.group_id, caller, d.outcome)
            d.emit(OffsetsCommitted(request.group_id, topic, offsets, d.wall_ms))
            losers |= dict.fromkeys(m for p in offsets for m in committers.of(topic, p))
            count += len(offsets)
    removed = tuple([member.member_id for member in losers])
    d.answer(token, AlterOffsetsResponse(ErrorCode.NONE.value, None, tuple(results), removed))
    if count:
        detail = with_reason("offsets altered on request", request.reason)
        topics = list(dict.fromkeys(r.topic for r in results))[:TOPICS_NAMED_MAX]
        d.event("offsets.altered", count=count, topics=topics, detail=detail)
        if group is not None and losers:
            _remove_all(d, group, list(losers), detail)
    return d.outcome


class _Committers:
    """Members that may commit each partition, in this generation or while handing it over."""

    def __init__(self, core: Core, group: Group | None) -> None:
        self._of: dict[tuple[str, int], list[Member]] = {}
        self._of_anything = []
        if group is None:
            return
        # The same condition as in `commits.examine`.
        is_checked = core.config.ownership_check and group.protocol_type == CONSUMER
        for member in group.members.values():
            if not is_checked or member.owned is None:
                self._of_anything.append(member)
                continue
            for topic_partition in member.owned | member.former:
                self._of.setdefault(topic_partition, []).append(member)

    def of(self, topic: str, partition: int) -> list[Member]:
        return [*self._of.get((topic, partition), ()), *self._of_anything]


def _remove_all(d: Decision, group: Group, members: list[Member], detail: str) -> None:
    """Remove *members*, with one rebalance for all of them."""
    for member in members:
        d.remove(group, member, "offsets altered", detail)
    detail += f" (members removed: {len(members)})"
    maybe_start_rebalance(d, group, Trigger.MEMBER_LOST, "offsets altered", members[0], detail)


def alter_retention(
    core: Core, request: AlterGroupRetentionRequest, token: object, _caller: Caller, now: Now
) -> Outcome:
    """Set the retention of the group's offsets; None restores the server's setting."""
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    if group is None:
        return d.answer(token, AlterGroupRetentionResponse(ErrorCode.GROUP_ID_NOT_FOUND.value))
    if core.storage_full:
        return d.answer(token, AlterGroupRetentionResponse(ErrorCode.STORAGE_FULL.value))
    before = group.retention_ms
    if before != request.retention_ms:
        d.emit(GroupRetention(request.group_id, request.retention_ms))
        d.event("group.retention_changed", before=before, after=request.retention_ms)
    return d.answer(token, AlterGroupRetentionResponse(ErrorCode.NONE.value))


def describe_rebalances(
    core: Core, request: DescribeRebalancesRequest
) -> DescribeRebalancesResponse:
    """Return the newest finished rebalances of a group, newest first; error 69 if unknown."""
    group_id = request.group_id
    group = core.groups.get(group_id)
    if group is None:
        error = ErrorCode.GROUP_ID_NOT_FOUND.value
        return DescribeRebalancesResponse(error, f"Group {group_id} not found.", group_id, ())
    newest = sorted(group.rebalances.values(), key=lambda r: r.number, reverse=True)
    shown = tuple(newest[: max(request.max_rebalances, 0)])
    return DescribeRebalancesResponse(ErrorCode.NONE.value, None, group_id, shown)


def offset_change(position: int, timestamp_ms: int, record: Record) -> OffsetChange | None:
    """Return the change of committed offsets in one record, None if it changes none."""
    if type(record) is OffsetsCommitted:
        (found,) = record.offsets.values()
        return OffsetChange(
            position,
            "committed",
            record.group_id,
            record.topic,
            found.partition,
            found.offset,
            found.leader_epoch,
            found.metadata,
            timestamp_ms,
        )
    if type(record) is OffsetRemoved:
        group_id, topic, partition = record
        kind = "removed"
    elif type(record) is GroupDeleted:
        group_id, topic, partition = record.group_id, "", _UNKNOWN
        kind = "group deleted"
    else:
        return None
    return OffsetChange(
        position, kind, group_id, topic, partition, NO_OFFSET, NO_LEADER_EPOCH, "", timestamp_ms
    )
