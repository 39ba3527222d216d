"""Frames on a socket: ``u32 size | …``, as all the protocols here have them.

`Talk` asks and waits, before and after a load. `AnswerReader` judges answers under load.
"""

import socket
import ssl
from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

from bench.processes import LoadError
from protocol.connection import ClientConnection
from protocol.messages import Request

# In the header of our requests and answers; peers have it at the same place in theirs.
REQUEST_CORRELATION_AT: Final = 8
CORRELATION_AT: Final = 4
BODY_AT: Final = 16
_TIMEOUT_S: Final = 120
_SIZE = Struct(">I")
_CORRELATION = Struct(">i")


class Talk:
    """Blocking questions and answers on a connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._rest = b""

    def send(self, frames: Sequence[bytes | bytearray]) -> None:
        """Send all of them."""
        self.sock.sendall(b"".join(frames))

    def read(self, count: int) -> list[bytes]:
        """Return the next answers.

        Raises:
            ConnectionError: The server closed the connection.
        """
        frames: list[bytes] = []
        while True:
            more, self._rest = _split(self._rest, count - len(frames))
            frames += more
            if len(frames) == count:
                return frames
            data = self.sock.recv(1 << 18)
            if not data:
                raise ConnectionError("the server closed the connection before it had answered")
            self._rest += data

    def ask(self, frames: Sequence[bytes | bytearray]) -> list[bytes]:
        """Send all, then read an answer for each, as `exchange` does."""
        return exchange([self], frames)

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()


def connect(host: str, port: int, trusting: ssl.SSLContext | None = None) -> Talk:
    """Return a new connection, over TLS to whoever *trusting* trusts."""
    sock = socket.create_connection((host, port), timeout=_TIMEOUT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Talk(sock if trusting is None else trusting.wrap_socket(sock, server_hostname=host))


def exchange(talks: Sequence[Talk], frames: Sequence[bytes | bytearray]) -> list[bytes]:
    """Send frame n on connection n modulo their number, then read an answer for each.

    Returns:
        All answers, ordered by their correlation ids.

    Raises:
        OSError: A connection was closed, or there was no answer in time.
    """
    parts = [frames[n :: len(talks)] for n in range(len(talks))]
    for talk, part in zip(talks, parts, strict=True):
        talk.send(part)
    answers = [
        answer for talk, part in zip(talks, parts, strict=True) for answer in talk.read(len(part))
    ]
    return sorted(
        answers, key=lambda answer: int(_CORRELATION.unpack_from(answer, CORRELATION_AT)[0])
    )


def ask(talks: Sequence[Talk], requests: Sequence[Request]) -> list[Any]:
    """Send requests of our protocol as `exchange` does, and return the decoded answers."""
    return decoded(requests, exchange(talks, encoded(requests)))


def encoded(requests: Sequence[Request]) -> list[bytes]:
    """Return the frames of these requests; the correlation id of each is its number."""
    return [frame_of(request, number) for number, request in enumerate(requests)]


def frame_of(request: Request, correlation_id: int) -> bytes:
    """Return the frame of a request in its newest version."""
    return _patched(ClientConnection().send(request)[1], REQUEST_CORRELATION_AT, correlation_id)


def decoded(requests: Sequence[Request], answers: Sequence[bytes]) -> list[Any]:
    """Return the answers in these frames.

    Raises:
        RemoteProtocolError: One is none.
    """
    return [response_in(answer, to=r) for r, answer in zip(requests, answers, strict=True)]


def response_in(answer: bytes, *, to: Request) -> Any:
    """Return the answer in a frame to a request, whatever its correlation id.

    Raises:
        RemoteProtocolError: It is none.
    """
    connection = ClientConnection()
    correlation_id, _ = connection.send(to)
    (event,) = connection.receive(_patched(answer, CORRELATION_AT, correlation_id))
    return event.response


def accepted(answers: Sequence[Any], allowed: int = 0) -> None:
    """Raise `LoadError` unless every answer has this error."""
    wrong = [answer for answer in answers if answer.error != allowed]
    if wrong:
        raise LoadError(f"{len(wrong)} of {len(answers)} refused, the first with {wrong[0]!r}")


def _patched(frame: bytes, at: int, correlation_id: int) -> bytes:
    patched = bytearray(frame)
    _CORRELATION.pack_into(patched, at, correlation_id)
    return bytes(patched)


def _split(data: bytes, most: int) -> tuple[list[bytes], bytes]:
    """Cut at most so many complete frames off the front; return them and the rest."""
    frames: list[bytes] = []
    at = 0
    while len(frames) < most and len(data) - at >= 4:
        frame_end = at + 4 + _SIZE.unpack_from(data, at)[0]
        if frame_end > len(data):
            break
        frames.append(data[at:frame_end])
        at = frame_end
    return frames, data[at:]


class AnswerReader:
    """Splits a byte stream into frames ``u32 size | …`` and checks each against what is expected.

    A benchmark must not get faster by being answered wrongly, and decoding every answer would
    make the load generator the bottleneck. So the tail of each frame (what follows the header)
    is compared byte for byte with an answer that was decoded and judged before the load began.

    Args:
        slot_at: Where in the frame the i32 stands that says which request is answered.
        answer_from: Where in the frame the compared bytes begin.
        answer_until: Where they end, if not with the frame.
        answers: What is expected, by slot. A live sequence: its items may change under way.

    Attributes:
        wrong: How many answers were not the expected ones.
        wrong_example: The first of them.
    """

    __slots__ = (
        "_answer_from",
        "_answer_until",
        "_answers",
        "_minimum",
        "_rest",
        "_slot_at",
        "wrong",
        "wrong_example",
    )

    def __init__(
        self,
        *,
        slot_at: int,
        answer_from: int,
        answers: Sequence[bytes | bytearray],
        answer_until: int | None = None,
    ) -> None:
        self._slot_at = slot_at
        self._answer_from = answer_from
        self._answer_until = answer_until
        self._answers = answers
        self._minimum = slot_at + _CORRELATION.size
        self._rest = b""
        self.wrong = 0
        self.wrong_example = b""

    def feed(self, data: bytes) -> list[int]:
        """Take what was read; return the slots that were answered, in the order of arrival.

        Raises:
            ValueError: A frame is too short to say what it answers, or answers nothing we asked.
        """
        if self._rest:
            data = self._rest + data
        slots: list[int] = []
        at, end = 0, len(data)
        while end - at >= 4:
            frame_end = at + 4 + _SIZE.unpack_from(data, at)[0]
            if frame_end - at < self._minimum:
                raise ValueError(f"an answer of only {frame_end - at} bytes")
            if frame_end > end:
                break
            slot = _CORRELATION.unpack_from(data, at + self._slot_at)[0]
            if not 0 <= slot < len(self._answers):
                raise ValueError(f"an answer to request {slot}, which was not sent")
            until = frame_end if self._answer_until is None else at + self._answer_until
            if data[at + self._answer_from : until] != self._answers[slot]:
                self.wrong += 1
                self.wrong_example = self.wrong_example or data[at:frame_end]
            slots.append(slot)
            at = frame_end
        self._rest = data[at:]
        return slots
