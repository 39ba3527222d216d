"""Kafka's own protocol: simple consumers' commits and fetches of offsets.

The newest versions without tagged fields: OffsetCommit 7, OffsetFetch 5, FindCoordinator 2 and
CreateTopics 4. Kafka answers the requests of a connection one after the other, and repeats the
correlation id, so that answers are found as ours are.
"""

import socket
import time
from collections.abc import Callable, Sequence
from struct import Struct, unpack_from
from typing import Final

from bench.dialects import (
    ALL_TOPICS,
    COMMIT,
    FETCH,
    FIRST_OFFSET,
    METADATA,
    TOPIC,
    TOPICS,
    UNIFORM,
    AnswerReader,
    DialectError,
    Exchange,
    Load,
    Reader,
    Talk,
    first_offset,
    group_of,
    metadata_of,
    topics_of,
)

_HEADER = Struct(">hhi")
_COMMIT, _FETCH, _FIND, _CREATE_TOPICS = (8, 7), (9, 5), (10, 2), (19, 4)
_CORRELATION_AT: Final = 4
_BODY_AT: Final = 8
_CLIENT_ID: Final = "bench"
_TOPIC_EXISTS: Final = 36
# What a broker answers that has no coordinator for the group yet, is loading it, or has just
# heard of the topic.
_NOT_YET: Final = frozenset({3, 14, 15, 16})
_READY_S: Final = 60
_POLL_S: Final = 0.05


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
    topics: Sequence[tuple[str, Sequence[tuple[int, int]]]],
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


def fetch_request(group: str, partitions: int, correlation_id: int) -> bytes:
    """Return the fetch of the topic's first partitions."""
    body = _string(group) + _int32(1) + _string(TOPIC) + _int32(partitions)
    body += b"".join(_int32(partition) for partition in range(partitions))
    return _request(_FETCH, correlation_id, body)


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


def fetched(frame: bytes) -> tuple[list[int], list[int]]:
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
        DialectError: It refuses, or isn't ready in time.
    """
    talk = Talk(sock)
    for name in ALL_TOPICS:
        topic = _string(name) + _int32(partitions) + _int16(1) + _int32(0) + _int32(0)
        body = _int32(1) + topic + _int32(30_000) + b"\0"
        (answer,) = talk.ask([_request(_CREATE_TOPICS, 0, body)])
        (error,) = unpack_from(">h", answer, _BODY_AT + 4 + 4 + 2 + len(name))
        if error not in {0, _TOPIC_EXISTS}:
            raise DialectError(f"CreateTopics was answered with error {error}")
    # The first one asked for makes the broker create the topic of the offsets.
    find = _request(_FIND, 0, _string("bench") + b"\0")
    _until_ready(talk, [find], lambda frame: [unpack_from(">h", frame, _BODY_AT + 4)[0]])


def _until_ready(
    talk: Talk, requests: Sequence[bytes], errors: Callable[[bytes], list[int]]
) -> list[bytes]:
    """Ask again while the broker isn't ready."""
    deadline = time.monotonic() + _READY_S
    while True:
        answers = talk.ask(requests)
        found = {error for answer in answers for error in errors(answer)} - {0}
        if not found:
            return answers
        if found - _NOT_YET or time.monotonic() > deadline:
            raise DialectError(f"Kafka refused what the load asks for: errors {sorted(found)}")
        time.sleep(_POLL_S)


_LOADS: Final = frozenset(
    {(COMMIT, UNIFORM), (COMMIT, TOPICS), (COMMIT, METADATA), (FETCH, UNIFORM)}
)


class KafkaDialect:
    """A consumer that stores its offsets in Kafka."""

    def __init__(self, load: Load) -> None:
        if (load.workload, load.kind) not in _LOADS:
            raise DialectError(f"no load of {load.workload}, {load.kind}, for Kafka")
        self._load = load

    def prepare(self, sock: socket.socket, connection: int) -> list[Exchange]:
        """Ask every slot's request once, and keep the judged answers' bytes.

        Raises:
            DialectError: The broker refuses something.
        """
        load, talk = self._load, Talk(sock)
        groups = [group_of(load, connection, slot) for slot in range(load.window)]
        offsets = [first_offset(partition) for partition in range(load.partitions)]
        topics, metadata = topics_of(load), metadata_of(load)
        commits = [commit_request(group, topics, s, metadata) for s, group in enumerate(groups)]
        answers = _until_ready(talk, [frame for frame, _ in commits], commit_errors)
        if load.workload == COMMIT:
            return [
                Exchange(frame, answer=answer[_BODY_AT:], offset=FIRST_OFFSET, offset_at=at)
                for (frame, at), answer in zip(commits, answers, strict=True)
            ]
        fetches = [fetch_request(group, load.partitions, s) for s, group in enumerate(groups)]
        answers = _until_ready(talk, fetches, lambda answer: fetched(answer)[0])
        if any(fetched(answer)[1] != offsets for answer in answers):
            raise DialectError("Kafka answered a fetch with other offsets than were committed")
        return [
            Exchange(frame, answer=answer[_BODY_AT:])
            for frame, answer in zip(fetches, answers, strict=True)
        ]

    def reader(self, exchanges: Sequence[Exchange]) -> Reader:
        """Return a reader that knows answers by their correlation id."""
        return AnswerReader(
            slot_at=_CORRELATION_AT,
            answer_from=_BODY_AT,
            answers=[exchange.answer for exchange in exchanges],
        )

    def differences(
        self, sock: socket.socket, connection: int, exchanges: Sequence[Exchange]
    ) -> int:
        """Return how many groups do not hold the offset that was acknowledged last."""
        if self._load.workload != COMMIT:
            return 0
        requests = [
            fetch_request(group_of(self._load, connection, slot), 1, slot)
            for slot in range(len(exchanges))
        ]
        answers = [fetched(answer) for answer in Talk(sock).ask(requests)]
        return sum(
            any(errors) or offsets != [exchange.offset]
            for exchange, (errors, offsets) in zip(exchanges, answers, strict=True)
        )
