"""Calls of a `PartitionLog` as the reader core makes them: named, checked, and sorted by remedy.

A log is code of its user. Its errors either pass (`LogUnavailable`, `OSError`: raised as a
`RetriableError`, which makes a trigger idle) or are permanent (all others: `LogFailed`, which ends
the query). An error that lasts longer than the option ``logTimeout`` is permanent, too. Messages
name the topic and partition, and the method. `Failures` and `Missing` remember failing calls and
missing partitions, and since when.

A log may also block. `Watchdog` makes the calls in a thread of their own and gives up those that
take long. The reader then goes on without their results: it stays in its group (heartbeats have
their own thread), commits finished ranges and hands partitions over. A call can't be interrupted,
so its thread stays blocked, and the log gets no other call before this one returns.
"""

import hashlib
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import pyarrow as pa

from client.backoff import backoff
from client.exceptions import RetriableError
from client.spark.errors import CoordinatedSourceError, DataLossError, LogFailed
from client.spark.logs.partition_log import LogUnavailable, PartitionLog
from client.spark.options import OptionError
from client.spark.source.planning import Seen
from client.spark.source.reader_options import ReaderOptions
from client.spark.source.stream_offsets import IDENTITY
from protocol.partition import TopicPartition
from protocol.text import some_of

logger = logging.getLogger(__name__)

# Time after which rows or partitions missing from a log count as lost, in seconds: a listing on a
# network file system lags by as much as its attribute cache, usually up to a minute.
LAG_MAX_S: Final = 90.0

# Pauses between two tries of a failing call, in seconds; other partitions go on without a pause.
RETRY_MIN_S: Final = 0.1
RETRY_MAX_S: Final = 5.0

# Minimum number of failures before a call counts as failed for good. Calls can be rare, as between
# two long batches, and the log may have worked in between.
TRIES_MIN: Final = 3

# Time between two calls of `topic_id` per topic, in seconds; each may cost a request.
TOPIC_ID_PERIOD_S: Final = 30.0

# Interval of checks for a slow call, and of waits for a call that was given up, in seconds.
POLL_S: Final = 1.0


class Call(NamedTuple):
    """One call of a log, with the words that name it in messages."""

    what: str
    function: Callable[[], Any]


# Makes calls in order; returns a result or an exception for each.
Runner = Callable[[Sequence[Call]], list[Any]]


def run_here(calls: Sequence[Call]) -> list[Any]:
    """Make the calls in this thread, and wait for as long as they take."""
    return [answer_of(call) for call in calls]


def answer_of(call: Call) -> Any:
    """Make one call, and return its result or the exception."""
    try:
        return call.function()
    except Exception as error:  # noqa: BLE001 - sorted by the caller.
        return error


