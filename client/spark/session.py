"""What readers and grouped queries need of a group: one member of it, blocking.

`client.blocking` has this shape; the tests bring a group in memory.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from client.types import Assignment, OffsetAndMetadata
from protocol.types import TopicPartition


class GroupSession(Protocol):
    """A member of a group. Its heartbeats go on by themselves, whatever its user does.

    All methods raise the exceptions of `client.exceptions`.
    """

    @property
    def rebalance_needed(self) -> bool:
        """Whether the group waits for this member to call `assignment`, or has news for it."""

    @property
    def lost(self) -> bool:
        """Whether the group removed this member: its partitions are somebody else's."""

    def assignment(self, timeout_s: float | None = None) -> Assignment:
        """Join or rejoin where needed; give up what the group takes away.

        Blocks until there is an assignment, but not a cooperative member that has partitions:
        that gets those, and hears with a later call what has changed.
        """

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        expected: Mapping[TopicPartition, int],
    ) -> None:
        """Store offsets where what is stored before is as expected (-1: nothing)."""

    def fetch(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return what is stored, for the partitions that have something stored."""

    def request_rejoin(self, reason: str) -> None:
        """Ask for a rebalance, because the topics changed."""

    def leave(self) -> None:
        """Leave the group and let go of everything; quick, idempotent, never raises.

        The place of a member with a group instance id is kept until its session ends.
        """


class ReaderSession(GroupSession, Protocol):
    """What a reader of the coordinated source needs besides."""

    @property
    def cooperative(self) -> bool:
        """Whether partitions that stay are kept, and can be committed, during a rebalance."""

    def others_read(self, before: str) -> bool:
        """Say whether others have partitions of our topics, and nobody has our instance id.

        Whoever has the client id *before* is no other: this reader, before it was restarted.
        """

    @property
    def losses(self) -> int:
        """How many times `assignment` found that what this member had was somebody else's."""

    @property
    def listed(self) -> Mapping[str, list[int]]:
        """The partitions of each topic when this member last shared them out, as the leader."""

    def request_rejoin(self, reason: str, topics: Sequence[str] | None = None) -> None:
        """Ask for a rebalance, to read *topics* from then on (None: the same as before)."""

    def unassigned(self, listing: Mapping[str, Sequence[int]]) -> bool:
        """Say whether some of the partitions in *listing* are nobody's in the whole group."""


# Makes a session for these topics. True: it must hand everything over at each rebalance.
SessionFactory = Callable[[Sequence[str], bool], ReaderSession]
