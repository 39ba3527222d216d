"""A reader's membership of its group: the protocol, and the real one.

`ReaderSession` is the protocol that the reader needs; the tests bring a group in memory.
`BlockingSession` is a member of the blocking client. If that member leads the group, it assigns the
partitions with the client's assignors, to which `LogAssignor` adds the hosts that the log knows.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, Protocol

from client.assignors import (
    Assigned,
    BaseAssignor,
    CooperativeStickyAssignor,
    MemberSubscription,
    RangeAssignor,
    StickyAssignor,
)
from client.blocking import BlockingClient, BlockingMember, connect_blocking
from client.exceptions import (
    ClientClosed,
    CommitRefused,
    CoordinatorUnavailable,
    MemberLost,
    RetriableError,
)
from client.membership import Assignment
from client.offsets import OffsetAndMetadata
from client.spark.logs.partition_log import PartitionLog
from client.spark.source.discovery import matching_topics
from client.spark.source.end_reports import EndReporter
from client.spark.source.group_memory import farther, places_group
from client.spark.source.reader_options import COOPERATIVE, ReaderOptions
from protocol.consumer import decode_assignment
from protocol.errors import ErrorCode
from protocol.messages import DescribedGroup, DescribedMember
from protocol.partition import NO_OFFSET, TopicPartition

logger = logging.getLogger(__name__)

# Timeout of the last report of ends, in seconds. Short, as Spark doesn't wait for the reader.
FINISH_S: Final = 0.5

_ASSIGNORS: Final[Mapping[str, type[BaseAssignor]]] = {
    COOPERATIVE: CooperativeStickyAssignor,
    "range": RangeAssignor,
    "sticky": StickyAssignor,
}

# Offsets that the group has stored, or is to store.
Offsets = Mapping[TopicPartition, OffsetAndMetadata]


class ReaderSession(Protocol):
    """A member of a group. Its heartbeats go on by themselves, in the client's thread.

    All methods raise the exceptions of `client.exceptions`.
    """

    @property
    def rebalance_needed(self) -> bool:
        """Whether a rebalance waits for `assignment`, or the assignment has changed."""

    @property
    def lost(self) -> bool:
        """Whether the group removed this member: its partitions belong to others."""

    def assignment(self, timeout_s: float) -> Assignment:
        """Join or rejoin if needed; give up the partitions that the group takes away.

        Blocks until there is an assignment. A cooperative member that has partitions doesn't wait:
        it gets those, and learns of changes with a later call.
        """

    def commit(self, offsets: Offsets, expected: Mapping[TopicPartition, int]) -> None:
        """Store offsets, if the offsets stored before are as expected (-1: none stored)."""

    def fetch(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the stored offsets; partitions without one are left out."""

    def depart(self, reason: str) -> None:
        """Leave the group, to join it anew with the next `assignment`. Never raises.

        The member's partitions are lost. May be called from another thread, but not during
        another call.
        """

    def leave(self) -> None:
        """Leave the group and give up all partitions; quick, idempotent, never raises.

        The place of a member with a group instance id is kept until its session ends.
        """

    @property
    def cooperative(self) -> bool:
        """Whether partitions that stay are kept, and can be committed, during a rebalance."""

    def others_read(self, before: str) -> bool:
        """Say whether other members own partitions of our topics, and none has our instance id.

        A member with the client id *before* doesn't count: it is this reader before its restart.
        """

    @property
    def losses(self) -> int:
        """How many times `assignment` found that this member's partitions belong to others."""

    @property
    def listed(self) -> Mapping[str, list[int]]:
        """The partitions of each topic when this member last assigned them, as the leader."""

    def request_rejoin(self, reason: str, topics: Sequence[str] | None = None) -> None:
        """Ask for a rebalance, to read *topics* from then on (None: the same as before)."""

    def unassigned(self, listing: Mapping[str, Sequence[int]]) -> bool:
        """Say whether some of the partitions in *listing* are assigned to no member."""

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that answered last; empty before the first answer."""

    def write_places(self, offsets: Offsets) -> None:
        """Write down, for other readers after a loss, where the group was; only moves forward."""

    def places(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the places that all readers have written with `write_places`."""

    def note_topics(self, partitions: Mapping[str, Sequence[int]]) -> None:
        """Have the topics' partitions registered soon at the coordinator. Never raises."""

    def note_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Have the ends of partitions reported soon to the coordinator. Never blocks or raises.

        *ends* must not be changed afterwards.
        """


# Makes a session for topics. True: the member gives up all partitions at each rebalance.
SessionFactory = Callable[[Sequence[str], bool], ReaderSession]


class BlockingSession:
    """A `ReaderSession` that owns a connection of its own and one membership of it.

    Args:
        options: the checked options of the stream.
        client_id: names the reader process.
        log: asked in a thread of the client if this member leads the group.
        topics: the topics to read.
        eager: whether to give up all partitions at each rebalance, with any assignor.

    Attributes:
        cooperative: whether partitions that stay are kept during a rebalance.
        losses: how many times the partitions turned out to belong to other members.
        listed: the partitions of each topic when this member last assigned them, as the leader.

    """

    def __init__(
        self,
        options: ReaderOptions,
        client_id: str,
        log: PartitionLog,
        topics: Sequence[str],
        *,
        eager: bool,
    ) -> None:
        leaders_log = LeadersLog(options, log)
        assignors = assignors_of(options, leaders_log, eager=eager)
        self._options = options
        self._topics = tuple(topics)
        self._departed = ""  # Why, while this member is out of the group.
        self._noted_topics: Mapping[str, Sequence[int]] = {}
        self.cooperative = all(assignor.cooperative for assignor in assignors)
        self.losses = 0
        self.listed = leaders_log.listed
        with ExitStack() as stack:
            client = stack.enter_context(
                connect_blocking(
                    options.coordinator.split(","),
                    client_id=client_id,
                    request_timeout_ms=options.request_timeout_ms,
                    security=options.security,
                    offset_storage=options.offset_storage,
                )
            )
            self._client: BlockingClient = client
            self._reporter = EndReporter(client.inner) if options.report_ends else None
            if self._reporter is not None:
                client.start_soon(self._reporter.run)
            self._join = partial(
                client.join,
                options.group,
                partitions=leaders_log.partitions,
                session_timeout_ms=options.session_timeout_ms,
                rebalance_timeout_ms=options.rebalance_timeout_ms,
                assignors=assignors,
                group_instance_id=options.group_instance_id,
                host=options.host,
                register=False,  # The reporter does, unless 'reportEnds' is false.
                # Bounded: Spark asks again, and the reader logs why it waits.
                request_timeout_ms=options.request_timeout_ms,
                on_lost=self._note_loss,
            )
            member = stack.enter_context(self._join(topics=topics, reason="a Spark query starts"))
            self._member: BlockingMember = member
            self._stack = stack.pop_all()

    @property
    def rebalance_needed(self) -> bool:
        """Whether a rebalance waits for `assignment`, or the assignment has changed."""
        return bool(self._departed) or self._member.rebalance_needed

    @property
    def lost(self) -> bool:
        """Whether the group removed this member, or it left."""
        return bool(self._departed) or self._member.lost

    def assignment(self, timeout_s: float) -> Assignment:
        """Join or rejoin if needed; wait, unless the member keeps its partitions in a rebalance.

        Raises:
            CoordinatorUnavailable: not within *timeout_s*; joining goes on, call again.

        """
        if self._departed:
            joining = self._join(topics=self._topics, reason="Spark asks its reader again")
            self._member = self._stack.enter_context(joining)
            self._departed = ""
        try:
            return self._member.assignment(timeout_s=timeout_s)
        except TimeoutError as error:
            raise CoordinatorUnavailable(f"the group has no new generation yet: {error}") from error

    def commit(self, offsets: Offsets, expected: Mapping[TopicPartition, int]) -> None:
        """Store offsets, fenced and conditional."""
        if self._departed:
            raise MemberLost(f"this reader has left: {self._departed}")
        if self._reporter is not None:
            self._client.run_sync(partial(self._reporter.note_commit, offsets))
        self._member.commit(offsets, expected=expected)

    def fetch(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the stored offsets."""
        return self._member.fetch(partitions)

    def request_rejoin(self, reason: str, topics: Sequence[str] | None = None) -> None:
        """Ask for a rebalance, to read *topics* from then on."""
        self._member.request_rejoin(reason, topics)
        if topics is not None:
            self._topics = tuple(topics)

    def others_read(self, before: str) -> bool:
        """Say whether other members own partitions of our topics, and none has our instance id.

        A member with the client id *before* doesn't count: it is this reader before its restart.
        """
        instance_id = self._options.group_instance_id
        members = self._described().members
        if instance_id is not None and instance_id in {one.group_instance_id for one in members}:
            return False  # Its partitions wait for it.
        others = [one for one in members if one.client_id != before]
        return any(tp.topic in self._topics for one in others for tp in _partitions(one))

    def unassigned(self, listing: Mapping[str, Sequence[int]]) -> bool:
        """Say whether some of the partitions in *listing* are assigned to no member."""
        assigned = {tp for member in self._described().members for tp in _partitions(member)}
        listed = {TopicPartition(topic, p) for topic, ps in listing.items() for p in ps}
        return not listed <= assigned

    def note_topics(self, partitions: Mapping[str, Sequence[int]]) -> None:
        """Have the topics' partitions registered at the coordinator, if they have changed."""
        if self._reporter is None or partitions == self._noted_topics:
            return
        self._noted_topics = partitions
        with suppress(ClientClosed):
            self._client.run_sync(partial(self._reporter.note_topics, partitions))

    def note_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Have the ends of partitions reported to the coordinator."""
        if self._reporter is not None:
            self._reporter.note_ends(ends)

    def depart(self, reason: str) -> None:
        """Leave the group until the next `assignment`. Never raises."""
        self._departed = reason
        try:
            self._member.leave(reason)
        except Exception as error:  # noqa: BLE001 - no heartbeat is sent any more, that is enough.
            logger.warning("could not tell the group: %s", error)

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that answered last; empty before the first answer."""
        return self._client.cluster_id

    def write_places(self, offsets: Offsets) -> None:
        """Write down where the group was, unless another reader has written a later place.

        Raises:
            RetriableError: others write at the same time; call again.

        """
        if not offsets:
            return
        group = places_group(self._options.group)
        known = self._client.fetch_offsets(group, sorted(offsets))
        if not (news := farther(offsets, known)):
            return
        expected = {tp: known[tp].offset if tp in known else NO_OFFSET for tp in news}
        try:
            self._client.commit(group, news, expected)
        except CommitRefused as error:
            if ErrorCode.OFFSET_CONFLICT in error.errors.values():
                raise RetriableError(f"{group!r} is being written to: {error}") from error
            logger.warning("not written to %r, for the other readers: %s", group, error)

    def places(self, partitions: Sequence[TopicPartition]) -> Offsets:
        """Return the places that all readers have written with `write_places`."""
        return self._client.fetch_offsets(places_group(self._options.group), partitions)

    def leave(self) -> None:
        """Leave the group and close the connection. Never raises."""
        try:
            self._member.leave(reason="the Spark query stops")
            if self._reporter is not None:
                with suppress(TimeoutError, ClientClosed):
                    self._client.run(self._reporter.finish, timeout_s=FINISH_S)
            self._stack.close()
        except Exception as error:  # noqa: BLE001 - the query has ended, whatever this is.
            logger.warning("could not leave the group: %s", error)

    def _described(self) -> DescribedGroup:
        (group,) = self._client.describe_groups([self._options.group])
        return group

    def _note_loss(self, _partitions: tuple[TopicPartition, ...]) -> None:
        self.losses += 1


