"""Length-prefixed frames and their headers; all integers big-endian."""

import struct
from collections.abc import Callable
from typing import Any, Final

from protocol.errors import RemoteProtocolError

SIZE: Final = struct.Struct(">I")
# size | api_key | api_version | correlation_id
REQUEST_HEADER: Final = struct.Struct(">Ihhi")
# size | correlation_id | throttle_time_ms | leader_epoch
RESPONSE_HEADER: Final = struct.Struct(">Iiii")
# What `size` counts of the headers: all but itself.
REQUEST_HEADER_BYTES: Final = REQUEST_HEADER.size - SIZE.size
RESPONSE_HEADER_BYTES: Final = RESPONSE_HEADER.size - SIZE.size

# The same to read a request by: api_key and api_version as the four bytes that look both up.
REQUEST_START: Final = struct.Struct(">I4si")

# Given size and the bytes from the size on: None = more bytes are needed to judge,
# else whether such a frame is allowed.
FrameRule = Callable[[int, bytes, int], bool | None]


class FrameTooLarge(RemoteProtocolError):
    """The announced size is over the limit or below the header: close without answering."""


class FrameReader:
    """Cut a byte stream into frames, however the network split it.

    The size is judged as soon as it can be read, before a byte of the body is waited for.
    """

    def __init__(self, header: struct.Struct, usual_max: int, allowed: FrameRule) -> None:
        """Read frames that begin with *header*; *allowed* judges those larger than *usual_max*."""
        self._header = header
        self._smallest = header.size - SIZE.size
        self._usual_max = usual_max
        self._allowed = allowed
        self._buffer = bytearray()
        self._needed_bytes = 0  # The frame in the buffer is allowed, and takes so many.

    @property
    def buffered_bytes(self) -> int:
        """How much of an unfinished frame is held."""
        return len(self._buffer)

    @property
    def wanted_bytes(self) -> int:
        """The size that the unfinished frame announced, 0 when it is not known."""
        if len(self._buffer) < SIZE.size:
            return 0
        size: int = SIZE.unpack_from(self._buffer)[0]
        return size

    def feed(self, data: bytes) -> list[tuple[tuple[Any, ...], bytes]]:
        """Return header and body of the frames that *data* completes.

        Raises:
            FrameTooLarge: A frame is too large or too small. Frames before it are lost with
                it, as the connection is.
        """
        if self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed_bytes:
                return []
            data = bytes(self._buffer)
            self._buffer.clear()
        frames = []
        unpack_from, header_bytes = self._header.unpack_from, self._header.size
        smallest, usual_max = self._smallest, self._usual_max
        at = 0
        available = len(data)
        while available - at >= header_bytes:
            header = unpack_from(data, at)
            size = header[0]
            if not smallest <= size <= usual_max:
                self._judge(size, data, at)
            end = at + SIZE.size + size
            if end > available:
                break
            frames.append((header, data[at + header_bytes : end]))
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
        self._buffer += data[at:] if at else data


def _hint(start: bytes) -> str:
    """Return what other protocol *start* looks like, for the log line."""
    if start[:2] in {b"\x16\x03", b"\x15\x03"}:
        return " (this looks like TLS)"
    if start[:4] in {b"GET ", b"POST", b"HEAD", b"HTTP", b"PUT "}:
        return " (this looks like HTTP)"
    return ""
