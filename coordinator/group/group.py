"""One group: what survives a crash, and what does not."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final, Self

from coordinator.group.history import RunningRebalance
from coordinator.group.lag_samples import LagSamples
from coordinator.group.member import Member, PendingId, Timer, TimerKind
from coordinator.group.records import (
    CommittedOffset,
    GroupMetadata,
    MemberMetadata,
    Offsets,
    StoredOffsets,
)
from coordinator.group.states import GroupState, Trigger, next_state
from coordinator.group.totals import Share
from protocol.consumer import Subscription, encode_subscription
from protocol.errors import ErrorCode
from protocol.messages import JoinGroupMember, JoinProtocol, PartitionOffset, Rebalance

# So many members that are gone are remembered with what became of them.
REMOVALS_MAX: Final = 100

_UNKNOWN: Final = ErrorCode.UNKNOWN_MEMBER_ID.value
_FENCED: Final = ErrorCode.FENCED_INSTANCE_ID.value


@dataclass(slots=True, eq=False)
class Group:
    """State of one group. Methods here keep its counters in step and decide nothing."""

    group_id: str
    share: Share  # Of its owner: what the group takes is counted there.
    # Hard: changed by replay alone.
    owner: str | None = None  # None: the anonymous principal.
    offsets: dict[str, StoredOffsets] = field(default_factory=dict)  # By topic, none empty.
    offset_count: int = 0
    generation: int = 0
    stable: GroupMetadata | None = None
    retention_ms: int | None = None  # None: the server's setting; -1: for ever.
    # The last ones, by number % REBALANCES_KEPT.
    rebalances: dict[int, Rebalance] = field(default_factory=dict)
    # Where its last entry ends in the log of its partition; 0: in what was loaded.
    end_offset: int = 0
    # What it takes in the log, and where it ended when that was looked up; see `maintenance`.
    log_bytes: int = 0
    measured_offset: int = -1
    # Soft: lost in a crash, made anew from the hard state by a load.
    state: GroupState = GroupState.EMPTY
    members: dict[str, Member] = field(default_factory=dict)  # In the order in which they joined.
    # The member id that holds each group instance id.
    static: dict[str, str] = field(default_factory=dict)
    pending: dict[str, PendingId] = field(default_factory=dict)
    # What became of members that are gone, in words.
    removals: dict[str, str] = field(default_factory=dict)
    rebalance: RunningRebalance | None = None
    lag_samples: LagSamples | None = None  # None: it was never known.
    pictures: tuple["Picture", ...] = ()  # Of its offsets, while somebody looks at them.
    # What the members of the current generation subscribe to; None if one can't be read.
    subscribed: frozenset[str] | None = frozenset()
    # Versions of the topic registry: up to which the assignment is known to be good, and
    # up to which changes have made this group rebalance.
    topics_version: int = 0
    topics_triggered: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    is_recovering: bool = False  # Loaded at a generation that was told and never assigned.
    is_initial: bool = False  # In the initial rebalance delay.
    member_added: bool = False  # Since the last look at the initial delay.
    initial_delay_ms: int = 0
    initial_remaining_ms: int = 0
    join_timer: Timer = field(init=False)
    sync_timer: Timer = field(init=False)
    # Counters, so that 10,000 members joining cost 10,000 steps and not their square.
    parked_joins: int = 0
    unsynced: int = 0
    answer_bytes: int = 0
    record_bytes: int = 0
    # How many members offer each protocol, and want the topics of each pattern.
    support: dict[str, int] = field(default_factory=dict)
    patterns: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the timers of the barriers."""
        self.join_timer = Timer(TimerKind.JOIN, self.group_id)
        self.sync_timer = Timer(TimerKind.SYNC, self.group_id)

    @property
    def known_version(self) -> int:
        """Up to which version of the topics nothing is news to it."""
        return max(self.topics_version, self.topics_triggered)

    def is_hard(self) -> bool:
        """Say whether the log knows of it: a first member that has not joined is soft."""
        return bool(
            self.generation
            or self.offsets
            or self.rebalances
            or self.stable is not None
            or self.retention_ms is not None
            or self.owner is not None
        )

    def without_soft_state(self) -> "Group":
        """Return what a replay of the log would make of it."""
        return Group(
            self.group_id,
            self.share,
            self.owner,
            self.offsets,
            self.offset_count,
            self.generation,
            self.stable,
            self.retention_ms,
            self.rebalances,
            self.end_offset,
            self.log_bytes,
            self.measured_offset,
        )

    def move(self, trigger: Trigger) -> None:
        """Take the edge of the state table for *trigger*."""
        self.state = next_state(self.state, trigger)

    def add(self, member: Member) -> None:
        """Make *member* part of the group; the first one leads."""
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._count(member, 1)

    def drop(self, member: Member) -> None:
        """Take *member* out; its parked requests must have been answered."""
        del self.members[member.member_id]
        if member.group_instance_id is not None:
            del self.static[member.group_instance_id]
        member.gone = True
        self._count(member, -1)
        if not member.synced and self.state in {GroupState.COMPLETING, GroupState.STABLE}:
            self.unsynced -= 1
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    def replace(self, old: Member, new: Member) -> None:
        """Put *new* where *old* is: the same instance, with its place and what it owns."""
        self._count(old, -1)
        self._count(new, 1)
        in_order = [new if member is old else member for member in self.members.values()]
        self.members = {member.member_id: member for member in in_order}
        assert new.group_instance_id is not None
        self.static[new.group_instance_id] = new.member_id
        if self.leader == old.member_id:
            self.leader = new.member_id
        old.gone = True
        new.synced = old.synced
        new.assignment, new.owned, new.former = old.assignment, old.owned, old.former

    def find(self, member_id: str, instance_id: str | None) -> tuple[Member | None, int]:
        """Return the member with both ids, or why there is none: 25, or 82 if another holds it.

        A static member may leave its instance id out.
        """
        if instance_id is not None:
            holder = self.static.get(instance_id)
            if holder != member_id:
                return None, _UNKNOWN if holder is None else _FENCED
        member = self.members.get(member_id)
        return member, _UNKNOWN if member is None else 0

    def note_removal(self, member_id: str, why: str) -> None:
        """Remember what became of a member, for when it asks."""
        if len(self.removals) >= REMOVALS_MAX:
            del self.removals[next(iter(self.removals))]
        self.removals[member_id] = why

    def update(
        self, member: Member, protocols: tuple[JoinProtocol, ...], topic_pattern: str | None
    ) -> None:
        """Let *member* offer *protocols*, and want the topics that match, from now on."""
        self._count(member, -1)
        member.protocols = protocols
        member.topic_pattern = topic_pattern
        self._count(member, 1)

    def _count(self, member: Member, by: int) -> None:
        self.answer_bytes += by * member.answer_bytes()
        self.record_bytes += by * member.record_bytes()
        for name in dict.fromkeys(protocol.name for protocol in member.protocols):
            _add(self.support, name, by)
        if member.topic_pattern is not None:
            _add(self.patterns, member.topic_pattern, by)

    def supports(
        self, protocol_type: str, protocols: Iterable[JoinProtocol], instead_of: Member | None
    ) -> bool:
        """Say whether a member with these protocols fits the others."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in protocols)
        everyone = len(self.members)
        replaced = {p.name for p in instead_of.protocols} if instead_of is not None else ()
        others = everyone - (instead_of is not None)
        return protocol_type == self.protocol_type and any(
            self.support.get(p.name, 0) - (p.name in replaced) == others for p in protocols
        )

    def vote(self) -> str:
        """Return the protocol that most members prefer among those that all support.

        Each votes for its own first choice among them. A tie goes to the protocol that was
        voted for first, in the order in which the members joined.
        """
        everyone = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(p.name for p in member.protocols if self.support[p.name] == everyone)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def choose_leader(self) -> str:
        """Return who leads the next generation, out of those whose JoinGroup is parked.

        The leader stays if it came back. A drained member leads only if all are drained.
        """
        back = [m for m in self.members.values() if m.join is not None]
        candidates = [m.member_id for m in back if not m.drained]
        candidates = candidates or [m.member_id for m in back]
        return self.leader if self.leader in candidates else candidates[0]

    def shown_members(self) -> tuple[JoinGroupMember, ...]:
        """Return the members that the leader assigns to: all that aren't drained.

        A drained one that says it still has partitions, as cooperative members do, is shown
        with these and no topics: so that nobody else gets them before it has given them up.
        """
        shown = []
        for m in self.members.values():
            metadata = m.metadata_for(self.protocol)
            if m.drained:
                if not m.claimed:
                    continue
                metadata = encode_subscription(Subscription((), None, m.claimed))
            shown.append(JoinGroupMember(m.member_id, m.group_instance_id, metadata))
        return tuple(shown)

    def rebalance_timeout_ms(self) -> int:
        """Return the longest rebalance timeout of the members."""
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def offset_of(self, topic: str, partition: int) -> CommittedOffset | None:
        """Return what is committed for a partition, None if nothing is."""
        stored = self.offsets.get(topic)
        return None if stored is None else stored.get(partition)

    def keep_in_pictures(self, topic: str, partitions: Collection[int]) -> None:
        """Let pictures keep what is committed for *partitions*, which are about to change."""
        for picture in self.pictures:
            picture.keep(topic, partitions)

    def topics_wanted(self) -> frozenset[str] | None:
        """Return the topics that the members subscribe to, None if one of them can't be read."""
        lists = {member.topics for member in self.members.values()}
        if None in lists:
            return None
        return frozenset(topic for topics in lists for topic in topics or ())

    def last_rebalance(self) -> int:
        """Return the number of the last rebalance that ended, 0 for none."""
        return max((r.number for r in self.rebalances.values()), default=0)

    def all_joined(self) -> bool:
        """Say whether every member has a JoinGroup parked and no given-out id is missing."""
        return self.parked_joins == len(self.members) and not self.pending

    def is_unassigned(self) -> bool:
        """Say whether the current generation was told but never assigned."""
        return self.generation > (0 if self.stable is None else self.stable.generation)

    def to_record(self, timestamp_ms: int, assignments: dict[str, bytes]) -> GroupMetadata:
        """Return the record that makes the current generation stable."""
        return GroupMetadata(
            self.group_id,
            self.protocol_type,
            self.generation,
            self.protocol,
            self.leader,
            timestamp_ms,
            tuple(
                MemberMetadata(
                    m.member_id,
                    m.group_instance_id,
                    m.client_id,
                    m.client_host,
                    m.rebalance_timeout_ms,
                    m.session_timeout_ms,
                    m.metadata_for(self.protocol),
                    assignments[m.member_id],
                    m.topic_pattern,
                    m.principal,
                )
                for m in self.members.values()
            ),
            self.topics_version,
        )


