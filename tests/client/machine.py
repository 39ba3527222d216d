"""Steps of a member's life, for tests of the membership machine."""

from client.membership import Membership, MembershipConfig, Send, State
from protocol import consumer
from protocol.messages import (
    HeartbeatRequest,
    JoinGroupMember,
    JoinGroupRequest,
    JoinGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from protocol.partition import TopicPartition

CONFIG = MembershipConfig("g", ("t",), ("range", "roundrobin"), 9_000, 60_000, reason="new")
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def joined(generation: int = 1, *, leader: str = "other", error: int = 0) -> JoinGroupResponse:
    """Answer a JoinGroup."""
    if error:
        return JoinGroupResponse(error, -1, None, None, "", False, "me", ())
    members = (JoinGroupMember("me", None, b""),) if leader == "me" else ()
    return JoinGroupResponse(0, generation, "consumer", "range", leader, False, "me", members)


def synced(*partitions: TopicPartition, error: int = 0) -> SyncGroupResponse:
    """Answer a SyncGroup."""
    if error:
        return SyncGroupResponse(error, None, None, b"")
    data = consumer.encode_assignment(consumer.Assignment(partitions, b""))
    return SyncGroupResponse(0, "consumer", "range", data)


def one_send(actions: object) -> Send:
    """Return the only action, which is a Send."""
    assert isinstance(actions, list)
    (action,) = actions
    assert isinstance(action, Send)
    return action


def joining(machine: Membership) -> JoinGroupRequest:
    """Ask for the assignment and return the JoinGroup that comes of it."""
    request = one_send(machine.want_assignment()).request
    assert isinstance(request, JoinGroupRequest)
    return request


def syncing(machine: Membership, generation: int = 1) -> SyncGroupRequest:
    """Go on to the SyncGroup of a follower."""
    request = one_send(machine.answered(joining(machine), joined(generation), 0)).request
    assert isinstance(request, SyncGroupRequest)
    return request


def stable(generation: int = 1) -> Membership:
    """Return a member that has its assignment."""
    machine = Membership(CONFIG)
    machine.answered(syncing(machine, generation), synced(T0), 0)
    assert machine.state is State.STABLE
    return machine


def heartbeat(machine: Membership, now_ms: int = 3_000) -> HeartbeatRequest:
    """Return the heartbeat that is due."""
    request = one_send(machine.tick(now_ms)).request
    assert isinstance(request, HeartbeatRequest)
    return request
