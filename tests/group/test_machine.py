"""A group under every order of requests, pauses, slow disks and crashes.

The clients are honest in form only: they repeat themselves, vanish, send old generations and
leaders assign nonsense. What is checked after every step:

- memory equals the replay of the log, and every counter equals what it counts;
- a generation has one member set and one assignment, a partition one owner in it (I6);
- a generation that anyone was told of is never opened again, crash or not (I7);
- once anyone was told of g+1, no commit of g that is sent from then on is accepted (I8);
- who was told that another holds its instance id is never accepted again, crash or not;
- a fetch shows the last commit that is in the log, and nothing else (I2, I4, I5);
- every request gets one answer, and none stays parked for ever.
"""

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from coordinator.group import GroupConfig
from coordinator.group.group import Group
from coordinator.group.offset_store import unpack_row
from coordinator.group.records import GroupGeneration, GroupMetadata, OffsetsCommitted
from coordinator.group.states import GroupState
from protocol.consumer import decode_assignment
from protocol.messages import (
    HeartbeatResponse,
    JoinGroupResponse,
    LeavingMember,
    Response,
    SyncGroupResponse,
)
from protocol.partition import TopicPartition
from tests.group.context import GROUP, Context, assignment, subscription

PARTITIONS = [f"t-{n}" for n in range(4)]
CONFIG = GroupConfig(group_max_size=5, group_max_offsets=3)
OFFERS = (
    {"range": subscription("t")},
    {"range": subscription("t"), "robin": subscription("t")},
    {"robin": subscription("t"), "range": subscription("u")},
)


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
    return member_id[:2] if member_id.startswith("i") else None


def name_of(member_id: str) -> str:
    """Return who a member is, for as long as nobody is told of another assignment."""
    return instance_of(member_id) or member_id


