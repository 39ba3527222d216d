"""All partitions of all topics, dealt out one by one."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from client.assignors.audiences import audiences
from client.assignors.base import Assigned, BaseAssignor, MemberSubscription, in_order
from client.assignors.locality import near_partitions
from client.assignors.placement import Seats, place
from protocol.types import TopicPartition


class RoundRobinAssignor(BaseAssignor):
    """All partitions of all topics, dealt out one by one.

    Where hosts are known (Kafka's ignores them), members get as many of the topics that they
    share with the same others as the dealing gave them, but those on their own host first.
    """

    name = "roundrobin"

    def assign(
        self,
        members: Sequence[MemberSubscription],
        partitions: Mapping[str, Sequence[int]],
        hosts: Mapping[TopicPartition, Sequence[str]] | None = None,
    ) -> Assigned:
        """Deal in circles; members that don't subscribe to the topic are passed over."""
        dealt = _deal(members, partitions)
        tps = [tp for given in dealt.values() for tp in given]
        near = near_partitions(members, tps, hosts)
        if near is None:
            return dealt
        result: Assigned = {member_id: [] for member_id in dealt}
        for audience in audiences(members, partitions):
            topics = frozenset(audience.topics)
            counts = {one: sum(tp.topic in topics for tp in dealt[one]) for one in audience.members}
            placed = place(audience.partitions(partitions), Seats(counts), near=near)
            for member_id, given in placed.items():
                result[member_id] += given
        for given in result.values():
            given.sort()
        return result


def _deal(
    members: Sequence[MemberSubscription], partitions: Mapping[str, Sequence[int]]
) -> Assigned:
    ordered = in_order(members)
    result: Assigned = {member.member_id: [] for member in members}
    positions: dict[str, list[int]] = {}
    for position, member in enumerate(ordered):
        for topic in set(member.topics) & partitions.keys():
            positions.setdefault(topic, []).append(position)
    turn = 0
    for topic in sorted(positions):
        subscribers = positions[topic]
        for number in partitions[topic]:
            at = bisect_left(subscribers, turn)
            position = subscribers[at] if at < len(subscribers) else subscribers[0]
            result[ordered[position].member_id].append(TopicPartition(topic, number))
            turn = position + 1
    return result
