"""The report of one rebalance, with its cause, filled in while the rebalance runs.

A rebalance runs from the edge into PreparingRebalance until the group is Stable or Empty, or until
another one begins before the leader has assigned ("overtaken"). The decision that ends it writes
the report to the log. A crash in between loses it; the load then starts the next rebalance, whose
report names the crash.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from coordinator.group.member import Member, Watched
from protocol.messages import LateMember, Rebalance, heartbeat_interval_ms
from protocol.partition import NO_GENERATION

JOIN: Final = "join"
SYNC: Final = "sync"
STABLE: Final = "stable"
EMPTY: Final = "empty"
OVERTAKEN: Final = "overtaken"

# Reason of a removal: requested by the member, or by an operator.
LEFT: Final = "left"

# Time that a member gets to rejoin after its next heartbeat announced the rebalance, in ms.
COMING_MS: Final = 1_000
# Maximum number of late members named per phase: the slowest ones.
SLOWEST_MAX: Final = 5
# Maximum number of removed members named: there could be 10,000.
REMOVED_MAX: Final = 20
REASON_MAX: Final = 1_000  # Characters.


@dataclass(slots=True, eq=False)
class RunningRebalance:
    """The running rebalance of a group. All times except ``wall_ms`` are monotonic."""

    trigger: str
    reason: str
    member: Member | None  # The member that caused it, None without one.
    old_generation: int
    began_ms: int
    wall_ms: int
    completed_ms: int | None = None  # End of the join phase.
    members: int = 0
    late: list[LateMember] = field(default_factory=list)

    def join_completed(self, members: Iterable[Member], now_ms: int) -> None:
        """Note the end of the join phase, while the JoinGroups of *members* are parked."""
        self.completed_ms = now_ms
        came = []
        for member in members:
            self.members += 1
            # A new member is never late, because the rebalance did not wait for it.
            if member.join is not None and not member.is_new:
                came.append((member.join.at_ms, member))
        self._note_slowest(JOIN, came, self.began_ms, now_ms)

    def sync_completed(self, members: Iterable[Member], now_ms: int) -> None:
        """Note the end of the sync phase, while the SyncGroups of *members* are parked."""
        assert self.completed_ms is not None
        came = [(m.sync.at_ms, m) for m in members if m.sync is not None]
        self._note_slowest(SYNC, came, self.completed_ms, now_ms)

    def _note_slowest(
        self, phase: str, came: list[tuple[int, Member]], since_ms: int, now_ms: int
    ) -> None:
        half_ms = (now_ms - since_ms + 1) // 2
        slow = [
            (at_ms - since_ms, member)
            for at_ms, member in came
            if at_ms - since_ms >= half_ms and _is_late(member, at_ms - since_ms)
        ]
        slow.sort(key=lambda item: -item[0])
        self.late += [
            _late(m, phase, waited_ms, removed=False) for waited_ms, m in slow[:SLOWEST_MAX]
        ]

    def gone(self, member: Watched, reason: str, now_ms: int) -> None:
        """Note that *member* is removed; it is late if the current phase waited for it.

        A member that leaves is late by the same limit as one that joins; a member whose session or
        phase timed out is always late.
        """
        in_join = self.completed_ms is None
        since_ms = self.began_ms if self.completed_ms is None else self.completed_ms
        waited_ms = now_ms - since_ms
        if not member.is_awaited(in_join=in_join):
            return
        if reason == LEFT and not _is_late(member, waited_ms):
            return
        if sum(late.removed for late in self.late) < REMOVED_MAX:
            phase = JOIN if in_join else SYNC
            self.late.append(_late(member, phase, waited_ms, removed=True))

    def report(self, number: int, generation: int, outcome: str, now_ms: int) -> Rebalance:
        """Return the final report of a rebalance that ended with *outcome*."""
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


def _is_late(member: Watched, waited_ms: int) -> bool:
    return waited_ms > heartbeat_interval_ms(member.session_timeout_ms) + COMING_MS


def _late(member: Watched, phase: str, waited_ms: int, *, removed: bool) -> LateMember:
    return LateMember(
        member.member_id, member.client_id, member.client_host, phase, waited_ms, removed
    )
