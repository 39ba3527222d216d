"""What operators look at and change: groups, members, offsets and lag."""

import pytest
from hypothesis import given, strategies as st
from msgspec import structs

from coordinator.group.core import GroupConfig
from coordinator.group.records import GroupDeleted, GroupRetention, OffsetRemoved
from coordinator.group.shard import GroupShard
from protocol.consumer import Subscription, decode_subscription, encode_subscription
from protocol.messages import (
    AlterGroupRetentionRequest,
    DescribedGroup,
    DrainedMember,
    DrainMemberResponse,
    LeavingMember,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    PartitionLag,
    PartitionResult,
    TopicPartitions,
    TopicResult,
)
from protocol.partition import TopicPartition
from tests.group.context import (
    GROUP,
    REBALANCE_MS,
    Context,
    assignment,
    compacted,
    roundtrip,
    subscription,
)
from tests.group.topics_context import TopicsContext


def test_an_unknown_group_is_dead_with_an_error() -> None:
    """A typing mistake must not look like an idle group."""
    assert (
        DescribedGroup(69, "Group etl not found.", GROUP, "Dead", "", "", -1, ())
        == Context().describe()
    )


def test_a_stable_group_shows_everything() -> None:
    """Who is in it, and what each owns."""
    context = Context()
    members = context.stable_group(2)
    group = context.describe()

    assert (
        group.error,
        group.message,
        group.state,
        group.protocol_type,
        group.protocol_name,
        group.generation_id,
    ) == (0, None, "Stable", "consumer", "range", 1)
    assert [
        (m, None, f"spark{n}", "10.0.0.1", subscription("flights"), assignment(f"flights-{n}"))
        for n, m in enumerate(members)
    ] == [structs.astuple(member) for member in group.members]


def test_a_group_in_a_rebalance_shows_the_old_assignments_without_metadata() -> None:
    """What they own now is still true; what they will agree on is open."""
    context = Context()
    members = context.stable_group(2)
    context.join(members[1], protocols={"range": subscription("trains")})
    group = context.describe()

    assert (
        group.state,
        group.protocol_name,
        [member.metadata for member in group.members],
    ) == ("PreparingRebalance", "", [b"", b""])
    assert [assignment("flights-0"), assignment("flights-1")] == [
        member.assignment for member in group.members
    ]


def test_ids_that_were_given_out_are_not_shown() -> None:
    """They are no members."""
    context = Context()
    context.stable_group(1)
    context.new_id()

    assert len(context.describe().members) == 1


@pytest.mark.parametrize(
    ("states", "types", "expected"),
    [
        ((), (), ["etl", "other", "simple"]),
        (("stable",), (), ["etl"]),
        (("EMPTY", "Stable"), ("CLASSIC",), ["etl", "other", "simple"]),
        (("nonsense",), (), []),
        ((), ("consumer",), []),
    ],
)
def test_lists_are_filtered_by_state_and_type(
    states: tuple[str, ...], types: tuple[str, ...], expected: list[str]
) -> None:
    """Without regard to case; what is unknown matches nothing."""
    context = Context()
    context.commit("", -1, group="simple")
    context.stable_group(1)
    context.new_id(group="other")
    listed = context.listed(states, types)

    assert expected == [group.group_id for group in listed]
    assert all(group.type == "classic" for group in listed)


def test_deleting_a_group_is_one_entry() -> None:
    """All of it or nothing, whatever it holds."""
    context = Context()
    context.leave(*context.stable_group(2))
    for partition in range(10):
        context.commit("", -1, f"flights-{partition}")
    before = len(context.records)
    outcome, error = context.shard.delete_group(GROUP, context.now)
    context.take(outcome)

    assert (0, [GroupDeleted(GROUP)]) == (error, context.records[before:])
    assert context.shard.hard_state() == {}

    context.crash()

    assert (context.shard.hard_state(), context.offset().offset) == ({}, -1)


