"""What the reader core needs of a group: one member of it, blocking.

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
        """Whether the group waits for this member to call `assignment`."""

    @property
    def lost(self) -> bool:
        """Whether the group removed this member: its partitions are somebody else's."""

    def assignment(self, timeout_s: float | None = None) -> Assignment:
        """Join or rejoin where needed and wait; give up what the group takes away. Blocks."""

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
        """Leave the group and let go of everything; quick, idempotent, never raises."""


SessionFactory = Callable[[], GroupSession]
