"""What changes of topics do to groups: who rebalances, who does not, and the end of offsets."""

from collections.abc import Iterable, Iterator
from unittest import mock

import pytest
from hypothesis import given, strategies as st

from coordinator.group.core import GroupConfig, Now, Outcome
from coordinator.group.maintenance import SLICE
from coordinator.group.records import GroupMetadata, OffsetRemoved
from coordinator.group.registry import Registry
from coordinator.group.shard import GroupShard
from protocol.messages import OffsetDeleteRequest, SyncGroupRequest, TopicPartitions
from tests.group.context import GROUP, Context, assignment, subscription
from tests.group.topics_context import TopicsContext


@pytest.fixture(autouse=True, params=[100, 0], ids=["changes walked", "topics looked up"])
def _from_either_side(request: pytest.FixtureRequest) -> Iterator[None]:
    """Few changes are looked at one by one; of many, those of the group's own topics."""
    with mock.patch("coordinator.group.rebalance.CHANGES_WALKED", request.param):
        yield


class Readers(TopicsContext):
    """A group of one member, which subscribes to a list, and maybe to a pattern."""

    def __init__(self) -> None:
        super().__init__(GroupConfig(group_initial_rebalance_delay_ms=0))
        self.member = ""

    def run(
        self, topics: Iterable[str] = (), owns: Iterable[str] = (), pattern: str | None = None
    ) -> None:
        """Bring the group to Stable."""
        if not self.member:
            self.member = self.new_id()
        self.rejoin(topics, pattern)
        self.assign(owns)

    def rejoin(self, topics: Iterable[str], pattern: str | None = None) -> None:
        """Let the member join; its generation opens."""
        self.join(self.member, protocols={"range": subscription(*topics)}, pattern=pattern)
        self.advance(0)

    def assign(self, owns: Iterable[str] = ()) -> None:
        """Let the member sync."""
        self.sync(self.member, self.generation, {self.member: assignment(*owns)})

    def why(self) -> str:
        """Return why the group rebalances now, "" if it is Stable."""
        self.advance(0)
        if self.state == "Stable":
            return ""
        assert self.state == "PreparingRebalance"
        event = self.events_named("group.rebalance_started")[-1]
        assert event["trigger"] == "topics changed"
        return str(event["detail"])


def test_a_subscribed_topic_that_grows_rebalances_the_group() -> None:
    """Nobody reads the new partition before."""
    context = Readers()
    context.register({"flights": 6})
    context.run(["flights"])

    assert context.why() == ""

    context.register({"flights": 7})
    context.register({"flights": 8})

    assert context.why() == "topic flights grew from 6 to 8"


def test_a_topic_that_nobody_subscribes_to_disturbs_nobody() -> None:
    """Also not later: the group has seen the change."""
    context = Readers()
    context.run(["flights"])
    context.register({"trains": 6})
    context.register({"trains": 7})
    context.delete_topics("trains")

    assert context.why() == ""
    assert context.shard.groups[GROUP].topics_version == 3


def test_a_group_notes_no_change_that_the_log_may_lose() -> None:
    """The group's own log may have the note already, and another change then take the number."""
    context, elsewhere = Readers(), Readers()
    context.register({"flights": 6})
    context.run(["flights"])
    context.register({"trains": 1})
    context.is_held = True
    context.register({"planes": 1})

    assert context.why() == ""
    assert context.shard.groups[GROUP].topics_version == 2

    context.run(["flights"])

    assert context.shard.groups[GROUP].topics_version == 2

    elsewhere.register({"flights": 6})
    elsewhere.register({"trains": 1})
    elsewhere.register({"flights": 8})
    context.topic_records = elsewhere.topic_records
    context.crash()

    assert context.why() == "topic flights grew from 6 to 8"


def test_a_group_rebalances_for_no_change_that_the_log_may_lose() -> None:
    """It would take another one of that number for one that it has rebalanced for."""
    context = Readers()
    context.run(["flights"])
    context.is_held = True
    context.register({"flights": 6})

    assert context.why() == ""

    context.is_held = False
    context.tell()
    context.is_held = True
    context.register({"flights": 8})

    assert context.why() != ""
    assert context.shard.groups[GROUP].topics_triggered == 1


def test_hosts_and_end_offsets_alone_rebalance_nobody() -> None:
    """They change where to read best, and how far behind one is."""
    context = Readers()
    context.register({"flights": 6})
    context.run(["flights"])
    context.register({"flights": 6}, {0: ("a",)})
    context.report("flights", {0: 7})

    assert context.why() == ""


