"""The simple assignors, hosts, and what the leader makes of an assignor's result."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import assume, given, strategies as st

from client.assignors import (
    AssignmentWarning,
    BaseAssignor,
    CooperativeStickyAssignor,
    InvalidAssignment,
    MemberSubscription,
    RangeAssignor,
    RoundRobinAssignor,
    StickyAssignor,
    check_assignment,
    in_order,
    read_subscriptions,
    run_assignor,
    write_assignments,
)
from protocol import consumer
from protocol.messages import JoinGroupMember
from protocol.partition import TopicPartition
from tests.client.groups import (
    TOPICS,
    check_balanced,
    check_complete,
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


MEMBERS = [member("C0", "t"), member("C1", "t")]
HOSTS = {TopicPartition("t", 0): ["h0"]}


class Everything:
    """A caller's own: all to the first; knows nothing of hosts."""

    name = "everything"

    def assign(
        self, members: Sequence[MemberSubscription], partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, list[TopicPartition]]:
        """Give the first member all."""
        everything = [TopicPartition(topic, n) for topic in partitions for n in partitions[topic]]
        return {members[0].member_id: everything}


class WithHosts(Everything):
    """The same for one that asks for the hosts."""

    seen: Mapping[TopicPartition, Sequence[str]] | None = None

    def assign(
        self,
        members: Sequence[MemberSubscription],
        partitions: Mapping[str, Sequence[int]],
        hosts: Mapping[TopicPartition, Sequence[str]] | None = None,
    ) -> dict[str, list[TopicPartition]]:
        """Keep the hosts to look at."""
        self.seen = hosts
        return super().assign(members, partitions)


def test_an_assignor_of_ones_own_may_have_two_or_three_parameters() -> None:
    """Those written before hosts were known must go on working."""
    assigned = run_assignor(Everything(), MEMBERS, {"t": [0, 1]}, HOSTS)
    with_hosts = WithHosts()

    assert short(assigned) == {"C0": "t-0 t-1", "C1": ""}
    assert assigned == run_assignor(with_hosts, MEMBERS, {"t": [0, 1]}, HOSTS)
    assert with_hosts.seen == HOSTS


def test_a_type_error_inside_the_assignor_is_not_taken_for_a_missing_parameter() -> None:
    """It is the caller's mistake, and the caller must see it."""

    class Broken(WithHosts):
        def assign(
            self,
            members: Sequence[MemberSubscription],
            partitions: Mapping[str, Sequence[int]],
            hosts: Mapping[TopicPartition, Sequence[str]] | None = None,
        ) -> dict[str, list[TopicPartition]]:
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        run_assignor(Broken(), MEMBERS, {"t": [0]}, {})


