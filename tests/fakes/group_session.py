"""A consumer group in memory, for readers that run in one thread, with a mean streak.

A join that has to wait for others raises `CoordinatorUnavailable` instead of blocking, unless the
member is cooperative and has partitions: that goes on with them. The member counts as joined
and gets its assignment by asking again. Faults are planned with `FakeGroup.outage` and
`FakeGroup.faults`.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto

from client.assignors import CooperativeStickyAssignor, MemberSubscription
from client.exceptions import (
    CommitRefused,
    CoordinatorUnavailable,
    FatalError,
    MemberLost,
    OutcomeUnknown,
    Rebalanced,
)
from client.membership import Assignment
from client.offsets import OffsetAndMetadata
from client.spark.source.group_memory import farther
from protocol.errors import ErrorCode
from protocol.partition import NO_OFFSET, TopicPartition


class Fault(Enum):
    """What happens to one commit."""

    ANSWER_LOST = auto()  # Stored, but nobody hears of it.
    REQUEST_LOST = auto()  # Not stored, and nobody hears of it.
    REQUEST_LATE = auto()  # Not stored now; a copy arrives when `deliver_late` is called.


class FakeGroup:
    """The coordinator's side of one group."""

    def __init__(self, partitions: Sequence[TopicPartition]) -> None:
        self.partitions = list(partitions)
        self.offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        self.generation = 0
        self.leader = ""
        self.members: dict[str, FakeSession] = {}
        self.instances: dict[str, str] = {}
        self.joined: set[str] = set()
        self.owners: dict[TopicPartition, str] = {}
        self.former: dict[TopicPartition, str] = {}
        self.rebalancing = self.is_unassigned = False
        self.drained: set[str] = set()
        self.outage = False
        self.faults: list[Fault] = []
        self.commits: list[dict[TopicPartition, OffsetAndMetadata]] = []
        self.cluster_id = "cluster-1"
        self.places: dict[TopicPartition, OffsetAndMetadata] = {}
        self._claims: dict[str, MemberSubscription] = {}
        self._late: list[tuple[FakeSession, str, int, _Request]] = []
        self._ids = 0

    def session(
        self, client_id: str = "reader", *, cooperative: bool = False, instance: str | None = None
    ) -> "FakeSession":
        """Return a session that joins on its first `assignment`."""
        return FakeSession(self, client_id, cooperative=cooperative, instance=instance)

    def offset(self, tp: TopicPartition) -> int | None:
        """Return the committed offset."""
        stored = self.offsets.get(tp)
        return stored.offset if stored else None

    def reset(self, tp: TopicPartition, offset: int, metadata: str = "") -> None:
        """Store an offset past all checks, as an operator's tool would."""
        self.offsets[tp] = OffsetAndMetadata(offset, metadata)

    def lose(self, *, cluster_id: str | None = None) -> None:
        """Forget everything, as when the coordinator's folder is gone or the group deleted."""
        members = list(self.members.values())
        self.cluster_id = cluster_id or self.cluster_id
        if cluster_id:
            self.places = {}
        self.offsets, self.owners, self.former = {}, {}, {}
        self.members, self.instances, self._claims = {}, {}, {}
        self.joined, self.drained, self._late = set(), set(), []
        self.generation, self.rebalancing = 0, False
        for session in members:
            session.noticed_loss = True

    def restart_between_rounds(self) -> None:
        """Die after a generation was told and before it was assigned, and come back.

        Commits are refused until the next generation is assigned.
        """
        self.generation += 1
        self.is_unassigned = self.rebalancing = True
        self.joined = set()
        for session in self.members.values():
            session.generation = self.generation

    def evict(self, session: "FakeSession", *, noticed: bool = True) -> None:
        """Remove a member as its session timeout would; its heartbeat may not know yet."""
        if self.members.pop(session.member_id, None) is None:
            return
        session.noticed_loss = noticed
        self._forget(session)
        self.start_rebalance()

    def go_on_without(self, session: "FakeSession") -> None:
        """End a rebalance that waits for this member; a static one keeps its place, not more."""
        waited_for = set(self.members) - self.joined
        if not self.rebalancing or session.member_id not in waited_for:
            return
        if session.instance is None:
            self.evict(session, noticed=False)
        elif waited_for == {session.member_id}:
            self._open_generation()

    def drain(self, client_id: str) -> bool:
        """Take everything from the members of this client id; say whether they own nothing."""
        ids = {m for m, s in self.members.items() if s.client_id == client_id}
        if not ids <= self.drained:
            self.drained |= ids
            self.start_rebalance()
        has_claims = any(self._claims[m].owned for m in ids)
        return not (self.rebalancing or has_claims or ids & set(self.owners.values()))

    def deliver_late(self) -> None:
        """Let the late copies of commits arrive, fenced as they deserve."""
        late, self._late = self._late, []
        for session, member_id, generation, request in late:
            if member_id in self.members and generation == self.generation:
                self.apply(session, request)

    def join(self, session: "FakeSession") -> None:
        """Take a JoinGroup; the session hears of the assignment when everybody has joined.

        Raises CoordinatorUnavailable in an outage.
        """
        if self.outage:
            raise CoordinatorUnavailable("outage")
        before = self._claims.get(session.member_id)
        if session.member_id not in self.members:
            if self._take_over(session):
                return
        elif not self.rebalancing and not session.asked and before == session.claim():
            session.receive(self.generation, self._of(session.member_id))
            return
        session.asked = False
        self._claims[session.member_id] = session.claim()
        if not self.rebalancing:
            self.start_rebalance()
        self.joined.add(session.member_id)
        self._complete_if_all_joined()

    def commit(self, session: "FakeSession", request: "_Request") -> None:
        """Answer an OffsetCommit."""
        if self.outage:
            raise CoordinatorUnavailable("outage")
        session.check_fenced()
        fault = self.faults.pop(0) if self.faults else None
        if fault is Fault.REQUEST_LOST:
            raise OutcomeUnknown("request lost")
        if fault is Fault.REQUEST_LATE:
            self._late.append((session, session.member_id, session.generation, request))
            raise OutcomeUnknown("request late")
        if session.member_id not in self.members:
            session.noticed_loss = True
            raise MemberLost("UNKNOWN_MEMBER_ID")
        if session.generation != self.generation:
            session.noticed_loss = True
            raise Rebalanced("ILLEGAL_GENERATION")
        if self.is_unassigned:
            session.asked = True
            raise Rebalanced("REBALANCE_IN_PROGRESS")
        errors = self.apply(session, request)
        if fault is Fault.ANSWER_LOST:
            raise OutcomeUnknown("answer lost")
        if errors:
            raise CommitRefused(errors)

    def apply(self, session: "FakeSession", request: "_Request") -> dict[TopicPartition, ErrorCode]:
        """Store what may be stored; return the rest."""
        offsets, expected = request
        errors, stored = {}, {}
        for tp, value in offsets.items():
            current = self.offset(tp)
            if session.member_id not in (self.owners.get(tp), self.former.get(tp)):
                errors[tp] = ErrorCode.NOT_PARTITION_OWNER
            elif expected[tp] != (NO_OFFSET if current is None else current):
                errors[tp] = ErrorCode.OFFSET_CONFLICT
            else:
                stored[tp] = self.offsets[tp] = value
        if stored:
            self.commits.append(stored)
        return errors

    def _take_over(self, session: "FakeSession") -> bool:
        """Let a member in; return whether it has the place of a static one, in a stable group."""
        self._ids += 1
        session.member_id = f"{session.client_id}-{self._ids:04d}"
        session.generation = -1
        session.noticed_loss = session.asked = False
        old_id = self.instances.get(session.instance or "")
        self.members[session.member_id] = session
        if session.instance is not None:
            self.instances[session.instance] = session.member_id
        if old_id is None:
            return False
        old = self.members.pop(old_id)
        old.fenced = True
        self.leader = session.member_id if self.leader == old_id else self.leader
        self._claims[session.member_id] = session.claim()
        new_id = session.member_id
        self.owners = {tp: new_id if o == old_id else o for tp, o in self.owners.items()}
        self.former = {tp: new_id if o == old_id else o for tp, o in self.former.items()}
        was_drained = old_id in self.drained
        self._forget(old)
        if self.rebalancing or was_drained:
            return False
        session.receive(self.generation, self._of(session.member_id))
        return True

    def _forget(self, session: "FakeSession") -> None:
        self.joined.discard(session.member_id)
        self.drained.discard(session.member_id)
        self._claims.pop(session.member_id, None)
        if self.instances.get(session.instance or "") == session.member_id:
            del self.instances[session.instance or ""]

    def _of(self, member_id: str) -> tuple[TopicPartition, ...]:
        return tuple(sorted(tp for tp, one in self.owners.items() if one == member_id))

    def start_rebalance(self) -> None:
        """Ask all members to join again."""
        if not self.rebalancing:
            self.rebalancing = True
            self.joined = set()
        self._complete_if_all_joined()

    def _complete_if_all_joined(self) -> None:
        if not self.members:
            self.rebalancing = self.is_unassigned = False
            self.owners, self.former = {}, {}
        elif self.joined >= set(self.members):
            self._open_generation()

    def _open_generation(self) -> None:
        self.generation += 1
        self.rebalancing = self.is_unassigned = False
        had, self.leader = self.owners, min(self.members)
        self.members[self.leader].listed = self._listing()
        is_cooperative = any(session.cooperative for session in self.members.values())
        self.owners = self._stick() if is_cooperative else self._in_a_row()
        self.former = {
            tp: one for tp, one in had.items() if tp not in self.owners and one in self.members
        }
        for member_id in self.joined:
            self.members[member_id].receive(self.generation, self._of(member_id))
        self.joined = set()

    def _listing(self) -> dict[str, list[int]]:
        listing: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            listing.setdefault(topic, []).append(partition)
        return listing

    def _in_a_row(self) -> dict[TopicPartition, str]:
        able = sorted(set(self.members) - self.drained)
        return {
            tp: able[i * len(able) // len(self.partitions)]
            for i, tp in enumerate(self.partitions)
            if able
        }

    def _stick(self) -> dict[TopicPartition, str]:
        """Share as the leader of a cooperative group does."""
        partitions, shown = self._listing(), []
        for member_id, session in self.members.items():
            topics = () if member_id in self.drained else session.topics or tuple(partitions)
            shown.append(self._claims[member_id]._replace(member_id=member_id, topics=topics))
        given = CooperativeStickyAssignor().assign(shown, partitions)
        return {tp: member_id for member_id, tps in given.items() for tp in tps}


_Request = tuple[Mapping[TopicPartition, OffsetAndMetadata], Mapping[TopicPartition, int]]


class FakeSession:
    """One member, as the reader core sees it.

    A swift one's loss that it didn't know of, and the join after it, take no time at all; of a
    deaf one no heartbeat was answered lately.
    """

    def __init__(
        self, group: FakeGroup, client_id: str, *, cooperative: bool, instance: str | None
    ) -> None:
        self.group = group
        self.client_id = client_id
        self.cooperative = cooperative
        self.instance = instance
        self.topics: tuple[str, ...] = ()
        self.member_id = ""
        self.generation = -1
        self.noticed_loss = self.fenced = self.asked = False
        self.swift = self.deaf = False
        self.losses = 0
        self.listed: dict[str, list[int]] = {}
        self.requests: list[_Request] = []
        self.fetched: list[list[TopicPartition]] = []
        self.rejoins: list[str] = []
        self.left = False
        self.departed: list[str] = []
        self.noted_topics: dict[str, list[int]] = {}
        self.noted_ends: dict[TopicPartition, int] = {}
        self._owned: tuple[TopicPartition, ...] = ()
        self._owned_in = -1
        self._next: Assignment | None = None
        self._current: Assignment | None = None

    @property
    def rebalance_needed(self) -> bool:
        """As the last heartbeat said; in an outage there is none."""
        group = self.group
        if self.asked or self._next is not None or self.lost:
            return True
        if group.outage or self.deaf:
            return False
        left_out = group.rebalancing and self.member_id not in group.joined
        return left_out or self.generation != group.generation

    @property
    def lost(self) -> bool:
        """Whether a heartbeat was answered with UNKNOWN_MEMBER_ID."""
        return self.noticed_loss or self.fenced

    def others_read(self, before: str) -> bool:
        """As a description of the group says."""
        group = self.group
        if group.outage:
            raise CoordinatorUnavailable("outage")
        ours = {m for m, session in group.members.items() if session.client_id == before}
        return self.instance not in group.instances and not ours >= set(group.owners.values())

    def claim(self) -> MemberSubscription:
        """Return what its JoinGroup says."""
        owned = self._owned if self.cooperative else ()
        return MemberSubscription(
            self.member_id, self.instance, self.topics, owned, self._owned_in if owned else -1
        )

    def receive(self, generation: int, partitions: tuple[TopicPartition, ...]) -> None:
        """Take an assignment, in the background."""
        is_leader = self.member_id == self.group.leader
        self.generation = generation
        self._next = Assignment(generation, self.member_id, partitions, is_leader)

    def check_fenced(self) -> None:
        """Refuse everything once another process has this static member's place."""
        if self.fenced:
            raise FatalError("another has it", code=ErrorCode.FENCED_INSTANCE_ID)

    def assignment(self, timeout_s: float | None = None) -> Assignment:
        """Join or rejoin."""
        self.check_fenced()
        while True:
            if self.noticed_loss:
                self._lose()
            is_new = self._take_news()
            if self._current is not None and (
                (is_new and not self.cooperative) or not self.rebalance_needed
            ):
                return self._current
            if self._is_gone() and self.cooperative and self._owned and not self.swift:
                self.noticed_loss = True  # The join's answer says so, a little later.
                assert self._current is not None
                return self._current
            if self._is_gone():
                self._lose()
            if not self.cooperative:
                self._owned, self._current = (), None
            if self.member_id not in self.group.joined:
                self.group.join(self)
            if self.cooperative and self._owned:
                assert self._current is not None
                return self._current
            if self._next is None:
                raise CoordinatorUnavailable("the others have not rejoined yet")

    def _take_news(self) -> bool:
        if self._next is None:
            return False
        self._current, self._next = self._next, None
        if set(self._owned) - set(self._current.partitions):
            self.asked = True  # To let others have what goes.
        self._owned_in, _, self._owned, _ = self._current
        return True

    def _is_gone(self) -> bool:
        is_behind = self.generation not in (-1, self.group.generation)
        return is_behind or self.member_id not in self.group.members

    def _lose(self) -> None:
        self.losses += bool(self._owned)
        self._owned, self._current, self._next = (), None, None
        self.noticed_loss = False

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        expected: Mapping[TopicPartition, int],
    ) -> None:
        """Send a commit."""
        request = (dict(offsets), dict(expected))
        self.requests.append(request)
        self.group.commit(self, request)

    def fetch(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what is stored."""
        if self.group.outage:
            raise CoordinatorUnavailable("outage")
        self.fetched.append(list(partitions))
        return {tp: self.group.offsets[tp] for tp in partitions if tp in self.group.offsets}

    def request_rejoin(self, reason: str, topics: Sequence[str] | None = None) -> None:
        """Start a rebalance with the next `assignment`."""
        self.rejoins.append(reason)
        self.asked = True
        if topics is not None:
            self.topics = tuple(topics)

    def unassigned(self, listing: Mapping[str, Sequence[int]]) -> bool:
        """Look at what everybody has."""
        listed = {TopicPartition(topic, p) for topic, ps in listing.items() for p in ps}
        return not listed <= self.group.owners.keys()

    def note_topics(self, partitions: Mapping[str, Sequence[int]]) -> None:
        """Remember what the registry would be told."""
        self.noted_topics = {topic: list(listed) for topic, listed in partitions.items()}

    def note_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Remember what the coordinator would be told."""
        self.noted_ends = dict(ends)

    def depart(self, reason: str) -> None:
        """Leave at once, until the next `assignment`; a static member stops its heartbeats."""
        self.departed.append(reason)
        self.noticed_loss = True
        if self.instance is None:
            self.group.evict(self)

    @property
    def cluster_id(self) -> str:
        """Which cluster the group is in."""
        return self.group.cluster_id

    def write_places(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Write down where the group was, for the other readers."""
        if self.group.outage:
            raise CoordinatorUnavailable("outage")
        self.group.places |= farther(offsets, self.group.places)

    def places(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what was written down."""
        if self.group.outage:
            raise CoordinatorUnavailable("outage")
        return {tp: self.group.places[tp] for tp in partitions if tp in self.group.places}

    def leave(self) -> None:
        """Leave at once; a static member keeps its place."""
        self.left = True
        if self.instance is None:
            self.group.evict(self)
