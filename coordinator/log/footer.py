"""The index at the end of a sealed segment: where each partition's batches are. No I/O here.

    msgpack [format, base, end, [[partition, end_offset, positions]...], cluster_id]
    u32 length of that | u32 crc of that | 8 bytes magic

`positions` are big-endian u32 byte positions in the file; the partition's list may be empty: then
the segment has none of its batches, and `end_offset` carries on what is known from the older ones.
Older footers end without the cluster id.
"""

import struct
import sys
import zlib
from array import array
from typing import Final, NamedTuple

import msgpack

from coordinator.log.format import FORMAT

TRAILER: Final = struct.Struct(">II8s")  # length and crc of the index, magic
MAGIC: Final = b"OFFINDEX"
_POSITION: Final = "I"


class Index(NamedTuple):
    """What a footer says."""

    base: int
    end: int
    end_offsets: dict[int, int]
    positions: dict[int, "array[int]"]
    cluster_id: str = ""  # Not known.


def encode_footer(index: Index) -> bytes:
    """Return the bytes that seal a segment."""
    rows = [
        [partition, index.end_offsets[partition], _packed(index.positions.get(partition))]
        for partition in sorted(index.end_offsets)
    ]
    body: bytes = msgpack.packb([FORMAT, index.base, index.end, rows, index.cluster_id])
    return body + TRAILER.pack(len(body), zlib.crc32(body), MAGIC)


def decode_footer(data: bytes) -> Index | None:
    """Read a footer of exactly these bytes; None if they are not a whole, undamaged one."""
    body = len(data) - TRAILER.size
    if body < 0:
        return None
    length, crc, magic = TRAILER.unpack_from(data, body)
    if magic != MAGIC or length != body or zlib.crc32(data[:body]) != crc:
        return None
    try:
        version, base, end, rows, *newer = msgpack.unpackb(data[:body])
        if version != FORMAT:
            return None
        return Index(
            base,
            end,
            {partition: end_offset for partition, end_offset, _ in rows},
            {partition: _unpacked(positions) for partition, _, positions in rows},
            newer[0] if newer else "",
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
