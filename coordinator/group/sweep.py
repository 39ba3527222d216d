"""Work on all groups of a shard, a slice at a time, between requests."""

from collections.abc import Iterator
from typing import Final

from coordinator.group.effects import Now, Outcome

# Keys or groups that one slice looks at or removes: 2.5 µs each if removed, so about a millisecond.
SLICE: Final = 500
# What a decision takes besides its keys, counted in keys: its batch, and the event's line in the
# daemon's log. A topic that 1,000 groups have committed once takes 1,000 of them.
DECISION: Final = 20


class Sweep:
    """One slice: what time it is, how much is left to do in it, and what was decided."""

    __slots__ = ("now", "outcomes", "room")

    def __init__(self) -> None:
        self.now = Now(0, 0)
        self.room = 0
        self.outcomes: list[Outcome] = []

    def keep(self, outcome: Outcome) -> None:
        """Add a decision, unless nothing was decided."""
        if outcome:
            self.room -= DECISION
            self.outcomes.append(outcome)

    def run(self, job: Iterator[None], now: Now) -> bool:
        """Do one slice of *job*; say whether it is done. What it decided is in `outcomes`."""
        self.now, self.room, self.outcomes = now, SLICE, []
        return next(job, self) is self
