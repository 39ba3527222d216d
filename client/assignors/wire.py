"""Between the bytes of JoinGroup and SyncGroup and what assignors work with."""

from collections.abc import Iterable, Mapping, Sequence

from client.assignors.base import MemberSubscription
from protocol import consumer
from protocol.messages import JoinGroupMember, MemberAssignment
from protocol.types import TopicPartition

_WANTS_NOTHING = consumer.Subscription(())


def read_subscriptions(members: Iterable[JoinGroupMember]) -> list[MemberSubscription]:
    """Decode what the leader was shown. Who can't be understood wants nothing."""
    result = []
    for member in members:
        read = consumer.decode_subscription(member.metadata) or _WANTS_NOTHING
        result.append(
            MemberSubscription(
                member.member_id,
                member.group_instance_id,
                read.topics,
                read.owned_partitions,
                read.generation_id,
                read.rack_id,
                read.user_data,
            )
        )
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
