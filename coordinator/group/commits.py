"""OffsetCommit and OffsetFetch."""

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final

import msgpack

from coordinator.group.core import Core, Decision, Now, Outcome, Reply
from coordinator.group.group import Group
from coordinator.group.maintenance import TOPICS_TOLD
from coordinator.group.member import CONSUMER, Member
from coordinator.group.offset_store import NO_EXPIRY, Rows, pack_row, pack_rows
from coordinator.group.records import GroupRetention, OffsetRemoved, OffsetsCommitted
from coordinator.group.refusals import refusal
from coordinator.group.states import GroupState
from protocol.codec import array_header
from protocol.errors import ErrorCode
from protocol.fields import REQUEST_PARTITIONS_MAX
from protocol.messages import (
    AlterGroupRetentionRequest,
    AlterGroupRetentionResponse,
    GroupFetch,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    PackedResponse,
    PartitionCommit,
    PartitionResult,
    TopicResult,
    names_twice,
)
from protocol.partition import NO_LEADER_EPOCH, NO_OFFSET

# ------------------------------------------------------------------------------------------
# OffsetCommit and OffsetFetch.

# Looking up a member of an enum costs as much as the rest of a check.
_EMPTY = GroupState.EMPTY
_STABLE = GroupState.STABLE
_UNKNOWN_MEMBER = ErrorCode.UNKNOWN_MEMBER_ID.value
_OK = ErrorCode.NONE.value
_TOO_LARGE = ErrorCode.OFFSET_METADATA_TOO_LARGE.value
_NOT_OWNER = ErrorCode.NOT_PARTITION_OWNER.value
_CONFLICT = ErrorCode.OFFSET_CONFLICT.value
_QUOTA = ErrorCode.QUOTA_EXCEEDED.value
_INVALID = ErrorCode.INVALID_REQUEST.value
_FULL = ErrorCode.STORAGE_FULL.value
_UNKNOWN_TOPIC = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.value
_NO_TOPICS = OffsetCommitResponse(_OK, ())

# Rows have long metadata if ten thousand, the most in a request, take more than that: a small
# request may name 40 MB of them.
_AT_ONCE_BYTES_MAX: Final = 1 << 20

_pack: Final = msgpack.Packer(autoreset=True).pack
_PACKED_OK: Final = _pack(_OK)
_PACKED_NIL: Final = _pack(None)
# Makes a NamedTuple in half the time.
_new: Final = tuple.__new__


def commit(core: Core, request: OffsetCommitRequest, token: object, now: Now) -> Outcome:
    """Store offsets, each partition for itself; an error of the whole group stands in front."""
    group_id, topics = request.group_id, request.topics
    outcome = core.latest = Outcome(group_id)
    if not topics:
        outcome.replies.append(Reply(token, _NO_TOPICS, True, None))
        return outcome
    group = core.groups.get(group_id)
    member, error = _committer(core, group, request)
    if error:
        response = OffsetCommitResponse(error, (), _in_words(group, request, error, now))
        outcome.replies.append(Reply(token, response, True, None))
        return outcome
    wall_ms = core.wall_ms(now)
    answers = array_header(len(topics))
    for named in topics:
        topic, partitions = named.topic, named.partitions
        if len(partitions) == 1:  # Nearly every commit of a small group.
            rows, results = _examine_one(core, group, member, topic, partitions[0])
            answers += b"\x92%b\x91%b" % (_pack(topic), results)
        else:
            rows, results = _examine(core, group, member, topic, partitions)
            answers += b"\x92" + _pack(topic) + array_header(len(partitions)) + results
        if rows:
            record = _new(OffsetsCommitted, (group_id, topic, rows, wall_ms, NO_EXPIRY))
            outcome.records.append(record)
            core.replay(record)
            if group is None:
                group = core.groups[group_id]
    if member is not None:
        now_ms = now.mono_ms
        core.heard(member, now_ms)
        member.in_gate += 1
        member.gated_at_ms = now_ms
    packed = PackedResponse((_PACKED_OK, answers, _PACKED_NIL))
    outcome.replies.append(_new(Reply, (token, packed, True, member)))
    return outcome


