"""What /metrics has: each family of series, and the lines of those of groups and topics.

Theory of operation
===================

The families of the process are few, and prometheus-client writes them (`metrics`). Groups and
topics may have hundreds of thousands of series, so their lines are put together here.

A family's lines must stand together, the worst group first, and there may be more of them than are
wanted. But to look at a partition costs more than to write its lines. So there is one walk over
all partitions, which adds up each group and writes its lines, a text for each family (`Texts`).
Then the groups are put in order, and their texts one behind the other (`Sections`).

How many series there are is bounded, and they are taken level by level (`LEVELS`). An item of a
level counts with as many series as it can have, also where some of its values are not known and
have none. So what is left out can be told, and a scrape never has more than the bound. The walk
keeps no more texts either: a group that turns out to be among the worst is looked at once more.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple

from coordinator.group.core import Now
from coordinator.group.facts import GroupFacts, TopicEndFacts, TopicFacts, topic_end_facts
from coordinator.group.group import Group
from coordinator.group.lag import Turn
from coordinator.group.member import NOTHING
from coordinator.group.records import StoredOffsets
from coordinator.group.registry import Registry
from coordinator.group.states import GroupState
from coordinator.http.routes import Pause
from coordinator.http.turns import in_turns, sorted_in_turns
from protocol.messages import EndOffset
from protocol.partition import INT64_MAX

PART_BYTES: Final = 64 * 1024
# Items whose lines are written in one go.
TURN_ITEMS: Final = 50
# Items that one turn puts in order.
TURN_SORTED: Final = 200
# Characters of a level that are put one behind the other in one go.
CUT_CHARACTERS: Final = 128 * 1024
# What things take, counted as `Turn` does: to look at a partition and write its lines, to write
# those of an item alone, and what each group takes besides. Sets are compared much faster.
_LOOKED_AT: Final = 14
_WRITTEN: Final = 4
_GROUP_LOOKS: Final = 20
_OWNED_A_LOOK: Final = 10
_UNKNOWN: Final = -1

# The lines of some items, a text for each family of their level.
Texts = tuple[str, ...]


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
    _gauge(
        "group_coordinator_quota_used",
        "What all groups and topics take of a resource.",
        "resource",
    ),
    _gauge("group_coordinator_quota_limit", "What they may take; see max.*.", "resource"),
    _gauge("group_coordinator_problem", "1 for each thing that is wrong.", "part"),
    _histogram(
        "group_coordinator_loop_stall_seconds",
        "By how much a task that wakes ten times a second woke late.",
    ),
    _gauge("group_coordinator_groups", "Groups.", "state"),
    _gauge("group_coordinator_members", "Members of all groups."),
    _gauge("group_coordinator_offsets", "Committed offsets in memory."),
    _gauge("group_coordinator_topics", "Registered topics."),
    _gauge("group_coordinator_acls", "Rules of access."),
    _gauge("group_coordinator_users", "Users who can log in with a password."),
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
    _counter("group_coordinator_tls_handshakes_total", "Handshakes that ended.", "result"),
    _gauge("group_coordinator_tls_handshakes", "Handshakes that go on."),
    _counter(
        "group_coordinator_log_ins_total", "Log-ins by SASL that ended.", "mechanism", "result"
    ),
    _gauge(
        "group_coordinator_certificate_left_seconds",
        "Until the certificate of the listeners expires; below 0 once it has.",
    ),
    _counter("group_coordinator_received_bytes_total", "Bytes that the native listener received."),
    _counter("group_coordinator_sent_bytes_total", "Bytes that the native listener sent."),
    _histogram(
        "group_coordinator_flush_seconds",
        "From the order to write until answers may leave.",
    ),
    _histogram("group_coordinator_fsync_seconds", "The synced write alone."),
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
        "group_coordinator_log_lines_dropped_total",
        "Lines of the daemon's own log that nobody read in time.",
    ),
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


# --- lines ----------------------------------------------------------------------------------
# Labels stand in the order of their names, as prometheus-client has them. What is not known, -1,
# has no line.


def _lines(family: Family, labels: Iterable[str], values: Iterable[float]) -> str:
    """Return a line for each of *labels*, which stand in braces, with its value."""
    name = family.name
    return "".join(
        [
            f"{name}{named} {value!r}\n"
            for named, value in zip(labels, values, strict=True)
            if value >= 0
        ]
    )


def _texts(families: Sequence[Family], labels: Sequence[str], *columns: Iterable[float]) -> Texts:
    """Return the lines of items with these *labels*; each family has its column of values."""
    return tuple(
        _lines(family, labels, values) for family, values in zip(families, columns, strict=True)
    )


def group_texts(facts: GroupFacts, node_id: int) -> Texts:
    """Return the lines of a group."""
    info, *others = GROUP_FAMILIES
    group = f'group_id="{escaped(facts.group_id)}"'
    details = (
        f'{{coordinator_id="{node_id}",{group},protocol="{escaped(facts.protocol)}",'
        f'protocol_type="{escaped(facts.protocol_type)}",state="{facts.state}"}}'
    )
    values = (
        facts.members,
        facts.empty_members,
        facts.lag,
        facts.lag_seconds,
        facts.unknown,
        facts.generation,
    )
    is_stable = int(facts.state == GroupState.STABLE)
    labels = f"{{{group}}}"
    return (
        f"{info.name}{details} {is_stable}\n",
        *(
            f"{family.name}{labels} {value}\n" if value >= 0 else ""
            for family, value in zip(others, values, strict=True)
        ),
    )


def topic_texts(group_id: str, topics: Sequence[TopicFacts]) -> Texts:
    """Return the lines of topics of a group."""
    group = f'{{group_id="{escaped(group_id)}",topic_name="'
    labels = [f'{group}{escaped(one.topic)}"}}' for one in topics]
    _, _, members, assigned, offset_sums, lags, _ = zip(*topics, strict=True)
    return _texts(TOPIC_FAMILIES, labels, lags, offset_sums, members, assigned)


def partition_texts(group_id: str, topic: str, columns: "Columns", now_ms: int) -> Texts:
    """Return the lines of partitions of a topic of a group."""
    group = f'{{group_id="{escaped(group_id)}",partition_id="'
    name = f'",topic_name="{escaped(topic)}"}}'
    labels = [f"{group}{partition}{name}" for partition in columns.partitions]
    *families, age = PARTITION_FAMILIES
    # Most were committed together, and to write a fraction takes as long as all the rest of a line.
    ages = {at_ms: str(_age_s(at_ms, now_ms)) for at_ms in set(columns.committed_ms)}
    age_lines = [
        f"{age.name}{named} {ages[at_ms]}\n"
        for named, at_ms in zip(labels, columns.committed_ms, strict=True)
    ]
    others = _texts(families, labels, columns.lags, columns.lag_seconds, columns.committed)
    return (*others, "".join(age_lines))


def registry_texts(topics: Sequence[TopicEndFacts], now_ms: int) -> Texts:
    """Return the lines of registered topics."""
    info, *others = REGISTRY_FAMILIES
    names, counts, end_sums, told_ms = zip(*topics, strict=True)
    topic = [f'topic_name="{escaped(name)}"}}' for name in names]
    details = [
        f'{{partition_count="{count}",{name}' for count, name in zip(counts, topic, strict=True)
    ]
    ages = [_age_s(since_ms, now_ms) for since_ms in told_ms]
    labels = [f"{{{name}" for name in topic]
    ones = [1] * len(topics)
    return (_lines(info, details, ones), *_texts(others, labels, end_sums, ages))


def end_texts(topic: str, ends: Iterable[EndOffset]) -> Texts:
    """Return the lines of ends of a registered topic."""
    (family,) = REGISTRY_PARTITION_FAMILIES
    name = escaped(topic)
    return (
        "".join(
            [
                f'{family.name}{{partition_id="{end.partition}",topic_name="{name}"}} '
                f"{end.end_offset}\n"
                for end in ends
            ]
        ),
    )


def _age_s(since_ms: int, now_ms: int) -> float:
    return max(now_ms - since_ms, 0) / 1000 if since_ms >= 0 else _UNKNOWN


class Sections:
    """The texts of a level's families, one behind the other."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._waiting: list[list[str]] = []
        self._characters = 0
        self._parts: list[list[bytes]] = []
        for family in families:
            head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
            self._waiting.append([head])
            self._parts.append([])

    def add(self, texts: Texts) -> None:
        """Add the lines of some items."""
        for waiting, text in zip(self._waiting, texts, strict=True):
            waiting.append(text)
            self._characters += len(text)
        if self._characters >= CUT_CHARACTERS:
            self._cut()

    def _cut(self) -> None:
        self._characters = 0
        for waiting, parts in zip(self._waiting, self._parts, strict=True):
            data = "".join(waiting).encode()
            waiting.clear()
            parts += [data[at : at + PART_BYTES] for at in range(0, len(data), PART_BYTES)]

    def parts(self) -> list[bytes]:
        """Return the text, a family after the other, in parts."""
        self._cut()
        return [part for parts in self._parts for part in parts]


