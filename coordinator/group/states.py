"""States and transitions of a consumer group, as data. States have Kafka's names."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class GroupState(StrEnum):
    """State of a group."""

    EMPTY = "Empty"  # No members; may have committed offsets and pending member ids.
    PREPARING = "PreparingRebalance"  # Parks JoinGroup until all members are back or time is up.
    COMPLETING = "CompletingRebalance"  # Parks SyncGroup until the leader assigns.
    STABLE = "Stable"  # Every member has, or can request, its assignment.
    DEAD = "Dead"  # Deleted, or its partition moved to another node; final.


class Trigger(StrEnum):
    """Cause of a transition."""

    MEMBER_JOINED = "member joined"
    MEMBER_REJOINED = "member rejoined"  # With other protocols, as the leader, or replaced.
    MEMBER_LOST = "member lost"  # Left, expired, timed out, or sent a bad assignment.
    DRAIN_ASKED = "drain asked"
    TOPICS_CHANGED = "topics changed"
    TOO_MANY = "too many members"  # Loaded with more members than group.max.size.
    JOIN_COMPLETED = "join completed"
    NOBODY_LEFT = "nobody left"
    ASSIGNED = "assigned"
    REMOVED = "removed"  # Deleted, or unloaded.
    LOADED_STABLE = "loaded with members"
    LOADED_UNASSIGNED = "loaded, told a generation that was never assigned"


_S, _T = GroupState, Trigger

# A group begins Empty, also when it is loaded: the load then applies a LOADED edge at once.
TRANSITIONS: Final[Mapping[tuple[GroupState, Trigger], GroupState]] = {
    (_S.EMPTY, _T.MEMBER_JOINED): _S.PREPARING,
    (_S.EMPTY, _T.LOADED_STABLE): _S.STABLE,
    (_S.EMPTY, _T.LOADED_UNASSIGNED): _S.PREPARING,
    (_S.EMPTY, _T.REMOVED): _S.DEAD,
    (_S.PREPARING, _T.JOIN_COMPLETED): _S.COMPLETING,
    (_S.PREPARING, _T.NOBODY_LEFT): _S.EMPTY,
    (_S.PREPARING, _T.REMOVED): _S.DEAD,
    (_S.COMPLETING, _T.MEMBER_JOINED): _S.PREPARING,
    (_S.COMPLETING, _T.MEMBER_REJOINED): _S.PREPARING,
    (_S.COMPLETING, _T.MEMBER_LOST): _S.PREPARING,
    (_S.COMPLETING, _T.DRAIN_ASKED): _S.PREPARING,
    (_S.COMPLETING, _T.TOPICS_CHANGED): _S.PREPARING,
    (_S.COMPLETING, _T.ASSIGNED): _S.STABLE,
    (_S.COMPLETING, _T.REMOVED): _S.DEAD,
    (_S.STABLE, _T.MEMBER_JOINED): _S.PREPARING,
    (_S.STABLE, _T.MEMBER_REJOINED): _S.PREPARING,
    (_S.STABLE, _T.MEMBER_LOST): _S.PREPARING,
    (_S.STABLE, _T.DRAIN_ASKED): _S.PREPARING,
    (_S.STABLE, _T.TOPICS_CHANGED): _S.PREPARING,
    (_S.STABLE, _T.TOO_MANY): _S.PREPARING,
    (_S.STABLE, _T.REMOVED): _S.DEAD,
}


def next_state(state: GroupState, trigger: Trigger) -> GroupState:
    """Return the state after *trigger*; a missing edge is an internal error, not the client's."""
    try:
        return TRANSITIONS[state, trigger]
    except KeyError:
        raise AssertionError(f"a {state} group has no edge for {trigger!r}") from None


def diagram() -> str:
    """Return the table as a Mermaid state diagram, as docs/group-states.md shows it."""
    edges: dict[tuple[GroupState, GroupState], list[str]] = {}
    for (source, trigger), target in TRANSITIONS.items():
        edges.setdefault((source, target), []).append(trigger.value)
    lines = ["stateDiagram-v2", f"    [*] --> {GroupState.EMPTY}"]
    lines += [
        f"    {source} --> {target}: {' / '.join(triggers)}"
        for (source, target), triggers in edges.items()
    ]
    lines.append(f"    {GroupState.DEAD} --> [*]")
    return "\n".join(lines) + "\n"
