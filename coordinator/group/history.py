"""Why did it rebalance? One record for each rebalance, written in the decision that ends it."""

# A rebalance runs from the edge into PreparingRebalance until the group is Stable or Empty, or
# until another one begins before the leader has assigned ("overtaken"). A crash in between
# loses it; the load then starts the next one, which says so.

from typing import TYPE_CHECKING, Final

from msgspec import structs

from coordinator.group.records import GroupRebalanced
from protocol.errors import ErrorCode
from protocol.messages import (
    DescribeRebalancesRequest,
    DescribeRebalancesResponse,
    LateMember,
    Rebalance,
)
from protocol.partition import NO_GENERATION

if TYPE_CHECKING:
    from coordinator.group.core import Core, Decision
    from coordinator.group.group import Group
    from coordinator.group.member import Member

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


class Running:
    """The rebalance that a group is in."""

    __slots__ = (
        "began_ms",
        "by",
        "late",
        "members",
        "old_generation",
        "opened_ms",
        "reason",
        "started_ms",
        "trigger",
    )

    def __init__(self, trigger: str, reason: str, by: "Member | None") -> None:
        self.trigger = trigger
        self.reason = reason[:REASON_MAX]
        # Member id, instance id, client id and host of the one that caused it.
        self.by = (
            ("", None, "", "")
            if by is None
            else (by.member_id, by.group_instance_id, by.client_id, by.client_host)
        )
        self.started_ms = 0  # Wall clock.
        self.began_ms = 0  # Monotonic, as is the next.
        self.opened_ms: int | None = None  # When the join phase completed.
        self.old_generation = 0
        self.members = 0
        self.late: list[LateMember] = []


def started(d: "Decision", group: "Group", running: Running) -> None:
    """Begin with *running*; one that has not ended is overtaken by it."""
    if group.rebalance is not None:
        ended(d, group, OVERTAKEN)
    running.started_ms = d.wall_ms
    running.began_ms = d.now.mono_ms
    running.old_generation = group.generation
    group.rebalance = running
    d.event(
        "group.rebalance_started",
        trigger=running.trigger,
        member=running.by[0],
        detail=running.reason,
        generation=group.generation,
    )


def opened(d: "Decision", group: "Group") -> None:
    """Note that the join phase completes, while those that came are still parked."""
    running = group.rebalance
    if running is None:
        return
    running.opened_ms = d.now.mono_ms
    running.members = len(group.members)
    # Nobody waited for a new member: it came on its own.
    came = [(m, m.join.at_ms) for m in group.members.values() if m.join and not m.is_new]
    _note_slowest(running, JOIN, came, running.began_ms, d.now.mono_ms)


def assigning(d: "Decision", group: "Group") -> None:
    """Note that the sync phase completes, while those that came are still parked."""
    running = group.rebalance
    if running is None or running.opened_ms is None:
        return
    came = [(m, m.sync.at_ms) for m in group.members.values() if m.sync]
    _note_slowest(running, SYNC, came, running.opened_ms, d.now.mono_ms)


def _note_slowest(
    running: Running, phase: str, came: list[tuple["Member", int]], since_ms: int, now_ms: int
) -> None:
    slow_ms = max(SLOW_MS, (now_ms - since_ms + 1) // 2)
    slow = [(at_ms - since_ms, member) for member, at_ms in came if at_ms - since_ms >= slow_ms]
    slow.sort(key=lambda item: -item[0])
    for waited_ms, member in slow[:SLOWEST_MAX]:
        running.late.append(_late(member, phase, waited_ms, removed=False))


def missed(d: "Decision", group: "Group", member: "Member", phase: str) -> None:
    """Note that *member* is removed because it did not come in time."""
    running = group.rebalance
    if running is None or sum(late.removed for late in running.late) >= REMOVED_MAX:
        return
    since_ms = running.began_ms if phase == JOIN else running.opened_ms or running.began_ms
    running.late.append(_late(member, phase, d.now.mono_ms - since_ms, removed=True))


def _late(member: "Member", phase: str, waited_ms: int, *, removed: bool) -> LateMember:
    return LateMember(
        member.member_id, member.client_id, member.client_host, phase, waited_ms, removed
    )


def ended(d: "Decision", group: "Group", outcome: str) -> None:
    """Keep the running rebalance for good."""
    running = group.rebalance
    if running is None:
        return
    group.rebalance = None
    now_ms = d.now.mono_ms
    is_open = running.opened_ms is not None
    opened_ms = now_ms if running.opened_ms is None else running.opened_ms
    rebalance = Rebalance(
        group.last_rebalance() + 1,
        running.started_ms,
        running.trigger,
        *running.by,
        running.reason,
        running.old_generation,
        group.generation if is_open or outcome == EMPTY else NO_GENERATION,
        opened_ms - running.began_ms,
        now_ms - opened_ms,
        running.members,
        outcome,
        tuple(running.late),
    )
    d.emit(GroupRebalanced(group.group_id, rebalance))
    fields = structs.asdict(rebalance)
    fields["late"] = [structs.asdict(late) for late in rebalance.late]
    d.event("group.rebalanced", **fields)


def describe(core: "Core", request: DescribeRebalancesRequest) -> DescribeRebalancesResponse:
    """Return the newest rebalances of a group that have ended, newest first; 69 if unknown."""
    group_id = request.group_id
    group = core.groups.get(group_id)
    if group is None:
        error = ErrorCode.GROUP_ID_NOT_FOUND.value
        return DescribeRebalancesResponse(error, f"Group {group_id} not found.", group_id, ())
    newest = sorted(group.rebalances.values(), key=lambda r: r.number, reverse=True)
    shown = tuple(newest[: max(request.max_rebalances, 0)])
    return DescribeRebalancesResponse(ErrorCode.NONE.value, None, group_id, shown)
