"""The two barriers of a rebalance, and the topic changes that start one.

Theory of operation
===================

At the first barrier every member parks a JoinGroup. When the last known member (and the last id
that was given out) has joined, or the longest rebalance timeout has passed, all are released at
once with a new generation. At the second barrier every member parks a SyncGroup; the leader's
contains the assignment, and the group's record releases the others.

The generation is incremented when the first barrier opens, not when a member joins. Ten members
that start within a second therefore share one generation. A commit under way when the rebalance
began is still accepted: it names the old generation, which stays current until the barrier opens.
The new generation is recorded before any member gets it, so that a crash can't cause a second use.

A static member that does not rejoin in time keeps its place: it is restarting, and its session
decides. The leader assigns partitions to it as to the others; the second barrier doesn't wait.

A group that was Empty first waits for more members: for `group.initial.rebalance.delay.ms`, again
whenever a member joined in that time, up to the first rebalance timeout. Only the loss of every
member ends that wait early.

Soft, and therefore lost in a crash: parked requests, members that left since the last record, and
all deadlines. Members notice by their next heartbeat.

A generation is an int32 on the wire. A group that has used them up loses all its members
(QUOTA_EXCEEDED) and accepts no new ones until it is deleted. It stays Empty at the last generation,
in which no member is left that could commit. At one rebalance a second that takes 68 years.

Topics
------

A group's `topics_version` is the registry version up to which its assignment is known to be valid.
It never exceeds the version that is durable in the registry's own log (`Registry.durable_version`).
It is set when a join phase completes, and stored in the group's record. Newer changes are checked
whenever the group becomes Stable, after a load, and when something changes while it is Stable. The
group rebalances if a change concerns a topic that it subscribes to or has assigned, or one that a
member's pattern matches and that was missing in the member's list when it joined. Otherwise its
assignment is valid up to the current version. A new or grown topic is no news to a group that owns
all of its partitions already: the group knew before the registry, and its leader may have
registered the topic. The group's record is written again with the version if a topic of the group
has changed, or is not registered while another was deleted: a later load may miss the deletions.

A member looks up the topics of its pattern before it joins, so that its list may be older than the
join phase. `topics_version` is therefore lowered below the first topic that such a member misses. A
client that never adopts a topic would then rebalance for ever; this is why a change that has
already triggered a rebalance of the group (`topics_triggered`, soft) no longer counts.
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

from msgspec import structs

from coordinator.group import history
from coordinator.group.core import Core, Decision
from coordinator.group.group import Group
from coordinator.group.history import RunningRebalance
from coordinator.group.member import NOTHING, Member
from coordinator.group.records import GroupGeneration, GroupMetadata, GroupRebalanced
from coordinator.group.refusals import rebalancing, seconds
from coordinator.group.registry import InvalidPattern, Registry, TopicChange
from coordinator.group.states import GroupState, Trigger
from protocol.errors import ErrorCode
from protocol.messages import JoinGroupResponse, sync_error
from protocol.partition import INT32_MAX

# Minimum wait for members whose answers wait for our disk, in ms, if their rebalance timeout is
# shorter: a timeout of 0 is legal, and must not cause a busy loop.
SPARED_MS: Final = 500
# Maximum number of new changes that are checked one by one for a group.
CHANGES_WALKED: Final = 100
# Maximum number of changes named in the reason of a rebalance.
CHANGES_NAMED_MAX: Final = 3


def start_rebalance(
    d: Decision, group: Group, trigger: Trigger, cause: str, by: Member | None, detail: str
) -> None:
    """Require every member to join again.

    Args:
        d: The decision in the making.
        group: Must have an edge for *trigger* in its state.
        trigger: The cause in the state table.
        cause: The cause for operators, a few fixed words.
        by: The member that caused it, None without one.
        detail: The reason in words, with measured values.
    """
    was_empty = group.state is GroupState.EMPTY
    was_completing = group.state is GroupState.COMPLETING
    begin_report(d, group, cause, detail, by)
    timers = d.core.timers
    if was_completing:
        error = sync_error(ErrorCode.REBALANCE_IN_PROGRESS, rebalancing(group, d.now.mono_ms))
        for member in group.members.values():
            if member.sync is not None:
                d.finish_sync(member, error)
                d.core.restart_session(member, d.now.mono_ms)
    timers.cancel(group.sync_timer)
    group.move(trigger)
    if was_empty:
        delay_ms = d.core.config.group_initial_rebalance_delay_ms
        group.is_initial = True
        group.member_added = False
        group.initial_delay_ms = delay_ms
        group.initial_remaining_ms = max(group.rebalance_timeout_ms() - delay_ms, 0)
        timers.arm(group.join_timer, d.now.mono_ms + delay_ms)
    else:
        timers.arm(group.join_timer, d.now.mono_ms + group.rebalance_timeout_ms())
        maybe_complete_join(d, group)


def maybe_start_rebalance(
    d: Decision, group: Group, trigger: Trigger, cause: str, by: Member, detail: str
) -> None:
    """Continue after a JoinGroup was parked or members were removed, in any state."""
    if group.state is GroupState.PREPARING:
        maybe_complete_join(d, group)
    else:
        start_rebalance(d, group, trigger, cause, by, detail)


def maybe_complete_join(d: Decision, group: Group) -> None:
    """Open the first barrier if no member is missing."""
    if group.state is not GroupState.PREPARING:
        return
    if not group.members or (not group.is_initial and group.all_joined()):
        complete_join(d, group)


def join_timer_fired(d: Decision, group: Group) -> None:
    """Check the initial delay again, or open the first barrier without the missing members."""
    if group.is_initial:
        _end_initial_delay(d, group)
        return
    timers = d.core.timers
    absent = [m for m in group.members.values() if m.join is None]
    # Members whose answers wait for our disk can't know of the rebalance yet. An absent static
    # member keeps its place and assignment until its session ends.
    is_spared = any(m.in_gate for m in absent)
    timeout_ms = group.rebalance_timeout_ms()
    for member in absent:
        if not member.in_gate and member.group_instance_id is None:
            detail = f"no JoinGroup within the rebalance timeout of {seconds(timeout_ms)}, "
            d.remove(group, member, "rebalance timeout", detail + _silence(d, member))
    if is_spared or (group.members and not group.parked_joins):
        # The timeout of the remaining members.
        timeout_ms = max(group.rebalance_timeout_ms(), SPARED_MS)
        timers.arm(group.join_timer, d.now.mono_ms + timeout_ms)
    else:
        complete_join(d, group)


def _silence(d: Decision, member: Member) -> str:
    return f"last heard of {seconds(d.now.mono_ms - member.heard_ms)} ago"


def _end_initial_delay(d: Decision, group: Group) -> None:
    if not group.member_added or group.initial_remaining_ms == 0:
        if group.parked_joins == len(group.members):
            complete_join(d, group)
        else:
            # A client disconnected with its JoinGroup parked; from here on its member is waited for
            # like any other absent member.
            group.is_initial = False
            d.core.timers.arm(group.join_timer, d.now.mono_ms + group.rebalance_timeout_ms())
        return
    group.member_added = False
    delay_ms = min(d.core.config.group_initial_rebalance_delay_ms, group.initial_remaining_ms)
    group.initial_remaining_ms = max(group.initial_remaining_ms - group.initial_delay_ms, 0)
    group.initial_delay_ms = delay_ms
    d.core.timers.arm(group.join_timer, d.now.mono_ms + delay_ms)


def complete_join(d: Decision, group: Group) -> None:
    """Open the first barrier: every remaining member has a JoinGroup parked."""
    d.core.timers.cancel(group.join_timer)
    group.is_initial = False
    if group.members and group.generation == INT32_MAX:
        for member in list(group.members.values()):
            detail = f"generation {INT32_MAX} is the last one; delete the group to go on"
            d.remove(group, member, "generations used up", detail, ErrorCode.QUOTA_EXCEEDED)
    if group.members:
        _open_generation(d, group)
    else:
        _become_empty(d, group)


def _become_empty(d: Decision, group: Group) -> None:
    generation = min(group.generation + 1, INT32_MAX)
    group.move(Trigger.NOBODY_LEFT)
    group.protocol = group.leader = None
    group.is_recovering = False
    group.subscribed = frozenset()
    d.emit(
        GroupMetadata(group.group_id, group.protocol_type, generation, None, None, d.wall_ms, ())
    )
    d.event("group.generation", generation=generation, members=0, leader="", protocol="")
    end_report(d, group, history.EMPTY)


def _open_generation(d: Decision, group: Group) -> None:
    now_ms = d.now.mono_ms
    # After a crash in between, members still own partitions of the last assigned generation.
    has_owners = group.is_recovering or not group.is_unassigned()
    d.emit(GroupGeneration(group.group_id, group.generation + 1, d.wall_ms))
    assert group.rebalance is not None
    group.rebalance.join_completed(group.members.values(), now_ms)
    group.leader = group.choose_leader()
    group.protocol = group.vote()
    group.is_recovering = False
    group.move(Trigger.JOIN_COMPLETED)
    group.unsynced = len(group.members)
    for member in group.members.values():
        if has_owners:
            member.former = member.owned or NOTHING
        # Members gave up their partitions by joining, or by staying away.
        member.assignment, member.owned = b"", NOTHING
        member.synced = member.is_loaded = False
        member.read_topics(group.protocol_type, group.protocol)
        member.read_claim(group.protocol_type, group.protocol)
    _note_topics(d.core, group)
    for member in group.members.values():
        if member.join is not None:
            member.is_new = False
            d.finish_join(group, member, join_answer(group, member.member_id))
            d.core.restart_session(member, now_ms)
    d.core.timers.arm(group.sync_timer, now_ms + group.rebalance_timeout_ms())
    d.event(
        "group.generation",
        generation=group.generation,
        members=len(group.members),
        leader=group.leader,
        protocol=group.protocol,
    )


def join_answer(
    group: Group, member_id: str, *, show_members: bool = True, skip_assignment: bool = False
) -> JoinGroupResponse:
    """Return the JoinGroup answer of the current generation for *member_id*.

    *skip_assignment* applies to the leader only: it leads, and the assignment stays (KIP-814).
    """
    leader = group.leader or ""
    is_shown = show_members and member_id == leader
    return JoinGroupResponse(
        ErrorCode.NONE.value,
        group.generation,
        group.protocol_type,
        group.protocol,
        leader,
        skip_assignment and member_id == leader,
        member_id,
        group.shown_members() if is_shown else (),
    )


def sync_timer_fired(d: Decision, group: Group) -> None:
    """Remove the members that never sent a SyncGroup."""
    timeout_ms = group.rebalance_timeout_ms()
    late = [m for m in group.members.values() if not m.synced]
    lost = [m for m in late if not m.in_gate]
    detail = ""
    for member in lost:
        detail = f"no SyncGroup within {seconds(timeout_ms)} of the join, {_silence(d, member)}"
        d.remove(group, member, "sync timeout", detail)
    if lost:
        start_rebalance(d, group, Trigger.MEMBER_LOST, "sync timeout", lost[-1], detail)
    elif late:  # Their JoinGroup answers still wait for our disk.
        d.core.timers.arm(group.sync_timer, d.now.mono_ms + max(timeout_ms, SPARED_MS))


def begin_report(d: Decision, group: Group, cause: str, detail: str, by: Member | None) -> None:
    """Begin the report of a rebalance; it overtakes an unfinished one."""
    if group.rebalance is not None:
        end_report(d, group, history.OVERTAKEN)
    reason = detail[: history.REASON_MAX]
    group.rebalance = RunningRebalance(
        cause, reason, by, group.generation, began_ms=d.now.mono_ms, wall_ms=d.wall_ms
    )
    d.event(
        "group.rebalance_started",
        trigger=cause,
        member="" if by is None else by.member_id,
        detail=reason,
        generation=group.generation,
    )


def end_report(d: Decision, group: Group, outcome: str) -> None:
    """Append the report of the running rebalance to the log."""
    assert group.rebalance is not None
    number = group.last_rebalance() + 1
    rebalance = group.rebalance.report(number, group.generation, outcome, d.now.mono_ms)
    group.rebalance = None
    d.emit(GroupRebalanced(group.group_id, rebalance))
    fields = structs.asdict(rebalance)
    fields["late"] = [structs.asdict(late) for late in rebalance.late]
    d.event("group.rebalanced", **fields)


def _note_topics(core: Core, group: Group) -> None:
    """Store the members' subscriptions, and the registry version that all of them know."""
    group.subscribed = group.topics_wanted()
    registry = core.registry
    version = registry.durable_version
    if version > group.topics_triggered:
        for pattern, known in _patterns(group):
            for name in _matching(registry, pattern):
                made_at = registry.topics[name].version
                is_newer = group.topics_triggered < made_at <= version
                if is_newer and name not in known and _is_seen(core, group, pattern, name):
                    version = made_at - 1
    group.topics_version = version


