"""Both ends of a connection without the socket: bytes in, events out.

The caller owns the network. Frames are length-prefixed; all integers of their headers are
big-endian. Answers may come in any order; correlation ids join them with their requests.
"""

import struct
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, TypeVar, final

from msgspec import Struct

from protocol.codec import (
    BARE_ERROR_CODEC,
    REQUEST_CODECS,
    RESPONSE_CODECS,
    Invalid,
    Made,
    ResponseCodec,
    Unreadable,
)
from protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from protocol.fields import REQUEST_BYTES_MAX, RESPONSE_BYTES_MAX, SYNC_REQUEST_BYTES_MAX
from protocol.messages import APIS, ApiKey, BareError, Request, Response, api_of
from protocol.partition import INT32_MAX, NO_LEADER_EPOCH

# --- Frames -----------------------------------------------------------------------------

SIZE: Final = struct.Struct(">I")
# size | api_key | api_version | correlation_id
REQUEST_HEADER: Final = struct.Struct(">Ihhi")
# size | correlation_id | throttle_time_ms | leader_epoch
RESPONSE_HEADER: Final = struct.Struct(">Iiii")
# What `size` counts of the headers: all but itself.
_SIZE_BYTES: Final = SIZE.size
REQUEST_HEADER_BYTES: Final = REQUEST_HEADER.size - SIZE.size
RESPONSE_HEADER_BYTES: Final = RESPONSE_HEADER.size - SIZE.size
_pack_response_header: Final = RESPONSE_HEADER.pack

# The same to read a request by: api_key and api_version as the four bytes that look both up.
REQUEST_START: Final = struct.Struct(">I4si")

T = TypeVar("T")


class FrameTooLarge(RemoteProtocolError):
    """The announced size is over the limit or below the header: close without answering."""


class FrameReader(Generic[T]):
    """Cut a byte stream into frames, however the network split it.

    The size is judged as soon as it can be read, before a byte of the body is waited for.

    Attributes:
        unfinished: The beginning of a frame of which the rest has not come.
    """

    def __init__(self, header: struct.Struct, usual_max: int) -> None:
        """Read frames that begin with *header*; those larger than *usual_max* are judged."""
        self._header = header
        self._header_bytes = header.size
        self._smallest = header.size - SIZE.size
        self._usual_sizes = range(self._smallest, usual_max + 1)
        self.unfinished = bytearray()
        self._needed_bytes = 0  # The frame in the buffer is allowed, and takes so many.

    def _allowed(self, size: int, data: bytes, at: int) -> bool | None:
        """Say whether a frame of *size* at *at* is allowed, None if more is needed to judge."""
        raise NotImplementedError

    def _read(self, header: tuple[Any, ...], body: bytes) -> T:
        """Return what header and body say."""
        raise NotImplementedError

    @property
    def announced_bytes(self) -> int:
        """The size that the unfinished frame announced, 0 when it is not known."""
        if len(self.unfinished) < SIZE.size:
            return 0
        size: int = SIZE.unpack_from(self.unfinished)[0]
        return size

    def receive(self, data: bytes) -> list[T]:
        """Return what the frames say that *data* completes, in the order in which they were sent.

        Raises:
            FrameTooLarge: A frame is too large or too small. Frames before it are lost with
                it, as the connection is.
            RemoteProtocolError: A client reads what is no answer; close the connection.
        """
        if self.unfinished:
            self.unfinished += data
            if len(self.unfinished) < self._needed_bytes:
                return []
            data = bytes(self.unfinished)
            self.unfinished.clear()
        frames = []
        at, available = 0, len(data)
        while (body := at + self._header_bytes) <= available:
            header = self._header.unpack_from(data, at)
            size = header[0]
            if size not in self._usual_sizes:
                self._judge(size, data, at)
            end = at + _SIZE_BYTES + size
            if end > available:
                break
            frames.append(self._read(header, data[body:end]))
            at = end
        if at < available:
            self._keep(data, at)
        return frames

    def _judge(self, size: int, data: bytes, at: int) -> bool:
        """Say whether the frame at *at* is known to be allowed, or raise."""
        allowed = size >= self._smallest and self._allowed(size, data, at)
        if allowed is False:
            hint = _hint(data[at : at + 5])
            raise FrameTooLarge(f"a frame of {size} bytes is not allowed here{hint}")
        return allowed is True

    def _keep(self, data: bytes, at: int) -> None:
        """Keep the beginning of a frame for the next read."""
        self._needed_bytes = 0
        if len(data) - at >= SIZE.size:
            (size,) = SIZE.unpack_from(data, at)
            if self._judge(size, data, at):
                self._needed_bytes = SIZE.size + size
        self.unfinished += data[at:] if at else data


