"""The lag of a group in each of the last minutes: soft, and forgotten with the group."""

import struct
from typing import Final

from msgspec import Struct

UNKNOWN: Final = -1

MINUTE_MS: Final = 60_000
# Number of samples kept, one per minute: an hour, which is what a small chart shows.
SAMPLES_KEPT: Final = 60
# Age of the oldest sample that the change of the lag is computed from, in minutes.
CHANGE_MINUTES: Final = 5

# Partly known lags are stored below `UNKNOWN`: 0 as -2, 1 as -3, down to the smallest number.
_IN_PART: Final = UNKNOWN - 1
_SMALLEST: Final = -(2**63)
_SAMPLE_BYTES: Final = 8
_UNKNOWN: Final = UNKNOWN.to_bytes(_SAMPLE_BYTES, signed=True)


class LagSamples(Struct, eq=False, gc=False):
    """The lag of one group in each of the last minutes, `UNKNOWN` where it is unknown.

    Packed, because the garbage collector would traverse a hundred thousand lists or arrays.
    """

    _packed: bytes = b""  # 8 bytes per minute, big-endian, the oldest first.
    _minute: int = 0  # The newest minute.

    def __len__(self) -> int:
        """Return the number of minutes."""
        return len(self._packed) // _SAMPLE_BYTES

    def put(self, minute: int, lag: int, *, is_whole: bool) -> None:
        """Store the *lag* of a *minute* after all stored ones.

        Unless *is_whole*, the lag of some partitions was unknown.
        """
        missed = min(minute - self._minute - 1, SAMPLES_KEPT) if self._packed else 0
        number = lag if is_whole else max(_IN_PART - lag, _SMALLEST)
        packed = self._packed + _UNKNOWN * missed + number.to_bytes(_SAMPLE_BYTES, signed=True)
        self._packed = packed[-SAMPLES_KEPT * _SAMPLE_BYTES :]
        self._minute = minute

    def is_over(self, minute: int) -> bool:
        """Return whether the newest sample is too old to be shown in *minute*."""
        return minute - self._minute >= SAMPLES_KEPT

    def last(self, minute: int, count: int) -> tuple[int, ...]:
        """Return the lags of at most *count* minutes (limited to the kept ones), up to *minute*.

        The oldest comes first. The sample of *minute* itself may not have been taken yet. A partly
        known lag is the sum over the known partitions.
        """
        missed = minute - 1 - self._minute
        lags = [_IN_PART - one if one <= _IN_PART else one for one in self._numbers()]
        lags += [UNKNOWN] * min(missed, SAMPLES_KEPT)
        return tuple(lags[-min(count, SAMPLES_KEPT) :]) if count else ()

    def earlier(self, now_ms: int) -> tuple[int, int]:
        """Return the lag some minutes ago, and its age in ms; twice `UNKNOWN` if there is none.

        Partly known lags are skipped: their difference to the current lag would not be real
        progress.
        """
        numbers = self._numbers()
        for minute in range(now_ms // MINUTE_MS - CHANGE_MINUTES, self._minute + 1):
            at = len(numbers) - 1 - (self._minute - minute)
            if at >= 0 and numbers[at] > UNKNOWN:
                return numbers[at], now_ms - minute * MINUTE_MS
        return UNKNOWN, UNKNOWN

    def _numbers(self) -> tuple[int, ...]:
        return struct.unpack(f">{len(self)}q", self._packed)
