"""What the lag of a group was in each of the last minutes: soft, and forgotten with the group."""

from array import array
from typing import Final

UNKNOWN: Final = -1

MINUTE_MS: Final = 60_000
# A sample a minute: an hour of them is what a small chart shows.
SAMPLES_KEPT: Final = 60
# How the lag changes is told by the oldest sample of so many minutes.
CHANGE_MINUTES: Final = 5


class LagSamples:
    """The lag of one group in each of the last minutes, `UNKNOWN` where it wasn't known."""

    __slots__ = ("_lags", "_minute")

    def __init__(self) -> None:
        self._lags = array("q")
        self._minute = 0  # Of the newest.

    def __len__(self) -> int:
        """Return how many minutes there are."""
        return len(self._lags)

    def put(self, minute: int, lag: int) -> None:
        """Note the *lag* of a *minute* that is later than those that were noted."""
        missed = min(minute - self._minute - 1, SAMPLES_KEPT) if self._lags else 0
        self._lags.extend([UNKNOWN] * missed)
        self._lags.append(lag)
        self._minute = minute
        del self._lags[:-SAMPLES_KEPT]

    def is_over(self, minute: int) -> bool:
        """Say whether the newest is too old to be shown in *minute*."""
        return minute - self._minute >= SAMPLES_KEPT

    def last(self, minute: int, count: int) -> tuple[int, ...]:
        """Return the lags of *count* minutes at most, and no more than are kept, up to *minute*.

        The oldest comes first. The sample of *minute* itself may not have been taken yet.
        """
        missed = minute - 1 - self._minute
        lags = [*self._lags, *[UNKNOWN] * min(missed, SAMPLES_KEPT)]
        return tuple(lags[-min(count, SAMPLES_KEPT) :]) if count else ()

    def earlier(self, now_ms: int) -> tuple[int, int]:
        """Return what the lag was some minutes ago, and how long ago; or twice `UNKNOWN`."""
        now_minute = now_ms // MINUTE_MS
        for minute in range(now_minute - CHANGE_MINUTES, self._minute + 1):
            at = len(self._lags) - 1 - (self._minute - minute)
            if at >= 0 and self._lags[at] != UNKNOWN:
                return self._lags[at], now_ms - minute * MINUTE_MS
        return UNKNOWN, UNKNOWN
