"""ZooKeeper's protocol: offsets as Kafka's first consumers stored them, and the log of a cluster.

A node a group, topic and partition, ``/consumers/GROUP/offsets/TOPIC/PARTITION``, with the offset
in digits; setData overwrites it whatever its version, getData reads it. A multi appends to a log.
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
    Dialect,
    Exchange,
    Load,
    TextExchange,
    Topics,
    group_of,
)
from bench.processes import LoadError
from bench.talk import Talk

_CREATE, _GET_DATA, _SET_DATA, _CHECK, _MULTI = 1, 4, 5, 13, 14
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


# Of a result in the answer to a multi, as of an operation in one: what it is, whether it is none,
# but the end, and an error.
_OPERATION = Struct(">i?i")
_OPERATIONS: Final = 3
_LAST: Final = _OPERATION.pack(-1, True, -1)


class AppendExchange(TextExchange):
    """A multi that makes the next znode of a log, if there is the one before it."""

    __slots__ = ("_before_at",)

    def __init__(self, request: bytes, *, offset: int) -> None:
        super().__init__(request, offset=offset, offset_at=request.index(b"%d" % offset))
        self._before_at = request.index(b"%d" % (offset - 1))

    def next_request(self) -> bytearray:
        """Return the frame to send now, both numbers one higher than the last."""
        at = self._before_at
        self.request[at : at + OFFSET_DIGITS] = b"%d" % self.offset
        return super().next_request()


class MultiDialect(ZooKeeperDialect):
    """What a leader of a cluster of ours does for a flush, and nothing besides.

    A multi: check the version of a znode, check that the last of a log is there, make the next one.
    """

    def __init__(self, load: Load) -> None:
        super().__init__(load)
        if load.workload != COMMIT:
            raise LoadError("a log is appended to")
        # Behind the last header comes the path, which is another one each time.
        self.answer_until = _BODY_AT + _OPERATIONS * _OPERATION.size

    def greet(self, talk: Talk, groups: Sequence[str]) -> None:
        """Open a session, and begin the logs."""
        open_session(talk.sock)
        paths = ["/log"]
        for group in groups:
            paths += [f"/log/{group}", f"{_entry(group, FIRST_OFFSET)}"]
        for path in paths:
            (made,) = talk.ask([_create_request(path, b"", 0)])
            if _error_of(made) not in {0, _NODE_EXISTS}:
                raise LoadError(f"ZooKeeper makes no {path}: error {_error_of(made)}")

    def commit(self, group: str, topics: Topics, slot: int) -> Exchange:
        """Return the multi that makes the first entry."""
        del topics
        check, create = (_OPERATION.pack(kind, False, -1) for kind in (_CHECK, _CREATE))
        fence = _buffer(f"/log/{group}".encode()) + (0).to_bytes(4, "big")
        before = _buffer(_entry(group, FIRST_OFFSET).encode()) + b"\xff\xff\xff\xff"
        entry = _buffer(_entry(group, FIRST_OFFSET + 1).encode())
        data = _buffer(bytes(self.load.size_bytes)) + _OPEN_ACL + bytes(4)
        body = check + fence + check + before + create + entry + data + _LAST
        return AppendExchange(_request(slot, _MULTI, body), offset=FIRST_OFFSET + 1)

    def errors(self, workload: str, answer: bytes) -> Sequence[int]:
        """Return the error code of an answer; of a multi that failed its results tell."""
        del workload
        if error := _error_of(answer):
            return [error]
        kind: int = _OPERATION.unpack_from(answer, _BODY_AT)[0]
        return [0 if kind == _CHECK else kind]

    def differences(self, talk: Talk, connection: int, exchanges: Sequence[Exchange]) -> int:
        """Return how many logs do not end where the last answer said."""
        different = 0
        for slot, exchange in enumerate(exchanges):
            path = _entry(group_of(self.load, connection, slot), exchange.offset)
            (answer,) = talk.ask([_request(slot, _GET_DATA, _buffer(path.encode()) + b"\0")])
            different += _error_of(answer) != 0
        return different


def _entry(group: str, number: int) -> str:
    return f"/log/{group}/{number}"
