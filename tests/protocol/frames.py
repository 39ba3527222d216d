"""Small helpers for frames."""

from protocol.apis import api_of, request_body
from protocol.body import pack
from protocol.connection import RequestEvent, ServerConnection
from protocol.frames import REQUEST_HEADER, REQUEST_HEADER_BYTES
from protocol.messages import Request


def request_frame(request: Request, version: int, correlation_id: int) -> bytes:
    """Return the frame of *request*, unchecked."""
    body = pack(request_body(request, version))
    size = REQUEST_HEADER_BYTES + len(body)
    return REQUEST_HEADER.pack(size, api_of(request), version, correlation_id) + body


def received(frame: bytes) -> RequestEvent:
    """Return the one request that a server reads from *frame*."""
    (event,) = ServerConnection().receive(frame)
    assert isinstance(event, RequestEvent), event
    return event
