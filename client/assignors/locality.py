"""Which member is on the same host as which partition (KIP-881; Kafka says rack).

All copies of a partition count, whether in sync or not.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from client.assignors.base import MemberSubscription
from protocol.types import TopicPartition

U = TypeVar("U", bound=Hashable)


class Near(Generic[U]):
    """The hosts of some members and of what they are to share.

    Attributes:
        host_of: The host of each member that has one.
        hosts_of: The hosts of each unit that is to be handed out.

    """

    def __init__(self, host_of: Mapping[str, str], hosts_of: Mapping[U, frozenset[str]]) -> None:
        """Take both as they are."""
        self.host_of = host_of
        self.hosts_of = hosts_of

    def near(self, unit: U, member_id: str | None) -> bool:
        """Return whether *member_id* (None: nobody) is on a host of *unit*."""
        return member_id is not None and self.host_of.get(member_id) in self.hosts_of[unit]

    def makes_a_difference(self) -> bool:
        """Return whether somebody is near to something, and not everything is everywhere."""
        everywhere = frozenset().union(*self.hosts_of.values())
        return not everywhere.isdisjoint(self.host_of.values()) and any(
            hosts != everywhere for hosts in self.hosts_of.values()
        )


def near_partitions(
    members: Sequence[MemberSubscription],
    tps: Iterable[TopicPartition],
    hosts: Mapping[TopicPartition, Sequence[str]] | None,
) -> Near[TopicPartition] | None:
    """Return who is near to which of *tps*; None where hosts make no difference."""
    host_of = {one.member_id: one.host for one in members if one.host is not None}
    if not hosts or not host_of:
        return None
    found = Near(host_of, {tp: frozenset(hosts.get(tp, ())) for tp in tps})
    return found if found.makes_a_difference() else None
