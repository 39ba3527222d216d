"""The life of a grouped query, without Spark: join, run, hand over, and go on after any fault.

Theory of operation
-------------------
Spark's own Kafka source can't change its partitions while it runs. So each assignment gets a
*run*: a new query with a new checkpoint, over exactly these partitions, from the group's offsets.

1. A run begins with a *claim*: its starting offsets are committed, with its name as metadata,
   only if they are still what was read. So offsets that were looked up (the end of the log, a
   time) are settled before anything is read, and a fenced driver never starts.
2. While it runs, what its checkpoint's commit log says is finished is committed: conditional,
   and fenced by the generation.
3. Partitions are given up only inside `GroupedSession.assignment`, which calls `_on_revoked`
   first: the query is stopped between two batches and the rest is committed. The group grants
   them to the next owner after that, or after it has fenced this driver. If a rebalance leaves
   this driver's partitions as they are, its query just goes on.
4. Whoever takes over a partition looks whether the run named in the metadata finished more than
   was committed before it died, and begins there. So a crash repeats only what was in flight.

Everything happens in `step`; a step that fails is safe to repeat, because each begins by asking
what is so. Not thread-safe, except for `request_stop`.
"""

import logging
from collections.abc import Callable
from typing import Final

from client.exceptions import CommitRefused, MemberLost, OutcomeUnknown, Rebalanced, RetriableError
from client.kafka_groups.cluster import KafkaUnavailable
from client.offsets import Assignment, OffsetAndMetadata
from client.spark.errors import CoordinatorTimeout
from client.spark.grouped_leftovers import Leftovers
from client.spark.grouped_run import ActiveRun, Moved
from client.spark.grouped_types import (
    GroupedQueryError,
    GroupedQueryFailed,
    GroupedRun,
    GroupedSession,
    GroupedSettings,
    Hooks,
    OpenSession,
    Partitions,
    Runs,
    mark,
)
from client.spark.kafka_topics import EARLIEST, LATEST, KafkaTopicError, Topics, Where
from client.spark.run_store import RunStore
from client.spark.starting_offsets import where_of
from protocol.errors import ErrorCode
from protocol.types import NO_OFFSET, TopicPartition

logger = logging.getLogger(__name__)

# One wait for an assignment; between two of them a stop is noticed.
WAIT_S: Final = 2.0

# Pauses after a call in vain, and between two restarts of a query that fails.
PAUSE_MIN_S: Final = 0.2
PAUSE_MAX_S: Final = 5.0
RESTART_MIN_S: Final = 1.0
RESTART_MAX_S: Final = 60.0
RESTART_DOUBLINGS_MAX: Final = 6

# How often the leader looks whether topics have got more partitions.
LOOK_S: Final = 60.0


