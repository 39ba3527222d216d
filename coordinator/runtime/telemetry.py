"""What the daemon counts about itself as it goes: plain numbers, read by whoever shows them.

Everything is written in the event loop, by plain additions. Rounds and flushes are only noted, and
booked by the hundred, or when somebody looks: code that runs once in a while, between the work of
a commit, costs several times as much as in a loop of its own. What is rare (rebalances, removals,
expiries) is read off the events that the core tells anyway, so that nothing in the core counts
for it.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from protocol.histogram import REBALANCE_BOUNDS_S, Histogram

EventSink = Callable[[str, dict[str, Any]], None]

STALL_PERIOD_S: Final = 0.1
_PRINCIPALS_MAX: Final = 10_000
# A tenth of a millisecond to book, either.
_ANSWERS_NOTED_MAX: Final = 512
_FLUSHES_NOTED_MAX: Final = 256
# How an API key and an error code are one number: an answer's kind.
KEY_BITS: Final = 16
_KEY_MASK: Final = 2**KEY_BITS - 1

# Reasons are there from the start: what appears with its first value has no increase until the
# second one.
REFUSED: Final = ("malformed", "unsupported", "too_large", "parked_limit", "failed")
HTTP_CONNECTIONS_CLOSED: Final = (
    "peer",
    "idle",
    "slow_reader",
    "unfinished_request",
    "malformed",
    "unauthenticated",
    "failed",
    "shutdown",
)
CONNECTIONS_CLOSED: Final = (*HTTP_CONNECTIONS_CLOSED, "starting")
CONNECTIONS_REFUSED: Final = ("max_connections", "max_connections_per_ip", "quota", "descriptors")
# Work for clients, by which failures are counted.
CONNECTIONS_FAILED: Final = ("accept", "handshake", "session", "http", "events")
HTTP_CONNECTIONS_REFUSED: Final = ("max_connections", "max_connections_per_ip", "descriptors")
MEMBERS_REMOVED: Final = (
    "left",
    "session expired",
    "rebalance timeout",
    "sync timeout",
    "group full",
    "bad assignment",
    "offsets altered",
    "generations used up",
)
BYTE_BOUNDS: Final = tuple(512 * 4**n for n in range(9))


class Telemetry:
    """The counts of one process.

    Attributes:
        refused: Why requests were not decided at all -> how many.
        connections_closed: Why -> how many; likewise ``connections_refused``.
        connections_failed: By work for a client, the number of its failures (`bulkhead`).
        stall_s: How late a task woke that wakes ten times a second.
        rebalances: Trigger and outcome -> how many ended.
        rebalance_s: Trigger -> how long those took that ended with an assignment.
        phase_s: How long each phase of these took.
        members_removed: Why -> how many.
        handshakes: How handshakes of TLS ended -> how many.
        log_ins: By which mechanism and how those of SASL ended -> how many.
        flush_began_s: Tells when the oldest flush began that is on its way, None for none.
        http: Route template and status -> answers of the HTTP listener.
        http_connections_closed: Why -> how many; likewise ``http_connections_refused``.
        throttled: How many answers told clients to wait, and for how many ms in all.
        throttled_by: The same by principal, of the first `_PRINCIPALS_MAX` that were told.
    """

    def __init__(self) -> None:
        self._requests: dict[int, Histogram] = {}
        self._errors: dict[tuple[int, int], int] = {}
        self._rounds: list[tuple[float, list[tuple[float, int]]]] = []  # Not booked yet.
        self._answers_noted = 0
        self.refused = dict.fromkeys(REFUSED, 0)
        self.connections_accepted = 0
        self.connections_closed = dict.fromkeys(CONNECTIONS_CLOSED, 0)
        self.connections_refused = dict.fromkeys(CONNECTIONS_REFUSED, 0)
        self.connections_failed = dict.fromkeys(CONNECTIONS_FAILED, 0)
        self.throttled = (0, 0)
        self.throttled_by: dict[str, tuple[int, int]] = {}
        self.received_bytes = 0
        self.sent_bytes = 0
        self._flush_s = Histogram()
        self._fsync_s = Histogram()
        self._flush_wait_s = Histogram()
        self._flush_bytes = Histogram(BYTE_BOUNDS)
        self._flushes: list[tuple[float, int, float, float | None]] = []  # Not booked yet.
        self.flush_began_s: Callable[[], float | None] = lambda: None
        self.stall_s = Histogram()
        self.rebalances: dict[tuple[str, str], int] = {}
        self.rebalance_s: dict[str, Histogram] = {}
        self.phase_s = {phase: Histogram(REBALANCE_BOUNDS_S) for phase in ("join", "sync")}
        self.members_removed = dict.fromkeys(MEMBERS_REMOVED, 0)
        self.offsets_expired = 0
        self.offsets_removed = 0
        self.handshakes: dict[str, int] = {}
        self.log_ins: dict[tuple[str, str], int] = {}
        self.http: dict[tuple[str, int], int] = {}
        self.http_connections_closed = dict.fromkeys(HTTP_CONNECTIONS_CLOSED, 0)
        self.http_connections_refused = dict.fromkeys(HTTP_CONNECTIONS_REFUSED, 0)

    def told_to_wait(self, principal: str, wait_ms: int) -> None:
        """Count an answer that told a client of *principal* to wait."""
        answers, total_ms = self.throttled
        self.throttled = answers + 1, total_ms + wait_ms
        by = self.throttled_by
        if principal in by or len(by) < _PRINCIPALS_MAX:
            answers, total_ms = by.get(principal, (0, 0))
            by[principal] = answers + 1, total_ms + wait_ms

    @property
    def requests(self) -> Mapping[int, Histogram]:
        """By API key, how long answers took."""
        self._book()
        return self._requests

    @property
    def errors(self) -> Mapping[tuple[int, int], int]:
        """How many answers had which error, by API key and code; code 0 is not in there."""
        self._book()
        return self._errors

    @property
    def flush_s(self) -> Histogram:
        """How long flushes took, from the order to write until answers may leave."""
        self._book()
        return self._flush_s

    @property
    def fsync_s(self) -> Histogram:
        """How long the synced write alone took."""
        self._book()
        return self._fsync_s

    @property
    def flush_wait_s(self) -> Histogram:
        """How long flushes waited until the disk's thread began them."""
        self._book()
        return self._flush_wait_s

    @property
    def flush_bytes(self) -> Histogram:
        """What flushes wrote."""
        self._book()
        return self._flush_bytes

    def round_answered(self, now_s: float, answers: list[tuple[float, int]]) -> None:
        """Count the *answers* that leave now: of each, when its request came, and its kind.

        The kind is its API key and, above that, its error code.
        """
        self._rounds.append((now_s, answers.copy()))
        self._answers_noted += len(answers)
        if self._answers_noted >= _ANSWERS_NOTED_MAX:
            self._book()

    def flushed(self, seconds: float, size_bytes: int, sync_s: float, wait_s: float | None) -> None:
        """Count a flush: its write took *sync_s*, and began after *wait_s*, None: no thread's."""
        self._flushes.append((seconds, size_bytes, sync_s, wait_s))
        if len(self._flushes) >= _FLUSHES_NOTED_MAX:
            self._book()

    def _book(self) -> None:
        if self._rounds:
            rounds, self._rounds, self._answers_noted = self._rounds, [], 0
            single_s = defaultdict[int, list[float]](list)
            for now_s, answers in rounds:
                # Those to requests that came together, with one error, took as long.
                for (arrived_s, kind), times in Counter(answers).items():
                    if times == 1:
                        single_s[kind].append(now_s - arrived_s)
                    else:
                        self._answers_of(kind, times).note(now_s - arrived_s, times)
            for kind, took_s in single_s.items():
                self._answers_of(kind, len(took_s)).note_all(took_s)
        if self._flushes:
            flush_s, sizes, sync_s, waits = map(list, zip(*self._flushes, strict=True))
            self._flushes.clear()
            self._flush_s.note_all(flush_s)
            self._flush_bytes.note_all(sizes)
            self._fsync_s.note_all(sync_s)
            self._flush_wait_s.note_all([wait_s for wait_s in waits if wait_s is not None])

    def _answers_of(self, kind: int, times: int) -> Histogram:
        """Return the histogram of so many answers; their errors are counted."""
        api_key, error = kind & _KEY_MASK, kind >> KEY_BITS
        if error:
            count(self._errors, (api_key, error), times)
        histogram = self._requests.get(api_key)
        if histogram is None:
            histogram = self._requests[api_key] = Histogram()
        return histogram

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

    def add(self, sink: EventSink) -> None:
        """Have *sink* called with each event, too, in the event loop."""
        self._sinks.append(sink)
