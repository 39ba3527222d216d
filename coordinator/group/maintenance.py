"""Work on all groups of a shard, a slice at a time between requests: changes, expiry, sizes.

Theory of operation
===================

There is one job at a time, and it does a slice whenever the timer is due. Changes of topics are
told at once: a group that they concern rebalances, and the offsets of deleted topics are removed.
Expiry runs now and then; so does, where principals have quotas, a look at what each group takes in
the log if anything of it was written since the last one.

Expiry removes offsets that nobody needs any more, by KIP-211. How long an offset is kept counts
from its commit, or from when its group became Empty; a topic that the group subscribes to doesn't
expire at all. Wall clocks jump, and what is removed does not come back. So the wall clock is read
once, at the first load, and goes on with the monotonic time; timestamps in records never go back,
nor behind that clock (`Core.wall_ms`). So no jump makes anything expire early while the process
runs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from coordinator.group.core import TOPICS_NAMED_MAX, Core, Decision, Now, Outcome
from coordinator.group.group import Group
from coordinator.group.member import CONSUMER, Timer, TimerKind
from coordinator.group.rebalance import CHANGES_WALKED, rebalance_if_topics_changed
from coordinator.group.records import (
    KEEP_FOR_EVER,
    NO_EXPIRY,
    CommittedOffset,
    GroupDeleted,
    OffsetRemoved,
)
from coordinator.group.states import GroupState, Trigger
from coordinator.group.totals import LogSize, utf8_bytes

# Keys or groups that one slice looks at or removes: about a millisecond, if all are removed.
SLICE: Final = 500
# What a decision takes besides its keys, counted in keys: its batch, and the event's line in the
# daemon's log. A topic that 1,000 groups have committed once takes 1,000 of them.
DECISION_ROOM: Final = 20
# What a key takes, roughly.
_KEY_US: Final = 2
# What compiling a pattern takes, in keys.
PATTERN_ROOM: Final = 50
# How often it is looked up what groups take in the log.
MEASURE_INTERVAL_MS: Final = 10_000
# So many offsets are looked at in the time in which a key is removed.
_MEASURED_PER_KEY: Final = 20

_Key = tuple[str, int]  # Topic and partition.


class Sweeper:
    """Does one job at a time, a slice whenever its timer is due.

    A job is an iterator that yields when the slice is used up.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._measures = core.totals.has_principals
        self._timer = Timer(TimerKind.SWEEP)
        self._has_clock = False
        # Of the slice: the time, how many keys it may still take, and what was decided.
        self._now = Now(0, 0)
        self._room = 0
        self._outcomes: list[Outcome] = []
        self.stop()

    def start(self, now: Now) -> None:
        """Begin to serve a shard that was just loaded: the first expiry is an interval away."""
        self._is_serving = True
        if not self._has_clock:
            # The clock of expiry, which a later load must not set anew: the wall clock may have
            # jumped since. What is written from here on is never older than it says.
            self._has_clock = True
            self._core.wall_offset_ms = now.wall_ms - now.mono_ms
        self._expiry_due_ms = now.mono_ms + self._core.config.offsets_retention_check_interval_ms
        self._measuring_due_ms = now.mono_ms
        self._arm(now)

    def stop(self) -> None:
        """Forget everything, as the shard's groups are forgotten."""
        self._is_serving = False
        self._job: Iterator[None] | None = None
        self._expiry_due_ms = self._measuring_due_ms = 0
        self._must_tell = False  # The groups of changes that no job has begun to tell.
        self._to_purge: dict[str, None] = {}  # Deleted topics that no job looks for yet.
        self._purging: frozenset[str] = frozenset()
        self._purged: list[str] = []
        self._timer.deadline_ms = self._timer.armed_ms = None

    def topics_changed(self, deleted: Iterable[str], now: Now) -> None:
        """Tell the groups soon, and then remove what they have committed for *deleted* topics."""
        self._to_purge.update(dict.fromkeys(deleted))
        if not self._must_tell:  # Changes may come by the thousand.
            self._must_tell = True
            if self._is_serving:
                self._arm(now)

    def take_purged(self) -> list[str]:
        """Return the deleted topics that no group has offsets of any more, each once."""
        purged, self._purged = self._purged, []
        return purged

    def slice(self, now: Now) -> list[Outcome]:
        """Do one slice, and be due again: at once while there is more."""
        self._now, self._room, self._outcomes = now, SLICE, []
        if self._job is None:
            self._job = self._next_job()
        if self._job is not None and next(self._job, self) is self:
            self._job = None
            self._purged += sorted(self._purging)
            self._purging = frozenset()
        self._arm(now)
        return self._outcomes

    def _next_job(self) -> Iterator[None] | None:
        if self._must_tell:
            self._must_tell = False
            self._purging = frozenset(self._to_purge)
            self._to_purge = {}
            return self._for_each_group(self._tell_topics)
        if self._now.mono_ms >= self._expiry_due_ms:
            interval_ms = self._core.config.offsets_retention_check_interval_ms
            self._expiry_due_ms = self._now.mono_ms + interval_ms
            return self._for_each_group(self._expire)
        if self._measures and self._now.mono_ms >= self._measuring_due_ms:
            self._measuring_due_ms = self._now.mono_ms + MEASURE_INTERVAL_MS
            return self._for_each_group(self._measure)
        return None

    def _arm(self, now: Now) -> None:
        due_ms = self._expiry_due_ms
        if self._measures:
            due_ms = min(due_ms, self._measuring_due_ms)
        is_busy = self._job is not None or self._must_tell
        at_ms = now.mono_ms if is_busy else max(due_ms, now.mono_ms)
        self._core.timers.arm(self._timer, at_ms)

    def _for_each_group(self, look_at: Callable[[Group], Iterator[None]]) -> Iterator[None]:
        for group_id in list(self._core.groups):
            self._room -= 1
            group = self._core.groups.get(group_id)
            if group is not None:
                yield from look_at(group)
            if self._room <= 0:
                yield

    def _for_all_keys(
        self, group: Group, keys: Sequence[_Key], act: Callable[[Group, Sequence[_Key]], None]
    ) -> Iterator[None]:
        """Do *act* with *keys*, as many at a time as there is room for; at least once."""
        at = 0
        while True:
            chosen = keys[at : at + max(self._room, 1)]
            at += len(chosen)
            self._room -= len(chosen)
            act(group, chosen)
            if at >= len(keys):
                return
            if self._room <= 0:
                yield
                if self._core.groups.get(group.group_id) is not group:
                    return  # Deleted meanwhile, and everything with it.

    def _keep(self, d: Decision) -> None:
        if d.outcome:
            self._room -= DECISION_ROOM
            self._outcomes.append(d.outcome)

    # --- changes of topics ------------------------------------------------------------------

    def _tell_topics(self, group: Group) -> Iterator[None]:
        """Bring the changes up to now to *group*, and remove its offsets of deleted topics.

        A group that is not Stable finds out as it becomes it.
        """
        registry = self._core.registry
        if group.state is GroupState.STABLE and registry.durable_version > group.known_version:
            for pattern in sorted(group.patterns):
                yield from self._match(pattern)
            if self._core.groups.get(group.group_id) is not group:
                return  # Deleted meanwhile, and everything with it.
        if group.state is GroupState.STABLE and registry.durable_version > group.known_version:
            # What looking at the group takes besides.
            changes = registry.number_of_changes_since(group.known_version)
            walked = changes if changes <= CHANGES_WALKED else len(registry.topics)
            self._room -= len(group.patterns) * walked
            d = Decision(self._core, group.group_id, self._now)
            rebalance_if_topics_changed(d, group)
            self._keep(d)
        # Whichever is smaller: a request deletes thousands, a group has a handful.
        names = min(self._purging, group.offsets, key=len)
        topics = sorted(t for t in names if t in self._purging and t in group.offsets)
        if topics:
            keys = [(topic, p) for topic in topics for p in sorted(group.offsets[topic])]
            yield from self._for_all_keys(group, keys, self._purge_keys)

    def _match(self, pattern: str) -> Iterator[None]:
        """Find the topics that match, so that a decision has them at once."""
        if self._core.registry.is_up_to_date(pattern):
            return
        self._room -= PATTERN_ROOM
        for cost_us in self._core.registry.match(pattern):
            self._room -= 1 + cost_us // _KEY_US
            if self._room <= 0:
                yield

    def _purge_keys(self, group: Group, keys: Sequence[_Key]) -> None:
        # An operator or the clock may have been faster.
        gone = [(topic, p) for topic, p in keys if p in group.offsets.get(topic, ())]
        d = Decision(self._core, group.group_id, self._now)
        for topic, partition in gone:
            d.emit(OffsetRemoved(group.group_id, topic, partition))
        if gone:
            topics = list(dict.fromkeys(topic for topic, _ in gone))[:TOPICS_NAMED_MAX]
            d.event("offsets.removed", count=len(gone), topics=topics, reason="topic deleted")
        self._keep(d)

    # --- expiry -----------------------------------------------------------------------------

    def _expire(self, group: Group) -> Iterator[None]:
        """Remove what has expired in *group*, and the group if it has nothing left."""
        keys = [(topic, p) for topic, partitions in group.offsets.items() for p in partitions]
        yield from self._for_all_keys(group, keys, self._expire_keys)

    def _expire_keys(self, group: Group, keys: Sequence[_Key]) -> None:
        mono_ms, wall_ms = self._now.mono_ms, self._now.wall_ms
        # A wall clock that has been set back since wins: it may have been ahead when it was read,
        # as that of a machine that has just started.
        now_ms = min(wall_ms, mono_ms + self._core.wall_offset_ms)
        own_ms = group.retention_ms
        retention_ms = self._core.config.offsets_retention_ms if own_ms is None else own_ms
        gone = [
            (topic, partition)
            for topic, partition in keys
            if (value := group.offset_of(topic, partition)) is not None
            and _has_expired(group, topic, value, retention_ms, now_ms)
        ]
        is_over = (
            group.state is GroupState.EMPTY
            and not group.pending
            and len(gone) == group.offset_count
            # Its retention would be forgotten with it, and what is committed next would expire.
            and own_ms != KEEP_FOR_EVER
        )
        if not gone and not is_over:
            return
        d = Decision(self._core, group.group_id, self._now)
        if gone:
            topics = sorted({topic for topic, _ in gone})[:TOPICS_NAMED_MAX]
            d.event("offsets.expired", count=len(gone), topics=topics)
        if is_over:
            group.move(Trigger.REMOVED)
            d.emit(GroupDeleted(group.group_id))  # Takes the offsets with it.
            d.event("group.expired", generation=group.generation, offsets=len(gone))
        else:
            for topic, partition in gone:
                d.emit(OffsetRemoved(group.group_id, topic, partition))
        self._keep(d)

    # --- sizes ------------------------------------------------------------------------------

    def _measure(self, group: Group) -> Iterator[None]:
        """Count for the owner what *group* takes in the log, if it may be another size now."""
        end_offset = group.end_offset
        if group.measured_offset == end_offset:
            return
        size_bytes = _head_bytes(group)
        for topic, stored in list(group.offsets.items()):
            size_bytes += LogSize.TOPIC + utf8_bytes([group.group_id, topic])
            offsets = list(stored.offsets.values())
            while offsets:
                count = max(self._room, 1) * _MEASURED_PER_KEY
                texts = [offset.metadata for offset in offsets[-count:]]
                size_bytes += len(texts) * LogSize.PARTITION + utf8_bytes(filter(None, texts))
                del offsets[-count:]
                self._room -= 1 + len(texts) // _MEASURED_PER_KEY
                if self._room <= 0:
                    yield
                    if self._core.groups.get(group.group_id) is not group:
                        return
        # What was written meanwhile is looked at the next time.
        group.measured_offset = end_offset
        group.share.count_log(size_bytes - group.log_bytes)
        group.log_bytes = size_bytes


def _head_bytes(group: Group) -> int:
    """Return what a group takes in the log besides its offsets."""
    size_bytes = LogSize.GROUP + len(group.group_id)
    for member in () if group.stable is None else group.stable.members:
        names = (member.member_id, member.client_id, member.client_host, member.principal or "")
        opaque_bytes = len(member.subscription) + len(member.assignment)
        size_bytes += LogSize.MEMBER + utf8_bytes(names) + opaque_bytes
    for report in group.rebalances.values():
        names = (report.member_id, report.client_id, report.client_host, report.reason)
        size_bytes += LogSize.REBALANCE + utf8_bytes(names)
        for late in report.late:
            late_names = (late.member_id, late.client_id, late.client_host)
            size_bytes += LogSize.MEMBER + utf8_bytes(late_names)
    return size_bytes


def _has_expired(
    group: Group, topic: str, value: CommittedOffset, retention_ms: int, now_ms: int
) -> bool:
    since_ms = _unused_since_ms(group, topic, value)
    if since_ms is None:
        return False
    if value.expire_timestamp_ms != NO_EXPIRY:
        return now_ms >= value.expire_timestamp_ms
    return retention_ms != KEEP_FOR_EVER and now_ms - since_ms >= retention_ms


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
