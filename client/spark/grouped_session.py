"""The coordinator's side of a grouped query: a member of the blocking client."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from client.assignors import Assignor
from client.blocking import connect_blocking
from client.exceptions import CoordinatorUnavailable, RetriableError
from client.spark.grouped_types import Hooks
from client.types import Assignment, OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)


class MemberSettings(NamedTuple):
    """How a driver is a member of its group; see `GroupedKafkaQuery`."""

    coordinator: str
    group: str
    topics: tuple[str, ...]
    client_id: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    request_timeout_ms: int
    assignors: Sequence[Assignor]
    group_instance_id: str | None
    host: str | None


class MemberSession:
    """Owns a connection of its own and one membership; see `GroupedSession`."""

    def __init__(self, settings: MemberSettings, hooks: Hooks) -> None:
        self._group = settings.group
        with ExitStack() as stack:
            self._client = stack.enter_context(
                connect_blocking(
                    settings.coordinator.split(","),
                    client_id=settings.client_id,
                    request_timeout_ms=settings.request_timeout_ms,
                )
            )
            self._member = stack.enter_context(
                self._client.join(
                    settings.group,
                    topics=settings.topics,
                    partitions=hooks.partitions_of,
                    session_timeout_ms=settings.session_timeout_ms,
                    rebalance_timeout_ms=settings.rebalance_timeout_ms,
                    assignors=settings.assignors,
                    group_instance_id=settings.group_instance_id,
                    host=settings.host,
                    reason="a grouped Spark query starts",
                    on_revoked=hooks.on_revoked,
                    on_lost=hooks.on_lost,
                )
            )
            self._stack = stack.pop_all()

    @property
    def rebalance_needed(self) -> bool:
        """Whether the group waits for `assignment`, or that has news."""
        return self._member.rebalance_needed

    @property
    def lost(self) -> bool:
        """Whether the group removed this member."""
        return self._member.lost

    def assignment(self, timeout_s: float | None = None) -> Assignment:
        """Join or rejoin where needed, and wait.

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

    def request_rejoin(self, reason: str) -> None:
        """Ask for a rebalance."""
        self._member.request_rejoin(reason)

    def alive_clients(self) -> set[str]:
        """Return the client ids of all members of the group.

        Raises:
            RetriableError: the coordinator doesn't tell.

        """
        (group,) = self._client.describe_groups([self._group])
        if group.error != ErrorCode.NONE:
            raise RetriableError(f"group {self._group!r} can't be described: error {group.error}")
        return {member.client_id for member in group.members}

    def leave(self) -> None:
        """Leave the group and close the connection. Never raises."""
        try:
            self._member.leave(reason="the grouped Spark query stops")
            self._stack.close()
        except Exception as error:  # noqa: BLE001 - the query has ended, whatever this is.
            logger.warning("could not leave the group: %s", error)