def _hint(start: bytes) -> str:
    """Return what other protocol *start* looks like, for the log line."""
    if start[:2] in {b"\x16\x03", b"\x15\x03"}:
        return " (this looks like TLS)"
    if start[:4] in {b"GET ", b"POST", b"HEAD", b"HTTP", b"PUT "}:
        return " (this looks like HTTP)"
    return ""


# --- The server's end -------------------------------------------------------------------

_KEY_AND_VERSION: Final = struct.Struct(">hh")


class Dialect(Struct, frozen=True):
    """One API in one version: what reads its requests, and writes their answers."""

    api_key: ApiKey
    api_version: int
    decode: Callable[[bytes], Request]
    encode: Callable[[Response], bytes]


def _dialect(where: tuple[ApiKey, int]) -> Dialect:
    """Return a dialect; raises KeyError if there is no such one."""
    return Dialect(*where, REQUEST_CODECS[where].decode, RESPONSE_CODECS[where].encode)


DIALECTS: Final = Made[tuple[ApiKey, int], Dialect](_dialect)


class _DialectsOfHeaders(dict[bytes, Dialect]):
    """Dialects by what a request's header says of its body; None where there is no such one."""

    def __missing__(self, start: bytes) -> Dialect | None:
        key, version = _KEY_AND_VERSION.unpack(start)
        try:
            self[start] = found = DIALECTS[ApiKey(key), version]
        except (ValueError, KeyError):
            return None
        return found


_DIALECT_OF: Final = _DialectsOfHeaders()


class RequestEvent(Struct, frozen=True, gc=False):
    """A request that was read and fits its layout; its frame announced ``size_bytes``."""

    request: Request
    dialect: Dialect
    correlation_id: int
    size_bytes: int
    owner: Any = None  # As the connection has it; likewise ``arrived_s``.
    arrived_s: float = 0.0


@final
class BadRequest(Struct, frozen=True, gc=False):
    """A request that cannot be handled: answer with ``[error]``, then close if *close*."""

    size_bytes: ClassVar[int] = 0  # Nothing is kept of it.
    correlation_id: int
    error: ErrorCode
    close: bool
    reason: str


class ServerConnection(FrameReader[T | BadRequest]):
    """The server's end: receives requests.

    Attributes:
        arrived_s: When what is received came; noted in each request, if somebody sets it.
    """

    def __init__(
        self,
        make: Callable[[Request, Dialect, int, int, Any, float], T],
        owner: object = None,
        *,
        max_request_bytes: int = REQUEST_BYTES_MAX,
        max_sync_request_bytes: int = SYNC_REQUEST_BYTES_MAX,
    ) -> None:
        """Make it; *make* is `RequestEvent`, or what has the same fields and more.

        *owner* is for what it makes.
        """
        super().__init__(REQUEST_START, max_request_bytes)
        self._make = make
        self._owner = owner
        self.arrived_s = 0.0
        self._max_request_bytes = max_request_bytes
        self._max_sync_request_bytes = max_sync_request_bytes

    def let_go(self) -> None:
        """Forget the owner: nothing is received any more."""
        self._owner = None

    def limit(self, max_request_bytes: int, max_sync_request_bytes: int = 0) -> None:
        """Take no larger requests from now on."""
        self._usual_sizes = range(self._smallest, max_request_bytes + 1)
        self._max_request_bytes = max_request_bytes
        self._max_sync_request_bytes = max_sync_request_bytes

    def _allowed(self, size: int, data: bytes, at: int) -> bool | None:
        if size <= self._max_request_bytes:
            return True
        if size > self._max_sync_request_bytes:
            return False
        if len(data) - at < 6:
            return None
        return int.from_bytes(data[at + 4 : at + 6], "big", signed=True) == ApiKey.SYNC_GROUP

    def _read(self, header: tuple[Any, ...], body: bytes) -> T | BadRequest:
        size, start, correlation_id = header
        dialect: Dialect | None = _DIALECT_OF[start]
        if dialect is None:
            api_key, version = _KEY_AND_VERSION.unpack(start)
            # ApiVersions is always in layout 0, so that any two releases can talk at all.
            if api_key != ApiKey.API_VERSIONS:
                reason = f"api {api_key} version {version} is not known"
                return BadRequest(correlation_id, ErrorCode.UNSUPPORTED_VERSION, False, reason)
            dialect = DIALECTS[api_key, 0]
        make, decode = self._make, dialect.decode
        try:
            return make(decode(body), dialect, correlation_id, size, self._owner, self.arrived_s)
        except (Invalid, Unreadable) as exc:
            close = isinstance(exc, Unreadable)
            return BadRequest(correlation_id, ErrorCode.INVALID_REQUEST, close, str(exc))