def _committer(
    core: Core, group: Group | None, request: OffsetCommitRequest
) -> tuple[Member | None, int]:
    """Return the member that commits (None: nobody in particular), and why it may not."""
    topics, generation_id = request.topics, request.generation_id
    if (len(topics) > 1 or len(topics[0].partitions) > 1) and names_twice(topics):
        return None, _INVALID
    allowed = _FULL if core.storage_full else _OK
    if group is None:
        return None, allowed if generation_id < 0 else ErrorCode.GROUP_ID_NOT_FOUND.value
    if generation_id < 0 and group.state is _EMPTY:
        return None, allowed
    if request.group_instance_id is None:
        member = group.members.get(request.member_id)
        error = _UNKNOWN_MEMBER
    else:
        member, error = group.find(request.member_id, request.group_instance_id)
    if member is None:
        return None, error
    if generation_id != group.generation:
        return None, ErrorCode.ILLEGAL_GENERATION.value
    if group.state is not _STABLE and (
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
        return "the disk is full or too slow, new offsets are refused"
    if error == ErrorCode.GROUP_ID_NOT_FOUND:
        return "there is no such group"
    return refusal(
        group,
        error,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        now.mono_ms,
    )


def _examine_one(
    core: Core, group: Group | None, member: Member | None, topic: str, item: PartitionCommit
) -> tuple[Rows, bytes]:
    """Do what `_examine` does, where there is one partition only."""
    partition = item.partition
    error = _check(core, group, member, topic, item, 0)
    if error:
        return {}, _pack((partition, error))
    well = _WELL[partition] if partition < _NEAR else _pack((partition, _OK))
    return {
        partition: pack_row(partition, item.offset, item.leader_epoch, item.metadata or "")
    }, well


def _examine(
    core: Core,
    group: Group | None,
    member: Member | None,
    topic: str,
    partitions: Sequence[PartitionCommit],
) -> tuple[Rows, bytes]:
    """Return the rows of the partitions that aren't refused, and the packed results of all."""
    if partitions:
        rows = _rows_of_all(core, group, member, topic, partitions)
        if rows is not None:
            return rows, _all_well(rows)
    rows = {}
    stored = () if group is None else group.offsets.get(topic, ())
    new = 0
    results = []
    for item in partitions:
        partition = item.partition
        error = _check(core, group, member, topic, item, new)
        if not error:
            row = pack_row(partition, item.offset, item.leader_epoch, item.metadata or "")
            rows[partition] = row
            new += partition not in stored
        results.append(_pack((partition, error)))
    return rows, b"".join(results)


def _rows_of_all(
    core: Core,
    group: Group | None,
    member: Member | None,
    topic: str,
    partitions: Sequence[PartitionCommit],
) -> Rows | None:
    """Return the rows of all partitions of a topic; None if one of them may be refused.

    By column and not one by one, which is several times as fast for many.
    """
    config = core.config
    numbers = [item.partition for item in partitions]
    metadata = [item.metadata or "" for item in partitions]
    expected = [item.expected_offset for item in partitions]
    if expected.count(None) != len(expected):
        stored = None if group is None else group.offsets.get(topic)
        if not _are_stored({} if stored is None else stored.rows, numbers, expected):
            return None
    metadata_bytes = max(map(len, metadata)) * 4  # A character takes at most four.
    offset_count = 0 if group is None else group.offset_count
    registered = core.registry.topics
    known = registered.get(topic) if registered else None
    if (
        (known is not None and max(numbers) >= known.open_partitions)
        or metadata_bytes > config.offset_metadata_max_bytes
        or offset_count + len(numbers) > config.group_max_offsets
    ):
        return None
    if (
        member is not None
        and member.owned is not None
        and _is_owner_checked(core, group)
        and not member.owned.issuperset(zip(repeat(topic), numbers))
    ):
        return None
    offsets = [item.offset for item in partitions]
    return pack_rows(numbers, offsets, [item.leader_epoch for item in partitions], metadata)


def _are_stored(rows: Rows, partitions: Sequence[int], expected: Sequence[int | None]) -> bool:
    """Say whether *rows* have the expected offsets; NO_OFFSET is none, and None any or none.

    All are unpacked at once: 1,000 take 0.4 ms, one by one 2. If that would take much memory, this
    says no, as if one of them were another.
    """
    packed = [rows.get(partition) or _none(partition) for partition in partitions]
    if sum(map(len, packed)) > _AT_ONCE_BYTES_MAX:
        return False
    found = msgpack.unpackb(array_header(len(packed)) + b"".join(packed), use_list=False)
    return all(
        wanted is None or wanted == row[1] for wanted, row in zip(expected, found, strict=True)
    )


def _check(
    core: Core,
    group: Group | None,
    member: Member | None,
    topic: str,
    item: PartitionCommit,
    new: int,
) -> int:
    """Return why this partition's offset is refused, 0 if it may be stored.

    *new* is how many offsets more than before the group has by the same commit.
    """
    partition, metadata, expected = item.partition, item.metadata, item.expected_offset
    registered = core.registry.topics
    if registered:
        known = registered.get(topic)
        if known is not None and partition >= known.open_partitions:
            return _UNKNOWN_TOPIC
    if (
        member is not None
        and member.owned is not None
        and (topic, partition) not in member.owned
        and (topic, partition) not in member.former
        and _is_owner_checked(core, group)
    ):
        return _NOT_OWNER
    config = core.config
    if metadata and _is_too_long(metadata, config.offset_metadata_max_bytes):
        return _TOO_LARGE
    stored = None if group is None else group.offsets.get(topic)
    if expected is not None:
        value = None if stored is None else stored.get(partition)
        if expected != (NO_OFFSET if value is None else value.offset):
            return _CONFLICT
    if (stored is None or partition not in stored.rows) and group is not None:
        return _OK if group.offset_count + new < config.group_max_offsets else _QUOTA
    return _OK if new < config.group_max_offsets else _QUOTA


def _is_too_long(metadata: str, max_bytes: int) -> bool:
    # A character takes one to four bytes, so that most texts need no encoding.
    return len(metadata) * 4 > max_bytes and len(metadata.encode()) > max_bytes


def _is_owner_checked(core: Core, group: Group | None) -> bool:
    """Say whether members may only commit what they own: who has what can be read."""
    return core.config.ownership_check and (group is None or group.protocol_type == CONSUMER)


def _all_well(partitions: Iterable[int]) -> bytes:
    """Return the packed results of partitions that were all stored."""
    if max(partitions) < 1 << 7:  # One byte each: all are set at once.
        numbers = bytes(partitions)
        results = bytearray(_WELL[0] * len(numbers))
        results[1::3] = numbers
        return bytes(results)
    return b"".join([_WELL[p] if p < _NEAR else _pack((p, _OK)) for p in partitions])


def _none(partition: int) -> bytes:
    """Return the row of a partition for which nothing is committed."""
    if partition < _NEAR:
        return _NONE[partition]
    return pack_row(partition, NO_OFFSET, NO_LEADER_EPOCH, "")


# What most partitions are answered with, all well, or nothing there: a look-up takes a third of
# packing it.
_NEAR: Final = 1_024
_WELL: Final = [_pack((partition, _OK)) for partition in range(_NEAR)]
_NONE: Final = [pack_row(p, NO_OFFSET, NO_LEADER_EPOCH, "") for p in range(_NEAR)]


def fetch(core: Core, request: GroupFetch, max_bytes: int) -> bytes | None:
    """Return the last committed offsets as the packed `GroupOffsets`; None if over *max_bytes*.

    An unknown group simply has none.
    """
    group = core.groups.get(request.group_id)
    stored = {} if group is None else group.offsets
    named: list[tuple[str, Sequence[int]]] = (
        [(topic, sorted(stored[topic])) for topic in sorted(stored)]
        if request.topics is None
        else [(wanted.topic, wanted.partitions) for wanted in request.topics]
    )
    pieces = [b"\x93", _pack(request.group_id), _PACKED_OK, array_header(len(named))]
    for topic, partitions in named:
        pieces += b"\x92", _pack(topic), array_header(len(partitions))
        of_topic = stored.get(topic)
        if of_topic is None:
            pieces += map(_none, partitions)
            continue
        rows = list(map(of_topic.rows.get, partitions))
        if None in rows:
            rows = [row or _none(p) for p, row in zip(partitions, rows, strict=True)]
        pieces += rows
    # Before they are joined: the same large row may have been asked for ten thousand times.
    if sum(map(len, pieces)) > max_bytes:
        return None
    return b"".join(pieces)


# ------------------------------------------------------------------------------------------
# What operators do to the offsets of a group: forget some, and say how long they are kept.

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
    for named in request.topics:
        topic, partitions = named.topic, named.partitions
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
