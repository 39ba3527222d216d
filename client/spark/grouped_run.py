"""One run of a grouped query: its commits, and how it ends.

What is committed is never ahead of what the sink has finished: it comes from the checkpoint's
own commit log, which Spark writes after the sink. Each commit is fenced by the member's
generation and made only if the coordinator still has what this run committed last. So a commit
whose answer was lost needs no repeating word for word: what is stored tells.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, NoReturn

from client.exceptions import CommitRefused, FatalError, OutcomeUnknown, Rebalanced, RetriableError
from client.offsets import OffsetAndMetadata
from client.spark.errors import CheckpointError
from client.spark.grouped_types import (
    GroupedQueryError,
    GroupedRun,
    GroupedSession,
    GroupedSettings,
    RunningQuery,
    mark,
    objection,
)
from client.spark.run_store import RunStore
from protocol.errors import ErrorCode
from protocol.types import NO_OFFSET, TopicPartition

logger = logging.getLogger(__name__)

# How often to look for the moment between two batches, which lasts tens of milliseconds.
BOUNDARY_POLL_S: Final = 0.002
COMMIT_PAUSE_S: Final = 0.2

_RETRY: Final = {ErrorCode.STORAGE_FULL, ErrorCode.QUOTA_EXCEEDED}


class Moved(Exception):
    """Somebody else, such as an operator's tool, changed the offsets of a running query."""


