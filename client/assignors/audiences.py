"""Which topics have the same readers: among those, partitions can be exchanged."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from client.assignors.base import MemberSubscription, in_order
from protocol.types import TopicPartition


class Audience(NamedTuple):
    """Some members (in order), and the topics (sorted) that they and nobody else read."""

    members: tuple[str, ...]
    topics: tuple[str, ...]

    def partitions(self, of: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
        """Return all partitions of these topics, by topic and number."""
        return [TopicPartition(topic, number) for topic in self.topics for number in of[topic]]


def audiences(
    members: Sequence[MemberSubscription], partitions: Mapping[str, Sequence[int]]
) -> list[Audience]:
    """Group the topics that have partitions and readers; the smallest audience first.

    Members that read nothing (that exists) are in no audience.
    """
    readers: dict[str, list[str]] = {}
    for member in in_order(members):
        for topic in set(member.topics):
            if partitions.get(topic):
                readers.setdefault(topic, []).append(member.member_id)
    topics: dict[tuple[str, ...], list[str]] = {}
    for topic in sorted(readers):
        topics.setdefault(tuple(readers[topic]), []).append(topic)
    grouped = [Audience(ids, tuple(names)) for ids, names in topics.items()]
    return sorted(grouped, key=lambda audience: (len(audience.members), audience.topics))


def are_disjoint(grouped: Sequence[Audience]) -> bool:
    """Return whether nobody is in two audiences, so that each can be served on its own.

    Equal subscriptions are the plainest case of it.
    """
    ids = [member_id for audience in grouped for member_id in audience.members]
    return len(ids) == len(set(ids))
