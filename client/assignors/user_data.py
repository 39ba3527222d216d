"""Kafka's StickyAssignorUserData: how eager members tell the next leader what they had.

Version 0 is an array of {topic, array of partitions}, version 1 has the generation behind it;
nothing in the bytes says which it is.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from protocol.errors import LocalProtocolError
from protocol.types import NO_GENERATION, TopicPartition

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")


class Previous(NamedTuple):
    """What a member had, and in which generation."""

    owned: tuple[TopicPartition, ...]
    generation: int = NO_GENERATION


def encode_previous(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Return the bytes of version 1."""
    by_topic: dict[bytes, list[int]] = {}
    for topic, partition in owned:
        by_topic.setdefault(topic.encode(), []).append(partition)
    out = bytearray(_I32.pack(len(by_topic)))
    for name, numbers in by_topic.items():
        if len(name) > 0x7FFF:
            raise LocalProtocolError(f"a string of {len(name)} bytes is over 32767")
        out += _I16.pack(len(name)) + name
        out += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return bytes(out + _I32.pack(generation))


def decode_previous(data: bytes) -> Previous | None:
    """Return what *data* of either version says, None where it can't be read."""
    owned: list[TopicPartition] = []
    at = 4
    try:
        (topics,) = _I32.unpack_from(data)
        for _ in range(topics):
            (length,) = _I16.unpack_from(data, at)
            at += 2
            topic = data[at : at + length].decode()
            at += length
            (count,) = _I32.unpack_from(data, at)
            if min(length, count) < 0:
                return None
            # The check of the length inside comes before anything is allocated.
            numbers = struct.unpack_from(f">{count}i", data, at + 4)
            at += 4 + 4 * count
            owned += [TopicPartition(topic, number) for number in numbers]
    except (struct.error, UnicodeDecodeError):
        return None
    if topics < 0:
        return None
    left = len(data) - at
    return Previous(tuple(owned), _I32.unpack_from(data, at)[0] if left >= 4 else NO_GENERATION)
