"""The sticky assignors, eager and cooperative: balanced, and with few moves."""

from collections.abc import Mapping

import pytest
from hypothesis import given, strategies as st

from client.assignors import CooperativeStickyAssignor, MemberSubscription, StickyAssignor
from client.assignors.sticky import Previous, decode_previous, encode_previous
from protocol.errors import LocalProtocolError
from protocol.partition import TopicPartition
from tests.client.groups import (
    HOSTS,
    TOPICS,
    check_balanced,
    check_complete,
    claims_strategy,
    equals_strategy,
    holding,
    hosts_strategy,
    member,
    members_strategy,
    partitions_strategy,
    short,
    sizes,
    tps,
)

STICKY = StickyAssignor()
SEVEN = {"t": list(range(7))}


def test_a_fresh_group_is_dealt_out_in_turn() -> None:
    """The example: nobody has anything yet."""
    members = [member(name, "t") for name in ("C0", "C1", "C2")]

    assert short(STICKY.assign(members, SEVEN)) == {
        "C0": "t-0 t-3 t-6",
        "C1": "t-1 t-4",
        "C2": "t-2 t-5",
    }


def test_what_a_member_had_that_left_is_shared_by_the_others() -> None:
    """The example: C1 left; C0 and C2 keep all and share its two."""
    members = [
        member("C0", "t", owned="t-0 t-3 t-6", generation=1),
        member("C2", "t", owned="t-2 t-5", generation=1),
    ]

    assert short(STICKY.assign(members, SEVEN)) == {"C0": "t-0 t-3 t-6 t-4", "C2": "t-2 t-5 t-1"}


def test_a_newcomer_gets_only_what_balance_takes() -> None:
    """The example: of seven partitions one moves."""
    members = [
        member("C0", "t", owned="t-0 t-3 t-6", generation=1),
        member("C1", "t", owned="t-1 t-4", generation=1),
        member("C2", "t", owned="t-2 t-5", generation=1),
        member("C3", "t"),
    ]

    assert short(STICKY.assign(members, SEVEN)) == {
        "C0": "t-0 t-3",
        "C1": "t-1 t-4",
        "C2": "t-2 t-5",
        "C3": "t-6",
    }


def test_who_has_too_much_loses_the_highest_numbers_of_all_topics() -> None:
    """Not all of one topic: partition n of several topics is often read together."""
    had = "a-0 a-1 b-0 b-1"
    members = [member("C0", "a", "b", owned=had, generation=1), member("C1", "a", "b")]

    assert short(STICKY.assign(members, {"a": [0, 1], "b": [0, 1]})) == {
        "C0": "a-0 b-0",
        "C1": "a-1 b-1",
    }


def test_the_claim_of_the_highest_generation_wins() -> None:
    """Who missed a rebalance claims what others have by now (Kafka's KAFKA-12984)."""
    members = [
        member("stale", "t", owned="t-0 t-1 t-2", generation=4),
        member("fresh", "t", owned="t-0 t-1", generation=5),
    ]

    assigned = STICKY.assign(members, {"t": [0, 1, 2, 3]})

    assert short(assigned) == {"fresh": "t-0 t-1", "stale": "t-2 t-3"}


def test_two_claims_of_one_generation_are_both_void() -> None:
    """One of them is wrong, and nobody knows which: neither has the partition kept for it."""
    members = [
        member("C0", "t", owned="t-1", generation=5),
        member("C1", "t", owned="t-0 t-1", generation=5),
        member("C2", "t", owned="t-1", generation=6),
    ]

    assert short(STICKY.assign(members[:2], {"t": [0, 1]})) == {"C0": "t-1", "C1": "t-0"}
    assert short(STICKY.assign(members, {"t": [0, 1]})) == {"C0": "", "C1": "t-0", "C2": "t-1"}
    voided = [member(name, "t", owned="t-0 t-3", generation=5) for name in ("C0", "C1")]
    assert short(STICKY.assign(voided, {"t": [0, 1, 2, 3]})) == {"C0": "t-0 t-2", "C1": "t-1 t-3"}


