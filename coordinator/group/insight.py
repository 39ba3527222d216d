"""How far behind is a group, and what has changed of its offsets: only looks, changes nothing."""

from typing import Final

from coordinator.group.core import Core
from coordinator.group.group import Group
from coordinator.group.records import (
    GroupDeleted,
    OffsetRemoved,
    OffsetsCommitted,
    Record,
)
from coordinator.group.stored import unpack_row
from protocol.errors import ErrorCode
from protocol.messages import (
    DescribeLagResponse,
    OffsetChange,
    PartitionLag,
    TopicLag,
)
from protocol.types import NO_LEADER_EPOCH, NO_OFFSET

_UNKNOWN: Final = -1


def describe_lag(core: Core, group_id: str) -> DescribeLagResponse:
    """Return the lag of every partition that the group has committed or owns.

    What is not known is -1, and never 0: a missing commit, a missing end offset, and so their
    difference.
    """
    group = core.groups.get(group_id)
    if group is None:
        error = ErrorCode.GROUP_ID_NOT_FOUND.value
        return DescribeLagResponse(error, f"Group {group_id} not found.", group_id, ())
    owners = {
        topic_partition: member.member_id
        for member in group.members.values()
        for topic_partition in member.owned or ()
    }
    named: dict[str, set[int]] = {topic: set(found) for topic, found in group.offsets.items()}
    for topic, partition in owners:
        named.setdefault(topic, set()).add(partition)
    topics = [
        TopicLag(
            topic,
            tuple(
                _lag(core, group, topic, partition, owners.get((topic, partition), ""))
                for partition in sorted(named[topic])
            ),
        )
        for topic in sorted(named)
    ]
    return DescribeLagResponse(ErrorCode.NONE.value, None, group_id, tuple(topics))


def _lag(core: Core, group: Group, topic: str, partition: int, member_id: str) -> PartitionLag:
    stored = group.offset_of(topic, partition)
    end = core.registry.end_offset(topic, partition)
    committed_offset = NO_OFFSET if stored is None else stored.offset
    end_offset = NO_OFFSET if end is None else end.end_offset
    is_known = stored is not None and end is not None
    return PartitionLag(
        partition,
        committed_offset,
        end_offset,
        max(end_offset - committed_offset, 0) if is_known else _UNKNOWN,
        _UNKNOWN if stored is None else stored.commit_timestamp_ms,
        _UNKNOWN if end is None else end.reported_ms,
        member_id,
    )


def offset_change(position: int, timestamp_ms: int, record: Record) -> OffsetChange | None:
    """Return what the record of one entry changes of committed offsets, None if nothing."""
    if type(record) is OffsetsCommitted:
        group_id, topic, rows, *_ = record
        ((partition, row),) = rows.items()
        return OffsetChange(
            position, "committed", group_id, topic, partition, *unpack_row(row), timestamp_ms
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
