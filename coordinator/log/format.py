"""The bytes of the log: batches, flushes, and the index of a sealed segment. No I/O.

Theory of operation
===================

A segment is batches back to back. A batch is

    u32 length | u32 crc | u8 format, u16 partition, u32 leader_epoch, u64 base_offset,
    u64 flush_start, i64 timestamp_ms, u64 check | msgpack array of entries

where length and crc speak of everything behind the crc. The journal is the segments one
after another; a *position* counts the bytes of batches in it, so it names the same byte
whatever the files are called.

Many batches make one flush: one synced write. The next flush begins only after
the one before is on disk, so a crash can damage the last flush and nothing else. Each batch
says at which position its flush began. So for damage at X there is a definite question: does a
batch exist whose flush began behind X? If so, the flush with X in it was complete once, and
was damaged later: that is corruption, and starting would lose acknowledged data. If not, the
damage is the torn end of a write that was never acknowledged, and is cut.

The search for such a batch must look at every byte, because behind damage nobody knows where
a batch begins: so it also looks at what clients have sent, as metadata or as an assignment. The
`check` says what is a header: a hash of the flush, keyed with a secret of the folder that nobody
is ever shown. It is one hash for a whole flush; whoever reads batches in their order needs none.

Format 1 had no check: there a header was what a right crc was found for. Its batches are still
read. All batches of a segment are of one format, which the manifest knows.

A sealed segment ends with an index, which says where each partition's batches are:

    msgpack [format, base, end, [[partition, end_offset, positions]...], cluster_id]
    u32 length of that | u32 crc of that | 8 bytes magic

`positions` are big-endian u32 byte positions in the file. They may be none: then the segment has
no batch of the partition, and `end_offset` carries on what is known from the older ones.

A *wide* entry, whose key ends with an array, stands for one key for each element of it, and takes
as many offsets. In its value each array is a column with one item for each of them; anything else
is common to all. So one entry says what a request changed of many keys, and yet each has an offset.
"""

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Final, Literal, NamedTuple
from zlib import crc32

import msgpack
from msgspec import MsgspecError, Struct
from msgspec.msgpack import Decoder as MsgspecDecoder

from coordinator.log.errors import LogCorrupt


def check_msgpack(version: tuple[int, ...], unpacker_module: str) -> None:
    """Raise ImportError unless msgpack is new enough and compiled.

    Versions before 1.2.1 crash on bad input (GHSA-6v7p-g79w-8964), and the fallback in pure Python
    judges it differently.
    """
    if version < (1, 2, 1):
        found = ".".join(map(str, version))
        raise ImportError(f"msgpack {found} is unsafe on bad input; install msgpack >= 1.2.1")
    if unpacker_module != "msgpack._cmsgpack":
        raise ImportError(
            "msgpack runs without its C extension (MSGPACK_PUREPYTHON, or no wheel for this "
            "platform); its pure-Python fallback is not supported"
        )


check_msgpack(msgpack.version, msgpack.Unpacker.__module__)

FORMAT: Final = 2
BATCH_BYTES_MAX: Final = 32 * 1024 * 1024
# The partition of the node's own entries: topic registry, access rules, settings.
NODE_PARTITION: Final = 0xFFFF
PARTITIONS_MAX: Final = NODE_PARTITION
# A batch of more bytes than these is unpacked, and yielded, in parts of so many keys: to replay as
# many holds up the event loop for a moment only. A key and its offset take at least two bytes.
PART_KEYS: Final = 1_000
PART_BYTES: Final = 2 * PART_KEYS
# The entry type, in every partition, that says: everything older of this scope is gone.
SCOPE_TOMBSTONE: Final = 1001

PREFIX: Final = struct.Struct(">II")  # length, crc
PREFIX_BYTES: Final = PREFIX.size
HEADER: Final = struct.Struct(">IIBHIQQq")  # What the headers of all formats begin with.
# Of these, what says whether a batch is whole, and in its place.
PLACE: Final = struct.Struct(">IIBH4xQQ")
CHECK: Final = struct.Struct(">Q")  # What follows in format 2.
# The header of a batch, by its format.
HEADER_BYTES_OF: Final = {1: HEADER.size, FORMAT: HEADER.size + CHECK.size}
HEADER_BYTES: Final = HEADER_BYTES_OF[FORMAT]
SECRET_BYTES: Final = 16
# What the length may be. A length of zero is what a file that was grown but not written looks
# like, and the crc of nothing is zero too: hence the lower bound.
LENGTH_MIN: Final = HEADER.size - PREFIX_BYTES
# The largest batch of format 1 gets a check when it is compacted.
LENGTH_MAX: Final = BATCH_BYTES_MAX - PREFIX_BYTES + CHECK.size
# The highest leader epoch that a clock gives, that of the year 2990.
_CLOCK_EPOCH_MAX: Final = 2**29
_MINUTE_MS: Final = 60_000
# Behind a sealed segment's index: its length and crc, and the magic bytes.
TRAILER: Final = struct.Struct(">II8s")
MAGIC: Final = b"OFFINDEX"

