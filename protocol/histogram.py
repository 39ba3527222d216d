"""Durations and sizes by how many were below which bound, as daemon and client count them. Pure."""

from bisect import bisect_left, bisect_right
from typing import Final

TIME_BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0
)  # fmt: skip
REBALANCE_BOUNDS_S: Final = (*TIME_BOUNDS_S, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """How many values fell below each of some bounds, and their sum.

    Attributes:
        bounds: Ascending; a value that equals one belongs below it.
        counts: One more than the bounds: the last is what is above them. Not cumulative.
        total: The sum of the values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = TIME_BOUNDS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def note(self, value: float, times: int = 1) -> None:
        """Count *value*, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add(self, other: "Histogram") -> None:
        """Count what *other*, with the same bounds, has counted."""
        self.counts = [
            ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)
        ]
        self.total += other.total

    def note_all(self, values: list[float]) -> None:
        """Count each of *values*: for many of them a fraction of what `note` takes."""
        values.sort()
        below = 0
        for number, bound in enumerate(self.bounds):
            upto = bisect_right(values, bound)
            self.counts[number] += upto - below
            below = upto
        self.counts[-1] += len(values) - below
        self.total += sum(values)
