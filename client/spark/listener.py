"""Makes the lag of any streaming query visible: commits what the query has finished.

For monitoring only. The offsets may be behind the query; the query itself resumes from its
checkpoint. They are ahead in one case: after a restart Spark reports the whole batch that it
replays, also the ranges of it that a coordinated source left to another driver.
"""

# ruff: noqa: N802 - Spark chose the names of the callbacks.

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from client.blocking import connect_blocking
from client.exceptions import CommitRefused, CoordinatorError, FatalError
from client.spark.offsets import finished_offsets, reader_of
from protocol.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

logger = logging.getLogger(__name__)

Offsets = Mapping[TopicPartition, int]

# A group without members loses offsets that nobody commits for offsets.retention.minutes (a
# week); a quiet partition must not look new after a quiet week.
RECOMMIT_S: Final = 24 * 3600.0

PAUSE_MIN_S: Final = 1.0
PAUSE_MAX_S: Final = 60.0


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


class BackgroundCommitter:
    """Commits a board's offsets in a thread of its own; the caller never waits.

    Args:
        commit: stores offsets; raises `CoordinatorError` when it can't.
        board: what to commit.

    """

    def __init__(self, commit: Callable[[Offsets], None], board: OffsetBoard) -> None:
        self._commit = commit
        self._board = board
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None

    def want(self, offsets: Offsets) -> None:
        """Have these offsets committed soon."""
        with self._changed:
            self._board.want(offsets)
            if self._thread is None and not self._closing:
                self._thread = threading.Thread(
                    target=self._run, name="group-offset-listener", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Try once more to commit what is due, then end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        pause_s = PAUSE_MIN_S
        while True:
            with self._changed:
                due = self._board.due(time.monotonic())
                if not due:
                    if self._closing:
                        return
                    next_due_s = self._board.next_due_s()
                    timeout_s = None if next_due_s is None else next_due_s - time.monotonic()
                    self._changed.wait(timeout_s)
                    continue
            if self._try(due):
                pause_s = PAUSE_MIN_S
                continue
            with self._changed:
                if self._closing:
                    return
                self._changed.wait_for(lambda: self._closing, pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)

    def _try(self, due: Offsets) -> bool:
        """Commit; say whether there is nothing to repeat before the next batch."""
        refused: Collection[TopicPartition] = ()
        try:
            self._commit(due)
        except CommitRefused as error:
            refused = error.errors
            logger.error("offsets of the group are not shown: %s", error)  # noqa: TRY400
        except FatalError as error:
            refused = due
            logger.error("offsets of the group are not shown: %s", error)  # noqa: TRY400
        except CoordinatorError as error:
            logger.warning("offsets are committed later: %s", error)
            return False
        except Exception:
            # Whatever it is, this thread must go on for the next batch.
            logger.exception("offsets are committed later")
            return False
        with self._changed:
            now_s = time.monotonic()
            self._board.stored({tp: o for tp, o in due.items() if tp not in refused}, now_s)
            # Not those for which there was another batch meanwhile.
            still = [tp for tp in refused if self._board.wants(tp) == due[tp]]
            self._board.refused(still, now_s)
        return True


class GroupOffsetListener(StreamingQueryListener):
    """Commits the finished end offsets of queries to a group, after each batch.

    ::

        spark.streams.addListener(GroupOffsetListener("host:9310", "etl-lag", query_name="orders"))

    Understands the offsets of Spark's Kafka source and of the ``coordinated`` source. The query
    never waits for it and never fails because of it.

    Args:
        coordinator: "host:port", or several separated by commas.
        group: a group of the listener's own, in which nobody is a member.
        query_name: only the query of this name; by default all of the session. Two queries
            that read the same topics need a listener and a group each.

    """

    def __init__(self, coordinator: str, group: str, query_name: str | None = None) -> None:
        super().__init__()
        self._coordinator = coordinator
        self._group = group
        self._query_name = query_name
        self._connected = ExitStack()
        self._commit_offsets: Callable[[str, Offsets], None] | None = None
        self._committer = BackgroundCommitter(self._commit, OffsetBoard())
        self._warned = False

    def onQueryStarted(self, event: "QueryStartedEvent") -> None:
        """Nothing is finished yet."""

    def onQueryProgress(self, event: "QueryProgressEvent") -> None:
        """Have the end offsets of this batch committed."""
        progress = event.progress
        if self._query_name is not None and progress.name != self._query_name:
            return
        finished: dict[TopicPartition, int] = {}
        for source in progress.sources:
            reader = reader_of(source.endOffset)
            if reader is not None and reader.group == self._group:
                self._warn_of_own_group()
                continue
            finished.update(finished_offsets(source.endOffset))
        if finished:
            self._committer.want(finished)

    def onQueryIdle(self, event: "QueryIdleEvent") -> None:
        """No news."""

    def onQueryTerminated(self, event: "QueryTerminatedEvent") -> None:
        """What was finished has been committed, or soon will be."""

    def close(self, timeout: float = 10.0) -> None:
        """Commit what is still due (once, for at most *timeout* seconds) and disconnect."""
        self._committer.close(timeout)
        self._connected.close()

    def _commit(self, offsets: Offsets) -> None:
        if self._commit_offsets is None:
            client = self._connected.enter_context(
                connect_blocking(self._coordinator.split(","), client_id="spark-listener")
            )
            self._commit_offsets = client.commit
        self._commit_offsets(self._group, offsets)

    def _warn_of_own_group(self) -> None:
        if not self._warned:
            logger.error(
                "the listener's group %r is that of a coordinated source, which commits there "
                "itself; give the listener a group of its own",
                self._group,
            )
            self._warned = True
