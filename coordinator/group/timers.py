"""Deadlines: of members, pending ids, the barriers of a rebalance, and the shard's own."""

import heapq
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from coordinator.group.group import Group
    from coordinator.group.member import Watched


# With so many entries in the heap at least, those that are off are looked for.
PRUNE_MIN: Final = 256


class TimerKind(Enum):
    """What happens when it is due."""

    SESSION = "a member was not heard from"
    PENDING = "a member id was given out and not used"
    JOIN = "the join phase has lasted long enough"
    SYNC = "the sync phase has lasted long enough"
    SWEEP = "a slice of the work on all groups"


class Timer:
    """One deadline that can be moved at will; off until armed."""

    __slots__ = ("armed_ms", "deadline_ms", "group", "kind", "subject")

    def __init__(
        self, kind: TimerKind, group: "Group | None", subject: "Watched | None" = None
    ) -> None:
        self.kind = kind
        self.group = group  # None for a timer of the whole shard.
        self.subject = subject
        self.deadline_ms: int | None = None  # In the timers' own time; None is off.
        self.armed_ms: int | None = None  # Where its live heap entry stands, never later.


class _Entry(NamedTuple):
    at_ms: int
    sequence: int  # Ties go by the order of arming, so that a run can be repeated.
    timer: Timer


class Timers:
    """All deadlines of a shard, with cheap re-arming.

    Each timer has one live heap entry, which may be too early: moving a deadline later only
    overwrites it, and the entry is moved when it surfaces. So a member that commits a
    thousand times a second costs two stores each, and no memory.

    An entry whose timer was turned off keeps that, its member and its group in memory until it
    surfaces, which may be weeks later. So whenever the heap has doubled, they are thrown out.

    Deadlines are kept in a time of their own that stands still while the process is stalled:
    `shift` is one addition, whatever the number of timers.
    """

    __slots__ = ("_heap", "_prune_at", "_sequence", "_shift_ms")

    def __init__(self) -> None:
        self._heap: list[_Entry] = []
        self._prune_at = PRUNE_MIN
        self._sequence = 0
        self._shift_ms = 0

    def arm(self, timer: Timer, at_ms: int) -> None:
        """Let *timer* be due at the monotonic time *at_ms*, whenever it was due before."""
        deadline_ms = at_ms - self._shift_ms
        timer.deadline_ms = deadline_ms
        if timer.armed_ms is None or deadline_ms < timer.armed_ms:
            self._push(timer, deadline_ms)

    @staticmethod
    def cancel(timer: Timer) -> None:
        """Turn *timer* off."""
        timer.deadline_ms = None

    def shift(self, by_ms: int) -> None:
        """Move every deadline by *by_ms*."""
        self._shift_ms += by_ms

    def next_deadline_ms(self) -> int | None:
        """Return when the earliest timer is due, or None when all are off."""
        while self._heap:
            at_ms, _, timer = self._heap[0]
            if timer.armed_ms != at_ms:
                heapq.heappop(self._heap)  # Superseded by an earlier entry.
                continue
            if timer.deadline_ms == at_ms:
                return at_ms + self._shift_ms
            heapq.heappop(self._heap)
            timer.armed_ms = None
            if timer.deadline_ms is not None:
                self._push(timer, timer.deadline_ms)
        return None

    def pop_due(self, now_ms: int) -> Timer | None:
        """Turn off and return the earliest timer if it is due at *now_ms*."""
        at_ms = self.next_deadline_ms()
        if at_ms is None or at_ms > now_ms:
            return None
        timer = heapq.heappop(self._heap).timer
        timer.armed_ms = timer.deadline_ms = None
        return timer

    def _push(self, timer: Timer, at_ms: int) -> None:
        if len(self._heap) >= self._prune_at:
            self._prune()
        timer.armed_ms = at_ms
        self._sequence += 1
        heapq.heappush(self._heap, _Entry(at_ms, self._sequence, timer))

    def _prune(self) -> None:
        kept = []
        for entry in self._heap:
            timer = entry.timer
            if timer.armed_ms != entry.at_ms:
                continue  # Superseded by an earlier entry.
            if timer.deadline_ms is None:
                timer.armed_ms = None
            else:
                kept.append(entry)
        heapq.heapify(kept)
        self._heap = kept
        self._prune_at = max(2 * len(kept), PRUNE_MIN)
