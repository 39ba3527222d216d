"""Reading from one's own host, where that costs no balance."""

import pytest
from hypothesis import assume, given

from client.assignors import (
    BaseAssignor,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
)
from protocol.partition import TopicPartition
from tests.client.groups import (
    check_balanced,
    equals_strategy,
    holding,
    hosts_strategy,
    member,
    members_strategy,
    names,
    near_count,
    partitions_strategy,
    short,
    sizes,
)

ASSIGNORS: list[BaseAssignor] = [RangeAssignor(), RoundRobinAssignor(), StickyAssignor()]
EACH = pytest.mark.parametrize("assignor", ASSIGNORS, ids=names(ASSIGNORS))

A, B = member("A", "t", host="h0"), member("B", "t", host="h1")


def on(**hosts: str) -> dict[TopicPartition, list[str]]:
    """Return the hosts of partitions: ``on(t="h1 h0")`` has t-0 on h1 and t-1 on h0."""
    return {
        TopicPartition(topic, number): one.split("+")
        for topic, text in hosts.items()
        for number, one in enumerate(text.split())
    }


def topic_sizes(assigned: dict[str, list[TopicPartition]], topic: str) -> list[int]:
    """Return how much of *topic* the members have, the smallest first."""
    return sorted(sum(tp.topic == topic for tp in given_) for given_ in assigned.values())


@EACH
def test_each_member_reads_what_is_on_its_host(assignor: BaseAssignor) -> None:
    """Though the plain order would have given each the other one's partitions."""
    assigned = assignor.assign([A, B], {"t": [0, 1, 2, 3]}, on(t="h1 h0+h2 h1 h0"))

    assert {name: set(given) for name, given in assigned.items()} == {
        "A": {TopicPartition("t", 1), TopicPartition("t", 3)},
        "B": {TopicPartition("t", 0), TopicPartition("t", 2)},
    }


@EACH
def test_balance_comes_before_hosts(assignor: BaseAssignor) -> None:
    """Nearly all on B's host: B still takes no more than half."""
    assert sizes(assignor.assign([A, B], {"t": [0, 1, 2, 3]}, on(t="h1 h1 h1 h2"))) == [2, 2]


@pytest.mark.parametrize("assignor", [RangeAssignor(), StickyAssignor()], ids=lambda a: a.name)
def test_the_partition_over_goes_to_who_is_near_to_it(assignor: BaseAssignor) -> None:
    """As with Kafka's: who gets one more is open, so nearness may decide."""
    assigned = assignor.assign([A, B], {"t": [0, 1, 2]}, on(t="h1 h1 h0"))

    assert {"A": 1, "B": 2} == {name: len(given) for name, given in assigned.items()}


@EACH
@pytest.mark.parametrize(
    ("host", "hosts"),
    [
        (None, on(t="h1 h0 h1 h0")),
        ("h0", on(t="h8 h9 h8 h9")),
        ("h0", on(t="h0+h1 h1+h0 h0+h1 h0+h1")),
        ("h0", {}),
    ],
    ids=["members without hosts", "other hosts", "everything everywhere", "unknown"],
)
def test_hosts_that_make_no_difference_change_nothing(
    assignor: BaseAssignor, host: str | None, hosts: dict[TopicPartition, list[str]]
) -> None:
    """Then the result is the plain one, to the letter."""
    members = [one._replace(host=host) for one in (A, B)]
    partitions = {"t": [0, 1, 2, 3]}

    assert assignor.assign(members, partitions, hosts) == assignor.assign(members, partitions)


@EACH
def test_where_everything_is_on_the_same_hosts_they_play_no_part(assignor: BaseAssignor) -> None:
    """As with Kafka's: the partition over is not a matter of hosts then."""
    partitions = {"t": [0, 1, 2]}
    assigned = assignor.assign([A, B], partitions, on(t="h1 h1 h1"))

    assert {"A": 2, "B": 1} == {name: len(given_) for name, given_ in assigned.items()}


def test_range_keeps_partition_n_of_like_topics_together() -> None:
    """Near is what is near in both topics; else a join of the two would cross members."""
    members = [one._replace(topics=("t", "u")) for one in (A, B)]
    partitions = {"t": [0, 1, 2, 3], "u": [0, 1, 2, 3]}
    hosts = on(t="h1 h0 h1 h0", u="h1 h0 h9 h9")

    assert short(RangeAssignor().assign(members, partitions, hosts)) == {
        "A": "t-1 t-2 u-1 u-2",
        "B": "t-0 t-3 u-0 u-3",
    }


def test_sticky_lets_go_of_what_is_far() -> None:
    """Each has what is on the other one's host; they change."""
    members = [
        A._replace(owned=(TopicPartition("t", 0),), generation=1),
        B._replace(owned=(TopicPartition("t", 1),), generation=1),
    ]

    assert short(StickyAssignor().assign(members, {"t": [0, 1]}, on(t="h1 h0"))) == {
        "A": "t-1",
        "B": "t-0",
    }


@EACH
@given(members=members_strategy(), partitions=partitions_strategy, hosts=hosts_strategy)
def test_hosts_never_cost_balance(
    assignor: BaseAssignor,
    members: list[MemberSubscription],
    partitions: dict[str, list[int]],
    hosts: dict[TopicPartition, list[str]],
) -> None:
    """A member that waits for a larger share than the others' gains nothing by a short way."""
    plain = assignor.assign(members, partitions)
    local = assignor.assign(members, partitions, hosts)

    if assignor.name == "range":
        for topic in partitions:
            assert topic_sizes(plain, topic) == topic_sizes(local, topic)
    else:
        assert sizes(plain) == sizes(local)
    if assignor.name == "sticky":
        check_balanced(members, local)


@given(members=equals_strategy, partitions=partitions_strategy, hosts=hosts_strategy)
def test_no_exchange_of_two_far_partitions_would_bring_one_nearer(
    members: list[MemberSubscription],
    partitions: dict[str, list[int]],
    hosts: dict[TopicPartition, list[str]],
) -> None:
    """And a rebalance in which nothing changed moves nothing, so it is worth it only once."""
    assume(any(one.host for one in members))
    sticky = StickyAssignor()
    assigned = sticky.assign(members, partitions, hosts)
    far = {
        one.host: [tp for tp in assigned[one.member_id] if one.host not in hosts.get(tp, ())]
        for one in members
    }
    for one in members:
        for tp in assigned[one.member_id]:
            for host in hosts.get(tp, ()):
                assert one.host in hosts[tp] or not far.get(host)

    again = sticky.assign(holding(members, assigned, 9), partitions, hosts)

    assert near_count(members, assigned, hosts) == near_count(members, again, hosts)
    assert {name: set(given_) for name, given_ in assigned.items()} == {
        name: set(given_) for name, given_ in again.items()
    }
