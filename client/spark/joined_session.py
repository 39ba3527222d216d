"""A membership with a connection of its own: what both kinds of group session do alike."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from client.blocking import BlockingClient, BlockingMember
from client.exceptions import CoordinatorUnavailable
from client.types import Assignment, OffsetAndMetadata
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)


class JoinedSession:
    """Owns *stack*, which leaves the group and closes the connection; see `GroupSession`."""

    leave_reason = "the Spark query stops"

    def __init__(self, client: BlockingClient, member: BlockingMember, stack: ExitStack) -> None:
        self._client = client
        self._member = member
        self._stack = stack

    @property
    def rebalance_needed(self) -> bool:
        """Whether the group waits for `assignment`, or has news for it."""
        return self._member.rebalance_needed

    @property
    def lost(self) -> bool:
        """Whether the group removed this member."""
        return self._member.lost

    def assignment(self, timeout_s: float | None = None) -> Assignment:
        """Join or rejoin where needed, and wait unless partitions are kept meanwhile.

        Raises:
            CoordinatorUnavailable: not within *timeout_s*; joining goes on, call again.

        """
        try:
            return self._member.assignment(timeout_s=timeout_s)
        except TimeoutError as error:
            raise CoordinatorUnavailable(f"the group has no new generation yet: {error}") from error

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        expected: Mapping[TopicPartition, int],
    ) -> None:
        """Store offsets, fenced and conditional."""
        self._member.commit(offsets, expected=expected)

    def fetch(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """Return what is stored."""
        return self._member.fetch(partitions)

    def leave(self) -> None:
        """Leave the group and close the connection. Never raises."""
        try:
            self._member.leave(reason=self.leave_reason)
            self._stack.close()
        except Exception as error:  # noqa: BLE001 - the query has ended, whatever this is.
            logger.warning("could not leave the group: %s", error)
