"""Hard state as a sequence of facts, and how each lies in the log.

Every record belongs to one group, which is the scope of its log entry. A key is unique within
(scope, type). Types are Kafka's numbers where Kafka has the record, ours from 1000.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from protocol.messages import LateMember, Rebalance

OFFSET_COMMITTED: Final = 1
GROUP_METADATA: Final = 2
GROUP_GENERATION: Final = 1000
# The tombstone of a scope: everything of the group that is older is gone, whatever its type.
GROUP_DELETED: Final = 1001
GROUP_RETENTION: Final = 1002
GROUP_REBALANCED: Final = 1003

# The version that each type is written with; older ones are read.
VERSIONS: Final[Mapping[int, int]] = {
    OFFSET_COMMITTED: 0,
    GROUP_METADATA: 1,  # 1 brought topics_version, and topic_pattern of a member.
    GROUP_GENERATION: 0,
    GROUP_DELETED: 0,
    GROUP_RETENTION: 0,
    GROUP_REBALANCED: 0,
}

NO_EXPIRY: Final = -1
# A group's retention: its offsets never expire.
KEEP_FOR_EVER: Final = -1
# So many rebalances of a group are kept: number n lies under the key n % this.
REBALANCES_KEPT: Final = 100


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


class OffsetRemoved(NamedTuple):
    """What a group had committed for one partition is gone: expired, deleted, or its topic was."""

    group_id: str
    topic: str
    partition: int


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
    topic_pattern: str | None = None


class GroupMetadata(NamedTuple):
    """A generation that was assigned, or an empty group. Without members it is Empty."""

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]
    # The version of the topic registry up to which the assignment is known to be good.
    topics_version: int = 0


class GroupGeneration(NamedTuple):
    """A join phase completed: from here on this generation may have been told to anyone."""

    group_id: str
    generation: int
    timestamp_ms: int


class GroupDeleted(NamedTuple):
    """The group and everything of it is gone."""

    group_id: str


class GroupRetention(NamedTuple):
    """How long the group's offsets are kept: KEEP_FOR_EVER, or None for the server's setting."""

    group_id: str
    retention_ms: int | None


class GroupRebalanced(NamedTuple):
    """A rebalance of the group came to its end."""

    group_id: str
    rebalance: Rebalance


Record = (
    OffsetCommitted
    | OffsetRemoved
    | GroupMetadata
    | GroupGeneration
    | GroupDeleted
    | GroupRetention
    | GroupRebalanced
)

# (type, version, scope, key, value); a value of None is a tombstone.
EntryFields = tuple[int, int, str, object, object]


def to_entry(record: Record) -> EntryFields:
    """Return the log entry of *record* as (type, version, scope, key, value)."""
    if type(record) is OffsetCommitted:  # Nearly all of them.
        key = (record.topic, record.partition)
        return OFFSET_COMMITTED, 0, record.group_id, key, record.value
    type_, entry_key, value = _WRITERS[type(record)](record)
    return type_, VERSIONS[type_], record.group_id, entry_key, value


_WRITERS: Final[Mapping[type, Callable[[Any], tuple[int, object, object]]]] = {
    OffsetRemoved: lambda r: (OFFSET_COMMITTED, (r.topic, r.partition), None),
    GroupMetadata: lambda r: (GROUP_METADATA, (), tuple(r[1:])),
    GroupGeneration: lambda r: (GROUP_GENERATION, (), tuple(r[1:])),
    GroupDeleted: lambda _: (GROUP_DELETED, (), None),
    GroupRetention: lambda r: (
        GROUP_RETENTION,
        (),
        None if r.retention_ms is None else (r.retention_ms,),
    ),
    GroupRebalanced: lambda r: (
        GROUP_REBALANCED,
        (r.rebalance.number % REBALANCES_KEPT,),
        tuple(r.rebalance),
    ),
}


def from_entry(type_: int, version: int, scope: str, key: Any, value: Any) -> Record:
    """Return the record of a log entry; arrays may be lists or tuples.

    Raises:
        UnknownRecord: The type or version is none of ours.
        MalformedRecord: The shape is not that of the type.
    """
    newest = VERSIONS.get(type_)
    if newest is None:
        raise UnknownRecord(f"record type {type_} is not known to this code")
    if not 0 <= version <= newest:
        raise UnknownRecord(f"record type {type_} has version {version}, newer than this code")
    try:
        return _READERS[type_](scope, key, value)
    except (TypeError, ValueError) as exc:
        raise MalformedRecord(f"record type {type_} of group {scope!r}: {exc}") from exc


def _read_offset(group_id: str, key: Any, value: Any) -> Record:
    topic, partition = key
    if value is None:
        return OffsetRemoved(group_id, topic, partition)
    return OffsetCommitted(group_id, topic, partition, CommittedOffset(*value))


def _read_metadata(group_id: str, _key: Any, value: Any) -> Record:
    protocol_type, generation, protocol, leader, timestamp_ms, members, *newer = value
    return GroupMetadata(
        group_id,
        protocol_type,
        generation,
        protocol,
        leader,
        timestamp_ms,
        tuple(MemberMetadata(*member) for member in members),
        *newer,
    )


def _read_rebalance(group_id: str, _key: Any, value: Any) -> Record:
    *fields, late = value
    members = tuple(LateMember(*member) for member in late)
    return GroupRebalanced(group_id, Rebalance._make((*fields, members)))


_READERS: Final[Mapping[int, Callable[[str, Any, Any], Record]]] = {
    OFFSET_COMMITTED: _read_offset,
    GROUP_METADATA: _read_metadata,
    GROUP_GENERATION: lambda group_id, _, value: GroupGeneration(group_id, *value),
    GROUP_DELETED: lambda group_id, _key, _value: GroupDeleted(group_id),
    GROUP_RETENTION: lambda group_id, _, value: GroupRetention(group_id, *(value or (None,))),
    GROUP_REBALANCED: _read_rebalance,
}
