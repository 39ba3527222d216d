"""Refusal texts with measured values and both parties. For people: no code parses them."""

from typing import Final

from coordinator.group.group import Group
from protocol.errors import ErrorCode
from protocol.messages import HeartbeatRequest, OffsetCommitRequest, SyncGroupRequest

TEXT_MAX: Final = 1_000  # Characters.


def seconds(ms: int) -> str:
    """Return a duration as ``10.2 s``."""
    return f"{ms / 1000:.1f} s"


def with_reason(what: str, reason: str | None) -> str:
    """Return *what*, with the reason given by the client."""
    return shortened(f"{what}: {reason}") if reason else what


def shortened(text: str) -> str:
    """Return *text* limited to TEXT_MAX: text from clients may be too long for an answer."""
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 3] + "..."


def refusal(
    group: Group | None,
    error: int,
    member_id: str,
    instance_id: str | None,
    generation_id: int,
    now_ms: int,
) -> str | None:
    """Return why a member's request got *error*, None for an error without a text."""
    if error == ErrorCode.UNKNOWN_MEMBER_ID:
        return unknown_member(group, member_id, instance_id)
    if group is None:
        return None
    if error == ErrorCode.FENCED_INSTANCE_ID:
        return instance_holder(group, instance_id or "")
    if error == ErrorCode.ILLEGAL_GENERATION:
        return wrong_generation(group, generation_id)
    if error == ErrorCode.REBALANCE_IN_PROGRESS:
        return rebalancing(group, now_ms)
    return None


def member_refusal(
    group: Group | None,
    error: int,
    request: HeartbeatRequest | SyncGroupRequest | OffsetCommitRequest,
    now_ms: int,
) -> str | None:
    """Return why *request*, which has a generation, got *error*; None for one without a text."""
    return refusal(
        group,
        error,
        request.member_id,
        request.group_instance_id,
        request.generation_id,
        now_ms,
    )


def unknown_member(group: Group | None, member_id: str, instance_id: str | None) -> str:
    """Return why a member is unknown, or why it was removed."""
    if group is None:
        return "there is no such group"
    removal = group.removals.get(member_id)
    if removal is not None:
        return f"member {member_id} is gone: {removal}"
    if instance_id is not None and instance_id not in group.static:
        return f"no member holds the instance id {instance_id!r}"
    return f"the group knows no member {member_id!r}"


def instance_holder(group: Group, instance_id: str) -> str:
    """Return the member and client that hold an instance id."""
    holder = group.members[group.static[instance_id]]
    return (
        f"instance id {instance_id!r} is held by member {holder.member_id} "
        f"(client {holder.client_id}) from host {holder.client_host}"
    )


def wrong_generation(group: Group, generation_id: int) -> str:
    """Return the difference between a request's generation and the group's."""
    if generation_id < group.generation:
        return f"generation {generation_id} is over, the group is at {group.generation}"
    return f"generation {generation_id} has not begun, the group is at {group.generation}"


def rebalancing(group: Group, now_ms: int) -> str:
    """Return why the group rebalances, and for how long."""
    running = group.rebalance
    if running is None:
        return "the group rebalances"
    return f"rebalancing for {seconds(now_ms - running.began_ms)}: {running.reason}"


STORAGE_EXHAUSTED: Final = "the disk is full or too slow, no group can rebalance"
STORAGE_FULL: Final = "the disk is full or too slow, new members are refused"