# --- The group's leader ----------------------------------------------------------------------


class LeadersLog:
    """Partitions and hosts that a leader reads from its log, topic by topic.

    Attributes:
        listed: the partitions of each topic that was asked for.
        hosts: the hosts of each partition, if the log knows them.

    """

    def __init__(self, options: ReaderOptions, log: PartitionLog) -> None:
        self.listed: dict[str, list[int]] = {}
        self.hosts: dict[TopicPartition, tuple[str, ...]] = {}
        self._options = options
        self._log = log

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic that some member of the group reads.

        A topic that only other members read, and that this log doesn't have, has none: a member
        with a wrong topic, or another log, must not end the query of the group's leader.

        Raises:
            LogError: one of our own topics can't be read.

        """
        try:
            partitions = self._log.partitions(topic)
        except Exception as error:
            if topic in matching_topics(self._options, self._log):
                raise
            logger.warning("a member reads %r, which this log can't tell of: %s", topic, error)
            return []
        for partition in partitions:
            if hosts := tuple(self._log.hosts(topic, partition)):
                self.hosts[TopicPartition(topic, partition)] = hosts
            else:
                self.hosts.pop(TopicPartition(topic, partition), None)
        self.listed[topic] = sorted(partitions)
        return partitions


class LogAssignor(BaseAssignor):
    """An assignor of the client that knows the hosts of the log's partitions.

    Args:
        inner: the assignor that computes the assignment.
        log: the leader's log; asked for all partitions before `assign`.
        cooperative: False makes this member give up all partitions at each rebalance, though
            *inner* would let it keep those that stay.

    """

    def __init__(self, inner: BaseAssignor, log: LeadersLog, *, cooperative: bool) -> None:
        self.name = inner.name
        self.cooperative = inner.cooperative and cooperative
        self._inner = inner
        self._log = log

    def assign(
        self,
        members: Sequence[MemberSubscription],
        partitions: Mapping[str, Sequence[int]],
        hosts: Mapping[TopicPartition, Sequence[str]] | None = None,
    ) -> Assigned:
        """Return the partitions of each member; see `BaseAssignor.assign`."""
        return self._inner.assign(members, partitions, {**(hosts or {}), **self._log.hosts})

    def user_data(
        self, topics: Sequence[str], owned: Sequence[TopicPartition], generation: int
    ) -> bytes | None:
        """Return the user data of this member's subscription."""
        return self._inner.user_data(topics, owned, generation)


def assignors_of(options: ReaderOptions, log: LeadersLog, *, eager: bool) -> list[BaseAssignor]:
    """Return the assignors that the option names, the preferred one first.

    Args:
        options: the checked options of the stream.
        log: the leader's log.
        eager: whether this member gives up all partitions at each rebalance.

    """
    return [
        LogAssignor(_ASSIGNORS[name](), log, cooperative=not eager) for name in options.assignors
    ]


def _partitions(member: DescribedMember) -> tuple[TopicPartition, ...]:
    decoded = decode_assignment(member.assignment)
    return decoded.partitions if decoded else ()
