"""A consumer group in memory, for readers that run in one thread, with a mean streak.

A join that has to wait for others raises `CoordinatorUnavailable` instead of blocking; the
member counts as joined and gets its assignment by asking again. Faults are planned with
`FakeGroup.outage` and `FakeGroup.faults`.
"""

from collections.abc import Mapping, Sequence
from enum import Enum, auto

from client.exceptions import (
    CommitRefused,
    CoordinatorUnavailable,
    MemberLost,
    OutcomeUnknown,
    Rebalanced,
)
from client.types import Assignment, OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.types import NO_OFFSET, TopicPartition


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
        self.members: dict[str, FakeSession] = {}
        self.joined: set[str] = set()
        self.owners: dict[TopicPartition, str] = {}
        self.rebalancing = False
        self.drained: set[str] = set()
        self.outage = False
        self.faults: list[Fault] = []
        self.commits: list[dict[TopicPartition, OffsetAndMetadata]] = []
        self._late: list[tuple[FakeSession, str, int, _Request]] = []
        self._ids = 0

    def session(self, client_id: str = "reader") -> "FakeSession":
        """Return a session that joins on its first `assignment`."""
        return FakeSession(self, client_id)

    def offset(self, tp: TopicPartition) -> int | None:
        """Return the committed offset."""
        stored = self.offsets.get(tp)
        return stored.offset if stored else None

    def reset(self, tp: TopicPartition, offset: int, metadata: str = "") -> None:
        """Store an offset past all checks, as an operator's tool would."""
        self.offsets[tp] = OffsetAndMetadata(offset, metadata)

    def evict(self, session: "FakeSession", *, noticed: bool = True) -> None:
        """Remove a member as its session timeout would; its heartbeat may not know yet."""
        if self.members.pop(session.member_id, None) is None:
            return
        session.noticed_loss = noticed
        self.joined.discard(session.member_id)
        self._start_rebalance()

    def drain(self, client_id: str) -> bool:
        """Take everything from the members of this client id; say whether they own nothing."""
        ids = {m for m, s in self.members.items() if s.client_id == client_id}
        if not ids <= self.drained:
            self.drained |= ids
            self._start_rebalance()
        return not self.rebalancing and not ids & set(self.owners.values())

    def deliver_late(self) -> None:
        """Let the late copies of commits arrive, fenced as they deserve."""
        late, self._late = self._late, []
        for session, member_id, generation, request in late:
            if member_id in self.members and generation == self.generation:
                self.apply(session, request)

    def join(self, session: "FakeSession") -> Assignment:
        """Answer a JoinGroup and SyncGroup, or say that others are still missing."""
        if self.outage:
            raise CoordinatorUnavailable("outage")
        if session.member_id not in self.members:
            self._ids += 1
            session.member_id = f"{session.client_id}-{self._ids:04d}"
            session.generation = -1
            session.noticed_loss = False
            self.members[session.member_id] = session
            self._start_rebalance()
        if self.rebalancing:
            self.joined.add(session.member_id)
            self._complete_if_all_joined()
        elif session.generation != self.generation and session.member_id not in self.joined:
            self._start_rebalance()
            return self.join(session)
        if self.rebalancing:
            raise CoordinatorUnavailable("the others have not rejoined yet")
        session.generation = self.generation
        owned = tuple(tp for tp in self.partitions if self.owners.get(tp) == session.member_id)
        return Assignment(
            self.generation, session.member_id, owned, session.member_id == min(self.members)
        )

    def commit(self, session: "FakeSession", request: "_Request") -> None:
        """Answer an OffsetCommit."""
        if self.outage:
            raise CoordinatorUnavailable("outage")
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
            raise Rebalanced("ILLEGAL_GENERATION")
        errors = self.apply(session, request)
        if fault is Fault.ANSWER_LOST:
            raise OutcomeUnknown("answer lost")
        if errors:
            raise CommitRefused(errors)

    def apply(self, session: "FakeSession", request: "_Request") -> dict[TopicPartition, ErrorCode]:
        """Store what may be stored; return the rest."""
        offsets, expected = request
        errors = {}
        stored = {}
        for tp, value in offsets.items():
            current = self.offset(tp)
            if self.owners.get(tp) != session.member_id:
                errors[tp] = ErrorCode.NOT_PARTITION_OWNER
            elif expected[tp] != (NO_OFFSET if current is None else current):
                errors[tp] = ErrorCode.OFFSET_CONFLICT
            else:
                stored[tp] = self.offsets[tp] = value
        if stored:
            self.commits.append(stored)
        return errors

    def _start_rebalance(self) -> None:
        if not self.rebalancing:
            self.rebalancing = True
            self.joined = set()
        self._complete_if_all_joined()

    def _complete_if_all_joined(self) -> None:
        if not self.members:
            self.rebalancing = False
            self.owners = {}
            return
        if self.joined >= set(self.members):
            self.generation += 1
            self.rebalancing = False
            able = sorted(set(self.members) - self.drained)
            self.owners = {
                tp: able[i * len(able) // len(self.partitions)]
                for i, tp in enumerate(self.partitions)
                if able
            }


_Request = tuple[Mapping[TopicPartition, OffsetAndMetadata], Mapping[TopicPartition, int]]


class FakeSession:
    """One member, as the reader core sees it."""

    def __init__(self, group: FakeGroup, client_id: str) -> None:
        self.group = group
        self.client_id = client_id
        self.member_id = ""
        self.generation = -1
        self.noticed_loss = False
        self.requests: list[_Request] = []
        self.rejoins: list[str] = []
        self.left = False

    @property
    def rebalance_needed(self) -> bool:
        """As the last heartbeat said; in an outage there is none."""
        group = self.group
        if group.outage:
            return False
        return self.lost or group.rebalancing or self.generation != group.generation

    @property
    def lost(self) -> bool:
        """Whether a heartbeat was answered with UNKNOWN_MEMBER_ID."""
        return self.noticed_loss

    def assignment(self, timeout_s: float | None = None) -> Assignment:
        """Join or rejoin."""
        return self.group.join(self)

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
        return {tp: self.group.offsets[tp] for tp in partitions if tp in self.group.offsets}

    def request_rejoin(self, reason: str) -> None:
        """Start a rebalance."""
        self.rejoins.append(reason)
        if self.member_id in self.group.members:
            self.group._start_rebalance()

    def leave(self) -> None:
        """Leave at once."""
        self.left = True
        self.group.evict(self)