_REST: Final = struct.Struct(">BHIQQqQ")  # What the crc covers, before the entries.
_REST_BYTES: Final = _REST.size
_pack_prefix: Final = PREFIX.pack
_pack_rest: Final = _REST.pack
_FLUSH_START: Final = struct.Struct(">Q")
_FLUSH_START_AT: Final = struct.calcsize(">IIBHIQ")
_FLUSH: Final = struct.Struct(">IQ")  # leader_epoch, flush_start
_POSITION: Final = "I"
_ITEM_TYPES: Final = {tuple}
# Bytes that someone removed from the middle of a file leave batches whose flush_start lies
# behind the end of the file; beyond this much (1 TiB), it is taken for noise.
_POSITION_SLACK: Final = 1 << 40

# Nearly every batch is one short entry, and a load reads millions: msgspec reads and checks it in
# one call. Long columns it reads more slowly than msgpack.
SHORT_BYTES: Final = 128
_Plain = int | str | None
_Fields = tuple[_Plain | tuple[_Plain, ...], ...]
NOT_SHORT: Final = (MsgspecError, ValueError)  # Several entries, or other ones, or none at all.
decode_short: Final = MsgspecDecoder(
    tuple[tuple[Literal[0], int, int, str, _Fields, _Fields | None]]
).decode

# An entry as msgpack has it: (offset_delta, type, version, scope, key, value).
Item = tuple[Any, ...]
Items = tuple[Item, ...]


class Entry(NamedTuple):
    """One change. `value` None is a tombstone; `key` is any array that msgpack can carry."""

    type: int
    version: int
    scope: str
    key: object
    value: object


class Batch(Struct, frozen=True, gc=False):
    """What one request wrote to one partition: all of it is there, or nothing.

    Attributes:
        items: Its entries as msgpack has them: a load reads millions, and to make an `Entry` of
            each would cost as much again.
        end_offset: The offset that follows the last one.
        num_keys: How many keys the entries stand for; a wide one stands for several.
    """

    partition: int
    leader_epoch: int
    base_offset: int
    timestamp_ms: int
    items: Items
    end_offset: int
    num_keys: int

    @property
    def entries(self) -> tuple[tuple[int, Entry], ...]:
        """One entry for each key, with its offset, made anew at each look."""
        base_offset = self.base_offset
        singles = chain.from_iterable(map(split_item, self.items))
        return tuple([(base_offset + item[0], Entry._make(item[1:])) for item in singles])