def test_a_deleted_group_starts_again_from_nothing() -> None:
    """Its old members are unknown, so their generations can't be taken for new ones."""
    context = Context()
    members = context.stable_group(1)
    context.leave(*members)
    context.take(context.shard.delete_group(GROUP, context.now)[0])
    context.stable_group(1)

    assert context.generation == 1
    assert context.commit(members[0], 1) == 25


def test_deleting_forgets_ids_that_were_given_out() -> None:
    """And their timers, which must not fire into the void."""
    context = Context()
    pending = context.new_id()
    context.take(context.shard.delete_group(GROUP, context.now)[0])

    assert context.joined(context.join(pending)).error == 25
    assert context.is_at_rest()


# --- drain --------------------------------------------------------------------------------


def test_a_drained_member_gives_up_everything() -> None:
    """It rejoins, gets nothing, and the others get what it had."""
    context = Context()
    leaver, stays = context.stable_group(2)

    assert DrainMemberResponse(0, (DrainedMember(leaver, False),)) == context.drain("spark0")
    assert context.state == "PreparingRebalance"

    tokens = [context.join(member) for member in (leaver, stays)]
    first, second = (context.joined(token) for token in tokens)

    assert (stays, stays) == (first.leader, second.leader)
    assert ([], [stays]) == (
        list(first.members),
        [member.member_id for member in second.members],
    )

    parked = context.sync(leaver, 2)
    context.sync(stays, 2, {stays: assignment("flights-0", "flights-1")})

    assert context.synced(parked).assignment == b""
    assert DrainMemberResponse(0, (DrainedMember(leaver, True),)) == context.drain("spark0")
    assert (context.state, context.generation) == ("Stable", 2)
    assert context.commit(leaver, 2) == 1002


def test_a_drained_member_that_still_has_partitions_is_waited_for() -> None:
    """A cooperative one gives them up after the join, and nobody may get them before."""

    def join(member: str, *owned: str) -> int:
        named = [name.split("-") for name in owned]
        claimed = tuple(TopicPartition(topic, int(number)) for topic, number in named)
        metadata = encode_subscription(Subscription(("flights",), None, claimed))
        return context.join(member, protocols={"range": metadata})

    context = Context()
    leaver, stays = context.stable_group(2)
    context.drain("spark0")
    join(leaver, "flights-0")
    shown = context.joined(join(stays, "flights-1")).members

    assert [m.member_id for m in shown] == [leaver, stays]
    claim = decode_subscription(shown[0].metadata)
    assert claim is not None
    assert (claim.topics, claim.owned_partitions) == ((), (TopicPartition("flights", 0),))

    context.sync(leaver, 2)
    context.sync(stays, 2, {stays: assignment("flights-1")})

    assert context.drain("spark0").members == (DrainedMember(leaver, False),)
    assert context.commit(leaver, 2, "flights-0") == 0

    join(leaver)
    shown = context.joined(join(stays, "flights-1")).members

    assert [m.member_id for m in shown] == [stays]
    assert context.drain("spark0").members == (DrainedMember(leaver, True),)


def test_the_mark_lasts_over_later_rebalances() -> None:
    """Until the member leaves."""
    context = Context()
    leaver, stays = context.stable_group(2)
    context.drain("spark0")
    for generation in (2, 3):
        context.join(leaver, protocols={"range": subscription(f"t{generation}")})
        context.join(stays, protocols={"range": subscription(f"t{generation}")})
        assert generation == context.generation
        token = context.sync(leaver, generation)
        context.sync(stays, generation, {leaver: assignment("flights-0")})
        assert context.synced(token).assignment == b""


def test_a_drained_member_commits_what_it_has_before_it_rejoins() -> None:
    """That is the point of a drain: nothing is done twice."""
    context = Context()
    leaver, _ = context.stable_group(2)
    context.drain("spark0")

    assert context.commit(leaver, 1, "flights-0", 99) == 0


