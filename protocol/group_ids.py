"""Rules for group ids, and the offsets partition that a group id belongs to."""

import re
from functools import lru_cache
from operator import mul
from typing import Final

NODE_PARTITION: Final = 0xFFFF  # The node's own, with the topics: no group belongs to it.
GROUP_ID_BYTES_MAX: Final = 255
NAME_BYTES_MAX: Final = 255

# C0, DEL and C1. `isprintable` alone is too strict: it refuses a no-break space.
# Whoever reads why a request was refused sees the pattern, and so the comment in it.
NO_CONTROL_CHARACTERS: Final = r"(?#no control characters)\A[^\x00-\x1f\x7f-\x9f]*\Z"
_without_control_characters: Final = re.compile(NO_CONTROL_CHARACTERS).match


def name_error(name: str, max_bytes: int) -> str | None:
    """Return why *name* is not a legal name of at most *max_bytes* UTF-8 bytes, or None."""
    if not name:
        return "it is empty"
    try:
        is_long = len(name) > max_bytes or (not name.isascii() and len(name.encode()) > max_bytes)
    except UnicodeEncodeError:  # Halves of characters, as JSON can write them.
        return "it is no UTF-8"
    if is_long:
        return f"it is longer than {max_bytes} bytes of UTF-8"
    if not name.isprintable() and not _without_control_characters(name):
        return "it contains control characters"
    return None


def group_id_error(group_id: str) -> str | None:
    """Return why *group_id* is not a legal group id, or None."""
    return name_error(group_id, GROUP_ID_BYTES_MAX)


# 31 ** n, for strings as long as a group id may be.
_POWERS: Final = [pow(31, n, 1 << 32) for n in range(GROUP_ID_BYTES_MAX + 1)]


def java_string_hash(text: str) -> int:
    """Return ``String.hashCode()`` of *text*: over UTF-16 code units, wrapping at 32 bits."""
    if text.isascii() and len(text) < len(_POWERS):
        hash_: int = sum(map(mul, text.encode()[::-1], _POWERS)) & 0xFFFFFFFF
    else:
        hash_ = 0
        units = text.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            hash_ = (31 * hash_ + (high << 8 | low)) & 0xFFFFFFFF
    return hash_ - 0x1_0000_0000 if hash_ >= 0x8000_0000 else hash_


# A server is asked about the same groups again and again; looking up is cheaper than hashing.
@lru_cache(maxsize=65_536)
def offsets_partition(group_id: str, num_partitions: int) -> int:
    """Return the offsets partition that keeps *group_id*, as Kafka's ``partitionFor``."""
    hash_ = java_string_hash(group_id)
    # Kafka's Utils.abs: the smallest int has no positive twin and counts as 0.
    return 0 if hash_ == -0x8000_0000 else abs(hash_) % num_partitions
