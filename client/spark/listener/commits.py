"""Commits offsets to a group of the coordinator, or of a Kafka cluster.

`OffsetBoard` knows what must be committed now: the newest offsets, and quiet ones again after a
day. `BackgroundCommitter` does that in a thread of its own, one for each place.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from itertools import islice
from typing import Any, Final

from client.backoff import backoff
from client.blocking import BlockingClient, connect_blocking
from client.exceptions import (
    CommitRefused,
    CoordinatorError,
    CoordinatorUnavailable,
    FatalError,
)
from client.kafka_groups.cluster import (
    KafkaCluster,
    KafkaGroupError,
    KafkaRefused,
    KafkaUnavailable,
)
from client.security import Given, Security
from client.spark.listener.background import Worker
from client.spark.listener.metrics import TargetMetrics
from client.spark.listener.queries import Offsets
from protocol.fields import REQUEST_PARTITIONS_MAX
from protocol.partition import TopicPartition

logger = logging.getLogger(__name__)

# A group without members loses offsets that nobody commits for offsets.retention.minutes (a
# week); a quiet partition must not look new after a quiet week.
RECOMMIT_S: Final = 24 * 3600.0

PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0


class NotNow(Exception):
    """Nothing (or nobody knows what) was stored; trying again later may well succeed."""


class Refused(Exception):
    """Some offsets were refused, the others are stored; repeating it does not help.

    Attributes:
        partitions: those that were refused.

    """

    def __init__(self, message: str, partitions: Collection[TopicPartition]) -> None:
        self.partitions = frozenset(partitions)
        super().__init__(message)


class OffsetBoard:
    """Which offsets are wanted, which are stored, and which must be committed now. Pure."""

    def __init__(self, recommit_s: float = RECOMMIT_S) -> None:
        self._recommit_s = recommit_s
        self._wanted: dict[TopicPartition, int] = {}
        self._stored: dict[TopicPartition, tuple[int, float]] = {}
        self._refused: dict[TopicPartition, float] = {}

    def want(self, offsets: Offsets) -> None:
        """Take the newest finished offsets; the last word wins. What was refused is due again."""
        self._wanted.update(offsets)
        self._refused.clear()

    def wants(self, tp: TopicPartition) -> int | None:
        """Return the offset that is wanted for a partition."""
        return self._wanted.get(tp)

    def due(self, now_s: float) -> dict[TopicPartition, int]:
        """Return what is not stored yet, or was stored too long ago."""
        return {
            tp: offset
            for tp, offset in self._wanted.items()
            if now_s - self._refused.get(tp, -math.inf) >= self._recommit_s
            if (stored := self._stored.get(tp)) is None
            or stored[0] != offset
            or now_s - stored[1] >= self._recommit_s
        }

    def stored(self, offsets: Offsets, now_s: float) -> None:
        """Note that *offsets* are stored."""
        self._stored.update({tp: (offset, now_s) for tp, offset in offsets.items()})

    def refused(self, partitions: Iterable[TopicPartition], now_s: float) -> None:
        """Note that these partitions are not to be tried again before the next `want`, or day."""
        self._refused.update(dict.fromkeys(partitions, now_s))

    def next_due_s(self) -> float | None:
        """Return when the next one of the stored or refused offsets is due again."""
        times = {tp: at_s for tp, (_, at_s) in self._stored.items()} | self._refused
        return min(times.values()) + self._recommit_s if times else None

    def counts(self, now_s: float) -> tuple[int, int, int]:
        """Return how many offsets are wanted, how many are due, and how many were refused."""
        return len(self._wanted), len(self.due(now_s)), len(self._refused)


class BackgroundCommitter(Worker):
    """Commits a board's offsets in a thread of its own; the caller never waits.

    Args:
        commit: stores offsets; raises `NotNow` or `Refused` when it can't.
        board: what to commit.
        where: the place, for messages.

    """

    def __init__(
        self, commit: Callable[[Offsets], None], board: OffsetBoard, where: str = "the group"
    ) -> None:
        super().__init__("group-offset-listener")
        self._commit = commit
        self._board = board
        self._where = where
        self._stored_s: float | None = None
        self._failures = 0
        self._error: str | None = None
        self._said: str | None = None

    def want(self, offsets: Offsets) -> None:
        """Have these offsets committed soon."""
        with self.changed:
            self._board.want(offsets)
        self.start()

    def metrics(self) -> TargetMetrics:
        """Return how well the commits go."""
        now_s = time.monotonic()
        with self.changed:
            counts = self._board.counts(now_s)
            since_s = None if self._stored_s is None else now_s - self._stored_s
            return TargetMetrics(self._where, *counts, since_s, self._failures, self._error)

    def run(self) -> None:
        """Commit what is due; after a failure again after a pause, and once more at the end."""
        failures = 0
        while True:
            with self.changed:
                due = self._board.due(time.monotonic())
                if not due:
                    if self.closing:
                        return
                    next_due_s = self._board.next_due_s()
                    self.changed.wait(None if next_due_s is None else next_due_s - time.monotonic())
                    continue
            if self.try_commit(due):
                failures = 0
                continue
            failures += 1
            pause_s = backoff(failures, PAUSE_MIN_S, PAUSE_MAX_S)
            with self.changed:
                if self.closing:
                    return
                self.changed.wait_for(lambda: self.closing, pause_s)

    def try_commit(self, due: Offsets) -> bool:
        """Commit; say whether there is nothing to repeat before the next batch."""
        refused: Collection[TopicPartition] = ()
        why: str | None = None
        try:
            self._commit(due)
        except Refused as error:
            refused, why = error.partitions, str(error)
            of = f"{len(refused)} of {len(due)} " if len(refused) < len(due) else ""
            self._say(logging.ERROR, f"{of}offsets are not shown in {self._where}: {why}")
        except NotNow as error:
            self._failed(str(error))
            return False
        except Exception as error:
            # Whatever it is, this thread must go on for the next batch.
            logger.exception("committing to %s", self._where)
            self._failed(repr(error))
            return False
        with self.changed:
            now_s = time.monotonic()
            if self._failures and why is None:
                logger.info("offsets are committed to %s again", self._where)
            self._failures, self._error = 0, why
            self._said = self._said if why else None
            if len(refused) < len(due):
                self._stored_s = now_s
            self._board.stored({tp: o for tp, o in due.items() if tp not in refused}, now_s)
            # Not those for which there was another batch meanwhile.
            still = [tp for tp in refused if self._board.wants(tp) == due[tp]]
            self._board.refused(still, now_s)
        return True

    def _failed(self, why: str) -> None:
        self._say(logging.WARNING, f"offsets are committed to {self._where} later: {why}")
        with self.changed:
            self._failures += 1
            self._error = why

    def _say(self, level: int, text: str) -> None:
        # Each batch is another attempt; the log should not grow with them.
        logger.log(level if text != self._said else logging.DEBUG, "%s", text)
        self._said = text


class CoordinatorTarget:
    """A group of the coordinator, in which nobody is a member.

    Args:
        coordinator: "host:port", or several separated by commas.
        group: the group.
        ends: tells where partitions end, to be reported before each commit, which none may be
            beyond; None for nothing.
        security: as of `client.connect`.

    """

    def __init__(
        self,
        coordinator: str,
        group: str,
        ends: Callable[[], Offsets] | None = None,
        security: Given = None,
    ) -> None:
        self.name = f"group {group!r} at the coordinator {coordinator}"
        self._coordinator = coordinator
        self._group = group
        self._ends = ends
        self._security = Security.of(security)
        self._connected = ExitStack()
        self._client: BlockingClient | None = None

    def commit(self, offsets: Offsets) -> None:
        """Store offsets.

        Raises:
            NotNow: nothing was stored, or nobody knows.
            Refused: some were refused, the others are stored.

        """
        refused: set[TopicPartition] = set()
        why: dict[str, None] = {}
        self._report()
        for chunk in _chunks(offsets):
            try:
                self._connect().commit(self._group, chunk)
            except CommitRefused as error:
                refused.update(error.errors)
                why[str(error)] = None
            except FatalError as error:
                refused.update(chunk)
                why[str(error)] = None
            except CoordinatorError as error:
                raise NotNow(str(error)) from error
        if refused:
            raise Refused("; ".join(why), refused)

    def _report(self) -> None:
        if self._ends is not None and (ends := self._ends()):
            try:
                self._connect().report_end_offsets(ends)
            except CoordinatorUnavailable as error:
                raise NotNow(str(error)) from error
            except CoordinatorError as error:
                # Of registered topics they are stored, the others are nobody's business here.
                logger.debug("end offsets are not reported: %s", error)

    def close(self) -> None:
        """Disconnect."""
        self._connected.close()

    def _connect(self) -> BlockingClient:
        if self._client is None:
            self._client = self._connected.enter_context(
                connect_blocking(
                    self._coordinator.split(","),
                    client_id="spark-listener",
                    security=self._security,
                )
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
        self.name = f"group {group!r} at Kafka {self._cluster.address}"

    def commit(self, offsets: Offsets) -> None:
        """Store offsets; see `CoordinatorTarget.commit`."""
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


Target = CoordinatorTarget | KafkaTarget


def _chunks(offsets: Offsets) -> Iterator[Offsets]:
    entries = iter(offsets.items())
    while chunk := dict(islice(entries, REQUEST_PARTITIONS_MAX)):
        yield chunk
