"""Cooperative: nobody stops, and still nobody reads what another one reads."""

from collections.abc import Mapping

from hypothesis import given, strategies as st

from client.assignors import CooperativeStickyAssignor, MemberSubscription
from protocol.partition import TopicPartition
from tests.client.groups import (
    HOSTS,
    TOPICS,
    check_balanced,
    check_complete,
    hosts_strategy,
    member,
    members_strategy,
    partitions_strategy,
    short,
)

COOPERATIVE = CooperativeStickyAssignor()
SEVEN = {"t": list(range(7))}
# More rounds than any hand-over needs, where members read different topics or hosts count.
ROUNDS_MAX = 6


def test_what_changes_hands_is_first_given_to_nobody() -> None:
    """The example: C3 joins; C0 drops t-6 in round 1, C3 gets it in round 2."""
    old = [
        member("C0", "t", owned="t-0 t-3 t-6", generation=1),
        member("C1", "t", owned="t-1 t-4", generation=1),
        member("C2", "t", owned="t-2 t-5", generation=1),
    ]
    first = COOPERATIVE.assign([*old, member("C3", "t")], SEVEN)

    assert short(first) == {"C0": "t-0 t-3", "C1": "t-1 t-4", "C2": "t-2 t-5", "C3": ""}
    dropped = [member("C0", "t", owned="t-0 t-3", generation=2), *old[1:], member("C3", "t")]
    assert short(COOPERATIVE.assign(dropped, SEVEN)) == {**short(first), "C3": "t-6"}


def test_a_partition_that_two_claim_is_given_to_neither_until_both_have_dropped_it() -> None:
    """Also who would get it may not go on: the other one may be reading it."""
    both = [member(name, "t", owned="t-0", generation=1) for name in ("C0", "C1")]

    assert short(COOPERATIVE.assign(both, {"t": [0]})) == {"C0": "", "C1": ""}


def test_a_stale_claim_does_not_take_a_partition_from_its_owner() -> None:
    """The owner goes on; the other one learns that it has lost it."""
    members = [
        member("C0", "t", owned="t-0", generation=1),
        member("C1", "t", owned="t-0", generation=2),
    ]

    assert short(COOPERATIVE.assign(members, {"t": [0]})) == {"C0": "", "C1": "t-0"}


def test_what_a_stale_member_alone_claims_is_not_given_to_others() -> None:
    """It missed the last rebalance, so it never heard that it should stop reading."""
    members = [
        member("C0", "t", owned="t-0 t-1 t-2", generation=1),
        member("C1", "t", owned="", generation=2),
    ]

    assert short(COOPERATIVE.assign(members, {"t": [0, 1, 2]})) == {"C0": "t-0 t-1", "C1": ""}


def test_what_is_no_longer_subscribed_is_kept_from_others_while_it_is_claimed() -> None:
    """The member reads it until it learns that it has lost it."""
    members = [member("C0", "u", owned="t-0", generation=1), member("C1", "t", "u")]

    assert short(COOPERATIVE.assign(members, {"t": [0], "u": [0]})) == {"C0": "u-0", "C1": ""}


class Group:
    """A cooperative group at work: what each member reads, and how it gets there."""

    def __init__(
        self,
        partitions: Mapping[str, list[int]],
        hosts: Mapping[TopicPartition, list[str]] | None = None,
    ) -> None:
        self.partitions = partitions
        self.hosts = hosts or {}
        self.members: dict[str, MemberSubscription] = {}
        self.generation = 0

    def rebalance(self, deaf: frozenset[str] = frozenset()) -> bool:
        """Do one round, of which the *deaf* never hear; return whether another must follow."""
        self.generation += 1
        assigned = COOPERATIVE.assign(list(self.members.values()), self.partitions, self.hosts)
        again = False
        for member_id, shared in assigned.items():
            one = self.members[member_id]
            if member_id in deaf:
                again = True  # It joins again, with what it had.
                continue
            again |= not set(one.owned) <= set(shared)
            self.members[member_id] = one._replace(owned=tuple(shared), generation=self.generation)
        self.check_one_owner()
        return again

    def settle(self, rounds_max: int) -> None:
        """Do rounds until everybody has what it shall have."""
        for _ in range(rounds_max):
            if not self.rebalance():
                break
        else:
            raise AssertionError(f"not settled after {rounds_max} rounds")
        members = list(self.members.values())
        assigned = {one.member_id: one.owned for one in members}
        check_complete(members, self.partitions, assigned)
        check_balanced(members, assigned)

    def check_one_owner(self) -> None:
        """At no time two members read one partition."""
        read = [tp for one in self.members.values() for tp in one.owned]
        assert len(read) == len(set(read))


