"""The bytes of the log: batches, flushes, and the index of a sealed segment. No I/O.

Theory of operation
===================

A segment is batches back to back. A batch is

    u32 length | u32 crc | u8 format, u16 partition, u32 leader_epoch, u64 base_offset,
    u64 flush_start, i64 timestamp_ms, u64 check | msgpack array of entries

where length and crc cover everything behind the crc. The journal is the sequence of the segments;
a *position* counts the bytes of batches in the journal, so it names the same byte whatever the
files are called.

A flush is one synced write of many batches. The next flush begins only after the previous one is
on disk, so a crash can damage the last flush only. Each batch carries the position at which its
flush began. For damage at X this gives a definite test: does a batch exist whose flush began
behind X? If yes, the flush that contains X was complete once and was damaged later: this is
corruption, and starting would lose acknowledged data. If no, the damage is the torn end of a
write that was never acknowledged, and is cut.

The search for such a batch must try every byte, because behind damage the beginning of a batch
isn't known. The bytes include what clients have sent, as metadata or as an assignment, and a
client could forge a header there. `check` authenticates a header: it is a hash of the flush,
keyed with a secret of the folder that is never disclosed. All batches of a flush have the same
hash. A reader that reads batches in their order doesn't need to verify it.

Format 1 had no check: any bytes with a valid crc were a batch. Its batches can still be read. All
batches of a segment have the same format, which the manifest records.

A sealed segment ends with an index of each partition's batches:

    msgpack [format, base, end, [[partition, end_offset, positions]...], cluster_id]
    u32 length of that | u32 crc of that | 8 bytes magic

`positions` are big-endian u32 byte positions in the file. They may be empty: then the segment has
no batch of the partition, and `end_offset` repeats the value from the older segments.

A *wide* entry, whose key ends with an array, stands for one key for each element of the array, and
takes as many offsets. Each array in its value is a column with one item for each key; other values
are common to all keys. One entry thus holds a request's changes of many keys, and each change
still has its own offset.
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

    Versions before 1.2.1 crash on bad input (GHSA-6v7p-g79w-8964). The fallback in pure Python
    accepts and rejects other input than the C extension.
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
# Keys per part of a large batch, unpacked and yielded at a time, so that replaying a part blocks
# the event loop only briefly. A batch of at most PART_BYTES isn't split: a key and its offset take
# at least two bytes.
PART_KEYS: Final = 1_000
PART_BYTES: Final = 2 * PART_KEYS
# Type of an entry, in every partition, that deletes all older entries of its scope.
SCOPE_TOMBSTONE: Final = 1001

PREFIX: Final = struct.Struct(">II")  # length, crc
PREFIX_BYTES: Final = PREFIX.size
HEADER: Final = struct.Struct(">IIBHIQQq")  # Common to all formats.
# The fields of HEADER that tell whether a batch is complete and in its place.
PLACE: Final = struct.Struct(">IIBH4xQQ")
CHECK: Final = struct.Struct(">Q")  # Follows HEADER in format 2.
# Size of a batch's header in bytes, by format.
HEADER_BYTES_OF: Final = {1: HEADER.size, FORMAT: HEADER.size + CHECK.size}
HEADER_BYTES: Final = HEADER_BYTES_OF[FORMAT]
SECRET_BYTES: Final = 16
# Bounds of the length field. The lower one excludes 0: a file that was grown but not written is
# all zeros, and the crc of no bytes is 0, too.
LENGTH_MIN: Final = HEADER.size - PREFIX_BYTES
# Room for CHECK, which a compaction adds to the largest batch of format 1.
LENGTH_MAX: Final = BATCH_BYTES_MAX - PREFIX_BYTES + CHECK.size
# Highest leader epoch taken from a clock, reached in the year 2990.
_CLOCK_EPOCH_MAX: Final = 2**29
_MINUTE_MS: Final = 60_000
# Trailer behind a sealed segment's index: length and crc of the index, magic bytes.
TRAILER: Final = struct.Struct(">II8s")
MAGIC: Final = b"OFFINDEX"

_REST: Final = struct.Struct(">BHIQQqQ")  # Part of the header that the crc covers.
_REST_BYTES: Final = _REST.size
_pack_prefix: Final = PREFIX.pack
_pack_rest: Final = _REST.pack
_FLUSH_START: Final = struct.Struct(">Q")
_FLUSH_START_AT: Final = struct.calcsize(">IIBHIQ")
_FLUSH: Final = struct.Struct(">IQ")  # leader_epoch, flush_start
_POSITION: Final = "I"
_ITEM_TYPES: Final = {tuple}
# Largest distance, in bytes, of a plausible flush_start behind the end of a file (1 TiB). If bytes
# were removed from the middle of the file, the batches behind them have flush_starts beyond its
# end; a larger distance is taken for noise.
_POSITION_SLACK: Final = 1 << 40

# Size in bytes up to which msgspec unpacks a batch. Nearly every batch is one short entry, and a
# load reads millions: msgspec reads and checks one in a single call, but reads long columns more
# slowly than msgpack.
SHORT_BYTES: Final = 128
_Plain = int | str | None
_Fields = tuple[_Plain | tuple[_Plain, ...], ...]
# Errors of decode_short for anything but exactly one entry of the common shape.
NOT_SHORT: Final = (MsgspecError, ValueError)
decode_short: Final = MsgspecDecoder(
    tuple[tuple[Literal[0], int, int, str, _Fields, _Fields | None]]
).decode

# An entry as msgpack has it: (offset_delta, type, version, scope, key, value).
Item = tuple[Any, ...]
Items = tuple[Item, ...]


class Entry(NamedTuple):
    """One change of one key. `value` None is a tombstone; `key` is any array of msgpack."""

    type: int
    version: int
    scope: str
    key: object
    value: object


class Batch(Struct, frozen=True, gc=False):
    """Entries that one request wrote to one partition, atomically.

    Attributes:
        items: The entries as msgpack has them: a load reads millions, and making an `Entry` of
            each would double the cost.
        end_offset: The offset that follows the last one.
        num_keys: Number of keys that the entries stand for; a wide entry stands for several.
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
        """One entry for each key, with its offset; computed at each access."""
        base_offset = self.base_offset
        singles = chain.from_iterable(map(split_item, self.items))
        return tuple([(base_offset + item[0], Entry._make(item[1:])) for item in singles])


