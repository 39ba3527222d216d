"""A contiguous range of each topic for each member; Kafka's default."""

from collections.abc import Mapping, Sequence

from client.assignors.audiences import audiences
from client.assignors.base import Assigned, BaseAssignor, MemberSubscription
from client.assignors.locality import Near, near_partitions
from client.assignors.placement import Seats, place
from protocol.types import TopicPartition


class RangeAssignor(BaseAssignor):
    """Per topic, a contiguous range for each subscriber: partition n of all topics together.

    Where hosts are known, each member gets the partitions on its host first, as far as its
    share goes, and the rest in ranges. Topics with the same readers and the same partitions
    are shared out as one, so that partition n of all of them still comes together; near is then
    what is near in each of them.
    """

    name = "range"

    def assign(
        self,
        members: Sequence[MemberSubscription],
        partitions: Mapping[str, Sequence[int]],
        hosts: Mapping[TopicPartition, Sequence[str]] | None = None,
    ) -> Assigned:
        """Give the first P % N subscribers of each topic one partition more than the others."""
        result: Assigned = {member.member_id: [] for member in members}
        for audience in audiences(members, partitions):
            alike: dict[tuple[int, ...], list[str]] = {}
            for topic in audience.topics:
                alike.setdefault(tuple(partitions[topic]), []).append(topic)
            for numbers, topics in alike.items():
                placed = place(
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
    members: Sequence[MemberSubscription],
    topics: Sequence[str],
    numbers: Sequence[int],
    hosts: Mapping[TopicPartition, Sequence[str]] | None,
) -> Near[int] | None:
    tps = [TopicPartition(topic, number) for topic in topics for number in numbers]
    near = near_partitions(members, tps, hosts)
    if near is None:
        return None
    hosts_of = {number: near.hosts_of[TopicPartition(topics[0], number)] for number in numbers}
    for topic, number in tps:
        hosts_of[number] &= near.hosts_of[TopicPartition(topic, number)]
    return Near(near.host_of, hosts_of)
