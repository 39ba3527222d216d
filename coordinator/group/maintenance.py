"""Background work on all groups of a shard, in steps between requests: changes, expiry, sizes.

Theory of operation
===================

One job runs at a time, one slice whenever the timer is due. Topic changes are handled at once:
affected groups rebalance, and the offsets of deleted topics are removed. Expiry runs periodically.
If principals have quotas, groups are measured periodically, too: those with new entries in the log
since the last measurement.

Expiry removes unused offsets, by KIP-211. The retention counts from the commit, or from when the
group became Empty; offsets of subscribed topics don't expire. Wall clocks jump, and removed offsets
don't come back. The wall clock is therefore read once, at the first load, and advanced by the
monotonic time; timestamps in records never go back, nor behind that clock (`Core.wall_ms`). No jump
can make anything expire early while the process runs.
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

# Keys or groups that one slice reads or removes: about a millisecond if all are removed.
SLICE: Final = 500
# Cost of a decision without its keys, in keys: its batch, and the event's line in the daemon's log.
# A topic that 1,000 groups have committed once takes 1,000 decisions.
DECISION_ROOM: Final = 20
# Approximate time per key, in microseconds.
_KEY_US: Final = 2
# Cost of compiling a pattern, in keys.
PATTERN_ROOM: Final = 50
# Interval between two measurements of the groups' log usage.
MEASURE_INTERVAL_MS: Final = 10_000
# Number of offsets measured in the time of removing one key.
_MEASURED_PER_KEY: Final = 20

_Key = tuple[str, int]  # Topic and partition.


class Sweeper:
    """Runs one job at a time, a slice whenever its timer is due.

    A job is an iterator that yields when the slice is used up.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._measures = core.totals.has_principals
        self._timer = Timer(TimerKind.SWEEP)
        self._has_clock = False
        # State of the slice: the time, the remaining keys, and the decisions.
        self._now = Now(0, 0)
        self._room = 0
        self._outcomes: list[Outcome] = []
        self.stop()

    def start(self, now: Now) -> None:
        """Begin to serve a loaded shard; the first expiry follows one interval later."""
        self._is_serving = True
        if not self._has_clock:
            # The clock of expiry. A later load must not set it again: the wall clock may have
            # jumped since. Records written from here on are never older than this clock.
            self._has_clock = True
            self._core.wall_offset_ms = now.wall_ms - now.mono_ms
        self._expiry_due_ms = now.mono_ms + self._core.config.offsets_retention_check_interval_ms
        self._measuring_due_ms = now.mono_ms
        self._arm(now)

    def stop(self) -> None:
        """Drop all jobs, because the shard's groups are unloaded."""
        self._is_serving = False
        self._job: Iterator[None] | None = None
        self._expiry_due_ms = self._measuring_due_ms = 0
        self._must_tell = False  # Changes exist that no job has begun to bring to the groups.
        self._to_purge: dict[str, None] = {}  # Deleted topics that no job has begun to purge.
        self._purging: frozenset[str] = frozenset()
        self._purged: list[str] = []
        self._timer.deadline_ms = self._timer.armed_ms = None

    def topics_changed(self, deleted: Iterable[str], now: Now) -> None:
        """Schedule bringing changes to the groups, and removing offsets of *deleted* topics."""
        self._to_purge.update(dict.fromkeys(deleted))
        if not self._must_tell:  # Thousands of changes may come at once.
            self._must_tell = True
            if self._is_serving:
                self._arm(now)

    def take_purged(self) -> list[str]:
        """Return and remove the deleted topics without remaining offsets, each once."""
        purged, self._purged = self._purged, []
        return purged

    def slice(self, now: Now) -> list[Outcome]:
        """Do one slice, and arm the timer: due at once if there is more work."""
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
        """Call *act* with *keys*, in parts that fit the slice; at least once, even without keys."""
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
                    return  # Deleted since the slice ended, with all its offsets.

    def _keep(self, d: Decision) -> None:
        if d.outcome:
            self._room -= DECISION_ROOM
            self._outcomes.append(d.outcome)

    # --- topic changes ----------------------------------------------------------------------

    def _tell_topics(self, group: Group) -> Iterator[None]:
        """Apply the changes up to now to *group*, and remove its offsets of deleted topics.

        A group in another state than Stable compares versions when it becomes Stable.
        """
        registry = self._core.registry
        if group.state is GroupState.STABLE and registry.durable_version > group.known_version:
            for pattern in sorted(group.patterns):
                yield from self._match(pattern)
            if self._core.groups.get(group.group_id) is not group:
                return  # Deleted since the slice ended, with all its offsets.
        if group.state is GroupState.STABLE and registry.durable_version > group.known_version:
            # Cost of comparing the group with the changes.
            changes = registry.number_of_changes_since(group.known_version)
            walked = changes if changes <= CHANGES_WALKED else len(registry.topics)
            self._room -= len(group.patterns) * walked
            d = Decision(self._core, group.group_id, self._now)
            rebalance_if_topics_changed(d, group)
            self._keep(d)
        # Iterate over the smaller one: a request deletes thousands of topics, a group has few.
        names = min(self._purging, group.offsets, key=len)
        topics = sorted(t for t in names if t in self._purging and t in group.offsets)
        if topics:
            keys = [(topic, p) for topic in topics for p in sorted(group.offsets[topic])]
            yield from self._for_all_keys(group, keys, self._purge_keys)

    def _match(self, pattern: str) -> Iterator[None]:
        """Match the topics in advance, so that a decision finds the result at once."""
        if self._core.registry.is_up_to_date(pattern):
            return
        self._room -= PATTERN_ROOM
        for cost_us in self._core.registry.match(pattern):
            self._room -= 1 + cost_us // _KEY_US
            if self._room <= 0:
                yield

    def _purge_keys(self, group: Group, keys: Sequence[_Key]) -> None:
        # Since the keys were listed, an operator or expiry may have removed some.
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
        """Remove the expired offsets of *group*, and the group if nothing is left."""
        keys = [(topic, p) for topic, partitions in group.offsets.items() for p in partitions]
        yield from self._for_all_keys(group, keys, self._expire_keys)

    def _expire_keys(self, group: Group, keys: Sequence[_Key]) -> None:
        mono_ms, wall_ms = self._now.mono_ms, self._now.wall_ms
        # The earlier clock wins: the wall clock may have been ahead when it was read, e.g. just
        # after the machine started, and may have been set back since.
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
            # Deleting the group would delete its retention, and the next commits would expire.
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
            d.emit(GroupDeleted(group.group_id))  # Deletes the offsets, too.
            d.event("group.expired", generation=group.generation, offsets=len(gone))
        else:
            for topic, partition in gone:
                d.emit(OffsetRemoved(group.group_id, topic, partition))
        self._keep(d)

    # --- sizes ------------------------------------------------------------------------------

    def _measure(self, group: Group) -> Iterator[None]:
        """Measure the log usage of *group* for its owner, if the group has new entries."""
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
        # Entries written during the measurement are measured the next time.
        group.measured_offset = end_offset
        group.share.count_log(size_bytes - group.log_bytes)
        group.log_bytes = size_bytes


def _head_bytes(group: Group) -> int:
    """Return the log usage of a group without its offsets, in bytes."""
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
    """Return the start of the retention of an offset; None: it is in use."""
    committed_ms = value.commit_timestamp_ms
    if not group.protocol_type:
        return committed_ms  # A simple group: its users are unknown.
    if group.state is GroupState.EMPTY:
        # Kafka counts from the first time only: there, an operator's reset of a group that has been
        # Empty for long expires at the next check.
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
