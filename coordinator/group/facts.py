"""A group in numbers, for whoever shows or exports them. Pure; -1 is what is not known."""

from typing import NamedTuple


class GroupFacts(NamedTuple):
    """A group in numbers. -1 is what isn't known."""

    group_id: str
    protocol_type: str
    protocol: str
    state: str
    generation: int
    members: int
    empty_members: int
    partitions: int
    unknown: int
    lag: int
    lag_seconds: float
    earlier_lag: int
    earlier_ms: int


class TopicFacts(NamedTuple):
    """A topic of a group; members and assigned count its owners and owned partitions."""

    topic: str
    partitions: int
    members: int
    assigned: int
    offset_sum: int
    lag: int
    lag_seconds: float


class PartitionFacts(NamedTuple):
    """A partition that a group owns or has committed."""

    topic: str
    partition: int
    owner: str
    committed: int
    end: int
    lag: int
    lag_seconds: float
    committed_ms: int
    end_reported_ms: int


class MemberFacts(NamedTuple):
    """A member of the moment; waits is "join", "sync" or ""."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    is_leader: bool
    heartbeat_age_ms: int
    session_timeout_ms: int
    partitions: int
    lag: int
    drained: bool
    waits: str


class RunningFacts(NamedTuple):
    """The rebalance that goes on."""

    started_ms: int  # Wall clock.
    trigger: str
    member_id: str
    client_id: str
    client_host: str
    reason: str
    old_generation: int
    phase: str  # "join" or "sync"
    join_ms: int
    sync_ms: int
    waiting_for: tuple[str, ...]  # At most 20 member ids.
