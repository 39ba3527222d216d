"""The request that has the daemon compact its log, as bytes."""

import socket
from typing import Final

import msgpack

from bench.frames import Talk
from protocol.frames import REQUEST_HEADER, REQUEST_HEADER_BYTES
from protocol.messages import ApiVersionsRequest

_KEY: Final = 1011
_API_VERSIONS: Final = 18
_CORRELATION_ID: Final = 1
_BODY_AT: Final = 16
_CONNECT_S: Final = 60


def _request(key: int, body: object) -> bytes:
    packed: bytes = msgpack.packb(body)
    size = REQUEST_HEADER_BYTES + len(packed)
    return REQUEST_HEADER.pack(size, key, 0, _CORRELATION_ID) + packed


COMPACT_REQUEST: Final = _request(_KEY, [])


def compaction_error(frame: bytes) -> int:
    """Return the error code of the answer, which comes when the compaction has ended."""
    error: int = msgpack.unpackb(frame[_BODY_AT:])[0]
    return error


def knows_compaction(host: str, port: int) -> bool:
    """Return whether the daemon knows the request.

    Raises:
        OSError: No connection.
    """
    hello = _request(_API_VERSIONS, list(ApiVersionsRequest("bench", "bench", "1")))
    with socket.create_connection((host, port), timeout=_CONNECT_S) as sock:
        (answer,) = Talk(sock).ask([hello])
    return any(key == _KEY for key, _, _ in msgpack.unpackb(answer[_BODY_AT:])[1])
