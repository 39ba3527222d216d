"""Group commit: while one flush is on its way to the disk, the next one gathers.

The disk has one thread of its own. `trio.to_thread.run_sync` picks a thread from a pool, copies the
context and takes a limiter. A lone committer waits for all of that.
"""

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

import outcome
import trio

from coordinator.log.format import Flush
from coordinator.runtime.environment import Done, Environment, Work
from coordinator.runtime.logs import FlushLog, OutOfReach

# Has a function called in the event loop; callable from any thread.
Deliver = Callable[[Done, outcome.Outcome[None]], None]
# Has a function called whenever a descriptor is readable.
Watch = Callable[[int, Callable[[int], None]], None]


class Mailbox:
    """A way back to the event loop through whoever watches its sockets anyway.

    trio's own way wakes a task of trio's, which wakes the one that waits: for a lone commit two
    passes of the event loop more.
    """

    def __init__(self, watch: Watch) -> None:
        """Make it; *watch* calls back, in the event loop, when a descriptor is readable."""
        self._mail: deque[tuple[Done, outcome.Outcome[None]]] = deque()
        self._event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        watch(self._event_fd, self._open)

    def put(self, done: Done, result: outcome.Outcome[None]) -> None:
        """Have *done* called with *result* in the event loop; for other threads."""
        self._mail.append((done, result))
        os.eventfd_write(self._event_fd, 1)

    def _open(self, _mask: int) -> None:
        os.eventfd_read(self._event_fd)
        mail = self._mail
        while mail:
            done, result = mail.popleft()
            done(result)


class DiskThread:
    """Runs one piece of blocking work after the other, in a thread that is started on first use.

    A cancelled wait abandons its work, which happens only when the process ends: a disk that
    hangs must not keep it from ending. The thread is a daemon for the same reason.
    """

    def __init__(self, name: str, deliver: Deliver) -> None:
        """Make it; *deliver* is the way back to the event loop."""
        self._name = name
        self._deliver = deliver
        self._jobs: SimpleQueue[tuple[Work, Done]] = SimpleQueue()
        self._started = False

    def submit(self, work: Work, done: Done) -> None:
        """Run *work* in the thread, then *done* in the event loop."""
        if not self._started:
            self._started = True
            threading.Thread(target=self._run_for_ever, name=self._name, daemon=True).start()
        self._jobs.put((work, done))

    async def run(self, work: Work) -> None:
        """Run *work* in the thread and return when it is done; what it raises is raised here."""
        await trio.lowlevel.checkpoint_if_cancelled()
        task = trio.lowlevel.current_task()
        is_abandoned = False

        def done(result: outcome.Outcome[None]) -> None:
            if not is_abandoned:
                trio.lowlevel.reschedule(task, result)

        def abandon(_: Callable[[], None]) -> trio.lowlevel.Abort:
            nonlocal is_abandoned
            is_abandoned = True
            return trio.lowlevel.Abort.SUCCEEDED

        self.submit(work, done)
        await trio.lowlevel.wait_task_rescheduled(abandon)

    def _run_for_ever(self) -> None:
        while True:
            work, done = self._jobs.get()
            result = outcome.capture(work)
            self._deliver(done, result)
            del work, done, result  # Don't keep a flush alive until the next one comes.


class Flusher:
    """Takes whatever was appended since it last looked, and has it written and synced.

    It is no task that waits for its turn: the server calls `start` at the end of each round of
    requests, and the end of a flush starts the next one. The task of `run` is there for what is
    appended outside of a round, and to end the process when the disk fails.

    Attributes:
        began_s: When the flush began that is on its way, None for none.
        flushes: How many there were; likewise ``flushed_bytes``.
    """

    def __init__(
        self,
        log: FlushLog,
        environment: Environment,
        written: Callable[[dict[int, int]], None],
        waiting: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Make it.

        Args:
            log: What is flushed.
            environment: Has the clock, and the rounds.
            written: Called with the end offset by partition that is durable now.
            waiting: Called at the end of a round, while a flush is on its way, with how many bytes
                wait for the next one.
        """
        self._log = log
        self._clock_s = environment.clock_s
        self._telemetry = environment.telemetry
        self._poller = environment.poller
        self._written = written
        self._waiting = waiting
        self._wanted = False
        self._is_writing = False
        self._error: Exception | None = None
        self._wake = trio.Event()
        self._idle = trio.Event()
        self.began_s: float | None = None
        self.flushes = 0
        self.flushed_bytes = 0

    def want(self) -> None:
        """Something was appended."""
        if not self._wanted:
            self._wanted = True
            if not self._is_writing and not self._poller.in_round:
                self._wake.set()

    def start(self) -> None:
        """Begin a flush, if there is something to write and none is on its way."""
        if not self._wanted or self._error is not None:
            return
        if self._is_writing:
            self._waiting(self._log.open_bytes)
            return
        self._wanted = False
        flush = self._log.take_flush()
        if flush is None:
            self._idle.set()
            return
        self._is_writing = True
        self.began_s = self._clock_s()
        self._log.write(flush, partial(self._end, flush))

    async def run(self) -> None:
        """Flush until cancelled. Raises LogFailed: the process must end."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            if self._error is not None:
                raise self._error
            self.start()

    async def wait_idle(self) -> None:
        """Return when all that was appended is durable."""
        while self._wanted or self._is_writing:
            self._idle = trio.Event()
            await self._idle.wait()

    def _end(self, flush: Flush, result: outcome.Outcome[None]) -> None:
        self._is_writing = False
        began_s, self.began_s = self.began_s, None
        try:
            result.unwrap()
        except OutOfReach:
            self._go_on()
            return
        except Exception as exc:  # noqa: BLE001 - `run` raises it
            self._error = exc
            self._wake.set()
            return
        self.flushes += 1
        size_bytes = len(flush.data)
        self.flushed_bytes += size_bytes
        assert began_s is not None
        log = self._log
        took_s = self._clock_s() - began_s
        self._telemetry.flushed(took_s, size_bytes, log.last_sync_s, log.last_wait_s)
        self._written(flush.ends)
        self._go_on()

    def _go_on(self) -> None:
        if not self._wanted:
            self._idle.set()
        elif not self._poller.in_round:
            self.start()
