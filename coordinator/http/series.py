"""What /metrics has: each family of series, and the lines of those of groups and topics.

Theory of operation
===================

The families of the process are few, and prometheus-client writes them (`metrics`). Groups and
topics may have hundreds of thousands of series, so their lines are put together here: what names
the group, the topic and the partition is escaped once, and the values of all families are put
behind it. A family's lines must stand together, so each family gathers its own (`Section`).

How many there may be is bounded, and they are taken level by level (`LEVELS`), the worst group
first. An item of a level counts with as many series as it can have, also where some of its values
are not known and have none. So what is left out can be told without looking at it, and a scrape
never has more series than the bound.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from coordinator.group.core import Now
from coordinator.group.facts import (
    GroupFacts,
    PartitionFacts,
    TopicEndFacts,
    TopicFacts,
    topic_end_facts,
)
from coordinator.group.lag import Turn
from coordinator.group.registry import Registry
from coordinator.group.states import GroupState
from coordinator.http.routes import Pause

PART_BYTES: Final = 64 * 1024
# Lines that one turn writes: half a millisecond.
TURN_LINES: Final = 400
# Items that one turn puts in order.
TURN_SORTED: Final = 200

T = TypeVar("T")


class Family(NamedTuple):
    """Series with one name. Of what *kind* they are is said in Prometheus' words."""

    name: str
    kind: str  # counter, gauge or histogram
    labels: tuple[str, ...]
    help: str


def _gauge(name: str, help_: str, *labels: str) -> Family:
    return Family(name, "gauge", labels, help_)


def _counter(name: str, help_: str, *labels: str) -> Family:
    return Family(name, "counter", labels, help_)


def _histogram(name: str, help_: str, *labels: str) -> Family:
    return Family(name, "histogram", labels, help_)


_GROUP: Final = ("group_id",)
_GROUP_TOPIC: Final = ("group_id", "topic_name")
_GROUP_PARTITION: Final = ("group_id", "topic_name", "partition_id")
_OF_GROUP: Final = "kminion_kafka_consumer_group"

