"""Sticky assignors: balanced, and members keep most of their partitions (KIP-54, KIP-429).

Theory of operation
===================

Each member claims the partitions that it had: in an eager group in the user data (Kafka's
StickyAssignorUserData), in a cooperative one in the subscription. `settle` decides which claims
hold. If members read different topics, `balance` decides how many partitions of each audience each
member gets; it computes only numbers, which is fast. `client.assignors.placement` then chooses the
partitions, and keeps as many as possible with their last owner.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappush, heapreplace
from itertools import groupby
from typing import Final, NamedTuple

from client.assignors.base import (
    Assigned,
    BaseAssignor,
    Hosts,
    Members,
    MemberSubscription,
    Partitions,
)
from client.assignors.placement import (
    Audience,
    Seats,
    are_disjoint,
    audiences,
    near_partitions,
    share_out,
)
from protocol.errors import LocalProtocolError
from protocol.partition import NO_GENERATION, TopicPartition

_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")


class Previous(NamedTuple):
    """The partitions that a member had, and the generation of that assignment."""

    owned: tuple[TopicPartition, ...]
    generation: int = NO_GENERATION


class Claims(NamedTuple):
    """The settled claims of all members.

    ``owner`` is the member that claims a partition of the newest generation; a partition that two
    members claim of that generation has none. ``previous`` is the member that claims it of an
    older generation. Both are ordered by number and topic, so that a member with too many
    partitions loses the highest numbers of all topics, not all of one topic. ``claimants`` has all
    members that claim a partition.
    """

    owner: dict[TopicPartition, str]
    previous: dict[TopicPartition, str]
    claimants: dict[TopicPartition, set[str]]


class StickyAssignor(BaseAssignor):
    """Balances as far as the subscriptions allow, with as few moves as possible.

    A member sends its old partitions as user data, since members of an eager group give up all
    partitions before they join. Without user data, claims in the subscription are used.

    If hosts are known, a member gets partitions on its host before its old ones, up to its share.
    """

    name = "sticky"

    def assign(self, members: Members, partitions: Partitions, hosts: Hosts = None) -> Assigned:
        """Keep old partitions where balance allows it; see `BaseAssignor.assign`."""
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
    """Comes to the result of `StickyAssignor` in two rebalances, while members go on reading.

    In the first rebalance a partition that another member still claims is given to no member. Its
    old owner learns that it has lost the partition, stops reading it and joins again; the second
    rebalance gives it to the new owner. If members read different topics, or hosts matter, a
    further rebalance sometimes follows: partitions that became free then allow more even shares,
    or nearer partitions.
    """

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, members: Members, partitions: Partitions, hosts: Hosts = None) -> Assigned:
        """Return the partitions that each member may read now; see `BaseAssignor.assign`."""
        claims = _settled(members, partitions, {one.member_id: _claimed(one) for one in members})
        target = _stick(members, partitions, hosts, claims)
        # Claims that don't hold count as well: their members may still be reading.
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


def _settled(members: Members, partitions: Partitions, claims: Mapping[str, Previous]) -> Claims:
    """Settle the claims; drop those to topics that the member no longer subscribes to."""
    topics = {one.member_id: frozenset(one.topics) for one in members}
    existing = {TopicPartition(topic, n) for topic, ns in partitions.items() for n in ns}
    settled = settle(claims, existing)
    return settled._replace(
        owner={tp: one for tp, one in settled.owner.items() if tp.topic in topics[one]},
        previous={tp: one for tp, one in settled.previous.items() if tp.topic in topics[one]},
    )


def _stick(members: Members, partitions: Partitions, hosts: Hosts, claims: Claims) -> Assigned:
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
        placed = share_out(tps, seats[index], (owners[index], previous[index]), near)
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


def encode_previous(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """Return StickyAssignorUserData of version 1: {topic, partitions} each, and the generation."""
    by_topic: dict[bytes, list[int]] = {}
    for topic, partition in owned:
        by_topic.setdefault(topic.encode(), []).append(partition)
    out = bytearray(_I32.pack(len(by_topic)))
    for name, numbers in by_topic.items():
        if len(name) > 0x7FFF:
            raise LocalProtocolError(f"a string of {len(name)} bytes is over 32767")
        out += _I16.pack(len(name)) + name
        out += struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
    return bytes(out + _I32.pack(generation))


def decode_previous(data: bytes) -> Previous | None:
    """Decode StickyAssignorUserData; None if *data* is invalid.

    The bytes contain no version. Version 0 differs in having no generation at its end.
    """
    owned: list[TopicPartition] = []
    at = 4
    try:
        (topics,) = _I32.unpack_from(data)
        for _ in range(topics):
            (length,) = _I16.unpack_from(data, at)
            at += 2
            topic = data[at : at + length].decode()
            at += length
            (count,) = _I32.unpack_from(data, at)
            if min(length, count) < 0:
                return None
            # unpack_from checks the length of *data* before it allocates anything.
            numbers = struct.unpack_from(f">{count}i", data, at + 4)
            at += 4 + 4 * count
            owned += [TopicPartition(topic, number) for number in numbers]
    except (struct.error, UnicodeDecodeError):
        return None
    if topics < 0:
        return None
    left = len(data) - at
    return Previous(tuple(owned), _I32.unpack_from(data, at)[0] if left >= 4 else NO_GENERATION)


def settle(claims: Mapping[str, Previous], existing: Iterable[TopicPartition]) -> Claims:
    """Decide which claims (by member id) to the *existing* partitions hold.

    A claim of a newer generation beats one of an older generation, whose member missed a
    rebalance. Two claims of one generation contradict each other, and neither holds.
    """
    owner: dict[TopicPartition, str | None] = {}
    previous: dict[TopicPartition, str] = {}
    claimants: dict[TopicPartition, set[str]] = {}
    newest_first = sorted(claims, key=lambda one: (-claims[one].generation, one))
    for _, same_generation in groupby(newest_first, key=lambda one: claims[one].generation):
        said = _of_one_generation(list(same_generation), claims, claimants)
        for tp, member_id in said.items():
            if tp not in owner:
                owner[tp] = member_id
            elif member_id is not None:
                previous.setdefault(tp, member_id)
    order = sorted(set(existing) & claimants.keys(), key=lambda tp: (tp.partition, tp.topic))
    return Claims(
        {tp: who for tp in order if (who := owner[tp]) is not None},
        {tp: previous[tp] for tp in order if tp in previous},
        claimants,
    )


def _of_one_generation(
    member_ids: Sequence[str],
    claims: Mapping[str, Previous],
    claimants: dict[TopicPartition, set[str]],
) -> dict[TopicPartition, str | None]:
    said: dict[TopicPartition, str | None] = {}
    for member_id in member_ids:
        for tp in set(claims[member_id].owned):
            said[tp] = None if tp in said else member_id
            claimants.setdefault(tp, set()).add(member_id)
    return said


def balance(
    audiences: Sequence[Audience], sizes: Sequence[int], owned: Sequence[Mapping[str, int]]
) -> list[dict[str, int]]:
    """Return, for each audience, the number of partitions of each of its members.

    No member has two or more partitions more than another one that could take one of them.

    Args:
        audiences: The audiences; those with few members first, as they have less choice.
        sizes: The number of partitions of each audience.
        owned: For each audience, how many of its partitions each member has; partitions without an
            owner are dealt out.

    """
    state = _Balance(audiences, owned)
    for index, size in enumerate(sizes):
        for _ in range(size - sum(owned[index].values())):
            state.give(index, state.least_loaded(index))
    state.even_out()
    return state.counts


class _Balance:
    """Numbers of partitions of each member, and the least loaded member of each audience."""

    def __init__(self, audiences: Sequence[Audience], owned: Sequence[Mapping[str, int]]) -> None:
        self._owned = owned
        self.counts = [
            {member_id: had.get(member_id, 0) for member_id in audience.members}
            for audience, had in zip(audiences, owned, strict=True)
        ]
        self._audiences_of: dict[str, list[int]] = {}
        for index, audience in enumerate(audiences):
            for member_id in audience.members:
                self._audiences_of.setdefault(member_id, []).append(index)
        self._loads = {
            member_id: sum(self.counts[index][member_id] for index in indexes)
            for member_id, indexes in self._audiences_of.items()
        }
        # Loads in a heap may be out of date, but never too high: see _take.
        self._heaps: list[list[tuple[int, int, str]]] = []
        for audience in audiences:
            heap = [(self._loads[one], place, one) for place, one in enumerate(audience.members)]
            heapify(heap)
            self._heaps.append(heap)
        self._places = [{one: place for _, place, one in heap} for heap in self._heaps]

    def least_loaded(self, index: int) -> str:
        """Return the member of audience *index* with the fewest partitions."""
        heap = self._heaps[index]
        while True:
            load, place, member_id = heap[0]
            if load == self._loads[member_id]:
                return member_id
            heapreplace(heap, (self._loads[member_id], place, member_id))

    def give(self, index: int, member_id: str) -> None:
        """Add one partition of audience *index*."""
        self.counts[index][member_id] += 1
        self._loads[member_id] += 1

    def _take(self, index: int, member_id: str) -> None:
        self.counts[index][member_id] -= 1
        self._loads[member_id] -= 1
        for other in self._audiences_of[member_id]:
            place = self._places[other][member_id]
            heappush(self._heaps[other], (self._loads[member_id], place, member_id))

    def even_out(self) -> None:
        """Move partitions from members with more to members with fewer, until no move helps.

        Each move makes the sum of the squared loads smaller, so the loop ends, and the balance
        never gets worse.
        """
        moved = True
        while moved:
            moved = False
            for member_id in sorted(self._loads, key=lambda one: (-self._loads[one], one)):
                while self._relieve(member_id):
                    moved = True

    def _relieve(self, member_id: str) -> bool:
        """Move one partition away if that helps; preferably one that the member doesn't own."""
        load = self._loads[member_id]
        best: tuple[bool, int, int] | None = None
        for index in self._audiences_of[member_id]:
            count = self.counts[index][member_id]
            if count == 0:
                continue
            least = self._loads[self.least_loaded(index)]
            if least + 1 < load:
                costs = count <= self._owned[index].get(member_id, 0)
                option = (costs, least, index)
                best = option if best is None else min(best, option)
        if best is None:
            return False
        index = best[2]
        to = self.least_loaded(index)
        self._take(index, member_id)
        self.give(index, to)
        return True
