"""ZooKeeper's protocol: offsets as Kafka's first consumers stored them.

A node a group, topic and partition, ``/consumers/GROUP/offsets/TOPIC/PARTITION``, with the offset
in digits; setData overwrites it whatever its version, getData reads it.
"""

import socket
from collections.abc import Sequence
from struct import Struct
from typing import Final

from bench.dialects import (
    COMMIT,
    FETCH,
    FIRST_OFFSET,
    OFFSET_DIGITS,
    TOPIC,
    UNIFORM,
    AnswerReader,
    DialectError,
    Exchange,
    Load,
    Reader,
    Talk,
    TextExchange,
    first_offset,
    group_of,
)

_CREATE, _GET_DATA, _SET_DATA = 1, 4, 5
_NODE_EXISTS: Final = -110
_ANY_VERSION: Final = -1
_SESSION_MS: Final = 40_000
_CONNECT = Struct(
    ">iqiqi16s?"
)  # Protocol version, last zxid, timeout, session, password, read-only.
_REPLY = Struct(">iiqi")  # Size, xid, zxid, error; then what was asked for.
_XID_AT: Final = 4
_ERROR_AT: Final = 16
_BODY_AT: Final = 20
# Behind the error of a setData stands the node's Stat, which begins with the transaction that
# made the node. That one stays; the transaction and time of the last change, next to it, don't.
_SET_ANSWER_UNTIL: Final = _BODY_AT + 8
_OPEN_ACL: Final = (
    (1).to_bytes(4, "big") + (31).to_bytes(4, "big") + b"\0\0\0\5world" + b"\0\0\0\6anyone"
)


def _buffer(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "big") + raw


def _request(xid: int, operation: int, body: bytes) -> bytes:
    return _buffer(xid.to_bytes(4, "big") + operation.to_bytes(4, "big") + body)


def offset_path(group: str, partition: int = 0) -> str:
    """Return the node of a group's offset of a partition."""
    return f"/consumers/{group}/offsets/{TOPIC}/{partition}"


def set_request(path: str, offset: int, xid: int) -> tuple[bytes, int]:
    """Return the setData, and where the offset's digits stand."""
    digits = b"%d" % offset
    body = _buffer(path.encode()) + _buffer(digits)
    frame = _request(xid, _SET_DATA, body + _ANY_VERSION.to_bytes(4, "big", signed=True))
    return frame, len(frame) - 4 - OFFSET_DIGITS


def get_request(path: str, xid: int) -> bytes:
    """Return the getData, without a watch."""
    return _request(xid, _GET_DATA, _buffer(path.encode()) + b"\0")


def _create_request(path: str, data: bytes, xid: int) -> bytes:
    body = _buffer(path.encode()) + _buffer(data) + _OPEN_ACL + bytes(4)  # Flags 0: it stays.
    return _request(xid, _CREATE, body)


def error_of(frame: bytes) -> int:
    """Return the error code of an answer."""
    error: int = _REPLY.unpack_from(frame)[3]
    return error


def open_session(sock: socket.socket) -> None:
    """Introduce the connection; no request is served before.

    Raises:
        ConnectionError: The server hung up: it isn't serving yet.
    """
    Talk(sock).ask([_buffer(_CONNECT.pack(0, 0, _SESSION_MS, 0, 16, bytes(16), False))])


def _judge(answers: Sequence[bytes], *, besides: int = 0) -> None:
    errors = {error_of(answer) for answer in answers} - {0, besides}
    if errors:
        raise DialectError(f"ZooKeeper refused what the load asks for: errors {sorted(errors)}")


class ZooKeeperDialect:
    """A consumer that stores its offsets in ZooKeeper."""

    def __init__(self, load: Load) -> None:
        if load.workload not in {COMMIT, FETCH} or (load.partitions, load.kind) != (1, UNIFORM):
            raise DialectError("ZooKeeper stores one offset a request")
        self._load = load

    def prepare(self, sock: socket.socket, connection: int) -> list[Exchange]:
        """Open a session, create the nodes, ask every slot's request once and judge the answer.

        Raises:
            DialectError: The server refuses something.
        """
        load, talk = self._load, Talk(sock)
        open_session(sock)
        groups = [group_of(load, connection, slot) for slot in range(load.window)]
        # One depth after the other: a node can't be made before its parent.
        depths = [offset_path(group).split("/") for group in groups]
        for depth in range(2, len(depths[0]) + 1):
            paths = sorted({"/".join(parts[:depth]) for parts in depths})
            made = talk.ask([_create_request(path, b"", 0) for path in paths])
            _judge(made, besides=_NODE_EXISTS)
        sets = [
            set_request(offset_path(group), FIRST_OFFSET, slot) for slot, group in enumerate(groups)
        ]
        answers = talk.ask([frame for frame, _ in sets])
        _judge(answers)
        if load.workload == COMMIT:
            return [
                TextExchange(
                    frame,
                    answer=answer[_ERROR_AT:_SET_ANSWER_UNTIL],
                    offset=FIRST_OFFSET,
                    offset_at=at,
                )
                for (frame, at), answer in zip(sets, answers, strict=True)
            ]
        gets = [get_request(offset_path(group), slot) for slot, group in enumerate(groups)]
        answers = talk.ask(gets)
        if any(stored_offset(answer) != first_offset(0) for answer in answers):
            raise DialectError("ZooKeeper answered a get with another offset than was set")
        return [
            Exchange(frame, answer=answer[_ERROR_AT:])
            for frame, answer in zip(gets, answers, strict=True)
        ]

    def reader(self, exchanges: Sequence[Exchange]) -> Reader:
        """Return a reader that knows answers by their xid."""
        return AnswerReader(
            slot_at=_XID_AT,
            answer_from=_ERROR_AT,
            answer_until=_SET_ANSWER_UNTIL if self._load.workload == COMMIT else None,
            answers=[exchange.answer for exchange in exchanges],
        )

    def differences(
        self, sock: socket.socket, connection: int, exchanges: Sequence[Exchange]
    ) -> int:
        """Return how many nodes do not hold the offset that was acknowledged last."""
        if self._load.workload != COMMIT:
            return 0
        requests = [
            get_request(offset_path(group_of(self._load, connection, slot)), slot)
            for slot in range(len(exchanges))
        ]
        answers = Talk(sock).ask(requests)
        return sum(
            stored_offset(answer) != exchange.offset
            for exchange, answer in zip(exchanges, answers, strict=True)
        )


def stored_offset(answer: bytes) -> int | None:
    """Return the offset that a getData was answered with, None if with an error."""
    if error_of(answer):
        return None
    length = int.from_bytes(answer[_BODY_AT : _BODY_AT + 4], "big")
    return int(answer[_BODY_AT + 4 : _BODY_AT + 4 + length])
