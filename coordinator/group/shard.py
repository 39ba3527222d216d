"""All groups of one offsets partition: `handle` decides requests, `replay` changes hard state."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from coordinator.group import admin, commits, facts, lag, membership
from coordinator.group.core import (
    Caller,
    Core,
    Decision,
    GroupConfig,
    HardGroup,
    Now,
    Outcome,
)
from coordinator.group.group import Group
from coordinator.group.maintenance import Sweeper
from coordinator.group.member import Member, Timer, TimerKind, Watched, read_assignment
from coordinator.group.rebalance import (
    begin_report,
    join_timer_fired,
    start_rebalance,
    sync_timer_fired,
)
from coordinator.group.records import GroupMetadata, MemberMetadata
from coordinator.group.registry import Registry
from coordinator.group.scans import Scans
from coordinator.group.states import Trigger
from protocol.errors import ErrorCode
from protocol.messages import (
    AlterGroupRetentionRequest,
    AlterOffsetsRequest,
    DescribedGroup,
    DescribeRebalancesRequest,
    DescribeRebalancesResponse,
    DrainMemberRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinProtocol,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    Request,
    SyncGroupRequest,
    join_error,
    sync_error,
)

# Maximum number of deadlines handled at once, so that a thousand sessions ending together don't
# block other requests.
EXPIRE_SLICE = 256

# Milliseconds in the reply gate that count as no wait: the session keeps the deadline set by the
# decision. (A SyncGroup answered at once in a stable group does not refresh the session.)
GATE_SLACK_MS = 20

# Number of members that get their soft state in one slice of a load.
SLICE_MEMBERS: Final = 500
# Cost of a group without its members, in members.
_GROUP_ROOM: Final = 0.1
# Number of groups and members unloaded in one slice of `rest`: about a millisecond.
_SLICE_RESTS: Final = 100

_HANDLERS: Final[Mapping[type, Callable[[Core, Any, object, Caller, Now], Outcome]]] = {
    JoinGroupRequest: membership.join,
    OffsetCommitRequest: commits.commit,
    HeartbeatRequest: membership.heartbeat,
    SyncGroupRequest: membership.sync,
    LeaveGroupRequest: membership.leave,
    DrainMemberRequest: admin.drain,
    OffsetDeleteRequest: admin.delete_offsets,
    AlterGroupRetentionRequest: admin.alter_retention,
    AlterOffsetsRequest: admin.alter_offsets,
}


class GroupShard:
    """The groups of one offsets partition, as a pure function of requests, records and time.

    The order of calls: `replay` every record of the log, `loaded` once, then `handle` and `expire`.
    The records of an `Outcome` are replayed already; they must be appended as one batch, and its
    gated replies wait for that batch.

    Attributes:
        totals: Usage of the groups of all shards of the node.
        scan: See `Scans.page`; the offsets may not be durable yet.
        kept: See `Core.kept`; to be called after records were appended.
        end_offset: See `Core.end_offset`.
        fetch_offsets: See `commits.fetch`; likewise ``fetch_in_slices``.
        list_groups: See `admin.list_groups`.
        describe_lag: See `lag.describe_lag`.
        summaries: See `lag.Summaries.after`.
        sample_lags: See `lag.sample_lags`.
        facts: See `facts`; likewise ``facts_of``, ``topic_facts``, ``partition_facts``,
            ``member_facts``, ``running``, ``curve`` and ``group_curve``.
    """

    def __init__(
        self,
        *,
        config: GroupConfig,
        new_uuid: Callable[[], str],
        registry: Registry | None = None,
    ) -> None:
        """Create a shard without groups; *registry* is only read, and by default empty."""
        self._core = core = Core(config, new_uuid, registry or Registry())
        self._sweeper = Sweeper(core)
        self._scans = Scans(core)
        self._summaries = lag.Summaries(core)
        # Applies one record of the log; must not be called after `loaded`.
        self.replay = core.replay
        self.totals = core.totals
        self.kept = core.kept
        self.scan = self._scans.page
        self.end_offset = core.end_offset
        self.fetch_offsets = partial(commits.fetch, core)
        self.fetch_in_slices = partial(commits.fetch_in_slices, core)
        self.list_groups = partial(admin.list_groups, core)
        self.describe_lag = partial(lag.describe_lag, core)
        self.summaries = self._summaries.after
        self.sample_lags = partial(lag.sample_lags, core)
        self.facts = partial(facts.facts, core)
        self.facts_of = partial(facts.facts_of, core)
        self.topic_facts = partial(facts.topic_facts, core)
        self.partition_facts = partial(facts.partition_facts, core)
        self.member_facts = partial(facts.member_facts, core)
        self.running = partial(facts.running, core)
        self.curve = partial(facts.curve, core)
        self.group_curve = partial(facts.group_curve, core)

    @property
    def storage_full(self) -> bool:
        """Whether new offsets and new members are refused with STORAGE_FULL."""
        return self._core.storage_full

    @storage_full.setter
    def storage_full(self, value: bool) -> None:
        self._core.storage_full = value

    @property
    def has_parked(self) -> bool:
        """Whether a JoinGroup or a SyncGroup is parked."""
        return bool(self._core.parked)

    def hide_topics(self, sees_topic: Callable[[str | None, str, str], bool]) -> None:
        """Limit the matches of patterns by *sees_topic*, called with principal, host and topic."""
        self._core.sees_topic = sees_topic

    @property
    def storage_exhausted(self) -> bool:
        """Whether generations and assignments are refused, too."""
        return self._core.storage_exhausted

    @storage_exhausted.setter
    def storage_exhausted(self, value: bool) -> None:
        self._core.storage_exhausted = value

    def handle(self, request: Request, token: object, caller: Caller, now: Now) -> Outcome:
        """Decide one request about one group.

        The reply with *token* is in this outcome, or in a later one if the request is parked; there
        is exactly one, unless the request is withdrawn. *token* must be hashable and unique.

        Raises:
            KeyError: The request is none of JoinGroup, SyncGroup, Heartbeat, LeaveGroup,
                OffsetCommit, DrainMember, OffsetDelete, AlterGroupRetention and AlterOffsets.
        """
        core = self._core
        core.latest = None
        return _HANDLERS[type(request)](core, request, token, caller, now)

    def interrupted(self) -> Outcome | None:
        """Return the outcome of a `handle` or `delete_group` that raised, None if it had not begun.

        Its records are replayed already: they must be logged, otherwise memory is ahead of the log.
        """
        return self._core.latest

    def describe_group(self, group_id: str) -> DescribedGroup:
        """Return one group with its members; error 69 and state Dead if unknown."""
        return admin.describe(self._core, group_id)

    def describe_rebalances(self, request: DescribeRebalancesRequest) -> DescribeRebalancesResponse:
        """Return the rebalances of one group, newest first; error 69 if unknown."""
        return admin.describe_rebalances(self._core, request)

    def delete_group(self, group_id: str, now: Now) -> tuple[Outcome, int]:
        """Delete a group without members; return the outcome and error 0, 68 or 69."""
        self._core.latest = None
        return admin.delete(self._core, group_id, now)

    def caught_up(self) -> None:
        """Do nothing: groups that another node serves are not read here."""

    def begin_replay(self, now: Now) -> None:
        """Do nothing: the replayed records contain their times."""

    def loaded(self, now: Now) -> list[Outcome]:
        """Start to serve the replayed state; return outcomes to append.

        Afterwards call `topics_changed` for changes that the groups may have missed.
        """
        return [outcome for slice_ in self.finish_load(lambda: now) for outcome in slice_]

    def finish_load(self, now: Callable[[], Now]) -> Iterator[list[Outcome]]:
        """Call `loaded` in slices; until the last one is taken, no other method may be called."""
        self._sweeper.start(now())
        yield from load(self._core, now)

    def unload(self, now: Now) -> list[Outcome]:
        """Stop serving: answer parked requests with 16, and remove all state."""
        self._stop()
        return unload(self._core, now)

    def rest(self, now: Callable[[], Now]) -> Iterator[list[Outcome]]:
        """Stop serving: answer parked requests with 16, and keep only hard state.

        In slices; until the last one is taken, only `unload` may be called. `replay` and
        `finish_load` may follow, as if the log had been replayed up to here.
        """
        self._stop()
        yield from rest(self._core, now)

    def _stop(self) -> None:
        self._sweeper.stop()
        self._scans.stop()
        self._summaries.stop()

    def topics_changed(self, deleted: Iterable[str], now: Now) -> None:
        """Note that the registry has changed; *deleted* names the deleted topics.

        `expire` brings the changes to the groups, one slice at a time.
        """
        self._sweeper.topics_changed(deleted, now)

    def take_purged(self) -> list[str]:
        """Return and remove the deleted topics whose offsets `expire` has removed, each once."""
        return self._sweeper.take_purged()

    @property
    def groups(self) -> Mapping[str, Group]:
        """The groups by id; read-only."""
        return self._core.groups

    def offset_count(self) -> int:
        """Return the number of committed offsets, summed over all groups."""
        return sum(group.offset_count for group in self._core.groups.values())

    def hard_state(self) -> dict[str, HardGroup]:
        """Return the hard state by group id."""
        return self._core.hard_state()

    def next_deadline_ms(self) -> int | None:
        """Return the monotonic time of the next work for `expire`, None without any."""
        return self._core.timers.next_deadline_ms()

    def shift_deadlines(self, by_ms: int) -> None:
        """Move all deadlines by *by_ms*: a stall of the process must not expire members."""
        self._core.timers.shift(by_ms)

    def expire(self, now: Now) -> list[Outcome]:
        """Handle expired deadlines, earliest first, at most `EXPIRE_SLICE` of them.

        At most one slice of the work on all groups (expiry, topic changes) is done. While
        `next_deadline_ms` is not after *now*, there is more to do.
        """
        outcomes = []
        sweep_is_due = False
        for _ in range(EXPIRE_SLICE):
            timer = self._core.timers.pop_due(now.mono_ms)
            if timer is None:
                break
            if timer.kind is TimerKind.SWEEP:
                sweep_is_due = True  # Done last, because it makes itself due again.
                continue
            outcome = self._fire(timer, now)
            if outcome:
                outcomes.append(outcome)
        if sweep_is_due:
            outcomes += self._sweeper.slice(now)
        return outcomes

    def _fire(self, timer: Timer, now: Now) -> Outcome:
        d = Decision(self._core, timer.group_id, now)
        group = self._core.groups[timer.group_id]
        # If a reply waits in the reply gate, its release arms the timer again.
        if timer.kind is TimerKind.JOIN:
            join_timer_fired(d, group)
        elif timer.kind is TimerKind.SYNC:
            sync_timer_fired(d, group)
        elif timer.kind is TimerKind.SESSION:
            member = group.members[timer.member_id]
            if not member.in_gate:
                membership.session_fired(d, group, member)
        elif timer.kind is TimerKind.PENDING:
            pending = group.pending[timer.member_id]
            if not pending.in_gate:
                membership.pending_fired(d, group, pending)
        return d.outcome

    def released(self, watched: Watched, now: Now) -> None:
        """Note that a gated reply was released (or given up); call it exactly once for each.

        If the reply had to wait, the member's session restarts: the client could not act before.
        """
        watched.in_gate -= 1
        waited_ms = now.mono_ms - watched.gated_at_ms
        is_armed = watched.timer.deadline_ms is not None
        if watched.gone or (waited_ms <= GATE_SLACK_MS and is_armed):
            return
        if isinstance(watched, Member) and watched.join is not None and watched.is_new:
            return
        self._core.timers.arm(watched.timer, now.mono_ms + watched.session_timeout_ms)

    def withdraw(self, token: object, now: Now) -> Outcome | None:
        """Withdraw a parked request whose client disconnected; None if it isn't parked.

        There is no reply. The member counts as not (re)joined, and its session continues.
        """
        return membership.withdraw(self._core, token, now)


def load(core: Core, now: Callable[[], Now]) -> Iterator[list[Outcome]]:
    """Build the soft state of every replayed group: full sessions, and a rebalance if needed.

    Yields outcomes after each slice.
    """
    outcomes: list[Outcome] = []
    room: float = SLICE_MEMBERS
    for group in list(core.groups.values()):
        stable = group.stable
        if stable is not None:
            group.protocol_type = stable.protocol_type
        if stable is not None and stable.members:
            group.protocol = stable.protocol
            # The group's log may know a registry change that was lost with the end of another log.
            group.topics_version = min(stable.topics_version, core.registry.version)
            for metadata in stable.members:
                now_ms = now().mono_ms
                member = _load_member(core, group, metadata, now_ms)
                group.add(member)
                core.count_member(member, 1)
                core.restart_session(member, now_ms)
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
        # A new generation was announced, or may have been, and never assigned.
        group.is_recovering = True
        # The protocol of that generation is not in the log. With None, a SyncGroup of it may name
        # another protocol than that of the last stable generation.
        group.protocol = None
        group.move(Trigger.LOADED_UNASSIGNED)
        core.timers.arm(group.join_timer, now.mono_ms + group.rebalance_timeout_ms())
        detail = f"restarted at generation {group.generation}, which was told but never assigned"
        begin_report(d, group, "generation was never assigned", detail, None)
    else:
        group.move(Trigger.LOADED_STABLE)
        size, limit = len(group.members), core.config.group_max_size
        if size > limit:
            detail = f"loaded with {size} members, group.max.size is {limit}"
            start_rebalance(d, group, Trigger.TOO_MANY, "too many members", None, detail)
    return d.outcome


def _load_member(core: Core, group: Group, metadata: MemberMetadata, now_ms: int) -> Member:
    rebalance_timeout_ms = metadata.rebalance_timeout_ms
    member = Member(
        metadata.member_id,
        metadata.session_timeout_ms,
        Timer(TimerKind.SESSION, group.group_id, metadata.member_id),
        metadata.client_id,
        metadata.client_host,
        group_instance_id=metadata.group_instance_id,
        # -1 is Kafka's value for "the same as the session timeout".
        rebalance_timeout_ms=metadata.session_timeout_ms
        if rebalance_timeout_ms < 0
        else core.rebalance_timeout_ms(rebalance_timeout_ms),
        protocols=(JoinProtocol(group.protocol or "", metadata.subscription),),
        heard_ms=now_ms,
        principal=metadata.principal,
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
    """Unload all groups: answer parked requests with 16."""
    outcomes = [_let_go(core, group, now) for group in core.groups.values()]
    core.reset()
    return list(filter(None, outcomes))


def rest(core: Core, now: Callable[[], Now]) -> Iterator[list[Outcome]]:
    """Unload all groups and keep their hard state; yields outcomes after each slice."""
    outcomes: list[Outcome] = []
    room = _SLICE_RESTS
    # Ids, not groups: a list of groups would keep all of them in memory until the end.
    for group_id in list(core.groups):
        group = core.groups[group_id]
        outcome = _let_go(core, group, now())
        if outcome:
            outcomes.append(outcome)
        room -= 1 + len(group.members)
        core.keep_hard(group)
        if room <= 0:
            yield outcomes
            outcomes, room = [], _SLICE_RESTS
    core.stop()
    yield outcomes


def _let_go(core: Core, group: Group, now: Now) -> Outcome:
    """Answer the parked requests of *group* with 16 and mark its members as gone."""
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
    return d.outcome
