"""What an assignor is, and what it is given."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from protocol.partition import NO_GENERATION, TopicPartition

Assigned = dict[str, list[TopicPartition]]


class MemberSubscription(NamedTuple):
    """One member: what it wants to read, what it says it has, and where it is.

    ``owned`` is a claim: the member had these partitions in ``generation``. ``host`` is where
    it runs (Kafka calls it a rack, KIP-881). ``user_data`` belongs to the assignor.
    """

    member_id: str
    group_instance_id: str | None
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    host: str | None = None
    user_data: bytes | None = None


class Assignor(Protocol):
    """A way to share partitions; ``name`` is what the members vote on.

    ``assign(members, partitions, hosts)`` returns the partitions of each member, see
    `BaseAssignor.assign`. One's own assignor may do without the third parameter. Derive from
    `BaseAssignor` to be cooperative or to send data along.
    """

    @property
    def name(self) -> str:
        """The protocol name, as in the JoinGroup request."""
        ...

    @property
    def assign(self) -> Callable[..., Mapping[str, Sequence[TopicPartition]]]:
        """Compute who gets what: a method with two or three parameters."""
        ...


class BaseAssignor(ABC):
    """An assignor, with what most of them do alike."""

    name: str
    cooperative: bool = False
    """Whether members keep their partitions while the group rebalances (KIP-429)."""

    @abstractmethod
    def assign(
        self,
        members: Sequence[MemberSubscription],
        partitions: Mapping[str, Sequence[int]],
        hosts: Mapping[TopicPartition, Sequence[str]] | None = None,
    ) -> Assigned:
        """Return the partitions of each member (by member id). Pure: same input, same result.

        Args:
            members: Everybody in the group; their order plays no part.
            partitions: The partitions of each subscribed topic, sorted.
            hosts: Where each partition is near to read, where that is known.

        """

    def user_data(
        self,
        topics: Sequence[str],  # noqa: ARG002 - for those that override it.
        owned: Sequence[TopicPartition],  # noqa: ARG002 - the same.
        generation: int,  # noqa: ARG002 - the same.
    ) -> bytes | None:
        """Return what a member with *owned* of *generation* sends the next leader."""
        return None


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