def encode_response(
    dialect: Dialect,
    correlation_id: int,
    response: Response,
    leader_epoch: int = NO_LEADER_EPOCH,
) -> bytes:
    """Return the frame that answers a request."""
    encode = dialect.encode
    body = encode(response)
    size = RESPONSE_HEADER_BYTES + len(body)
    return _pack_response_header(size, correlation_id, 0, leader_epoch) + body


def encode_error(correlation_id: int, error: int, leader_epoch: int = NO_LEADER_EPOCH) -> bytes:
    """Return the frame with a bare ``[error]``."""
    body = BARE_ERROR_CODEC.encode(BareError(error))
    size = RESPONSE_HEADER_BYTES + len(body)
    return _pack_response_header(size, correlation_id, 0, leader_epoch) + body


def throttled(frame: bytes, throttle_time_ms: int) -> bytes:
    """Return the answer *frame*, which asks for a pause besides."""
    size, correlation_id, _, leader_epoch = RESPONSE_HEADER.unpack_from(frame)
    header = _pack_response_header(size, correlation_id, throttle_time_ms, leader_epoch)
    return header + frame[RESPONSE_HEADER.size :]


def of_epoch(frame: bytes, leader_epoch: int) -> bytes:
    """Return the answer *frame*, as of another epoch of the same leader."""
    size, correlation_id, throttle_time_ms, _ = RESPONSE_HEADER.unpack_from(frame)
    header = _pack_response_header(size, correlation_id, throttle_time_ms, leader_epoch)
    return header + frame[RESPONSE_HEADER.size :]


# --- The client's end -------------------------------------------------------------------


def speaks_tls(data: bytes | bytearray) -> bool:
    """Say whether what a plaintext connection got is an alert of TLS, and so no answer."""
    return data[:2] == b"\x15\x03"


class ResponseEvent(Struct, frozen=True, gc=False):
    """An answer, with the request that it answers."""

    correlation_id: int
    request: Request
    response: Response
    leader_epoch: int
    throttle_time_ms: int


class ClientConnection(FrameReader[ResponseEvent]):
    """The client's end: receives answers."""

    def __init__(self, *, max_response_bytes: int = RESPONSE_BYTES_MAX) -> None:
        super().__init__(RESPONSE_HEADER, max_response_bytes)
        self._max_response_bytes = max_response_bytes
        self._in_flight: dict[int, tuple[Request, int]] = {}
        self._next_correlation_id = 0

    def send(self, request: Request, version: int | None = None) -> tuple[int, bytes]:
        """Return the correlation id and the bytes to send for *request*.

        Raises:
            LocalProtocolError: The request breaks the protocol; nothing must be sent.
        """
        key = api_of(request)
        latest = APIS[key].max_version
        if version is None:
            version = latest
        try:
            codec = REQUEST_CODECS[key, version]
            body = codec.encode(request)
            sent = codec.decode(body)
        except (Invalid, Unreadable, KeyError) as exc:
            raise LocalProtocolError(f"{key.name} version {version}: {exc}") from exc
        if version != latest and sent != request:
            raise LocalProtocolError(f"{key.name} version {version} can't say all of the request")
        size = REQUEST_HEADER_BYTES + len(body)
        limit = SYNC_REQUEST_BYTES_MAX if key is ApiKey.SYNC_GROUP else REQUEST_BYTES_MAX
        if size > limit:
            raise LocalProtocolError(f"{key.name} of {size} bytes is over {limit}")
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & INT32_MAX
        self._in_flight[correlation_id] = (request, version)
        return correlation_id, REQUEST_HEADER.pack(size, key, version, correlation_id) + body

    def _allowed(self, size: int, _data: bytes, _at: int) -> bool:
        return size <= self._max_response_bytes

    def _read(self, header: tuple[Any, ...], body: bytes) -> ResponseEvent:
        _, correlation_id, throttle_ms, leader_epoch = header
        if correlation_id not in self._in_flight:
            raise RemoteProtocolError(f"an answer with the unknown correlation id {correlation_id}")
        request, version = self._in_flight.pop(correlation_id)
        codec = RESPONSE_CODECS[api_of(request), version]
        response = (BARE_ERROR_CODEC if _is_bare(codec, body) else codec).decode(body)
        return ResponseEvent(correlation_id, request, response, leader_epoch, throttle_ms)


def _is_bare(codec: ResponseCodec, body: bytes) -> bool:
    """Tell ``[error]`` from a response with one element, which is an array nearly everywhere.

    Where the whole response is an error, it looks the same and is read as what was asked for.
    """
    if codec.is_only_error or len(body) < 2 or body[0] != 0x91:
        return False
    return not (0x90 <= body[1] <= 0x9F or body[1] in {0xDC, 0xDD})
