"""OffsetCommit and OffsetFetch, the most frequent requests."""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final

from coordinator.group.core import Caller, Core, Now, Outcome
from coordinator.group.group import Group, Picture
from coordinator.group.lag import in_order, numbers_in_order
from coordinator.group.member import CONSUMER, NOTHING, Member, Owned
from coordinator.group.records import Offsets, OffsetsCommitted, StoredOffsets
from coordinator.group.refusals import member_refusal
from coordinator.group.registry import Topic, TopicRegistered
from coordinator.group.states import GroupState
from coordinator.group.totals import Share
from protocol.codec import PackedArray
from protocol.errors import ErrorCode
from protocol.fields import REQUEST_PARTITIONS_MAX, TEXT_BYTES_MAX
from protocol.messages import (
    AlteredTopic,
    GroupFetch,
    GroupOffsets,
    OffsetCommitRequest,
    OffsetCommitResponse,
    PartitionOffset,
    PartitionResult,
    TopicCommit,
    TopicOffsets,
    TopicResult,
)
from protocol.partition import INT32_MAX, NO_LEADER_EPOCH, NO_OFFSET

# Constants, because an attribute lookup on an enum costs as much as the rest of a check.
_EMPTY = GroupState.EMPTY
_STABLE = GroupState.STABLE
_OK = ErrorCode.NONE.value
_FULL = ErrorCode.STORAGE_FULL.value
_QUOTA = ErrorCode.QUOTA_EXCEEDED.value
_REFUSED = ErrorCode.TOPIC_AUTHORIZATION_FAILED.value
_UNKNOWN_GROUP = ErrorCode.GROUP_ID_NOT_FOUND.value
_UNKNOWN_MEMBER = ErrorCode.UNKNOWN_MEMBER_ID.value
_NO_TOPICS = OffsetCommitResponse(_OK, ())
# Substitutes for an unregistered topic, and for a topic without offsets.
_UNREGISTERED: Final = Topic(TopicRegistered("", INT32_MAX + 1, (), is_deleted=False, version=0))
_NOTHING_STORED: Final = StoredOffsets()


class _Accepted(dict[int, PartitionResult]):
    """Results of accepted partitions; those with low numbers are created once."""

    def __missing__(self, partition: int) -> PartitionResult:
        result = PartitionResult(partition, _OK)
        if partition < REQUEST_PARTITIONS_MAX:
            self[partition] = result
        return result


_accepted: Final = _Accepted().__getitem__

STORAGE_FULL_TEXT: Final = "the disk is full or too slow, new offsets are refused"

# Number of offsets packed in one step: a third of a millisecond.
_SLICE_OFFSETS: Final = 2_000
# Maximum bytes of an offset in an answer.
_OFFSET_BYTES_MAX: Final = 32 + TEXT_BYTES_MAX


def commit(
    core: Core, request: OffsetCommitRequest, token: object, caller: Caller, now: Now
) -> Outcome:
    """Store offsets, with one result per partition; an error of the whole group replaces them."""
    group_id, topics = request.group_id, request.topics
    outcome = core.latest = Outcome(group_id)
    if not topics:
        outcome.replies.append((token, _NO_TOPICS, _OK, True, None))
        return outcome
    group = core.groups.get(group_id)
    # `core.share` inlined, because every commit takes this path.
    share = core.totals.share(caller.principal) if group is None else group.share
    member, error = committer(core, group, share, request)
    if error:
        message = _message(group, share, request, error, now)
        response = OffsetCommitResponse(error, (), message)
        outcome.replies.append((token, response, error, True, None))
        return outcome
    wall_ms = core.wall_ms(now)
    answered = []
    for named in topics:
        offsets, results, refused = examine(core, group, share, member, named)
        answered.append(TopicResult(named.topic, results))
        error = error or refused
        if offsets:
            if group is None:
                group = core.make_group(group_id, caller, outcome)
            record = OffsetsCommitted(group_id, named.topic, offsets, wall_ms)
            outcome.records.append(record)
            core.replay(record)
    if member is not None:
        core.heard(member, now.mono_ms)
        member.in_gate += 1
        member.gated_at_ms = now.mono_ms
    message = _limit(core, group, share) if error == _QUOTA else None
    response = OffsetCommitResponse(_OK, tuple(answered), message)
    outcome.replies.append((token, response, error, True, member))
    return outcome


