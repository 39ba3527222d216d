"""What is shown in JSON, as docs/http.md describes it. Null is what is not known, and never 0."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType, json

from coordinator.group.facts import (
    GroupFacts,
    MemberFacts,
    PartitionFacts,
    RunningFacts,
    TopicFacts,
)
from protocol import messages as m

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Of a lag in seconds; it is read off samples a minute apart.
_DIGITS: Final = 1
encode: Final = json.Encoder().encode


class View(Struct, gc=False):
    """What is shown."""


# --- of any list, and what can't be answered --------------------------------------------


class Problem(View):
    """A request that can't be answered (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str


class LogIn(View):
    """Who somebody says to be: a name with its password, or a token."""

    name: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        """Keep secrets out of every text."""
        return "LogIn(…)"


class Session(View):
    """Who asks, and how he has shown it; nulls where nobody is asked who he is."""

    principal: str | None
    by: str | None


class OpenApi(View):
    """What can be asked, and what is answered (OpenAPI 3.1)."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    security: list[dict[str, Any]]
    components: dict[str, Any]


class Alive(View):
    """That it answers is what says so."""

    status: str


class Check(View):
    """How one part is; ``done`` is there while it is being loaded."""

    part: str
    ok: bool
    reason: str | None
    since: datetime | None
    done: float | UnsetType = UNSET


class Health(View):
    """How the node is."""

    status: str
    checks: list[Check]


# --- groups -----------------------------------------------------------------------------


class GroupOutline(View):
    """What all views of a group have."""

    id: str
    type: str
    state: str
    partitions: int
    unknown_partitions: int
    lag: int | None
    lag_seconds: float | None
    earlier_lag: int | None
    earlier_ms: int | None


class GroupChange(GroupOutline):
    """A group that has changed, without its samples."""

    members: int


class Group(GroupChange):
    """A group; its samples are a minute apart, up to ``sampled_at``."""

    samples: list[int | None]
    sampled_at: datetime | None


class Groups(View):
    """A page of groups, all of one moment."""

    as_of: datetime
    items: list[Group]
    total: int
    next: str | None


class Member(View):
    """A member; ``waits`` is "join" or "sync" while a request of it is parked."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    is_leader: bool
    heartbeat_age_ms: int
    session_timeout_ms: int
    partitions: int
    unknown_partitions: int
    lag: int | None
    drained: bool
    waits: str | None


class TopicOfGroup(View):
    """How far a group is in one topic."""

    topic: str
    partitions: int
    unknown_partitions: int
    lag: int | None
    lag_seconds: float | None


class Who(View):
    """A member that caused a rebalance; it may be gone."""

    id: str
    instance_id: str | None
    client_id: str
    host: str


class Phase(View):
    """How long a phase took, or has been going on."""

    phase: str
    ms: int


class Late(View):
    """A member that the others waited for."""

    id: str
    client_id: str
    host: str
    phase: str
    waited_ms: int
    removed: bool


class RebalanceOutline(View):
    """What is told of a rebalance whether it goes on or not."""

    started_at: datetime | None
    trigger: str
    reason: str
    by: Who | None
    from_generation: int
    to_generation: int | None
    phases: list[Phase]
    late: list[Late]


class RunningRebalance(RebalanceOutline):
    """A rebalance that goes on; what only its end tells is null."""

    number: int | None
    outcome: str | None
    members: int | None
    waiting_for: list[str]


class Rebalance(RebalanceOutline):
    """A rebalance that has ended: "stable", "empty", or "overtaken" by another one."""

    number: int
    outcome: str
    members: int


class Rebalances(View):
    """The last rebalances of a group, the newest first."""

    items: list[Rebalance]
    total: int
    next: str | None


class GroupAlone(GroupOutline):
    """One group with everything but its partitions."""

    members: list[Member]
    samples: list[int | None]
    sampled_at: datetime | None
    generation: int
    protocol: str | None
    leader: str | None
    retention_ms: int | None
    topics: list[TopicOfGroup]
    rebalance: RunningRebalance | None


