"""Runs a compaction in a process of its own; see `coordinator.log.compact_child`."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

from coordinator.log import compact_child
from coordinator.log.compaction import Compacted, Job
from coordinator.log.compaction_work import Progress

RunChild = Callable[[Job, Callable[[Progress], None]], Awaitable[Compacted]]

# What of its complaints is kept: the end of a traceback.
_STDERR_BYTES: Final = 4_096
_REASON_CHARS: Final = 1_000  # It is put into answers and events.
_ROOT: Final = Path(compact_child.__file__).parents[2]


class CompactionFailed(Exception):
    """A compaction came to nothing; the log is as it was.

    Attributes:
        is_damage: The log is damaged: the next try would find the same.
    """

    def __init__(self, reason: str, *, is_damage: bool = False) -> None:
        super().__init__(reason[:_REASON_CHARS])
        self.is_damage = is_damage


class ChildProcess:
    """Starts one child per job, on the folder at *path*."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.pid = -1  # Of the child that runs, for tests and operators.

    async def run(self, job: Job, report: Callable[[Progress], None]) -> Compacted:
        """Do *job*; the child is killed if this is cancelled.

        Raises:
            CompactionFailed: It ended without a result.
        """
        # Started by a thread of trio's, which ends when it has been idle for a while: so no
        # PR_SET_PDEATHSIG, which looks at the thread. The child's standard input ends with us.
        try:
            process = await trio.lowlevel.open_process(
                [sys.executable, "-P", "-m", compact_child.__name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": _search_path()},
            )
        except OSError as exc:
            raise CompactionFailed(f"the compaction process can't be started: {exc}") from exc
        try:
            return await self._talk(process, job, report)
        finally:
            self.pid = -1
            if process.returncode is None:
                process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()
                for pipe in (process.stdin, process.stdout, process.stderr):
                    assert pipe is not None
                    await pipe.aclose()

    async def _talk(
        self, process: trio.Process, job: Job, report: Callable[[Progress], None]
    ) -> Compacted:
        self.pid = process.pid
        complaints = b""
        answer: dict[str, Any] = {}

        async def listen() -> None:
            nonlocal complaints
            assert process.stderr is not None
            async for data in process.stderr:
                complaints = (complaints + data)[-_STDERR_BYTES:]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            assert process.stdin is not None
            with suppress(trio.BrokenResourceError):  # It has ended; what it said tells why.
                await process.stdin.send_all(compact_child.encode_job(str(self._path), job))
            async for said in _lines(process):
                if "progress" in said:
                    report(Progress(*said["progress"]))
                else:
                    answer = said
        if "done" in answer:
            return compact_child.decode_result(answer["done"])
        if "damaged" in answer:
            raise CompactionFailed(answer["damaged"], is_damage=True)
        if "disk" in answer:
            raise CompactionFailed(f"the disk failed: {answer['disk']}")
        status = await process.wait()
        last_words = complaints.decode(errors="replace").strip().rpartition("\n")[2]
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        raise CompactionFailed(f"the compaction process {how} {last_words}".rstrip())


def _search_path() -> str:
    """Return what lets the child find the same code as ours, wherever we were started."""
    return os.pathsep.join([str(_ROOT), *filter(None, sys.path)])


async def _lines(process: trio.Process) -> AsyncIterator[dict[str, Any]]:
    assert process.stdout is not None
    rest = b""
    async for data in process.stdout:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield json.loads(line)
