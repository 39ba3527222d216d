"""Interface of assignors, their input, and the function by which the leader runs one."""

import inspect
import operator
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from protocol import consumer
from protocol.messages import JoinGroupMember, MemberAssignment
from protocol.partition import INT32_MAX, NO_GENERATION, TopicPartition
from protocol.text import some_of

_WANTS_NOTHING: Final = consumer.Subscription(())
_NAMED_MAX: Final = 5

Assigned = dict[str, list[TopicPartition]]
Partitions = Mapping[str, Sequence[int]]  # Partition numbers by topic.
Hosts = Mapping[TopicPartition, Sequence[str]] | None


class AssignmentWarning(UserWarning):
    """An assignment leaves partitions unread, or gives members topics that they don't read."""


class InvalidAssignment(ValueError):
    """An assignor returned an assignment that must not be used; see `run_assignor`."""


class MemberSubscription(NamedTuple):
    """Subscription of one member, with the partitions that it claims, and its host.

    ``owned`` is a claim: the member had these partitions in ``generation``. ``host`` is the host
    on which the member runs (Kafka's rack, KIP-881). ``user_data`` belongs to the assignor.
    """

    member_id: str
    group_instance_id: str | None
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation: int = NO_GENERATION
    host: str | None = None
    user_data: bytes | None = None


Members = Sequence[MemberSubscription]


class Assignor(Protocol):
    """Interface of an assignor; the members of a group vote for one by ``name``.

    ``assign(members, partitions, hosts)`` returns the partitions of each member, see
    `BaseAssignor.assign`. An assignor of your own may omit the third parameter. Derive it from
    `BaseAssignor` to make it cooperative, or to send user data.
    """

    @property
    def name(self) -> str:
        """The protocol name, as in the JoinGroup request."""
        ...

    @property
    def assign(self) -> Callable[..., Mapping[str, Sequence[TopicPartition]]]:
        """Compute the partitions of each member: a method with two or three parameters."""
        ...


class BaseAssignor(ABC):
    """Base class of assignors: eager and without user data by default."""

    name: str
    cooperative: bool = False
    """Whether members keep their partitions while the group rebalances (KIP-429)."""

    @abstractmethod
    def assign(self, members: Members, partitions: Partitions, hosts: Hosts = None) -> Assigned:
        """Return the partitions of each member (by member id). Pure: same input, same result.

        Args:
            members: All members of the group; their order must not matter.
            partitions: The partitions of each subscribed topic, sorted.
            hosts: The hosts with a copy of each partition, if known.

        """

    def user_data(
        self,
        topics: Sequence[str],  # noqa: ARG002 - for those that override it.
        owned: Sequence[TopicPartition],  # noqa: ARG002 - the same.
        generation: int,  # noqa: ARG002 - the same.
    ) -> bytes | None:
        """Return the user data for the next leader, of a member with *owned* of *generation*."""
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


def read_subscriptions(members: Iterable[JoinGroupMember]) -> list[MemberSubscription]:
    """Decode the members' subscriptions for the leader.

    A member whose subscription can't be decoded counts as subscribed to no topic.
    """
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


def run_assignor(
    assignor: Assignor,
    members: Members,
    partitions: Partitions,
    hosts: Hosts,
) -> Assigned:
    """Run *assignor*; return the partitions of each member, none for a member that it omits.

    *hosts* is passed on if the assignor takes a third argument. Each finding of `check_assignment`
    gives an `AssignmentWarning`.

    Raises:
        InvalidAssignment: The assignor gives a partition twice, names a member that isn't in the
            group, returns something else than partitions per member, or is cooperative and moves a
            partition from one member to another in a single rebalance.
        Exception: Any error of the assignor itself.
    """
    if _takes_three(assignor):
        made = _read(assignor.assign(members, partitions, hosts))
    else:
        made = _read(assignor.assign(members, partitions))
    for found in check_assignment(members, partitions, made):
        warnings.warn(f"assignor {assignor.name!r}: {found}", AssignmentWarning, stacklevel=2)
    if getattr(assignor, "cooperative", False):
        _check_hand_over(members, made)
    return {one.member_id: made.get(one.member_id, []) for one in members}


