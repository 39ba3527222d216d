"""Who gets what. The examples are those of the semantics' section on assignors."""

import pytest
from hypothesis import given, strategies as st

from client.assignors import (
    BaseAssignor,
    CooperativeStickyAssignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    in_order,
    read_subscriptions,
    write_assignments,
)
from protocol import consumer
from protocol.messages import JoinGroupMember
from protocol.partition import TopicPartition
from tests.client.groups import (
    TOPICS,
    check_complete,
    hosts_strategy,
    member,
    members_strategy,
    names,
    partitions_strategy,
    short,
    tps,
)

BOTH = [RangeAssignor(), RoundRobinAssignor()]
ALL = [*BOTH, StickyAssignor(), CooperativeStickyAssignor()]
C0, C1 = member("C0", "t0", "t1"), member("C1", "t0", "t1")
TWO_TIMES_THREE = {"t0": [0, 1, 2], "t1": [0, 1, 2]}


def test_range_gives_contiguous_ranges_per_topic() -> None:
    """Kafka's example: C0 has the larger half of both topics."""
    assert short(RangeAssignor().assign([C1, C0], TWO_TIMES_THREE)) == {
        "C0": "t0-0 t0-1 t1-0 t1-1",
        "C1": "t0-2 t1-2",
    }


def test_round_robin_deals_over_topic_borders() -> None:
    """Kafka's example: the same input, three each."""
    assert short(RoundRobinAssignor().assign([C1, C0], TWO_TIMES_THREE)) == {
        "C0": "t0-0 t0-2 t1-1",
        "C1": "t0-1 t1-0 t1-2",
    }


def test_round_robin_begins_at_the_front_where_the_circle_ends() -> None:
    """Also for a topic that the last member, whose turn it was, doesn't subscribe to."""
    members = [member("C0", "t", "u"), member("C1", "t", "u"), member("C2", "t")]

    assert short(RoundRobinAssignor().assign(members, {"t": [0, 1], "u": [0]})) == {
        "C0": "t-0 u-0",
        "C1": "t-1",
        "C2": "",
    }


def test_round_robin_passes_over_who_does_not_subscribe() -> None:
    """Kafka's example with mixed subscriptions."""
    members = [
        member("C0", "t0"),
        member("C1", "t0", "t1"),
        member("C2", "t0", "t1", "t2"),
    ]
    partitions = {"t0": [0], "t1": [0, 1], "t2": [0, 1, 2]}

    assert short(RoundRobinAssignor().assign(members, partitions)) == {
        "C0": "t0-0",
        "C1": "t1-0",
        "C2": "t1-1 t2-0 t2-1 t2-2",
    }


def test_range_counts_only_the_subscribers_of_each_topic() -> None:
    """Who doesn't read a topic takes no share of it."""
    members = [member("C0", "t0"), member("C1", "t0", "t1")]

    assert short(RangeAssignor().assign(members, {"t0": [0, 1, 2], "t1": [0]})) == {
        "C0": "t0-0 t0-1",
        "C1": "t0-2 t1-0",
    }


def test_static_members_come_first_by_their_instance_ids() -> None:
    """Their member ids change with every restart, their places don't."""
    members = [
        member("a", "t"),
        member("z", "t", instance="i1"),
        member("b", "t", instance="i2"),
    ]

    assert [one.member_id for one in in_order(members)] == ["z", "b", "a"]


def test_partitions_need_not_begin_at_zero_nor_be_adjacent() -> None:
    """A topic is whatever the caller's function says."""
    assert short(RangeAssignor().assign([C0, C1], {"t0": [4, 7, 9]})) == {
        "C0": "t0-4 t0-7",
        "C1": "t0-9",
    }


@pytest.mark.parametrize("assignor", ALL, ids=names(ALL))
def test_nobody_and_nothing_are_no_special_cases(assignor: BaseAssignor) -> None:
    """The first member of a group may come before its topic has partitions."""
    assert short(assignor.assign([C0], {"t0": [], "t1": []})) == {"C0": ""}
    assert short(assignor.assign([member("C0")], {"t0": [0]})) == {"C0": ""}
    assert assignor.assign([], {"t0": [0]}) == {}


@pytest.mark.parametrize("assignor", ALL[:3], ids=names(ALL[:3]))
@given(members=members_strategy(), partitions=partitions_strategy, data=st.data())
def test_every_partition_goes_to_exactly_one_of_its_subscribers(
    assignor: BaseAssignor,
    members: list[MemberSubscription],
    partitions: dict[str, list[int]],
    data: st.DataObject,
) -> None:
    """Promise 3 rests on it; the order in which members came must play no part."""
    hosts = data.draw(hosts_strategy)
    assigned = assignor.assign(members, partitions, hosts)

    check_complete(members, partitions, assigned)
    shuffled = data.draw(st.permutations(members))
    assert assigned == assignor.assign(shuffled, partitions, hosts)


@given(count=st.integers(1, 8), partitions=partitions_strategy)
def test_equal_subscriptions_are_balanced(count: int, partitions: dict[str, list[int]]) -> None:
    """Round robin within one partition in all, range within one per topic."""
    members = [member(f"m{number}", *TOPICS) for number in range(count)]
    dealt = RoundRobinAssignor().assign(members, partitions)
    sizes = [len(given) for given in dealt.values()]

    assert max(sizes) - min(sizes) <= 1

    ranged = RangeAssignor().assign(members, partitions)
    for topic in TOPICS:
        sizes = [sum(tp.topic == topic for tp in given) for given in ranged.values()]
        assert max(sizes) - min(sizes) <= 1


def test_unreadable_subscriptions_want_nothing() -> None:
    """One strange member must not stop the group's rebalance."""
    good = consumer.encode_subscription(consumer.Subscription(("t0",), b"", (), -1, None))
    members = [
        JoinGroupMember("good", None, good),
        JoinGroupMember("bad", None, b"\xff\xff"),
        JoinGroupMember("empty", None, b""),
    ]
    read = read_subscriptions(members)

    assert [one.topics for one in read] == [("t0",), (), ()]
    assert short(RangeAssignor().assign(read, {"t0": [0, 1]})) == {
        "good": "t0-0 t0-1",
        "bad": "",
        "empty": "",
    }


def test_subscriptions_are_read_with_all_that_the_assignors_use() -> None:
    """Claims, their generation, the host and the assignor's own data decide who keeps what."""
    written = consumer.Subscription(("t",), b"data", tps("t-0 t-1"), 4, "h0")
    read = read_subscriptions([JoinGroupMember("m", "i", consumer.encode_subscription(written))])

    assert [MemberSubscription("m", "i", ("t",), tps("t-0 t-1"), 4, "h0", b"data")] == read


def test_assignments_are_written_so_that_members_can_read_them() -> None:
    """Both directions of the codec meet here."""
    written = write_assignments({"b": [], "a": [TopicPartition("t", 1), TopicPartition("s", 0)]})
    read = {}
    for one in written:
        decoded = consumer.decode_assignment(one.assignment)
        assert decoded is not None
        read[one.member_id] = set(decoded.partitions)

    assert {"a": {TopicPartition("t", 1), TopicPartition("s", 0)}, "b": set()} == read


def test_who_subscribes_alone_among_many_is_found_without_asking_all_in_turn() -> None:
    """Dealing must not take members times partitions steps: this would be 10**9 of them."""
    members = [member(f"m{number:05}", "busy" if number else "lonely") for number in range(20_000)]
    assigned = RoundRobinAssignor().assign(members, {"lonely": range(50_000)})

    assert len(assigned["m00000"]) == 50_000
