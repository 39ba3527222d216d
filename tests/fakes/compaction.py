"""The child process that compacts, without the process: the work runs on the disk in memory."""

from collections.abc import Awaitable, Callable

import trio

from coordinator.log.compaction import STEP_BYTES, Compacted, Job, Progress, compact
from coordinator.log.directory import Directory
from coordinator.log.errors import LogCorrupt
from coordinator.runtime.children import CompactionFailed


async def at_once() -> None:
    """Let the others have their turn between two steps, and no more."""
    await trio.lowlevel.checkpoint()


class MemoryChild:
    """Does the work in steps; what happens between them is the test's to say.

    Attributes:
        between_steps: Awaited before each step.
        deaths: Why the next ones end without a result.
        jobs: What it was asked to do.
        step_bytes: How much of the work a step is.
    """

    def __init__(
        self,
        directory: Directory,
        between_steps: Callable[[], Awaitable[None]] = at_once,
        *,
        step_bytes: int = STEP_BYTES,
    ) -> None:
        self.step_bytes = step_bytes
        self.between_steps = between_steps
        self.deaths: list[CompactionFailed] = []
        self.jobs: list[Job] = []
        self._directory = directory

    async def run(self, job: Job, report: Callable[[Progress], None]) -> Compacted:
        """Do *job*."""
        self.jobs.append(job)
        work = compact(self._directory, job, step_bytes=self.step_bytes)
        try:
            while True:
                await self.between_steps()
                report(next(work))
                if self.deaths:
                    raise self.deaths.pop(0)
        except StopIteration as end:
            compacted: Compacted = end.value
            if self.deaths:
                raise self.deaths.pop(0) from None
            return compacted
        except LogCorrupt as exc:
            raise CompactionFailed(str(exc), is_damage=True) from exc
        except OSError as exc:
            raise CompactionFailed(f"the disk failed: {exc}") from exc
        finally:
            work.close()