def test_if_all_are_drained_one_of_them_leads_over_nobody() -> None:
    """The group must come to rest."""
    context = Context()
    (member,) = context.stable_group(1)
    context.drain("spark0")
    response = context.joined(context.join(member))

    assert (2, member, ()) == (response.generation_id, response.leader, response.members)

    token = context.sync(member, 2, {member: assignment("flights-0")})

    assert context.synced(token).assignment == b""
    assert (DrainedMember(member, True),) == context.drain("spark0").members


def test_a_drain_names_what_it_does_not_find() -> None:
    """The helper that waits for a drain must be able to stop."""
    context = Context()

    assert context.drain("spark0") == DrainMemberResponse(69, ())

    context.stable_group(1)

    assert context.drain("somebody else") == DrainMemberResponse(25, ())
    assert context.state == "Stable"


def test_a_member_that_comes_back_as_new_is_not_drained() -> None:
    """The mark belonged to the membership."""
    context = Context()
    (member,) = context.stable_group(1)
    context.drain("spark0")
    context.leave(member)
    (again,) = context.stable_group(1)

    assert assignment("flights-0") == context.describe().members[0].assignment
    assert again != member


def test_a_described_group_shows_for_how_long_its_offsets_are_kept() -> None:
    """The server's setting, or what an operator set for this group."""
    context = Context(GroupConfig(offsets_retention_ms=5_000))
    context.new_id()

    assert context.describe().offsets_retention_ms == 5_000
    assert context.describe("nothing").offsets_retention_ms == -1

    other = Context(records=[*context.records, GroupRetention(GROUP, 60_000)])

    assert other.describe().offsets_retention_ms == 60_000


def test_draining_reaches_a_static_member_that_is_away() -> None:
    """It gives up what it had; when it restarts, its new process is not drained."""
    context = Context()
    leader, away = context.static_group(2, session_ms=200_000)

    assert context.drain("spark1").members == (DrainedMember(away, False),)

    token = context.join(leader, session_ms=200_000)
    context.advance(REBALANCE_MS)

    assert [m.member_id for m in context.joined(token).members] == [leader]

    context.sync(leader, 2, {leader: assignment("flights-0", "flights-1")})

    assert context.drain("spark1").members == (DrainedMember(away, True),)

    context.join(instance_id="i1", client_id="spark1", session_ms=200_000)
    shown = context.joined(context.join(leader, session_ms=200_000)).members

    assert [m.group_instance_id for m in shown] == ["i0", "i1"]


def test_a_group_of_static_members_is_deleted_once_they_are_removed() -> None:
    """Restarting clients find no group and make it anew."""
    context = Context()
    members = context.static_group(2)

    assert context.shard.delete_group(GROUP, context.now)[1] == 68

    context.left(*(LeavingMember("", f"i{n}", None) for n in range(2)))
    outcome, error = context.shard.delete_group(GROUP, context.now)
    context.take(outcome)

    assert (error, context.state) == (0, "Dead")
    assert context.beat(members[0], 1, instance_id="i0") == 25
    assert context.static_group(2)
    assert context.generation == 1


def delete_offsets(context: Context, *names: str, group: str = GROUP) -> OffsetDeleteResponse:
    """Delete offsets of partitions written as ``topic-3``; return the answer."""
    topics: dict[str, list[int]] = {}
    for name in names:
        topic, partition = name.rsplit("-", 1)
        topics.setdefault(topic, []).append(int(partition))
    named = tuple(TopicPartitions(topic, tuple(ps)) for topic, ps in topics.items())
    token = context.send(OffsetDeleteRequest(group, named))
    return context.answer(token, OffsetDeleteResponse)


def errors(response: OffsetDeleteResponse) -> list[int]:
    """Return the errors by partition."""
    assert response.error == 0
    return [p.error for topic in response.topics for p in topic.partitions]


def test_an_unknown_group_has_nothing_to_delete() -> None:
    """69, and no group comes into being."""
    context = Context()

    assert delete_offsets(context, "t-0") == OffsetDeleteResponse(69, ())
    assert context.describe().error == 69


