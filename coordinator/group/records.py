"""Hard state as a sequence of facts, and how each lies in the log.

Every record belongs to one group, which is the scope of its log entry. A key is unique within
(scope, type). Types are Kafka's numbers where Kafka has the record, ours from 1000.
"""

from typing import Any, Final, NamedTuple

OFFSET_COMMITTED: Final = 1
GROUP_METADATA: Final = 2
GROUP_GENERATION: Final = 1000
# The tombstone of a scope: everything of the group that is older is gone, whatever its type.
GROUP_DELETED: Final = 1001

RECORD_VERSION: Final = 0

NO_EXPIRY: Final = -1


class RecordError(Exception):
    """An entry of the log that can't be replayed."""


class UnknownRecord(RecordError):
    """An entry of a type or version that this code doesn't know: written by a newer one."""


class MalformedRecord(RecordError):
    """An entry of a known type whose key or value has another shape."""


class CommittedOffset(NamedTuple):
    """The next offset to read of one partition, and when it was said."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int  # NO_EXPIRY: the group's retention decides.


class OffsetCommitted(NamedTuple):
    """A group is done with everything before an offset."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset


class MemberMetadata(NamedTuple):
    """A member of a stable generation."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class GroupMetadata(NamedTuple):
    """A generation that was assigned, or an empty group. Without members it is Empty."""

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]


class GroupGeneration(NamedTuple):
    """A join phase completed: from here on this generation may have been told to anyone."""

    group_id: str
    generation: int
    timestamp_ms: int


class GroupDeleted(NamedTuple):
    """The group and everything of it is gone."""

    group_id: str


Record = OffsetCommitted | GroupMetadata | GroupGeneration | GroupDeleted

# (type, version, scope, key, value); a value of None is a tombstone.
EntryFields = tuple[int, int, str, object, object]


def to_entry(record: Record) -> EntryFields:
    """Return the log entry of *record* as (type, version, scope, key, value)."""
    if type(record) is OffsetCommitted:
        key = (record.topic, record.partition)
        return OFFSET_COMMITTED, RECORD_VERSION, record.group_id, key, record.value
    if type(record) is GroupMetadata:
        return GROUP_METADATA, RECORD_VERSION, record.group_id, (), tuple(record[1:])
    if type(record) is GroupGeneration:
        return GROUP_GENERATION, RECORD_VERSION, record.group_id, (), tuple(record[1:])
    return GROUP_DELETED, RECORD_VERSION, record.group_id, (), None


def from_entry(type_: int, version: int, scope: str, key: Any, value: Any) -> Record:
    """Return the record of a log entry; arrays may be lists or tuples.

    Raises:
        UnknownRecord: The type or version is none of ours.
        MalformedRecord: The shape is not that of the type.
    """
    if version != RECORD_VERSION:
        raise UnknownRecord(f"record type {type_} has version {version}, newer than this code")
    try:
        if type_ == OFFSET_COMMITTED:
            topic, partition = key
            return OffsetCommitted(scope, topic, partition, CommittedOffset(*value))
        if type_ == GROUP_METADATA:
            protocol_type, generation, protocol, leader, timestamp_ms, members = value
            return GroupMetadata(
                scope,
                protocol_type,
                generation,
                protocol,
                leader,
                timestamp_ms,
                tuple(MemberMetadata(*member) for member in members),
            )
        if type_ == GROUP_GENERATION:
            return GroupGeneration(scope, *value)
    except (TypeError, ValueError) as exc:
        raise MalformedRecord(f"record type {type_} of group {scope!r}: {exc}") from exc
    if type_ == GROUP_DELETED:
        return GroupDeleted(scope)
    raise UnknownRecord(f"record type {type_} is not known to this code")
