"""A daemon that notes where its CPU time goes: ``python -m bench.sampled OUTPUT serve …``.

SIGRTMIN begins to note, and the next one ends and writes a JSON object to OUTPUT. After every few
ms of the process's CPU time the kernel interrupts it, and the functions that the main thread is in
are counted. What runs in C counts for the Python function that called it. The other threads' share
is known by their CPU time alone.
"""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from threading import enumerate as threads
from types import FrameType
from typing import Final

from coordinator.cli.main import main as coordinator

# The kernel looks at this clock once a tick only, which is 4 ms on many machines.
INTERVAL_S: Final = 0.002


def name_of(frame: FrameType) -> str:
    """Return file and function, without the folders of this machine."""
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name}:{frame.f_code.co_qualname}"


def cpu_of_threads() -> dict[str, float]:
    """Return the CPU seconds of each thread of this process, by name."""
    ticks = os.sysconf("SC_CLK_TCK")
    names = {thread.native_id: thread.name for thread in threads()}
    found: dict[str, float] = {}
    for task in Path("/proc/self/task").iterdir():
        fields = (task / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
        name = names.get(int(task.name), "others")
        found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / ticks
    return found


class Sampler:
    """Begins and ends on a signal, and counts functions in between.

    It writes how often the main thread was looked at (``samples``), by function how often it was
    the innermost one (``own``) and on the stack (``total``), and CPU seconds by thread
    (``threads_s``).
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._own: Counter[str] = Counter()
        self._total: Counter[str] = Counter()
        self._before_s: dict[str, float] | None = None

    def turn(self, _signal: int, _frame: FrameType | None) -> None:
        """Begin, or end and write."""
        if self._before_s is None:
            self._before_s = cpu_of_threads()
            signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
            return
        signal.setitimer(signal.ITIMER_PROF, 0)
        before_s = self._before_s
        profile = {
            "samples": self._own.total(),
            "own": self._own,
            "total": self._total,
            "threads_s": {
                name: seconds - before_s.get(name, 0.0)
                for name, seconds in cpu_of_threads().items()
            },
        }
        written = self._output.with_suffix(".tmp")
        written.write_text(json.dumps(profile), encoding="utf-8")
        written.rename(self._output)

    def note(self, _signal: int, frame: FrameType | None) -> None:
        """Count the functions that the main thread is in."""
        names = []
        while frame is not None:
            names.append(name_of(frame))
            frame = frame.f_back
        self._own.update(names[:1])
        self._total.update(set(names))


def main() -> None:
    """Run the daemon of the command line."""
    output, *arguments = sys.argv[1:]
    sampler = Sampler(Path(output))
    signal.signal(signal.SIGRTMIN, sampler.turn)
    signal.signal(signal.SIGPROF, sampler.note)
    coordinator(arguments, prog_name="group-coordinator")


if __name__ == "__main__":
    main()
