"""Requests and responses of a group's members; import them from `protocol.messages`."""

from typing import NamedTuple

# --- 11 JoinGroup -----------------------------------------------------------------------


class JoinProtocol(NamedTuple):
    """One assignor that a member offers, with its subscription bytes."""

    name: str
    metadata: bytes


class JoinGroupRequest(NamedTuple):
    """Become or stay a member; parked until the join phase of the rebalance completes."""

    group_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str
    protocols: tuple[JoinProtocol, ...]
    reason: str | None
    # Version 1: the member wants every registered topic whose whole name matches (RE2's
    # syntax); the topics in its subscription are those that matched when it asked.
    topic_pattern: str | None = None


class JoinGroupMember(NamedTuple):
    """A member as the leader sees it."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


class JoinGroupResponse(NamedTuple):
    """Answer to `JoinGroupRequest`; ``members`` is filled for the leader only."""

    error: int
    generation_id: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str
    skip_assignment: bool
    member_id: str
    members: tuple[JoinGroupMember, ...]
    message: str | None = None  # Version 1: the error in words.


# --- 14 SyncGroup -----------------------------------------------------------------------


class MemberAssignment(NamedTuple):
    """What the leader gives to one member."""

    member_id: str
    assignment: bytes


class SyncGroupRequest(NamedTuple):
    """Ask for the own assignment; the leader's carries everybody's."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[MemberAssignment, ...]


class SyncGroupResponse(NamedTuple):
    """Answer to `SyncGroupRequest`."""

    error: int
    protocol_type: str | None
    protocol_name: str | None
    assignment: bytes
    message: str | None = None  # Version 1: the error in words.


# --- 12 Heartbeat -----------------------------------------------------------------------


class HeartbeatRequest(NamedTuple):
    """I am alive; is my generation still the current one?"""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


class HeartbeatResponse(NamedTuple):
    """Answer to `HeartbeatRequest`."""

    error: int
    message: str | None = None  # Version 1: the error in words.


# --- 13 LeaveGroup ----------------------------------------------------------------------


class LeavingMember(NamedTuple):
    """One member that leaves, or is removed by an operator."""

    member_id: str
    group_instance_id: str | None
    reason: str | None


class LeaveGroupRequest(NamedTuple):
    """Remove members at once instead of waiting for their sessions to end."""

    group_id: str
    members: tuple[LeavingMember, ...]


class LeftMember(NamedTuple):
    """What became of one `LeavingMember`."""

    member_id: str
    group_instance_id: str | None
    error: int
    message: str | None = None  # Version 1: the error in words.


class LeaveGroupResponse(NamedTuple):
    """Answer to `LeaveGroupRequest`, in the order asked."""

    error: int
    members: tuple[LeftMember, ...]


# --- 1000 DrainMember -------------------------------------------------------------------


class DrainMemberRequest(NamedTuple):
    """Take every partition away from the members with this client id, before a planned stop.

    Repeat it until each is drained; the mark lasts as long as the membership.
    """

    group_id: str
    client_id: str


class DrainedMember(NamedTuple):
    """One drained member; ``drained`` is true once it owns nothing."""

    member_id: str
    drained: bool


class DrainMemberResponse(NamedTuple):
    """Answer to `DrainMemberRequest`: 69 no such group, 25 no member with this client id."""

    error: int
    members: tuple[DrainedMember, ...]
