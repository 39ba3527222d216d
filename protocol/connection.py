"""Both ends of a connection without the socket: bytes in, events out.

The caller owns the network. Answers may come in any order; correlation ids join them
with their requests.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from protocol.alike import COMMIT_VERSION_MIN, read_commit
from protocol.apis import (
    APIS,
    REQUEST_BYTES_MAX,
    REQUEST_CHECKS,
    RESPONSE_BYTES_MAX,
    RESPONSE_CHECKS,
    SYNC_REQUEST_BYTES_MAX,
    ApiKey,
    api_of,
    join_fields,
    latest_version,
    request_body,
    response_body,
)
from protocol.body import Unreadable, pack, unpack_packed, unpack_request, unpack_response
from protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from protocol.frames import (
    REQUEST_HEADER,
    REQUEST_HEADER_BYTES,
    REQUEST_START,
    RESPONSE_HEADER,
    RESPONSE_HEADER_BYTES,
    FrameReader,
)
from protocol.messages import Answer, BareError, PackedResponse, Request, Response
from protocol.schema import CODE, Check, Field, Invalid, Struct
from protocol.types import INT32_MAX, NO_LEADER_EPOCH

_bare_check: Final = Struct(BareError, Field("error", CODE)).check(0, open_end=False)


# Responses that are an error and nothing else, such as a heartbeat's in version 0.
_ONLY_ERROR: Final = frozenset(
    (key, version)
    for key, api in APIS.items()
    for version in range(api.max_version + 1)
    if [f.name for f in api.response.fields if f.since <= version] == ["error"]
)


def _reader(key: ApiKey, version: int) -> Callable[[bytes, Check], Any]:
    """Return what reads the body of a request, given the check of its layout."""
    is_alike = key is ApiKey.OFFSET_COMMIT and version >= COMMIT_VERSION_MIN
    return read_commit if is_alike else unpack_request


_KEY_AND_VERSION: Final = struct.Struct(">hh")
# What a request's header says of its body -> key, version, what reads it and with what check.
_REQUESTS: Final = {
    _KEY_AND_VERSION.pack(api_key, version): (
        key,
        version,
        _reader(key, version),
        check,
    )
    for (api_key, version), (key, check) in REQUEST_CHECKS.items()
}


class RequestEvent(NamedTuple):
    """A request that was read and fits its layout, which is *api_version*."""

    correlation_id: int
    api_key: ApiKey
    api_version: int
    request: Request


class BadRequest(NamedTuple):
    """A request that cannot be handled: answer with ``[error]``, then close if *close*."""

    correlation_id: int
    error: ErrorCode
    close: bool
    reason: str


class ServerConnection:
    """The server's end."""

    def __init__(
        self,
        *,
        max_request_bytes: int = REQUEST_BYTES_MAX,
        max_sync_request_bytes: int = SYNC_REQUEST_BYTES_MAX,
    ) -> None:
        self._max_request_bytes = max_request_bytes
        self._max_sync_request_bytes = max_sync_request_bytes
        self._frames = FrameReader(REQUEST_START, max_request_bytes, self._allowed)

    @property
    def unfinished_bytes(self) -> int:
        """How many bytes of an unfinished frame are held; 0 between frames."""
        return self._frames.buffered_bytes

    @property
    def announced_bytes(self) -> int:
        """The size of the unfinished frame as announced."""
        return self._frames.wanted_bytes

    def receive(self, data: bytes) -> list[RequestEvent | BadRequest]:
        """Return what *data* completes, in the order in which it was sent.

        Raises:
            FrameTooLarge: Close without an answer.
        """
        return [self._event(header, body) for header, body in self._frames.feed(data)]

    def _allowed(self, size: int, data: bytes, at: int) -> bool | None:
        if size <= self._max_request_bytes:
            return True
        if size > self._max_sync_request_bytes:
            return False
        if len(data) - at < 6:
            return None
        return int.from_bytes(data[at + 4 : at + 6], "big", signed=True) == ApiKey.SYNC_GROUP

    def _event(self, header: tuple[int, bytes, int], body: bytes) -> RequestEvent | BadRequest:
        _, start, correlation_id = header
        known = _REQUESTS.get(start)
        if known is None:
            api_key, version = _KEY_AND_VERSION.unpack(start)
            # ApiVersions is always in layout 0, so that any two releases can talk about the rest.
            if api_key != ApiKey.API_VERSIONS:
                reason = f"api {api_key} version {version} is not known"
                return BadRequest(correlation_id, ErrorCode.UNSUPPORTED_VERSION, False, reason)
            known = _REQUESTS[_KEY_AND_VERSION.pack(api_key, 0)]
        key, version, read, check = known
        try:
            request = read(body, check)
        except Unreadable as exc:
            return BadRequest(correlation_id, ErrorCode.INVALID_REQUEST, True, str(exc))
        except Invalid as exc:
            return BadRequest(correlation_id, ErrorCode.INVALID_REQUEST, False, str(exc))
        # As `RequestEvent(...)`, at a third of its cost.
        return tuple.__new__(RequestEvent, (correlation_id, key, version, request))