def test_offsets_of_an_empty_group_are_deleted_for_good() -> None:
    """Tombstones, so that no replay brings them back; the group stays."""
    context = Context()
    for name in ("t-0", "t-1", "u-0"):
        context.commit("", -1, name)

    assert delete_offsets(context, "t-0", "u-0") == OffsetDeleteResponse(
        0,
        (
            TopicResult("t", (PartitionResult(0, 0),)),
            TopicResult("u", (PartitionResult(0, 0),)),
        ),
    )
    assert context.records[-2:] == [OffsetRemoved(GROUP, "t", 0), OffsetRemoved(GROUP, "u", 0)]

    context.crash()

    assert [context.offset(name).offset for name in ("t-0", "t-1", "u-0")] == [-1, 7, -1]
    assert errors(delete_offsets(context, "t-1")) == [0]

    context.crash()

    assert context.describe().error == 0
    assert context.events_named("offsets.removed") == [
        {"group": GROUP, "count": 2, "topics": ["t", "u"], "reason": "on request"},
        {"group": GROUP, "count": 1, "topics": ["t"], "reason": "on request"},
    ]


def test_what_is_not_there_is_deleted_already() -> None:
    """No error and no tombstone, registered or not; once is enough."""
    context = TopicsContext()
    context.register({"t": 1})
    context.commit("", -1, "t-0")
    before = len(context.records)

    assert errors(delete_offsets(context, "t-0", "t-0", "t-9", "nope-0")) == [0, 0, 0, 0]
    assert context.records[before:] == [OffsetRemoved(GROUP, "t", 0)]


def test_a_quota_counts_what_is_left() -> None:
    """A deleted offset makes room for another one."""
    context = Context()
    context.commit("", -1, "t-0")
    delete_offsets(context, "t-0")

    assert context.shard.offset_count() == 0


def test_a_topic_in_use_is_refused_and_others_are_not() -> None:
    """The member would start from nothing."""
    context = Context()
    context.commit("", -1, "trains-0")
    (member,) = context.stable_group(1)
    context.commit(member, 1)

    assert errors(delete_offsets(context, "flights-0", "trains-0")) == [86, 0]
    assert (context.offset().offset, context.offset("trains-0").offset) == (7, -1)


@pytest.mark.parametrize("first", [True, False])
def test_a_rebalance_keeps_the_subscriptions_of_the_last_generation(first: bool) -> None:
    """And in a group's first one nobody subscribes yet (measured on Kafka 4.1)."""
    context = Context()
    context.commit("", -1)
    if first:
        context.join(context.new_id())
    else:
        (member,) = context.stable_group(1)
        context.new_id()
        context.join(member)
    assert context.state == "PreparingRebalance"

    assert errors(delete_offsets(context, "flights-0")) == [0 if first else 86]


def test_a_subscription_that_cannot_be_read_counts_as_all_topics() -> None:
    """It may name any."""
    context = Context()
    context.commit("", -1, "trains-0")
    context.stable_group(1, protocols={"x": b"\x00"})

    assert errors(delete_offsets(context, "trains-0")) == [86]


def test_a_living_group_of_another_type_is_refused_as_a_whole() -> None:
    """What its members use can't be read; when they are gone it may be done."""
    context = Context()
    context.commit("", -1, "trains-0")
    (member,) = context.stable_group(
        1, protocol_type="connect", protocols={"x": subscription("flights")}
    )

    assert delete_offsets(context, "trains-0") == OffsetDeleteResponse(68, ())

    context.leave(member)

    assert errors(delete_offsets(context, "trains-0")) == [0]


def test_who_has_left_subscribes_to_nothing() -> None:
    """An empty group, whatever its members had."""
    context = Context()
    (member,) = context.stable_group(1)
    context.commit(member, 1)
    context.leave(member)

    assert (context.state, errors(delete_offsets(context, "flights-0"))) == ("Empty", [0])


STEP = st.tuples(
    st.sampled_from(["commit", "commit", "delete", "keep", "topic", "time", "group", "crash"]),
    st.sampled_from("ab"),
    st.sampled_from("tu"),
    st.integers(0, 2),
)


