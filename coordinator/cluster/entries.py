"""The bytes of the log in ZooKeeper: what one znode of it holds. No I/O.

An entry is

    u8 format | u8 codec | u16 part | u16 parts | u32 epoch | 16 bytes claim | u64 index
    | u32 crc32 of all that and the body | body

big-endian. The body is batches as `coordinator.log.format` has them, back to back, with flush_start
and check 0: nobody searches behind damage here, and nothing is torn. They are one *unit*: what is
too large for one znode lies in several, in a row, and its body is cut anywhere. A unit counts once
its last part is there. A leader that ended before has left a beginning: what follows then is of
another claim, and drops it.
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from coordinator.log.errors import LogCorrupt, LogIncompatible
from coordinator.log.format import Batch, RawBatch, batch_at, parts_of

# The lowest and the highest that this release reads, and writes. A leader writes one that all nodes
# read, so a release that adds one runs beside the one before. In format 2 a body may have
# entries of type 1013: ends that were reported again.
FORMATS: Final = (1, 2)
# ZooKeeper keeps its latest 500 requests in memory, three times on its leader: so none is large.
ENTRY_BYTES_MAX: Final = 64 * 1024
# A unit of no more than this fits into one transaction, with its paths, compressed or not.
UNIT_BYTES: Final = 384 * 1024
# So many bytes of a unit go into one transaction, if it has more.
PIECE_ENTRIES: Final = 7

_PLAIN: Final = 0
_ZLIB: Final = 1
# Below this, compressing saves less than it costs.
_ZLIB_FROM_BYTES: Final = 512
_ZLIB_LEVEL: Final = 1
_HEADER: Final = struct.Struct(">BBHHI16sQ")
_CRC: Final = struct.Struct(">I")
_BODY_AT: Final = _HEADER.size + _CRC.size
_BODY_BYTES_MAX: Final = ENTRY_BYTES_MAX - _BODY_AT


class Part(NamedTuple):
    """An entry whose checksum is right.

    Attributes:
        codec: How the bodies of all parts, joined, are packed.
        claim: As in `Leader`, of who wrote it.
        body: Its share of the unit.
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
    """Return the entries of one unit in the format *number*, the first one for *index*."""
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
    """Return what the entry *index* holds.

    Raises:
        LogIncompatible: A newer release wrote it.
        LogCorrupt: It is no such entry.
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
    """Joins the parts of units, as they come.

    Attributes:
        begun: The parts so far of a unit that is not whole.
    """

    def __init__(self) -> None:
        self.begun: list[Part] = []
        self._epoch = 0

    def take(self, index: int, part: Part) -> bytes | None:
        """Return the batches of the unit that *part* makes whole, or None.

        Raises:
            LogCorrupt: It can't follow what came before it.
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
    """Yield where the batches of *data* lie, which are back to back. Raises LogCorrupt."""
    at = 0
    while at < len(data):
        raw = batch_at(data, at)
        if raw is None:
            raise LogCorrupt(f"there is no batch at byte {at} of {len(data)}")
        yield raw
        at = raw.end


def batches_in(data: bytes, ends: dict[int, int], *, has_gaps: bool) -> Iterator[Batch]:
    """Yield the batches of *data*, the large ones in parts.

    Args:
        data: Whole batches, back to back.
        ends: Partition -> end offset; moves along with what is yielded.
        has_gaps: A compaction may have taken some.

    Raises:
        LogCorrupt: They are not as they are written.
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