class ActiveRun:
    """A started run.

    Args:
        run: what it is.
        query: Spark's side of it. The run's starting offsets are committed already.
        session: the member that owns the partitions.
        store: where the checkpoint is.
        settings: of the grouped query.
        clock: a monotonic clock in seconds.
        sleep: waits for so many seconds.
        hurry: whether not to wait for anything when it ends.

    """

    def __init__(
        self,
        run: GroupedRun,
        query: RunningQuery,
        session: GroupedSession,
        store: RunStore,
        settings: GroupedSettings,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        hurry: Callable[[], bool],
    ) -> None:
        self.run = run
        self.query = query
        self.stopped = False  # By us.
        self._session = session
        self._store = store
        self._settings = settings
        self._clock = clock
        self._sleep = sleep
        self._hurry = hurry
        self._committed = dict(run.starting_offsets)
        # What unanswered commits may have stored; empty when `_committed` is certain.
        self._maybe: dict[TopicPartition, set[int]] = {}
        self._accepted = False
        self._marked = False

    @property
    def committed(self) -> Mapping[TopicPartition, int]:
        """What the group has, as far as is known."""
        return self._committed

    @property
    def has_progress(self) -> bool:
        """Whether anything was finished and committed."""
        return self._committed != self.run.starting_offsets

    def commit_finished(self) -> bool:
        """Commit what the sink has finished; say whether nothing is left.

        Something is left, for the next call, only until Spark tells which sink it is.

        Raises:
            Rebalanced: the partitions are not ours; nothing was stored.
            Moved: the group's offsets are not those that this run committed.
            RetriableError, OutcomeUnknown: try again later.
            GroupedQueryError: this query can't be run in a group, or the commit is refused.

        """
        finished = self._finished()
        if finished == self._committed and not self._maybe:
            return True
        if not self._is_accepted():
            return False
        if self._maybe:
            self._read_back()
        try:
            self._commit(finished)
        except CommitRefused:
            self._read_back()
            try:
                self._commit(finished)
            except CommitRefused as error:
                raise Moved(f"somebody else commits at the same time: {error}") from error
        return True

    def finish(self) -> bool:
        """Stop at the end of a batch and commit; say whether all that is finished is committed.

        Raises nothing: where committing fails for too long, the next owner repeats the rest.
        """
        began_s = self._clock()
        self.stop_between_batches()
        is_done = self._commit_last()
        took_s = self._clock() - began_s
        if took_s > self._settings.rebalance_timeout_s / 2:
            logger.warning(
                "run %s took %.1f s to hand over; the group waits at most %.1f s "
                "(rebalance_timeout_s) before it goes on without this driver. Make batches smaller "
                "(option 'maxOffsetsPerTrigger') or the timeout longer",
                self.run.name,
                took_s,
                self._settings.rebalance_timeout_s,
            )
        if is_done:
            self._store.remove(self.run.name)
        return is_done

    def abandon(self, why: object) -> None:
        """Stop at once, and commit nothing: the partitions are somebody else's.

        The checkpoint stays: whoever has the partitions now can see there what is finished.
        """
        logger.warning("run %s ends, its last batch may be repeated: %s", self.run.name, why)
        self.stop()

    def stop(self) -> None:
        """Stop at once."""
        self.stopped = True
        self.query.stop()

    def stop_between_batches(self) -> None:
        """Stop when no sink is writing, or when that takes too long."""
        deadline_s = self._clock() + self._settings.batch_wait_s
        while self.query.is_active() and not self.query.between_batches():
            if self._session.lost or self._hurry():
                break
            if self._clock() >= deadline_s:
                logger.warning(
                    "run %s is stopped in the middle of a batch, which is repeated: it did not "
                    "end within %g s (batch_wait_s)",
                    self.run.name,
                    self._settings.batch_wait_s,
                )
                break
            self._sleep(BOUNDARY_POLL_S)
        self.stop()

    def _commit_last(self) -> bool:
        deadline_s = self._clock() + self._settings.commit_wait_s
        while True:
            try:
                if self.commit_finished():
                    return True
                why: object = "Spark did not tell which sink it has"
            except (RetriableError, OutcomeUnknown) as error:
                if self._clock() < deadline_s and not self._session.lost:
                    self._sleep(COMMIT_PAUSE_S)
                    continue
                why = error
            except (Rebalanced, Moved, FatalError, GroupedQueryError, CheckpointError) as error:
                why = error
            logger.warning(
                "run %s: its last batch is not committed and will be repeated: %s",
                self.run.name,
                why,
            )
            return False

    def _finished(self) -> dict[TopicPartition, int]:
        finished = self._store.finished(self.run.name)
        return {tp: finished.get(tp, at) for tp, at in self._committed.items()}

    def _is_accepted(self) -> bool:
        """Say whether this query may run in a group at all, as soon as Spark tells."""
        if not self._accepted:
            progress = self.query.progress()
            if progress is None:
                return False
            allow_stateful = self._settings.allow_stateful
            if problem := objection(progress, self.run, allow_stateful=allow_stateful):
                raise GroupedQueryError(problem)
            self._accepted = True
        return True

    def _commit(self, finished: Mapping[TopicPartition, int]) -> None:
        # The first time with all partitions: from then on this run's checkpoint counts.
        due = {
            tp: offset
            for tp, offset in finished.items()
            if not self._marked or offset != self._committed[tp]
        }
        if not due:
            return
        for tp, offset in due.items():
            if offset < self._committed[tp]:
                logger.warning(
                    "%s: the query went back from %d to %d; was the topic made anew?",
                    tp,
                    self._committed[tp],
                    offset,
                )
        metadata = mark(self.run.name, is_trusted=True)
        expected = {tp: self._committed[tp] for tp in due}
        try:
            self._session.commit(
                {tp: OffsetAndMetadata(offset, metadata) for tp, offset in due.items()}, expected
            )
        except OutcomeUnknown:
            self._doubt(due)
            raise
        except CommitRefused as error:
            self._doubt({tp: due[tp] for tp in error.errors})
            self._committed.update({tp: o for tp, o in due.items() if tp not in error.errors})
            self._judge(error)
        self._committed.update(due)
        self._marked = True

    def _doubt(self, due: Mapping[TopicPartition, int]) -> None:
        for tp, offset in due.items():
            self._maybe.setdefault(tp, set()).add(offset)

    def _judge(self, error: CommitRefused) -> NoReturn:
        """Raise what a refusal means; it stays one if it is only about what was there before."""
        codes = set(error.errors.values())
        if ErrorCode.NOT_PARTITION_OWNER in codes:
            raise Rebalanced(str(error)) from error
        if codes <= {ErrorCode.OFFSET_CONFLICT}:
            raise error
        if codes <= _RETRY | {ErrorCode.OFFSET_CONFLICT}:
            raise RetriableError(str(error)) from error
        raise GroupedQueryError(f"the coordinator refuses the commit for good: {error}") from error

    def _read_back(self) -> None:
        """Be certain of what is stored: what was there, or what one of our commits stored."""
        stored = self._session.fetch(sorted(self._committed))
        for tp, at in self._committed.items():
            value = stored[tp].offset if tp in stored else NO_OFFSET
            if value != at and value not in self._maybe.get(tp, ()):
                raise Moved(f"the group's offset of {tp} is {value}, this run was at {at}")
            self._committed[tp] = value
        self._maybe.clear()
