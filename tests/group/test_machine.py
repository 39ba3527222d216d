"""A group under every order of requests, pauses, slow disks and crashes.

The clients are honest in form only: they repeat themselves, vanish, claim the instance ids of
others, send old generations, and leaders assign nonsense.

Most histories go step by step beside a naive model of what the group should do (`model.py`): every
answer and the state must be the model's. The others also do what the model leaves out: drains,
deletions, expected offsets, a slow or full disk, stalls and lost batches. After every step of
either:

- memory equals the replay of the log, as it is and as compaction leaves it, and every counter
  equals what it counts;
- a generation has one member set and one assignment, a partition one owner in it (I6);
- a generation that anyone was told of is never opened again, crash or not (I7);
- once anyone was told of g+1, no commit of g that is sent from then on is accepted (I8);
- who was told that another holds its instance id is never accepted again, crash or not;
- a fetch shows the last commit that is in the log, and nothing else (I2, I4, I5);
- every request gets one answer, and none stays parked for ever.
"""

from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from coordinator.group.core import GroupConfig
from coordinator.group.group import Group
from coordinator.group.records import (
    GroupDeleted,
    GroupGeneration,
    GroupMetadata,
    OffsetsCommitted,
)
from coordinator.group.shard import GroupShard
from coordinator.group.states import GroupState
from protocol import messages as m
from protocol.consumer import decode_assignment
from protocol.partition import TopicPartition
from tests.group.context import GROUP, Context, assignment, compacted, roundtrip, subscription
from tests.group.model import DELAY_MS, MAX_SIZE, Model, Offers, Times

PARTITIONS: Final = ("t-0", "t-1", "t-2", "t-3")
T, U = subscription("t"), subscription("t", "u")
OFFERS: Final[tuple[Offers, ...]] = (
    (("range", T),),
    (("range", T), ("robin", T)),
    (("robin", T), ("range", T)),
    (("robin", U), ("range", U)),
    (("own", T),),
)
# No two of them are multiples of one another, so that hardly ever two things are due at once.
TIMES: Final[tuple[Times, ...]] = ((10_007, 15_337), (20_011, 30_691), (10_007, 61_403))
INSTANCES: Final = (None, None, None, "i-1", "i-2")
# The errors of a commit that only this partition's state gives: the committer is all right.
PARTITION_ERRORS: Final = {0, 1003, 1005}

WHO = st.integers(0, 7)
AGO = st.sampled_from([0, 0, 0, 0, 1, -1])
CLIENT = st.integers(0, 2)
OFFER = st.sampled_from(OFFERS)
USUAL = st.sampled_from(OFFERS[:3])
TIME = st.sampled_from(TIMES)
NAME = st.sampled_from(PARTITIONS)
OWNERS = st.lists(st.integers(0, 5), min_size=len(PARTITIONS), max_size=len(PARTITIONS))

# What the model leaves out, and so does a history beside it.
beyond_the_model = precondition(lambda self: self.model is None)


def expected_counters(group: Group) -> dict[str, object]:
    """Count again what the group keeps count of."""
    support: dict[str, int] = {}
    for member in group.members.values():
        for protocol in member.protocols:
            support[protocol.name] = support.get(protocol.name, 0) + 1
    return {
        "parked_joins": sum(m.join is not None for m in group.members.values()),
        "answer_bytes": sum(m.answer_bytes() for m in group.members.values()),
        "record_bytes": sum(m.record_bytes() for m in group.members.values()),
        "static": {
            m.group_instance_id: m.member_id
            for m in group.members.values()
            if m.group_instance_id is not None
        },
        "offset_count": sum(len(partitions) for partitions in group.offsets.values()),
        "support": support,
    }


def instance_of(member_id: str) -> str | None:
    """Return the instance id in a member id of a static member."""
    return member_id[:3] if member_id.startswith("i-") else None


def name_of(member_id: str) -> str:
    """Return who a member is, for as long as nobody is told of another assignment."""
    return instance_of(member_id) or member_id


def partitions_of(assigned: bytes) -> tuple[TopicPartition, ...]:
    """Return what an assignment names."""
    decoded = decode_assignment(assigned)
    assert decoded is not None
    return decoded.partitions


