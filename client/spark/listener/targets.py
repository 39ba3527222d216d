"""Where a listener commits to: a group of the coordinator, a group of a Kafka cluster."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import Any, Final, Protocol

from client.blocking import BlockingClient, connect_blocking
from client.exceptions import CommitRefused, CoordinatorError, FatalError
from client.kafka_groups.cluster import (
    KafkaCluster,
    KafkaGroupError,
    KafkaRefused,
    KafkaUnavailable,
)
from client.spark.listener.board import NotNow, Refused
from client.spark.listener.queries import Offsets

logger = logging.getLogger(__name__)

PARTITIONS_PER_COMMIT: Final = 10_000  # What one request may hold.


class Target(Protocol):
    """A place that shows offsets."""

    @property
    def name(self) -> str:
        """The place, for messages and metrics."""

    def commit(self, offsets: Offsets) -> None:
        """Store offsets.

        Raises:
            NotNow: nothing was stored, or nobody knows.
            Refused: some were refused, the others are stored.

        """

    def close(self) -> None:
        """Disconnect."""


class CoordinatorTarget:
    """A group of the coordinator, in which nobody is a member.

    Args:
        coordinator: "host:port", or several separated by commas.
        group: the group.
        ends: tells where partitions end, to be reported after each commit; None for nothing.

    """

    def __init__(
        self, coordinator: str, group: str, ends: Callable[[], Offsets] | None = None
    ) -> None:
        self._coordinator = coordinator
        self._group = group
        self._ends = ends
        self._connected = ExitStack()
        self._client: BlockingClient | None = None

    @property
    def name(self) -> str:
        """The place."""
        return f"group {self._group!r} at the coordinator {self._coordinator}"

    def commit(self, offsets: Offsets) -> None:
        """Store offsets; see `Target.commit`."""
        for chunk in _chunks(offsets):
            try:
                self._connect().commit(self._group, chunk)
            except CommitRefused as error:
                raise Refused(str(error), error.errors) from error
            except FatalError as error:
                raise Refused(str(error), offsets) from error
            except CoordinatorError as error:
                raise NotNow(str(error)) from error
        self._report()

    def _report(self) -> None:
        if self._ends is not None and (ends := self._ends()):
            try:
                self._connect().report_end_offsets(ends)
            except CoordinatorError as error:
                # Of registered topics they are stored, the others are nobody's business here.
                logger.debug("end offsets are not reported: %s", error)

    def close(self) -> None:
        """Disconnect."""
        self._connected.close()

    def _connect(self) -> BlockingClient:
        if self._client is None:
            self._client = self._connected.enter_context(
                connect_blocking(self._coordinator.split(","), client_id="spark-listener")
            )
        return self._client


class KafkaTarget:
    """A group of a Kafka cluster, as its own tools show it.

    Args:
        config: as of `KafkaCluster`.
        group: a group without members.
        connect: makes the cluster's client.

    """

    def __init__(
        self,
        config: str | Mapping[str, Any],
        group: str,
        connect: Callable[[str | Mapping[str, Any]], KafkaCluster] = KafkaCluster,
    ) -> None:
        self._group = group
        # Made at once, so that a wrong setting is the caller's error; it connects by itself.
        self._cluster = connect(config)

    @property
    def name(self) -> str:
        """The place."""
        return f"group {self._group!r} at Kafka {self._cluster.address}"

    def commit(self, offsets: Offsets) -> None:
        """Store offsets; see `Target.commit`."""
        try:
            self._cluster.commit(self._group, offsets)
        except KafkaRefused as error:
            raise Refused(str(error), error.errors) from error
        except KafkaUnavailable as error:
            raise NotNow(str(error)) from error
        except KafkaGroupError as error:
            raise Refused(str(error), offsets) from error

    def close(self) -> None:
        """Do nothing: the client ends with this object."""


def _chunks(offsets: Offsets) -> Iterator[Offsets]:
    entries = iter(offsets.items())
    while chunk := dict(islice(entries, PARTITIONS_PER_COMMIT)):
        yield chunk
