"""The reader of the coordinated source, without Spark: when it hands over, pins and commits.

Theory of operation
-------------------
Spark calls ``latest_offset(start)`` on every trigger. Its *start* is always work whose sink has
finished, so the reader does all its work in this call, in this order:

1. If *start* is the batch that this process handed over last, its ranges are *finished*.
2. A commit whose answer was lost is repeated, byte for byte, until there is an answer.
3. If the group rebalances, or has decided: commit what is finished (and pin nothing), then take
   part. This is the only place that gives partitions away, so a hand-over never falls into a
   batch. A cooperative reader gives up only what the group takes away, and doesn't wait for the
   others: it goes on with what it has, whose positions it knows.
4. Positions that are not known, or not certain any more, are fetched. A finished range stays
   finished only if the coordinator still has its start: else somebody moved the partition.
5. One commit stores the finished ends and, as metadata, the ends of the ranges that come next
   (the pins). Only after a definite OK do these ranges become the new end offset.

Why pins: the next owner of a partition begins with exactly the pinned range, so a range that was
written by a member that died is written again with the same bounds, and a sink can recognize it.

A reader that comes into a group at work hands Spark one batch without rows before it joins: Spark
compiles and starts its workers for seconds, and no partition waits for this reader in that time.

An outage never ends a query: `latest_offset` then returns *start*, which means "nothing new".
Where Spark would read this as "done" (a replay, AvailableNow, the first offset), the reader blocks
instead, and raises after the coordinator timeout.

Not thread-safe, except for `stop`, which may be called while another method blocks.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, TypeVar

from client.backoff import backoff
from client.exceptions import CoordinatorError, OutcomeUnknown, RetriableError
from client.spark.errors import (
    CheckpointError,
    CoordinatedSourceError,
    CoordinatorTimeout,
    StatefulQueryError,
)
from client.spark.logs.partition_log import PartitionLog
from client.spark.source.log_calls import LogCalls, Runner, run_here
from client.spark.source.ownership import Ownership
from client.spark.source.planning import Finished, Position
from client.spark.source.reader_options import ReaderOptions
from client.spark.source.session import SessionFactory
from client.spark.source.stream_offsets import (
    READER_KEY,
    EndOffset,
    Range,
    ReaderIdentity,
    decode_end,
    encode_end,
)
from client.spark.source.way_back import way_back
from protocol.partition import TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

# An offset as Spark has it in its checkpoint, see `stream_offsets`.
Offset = Mapping[str, object]

# Pauses after a failed trigger: short enough to notice the coordinator's return, long enough
# that a thousand idle readers don't keep it busy.
PAUSE_MIN_S: Final = 0.1
PAUSE_MAX_S: Final = 5.0


class Task(NamedTuple):
    """One range to read on an executor."""

    tp: TopicPartition
    range: Range


class HandedBatch(NamedTuple):
    """The batch that Spark was given last."""

    end: Offset
    ranges: dict[TopicPartition, Finished]


class ReaderCore:
    """One reader process of one query.

    Args:
        options: the checked options of the stream.
        log: the log that holds the rows.
        open_session: makes this reader a member of its group; called on first use.
        client_id: names this reader process, and no other, in the group.
        clock: a monotonic clock in seconds.
        sleep: waits for a number of seconds.
        run: makes the calls of *log*.
        refused: returns why this query must not go on, or None.
        warms_up: whether Spark runs a batch without rows first, if other members read already.

    Attributes:
        warming_up: whether the last batch handed to Spark is the batch without rows.

    """

    def __init__(
        self,
        options: ReaderOptions,
        log: PartitionLog,
        *,
        open_session: SessionFactory,
        client_id: str,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        run: Runner = run_here,
        refused: Callable[[], str | None] = lambda: None,
        warms_up: bool = False,
    ) -> None:
        self.identity = ReaderIdentity(options.coordinator, options.group, client_id)
        self._options = options
        self.log = LogCalls(log, options, clock, run)
        self._clock = clock
        self._sleep = sleep
        self._refused = refused
        self._ownership = Ownership(options, self.log, open_session, clock)
        self._handed: HandedBatch | None = None
        self.warming_up = False
        self._may_warm_up = warms_up
        self._put_off_joining = False  # Until the batch without rows is done.
        self._triggered = False
        self._is_checkpoint_checked = False
        # Partitions of the checkpoint for which the log was not asked yet.
        self._expected: list[TopicPartition] = []
        self._returned_at_s: float | None = None
        self._deadline_s: float | None = None
        self._failures = 0
        self._failing_since_s = 0.0

    # --- What Spark calls ----------------------------------------------------------------

    def initial_offset(self) -> dict[str, object]:
        """Return the offset before any batch, once this reader is a member with an assignment.

        If other members read already and the reader warms up, it returns before it joins.

        Raises:
            CoordinatorTimeout: the coordinator was away for too long.

        """
        # Spark asks once more between the plan and the start of the first batch, where no partition
        # may be given up, and after a first trigger without a batch.
        if not self._triggered and self._handed is None:
            self._put_off_joining = self._is_to_warm_up({})
            if not self._put_off_joining:
                self._may_warm_up = False
                self._until_done("the first assignment", self._settle)
        return {}

    def prepare_available_now(self) -> None:
        """Note the log's ends as of now: the query stops there.

        From now on the reader waits for rebalances: it must not report "nothing left to read"
        while the group has more partitions for it, and a moving partition has no owner.

        Raises:
            CoordinatorTimeout: the coordinator was away for too long.

        """
        self._may_warm_up = False  # An empty batch would end this query before it begins.
        self._ownership.hand_over_all()
        self._until_done("the first assignment", self._settle)
        self._until_done("the log's ends", self._ownership.stop_at_ends)

    def latest_offset(self, start: Offset, max_rows: int | None) -> Offset:
        """Commit the ranges up to *start*, hand over if asked, pin the next; return their end.

        Returns *start* itself when there are no new rows, or positions are uncertain.

        Args:
            start: the offset up to which Spark's sink has finished.
            max_rows: the most rows per partition; None for no limit. A pinned range is taken
                whole even if it is longer.

        Raises:
            CoordinatedSourceError: the query must end; the message says why.
            FatalError: the coordinator refuses this reader for good.

        """
        self._check_checkpoint(start)
        if reason := self._refused():
            committed = way_back(self._ownership.committed, self.identity)
            raise StatefulQueryError(f"{reason}. {committed}")
        self._warn_of_long_batch()
        self._triggered = True
        if self._handed is not None:
            if start == self._handed.end:
                self._ownership.finish(self._handed.ranges)
            self._handed = None
        self.warming_up = self._is_to_warm_up(start)
        self._may_warm_up = False
        if self.warming_up:
            logger.info("others read: one batch without rows, then this reader joins them")
        end = self._hand(start, {}) if self.warming_up else self._end_of_next(start, max_rows)
        self._put_off_joining = False
        self._returned_at_s = self._clock()
        return end

    def partitions(self, start: Offset, end: Offset) -> list[Task]:
        """Return the ranges of the batch just planned, or of a replayed batch.

        Of a replayed batch, a range runs only if this reader owns its partition and the
        coordinator still has it as the next one; the owner has finished, or will run, the others.

        Raises:
            CoordinatorTimeout: the coordinator was away for too long during a replay.

        """
        if start == end:
            return []  # Only another source of the query has new rows.
        if self._handed is None or self._handed.end != end:
            if self._triggered:
                raise CoordinatedSourceError(
                    "Spark asks for a batch that this reader did not plan; restart the query"
                )
            self._check_checkpoint(end)
            # A replay warms Spark up, too, and joins the group.
            self._may_warm_up = self._put_off_joining = False
            self._until_done("the replay of the last batch", lambda: self._replay(end))
        assert self._handed is not None
        handed = self._handed.ranges
        return [Task(tp, handed[tp].range) for tp in sorted(handed)]

    def report_latest(self) -> dict[str, int] | None:
        """Return the log's end of each owned partition as last seen, for the query's progress."""
        return {str(tp): end for tp, end in sorted(self._ownership.ends.items())} or None

    def depart(self, silent_s: float) -> None:
        """Leave the group, as Spark was silent for *silent_s* seconds; the next call joins anew.

        Never raises. May be called from another thread, but not during another call.
        """
        reason = f"Spark has not asked its reader for {silent_s:.0f} s (option 'maxPollInterval')"
        if self._ownership.depart(reason):
            logger.warning(
                "%s: it leaves group %r, and its batch may run twice. If the JVM was not frozen, "
                "batches or the trigger interval take longer than the option allows",
                reason,
                self._options.group,
            )

    def stop(self) -> None:
        """Leave the group. Never raises; may be called again, and from another thread."""
        self._ownership.leave()

    # --- One trigger ---------------------------------------------------------------------

    def _end_of_next(self, start: Offset, max_rows: int | None) -> Offset:
        """Return the end of the next batch, or *start* where an outage leaves none."""
        if self._put_off_joining:
            self._until_done("the first assignment", self._settle)
        if self._ownership.targets is not None:
            return self._until_done("the next batch", lambda: self._next_batch(start, max_rows))
        try:
            end = self._next_batch(start, max_rows)
        except (RetriableError, OutcomeUnknown) as error:
            self._pause("no new batch, trying again: %s", error)
            return start
        if self._failures:
            logger.info("batches go on, after %.1f s", self._clock() - self._failing_since_s)
        self._failures = 0
        return end

    def _next_batch(self, start: Offset, max_rows: int | None) -> Offset:
        self._check_log_has_expected()
        batch = self._ownership.pin_next(max_rows, self._wait_s())
        run = {
            tp: Finished(Range(step.at, step.stop, batch.generation), step.needs.resets)
            for tp, step in batch.steps.items()
            if step.stop > step.at
        }
        if not run and self._is_published(start):
            return start
        # Without ranges this is the empty batch that publishes the reader's identity, its places,
        # and which partitions it gained or gave up.
        return self._hand(start, run)

    def _is_published(self, start: Offset) -> bool:
        before = decode_end(start)
        return before.reader == self.identity and before.memory.names(self._ownership.seen)

    def _hand(self, start: Offset, run: dict[TopicPartition, Finished]) -> Offset:
        end = encode_end(
            {tp: finished.range for tp, finished in run.items()},
            self.identity,
            topics=self._options.topics,
            stateful=self._options.on_stateful,
            memory=self._ownership.seen,
        )
        if end == start:
            # The same range comes again, for example in a group that was deleted and made anew.
            # Spark would take an equal offset for "nothing new".
            end[READER_KEY]["again"] = True
        self._handed = HandedBatch(end, run)
        return end

    def _is_to_warm_up(self, start: Offset) -> bool:
        if not self._may_warm_up:
            return False
        try:
            # Check now: the end of a batch without rows doesn't hold the checkpoint's partitions.
            self._check_log_has_expected()
            # A killed process stays a member until its session ends, but it doesn't read.
            before = decode_end(start).reader
            return self._ownership.others_read(before.client_id if before else "")
        except CoordinatorError as error:
            # The join waits for the coordinator, or raises the reason for a refusal.
            logger.info("not warming up, as nobody says whether others read: %s", error)
            return False

    def _replay(self, end: Offset) -> None:
        self._check_log_has_expected()
        positions = self._settle()
        ranges = decode_end(end).ranges
        self._ownership.check_places(ranges.keys())
        run: dict[TopicPartition, Finished] = {}
        for tp, planned in ranges.items():
            position = positions.get(tp)
            if position is not None and (position.offset, position.pinned_end) == planned[:2]:
                run[tp] = Finished(planned, position.resets)
            else:
                logger.info("%s: %s is not replayed, the group is past it", tp, planned)
        # For ranges without rows, the next trigger waits, or goes on with the rows that are there.
        with_rows = self._ownership.with_rows(run.keys())
        run = {tp: finished for tp, finished in run.items() if tp in with_rows}
        self._ownership.prove(run.keys())
        self._handed = HandedBatch(end, run)

    def _check_checkpoint(self, offset: Offset) -> None:
        """Check the first offset from Spark; all later ones come from this reader."""
        if not self._is_checkpoint_checked:
            before = decode_end(offset)
            check_checkpoint(before, self._options, self._reads)
            self._expected = [tp for tp in before.ranges if self._reads(tp.topic)]
            if before.reader is not None:
                self._ownership.remember(before.memory)
            self._is_checkpoint_checked = True

    def _check_log_has_expected(self) -> None:
        """Make sure that the log still has the partitions of the checkpoint."""
        pattern = self._options.topics_pattern
        there = set(self.log.topics()) if pattern is not None and self._expected else set()
        while self._expected:
            tp = self._expected[-1]
            if pattern is None or tp.topic in there:  # Else the topic no longer matches.
                self.log.has(tp)
            self._expected.pop()

    def _reads(self, topic: str) -> bool:
        pattern = self._options.topics_pattern
        return topic in self._options.topics if pattern is None else bool(pattern.fullmatch(topic))

    def _settle(self) -> dict[TopicPartition, Position]:
        return self._ownership.settle(self._wait_s())

    # --- Time ----------------------------------------------------------------------------

    def _until_done(self, what: str, action: Callable[[], T]) -> T:
        """Do *action*, again through any outage, for at most the coordinator timeout."""
        timeout_s = self._options.coordinator_timeout_ms / 1000
        self._deadline_s = deadline_s = self._clock() + timeout_s
        try:
            while True:
                try:
                    result = action()
                except (RetriableError, OutcomeUnknown) as error:
                    if self._clock() >= deadline_s:
                        raise CoordinatorTimeout(
                            f"waited {timeout_s:g} s in vain for {what} (option "
                            "'coordinatorTimeout', coordinator "
                            f"{self.identity.coordinator}): {error}"
                        ) from error
                    self._pause(f"waiting for {what}: %s", error)
                else:
                    self._failures = 0
                    return result
        finally:
            self._deadline_s = None

    def _wait_s(self) -> float:
        if self._deadline_s is not None:
            return max(self._deadline_s - self._clock(), 0.0)
        # The others hand over between their batches, within the rebalance timeout.
        return (self._options.rebalance_timeout_ms + self._options.request_timeout_ms) / 1000

    def _pause(self, message: str, error: CoordinatorError) -> None:
        """Wait before the next try; log at failures 1, 2, 4, 8, and so on."""
        if not self._failures:
            self._failing_since_s = self._clock()
        self._failures += 1
        if self._failures.bit_count() == 1:  # A power of two.
            logger.warning(message, error)
        self._sleep(backoff(self._failures, PAUSE_MIN_S, PAUSE_MAX_S))

    def _warn_of_long_batch(self) -> None:
        """Warn if a batch took over half the rebalance timeout, after which the group evicts us."""
        if self._returned_at_s is None or self.warming_up:  # Not a member yet.
            return
        gap_s = self._clock() - self._returned_at_s
        timeout_s = self._options.rebalance_timeout_ms / 1000
        if gap_s > timeout_s / 2:
            logger.warning(
                "%.1f s between two triggers; a rebalance waits at most %.1f s (option "
                "'rebalanceTimeout') before the group removes this reader and its batch runs "
                "twice. Make batches smaller (option 'maxRowsPerPartition') or the timeout longer",
                gap_s,
                timeout_s,
            )


def check_checkpoint(
    end: EndOffset, options: ReaderOptions, is_subscribed: Callable[[str], bool]
) -> None:
    """Refuse a checkpoint of another group, or of other topics only.

    Offsets come from the group, so a wrong checkpoint loses no rows by itself. But it is a sign of
    a mix-up, and batch ids and output folders go with a checkpoint, so the query ends at once.

    Args:
        end: the last offset in the checkpoint.
        options: those of this query.
        is_subscribed: whether this query reads a topic.

    Raises:
        CheckpointError: the checkpoint is another query's; the message names its group or topics.

    """
    if end.reader is not None and end.reader.group != options.group:
        raise CheckpointError(
            f"the checkpoint is of group {end.reader.group!r}, but option 'group' is "
            f"{options.group!r}: give this query a new checkpoint (and output folder), or the "
            "group its old name. Offsets are kept by the group, not by the checkpoint"
        )
    before = {*end.topics, *(tp.topic for tp in end.ranges)}
    dropped = sorted(topic for topic in before if not is_subscribed(topic))
    if not dropped:
        return
    named = ", ".join(map(repr, dropped))
    if len(dropped) == len(before):
        raise CheckpointError(
            f"the checkpoint is of the topics {named}, which this query doesn't read (option "
            "'topics'): give it a new checkpoint (and output folder)"
        )
    logger.warning(
        "the checkpoint also has the topics %s, which this query doesn't read any more; the group "
        "keeps their offsets",
        named,
    )
