"""When the daemon may look at its sockets a thousand times a second and not for each request.

Thousands of members that have nothing to commit send heartbeats one by one, evenly, and each finds
the process asleep. Waking up costs two to three times what the heartbeat does, and nobody waits for
its answer. So if nothing else comes, several of them share one wake-up. Everybody who does wait is
known by what happens: something is written, or a session asks again within `SOON_MS`.
"""

from typing import Final

REST_S: Final = 0.001
SOON_MS: Final = 10
WINDOW_MS: Final = 50
# Below two requests per rest there is nothing to share.
WINDOW_REQUESTS_MIN: Final = 100
# Rounds of so many requests share enough as it is.
ROUND_REQUESTS_MAX: Final = 64


class Resting:
    """Watches the rounds of the poller.

    Attributes:
        is_resting: Whether to rest before the next round.
    """

    __slots__ = ("_is_disturbed", "_requests", "_window_end_ms", "is_resting")

    def __init__(self) -> None:
        self.is_resting = False
        self._is_disturbed = False
        self._requests = 0
        self._window_end_ms = 0

    def round_over(self, now_ms: int, requests: int, somebody_waits: bool) -> None:
        """Note a round of so many requests."""
        if somebody_waits or requests > ROUND_REQUESTS_MAX:
            self._is_disturbed = True
            self.is_resting = False
        self._requests += requests
        if now_ms >= self._window_end_ms:
            was_short = now_ms < self._window_end_ms + WINDOW_MS
            enough = self._requests >= WINDOW_REQUESTS_MIN
            self.is_resting = was_short and enough and not self._is_disturbed
            self._is_disturbed = False
            self._requests = 0
            self._window_end_ms = now_ms + WINDOW_MS
