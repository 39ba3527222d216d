"""The request that has the daemon compact its log, as bytes."""

from typing import Final

import msgpack

from protocol.frames import REQUEST_HEADER, REQUEST_HEADER_BYTES

_KEY: Final = 1011
_CORRELATION_ID: Final = 1
_BODY_AT: Final = 16


def _compact_request() -> bytes:
    body: bytes = msgpack.packb([])
    size = REQUEST_HEADER_BYTES + len(body)
    return REQUEST_HEADER.pack(size, _KEY, 0, _CORRELATION_ID) + body


COMPACT_REQUEST: Final = _compact_request()


def compaction_error(frame: bytes) -> int:
    """Return the error code of the answer, which comes when the compaction has ended."""
    error: int = msgpack.unpackb(frame[_BODY_AT:])[0]
    return error
