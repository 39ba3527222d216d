"""Commits the newest offsets in a thread of its own, and again after a quiet day."""

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Final, NamedTuple

from client.backoff import backoff
from client.spark.listener.queries import Offsets
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


class CommitState(NamedTuple):
    """How well the commits to one place go.

    Attributes:
        wanted: how many partitions have an offset to be shown.
        due: how many of them are not stored yet.
        refused: how many of them were refused.
        stored_s: when something was last stored; None for never.
        failures: attempts in a row that stored nothing.
        error: why the last attempt failed; None if it did not.

    """

    wanted: int
    due: int
    refused: int
    stored_s: float | None
    failures: int
    error: str | None


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


class BackgroundCommitter:
    """Commits a board's offsets in a thread of its own; the caller never waits.

    Args:
        commit: stores offsets; raises `NotNow` or `Refused` when it can't.
        board: what to commit.
        where: the place, for messages.

    """

    def __init__(
        self, commit: Callable[[Offsets], None], board: OffsetBoard, where: str = "the group"
    ) -> None:
        self._commit = commit
        self._board = board
        self._where = where
        self._changed = threading.Condition()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._stored_s: float | None = None
        self._failures = 0
        self._error: str | None = None
        self._said: str | None = None

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

    def state(self) -> CommitState:
        """Return how well the commits go."""
        with self._changed:
            counts = self._board.counts(time.monotonic())
            return CommitState(*counts, self._stored_s, self._failures, self._error)

    def begin_close(self) -> None:
        """Have the thread try once more to commit what is due, and end."""
        with self._changed:
            self._closing = True
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Do `begin_close`, and wait for the thread."""
        self.begin_close()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        failures = 0
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
                failures = 0
                continue
            failures += 1
            pause_s = backoff(failures, PAUSE_MIN_S, PAUSE_MAX_S)
            with self._changed:
                if self._closing:
                    return
                self._changed.wait_for(lambda: self._closing, pause_s)

    def _try(self, due: Offsets) -> bool:
        """Commit; say whether there is nothing to repeat before the next batch."""
        refused: Collection[TopicPartition] = ()
        why: str | None = None
        try:
            self._commit(due)
        except Refused as error:
            refused, why = error.partitions, str(error)
            self._say(logging.ERROR, f"offsets are not shown in {self._where}: {why}")
        except NotNow as error:
            self._failed(str(error))
            return False
        except Exception as error:
            # Whatever it is, this thread must go on for the next batch.
            logger.exception("committing to %s", self._where)
            self._failed(repr(error))
            return False
        with self._changed:
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
        with self._changed:
            self._failures += 1
            self._error = why

    def _say(self, level: int, text: str) -> None:
        # Each batch is another attempt; the log should not grow with them.
        logger.log(level if text != self._said else logging.DEBUG, "%s", text)
        self._said = text