def test_what_comes_free_goes_back_to_who_had_it_before() -> None:
    """In an older generation; it may still have its state at hand."""
    members = [
        member("C0", "t", owned="t-0 t-1 t-2 t-3", generation=5),
        member("C1", "t", owned="t-3", generation=3),
        member("C2", "t"),
    ]

    assert short(STICKY.assign(members, {"t": [0, 1, 2, 3]})) == {
        "C0": "t-0 t-1",
        "C1": "t-3",
        "C2": "t-2",
    }


def test_unequal_subscriptions_are_as_even_as_they_can_be() -> None:
    """Kafka's example for round robin: sticky gives C2 no more than it must have."""
    members = [member("C0", "t0"), member("C1", "t0", "t1"), member("C2", "t0", "t1", "t2")]
    partitions = {"t0": [0], "t1": [0, 1], "t2": [0, 1, 2]}

    assert short(STICKY.assign(members, partitions)) == {
        "C0": "t0-0",
        "C1": "t1-0 t1-1",
        "C2": "t2-0 t2-1 t2-2",
    }


@given(members=members_strategy(), partitions=partitions_strategy)
def test_one_topic_does_not_go_both_ways_between_two_members(
    members: list[MemberSubscription], partitions: dict[str, list[int]]
) -> None:
    """Each could have kept its own instead."""
    had = {tp: who for who, owned in valid_claims(members, partitions).items() for tp in owned}
    topics = {one.member_id: one.topics for one in members}
    moved = {
        (tp.topic, had[tp], to)
        for to, shared in STICKY.assign(members, partitions).items()
        for tp in shared
        if had.get(tp, to) != to and tp.topic in topics[had[tp]]
    }

    assert not moved & {(topic, to, giver) for topic, giver, to in moved}


def test_claims_travel_in_the_user_data_of_an_eager_group() -> None:
    """Members of an eager group own nothing when they join; this is what they had."""
    generations = {"C0": ("t-0 t-3 t-6", 1), "C2": ("t-2 t-5", 1)}
    members = [
        member(name, "t")._replace(user_data=STICKY.user_data(("t",), tps(had), generation))
        for name, (had, generation) in generations.items()
    ]

    assert short(STICKY.assign(members, SEVEN)) == {"C0": "t-0 t-3 t-6 t-4", "C2": "t-2 t-5 t-1"}
    spoilt = [one._replace(user_data=b"\x00\x00\x00\x07") for one in members]
    assert short(STICKY.assign(spoilt, SEVEN)) == short(
        STICKY.assign([member("C0", "t"), member("C2", "t")], SEVEN)
    )


def test_user_data_is_byte_for_byte_kafkas() -> None:
    """A leader written in Java must be able to read it, in both versions."""
    version_1 = bytes.fromhex(
        "00000002"  # Two topics:
        "0001 74 00000002 00000000 00000003"  # t: 0 and 3.
        "0001 75 00000001 00000001"  # u: 1.
        "00000005"  # Generation 5.
    )

    assert encode_previous(tps("t-0 u-1 t-3"), 5) == version_1
    assert decode_previous(version_1) == Previous(tps("t-0 t-3 u-1"), 5)
    assert decode_previous(version_1[:-4]) == Previous(tps("t-0 t-3 u-1"), -1)


@given(owned=claims_strategy, generation=st.integers(-1, 2**31 - 1), data=st.data())
def test_user_data_is_read_as_it_was_written_and_anything_else_is_no_error(
    owned: tuple[TopicPartition, ...], generation: int, data: st.DataObject
) -> None:
    """It comes from other clients: cut or spoilt bytes must not stop a rebalance."""
    written = encode_previous(owned, generation)
    read = decode_previous(written)

    assert read is not None
    assert (sorted(owned), generation) == (sorted(read.owned), read.generation)
    decode_previous(written[: data.draw(st.integers(0, len(written)))])
    decode_previous(data.draw(st.binary(max_size=40)))
    assert decode_previous(b"\xff\xff\xff\xff") is None
    assert decode_previous(b"\x00\x00\x00\x01\x00\x01t\x7f\xff\xff\xff") is None


