"""Hard state as a sequence of records, their form in the log, and committed offsets in memory.

A committed offset is one object everywhere, from the log to the OffsetFetch answer. Its fields are
ints and a string, so the garbage collector doesn't track it.

Every record belongs to one group, which is the scope of its log entry. A key is unique within
(scope, type). Type numbers are Kafka's where Kafka has the record, our own from 1000.
"""

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from msgspec import Struct, msgpack, structs

from coordinator.group.minutes import LagCurves
from protocol.messages import LateMember, PartitionOffset, Rebalance

NO_EXPIRY: Final = -1
PACKED_NO_EXPIRY: Final = NO_EXPIRY.to_bytes(8, signed=True)

# By partition.
Offsets = dict[int, PartitionOffset]

_encode: Final = msgpack.Encoder().encode


class CommittedOffset(NamedTuple):
    """The next offset to read of one partition, with the time of its commit."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int  # NO_EXPIRY: the group's retention decides.


class StoredOffsets:
    """The committed offsets of a group for the partitions of one topic.

    Attributes:
        offsets: By partition; only `put` and `remove` change them.
        curves: Soft: the recent lags; None if no lag was ever known.
    """

    __slots__ = ("_committed_ms", "_expire_ms", "_times", "curves", "offsets")

    def __init__(self) -> None:
        self.offsets: Offsets = {}
        self.curves: LagCurves | None = None
        # Time of the latest commit that included all partitions, and the times of later commits by
        # partition.
        self._committed_ms = 0
        self._times: dict[int, int] = {}
        # Expiry times by partition, where set explicitly. This release writes none.
        self._expire_ms: dict[int, int] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[int]:
        return iter(self.offsets)

    def __contains__(self, partition: int) -> bool:
        return partition in self.offsets

    def get(self, partition: int) -> CommittedOffset | None:
        """Return the commit of *partition*, None if there is none."""
        found = self.offsets.get(partition)
        if found is None:
            return None
        commit_ms = self.committed_ms(partition)
        expiries = self._expire_ms
        expire_ms = NO_EXPIRY if expiries is None else expiries.get(partition, NO_EXPIRY)
        return CommittedOffset(
            found.offset, found.leader_epoch, found.metadata, commit_ms, expire_ms
        )

    def committed_ms(self, partition: int) -> int:
        """Return the commit time of *partition*, which must have an offset."""
        return self._times.get(partition, self._committed_ms)

    def committed_times(self, partitions: Sequence[int]) -> list[int]:
        """Return the commit time of each of *partitions*."""
        times, common_ms = self._times, self._committed_ms
        if not times:
            return [common_ms] * len(partitions)
        return [times.get(partition, common_ms) for partition in partitions]

    def packed_times(self, partitions: Sequence[int]) -> tuple[bytes, bytes]:
        """Return the commit and expiry times of *partitions*, both with 8 bytes per partition."""
        times, common_ms, expiries = self._times, self._committed_ms, self._expire_ms
        count = len(partitions)
        if times:
            committed = struct.pack(f">{count}q", *[times.get(p, common_ms) for p in partitions])
        else:
            committed = common_ms.to_bytes(8, signed=True) * count
        if expiries is None:
            return committed, PACKED_NO_EXPIRY * count
        found = [expiries.get(p, NO_EXPIRY) for p in partitions]
        return committed, struct.pack(f">{count}q", *found)

    def values(self) -> Iterator[tuple[int, CommittedOffset]]:
        """Iterate over the partitions, sorted, with the commit of each."""
        for partition in sorted(self.offsets):
            value = self.get(partition)
            assert value is not None
            yield partition, value

    def put(self, offsets: Offsets, commit_timestamp_ms: int, expire_timestamp_ms: int) -> int:
        """Store *offsets*, committed at the same time; return how many partitions are new."""
        stored = self.offsets
        before = len(stored)
        stored.update(offsets)
        after = len(stored)
        if after == len(offsets):
            self._committed_ms = commit_timestamp_ms
            if self._times:
                self._times.clear()
        elif self._times or commit_timestamp_ms != self._committed_ms:
            times = self._times
            for partition in offsets:  # Usually one.
                times[partition] = commit_timestamp_ms
        if self._expire_ms is not None or expire_timestamp_ms != NO_EXPIRY:
            self._put_expiry(offsets, expire_timestamp_ms)
        return after - before

    def _put_expiry(self, partitions: Iterable[int], expire_ms: int) -> None:
        expiries = {} if self._expire_ms is None else self._expire_ms
        for partition in partitions:
            if expire_ms == NO_EXPIRY:
                expiries.pop(partition, None)
            else:
                expiries[partition] = expire_ms
        self._expire_ms = expiries or None

    def remove(self, partition: int) -> bool:
        """Remove the offset of *partition*; return whether there was one."""
        if self.offsets.pop(partition, None) is None:
            return False
        self._times.pop(partition, None)
        if self._expire_ms is not None:
            self._put_expiry((partition,), NO_EXPIRY)
        return True


OFFSET_COMMITTED: Final = 1
GROUP_METADATA: Final = 2
GROUP_GENERATION: Final = 1000
# Tombstone of a scope: it deletes all older records of the group, of every type.
GROUP_DELETED: Final = 1001
GROUP_RETENTION: Final = 1002
GROUP_REBALANCED: Final = 1003
GROUP_OWNED: Final = 1004

# Versions that each type is written with; older ones can be read.
RECORD_VERSION: Final = 0
OFFSETS_VERSION: Final = 1  # Since version 1 one entry may stand for several partitions.
METADATA_VERSION: Final = 1  # Version 1 added topics_version, and topic_pattern of a member.
# Only groups with authenticated members are written in this version, so that older releases can
# still read the others.
OWNED_METADATA_VERSION: Final = 2

# Retention of a group whose offsets never expire.
KEEP_FOR_EVER: Final = -1
# Number of rebalances kept per group: rebalance n has the key n % this.
REBALANCES_KEPT: Final = 100

_OFFSET_VERSIONS: Final = (0, 1)
_ARRAYS: Final = (list, tuple)
_INTS: Final = {int}


class RecordError(Exception):
    """A log entry that can't be replayed."""


