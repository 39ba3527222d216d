"""Group commit: while one flush is on its way to the disk, the next one gathers."""

from collections.abc import Callable
from functools import partial

import outcome
import trio

from coordinator.log.format import Flush
from coordinator.log.journal import Journal
from coordinator.runtime.environment import Environment


class Flusher:
    """Takes whatever was appended since it last looked, and has it written and synced.

    It is no task that waits for its turn: the server calls `start` at the end of each round of
    requests, and the end of a flush starts the next one. The task of `run` is there for what is
    appended outside of a round, and to end the process when the disk fails.
    """

    def __init__(
        self,
        journal: Journal,
        environment: Environment,
        written: Callable[[dict[int, int]], None],
    ) -> None:
        """Make it; *written* is called with the end offset by partition that is durable now."""
        self._journal = journal
        self._submit = environment.submit
        self._poller = environment.poller
        self._written = written
        self._wanted = False
        self._is_writing = False
        self._error: Exception | None = None
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._flushes = 0
        self._flushed_bytes = 0
        environment.metrics.update(
            flushes_total=lambda: self._flushes,
            flushed_bytes_total=lambda: self._flushed_bytes,
        )

    def want(self) -> None:
        """Something was appended."""
        if not self._wanted:
            self._wanted = True
            if not self._is_writing and not self._poller.in_round:
                self._wake.set()

    def start(self) -> None:
        """Begin a flush, if there is something to write and none is on its way."""
        if not self._wanted or self._is_writing or self._error is not None:
            return
        self._wanted = False
        flush = self._journal.take_flush()
        if flush is None:
            self._idle.set()
            return
        self._is_writing = True
        self._submit(partial(self._journal.write_flush, flush), partial(self._end, flush))

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
        try:
            result.unwrap()
        except Exception as exc:  # noqa: BLE001 - `run` raises it
            self._error = exc
            self._wake.set()
            return
        self._flushes += 1
        self._flushed_bytes += len(flush.data)
        self._written(flush.ends)
        if not self._wanted:
            self._idle.set()
        elif not self._poller.in_round:
            self.start()
