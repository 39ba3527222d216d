"""The processes of a run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.processes import moved

TWO_THREADS = (
    "import sys, threading\n"
    "wait = threading.Event()\n"
    "thread = threading.Thread(target=wait.wait, daemon=True)\n"
    "thread.start()\n"
    "print('here', flush=True)\n"
    "sys.stdin.read()\n"
)


@pytest.mark.integration
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one core only")
def test_a_process_is_moved_with_all_its_threads() -> None:
    """A virtual machine's work is done by all but the first."""
    core = max(os.sched_getaffinity(0))
    with subprocess.Popen(
        [sys.executable, "-c", TWO_THREADS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        moved(process.pid, core)
        tasks = [int(task.name) for task in Path(f"/proc/{process.pid}/task").iterdir()]
        assert len(tasks) == 2
        assert {frozenset(os.sched_getaffinity(task)) for task in tasks} == {frozenset({core})}
        moved(process.pid, None)
        assert os.sched_getaffinity(process.pid) == {core}
