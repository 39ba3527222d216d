"""OffsetCommit and OffsetFetch."""

from coordinator.group.core import Core
from coordinator.group.effects import Now, Outcome, Reply
from coordinator.group.group import Group
from coordinator.group.member import CONSUMER, Member
from coordinator.group.records import NO_EXPIRY, CommittedOffset, OffsetCommitted
from coordinator.group.states import GroupState
from coordinator.group.words import refusal
from protocol.errors import ErrorCode
from protocol.messages import (
    GroupFetch,
    GroupOffsets,
    OffsetCommitRequest,
    OffsetCommitResponse,
    PartitionCommit,
    PartitionOffset,
    PartitionResult,
    TopicOffsets,
    TopicResult,
)
from protocol.types import NO_LEADER_EPOCH, NO_OFFSET

# Plain ints: looking up a member of an enum costs as much as the rest of a check.
_OK = ErrorCode.NONE.value
_TOO_LARGE = ErrorCode.OFFSET_METADATA_TOO_LARGE.value
_NOT_OWNER = ErrorCode.NOT_PARTITION_OWNER.value
_CONFLICT = ErrorCode.OFFSET_CONFLICT.value
_QUOTA = ErrorCode.QUOTA_EXCEEDED.value
_INVALID = ErrorCode.INVALID_REQUEST.value
_FULL = ErrorCode.STORAGE_FULL.value
_UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value
_NO_TOPICS = OffsetCommitResponse(_OK, ())


def commit(core: Core, request: OffsetCommitRequest, token: object, now: Now) -> Outcome:
    """Store offsets, each partition for itself; an error of the whole group stands in front."""
    group_id = request.group_id
    outcome = core.latest = Outcome(group_id)
    topics = request.topics
    if not topics:
        outcome.replies.append(Reply(token, _NO_TOPICS, True, None))
        return outcome
    group = core.groups.get(group_id)
    member, error = _committer(core, group, request)
    if error:
        response = OffsetCommitResponse(error, (), _in_words(group, request, error, now))
        outcome.replies.append(Reply(token, response, True, None))
        return outcome
    results = []
    registered = core.registry.topics
    wall_ms = core.wall_ms(now)
    for topic, partitions in topics:
        known = registered.get(topic) if registered else None
        checked = []
        for item in partitions:
            partition, offset, leader_epoch, metadata, _ = item
            if known is not None and partition >= known.open_partitions:
                error = _UNKNOWN_TOPIC
            else:
                error = _check(core, group, member, topic, item)
            checked.append(PartitionResult(partition, error))
            if not error:
                value = CommittedOffset(offset, leader_epoch, metadata or "", wall_ms, NO_EXPIRY)
                record = OffsetCommitted(group_id, topic, partition, value)
                outcome.records.append(record)
                core.replay(record)
                if group is None:
                    group = core.groups[group_id]
        results.append(TopicResult(topic, tuple(checked)))
    if member is not None:
        now_ms = now.mono_ms
        core.heard(member, now_ms)
        member.in_gate += 1
        member.gated_at_ms = now_ms
    response = OffsetCommitResponse(_OK, tuple(results))
    outcome.replies.append(Reply(token, response, True, member))
    return outcome


def _committer(
    core: Core, group: Group | None, request: OffsetCommitRequest
) -> tuple[Member | None, int]:
    """Return the member that commits (None: nobody in particular), and why it may not."""
    if _names_twice(request):
        return None, _INVALID
    allowed = _FULL if core.storage_full else _OK
    generation_id = request.generation_id
    if group is None:
        return None, allowed if generation_id < 0 else ErrorCode.GROUP_ID_NOT_FOUND.value
    if generation_id < 0 and group.state is GroupState.EMPTY:
        return None, allowed
    if request.group_instance_id is None:
        member = group.members.get(request.member_id)
        error = ErrorCode.UNKNOWN_MEMBER_ID.value
    else:
        member, error = group.find(request.member_id, request.group_instance_id)
    if member is None:
        return None, error
    if generation_id != group.generation:
        return None, ErrorCode.ILLEGAL_GENERATION.value
    if group.state is not GroupState.STABLE and (
        # A generation that was never assigned has nothing to commit, also when the next
        # rebalance has begun or the process was restarted meanwhile.
        group.state is GroupState.COMPLETING or group.is_unassigned()
    ):
        return None, ErrorCode.REBALANCE_IN_PROGRESS.value
    return member, allowed


def _in_words(
    group: Group | None, request: OffsetCommitRequest, error: int, now: Now
) -> str | None:
    if error == _INVALID:
        return "the commit names one partition twice"
    if error == _FULL:
        return "the disk's reserve is reached, new offsets are refused"
    if error == ErrorCode.GROUP_ID_NOT_FOUND:
        return "there is no such group"
    _, generation_id, member_id, instance_id, _ = request
    return refusal(group, error, member_id, instance_id, generation_id, now.mono_ms)


def _names_twice(request: OffsetCommitRequest) -> bool:
    topics = request.topics
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        return False
    named = [(topic, item.partition) for topic, partitions in topics for item in partitions]
    return len(frozenset(named)) != len(named)


def _check(
    core: Core, group: Group | None, member: Member | None, topic: str, item: PartitionCommit
) -> int:
    """Return why this partition's offset is refused, 0 if it is stored."""
    config = core.config
    partition, _, _, metadata, expected = item
    if (
        member is not None
        and member.owned is not None
        and config.ownership_check
        and (topic, partition) not in member.owned
        and (topic, partition) not in member.former
        and (group is None or group.protocol_type == CONSUMER)
    ):
        return _NOT_OWNER
    # A character takes one to four bytes, so that most texts need no encoding.
    if (
        metadata
        and len(metadata) * 4 > config.offset_metadata_max_bytes
        and len(metadata.encode()) > config.offset_metadata_max_bytes
    ):
        return _TOO_LARGE
    stored = None
    if group is not None:
        stored_partitions = group.offsets.get(topic)
        if stored_partitions is not None:
            stored = stored_partitions.get(partition)
    if expected is not None and expected != (NO_OFFSET if stored is None else stored.offset):
        return _CONFLICT
    if stored is None and group is not None and group.offset_count >= config.group_max_offsets:
        return _QUOTA
    return _OK


def fetch(core: Core, request: GroupFetch) -> GroupOffsets:
    """Return the last committed offsets; an unknown group simply has none."""
    group_id, topics = request
    group = core.groups.get(group_id)
    if topics is None:
        return GroupOffsets(group_id, _OK, _all_offsets(group))
    stored = {} if group is None else group.offsets
    found = []
    for topic, partitions in topics:
        of_topic = stored.get(topic)
        if of_topic is None:
            offsets = [_none(p) for p in partitions]
        else:
            offsets = [
                _none(p) if (value := of_topic.get(p)) is None else _some(p, value)
                for p in partitions
            ]
        found.append(TopicOffsets(topic, tuple(offsets)))
    return GroupOffsets(group_id, _OK, tuple(found))


def _some(partition: int, value: CommittedOffset) -> PartitionOffset:
    return PartitionOffset(partition, value.offset, value.leader_epoch, value.metadata, _OK)


def _none(partition: int) -> PartitionOffset:
    return PartitionOffset(partition, NO_OFFSET, NO_LEADER_EPOCH, "", _OK)


def _all_offsets(group: Group | None) -> tuple[TopicOffsets, ...]:
    if group is None:
        return ()
    return tuple(
        TopicOffsets(topic, tuple(_some(p, partitions[p]) for p in sorted(partitions)))
        for topic, partitions in sorted(group.offsets.items())
    )
