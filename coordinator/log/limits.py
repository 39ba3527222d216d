"""The bounds of a journal's settings."""

from typing import Final

from coordinator.log.format import PARTITIONS_MAX

SEGMENT_BYTES_MIN: Final = 64
# The index has 32-bit positions; the last flush of a segment may go past the limit, and so may a
# compaction, up to twice as far.
SEGMENT_BYTES_MAX: Final = 1024 * 1024 * 1024


def check_settings(num_partitions: int, segment_bytes: int) -> None:
    """Refuse what can't be.

    Raises:
        ValueError: A setting is out of its bounds.
    """
    if not 1 <= num_partitions <= PARTITIONS_MAX:
        message = f"num_partitions must be 1 to {PARTITIONS_MAX}, not {num_partitions}"
        raise ValueError(message)
    if not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX:
        message = (
            f"segment_bytes must be {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}, not {segment_bytes}"
        )
        raise ValueError(message)
