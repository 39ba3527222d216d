"""What changes of topics mean for groups: a rebalance, and the end of a deleted topic's offsets."""

from collections.abc import Iterator
from itertools import islice

from coordinator.group.core import Core, Decision
from coordinator.group.group import Group
from coordinator.group.rebalance import start_rebalance
from coordinator.group.records import OffsetRemoved
from coordinator.group.states import GroupState, Trigger
from coordinator.group.subscriptions import news
from coordinator.group.sweep import Sweep

# So many changes are told as the reason of a rebalance.
TOLD = 3


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
                d = Decision(core, group_id, sweep.now)
                recheck(d, group)
                sweep.keep(d.outcome)
        if group is not None and deleted:
            # Whichever is smaller: a request deletes thousands, a group has a handful.
            names = min(deleted, group.offsets, key=len)
            for topic in sorted(t for t in names if t in deleted and t in group.offsets):
                yield from _purge(core, group, topic, sweep)
        if sweep.room <= 0:
            yield


def _purge(core: Core, group: Group, topic: str, sweep: Sweep) -> Iterator[None]:
    """Remove what *group* has committed for a topic that takes no commits any more."""
    while partitions := group.offsets.get(topic):
        if core.groups.get(group.group_id) is not group:
            return  # Deleted meanwhile, and everything with it.
        chosen = sorted(islice(partitions, max(sweep.room, 1)))
        d = Decision(core, group.group_id, sweep.now)
        for partition in chosen:
            d.emit(OffsetRemoved(group.group_id, topic, partition))
        d.event("offsets.removed", count=len(chosen), topics=[topic], reason="topic deleted")
        sweep.keep(d.outcome)
        sweep.room -= len(chosen)
        if sweep.room <= 0:
            yield