def rebalance_if_topics_changed(d: Decision, group: Group) -> None:
    """Rebalance a Stable group if a change newer than its assignment concerns it."""
    version = d.core.registry.durable_version
    if version <= group.known_version:
        return
    named: list[str] = []
    is_concerned = False
    for change, is_news in _topic_changes(d.core, group):
        is_concerned = True
        if is_news:
            named.append(change)
        if len(named) > CHANGES_NAMED_MAX:
            break
    if not named:
        group.topics_version = version
        if is_concerned and group.stable is not None:
            # A node that loads a snapshot, where deletions may be missing, couldn't decide this.
            d.emit(group.stable._replace(topics_version=version))
        return
    group.topics_triggered = version
    detail = "; ".join(named[:CHANGES_NAMED_MAX]) + (
        " and more" if len(named) > CHANGES_NAMED_MAX else ""
    )
    start_rebalance(d, group, Trigger.TOPICS_CHANGED, "topics changed", None, detail)


def _topic_changes(core: Core, group: Group) -> Iterator[tuple[str, bool]]:
    """Yield the topic changes that concern *group*, in words, and whether each is news."""
    registry = core.registry
    known_version = group.known_version
    subscribed = group.subscribed or frozenset()
    patterns = {pattern for pattern, _ in _patterns(group)}
    owned: dict[str, list[int]] | None = None  # Computed on demand: most changes concern no group.
    for topic in _candidates(registry, group, patterns, known_version):
        change = registry.change_of(topic, known_version)
        if change is None:
            continue
        is_wanted = topic in subscribed
        if not is_wanted and change.after:
            is_wanted = any(
                registry.is_matched(pattern, topic) and _is_seen(core, group, pattern, topic)
                for pattern in patterns
            )
        if not is_wanted and change.after:
            continue
        owned = _owned_partitions(group) if owned is None else owned
        partitions = owned.get(topic, ())
        is_news = _is_news(registry, change, partitions, known_version, is_wanted=is_wanted)
        if is_news or change.after:
            yield str(change), is_news
    if known_version < registry.last_deletion_version:
        is_news = registry.may_miss_deletions_since(known_version)
        for topic in sorted(subscribed):
            if topic not in registry.topics:
                yield f"topic {topic} is not registered, and topics were deleted", is_news