class UnknownRecord(RecordError):
    """An entry whose type or version this release doesn't know: a newer release wrote it."""


class MalformedRecord(RecordError):
    """An entry of a known type whose key or value has a wrong shape."""


class OffsetsCommitted(Struct, frozen=True, gc=False):
    """The group committed these offsets of one topic.

    In the log one entry stands for all of them; before version 1 each had its own entry.
    """

    group_id: str
    topic: str
    offsets: Offsets
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY


class OffsetRemoved(NamedTuple):
    """A committed offset was removed: expired, deleted, or its topic was deleted."""

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
    principal: str | None = None  # Owner of the member; None: any client with its id.


class GroupMetadata(NamedTuple):
    """A generation that was assigned, or an Empty group (without members)."""

    group_id: str
    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int
    members: tuple[MemberMetadata, ...]
    # Version of the topic registry up to which the assignment is known to be valid.
    topics_version: int = 0


class GroupGeneration(NamedTuple):
    """A join phase completed: from here on members may have received this generation."""

    group_id: str
    generation: int
    timestamp_ms: int


class GroupDeleted(NamedTuple):
    """The group was deleted with all its state."""

    group_id: str


class GroupRetention(NamedTuple):
    """Retention of the group's offsets: KEEP_FOR_EVER, or None for the server's setting."""

    group_id: str
    retention_ms: int | None


class GroupOwned(NamedTuple):
    """Owner of the group; without this record the anonymous principal owns it."""

    group_id: str
    owner: str


class GroupRebalanced(NamedTuple):
    """A rebalance of the group ended."""

    group_id: str
    rebalance: Rebalance


_RareRecord = (
    OffsetRemoved
    | GroupMetadata
    | GroupGeneration
    | GroupDeleted
    | GroupRetention
    | GroupRebalanced
    | GroupOwned
)
Record = OffsetsCommitted | _RareRecord

# (type, version, scope, key, value); a value of None is a tombstone.
EntryFields = tuple[int, int, str, object, object]
# Function that turns a record into an entry.
Writer = Callable[[Any], EntryFields]