def committer(
    core: Core, group: Group | None, share: Share, request: OffsetCommitRequest
) -> tuple[Member | None, int]:
    """Return the committing member (None: no member, or an error) and the error."""
    generation_id = request.generation_id
    allowed = _FULL if core.storage_full else _OK
    if group is None:
        if generation_id < 0 and share.refusal("groups"):
            allowed = allowed or _QUOTA
        return None, allowed if generation_id < 0 else _UNKNOWN_GROUP
    if generation_id < 0 and group.state is _EMPTY:
        return None, allowed
    instance_id = request.group_instance_id
    if instance_id is None:
        member = group.members.get(request.member_id)
        error = _UNKNOWN_MEMBER
    else:
        member, error = group.find(request.member_id, instance_id)
    if member is None:
        return None, error
    if generation_id != group.generation:
        return None, ErrorCode.ILLEGAL_GENERATION.value
    if group.state is not _STABLE and (
        # A generation that was never assigned has nothing to commit, even if the next rebalance has
        # begun or the process was restarted.
        group.state is GroupState.COMPLETING or group.is_unassigned()
    ):
        return None, ErrorCode.REBALANCE_IN_PROGRESS.value
    return member, allowed


def _message(
    group: Group | None, share: Share, request: OffsetCommitRequest, error: int, now: Now
) -> str | None:
    if error == _FULL:
        return STORAGE_FULL_TEXT
    if error == _QUOTA:
        return share.refusal("groups")
    if error == _UNKNOWN_GROUP:
        return "there is no such group"
    return member_refusal(group, error, request, now.mono_ms)


def _limit(core: Core, group: Group | None, share: Share) -> str | None:
    """Return in words which limit refused a partition."""
    count = 0 if group is None else group.offset_count
    most = core.config.group_max_offsets
    if count >= most:
        return f"the group has {count} offsets already, group.max.offsets is {most}"
    return share.refusal("offsets")


def examine(
    core: Core,
    group: Group | None,
    share: Share,
    member: Member | None,
    named: TopicCommit | AlteredTopic,
) -> tuple[Offsets, tuple[PartitionResult, ...], int]:
    """Return the accepted offsets, the results of all partitions, and the first error (0: none).

    New offsets count against *share*. Without a *member*, ownership is not checked.
    """
    config, topic, items = core.config, named.topic, named.partitions
    commit_bound = core.registry.topics.get(topic, _UNREGISTERED).commit_bound
    stored = _NOTHING_STORED.offsets
    offsets_left = config.group_max_offsets
    # Partitions that the member may commit; None: all.
    owned: Owned | None = None
    former = NOTHING
    if group is not None:
        offsets_left -= group.offset_count
        stored = group.offsets.get(topic, _NOTHING_STORED).offsets
        if member is not None and config.ownership_check and group.protocol_type == CONSUMER:
            owned, former = member.owned, member.former
    offsets_left = min(offsets_left, core.totals.left["offsets"], share.left["offsets"])
    may_be_full = offsets_left < len(items)
    offsets: Offsets = {}
    refused: dict[int, int] = {}
    for item in items:
        partition, metadata, expected = item.partition, item.metadata, item.expected_offset
        if partition >= commit_bound:
            error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value
        elif (
            owned is not None
            and (topic, partition) not in owned
            and (topic, partition) not in former
        ):
            error = ErrorCode.NOT_PARTITION_OWNER.value
        elif metadata and (no_text := _refusal_of_text(metadata, core, share, stored, partition)):
            error = no_text
        elif expected is not None and expected != (stored.get(partition) or _nothing(0)).offset:
            error = ErrorCode.OFFSET_CONFLICT.value
        elif may_be_full and partition not in stored and (offsets_left := offsets_left - 1) < 0:
            error = ErrorCode.QUOTA_EXCEEDED.value
        else:
            offsets[partition] = PartitionOffset(
                partition, item.offset, item.leader_epoch, metadata or "", _OK
            )
            continue
        refused[partition] = error
    if not refused:
        return offsets, tuple(map(_accepted, offsets)), _OK
    results = [PartitionResult(item.partition, refused.get(item.partition, _OK)) for item in items]
    return offsets, tuple(results), next(iter(refused.values()))


