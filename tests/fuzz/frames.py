"""What goes over a native connection: whole frames, damaged ones, and what must come back.

An `Account` reads along. It cuts what was sent into frames as the protocol says, by sizes alone,
so it knows which correlation ids must be answered, however damaged the frames are.
"""

from collections import Counter
from random import Random
from typing import Any, Final

from protocol import messages as m
from protocol.codec import BARE_ERROR_CODEC, REQUEST_CODECS, RESPONSE_CODECS
from protocol.connection import (
    REQUEST_HEADER,
    REQUEST_HEADER_BYTES,
    RESPONSE_HEADER,
    SIZE,
)
from protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from protocol.fields import REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, SYNC_REQUEST_BYTES_MAX
from protocol.messages import APIS, ApiKey, api_of
from protocol.partition import INT32_MAX
from tests.fuzz.grammar import Grammar

# What the bytes of a damaged frame become: lengths and types of msgpack, ends of ranges.
_OPCODES: Final = bytes((0x00, 0x7F, 0x80, 0x90, 0x9F, 0xA0, 0xBF, *range(0xC0, 0xE1), 0xFF))
# What is answered without the shape of any answer; a bug (-1) is not among them.
_BARE: Final = frozenset(
    {ErrorCode.INVALID_REQUEST, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.RESPONSE_TOO_LARGE}
)
_BAD_FRAMING: Final = 0.02  # Of the damaged ones.

Asked = tuple[m.Request, int]


class Broken(AssertionError):
    """The daemon did what it must never do."""


class Account:
    """What one connection was asked, and what it still owes.

    Attributes:
        owed: Correlation id -> how many answers are missing.
        must_close: Something was sent behind which nobody can tell frames apart.
        frames: How many whole frames were sent.
        answers: How many answers came.
    """

    def __init__(self) -> None:
        self.owed: Counter[int] = Counter()
        self.must_close = False
        self.frames = self.answers = 0
        self._asked: dict[int, Asked] = {}
        self._wild: set[int] = set()  # Ids of damaged frames, whose answers can't be read.
        self._sent = bytearray()
        self._received = bytearray()
        self._next_id = 0

    def frame(self, request: m.Request, version: int) -> bytes:
        """Return the frame of a request whose answer will be read."""
        while self._next_id in self._wild:
            self._next_id += 1
        correlation_id = self._next_id
        self._next_id += 1
        key = api_of(request)
        try:
            body = REQUEST_CODECS[key, version].encode(request)
        except LocalProtocolError:  # What breaks a limit can't be turned into an older version.
            version = APIS[key].max_version
            body = REQUEST_CODECS[key, version].encode(request)
        self._asked[correlation_id] = request, version
        return (
            REQUEST_HEADER.pack(REQUEST_HEADER_BYTES + len(body), key, version, correlation_id)
            + body
        )

    def long_frames(self) -> bytes:
        """Return requests whose answers together are several TLS records long."""
        names = tuple(f"group-{number}" for number in range(200))
        request = m.FindCoordinatorRequest(0, names)
        return b"".join([self.frame(request, 0) for _ in range(8)])

    def forget(self, frame: bytes) -> None:
        """Note that *frame* will be damaged: what comes for it can't be read."""
        *_, correlation_id = REQUEST_HEADER.unpack_from(frame)
        del self._asked[correlation_id]

    def sent(self, data: bytes) -> None:
        """Note what was sent, in the order in which it was."""
        self._sent += data
        buffer, at = self._sent, 0
        while len(buffer) - at >= SIZE.size and not self.must_close:
            (size,) = SIZE.unpack_from(buffer, at)
            is_large = size > REQUEST_BYTES_MAX
            if is_large and size <= SYNC_REQUEST_BYTES_MAX and len(buffer) - at >= 6:
                key = int.from_bytes(buffer[at + 4 : at + 6], "big", signed=True)
                is_large = key != ApiKey.SYNC_GROUP
            if size < REQUEST_HEADER_BYTES or is_large:
                self.must_close = True
                break
            if len(buffer) - at < SIZE.size + size:
                break
            *_, correlation_id = REQUEST_HEADER.unpack_from(buffer, at)
            self.owed[correlation_id] += 1
            self.frames += 1
            if correlation_id not in self._asked or self.owed[correlation_id] > 1:
                self._wild.add(correlation_id)
            at += SIZE.size + size
        del buffer[:at]

    @property
    def is_inside_a_frame(self) -> bool:
        """Whether the rest of a frame is missing."""
        return bool(self._sent)

    def received(self, data: bytes) -> list[tuple[m.Request, m.Response]]:
        """Note what came; return the answers that can be read, each with its request.

        Raises:
            Broken: Nobody asked for this, or it isn't what the protocol says.
        """
        self._received += data
        buffer, at = self._received, 0
        found = []
        while len(buffer) - at >= RESPONSE_HEADER.size:
            size, correlation_id, throttle_ms, _ = RESPONSE_HEADER.unpack_from(buffer, at)
            if size > RESPONSE_BYTES_MAX or throttle_ms < 0:
                raise Broken(f"an answer of {size} bytes with a throttle time of {throttle_ms} ms")
            end = at + SIZE.size + size
            if end > len(buffer):
                break
            if not self.owed[correlation_id]:
                raise Broken(f"an answer to {correlation_id}, which nobody waits for")
            self._settle(correlation_id)
            asked = self._asked.pop(correlation_id, None)
            if asked is not None and correlation_id not in self._wild:
                found.append(
                    (asked[0], _read(*asked, bytes(buffer[at + RESPONSE_HEADER.size : end])))
                )
            at = end
        del buffer[:at]
        return found

    def _settle(self, correlation_id: int) -> None:
        self.answers += 1
        self.owed[correlation_id] -= 1
        if not self.owed[correlation_id]:
            del self.owed[correlation_id]

    def unanswered(self) -> list[str]:
        """Return what must be answered by now: all but what waits for other members."""
        asked = (self._asked.get(correlation_id) for correlation_id in self.owed)
        waiting = m.JoinGroupRequest | m.SyncGroupRequest
        return [
            "a damaged frame" if each is None else repr(each[0])
            for each in asked
            if each is None or not isinstance(each[0], waiting)
        ]


