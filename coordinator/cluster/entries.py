"""Format of the log in ZooKeeper: the bytes of one entry, which is one znode. No I/O.

An entry is

    u8 format | u8 codec | u16 part | u16 parts | u32 epoch | 16 bytes claim | u64 index
    | u32 crc32 of the header and the body | body

big-endian. The body is batches in the format of `coordinator.log.format`, back to back, with
flush_start and check 0: a znode is never torn, and no reader searches behind damage. The batches
are one *unit*. A unit too large for one znode is split over consecutive entries, cut anywhere. A
unit counts once its last part is there. If a leader ended before that, the next entry has another
claim, and readers discard the incomplete unit.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from coordinator.log.errors import LogCorrupt, LogIncompatible
from coordinator.log.format import Batch, RawBatch, batch_at, parts_of

# Lowest and highest format that this release reads and writes. A leader writes a format that all
# nodes read, so a release that adds one runs beside the one before. In format 2 a body may have
# entries of type 1013: end offsets that were reported again.
FORMATS: Final = (1, 2)
# Size limit of an entry in bytes. Small, as ZooKeeper keeps its latest 500 requests in memory,
# three times on its leader.
ENTRY_BYTES_MAX: Final = 64 * 1024
# Size limit of a unit in bytes, unless one batch alone is larger. A unit of this size fits into one
# transaction, with its paths, compressed or not.
UNIT_BYTES: Final = 384 * 1024
# Entries of one unit per transaction, at most.
PIECE_ENTRIES: Final = 7

_PLAIN: Final = 0
_ZLIB: Final = 1
# Size in bytes below which compression costs more than it saves.
_ZLIB_FROM_BYTES: Final = 512
_ZLIB_LEVEL: Final = 1
_HEADER: Final = struct.Struct(">BBHHI16sQ")
_CRC: Final = struct.Struct(">I")
_BODY_AT: Final = _HEADER.size + _CRC.size
_BODY_BYTES_MAX: Final = ENTRY_BYTES_MAX - _BODY_AT


class Part(NamedTuple):
    """An entry whose checksum is right: one part of a unit.

    Attributes:
        codec: Compression of the unit, which is the joined bodies of all parts.
        claim: `Leader.claim` of the leader that wrote the entry.
        body: Bytes of the unit in this part.
    """

    codec: int
    part: int
    parts: int
    epoch: int
    claim: str
    crc32: int
    body: bytes


def encode(
    batches: bytes, epoch: int, claim: str, index: int, number: int = FORMATS[0]
) -> tuple[bytes, ...]:
    """Return the entries of one unit in the format *number*; *index* is that of the first one."""
    codec, body = _PLAIN, batches
    if len(batches) >= _ZLIB_FROM_BYTES:
        packed = zlib.compress(batches, _ZLIB_LEVEL)
        if len(packed) < len(batches):
            codec, body = _ZLIB, packed
    starts = range(0, len(body), _BODY_BYTES_MAX)
    entries = []
    for part, start in enumerate(starts):
        fields = (number, codec, part, len(starts), epoch, bytes.fromhex(claim), index + part)
        header, piece = _HEADER.pack(*fields), body[start : start + _BODY_BYTES_MAX]
        entries.append(header + _CRC.pack(zlib.crc32(piece, zlib.crc32(header))) + piece)
    return tuple(entries)


def decode(data: bytes, index: int) -> Part:
    """Decode the entry *index*.

    Raises:
        LogIncompatible: A newer release wrote it.
        LogCorrupt: The bytes are no valid entry with this index.
    """
    if not data:
        raise LogCorrupt(f"entry {index} is empty")
    lowest, highest = FORMATS
    if not lowest <= data[0] <= highest:
        raise LogIncompatible(
            f"entry {index} has format {data[0]}; this release reads {lowest} to {highest}"
        )
    if len(data) < _BODY_AT:
        raise LogCorrupt(f"entry {index} ends within its header")
    _, codec, part, parts, epoch, claim, own_index = _HEADER.unpack_from(data)
    (crc32,) = _CRC.unpack_from(data, _HEADER.size)
    body = data[_BODY_AT:]
    if zlib.crc32(body, zlib.crc32(data[: _HEADER.size])) != crc32:
        raise LogCorrupt(f"the checksum of entry {index} is wrong")
    if own_index != index or part >= parts or codec > _ZLIB:
        raise LogCorrupt(f"entry {index} says that it is part {part} of {parts} at {own_index}")
    return Part(codec, part, parts, epoch, claim.hex(), crc32, body)


class Joiner:
    """Joins the parts of units, in the order of the log.

    Attributes:
        begun: Parts so far of a unit that is not whole.
    """

    def __init__(self) -> None:
        self.begun: list[Part] = []
        self._epoch = 0

    def take(self, index: int, part: Part) -> bytes | None:
        """Return the packed batches of the unit if *part* completes it, else None.

        Raises:
            LogCorrupt: The part can't follow the one before it, or can't be decompressed.
        """
        begun = self.begun
        if part.epoch < self._epoch:
            raise LogCorrupt(f"entry {index} goes back from epoch {self._epoch} to {part.epoch}")
        self._epoch = part.epoch
        is_same = bool(begun) and begun[-1].claim == part.claim
        if part.part != (len(begun) if is_same else 0):
            raise LogCorrupt(f"entry {index} is part {part.part} of a unit that has not begun")
        if not is_same:
            begun.clear()
        begun.append(part)
        if len(begun) < part.parts:
            return None
        body = b"".join([each.body for each in begun])
        begun.clear()
        if part.codec == _PLAIN:
            return body
        try:
            return zlib.decompress(body)
        except zlib.error as exc:
            raise LogCorrupt(f"the unit that ends with entry {index} can't be read: {exc}") from exc


def raw_batches(data: bytes) -> Iterator[RawBatch]:
    """Yield the raw batches of *data*, which lie back to back. Raises LogCorrupt."""
    at = 0
    while at < len(data):
        raw = batch_at(data, at)
        if raw is None:
            raise LogCorrupt(f"there is no batch at byte {at} of {len(data)}")
        yield raw
        at = raw.end


def batches_in(data: bytes, ends: dict[int, int], *, has_gaps: bool) -> Iterator[Batch]:
    """Yield the decoded batches of *data*, large ones in parts.

    Args:
        data: Whole batches, back to back.
        ends: Partition -> end offset; updated before each yield.
        has_gaps: A compaction may have removed some entries.

    Raises:
        LogCorrupt: A batch is damaged, or begins at the wrong offset.
    """
    for raw in raw_batches(data):
        known = ends.get(raw.partition, 0)
        if raw.base_offset < known or (raw.base_offset > known and not has_gaps):
            raise LogCorrupt(
                f"a batch begins at offset {raw.base_offset} of partition {raw.partition}, "
                f"not at {known}"
            )
        for batch in parts_of(raw, data[raw.entries_at : raw.end], has_gaps=has_gaps):
            ends[raw.partition] = batch.end_offset
            yield batch
