"""What is whose: each principal's part of the totals, its limits, and that all of it is counted."""

import itertools
from collections.abc import Iterable
from typing import Any, Final

import pytest
from hypothesis import given, strategies as st

from coordinator.group.core import Caller, GroupConfig, Now, Outcome
from coordinator.group.maintenance import MEASURE_INTERVAL_MS
from coordinator.group.node_records import pack as pack_node
from coordinator.group.node_shard import NodeShard
from coordinator.group.records import GroupOwned, OffsetsCommitted, from_entry, pack
from coordinator.group.registry import Registry
from coordinator.group.shard import GroupShard
from coordinator.group.totals import Share, Totals
from protocol import messages as m
from protocol.acls import ANONYMOUS
from protocol.errors import ErrorCode
from tests.group.context import compacted, subscription
from tests.group.node_context import last_per_key, roundtrip
from tests.packed import entry_of, node_entry

ALICE: Final = "User:alice"
BOB: Final = "User:bob"
QUOTA: Final = ErrorCode.QUOTA_EXCEEDED
START: Final = Now(1_000_000, 1_700_000_000_000)


class Shares:
    """A node's own shard and one of groups, as principals use them."""

    def __init__(
        self,
        group_records: Iterable[Any] = (),
        node_records: Iterable[Any] = (),
        now: Now = START,
    ) -> None:
        self.now = now
        self.totals = Totals(has_principals=True)
        self.node = NodeShard(Registry(self.totals))
        config = GroupConfig(group_initial_rebalance_delay_ms=0)
        numbers = itertools.count()
        self.groups = GroupShard(
            config=config, new_uuid=lambda: f"{next(numbers)}", registry=self.node.registry
        )
        self.group_records = list(group_records)
        self.node_records = list(node_records)
        self.answers: dict[object, Any] = {}
        self._ends = itertools.count(1)
        for record in self.node_records:
            self.node.replay(roundtrip(record))
        for record in self.group_records:
            self.groups.replay(from_entry(*entry_of(record)))
        self.node.loaded(self.now)
        self._take(self.groups.loaded(self.now))
        self.advance(0)

    def _take(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self.group_records += outcome.records
            if outcome.records:
                self.groups.kept(outcome.group_id, next(self._ends))
            for token, answer, _, gated, member in outcome.replies:
                self.answers[token] = answer
                if gated and member is not None:
                    self.groups.released(member, self.now)

    def ask(self, principal: str, request: m.Request) -> Any:
        """Return the answer to a request; None if it is parked."""
        caller = Caller("client", "10.0.0.1", principal)
        token = object()
        if isinstance(
            request, m.RegisterTopicsRequest | m.DeleteTopicsRequest | m.AlterClientQuotasRequest
        ):
            outcome = self.node.handle(request, token, caller, self.now)
            self.node_records += outcome.records
            changes = self.node.take_changes(0)
            self.groups.topics_changed([c.topic for c in changes if not c.after], self.now)
            return outcome.replies[0][1]
        self._take([self.groups.handle(request, token, caller, self.now)])
        return self.answers.pop(token, None)

    def advance(self, by_ms: int) -> None:
        """Let time pass."""
        until_ms = self.now.mono_ms + by_ms
        while (due_ms := self.groups.next_deadline_ms()) is not None and due_ms <= until_ms:
            at_ms = max(due_ms, self.now.mono_ms)
            self.now = Now(at_ms, self.now.wall_ms + at_ms - self.now.mono_ms)
            self._take(self.groups.expire(self.now))
            forgotten = self.node.forget(self.groups.take_purged())
            self.node_records += forgotten.records
        self.now = Now(until_ms, self.now.wall_ms + until_ms - self.now.mono_ms)

    # --- what somebody does -----------------------------------------------------------------

    def limit(self, principal: str, **quotas: int | None) -> None:
        """Change quotas."""
        changes = tuple(m.QuotaChange(key, value) for key, value in quotas.items())
        asked = m.AlterClientQuotasRequest((m.AlteredPrincipal(principal, changes),))
        assert [one.error for one in self.ask("User:admin", asked).results] == [0]

    def commit(self, principal: str, group: str, *partitions: int, text: str | None = None) -> int:
        """Commit offsets of a topic from outside of the group; return the first error."""
        items = tuple(
            m.PartitionCommit(p, 1_000_000_000 + p, -1, text and f"{text}{p}", None)
            for p in partitions
        )
        asked = m.OffsetCommitRequest(group, -1, "", None, (m.TopicCommit("t", items),))
        return m.first_error(self.ask(principal, asked))

    def join(self, principal: str, group: str, member_id: str = "", **kwargs: Any) -> Any:
        """Send a JoinGroup; return its answer, None if it waits."""
        protocols = (m.JoinProtocol("range", subscription("t")),)
        instance_id = kwargs.get("instance_id")
        asked = m.JoinGroupRequest(
            group, 10_000, 60_000, member_id, instance_id, "consumer", protocols, None, None
        )
        return self.ask(principal, asked)

    def register(self, principal: str, topic: str, partitions: int = 1, **kwargs: bool) -> Any:
        """Register a topic; return what came of it."""
        asked = m.RegisterTopicsRequest((m.TopicRegistration(topic, partitions, None),), **kwargs)
        return self.ask(principal, asked).topics[0]

    # --- what is counted --------------------------------------------------------------------

    def used(self, principal: str) -> dict[str, int]:
        """Return what a principal has, as it is counted."""
        share = self.totals.share(principal)
        return {name: share.used(name) for name in Share.RESOURCES if share.used(name)}

    def counted_anew(self) -> dict[str, dict[str, int]]:
        """Return what each principal has, as it lies there; nothing of the log."""
        found: dict[str, dict[str, int]] = {}

        def add(owner: str | None, name: str, count: int) -> None:
            counts = found.setdefault(owner or ANONYMOUS, {})
            counts[name] = counts.get(name, 0) + count

        for group in self.groups.groups.values():
            add(group.owner, "groups", 1)
            add(group.owner, "offsets", group.offset_count)
            for member in (*group.members.values(), *group.pending.values()):
                add(member.principal, "members", 1)
        for topic in self.node.registry.topics.values():
            add(topic.owner, "topics", 1)
            add(topic.owner, "topic_partitions", topic.partition_count)
        return {
            whose: {name: count for name, count in sorted(counts.items()) if count}
            for whose, counts in found.items()
        }

    def check(self) -> None:
        """What is counted is what is there; all shares add up; a replay counts the same."""
        counted = {
            share.principal: {
                name: share.used(name)
                for name in sorted(Totals.RESOURCES)
                if share.used(name) and name != "topic_host_bytes"
            }
            for share in self.totals.shares()
        }
        assert self.counted_anew() == {whose: counts for whose, counts in counted.items() if counts}
        for name in Totals.RESOURCES:
            assert sum(s.used(name) for s in self.totals.shares()) == self.totals.used(name)
        assert all(left <= self.totals.limits[name] for name, left in self.totals.left.items())

    def check_replay(self) -> None:
        """After a crash, with the log compacted or not, everything hard is counted as before."""
        self.advance(200_000)  # Nobody is heard of, so nothing more is written.
        self.advance(MEASURE_INTERVAL_MS)
        self.check()
        logs = (
            (self.group_records, self.node_records),
            (compacted(self.group_records), last_per_key(self.node_records)),
        )
        for group_records, node_records in logs:
            again = Shares(group_records, node_records, self.now)
            again.check()
            names = [name for name in Share.RESOURCES if name != "members"]
            for share in (*self.totals.shares(), *again.totals.shares()):
                mine, other = (
                    self.totals.share(share.principal),
                    again.totals.share(share.principal),
                )
                assert {n: mine.used(n) for n in names} == {n: other.used(n) for n in names}


def test_a_group_belongs_to_who_makes_it() -> None:
    """Whoever commits in it later, and whether a commit, an operator or a member made it."""
    here = Shares()
    assert here.commit(ALICE, "a", 0, 1) == 0
    assert here.commit(BOB, "a", 2) == 0
    assert here.join(BOB, "b").error == ErrorCode.MEMBER_ID_REQUIRED
    altered = (m.AlteredTopic("t", (m.AlteredOffset(0, 1, -1, "", None),)),)
    assert here.ask(BOB, m.AlterOffsetsRequest("c", altered, False, "")).error == 0
    assert here.commit(ANONYMOUS, "d", 0) == 0

    assert {n: c for n, c in here.used(ALICE).items() if n != "log_bytes"} == {
        "groups": 1,
        "offsets": 3,
    }
    assert {n: c for n, c in here.used(BOB).items() if n != "log_bytes"} == {
        "groups": 2,
        "members": 1,
        "offsets": 1,
    }
    owned = [r for r in here.group_records if isinstance(r, GroupOwned)]
    assert owned == [GroupOwned("a", ALICE), GroupOwned("b", BOB), GroupOwned("c", BOB)]
    here.check_replay()


def test_nothing_is_recorded_of_whom_nobody_asks() -> None:
    """An older release can read what such a daemon writes."""
    here = Shares()
    here.commit(ANONYMOUS, "a", 0)
    here.join(ANONYMOUS, "b")
    here.register(ANONYMOUS, "t")

    assert not any(isinstance(record, GroupOwned) for record in here.group_records)
    assert node_entry(here.node_records[0])[1] == 0


def test_each_share_has_its_limits_and_says_which() -> None:
    """What is there goes on, others go on, and who deletes something gets its place back."""
    here = Shares()
    here.limit(ALICE, groups=1, members=1, offsets=3)
    here.limit("", groups=2)
    assert here.commit(ALICE, "a", 0, 1) == 0
    assert here.commit(ALICE, "b", 0) == QUOTA
    assert here.commit(ALICE, "a", 2) == 0
    assert here.commit(ALICE, "a", 3) == QUOTA
    assert here.commit(BOB, "a", 3) == QUOTA  # In her group, so it would be hers.
    assert here.commit(ALICE, "a", 0, 1, 2) == 0
    assert [here.commit(BOB, name, 0) for name in "cde"] == [0, 0, QUOTA]

    refused = here.join(ALICE, "b")
    assert refused.error == QUOTA
    assert refused.message == "User:alice has 1 already, its quota groups is 1"
    assert here.join(ALICE, "a").error == ErrorCode.MEMBER_ID_REQUIRED
    refused = here.join(ALICE, "c")
    assert refused.message == "User:alice has 1 already, its quota members is 1"

    here.groups.delete_group("a", here.now)
    assert here.commit(ALICE, "b", 0) == 0
    here.limit(ALICE, groups=None)
    assert [here.commit(ALICE, name, 0) for name in "fg"] == [0, QUOTA]


def test_topics_belong_to_who_registers_them() -> None:
    """A consumer that only tells of one has it until its source comes; growth is the owner's."""
    here = Shares()
    here.limit(ALICE, topics=2, topic_partitions=10)
    assert here.register(BOB, "t", 4, is_observed=True).error == 0
    assert here.used(BOB)["topic_partitions"] == 4
    assert here.register(ALICE, "t", 6).error == 0
    assert here.used(BOB) == {}
    assert here.register(BOB, "t", 11).message == (
        "User:alice has 6 already, its quota topic_partitions is 10"
    )
    assert here.register(BOB, "t", 10).error == 0
    assert here.used(ALICE)["topic_partitions"] == 10
    assert here.register(ALICE, "u").error == QUOTA
    here.ask(BOB, m.DeleteTopicsRequest(("t",)))
    assert here.used(ALICE)["topics"] == 1
    here.advance(0)
    assert here.used(ALICE) == {}
    here.check_replay()


def test_an_empty_group_follows_its_first_member() -> None:
    """Whoever gets another name takes it along; with no room for it, it stays where it is."""
    here = Shares()
    here.commit(ANONYMOUS, "a", 0, 1)
    here.commit(ANONYMOUS, "b", 0, 1)
    here.limit(ALICE, offsets=3)
    for group in "ab":
        member_id = here.join(ALICE, group).member_id
        here.join(ALICE, group, member_id)
    assert (here.groups.groups["a"].owner, here.groups.groups["b"].owner) == (ALICE, None)
    assert here.used(ALICE)["offsets"] == 2
    second = here.join(BOB, "a").member_id
    here.join(BOB, "a", second)
    assert here.groups.groups["a"].owner == ALICE
    here.check()

    here.advance(120_000)  # Nobody is heard of again.
    here.join(BOB, "a", here.join(BOB, "a").member_id)
    assert here.groups.groups["a"].owner == BOB
    assert {n for n in here.used(ALICE) if n != "log_bytes"} == set()
    here.check_replay()


def test_an_instance_that_another_principal_takes_over_is_his_member() -> None:
    """The anonymous one's, that is; others' are refused before."""
    here = Shares()
    here.join(ANONYMOUS, "a", instance_id="i")
    here.advance(10)
    here.join(ALICE, "a", instance_id="i")
    assert (here.used(ALICE)["members"], here.used(ANONYMOUS).get("members")) == (1, None)
    here.check()


def test_who_takes_too_much_of_the_log_gets_nothing_new() -> None:
    """Within ten seconds; what is there goes on, with texts as long as they are, and shrinks."""
    here = Shares()
    here.limit(ALICE, log_bytes=5_000)
    assert here.commit(ALICE, "a", 0, 1, text="x" * 3_000) == 0
    assert here.commit(ALICE, "a", 2, text="x") == 0
    here.advance(MEASURE_INTERVAL_MS)
    used = here.used(ALICE)["log_bytes"]
    assert used > 6_000

    assert here.commit(ALICE, "a", 3) == QUOTA
    assert here.commit(ALICE, "b", 0) == QUOTA
    assert here.commit(ALICE, "a", 2, text="xx") == QUOTA
    assert here.commit(ALICE, "a", 0, 2, text="x") == 0
    refused = here.join(ALICE, "b")
    assert refused.message == f"User:alice has {used} already, its quota log_bytes is 5000"
    assert here.register(ALICE, "t").error == QUOTA
    assert here.commit(BOB, "c", 0, text="x" * 4_000) == 0

    here.advance(MEASURE_INTERVAL_MS)
    assert here.used(ALICE)["log_bytes"] < 5_000
    assert here.commit(ALICE, "a", 3) == 0
    here.limit(ALICE, log_bytes=1)
    assert here.commit(ALICE, "a", 4) == QUOTA
    here.limit(ALICE, log_bytes=None)
    assert here.commit(ALICE, "a", 4) == 0


@pytest.mark.parametrize(
    "text", [None, "offset metadata of some sixty characters, as many write it"]
)
@pytest.mark.parametrize("partitions", [1, 4, 200])
def test_what_is_counted_of_the_log_is_about_what_it_takes(
    text: str | None, partitions: int
) -> None:
    """Of a compacted one: else a quota in bytes would be one in some other unit."""
    here = Shares()
    for number in range(20):
        group = f"streaming-job-{number}"
        member_id = here.join(ALICE, group).member_id
        here.join(ALICE, group, member_id)
        here.advance(10)
        given = (m.MemberAssignment(member_id, b"a" * 100),)
        here.ask(ALICE, m.SyncGroupRequest(group, 1, member_id, None, None, None, given))
        here.ask(ALICE, m.LeaveGroupRequest(group, (m.LeavingMember(member_id, None, None),)))
        here.commit(ALICE, group, *range(partitions), text=text)
        here.register(ALICE, f"topic-{number}", 1)
    here.advance(MEASURE_INTERVAL_MS)
    # No offset was committed twice, and an entry of many partitions stays one.
    offsets = [r for r in here.group_records if isinstance(r, OffsetsCommitted)]
    rest = [r for r in compacted(here.group_records) if not isinstance(r, OffsetsCommitted)]
    packed_bytes = len(pack([*offsets, *rest])[1])
    packed_bytes += len(pack_node(last_per_key(here.node_records))[1])
    assert packed_bytes / 2 < here.used(ALICE)["log_bytes"] < packed_bytes * 2


Step = tuple[str, str, int]
STEPS: Final = st.tuples(
    st.sampled_from(
        ["commit", "join", "delete", "register", "observe", "drop", "time", "limit", "leave"]
    ),
    st.sampled_from([ALICE, BOB, ANONYMOUS]),
    st.integers(0, 5),
)


def take(here: Shares, ids: dict[tuple[str, str], str], step: Step) -> None:
    """Do one thing that somebody may do."""
    what, who, number = step
    name = "abc"[number % 3]
    if what == "commit":
        here.commit(who, name, number, number + 1, text="x" * 100 * number or None)
    elif what == "join":
        answer = here.join(who, name, ids.pop((who, name), ""))
        if answer is not None and answer.error == ErrorCode.MEMBER_ID_REQUIRED:
            ids[who, name] = answer.member_id
    elif what == "leave":
        group = here.groups.groups.get(name)
        leaving = () if group is None else tuple(group.members)[:1]
        members = tuple(m.LeavingMember(one, None, None) for one in leaving)
        here.ask(who, m.LeaveGroupRequest(name, members))
    elif what == "delete":
        outcome, _ = here.groups.delete_group(name, here.now)
        here.group_records += outcome.records
    elif what in {"register", "observe"}:
        here.register(who, name, number, is_observed=what == "observe")
    elif what == "drop":
        here.ask(who, m.DeleteTopicsRequest((name,)))
    elif what == "time":
        here.advance(5_000 * number)
    else:
        here.limit(who, groups=number or None, offsets=number * 3 or None, log_bytes=900)


@given(st.lists(STEPS, max_size=40))
def test_shares_are_counted_live_as_they_are_replayed(steps: list[Step]) -> None:
    """Of each principal, whatever is made, moved and removed; and they add up to the totals."""
    here = Shares()
    ids: dict[tuple[str, str], str] = {}
    for step in steps:
        take(here, ids, step)
        here.check()
    here.check_replay()