def epoch_by_clock(wall_ms: int) -> int:
    """Return the lowest leader epoch of a start at this time: minutes since 1970.

    The clock puts a restored copy of a folder, or an empty one, above the epochs of all earlier
    starts, unless there was more than one start per minute.
    """
    return min(max(wall_ms // _MINUTE_MS, 1), _CLOCK_EPOCH_MAX)


@dataclass(frozen=True, slots=True)
class FlushKey:
    """Secret of a data folder, never disclosed; it isn't in the repr either."""

    secret: bytes = field(repr=False)

    def check(self, leader_epoch: int, flush_start: int) -> int:
        """Return the `check` field for the header of each batch of the flush."""
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
    """A batch with a valid checksum; its entries are still packed, up to `end`."""

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
        """The byte at which the packed entries begin."""
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
    """Batches that are written and synced by one call.

    Attributes:
        start: Journal position of the first byte.
        data: Bytes of the batches.
        rolls: Whether the flush begins a new segment.
        ends: Partition -> end offset that is durable once the flush is written.
        batches: Partition and position within `data` of each batch.
    """

    start: int
    data: bytes
    rolls: bool
    ends: dict[int, int]
    batches: list[tuple[int, int]]


class OpenFlush:
    """The next flush while batches are still added, each encoded when it is added.

    Attributes:
        start: Journal position of the first byte.
        batches: Partition and position in the flush of each batch.
    """

    __slots__ = ("_check", "_data", "_leader_epoch", "batches", "start")

    def __init__(self, start: int, leader_epoch: int, key: FlushKey) -> None:
        """Begin an empty flush; its batches carry *leader_epoch* and the check made with *key*."""
        self.start = start
        self.batches: list[tuple[int, int]] = []
        self._leader_epoch = leader_epoch
        self._check = key.check(leader_epoch, start)
        self._data = bytearray()

    @property
    def size_bytes(self) -> int:
        """Size of the batches so far."""
        return len(self._data)

    def add(self, partition: int, base_offset: int, timestamp_ms: int, packed: bytes) -> None:
        """Append a batch of the *packed* array of entries."""
        # Inlined `encode_batch`, as nearly every request takes this path.
        epoch, check = self._leader_epoch, self._check
        rest = _pack_rest(FORMAT, partition, epoch, base_offset, self.start, timestamp_ms, check)
        body = rest + packed
        data = self._data
        self.batches.append((partition, len(data)))
        data += _pack_prefix(len(body), crc32(body))
        data += body

    def data(self) -> bytes:
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
        LogCorrupt: The entries are malformed in spite of a valid checksum.
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
    """Yield the batch of *raw*, whose entries are *packed*; a large batch in parts.

    Raises:
        LogCorrupt: The entries are malformed.
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
    """Return whether an entry with this key is wide: the last element of the key is an array."""
    return type(key) is tuple and key != () and type(key[-1]) is tuple


def split_item(item: Item) -> Sequence[Item]:
    """Return one entry for each key of a wide entry; any other entry unchanged."""
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
    """Return a wide entry of the keys from *start* to before *stop* of the wide *item*."""
    delta, type_, version, scope, key, value = item
    part = slice(start, stop)
    cut = tuple([column[part] if type(column) is tuple else column for column in value])
    return delta + start, type_, version, scope, (*key[:-1], key[-1][part]), cut


def numbered(entries: Iterable[Sequence[Any]]) -> tuple[list[Item], int]:
    """Return the entries, each with its offset delta, and the number of keys they stand for."""
    items: list[Item] = []
    delta = 0
    for entry in entries:
        items.append((delta, *entry))
        delta += _width(entry[3])
    return items, delta


def _width(key: Any) -> int:
    """Return the number of keys that an entry stands for."""
    return len(key[-1]) if is_wide(key) else 1


def unpack_items(packed: bytes, *, has_gaps: bool = True) -> tuple[Items, int, int]:
    """Return the entries of one batch as msgpack has them, and the results of `check_items`.

    Raises:
        ValueError: The entries are malformed.
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
    """Do as `unpack_items`, for a batch that `decode_short` doesn't accept."""
    try:
        items: Items = msgpack.unpackb(packed, use_list=False)
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as exc:
        raise ValueError(str(exc) or type(exc).__name__) from exc
    return items, *check_items(items, has_gaps=has_gaps)


def check_items(items: Items, end: int = 0, *, has_gaps: bool) -> tuple[int, int]:
    """Return the offset delta behind the last of *items*, and the number of keys they stand for.

    Args:
        items: Consecutive entries of one batch; at least one.
        end: The delta behind the entry before them.
        has_gaps: Whether deltas may be missing, as a compaction drops entries.

    Raises:
        ValueError: The entries are malformed.
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
    """Yield the entries of one batch, at most *part_keys* keys at a time.

    Raises:
        ValueError: The entries are malformed.
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
    """Yield *items* in parts of at most *part_keys* keys, each as `unpack_items` returns it.

    A wide entry with more keys is cut.
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
    """Return the first byte behind *damage* of a batch whose flush began behind it; None if none.

    A valid header is enough; the batch itself may be damaged, too. As a flush begins only when
    the previous one is on disk, its header alone proves that the damaged flush was complete.

    Args:
        data: The segment's bytes.
        damage: Byte at which the first unreadable batch begins.
        base_position: Journal position of the segment's first byte.
        format_: Format of the segment's batches. Format 1 has no check, so there the whole batch
            must be valid.
        key: Secret of the folder; None if all of it has format 1.
    """
    marker = bytes((format_,))
    lowest = base_position + damage + 1
    highest = base_position + len(data) + _POSITION_SLACK
    # The first candidate begins one byte behind the damage. `find` passes over zeros at the speed
    # of memchr. In format 2 the test of a candidate takes constant time: no crc is computed.
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
    """Return whether the header at byte *start* was written by this folder's daemon, not forged.

    Always true in format 1, which has no check: there the caller must verify the crc as well.
    """
    return data[start + PREFIX_BYTES] == 1 or (key is not None and key.made(data, start))


class Index(NamedTuple):
    """Content of a sealed segment's footer."""

    base: int
    end: int
    end_offsets: dict[int, int]
    positions: dict[int, "array[int]"]
    cluster_id: str = ""  # "": not known.
    format: int = FORMAT  # Format of the batches.


def encode_footer(index: Index) -> bytes:
    """Return the bytes of the index and its trailer, which seal a segment."""
    rows = [
        [partition, index.end_offsets[partition], _packed(index.positions.get(partition))]
        for partition in sorted(index.end_offsets)
    ]
    body: bytes = msgpack.packb([index.format, index.base, index.end, rows, index.cluster_id])
    return body + TRAILER.pack(len(body), crc32(body), MAGIC)


def decode_footer(data: bytes) -> Index | None:
    """Return the index in *data*, which must be exactly one footer; None if it is not valid."""
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
