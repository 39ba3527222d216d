"""Length-prefixed frames and their headers; all integers big-endian."""

import struct
from collections.abc import Callable
from typing import Final

from protocol.errors import RemoteProtocolError

SIZE: Final = struct.Struct(">I")
# size | api_key | api_version | correlation_id
REQUEST_HEADER: Final = struct.Struct(">Ihhi")
# size | correlation_id | throttle_time_ms | leader_epoch
RESPONSE_HEADER: Final = struct.Struct(">Iiii")
# What `size` counts of the headers: all but itself.
REQUEST_HEADER_BYTES: Final = REQUEST_HEADER.size - SIZE.size
RESPONSE_HEADER_BYTES: Final = RESPONSE_HEADER.size - SIZE.size

# Given size and the bytes from the size on: None = more bytes are needed to judge,
# else whether such a frame is allowed.
FrameRule = Callable[[int, bytes | bytearray, int], bool | None]


class FrameTooLarge(RemoteProtocolError):
    """The announced size is over the limit or below the header: close without answering."""


class FrameReader:
    """Cut a byte stream into frames, however the network split it.

    The size is judged as soon as it can be read, before a byte of the body is waited for.
    """

    def __init__(self, allowed: FrameRule) -> None:
        self._allowed = allowed
        self._buffer = bytearray()

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

    def feed(self, data: bytes) -> list[bytes]:
        """Return the frames that *data* completes, each with its size in front.

        Raises:
            FrameTooLarge: A frame is too large or too small. Frames before it are lost with
                it, as the connection is.
        """
        buffer: bytes | bytearray = data
        if self._buffer:
            self._buffer += data
            buffer = self._buffer
        frames = []
        at = 0
        available = len(buffer)
        while available - at >= SIZE.size:
            size: int = SIZE.unpack_from(buffer, at)[0]
            if self._allowed(size, buffer, at) is False:
                hint = _hint(bytes(buffer[at : at + 5]))
                raise FrameTooLarge(f"a frame of {size} bytes is not allowed here{hint}")
            end = at + SIZE.size + size
            if end > available:
                break
            frames.append(bytes(buffer[at:end]))
            at = end
        if buffer is self._buffer:
            del self._buffer[:at]
        elif at < available:
            self._buffer += buffer[at:]
        return frames


def _hint(start: bytes) -> str:
    """Return what other protocol *start* looks like, for the log line."""
    if start[:2] in {b"\x16\x03", b"\x15\x03"}:
        return " (this looks like TLS)"
    if start[:4] in {b"GET ", b"POST", b"HEAD", b"HTTP", b"PUT "}:
        return " (this looks like HTTP)"
    return ""
