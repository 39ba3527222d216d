"""Committed offsets in memory: each is the row that an OffsetFetch answers with, packed.

Theory of operation
===================

A fetch joins rows, and packs nothing. A dict of ints and bytes is nothing to the garbage
collector, so a million offsets don't slow it down; as tuples of their values they took
twice the memory. Whoever wants the values unpacks one row.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgpack

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