def test_what_looks_wrong_is_warned_of_with_the_assignors_name() -> None:
    """The group works, but somebody should look: nobody reads t-1."""

    class Half(Everything):
        def assign(
            self, members: Sequence[MemberSubscription], partitions: Mapping[str, Sequence[int]]
        ) -> dict[str, list[TopicPartition]]:
            return {"C1": [TopicPartition("t", 0)]}

    with pytest.warns(AssignmentWarning, match=r"'everything': topic 't'.* 1 of its 2 .*: 1"):
        assert short(run_assignor(Half(), MEMBERS, {"t": [0, 1]}, {})) == {"C0": "", "C1": "t-0"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_assignor(RangeAssignor(), MEMBERS, {"t": [0, 1]}, {})


@pytest.mark.parametrize(
    ("partitions", "assigned", "found"),
    [
        ({"t": [0, 1]}, {"C0": tps("t-0"), "C1": tps("t-1")}, []),
        (
            {"t": [0, 1]},
            {"C0": tps("t-0")},
            ["topic 't' is subscribed to, but 1 of its 2 partitions were given to nobody: 1"],
        ),
        (
            {"t": list(range(9))},
            {},
            [
                (
                    "topic 't' is subscribed to, but 9 of its 9 partitions were given to nobody: "
                    "0, 1, 2, 3, 4 and 4 more"
                )
            ],
        ),
        ({}, {}, ["topic 't' is subscribed to, but has no partitions"]),
        ({"t": []}, {}, ["topic 't' is subscribed to, but has no partitions"]),
        (
            {},
            {"C0": tps("t-0")},
            [
                "topic 't' is subscribed to, but has no partitions",
                "partitions of topic 't' were given that aren't known: 0",
            ],
        ),
        (
            {"t": [0]},
            {"C0": tps("t-0 u-0 u-1"), "C1": tps("u-2")},
            ["topic 'u' was given to members that don't subscribe to it: 'C0', 'C1'"],
        ),
        (
            {"t": [0]},
            {"C0": tps("t-0 t-7")},
            ["partitions of topic 't' were given that aren't known: 7"],
        ),
    ],
)
def test_an_assignment_is_compared_with_the_subscriptions(
    partitions: dict[str, list[int]],
    assigned: dict[str, tuple[TopicPartition, ...]],
    found: list[str],
) -> None:
    """Each difference is one sentence that names the topic."""
    assert found == check_assignment(MEMBERS, partitions, assigned)


def test_what_is_being_handed_over_is_not_missing() -> None:
    """In the first of a cooperative group's two rounds it is given to nobody on purpose."""
    members = [member("C0", "t", owned="t-0 t-1", generation=1), MEMBERS[1]]

    assert check_assignment(members, {"t": [0, 1]}, {"C0": tps("t-0")}) == []


@pytest.mark.parametrize(
    ("assigned", "said"),
    [
        ({"C0": tps("t-0"), "C1": tps("t-0")}, "t-0 was given twice, to 'C0' and 'C1'"),
        ({"C0": tps("t-0 t-0")}, "t-0 was given twice, to 'C0' and 'C0'"),
        ({"C9": tps("t-0")}, "who is not in the group: 'C9'"),
    ],
)
def test_what_the_coordinator_would_refuse_is_refused_before_it_is_sent(
    assigned: dict[str, tuple[TopicPartition, ...]], said: str
) -> None:
    """The coordinator would remove the leader for it; here it is an exception that says why."""
    with pytest.raises(InvalidAssignment, match=said):
        check_assignment(MEMBERS, {"t": [0]}, assigned)


class Makes(BaseAssignor):
    """Makes what it is told to."""

    name = "makes"

    def __init__(self, made: Any, *, cooperative: bool = False) -> None:
        """Take it."""
        self.made = made
        self.cooperative = cooperative

    def assign(self, *_: object) -> Any:
        """Return it."""
        return self.made


def test_an_assignor_may_make_generators() -> None:
    """They can be read once: what was only looked at would be given to nobody, unseen."""
    made = Makes({"C0": (tp for tp in tps("t-0 t-1"))})

    assert short(run_assignor(made, MEMBERS, {"t": [0, 1]}, {})) == {"C0": "t-0 t-1", "C1": ""}


@pytest.mark.parametrize(
    "made", [None, [1], {"C0": None}, {"C0": ["t-0"]}, {"C0": [("t", 0.5)]}, {"C0": [("t", None)]}]
)
def test_what_is_no_assignment_at_all_is_refused_in_words(made: Any) -> None:
    """An AttributeError from inside of the client says nothing to whoever wrote the assignor."""
    with pytest.raises(InvalidAssignment, match="not a list of partitions"):
        run_assignor(Makes(made), MEMBERS, {"t": [0]}, {})


@pytest.mark.parametrize("number", [-1, 2**31])
def test_a_partition_that_no_topic_can_have_is_refused(number: int) -> None:
    """It doesn't fit into the bytes of an assignment."""
    with pytest.raises(InvalidAssignment, match=f"no partition t-{number}"):
        run_assignor(Makes({"C0": [("t", number)]}), MEMBERS, {"t": [0]}, {})


def hand_over(given: str, to: str, *, cooperative: bool) -> None:
    """Run an assignor that gives *given*; C0 and C1 have a partition, C2 missed a rebalance."""
    members = [
        member("C0", "t", owned="t-0", generation=3),
        member("C1", "t", owned="t-1", generation=3),
        member("C2", "t", owned="t-1", generation=2),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AssignmentWarning)
        assignor = Makes({to: tps(given)}, cooperative=cooperative)
        run_assignor(assignor, members, {"t": [0, 1, 2]}, {})


@pytest.mark.parametrize(("given", "to", "owner"), [("t-0", "C1", "C0"), ("t-1", "C2", "C1")])
def test_a_cooperative_assignor_must_hand_over_in_two_rounds(
    given: str, to: str, owner: str
) -> None:
    """The old owner goes on reading until it is told, so the new one must wait (as in Kafka)."""
    with pytest.raises(InvalidAssignment, match=f"{given} was given to '{to}' .* with '{owner}'"):
        hand_over(given, to, cooperative=True)


@pytest.mark.parametrize(
    ("given", "to", "cooperative"),
    [
        ("t-0", "C1", False),  # Everybody gave up everything before.
        ("t-0", "C0", True),
        ("t-1", "C1", True),  # What C2 says is out of date.
        ("t-2", "C0", True),
    ],
)
def test_what_nobody_else_has_can_be_given_at_once(
    given: str, to: str, *, cooperative: bool
) -> None:
    """A second round is only for what moves."""
    hand_over(given, to, cooperative=cooperative)


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