NAMES = st.sampled_from("abcdefgh")
subscriptions = st.lists(st.sampled_from(TOPICS), unique=True, min_size=1).map(tuple)


def histories(
    topics: st.SearchStrategy[tuple[str, ...]],
) -> st.SearchStrategy[list[tuple[str, tuple[str, ...], str, bool]]]:
    """Return who comes, changes or goes in turn: (name, topics, host, goes)."""
    return st.lists(st.tuples(NAMES, topics, st.sampled_from(HOSTS), st.booleans()), max_size=12)


def happen(group: Group, name: str, topics: tuple[str, ...], host: str, *, goes: bool) -> None:
    """Let one member leave, crash, join, or come back with other topics."""
    if goes:
        group.members.pop(name, None)
    elif name in group.members:
        group.members[name] = group.members[name]._replace(topics=topics)
    else:
        group.members[name] = MemberSubscription(name, None, topics, host=host)


@given(history=histories(st.just(tuple(TOPICS))), partitions=partitions_strategy)
def test_equal_subscriptions_settle_in_two_rounds(
    history: list[tuple[str, tuple[str, ...], str, bool]], partitions: dict[str, list[int]]
) -> None:
    """One to let go, one to take: more would be a storm of rebalances."""
    group = Group(partitions)
    for name, topics, host, goes in history:
        happen(group, name, topics, host, goes=goes)
        if group.members:
            group.settle(rounds_max=2)


@given(
    history=histories(subscriptions),
    partitions=partitions_strategy,
    hosts=st.just({}) | hosts_strategy,
)
def test_unequal_subscriptions_and_hosts_settle_too(
    history: list[tuple[str, tuple[str, ...], str, bool]],
    partitions: dict[str, list[int]],
    hosts: dict[TopicPartition, list[str]],
) -> None:
    """With one owner all the time; it may take a round more where that makes it more even."""
    group = Group(partitions, hosts)
    for name, topics, host, goes in history:
        happen(group, name, topics, host, goes=goes)
        if group.members:
            for _ in range(ROUNDS_MAX):
                if not group.rebalance():
                    break
            else:
                raise AssertionError("it goes on and on")


@given(history=histories(subscriptions), partitions=partitions_strategy, data=st.data())
def test_never_two_owners_also_when_members_miss_rebalances(
    history: list[tuple[str, tuple[str, ...], str, bool]],
    partitions: dict[str, list[int]],
    data: st.DataObject,
) -> None:
    """A member whose sync was cut off reads on, and comes back with claims of long ago."""
    group = Group(partitions)
    for name, topics, host, goes in history:
        happen(group, name, topics, host, goes=goes)
        deaf = data.draw(st.frozensets(NAMES))
        if group.members:
            group.rebalance(deaf)
    for _ in range(ROUNDS_MAX):
        if not group.members or not group.rebalance():
            break
    else:
        raise AssertionError("it goes on and on")


@given(members=members_strategy(), partitions=partitions_strategy)
def test_whatever_members_claim_nobody_gets_what_another_may_be_reading(
    members: list[MemberSubscription], partitions: dict[str, list[int]]
) -> None:
    """Only the one whose claim is the newest may go on with what others claim as well."""
    for member_id, shared in COOPERATIVE.assign(members, partitions).items():
        for tp in shared:
            claims = [(one.generation, one.member_id) for one in members if tp in one.owned]
            newest = [who for generation, who in claims if generation == max(claims)[0]]
            assert newest in ([], [member_id])