# --- what there is room for -----------------------------------------------------------------


class Room:
    """How many series there may still be; it is to be asked for level by level.

    Attributes:
        left_out: Level -> how many of its series there was no room for.
    """

    def __init__(self, max_series: int) -> None:
        self.left_out = dict.fromkeys(LEVELS, 0)
        self._left = max_series

    def take(self, level: str, items: int) -> int:
        """Take room for as many of *items* of *level* as there is; return how many fit.

        Once something was left out nothing else fits, also if it is smaller: what is there is
        worse than whatever isn't.
        """
        size = len(LEVELS[level])
        fitting = min(items, self._left // size)
        self._left -= fitting * size
        if fitting < items:
            self._left = 0
            self.left_out[level] += (items - fitting) * size
        return fitting


# --- the walk -------------------------------------------------------------------------------


class Columns(NamedTuple):
    """Some committed partitions of one topic of a group; -1 is what is not known."""

    partitions: list[int]
    lags: list[int]
    lag_seconds: list[float]
    committed: list[int]
    committed_ms: list[int]

    def first(self, count: int) -> "Columns":
        """Return the first *count* partitions, or all."""
        return Columns(
            self.partitions[:count],
            self.lags[:count],
            self.lag_seconds[:count],
            self.committed[:count],
            self.committed_ms[:count],
        )


def columns_of(
    topic: str, stored: StoredOffsets, registry: Registry, now_ms: int
) -> Iterator[Columns]:
    """Yield what a group has committed of *topic*, a turn's worth at a time; *now_ms* is monotonic.

    `facts.partition_facts` tells the same of each partition on its own, which takes twice as long.
    """
    ends = registry.ends_of(topic)
    behind_ms = registry.ends_history.of(topic).behind_ms
    committed = iter(list(stored.offsets.values()))
    while chunk := list(islice(committed, TURN_ITEMS)):
        lags: list[int] = []
        lag_seconds: list[float] = []
        for one in chunk:
            end = ends.get(one.partition)
            lag = _UNKNOWN if end is None else end.end_offset - one.offset
            if end is None or lag <= 0:
                lags.append(0 if end else _UNKNOWN)
                lag_seconds.append(0 if end else _UNKNOWN)
            else:
                lags.append(lag)
                ms = behind_ms(end, one.offset, now_ms)
                lag_seconds.append(ms / 1000 if ms >= 0 else _UNKNOWN)
        partitions = [one.partition for one in chunk]
        yield Columns(
            partitions,
            lags,
            lag_seconds,
            [one.offset for one in chunk],
            list(map(stored.committed_ms, partitions)),
        )


class _Sum:
    """Partitions of a group, added up."""

    __slots__ = ("committed", "is_vague", "known", "lag", "offset_sum", "seconds")

    def __init__(self) -> None:
        self.committed = self.known = self.lag = self.offset_sum = 0
        self.seconds = 0.0
        self.is_vague = False  # Of one that is behind it isn't known since when.

    def add(self, columns: Columns) -> None:
        """Add what was committed."""
        unknown = columns.lags.count(_UNKNOWN)
        known = len(columns.lags) - unknown
        self.committed += len(columns.lags)
        self.offset_sum += sum(columns.committed)
        self.known += known
        self.lag += sum(columns.lags) + unknown
        self.seconds = max(self.seconds, *columns.lag_seconds)
        self.is_vague |= columns.lag_seconds.count(_UNKNOWN) > unknown

    def merge(self, other: "_Sum") -> None:
        """Add what was added to another."""
        self.committed += other.committed
        self.known += other.known
        self.lag += other.lag
        self.seconds = max(self.seconds, other.seconds)
        self.is_vague |= other.is_vague

    def lags(self) -> tuple[int, float]:
        """Return the lag in messages and in seconds; -1 is what is not known."""
        if not self.known:
            return _UNKNOWN, _UNKNOWN
        is_unknown = self.is_vague and not self.seconds
        return min(self.lag, INT64_MAX), _UNKNOWN if is_unknown else self.seconds


class _Owned:
    """What members own of one topic."""

    __slots__ = ("members", "partitions")

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.partitions: set[int] = set()


class _Walked(NamedTuple):
    """A group that was looked at.

    Attributes:
        group: It, as it is at the moment.
        facts: It in numbers.
        topics: Its topics, too.
        committed: How many partitions have an offset, and so series.
        texts: Their lines; None if they were too many to be kept.
    """

    group: Group
    facts: GroupFacts
    topics: list[TopicFacts]
    committed: int
    texts: list[Texts] | None


_NOTHING_STORED: Final = StoredOffsets()
_NOTHING_OWNED: Final = _Owned()


class Walk:
    """One walk over all groups and topics, in turns. They may come and go meanwhile.

    Attributes:
        states: State -> how many groups are in it.
        members: Of all groups; likewise ``offsets``, the committed ones.
        left_out: See `Room`.
    """

    def __init__(
        self, registry: Registry, *, max_series: int, node_id: int, now: Now, pause: Pause
    ) -> None:
        self.states: Counter[str] = Counter()
        self.members = self.offsets = 0
        self._registry = registry
        self._room = Room(max_series)
        self.left_out = self._room.left_out
        self._node_id = node_id
        self._now = now
        self._pause = pause
        self._turn = Turn()
        self._may_keep = max_series // len(PARTITION_FAMILIES)  # Partitions, with their texts.

    async def go(self, shards: Iterable[Mapping[str, Group]]) -> list[bytes]:
        """Return the series of the groups in *shards*, and of the topics."""
        walked = []
        for groups in shards:
            for group_id in list(groups):
                group = groups.get(group_id)
                if group is not None:
                    walked.append(await self._look_at(group))
        ranked = await sorted_in_turns(walked, _worst_first, self._pause, TURN_SORTED)
        topics = await in_turns(topic_end_facts(self._registry, self._turn), self._pause)
        topics = await sorted_in_turns(topics, _oldest_first, self._pause, TURN_SORTED)
        parts = await self._write_groups(ranked)
        parts += await self._write_topics(ranked)
        parts += await self._write_registry(topics)
        parts += await self._write_partitions(ranked)
        return parts + await self._write_ends(topics)

    async def _spend(self, looks: int) -> None:
        if self._turn.is_over_after(looks):
            await self._pause()

    async def _look_at(self, group: Group) -> _Walked:
        """Add up *group*, and write the lines of its partitions if they can be kept."""
        owned, idle = await self._owned(group)
        whole = _Sum()
        partitions = 0
        topics: list[TopicFacts] = []
        texts: list[Texts] | None = []
        may_keep = self._may_keep
        for topic in [*group.offsets, *(topic for topic in owned if topic not in group.offsets)]:
            sums = _Sum()
            stored = group.offsets.get(topic, _NOTHING_STORED)
            for columns in columns_of(topic, stored, self._registry, self._now.mono_ms):
                sums.add(columns)
                texts = self._kept(group, topic, columns, texts)
                await self._spend(_LOOKED_AT * len(columns.partitions))
            whole.merge(sums)
            of_topic = owned.get(topic, _NOTHING_OWNED)
            count = len(of_topic.partitions.difference(stored)) + sums.committed
            partitions += count
            counts = (len(of_topic.members), len(of_topic.partitions), sums.offset_sum)
            topics.append(TopicFacts(topic, count, *counts, *sums.lags()))
            await self._spend(1 + len(of_topic.partitions) // _OWNED_A_LOOK)
        if texts is None:
            self._may_keep = may_keep  # What was kept of it isn't any more.
        self.states[group.state] += 1
        self.members += len(group.members)
        self.offsets += whole.committed
        await self._spend(_GROUP_LOOKS)
        lag, lag_seconds = whole.lags()
        facts = GroupFacts.of(
            group,
            empty_members=idle,
            partitions=partitions,
            unknown=partitions - whole.known,
            lag=lag,
            lag_seconds=lag_seconds,
        )
        return _Walked(group, facts, topics, whole.committed, texts)

    def _kept(
        self, group: Group, topic: str, columns: Columns, texts: list[Texts] | None
    ) -> list[Texts] | None:
        """Return the *texts* that are kept of a group with those of *columns*, None if too many."""
        if texts is None:
            return None
        if len(columns.partitions) > self._may_keep:
            return None
        self._may_keep -= len(columns.partitions)
        texts.append(partition_texts(group.group_id, topic, columns, self._now.wall_ms))
        return texts

    async def _owned(self, group: Group) -> tuple[dict[str, _Owned], int]:
        """Return what members own by topic, and how many of them own nothing."""
        found: dict[str, _Owned] = {}
        idle = 0
        for member in list(group.members.values()):
            idle += member.owned == NOTHING
            owned = iter(member.owned or ())
            while chunk := list(islice(owned, TURN_ITEMS)):
                for topic, partition in chunk:
                    of_topic = found.get(topic)
                    if of_topic is None:
                        of_topic = found[topic] = _Owned()
                    of_topic.members.add(member.member_id)
                    of_topic.partitions.add(partition)
                await self._spend(len(chunk))
            await self._spend(1)
        return found, idle

    async def _write_groups(self, groups: Sequence[_Walked]) -> list[bytes]:
        sections = Sections(GROUP_FAMILIES)
        for one in groups[: self._room.take("group", len(groups))]:
            sections.add(group_texts(one.facts, self._node_id))
            await self._spend(_GROUP_LOOKS)
        return sections.parts()

    async def _write_topics(self, groups: Iterable[_Walked]) -> list[bytes]:
        sections = Sections(TOPIC_FAMILIES)
        for one in groups:
            fitting = self._room.take("topic", len(one.topics))
            for at in range(0, fitting, TURN_ITEMS):
                topics = one.topics[at : min(at + TURN_ITEMS, fitting)]
                sections.add(topic_texts(one.facts.group_id, topics))
                await self._spend(_GROUP_LOOKS + _WRITTEN * len(topics))
        return sections.parts()

    async def _write_registry(self, topics: Sequence[TopicEndFacts]) -> list[bytes]:
        sections = Sections(REGISTRY_FAMILIES)
        fitting = self._room.take("registry", len(topics))
        for at in range(0, fitting, TURN_ITEMS):
            items = topics[at : min(at + TURN_ITEMS, fitting)]
            sections.add(registry_texts(items, self._now.wall_ms))
            await self._spend(_WRITTEN * len(items))
        return sections.parts()

    async def _write_partitions(self, groups: Iterable[_Walked]) -> list[bytes]:
        sections = Sections(PARTITION_FAMILIES)
        for one in groups:
            fitting = self._room.take("partition", one.committed)
            if fitting == one.committed and one.texts is not None:
                for texts in one.texts:
                    sections.add(texts)
                    await self._spend(_GROUP_LOOKS // 2)
            elif fitting:
                await self._write_anew(one.group, fitting, sections)
        return sections.parts()

    async def _write_anew(self, group: Group, fitting: int, sections: Sections) -> None:
        """Write the lines of *fitting* partitions of *group*, which were not kept."""
        now = self._now
        for topic, stored in list(group.offsets.items()):
            for columns in columns_of(topic, stored, self._registry, now.mono_ms):
                some = columns.first(fitting)
                sections.add(partition_texts(group.group_id, topic, some, now.wall_ms))
                await self._spend(_LOOKED_AT * len(columns.partitions))
                fitting -= len(some.partitions)
                if not fitting:
                    return

    async def _write_ends(self, topics: Iterable[TopicEndFacts]) -> list[bytes]:
        sections = Sections(REGISTRY_PARTITION_FAMILIES)
        for one in topics:
            ends = list(self._registry.ends_of(one.topic).values())
            fitting = self._room.take("registry_partition", len(ends))
            for at in range(0, fitting, TURN_ITEMS):
                items = ends[at : min(at + TURN_ITEMS, fitting)]
                sections.add(end_texts(one.topic, items))
                await self._spend(2 + len(items))
        return sections.parts()


def _worst_first(walked: _Walked) -> tuple[float, int, str]:
    facts = walked.facts
    return -facts.lag_seconds, -facts.lag, facts.group_id


def _oldest_first(facts: TopicEndFacts) -> tuple[bool, int, str]:
    return facts.told_ms < 0, facts.told_ms, facts.topic
