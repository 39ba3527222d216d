"""Until when the peer of one session must have done something.

Plain numbers that the server's sweeper compares once a second; arming a timer per read would cost
more than a heartbeat.
"""

from typing import Final

from coordinator.config import Settings

NEVER_MS: Final = 2**63
_BYTES_PER_READ_SECOND: Final = 64 * 1024


class Deadlines:
    """Times in milliseconds of the monotonic clock.

    Attributes:
        read_ms: When the peer must have sent a request, or the rest of one.
        send_ms: When it must have taken some of the answers that wait for it.
        is_reading_frame: Whether `read_ms` counts from the beginning of an unfinished frame.
    """

    __slots__ = ("_settings", "idle_ms", "is_reading_frame", "read_ms", "send_ms")

    def __init__(self, settings: Settings, now_ms: int) -> None:
        self._settings = settings
        self.idle_ms = settings.connections_max_idle_ms
        self.read_ms = now_ms + settings.first_request_timeout_ms
        self.send_ms = 0
        self.is_reading_frame = False

    def between_frames(self, now_ms: int) -> None:
        """The peer may be silent now."""
        self.is_reading_frame = False
        self.read_ms = now_ms + self.idle_ms

    def inside_frame(self, announced_bytes: int, now_ms: int) -> None:
        """A frame was begun; how slowly its bytes drip doesn't matter."""
        if not self.is_reading_frame:
            self.is_reading_frame = True
            allowed_s = announced_bytes / _BYTES_PER_READ_SECOND
            allowed_ms = self._settings.request_read_timeout_ms + int(allowed_s * 1000)
            self.read_ms = now_ms + allowed_ms

    def not_reading(self) -> None:
        """Time in which we don't read is not the peer's."""
        self.is_reading_frame = False
        self.read_ms = NEVER_MS

    def sending(self, now_ms: int) -> None:
        """The peer took something, or is about to."""
        self.send_ms = now_ms + self._settings.send_timeout_ms

    def shift(self, by_ms: int) -> None:
        """Give the peer back the time in which this process could not have heard it."""
        self.read_ms += by_ms
        self.send_ms += by_ms