# The order within a level is that of the values in `write_group` and its like.
GROUP_FAMILIES: Final = (
    _gauge(
        f"{_OF_GROUP}_info",
        "1 if the group is Stable, else 0.",
        *_GROUP,
        "state",
        "protocol",
        "protocol_type",
        "coordinator_id",
    ),
    _gauge(f"{_OF_GROUP}_members", "Members, those included that are joining.", *_GROUP),
    _gauge(f"{_OF_GROUP}_empty_members", "Members without a partition.", *_GROUP),
    _gauge(
        "group_coordinator_group_lag",
        "Messages behind, over the partitions of which that is known.",
        *_GROUP,
    ),
    _gauge(
        "group_coordinator_group_lag_seconds",
        "How old the oldest message is that the group has not done.",
        *_GROUP,
    ),
    _gauge(
        "group_coordinator_group_unknown_partitions",
        "Partitions that it owns or has committed, of which no lag is known.",
        *_GROUP,
    ),
    _gauge("group_coordinator_group_generation", "Its generation; a step is a rebalance.", *_GROUP),
)
TOPIC_FAMILIES: Final = (
    _gauge(
        f"{_OF_GROUP}_topic_lag",
        "Messages behind, over the partitions of which that is known.",
        *_GROUP_TOPIC,
    ),
    _gauge(f"{_OF_GROUP}_topic_offset_sum", "Sum of the committed offsets.", *_GROUP_TOPIC),
    _gauge(f"{_OF_GROUP}_topic_members", "Members that own a partition of it.", *_GROUP_TOPIC),
    _gauge(
        f"{_OF_GROUP}_topic_assigned_partitions", "Partitions that have an owner.", *_GROUP_TOPIC
    ),
)
PARTITION_FAMILIES: Final = (
    _gauge(
        f"{_OF_GROUP}_topic_partition_lag",
        "Messages behind: end - committed, at least 0.",
        *_GROUP_PARTITION,
    ),
    _gauge(
        "group_coordinator_partition_lag_seconds",
        "How old the oldest message is that is not done.",
        *_GROUP_PARTITION,
    ),
    _gauge(
        "group_coordinator_partition_committed_offset",
        "The committed offset: the next record to be read.",
        *_GROUP_PARTITION,
    ),
    _gauge(
        "group_coordinator_partition_commit_age_seconds",
        "Since it was committed last.",
        *_GROUP_PARTITION,
    ),
)
REGISTRY_FAMILIES: Final = (
    _gauge(
        "kminion_kafka_topic_info", "1 for each registered topic.", "topic_name", "partition_count"
    ),
    _gauge("kminion_kafka_topic_high_water_mark_sum", "Sum of the reported ends.", "topic_name"),
    _gauge(
        "group_coordinator_topic_end_age_seconds",
        "Since an end of it was reported, of the partition that waits longest.",
        "topic_name",
    ),
)
REGISTRY_PARTITION_FAMILIES: Final = (
    _gauge(
        "kminion_kafka_topic_partition_high_water_mark",
        "The reported end: offset of the next record.",
        "topic_name",
        "partition_id",
    ),
)
# In the order in which they are taken. The ends by partition come last: they say the least.
LEVELS: Final[Mapping[str, tuple[Family, ...]]] = {
    "group": GROUP_FAMILIES,
    "topic": TOPIC_FAMILIES,
    "registry": REGISTRY_FAMILIES,
    "partition": PARTITION_FAMILIES,
    "registry_partition": REGISTRY_PARTITION_FAMILIES,
}
PROCESS_FAMILIES: Final = (
    _gauge("group_coordinator_build_info", "1.", "version", "cluster_id", "node_id"),
    _gauge("group_coordinator_leader_epoch", "Rises with every start."),
    _gauge("group_coordinator_uptime_seconds", "Since its tasks began."),
    _gauge("group_coordinator_problem", "1 for each thing that is wrong.", "part"),
    _histogram(
        "group_coordinator_loop_stall_seconds",
        "By how much a task that wakes ten times a second woke late.",
    ),
    _gauge("group_coordinator_groups", "Groups.", "state"),
    _gauge("group_coordinator_members", "Members of all groups."),
    _gauge("group_coordinator_offsets", "Committed offsets in memory."),
    _gauge("group_coordinator_topics", "Registered topics."),
    _counter("group_coordinator_rebalances_total", "Rebalances that ended.", "trigger", "outcome"),
    _histogram(
        "group_coordinator_rebalance_seconds",
        "From the first refused heartbeat to the last assignment.",
        "trigger",
    ),
    _histogram("group_coordinator_rebalance_phase_seconds", "How long each phase took.", "phase"),
    _counter("group_coordinator_members_removed_total", "Members that were taken out.", "reason"),
    _counter("group_coordinator_offsets_expired_total", "Offsets that expired."),
    _counter("group_coordinator_offsets_removed_total", "Offsets deleted by request."),
    _counter(
        "group_coordinator_requests_total", "Answers, by the name of their error.", "api", "error"
    ),
    _histogram(
        "group_coordinator_request_seconds",
        "From the read that completed a request to its answer being ready to leave.",
        "api",
    ),
    _counter("group_coordinator_requests_refused_total", "What was not decided at all.", "reason"),
    _gauge(
        "group_coordinator_requests_parked",
        "JoinGroups and SyncGroups that wait for other members.",
    ),
    _gauge(
        "group_coordinator_requests_waiting_bytes", "Requests held without an answer, or half read."
    ),
    _gauge("group_coordinator_answers_waiting_for_disk", "Answers that the next flush lets go."),
    _gauge("group_coordinator_connections", "Open connections."),
    _counter("group_coordinator_connections_accepted_total", "Connections that were accepted."),
    _counter("group_coordinator_connections_closed_total", "Connections that ended.", "reason"),
    _counter(
        "group_coordinator_connections_refused_total", "Connections closed at once.", "reason"
    ),
    _counter("group_coordinator_received_bytes_total", "Bytes that the native listener received."),
    _counter("group_coordinator_sent_bytes_total", "Bytes that the native listener sent."),
    _histogram(
        "group_coordinator_flush_seconds",
        "From the order to write until answers may leave.",
    ),
    _histogram("group_coordinator_fsync_seconds", "fdatasync alone."),
    _histogram("group_coordinator_flush_bytes", "What one flush wrote."),
    _gauge(
        "group_coordinator_flush_age_seconds",
        "How long the flush that goes on has taken; 0 if none does.",
    ),
    _gauge("group_coordinator_log_bytes", "The log."),
    _gauge("group_coordinator_log_live_bytes", "What a compaction would leave of it, estimated."),
    _gauge("group_coordinator_log_unflushed_bytes", "What the next flush takes."),
    _gauge(
        "group_coordinator_log_dirty_ratio",
        "Share of the sealed segments that is new since the last compaction.",
    ),
    _gauge("group_coordinator_log_segments", "Files of the log."),
    _counter("group_coordinator_compactions_total", "Compactions that ended.", "result"),
    _gauge("group_coordinator_compaction_running", "1 while one goes on."),
    _gauge("group_coordinator_compaction_last_seconds", "How long the last one took."),
    _counter("group_coordinator_compaction_removed_bytes_total", "What compactions removed."),
    _gauge("group_coordinator_load_ratio", "How far the load is; 1 once everything is loaded."),
    _gauge("group_coordinator_load_seconds", "How long the load at the start took."),
    _gauge("group_coordinator_partitions", "Partitions of the offsets log.", "status"),
    _gauge("group_coordinator_disk_free_bytes", "Free space of the disk."),
    _gauge("group_coordinator_disk_size_bytes", "Size of the disk."),
    _gauge("group_coordinator_disk_reserve_bytes", "Below it new offsets are refused."),
    _counter(
        "group_coordinator_http_requests_total", "Answers of the HTTP listener.", "route", "status"
    ),
    _gauge("group_coordinator_http_connections", "Open HTTP connections."),
    _gauge("group_coordinator_http_event_streams", "Open event streams."),
    _gauge(
        "group_coordinator_series_left_out",
        "Series that this scrape left out, at most; see metrics.max.series.",
        "level",
    ),
    _gauge("group_coordinator_scrape_seconds", "How long the scrape before this one took to make."),
    _counter("process_cpu_seconds_total", "User and system CPU time."),
    _gauge("process_resident_memory_bytes", "Resident memory."),
    _gauge("process_open_fds", "Open file descriptors."),
    _gauge("process_max_fds", "Most file descriptors that may be open."),
    _gauge("process_start_time_seconds", "Start of the process since the epoch."),
)
CATALOGUE: Final = (*PROCESS_FAMILIES, *(one for families in LEVELS.values() for one in families))


