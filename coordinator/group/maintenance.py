"""When which work on all groups is done: changes of topics at once, expiry now and then."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

from coordinator.group.core import Core, Decision, Now, Outcome
from coordinator.group.group import Group
from coordinator.group.member import CONSUMER, Timer, TimerKind
from coordinator.group.offset_store import NO_EXPIRY, CommittedOffset
from coordinator.group.rebalance import CHANGES_WALKED, news, start_rebalance
from coordinator.group.records import KEEP_FOR_EVER, GroupDeleted, OffsetRemoved
from coordinator.group.states import GroupState, Trigger

# ------------------------------------------------------------------------------------------
# Work on all groups of a shard, a slice at a time, between requests.

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


# ------------------------------------------------------------------------------------------
# Offsets that nobody needs any more, by KIP-211: decided here, and written to the log.

# Theory of operation
# ===================
#
# How long an offset is kept counts from its commit, or from when its group became Empty; a
# topic that the group subscribes to doesn't expire at all. Wall clocks jump, and what is
# removed does not come back. So the clock of expiry is read once, at the load, and goes on with
# the monotonic time; and timestamps in records never go back, nor behind that clock
# (`Core.wall_ms`). So no jump makes anything expire early while the process runs.


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


# ------------------------------------------------------------------------------------------
# What changes of topics mean for groups: a rebalance, and the end of a deleted topic's offsets.

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


# ------------------------------------------------------------------------------------------
# When which work on all groups is done: changes of topics at once, expiry now and then.


class Sweeper:
    """One job at a time, a slice whenever its timer is due."""

    __slots__ = (
        "_core",
        "_expiry_clock",
        "_expiry_due_ms",
        "_job",
        "_must_tell",
        "_purged",
        "_purging",
        "_sweep",
        "_timer",
        "_to_purge",
    )

    def __init__(self, core: Core) -> None:
        self._core = core
        self._timer = Timer(TimerKind.SWEEP, None)
        self._sweep = Sweep()
        self._expiry_clock: ExpiryClock | None = None
        self._job: Iterator[None] | None = None
        self._purged: list[str] = []
        self.stop()

    def start(self, now: Now) -> None:
        """Begin to serve a shard that was just loaded: the first expiry is an interval away."""
        self._expiry_clock = ExpiryClock(now.wall_ms, now.mono_ms)
        # What is written from here on is never older than that clock says.
        self._core.wall_offset_ms = now.wall_ms - now.mono_ms
        interval_ms = self._core.config.offsets_retention_check_interval_ms
        self._expiry_due_ms = now.mono_ms + interval_ms
        # What changed after a group's last record: it may take long to find out.
        self._must_tell = self._core.registry.version > 0
        self._arm(now)

    def stop(self) -> None:
        """Forget everything, as the shard's groups are forgotten."""
        self._job = None
        self._expiry_clock = None
        self._expiry_due_ms = 0
        self._must_tell = False  # The groups of changes that no job has begun to tell.
        self._to_purge: dict[str, None] = {}  # Deleted topics that no job looks for yet.
        self._purging: frozenset[str] = frozenset()
        self._purged = []
        self._timer.deadline_ms = self._timer.armed_ms = None

    def topics_changed(self, deleted: Iterable[str], now: Now) -> None:
        """Tell the groups soon, and then remove what they have committed for *deleted* topics."""
        self._to_purge.update(dict.fromkeys(deleted))
        if not self._must_tell:  # Changes may come by the thousand.
            self._must_tell = True
            if self._expiry_clock is not None:
                self._arm(now)

    def take_purged(self) -> list[str]:
        """Return the deleted topics that no group has offsets of any more, each once."""
        purged, self._purged = self._purged, []
        return purged

    def slice(self, now: Now) -> list[Outcome]:
        """Do one slice, and be due again: at once while there is more."""
        if self._job is None:
            self._job = self._next_job(now)
        outcomes = []
        if self._job is not None:
            if self._sweep.run(self._job, now):
                self._job = None
                self._purged += sorted(self._purging)
                self._purging = frozenset()
            outcomes = self._sweep.outcomes
        self._arm(now)
        return outcomes

    def _next_job(self, now: Now) -> Iterator[None] | None:
        if self._must_tell:
            self._must_tell = False
            self._purging = frozenset(self._to_purge)
            self._to_purge = {}
            return changed(self._core, self._purging, self._sweep)
        if self._expiry_clock is not None and now.mono_ms >= self._expiry_due_ms:
            interval_ms = self._core.config.offsets_retention_check_interval_ms
            self._expiry_due_ms = now.mono_ms + interval_ms
            return expired(self._core, self._expiry_clock, self._sweep)
        return None

    def _arm(self, now: Now) -> None:
        is_busy = self._job is not None or self._must_tell
        at_ms = now.mono_ms if is_busy else max(self._expiry_due_ms, now.mono_ms)
        self._core.timers.arm(self._timer, at_ms)