def _read(request: m.Request, version: int, body: bytes) -> m.Response:
    try:
        answer: m.Response = RESPONSE_CODECS[api_of(request), version].decode(body)
    except RemoteProtocolError as exc:
        try:
            bare: Any = BARE_ERROR_CODEC.decode(body)
        except RemoteProtocolError:
            bare = m.BareError(0)
        if bare.error not in _BARE:
            raise Broken(f"{body!r} is no answer to {request!r}: {exc}") from exc
        assert isinstance(bare, m.BareError)
        return bare
    return answer


def next_bytes(grammar: Grammar, account: Account, damage: float) -> bytes:
    """Return the next frame to send on a connection; a share *damage* of them is not sound."""
    rng = grammar.rng
    frame = account.frame(*grammar.request())
    if rng.random() >= damage:
        return frame
    account.forget(frame)
    return bad_framing(rng, frame) if rng.random() < _BAD_FRAMING else damaged(rng, frame)


def bad_framing(rng: Random, frame: bytes) -> bytes:
    """Return *frame* with a size that is a lie, or something that is no frame at all."""
    lie = SIZE.pack(rng.choice((0, 7, 8, 9, len(frame) + 40, 2**20 + 1, 2**23 + 1, 2**31)))
    strange = (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    return rng.choice((lie + frame[4:], rng.randbytes(rng.randint(1, 40)), *strange))


def damaged(rng: Random, frame: bytes) -> bytes:
    """Return *frame* with some of it changed, and mostly with the size that it then has."""
    data = bytearray(frame[SIZE.size :])
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        _damage(rng, data)
    size = max(len(data), REQUEST_HEADER_BYTES)
    data += bytes(size - len(data))
    return SIZE.pack(size) + data


def _damage(rng: Random, data: bytearray) -> None:
    header, end = REQUEST_HEADER_BYTES, len(data)
    at = rng.randrange(header, end) if end > header else end
    match rng.randrange(10):
        case 0 if end > header:
            data[at] ^= 1 << rng.randrange(8)
        case 1 | 2 if end > header:
            data[at] = rng.choice(_OPCODES)
        case 3:
            data[at:at] = rng.randbytes(rng.randint(1, 9))
        case 4:
            del data[at : at + rng.randint(1, 9)]
        case 5:
            del data[at:]
        case 6:
            data[at:at] = data[at : at + rng.randint(1, 40)] * rng.randint(1, 3)
        case 7:
            data[at:at] = bytes((rng.choice(_OPCODES), *rng.randbytes(4)))
        case 8:  # Another api, or another version of it.
            data[rng.randrange(4)] = rng.choice((0, 1, 8, 0xFF))
        case _:
            nest = rng.choice(
                (b"\x91", b"\x81\xa0", b"\xdd\x00\x01\x00\x00", b"\xdf\xff\xff\xff\xff")
            )
            data[at:] = nest * rng.randint(1, 300)
            del data[INT32_MAX:]