class GroupedCore:
    """A driver's part in a group.

    Args:
        settings: how to behave.
        open_session: makes this driver a member; called by the first step.
        runs: starts queries.
        store: the group's checkpoints.
        topics: the Kafka cluster.
        clock: a monotonic clock in seconds.
        sleep: waits for so many seconds.

    """

    def __init__(
        self,
        settings: GroupedSettings,
        *,
        open_session: OpenSession,
        runs: Runs,
        store: RunStore,
        topics: Topics,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self.active: ActiveRun | None = None
        self.assignment: Assignment | None = None
        self._settings = settings
        self._open_session = open_session
        self._runs = runs
        self._store = store
        self._topics = topics
        self._leftovers = Leftovers(settings, store, topics, clock)
        self._clock = clock
        self._sleep = sleep
        self._session: GroupedSession | None = None
        self._untouched: frozenset[TopicPartition] | None = None
        self._listed: dict[str, list[int]] = {}
        self._num_runs = 0
        self._num_failures = 0
        self._not_before_s = clock()
        self._look_at_s = clock() + LOOK_S
        self._away_since_s: float | None = None
        self._pause_s = PAUSE_MIN_S
        self._num_stops = 0

    def request_stop(self) -> None:
        """Have the next step stop after the batch that is running; told twice, at once.

        May be called from any thread, and from a signal handler.
        """
        self._num_stops += 1

    def step(self) -> bool:
        """Do what is due; say whether to go on.

        Raises:
            GroupedQueryFailed: the query failed too often in a row.
            GroupedQueryError: it can't be run in a group.
            CoordinatorTimeout: nothing runs, and the coordinator (or Kafka) is away for too long.
            FatalError: the coordinator refuses this driver for good.
            KafkaTopicError: a topic is not there.
            Exception: what the user's own function raised.

        """
        if self._num_stops:
            self.close()
            return False
        try:
            is_going_on = self._begin() if self.active is None else self._attend(self.active)
        except Rebalanced as error:
            self._drop(error)
        except Moved as error:
            self._begin_anew(error)
        except (RetriableError, OutcomeUnknown) as error:
            self._wait_out(error)
        else:
            self._away_since_s = None
            self._pause_s = PAUSE_MIN_S
            return is_going_on
        return True

    def close(self) -> None:
        """Stop after the batch that is running, commit, and leave the group. Raises nothing."""
        self._finish_active()
        if self._session is not None:
            self._session.leave()

    # --- A query runs --------------------------------------------------------------------

    def _attend(self, active: ActiveRun) -> bool:
        assert self._session is not None
        if self._session.lost:
            raise MemberLost("the group removed this driver")
        if self._session.rebalance_needed:
            self._join()
            if self.active is not active:
                return True
        # Asked first: what is finished when it has ended is all there will be.
        has_ended = not active.query.is_active()
        is_clean = active.commit_finished()
        if has_ended:
            return self._ended(active, is_clean=is_clean)
        self._look_for_partitions()
        self._leftovers.sweep(self._session, active.run.name)
        return True

    def _ended(self, active: ActiveRun, *, is_clean: bool) -> bool:
        """Go on after a query that has ended; its finished batches are committed."""
        assert self._session is not None
        self.active = None
        if is_clean:
            self._store.remove(active.run.name)
        failure = active.query.failure()
        if active.stopped:
            return True  # By an outage that is over.
        if failure is None:
            if self._session.rebalance_needed:
                return True  # Perhaps there is more for us.
            logger.info("run %s has ended by itself", active.run.name)
            self.close()
            return False
        self._num_failures = 1 if active.has_progress else self._num_failures + 1
        if self._num_failures > self._settings.max_failures:
            raise GroupedQueryFailed(
                f"the query failed {self._num_failures} times in a row without finishing a batch "
                f"(max_failures is {self._settings.max_failures}): {failure}"
            ) from failure
        doublings = min(self._num_failures - 1, RESTART_DOUBLINGS_MAX)
        wait_s = min(RESTART_MIN_S * 2**doublings, RESTART_MAX_S)
        self._not_before_s = self._clock() + wait_s
        logger.warning(
            "run %s failed; beginning again at the group's offsets in %g s: %s",
            active.run.name,
            wait_s,
            failure,
        )
        return True

    def _join(self) -> Assignment:
        """Follow the group to its newest assignment; a query whose partitions change ends."""
        assert self._session is not None
        assignment = self._session.assignment(WAIT_S)
        if assignment != self.assignment:
            logger.info(
                "generation %d: this driver owns %s",
                assignment.generation,
                ", ".join(map(str, assignment.partitions)) or "nothing",
            )
        self.assignment = assignment
        active = self.active
        if active is not None and set(active.committed) != set(assignment.partitions):
            self._finish_active()
        return assignment

    def _on_revoked(self, partitions: Partitions) -> None:
        active = self.active
        if active is not None and not active.committed.keys().isdisjoint(partitions):
            self._finish_active()

    def _on_lost(self, partitions: Partitions) -> None:
        self._drop(f"{', '.join(map(str, partitions))} are somebody else's")

    def _finish_active(self) -> None:
        active, self.active = self.active, None
        if active is not None:
            active.finish()

    def _drop(self, why: object) -> None:
        active, self.active = self.active, None
        if active is not None:
            active.abandon(why)

    def _begin_anew(self, why: Moved) -> None:
        logger.warning("beginning again at the group's offsets: %s", why)
        active, self.active = self.active, None
        if active is not None:
            active.stop_between_batches()
            # What it finished counts no more, even if the offsets were put back to ones that
            # bear its name.
            self._store.remove(active.run.name)

    # --- No query runs -------------------------------------------------------------------

    def _begin(self) -> bool:
        """Join, and start a run over what is ours."""
        if self._session is None:
            for topic in self._settings.topics:
                self._topics.partitions(topic)  # A wrong name is told before joining.
            hooks = Hooks(self._on_revoked, self._on_lost, self._partitions_of)
            self._session = self._open_session(hooks)
            if self._untouched is None:
                self._untouched = self._find_untouched(self._session)
        assignment = self._join()
        if not assignment.partitions:
            self._look_for_partitions()
        elif self._clock() >= self._not_before_s:
            self._start(self._session, assignment)
        return True

    def _start(self, session: GroupedSession, assignment: Assignment) -> None:
        run = self._claim(session, assignment)
        try:
            query = self._runs.start(run, self._store.location(run.name))
        except BaseException:
            self._store.remove(run.name)
            raise
        logger.info("run %s: started", run.name)
        self.active = ActiveRun(
            run,
            query,
            session,
            self._store,
            self._settings,
            clock=self._clock,
            sleep=self._sleep,
            hurry=lambda: self._num_stops > 1,
        )

    def _claim(self, session: GroupedSession, assignment: Assignment) -> GroupedRun:
        """Commit where a new run begins, under its name."""
        self._num_runs += 1
        name = f"{self._settings.client_id}.{self._num_runs}"
        stored = session.fetch(assignment.partitions)
        starts = {tp: self._leftovers.reached(tp, value) for tp, value in stored.items()}
        places = {tp: self._place_of(tp) for tp in assignment.partitions if tp not in stored}
        starts |= self._topics.offsets(places)
        metadata = mark(name, is_trusted=False)
        try:
            session.commit(
                {tp: OffsetAndMetadata(offset, metadata) for tp, offset in starts.items()},
                {tp: stored[tp].offset if tp in stored else NO_OFFSET for tp in starts},
            )
        except CommitRefused as error:
            codes = set(error.errors.values())
            if ErrorCode.NOT_PARTITION_OWNER in codes:
                raise Rebalanced(str(error)) from error
            if codes & {ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
                raise GroupedQueryError(f"the coordinator refuses the claim: {error}") from error
            raise RetriableError(str(error)) from error
        return GroupedRun(name, assignment.generation, dict(sorted(starts.items())))

    def _find_untouched(self, session: GroupedSession) -> frozenset[TopicPartition]:
        """Return the partitions of topics in which the group has no offset yet.

        Asked before the join, when no member of the same generation can have committed.
        """
        known = [
            TopicPartition(topic, partition)
            for topic in self._settings.topics
            for partition in self._topics.partitions(topic)
        ]
        touched = {tp.topic for tp in session.fetch(known)}
        return frozenset(tp for tp in known if tp.topic not in touched)

    def _place_of(self, tp: TopicPartition) -> Where:
        """Return where a partition without an offset begins.

        One that comes to a topic that the group is reading begins at its start: what was
        written before anybody noticed it must not be skipped.
        """
        where = where_of(self._settings.starting_offsets, tp)
        return EARLIEST if where == LATEST and tp not in (self._untouched or ()) else where

    # --- Topics --------------------------------------------------------------------------

    def _partitions_of(self, topic: str) -> list[int]:
        """Tell the group's leader, which may be us, of a topic that some member reads."""
        try:
            found = self._topics.partitions(topic)
        except KafkaTopicError as error:
            if topic in self._settings.topics:
                raise
            logger.warning("a member reads %r: %s", topic, error)
            return []
        self._listed[topic] = found
        return found

    def _look_for_partitions(self) -> None:
        """Have the group rebalance if its topics have got more partitions."""
        assert self.assignment is not None
        assert self._session is not None
        if self._clock() < self._look_at_s:
            return
        self._look_at_s = self._clock() + LOOK_S
        if not self.assignment.is_leader:
            return
        try:
            listed = {topic: self._topics.partitions(topic) for topic in self._settings.topics}
        except KafkaUnavailable as error:
            logger.warning("can't see now whether topics have grown: %s", error)
            return
        if any(listed[topic] != self._listed.get(topic, listed[topic]) for topic in listed):
            self._session.request_rejoin("the topics' partitions changed")

    # --- Outages -------------------------------------------------------------------------

    def _wait_out(self, error: Exception) -> None:
        """Pause, and give up in the end; a query may run on for a while."""
        now_s = self._clock()
        if self._away_since_s is None:
            self._away_since_s = now_s
        away_s = now_s - self._away_since_s
        settings, active = self._settings, self.active
        if active is not None and active.query.is_active():
            if away_s >= settings.outage_limit_s:
                logger.warning(
                    "run %s pauses: nothing could be committed for %.0f s (outage_limit_s), so "
                    "others may have its partitions: %s",
                    active.run.name,
                    away_s,
                    error,
                )
                active.stop_between_batches()
        elif away_s >= settings.coordinator_timeout_s:
            raise CoordinatorTimeout(
                f"no assignment, or no answer, for {away_s:.0f} s (coordinator_timeout_s) from "
                f"{settings.coordinator}: {error}"
            ) from error
        logger.info("trying again: %s", error)
        self._sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 2, PAUSE_MAX_S)
