"""What is written and synced at once. No I/O in this file."""

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.log.format import HEADER_BYTES, encode_batch

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
    pieces: list[bytes] = []
    places: list[tuple[int, int]] = []
    position = 0
    for partition, base_offset, timestamp_ms, packed in batches:
        raw = (partition, leader_epoch, base_offset, start, timestamp_ms)
        pieces += encode_batch(raw, packed)
        places.append((partition, position))
        position += HEADER_BYTES + len(packed)
    return b"".join(pieces), tuple(places)
