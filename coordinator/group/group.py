"""One group: its hard state, which survives a crash, and its soft state."""

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

# Maximum number of removed members whose removal reason is kept.
REMOVALS_MAX: Final = 100

_UNKNOWN: Final = ErrorCode.UNKNOWN_MEMBER_ID.value
_FENCED: Final = ErrorCode.FENCED_INSTANCE_ID.value


@dataclass(slots=True, eq=False)
class Group:
    """State of one group. Its methods keep counters consistent and decide nothing."""

    group_id: str
    share: Share  # The owner's share, which counts the group's usage.
    # Hard: only replay changes it.
    owner: str | None = None  # None: the anonymous principal.
    offsets: dict[str, StoredOffsets] = field(default_factory=dict)  # By topic, none empty.
    offset_count: int = 0
    generation: int = 0
    stable: GroupMetadata | None = None
    retention_ms: int | None = None  # None: the server's setting; -1: for ever.
    # The latest ones, by number % REBALANCES_KEPT.
    rebalances: dict[int, Rebalance] = field(default_factory=dict)
    # End offset of its latest entry in its partition's log; 0: within the loaded part.
    end_offset: int = 0
    # Measured log usage in bytes, and the end offset at that time; see `maintenance`.
    log_bytes: int = 0
    measured_offset: int = -1
    # Soft: lost in a crash, and rebuilt from the hard state by a load.
    state: GroupState = GroupState.EMPTY
    members: dict[str, Member] = field(default_factory=dict)  # In the order of joining.
    # The member id that holds each group instance id.
    static: dict[str, str] = field(default_factory=dict)
    pending: dict[str, PendingId] = field(default_factory=dict)
    # Why members were removed, in words, by member id.
    removals: dict[str, str] = field(default_factory=dict)
    rebalance: RunningRebalance | None = None
    lag_samples: LagSamples | None = None  # None: no lag was ever known.
    pictures: tuple["Picture", ...] = ()  # Snapshots of its offsets that are being read.
    # Subscribed topics of the current generation; None if a subscription is opaque.
    subscribed: frozenset[str] | None = frozenset()
    # Versions of the topic registry: up to the first one the assignment is known to be valid; up to
    # the second one changes have already triggered a rebalance.
    topics_version: int = 0
    topics_triggered: int = 0
    protocol_type: str = ""
    protocol: str | None = None
    leader: str | None = None
    is_recovering: bool = False  # Loaded at a generation that was announced but never assigned.
    is_initial: bool = False  # In the initial rebalance delay.
    member_added: bool = False  # Since the last check of the initial delay.
    initial_delay_ms: int = 0
    initial_remaining_ms: int = 0
    join_timer: Timer = field(init=False)
    sync_timer: Timer = field(init=False)
    # Counters, so that a join of 10,000 members takes linear time, not quadratic.
    parked_joins: int = 0
    unsynced: int = 0
    answer_bytes: int = 0
    record_bytes: int = 0
    # Number of members that offer each protocol, and that have each pattern.
    support: dict[str, int] = field(default_factory=dict)
    patterns: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Create the timers of the two barriers."""
        self.join_timer = Timer(TimerKind.JOIN, self.group_id)
        self.sync_timer = Timer(TimerKind.SYNC, self.group_id)

    @property
    def known_version(self) -> int:
        """Version of the topics up to which all changes are handled."""
        return max(self.topics_version, self.topics_triggered)

    def is_hard(self) -> bool:
        """Return whether the log has records of it; a group awaiting its first member is soft."""
        return bool(
            self.generation
            or self.offsets
            or self.rebalances
            or self.stable is not None
            or self.retention_ms is not None
            or self.owner is not None
        )

    def without_soft_state(self) -> "Group":
        """Return the group as a replay of the log would restore it."""
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
        self.state = next_state(self.state, trigger)

    def add(self, member: Member) -> None:
        """Add *member*; the first member becomes the leader."""
        self.members[member.member_id] = member
        if member.group_instance_id is not None:
            self.static[member.group_instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id
        self._count(member, 1)

    def drop(self, member: Member) -> None:
        """Remove *member*; its parked requests must have been answered."""
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
        """Replace *old* by *new*: the same instance, which keeps its position and assignment."""
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
        """Return the member with both ids, or an error: 25 if unknown, 82 if another id is current.

        A static member may omit its instance id.
        """
        if instance_id is not None:
            holder = self.static.get(instance_id)
            if holder != member_id:
                return None, _UNKNOWN if holder is None else _FENCED
        member = self.members.get(member_id)
        return member, _UNKNOWN if member is None else 0

    def note_removal(self, member_id: str, why: str) -> None:
        """Store why a member was removed, for the answers to its later requests."""
        if len(self.removals) >= REMOVALS_MAX:
            del self.removals[next(iter(self.removals))]
        self.removals[member_id] = why

    def update(
        self, member: Member, protocols: tuple[JoinProtocol, ...], topic_pattern: str | None
    ) -> None:
        """Replace the protocols and the topic pattern of *member*."""
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
        """Return whether a member with these protocols is compatible with the others."""
        if not self.members:
            return bool(protocol_type) and any(True for _ in protocols)
        everyone = len(self.members)
        replaced = {p.name for p in instead_of.protocols} if instead_of is not None else ()
        others = everyone - (instead_of is not None)
        return protocol_type == self.protocol_type and any(
            self.support.get(p.name, 0) - (p.name in replaced) == others for p in protocols
        )

    def vote(self) -> str:
        """Return the protocol that most members prefer among those supported by all.

        Each member votes for its first choice among them. In a tie, the protocol voted for first
        wins, in the members' order of joining.
        """
        everyone = len(self.members)
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(p.name for p in member.protocols if self.support[p.name] == everyone)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=votes.__getitem__)

    def choose_leader(self) -> str:
        """Return the leader of the next generation, one of the members with a parked JoinGroup.

        The leader stays if it rejoined. A drained member leads only if all are drained.
        """
        back = [m for m in self.members.values() if m.join is not None]
        candidates = [m.member_id for m in back if not m.drained]
        candidates = candidates or [m.member_id for m in back]
        return self.leader if self.leader in candidates else candidates[0]

    def shown_members(self) -> tuple[JoinGroupMember, ...]:
        """Return the members that get assignments from the leader: all except drained ones.

        A drained member that still claims partitions, as cooperative members do, is included with
        these and without topics, so that no other member gets them before it has given them up.
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
        return max((m.rebalance_timeout_ms for m in self.members.values()), default=0)

    def offset_of(self, topic: str, partition: int) -> CommittedOffset | None:
        """Return the commit of a partition, None if there is none."""
        stored = self.offsets.get(topic)
        return None if stored is None else stored.get(partition)

    def keep_in_pictures(self, topic: str, partitions: Collection[int]) -> None:
        """Let snapshots save the commits of *partitions*, which are about to change."""
        for picture in self.pictures:
            picture.keep(topic, partitions)

    def topics_wanted(self) -> frozenset[str] | None:
        """Return the topics that the members subscribe to, None if a subscription is opaque."""
        lists = {member.topics for member in self.members.values()}
        if None in lists:
            return None
        return frozenset(topic for topics in lists for topic in topics or ())

    def last_rebalance(self) -> int:
        """Return the number of the last rebalance that ended, 0 without one."""
        return max((r.number for r in self.rebalances.values()), default=0)

    def all_joined(self) -> bool:
        """Return whether every member has a JoinGroup parked and no given-out id is unused."""
        return self.parked_joins == len(self.members) and not self.pending

    def is_unassigned(self) -> bool:
        """Return whether the current generation was announced but never assigned."""
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
    """A snapshot of a group's commits, taken when the ``with`` block begins.

    Code that changes an offset first lets snapshots save the old one. Beginning a snapshot
    therefore takes no time, and a change during a snapshot takes about twice as long.
    """

    __slots__ = ("_before", "_group")

    def __init__(self, group: Group | None) -> None:
        self._group = group
        # By topic, the changed partitions with their saved commits; None: there was none.
        self._before: dict[str, dict[int, PartitionOffset | None]] = {}

    def __enter__(self) -> Self:
        if self._group is not None:
            self._group.pictures += (self,)
        return self

    def __exit__(self, *_: object) -> None:
        if self._group is not None:
            self._group.pictures = tuple(p for p in self._group.pictures if p is not self)

    def keep(self, topic: str, partitions: Iterable[int]) -> None:
        """Save the commits of *partitions*, which are about to change."""
        now, before = self._now(topic), self._before.setdefault(topic, {})
        for partition in partitions:
            if partition not in before:
                before[partition] = now.get(partition)

    def topics(self) -> Collection[str]:
        """Return the topics with an offset; valid only at the start of the block."""
        return () if self._group is None else self._group.offsets

    def partitions(self, topic: str) -> tuple[Collection[int], Collection[int]]:
        """Return the partitions that may have an offset, in two collections."""
        return self._now(topic), self._before.get(topic, ())

    def get(self, topic: str, partitions: Iterable[int]) -> list[PartitionOffset | None]:
        """Return the commits of *partitions*; None: there was none."""
        now, before = self._now(topic), self._before.get(topic)
        if before is None:
            return list(map(now.get, partitions))
        return [before[p] if p in before else now.get(p) for p in partitions]

    def _now(self, topic: str) -> Offsets:
        stored = None if self._group is None else self._group.offsets.get(topic)
        return {} if stored is None else stored.offsets


def _add(counts: dict[str, int], name: str, by: int) -> None:
    """Add *by* to the count of *name*; zero counts are removed."""
    count = counts.get(name, 0) + by
    if count:
        counts[name] = count
    else:
        del counts[name]
