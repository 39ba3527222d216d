"""Committed offsets in memory: each is the row that an OffsetFetch answers with, packed.

Theory of operation
===================

A fetch joins rows, and packs nothing. A dict of ints and bytes is nothing to the garbage
collector, so a million offsets don't slow it down; as tuples of their values they took
twice the memory. Whoever wants the values unpacks one row (0.4 µs).
"""

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Final, NamedTuple

import msgpack

NO_EXPIRY: Final = -1

# Partition -> msgpack of [partition, offset, leader_epoch, metadata, 0].
Rows = dict[int, bytes]

_pack: Final = msgpack.Packer(autoreset=True).pack
# What the last field of a row, the error code 0, takes.
_ERROR_BYTES: Final = 1


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


def pack_rows(
    partitions: Iterable[int],
    offsets: Iterable[int],
    leader_epochs: Iterable[int],
    metadata: Iterable[str],
) -> Rows:
    """Return the rows of many partitions, given in columns."""
    rows = map(_pack, zip(partitions, offsets, leader_epochs, metadata, repeat(0)))
    return dict(zip(partitions, rows, strict=True))


def unpack_row(row: bytes) -> tuple[int, int, str]:
    """Return offset, leader epoch and metadata of *row*."""
    _, offset, leader_epoch, metadata, _ = msgpack.unpackb(row, use_list=False)
    return offset, leader_epoch, metadata


def packed_value(partition: int, row: bytes) -> bytes:
    """Return offset, leader epoch and metadata as they lie in *row*, the row of *partition*."""
    start = 2 if partition < 1 << 7 else 3 if partition < 1 << 8 else 4
    return row[start if partition < 1 << 16 else 6 : -_ERROR_BYTES]


class StoredOffsets:
    """What a group has committed for the partitions of one topic."""

    __slots__ = ("_committed_ms", "_expire_ms", "rows")

    def __init__(self) -> None:
        self.rows: Rows = {}
        self._committed_ms: dict[int, int] = {}
        # Of those that have a time of their own: none that this release writes.
        self._expire_ms: dict[int, int] = {}

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
        expire_ms = self._expire_ms.get(partition, NO_EXPIRY)
        return CommittedOffset(*unpack_row(row), self._committed_ms[partition], expire_ms)

    def values(self) -> Iterator[tuple[int, CommittedOffset]]:
        """Iterate over the partitions, sorted, with what is committed for each."""
        for partition in sorted(self.rows):
            value = self.get(partition)
            assert value is not None
            yield partition, value

    def offset(self, partition: int) -> int | None:
        """Return the committed offset of *partition*, None if there is none."""
        row = self.rows.get(partition)
        return None if row is None else unpack_row(row)[0]

    def put(self, rows: Rows, commit_timestamp_ms: int, expire_timestamp_ms: int) -> None:
        """Store *rows*, all committed at the same time."""
        self.rows.update(rows)
        self._committed_ms.update(dict.fromkeys(rows, commit_timestamp_ms))
        if expire_timestamp_ms != NO_EXPIRY:
            self._expire_ms.update(dict.fromkeys(rows, expire_timestamp_ms))
        elif self._expire_ms:
            for partition in rows:
                self._expire_ms.pop(partition, None)

    def remove(self, partition: int) -> bool:
        """Forget the offset of *partition*; say whether there was one."""
        if self.rows.pop(partition, None) is None:
            return False
        del self._committed_ms[partition]
        self._expire_ms.pop(partition, None)
        return True