class Reader(NamedTuple):
    """Function that turns an entry into a record.

    Attributes:
        read: Takes scope, key and value; raises TypeError and ValueError.
        newest: The newest version that it can read.
    """

    read: Callable[[str, Any, Any], Any]
    newest: int = 0


# One element of a log batch: the offset relative to the batch's first entry, then EntryFields.
Item = Sequence[Any]


def pack(records: Sequence[Record]) -> tuple[int, bytes]:
    """Return the number of log offsets of *records*, and the msgpack array of their entries."""
    count = 0
    items: list[Item] = []
    for record in records:
        if type(record) is OffsetsCommitted:  # Most records are of this type.
            times = record.commit_timestamp_ms, record.expire_timestamp_ms
            values = record.offsets.values()
            width = len(values)
            # Loading an entry with columns of one element takes twice the time.
            if width == 1:
                (one,) = values
                key: object = record.topic, one.partition
                value: object = one.offset, one.leader_epoch, one.metadata, *times
            else:
                key = record.topic, tuple(record.offsets)
                value = *_columns(values), *times
            items.append((count, OFFSET_COMMITTED, OFFSETS_VERSION, record.group_id, key, value))
            count += width
        else:
            items.append((count, *WRITERS[type(record)](record)))
            count += 1
    return count, _encode(items)


def _columns(values: Collection[PartitionOffset]) -> tuple[list[int], Any, Any]:
    """Return the columns (offsets, leader epochs, metadata) of a wide entry: docs/log-format.md."""
    epochs = _column([value.leader_epoch for value in values])
    metadata = _column([value.metadata for value in values])
    return [value.offset for value in values], epochs, metadata


def _column(values: list[Any]) -> Any:
    """Return *values*, or a single value if all are equal."""
    first = values[0]
    return first if values.count(first) == len(values) else values


def _rebalance(rebalance: Rebalance) -> tuple[Any, ...]:
    late = tuple(map(structs.astuple, rebalance.late))
    return structs.astuple(structs.replace(rebalance, late=late))


_MEMBERS_AT: Final = GroupMetadata._fields.index("members") - 1


def _write_metadata(record: GroupMetadata) -> EntryFields:
    version = OWNED_METADATA_VERSION
    fields: list[Any] = list(record[1:])
    if all(member.principal is None for member in record.members):
        version = METADATA_VERSION
        fields[_MEMBERS_AT] = [member[:-1] for member in record.members]
    return GROUP_METADATA, version, record.group_id, (), fields


def _write_retention(record: GroupRetention) -> EntryFields:
    value = None if record.retention_ms is None else (record.retention_ms,)
    return GROUP_RETENTION, RECORD_VERSION, record.group_id, (), value


def _write_rebalanced(record: GroupRebalanced) -> EntryFields:
    key, value = (record.rebalance.number % REBALANCES_KEPT,), _rebalance(record.rebalance)
    return GROUP_REBALANCED, RECORD_VERSION, record.group_id, key, value


# `OffsetsCommitted` is missing because `pack` writes it itself.
WRITERS: Final[Mapping[type, Writer]] = {
    OffsetRemoved: lambda r: (
        OFFSET_COMMITTED,
        OFFSETS_VERSION,
        r.group_id,
        (r.topic, r.partition),
        None,
    ),
    GroupMetadata: _write_metadata,
    GroupGeneration: lambda r: (GROUP_GENERATION, RECORD_VERSION, r.group_id, (), tuple(r[1:])),
    GroupDeleted: lambda r: (GROUP_DELETED, RECORD_VERSION, r.group_id, (), None),
    GroupRetention: _write_retention,
    GroupRebalanced: _write_rebalanced,
    GroupOwned: lambda r: (GROUP_OWNED, RECORD_VERSION, r.group_id, (), (r.owner,)),
}


