"""Token buckets: an amount per second, and the wait after more was taken. Pure.

A bucket holds one burst, and fills at a rate. Taking is never refused: a client that takes more
than is left owes the rest, and waits until it is paid. One large item therefore passes even at a
small rate, and over any time the amount taken is at most the rate, one burst and the last item.

Amounts are whole numbers, kept in thousandths, so that a rate per second times milliseconds has no
remainder. The rate, at least 1, is an argument, because it may change at any time.
"""

from typing import Final

BURST_MS: Final = 1_000
# Minimum updates per second of a `Rate` that is fully used.
LOOKS_A_SECOND: Final = 10


class Bucket:
    """A token bucket for one client and one resource."""

    __slots__ = ("_at_ms", "_taken")

    def __init__(self, now_ms: int) -> None:
        """Create a full bucket."""
        self._taken = 0  # Thousandths not yet refilled; the part beyond a burst is owed.
        self._at_ms = now_ms

    def take(self, amount: int, rate: int, now_ms: int) -> None:
        """Take *amount* at a *rate* per second, even if less is left."""
        self._fill(rate, now_ms)
        self._taken += amount * 1_000

    def left(self, rate: int) -> int:
        """Return the amount left at the last fill."""
        return max(0, rate * BURST_MS - self._taken) // 1_000

    def give_back(self, amount: int) -> None:
        """Return an unused *amount* to the bucket."""
        self._taken = max(0, self._taken - amount * 1_000)

    def forgive(self, rate: int, beyond_ms: int) -> None:
        """Limit the debt to the amount that refills in *beyond_ms*."""
        self._taken = min(self._taken, rate * (BURST_MS + beyond_ms))

    def wait_ms(self, rate: int, now_ms: int, burst_ms: int = BURST_MS) -> int:
        """Return how long to wait before taking more, in milliseconds; 0 for no wait.

        Args:
            rate: The refill per second.
            now_ms: The monotonic time.
            burst_ms: The burst, as the time in which it refills.
        """
        self._fill(rate, now_ms)
        owed = self._taken - rate * burst_ms
        return max(0, -(-owed // rate))

    def take_before(self, amount: int, rate: int, now_ms: int) -> None:
        """Take *amount* as if at the time of the last fill."""
        self._taken += amount * 1_000
        self._fill(rate, now_ms)

    def _fill(self, rate: int, now_ms: int) -> None:
        past_ms = now_ms - self._at_ms
        if past_ms > 0:
            self._at_ms = now_ms
            self._taken = max(0, self._taken - past_ms * rate)


class Rate:
    """A bucket with a fixed rate that is updated only occasionally, not at each taking.

    The exact times of takings between two updates are unknown. They count as taken at the earlier
    update, so that a burst may be a tenth larger.

    Attributes:
        left: The amount that may be taken until the next update. The taker subtracts from it, and
            calls `wait_ms` when it is below zero.
    """

    __slots__ = ("_beyond_ms", "_bucket", "_seen", "left", "rate")

    def __init__(self, rate: int, now_ms: int, forgiven_beyond_ms: int) -> None:
        """Create a bucket with *rate* per second; its debt is limited to *forgiven_beyond_ms*."""
        self.rate = rate
        self._bucket = Bucket(now_ms)
        self._beyond_ms = forgiven_beyond_ms
        self._seen = self.left = 0

    def wait_ms(self, now_ms: int) -> int:
        """Take the amount subtracted from `left`; return the wait before taking more, in ms."""
        bucket, rate = self._bucket, self.rate
        taken = self._seen - self.left
        before = min(taken, self._seen)
        bucket.take_before(before, rate, now_ms)
        bucket.take(taken - before, rate, now_ms)
        bucket.forgive(rate, self._beyond_ms)
        self._seen = self.left = min(bucket.left(rate), rate // LOOKS_A_SECOND)
        return bucket.wait_ms(rate, now_ms)
