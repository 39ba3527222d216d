"""Who gets which partition: computed by the group's leader, for everybody.

Both are Kafka's, name and result, so that Kafka's own consumers could be in the same group.
They are pure functions of the members and the partitions; the order in which members came
plays no part, so every leader computes the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from protocol import consumer
from protocol.messages import JoinGroupMember, MemberAssignment
from protocol.types import TopicPartition


class MemberSubscription(NamedTuple):
    """One member and what it wants to read."""

    member_id: str
    group_instance_id: str | None
    topics: tuple[str, ...]


class Assignor(Protocol):
    """A way to share partitions; ``name`` is what the members vote on."""

    @property
    def name(self) -> str:
        """The protocol name, as in the JoinGroup request."""
        ...

    def assign(
        self, members: Sequence[MemberSubscription], partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, list[TopicPartition]]:
        """Return the partitions of each member (by member id).

        Args:
            members: Everybody in the group.
            partitions: The partitions of each subscribed topic, sorted.

        """
        ...


class RangeAssignor:
    """Per topic, a contiguous range for each subscriber: partition n of all topics together."""

    name = "range"

    def assign(
        self, members: Sequence[MemberSubscription], partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, list[TopicPartition]]:
        """Give the first P % N subscribers of each topic one partition more than the others."""
        result: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        ordered = in_order(members)
        for topic in sorted(partitions):
            subscribers = [member for member in ordered if topic in member.topics]
            if not subscribers:
                continue
            each, extra = divmod(len(partitions[topic]), len(subscribers))
            start = 0
            for position, member in enumerate(subscribers):
                end = start + each + (1 if position < extra else 0)
                result[member.member_id].extend(
                    TopicPartition(topic, partition) for partition in partitions[topic][start:end]
                )
                start = end
        return result


class RoundRobinAssignor:
    """All partitions of all topics, dealt out one by one."""

    name = "roundrobin"

    def assign(
        self, members: Sequence[MemberSubscription], partitions: Mapping[str, Sequence[int]]
    ) -> dict[str, list[TopicPartition]]:
        """Deal in circles; members that don't subscribe to the topic are passed over."""
        result: dict[str, list[TopicPartition]] = {member.member_id: [] for member in members}
        ordered = in_order(members)
        subscribed = {topic for member in members for topic in member.topics}
        turn = 0
        for topic in sorted(subscribed & partitions.keys()):
            for partition in partitions[topic]:
                while topic not in ordered[turn % len(ordered)].topics:
                    turn += 1
                member = ordered[turn % len(ordered)]
                result[member.member_id].append(TopicPartition(topic, partition))
                turn += 1
        return result


def in_order(members: Iterable[MemberSubscription]) -> list[MemberSubscription]:
    """Sort members as Kafka does: static ones first by instance id, then by member id.

    An instance id outlives restarts, so static members keep their places.
    """
    return sorted(
        members,
        key=lambda member: (
            member.group_instance_id is None,
            member.group_instance_id or "",
            member.member_id,
        ),
    )


def read_subscriptions(members: Iterable[JoinGroupMember]) -> list[MemberSubscription]:
    """Decode what the leader was shown. Who can't be understood wants nothing."""
    result = []
    for member in members:
        subscription = consumer.decode_subscription(member.metadata)
        topics = () if subscription is None else tuple(subscription.topics)
        result.append(MemberSubscription(member.member_id, member.group_instance_id, topics))
    return result


def write_assignments(
    assigned: Mapping[str, Sequence[TopicPartition]],
) -> tuple[MemberAssignment, ...]:
    """Encode the result for the SyncGroup request."""
    return tuple(
        MemberAssignment(
            member_id, consumer.encode_assignment(consumer.Assignment(tuple(partitions), b""))
        )
        for member_id, partitions in sorted(assigned.items())
    )
