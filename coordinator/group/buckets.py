"""Rates: how much may be taken a second, and how long to wait after more was taken. Pure.

A bucket holds what may be taken at once, a burst, and fills at a rate. Taking is never refused:
whoever takes more than there is owes the rest, and waits until it is paid. So one large thing gets
through where the rate is small, and over any time no more is taken than the rate, one burst and
the last thing.

Amounts are whole numbers of what is counted, kept in thousandths, so that a rate a second and a
time in milliseconds multiply without a rest. The rate, at least 1, is an argument: it may be
another one at any time.
"""

from typing import Final

BURST_MS: Final = 1_000


class Bucket:
    """What one of many may take of one thing."""

    __slots__ = ("_at_ms", "_taken")

    def __init__(self, now_ms: int) -> None:
        """Make a full one."""
        self._taken = 0  # Thousandths that have not come back yet: what exceeds a burst is owed.
        self._at_ms = now_ms

    def take(self, amount: int, rate: int, now_ms: int) -> None:
        """Take *amount* at a *rate* a second, whether it is there or not."""
        self._fill(rate, now_ms)
        self._taken += amount * 1_000

    def give_back(self, amount: int) -> None:
        """Put back what was taken and not used."""
        self._taken = max(0, self._taken - amount * 1_000)

    def forgive(self, rate: int, beyond_ms: int) -> None:
        """Let no more be owed than what comes back in so much time."""
        self._taken = min(self._taken, rate * (BURST_MS + beyond_ms))

    def wait_ms(self, rate: int, now_ms: int, burst_ms: int = BURST_MS) -> int:
        """Return how long to wait before more is taken, 0 for not at all.

        Args:
            rate: What comes back a second.
            now_ms: The monotonic time.
            burst_ms: The burst, as the time in which it comes back.
        """
        self._fill(rate, now_ms)
        owed = self._taken - rate * burst_ms
        return max(0, -(-owed // rate))

    def _fill(self, rate: int, now_ms: int) -> None:
        past_ms = now_ms - self._at_ms
        if past_ms > 0:
            self._at_ms = now_ms
            self._taken = max(0, self._taken - past_ms * rate)