def owner_of(name: str, stable: GroupMetadata | None) -> str | None:
    """Return the member that *stable* gives a partition to."""
    topic, partition = name.split("-")
    wanted = TopicPartition(topic, int(partition))
    members = () if stable is None else stable.members
    owners = [x.member_id for x in members if wanted in partitions_of(x.assignment)]
    assert len(owners) <= 1
    return owners[0] if owners else None


class GroupMachine(RuleBasedStateMachine):
    """Clients, a clock, a disk, and what they have seen."""

    @initialize(
        is_modelled=st.sampled_from([True, True, True, False]),
        delay_ms=st.sampled_from([0, DELAY_MS]),
        size=st.integers(0, 3),
        instance=st.sampled_from(("i-1", None)),
    )
    def start(self, is_modelled: bool, delay_ms: int, size: int, instance: str | None) -> None:
        """Begin without a group, or with a stable one."""
        self.model = Model() if is_modelled else None
        self.context = Context(
            GroupConfig(
                group_max_size=MAX_SIZE,
                group_max_offsets=len(PARTITIONS) if is_modelled else len(PARTITIONS) - 1,
                group_initial_rebalance_delay_ms=DELAY_MS if is_modelled else delay_ms,
                # Expiry deletes groups; its tests are elsewhere, and generations start anew.
                offsets_retention_check_interval_ms=2**40,
            )
        )
        self.ids = ["spark-ffff"]  # Everybody who was ever there, and one who was not.
        self.seen = 0  # How many delivered answers were looked at.
        self.told = -1  # The highest generation that anyone was told.
        self.told_members: dict[int, tuple[str, ...]] = {}
        self.told_leaders: dict[int, str] = {}
        self.given: dict[tuple[int, str], bytes] = {}
        self.asked: dict[int, tuple[str, int]] = {}  # SyncGroups: member and generation.
        self.fenced: set[str] = set()
        for n in range(size):
            self.newcomer(None if n else instance, OFFERS[0], TIMES[0], n)
        self.settle([0, 1, 2, 3])

    # --- asking -----------------------------------------------------------------------------

    def ask(
        self, request: m.Request, told: str, *arguments: object, client_id: str = "spark"
    ) -> int:
        """Send *request*, and tell the model; for that, a moment passes before."""
        if self.model is None:
            return self.context.send(request, client_id)
        self.time_passes(1)
        token = self.context.send(request)
        self.model.ask(token, getattr(self.model, told), *arguments)
        return token

    def members(self) -> list[tuple[str, str | None]]:
        """Return the member ids with their instance ids, in the group's order."""
        described = self.context.describe().members
        return [(member.member_id, member.group_instance_id) for member in described]

    def who(self, which: int) -> tuple[str, str | None]:
        """Choose a member, or somebody of the past."""
        members = self.members()
        if which < len(members):
            return members[which]
        return self.ids[which % len(self.ids)], None

    def holder(self, instance: str | None) -> str | None:
        """Return the member that holds an instance id."""
        return next((id_ for id_, held in self.members() if held == instance), None)

    def send_join(
        self, id_: str, instance: str | None, offers: Offers, times: Times, client: int = 0
    ) -> int:
        """JoinGroup."""
        protocols = tuple(m.JoinProtocol(*offer) for offer in offers)
        request = m.JoinGroupRequest(GROUP, *times, id_, instance, "consumer", protocols, None)
        token = self.ask(request, "join", id_, instance, offers, times, client_id=f"client{client}")
        answer = self.context.answers.get(token)
        given = [answer.member_id] if isinstance(answer, m.JoinGroupResponse) else []
        known = [*self.ids, *(member_id for member_id, _ in self.members()), *given]
        self.ids = [id_ for id_ in dict.fromkeys(known) if id_]
        return token

    def send_sync(
        self, id_: str, instance: str | None, generation: int, given: dict[str, list[str]]
    ) -> int:
        """SyncGroup."""
        shares = tuple(m.MemberAssignment(who, assignment(*names)) for who, names in given.items())
        request = m.SyncGroupRequest(GROUP, generation, id_, instance, None, None, shares)
        token = self.ask(request, "sync", id_, instance, generation, given)
        self.asked[token] = (id_, generation)
        return token

    def send_beat(self, id_: str, instance: str | None, generation: int) -> int:
        """Send a heartbeat; return the error."""
        request = m.HeartbeatRequest(GROUP, generation, id_, instance)
        token = self.ask(request, "beat", id_, instance, generation)
        return self.context.answer(token, m.HeartbeatResponse).error

    def send_leave(self, id_: str, instance: str | None) -> int:
        """Let one member leave; return its error."""
        request = m.LeaveGroupRequest(GROUP, (m.LeavingMember(id_, instance, None),))
        token = self.ask(request, "leave", id_, instance)
        error = self.context.answer(token, m.LeaveGroupResponse).members[0].error
        self._compare(token, error, of_all=0)
        return error

    def send_commit(
        self,
        id_: str,
        instance: str | None,
        generation: int,
        name: str,
        offset: int,
        expected: int | None = None,
    ) -> int:
        """Commit one partition; return the error."""
        topic, partition = name.split("-")
        items = (m.PartitionCommit(int(partition), offset, -1, None, expected),)
        topics = (m.TopicCommit(topic, items),)
        request = m.OffsetCommitRequest(GROUP, generation, id_, instance, topics)
        token = self.ask(request, "commit", id_, instance, generation, name, offset)
        answer = self.context.answer(token, m.OffsetCommitResponse)
        error = answer.error or answer.topics[0].partitions[0].error
        self._compare(token, error, of_all=answer.error)
        return error

    def _compare(self, token: int, error: int, *, of_all: int) -> None:
        """Compare the error of the one item with the model's, which has no other."""
        if self.model is not None:
            assert (self.model.answers[token], token) == (error, token)
            self.model.answers[token] = of_all

    # --- members ----------------------------------------------------------------------------

    @rule(instance=st.sampled_from(INSTANCES), offers=OFFER, times=TIME, client=CLIENT)
    def newcomer(self, instance: str | None, offers: Offers, times: Times, client: int) -> None:
        """Come in; a dynamic member first asks for its id. A static one may have been here."""
        token = self.send_join("", instance, offers, times, client)
        answer = self.context.answers.get(token)
        if isinstance(answer, m.JoinGroupResponse) and answer.error == 79:
            self.send_join(answer.member_id, None, offers, times, client)

    @rule(offers=USUAL, times=TIME, client=CLIENT)
    def ask_for_an_id(self, offers: Offers, times: Times, client: int) -> None:
        """And do nothing with it yet."""
        self.send_join("", None, offers, times, client)

    @rule(which=WHO, offers=OFFER, times=TIME, is_hasty=st.booleans())
    def join(self, which: int, offers: Offers, times: Times, is_hasty: bool) -> None:
        """Join again, or with an id of the past; perhaps with no time for a rebalance."""
        if is_hasty and self.model is None:
            times = (times[0], 0)
        self.send_join(*self.who(which), offers, times)

    @rule(which=WHO, instance=st.sampled_from(INSTANCES))
    def join_as_another(self, which: int, instance: str | None) -> None:
        """Claim an instance id."""
        self.send_join(self.who(which)[0], instance, OFFERS[0], TIMES[0])

    @rule()
    def all_join(self) -> None:
        """What members do when they are told to."""
        configured = {x.id: (x.offers, x.times) for x in self.model.members} if self.model else {}
        for id_, instance in self.members():
            self.send_join(id_, instance, *configured.get(id_, (OFFERS[0], TIMES[0])))

    @rule(owners=OWNERS, is_leader_first=st.booleans())
    def all_sync(self, owners: Sequence[int], is_leader_first: bool) -> None:
        """What members do when their joins are answered; some partitions have no owner."""
        members = self.members()
        given: dict[str, list[str]] = {}
        for name, owner in zip(PARTITIONS, owners, strict=True):
            if owner < len(members):
                given.setdefault(members[owner][0], []).append(name)
        generation = self.context.generation
        for id_, instance in members if is_leader_first else reversed(members):
            self.send_sync(id_, instance, generation, given)

    @rule(owners=OWNERS)
    def settle(self, owners: Sequence[int]) -> None:
        """Let the members do what they should until the group is stable."""
        self.context.open_gate()
        for _ in range(4):
            if self.context.state == "PreparingRebalance":
                self.all_join()
            if self.context.state == "PreparingRebalance":
                self.time_passes_and_most_are_alive(6_001, -1)
            if self.context.state == "CompletingRebalance":
                self.all_sync(owners, is_leader_first=False)

    @rule(owners=OWNERS)
    def hand_over(self, owners: Sequence[int]) -> None:
        """Rebalance from rest to rest; then everybody tries to commit everything."""
        self.all_join()
        self.all_sync(owners, is_leader_first=True)
        for which in range(len(self.members())):
            for name in PARTITIONS:
                self.commit(which, 0, name, 5, "own", None)

    @rule(which=WHO, offers=OFFER, times=TIME, leaves=st.booleans(), crashes=st.booleans())
    def restart(
        self, which: int, offers: Offers, times: Times, leaves: bool, crashes: bool
    ) -> None:
        """A static member comes back, perhaps configured anew; then perhaps we crash."""
        self.settle([0, 1, 2, 3])
        static = [instance for _, instance in self.members() if instance]
        if not static:
            return
        instance = static[which % len(static)]
        if leaves:
            self.send_leave("", instance)
        self.send_join("", instance, offers, times)
        if crashes:
            self.crash(0)

    @rule()
    def everybody_restarts(self) -> None:
        """All static members are replaced in turn, at whatever point the group is."""
        for _, instance in self.members():
            if instance:
                self.send_join("", instance, OFFERS[0], TIMES[0])

    @rule(
        which=WHO,
        ago=AGO,
        owner=st.sampled_from(["me", "me", "nobody"]),
        names=st.lists(NAME, max_size=4),
    )
    def sync(self, which: int, ago: int, owner: str, names: list[str]) -> None:
        """Sync alone, perhaps with nonsense."""
        id_, instance = self.who(which)
        given = {id_ if owner == "me" else owner: names}
        self.send_sync(id_, instance, self.context.generation - ago, given)

    @rule(problem=st.sampled_from(["nobody", "t-0", "shared", ""]))
    def leader_syncs_alone(self, problem: str) -> None:
        """Give everything to itself, or something that can't be."""
        group = self.context.shard.groups.get(GROUP)
        if group is None or group.leader is None:
            return
        leader = group.members[group.leader]
        given = {leader.member_id: list(PARTITIONS)}
        if problem == "nobody":
            given["nobody"] = []
        elif problem == "shared":
            given = {member_id: ["t-3"] for member_id in group.members}
            if sum(not member.drained for member in group.members.values()) < 2:
                problem = ""
        elif problem:
            given[leader.member_id] = [problem, problem]
            problem = "" if leader.drained else problem
        was_completing = group.state is GroupState.COMPLETING
        # In the moment that passes before it is sent, the leader's own time may be up.
        deadline_ms = self.context.shard.next_deadline_ms()
        is_late = deadline_ms is not None and deadline_ms <= self.context.now.mono_ms + 1
        token = self.send_sync(leader.member_id, leader.group_instance_id, group.generation, given)
        if problem and was_completing:
            assert self.context.synced(token).error in ({42, 25} if is_late else {42})
            assert leader.member_id not in group.members

    @rule(problem=st.sampled_from(["nobody", "t-0", "shared"]))
    def leader_assigns_nonsense(self, problem: str) -> None:
        """At the barrier, where it would count."""
        self.settle([0, 1, 2, 3])
        self.all_join_and_nobody_syncs()
        self.leader_syncs_alone(problem)

    @rule()
    def all_join_and_nobody_syncs(self) -> None:
        """Come to the second barrier, where a crash leaves a generation without owners."""
        self.context.open_gate()
        members = self.members()
        if members and self.context.state == "Stable":
            self.send_join(*members[-1], OFFERS[1], TIMES[0])
            for member in members[:-1]:
                self.send_join(*member, OFFERS[0], TIMES[0])

    @rule(which=WHO, ago=AGO, instance=st.sampled_from(("own", "own", "i-1", None)))
    def beat(self, which: int, ago: int, instance: str | None) -> None:
        """Give a sign of life, perhaps under a false name."""
        id_, own = self.who(which)
        before = self.context.state
        error = self.send_beat(
            id_, own if instance == "own" else instance, self.context.generation - ago
        )
        assert error in ({22, 25, 82} if id_ in self.fenced else {0, 22, 25, 27, 82})
        assert (error == 27) <= (before == "PreparingRebalance")

    @rule(which=WHO, is_operator=st.booleans(), is_static=st.booleans())
    def leave(self, which: int, is_operator: bool, is_static: bool) -> None:
        """Leave, or be removed by an operator, who knows the instance id."""
        id_, instance = self.who(which)
        self.send_leave("" if is_operator else id_, instance if is_static else None)

    @rule(
        which=WHO,
        ago=st.sampled_from([0, 0, 0, 1, 2, "none"]),
        name=NAME,
        offset=st.integers(0, 9),
        instance=st.sampled_from(("own", "own", "i-1", None)),
        expected=st.sampled_from([None, None, -1, 3]),
    )
    def commit(
        self,
        which: int,
        ago: int | str,
        name: str,
        offset: int,
        instance: str | None,
        expected: int | None,
    ) -> None:
        """Commit, perhaps with a generation of the past, or with none as from outside."""
        id_, own = self.who(which)
        instance = own if instance == "own" else instance
        expected = None if self.model else expected
        generation = -1 if isinstance(ago, str) else max(self.context.generation - ago, 0)
        is_empty = self.context.state in {"Empty", "Dead"}
        before = self.context.offset(name)
        error = self.send_commit(id_, instance, generation, name, offset, expected)
        after = self.context.offset(name)
        if generation < 0:
            assert is_empty == (error in PARTITION_ERRORS)
        if error:
            assert before == after
            return
        assert offset == after.offset
        assert expected in {None, before.offset}
        if generation < 0:
            return
        # I8, and ownership: only what this generation gave to this member.
        assert generation >= self.told
        stable = self.context.shard.hard_state()[GROUP].stable
        assert stable is not None
        assert stable.generation == generation
        assert id_ not in self.fenced
        # What nobody has now may be finished by whoever had it before.
        assert id_ == (owner_of(name, stable) or owner_of(name, self._stable_before(stable)))

    def _stable_before(self, stable: GroupMetadata) -> GroupMetadata | None:
        """Return the assigned generation before, as its members are called now."""
        before = [
            record
            for record in self.context.records
            if isinstance(record, GroupMetadata) and record.generation < stable.generation
        ]
        if not before:
            return None
        called = {name_of(x.member_id): x.member_id for x in stable.members}
        members = [
            x._replace(member_id=called.get(name_of(x.member_id), "")) for x in before[-1].members
        ]
        return before[-1]._replace(members=tuple(members))

    @rule(which=WHO, ago=st.sampled_from([0, 0, 0, 1]), name=NAME)
    def instance_asks(self, which: int, ago: int, name: str) -> None:
        """Beat, commit and sync under the instance id; whoever doesn't hold it is fenced alike."""
        static = [id_ for id_ in self.ids if instance_of(id_)]
        if not static:
            return
        id_ = static[which % len(static)]
        instance = instance_of(id_)
        holder = self.holder(instance)
        expected = 0 if holder == id_ else 25 if holder is None else 82
        is_there = self.context.state != "Dead"
        generation = max(self.context.generation - ago, 0)
        errors = {
            self.send_beat(id_, instance, generation),
            self.send_commit(id_, instance, generation, name, 5),
        }
        if expected and is_there:
            token = self.send_sync(id_, instance, generation, {})
            errors.add(self.context.synced(token).error)
            assert errors == {expected}
            assert expected != 82 or self.send_beat(id_, None, generation) == 25
        else:
            assert 82 not in errors

    # --- what the model leaves out ----------------------------------------------------------

    @beyond_the_model
    @rule(client=CLIENT)
    def drain(self, client: int) -> None:
        """Ask a client's members to give everything up."""
        response = self.context.drain(f"client{client}")
        if response.error:
            return
        described = {x.member_id: x.assignment for x in self.context.describe().members}
        for drained in response.members:
            assert drained.drained == (partitions_of(described[drained.member_id]) == ())

    @beyond_the_model
    @rule(which=WHO)
    def vanish(self, which: int) -> None:
        """A client dies with its request parked."""
        parked = sorted(self.context.unanswered())
        if parked:
            self.context.withdraw(parked[which % len(parked)])

    @precondition(lambda self: self.model is None and self.context.generation > 1)
    @rule()
    def delete(self) -> None:
        """Delete the group; only an empty one goes, and its history starts again."""
        outcome, error = self.context.shard.delete_group(GROUP, self.context.now)
        self.context.take(outcome)
        if not error:
            self.context.open_gate()
            self.told = -1
            self.told_members.clear()
            self.fenced.clear()
            self.told_leaders.clear()
            self.given.clear()
            self.seen = len(self.context.delivered)

    @beyond_the_model
    @rule()
    def disk_stalls(self) -> None:
        """Nothing leaves the gate."""
        self.context.close_gate()

    @beyond_the_model
    @rule()
    def disk_goes_on(self) -> None:
        """Everything leaves the gate."""
        self.context.open_gate()

    @beyond_the_model
    @rule(which=WHO)
    def disk_is_full(self, which: int) -> None:
        """The reserve is reached, for a moment."""
        self.context.shard.storage_full = True
        before = len(self.context.records)
        id_, _ = self.who(which)
        assert self.context.commit(id_, self.context.generation) in {1004, 22, 25, 27, 69}
        assert self.context.joined(self.context.join()).error in {1004, 23, 81}
        assert before == len(self.context.records)
        self.context.shard.storage_full = False

    @beyond_the_model
    @rule(by_ms=st.integers(0, 10_000))
    def process_stalls(self, by_ms: int) -> None:
        """We were not scheduled for a while."""
        self.context.shard.shift_deadlines(by_ms)

    # --- time, and crashes ------------------------------------------------------------------

    @rule(by_ms=st.sampled_from([0, 1, 1_009, 4_001, 9_001, 11_003, 16_001, 62_003]))
    def time_passes(self, by_ms: int) -> None:
        """Deadlines pass."""
        self.context.advance(by_ms)
        if self.model is not None:
            self.model.advance(by_ms)

    @rule(by_ms=st.sampled_from([9_001, 16_001, 62_003]), which=WHO)
    def time_passes_and_most_are_alive(self, by_ms: int, which: int) -> None:
        """All but one give signs of life."""
        for _ in range(by_ms // 3_000):
            for n, (id_, instance) in enumerate(self.members()):
                if n != which:
                    self.send_beat(id_, instance, self.context.generation)
            self.time_passes(3_000)

    @rule(lost_batches=st.integers(0, 3))
    def crash(self, lost_batches: int) -> None:
        """Lose all soft state, and batches that nobody was told of."""
        if self.model is None:
            self.context.crash(lost_batches)
        else:
            self.context.crash()
            self.model.reload()

    @rule()
    def another_node_leads_for_a_while(self) -> None:
        """Nothing is lost that a crash would leave, and nothing soft is left."""
        self.context.hand_over_and_back()
        if self.model is not None:
            self.model.reload()

    @rule(lost_batches=st.integers(0, 3), ago=st.integers(0, 1))
    def crash_at_the_second_barrier(self, lost_batches: int, ago: int) -> None:
        """A generation was told and not assigned; then everybody tries to commit."""
        self.all_join_and_nobody_syncs()
        self.crash(lost_batches)
        for which in range(len(self.members())):
            for name in PARTITIONS:
                self.commit(which, ago, name, 5, "own", None)

    # --- what must hold ---------------------------------------------------------------------

    @invariant()
    def both_say_the_same(self) -> None:
        """Every answer so far, and what operators see."""
        model, context = self.model, self.context
        if model is None:
            return
        answers = {token: answer.error for token, answer in context.answers.items()}  # type: ignore[attr-defined]  # all of these have one
        assert model.answers == answers
        described = context.describe()
        if not model.exists:
            assert described.state == "Dead"
            return
        group = context.shard.groups[GROUP]
        is_voted = model.state in {"CompletingRebalance", "Stable"}
        expected = (
            model.state,
            model.generation,
            [(member.id, member.instance) for member in model.members],
            model.leader,
            model.protocol if is_voted else None,
        )
        assert expected == (
            described.state,
            described.generation_id,
            self.members(),
            group.leader,
            group.protocol if is_voted else None,
        )
        offsets = {name: context.offset(name).offset for name in PARTITIONS}
        assert {name: model.offsets.get(name, -1) for name in PARTITIONS} == offsets

    @invariant()
    def the_log_gives_the_state_again(self) -> None:
        """All of it (the context compares that), and what compaction leaves of it."""
        self.context.check()
        again = GroupShard(config=self.context.config, new_uuid=str)
        for record in compacted(self.context.records):
            again.replay(roundtrip(record))
        assert self.context.shard.hard_state() == again.hard_state()

    @invariant()
    def every_counter_is_right_and_the_state_fits_the_members(self) -> None:
        """They are kept in step, and never counted anew."""
        group = self.context.shard.groups.get(GROUP)
        if group is None:
            return
        expected = expected_counters(group)
        assert expected == {name: getattr(group, name) for name in expected}
        if group.state in {GroupState.COMPLETING, GroupState.STABLE}:
            assert sum(not x.synced for x in group.members.values()) == group.unsynced
        assert (group.state is GroupState.EMPTY) == (not group.members)
        if group.state is GroupState.STABLE:
            assert all(not x.assignment for x in group.members.values() if x.drained)
        assert bool(group.members) == (group.leader in group.members)
        assert len(group.members) + len(group.pending) <= self.context.config.group_max_size
        assert group.offset_count <= self.context.config.group_max_offsets

    @invariant()
    def what_clients_were_told_fits_together(self) -> None:
        """I6 and I7."""
        delivered = list(self.context.delivered.items())
        for token, response in delivered[self.seen :]:
            if isinstance(response, m.JoinGroupResponse):
                self._look_at_join(token, response)
            elif isinstance(response, m.SyncGroupResponse) and response.error == 0:
                self._look_at_sync(token, response)
            elif isinstance(response, m.HeartbeatResponse):
                assert response.error in {0, 22, 25, 27, 82}
        self.seen = len(delivered)

    def _look_at_join(self, token: int, response: m.JoinGroupResponse) -> None:
        request = self.context.requests[token]
        assert isinstance(request, m.JoinGroupRequest)
        id_ = response.member_id
        if response.error == 82 and request.group_instance_id == instance_of(id_):
            self.fenced.add(id_)
        if response.error:
            return
        generation = response.generation_id
        assert generation >= 1
        leader = name_of(response.leader)
        assert self.told_leaders.setdefault(generation, leader) == leader
        self.told = max(self.told, generation)
        # A crash forgets who was drained: a leader that restarts, and assigns nothing, is
        # then shown more.
        if response.members and not response.skip_assignment:
            members = tuple(name_of(member.member_id) for member in response.members)
            assert self.told_members.setdefault(generation, members) == members

    def _look_at_sync(self, token: int, response: m.SyncGroupResponse) -> None:
        member_id, generation = self.asked[token]
        given = response.assignment
        assert self.given.setdefault((generation, name_of(member_id)), given) == given
        owned = [
            partition
            for (other, _), assigned in self.given.items()
            if other == generation
            for partition in partitions_of(assigned)
        ]
        assert len(owned) == len(set(owned))

    @invariant()
    def generations_only_grow(self) -> None:
        """In the log too, until the group is deleted."""
        opened: list[int] = []
        for record in self.context.records:
            if isinstance(record, GroupGeneration):
                opened.append(record.generation)
            elif isinstance(record, GroupDeleted):
                opened.clear()
        assert opened == sorted(set(opened))
        assert self.context.generation >= self.told

    @invariant()
    def a_fetch_shows_the_last_commit_in_the_log(self) -> None:
        """And -1 where there is none."""
        last: dict[str, int] = {}
        for record in self.context.records:
            if isinstance(record, OffsetsCommitted):
                for partition, found in record.offsets.items():
                    last[f"{record.topic}-{partition}"] = found.offset
            elif isinstance(record, GroupDeleted):
                last.clear()
        for name in PARTITIONS:
            assert last.get(name, -1) == self.context.offset(name).offset

    def teardown(self) -> None:
        """Nothing stays parked, and a group without living members comes to rest."""
        if not hasattr(self, "context"):
            return
        self.context.open_gate()
        self.context.advance(2_000_000)
        assert set() == self.context.unanswered()
        assert self.context.state in {"Empty", "Dead"}
        assert self.context.is_at_rest()
        for token in self.context.requests:
            assert self.context.shard.withdraw(token, self.context.now) is None


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(
    max_examples=360, stateful_step_count=35, suppress_health_check=list(HealthCheck)
)


@pytest.mark.nightly
def test_a_group_for_a_long_time() -> None:
    """The same, with longer histories and many more of them."""
    run_state_machine_as_test(
        GroupMachine,
        settings=settings(
            max_examples=7_000,
            stateful_step_count=100,
            suppress_health_check=list(HealthCheck),
        ),
    )
