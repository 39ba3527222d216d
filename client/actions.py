"""The vocabulary of `client.membership`: what goes in, what comes out, where a member is."""

from enum import StrEnum
from typing import Final, NamedTuple

from client.types import Assignment
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupMember,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    SyncGroupRequest,
    SyncGroupResponse,
)

HEARTBEAT_INTERVAL_MS_MAX: Final = 3_000
# The coordinator answers a JoinGroup at the latest when the rebalance timeout is over; the
# rest is for the way there and back, and for a disk that is slow (Kafka's clients: the same).
PARKED_SLACK_MS: Final = 5_000


class MembershipConfig(NamedTuple):
    """What a member asks of its group.

    ``topics`` is empty where a pattern stands for them. ``cooperative``: partitions that stay are
    kept while the group rebalances; all assignors that are offered must be able to.
    """

    group_id: str
    topics: tuple[str, ...]
    assignor_names: tuple[str, ...]
    session_timeout_ms: int = 45_000
    rebalance_timeout_ms: int = 300_000
    group_instance_id: str | None = None
    reason: str | None = None
    topic_pattern: str | None = None
    host: str | None = None
    cooperative: bool = False

    @property
    def heartbeat_interval_ms(self) -> int:
        """Three heartbeats fit into a session, and none is further away than 3 s."""
        return max(1, min(HEARTBEAT_INTERVAL_MS_MAX, self.session_timeout_ms // 3))

    @property
    def parked_ms(self) -> int:
        """How long a JoinGroup or SyncGroup may stay unanswered."""
        return self.rebalance_timeout_ms + PARKED_SLACK_MS


class State(StrEnum):
    """Where a member is in its life."""

    OUTSIDE = "outside"  # Nothing is under way; may still have a member id.
    JOINING = "joining"  # A JoinGroup is on its way or parked.
    SYNCING = "syncing"  # In the new generation; computing, or a SyncGroup is on its way.
    STABLE = "stable"  # Has an assignment, though a rebalance may be needed by now.
    FAILED = "failed"
    LEFT = "left"


MemberRequest = JoinGroupRequest | SyncGroupRequest | HeartbeatRequest | LeaveGroupRequest
MemberResponse = JoinGroupResponse | SyncGroupResponse | HeartbeatResponse


class Send(NamedTuple):
    """Send *request*, then call `Membership.answered` or `Membership.unanswered`.

    ``parked_ms``: how long one attempt may stay unanswered, as the coordinator parks it;
    None for a request that is answered at once. ``rejoins``: how many joins in a row came to
    nothing; from 2 on, pause before sending.
    """

    request: MemberRequest
    parked_ms: int | None
    rejoins: int = 0


class Resolve(NamedTuple):
    """Ask which topics match the pattern, then call `Membership.resolved`.

    ``number`` tells it from an older one; ``rejoins`` is as in `Send`.
    """

    number: int
    pattern: str
    rejoins: int


class Compute(NamedTuple):
    """This member leads: compute the assignments, then call `Membership.computed`."""

    generation: int
    assignor_name: str
    members: tuple[JoinGroupMember, ...]


class Assigned(NamedTuple):
    """The join that the user asked for came to its end."""

    assignment: Assignment


class GaveUp(NamedTuple):
    """The join that the user asked for failed."""

    error: Exception


Action = Send | Resolve | Compute | Assigned | GaveUp