class Partition(View):
    """A partition that a group owns, or has committed."""

    topic: str
    partition: int
    owner: str | None
    committed: int | None
    end: int | None
    lag: int | None
    lag_seconds: float | None
    committed_at: datetime | None
    end_reported_at: datetime | None
    metadata: str | None
    samples: list[float | None]


class Partitions(View):
    """A page of a group's partitions."""

    items: list[Partition]
    total: int
    next: str | None


# --- topics -----------------------------------------------------------------------------


class Topic(View):
    """A registered topic; its sum and age are null before an end was reported."""

    topic: str
    partition_count: int
    unknown_partitions: int
    end_sum: int | None
    end_age_ms: int | None


class Topics(View):
    """A page of topics, by name."""

    items: list[Topic]
    total: int
    next: str | None


class PartitionOfTopic(View):
    """How far a partition reaches, and who can read it."""

    partition: int
    hosts: list[str]
    end: int | None
    end_reported_at: datetime | None


class TopicAlone(Topic):
    """One topic with its partitions."""

    partitions: list[PartitionOfTopic]


# --- the node ---------------------------------------------------------------------------


class Log(View):
    """The log of offsets and groups; ``live_bytes`` is about what a compaction would keep."""

    bytes: int
    live_bytes: int
    segments: int | None
    dirty_ratio: float | None
    unflushed_bytes: int


class FlushSample(View):
    """The flushes of one minute."""

    at: datetime
    count: int
    p99_ms: float | None


class Flushes(View):
    """The flushes of the last minute, and ``samples`` of the last hour."""

    per_second: float
    p50_ms: float | None
    p99_ms: float | None
    fsync_p99_ms: float | None
    samples: list[FlushSample]


class Compaction(View):
    """The compactions since the start."""

    running: bool
    done: int
    failed: int
    last_ms: int | None
    removed_bytes: int


class Load(View):
    """How far the load is, and when it is over how long it took."""

    done: float
    entries: int
    ms: int | None


class Disk(View):
    """The disk of the log."""

    free_bytes: int
    size_bytes: int
    reserve_bytes: int | None


class OtherNode(View):
    """Another node of the cluster, which shows the groups of what it leads."""

    node_id: int
    address: str
    ready: bool
    partitions: int


class RequestsOfApi(View):
    """The requests of one kind in the last minute."""

    api: str
    per_second: float
    p50_ms: float | None
    p99_ms: float | None
    errors_per_second: float


class Series(View):
    """How many series of groups and topics a scrape may have, and how many it left out."""

    max_series: int
    left_out: int


class Node(View):
    """The node."""

    node_id: int
    cluster_id: str
    leader_epoch: int
    version: str
    started_at: datetime
    status: str
    checks: list[Check]
    log: Log
    flushes: Flushes
    compaction: Compaction
    load: Load
    disk: Disk | None
    requests: list[RequestsOfApi]
    connections: int
    groups: dict[str, int]
    loop_stall_p99_ms: float | None
    metrics: Series
    others: list[OtherNode]


# --- events -----------------------------------------------------------------------------


class Hello(View):
    """The first event: read the lists again, but for a list of groups that is so new already."""

    as_of: datetime
    version: str
    groups_as_of: datetime | None


class GroupChanges(View):
    """The groups that have changed, and the ids of those that are gone."""

    changed: list[GroupChange]
    removed: list[str]


class Minute(View):
    """A new sample of everything was taken."""

    at: datetime


OF_EVENTS: Final[tuple[type[Struct], ...]] = (Hello, GroupChanges, GroupAlone, Node, Minute)


# --- from what the core tells -----------------------------------------------------------


def time_of(ms: int | None) -> datetime | None:
    """Return the time *ms* after the epoch; None if it isn't known, or can't be."""
    if ms is None or ms < 0:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return None


def moment(ms: int) -> datetime:
    """Return the time *ms* after the epoch, by a clock."""
    return _EPOCH + timedelta(milliseconds=ms)


def known(number: int) -> int | None:
    """Return *number*, None for -1."""
    return None if number < 0 else number


