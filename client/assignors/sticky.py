"""Balanced, and everybody keeps as much as possible of what they had (KIP-54, KIP-429)."""

from collections import Counter
from collections.abc import Mapping, Sequence

from client.assignors.audiences import are_disjoint, audiences
from client.assignors.balance import balance
from client.assignors.base import Assigned, BaseAssignor, MemberSubscription
from client.assignors.claims import Claims, settle
from client.assignors.locality import near_partitions
from client.assignors.placement import Seats, place
from client.assignors.user_data import Previous, decode_previous, encode_previous
from protocol.types import TopicPartition


class StickyAssignor(BaseAssignor):
    """As balanced as the subscriptions allow, with as few moves as that takes.

    What a member had travels in its user data, since members of an eager group give up
    everything before they join; claims in the subscription are believed where it has none.

    Where hosts are known, each member gets what is on its host before it gets what it had,
    as far as its share goes.
    """

    name = "sticky"

    def assign(
        self,
        members: Sequence[MemberSubscription],
        partitions: Mapping[str, Sequence[int]],
        hosts: Mapping[TopicPartition, Sequence[str]] | None = None,
    ) -> Assigned:
        """Keep, then even out; see `BaseAssignor.assign`."""
        claims = _settled(members, partitions, {one.member_id: _told(one) for one in members})
        return _stick(members, partitions, hosts, claims)

    def user_data(
        self,
        topics: Sequence[str],  # noqa: ARG002 - it is in the subscription already.
        owned: Sequence[TopicPartition],
        generation: int,
    ) -> bytes | None:
        """Return *owned* and *generation* as Kafka's StickyAssignorUserData, version 1."""
        return encode_previous(owned, generation)


class CooperativeStickyAssignor(BaseAssignor):
    """The same result as `StickyAssignor`, in two rounds and without a stop.

    A partition that another member still claims is given to nobody. That member sees that it
    has lost it, stops reading and joins again; in that second round it changes hands. Where
    members read different topics, or hosts count, now and then another round follows, in
    which what came free lets the shares be more even, or nearer.
    """

    name = "cooperative-sticky"
    cooperative = True

    def assign(
        self,
        members: Sequence[MemberSubscription],
        partitions: Mapping[str, Sequence[int]],
        hosts: Mapping[TopicPartition, Sequence[str]] | None = None,
    ) -> Assigned:
        """Return what each member may read now; see `BaseAssignor.assign`."""
        claims = _settled(members, partitions, {one.member_id: _claimed(one) for one in members})
        target = _stick(members, partitions, hosts, claims)
        # Also a claim that isn't believed counts: whoever makes it may be reading still.
        return {
            member_id: [
                tp for tp in tps if tp not in claims.claimants or claims.owner.get(tp) == member_id
            ]
            for member_id, tps in target.items()
        }


def _told(member: MemberSubscription) -> Previous:
    told = None if member.user_data is None else decode_previous(member.user_data)
    return _claimed(member) if told is None else told


def _claimed(member: MemberSubscription) -> Previous:
    return Previous(member.owned, member.generation)


def _settled(
    members: Sequence[MemberSubscription],
    partitions: Mapping[str, Sequence[int]],
    claims: Mapping[str, Previous],
) -> Claims:
    """Settle the claims; nobody keeps what it doesn't want to read any more."""
    topics = {one.member_id: frozenset(one.topics) for one in members}
    existing = {TopicPartition(topic, n) for topic, ns in partitions.items() for n in ns}
    settled = settle(claims, existing)
    return settled._replace(
        owner={tp: one for tp, one in settled.owner.items() if tp.topic in topics[one]},
        previous={tp: one for tp, one in settled.previous.items() if tp.topic in topics[one]},
    )


def _stick(
    members: Sequence[MemberSubscription],
    partitions: Mapping[str, Sequence[int]],
    hosts: Mapping[TopicPartition, Sequence[str]] | None,
    claims: Claims,
) -> Assigned:
    result: Assigned = {one.member_id: [] for one in members}
    grouped = audiences(members, partitions)
    index_of = {topic: index for index, one in enumerate(grouped) for topic in one.topics}
    owners, previous = (_by_audience(wish, index_of) for wish in (claims.owner, claims.previous))
    units = [one.partitions(partitions) for one in grouped]
    if are_disjoint(grouped):
        seats = [Seats.even(one.members, len(tps)) for one, tps in zip(grouped, units, strict=True)]
    else:
        owned = [Counter(one.values()) for one in owners]
        seats = [Seats(counts) for counts in balance(grouped, [len(tps) for tps in units], owned)]
    near = near_partitions(members, (tp for tps in units for tp in tps), hosts)
    for index, tps in enumerate(units):
        placed = place(tps, seats[index], (owners[index], previous[index]), near)
        for member_id, given in placed.items():
            result[member_id] += given
    return result


def _by_audience(
    wish: Mapping[TopicPartition, str], index_of: Mapping[str, int]
) -> list[dict[TopicPartition, str]]:
    result: list[dict[TopicPartition, str]] = [
        {} for _ in range(max(index_of.values(), default=-1) + 1)
    ]
    for tp, member_id in wish.items():
        result[index_of[tp.topic]][tp] = member_id
    return result
