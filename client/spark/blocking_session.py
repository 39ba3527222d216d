"""The real group session: a member of the blocking client."""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from client.blocking import connect_blocking
from client.exceptions import CoordinatorUnavailable
from client.spark.log import PartitionLog
from client.spark.options import ReaderOptions
from client.types import Assignment, OffsetAndMetadata
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)


class BlockingSession:
    """Owns a connection of its own and one membership; see `client.spark.session`."""

    def __init__(self, options: ReaderOptions, client_id: str, log: PartitionLog) -> None:
        with ExitStack() as stack:
            client = stack.enter_context(
                connect_blocking(
                    options.coordinator.split(","),
                    client_id=client_id,
                    request_timeout_ms=options.request_timeout_ms,
                )
            )
            self._member = stack.enter_context(
                client.join(
                    options.group,
                    topics=options.topics,
                    partitions=partial(partitions_of, log, options.topics),
                    session_timeout_ms=options.session_timeout_ms,
                    rebalance_timeout_ms=options.rebalance_timeout_ms,
                    reason="a Spark query starts",
                )
            )
            self._stack = stack.pop_all()

    @property
    def rebalance_needed(self) -> bool:
        """Whether the group waits for `assignment`."""
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

    def leave(self) -> None:
        """Leave the group and close the connection. Never raises."""
        try:
            self._member.leave(reason="the Spark query stops")
            self._stack.close()
        except Exception as error:  # noqa: BLE001 - the process is about to end anyway.
            logger.warning("could not leave the group: %s", error)


def partitions_of(log: PartitionLog, own_topics: Collection[str], topic: str) -> list[int]:
    """Return the partitions of a topic that some member of the group reads.

    A topic that only others read, and that this log can't tell of, has none: a member with a
    wrong topic, or another log, must not end the query of whoever leads the group.

    Raises:
        LogError: one of our own topics can't be read.

    """
    try:
        return log.partitions(topic)
    except Exception as error:
        if topic in own_topics:
            raise
        logger.warning("a member reads %r, which this log can't tell of: %s", topic, error)
        return []


def open_session(options: ReaderOptions, client_id: str, log: PartitionLog) -> BlockingSession:
    """Become a member of the group that the options name; joins on the first `assignment`."""
    return BlockingSession(options, client_id, log)
