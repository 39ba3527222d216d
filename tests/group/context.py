"""A test context that speaks the domain: members join, sync, beat, and time passes.

Every record is fed to a second shard as it is emitted, through the log's encoding, and the
hard state of both must be the same after every step. Replies leave the gate at once unless
the test closes it.
"""

import itertools
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from coordinator.group.core import Caller, Event, GroupConfig, Now, Outcome, Reply
from coordinator.group.records import GroupDeleted, OffsetsCommitted, Record, from_entry
from coordinator.group.shard import GroupShard
from protocol.codec import RESPONSE_CODECS
from protocol.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from protocol.messages import (
    ApiKey,
    DescribedGroup,
    DescribeLagResponse,
    DescribeRebalancesRequest,
    DrainMemberRequest,
    DrainMemberResponse,
    GroupFetch,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinProtocol,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    ListedGroup,
    ListGroupsRequest,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetCommitResponse,
    PartitionCommit,
    PartitionOffset,
    Rebalance,
    Request,
    Response,
    SyncGroupRequest,
    SyncGroupResponse,
    TopicCommit,
    TopicPartitions,
    first_error,
)
from protocol.partition import TopicPartition
from tests.packed import ROOM, entry_of, fetched, singles

GROUP = "etl"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000

R = TypeVar("R", bound=Response)
T = TypeVar("T")


def subscription(*topics: str) -> bytes:
    """Return subscription bytes for *topics*."""
    return encode_subscription(Subscription(topics))


def assignment(*partitions: str) -> bytes:
    """Return assignment bytes for partitions written as ``topic-3``."""
    named = (name.rsplit("-", 1) for name in partitions)
    return encode_assignment(Assignment(tuple(TopicPartition(t, int(p)) for t, p in named)))


def roundtrip(record: Record) -> Record:
    """Return *record* as it comes back from the log."""
    return from_entry(*entry_of(record))


def compacted(records: list[Record]) -> list[Record]:
    """Return the last record of each key, without what is older than its scope's tombstone."""
    last: dict[tuple[object, ...], Record] = {}
    for record in singles(records):
        type_, _, scope, key, _ = entry_of(record)
        if isinstance(record, OffsetsCommitted):
            key = (record.topic, *record.offsets)  # As narrow as that of what takes it back.
        if isinstance(record, GroupDeleted):
            last = {where: kept for where, kept in last.items() if where[0] != scope}
        last.pop((scope, type_, key), None)
        last[scope, type_, key] = record
    return list(last.values())


# A new member's first JoinGroup; no test asks for a longer session or rebalance timeout.
LONGEST_DEADLINE_MS = 300_000


