"""Hard state as a sequence of facts, how each lies in the log, and committed offsets in memory.

A committed offset is one packed row everywhere: in memory, in the log, and in the answer to
OffsetFetch. So a fetch joins rows, and packs nothing. A dict of ints and bytes is nothing to the
garbage collector, so a million offsets don't slow it down; as tuples of their values they took
twice the memory. Whoever wants the values unpacks one row.

Every record belongs to one group, which is the scope of its log entry. A key is unique within
(scope, type). Types are Kafka's numbers where Kafka has the record, ours from 1000.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack
from msgspec import structs

from protocol.codec import array_header
from protocol.messages import LateMember, Rebalance

NO_EXPIRY: Final = -1
PACKED_NO_EXPIRY: Final = NO_EXPIRY.to_bytes(8, signed=True)

# Partition -> msgpack of [partition, offset, leader_epoch, metadata, 0].
Rows = dict[int, bytes]

_pack: Final = msgpack.Packer(autoreset=True).pack


class CommittedOffset(NamedTuple):
    """The next offset to read of one partition, and when it was said."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int  # NO_EXPIRY: the group's retention decides.


def pack_row(partition: int, offset: int, leader_epoch: int, metadata: str) -> bytes:
    """Return one committed offset as OffsetFetch answers it."""
    row: bytes = _pack((partition, offset, leader_epoch, metadata, 0))
    return row


def unpack_row(row: bytes) -> tuple[int, int, str]:
    """Return offset, leader epoch and metadata of *row*."""
    _, offset, leader_epoch, metadata, _ = msgpack.unpackb(row, use_list=False)
    return offset, leader_epoch, metadata


def value_start(partition: int) -> int:
    """Return where offset, leader epoch and metadata begin in the row of *partition*."""
    if partition < 1 << 7:
        return 2
    return 3 if partition < 1 << 8 else 4 if partition < 1 << 16 else 6


class StoredOffsets:
    """What a group has committed for the partitions of one topic."""

    __slots__ = ("_committed_ms", "_expire_ms", "rows")

    def __init__(self) -> None:
        self.rows: Rows = {}
        # One time for all, as long as every commit named all partitions that have an offset.
        self._committed_ms: int | dict[int, int] = 0
        # Of those that have an expiry of their own: none that this release writes.
        self._expire_ms: dict[int, int] | None = None

    def __len__(self) -> int:
        """Return how many partitions have an offset."""
        return len(self.rows)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the partitions."""
        return iter(self.rows)

    def __contains__(self, partition: int) -> bool:
        """Say whether *partition* has an offset."""
        return partition in self.rows

    def get(self, partition: int) -> CommittedOffset | None:
        """Return what is committed for *partition*, None if nothing is."""
        row = self.rows.get(partition)
        if row is None:
            return None
        times, expiries = self._committed_ms, self._expire_ms
        commit_ms = times if isinstance(times, int) else times[partition]
        expire_ms = NO_EXPIRY if expiries is None else expiries.get(partition, NO_EXPIRY)
        return CommittedOffset(*unpack_row(row), commit_ms, expire_ms)

    def packed_times(self, partitions: Sequence[int]) -> tuple[bytes, bytes]:
        """Return when *partitions* were committed, and expire; 8 bytes for each in both."""
        times, expiries = self._committed_ms, self._expire_ms
        count = len(partitions)
        if isinstance(times, int):
            committed = times.to_bytes(8, signed=True) * count
        else:
            committed = struct.pack(f">{count}q", *[times[p] for p in partitions])
        if expiries is None:
            return committed, PACKED_NO_EXPIRY * count
        found = [expiries.get(p, NO_EXPIRY) for p in partitions]
        return committed, struct.pack(f">{count}q", *found)

    def values(self) -> Iterator[tuple[int, CommittedOffset]]:
        """Iterate over the partitions, sorted, with what is committed for each."""
        for partition in sorted(self.rows):
            value = self.get(partition)
            assert value is not None
            yield partition, value

    def put(self, rows: Rows, commit_timestamp_ms: int, expire_timestamp_ms: int) -> int:
        """Store *rows*, all committed at the same time; return how many of them are new."""
        stored, times = self.rows, self._committed_ms
        before = len(stored)
        stored.update(rows)
        if len(stored) == len(rows):
            self._committed_ms = commit_timestamp_ms
        elif times != commit_timestamp_ms:
            if isinstance(times, int):
                times = self._committed_ms = dict.fromkeys(stored, times)
            times.update(dict.fromkeys(rows, commit_timestamp_ms))
        if self._expire_ms is not None or expire_timestamp_ms != NO_EXPIRY:
            self._put_expiry(rows, expire_timestamp_ms)
        return len(stored) - before

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
        if self.rows.pop(partition, None) is None:
            return False
        if not isinstance(self._committed_ms, int):
            del self._committed_ms[partition]
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

# The version that each type is written with; older ones are read.
VERSIONS: Final[Mapping[int, int]] = {
    OFFSET_COMMITTED: 1,  # 1 brought entries that stand for several partitions.
    GROUP_METADATA: 1,  # 1 brought topics_version, and topic_pattern of a member.
    GROUP_GENERATION: 0,
    GROUP_DELETED: 0,
    GROUP_RETENTION: 0,
    GROUP_REBALANCED: 0,
}

# A group's retention: its offsets never expire.
KEEP_FOR_EVER: Final = -1
# So many rebalances of a group are kept: number n lies under the key n % this.
REBALANCES_KEPT: Final = 100

_OFFSET_TYPE: Final = bytes((OFFSET_COMMITTED, 0))
_OFFSET_VERSIONS: Final = (0, 1)
_ARRAYS: Final = (list, tuple)


class RecordError(Exception):
    """An entry of the log that can't be replayed."""


