"""Many requests at once over a few connections, and their answers in the order of the requests."""

import select
import socket
import time
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

from bench.frames import split_frames
from bench.load import LoadError, allow_descriptors
from protocol.apis import RESPONSE_CHECKS, api_of, latest_version, request_body
from protocol.body import pack, unpack_response
from protocol.frames import REQUEST_HEADER, REQUEST_HEADER_BYTES
from protocol.messages import ApiVersionsRequest, Request

BODY_AT: Final = 16
_READ_BYTES: Final = 1 << 18
_ANSWER_S: Final = 120
_HEAD: Final = Struct(">Ii")


class _Talk:
    """What is on its way on one connection."""

    __slots__ = ("_rest", "_sock", "_unsent")

    def __init__(self, sock: socket.socket, unsent: bytearray) -> None:
        self._sock = sock
        self._unsent = unsent
        self._rest = b""

    def sent_all(self) -> bool:
        """Send what the socket takes, and return whether that was all."""
        del self._unsent[: self._sock.send(self._unsent)]
        return not self._unsent

    def frames(self) -> list[bytes]:
        """Return the frames that what was read completes."""
        data = self._sock.recv(_READ_BYTES)
        if not data:
            raise LoadError("the server closed a connection under load")
        whole, self._rest = split_frames(self._rest + data)
        return whole


class Wires:
    """Connections that carry many requests at once, and never block in either direction."""

    def __init__(self, host: str, port: int, connections: int) -> None:
        allow_descriptors(connections + 64)
        self.epoll = select.epoll()
        self.socks: list[socket.socket] = []
        for _ in range(connections):
            sock = socket.create_connection((host, port), timeout=_ANSWER_S)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            self.socks.append(sock)
        # A connection that says nothing at first is closed, and not all are needed at once.
        accepted(self.ask([ApiVersionsRequest("bench", "bench", "1")] * connections))

    def exchange(self, frames: Sequence[bytes]) -> list[bytes]:
        """Send frame n, which has the correlation id n, on connection n modulo their number.

        Returns:
            The body of the answer to each.

        Raises:
            LoadError: A connection was closed, or the answers took too long.
        """
        step = len(self.socks)
        talks = {
            sock.fileno(): _Talk(sock, bytearray().join(frames[n::step]))
            for n, sock in enumerate(self.socks[: len(frames)])
        }
        for fd in talks:
            self.epoll.register(fd, select.EPOLLIN | select.EPOLLOUT)
        answers: dict[int, bytes] = {}
        deadline = time.monotonic() + _ANSWER_S
        while len(answers) < len(frames):
            if time.monotonic() > deadline:
                raise LoadError(f"{len(frames) - len(answers)} of {len(frames)} without an answer")
            for fd, mask in self.epoll.poll(1):
                if mask & select.EPOLLOUT and talks[fd].sent_all():
                    self.epoll.modify(fd, select.EPOLLIN)
                if mask & ~select.EPOLLOUT:
                    for frame in talks[fd].frames():
                        answers[_HEAD.unpack_from(frame)[1]] = frame[BODY_AT:]
        for fd in talks:
            self.epoll.unregister(fd)
        return [answers[n] for n in range(len(frames))]

    def ask(self, requests: Sequence[Request]) -> list[Any]:
        """Return the decoded answers."""
        frames = [encoded(request, number) for number, request in enumerate(requests)]
        return decoded(requests, self.exchange(frames))


def encoded(request: Request, correlation_id: int) -> bytes:
    """Return the frame of *request* in its newest version."""
    key = api_of(request)
    version = latest_version(key)
    body = pack(request_body(request, version))
    size = REQUEST_HEADER_BYTES + len(body)
    return REQUEST_HEADER.pack(size, key, version, correlation_id) + body


def decoded(requests: Sequence[Request], bodies: Sequence[bytes]) -> list[Any]:
    """Return the answers in *bodies*.

    Raises:
        RemoteProtocolError: One is none.
    """
    answers = []
    for request, body in zip(requests, bodies, strict=True):
        key = api_of(request)
        answers.append(unpack_response(body, RESPONSE_CHECKS[key, latest_version(key)][1]))
    return answers


def accepted(answers: Sequence[Any], *allowed: int) -> None:
    """Raise `LoadError` unless every answer has an allowed error; 0 if none is named."""
    wrong = [answer for answer in answers if answer.error not in (allowed or (0,))]
    if wrong:
        raise LoadError(f"{len(wrong)} of {len(answers)} refused, the first with {wrong[0]!r}")