class LogCalls(PartitionLog):
    """A log whose calls follow the rules above.

    Args:
        log: the user's log.
        options: the checked options of the stream.
        clock: a monotonic clock in seconds.
        run: makes the calls.

    """

    def __init__(
        self,
        log: PartitionLog,
        options: ReaderOptions,
        clock: Callable[[], float],
        run: Runner = run_here,
    ) -> None:
        super().__init__(log.options)
        self._log = log
        self._on_data_loss = options.on_data_loss
        self._clock = clock
        self._run = run
        self._name = f"the log {type(log).__name__}"
        self._failures = Failures(self._name, options.log_timeout_ms / 1000, clock)
        self._missing = Missing(self._name, clock)
        self._bounds_calls: dict[TopicPartition, Call] = {}
        self._bounds_asked: Sequence[Call] = ()
        self._topics: list[str] | None = None
        self._known: dict[str, list[int]] = {}
        self._no_hosts_before_s = clock()
        self._topic_ids: dict[str, tuple[float, str]] = {}

    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of *topic*; the last known ones while the log is unavailable.

        Raises:
            DataLossError: some are gone, and option 'onDataLoss' is 'error'.
            RetriableError: the log is unavailable, and the partitions were never known.
            LogFailed: the log fails for good.

        """
        what = f"{topic}: partitions()"
        known = self._known.get(topic)
        try:
            found = self._make_one(what, lambda: self._log.partitions(topic))
        except RetriableError:
            if known is None:
                raise
            return known
        try:
            listed = [int(partition) for partition in found]
        except (TypeError, ValueError):
            listed = [-1]
        partitions = sorted(set(listed))
        if len(partitions) < len(listed) or any(partition < 0 for partition in partitions):
            raise LogFailed(
                f"{what} of {self._name} returned {found!r:.100}; it must be a list of different "
                "whole numbers from 0 on"
            )
        if self._missing:
            self._missing.seen(TopicPartition(topic, partition) for partition in partitions)
        gone = [TopicPartition(topic, p) for p in sorted(set(known or ()) - set(partitions))]
        if known is not None and gone and not self._gone_for_good(gone):
            return known
        self._known[topic] = partitions
        return partitions

    def has(self, tp: TopicPartition) -> bool:
        """Say whether the log has a partition that it had before.

        Raises:
            DataLossError: the partition is gone, and option 'onDataLoss' is 'error'.
            RetriableError: the log is unavailable now.

        """
        if tp.partition in self.partitions(tp.topic):
            return True
        self._fail_if_gone(str(tp))
        logger.warning("%s no longer has %s; going on without it", self._name, tp)
        return False

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the bounds of one partition."""
        tp = TopicPartition(topic, partition)
        return self.all_bounds([tp])[tp]

    def all_bounds(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the bounds of several partitions.

        Raises:
            RetriableError: the bounds of one are unavailable now.
            LogFailed: the call for one fails for good.

        """
        bounds: dict[TopicPartition, tuple[int, int]] = {}
        for tp, seen in self.view(partitions).items():
            if isinstance(seen, RetriableError):
                raise seen
            bounds[tp] = (seen.earliest, seen.end)
        return bounds

    def view(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, Seen | RetriableError]:
        """Return the bounds and identity of each partition, or the reason why they are unavailable.

        Raises:
            DataLossError: a partition is gone, and option 'onDataLoss' is 'error'.
            LogFailed: the log fails for good; the message names the partition.

        """
        ordered = sorted(partitions)
        calls = self._calls_for_bounds(ordered)
        if self._failures:  # Calls no longer made may have recovered.
            left = {call.what for call in self._bounds_asked} - {call.what for call in calls}
            self._failures.forget(left)
        self._bounds_asked = calls
        if not ordered:
            return {}
        self._ask_topic_ids({tp.topic for tp in ordered})
        found = self._make(calls)
        if self._has_all_bounds:
            (every,) = found
            found = [
                every
                if isinstance(every, RetriableError)
                else self._result(calls[0].what, every.get(tp))
                for tp in ordered
            ]
        identities = {topic: identity for topic, (_, identity) in self._topic_ids.items()}
        views = {
            tp: self._checked(tp, bounds, identities)
            for tp, bounds in zip(ordered, found, strict=True)
        }
        if self._missing:
            self._missing.seen(tp for tp, seen in views.items() if isinstance(seen, Seen))
        return views

    @property
    def _has_all_bounds(self) -> bool:
        return type(self._log).all_bounds is not PartitionLog.all_bounds

    def _calls_for_bounds(self, ordered: Sequence[TopicPartition]) -> Sequence[Call]:
        if not ordered:
            return ()
        if self._has_all_bounds:
            what = f"{some_of(ordered, 1)}: all_bounds()"
            return [Call(what, lambda: self._bounds_at_once(ordered))]
        # Made once, as there may be thousands of partitions on each trigger.
        return [self._bounds_calls.get(tp) or self._call_for_bounds(tp) for tp in ordered]

    def _call_for_bounds(self, tp: TopicPartition) -> Call:
        call = self._bounds_calls[tp] = Call(f"{tp}: bounds()", partial(self._ask_bounds, tp))
        return call

    def _bounds_at_once(self, ordered: Sequence[TopicPartition]) -> dict[TopicPartition, Any]:
        try:
            return {**self._log.all_bounds(ordered)}
        except (LogUnavailable, OSError):
            raise
        except Exception:
            # As in `_ask_bounds`; the others must not stop for a partition that is gone.
            there = {topic: self._log.partitions(topic) for topic in {tp.topic for tp in ordered}}
            left = [tp for tp in ordered if tp.partition in there[tp.topic]]
            if len(left) == len(ordered):
                raise
            found: dict[TopicPartition, Any] = {tp: _GoneError(tp) for tp in ordered}
            return found | (self._log.all_bounds(left) if left else {})

    def topics(self) -> list[str]:
        """Return the names of all topics; the last known ones while the log is unavailable."""
        try:
            self._topics = sorted(self._make_one("topics()", self._log.topics))
        except RetriableError:
            if self._topics is None:
                raise
        return self._topics

    def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return the offsets at which rows of *timestamp_ms* or later begin."""
        what = f"offsets_at() of {len(partitions)} partitions"
        found: dict[TopicPartition, int] = self._make_one(
            what, lambda: self._log.offsets_at(partitions, timestamp_ms)
        )
        return found

    def hosts(self, topic: str, partition: int) -> Sequence[str]:
        """Return the hosts that read a partition fastest; none if they are unknown now.

        This is a hint: an unavailable log is no reason to end a query. After a failure the log
        isn't asked for `RETRY_MAX_S`, as a rebalance waits for this call.
        """
        if self._clock() < self._no_hosts_before_s:
            return ()
        call = Call(f"{topic}-{partition}: hosts()", lambda: self._log.hosts(topic, partition))
        found: Sequence[str] | Exception = self._run([call])[0]
        if isinstance(found, LogUnavailable | OSError):
            logger.warning("%s of %s failed: %s", call.what, self._name, found)
            self._no_hosts_before_s = self._clock() + RETRY_MAX_S
            return ()
        hosts: Sequence[str] = self._result(call.what, found)
        return hosts

    def schema(self, topic: str) -> pa.Schema:
        """Return the columns of *topic*."""
        return self._make_one(f"{topic}: schema()", lambda: self._log.schema(topic))

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        return self._log.read(topic, partition, start, end)

    def _ask_topic_ids(self, topics: Collection[str]) -> None:
        """Ask for due topic ids; a topic made anew shows within `TOPIC_ID_PERIOD_S`."""
        now_s = self._clock()
        due = [
            topic
            for topic in sorted(topics)
            if topic not in self._topic_ids
            or now_s - self._topic_ids[topic][0] >= TOPIC_ID_PERIOD_S
        ]
        calls = [Call(f"{topic}: topic_id()", partial(self._log.topic_id, topic)) for topic in due]
        for topic, found in zip(due, self._make(calls), strict=True):
            if not isinstance(found, RetriableError):
                self._topic_ids[topic] = (now_s, _identity(found))

    def _ask_bounds(self, tp: TopicPartition) -> Any:
        try:
            return self._log.bounds(tp.topic, tp.partition)
        except (LogUnavailable, OSError):
            raise
        except Exception as error:
            # The topic may have been made anew with fewer partitions, or the log lost one.
            if tp.partition in self._log.partitions(tp.topic):
                raise
            raise _GoneError(tp) from error

    def _checked(
        self, tp: TopicPartition, bounds: Any, identities: Mapping[str, str]
    ) -> Seen | RetriableError:
        match bounds:
            case (int() as earliest, int() as end) if 0 <= earliest <= end:
                return Seen(earliest, end, identities.get(tp.topic, ""))
            case RetriableError():
                return bounds
        raise LogFailed(
            f"{tp}: bounds() of {self._name} returned {bounds!r:.100}; it must be two whole "
            "numbers, the first offset and the offset after the last one"
        )

    def _make(self, calls: Sequence[Call]) -> list[Any]:
        """Make the calls that are due; return a RetriableError for one that may work later."""
        deferred = {}
        if self._failures:
            found = ((call.what, self._failures.error_until_retry(call.what)) for call in calls)
            deferred = {what: error for what, error in found if error is not None}
        due = [call for call in calls if call.what not in deferred] if deferred else calls
        answers = iter(self._run(due) if due else ())
        return [
            RetriableError(deferred[call.what])
            if call.what in deferred
            else self._result(call.what, next(answers))
            for call in calls
        ]

    def _make_one(self, what: str, function: Callable[[], Any]) -> Any:
        """Make one call.

        Raises:
            RetriableError: the call may work later.

        """
        (found,) = self._make([Call(what, function)])
        if isinstance(found, RetriableError):
            raise found
        return found

    def _result(self, what: str, answer: Any) -> Any:
        if not isinstance(answer, Exception):
            self._failures.forget([what])
            return answer
        if isinstance(answer, CoordinatedSourceError | OptionError):
            raise answer
        if isinstance(answer, _GoneError):
            # If that is no error, the group's leader is about to assign the remaining partitions.
            self._gone_for_good(answer.args)
            return RetriableError(f"{answer.args[0]} is not in {self._name} any more")
        why = f"{type(answer).__name__}: {answer}"
        if not isinstance(answer, LogUnavailable | OSError):
            raise LogFailed(f"{what} of {self._name} failed: {why}") from answer
        return RetriableError(self._failures.note(what, why, answer))

    def _gone_for_good(self, gone: Sequence[TopicPartition]) -> bool:
        """Say whether partitions have been missing for `LAG_MAX_S`."""
        if not self._missing.for_long(gone):
            return False
        self._fail_if_gone(", ".join(map(str, gone)))
        return True

    def _fail_if_gone(self, named: str) -> None:
        if self._on_data_loss == "error":
            raise DataLossError(
                f"{self._name} no longer has {named}: the topic was made anew with fewer "
                "partitions, or partitions were deleted. Set option 'onDataLoss' to 'earliest' or "
                "'latest' to go on without them"
            )


class _GoneError(Exception):
    """The topic doesn't have a partition, the one argument, whose bounds were asked for."""


def _identity(topic_id: Any) -> str:
    """Return a topic's id in the form that a pin can hold."""
    if topic_id is None:
        return ""
    text = str(topic_id)
    if IDENTITY.fullmatch(text):
        return text
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# --- What could not be done, and for how long ------------------------------------------------


@dataclass
class _Failing:
    """A failing call."""

    since_s: float
    retry_at_s: float
    error: str = ""
    tries: int = 0


class Failures:
    """The failing calls, by name.

    Args:
        log: names the log in messages.
        timeout_s: how long a call may fail in a row.
        clock: a monotonic clock in seconds.

    """

    def __init__(self, log: str, timeout_s: float, clock: Callable[[], float]) -> None:
        self._log = log
        self._timeout_s = timeout_s
        self._clock = clock
        self._failing: dict[str, _Failing] = {}

    def __bool__(self) -> bool:
        return bool(self._failing)

    def error_until_retry(self, what: str) -> str | None:
        """Return the error of a call whose next try is not due yet, else None."""
        failing = self._failing.get(what)
        return failing.error if failing and self._clock() < failing.retry_at_s else None

    def forget(self, calls: Iterable[str]) -> None:
        """Forget calls that worked, or that are not made any more."""
        for what in calls:
            self._failing.pop(what, None)

    def note(self, what: str, why: str, cause: Exception) -> str:
        """Note that a call failed; return the message for it.

        Raises:
            LogFailed: the call has failed for longer than the timeout.

        """
        now_s = self._clock()
        failing = self._failing.setdefault(what, _Failing(now_s, now_s))
        failing.tries += 1
        for_s = now_s - failing.since_s
        if for_s >= self._timeout_s and failing.tries >= TRIES_MIN:
            raise LogFailed(
                f"{what} of {self._log} has failed for {for_s:.1f} s, longer than option "
                f"'logTimeout' allows ({self._timeout_s:g} s): {why}"
            ) from cause
        if not failing.error:
            logger.warning("%s of %s failed, trying again: %s", what, self._log, why)
        failing.error = f"{what} of {self._log} failed: {why}"
        failing.retry_at_s = now_s + backoff(failing.tries, RETRY_MIN_S, RETRY_MAX_S)
        return failing.error


class Missing:
    """The partitions that a log had, and has not now.

    Args:
        log: names the log in messages.
        clock: a monotonic clock in seconds.

    """

    def __init__(self, log: str, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._since_s: dict[TopicPartition, float] = {}

    def __bool__(self) -> bool:
        return bool(self._since_s)

    def seen(self, partitions: Iterable[TopicPartition]) -> None:
        """Note partitions that are there: a later absence counts from its own start."""
        for tp in partitions:
            self._since_s.pop(tp, None)

    def for_long(self, gone: Collection[TopicPartition]) -> bool:
        """Note missing partitions; say whether all have been missing for `LAG_MAX_S`."""
        now_s = self._clock()
        if new := [tp for tp in gone if tp not in self._since_s]:
            named = ", ".join(map(str, new))
            logger.warning(
                "%s no longer has %s; waiting up to %g s for it", self._log, named, LAG_MAX_S
            )
            self._since_s |= dict.fromkeys(new, now_s)
        return all(now_s - self._since_s[tp] >= LAG_MAX_S for tp in gone)


# --- Calls that may block --------------------------------------------------------------------


def patience_s(options: ReaderOptions) -> float:
    """Return the timeout of one call in seconds: a hand-over that waits for it must be in time."""
    return min(options.log_timeout_ms, options.rebalance_timeout_ms / 4) / 1000


@dataclass
class _Job:
    """Calls for the worker thread, and their results."""

    calls: Sequence[Call]
    since_s: float  # When the call that runs now began.
    results: list[Any] = field(default_factory=list)
    given_up: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class Watchdog:
    """Makes calls for `LogCalls`, each for at most *patience_s* seconds.

    Args:
        patience_s: timeout of one call, in seconds.
        clock: a monotonic clock in seconds.
        wait: waits for an event for a number of seconds; returns whether it is set.

    """

    def __init__(
        self,
        patience_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], bool] = threading.Event.wait,
    ) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._wait = wait
        self._poll_s = min(POLL_S, patience_s)
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._stuck: _Job | None = None
        self._waited_until_s = -math.inf
        self._started = False
        self._lock = threading.Lock()

    def run(self, calls: Sequence[Call]) -> list[Any]:
        """Make the calls in order; return a `LogUnavailable` for each that was given up."""
        with self._lock:  # The group's leader asks for partitions in another thread.
            if self._stuck is not None and not self._is_back(self._stuck):
                return [self._too_slow(self._stuck)] * len(calls)
            self._stuck = None
            job = _Job(calls, self._clock())
            if not self._started:
                threading.Thread(target=self._work, name="log-calls", daemon=True).start()
                self._started = True
            self._jobs.put(job)
            while not self._wait(job.done, self._poll_s):
                if self._clock() - job.since_s >= self._patience_s:
                    job.given_up = True
                    self._stuck = job
                    error = self._too_slow(job)
                    logger.warning("%s; the reader goes on without it", error)
                    answered = list(job.results)
                    return answered + [error] * (len(calls) - len(answered))
            return job.results

    def _is_back(self, stuck: _Job) -> bool:
        """Wait a little for a call that was given up; many other calls may wait behind it."""
        waited_s = self._clock() - self._waited_until_s
        back = self._wait(stuck.done, self._poll_s if waited_s >= self._poll_s else 0.0)
        if waited_s >= self._poll_s:
            self._waited_until_s = self._clock()
        return back

    def _too_slow(self, job: _Job) -> LogUnavailable:
        at = min(len(job.results), len(job.calls) - 1)
        return LogUnavailable(
            f"{job.calls[at].what} has not answered for {self._clock() - job.since_s:.1f} s"
        )

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            for call in job.calls:
                if job.given_up:
                    break
                job.since_s = self._clock()
                job.results.append(answer_of(call))
            job.done.set()
