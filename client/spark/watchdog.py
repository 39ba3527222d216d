"""Calls of a log that may block: made in a thread of their own, and given up when they take long.

While a call blocks, the reader goes on without it: it stays in its group (heartbeats have their
own thread anyway), commits what has finished and hands partitions over. A call can't be
interrupted, so its thread stays with it, and the log is asked nothing else before it is back.
"""

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from client.spark.log import LogUnavailable
from client.spark.log_calls import Call, answer_of
from client.spark.options import ReaderOptions

logger = logging.getLogger(__name__)

# How often it is looked whether the call that runs is still the same; how long to wait each time
# for a call that was given up before.
POLL_S: Final = 1.0


def patience_s(options: ReaderOptions) -> float:
    """Return how long one call may take: a hand-over that waits behind it must not be too late."""
    return min(options.log_timeout_ms, options.rebalance_timeout_ms / 4) / 1000


class _Job:
    """Some calls on their way through the worker."""

    def __init__(self, calls: Sequence[Call], clock: Callable[[], float]) -> None:
        self.calls = calls
        self.results: list[Any] = []
        self.since_s = clock()  # When the call that runs now began.
        self.given_up = False
        self.done = threading.Event()


class Watchdog:
    """Makes calls for `LogCalls`, each for at most so long.

    Args:
        patience_s: how long one call may take.
        clock: a monotonic clock in seconds.
        wait: waits for an event for so many seconds, and says whether it is set.

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
        """Make the calls in order; those that were given up give a `LogUnavailable`."""
        with self._lock:  # The group's leader asks for partitions in another thread.
            if self._stuck is not None and not self._is_back(self._stuck):
                return [self._too_slow(self._stuck)] * len(calls)
            self._stuck = None
            job = _Job(calls, self._clock)
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
        """Wait a little for a call that was given up; many others may be behind it."""
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
