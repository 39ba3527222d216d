"""What the daemon counts about itself as it goes: plain numbers, read by whoever shows them.

Everything is written in the event loop, by plain additions: a commit pays about half a
microsecond for all of it. What is rare (rebalances, removals, expiries) is read off the events
that the core tells anyway, so that nothing in the core counts for it.
"""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any, Final

TIME_BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0
)  # fmt: skip
REBALANCE_BOUNDS_S: Final = (*TIME_BOUNDS_S, 30.0, 60.0, 120.0, 300.0)
BYTE_BOUNDS: Final = tuple(512 * 4**n for n in range(9))


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

    def note(self, value: float) -> None:
        """Count *value*."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Telemetry:
    """The counts of one process.

    Attributes:
        requests: API key -> how long its answers took.
        errors: API key and error code -> answers; code 0 is not in there.
        refused: Why requests were not decided at all -> how many.
        connections_closed: Why -> how many; likewise ``connections_refused``.
        flush_s: From the order to write until answers may leave.
        fsync_s: fdatasync alone.
        flush_began_s: When the flush began that is on its way, None for none.
        stall_s: How late a task woke that wakes ten times a second.
        rebalances: Trigger and outcome -> how many ended.
        members_removed: Why -> how many.
        http: Route template and status -> answers of the HTTP listener.
    """

    def __init__(self) -> None:
        self.requests: dict[int, Histogram] = {}
        self.errors: dict[tuple[int, int], int] = {}
        self.refused: dict[str, int] = {}
        self.connections_accepted = 0
        self.connections_closed: dict[str, int] = {}
        self.connections_refused: dict[str, int] = {}
        self.received_bytes = 0
        self.sent_bytes = 0
        self.flush_s = Histogram()
        self.fsync_s = Histogram()
        self.flush_bytes = Histogram(BYTE_BOUNDS)
        self.flush_began_s: float | None = None
        self.stall_s = Histogram()
        self.rebalances: dict[tuple[str, str], int] = {}
        self.rebalance_s: dict[str, Histogram] = {}
        self.phase_s = {phase: Histogram(REBALANCE_BOUNDS_S) for phase in ("join", "sync")}
        self.members_removed: dict[str, int] = {}
        self.offsets_expired = 0
        self.offsets_removed = 0
        self.http: dict[tuple[str, int], int] = {}

    def answered(self, api_key: int, error: int, seconds: float) -> None:
        """Count an answer; the round's end calls it once for each that leaves."""
        histogram = self.requests.get(api_key)
        if histogram is None:
            histogram = self.requests[api_key] = Histogram()
        histogram.note(seconds)
        if error:
            key = (api_key, error)
            self.errors[key] = self.errors.get(key, 0) + 1

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Read off an event what is counted by it."""
        raise NotImplementedError  # Room A.
