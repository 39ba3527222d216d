"""Counters of a client, as plain numbers; `client.metrics` shows them.

They are written in the client's own thread, and may be read in any: a reader copies them.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from protocol.histogram import REBALANCE_BOUNDS_S, Histogram

NO_ANSWER: Final = "no answer"


@dataclass(slots=True)
class GroupCounts:
    """Counters of one group in one client, over all its members, also those that have left.

    Attributes:
        rebalances: Assignments that they were given, and how long each took, in seconds
            from the first word of the rebalance.
        commits: Outcome ("done", "refused" or "unknown") -> how many.

    """

    rebalances: Histogram = field(default_factory=lambda: Histogram(REBALANCE_BOUNDS_S))
    commits: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class ClientCounts:
    """Counters of one client.

    Attributes:
        answers: Name of the API and of the error -> number of answers; "no answer" where the
            connection ended or time ran out. Retries count one by one.
        durations: Name of the API -> how long its answers took, in seconds.
        groups: Group -> what its members counted.

    """

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    durations: dict[str, Histogram] = field(default_factory=dict)
    groups: dict[str, GroupCounts] = field(default_factory=dict)

    def answered(self, api: str, error: str, seconds: float) -> None:
        """Count an answer."""
        self.answers[api, error] += 1
        histogram = self.durations.get(api)
        if histogram is None:
            histogram = self.durations[api] = Histogram()
        histogram.note(seconds)

    def unanswered(self, api: str) -> None:
        """Count an attempt that got none."""
        self.answers[api, NO_ANSWER] += 1

    def group(self, group_id: str) -> GroupCounts:
        """Return what is counted of a group, from now on if it is a new one."""
        return self.groups.setdefault(group_id, GroupCounts())

    def add(self, other: "ClientCounts") -> None:
        """Count what *other* has counted, which may go on meanwhile in its thread."""
        self.answers.update(other.answers.copy())
        for api, histogram in list(other.durations.items()):
            self.durations.setdefault(api, Histogram()).add(histogram)
        for group_id, counts in list(other.groups.items()):
            ours = self.group(group_id)
            ours.rebalances.add(counts.rebalances)
            ours.commits.update(counts.commits.copy())


class MemberNow(NamedTuple):
    """Snapshot of a member.

    Attributes:
        heartbeat_age_s: Seconds since a heartbeat was answered; None before the first.

    """

    group_id: str
    state: str
    generation: int
    assigned: int
    heartbeat_age_s: float | None


class ClientNow(NamedTuple):
    """Snapshot of a client.

    Attributes:
        outage_s: The longest running outage of an address, in seconds; 0 without one.
        counts: The live counters of the client; copy them before iterating.

    """

    client_id: str
    connections: int
    outage_s: float
    members: tuple[MemberNow, ...]
    counts: ClientCounts