def seconds(number: float) -> float | None:
    """Return a lag in seconds, None for what isn't known."""
    return None if number < 0 else round(number, _DIGITS)


def group_fields(facts: GroupFacts) -> dict[str, Any]:
    """Return the fields that all views of a group have."""
    return {
        "id": facts.group_id,
        "type": facts.protocol_type,
        "state": facts.state,
        "partitions": facts.partitions,
        "unknown_partitions": facts.unknown,
        "lag": known(facts.lag),
        "lag_seconds": seconds(facts.lag_seconds),
        "earlier_lag": known(facts.earlier_lag) if facts.earlier_ms >= 0 else None,
        "earlier_ms": known(facts.earlier_ms),
    }


def group_change(facts: GroupFacts) -> GroupChange:
    """Return what an event tells of a group."""
    return GroupChange(members=facts.members, **group_fields(facts))


def group(facts: GroupFacts, samples: Sequence[int], sampled_ms: int) -> Group:
    """Return a line of the list of groups."""
    return Group(
        members=facts.members,
        samples=[known(lag) for lag in samples],
        sampled_at=moment(sampled_ms) if samples else None,
        **group_fields(facts),
    )


def member(facts: MemberFacts) -> Member:
    """Return a member."""
    return Member(
        facts.member_id,
        facts.group_instance_id,
        facts.client_id,
        facts.client_host,
        facts.is_leader,
        facts.heartbeat_age_ms,
        facts.session_timeout_ms,
        facts.partitions,
        facts.unknown,
        known(facts.lag),
        facts.drained,
        facts.waits or None,
    )


def topic_of_group(facts: TopicFacts) -> TopicOfGroup:
    """Return a topic of a group."""
    return TopicOfGroup(
        facts.topic,
        facts.partitions,
        facts.unknown,
        known(facts.lag),
        seconds(facts.lag_seconds),
    )


def partition(facts: PartitionFacts, samples: Iterable[int]) -> Partition:
    """Return a partition of a group."""
    return Partition(
        facts.topic,
        facts.partition,
        facts.owner or None,
        known(facts.committed),
        known(facts.end),
        known(facts.lag),
        seconds(facts.lag_seconds),
        time_of(facts.committed_ms),
        time_of(facts.end_reported_ms),
        facts.metadata if facts.committed >= 0 else None,
        [known(lag) for lag in samples],
    )


def _who(member_id: str, instance_id: str | None, client_id: str, host: str) -> Who | None:
    return Who(member_id, instance_id, client_id, host) if member_id else None


def running(facts: RunningFacts) -> RunningRebalance:
    """Return a rebalance that goes on."""
    phases = [Phase("join", facts.join_ms)]
    if facts.phase == "sync":
        phases.append(Phase("sync", facts.sync_ms))
    return RunningRebalance(
        number=None,
        started_at=time_of(facts.started_ms),
        trigger=facts.trigger,
        reason=facts.reason,
        by=_who(facts.member_id, None, facts.client_id, facts.client_host),
        from_generation=facts.old_generation,
        to_generation=None,
        outcome=None,
        members=None,
        phases=phases,
        late=[],
        waiting_for=list(facts.waiting_for),
    )


def rebalance(kept: m.Rebalance) -> Rebalance:
    """Return a rebalance that has ended."""
    has_sync = kept.new_generation >= 0 and kept.outcome != "empty"
    return Rebalance(
        number=kept.number,
        started_at=time_of(kept.started_ms),
        trigger=kept.trigger,
        reason=kept.reason,
        by=_who(kept.member_id, kept.group_instance_id, kept.client_id, kept.client_host),
        from_generation=kept.old_generation,
        to_generation=known(kept.new_generation),
        outcome=kept.outcome,
        members=kept.members,
        phases=[
            Phase("join", kept.join_ms),
            *([Phase("sync", kept.sync_ms)] if has_sync else []),
        ],
        late=[
            Late(
                late.member_id,
                late.client_id,
                late.client_host,
                late.phase,
                late.waited_ms,
                late.removed,
            )
            for late in kept.late
        ],
    )