class GroupMachine(RuleBasedStateMachine):
    """Clients, a clock, a disk, and what they have seen."""

    ids = Bundle("ids")

    @initialize(target=ids, delay_ms=st.sampled_from([0, 3_000]), size=st.sampled_from([2, 3, 0]))
    def start(self, delay_ms: int, size: int) -> object:
        """Start with an empty log, and mostly with a stable group."""
        self.context = Context(
            GroupConfig(
                group_max_size=CONFIG.group_max_size,
                group_max_offsets=CONFIG.group_max_offsets,
                group_initial_rebalance_delay_ms=delay_ms,
                # Expiry deletes groups; its tests are elsewhere, and generations start anew.
                offsets_retention_check_interval_ms=2**40,
            )
        )
        self.seen = 0  # How many delivered answers were looked at.
        self.told = -1  # The highest generation that anyone was told.
        self.told_members: dict[int, tuple[str, ...]] = {}
        self.told_leaders: dict[int, str] = {}
        self.given: dict[tuple[int, str], bytes] = {}
        self.asked: dict[int, tuple[str, int]] = {}  # SyncGroups: member and generation.
        self.fenced: set[str] = set()
        members = [self.newcomer(client, OFFERS[0]) for client in range(size)]
        self.settle([0, 1, 2, 3], is_patient=True)
        return multiple(*members)

    # --- requests ---------------------------------------------------------------------------

    @rule(target=ids, client=st.integers(0, 2), offer=st.sampled_from(OFFERS))
    def ask_for_an_id(self, client: int, offer: dict[str, bytes]) -> object:
        """Come in as a new member."""
        token = self.context.join(client_id=f"c{client}", protocols=offer)
        response = self.context.answers[token]
        assert isinstance(response, JoinGroupResponse)
        return response.member_id if response.error == 79 else multiple()

    @rule(target=ids, client=st.integers(0, 2), offer=st.sampled_from(OFFERS))
    def newcomer(self, client: int, offer: dict[str, bytes]) -> object:
        """Ask for an id and join with it, as clients do."""
        member_id = self.ask_for_an_id(client, offer)
        if isinstance(member_id, str):
            self.context.join(member_id, client_id=f"c{client}", protocols=offer)
        return member_id

    @rule(target=ids, which=st.integers(0, 2), offer=st.sampled_from(OFFERS))
    def static_member_starts(self, which: int, offer: dict[str, bytes]) -> object:
        """Come in as an instance, which may be there already."""
        return multiple(*self._start_instance(which, offer))

    @rule(target=ids, first=st.integers(0, 2))
    def everybody_restarts(self, first: int) -> object:
        """Replace all static members in turn, at whatever point the group is."""
        new: set[str] = set()
        for which in (first, (first + 1) % 3, (first + 2) % 3):
            if f"i{which}" in {instance_of(m) for m in self.static_ids()}:
                new |= self._start_instance(which, OFFERS[0])
        return multiple(*sorted(new))

    def _start_instance(self, which: int, offer: dict[str, bytes]) -> set[str]:
        before = set(self.static_ids())
        token = self.context.join(instance_id=f"i{which}", client_id=f"c{which}", protocols=offer)
        response = self.context.answers.get(token)
        assert not isinstance(response, JoinGroupResponse) or response.error in {0, 23, 81}
        return set(self.static_ids()) - before

    def static_ids(self) -> list[str]:
        """Return the member ids of the static members."""
        return [m.member_id for m in self.context.describe().members if m.group_instance_id]

    @rule(member_id=ids, ago=st.sampled_from([0, 0, 0, 1]), name=st.sampled_from(PARTITIONS))
    def instance_asks(self, member_id: str, ago: int, name: str) -> None:
        """Beat, sync, commit or join under the instance id; all are fenced alike."""
        instance = instance_of(member_id)
        if instance is None:
            return
        holder = next((m for m in self.static_ids() if instance_of(m) == instance), None)
        expected = 0 if holder == member_id else 25 if holder is None else 82
        generation = max(self.context.generation - ago, 0)
        errors = {
            self.context.beat(member_id, generation, instance_id=instance),
            self.context.commit(member_id, generation, name, instance_id=instance),
        }
        if expected and self.context.state != "Dead":
            token = self.context.sync(member_id, generation, instance_id=instance)
            errors.add(self.context.synced(token).error)
            assert errors == {expected}
            assert expected != 82 or self.context.beat(member_id, generation) == 25
        else:
            assert not errors & {82}

    @rule(which=st.integers(0, 2))
    def operator_removes_an_instance(self, which: int) -> None:
        """Not knowing under which member id it is there."""
        is_there = f"i{which}" in {instance_of(m) for m in self.static_ids()}
        (left,) = self.context.left(LeavingMember("", f"i{which}", None))
        assert left.error == (0 if is_there else 25)

    @rule(owners=st.lists(st.integers(0, 4), min_size=4, max_size=4), is_patient=st.booleans())
    def settle(self, owners: Sequence[int], is_patient: bool) -> None:
        """Let the members do what they should until the group is stable."""
        self.context.open_gate()
        for _ in range(4):
            if self.context.state == "PreparingRebalance":
                self.all_join()
            if self.context.state == "PreparingRebalance":
                self.time_passes_with_heartbeats(6_000 if is_patient else 3_000)
            if self.context.state == "CompletingRebalance":
                self.all_sync(owners)

    @rule(by_ms=st.sampled_from([3_000, 6_000, 60_000]))
    def time_passes_with_heartbeats(self, by_ms: int) -> None:
        """Nobody's session ends, the other deadlines do."""
        for _ in range(by_ms // 3_000):
            for member in self.context.describe().members:
                self.context.beat(member.member_id, self.context.generation)
            self.context.advance(3_000)

    @rule(
        member_id=ids,
        offer=st.sampled_from(OFFERS),
        rebalance_ms=st.sampled_from([20_000, 60_000, 0]),
    )
    def join(self, member_id: str, offer: dict[str, bytes], rebalance_ms: int) -> None:
        """Join, or join again."""
        self.context.join(member_id, protocols=offer, rebalance_ms=rebalance_ms)

    @rule()
    def all_join(self) -> None:
        """What a group does when its heartbeats say 27."""
        for member in self.context.describe().members:
            self.context.join(member.member_id, protocols=OFFERS[0])

    @rule(owners=st.lists(st.integers(0, 4), min_size=4, max_size=4))
    def all_sync(self, owners: Sequence[int]) -> None:
        """What a group does when its joins are answered; the leader spreads the partitions."""
        group = self.context.describe()
        members = [member.member_id for member in group.members]
        if not members:
            return
        given: dict[str, list[str]] = {}
        for partition, owner in zip(PARTITIONS, owners, strict=True):
            given.setdefault(members[owner % len(members)], []).append(partition)
        encoded = {member: assignment(*names) for member, names in given.items()}
        for member in reversed(members):
            self.asked[self.context.sync(member, group.generation_id, encoded)] = (
                member,
                group.generation_id,
            )

    @rule(
        member_id=ids,
        ago=st.sampled_from([0, 0, 0, 1, -1]),
        named=st.lists(st.sampled_from([*PARTITIONS, "nobody"]), max_size=4),
    )
    def sync(self, member_id: str, ago: int, named: list[str]) -> None:
        """Sync alone, perhaps as a leader that gives nonsense."""
        generation = self.context.generation - ago
        given = {member_id: assignment(*[name for name in named if name != "nobody"])}
        if "nobody" in named:
            given["nobody"] = b""
        self.asked[self.context.sync(member_id, generation, given)] = (member_id, generation)

    @rule(member_id=ids, ago=st.sampled_from([0, 0, 1, -1]))
    def beat(self, member_id: str, ago: int) -> None:
        """Give a sign of life."""
        generation = self.context.generation - ago
        before = self.context.describe().state
        error = self.context.beat(member_id, generation)
        assert error in ({22, 25} if member_id in self.fenced else {0, 22, 25, 27})
        assert (error == 27) <= (before == "PreparingRebalance")

    @rule(
        member_id=ids,
        name=st.sampled_from(PARTITIONS),
        offset=st.integers(0, 9),
        ago=st.sampled_from([0, 0, 0, 1, 2]),
        expected=st.sampled_from([None, None, -1, 3]),
    )
    def commit(
        self, member_id: str, name: str, offset: int, ago: int, expected: int | None
    ) -> None:
        """Commit, perhaps with a generation of the past."""
        generation = max(self.context.generation - ago, 0)
        before = self.context.offset(name)
        error = self.context.commit(member_id, generation, name, offset, expected=expected)
        after = self.context.offset(name)
        if error:
            assert before == after
            return
        assert offset == after.offset
        assert expected in {None, before.offset}
        # I8, and ownership: only what this generation gave to this member.
        assert generation >= self.told
        stable = self.context.shard.hard_state()[GROUP].stable
        assert stable is not None
        assert stable.generation == generation
        assert member_id not in self.fenced
        owner = self.owner_of(name, stable)
        # What nobody has now may be finished by whoever had it before.
        assert member_id == (owner or self.owner_of(name, self.stable_before(stable)))

    @staticmethod
    def owner_of(name: str, stable: GroupMetadata | None) -> str | None:
        """Return the member that *stable* gives a partition to."""
        topic, partition = name.split("-")
        owners = []
        for member in () if stable is None else stable.members:
            decoded = decode_assignment(member.assignment)
            assert decoded is not None
            if TopicPartition(topic, int(partition)) in decoded.partitions:
                owners.append(member.member_id)
        assert len(owners) <= 1
        return owners[0] if owners else None

    def stable_before(self, stable: GroupMetadata) -> GroupMetadata | None:
        """Return the assigned generation before, as its members are called now."""
        before = [
            record
            for record in self.context.records
            if isinstance(record, GroupMetadata) and record.generation < stable.generation
        ]
        if not before:
            return None
        called = {name_of(m.member_id): m.member_id for m in stable.members}
        members = [
            m._replace(member_id=called.get(name_of(m.member_id), "")) for m in before[-1].members
        ]
        return before[-1]._replace(members=tuple(members))

    @rule(
        which=st.integers(0, 4),
        name=st.sampled_from(PARTITIONS),
        offset=st.integers(0, 9),
        ago=st.sampled_from([0, 0, 0, 1]),
    )
    def member_commits(self, which: int, name: str, offset: int, ago: int) -> None:
        """Commit as one who is in the group."""
        members = self.context.describe().members
        if members:
            self.commit(members[which % len(members)].member_id, name, offset, ago, None)

    @rule()
    def all_join_and_nobody_syncs(self) -> None:
        """Come to the second barrier, where a crash leaves a generation without owners."""
        self.context.open_gate()
        members = self.context.describe().members
        if members and self.context.state == "Stable":
            self.context.join(members[-1].member_id, protocols=OFFERS[1])
            for member in members[:-1]:
                self.context.join(member.member_id, protocols=OFFERS[0])

    @rule(problem=st.sampled_from(["nobody", "t-0", "shared", ""]))
    def leader_syncs_alone(self, problem: str) -> None:
        """Give everything to itself, or something that can't be."""
        group = self.context.shard._core.groups.get(GROUP)
        if group is None or group.leader is None:
            return
        given = {group.leader: assignment(*PARTITIONS)}
        if problem == "nobody":
            given["nobody"] = b""
        elif problem == "shared":
            given |= {member_id: assignment("t-3") for member_id in group.members}
            given[group.leader] = assignment("t-3")
            if sum(not member.drained for member in group.members.values()) < 2:
                problem = ""
        elif problem:
            if group.members[group.leader].drained:
                return
            given[group.leader] = assignment(problem, problem)
        leader, generation = group.leader, group.generation
        was_completing = group.state is GroupState.COMPLETING
        token = self.context.sync(leader, generation, given)
        self.asked[token] = (leader, generation)
        if problem and was_completing:
            assert self.context.synced(token).error == 42
            assert leader not in group.members

    @rule(name=st.sampled_from(PARTITIONS), offset=st.integers(0, 9))
    def commit_from_outside(self, name: str, offset: int) -> None:
        """Reset an offset; only a group without members takes it."""
        is_empty = self.context.state in {"Empty", "Dead"}
        before = self.context.offset(name).offset
        error = self.context.commit("", -1, name, offset)
        assert error in ({0, 1004, 1005} if is_empty else {25})
        assert self.context.offset(name).offset == (before if error else offset)

    @rule(member_id=ids)
    def leave(self, member_id: str) -> None:
        """Leave politely."""
        self.context.leave(member_id)

    @rule(member_id=consumes(ids))
    def leave_for_good(self, member_id: str) -> None:
        """Leave, and never be seen again."""
        self.context.leave(member_id)

    @rule(client=st.integers(0, 2))
    def drain(self, client: int) -> None:
        """Ask a client's members to give everything up."""
        response = self.context.drain(f"c{client}")
        if response.error:
            return
        described = {m.member_id: m.assignment for m in self.context.describe().members}
        for member in response.members:
            decoded = decode_assignment(described[member.member_id])
            assert decoded is not None
            assert member.drained == (decoded.partitions == ())

    @rule(which=st.integers(0, 7))
    def vanish(self, which: int) -> None:
        """A client dies with its request parked."""
        parked = sorted(self.context.unanswered())
        if parked:
            self.context.withdraw(parked[which % len(parked)])

    @precondition(lambda self: self.context.generation > 1)
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

    # --- the world --------------------------------------------------------------------------

    @rule(by_ms=st.sampled_from([0, 1, 1_000, 3_000, 9_999, 10_000]))
    def time_passes(self, by_ms: int) -> None:
        """Deadlines pass."""
        self.context.advance(by_ms)

    @rule()
    def disk_stalls(self) -> None:
        """Nothing leaves the gate."""
        self.context.close_gate()

    @rule()
    def disk_goes_on(self) -> None:
        """Everything leaves the gate."""
        self.context.open_gate()

    @rule(by_ms=st.integers(0, 10_000))
    def process_stalls(self, by_ms: int) -> None:
        """We were not scheduled for a while."""
        self.context.shard.shift_deadlines(by_ms)

    @rule(member_id=ids)
    def disk_is_full(self, member_id: str) -> None:
        """The reserve is reached, for a moment."""
        self.context.shard.storage_full = True
        before = len(self.context.records)
        assert self.context.commit(member_id, self.context.generation) in {1004, 22, 25, 27, 69}
        assert self.context.joined(self.context.join()).error in {1004, 23, 81}
        assert before == len(self.context.records)
        self.context.shard.storage_full = False

    @rule(lost_batches=st.integers(0, 3))
    def crash(self, lost_batches: int) -> None:
        """Lose the soft state, and batches that nobody was told of."""
        self.context.crash(lost_batches)

    @rule(lost_batches=st.integers(0, 3), ago=st.integers(0, 1))
    def crash_at_the_second_barrier(self, lost_batches: int, ago: int) -> None:
        """A generation was told and not assigned; then everybody tries to commit."""
        self.all_join_and_nobody_syncs()
        self.context.crash(lost_batches)
        for which in range(len(self.context.describe().members)):
            for name in PARTITIONS:
                self.member_commits(which, name, 5, ago)

    @rule(problem=st.sampled_from(["nobody", "t-0", "shared"]))
    def leader_assigns_nonsense(self, problem: str) -> None:
        """At the barrier, where it would count."""
        self.settle([0, 1, 2, 3], is_patient=False)
        self.all_join_and_nobody_syncs()
        self.leader_syncs_alone(problem)

    # --- what must hold ---------------------------------------------------------------------

    @invariant()
    def memory_is_the_replay_of_the_log(self) -> None:
        """Also: every counter is right, and the state fits the members."""
        self.context.check()
        group = self.context.shard._core.groups.get(GROUP)
        if group is None:
            return
        expected = expected_counters(group)
        assert expected == {name: getattr(group, name) for name in expected}
        if group.state in {GroupState.COMPLETING, GroupState.STABLE}:
            assert sum(not m.synced for m in group.members.values()) == group.unsynced
        assert (group.state is GroupState.EMPTY) == (not group.members)
        if group.state is GroupState.STABLE:
            assert all(not m.assignment for m in group.members.values() if m.drained)
        assert bool(group.members) == (group.leader in group.members)
        assert len(group.members) + len(group.pending) <= self.context.config.group_max_size
        assert group.offset_count <= self.context.config.group_max_offsets

    @invariant()
    def what_clients_were_told_fits_together(self) -> None:
        """I6 and I7."""
        delivered = list(self.context.delivered.items())
        for token, response in delivered[self.seen :]:
            self._look_at(token, response)
        self.seen = len(delivered)

    def _look_at(self, token: int, response: Response) -> None:
        assert not isinstance(response, HeartbeatResponse) or response.error in {0, 22, 25, 27, 82}
        if isinstance(response, JoinGroupResponse) and response.error == 0:
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
        elif isinstance(response, SyncGroupResponse) and response.error == 0:
            member_id, generation = self.asked[token]
            given = response.assignment
            assert self.given.setdefault((generation, name_of(member_id)), given) == given
            owned: list[TopicPartition] = []
            for (other, _), bytes_ in self.given.items():
                if other == generation:
                    decoded = decode_assignment(bytes_)
                    assert decoded is not None
                    owned += decoded.partitions
            assert len(owned) == len(set(owned))
        elif isinstance(response, JoinGroupResponse) and response.error == 82:
            self.fenced.add(response.member_id)

    @invariant()
    def generations_only_grow(self) -> None:
        """In the log too, until the group is deleted."""
        opened: list[int] = []
        for record in self.context.records:
            if isinstance(record, GroupGeneration):
                opened.append(record.generation)
            elif type(record).__name__ == "GroupDeleted":
                opened.clear()
        assert opened == sorted(set(opened))
        assert self.context.generation >= self.told

    @invariant()
    def a_fetch_shows_the_last_commit_in_the_log(self) -> None:
        """And -1 where there is none."""
        last: dict[str, int] = {}
        for record in self.context.records:
            if isinstance(record, OffsetsCommitted):
                for partition, row in record.rows.items():
                    last[f"{record.topic}-{partition}"] = unpack_row(row)[0]
            elif type(record).__name__ == "GroupDeleted":
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
        assert self.context.shard._core.parked == {}


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(max_examples=60, stateful_step_count=40)


@pytest.mark.nightly
def test_a_group_for_a_long_time() -> None:
    """The same, with longer histories and many more of them."""
    run_state_machine_as_test(
        GroupMachine,
        settings=settings(
            max_examples=5_000,
            stateful_step_count=100,
            suppress_health_check=list(HealthCheck),
        ),
    )