def returned(steps: Generator[None, None, T]) -> T:
    """Take all *steps* at once, and return what they return."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


class Context:
    """One shard, one group, a clock, and everything that was answered."""

    def __init__(
        self, config: GroupConfig | None = None, *, records: Sequence[Record] = ()
    ) -> None:
        self.config = config or GroupConfig()
        self.mono_ms = 1_000_000
        self.wall_ms = 1_700_000_000_000
        self._uuids = itertools.count(1)
        self._tokens = itertools.count(1)
        self.gate_open = True
        self.in_gate: list[Reply] = []
        self.records: list[Record] = []
        self.durable = 0  # How many records a crash can't take.
        self.batch_ends: list[int] = []  # Where the log may end after a crash.
        self.group_ends: dict[str, int] = {}  # Where the last batch of each group ends.
        self.delivered: dict[int, Response] = {}  # What clients have really been told.
        self.events: list[Event] = []
        self.answers: dict[int, Response] = {}
        self.withdrawn: set[int] = set()
        self.asked: list[int] = []
        self.requests: dict[int, Request] = {}
        self.shard = self.shadow = self._new_shard()
        self._start(records)

    @property
    def now(self) -> Now:
        """The time."""
        return Now(self.mono_ms, self.wall_ms)

    def _new_shard(self) -> GroupShard:
        return GroupShard(config=self.config, new_uuid=lambda: f"{next(self._uuids):04d}")

    def _start(self, records: Iterable[Record]) -> None:
        self.records = list(records)
        self.batch_ends.clear()
        self.group_ends.clear()
        self.shard, self.shadow = self._new_shard(), self._new_shard()
        for record in self.records:
            self.shard.replay(roundtrip(record))
            self.shadow.replay(roundtrip(record))
        for outcome in self.shard.loaded(self.now):
            self.take(outcome)
        self.check()

    def crash(self, lost_batches: int = 0) -> None:
        """Lose all soft state, and up to so many of the batches that nobody was told of."""
        ends = self.batch_ends
        kept = len(self.records)
        if lost_batches and ends:
            at = max(len(ends) - lost_batches, 0)
            kept = ends[at - 1] if at else self.durable
        self.withdrawn |= self.unanswered()
        self.in_gate.clear()
        self._start(self.records[:kept])
        self.durable = len(self.records)

    def load_again(self) -> None:
        """Unload the shard, and load it from its log, while the process goes on."""
        for outcome in self.shard.unload(self.now):
            self.take(outcome)
        for record in self.records:
            self.shard.replay(roundtrip(record))
        self.group_ends.clear()  # What was loaded is known at once.
        for outcome in self.shard.loaded(self.now):
            self.take(outcome)
        self.check()

    def hand_over_and_back(self) -> None:
        """Rest, as another node leads, and lead again: all that was decided is durable by then."""
        self.open_gate()
        parked = self.unanswered()
        refused: set[object] = set()
        for outcomes in self.shard.rest(lambda: self.now):
            assert not any(outcome.records for outcome in outcomes)
            refused |= {token for outcome in outcomes for token, *_ in outcome.replies}
        assert refused == parked
        self.withdrawn |= parked  # To be told to go elsewhere is as good as a lost connection.
        assert self.shard.next_deadline_ms() is None
        self.check()
        for outcome in self.shard.loaded(self.now):
            self.take(outcome)
        self.check()

    # --- taking what the shard decides ------------------------------------------------------

    def take(self, outcome: Outcome | None) -> None:
        """Keep records, feed the shadow, and let replies out."""
        if outcome is None:
            return
        if outcome.records:
            self.records += outcome.records
            end = len(self.records)
            self.batch_ends.append(end)
            self.group_ends[outcome.group_id] = end
            self.shard.kept(outcome.group_id, end)
        self.events += outcome.events
        for record in outcome.records:
            self.shadow.replay(roundtrip(record))
        for reply in outcome.replies:
            token, response, error, _, _ = reply
            assert isinstance(token, int)
            assert token in self.asked
            assert token not in self.answers
            assert error in {None, first_error(response)}
            self.answers[token] = response
            self.in_gate.append(reply)
        if self.gate_open:
            self.open_gate()

    def open_gate(self) -> None:
        """Let everything in the gate out, now and from now on."""
        self.gate_open = True
        for token, response, _, gated, member in self.in_gate:
            assert isinstance(token, int)
            self.delivered[token] = response
            if gated and member is not None:
                self.shard.released(member, self.now)
        self.in_gate.clear()
        self.batch_ends.clear()
        self.durable = len(self.records)

    def close_gate(self) -> None:
        """The disk is slow: replies stay in the gate."""
        self.gate_open = False

    def check(self) -> None:
        """Memory is the fold of the log, and knows where each group's last batch ends."""
        assert self.shard.hard_state() == self.shadow.hard_state()
        if type(self) is Context:  # Otherwise both shards count in the same place.
            groups = self.shard.groups.values()
            used = self.shard.totals.used
            assert used("groups") == len(groups)
            assert used("offsets") == sum(group.offset_count for group in groups)
            assert used("members") == sum(len(g.members) + len(g.pending) for g in groups)
        for group_id, end in self.group_ends.items():
            found = self.shard.end_offset(group_id)
            assert found == end if group_id in self.shard.groups else found >= end

    def unanswered(self) -> set[int]:
        """Return the tokens that got no answer and weren't withdrawn."""
        return {token for token in self.asked if token not in self.answers} - self.withdrawn

    # --- asking -----------------------------------------------------------------------------

    def send(self, request: Request, client_id: str = "spark", host: str = "10.0.0.1") -> int:
        """Hand in a request; return its token."""
        token = next(self._tokens)
        self.asked.append(token)
        self.requests[token] = request
        self.take(self.shard.handle(request, token, Caller(client_id, host), self.now))
        self.check()
        return token

    def answer(self, token: int, of: type[R]) -> R:
        """Return the answer to *token*, which must be there."""
        response = self.answers[token]
        assert isinstance(response, of)
        return response

    def is_parked(self, token: int) -> bool:
        """Say whether *token* has no answer yet."""
        return token in self.unanswered()

    def advance(self, by_ms: int) -> None:
        """Let time pass, acting on every deadline when it is due."""
        end_ms = self.mono_ms + by_ms
        while (at_ms := self.shard.next_deadline_ms()) is not None and at_ms <= end_ms:
            self._to(max(at_ms, self.mono_ms))
            for outcome in self.shard.expire(self.now):
                self.take(outcome)
            self.check()
        self._to(end_ms)

    def _to(self, mono_ms: int) -> None:
        self.wall_ms += mono_ms - self.mono_ms
        self.mono_ms = mono_ms

    def join(
        self,
        member_id: str = "",
        *,
        protocols: Mapping[str, bytes] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        client_id: str = "spark",
        group: str = GROUP,
        instance_id: str | None = None,
        reason: str | None = None,
        pattern: str | None = None,
        host: str = "10.0.0.1",
    ) -> int:
        """Send a JoinGroup."""
        offered = {"range": subscription("flights")} if protocols is None else protocols
        named = tuple(JoinProtocol(name, metadata) for name, metadata in offered.items())
        return self.send(
            JoinGroupRequest(
                group,
                session_ms,
                rebalance_ms,
                member_id,
                instance_id,
                protocol_type,
                named,
                reason,
                pattern,
            ),
            client_id,
            host,
        )

    def new_id(self, **kwargs: Any) -> str:
        """Ask for a member id."""
        response = self.answer(self.join(**kwargs), JoinGroupResponse)
        assert response.error == 79
        return response.member_id

    def joined(self, token: int) -> JoinGroupResponse:
        """Return the answer to a JoinGroup."""
        return self.answer(token, JoinGroupResponse)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Mapping[str, bytes] | None = None,
        *,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        instance_id: str | None = None,
    ) -> int:
        """Send a SyncGroup."""
        given = tuple(MemberAssignment(m, a) for m, a in (assignments or {}).items())
        return self.send(
            SyncGroupRequest(
                GROUP, generation, member_id, instance_id, protocol_type, protocol_name, given
            )
        )

    def synced(self, token: int) -> SyncGroupResponse:
        """Return the answer to a SyncGroup."""
        return self.answer(token, SyncGroupResponse)

    def beat(
        self,
        member_id: str,
        generation: int,
        group: str = GROUP,
        *,
        instance_id: str | None = None,
    ) -> int:
        """Send a heartbeat; return the error."""
        return self.beaten(member_id, generation, group, instance_id=instance_id).error

    def beaten(
        self,
        member_id: str,
        generation: int,
        group: str = GROUP,
        *,
        instance_id: str | None = None,
    ) -> HeartbeatResponse:
        """Send a heartbeat; return the answer."""
        token = self.send(HeartbeatRequest(group, generation, member_id, instance_id))
        return self.answer(token, HeartbeatResponse)

    def leave(self, *member_ids: str) -> list[int]:
        """Leave; return the error of each member."""
        return [
            left.error for left in self.left(*(LeavingMember(m, None, None) for m in member_ids))
        ]

    def left(self, *leaving: LeavingMember) -> tuple[LeftMember, ...]:
        """Leave, or remove members; return what became of each."""
        response = self.answer(self.send(LeaveGroupRequest(GROUP, leaving)), LeaveGroupResponse)
        assert response.error == 0
        return response.members

    def commit_raw(
        self,
        member_id: str,
        generation: int,
        offsets: Sequence[tuple[str, int, int | None, str | None]],
        group: str = GROUP,
        instance_id: str | None = None,
    ) -> OffsetCommitResponse:
        """Commit (partition as ``topic-3``, offset, expected offset, metadata) each."""
        topics: dict[str, list[PartitionCommit]] = {}
        for name, offset, expected, metadata in offsets:
            topic, partition = name.rsplit("-", 1)
            item = PartitionCommit(int(partition), offset, -1, metadata, expected)
            topics.setdefault(topic, []).append(item)
        named = tuple(TopicCommit(topic, tuple(items)) for topic, items in topics.items())
        token = self.send(OffsetCommitRequest(group, generation, member_id, instance_id, named))
        return self.answer(token, OffsetCommitResponse)

    def commit(
        self,
        member_id: str,
        generation: int,
        name: str = "flights-0",
        offset: int = 7,
        *,
        expected: int | None = None,
        metadata: str | None = None,
        group: str = GROUP,
        instance_id: str | None = None,
    ) -> int:
        """Commit one partition; return the error, of the group or of the partition."""
        response = self.commit_raw(
            member_id, generation, [(name, offset, expected, metadata)], group, instance_id
        )
        if response.error:
            assert response.topics == ()
            return response.error
        return response.topics[0].partitions[0].error

    def drain(self, client_id: str) -> DrainMemberResponse:
        """Ask for a drain."""
        return self.answer(self.send(DrainMemberRequest(GROUP, client_id)), DrainMemberResponse)

    def withdraw(self, token: int) -> None:
        """The client that sent *token* is gone."""
        outcome = self.shard.withdraw(token, self.now)
        assert outcome is not None
        self.withdrawn.add(token)
        self.take(outcome)

    # --- looking ----------------------------------------------------------------------------

    def describe(self, group: str = GROUP) -> DescribedGroup:
        """Return the group as operators see it."""
        return self.shard.describe_group(group)

    def listed(self, states: tuple[str, ...], types: tuple[str, ...]) -> list[ListedGroup]:
        """Return what ListGroups shows."""
        pieces = self.shard.list_groups(ListGroupsRequest(states, types))
        return [group for piece in pieces for group in piece or ()]

    def lag(self, group: str = GROUP) -> DescribeLagResponse:
        """Return what DescribeLag shows."""
        seen = returned(self.shard.describe_lag(group, lambda _topic: True, ROOM))
        assert seen is not None
        codec = RESPONSE_CODECS[ApiKey.DESCRIBE_LAG, 0]
        response: DescribeLagResponse = codec.decode(codec.encode(seen))
        return response

    def is_at_rest(self) -> bool:
        """Say whether no group waits for a deadline: the next one is the shard's expiry."""
        next_ms = self.shard.next_deadline_ms()
        return next_ms is None or next_ms - self.mono_ms > LONGEST_DEADLINE_MS

    @property
    def state(self) -> str:
        """The group's state."""
        return self.describe().state

    @property
    def generation(self) -> int:
        """The group's generation."""
        return self.describe().generation_id

    def offset(self, name: str = "flights-0", group: str = GROUP) -> PartitionOffset:
        """Return the committed offset of one partition."""
        topic, partition = name.rsplit("-", 1)
        fetch = GroupFetch(group, (TopicPartitions(topic, (int(partition),)),))
        return fetched(self.shard, fetch).topics[0].partitions[0]

    def events_named(self, name: str) -> list[dict[str, object]]:
        """Return the fields of the events of that name."""
        return [event.fields for event in self.events if event.name == name]

    def rebalances(self, limit: int = 100) -> tuple[Rebalance, ...]:
        """Return the group's last rebalances, newest first."""
        response = self.shard.describe_rebalances(DescribeRebalancesRequest(GROUP, limit))
        assert (response.error, response.message) == (0, None)
        return response.rebalances

    def removals(self) -> list[tuple[object, object]]:
        """Return who was removed, and why."""
        events = self.events_named("group.member_removed")
        return [(event["member_id"], event["reason"]) for event in events]

    # --- whole groups -----------------------------------------------------------------------

    def stable_group(self, size: int = 2, **kwargs: Any) -> list[str]:
        """Return the members of a new stable group; member n owns ``flights-n``."""
        members = self.completing_group(size, **kwargs)
        self.sync_all(members)
        assert self.state == "Stable"
        return members

    def completing_group(self, size: int = 2, **kwargs: Any) -> list[str]:
        """Return the members of a new group whose join phase has completed; the first leads."""
        members = [self.new_id(client_id=f"spark{n}", **kwargs) for n in range(size)]
        for n, member in enumerate(members):
            self.join(member, client_id=f"spark{n}", **kwargs)
        while self.state == "PreparingRebalance":
            self.advance(self.config.group_initial_rebalance_delay_ms or 1)
        return members

    def static_group(self, size: int = 2, **kwargs: Any) -> list[str]:
        """Return the members of a new stable group of the instances ``i0``, ``i1`` and so on."""
        tokens = [
            self.join(instance_id=f"i{n}", client_id=f"spark{n}", **kwargs) for n in range(size)
        ]
        while self.state == "PreparingRebalance":
            self.advance(self.config.group_initial_rebalance_delay_ms or 1)
        members = [self.joined(token).member_id for token in tokens]
        self.sync_all(members)
        assert self.state == "Stable"
        return members

    def sync_all(self, members: Sequence[str]) -> list[SyncGroupResponse]:
        """Let followers sync, then the first as the leader; return their answers."""
        given = {member: assignment(f"flights-{n}") for n, member in enumerate(members)}
        tokens = [self.sync(member, self.generation) for member in members[1:]]
        tokens.insert(0, self.sync(members[0], self.generation, given))
        return [self.synced(token) for token in tokens]