def _is_news(
    registry: Registry,
    change: TopicChange,
    owned: Collection[int],
    known_version: int,
    *,
    is_wanted: bool,
) -> bool:
    """Return whether a wanted or deleted topic differs from the partitions *owned*."""
    if not change.after:
        return is_wanted or bool(owned)
    owns_all = sum(partition < change.after for partition in owned) == change.after
    return not owns_all or registry.may_be_another(change.topic, known_version)


def _candidates(
    registry: Registry, group: Group, patterns: set[str], known_version: int
) -> Iterable[str]:
    """Return the topics that may be news to *group*, in a reproducible order.

    A loaded group may be thousands of changes behind, and so may all others: then the group's own
    topics are looked up instead of the changes.
    """
    if registry.number_of_changes_since(known_version) <= CHANGES_WALKED:
        return dict.fromkeys(change.topic for change in registry.changes_since(known_version))
    topics = {*(group.subscribed or ()), *_owned_partitions(group)}
    for pattern in patterns:
        topics.update(_matching(registry, pattern))
    return sorted(topics)


def _patterns(group: Group) -> list[tuple[str, frozenset[str]]]:
    """Return the different patterns of the members, each with the topics found for it."""
    found = {
        (member.topic_pattern, member.topics): None
        for member in group.members.values()
        if member.topic_pattern is not None
    }
    return [(pattern, frozenset(topics or ())) for pattern, topics in found]


def _is_seen(core: Core, group: Group, pattern: str, topic: str) -> bool:
    """Return whether any member with *pattern* may see *topic*."""
    sees = core.sees_topic
    return sees is None or any(
        sees(member.principal, member.client_host, topic)
        for member in group.members.values()
        if member.topic_pattern == pattern
    )


def _matching(registry: Registry, pattern: str) -> list[str]:
    try:
        return registry.matching(pattern)
    except InvalidPattern:  # Accepted by another version of RE2, and loaded from the log.
        return []


def _owned_partitions(group: Group) -> dict[str, list[int]]:
    owned: dict[str, list[int]] = {}
    for member in group.members.values():
        for topic, partition in member.owned or ():
            owned.setdefault(topic, []).append(partition)
    return owned
