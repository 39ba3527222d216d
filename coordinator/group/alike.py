"""The offsets of a large commit, read from the log without unpacking each.

Theory of operation
===================

A commit of many partitions is one batch, whose entries mostly have the same bytes but for the
partition and its value, and these have the same length. Then the first entry is unpacked, and the
others are only compared with it: where a value says of what kind it is, they say the same; and
with what changes set to zero, all of them together are the first one over and over. What changes
is moved into rows, one slice with a step per byte for all entries at once. So 100 entries take
20 µs, where unpacking them takes 30 and packing their rows another 70.

Whatever doesn't look like that is None here, and is read entry by entry.
"""

import struct
from functools import lru_cache
from typing import Final, NamedTuple

import msgpack

from coordinator.group.offset_store import Rows
from coordinator.group.records import OFFSET_COMMITTED, VERSIONS, OffsetsCommitted

# With fewer it doesn't pay, and the distance of more takes more than a byte.
_COUNT_MIN: Final = 8
_COUNT_MAX: Final = 128
_SHORT: Final = 0x90  # What an array of 0 to 15 begins with.
_ARRAY_16: Final = 0xDC
_DISTANCES: Final = bytes(range(_COUNT_MAX))
_OFFSET_TYPE: Final = bytes((OFFSET_COMMITTED, VERSIONS[OFFSET_COMMITTED]))

_pack: Final = msgpack.Packer(autoreset=True).pack


class _Layout(NamedTuple):
    """Where in each entry what changes is, found in the first one."""

    record: OffsetsCommitted  # Without rows.
    entry: bytes  # With zeros for what changes.
    partition_at: int
    value_at: int
    epoch_at: int
    metadata_at: int
    end_at: int


def read_alike(packed: bytes) -> OffsetsCommitted | None:
    """Return the record of a batch whose entries are laid out alike; None if they are not."""
    if packed[0] == _ARRAY_16:
        count, entries = int.from_bytes(packed[1:3], "big"), packed[3:]
    else:
        count, entries = packed[0] - _SHORT, packed[1:]
    if not _COUNT_MIN <= count <= _COUNT_MAX:
        return None
    size, rest = divmod(len(entries), count)
    if rest or entries[1::size] != _DISTANCES[:count]:
        return None
    layout = _layout(entries[:size])
    if layout is None or not _kinds_are_alike(entries, layout):
        return None
    rows = _rows(entries, count, layout)
    return None if rows is None else layout.record._replace(rows=rows)


def _layout(entry: bytes) -> _Layout | None:
    """Return what *entry*, the first, looks like; None if it isn't just what we write."""
    try:
        _, type_, version, group_id, (topic, partition), value = msgpack.unpackb(
            entry, use_list=False
        )
        offset, epoch, metadata, commit_ms, expire_ms = value
    except (TypeError, ValueError, msgpack.UnpackException):
        return None
    kinds = (type(partition), type(offset), type(epoch), type(metadata))
    if (type_, version) != (OFFSET_COMMITTED, VERSIONS[OFFSET_COMMITTED]) or kinds != _KINDS:
        return None
    head = b"\x96\0" + _OFFSET_TYPE + _pack(group_id) + b"\x92" + _pack(topic)
    number, packed_offset, packed_epoch = _pack(partition), _pack(offset), _pack(epoch)
    changes = packed_offset + packed_epoch + _pack(metadata)
    end = _pack(commit_ms) + _pack(expire_ms)
    if entry != head + number + b"\x95" + changes + end:
        return None
    value_at = len(head) + len(number) + 1
    epoch_at = value_at + len(packed_offset)
    return _Layout(
        OffsetsCommitted(group_id, topic, {}, commit_ms, expire_ms),
        head + bytes(len(number)) + b"\x95" + bytes(len(changes)) + end,
        len(head),
        value_at,
        epoch_at,
        epoch_at + len(packed_epoch),
        len(entry) - len(end),
    )


_KINDS: Final = (int, int, int, str)


def _kinds_are_alike(entries: bytes, layout: _Layout) -> bool:
    """Say whether all values are of the kind and length of those of the first entry."""
    size = len(layout.entry)
    for at in (layout.partition_at, layout.value_at, layout.epoch_at):
        opcodes = entries[at::size]
        # A small int is its own opcode.
        if not (opcodes.isascii() or opcodes.count(opcodes[0]) == len(opcodes)):
            return False
    opcodes = entries[layout.metadata_at :: size]
    if opcodes.count(opcodes[0]) != len(opcodes):
        return False
    text = range(layout.metadata_at + 1, layout.end_at)
    return all(entries[at::size].isascii() for at in text)


def _rows(entries: bytes, count: int, layout: _Layout) -> Rows | None:
    """Return what changes as rows; None if anything else does, too."""
    _, entry, partition_at, value_at, _, _, end_at = layout
    size = len(entry)
    row = b"\x95" + bytes(value_at - 1 - partition_at + end_at - value_at) + b"\0"
    row_bytes = len(row)
    rest, rows, zeros = bytearray(entries), bytearray(row * count), bytes(count)
    rest[1::size] = zeros
    to = 1
    for at in (*range(partition_at, value_at - 1), *range(value_at, end_at)):
        rows[to::row_bytes] = entries[at::size]
        rest[at::size] = zeros
        to += 1
    if rest != entry * count:
        return None
    width = value_at - partition_at - 2
    if not width:
        partitions = tuple(entries[partition_at::size])
    else:
        starts = range(partition_at + 1, len(entries), size)
        partitions = tuple([int.from_bytes(entries[at : at + width], "big") for at in starts])
        # Whoever looks for what is behind a partition relies on it.
        if min(partitions) < (1 << 7 if width == 1 else 1 << 4 * width):
            return None
    return dict(zip(partitions, _splitter(row_bytes, count).unpack(rows), strict=True))


@lru_cache(maxsize=256)
def _splitter(row_bytes: int, count: int) -> struct.Struct:
    """Return what splits *count* rows: 100 in 2 µs, where slices take 10."""
    return struct.Struct(f"{row_bytes}s" * count)
