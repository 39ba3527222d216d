"""Hard state as a sequence of facts, how each lies in the log, and committed offsets in memory.

A committed offset is the same object everywhere: the one that OffsetFetch answers with. It holds
an int or two and a text, so the garbage collector has nothing to look for in it.

Every record belongs to one group, which is the scope of its log entry. A key is unique within
(scope, type). Types are Kafka's numbers where Kafka has the record, ours from 1000.
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
    """The next offset to read of one partition, and when it was said."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int  # NO_EXPIRY: the group's retention decides.


class StoredOffsets:
    """What a group has committed for the partitions of one topic.

    Attributes:
        offsets: By partition; nobody but `put` and `remove` changes them.
        curves: Soft: how far the group was behind, None if that was never known.
    """

    __slots__ = ("_committed_ms", "_expire_ms", "_times", "curves", "offsets")

    def __init__(self) -> None:
        self.offsets: Offsets = {}
        self.curves: LagCurves | None = None
        # When the latest commit was that named all partitions that have an offset, and by partition
        # the times of those that came later.
        self._committed_ms = 0
        self._times: dict[int, int] = {}
        # Of those that have an expiry of their own: none that this release writes.
        self._expire_ms: dict[int, int] | None = None

    def __len__(self) -> int:
        """Return how many partitions have an offset."""
        return len(self.offsets)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the partitions."""
        return iter(self.offsets)

    def __contains__(self, partition: int) -> bool:
        """Say whether *partition* has an offset."""
        return partition in self.offsets

    def get(self, partition: int) -> CommittedOffset | None:
        """Return what is committed for *partition*, None if nothing is."""
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
        """Return when *partition*, which has an offset, was committed."""
        return self._times.get(partition, self._committed_ms)

    def committed_times(self, partitions: Sequence[int]) -> list[int]:
        """Return the same of each of *partitions*."""
        times, common_ms = self._times, self._committed_ms
        if not times:
            return [common_ms] * len(partitions)
        return [times.get(partition, common_ms) for partition in partitions]

    def packed_times(self, partitions: Sequence[int]) -> tuple[bytes, bytes]:
        """Return when *partitions* were committed, and expire; 8 bytes for each in both."""
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
        """Iterate over the partitions, sorted, with what is committed for each."""
        for partition in sorted(self.offsets):
            value = self.get(partition)
            assert value is not None
            yield partition, value

    def put(self, offsets: Offsets, commit_timestamp_ms: int, expire_timestamp_ms: int) -> int:
        """Store *offsets*, all committed at the same time; return how many of them are new."""
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
            for partition in offsets:  # Mostly one.
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
        """Forget the offset of *partition*; say whether there was one."""
        if self.offsets.pop(partition, None) is None:
            return False
        self._times.pop(partition, None)
        if self._expire_ms is not None:
            self._put_expiry((partition,), NO_EXPIRY)
        return True


OFFSET_COMMITTED: Final = 1
GROUP_METADATA: Final = 2
GROUP_GENERATION: Final = 1000
# The tombstone of a scope: everything of the group that is older is gone, whatever its type.
GROUP_DELETED: Final = 1001
GROUP_RETENTION: Final = 1002
GROUP_REBALANCED: Final = 1003
GROUP_OWNED: Final = 1004

# The version that types are written with; older ones are read.
RECORD_VERSION: Final = 0
OFFSETS_VERSION: Final = 1  # It brought entries that stand for several partitions.
METADATA_VERSION: Final = 1  # It brought topics_version, and topic_pattern of a member.
# Only what has members who said who they are is written so: what older code can read, it still can.
OWNED_METADATA_VERSION: Final = 2

# A group's retention: its offsets never expire.
KEEP_FOR_EVER: Final = -1
# So many rebalances of a group are kept: number n lies under the key n % this.
REBALANCES_KEPT: Final = 100

_OFFSET_VERSIONS: Final = (0, 1)
_ARRAYS: Final = (list, tuple)
_INTS: Final = {int}


class RecordError(Exception):
    """An entry of the log that can't be replayed."""


class UnknownRecord(RecordError):
    """An entry of a type or version that this code doesn't know: written by a newer one."""


class MalformedRecord(RecordError):
    """An entry of a known type whose key or value has another shape."""


class OffsetsCommitted(Struct, frozen=True, gc=False):
    """A group is done with everything before these offsets of one topic.

    In the log one entry stands for all of them; before version 1 each had an entry of its own.
    """

    group_id: str
    topic: str
    offsets: Offsets
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_EXPIRY


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
    principal: str | None = None  # Whose it is; None: of whoever has its id.


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


class GroupOwned(NamedTuple):
    """Whose the group is; without it, it is the anonymous principal's."""

    group_id: str
    owner: str


class GroupRebalanced(NamedTuple):
    """A rebalance of the group came to its end."""

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
# How a record becomes an entry.
Writer = Callable[[Any], EntryFields]


class Reader(NamedTuple):
    """How an entry becomes a record.

    Attributes:
        read: Of scope, key and value; raises TypeError and ValueError.
        newest: The newest version that it understands.
    """

    read: Callable[[str, Any, Any], Any]
    newest: int = 0


# What a batch of the log holds: the same behind the distance of the entry from the batch's first.
Item = Sequence[Any]


def pack(records: Sequence[Record]) -> tuple[int, bytes]:
    """Return how many offsets of the log *records* take, and the msgpack array of their entries."""
    count = 0
    items: list[Item] = []
    for record in records:
        if type(record) is OffsetsCommitted:  # Nearly all of them.
            times = record.commit_timestamp_ms, record.expire_timestamp_ms
            values = record.offsets.values()
            width = len(values)
            # A load reads an entry with columns of one element in twice the time.
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
    """Return offsets, leader epochs and metadata as a wide entry has them: docs/log-format.md."""
    epochs = _column([value.leader_epoch for value in values])
    metadata = _column([value.metadata for value in values])
    return [value.offset for value in values], epochs, metadata


def _column(values: list[Any]) -> Any:
    """Return *values*, or the one that all of them are."""
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


# `OffsetsCommitted` is written by `pack` itself.
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
    """Return the record of an entry as it lies in a batch; arrays may be lists or tuples.

    Raises:
        UnknownRecord: A type or version is none of ours.
        MalformedRecord: A shape is not that of the type.
    """
    # Plain names and few calls: a load reads a million.
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

    Leader epoch and metadata are each an array with one element per partition, or one value for
    all.
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
    """Return the record of one entry; raises as `read_item` does."""
    return read_item((0, type_, version, scope, key, value))


def read_by(readers: Mapping[int, Reader], whose: str, item: Item) -> Any:
    """Return the record of an entry, by type; raises as `read_item` does, and names *whose* it is.

    The texts show nothing of the value but what a reader says.
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
