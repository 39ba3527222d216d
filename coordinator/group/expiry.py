"""Offsets that nobody needs any more, by KIP-211: decided here, and written to the log."""

# Theory of operation
# ===================
#
# How long an offset is kept counts from its commit, or from when its group became Empty; a
# topic that the group subscribes to doesn't expire at all. Wall clocks jump, and what is
# removed does not come back. So the clock of expiry is read once, at the load, and goes on with
# the monotonic time; and timestamps in records never go back, nor behind that clock
# (`Core.wall_ms`). So no jump makes anything expire early while the process runs.

from collections.abc import Iterator
from typing import Final, NamedTuple

from coordinator.group.core import Core, Decision
from coordinator.group.effects import Now
from coordinator.group.group import Group
from coordinator.group.member import CONSUMER
from coordinator.group.records import (
    KEEP_FOR_EVER,
    GroupDeleted,
    OffsetRemoved,
)
from coordinator.group.states import GroupState, Trigger
from coordinator.group.stored import NO_EXPIRY, CommittedOffset
from coordinator.group.sweep import Sweep

# Topics that an event names.
TOPICS_TOLD: Final = 10

_Key = tuple[str, int]


class ExpiryClock(NamedTuple):
    """The time of day at one moment, carried on by monotonic time."""

    wall_ms: int
    mono_ms: int

    def at(self, now: Now) -> int:
        """Return the time of day; a wall clock that has been set back since wins.

        It may have been ahead when it was read, as that of a machine that has just started.
        """
        return min(now.wall_ms, self.wall_ms + now.mono_ms - self.mono_ms)


def retention_ms(core: Core, group: Group) -> int:
    """Return how long the group's offsets are kept, KEEP_FOR_EVER for no limit."""
    own = group.retention_ms
    return core.config.offsets_retention_ms if own is None else own


def expired(core: Core, clock: ExpiryClock, sweep: Sweep) -> Iterator[None]:
    """Remove what has expired in all groups, and groups that have nothing left.

    Yields whenever the slice is used up.
    """
    for group_id in list(core.groups):
        sweep.room -= 1
        group = core.groups.get(group_id)
        if group is not None:
            yield from _look_at(core, group, clock, sweep)
        if sweep.room <= 0:
            yield


def _look_at(core: Core, group: Group, clock: ExpiryClock, sweep: Sweep) -> Iterator[None]:
    keys = [(topic, p) for topic, partitions in group.offsets.items() for p in partitions]
    at = 0
    while True:
        chosen = keys[at : at + max(sweep.room, 1)]
        at += len(chosen)
        sweep.room -= len(chosen)
        _expire(core, group, chosen, clock.at(sweep.now), sweep)
        if at >= len(keys):
            return
        if sweep.room <= 0:
            yield
            if core.groups.get(group.group_id) is not group:
                return  # Deleted meanwhile.


def _expire(core: Core, group: Group, keys: list[_Key], now_ms: int, sweep: Sweep) -> None:
    """Remove those of *keys* that have expired, and the group with the last of them."""
    gone = [
        (topic, partition)
        for topic, partition in keys
        if (value := group.offset_of(topic, partition)) is not None
        and _has_expired(core, group, topic, value, now_ms)
    ]
    is_over = (
        group.state is GroupState.EMPTY
        and not group.pending
        and len(gone) == group.offset_count
        # Its retention would be forgotten with it, and what is committed next would expire.
        and group.retention_ms != KEEP_FOR_EVER
    )
    if not gone and not is_over:
        return
    d = Decision(core, group.group_id, sweep.now)
    if gone:
        topics = sorted({topic for topic, _ in gone})[:TOPICS_TOLD]
        d.event("offsets.expired", count=len(gone), topics=topics)
    if is_over:
        group.move(Trigger.REMOVED)
        d.emit(GroupDeleted(group.group_id))  # Takes the offsets with it.
        d.event("group.expired", generation=group.generation, offsets=len(gone))
    else:
        for topic, partition in gone:
            d.emit(OffsetRemoved(group.group_id, topic, partition))
    sweep.keep(d.outcome)


def _has_expired(core: Core, group: Group, topic: str, value: CommittedOffset, now_ms: int) -> bool:
    since_ms = _unused_since_ms(group, topic, value)
    if since_ms is None:
        return False
    if value.expire_timestamp_ms != NO_EXPIRY:
        return now_ms >= value.expire_timestamp_ms
    kept_ms = retention_ms(core, group)
    return kept_ms != KEEP_FOR_EVER and now_ms - since_ms >= kept_ms


def _unused_since_ms(group: Group, topic: str, value: CommittedOffset) -> int | None:
    """Return from when on the retention of an offset counts; None: it is in use."""
    committed_ms = value.commit_timestamp_ms
    if not group.protocol_type:
        return committed_ms  # A simple group: nobody knows who uses it.
    if group.state is GroupState.EMPTY:
        # Kafka counts from the first alone: an operator's reset of a group that has been empty
        # for long is gone at the next check.
        emptied_ms = -1 if group.stable is None else group.stable.state_timestamp_ms
        return max(emptied_ms, committed_ms)
    if (
        group.protocol_type == CONSUMER
        and group.state is GroupState.STABLE
        and group.subscribed is not None
        and topic not in group.subscribed
    ):
        return committed_ms
    return None