def _refusal_of_text(
    metadata: str, core: Core, share: Share, stored: Offsets, partition: int
) -> int:
    max_bytes = core.config.offset_metadata_max_bytes
    # A character takes one to four bytes, so that most texts need no encoding.
    if len(metadata) * 4 > max_bytes and len(metadata.encode()) > max_bytes:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE.value
    if share.is_over and len(metadata) > len((stored.get(partition) or _nothing(0)).metadata):
        return _QUOTA
    return _OK


def fetch(
    core: Core, request: GroupFetch, sees_topic: Callable[[str], bool] | None, max_bytes: int
) -> GroupOffsets | None:
    """Return the committed offsets of the given topics; None: over *max_bytes*.

    Topics hidden by *sees_topic* are refused. An unknown group has no offsets.
    """
    group = core.groups.get(request.group_id)
    stored = {} if group is None else group.offsets
    topics = []
    room_bytes = max_bytes
    for named in request.topics or ():
        if sees_topic is not None and not sees_topic(named.topic):
            found: Any = tuple([_nothing(p, _REFUSED) for p in named.partitions])
        else:
            offsets = stored.get(named.topic, _NOTHING_STORED).offsets
            found = tuple(map(offsets.get, named.partitions))
            if not all(found):
                found = tuple([offsets.get(p) or _nothing(p) for p in named.partitions])
        topics.append(TopicOffsets(named.topic, found))
        room_bytes -= len(found) * _OFFSET_BYTES_MAX
    if room_bytes < 0 and _least_bytes(topics) > max_bytes:
        return None
    return GroupOffsets(request.group_id, _OK, tuple(topics))


def fetch_in_slices(
    core: Core, request: GroupFetch, sees_topic: Callable[[str], bool], max_bytes: int
) -> Generator[None, None, GroupOffsets | None]:
    """Return the commits of a group in a snapshot of now, in steps; None: over *max_bytes*.

    Without topics in the request, return all that *sees_topic* shows. Given topics that it hides
    are refused.
    """
    room_bytes = max_bytes
    topics = PackedArray()
    with Picture(core.groups.get(request.group_id)) as picture:
        wanted: Iterable[tuple[str, Sequence[int] | None]]
        if request.topics is None:
            wanted = ((topic, None) for topic in (yield from in_order(picture.topics())))
        else:
            wanted = ((named.topic, named.partitions) for named in request.topics)
        for topic, named in wanted:
            yield
            is_seen = sees_topic(topic)
            if named is not None:
                partitions = named
            elif is_seen:
                partitions = yield from numbers_in_order(*picture.partitions(topic))
            else:
                continue
            error = _OK if is_seen else _REFUSED
            packed = PackedArray()
            for at in range(0, len(partitions), _SLICE_OFFSETS):
                if at:
                    yield
                some = partitions[at : at + _SLICE_OFFSETS]
                found = picture.get(topic, some) if is_seen else [None] * len(some)
                if named is None:
                    packed.extend(tuple(filter(None, found)))
                else:
                    pairs = zip(some, found, strict=True)
                    packed.extend(tuple([one or _nothing(p, error) for p, one in pairs]))
                if packed.size_bytes > room_bytes:
                    return None
            room_bytes -= packed.size_bytes + len(topic)
            topics.extend((TopicOffsets(topic, packed.whole()),))
    return GroupOffsets(request.group_id, _OK, topics.whole())


def _nothing(partition: int, error: int = _OK) -> PartitionOffset:
    """Return the answer for a partition without a commit, or with an error."""
    return PartitionOffset(partition, NO_OFFSET, NO_LEADER_EPOCH, "", error)


def _least_bytes(topics: Iterable[TopicOffsets]) -> int:
    """Return the minimum bytes of *topics* in an answer.

    Checked before packing: the same long text may be requested ten thousand times.
    """
    return sum([2 + len(found.metadata) for topic in topics for found in topic.partitions])