def epoch_by_clock(wall_ms: int) -> int:
    """Return the lowest leader epoch that a start takes at that time of day: minutes since 1970.

    A restored copy of a folder, or an empty one, so begins above the epochs of all earlier starts,
    unless these came more often than once a minute.
    """
    return min(max(wall_ms // _MINUTE_MS, 1), _CLOCK_EPOCH_MAX)


@dataclass(frozen=True, slots=True)
class FlushKey:
    """The secret of a folder, which nobody is shown: it isn't in the repr either."""

    secret: bytes = field(repr=False)

    def check(self, leader_epoch: int, flush_start: int) -> int:
        """Return what the header of each batch of that flush says."""
        flush = _FLUSH.pack(leader_epoch, flush_start)
        digest = hashlib.blake2b(flush, key=self.secret, digest_size=CHECK.size).digest()
        return int.from_bytes(digest, "big")

    def made(self, data: bytes, start: int) -> bool:
        """Return whether the header of format 2 at byte *start* has the right check."""
        if start + HEADER_BYTES > len(data):
            return False
        _, _, _, _, leader_epoch, _, flush_start, _ = HEADER.unpack_from(data, start)
        (check,) = CHECK.unpack_from(data, start + HEADER.size)
        return bool(check == self.check(leader_epoch, flush_start))


class RawBatch(NamedTuple):
    """A batch whose checksum is right; its entries are still packed, up to `end`."""

    start: int
    end: int
    format: int
    partition: int
    leader_epoch: int
    base_offset: int
    flush_start: int
    timestamp_ms: int

    @property
    def entries_at(self) -> int:
        """The byte at which they begin."""
        return self.start + HEADER_BYTES_OF.get(self.format, HEADER_BYTES)


def encode_batch(raw: Sequence[int], packed: bytes) -> tuple[bytes, bytes, bytes]:
    """Return the batch as three pieces to be joined: prefix, rest of the header, entries.

    Args:
        raw: partition, leader_epoch, base_offset, flush_start, timestamp_ms, check.
        packed: The msgpack array of entries.
    """
    rest = _pack_rest(FORMAT, *raw)
    crc = crc32(packed, crc32(rest))
    return PREFIX.pack(_REST_BYTES + len(packed), crc), rest, packed


@dataclass(frozen=True, slots=True)
class Flush:
    """What is written and synced at once.

    Attributes:
        start: The journal position of its first byte.
        data: The bytes of its batches.
        rolls: Whether it begins a new segment.
        ends: For each partition in it, the end offset that is durable once it is written.
        batches: Partition and position within `data` of each batch.
    """

    start: int
    data: bytes
    rolls: bool
    ends: dict[int, int]
    batches: list[tuple[int, int]]


class OpenFlush:
    """The flush that gathers: its batches so far, encoded as they came.

    Attributes:
        start: The journal position at which it begins.
        batches: Partition and position in the flush of each batch.
    """

    __slots__ = ("_check", "_data", "_leader_epoch", "batches", "start")

    def __init__(self, start: int, leader_epoch: int, key: FlushKey) -> None:
        """Begin it; every batch carries *leader_epoch*, and its check by the folder's *key*."""
        self.start = start
        self.batches: list[tuple[int, int]] = []
        self._leader_epoch = leader_epoch
        self._check = key.check(leader_epoch, start)
        self._data = bytearray()

    @property
    def size_bytes(self) -> int:
        """The size of its batches."""
        return len(self._data)

    def add(self, partition: int, base_offset: int, timestamp_ms: int, packed: bytes) -> None:
        """Append a batch of the *packed* array of entries."""
        # Written out instead of calling `encode_batch`: nearly every request comes by here.
        epoch, check = self._leader_epoch, self._check
        rest = _pack_rest(FORMAT, partition, epoch, base_offset, self.start, timestamp_ms, check)
        body = rest + packed
        data = self._data
        self.batches.append((partition, len(data)))
        data += _pack_prefix(len(body), crc32(body))
        data += body

    def data(self) -> bytes:
        """Return the bytes of all batches."""
        return bytes(self._data)


def batch_at(data: bytes, start: int) -> RawBatch | None:
    """Return the batch that begins at byte *start*, or None if no whole valid one does."""
    if start + HEADER.size > len(data):
        return None
    fields = HEADER.unpack_from(data, start)
    length, crc = fields[:2]
    body = start + PREFIX_BYTES
    end = body + length
    if not LENGTH_MIN <= length <= LENGTH_MAX or end > len(data):
        return None
    if crc32(data[body:end]) != crc:
        return None
    return RawBatch._make((start, end, *fields[2:]))


def decode_batch(data: bytes, raw: RawBatch) -> Batch:
    """Unpack the entries of *raw*.

    Raises:
        LogCorrupt: The checksum is right and yet the entries are not as they are written.
    """
    try:
        items, end_delta, num_keys = unpack_items(data[raw.entries_at : raw.end])
    except ValueError as exc:
        message = f"the entries of the batch at byte {raw.start} can't be read: {exc}"
        raise LogCorrupt(message) from exc
    return Batch(
        raw.partition,
        raw.leader_epoch,
        raw.base_offset,
        raw.timestamp_ms,
        items,
        raw.base_offset + end_delta,
        num_keys,
    )


def parts_of(raw: RawBatch, packed: bytes, *, has_gaps: bool = True) -> Iterator[Batch]:
    """Yield the batch of *raw*, whose entries are *packed*; a large one in parts.

    Raises:
        LogCorrupt: The entries are not as they are written.
    """
    try:
        for items, end_delta, num_keys in (
            (unpack_items(packed, has_gaps=has_gaps),)
            if len(packed) <= PART_BYTES
            else unpack_in_parts(packed, PART_KEYS, has_gaps=has_gaps)
        ):
            yield Batch(
                raw.partition,
                raw.leader_epoch,
                raw.base_offset,
                raw.timestamp_ms,
                items,
                raw.base_offset + end_delta,
                num_keys,
            )
    except ValueError as exc:
        where = f"the entries at offset {raw.base_offset} of partition {raw.partition}"
        raise LogCorrupt(f"{where} can't be read: {exc}") from exc


def is_wide(key: object) -> bool:
    """Return whether an entry with this key stands for one key for each element of its end."""
    return type(key) is tuple and key != () and type(key[-1]) is tuple


def split_item(item: Item) -> Sequence[Item]:
    """Return what a wide entry stands for: an entry for each of its keys. Another one stays."""
    delta, type_, version, scope, key, value = item
    if not is_wide(key):
        return (item,)
    *common, elements = key
    columns = [part if type(part) is tuple else repeat(part) for part in value]
    return [
        (delta + at, type_, version, scope, (*common, element), tuple(values))
        for at, (element, *values) in enumerate(zip(elements, *columns, strict=False))
    ]


def slice_item(item: Item, start: int, stop: int) -> Item:
    """Return the wide entry for the keys *start* to *stop* of a wide one."""
    delta, type_, version, scope, key, value = item
    part = slice(start, stop)
    cut = tuple([column[part] if type(column) is tuple else column for column in value])
    return delta + start, type_, version, scope, (*key[:-1], key[-1][part]), cut


def numbered(entries: Iterable[Sequence[Any]]) -> tuple[list[Item], int]:
    """Return entries with their distances, and how many keys they stand for."""
    items: list[Item] = []
    delta = 0
    for entry in entries:
        items.append((delta, *entry))
        delta += _width(entry[3])
    return items, delta


def _width(key: Any) -> int:
    """Return for how many keys an entry stands."""
    return len(key[-1]) if is_wide(key) else 1


def unpack_items(packed: bytes, *, has_gaps: bool = True) -> tuple[Items, int, int]:
    """Return the entries of one batch as msgpack has them, and what `check_items` does.

    Raises:
        ValueError: They are not as they are written.
    """
    if len(packed) <= SHORT_BYTES:
        try:
            short = decode_short(packed)
            key = short[0][4]
            if not key or type(key[-1]) is not tuple:
                return short, 1, 1
            return short, *check_items(short, has_gaps=has_gaps)
        except NOT_SHORT:
            pass
    return unpack_any(packed, has_gaps=has_gaps)


def unpack_any(packed: bytes, *, has_gaps: bool) -> tuple[Items, int, int]:
    """Do the same where `decode_short` is of no use."""
    try:
        items: Items = msgpack.unpackb(packed, use_list=False)
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as exc:
        raise ValueError(str(exc) or type(exc).__name__) from exc
    return items, *check_items(items, has_gaps=has_gaps)


def check_items(items: Items, end: int = 0, *, has_gaps: bool) -> tuple[int, int]:
    """Return the delta behind the last of these entries, and how many keys they stand for.

    Args:
        items: Of one batch, one after the other; at least one.
        end: The delta behind the one before them.
        has_gaps: A compaction may have taken some.

    Raises:
        ValueError: They are not as they are written.
    """
    try:
        num_keys = len(items)
        for at, _, _, _, key, value in items:
            if at != end and (at < end or not has_gaps):
                raise ValueError("their distances have gaps, or go back")
            end = at + 1
            if type(key) is tuple and key and type(key[-1]) is tuple:
                width = _checked_width(key[-1], value)
                end = at + width
                num_keys += width - 1
        if {*map(type, items)} == _ITEM_TYPES and type(at) is int:
            return end, num_keys
    except TypeError as exc:
        raise ValueError(str(exc)) from exc
    raise ValueError("they are of another shape")


def _checked_width(elements: tuple[object, ...], value: object) -> int:
    width = len(elements)
    if not width or tuple in {*map(type, elements)} or type(value) is not tuple:
        raise ValueError("one that stands for several keys is of another shape")
    for part in value:
        if type(part) is tuple and len(part) != width:
            raise ValueError(f"there are {width} keys, and a column of {len(part)}")
    return width


def unpack_in_parts(
    packed: bytes | memoryview, part_keys: int, *, has_gaps: bool = True
) -> Iterator[tuple[Items, int, int]]:
    """Yield the entries of one batch, no more than *part_keys* keys at a time.

    Raises:
        ValueError: They are not as they are written.
    """
    unpacker = msgpack.Unpacker(use_list=False, max_buffer_size=BATCH_BYTES_MAX)
    unpacker.feed(packed)
    unpack = unpacker.unpack
    end = 0
    try:
        left = unpacker.read_array_header()
        while left:
            items = tuple([unpack() for _ in range(min(left, part_keys))])
            left -= len(items)
            end, num_keys = check_items(items, end, has_gaps=has_gaps)
            if num_keys <= part_keys:
                yield items, end, num_keys
            else:
                yield from in_parts(items, part_keys)
    except (TypeError, LookupError, msgpack.UnpackException) as exc:
        raise ValueError(str(exc) or type(exc).__name__) from exc
    if unpacker.tell() != len(packed):
        raise ValueError("there is something behind the last one")


def in_parts(items: Items, part_keys: int) -> Iterator[tuple[Items, int, int]]:
    """Yield these entries, no more than *part_keys* keys at a time, as `unpack_items` returns them.

    A wide one that has more keys is cut.
    """
    part: list[Item] = []
    num_keys = end = 0
    for item in items:
        width = _width(item[4])
        for start in range(0, width, part_keys):
            stop = min(start + part_keys, width)
            if num_keys + stop - start > part_keys:
                yield tuple(part), end, num_keys
                part, num_keys = [], 0
            part.append(item if stop - start == width else slice_item(item, start, stop))
            num_keys += stop - start
            end = item[0] + stop
    yield tuple(part), end, num_keys


def find_later_flush(
    data: bytes, damage: int, base_position: int, format_: int, key: FlushKey | None
) -> int | None:
    """Return where behind byte *damage* a batch begins whose flush began behind it, if one does.

    Its header tells. The batch itself may be damaged, too: the next flush begins only when the one
    before is on disk.

    Args:
        data: The segment's bytes.
        damage: Where the first batch that can't be read begins.
        base_position: The journal position of the segment's first byte.
        format_: Of the segment's batches. In format 1 there is no check, and the batch must be
            whole.
        key: The folder's; None if all of it is of format 1.
    """
    marker = bytes((format_,))
    lowest = base_position + damage + 1
    highest = base_position + len(data) + _POSITION_SLACK
    # The first candidate begins one byte behind the damage. `find` runs over zeros at the speed
    # of memchr. What comes next is constant time, whatever the bytes are: no crc is computed.
    at = data.find(marker, damage + 1 + PREFIX_BYTES)
    while at >= 0:
        start = at - PREFIX_BYTES
        if start + HEADER.size > len(data):
            return None
        (flush_start,) = _FLUSH_START.unpack_from(data, start + _FLUSH_START_AT)
        if (
            lowest <= flush_start <= highest
            and is_own_header(data, start, key)
            and (format_ != 1 or batch_at(data, start) is not None)
        ):
            return start
        at = data.find(marker, at + 1)
    return None


def is_own_header(data: bytes, start: int, key: FlushKey | None) -> bool:
    """Return whether the header at byte *start* is the folder's own, and none that was forged.

    One of format 1 always is: nothing in it tells. Whoever looks for one needs the crc, too.
    """
    return data[start + PREFIX_BYTES] == 1 or (key is not None and key.made(data, start))


class Index(NamedTuple):
    """What a footer says."""

    base: int
    end: int
    end_offsets: dict[int, int]
    positions: dict[int, "array[int]"]
    cluster_id: str = ""  # Not known.
    format: int = FORMAT  # Of the batches.


def encode_footer(index: Index) -> bytes:
    """Return the bytes that seal a segment."""
    rows = [
        [partition, index.end_offsets[partition], _packed(index.positions.get(partition))]
        for partition in sorted(index.end_offsets)
    ]
    body: bytes = msgpack.packb([index.format, index.base, index.end, rows, index.cluster_id])
    return body + TRAILER.pack(len(body), crc32(body), MAGIC)


def decode_footer(data: bytes) -> Index | None:
    """Read a footer of exactly these bytes; None if they are not a whole, undamaged one."""
    body = len(data) - TRAILER.size
    if body < 0:
        return None
    length, crc, magic = TRAILER.unpack_from(data, body)
    if magic != MAGIC or length != body or crc32(data[:body]) != crc:
        return None
    try:
        format_, base, end, rows, *newer = msgpack.unpackb(data[:body])
        if format_ not in HEADER_BYTES_OF:
            return None
        return Index(
            base,
            end,
            {partition: end_offset for partition, end_offset, _ in rows},
            {partition: _unpacked(positions) for partition, _, positions in rows},
            newer[0] if newer else "",
            format_,
        )
    except (ValueError, TypeError, msgpack.UnpackException):
        return None


def _packed(positions: "array[int] | None") -> bytes:
    big_endian = array(_POSITION, positions or ())
    if sys.byteorder == "little":
        big_endian.byteswap()
    return big_endian.tobytes()


def _unpacked(data: bytes) -> "array[int]":
    positions = array(_POSITION)
    positions.frombytes(data)
    if sys.byteorder == "little":
        positions.byteswap()
    return positions
