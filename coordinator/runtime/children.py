"""Starts programs of ours; listens to those that compute for the daemon, see `log.child`."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trio

# What is kept of the child's complaints: the end of a traceback.
_STDERR_BYTES: Final = 4_096
_REASON_CHARS: Final = 1_000  # It is put into answers and events.
_ROOT: Final = Path(__file__).parents[2]


class CompactionFailed(Exception):
    """A compaction came to nothing; the log is as it was.

    Attributes:
        is_damage: The log is damaged: the next try would find the same.
    """

    def __init__(self, reason: str, *, is_damage: bool = False) -> None:
        super().__init__(reason[:_REASON_CHARS])
        self.is_damage = is_damage


async def open_program(module: str, *words: str, **options: Any) -> trio.Process:
    """Start ``python -m module words``; its standard input ends with us.

    It finds the same code as ours, wherever we were started. *options* are those of
    `trio.lowlevel.open_process`; what its ``env`` has comes beside what is in ours.

    Raises:
        OSError: It can't be started.
    """
    python_path = os.pathsep.join([str(_ROOT), *filter(None, sys.path)])
    env = {**os.environ, "PYTHONPATH": python_path, **options.pop("env", {})}
    command = [sys.executable, "-P", "-m", module, *words]
    return await trio.lowlevel.open_process(command, stdin=subprocess.PIPE, env=env, **options)


def _unheard(_progress: object) -> None:
    pass


async def run_child(module: str, job: bytes, report: Callable[[Any], None] = _unheard) -> Any:
    """Have the program *module* do *job*, a line of JSON; it is killed if this is cancelled.

    Returns what it has made. *report* is called with how far it is.

    Raises:
        CompactionFailed: It ended without a result.
    """
    # Started by a thread of trio's, which ends when it has been idle for a while: so no
    # PR_SET_PDEATHSIG, which looks at the thread. The child's standard input ends with us.
    try:
        process = await open_program(module, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as exc:
        raise CompactionFailed(f"the compaction process can't be started: {exc}") from exc
    try:
        return await _talk(process, job, report)
    finally:
        if process.returncode is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                assert pipe is not None
                await pipe.aclose()


async def _talk(process: trio.Process, job: bytes, report: Callable[[Any], None]) -> Any:
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
            await process.stdin.send_all(job)
        async for said in _lines(process):
            if "progress" in said:
                report(said["progress"])
            else:
                answer = said
    if "done" in answer:
        return answer["done"]
    if "damaged" in answer:
        raise CompactionFailed(answer["damaged"], is_damage=True)
    if "failed" in answer:
        raise CompactionFailed(answer["failed"])
    status = await process.wait()
    error = complaints.decode(errors="replace").strip().rpartition("\n")[2]
    how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
    raise CompactionFailed(f"the compaction process {how} {error}".rstrip())


async def _lines(process: trio.Process) -> AsyncIterator[dict[str, Any]]:
    assert process.stdout is not None
    rest = b""
    async for data in process.stdout:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield json.loads(line)
