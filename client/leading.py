"""What the leader of a group does: it computes everybody's assignments."""

import inspect
from collections.abc import Mapping, Sequence

from client.actions import Compute
from client.assignors import Assignor, read_subscriptions, run_assignor, write_assignments
from client.topics import TopicCalls
from client.types import Partitions
from protocol.errors import ErrorCode
from protocol.messages import MemberAssignment
from protocol.types import TopicPartition


class Leading:
    """The assignors of one member, and where it finds out which partitions there are.

    Args:
        assignors: Those that the member offers.
        partitions: What the caller knows of partitions; None asks the coordinator's registry.
        topic_calls: Ask it.

    """

    def __init__(
        self,
        assignors: Sequence[Assignor],
        partitions: Partitions | None,
        topic_calls: TopicCalls,
    ) -> None:
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._partitions = partitions
        self._topic_calls = topic_calls

    def user_data(
        self,
        name: str,
        topics: tuple[str, ...],
        owned: tuple[TopicPartition, ...],
        generation: int,
    ) -> bytes | None:
        """Return what assignor *name* wants its leader to know of this member."""
        pack = getattr(self._assignors[name], "user_data", None)
        return None if pack is None else pack(topics, owned, generation)

    async def compute(self, action: Compute) -> tuple[MemberAssignment, ...]:
        """Return everybody's assignments. Raises what the caller's own code raises."""
        members = read_subscriptions(action.members)
        topics = sorted({topic for member in members for topic in member.topics})
        partitions, hosts = await self._find(topics)
        assignor = self._assignors[action.assignor_name]
        return write_assignments(run_assignor(assignor, members, partitions, hosts))

    async def _find(
        self, topics: list[str]
    ) -> tuple[dict[str, list[int]], dict[TopicPartition, tuple[str, ...]]]:
        """Return the partitions of each topic, and the hosts that have their data."""
        if self._partitions is not None:
            return {topic: await self._asked(self._partitions, topic) for topic in topics}, {}
        partitions: dict[str, list[int]] = {}
        hosts: dict[TopicPartition, tuple[str, ...]] = {}
        for described in await self._topic_calls.describe(topics):
            known = described.error == ErrorCode.NONE
            partitions[described.topic] = list(range(described.partition_count)) if known else []
            for partition, names in described.hosts:
                hosts[TopicPartition(described.topic, partition)] = tuple(names)
        return partitions, hosts

    async def _asked(self, partitions: Partitions, topic: str) -> list[int]:
        if isinstance(partitions, Mapping):
            return list(range(partitions.get(topic, 0)))
        numbers = partitions(topic)
        if inspect.isawaitable(numbers):
            numbers = await numbers
        return sorted(set(numbers))
