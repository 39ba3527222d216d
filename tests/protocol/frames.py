"""Small helpers for frames."""

from protocol.codec import REQUEST_CODECS
from protocol.connection import (
    REQUEST_HEADER,
    REQUEST_HEADER_BYTES,
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


def judged(frame: bytes) -> RequestEvent | BadRequest:
    """Return what a server makes of the one request in *frame*."""
    (event,) = ServerConnection(RequestEvent).receive(frame)
    return event


def received(frame: bytes) -> RequestEvent:
    """Return the one request that a server reads from *frame*."""
    event = judged(frame)
    assert isinstance(event, RequestEvent), event
    return event
