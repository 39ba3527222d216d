"""What changes of topics mean for groups: a rebalance, and the end of a deleted topic's offsets."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from coordinator.group.core import Core, Decision
from coordinator.group.expiry import TOPICS_TOLD
from coordinator.group.group import Group
from coordinator.group.rebalance import start_rebalance
from coordinator.group.records import OffsetRemoved
from coordinator.group.states import GroupState, Trigger
from coordinator.group.subscriptions import CHANGES_WALKED, news
from coordinator.group.sweep import Sweep

# So many changes are told as the reason of a rebalance.
TOLD = 3
# What compiling a pattern takes, in keys of a slice.
PATTERN_ROOM: Final = 20


def recheck(d: Decision, group: Group) -> None:
    """Rebalance a Stable group that is concerned by a change newer than its assignment."""
    registry = d.core.registry
    if registry.version <= max(group.topics_version, group.topics_triggered):
        return
    told = list(islice(news(registry, group), TOLD + 1))
    if not told:
        group.topics_version = registry.version
        return
    group.topics_triggered = registry.version
    detail = "; ".join(told[:TOLD]) + (" and more" if len(told) > TOLD else "")
    start_rebalance(d, group, Trigger.TOPICS_CHANGED, "topics changed", None, detail)


def changed(core: Core, deleted: frozenset[str], sweep: Sweep) -> Iterator[None]:
    """Bring the changes up to now to all groups, and remove offsets of *deleted* topics.

    Yields whenever the slice is used up. Groups that are not Stable find out as they become it.
    """
    for group_id in list(core.groups):
        sweep.room -= 1
        group = core.groups.get(group_id)
        if group is not None and group.state is GroupState.STABLE:
            known = max(group.topics_version, group.topics_triggered)
            if core.registry.version > known:
                sweep.room -= _cost(core, group, known)
                d = Decision(core, group_id, sweep.now)
                recheck(d, group)
                sweep.keep(d.outcome)
        if group is not None and deleted:
            yield from _purge(core, group, deleted, sweep)
        if sweep.room <= 0:
            yield


def _cost(core: Core, group: Group, known_version: int) -> int:
    """Return what looking at *group* takes, in keys of a slice: its patterns, mostly."""
    changes = core.registry.number_of_changes_since(known_version)
    matched = changes if changes <= CHANGES_WALKED else len(core.registry.topics)
    return len(group.patterns) * (PATTERN_ROOM + matched)


def _purge(core: Core, group: Group, deleted: frozenset[str], sweep: Sweep) -> Iterator[None]:
    """Remove what *group* has committed for topics that take no commits any more."""
    # Whichever is smaller: a request deletes thousands, a group has a handful.
    names = min(deleted, group.offsets, key=len)
    topics = sorted(t for t in names if t in deleted and t in group.offsets)
    keys = [(topic, p) for topic in topics for p in sorted(group.offsets[topic])]
    at = 0
    while at < len(keys):
        chosen = keys[at : at + max(sweep.room, 1)]
        at += len(chosen)
        sweep.room -= len(chosen)
        # An operator or the clock may have been faster.
        gone = [key for key in chosen if key[1] in group.offsets.get(key[0], ())]
        d = Decision(core, group.group_id, sweep.now)
        for topic, partition in gone:
            d.emit(OffsetRemoved(group.group_id, topic, partition))
        if gone:
            told = list(dict.fromkeys(topic for topic, _ in gone))[:TOPICS_TOLD]
            d.event("offsets.removed", count=len(gone), topics=told, reason="topic deleted")
        sweep.keep(d.outcome)
        if sweep.room <= 0:
            yield
            if core.groups.get(group.group_id) is not group:
                return  # Deleted meanwhile, and everything with it.
