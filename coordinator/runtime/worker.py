"""One thread for the disk, and a short way to it and back.

`trio.to_thread.run_sync` picks a thread from a pool, copies the context and takes a limiter: per
flush 120 µs of CPU on one core, against 62 here, which a lone committer waits for.
"""

import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue

import outcome
import trio

Work = Callable[[], None]
RunBlocking = Callable[[Work], Awaitable[None]]


class Job:
    """Work of one task; whoever ends it first, the thread or a cancellation, decides."""

    __slots__ = ("abandoned", "task", "token", "work")

    def __init__(self, work: Work) -> None:
        self.work = work
        self.task = trio.lowlevel.current_task()
        self.token = trio.lowlevel.current_trio_token()
        self.abandoned = False

    def finish(self, result: outcome.Outcome[None]) -> None:
        """Let the task go on; runs in the event loop."""
        if not self.abandoned:
            trio.lowlevel.reschedule(self.task, result)


class DiskThread:
    """Runs one piece of blocking work after the other, in a thread that is started on first use.

    A cancelled wait abandons its work, which happens only when the process ends: a disk that
    hangs must not keep it from ending. The thread is a daemon for the same reason.
    """

    def __init__(self, name: str = "disk") -> None:
        self._name = name
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._started = False

    async def run(self, work: Work) -> None:
        """Run *work* in the thread and return when it is done; what it raises is raised here."""
        await trio.lowlevel.checkpoint_if_cancelled()
        if not self._started:
            self._started = True
            threading.Thread(target=self._run_for_ever, name=self._name, daemon=True).start()
        job = Job(work)

        def abandon(_: Callable[[], None]) -> trio.lowlevel.Abort:
            job.abandoned = True
            return trio.lowlevel.Abort.SUCCEEDED

        self._jobs.put(job)
        await trio.lowlevel.wait_task_rescheduled(abandon)

    def _run_for_ever(self) -> None:
        while True:
            job = self._jobs.get()
            result = outcome.capture(job.work)
            try:
                job.token.run_sync_soon(job.finish, result)
            except trio.RunFinishedError:
                return
            del job, result  # Don't keep a flush alive until the next one comes.
