"""What is written and synced at once. No I/O in this file."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coordinator.log.format import FORMAT, HEADER_BYTES, PREFIX, REST

_REST_BYTES: Final = REST.size

# partition, base_offset, timestamp_ms, packed entries
OpenBatch = tuple[int, int, int, bytes]


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
    batches: tuple[tuple[int, int], ...]


def encode_flush(
    batches: Sequence[OpenBatch], leader_epoch: int, start: int
) -> tuple[bytes, tuple[tuple[int, int], ...]]:
    """Return the bytes of *batches*, and partition and position in them of each.

    Args:
        batches: In the order in which they were appended.
        leader_epoch: What each of them carries.
        start: The journal position of the flush, known only now that it is sealed.
    """
    # Written out instead of calling `encode_batch`: 1.0 µs a batch instead of 1.6.
    pack_rest, pack_prefix, crc32 = REST.pack, PREFIX.pack, zlib.crc32
    pieces: list[bytes] = []
    places: list[tuple[int, int]] = []
    position = 0
    for partition, base_offset, timestamp_ms, packed in batches:
        rest = pack_rest(FORMAT, partition, leader_epoch, base_offset, start, timestamp_ms)
        size_bytes = len(packed)
        crc = crc32(packed, crc32(rest))
        pieces += (pack_prefix(_REST_BYTES + size_bytes, crc), rest, packed)
        places.append((partition, position))
        position += HEADER_BYTES + size_bytes
    return b"".join(pieces), tuple(places)