def test_a_subscribed_topic_that_appears_rebalances_the_group() -> None:
    """The member waits for it."""
    context = Readers()
    context.run(["flights"])
    context.register({"flights": 6})

    assert context.why() == "topic flights is new, with 6 partitions"


@pytest.mark.parametrize("crash", [False, True], ids=["running", "after a crash"])
def test_a_topic_is_no_news_to_who_owns_all_of_it(crash: bool) -> None:
    """Its leader knew before the registry, and may have told it: that must not go in a circle."""
    context = Readers()
    context.register({"other": 1})
    context.run(["flights"])
    context.rejoin(["flights"])
    context.register({"flights": 2})  # As the leader does before it assigns.
    context.assign(["flights-0", "flights-1"])

    assert context.why() == ""

    context.register({"flights": 1, "other": 2})
    if crash:
        context.crash()

    assert context.why() == ""

    context.register({"flights": 3})

    assert context.why().startswith("topic flights ")


def test_a_topic_that_was_made_anew_is_news_to_who_owns_all_of_it() -> None:
    """What it has committed is gone, and must not be written again."""
    context = Readers()
    context.register({"flights": 2})
    context.run(["flights"])
    context.rejoin(["flights"])
    context.delete_topics("flights")
    context.topics.forget(["flights"])
    context.register({"flights": 2})
    context.assign(["flights-0", "flights-1"])

    assert context.why() == "topic flights was deleted and made anew, with 2 partitions"


def test_a_deleted_topic_rebalances_who_subscribes_to_it_or_owns_it() -> None:
    """Its reader must stop."""
    context = Readers()
    context.register({"flights": 6, "trains": 1})
    context.run(["flights"], ["trains-0"])
    context.delete_topics("trains")

    assert context.why() == "topic trains was deleted"

    context.run(["flights"])
    context.delete_topics("flights")

    assert context.why() == "topic flights was deleted"


def test_a_new_topic_that_a_pattern_matches_rebalances_the_group() -> None:
    """Whole names only."""
    context = Readers()
    context.register({"flights-eu": 6})
    context.run(["flights-eu"], pattern="flights-.*")
    context.register({"my-flights-us": 1, "flights": 1})

    assert context.why() == ""

    context.register({"flights-us": 6})

    assert context.why() == "topic flights-us is new, with 6 partitions"

    context.run(["flights-eu", "flights-us"], pattern="flights-.*")

    assert context.why() == ""


def test_a_topic_that_comes_between_a_members_look_and_its_join_is_not_missed() -> None:
    """The member resolves its pattern on its own, before it joins."""
    context = Readers()
    context.register({"flights-eu": 6})
    context.member = context.new_id()
    context.register({"flights-us": 6})
    context.rejoin(["flights-eu"], "flights-.*")
    context.assign()

    assert context.why() == "topic flights-us is new, with 6 partitions"


def test_a_member_that_never_takes_a_topic_up_does_not_make_the_group_spin() -> None:
    """One rebalance for each change; the next change is another one."""
    context = Readers()
    context.run(["flights-eu"], pattern="flights-.*")
    context.register({"flights-us": 6})

    assert context.why()

    context.register({"unrelated": 1})
    context.run(["flights-eu"], pattern="flights-.*")

    assert context.why() == ""

    context.crash()

    assert context.why() == ""

    context.register({"flights-uk": 6})

    assert context.why() == "topic flights-uk is new, with 6 partitions"


def test_a_pattern_member_that_joins_a_group_of_lists_later_is_brought_up_to_date() -> None:
    """That the others were not concerned by a change says nothing of it."""
    context = Readers()
    context.run(["trains"])
    context.register({"flights-us": 6})

    assert context.why() == ""

    context.rejoin(["trains"], "flights-.*")
    context.assign()

    assert context.why() == "topic flights-us is new, with 6 partitions"


def test_a_change_during_the_sync_phase_counts_when_the_group_is_stable() -> None:
    """The leader may have asked for the topics before it."""
    context = Readers()
    context.register({"flights": 6})
    context.member = context.new_id()
    context.rejoin(["flights"])
    context.register({"flights": 8})
    context.advance(0)

    assert context.state == "CompletingRebalance"

    context.assign()

    assert context.why() == "topic flights grew from 6 to 8"


def test_a_change_during_the_join_phase_needs_no_other_rebalance() -> None:
    """The leader asks for the topics when the phase is over."""
    context = Readers()
    context.register({"flights": 6})
    context.run(["flights"])
    context.register({"flights": 7})

    assert context.why()

    context.register({"flights": 8})
    context.run(["flights"])

    assert context.why() == ""


