"""What /metrics has: each family of series, and the lines of those of groups and topics.

Theory of operation
===================

The families of the process are few, and prometheus-client writes them (`metrics`). Groups and
topics may have hundreds of thousands of series, so their lines are put together here.

A family's lines must stand together, the worst group first, and there may be more of them than are
wanted. But to look at a partition costs more than to write its lines. So there is one walk over
all partitions, which adds up each group and writes its lines, a text for each family (`Texts`).
They are kept by level and family, in the order of the walk (`Lines`). Then the groups are put in
order, and their texts one behind the other. What a line says besides its group and its value is
the same for all groups that read the same: such forms are kept (`FORMS`).

How many series there are is bounded, and they are taken level by level (`LEVELS`). An item of a
level counts with as many series as it can have, also where some of its values are not known and
have none. So what is left out can be told, and a scrape never has more than the bound. The walk
keeps no more texts either: a group that turns out to be among the worst is looked at once more.

While a walk is on, nothing of it is an object that the garbage collector looks at, but for a few
lists: a pass over fifty thousand of them is a stall of 17 ms.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from coordinator.group.core import Now
from coordinator.group.facts import (
    GroupFacts,
    TopicEndFacts,
    TopicFacts,
    longest_behind,
    seconds,
    topic_end_facts,
)
from coordinator.group.group import Group
from coordinator.group.lag import LagColumns, LagSum, Turn, chunks, lag_columns
from coordinator.group.lag_samples import UNKNOWN
from coordinator.group.member import NOTHING
from coordinator.group.records import StoredOffsets
from coordinator.group.registry import Registry
from coordinator.group.states import GroupState
from coordinator.group.totals import LOG_BYTES, Share
from coordinator.http.routes import Pause
from coordinator.http.turns import in_turns, sorted_in_turns
from protocol.messages import EndOffset

PART_BYTES: Final = 64 * 1024
# Items whose lines are one text, and texts that are put one behind the other in one go.
ITEMS: Final = 50
TEXTS: Final = 50
# What a group takes besides, as so many items.
GROUP_ITEMS: Final = 10
# Items that one turn puts in order.
TURN_SORTED: Final = 200
# Forms of lines that are kept for the next group that reads the same.
FORMS: Final = 128
_UNKNOWN: Final = str(UNKNOWN)
_NO_LINE: Final = ("",) * 4
_encode: Final = msgspec.json.Encoder().encode

# The lines of some items, whichever group's, a family after the other: four cells each, of which
# the second is for the group and the fourth for the value.
_Form = tuple[str, ...]

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
        "Messages behind: end - committed, where that is at least 0.",
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
# The order is that of the values in `principal_texts`.
PRINCIPAL_FAMILIES: Final = (
    _gauge("group_coordinator_principal_groups", "Groups that belong to it.", "principal"),
    _gauge("group_coordinator_principal_members", "Members that joined with it.", "principal"),
    _gauge("group_coordinator_principal_offsets", "Offsets in its groups.", "principal"),
    _gauge("group_coordinator_principal_topics", "Topics that belong to it.", "principal"),
    _gauge(
        "group_coordinator_principal_log_bytes",
        "What its groups and topics take in a compacted log, about.",
        "principal",
    ),
    _gauge(
        "group_coordinator_principal_quota_ratio",
        "Share of its quotas that it has, of the one that is nearest.",
        "principal",
    ),
    _counter(
        "group_coordinator_principal_throttled_answers_total",
        "Answers that told it to wait.",
        "principal",
    ),
    _counter(
        "group_coordinator_principal_throttled_seconds_total",
        "For how long they told it to wait.",
        "principal",
    ),
)
# In the order in which they are taken. The ends by partition come last: they say the least.
LEVELS: Final[Mapping[str, tuple[Family, ...]]] = {
    "group": GROUP_FAMILIES,
    "principal": PRINCIPAL_FAMILIES,
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
    _counter("group_coordinator_connections_failed_total", "Bugs in work for one client.", "work"),
    _counter("group_coordinator_tls_handshakes_total", "Handshakes that ended.", "result"),
    _gauge("group_coordinator_tls_handshakes", "Handshakes that go on."),
    _counter(
        "group_coordinator_log_ins_total", "Log-ins by SASL that ended.", "mechanism", "result"
    ),
    _gauge(
        "group_coordinator_certificate_left_seconds",
        "Until the certificate of the listeners expires; below 0 once it has.",
    ),
    _counter(
        "group_coordinator_throttled_answers_total",
        "Answers that told a client to wait, because of a quota of its principal.",
    ),
    _counter(
        "group_coordinator_throttled_seconds_total", "For how long they told clients to wait."
    ),
    _counter("group_coordinator_received_bytes_total", "Bytes that the native listener received."),
    _counter("group_coordinator_sent_bytes_total", "Bytes that the native listener sent."),
    _histogram(
        "group_coordinator_flush_seconds",
        "From the order to write until answers may leave.",
    ),
    _histogram(
        "group_coordinator_flush_wait_seconds",
        "From the order to write until the disk's thread began.",
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
    _gauge("group_coordinator_journals", "Logs that the nodes of the cluster share."),
    _gauge("group_coordinator_journals_led", "Those that this node leads; 0 without ZooKeeper."),
    _gauge(
        "group_coordinator_journals_without_leader",
        "Those of which this node knows no leader; all without ZooKeeper, none of a frozen one.",
    ),
    _gauge("group_coordinator_journals_frozen", "Those that an export has frozen."),
    _gauge(
        "group_coordinator_cluster_nodes",
        "Nodes that are registered, as this one sees it; 0 without ZooKeeper.",
    ),
    _gauge(
        "group_coordinator_cluster_nodes_expected", "cluster.nodes as this node has it; 0: not set."
    ),
    _counter(
        "group_coordinator_log_lines_dropped_total",
        "Lines of the daemon's own log that nobody read in time.",
    ),
    _counter(
        "group_coordinator_http_requests_total", "Answers of the HTTP listener.", "route", "status"
    ),
    _gauge("group_coordinator_http_connections", "Open HTTP connections."),
    _counter(
        "group_coordinator_http_connections_closed_total", "HTTP connections that ended.", "reason"
    ),
    _counter(
        "group_coordinator_http_connections_refused_total",
        "HTTP connections closed at once.",
        "reason",
    ),
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


@lru_cache(FORMS)
def escaped(text: str) -> str:
    """Return *text* as it stands between the quotes of a label."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class PrincipalFacts(NamedTuple):
    """What one principal has, and how often it was told to wait."""

    principal: str
    groups: int
    members: int
    offsets: int
    topics: int
    log_bytes: int
    quota_ratio: float
    throttled_answers: int
    throttled_ms: int


