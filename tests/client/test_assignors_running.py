"""The caller's own assignor, and what is said about an assignment that looks wrong."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from client.assignors import (
    AssignmentWarning,
    BaseAssignor,
    InvalidAssignment,
    MemberSubscription,
    RangeAssignor,
    check_assignment,
    run_assignor,
)
from protocol.partition import TopicPartition
from tests.client.groups import member, short, tps

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
