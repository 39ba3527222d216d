"""Groups for the tests of the assignors, and what must hold of every assignment."""

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from client.assignors import BaseAssignor, MemberSubscription
from protocol.partition import TopicPartition

TOPICS = ["t0", "t1", "t2"]
HOSTS = ["h0", "h1", "h2"]


def member(
    name: str,
    *topics: str,
    instance: str | None = None,
    owned: str = "",
    generation: int = -1,
    host: str | None = None,
) -> MemberSubscription:
    """Return a member; *owned* as "t-0 t-1"."""
    return MemberSubscription(name, instance, topics, tps(owned), generation, host)


def tps(text: str) -> tuple[TopicPartition, ...]:
    """Return the partitions named in "t-0 t-1"."""
    pairs = (one.rsplit("-", 1) for one in text.split())
    return tuple(TopicPartition(topic, int(number)) for topic, number in pairs)


def short(assigned: Mapping[str, Sequence[TopicPartition]]) -> dict[str, str]:
    """Return "t0-1 t0-2" per member."""
    return {name: " ".join(map(str, given)) for name, given in assigned.items()}


def holding(
    members: Sequence[MemberSubscription],
    assigned: Mapping[str, Sequence[TopicPartition]],
    generation: int,
) -> list[MemberSubscription]:
    """Return the members as they come to the next rebalance."""
    return [
        one._replace(owned=tuple(assigned.get(one.member_id, ())), generation=generation)
        for one in members
    ]


partitions_strategy = st.fixed_dictionaries(
    {topic: st.integers(0, 12).map(lambda n: list(range(n))) for topic in TOPICS}
)
claims_strategy = st.lists(
    st.builds(TopicPartition, st.sampled_from([*TOPICS, "gone"]), st.integers(0, 13)), max_size=12
).map(tuple)


def members_strategy(
    topics: st.SearchStrategy[tuple[str, ...]] | None = None,
    claims: st.SearchStrategy[tuple[TopicPartition, ...]] = claims_strategy,
) -> st.SearchStrategy[list[MemberSubscription]]:
    """Return groups of members that claim and want anything, or *topics*."""
    return st.lists(
        st.builds(
            MemberSubscription,
            st.text("abcdef", min_size=1, max_size=4),
            st.none() | st.text("ij", min_size=1, max_size=3),
            st.lists(st.sampled_from(TOPICS), unique=True).map(tuple) if topics is None else topics,
            claims,
            st.integers(-1, 3),
            st.none() | st.sampled_from(HOSTS),
        ),
        min_size=1,
        max_size=8,
        unique_by=lambda one: one.member_id,
    )


equals_strategy = members_strategy(st.just(tuple(TOPICS)))
hosts_strategy = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 12)),
    st.lists(st.sampled_from([*HOSTS, "elsewhere"]), unique=True, max_size=3),
    max_size=40,
)


def check_complete(
    members: Sequence[MemberSubscription],
    partitions: Mapping[str, Sequence[int]],
    assigned: Mapping[str, Sequence[TopicPartition]],
) -> None:
    """Everything that somebody wants is read by exactly one member that wants it."""
    given = [tp for one in assigned.values() for tp in one]
    subscribed = {topic for one in members for topic in one.topics}
    expected = {TopicPartition(topic, n) for topic in subscribed for n in partitions[topic]}
    assert expected == set(given)
    assert len(given) == len(set(given))
    assert assigned.keys() == {one.member_id for one in members}
    for one in members:
        assert {tp.topic for tp in assigned[one.member_id]} <= set(one.topics)


def check_balanced(
    members: Sequence[MemberSubscription], assigned: Mapping[str, Sequence[TopicPartition]]
) -> None:
    """No partition can be moved to a member that would still have less than its holder had."""
    for giver in members:
        topics = {tp.topic for tp in assigned[giver.member_id]}
        for taker in members:
            if not topics.isdisjoint(taker.topics):
                assert len(assigned[giver.member_id]) <= len(assigned[taker.member_id]) + 1


def sizes(assigned: Mapping[str, Sequence[TopicPartition]]) -> list[int]:
    """Return how much the members have, the smallest first."""
    return sorted(len(given) for given in assigned.values())


def near_count(
    members: Sequence[MemberSubscription],
    assigned: Mapping[str, Sequence[TopicPartition]],
    hosts: Mapping[TopicPartition, Sequence[str]],
) -> int:
    """Return how many partitions are on their reader's host."""
    return sum(one.host in hosts.get(tp, ()) for one in members for tp in assigned[one.member_id])


def names(assignors: Sequence[BaseAssignor]) -> list[str]:
    """Return what to call parameter sets."""
    return [one.name for one in assignors]
