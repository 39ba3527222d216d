"""What a client counts about itself: plain numbers, for whoever shows them (`client.metrics`).

They are written in the client's own thread, and may be read in any: a reader copies them.
"""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

# Both in seconds.
TIME_BOUNDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0),
)
REBALANCE_BOUNDS: Final = (*TIME_BOUNDS, 30.0, 60.0, 120.0, 300.0)
NO_ANSWER: Final = "no answer"


class Timings:
    """How many durations fell below each of some bounds, and their sum, in seconds.

    Attributes:
        bounds: Ascending; what equals one belongs below it.
        counts: One more than the bounds: the last is what is above them. Not cumulative.
        total_s: The sum.

    """

    __slots__ = ("bounds", "counts", "total_s")

    def __init__(self, bounds: tuple[float, ...] = TIME_BOUNDS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total_s = 0.0

    def note(self, seconds: float) -> None:
        """Count *seconds*."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total_s += seconds


@dataclass(slots=True)
class GroupCounts:
    """What all members of one group counted in one client, those that have left included.

    Attributes:
        rebalances: Assignments that they were given, and how long each took: from the first word
            of the rebalance.
        commits: Outcome ("done", "refused" or "unknown") -> how many.

    """

    rebalances: Timings = field(default_factory=lambda: Timings(REBALANCE_BOUNDS))
    commits: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class ClientCounts:
    """What one client counted.

    Attributes:
        answers: Name of the API and of the error -> how many; "no answer" where the connection
            ended or time ran out. Retries count one by one.
        durations: Name of the API -> how long its answers took.
        groups: Group -> what its members counted.

    """

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    durations: dict[str, Timings] = field(default_factory=dict)
    groups: dict[str, GroupCounts] = field(default_factory=dict)

    def answered(self, api: str, error: str, seconds: float) -> None:
        """Count an answer."""
        self.answers[api, error] += 1
        timings = self.durations.get(api)
        if timings is None:
            timings = self.durations[api] = Timings()
        timings.note(seconds)

    def unanswered(self, api: str) -> None:
        """Count an attempt that got none."""
        self.answers[api, NO_ANSWER] += 1

    def group(self, group_id: str) -> GroupCounts:
        """Return what is counted of a group, from now on if it is a new one."""
        return self.groups.setdefault(group_id, GroupCounts())


class MemberNow(NamedTuple):
    """A member of the moment.

    Attributes:
        heartbeat_age_s: Since a heartbeat was answered; None before the first.

    """

    group_id: str
    state: str
    generation: int
    assigned: int
    heartbeat_age_s: float | None


class ClientNow(NamedTuple):
    """A client of the moment.

    Attributes:
        outage_s: For how long the address has been away that is so longest; 0 if none is.
        counts: What it has counted so far: the counters themselves, so copy before iterating.

    """

    client_id: str
    connections: int
    outage_s: float
    members: tuple[MemberNow, ...]
    counts: ClientCounts
