"""From hard state to a living group, and back out of service."""

from collections.abc import Callable, Iterator
from typing import Final

from coordinator.group import history
from coordinator.group.core import Core, Decision
from coordinator.group.effects import Now, Outcome
from coordinator.group.group import Group
from coordinator.group.member import Member, read_assignment
from coordinator.group.rebalance import start_rebalance
from coordinator.group.records import GroupMetadata, MemberMetadata
from coordinator.group.states import Trigger
from protocol.errors import ErrorCode
from protocol.failures import join_error, sync_error
from protocol.messages import JoinProtocol

# Giving so many members their soft state took 5 ms.
SLICE_MEMBERS: Final = 500
# What a group takes without members, in members.
_GROUP_ROOM: Final = 0.1


def load(core: Core, now: Callable[[], Now]) -> Iterator[list[Outcome]]:
    """Give every replayed group its soft state: fresh sessions, and a rebalance if needed.

    Yields whenever a slice is done.
    """
    outcomes: list[Outcome] = []
    room: float = SLICE_MEMBERS
    for group in list(core.groups.values()):
        stable = group.stable
        if stable is not None:
            group.protocol_type = stable.protocol_type
        if stable is not None and stable.members:
            group.protocol = stable.protocol
            group.topics_version = stable.topics_version
            for metadata in stable.members:
                now_ms = now().mono_ms
                member = _load_member(group, metadata, now_ms)
                group.add(member)
                core.touch(member, now_ms)
                room -= 1
                if room <= 0:
                    yield outcomes
                    outcomes, room = [], SLICE_MEMBERS
            outcome = _start_group(core, group, stable, now())
            if outcome:
                outcomes.append(outcome)
        room -= _GROUP_ROOM
    yield outcomes


def _start_group(core: Core, group: Group, stable: GroupMetadata, now: Now) -> Outcome:
    d = Decision(core, group.group_id, now)
    group.leader = stable.leader
    group.subscribed = group.topics_wanted()
    if group.is_unassigned():
        # Its members were told, or may have been told, a generation that came to nothing.
        group.is_recovering = True
        # What they agreed on for that generation is not in the log: no SyncGroup of it is
        # wrong for naming another protocol than the last stable generation's.
        group.protocol = None
        group.move(Trigger.LOADED_UNASSIGNED)
        core.timers.arm(group.join_timer, now.mono_ms + group.rebalance_timeout_ms())
        detail = f"restarted at generation {group.generation}, which was told but never assigned"
        running = history.Running("generation was never assigned", detail, None)
        history.started(d, group, running)
    else:
        group.move(Trigger.LOADED_STABLE)
        size, limit = len(group.members), core.config.group_max_size
        if size > limit:
            detail = f"loaded with {size} members, group.max.size is {limit}"
            start_rebalance(d, group, Trigger.TOO_MANY, "too many members", None, detail)
    return d.outcome


def _load_member(group: Group, metadata: MemberMetadata, now_ms: int) -> Member:
    rebalance_timeout_ms = metadata.rebalance_timeout_ms
    member = Member(
        group,
        metadata.member_id,
        group_instance_id=metadata.group_instance_id,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        session_timeout_ms=metadata.session_timeout_ms,
        # -1 is Kafka's "as the session".
        rebalance_timeout_ms=metadata.session_timeout_ms
        if rebalance_timeout_ms < 0
        else rebalance_timeout_ms,
        protocols=(JoinProtocol(group.protocol or "", metadata.subscription),),
        heard_ms=now_ms,
        topic_pattern=metadata.topic_pattern,
    )
    member.is_loaded = True
    member.read_topics(group.protocol_type, group.protocol)
    member.is_new = False
    member.synced = True
    member.assignment = metadata.assignment
    listed = read_assignment(group.protocol_type, metadata.assignment)
    member.owned = None if listed is None else frozenset(listed)
    return member


def unload(core: Core, now: Now) -> list[Outcome]:
    """Take all groups out of service: what is parked is answered with 16."""
    outcomes = []
    for group in core.groups.values():
        d = Decision(core, group.group_id, now)
        for member in group.members.values():
            if member.join is not None:
                error = join_error(ErrorCode.NOT_COORDINATOR, member.member_id)
                d.finish_join(group, member, error)
            if member.sync is not None:
                d.finish_sync(member, sync_error(ErrorCode.NOT_COORDINATOR))
            member.gone = True
        for pending in group.pending.values():
            pending.gone = True
        group.move(Trigger.REMOVED)
        if d.outcome:
            outcomes.append(d.outcome)
        group.part()
    core.reset()
    return outcomes