@pytest.mark.parametrize(
    ("is_compacted", "why"),
    [(False, "topic flights grew from 6 to 8"), (True, "topic flights has 8 partitions now")],
)
@pytest.mark.parametrize("told", [False, True])
def test_a_crash_between_the_change_and_the_group_loses_nothing(
    told: bool, is_compacted: bool, why: str
) -> None:
    """The group's record says what its assignment knew."""
    context = Readers()
    context.register({"flights": 6})
    context.run(["flights"])
    context.register({"flights": 8})
    if told:
        context.advance(0)
    context.crash(is_compacted=is_compacted)

    assert context.why() == why

    context.run(["flights"])
    context.crash()

    assert context.why() == ""


def test_a_group_whose_log_knew_of_a_change_that_is_lost_sees_the_next_one() -> None:
    """The two lie in logs of their own; the next change has the number of the one that is lost."""
    context = Readers()
    context.register({"flights": 6})
    kept = len(context.topic_records)
    context.run(["flights"])
    context.register({"flights": 8})
    context.run(["flights"])
    del context.topic_records[kept:]
    context.crash()
    assert context.why() == ""
    context.register({"flights": 7})

    assert context.why() == "topic flights grew from 6 to 7"


@pytest.mark.parametrize(
    ("is_compacted", "why"),
    [
        (False, "topic flights was deleted"),
        (True, "topic flights is not registered, and topics were deleted"),
    ],
)
def test_a_topic_that_was_deleted_and_forgotten_before_a_crash_still_counts(
    is_compacted: bool, why: str
) -> None:
    """If the log lost its deletion, only the version of the last one tells of that."""
    context = Readers()
    context.register({"flights": 6})
    context.run(["flights"], ["flights-0"])
    context.delete_topics("flights")
    context.advance(0)
    context.crash(is_compacted=is_compacted)

    assert context.why() == why

    context.run(["flights"])
    context.crash(is_compacted=is_compacted)

    assert context.why() == ""


@pytest.mark.parametrize(("told", "is_compacted"), [(False, False), (False, True), (True, True)])
@pytest.mark.parametrize(
    ("registered", "why"),
    [
        (False, "topic flights is not registered, and topics were deleted"),
        (True, "topic flights has 1 partitions now"),
    ],
)
def test_a_deletion_of_another_topic_rebalances_a_group_only_if_the_log_lost_it_first(
    registered: bool, why: str, told: bool, is_compacted: bool
) -> None:
    """A group that was told while the log had the deletion has that in its own record."""
    context = Readers()
    context.run(["flights"], ["flights-0"])
    if registered:
        context.register({"flights": 1})
    context.register({"trains": 6})
    context.delete_topics("trains")
    context.topics.loaded(context.now)  # As at a change of leaders.
    if told:
        assert context.why() == ""
    context.crash(is_compacted=is_compacted)

    assert context.why() == (why if is_compacted and not told else "")


def test_a_group_that_reads_an_unregistered_topic_is_left_alone() -> None:
    """Registration is optional: who knows the partitions itself needs no registry."""
    context = Readers()
    context.run(["flights"])
    context.register({"trains": 6})
    context.crash()

    assert context.why() == ""


def test_subscriptions_that_cannot_be_read_are_not_guessed_at() -> None:
    """Only what is assigned can be known to be gone."""
    context = Readers()
    context.register({"flights": 6})
    context.member = context.new_id()
    context.join(context.member, protocols={"range": b"\x00"})
    context.advance(0)
    context.assign(["flights-0"])
    context.register({"flights": 8})

    assert context.why() == ""

    context.delete_topics("flights")

    assert context.why() == "topic flights was deleted"


def test_a_pattern_counts_where_the_subscription_itself_cannot_be_read() -> None:
    """It is a text of its own in the request."""
    context = Readers()
    context.register({"flights": 6})
    context.member = context.new_id()
    context.join(context.member, protocols={"range": b"\x00"}, pattern="f.*")
    context.advance(0)
    context.assign(["flights-0"])

    assert context.why() == "topic flights is new, with 6 partitions"

    context.join(context.member, protocols={"range": b"\x00"}, pattern="f.*")
    context.advance(0)
    context.assign(["flights-0"])

    assert context.why() == ""

    context.register({"flights": 8})

    assert context.why() == "topic flights grew from 6 to 8"