def encode_response(
    correlation_id: int,
    response: Answer,
    *,
    api_key: ApiKey,
    api_version: int,
    leader_epoch: int = NO_LEADER_EPOCH,
    throttle_time_ms: int = 0,
    max_response_bytes: int = RESPONSE_BYTES_MAX,
) -> bytes:
    """Return the frame that answers a request; ``[1006]`` if it would be too large."""
    if isinstance(response, PackedResponse):
        body = join_fields(response, api_key, api_version)
    else:
        body = pack(response_body(response, api_key, api_version))
    size = RESPONSE_HEADER_BYTES + len(body)
    if size > max_response_bytes:
        body = pack(BareError(ErrorCode.RESPONSE_TOO_LARGE))
        size = RESPONSE_HEADER_BYTES + len(body)
    return RESPONSE_HEADER.pack(size, correlation_id, throttle_time_ms, leader_epoch) + body


def encode_error(correlation_id: int, error: int) -> bytes:
    """Return the frame with a bare ``[error]``."""
    body = pack(BareError(error))
    return RESPONSE_HEADER.pack(RESPONSE_HEADER_BYTES + len(body), correlation_id, 0, -1) + body


class ResponseEvent(NamedTuple):
    """An answer, with the request that it answers."""

    correlation_id: int
    request: Request
    response: Response
    leader_epoch: int
    throttle_time_ms: int


class ClientConnection:
    """The client's end."""

    def __init__(self, *, max_response_bytes: int = RESPONSE_BYTES_MAX) -> None:
        self._max_response_bytes = max_response_bytes
        self._frames = FrameReader(RESPONSE_HEADER, max_response_bytes, self._allowed)
        self._in_flight: dict[int, tuple[Request, int]] = {}
        self._next_correlation_id = 0

    def send(self, request: Request, version: int | None = None) -> tuple[int, bytes]:
        """Return the correlation id and the bytes to send for *request*.

        Raises:
            LocalProtocolError: The request breaks the protocol; nothing must be sent.
        """
        key = api_of(request)
        if version is None:
            version = latest_version(key)
        frame_body = pack(request_body(request, version))
        try:
            sent = unpack_packed(frame_body, REQUEST_CHECKS[key, version][1])
        except (Invalid, Unreadable, KeyError) as exc:
            raise LocalProtocolError(f"{key.name} version {version}: {exc}") from exc
        if version != latest_version(key) and sent != request:
            raise LocalProtocolError(f"{key.name} version {version} can't say all of the request")
        size = REQUEST_HEADER_BYTES + len(frame_body)
        limit = SYNC_REQUEST_BYTES_MAX if key is ApiKey.SYNC_GROUP else REQUEST_BYTES_MAX
        if size > limit:
            raise LocalProtocolError(f"{key.name} of {size} bytes is over {limit}")
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & INT32_MAX
        self._in_flight[correlation_id] = (request, version)
        return correlation_id, REQUEST_HEADER.pack(size, key, version, correlation_id) + frame_body

    def receive(self, data: bytes) -> list[ResponseEvent]:
        """Return the answers that *data* completes.

        Raises:
            RemoteProtocolError: The server broke the protocol; close the connection.
        """
        return [self._event(header, body) for header, body in self._frames.feed(data)]

    def _allowed(self, size: int, _data: bytes, _at: int) -> bool:
        return size <= self._max_response_bytes

    def _event(self, header: tuple[int, ...], body: bytes) -> ResponseEvent:
        _, correlation_id, throttle_ms, leader_epoch = header
        if correlation_id not in self._in_flight:
            raise RemoteProtocolError(f"an answer with the unknown correlation id {correlation_id}")
        request, version = self._in_flight.pop(correlation_id)
        key = api_of(request)
        check = _bare_check if _is_bare(key, version, body) else RESPONSE_CHECKS[key, version][1]
        response = unpack_response(body, check)
        return ResponseEvent(correlation_id, request, response, leader_epoch, throttle_ms)


def _is_bare(key: ApiKey, version: int, body: bytes) -> bool:
    """Tell ``[error]`` from a response with one element, which is an array nearly everywhere.

    Where the whole response is an error, it looks the same and is read as what was asked for.
    """
    if (key, version) in _ONLY_ERROR or len(body) < 2 or body[0] != 0x91:
        return False
    return not (0x90 <= body[1] <= 0x9F or body[1] in {0xDC, 0xDD})