def check_assignment(
    members: Members,
    partitions: Partitions,
    assigned: Mapping[str, Sequence[TopicPartition]],
) -> list[str]:
    """Return the findings about an assignment, a sentence for each topic and kind of finding.

    Findings are: partitions of subscribed topics without a member (except for those that a member
    still has, as a cooperative group hands over in two rebalances), unknown partitions, and
    partitions of a topic that the member doesn't subscribe to.

    Raises:
        InvalidAssignment: A partition is given twice, or a member isn't in the group.
    """
    holder = _holders(members, assigned)
    topics = {one.member_id: frozenset(one.topics) for one in members}
    existing = {topic: frozenset(numbers) for topic, numbers in partitions.items()}
    found = _unread(members, existing, holder)
    unwanted: dict[str, set[str]] = {}
    unknown: dict[str, set[int]] = {}
    for (topic, number), member_id in holder.items():
        if topic not in topics[member_id]:
            unwanted.setdefault(topic, set()).add(member_id)
        elif number not in existing.get(topic, ()):
            unknown.setdefault(topic, set()).add(number)
    found += [
        f"topic {topic!r} was given to members that don't subscribe to it: {_some(who)}"
        for topic, who in sorted(unwanted.items())
    ]
    found += [
        f"partitions of topic {topic!r} were given that aren't known: {_some(numbers)}"
        for topic, numbers in sorted(unknown.items())
    ]
    return found


def _read(made: Mapping[str, Iterable[TopicPartition]]) -> Assigned:
    """Check an assignor's result and copy it into lists, in one pass as it may be generators."""
    try:
        read = {
            member_id: [TopicPartition(topic, operator.index(number)) for topic, number in tps]
            for member_id, tps in made.items()
        }
    except (AttributeError, TypeError, ValueError) as exc:
        raise InvalidAssignment(f"not a list of partitions for each member: {exc}") from exc
    for tp in (tp for tps in read.values() for tp in tps):
        if not 0 <= tp.partition <= INT32_MAX:
            raise InvalidAssignment(f"there is no partition {tp}")
    return read


def _check_hand_over(members: Members, made: Assigned) -> None:
    """Check that no partition moves at once from one cooperative member to another.

    Its old owner goes on reading during the rebalance, so the partition would have two.
    """
    owners: dict[TopicPartition, set[str]] = {}
    newest: dict[TopicPartition, int] = {}
    for one in sorted(members, key=lambda member: -member.generation):
        for tp in one.owned:
            if newest.setdefault(tp, one.generation) == one.generation:
                owners.setdefault(tp, set()).add(one.member_id)
    for member_id, tps in made.items():
        for tp in tps:
            others = owners.get(tp, {member_id})
            if member_id not in others:
                raise InvalidAssignment(
                    f"partition {tp} was given to {member_id!r} while it is still with "
                    f"{_some(others)}; a cooperative assignor gives it away in the next rebalance"
                )


def _holders(
    members: Members, assigned: Mapping[str, Sequence[TopicPartition]]
) -> dict[TopicPartition, str]:
    strangers = assigned.keys() - {one.member_id for one in members}
    if strangers:
        raise InvalidAssignment(f"assigned to who is not in the group: {_some(strangers)}")
    holder: dict[TopicPartition, str] = {}
    for member_id, tps in assigned.items():
        for topic, number in tps:
            tp = TopicPartition(topic, number)
            if tp in holder:
                raise InvalidAssignment(
                    f"partition {tp} was given twice, to {holder[tp]!r} and {member_id!r}"
                )
            holder[tp] = member_id
    return holder


def _unread(
    members: Members,
    existing: Mapping[str, frozenset[int]],
    holder: Mapping[TopicPartition, str],
) -> list[str]:
    read: dict[str, set[int]] = {}
    for topic, number in [*holder, *(tp for one in members for tp in one.owned)]:
        read.setdefault(topic, set()).add(number)
    found = []
    for topic in sorted({topic for one in members for topic in one.topics}):
        numbers = existing.get(topic, frozenset())
        left = numbers - read.get(topic, set())
        if not numbers:
            found.append(f"topic {topic!r} is subscribed to, but has no partitions")
        elif left:
            found.append(
                f"topic {topic!r} is subscribed to, but {len(left)} of its {len(numbers)} "
                f"partitions were given to nobody: {_some(left)}"
            )
    return found


def _takes_three(assignor: Assignor) -> bool:
    try:
        inspect.signature(assignor.assign).bind((), {}, {})
    except TypeError:
        return False
    return True


def _some(things: Iterable[str] | Iterable[int]) -> str:
    return some_of([repr(thing) for thing in sorted(things)], _NAMED_MAX)