class Picture:
    """What a group has committed, as it was when the block began, however long that takes.

    Whatever changes an offset lets pictures keep the old one first. So to begin takes nothing, and
    a change while somebody looks as much again as it is long.
    """

    __slots__ = ("_before", "_group")

    def __init__(self, group: Group | None) -> None:
        self._group = group
        # Of each topic the partitions that have changed, with what was there; None: nothing.
        self._before: dict[str, dict[int, PartitionOffset | None]] = {}

    def __enter__(self) -> Self:
        """Begin."""
        if self._group is not None:
            self._group.pictures += (self,)
        return self

    def __exit__(self, *_: object) -> None:
        """Keep nothing more."""
        if self._group is not None:
            self._group.pictures = tuple(p for p in self._group.pictures if p is not self)

    def keep(self, topic: str, partitions: Iterable[int]) -> None:
        """Keep what there is of *partitions*, which are about to change."""
        now, before = self._now(topic), self._before.setdefault(topic, {})
        for partition in partitions:
            if partition not in before:
                before[partition] = now.get(partition)

    def topics(self) -> Collection[str]:
        """Return those with an offset; only as the block begins."""
        return () if self._group is None else self._group.offsets

    def partitions(self, topic: str) -> tuple[Collection[int], Collection[int]]:
        """Return in two parts those that may have an offset."""
        return self._now(topic), self._before.get(topic, ())

    def get(self, topic: str, partitions: Iterable[int]) -> list[PartitionOffset | None]:
        """Return what was committed for *partitions*; None is nothing."""
        now, before = self._now(topic), self._before.get(topic)
        if before is None:
            return list(map(now.get, partitions))
        return [before[p] if p in before else now.get(p) for p in partitions]

    def _now(self, topic: str) -> Offsets:
        stored = None if self._group is None else self._group.offsets.get(topic)
        return {} if stored is None else stored.offsets


def _add(counts: dict[str, int], name: str, by: int) -> None:
    """Count *name*; what there is none of is not listed."""
    count = counts.get(name, 0) + by
    if count:
        counts[name] = count
    else:
        del counts[name]
