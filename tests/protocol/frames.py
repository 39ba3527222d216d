"""Small helpers for frames."""

from protocol.codec import REQUEST_CODECS
from protocol.connection import (
    REQUEST_HEADER,
    REQUEST_HEADER_BYTES,
    RESPONSE_HEADER,
    BadRequest,
    RequestEvent,
    ServerConnection,
)
from protocol.messages import Request, api_of


def frame_of(api_key: int, version: int, body: bytes, correlation_id: int = 7) -> bytes:
    """Return the request frame around *body*."""
    size = REQUEST_HEADER_BYTES + len(body)
    return REQUEST_HEADER.pack(size, api_key, version, correlation_id) + body


def request_frame(request: Request, version: int, correlation_id: int) -> bytes:
    """Return the frame of *request*, unchecked."""
    key = api_of(request)
    return frame_of(key, version, REQUEST_CODECS[key, version].encode(request), correlation_id)


def throttled(frame: bytes, throttle_time_ms: int) -> bytes:
    """Return the answer *frame* of a server that asks for a pause, as this one never does."""
    size, correlation_id, _, leader_epoch = RESPONSE_HEADER.unpack_from(frame)
    header = RESPONSE_HEADER.pack(size, correlation_id, throttle_time_ms, leader_epoch)
    return header + frame[RESPONSE_HEADER.size :]


def judged(frame: bytes) -> RequestEvent | BadRequest:
    """Return what a server makes of the one request in *frame*."""
    (event,) = ServerConnection(RequestEvent).receive(frame)
    return event


def received(frame: bytes) -> RequestEvent:
    """Return the one request that a server reads from *frame*."""
    event = judged(frame)
    assert isinstance(event, RequestEvent), event
    return event