def principal_facts(share: Share, throttled: tuple[int, int]) -> PrincipalFacts:
    """Return what there is to say of a principal."""
    used = share.used
    return PrincipalFacts(
        share.principal,
        used("groups"),
        used("members"),
        used("offsets"),
        used("topics"),
        used(LOG_BYTES),
        share.quota_ratio(),
        *throttled,
    )


# --- lines ----------------------------------------------------------------------------------
# Labels stand in the order of their names, as prometheus-client has them. What is not known, -1,
# has no line. Each line begins with the end of the one before.


def _lines(family: Family, labels: Iterable[str], values: Iterable[float]) -> str:
    """Return a line for each of *labels*, which stand in braces, with its value."""
    name = family.name
    return "".join(
        [
            f"\n{name}{named} {value}"
            for named, value in zip(labels, values, strict=True)
            if value >= 0
        ]
    )


def _texts(families: Sequence[Family], labels: Sequence[str], *columns: Iterable[float]) -> Texts:
    """Return the lines of items with these *labels*; each family has its column of values."""
    pairs = zip(families, columns, strict=True)
    return tuple([_lines(family, labels, values) for family, values in pairs])


def _form(families: Sequence[Family], tails: Sequence[str]) -> _Form:
    """Return the form of items; their *tails* are the labels behind that of the group."""
    return tuple(
        [
            cell
            for family in families
            for tail in tails
            for cell in (f'\n{family.name}{{group_id="', "", tail, "")
        ]
    )