@given(st.lists(STEP, max_size=40))
def test_offsets_and_their_end_are_the_fold_of_the_log_compacted_or_not(
    steps: list[tuple[str, str, str, int]],
) -> None:
    """Commits, deletions, retentions, expiry and purges; the context compares the whole log."""
    config = GroupConfig(offsets_retention_ms=5_000, offsets_retention_check_interval_ms=1_000)
    context = TopicsContext(config)
    for what, group, topic, number in steps:
        if what == "commit":
            context.commit("", -1, f"{topic}-{number}", group=group)
        elif what == "delete":
            delete_offsets(context, f"{topic}-{number}", group=group)
        elif what == "keep":
            context.send(AlterGroupRetentionRequest(group, (None, -1, 2_000)[number]))
        elif what == "topic":
            context.register({topic: 3})
            context.delete_topics(topic)
        elif what == "time":
            context.advance(number * 1_500)
        elif what == "group":
            context.take(context.shard.delete_group(group, context.now)[0])
        else:
            context.crash()
        replayed = GroupShard(config=config, new_uuid=str)
        for record in compacted(context.records):
            replayed.replay(roundtrip(record))
        assert context.shard.hard_state() == replayed.hard_state()


def lag_of(context: Context, name: str) -> PartitionLag:
    """Return the lag of a partition written as ``topic-3``."""
    topic, partition = name.rsplit("-", 1)
    response = context.lag(GROUP)
    assert (response.error, response.message, response.group_id) == (0, None, GROUP)
    (found,) = [
        lag
        for shown in response.topics
        if shown.topic == topic
        for lag in shown.partitions
        if lag.partition == int(partition)
    ]
    return found


def test_lag_is_how_far_the_end_is_ahead_of_the_commit() -> None:
    """With both times, to judge how fresh it is, and the owner, to know whom to ask."""
    context = TopicsContext()
    context.register({"flights": 2})
    (member,) = context.stable_group(1)
    context.commit(member, 1, "flights-0", 40)
    committed_ms = context.wall_ms
    context.advance(5)
    context.report("flights", {0: 100})

    assert lag_of(context, "flights-0") == (
        PartitionLag(0, 40, 100, 60, committed_ms, committed_ms + 5, member)
    )


def test_what_is_not_known_is_never_zero() -> None:
    """Zero would say that all is well."""
    context = TopicsContext()
    context.register({"flights": 9, "gone": 1})
    (member,) = context.stable_group(1)  # Owns flights-0.
    context.report("flights", {0: 100})
    context.report("gone", {0: 100})

    assert structs.astuple(lag_of(context, "flights-0"))[1:4] == (-1, 100, -1)

    context.leave(member)
    for name in ("flights-1", "other-0", "gone-0"):
        context.commit("", -1, name, 5)
    context.delete_topics("gone")

    assert lag_of(context, "flights-1") == PartitionLag(1, 5, -1, -1, context.wall_ms, -1, "")
    assert structs.astuple(lag_of(context, "other-0"))[1:4] == (5, -1, -1)
    assert structs.astuple(lag_of(context, "gone-0"))[1:4] == (5, -1, -1)


def test_a_commit_ahead_of_the_last_report_has_no_lag() -> None:
    """The report is older than the commit, or one of the two is wrong: nobody knows."""
    context = TopicsContext()
    context.register({"t": 1})
    context.commit("", -1, "t-0", 9)
    context.report("t", {0: 5})

    assert structs.astuple(lag_of(context, "t-0"))[1:4] == (9, 5, -1)


def test_lag_is_listed_in_order_and_of_an_unknown_group_refused() -> None:
    """The same before and after a restart."""
    context = Context()
    for name in ("b-1", "a-10", "a-9"):
        context.commit("", -1, name)
    topics = context.lag(GROUP).topics

    assert [(t.topic, [p.partition for p in t.partitions]) for t in topics] == [
        ("a", [9, 10]),
        ("b", [1]),
    ]

    unknown = context.lag("nope")

    assert (unknown.error, unknown.message) == (69, "Group nope not found.")