def test_many_changes_are_told_in_short() -> None:
    """The reason is for people."""
    context = Readers()
    names = [f"t{n}" for n in range(9)]
    context.run(names)
    context.register(dict.fromkeys(names, 1))

    assert context.why() == (
        "topic t0 is new, with 1 partitions; topic t1 is new, with 1 partitions; "
        "topic t2 is new, with 1 partitions and more"
    )


def test_the_version_that_an_assignment_knows_is_in_the_groups_record() -> None:
    """Also one that was lowered: the member has not seen the newest topics."""
    context = Readers()
    context.register({"flights-a": 1, "x": 1, "flights-b": 1, "y": 1})
    context.member = context.new_id()
    context.rejoin(["flights-a"], "flights-.*")
    context.assign()
    (record,) = [r for r in context.records if type(r) is GroupMetadata and r.members]

    assert (record.topics_version, record.members[0].topic_pattern) == (2, "flights-.*")


# --- commits and the purge ------------------------------------------------------------------


def test_a_commit_of_a_deleted_topic_or_of_a_partition_that_is_not_there_is_refused() -> None:
    """For this partition only; a topic that was never registered is accepted."""
    context = TopicsContext()
    context.register({"t": 2, "gone": 1})
    context.commit("", -1, "gone-0", 5)
    context.delete_topics("gone")
    offsets = [(name, 1, None, None) for name in ("t-1", "t-2", "gone-0", "other-7")]
    response = context.commit_raw("", -1, offsets)

    assert response.error == 0
    assert [p.error for topic in response.topics for p in topic.partitions] == [0, 3, 3, 0]

    context.register({"t": 3})

    assert context.commit("", -1, "t-2") == 0


def test_a_partition_that_is_not_there_comes_before_all_other_errors_of_it() -> None:
    """Kafka asks its metadata first."""
    context = TopicsContext()
    context.register({"t": 1})

    assert context.commit("", -1, "t-1", metadata="x" * 5_000, expected=9) == 3


def test_a_deleted_topics_offsets_become_tombstones_in_every_group() -> None:
    """And those of other topics stay."""
    context = TopicsContext()
    context.register({"t": 9})
    for group in ("a", "b"):
        for name in ("t-0", "t-8", "u-0"):
            context.commit("", -1, name, group=group)
    context.delete_topics("t")
    context.advance(0)

    removed = [r for r in context.records if type(r) is OffsetRemoved]
    assert removed == [OffsetRemoved(g, "t", p) for g in ("a", "b") for p in (0, 8)]
    assert [context.offset(name, "a").offset for name in ("t-0", "t-8", "u-0")] == [-1, -1, 7]
    assert "t" not in context.topics.registry.topics
    assert [e["count"] for e in context.events_named("offsets.removed")] == [2, 2]


def commit_many(context: Context, topic: str, count: int, group: str) -> None:
    """Commit so many partitions of a topic."""
    offsets = [(f"{topic}-{n}", n, None, None) for n in range(count)]
    assert context.commit_raw("", -1, offsets, group).error == 0


def test_a_purge_is_done_in_slices_and_is_over_when_all_are() -> None:
    """So that a topic of 100,000 partitions holds nobody up."""
    context = TopicsContext()
    count = 2 * SLICE + 10
    context.register({"t": count})
    commit_many(context, "t", count, "a")
    context.delete_topics("t")
    sizes = []
    while context.shard.next_deadline_ms() == context.mono_ms:
        assert context.shard.take_purged() == []
        outcomes = context.shard.expire(context.now)
        sizes.append(sum(len(outcome.records) for outcome in outcomes))
        for outcome in outcomes:
            context.take(outcome)
        context.check()

    assert (sum(sizes), len(sizes)) == (count, 3)
    assert max(sizes) <= SLICE
    assert (context.shard.take_purged(), context.shard.take_purged()) == (["t"], [])


def test_a_group_that_is_deleted_between_two_slices_is_left_alone() -> None:
    """A new one of that name starts without the old one's tombstones."""
    context = TopicsContext()
    count = SLICE + 10
    context.register({"t": count})
    commit_many(context, "t", count, "a")
    context.delete_topics("t")
    for outcome in context.shard.expire(context.now):
        context.take(outcome)
    outcome, error = context.shard.delete_group("a", context.now)
    assert error == 0
    context.take(outcome)
    context.commit("", -1, "u-0", group="a")
    written = len(context.records)
    context.advance(0)

    assert context.offset("u-0", "a").offset == 7
    assert "t" not in context.topics.registry.topics
    assert len(context.records) == written