@lru_cache(FORMS)
def _topic_form(topics: tuple[str, ...]) -> _Form:
    return _form(TOPIC_FAMILIES, [f'",topic_name="{escaped(topic)}"}} ' for topic in topics])


@lru_cache(FORMS)
def _partition_form(topic: str, partitions: tuple[int, ...]) -> _Form:
    name = f'topic_name="{escaped(topic)}"}} '
    return _form(PARTITION_FAMILIES, [f'",partition_id="{one}",{name}' for one in partitions])


def _filled(form: _Form, group_id: str, columns: Sequence[Sequence[float]]) -> Texts:
    """Return the lines of items of a group; each family has its column of values."""
    cells = list(form)
    cells[1::4] = [escaped(group_id)] * (len(cells) // 4)
    # Numbers are written as JSON in half the time that `str` takes.
    numbers = _encode([*chain.from_iterable(columns)]).decode()[1:-1].split(",")
    cells[3::4] = numbers
    if _UNKNOWN in numbers:
        for at, number in enumerate(numbers):
            if number == _UNKNOWN:
                cells[4 * at : 4 * at + 4] = _NO_LINE
    size = len(cells) // len(columns)
    return tuple(["".join(cells[at : at + size]) for at in range(0, len(cells), size)])


def _seconds(times_ms: Iterable[int]) -> list[float]:
    return [ms / 1000 if ms >= 0 else UNKNOWN for ms in times_ms]


_GROUP_HEADS: Final = [f'\n{family.name}{{group_id="' for family in GROUP_FAMILIES[1:]]


def group_texts(facts: GroupFacts, node_id: int) -> Texts:
    """Return the lines of a group."""
    group = escaped(facts.group_id)
    details = (
        f'{{coordinator_id="{node_id}",group_id="{group}",protocol="{escaped(facts.protocol)}",'
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
    return (
        f"\n{GROUP_FAMILIES[0].name}{details} {is_stable}",
        *[
            f'{head}{group}"}} {value}' if value >= 0 else ""
            for head, value in zip(_GROUP_HEADS, values, strict=True)
        ],
    )


def principal_texts(principals: Sequence[PrincipalFacts]) -> Texts:
    """Return the lines of principals."""
    names, *columns, throttled_ms = zip(*principals, strict=True)
    labels = [f'{{principal="{escaped(name)}"}}' for name in names]
    return _texts(PRINCIPAL_FAMILIES, labels, *columns, _seconds(throttled_ms))


def topic_texts(group_id: str, topics: Sequence[TopicFacts]) -> Texts:
    """Return the lines of topics of a group."""
    names, _, members, assigned, offset_sums, _, lags, _ = zip(*topics, strict=True)
    return _filled(_topic_form(names), group_id, (lags, offset_sums, members, assigned))


def partition_texts(
    group_id: str, topic: str, columns: LagColumns, committed_ms: Sequence[int], now_ms: int
) -> Texts:
    """Return the lines of partitions of a topic of a group."""
    # Most were committed together.
    ages_s = {
        at_ms: max(now_ms - at_ms, 0) / 1000 if at_ms >= 0 else UNKNOWN
        for at_ms in set(committed_ms)
    }
    return _filled(
        _partition_form(topic, tuple(columns.partitions)),
        group_id,
        (
            columns.lags,
            _seconds(columns.behind_ms),
            columns.committed,
            [ages_s[at_ms] for at_ms in committed_ms],
        ),
    )


def registry_texts(topics: Sequence[TopicEndFacts]) -> Texts:
    """Return the lines of registered topics."""
    info, *others = REGISTRY_FAMILIES
    names, counts, _, end_sums, ages_ms = zip(*topics, strict=True)
    topic = [f'topic_name="{escaped(name)}"}}' for name in names]
    details = [
        f'{{partition_count="{count}",{name}' for count, name in zip(counts, topic, strict=True)
    ]
    labels = [f"{{{name}" for name in topic]
    ones = [1] * len(topics)
    return (_lines(info, details, ones), *_texts(others, labels, end_sums, _seconds(ages_ms)))


def end_texts(topic: str, ends: Iterable[EndOffset]) -> Texts:
    """Return the lines of ends of a registered topic."""
    (family,) = REGISTRY_PARTITION_FAMILIES
    name = escaped(topic)
    return (
        "".join(
            [
                f'\n{family.name}{{partition_id="{end.partition}",topic_name="{name}"}} '
                f"{end.end_offset}"
                for end in ends
            ]
        ),
    )


class Lines:
    """The lines of one level: of each of its families the texts in the order of the walk.

    Attributes:
        count: How many texts each family has.
    """

    def __init__(self, level: str) -> None:
        self._families = LEVELS[level]
        self._texts: list[str] = []  # Of all families of the first items, then of the next ones.
        self.count = 0

    def add(self, texts: Texts) -> None:
        """Add the lines of some items."""
        self._texts += texts
        self.count += 1

    async def parts(self, pause: Pause, order: Sequence[int] | None = None) -> list[bytes]:
        """Return the text, a family after the other, in parts. The lines are gone after that.

        Args:
            pause: Lets others have their turn.
            order: Which texts come in which order; None is all as they were added.
        """
        order = range(self.count) if order is None else order
        parts: list[bytes] = []
        texts, step = self._texts, len(self._families)
        for first, family in enumerate(self._families):
            head = f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}"
            parts.append(head.encode())
            for at in range(0, len(order), TEXTS):
                some = [one * step + first for one in order[at : at + TEXTS]]
                data = "".join([texts[one] for one in some]).encode()
                parts += [data[cut : cut + PART_BYTES] for cut in range(0, len(data), PART_BYTES)]
                for one in some:  # To free all of them in one go would take milliseconds.
                    texts[one] = ""
                await pause()
            parts.append(b"\n")
        return parts


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


class _Owned:
    """What members own of one topic."""

    __slots__ = ("members", "partitions")

    def __init__(self) -> None:
        self.members: set[str] = set()
        self.partitions: set[int] = set()


class _Walked(Struct, eq=False, gc=False):
    """A group that was looked at.

    Attributes:
        group: It, as it is at the moment.
        lag: Of the whole group, in messages and in seconds.
        topics: How many it has committed or owns a partition of.
        committed: How many partitions have an offset, and so series.
        topic_texts: Where among the `Lines` those of its topics are; likewise of its partitions.
        is_kept: Whether they are there: there were not too many.
    """

    group: Group
    lag: int
    lag_seconds: float
    topics: int
    committed: int
    group_text: int
    topic_texts: range
    partition_texts: range
    is_kept: bool


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
        self,
        registry: Registry,
        *,
        max_series: int,
        node_id: int,
        now: Now,
        throttled: Mapping[str, tuple[int, int]],
        pause: Pause,
    ) -> None:
        self.states: Counter[str] = Counter()
        self.members = self.offsets = 0
        self._registry = registry
        self._room = Room(max_series)
        self.left_out = self._room.left_out
        self._node_id = node_id
        self._now = now
        self._throttled = throttled
        self._pause = pause
        self._may_keep = max_series
        self._spent = 0  # Items since the last pause.
        self._groups, self._topics, self._partitions = map(Lines, ("group", "topic", "partition"))

    async def go(self, shards: Iterable[Mapping[str, Group]]) -> list[bytes]:
        """Return the series of the groups in *shards*, and of the topics."""
        walked = []
        for groups in shards:
            for group_id in list(groups):
                group = groups.get(group_id)
                if group is not None:
                    one = await self._look_at(group)
                    walked.append(one)
                    self.states[group.state] += 1
                    self.members += len(group.members)
                    self.offsets += one.committed
        ranked = await sorted_in_turns(walked, _worst_first, self._pause, TURN_SORTED)
        del walked  # So that `_write` has the only ones.
        topics = await in_turns(topic_end_facts(self._registry, self._now, Turn()), self._pause)
        topics = await sorted_in_turns(topics, _oldest_first, self._pause, TURN_SORTED)
        return await self._write(ranked, topics)

    def _is_over_after(self, items: int) -> bool:
        """Say whether to pause after *items* more: a look at the clock is not free."""
        self._spent += items
        if self._spent < ITEMS:
            return False
        self._spent = 0
        return True

    async def _look_at(self, group: Group, wanted: tuple[int, int] | None = None) -> _Walked:
        """Add up *group*, and write its lines: of so many topics and partitions as are *wanted*.

        None stands for all of them, but nothing is written where that is too much to be kept.
        """
        if self._is_over_after(GROUP_ITEMS):
            await self._pause()
        owned, idle = await self._owned(group)
        names = [*group.offsets, *(topic for topic in owned if topic not in group.offsets)]
        limits = wanted or self._if_kept(len(names), sum(map(len, group.offsets.values())))
        topics_left, partitions_left = limits or (0, 0)
        topics_at, partitions_at = self._topics.count, self._partitions.count
        whole = LagSum()
        partitions = 0
        topics: list[TopicFacts] = []
        for topic in names:
            stored = group.offsets.get(topic, _NOTHING_STORED)
            sums = LagSum()
            for chunk in chunks(stored, ITEMS):
                if self._is_over_after(len(chunk)):
                    await self._pause()
                columns = lag_columns(self._registry, topic, chunk, self._now.mono_ms)
                sums.add(columns)
                whole.add(columns)
                if partitions_left > 0:
                    some = columns.first(partitions_left)
                    self._partitions.add(self._partition_texts(group, topic, stored, some))
                    partitions_left -= len(some.partitions)
            of_topic = owned.get(topic, _NOTHING_OWNED)
            count = len(of_topic.partitions.difference(stored)) + sums.committed
            partitions += count
            counts = (len(of_topic.members), len(of_topic.partitions), sums.offset_sum)
            unknown = count - sums.known
            behind_s = seconds(sums.behind_ms)
            topics.append(TopicFacts(topic, count, *counts, unknown, sums.lag, behind_s))
        for at in range(0, topics_left, ITEMS):
            some_topics = topics[at : min(at + ITEMS, topics_left)]
            if self._is_over_after(len(some_topics)):
                await self._pause()
            self._topics.add(topic_texts(group.group_id, some_topics))
        lag, lag_seconds = whole.lag, seconds(whole.behind_ms)
        if limits is not None:
            facts = GroupFacts.of(
                group,
                empty_members=idle,
                partitions=partitions,
                unknown=partitions - whole.known,
                lag=lag,
                lag_seconds=lag_seconds,
            )
            self._groups.add(group_texts(facts, self._node_id))
        return _Walked(
            group,
            lag,
            lag_seconds,
            len(topics),
            whole.committed,
            self._groups.count - 1,
            range(topics_at, self._topics.count),
            range(partitions_at, self._partitions.count),
            limits is not None,
        )

    def _if_kept(self, topics: int, partitions: int) -> tuple[int, int] | None:
        """Return how many of each are kept of a group: all, or None of it."""
        series = len(GROUP_FAMILIES)
        series += len(TOPIC_FAMILIES) * topics + len(PARTITION_FAMILIES) * partitions
        if series > self._may_keep:
            return None
        self._may_keep -= series
        return topics, partitions

    def _partition_texts(
        self, group: Group, topic: str, stored: StoredOffsets, columns: LagColumns
    ) -> Texts:
        committed_ms = stored.committed_times(columns.partitions)
        now_ms = self._now.wall_ms
        return partition_texts(group.group_id, topic, columns, committed_ms, now_ms)

    async def _owned(self, group: Group) -> tuple[dict[str, _Owned], int]:
        """Return what members own by topic, and how many of them own nothing."""
        found: dict[str, _Owned] = {}
        idle = 0
        for member in list(group.members.values()):
            idle += member.owned == NOTHING
            owned = iter(member.owned or ())
            while chunk := list(islice(owned, ITEMS)):
                for topic, partition in chunk:
                    of_topic = found.get(topic)
                    if of_topic is None:
                        of_topic = found[topic] = _Owned()
                    of_topic.members.add(member.member_id)
                    of_topic.partitions.add(partition)
                if self._is_over_after(len(chunk)):
                    await self._pause()
        return found, idle

    # --- writing ------------------------------------------------------------------------

    async def _write(self, ranked: list[_Walked], topics: Sequence[TopicEndFacts]) -> list[bytes]:
        """Return as much of all as there is room for, level by level; *ranked* is used up."""
        shown = ranked[: self._room.take("group", len(ranked))]
        principals = await self._principals()
        principals = principals[: self._room.take("principal", len(principals))]
        of_topics = await self._take("topic", [one.topics for one in ranked])
        registered = topics[: self._room.take("registry", len(topics))]
        of_partitions = await self._take("partition", [one.committed for one in ranked])
        order: tuple[list[int], list[int], list[int]] = ([], [], [])
        fitting = zip(shown, of_topics, of_partitions, strict=False)
        while some := list(islice(fitting, TEXTS)):
            await self._pause()
            for group, of_topic, of_partition in some:
                written = await self._written(group, of_topic, of_partition)
                for texts, more in zip(order, written, strict=True):
                    texts.extend(more)
        del shown, fitting
        while ranked:  # To free all of them in one go would take milliseconds.
            del ranked[-TURN_SORTED:]
            await self._pause()
        parts = await self._groups.parts(self._pause, order[0])
        parts += await self._write_principals(principals)
        parts += await self._topics.parts(self._pause, order[1])
        parts += await self._write_registry(registered)
        parts += await self._partitions.parts(self._pause, order[2])
        return parts + await self._write_ends(topics)

    async def _take(self, level: str, items: Sequence[int]) -> list[int]:
        """Return for how many *items* of each group there is room."""
        found: list[int] = []
        for at in range(0, len(items), TURN_SORTED):
            found += [self._room.take(level, count) for count in items[at : at + TURN_SORTED]]
            await self._pause()
        return found

    async def _written(
        self, group: _Walked, topics: int, partitions: int
    ) -> tuple[Sequence[int], Sequence[int], Sequence[int]]:
        """Return where the lines of a group are, of each level, with so many of its items."""
        is_there = group.is_kept and topics in {0, group.topics}
        if not (is_there and partitions in {0, group.committed}):
            group = await self._look_at(group.group, (topics, partitions))
        return (
            (group.group_text,),
            group.topic_texts if topics else (),
            group.partition_texts if partitions else (),
        )

    async def _principals(self) -> list[PrincipalFacts]:
        """Return those who have something, or were told to wait; nearest to a quota first."""
        totals = self._registry.totals
        if not totals.has_principals:
            return []
        names = list(dict.fromkeys([*(one.principal for one in totals.shares()), *self._throttled]))
        found: list[PrincipalFacts] = []
        for at in range(0, len(names), ITEMS):
            found += [
                principal_facts(totals.share(name), self._throttled.get(name, (0, 0)))
                for name in names[at : at + ITEMS]
            ]
            await self._pause()
        return await sorted_in_turns(found, _nearest_first, self._pause, TURN_SORTED)

    async def _write_principals(self, principals: Sequence[PrincipalFacts]) -> list[bytes]:
        lines = Lines("principal")
        for at in range(0, len(principals), ITEMS):
            lines.add(principal_texts(principals[at : at + ITEMS]))
            await self._pause()
        return await lines.parts(self._pause)

    async def _write_registry(self, topics: Sequence[TopicEndFacts]) -> list[bytes]:
        lines = Lines("registry")
        for at in range(0, len(topics), ITEMS):
            lines.add(registry_texts(topics[at : at + ITEMS]))
            await self._pause()
        return await lines.parts(self._pause)

    async def _write_ends(self, topics: Sequence[TopicEndFacts]) -> list[bytes]:
        lines = Lines("registry_partition")
        for one in topics:
            ends = list(self._registry.ends_of(one.topic).values())
            fitting = self._room.take("registry_partition", len(ends))
            for at in range(0, fitting, ITEMS):
                lines.add(end_texts(one.topic, ends[at : min(at + ITEMS, fitting)]))
                await self._pause()
        return await lines.parts(self._pause)


def _worst_first(walked: _Walked) -> tuple[float, int, str]:
    return longest_behind(walked.lag_seconds, walked.lag, walked.group.group_id)


def _nearest_first(facts: PrincipalFacts) -> tuple[float, int, str]:
    return -facts.quota_ratio, -facts.throttled_ms, facts.principal


def _oldest_first(facts: TopicEndFacts) -> tuple[bool, int, str]:
    return facts.age_ms < 0, -facts.age_ms, facts.topic
