"""What the daemon counts about itself as it goes: plain numbers, read by whoever shows them.

Everything is written in the event loop, by plain additions: a commit pays about half a
microsecond for all of it. What is rare (rebalances, removals, expiries) is read off the events
that the core tells anyway, so that nothing in the core counts for it.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import trio

EventSink = Callable[[str, dict[str, Any]], None]

STALL_PERIOD_S: Final = 0.1

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

    def note(self, value: float, times: int = 1) -> None:
        """Count *value*, so many times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


class Telemetry:
    """The counts of one process.

    Attributes:
        requests: API key -> how long its answers took.
        errors: API key and error code -> answers; code 0 is not in there.
        refused: Why requests were not decided at all -> how many.
        connections_closed: Why -> how many; likewise ``connections_refused``.
        flush_s: From the order to write until answers may leave.
        fsync_s: The synced write alone.
        flush_began_s: When the flush began that is on its way, None for none.
        stall_s: How late a task woke that wakes ten times a second.
        rebalances: Trigger and outcome -> how many ended.
        rebalance_s: Trigger -> how long those took that ended with an assignment.
        phase_s: How long each phase of these took.
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

    def answered(self, api_key: int, error: int, seconds: float, times: int = 1) -> None:
        """Count answers; the round's end calls it once for all that are alike."""
        histogram = self.requests.get(api_key)
        if histogram is None:
            histogram = self.requests[api_key] = Histogram()
        histogram.note(seconds, times)
        if error:
            count(self.errors, (api_key, error), times)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Read off an event what is counted by it."""
        if name == "group.rebalanced":
            self._rebalanced(**{key: fields[key] for key in _OF_REBALANCE})
        elif name == "group.member_removed":
            count(self.members_removed, fields["reason"])
        elif name == "offsets.expired":
            self.offsets_expired += fields["count"]
        elif name == "offsets.removed":
            self.offsets_removed += fields["count"]
        elif name == "group.deleted":
            self.offsets_removed += fields["offsets"]

    def _rebalanced(self, trigger: str, outcome: str, join_ms: int, sync_ms: int) -> None:
        count(self.rebalances, (trigger, outcome))
        if outcome != "stable":
            return  # Its time says nothing: nobody was left, or the next one cut it short.
        histogram = self.rebalance_s.get(trigger)
        if histogram is None:
            histogram = self.rebalance_s[trigger] = Histogram(REBALANCE_BOUNDS_S)
        histogram.note((join_ms + sync_ms) / 1000)
        self.phase_s["join"].note(join_ms / 1000)
        self.phase_s["sync"].note(sync_ms / 1000)

    async def watch_stalls(self) -> None:
        """Wake ten times a second until cancelled, and note how late that was."""
        while True:
            planned_s = trio.current_time() + STALL_PERIOD_S
            await trio.sleep_until(planned_s)
            self.stall_s.note(max(0.0, trio.current_time() - planned_s))


_OF_REBALANCE: Final = ("trigger", "outcome", "join_ms", "sync_ms")


def count(counts: dict[Any, int], key: Any, times: int = 1) -> None:
    """Add to the count of *key*, which may be new."""
    counts[key] = counts.get(key, 0) + times


class Tee:
    """Hands each event to the log, and then to whoever else wants to know.

    What a listener raises is told as an event and goes no further: the decision that
    the event tells of stands.
    """

    def __init__(self, log: EventSink, *sinks: EventSink) -> None:
        self._log = log
        self._sinks = list(sinks)

    def __call__(self, name: str, fields: dict[str, Any]) -> None:
        """Tell of an event."""
        self._log(name, fields)
        for sink in tuple(self._sinks):
            try:
                sink(name, fields)
            except Exception as exc:  # noqa: BLE001 - one listener's bug must not end a request
                self._log("event.unheard", {"of": name, "reason": repr(exc)})

    def add(self, sink: EventSink) -> Callable[[], None]:
        """Have *sink* called with each event, in the event loop; call the result to end that."""
        self._sinks.append(sink)

        def end() -> None:
            with suppress(ValueError):
                self._sinks.remove(sink)

        return end
