"""How the group's leader shares partitions: what the log knows, given to the client's assignors."""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from client.assignors import (
    Assigned,
    BaseAssignor,
    CooperativeStickyAssignor,
    MemberSubscription,
    RangeAssignor,
    StickyAssignor,
)
from client.spark.discovery import matching_topics
from client.spark.log import PartitionLog
from client.spark.options import COOPERATIVE, ReaderOptions
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)

_ASSIGNORS: Final[Mapping[str, type[BaseAssignor]]] = {
    COOPERATIVE: CooperativeStickyAssignor,
    "range": RangeAssignor,
    "sticky": StickyAssignor,
}


class LeadersLog:
    """What a leader finds out from its log, topic by topic.

    Attributes:
        listed: the partitions of each topic that was asked for.
        hosts: where they lie, as far as the log knows.

    """

    def __init__(self, options: ReaderOptions, log: PartitionLog) -> None:
        self.listed: dict[str, list[int]] = {}
        self.hosts: dict[TopicPartition, tuple[str, ...]] = {}
        self._options = options
        self._log = log

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of a topic that some member of the group reads.

        A topic that only others read, and that this log can't tell of, has none: a member with
        a wrong topic, or another log, must not end the query of whoever leads the group.

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
    """An assignor of the client that knows where the log's partitions lie.

    Args:
        inner: does the work.
        log: has been asked for all partitions before.
        cooperative: False has this member give up everything at each rebalance, though *inner*
            would let it keep what stays.

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
        """Return what the assignor wants to know of this member."""
        return self._inner.user_data(topics, owned, generation)


def assignors_of(options: ReaderOptions, log: LeadersLog, *, eager: bool) -> list[BaseAssignor]:
    """Return the assignors that the option names, the preferred one first.

    Args:
        options: the checked options of the stream.
        log: where the partitions are.
        eager: whether this member is to give up everything at each rebalance.

    """
    return [
        LogAssignor(_ASSIGNORS[name](), log, cooperative=not eager) for name in options.assignors
    ]
