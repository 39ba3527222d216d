"""What the lag of a group was in each of the last minutes: soft, and forgotten with the group."""

import struct
from typing import Final

from msgspec import Struct

UNKNOWN: Final = -1

MINUTE_MS: Final = 60_000
# A sample a minute: an hour of them is what a small chart shows.
SAMPLES_KEPT: Final = 60
# How the lag changes is told by the oldest sample of so many minutes.
CHANGE_MINUTES: Final = 5

# A lag that is known in part lies below `UNKNOWN`: 0 as -2, and so on down to the smallest number.
_IN_PART: Final = UNKNOWN - 1
_SMALLEST: Final = -(2**63)
_SAMPLE_BYTES: Final = 8
_UNKNOWN: Final = UNKNOWN.to_bytes(_SAMPLE_BYTES, signed=True)


class LagSamples(Struct, eq=False, gc=False):
    """The lag of one group in each of the last minutes, `UNKNOWN` where it wasn't known.

    Packed, as the garbage collector would walk over a hundred thousand lists or arrays.
    """

    _packed: bytes = b""  # 8 bytes for each minute, big-endian, the oldest first.
    _minute: int = 0  # Of the newest.

    def __len__(self) -> int:
        """Return how many minutes there are."""
        return len(self._packed) // _SAMPLE_BYTES

    def put(self, minute: int, lag: int, *, is_whole: bool) -> None:
        """Note the *lag* of a *minute* that is later than those that were noted.

        Unless *is_whole*, the lag of some partitions wasn't known.
        """
        missed = min(minute - self._minute - 1, SAMPLES_KEPT) if self._packed else 0
        number = lag if is_whole else max(_IN_PART - lag, _SMALLEST)
        packed = self._packed + _UNKNOWN * missed + number.to_bytes(_SAMPLE_BYTES, signed=True)
        self._packed = packed[-SAMPLES_KEPT * _SAMPLE_BYTES :]
        self._minute = minute

    def is_over(self, minute: int) -> bool:
        """Say whether the newest is too old to be shown in *minute*."""
        return minute - self._minute >= SAMPLES_KEPT

    def last(self, minute: int, count: int) -> tuple[int, ...]:
        """Return the lags of *count* minutes at most, and no more than are kept, up to *minute*.

        The oldest comes first. The sample of *minute* itself may not have been taken yet. A lag
        that is known in part is that of the known partitions.
        """
        missed = minute - 1 - self._minute
        lags = [_IN_PART - one if one <= _IN_PART else one for one in self._numbers()]
        lags += [UNKNOWN] * min(missed, SAMPLES_KEPT)
        return tuple(lags[-min(count, SAMPLES_KEPT) :]) if count else ()

    def earlier(self, now_ms: int) -> tuple[int, int]:
        """Return what the lag was some minutes ago, and how long ago; or twice `UNKNOWN`.

        A lag that was known in part is left out: it differs by more than came and was done.
        """
        numbers = self._numbers()
        for minute in range(now_ms // MINUTE_MS - CHANGE_MINUTES, self._minute + 1):
            at = len(numbers) - 1 - (self._minute - minute)
            if at >= 0 and numbers[at] > UNKNOWN:
                return numbers[at], now_ms - minute * MINUTE_MS
        return UNKNOWN, UNKNOWN

    def _numbers(self) -> tuple[int, ...]:
        return struct.unpack(f">{len(self)}q", self._packed)
