"""Kafka's own protocol: simple consumers' commits and fetches of offsets.

The newest versions without tagged fields: OffsetCommit 7, OffsetFetch 5, FindCoordinator 2 and
CreateTopics 4. Kafka answers the requests of a connection one after the other, and repeats the
correlation id, so that answers are found as ours are.
"""

import socket
from collections.abc import Sequence
from functools import partial
from struct import Struct, unpack_from
from typing import Final

from bench.dialects import (
    ALL_TOPICS,
    COMMIT,
    FETCH,
    METADATA,
    TOPIC,
    TOPICS,
    UNIFORM,
    Dialect,
    Exchange,
    Load,
    Topics,
    metadata_of,
    until_ready,
)
from bench.processes import LoadError
from bench.talk import Talk

_HEADER = Struct(">hhi")
_COMMIT, _FETCH, _FIND, _CREATE_TOPICS = (8, 7), (9, 5), (10, 2), (19, 4)
_BODY_AT: Final = 8
_ERROR_AT: Final = _BODY_AT + 4
_CLIENT_ID: Final = "bench"
_TOPIC_EXISTS: Final = 36
# What a broker answers that has no coordinator for the group yet, is loading it, or has just
# heard of the topic.
_NOT_YET: Final = frozenset({3, 14, 15, 16})
# What one answers to who makes topics, while there is no controller.
_NO_CONTROLLER: Final = frozenset({7, 41})


def _int16(value: int) -> bytes:
    return value.to_bytes(2, "big", signed=True)


def _int32(value: int) -> bytes:
    return value.to_bytes(4, "big", signed=True)


def _int64(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)


def _string(value: str | None) -> bytes:
    if value is None:
        return _int16(-1)
    raw = value.encode()
    return _int16(len(raw)) + raw


def _request(api: tuple[int, int], correlation_id: int, body: bytes) -> bytes:
    frame = _HEADER.pack(*api, correlation_id) + _string(_CLIENT_ID) + body
    return _int32(len(frame)) + frame


def commit_request(
    group: str,
    topics: Topics,
    correlation_id: int,
    metadata: str = "",
) -> tuple[bytes, int]:
    """Return the commit of these topics' partitions and offsets, and where the first offset stands.

    As a consumer that is no member commits: generation -1, no member id.
    """
    head = _string(group) + _int32(-1) + _string("") + _string(None) + _int32(len(topics))
    first_at = len(_request(_COMMIT, correlation_id, head + _string(topics[0][0]))) + 4 + 4
    behind = _int32(-1) + _string(metadata)
    for topic, partitions in topics:
        head += _string(topic) + _int32(len(partitions))
        head += b"".join(_int32(p) + _int64(offset) + behind for p, offset in partitions)
    return _request(_COMMIT, correlation_id, head), first_at


def commit_errors(frame: bytes) -> list[int]:
    """Return the error codes of a commit's answer, one a partition."""
    (topics,) = unpack_from(">i", frame, _BODY_AT + 4)
    at, errors = _BODY_AT + 8, list[int]()
    for _ in range(topics):
        at += 2 + unpack_from(">h", frame, at)[0]
        (count,) = unpack_from(">i", frame, at)
        errors += [unpack_from(">h", frame, at + 4 + 6 * i + 4)[0] for i in range(count)]
        at += 4 + 6 * count
    return errors


def _fetched(frame: bytes) -> tuple[list[int], list[int]]:
    """Return a fetch's error codes (the partitions', then the whole's) and its offsets."""
    at = _BODY_AT + 4
    (topics,) = unpack_from(">i", frame, at)
    at += 4
    count = 0
    if topics:  # None if the whole has an error.
        at += 2 + len(TOPIC)
        (count,) = unpack_from(">i", frame, at)
        at += 4
    errors, offsets = [], []
    for _ in range(count):
        _, offset, _, length = unpack_from(">iqih", frame, at)
        at += 18 + max(length, 0)
        offsets.append(offset)
        errors.append(unpack_from(">h", frame, at)[0])
        at += 2
    return [*errors, unpack_from(">h", frame, at)[0]], offsets


def make_ready(sock: socket.socket, partitions: int) -> None:
    """Create the topics, and wait until the broker coordinates groups.

    Raises:
        LoadError: It refuses, or isn't ready in time.
    """
    talk = Talk(sock)
    for name in ALL_TOPICS:
        topic = _string(name) + _int32(partitions) + _int16(1) + _int32(0) + _int32(0)
        create = _request(_CREATE_TOPICS, 0, _int32(1) + topic + _int32(30_000) + b"\0")
        error_at = _BODY_AT + 4 + 4 + 2 + len(name)
        until_ready(talk, [create], partial(_creation_errors, error_at), _NO_CONTROLLER)
    # The first one asked for makes the broker create the topic of the offsets.
    _home(talk, "bench")


def _creation_errors(error_at: int, answer: bytes) -> Sequence[int]:
    (error,) = unpack_from(">h", answer, error_at)
    return () if error == _TOPIC_EXISTS else (error,)


def _home(talk: Talk, group: str) -> tuple[str, int]:
    """Return where a group's coordinator is, once there is one. Raises LoadError."""
    find = _request(_FIND, 0, _string(group) + b"\0")
    (found,) = until_ready(
        talk, [find], lambda frame: unpack_from(">h", frame, _ERROR_AT), _NOT_YET
    )
    at = _ERROR_AT + 2
    at += 2 + max(unpack_from(">h", found, at)[0], 0)  # What it says in words.
    (length,) = unpack_from(">h", found, at + 4)
    host = found[at + 6 : at + 6 + length].decode()
    return host, unpack_from(">i", found, at + 6 + length)[0]


_LOADS: Final = frozenset(
    {(COMMIT, UNIFORM), (COMMIT, TOPICS), (COMMIT, METADATA), (FETCH, UNIFORM)}
)


class KafkaDialect(Dialect):
    """A consumer that stores its offsets in Kafka."""

    answer_from = _BODY_AT
    not_yet = _NOT_YET

    def __init__(self, load: Load) -> None:
        if (load.workload, load.kind) not in _LOADS:
            raise LoadError(f"no load of {load.workload}, {load.kind}, for Kafka")
        super().__init__(load)

    def greet(self, talk: Talk, groups: Sequence[str]) -> None:
        """Say nothing: what the broker needs was done when it was started."""

    def home(self, talk: Talk, group: str) -> tuple[str, int]:
        """Return where a group's coordinator is."""
        return _home(talk, group)

    def commit(self, group: str, topics: Topics, slot: int) -> Exchange:
        """Return a commit."""
        frame, at = commit_request(group, topics, slot, metadata_of(self.load))
        return Exchange(frame, offset=topics[0][1][0][1], offset_at=at)

    def fetch(self, group: str, topics: Topics, slot: int) -> Exchange:
        """Return a fetch of the first topic's partitions."""
        partitions = [partition for partition, _ in topics[0][1]]
        body = _string(group) + _int32(1) + _string(TOPIC) + _int32(len(partitions))
        return Exchange(_request(_FETCH, slot, body + b"".join(map(_int32, partitions))))

    def errors(self, workload: str, answer: bytes) -> Sequence[int]:
        """Return all error codes in the answer to such a request; 0 is none."""
        return commit_errors(answer) if workload == COMMIT else _fetched(answer)[0]

    def offsets(self, answer: bytes) -> list[int]:
        """Return the offsets in a fetch's answer, nothing if there is an error."""
        errors, offsets = _fetched(answer)
        return [] if any(errors) else offsets