def escaped(text: str) -> str:
    """Return *text* as it stands between the quotes of a label."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Section:
    """The lines of one family while they are gathered, and the parts of the answer they became."""

    __slots__ = ("lines", "name", "parts")

    def __init__(self, family: Family) -> None:
        self.name = family.name
        self.lines = [f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"]
        self.parts: list[bytes] = []

    def cut(self) -> None:
        """Make parts of the lines."""
        data = "".join(self.lines).encode()
        self.lines.clear()
        self.parts += [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]


class Series:
    """The series of groups and topics of one scrape: at most so many, in the order of `LEVELS`.

    Attributes:
        left_out: Level -> how many of its series there was no room for.
    """

    def __init__(self, max_series: int, node_id: int, now_ms: int) -> None:
        self.left_out = dict.fromkeys(LEVELS, 0)
        self._room = max_series
        self._node_id = node_id
        self._now_ms = now_ms  # Wall clock.
        self._uncut = 0
        self._sections = {
            level: [Section(family) for family in families] for level, families in LEVELS.items()
        }

    def room_for(self, level: str, items: int) -> int:
        """Take room for as many of *items* of *level* as there is; return how many fit.

        Once something was left out nothing else fits, also if it is smaller: what is there is
        worse than whatever isn't.
        """
        size = len(LEVELS[level])
        fitting = min(items, self._room // size)
        self._room -= fitting * size
        if fitting < items:
            self._room = 0
            self.left_out[level] += (items - fitting) * size
        return fitting

    def add_group(self, facts: GroupFacts) -> None:
        """Add the lines of a group."""
        group = f'group_id="{escaped(facts.group_id)}"'
        info = (  # By name, as prometheus-client has them.
            f'coordinator_id="{self._node_id}",{group},protocol="{escaped(facts.protocol)}",'
            f'protocol_type="{escaped(facts.protocol_type)}",state="{facts.state}"'
        )
        numbers = (
            facts.members,
            facts.empty_members,
            facts.lag,
            facts.lag_seconds,
            facts.unknown,
            facts.generation,
        )
        self._put_info("group", info, int(facts.state == GroupState.STABLE), group, numbers)

    def add_topic(self, group: str, facts: TopicFacts) -> None:
        """Add the lines of a topic of *group*, which is escaped."""
        labels = f'group_id="{group}",topic_name="{escaped(facts.topic)}"'
        numbers = (facts.lag, facts.offset_sum, facts.members, facts.assigned)
        self._put(self._sections["topic"], labels, numbers)

    def add_partition(self, group: str, facts: PartitionFacts) -> None:
        """Add the lines of a partition of *group*, which is escaped."""
        labels = (
            f'group_id="{group}",partition_id="{facts.partition}",'
            f'topic_name="{escaped(facts.topic)}"'
        )
        numbers = (facts.lag, facts.lag_seconds, facts.committed, self._age(facts.committed_ms))
        self._put(self._sections["partition"], labels, numbers)

    def add_registered(self, facts: TopicEndFacts) -> None:
        """Add the lines of a registered topic."""
        topic = f'topic_name="{escaped(facts.topic)}"'
        info = f'partition_count="{facts.partition_count}",{topic}'
        self._put_info("registry", info, 1, topic, (facts.end_sum, self._age(facts.told_ms)))

    def add_end(self, topic: str, partition: int, end_offset: int) -> None:
        """Add the line of an end of *topic*, which is escaped."""
        labels = f'partition_id="{partition}",topic_name="{topic}"'
        self._put(self._sections["registry_partition"], labels, (end_offset,))

    def _age(self, since_ms: int) -> float:
        return max(self._now_ms - since_ms, 0) / 1000 if since_ms >= 0 else -1

    def _put_info(
        self, level: str, info: str, value: int, labels: str, numbers: Iterable[float]
    ) -> None:
        first, *others = self._sections[level]
        self._put((first,), info, (value,))
        self._put(others, labels, numbers)

    def _put(self, sections: Iterable[Section], labels: str, numbers: Iterable[float]) -> None:
        """Add a line to each section with its number; what is not known, -1, has none."""
        for section, number in zip(sections, numbers, strict=True):
            if number >= 0:
                section.lines.append(f"{section.name}{{{labels}}} {number}\n")
                self._uncut += 1

    def is_turn_over(self) -> bool:
        """Say, after an item was added, whether to pause; long sections become parts then."""
        if self._uncut < TURN_LINES:
            return False
        self._uncut = 0
        for sections in self._sections.values():
            for section in sections:
                if len(section.lines) >= TURN_LINES:
                    section.cut()
        return True

    def parts(self) -> list[bytes]:
        """Return the text, in parts."""
        parts = []
        for sections in self._sections.values():
            for section in sections:
                section.cut()
                parts += section.parts
        return parts


class Groups(Protocol):
    """The groups of one offsets partition; `GroupShard`, whose iterators pause by None."""

    def facts(self, now_ms: int, turn: Turn) -> Iterator[GroupFacts | None]:
        """Yield each group."""

    def topic_facts(self, group_id: str, now_ms: int, turn: Turn) -> Iterator[TopicFacts | None]:
        """Yield each topic of a group."""

    def partition_facts(
        self, group_id: str, now_ms: int, turn: Turn
    ) -> Iterator[PartitionFacts | None]:
        """Yield each partition of a group."""


class Walk:
    """One walk over all groups and topics, in turns. They may come and go meanwhile.

    Attributes:
        series: Theirs.
        states: State -> how many groups are in it.
        members: Of all groups.
    """

    def __init__(self, max_series: int, node_id: int, now: Now, pause: Pause) -> None:
        self.series = Series(max_series, node_id, now.wall_ms)
        self.states: Counter[str] = Counter()
        self.members = 0
        self._now_ms = now.mono_ms
        self._pause = pause
        self._turn = Turn()

    async def go(self, shards: Iterable[Groups], topics: Registry) -> None:
        """Write the series of the groups in *shards*, and of the *topics*."""
        series = self.series
        groups = [
            (facts, shard)
            for shard in shards
            for facts in await self._all(shard.facts(self._now_ms, self._turn))
        ]
        groups = await self._ranked(groups, lambda one: _worst_group_first(one[0]))
        for facts, _ in groups:
            self.states[facts.state] += 1
            self.members += facts.members
        for facts, _ in groups[: series.room_for("group", len(groups))]:
            series.add_group(facts)
            await self._breathe()
        for facts, shard in groups:
            await self._add_topics(shard, facts.group_id)
        registered = await self._all(topic_end_facts(topics, self._turn))
        registered = await self._ranked(registered, _oldest_end_first)
        for topic in registered[: series.room_for("registry", len(registered))]:
            series.add_registered(topic)
            await self._breathe()
        for facts, shard in groups:
            fitting = series.room_for("partition", facts.partitions)
            if fitting:
                await self._add_partitions(shard, facts.group_id, fitting)
        for topic in registered:
            await self._add_ends(topics, topic.topic)

    async def _add_topics(self, shard: Groups, group_id: str) -> None:
        topics = await self._all(shard.topic_facts(group_id, self._now_ms, self._turn))
        for facts in topics[: self.series.room_for("topic", len(topics))]:
            self.series.add_topic(escaped(group_id), facts)
            await self._breathe()

    async def _add_partitions(self, shard: Groups, group_id: str, fitting: int) -> None:
        group = escaped(group_id)
        for facts in shard.partition_facts(group_id, self._now_ms, self._turn):
            if facts is None:
                await self._pause()
                continue
            self.series.add_partition(group, facts)
            await self._breathe()
            fitting -= 1
            if not fitting:
                return

    async def _add_ends(self, topics: Registry, topic: str) -> None:
        ends = list(topics.ends_of(topic).values())
        name = escaped(topic)
        for end in ends[: self.series.room_for("registry_partition", len(ends))]:
            self.series.add_end(name, end.partition, end.end_offset)
            await self._breathe()

    async def _breathe(self) -> None:
        if self.series.is_turn_over():
            await self._pause()

    async def _all(self, walk: Iterable[T | None]) -> list[T]:
        found = []
        for one in walk:
            if one is None:
                await self._pause()
            else:
                found.append(one)
        return found

    async def _ranked(self, items: Sequence[T], key: Callable[[T], Any]) -> list[T]:
        """Return *items* sorted by *key*."""
        runs = []
        for at in range(0, len(items), TURN_SORTED):
            runs.append(sorted(items[at : at + TURN_SORTED], key=key))
            await self._pause()
        merged = heapq.merge(*runs, key=key)
        ranked: list[T] = []
        while part := list(islice(merged, TURN_SORTED)):
            ranked += part
            await self._pause()
        return ranked


def _worst_group_first(facts: GroupFacts) -> tuple[float, int, str]:
    return -facts.lag_seconds, -facts.lag, facts.group_id


def _oldest_end_first(facts: TopicEndFacts) -> tuple[bool, int, str]:
    return facts.told_ms < 0, facts.told_ms, facts.topic