def test_user_data_with_a_length_below_zero_is_not_read_backwards() -> None:
    """It would be read over and over."""
    assert decode_previous(bytes.fromhex("00000001 fffa 00000000")) is None


def test_user_data_holds_no_topic_that_kafka_could_not_read() -> None:
    """Its strings have a length of 16 bits."""
    with pytest.raises(LocalProtocolError, match="32768 bytes"):
        encode_previous([TopicPartition("t" * 0x8000, 0)], 1)


def valid_claims(
    members: list[MemberSubscription], partitions: dict[str, list[int]]
) -> dict[str, set[TopicPartition]]:
    """Return what each member had, by looking at every claim of every partition."""
    had: dict[str, set[TopicPartition]] = {one.member_id: set() for one in members}
    for topic, numbers in partitions.items():
        for tp in (TopicPartition(topic, number) for number in numbers):
            claims = [(one.generation, one.member_id) for one in members if tp in one.owned]
            newest = [who for generation, who in claims if generation == max(claims)[0]]
            if len(newest) == 1:
                had[newest[0]].add(tp)
    return had


@given(members=equals_strategy, partitions=partitions_strategy)
def test_equal_subscriptions_keep_all_that_balance_allows(
    members: list[MemberSubscription], partitions: dict[str, list[int]]
) -> None:
    """The most that can be kept: each its share of what it had, as many as can the larger one."""
    assigned = STICKY.assign(members, partitions)
    had = valid_claims(members, partitions)
    least, over = divmod(sum(map(len, partitions.values())), len(members))
    kept = sum(len(had[one] & set(given)) for one, given in assigned.items())
    could_have_more = sum(len(one) > least for one in had.values())

    assert max(sizes(assigned)) - min(sizes(assigned)) <= 1
    assert sum(min(len(one), least) for one in had.values()) + min(over, could_have_more) == kept


@given(members=members_strategy(), partitions=partitions_strategy)
def test_no_single_move_makes_unequal_subscriptions_more_even(
    members: list[MemberSubscription], partitions: dict[str, list[int]]
) -> None:
    """As balanced as Kafka promises for what members read in common."""
    assigned = STICKY.assign(members, partitions)

    check_complete(members, partitions, assigned)
    check_balanced(members, assigned)


@given(members=members_strategy(claims=st.just(())), partitions=partitions_strategy)
def test_a_rebalance_in_which_nothing_changed_moves_nothing(
    members: list[MemberSubscription], partitions: dict[str, list[int]]
) -> None:
    """However much the subscriptions differ."""
    before = STICKY.assign(members, partitions)
    after = STICKY.assign(holding(members, before, 1), partitions)

    assert {one: set(given) for one, given in before.items()} == {
        one: set(given) for one, given in after.items()
    }


@pytest.mark.parametrize("leaving", [True, False])
@given(members=equals_strategy, partitions=partitions_strategy)
def test_who_stays_keeps_everything_or_gives_only_to_newcomers(
    leaving: bool, members: list[MemberSubscription], partitions: dict[str, list[int]]
) -> None:
    """A leave takes nothing from the others; a join moves partitions only to the newcomer."""
    fewer = [one for one in members if one != members[0]] or members
    first, second = (members, fewer) if leaving else (fewer, members)
    fresh = [one._replace(owned=(), generation=-1) for one in first]
    before = STICKY.assign(fresh, partitions)
    after = STICKY.assign(
        [one._replace(owned=tuple(before.get(one.member_id, ())), generation=1) for one in second],
        partitions,
    )

    for one in fewer:
        old, new = set(before[one.member_id]), set(after[one.member_id])
        assert old <= new if leaving else new <= old


COOPERATIVE = CooperativeStickyAssignor()
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