class UnknownRecord(RecordError):
    """An entry of a type or version that this code doesn't know: written by a newer one."""


class MalformedRecord(RecordError):
    """An entry of a known type whose key or value has another shape."""


class OffsetsCommitted(NamedTuple):
    """A group is done with everything before these offsets of one topic.

    In the log each partition has an entry of its own, or one entry stands for several of them.
    """

    group_id: str
    topic: str
    rows: Rows
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


_RareRecord = (
    OffsetRemoved
    | GroupMetadata
    | GroupGeneration
    | GroupDeleted
    | GroupRetention
    | GroupRebalanced
)
Record = OffsetsCommitted | _RareRecord

# (type, version, scope, key, value); a value of None is a tombstone.
EntryFields = tuple[int, int, str, object, object]
# What a batch of the log holds: the same behind the distance of the entry from the batch's first.
Item = Sequence[Any]


def pack(records: Sequence[Record]) -> tuple[int, bytes]:
    """Return how many entries *records* make, and the msgpack array of them as a batch."""
    if len(records) == 1 and type(records[0]) is OffsetsCommitted:  # Nearly every batch.
        count = len(records[0].rows)
        return count, array_header(count) + _pack_offsets(records[0], 0)
    count = 0
    pieces = []
    for record in records:
        if isinstance(record, OffsetsCommitted):
            pieces.append(_pack_offsets(record, count))
            count += len(record.rows)
        else:
            type_, key, value = _WRITERS[type(record)](record)
            pieces.append(_pack((count, type_, VERSIONS[type_], record.group_id, key, value)))
            count += 1
    return count, array_header(count) + b"".join(pieces)


def _pack_offsets(record: OffsetsCommitted, delta: int) -> bytes:
    """Return the entries of *record* back to back, the first of them *delta* behind the batch's.

    An entry is [delta, type, version, group, [topic, partition], value], and the value
    [offset, leader epoch, metadata, committed, expires]. They are put together from what is
    packed already.
    """
    group_id, topic, rows, commit_ms, expire_ms = record
    middle = _OFFSET_TYPE + _pack(group_id) + b"\x92" + _pack(topic)
    end = _pack(commit_ms) + _pack(expire_ms)
    pieces: list[bytes] = []
    for partition, row in rows.items():
        start = value_start(partition)
        pieces += b"\x96", _pack(delta), middle, row[1:start], b"\x95", row[start:-1], end
        delta += 1
    return b"".join(pieces)


def _rebalance(rebalance: Rebalance) -> tuple[Any, ...]:
    late = tuple(map(structs.astuple, rebalance.late))
    return structs.astuple(structs.replace(rebalance, late=late))


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
        _rebalance(r.rebalance),
    ),
}


