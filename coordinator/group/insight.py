"""How far behind is a group, and what has everybody committed: only looks, changes nothing."""

import bisect
import struct
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

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
    ScannedOffset,
    ScanOffsetsRequest,
    ScanOffsetsResponse,
    TopicLag,
)
from protocol.types import NO_LEADER_EPOCH, NO_OFFSET

# A page of a scan holds up everybody else: so many take 8 ms.
SCAN_PAGE_MAX: Final = 2_000
# What a page may take, counted so that it is never less than in the answer; half of the largest
# answer where that is smaller.
SCAN_PAGE_BYTES: Final = 8 * 1024 * 1024
_NUMBERS_BYTES: Final = 64

_UNKNOWN: Final = -1
_LENGTHS: Final = struct.Struct(">HHI")  # Bytes of group and topic, and the partition.


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


class Cursor(NamedTuple):
    """Where a page of a scan ended: the last offset that it showed."""

    group_id: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        """Return it as clients hand it back."""
        group_id, topic = self.group_id.encode(), self.topic.encode()
        return _LENGTHS.pack(len(group_id), len(topic), self.partition) + group_id + topic


def decode_cursor(data: bytes) -> Cursor:
    """Return the cursor in *data*.

    Raises:
        ValueError: It is none of ours.
    """
    try:
        group_bytes, topic_bytes, partition = _LENGTHS.unpack_from(data)
    except struct.error as exc:
        raise ValueError(str(exc)) from exc
    start = _LENGTHS.size
    middle = start + group_bytes
    if len(data) != middle + topic_bytes:
        raise ValueError(f"a cursor of {len(data)} bytes")
    return Cursor(data[start:middle].decode(), data[middle:].decode(), partition)


class Scans:
    """Reads all offsets of a shard, page by page, in the order of group, topic, partition.

    The order of the groups is made at the first page and used for the next ones. Groups that
    come later are missing in it, but not in the changes from the first page's position on.
    """

    __slots__ = ("_core", "_group_ids")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._group_ids: list[str] | None = None

    def stop(self) -> None:
        """Forget the scans under way."""
        self._group_ids = None

    def page(self, request: ScanOffsetsRequest, position: int) -> ScanOffsetsResponse:
        """Return the next page; *position* is the end of the log that memory is at.

        Error 42: no offset is asked for, or the cursor is none of ours.
        """
        try:
            after = decode_cursor(request.cursor) if request.cursor else None
        except ValueError:
            after = None
            is_valid = False
        else:
            is_valid = request.max_offsets > 0
        if not is_valid:
            return ScanOffsetsResponse(ErrorCode.INVALID_REQUEST.value, -1, (), b"")
        if after is None or self._group_ids is None:
            self._group_ids = sorted(self._core.groups)
        found = self._offsets(self._group_ids, after)
        room = min(SCAN_PAGE_BYTES, self._core.config.max_response_bytes // 2)
        offsets = _page(found, min(request.max_offsets, SCAN_PAGE_MAX), room)
        cursor = b""
        if next(found, None) is None:
            self._group_ids = None
        else:
            last = offsets[-1]
            cursor = Cursor(last.group_id, last.topic, last.partition).encode()
        return ScanOffsetsResponse(ErrorCode.NONE.value, position, tuple(offsets), cursor)

    def _offsets(self, group_ids: list[str], after: Cursor | None) -> Iterator[ScannedOffset]:
        start = 0 if after is None else bisect.bisect_left(group_ids, after.group_id)
        for group_id in islice(group_ids, start, None):
            group = self._core.groups.get(group_id)
            if group is None:
                continue
            for topic in sorted(group.offsets):
                if after is not None and (group_id, topic) < after[:2]:
                    continue
                stored = group.offsets[topic]
                for partition in sorted(stored):
                    if after is None or (group_id, topic, partition) > after:
                        value = stored.get(partition)
                        assert value is not None
                        yield ScannedOffset(group_id, topic, partition, *value)


def _page(found: Iterator[ScannedOffset], max_offsets: int, room: int) -> list[ScannedOffset]:
    offsets: list[ScannedOffset] = []
    while room > 0 and len(offsets) < max_offsets and (item := next(found, None)) is not None:
        offsets.append(item)
        texts = len(item.group_id) + len(item.topic) + len(item.metadata)
        room -= 4 * texts + _NUMBERS_BYTES  # A character takes at most four bytes.
    return offsets


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
