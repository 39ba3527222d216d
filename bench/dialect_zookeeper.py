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
    OFFSET_DIGITS,
    TOPIC,
    UNIFORM,
    Dialect,
    Exchange,
    Load,
    TextExchange,
    Topics,
)
from bench.processes import LoadError
from bench.talk import Talk

_CREATE, _GET_DATA, _SET_DATA = 1, 4, 5
_NODE_EXISTS: Final = -110
_ANY_VERSION: Final = -1
_SESSION_MS: Final = 40_000
_CONNECT = Struct(
    ">iqiqi16s?"
)  # Protocol version, last zxid, timeout, session, password, read-only.
_REPLY = Struct(">iiqi")  # Size, xid, zxid, error; then what was asked for.
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


def _path(group: str) -> str:
    """Return the node of a group's offset."""
    return f"/consumers/{group}/offsets/{TOPIC}/0"


def _create_request(path: str, data: bytes, xid: int) -> bytes:
    body = _buffer(path.encode()) + _buffer(data) + _OPEN_ACL + bytes(4)  # Flags 0: it stays.
    return _request(xid, _CREATE, body)


def _error_of(frame: bytes) -> int:
    """Return the error code of an answer."""
    error: int = _REPLY.unpack_from(frame)[3]
    return error


def open_session(sock: socket.socket) -> None:
    """Introduce the connection; no request is served before.

    Raises:
        ConnectionError: The server hung up: it isn't serving yet.
    """
    Talk(sock).ask([_buffer(_CONNECT.pack(0, 0, _SESSION_MS, 0, 16, bytes(16), False))])


class ZooKeeperDialect(Dialect):
    """A consumer that stores its offsets in ZooKeeper."""

    answer_from = _ERROR_AT

    def __init__(self, load: Load) -> None:
        if load.workload not in {COMMIT, FETCH} or (load.partitions, load.kind) != (1, UNIFORM):
            raise LoadError("ZooKeeper stores one offset a request")
        super().__init__(load)
        self.answer_until = _SET_ANSWER_UNTIL if load.workload == COMMIT else None

    def greet(self, talk: Talk, groups: Sequence[str]) -> None:
        """Open a session and create the nodes."""
        open_session(talk.sock)
        # One depth after the other: a node can't be made before its parent.
        depths = [_path(group).split("/") for group in groups]
        for depth in range(2, len(depths[0]) + 1):
            paths = sorted({"/".join(parts[:depth]) for parts in depths})
            made = talk.ask([_create_request(path, b"", 0) for path in paths])
            if errors := {_error_of(answer) for answer in made} - {0, _NODE_EXISTS}:
                raise LoadError(f"ZooKeeper makes no nodes: errors {sorted(errors)}")

    def commit(self, group: str, topics: Topics, slot: int) -> Exchange:
        """Return the setData."""
        offset = topics[0][1][0][1]
        body = _buffer(_path(group).encode()) + _buffer(b"%d" % offset)
        frame = _request(slot, _SET_DATA, body + _ANY_VERSION.to_bytes(4, "big", signed=True))
        return TextExchange(frame, offset=offset, offset_at=len(frame) - 4 - OFFSET_DIGITS)

    def fetch(self, group: str, topics: Topics, slot: int) -> Exchange:
        """Return the getData, without a watch."""
        del topics
        return Exchange(_request(slot, _GET_DATA, _buffer(_path(group).encode()) + b"\0"))

    def errors(self, workload: str, answer: bytes) -> Sequence[int]:
        """Return the error code of an answer."""
        del workload
        return [_error_of(answer)]

    def offsets(self, answer: bytes) -> list[int]:
        """Return the offset that a getData was answered with, nothing if there is an error."""
        if _error_of(answer):
            return []
        length = int.from_bytes(answer[_BODY_AT : _BODY_AT + 4], "big")
        return [int(answer[_BODY_AT + 4 : _BODY_AT + 4 + length])]