def read_items(items: Iterable[Item]) -> Iterator[Record]:
    """Yield the records of entries as they lie in a batch, each behind its distance.

    Offsets of one commit that follow each other make one record, whether each has an entry of its
    own or one entry stands for many; arrays may be lists or tuples.

    Raises:
        UnknownRecord: A type or version is none of ours.
        MalformedRecord: A shape is not that of the type.
    """
    # Plain names and no calls: a load reads a million. What the offsets of the run have in common:
    group_id = topic = ""
    commit_ms = expire_ms = NO_EXPIRY
    rows: Rows = {}
    for _, type_, version, scope, key, value in items:
        if type_ != OFFSET_COMMITTED or version not in _OFFSET_VERSIONS or value is None:
            if rows:
                yield OffsetsCommitted(group_id, topic, rows, commit_ms, expire_ms)
                rows = {}
            yield _read(type_, version, scope, key, value)
            continue
        try:
            in_topic, partition = key
            offset, leader_epoch, metadata, at_ms, until_ms = value
            is_wide = type(partition) is not int
            if is_wide:
                wide = _read_wide(version, partition, value)
            else:
                row = _pack((partition, offset, leader_epoch, metadata, 0))
        except (TypeError, ValueError, OverflowError) as exc:
            raise _malformed(type_, scope, exc) from exc
        if (
            in_topic != topic or scope != group_id or at_ms != commit_ms or until_ms != expire_ms
        ) and rows:
            yield OffsetsCommitted(group_id, topic, rows, commit_ms, expire_ms)
            rows = {}
        if not rows:
            group_id, topic, commit_ms, expire_ms = scope, in_topic, at_ms, until_ms
        if is_wide:
            rows.update(wide)
        else:
            rows[partition] = row
    if rows:
        yield OffsetsCommitted(group_id, topic, rows, commit_ms, expire_ms)


def _read_wide(version: int, partitions: Any, value: Any) -> Rows:
    """Return the rows of an entry that stands for several partitions.

    Offset, leader epoch and metadata are each an array with one element per partition, or one
    value for all. Raises TypeError, ValueError and OverflowError.
    """
    *columns, commit_ms, expire_ms = value
    for time_ms in (commit_ms, expire_ms):
        if type(time_ms) is not int:
            raise ValueError(f"{time_ms!r} is no time")
    if not version or {*map(type, partitions)} != {int}:
        raise ValueError(f"{partitions!r} is no partition")
    count = len(partitions)
    filled = [part if type(part) in _ARRAYS else (part,) * count for part in columns]
    return {row[0]: _pack((*row, 0)) for row in zip(partitions, *filled, strict=True)}


def from_entry(type_: int, version: int, scope: str, key: Any, value: Any) -> Record:
    """Return the record of one entry; raises as `read_items` does."""
    (record,) = read_items(((0, type_, version, scope, key, value),))
    return record


def _read(type_: int, version: int, scope: str, key: Any, value: Any) -> Record:
    try:
        newest = VERSIONS.get(type_)
        if newest is None:
            raise UnknownRecord(f"record type {type_} is not known to this code")
        if not 0 <= version <= newest:
            raise UnknownRecord(f"record type {type_} has version {version}, newer than this code")
        return _READERS[type_](scope, key, value)
    except (TypeError, ValueError) as exc:
        raise _malformed(type_, scope, exc) from exc


def _malformed(type_: int, scope: str, exc: Exception) -> MalformedRecord:
    return MalformedRecord(f"record type {type_} of group {scope!r}: {exc}")


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


def _read_rebalance(group_id: str, _key: Any, value: Any) -> Record:
    *fields, late = value
    members = tuple(LateMember(*member) for member in late)
    return GroupRebalanced(group_id, Rebalance(*(*fields, members)))


_READERS: Final[Mapping[int, Callable[[str, Any, Any], Record]]] = {
    OFFSET_COMMITTED: _read_removed,
    GROUP_METADATA: _read_metadata,
    GROUP_GENERATION: lambda group_id, _, value: GroupGeneration(group_id, *value),
    GROUP_DELETED: lambda group_id, _key, _value: GroupDeleted(group_id),
    GROUP_RETENTION: lambda group_id, _, value: GroupRetention(group_id, *(value or (None,))),
    GROUP_REBALANCED: _read_rebalance,
}
