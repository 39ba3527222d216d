"""The two simple assignors: a range of each topic for each member, or all partitions in turn."""

from bisect import bisect_left
from collections.abc import Sequence

from client.assignors.base import Assigned, BaseAssignor, Hosts, Members, Partitions, in_order
from client.assignors.placement import Near, Seats, audiences, near_partitions, share_out
from protocol.partition import TopicPartition


class RangeAssignor(BaseAssignor):
    """Gives each subscriber a contiguous range of each topic: partition n of all topics together.

    If hosts are known, each member first gets partitions on its own host, up to its share, and
    the rest in ranges. Topics with the same readers and the same partitions are distributed as
    one, so that partition n of all of them still goes to one member. It counts as near a member
    only if it is on the member's host in each of these topics.
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
    """Deals out all partitions of all topics, one by one.

    If hosts are known (Kafka's assignor ignores them), the dealing decides only how many
    partitions each member gets, for each set of topics with the same readers. The member then
    gets those on its own host first.
    """

    name = "roundrobin"

    def assign(self, members: Members, partitions: Partitions, hosts: Hosts = None) -> Assigned:
        """Deal to the members in turn; one that doesn't subscribe to the topic is skipped."""
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