def test_what_an_operator_removes_between_two_slices_is_not_removed_twice() -> None:
    """One tombstone is enough."""
    context = TopicsContext()
    count = SLICE + 10
    context.register({"t": count})
    commit_many(context, "t", count, GROUP)
    context.delete_topics("t")
    for outcome in context.shard.expire(context.now):
        context.take(outcome)
    context.send(
        OffsetDeleteRequest(GROUP, (TopicPartitions("t", tuple(range(count - 5, count))),))
    )
    context.advance(0)

    assert len([r for r in context.records if type(r) is OffsetRemoved]) == count
    assert [e["count"] for e in context.events_named("offsets.removed")] == [SLICE - 1, 5, 6]


CHANGES = st.lists(
    st.tuples(st.sampled_from(["delete", "grow", "slice"]), st.sampled_from("tuv")), max_size=12
)


@given(st.lists(st.sets(st.sampled_from("tuv")), min_size=1, max_size=30), CHANGES)
def test_a_purge_reaches_every_group(
    groups: list[set[str]], changes: list[tuple[str, str]]
) -> None:
    """Whatever else changes meanwhile, between which slices, and of which groups."""
    with mock.patch("coordinator.group.maintenance.SLICE", 3):
        purge_while_things_change(groups, changes)


def purge_while_things_change(groups: list[set[str]], changes: list[tuple[str, str]]) -> None:
    """Do *changes*, and check what is left in the end."""
    context = TopicsContext()
    counts = dict.fromkeys("tuv", 1)
    context.register(counts)
    for n, topics in enumerate(groups):
        for topic in topics:
            context.commit("", -1, f"{topic}-0", group=f"g{n}")
    deleted = set()
    for what, topic in changes:
        if what == "delete":
            context.delete_topics(topic)
            deleted.add(topic)
        elif what == "grow" and topic not in deleted:
            counts[topic] += 1
            context.register({topic: counts[topic]})
        elif what == "slice":
            for outcome in context.shard.expire(context.now):
                context.take(outcome)
    context.advance(0)

    for n, topics in enumerate(groups):
        left = {t for t in "tuv" if context.offset(f"{t}-0", f"g{n}").offset >= 0}
        assert topics - deleted == left
    assert set(context.topics.registry.topics) == set("tuv") - deleted


def stable_groups(context: Context, count: int) -> list[str]:
    """Return the names of new groups of one member each."""
    names = [f"g{n}" for n in range(count)]
    for name in names:
        member = context.new_id(group=name)
        token = context.join(member, group=name)
        context.advance(0)
        generation = context.joined(token).generation_id
        context.send(SyncGroupRequest(name, generation, member, None, None, None, ()))
        assert context.describe(name).state == "Stable"
    return names


@given(st.integers(1, 12), st.integers(0, 5), st.booleans())
def test_growth_reaches_every_group_exactly_once(
    count: int, slices: int, second_growth: bool
) -> None:
    """In one slice or another, or when the group is loaded after a crash between two."""
    context = TopicsContext(GroupConfig(group_initial_rebalance_delay_ms=0))
    context.register({"flights": 1})
    names = stable_groups(context, count)
    context.events.clear()
    with mock.patch("coordinator.group.maintenance.SLICE", 3):
        context.register({"flights": 2})
        for _ in range(slices):
            for outcome in context.shard.expire(context.now):
                context.take(outcome)
        if second_growth:
            context.register({"flights": 3})
        else:
            context.events.clear()
            context.crash()
        context.advance(0)
    told = [event["group"] for event in context.events_named("group.rebalance_started")]

    assert {context.describe(name).state for name in names} == {"PreparingRebalance"}
    assert sorted(str(group) for group in told) == sorted(names)


def test_a_change_of_topics_is_told_in_slices_whatever_the_patterns_cost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Groups with 32 nasty patterns each made commits wait for seconds after one new topic."""
    context = Readers()
    context.register({"t0": 1})
    context.run(["t0"], owns=["t0-0"], pattern="(?:[a-z0-9]?.?){40}0")
    costs: list[int] = []
    match, expire = Registry.match, GroupShard.expire

    def matched(registry: Registry, pattern: str) -> Iterator[int]:
        for cost_us in match(registry, pattern):
            costs[-1] += cost_us
            yield cost_us

    def expired(shard: GroupShard, now: Now) -> list[Outcome]:
        costs.append(0)
        return expire(shard, now)

    monkeypatch.setattr(Registry, "match", matched)
    monkeypatch.setattr(GroupShard, "expire", expired)
    context.register({f"t{number}": 1 for number in range(300)})

    assert "topic t10 is new" in context.why()
    assert sum(costs) > 100_000
    assert max(costs) < 2_500
