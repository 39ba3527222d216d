"""The two simple assignors: a range of each topic for each member, or all dealt one by one."""

from bisect import bisect_left
from collections.abc import Sequence

from client.assignors.base import Assigned, BaseAssignor, Hosts, Members, Partitions, in_order
from client.assignors.placement import Near, Seats, audiences, near_partitions, share_out
from protocol.partition import TopicPartition


class RangeAssignor(BaseAssignor):
    """Per topic, a contiguous range for each subscriber: partition n of all topics together.

    Where hosts are known, each member gets the partitions on its host first, as far as its
    share goes, and the rest in ranges. Topics with the same readers and the same partitions
    are shared out as one, so that partition n of all of them still comes together; near is then
    what is near in each of them.
    """

    name = "range"

    def assign(self, members: Members, partitions: Partitions, hosts: Hosts = None) -> Assigned:
        """Give the first P % N subscribers of each topic one partition more than the others."""
        result: Assigned = {member.member_id: [] for member in members}
        for audience in audiences(members, partitions):
            topics_by_numbers: dict[tuple[int, ...], list[str]] = {}
            for topic in audience.topics:
                topics_by_numbers.setdefault(tuple(partitions[topic]), []).append(topic)
            for numbers, topics in topics_by_numbers.items():
                placed = share_out(
                    numbers,
                    Seats.even(audience.members, len(numbers)),
                    near=_near_numbers(members, topics, numbers, hosts),
                    in_a_row=True,
                )
                for member_id, given in placed.items():
                    result[member_id] += [
                        TopicPartition(topic, number) for topic in topics for number in given
                    ]
        for tps in result.values():
            tps.sort()
        return result


def _near_numbers(
    members: Members,
    topics: Sequence[str],
    numbers: Sequence[int],
    hosts: Hosts,
) -> Near[int] | None:
    tps = [TopicPartition(topic, number) for topic in topics for number in numbers]
    near = near_partitions(members, tps, hosts)
    if near is None:
        return None
    hosts_of = {number: near.hosts_of[TopicPartition(topics[0], number)] for number in numbers}
    for topic, number in tps:
        hosts_of[number] &= near.hosts_of[TopicPartition(topic, number)]
    return Near(near.host_of, hosts_of)


class RoundRobinAssignor(BaseAssignor):
    """All partitions of all topics, dealt out one by one.

    Where hosts are known (Kafka's ignores them), members get as many of the topics that they
    share with the same others as the dealing gave them, but those on their own host first.
    """

    name = "roundrobin"

    def assign(self, members: Members, partitions: Partitions, hosts: Hosts = None) -> Assigned:
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
            placed = share_out(audience.partitions(partitions), Seats(counts), near=near)
            for member_id, given in placed.items():
                result[member_id] += given
        for given in result.values():
            given.sort()
        return result


def _deal(members: Members, partitions: Partitions) -> Assigned:
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
