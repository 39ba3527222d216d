"""What operators do to the offsets of a group: forget some, and say how long they are kept."""

from typing import Final

from coordinator.group.core import Core, Decision
from coordinator.group.effects import Now, Outcome
from coordinator.group.expiry import TOPICS_TOLD
from coordinator.group.group import Group
from coordinator.group.member import CONSUMER
from coordinator.group.records import GroupRetention, OffsetRemoved
from coordinator.group.states import GroupState
from protocol.errors import ErrorCode
from protocol.failures import REQUEST_PARTITIONS_MAX
from protocol.messages import (
    AlterGroupRetentionRequest,
    AlterGroupRetentionResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    PartitionResult,
    TopicResult,
)

_OK = ErrorCode.NONE.value
_UNKNOWN_GROUP = ErrorCode.GROUP_ID_NOT_FOUND.value

# With the longest names, the tombstones of so many partitions are still one batch of the log.
DELETE_MAX: Final = REQUEST_PARTITIONS_MAX


def delete_offsets(core: Core, request: OffsetDeleteRequest, token: object, now: Now) -> Outcome:
    """Forget committed offsets of topics that the group doesn't subscribe to (KIP-496).

    The group stays, also without any offset; expiry removes it. More than `DELETE_MAX` partitions
    are 42 as a whole.
    """
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    if group is None:
        d.answer(token, OffsetDeleteResponse(_UNKNOWN_GROUP, ()))
        return d.outcome
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
        # What its members use can't be read.
        d.answer(token, OffsetDeleteResponse(ErrorCode.NON_EMPTY_GROUP.value, ()))
        return d.outcome
    if sum(len(topic.partitions) for topic in request.topics) > DELETE_MAX:
        d.answer(token, OffsetDeleteResponse(ErrorCode.INVALID_REQUEST.value, ()))
        return d.outcome
    results = []
    for topic, partitions in request.topics:
        error = _OK
        if group.subscribed is None or topic in group.subscribed:
            error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC.value
        else:
            _remove(d, group, topic, partitions)
        results.append(TopicResult(topic, tuple(PartitionResult(p, error) for p in partitions)))
    if d.outcome.records:
        topics = list(dict.fromkeys(r.topic for r in results))[:TOPICS_TOLD]
        d.event("offsets.removed", count=len(d.outcome.records), topics=topics, reason="on request")
    d.answer(token, OffsetDeleteResponse(_OK, tuple(results)))
    return d.outcome


def _remove(d: Decision, group: Group, topic: str, partitions: tuple[int, ...]) -> None:
    for partition in partitions:
        if partition in group.offsets.get(topic, ()):
            d.emit(OffsetRemoved(group.group_id, topic, partition))


def alter_retention(
    core: Core, request: AlterGroupRetentionRequest, token: object, now: Now
) -> Outcome:
    """Keep the group's offsets for another time than the server's setting."""
    d = Decision(core, request.group_id, now)
    group = core.groups.get(request.group_id)
    if group is None:
        d.answer(token, AlterGroupRetentionResponse(_UNKNOWN_GROUP))
        return d.outcome
    before = group.retention_ms
    if before != request.retention_ms:
        d.emit(GroupRetention(request.group_id, request.retention_ms))
        d.event("group.retention_changed", before=before, after=request.retention_ms)
    d.answer(token, AlterGroupRetentionResponse(_OK))
    return d.outcome