def read_item(item: Item) -> Record:
    """Return the record of a batch element; arrays may be lists or tuples.

    Raises:
        UnknownRecord: The type or version is unknown.
        MalformedRecord: The key or value has a wrong shape for its type.
    """
    # Inlined, with few calls: a load reads a million entries.
    _, type_, version, scope, key, value = item
    if type_ != OFFSET_COMMITTED or version not in _OFFSET_VERSIONS or value is None:
        record: Record = read_by(_READERS, "group", item)
        return record
    try:
        topic, partitions = key
        offset, leader_epoch, metadata, commit_ms, expire_ms = value
        if type(partitions) is int:
            found = {partitions: PartitionOffset(partitions, offset, leader_epoch, metadata, 0)}
        else:
            found = _read_columns(version, partitions, value)
    except (TypeError, ValueError) as exc:
        raise _malformed(type_, "group", scope, exc) from exc
    return OffsetsCommitted(scope, topic, found, commit_ms, expire_ms)


def _read_columns(version: int, partitions: Any, value: Any) -> Offsets:
    """Return the offsets of a wide entry; raises TypeError and ValueError.

    Leader epoch and metadata are each an array with one element per partition, or one value for all
    partitions.
    """
    offsets, epochs, metadata, commit_ms, expire_ms = value
    kinds = {type(commit_ms), type(expire_ms), *map(type, partitions)}
    if not version or not partitions or kinds != _INTS:
        raise ValueError(f"{partitions!r} at {commit_ms!r} until {expire_ms!r}")
    count = len(partitions)
    offsets, epochs, metadata = [
        part if type(part) in _ARRAYS else (part,) * count for part in (offsets, epochs, metadata)
    ]
    return {
        partition: PartitionOffset(partition, offset, epoch, text, 0)
        for partition, offset, epoch, text in zip(
            partitions, offsets, epochs, metadata, strict=True
        )
    }


def from_entry(type_: int, version: int, scope: str, key: Any, value: Any) -> Record:
    """Return the record of one entry; raises the errors of `read_item`."""
    return read_item((0, type_, version, scope, key, value))


def read_by(readers: Mapping[int, Reader], whose: str, item: Item) -> Any:
    """Return the record of an entry, read by its type; raises the errors of `read_item`.

    Error texts name *whose* record it is. They contain parts of the value only if a reader adds
    them.
    """
    _, type_, version, scope, key, value = item
    try:
        reader = readers.get(type_)
        if reader is None:
            raise UnknownRecord(f"record type {type_} is not known to this code")
        if not 0 <= version <= reader.newest:
            raise UnknownRecord(f"record type {type_} has version {version}, newer than this code")
        return reader.read(scope, key, value)
    except (TypeError, ValueError) as exc:
        raise _malformed(type_, whose, scope, exc) from exc


def _malformed(type_: int, whose: str, scope: str, exc: Exception) -> MalformedRecord:
    return MalformedRecord(f"record type {type_} of {whose} {scope!r}: {exc}")


def _read_removed(group_id: str, key: Any, _value: Any) -> Record:
    topic, partition = key
    if type(partition) is not int:
        raise ValueError(f"{partition!r} is no partition")
    return OffsetRemoved(group_id, topic, partition)


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


def _read_owned(group_id: str, _key: Any, value: Any) -> Record:
    (owner,) = value
    if type(owner) is not str:
        raise ValueError("the owner has no name")
    return GroupOwned(group_id, owner)


def _read_rebalance(group_id: str, _key: Any, value: Any) -> Record:
    *fields, late = value
    members = tuple(LateMember(*member) for member in late)
    return GroupRebalanced(group_id, Rebalance(*(*fields, members)))


_READERS: Final[Mapping[int, Reader]] = {
    OFFSET_COMMITTED: Reader(_read_removed, OFFSETS_VERSION),
    GROUP_METADATA: Reader(_read_metadata, OWNED_METADATA_VERSION),
    GROUP_GENERATION: Reader(lambda group_id, _, value: GroupGeneration(group_id, *value)),
    GROUP_DELETED: Reader(lambda group_id, _key, _value: GroupDeleted(group_id)),
    GROUP_RETENTION: Reader(
        lambda group_id, _, value: GroupRetention(group_id, *(value or (None,)))
    ),
    GROUP_REBALANCED: Reader(_read_rebalance),
    GROUP_OWNED: Reader(_read_owned),
}
