"""A group, step by step beside a naive model of what it should do.

After every step the model's answers and state must be the group's, and the log must give the same
state again: replayed as a whole, and replayed with the last entry of each key only, as compaction
leaves it.
"""

import re
from pathlib import Path
from typing import Any, Final

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from coordinator.group import GroupConfig, GroupShard
from coordinator.group.records import Record
from protocol import messages as m
from tests.conftest import EXAMPLES_FACTOR
from tests.group.context import GROUP, Context, assignment, roundtrip, subscription
from tests.group.model import MAX_SIZE, Model, Offers
from tests.packed import entries_of, singles

EXAMPLES: Final = 300
STEPS: Final = 100 if EXAMPLES_FACTOR > 1 else 30
GROUP_DELETED: Final = 1001

PARTITIONS: Final = ("t-0", "t-1", "t-2")
T, U = subscription("t"), subscription("t", "u")
OFFERS: Final[tuple[Offers, ...]] = (
    (("range", T),),
    (("range", T), ("robin", T)),
    (("robin", T), ("range", T)),
    (("robin", U), ("range", U)),
    (("own", T),),
)
# No two of them are multiples of one another, so that hardly ever two things are due at once.
TIMES: Final = ((10_007, 15_337), (20_011, 30_691), (10_007, 61_403))
INSTANCES: Final = (None, None, None, "i-1", "i-2")

WHO = st.integers(0, 5)
AGO = st.sampled_from([0, 0, 0, 0, 1, -1])
OFFER = st.sampled_from(OFFERS)
USUAL = st.sampled_from(OFFERS[:3])


def compacted(records: list[Record]) -> list[Record]:
    """Return the last record of each key, without what is older than its scope's tombstone."""
    last: dict[tuple[object, ...], Record] = {}
    for record in singles(records):
        ((type_, _, scope, key, _),) = entries_of(record)
        if type_ == GROUP_DELETED:
            last = {where: kept for where, kept in last.items() if where[0] != scope}
        last.pop((scope, type_, key), None)
        last[scope, type_, key] = record
    return list(last.values())


