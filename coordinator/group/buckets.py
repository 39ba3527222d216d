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
# How often a `Rate` is looked at by whoever takes all of it.
LOOKS_A_SECOND: Final = 10


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

    def left(self, rate: int) -> int:
        """Return how much there was when it was filled last."""
        return max(0, rate * BURST_MS - self._taken) // 1_000

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

    def take_before(self, amount: int, rate: int, now_ms: int) -> None:
        """Take *amount* as if that had been when it was filled last."""
        self._taken += amount * 1_000
        self._fill(rate, now_ms)

    def _fill(self, rate: int, now_ms: int) -> None:
        past_ms = now_ms - self._at_ms
        if past_ms > 0:
            self._at_ms = now_ms
            self._taken = max(0, self._taken - past_ms * rate)


class Rate:
    """A bucket with its rate that is looked at now and then only, not at each taking.

    Nobody knows when that was taken what lies between two looks. It counts as taken at the earlier
    one, so a burst may be a tenth larger.

    Attributes:
        left: What may be taken until the next look. Whoever takes subtracts it here, and calls
            `wait_ms` when it is below zero.
    """

    __slots__ = ("_beyond_ms", "_bucket", "_seen", "left", "rate")

    def __init__(self, rate: int, now_ms: int, forgiven_beyond_ms: int) -> None:
        """Fill it at *rate* a second; no more is ever owed than what comes back in that time."""
        self.rate = rate
        self._bucket = Bucket(now_ms)
        self._beyond_ms = forgiven_beyond_ms
        self._seen = self.left = 0

    def wait_ms(self, now_ms: int) -> int:
        """Take what was subtracted; return how long to wait before more is taken."""
        bucket, rate = self._bucket, self.rate
        taken = self._seen - self.left
        before = min(taken, self._seen)
        bucket.take_before(before, rate, now_ms)
        bucket.take(taken - before, rate, now_ms)
        bucket.forgive(rate, self._beyond_ms)
        self._seen = self.left = min(bucket.left(rate), rate // LOOKS_A_SECOND)
        return bucket.wait_ms(rate, now_ms)
