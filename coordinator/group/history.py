"""Why did it rebalance? The report of one rebalance, filled in while it runs.

A rebalance runs from the edge into PreparingRebalance until the group is Stable or Empty, or
until another one begins before the leader has assigned ("overtaken"). The decision that ends it
writes the report to the log. A crash in between loses it; the load then starts the next one,
which says so.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from coordinator.group.member import Member
from protocol.messages import LateMember, Rebalance
from protocol.partition import NO_GENERATION

JOIN: Final = "join"
SYNC: Final = "sync"
STABLE: Final = "stable"
EMPTY: Final = "empty"
OVERTAKEN: Final = "overtaken"

# The slowest of those that came are named if they took so long, and half of the phase.
SLOW_MS: Final = 1_000
SLOWEST_MAX: Final = 5
# So many of those that were removed are named: all of them could be 10,000.
REMOVED_MAX: Final = 20
REASON_MAX: Final = 1_000  # Characters.


@dataclass(slots=True, eq=False)
class RunningRebalance:
    """The rebalance that a group is in. All times but ``wall_ms`` are monotonic."""

    trigger: str
    reason: str
    member: Member | None  # The one that caused it, None for nobody in particular.
    old_generation: int
    began_ms: int
    wall_ms: int
    completed_ms: int | None = None  # When the join phase completed.
    members: int = 0
    late: list[LateMember] = field(default_factory=list)

    def join_completed(self, members: Iterable[Member], now_ms: int) -> None:
        """Note that the join phase completes, while the JoinGroups of *members* are parked."""
        self.completed_ms = now_ms
        came = []
        for member in members:
            self.members += 1
            # Nobody waited for a new member: it came on its own.
            if member.join is not None and not member.is_new:
                came.append((member.join.at_ms, member))
        self._note_slowest(JOIN, came, self.began_ms, now_ms)

    def sync_completed(self, members: Iterable[Member], now_ms: int) -> None:
        """Note that the sync phase completes, while the SyncGroups of *members* are parked."""
        assert self.completed_ms is not None
        came = [(m.sync.at_ms, m) for m in members if m.sync is not None]
        self._note_slowest(SYNC, came, self.completed_ms, now_ms)

    def _note_slowest(
        self, phase: str, came: list[tuple[int, Member]], since_ms: int, now_ms: int
    ) -> None:
        slow_ms = max(SLOW_MS, (now_ms - since_ms + 1) // 2)
        slow = [(at_ms - since_ms, member) for at_ms, member in came if at_ms - since_ms >= slow_ms]
        slow.sort(key=lambda item: -item[0])
        self.late += [
            _late(m, phase, waited_ms, removed=False) for waited_ms, m in slow[:SLOWEST_MAX]
        ]

    def removed(self, member: Member, phase: str, now_ms: int) -> None:
        """Note that *member* is removed because it did not come in time."""
        if sum(late.removed for late in self.late) < REMOVED_MAX:
            completed_ms = self.completed_ms
            since_ms = self.began_ms if phase == JOIN or completed_ms is None else completed_ms
            self.late.append(_late(member, phase, now_ms - since_ms, removed=True))

    def report(self, number: int, generation: int, outcome: str, now_ms: int) -> Rebalance:
        """Return what is kept of it, now that it has ended with *outcome*."""
        by = self.member
        completed_ms = now_ms if self.completed_ms is None else self.completed_ms
        has_generation = self.completed_ms is not None or outcome == EMPTY
        return Rebalance(
            number,
            self.wall_ms,
            self.trigger,
            *(
                ("", None, "", "")
                if by is None
                else (by.member_id, by.group_instance_id, by.client_id, by.client_host)
            ),
            self.reason,
            self.old_generation,
            generation if has_generation else NO_GENERATION,
            completed_ms - self.began_ms,
            now_ms - completed_ms,
            self.members,
            outcome,
            tuple(self.late),
        )


def _late(member: Member, phase: str, waited_ms: int, *, removed: bool) -> LateMember:
    return LateMember(
        member.member_id, member.client_id, member.client_host, phase, waited_ms, removed
    )