class Comparison(RuleBasedStateMachine):
    """The same steps for both."""

    @initialize(size=st.integers(0, 3), instance=st.sampled_from(("i-1", None)))
    def start(self, size: int, instance: str | None) -> None:
        """Begin without a group, or with a stable one."""
        self.context = Context(
            GroupConfig(group_max_size=MAX_SIZE, offsets_retention_check_interval_ms=2**40)
        )
        self.model = Model()
        self.seen_ids = ["spark-ffff"]
        for n in range(size):
            self.newcomer(None if n else instance, OFFERS[0], TIMES[0])
        self.settle()

    # --- both do the same -------------------------------------------------------------------

    def ask(self, request: m.Request, told: Any, *arguments: object) -> int:
        """Send *request*, and tell the model; a moment passes."""
        self.time_passes(1)
        token = self.context.send(request)
        self.model.ask(token, told, *arguments)
        return token

    def who(self, which: int) -> tuple[str, str | None]:
        """Choose a member, or somebody of the past."""
        members = self.model.members
        if which < len(members):
            return members[which].id, members[which].instance
        return self.seen_ids[which % len(self.seen_ids)], None

    def send_join(
        self, id_: str, instance: str | None, offers: Offers, times: tuple[int, int]
    ) -> int:
        """JoinGroup."""
        protocols = tuple(m.JoinProtocol(*offer) for offer in offers)
        request = m.JoinGroupRequest(GROUP, *times, id_, instance, "consumer", protocols, None)
        token = self.ask(request, self.model.join, id_, instance, offers, times)
        known = [*(x.id for x in self.model.members), *self.model.pending]
        self.seen_ids = list(dict.fromkeys([*self.seen_ids, *known]))
        return token

    def send_sync(
        self, id_: str, instance: str | None, generation: int, given: dict[str, list[str]]
    ) -> None:
        """SyncGroup."""
        shares = tuple(m.MemberAssignment(who, assignment(*names)) for who, names in given.items())
        request = m.SyncGroupRequest(GROUP, generation, id_, instance, None, None, shares)
        self.ask(request, self.model.sync, id_, instance, generation, given)

    # --- steps ------------------------------------------------------------------------------

    @rule(instance=st.sampled_from(INSTANCES), offers=OFFER, times=st.sampled_from(TIMES))
    def newcomer(self, instance: str | None, offers: Offers, times: tuple[int, int]) -> None:
        """Come in; a dynamic member first asks for its id. A static one may have been here."""
        token = self.send_join("", instance, offers, times)
        answer = self.context.answers.get(token)
        if isinstance(answer, m.JoinGroupResponse) and answer.error == 79:
            self.send_join(answer.member_id, None, offers, times)

    @rule(offers=USUAL, times=st.sampled_from(TIMES))
    def ask_for_an_id(self, offers: Offers, times: tuple[int, int]) -> None:
        """And do nothing with it yet."""
        self.send_join("", None, offers, times)

    @rule(which=WHO, offers=OFFER, times=st.sampled_from(TIMES))
    def join(self, which: int, offers: Offers, times: tuple[int, int]) -> None:
        """Join again, or with an id of the past."""
        self.send_join(*self.who(which), offers, times)

    @rule(which=WHO, instance=st.sampled_from(INSTANCES))
    def join_as_another(self, which: int, instance: str | None) -> None:
        """Claim an instance id."""
        self.send_join(self.who(which)[0], instance, OFFERS[0], TIMES[0])

    @rule()
    def all_join(self) -> None:
        """What members do when they are told to."""
        for member in list(self.model.members):
            self.send_join(member.id, member.instance, member.offers, member.times)

    @rule(owners=st.lists(st.integers(0, 4), min_size=3, max_size=3))
    def all_sync(self, owners: list[int]) -> None:
        """What members do when their joins are answered; some partitions have no owner."""
        members = list(self.model.members)
        given: dict[str, list[str]] = {}
        for name, owner in zip(PARTITIONS, owners, strict=True):
            if owner < len(members):
                given.setdefault(members[owner].id, []).append(name)
        for member in members:
            shares = given if member.id == self.model.leader else {}
            self.send_sync(member.id, member.instance, self.model.generation, shares)

    @rule(owners=st.lists(st.integers(0, 4), min_size=3, max_size=3))
    def hand_over(self, owners: list[int]) -> None:
        """Rebalance from rest to rest; then everybody tries to commit everything."""
        self.all_join()
        self.all_sync(owners)
        for which in range(len(self.model.members)):
            for name in PARTITIONS:
                self.commit(which, 0, name, 5, "own")

    @rule(
        which=WHO,
        offers=OFFER,
        times=st.sampled_from(TIMES),
        leaves=st.booleans(),
        crashes=st.booleans(),
    )
    def restart(
        self, which: int, offers: Offers, times: tuple[int, int], leaves: bool, crashes: bool
    ) -> None:
        """A static member comes back, perhaps configured anew; then perhaps we crash."""
        self.settle()
        static = [member for member in self.model.members if member.instance]
        if not static:
            return
        instance = static[which % len(static)].instance
        if leaves:
            request = m.LeaveGroupRequest(GROUP, (m.LeavingMember("", instance, None),))
            self.model.answers[self.ask(request, self.model.leave, "", instance)] = 0
        self.send_join("", instance, offers, times)
        if crashes:
            self.crash()

    @rule()
    def settle(self) -> None:
        """Come to rest."""
        for _ in range(2):
            if self.model.state == "PreparingRebalance":
                self.all_join()
            for _ in range(3):
                if self.model.state == "PreparingRebalance":
                    self.time_passes(3_000)
            if self.model.state == "CompletingRebalance":
                self.all_sync([0, 1, 2])

    @rule(
        which=WHO,
        ago=AGO,
        owner=st.sampled_from(["me", "me", "nobody"]),
        names=st.lists(st.sampled_from(PARTITIONS), max_size=3),
    )
    def sync(self, which: int, ago: int, owner: str, names: list[str]) -> None:
        """Sync alone, perhaps with nonsense."""
        id_, instance = self.who(which)
        given = {id_ if owner == "me" else owner: names}
        self.send_sync(id_, instance, self.model.generation - ago, given)

    @rule(which=WHO, ago=AGO, instance=st.sampled_from(("own", "own", "i-1", None)))
    def beat(self, which: int, ago: int, instance: str | None) -> None:
        """Give a sign of life, perhaps under a false name."""
        id_, own = self.who(which)
        instance, generation = own if instance == "own" else instance, self.model.generation - ago
        request = m.HeartbeatRequest(GROUP, generation, id_, instance)
        self.ask(request, self.model.beat, id_, instance, generation)

    @rule(which=WHO, is_operator=st.booleans(), is_static=st.booleans())
    def leave(self, which: int, is_operator: bool, is_static: bool) -> None:
        """Leave, or be removed by an operator, who knows the instance id."""
        id_, instance = self.who(which)
        instance = instance if is_static else None
        id_ = "" if is_operator else id_
        request = m.LeaveGroupRequest(GROUP, (m.LeavingMember(id_, instance, None),))
        token = self.ask(request, self.model.leave, id_, instance)
        left = self.context.answer(token, m.LeaveGroupResponse).members[0]
        assert self.model.answers.pop(token) == left.error
        self.model.answers[token] = 0

    @rule(
        which=WHO,
        ago=st.sampled_from([0, 0, 0, 1, 2, "none"]),
        name=st.sampled_from(PARTITIONS),
        offset=st.integers(0, 99),
        instance=st.sampled_from(("own", "own", "i-1", None)),
    )
    def commit(
        self, which: int, ago: int | str, name: str, offset: int, instance: str | None
    ) -> None:
        """Commit, perhaps with a generation of the past."""
        id_, own = self.who(which)
        instance = own if instance == "own" else instance
        generation = -1 if isinstance(ago, str) else max(self.model.generation - ago, 0)
        items = (m.PartitionCommit(int(name[-1]), offset, -1, None, None),)
        topics = (m.TopicCommit(name[:-2], items),)
        request = m.OffsetCommitRequest(GROUP, generation, id_, instance, topics)
        token = self.ask(request, self.model.commit, id_, instance, generation, name, offset)
        answer = self.context.answer(token, m.OffsetCommitResponse)
        error = answer.error or answer.topics[0].partitions[0].error
        assert (self.model.answers[token], token) == (error, token)
        self.model.answers[token] = answer.error

    @rule(by_ms=st.sampled_from([1_009, 4_001, 9_001, 11_003, 16_001, 62_003]))
    def time_passes(self, by_ms: int) -> None:
        """Deadlines pass."""
        self.context.advance(by_ms)
        self.model.advance(by_ms)

    @rule(by_ms=st.sampled_from([9_001, 16_001, 62_003]), which=WHO)
    def time_passes_and_most_are_alive(self, by_ms: int, which: int) -> None:
        """All but one give signs of life."""
        for _ in range(by_ms // 3_000):
            for n in range(len(self.model.members)):
                if n != which:
                    self.beat(n, 0, "own")
            self.time_passes(3_000)

    @rule()
    def crash(self) -> None:
        """Lose all soft state."""
        self.context.crash()
        self.model.reload()

    # --- what must be the same --------------------------------------------------------------

    @invariant()
    def both_say_the_same(self) -> None:
        """Every answer so far, and what operators see."""
        model, context = self.model, self.context
        answers = {token: answer.error for token, answer in context.answers.items()}  # type: ignore[attr-defined]  # all of these have one
        assert model.answers == answers
        described = context.describe()
        if not model.exists:
            assert described.state == "Dead"
            return
        group = context.shard._core.groups[GROUP]
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
            [(m.member_id, m.group_instance_id) for m in described.members],
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


TestComparison = Comparison.TestCase
TestComparison.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    suppress_health_check=list(HealthCheck),
)


def test_the_nightly_run_is_long_enough() -> None:
    """5,000 histories of 100 steps find what 300 of 30 don't."""
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    found = re.search(r"EXAMPLES_FACTOR_NIGHTLY \?= (\d+)", makefile)

    assert found is not None
    assert EXAMPLES * int(found[1]) >= 5_000
