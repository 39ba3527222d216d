"""Kafka's ConsumerProtocol: the bytes in which consumers write subscriptions and assignments.

Big-endian, length-prefixed, versions 0-3; a reader takes the fields of the version that it
knows and ignores the rest, so that newer clients can be in the same group. The server
counts bytes that cannot be read as opaque, hence `None` instead of an exception.

Source: Kafka's ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json.
"""

import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from protocol.errors import LocalProtocolError
from protocol.partition import NO_GENERATION, TopicPartition

VERSION_MAX: Final = 3
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")

T = TypeVar("T")


class Subscription(NamedTuple):
    """What a member wants, and what it had.

    Version 1 brought ``owned_partitions``, version 2 ``generation_id``, version 3 ``rack_id``.
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned_partitions: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    rack_id: str | None = None


class Assignment(NamedTuple):
    """What a member gets, in the order of the bytes."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


class _Unreadable(Exception):
    pass


def encode_subscription(subscription: Subscription, version: int = VERSION_MAX) -> bytes:
    """Return *subscription* as Kafka's bytes of *version*."""
    out = bytearray(_I16.pack(version))
    out += _array(subscription.topics, _string)
    out += _nullable_bytes(subscription.user_data)
    if version >= 1:
        out += _topic_partitions(subscription.owned_partitions)
    if version >= 2:
        out += _I32.pack(subscription.generation_id)
    if version >= 3:
        out += _I16.pack(-1) if subscription.rack_id is None else _string(subscription.rack_id)
    return bytes(out)


def decode_subscription(data: bytes) -> Subscription | None:
    """Return the subscription in *data*, None where the bytes can't be read."""
    return _decode(data, _read_subscription)


def subscribed_topics(data: bytes) -> tuple[str, ...] | None:
    """Return the topics of a subscription, None where version, topics or user data can't be read.

    Only what version 0 has is looked at, as Kafka's own coordinator does: a broken tail of a
    later version doesn't hide the topics. The server asks this of every member that joins.
    """
    try:
        (version,), (count,) = _I16.unpack_from(data), _I32.unpack_from(data, 2)
        at = 6
        # A topic has at least two bytes, so a false claim costs nothing.
        if version < 0 or not 0 <= count * 2 <= len(data) - at:
            return None
        topics = []
        for _ in range(count):
            (length,) = _I16.unpack_from(data, at)
            end = at + 2 + length
            if length < 0 or end > len(data):
                return None
            topics.append(data[at + 2 : end].decode())
            at = end
        (length,) = _I32.unpack_from(data, at)
    except (struct.error, UnicodeDecodeError):
        return None
    return tuple(topics) if -1 <= length <= len(data) - at - 4 else None


def encode_assignment(assignment: Assignment, version: int = VERSION_MAX) -> bytes:
    """Return *assignment* as Kafka's bytes; the layout is the same in all versions."""
    return (
        _I16.pack(version)
        + _topic_partitions(assignment.partitions)
        + _nullable_bytes(assignment.user_data)
    )


def decode_assignment(data: bytes) -> Assignment | None:
    """Return the assignment in *data*, None where the bytes can't be read. No bytes own nothing."""
    return _decode(data, _read_assignment) if data else Assignment(())


def _string(value: str) -> bytes:
    encoded = value.encode()
    if len(encoded) > 0x7FFF:
        raise LocalProtocolError(f"a string of {len(encoded)} bytes is over 32767")
    return _I16.pack(len(encoded)) + encoded


def _nullable_bytes(value: bytes | None) -> bytes:
    return _I32.pack(-1) if value is None else _I32.pack(len(value)) + value


def _array(items: Iterable[T], encode: Callable[[T], bytes]) -> bytes:
    encoded = [encode(item) for item in items]
    return _I32.pack(len(encoded)) + b"".join(encoded)


def _topic_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in partitions:
        by_topic.setdefault(topic, []).append(partition)
    return _array(by_topic.items(), lambda t: _string(t[0]) + _array(t[1], _I32.pack))


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise _Unreadable
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def i16(self) -> int:
        number: int = _I16.unpack(self.take(2))[0]
        return number

    def i32(self) -> int:
        number: int = _I32.unpack(self.take(4))[0]
        return number

    def string(self) -> str:
        return self.take(self.i16()).decode()

    def nullable_string(self) -> str | None:
        length = self.i16()
        return None if length == -1 else self.take(length).decode()

    def nullable_bytes(self) -> bytes | None:
        length = self.i32()
        return None if length == -1 else self.take(length)

    def array(self, read: Callable[[], T]) -> tuple[T, ...]:
        count = self.i32()
        # Every element has at least two bytes, so a false claim costs nothing.
        if count < 0 or count * 2 > len(self._data) - self._at:
            raise _Unreadable
        return tuple([read() for _ in range(count)])

    def topic_partitions(self) -> tuple[TopicPartition, ...]:
        topics = self.array(lambda: (self.string(), self.array(self.i32)))
        return tuple([TopicPartition(t, p) for t, partitions in topics for p in partitions])


def _decode(data: bytes, read: Callable[[_Reader, int], T]) -> T | None:
    reader = _Reader(data)
    try:
        version = reader.i16()
        return None if version < 0 else read(reader, version)
    except (_Unreadable, UnicodeDecodeError):
        return None


def _read_subscription(reader: _Reader, version: int) -> Subscription:
    return Subscription(
        topics=reader.array(reader.string),
        user_data=reader.nullable_bytes(),
        owned_partitions=reader.topic_partitions() if version >= 1 else (),
        generation_id=reader.i32() if version >= 2 else NO_GENERATION,
        rack_id=reader.nullable_string() if version >= 3 else None,
    )


def _read_assignment(reader: _Reader, _version: int) -> Assignment:
    return Assignment(reader.topic_partitions(), reader.nullable_bytes())
