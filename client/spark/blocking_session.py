"""The real group session: a member of the blocking client."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from client.blocking import connect_blocking
from client.spark.assigning import LeadersLog, assignors_of
from client.spark.joined_session import JoinedSession
from client.spark.log import PartitionLog
from client.spark.options import ReaderOptions
from protocol.admin_messages import DescribedGroup, DescribedMember
from protocol.consumer import decode_assignment
from protocol.types import TopicPartition


class BlockingSession(JoinedSession):
    """Owns a connection of its own and one membership; see `client.spark.session`.

    Args:
        options: the checked options of the stream.
        client_id: names the reader process.
        log: asked in a thread of the client if this member leads the group.
        topics: what to read.
        eager: whether to give up everything at each rebalance, whatever the assignor.

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
        self._leaders_log = LeadersLog(options, log)
        assignors = assignors_of(options, self._leaders_log, eager=eager)
        self._options = options
        self._topics = frozenset(topics)
        self._cooperative = all(assignor.cooperative for assignor in assignors)
        self._losses = 0
        with ExitStack() as stack:
            client = stack.enter_context(
                connect_blocking(
                    options.coordinator.split(","),
                    client_id=client_id,
                    request_timeout_ms=options.request_timeout_ms,
                )
            )
            member = stack.enter_context(
                client.join(
                    options.group,
                    topics=topics,
                    partitions=self._leaders_log.partitions,
                    session_timeout_ms=options.session_timeout_ms,
                    rebalance_timeout_ms=options.rebalance_timeout_ms,
                    assignors=assignors,
                    group_instance_id=options.group_instance_id,
                    host=options.host,
                    reason="a Spark query starts",
                    on_lost=self._note_loss,
                )
            )
            super().__init__(client, member, stack.pop_all())

    @property
    def cooperative(self) -> bool:
        """Whether partitions that stay are kept during a rebalance."""
        return self._cooperative

    @property
    def losses(self) -> int:
        """How many times the partitions turned out to be somebody else's."""
        return self._losses

    @property
    def listed(self) -> Mapping[str, list[int]]:
        """The partitions of each topic when this member last shared them out, as the leader."""
        return self._leaders_log.listed

    def request_rejoin(self, reason: str, topics: Sequence[str] | None = None) -> None:
        """Ask for a rebalance, to read *topics* from then on."""
        self._member.request_rejoin(reason, topics)

    def others_read(self, before: str) -> bool:
        """Say whether others have partitions of our topics, and nobody has our instance id.

        Whoever has the client id *before* is no other: this reader, before it was restarted.
        """
        instance_id = self._options.group_instance_id
        members = self._described().members
        if instance_id is not None and instance_id in {one.group_instance_id for one in members}:
            return False  # Its partitions wait for it.
        others = [one for one in members if one.client_id != before]
        return any(tp.topic in self._topics for one in others for tp in _partitions(one))

    def unassigned(self, listing: Mapping[str, Sequence[int]]) -> bool:
        """Say whether some of the partitions in *listing* are nobody's in the whole group."""
        given = {tp for member in self._described().members for tp in _partitions(member)}
        listed = {TopicPartition(topic, p) for topic, ps in listing.items() for p in ps}
        return not listed <= given

    def _described(self) -> DescribedGroup:
        (group,) = self._client.describe_groups([self._options.group])
        return group

    def _note_loss(self, _partitions: tuple[TopicPartition, ...]) -> None:
        self._losses += 1


def _partitions(member: DescribedMember) -> tuple[TopicPartition, ...]:
    decoded = decode_assignment(member.assignment)
    return decoded.partitions if decoded else ()


def open_session(
    options: ReaderOptions, client_id: str, log: PartitionLog, topics: Sequence[str], *, eager: bool
) -> BlockingSession:
    """Become a member of the group that the options name; joins on the first `assignment`."""
    return BlockingSession(options, client_id, log, topics, eager=eager)
