"""A daemon that notes where its CPU time goes: ``python -m bench.sampled OUTPUT serve …``.

SIGUSR1 begins to note, and the next one ends and writes a JSON object (`Profile`) to OUTPUT. After
every few ms of the process's CPU time the kernel interrupts it, and the functions that the main
thread is in are counted. What runs in C counts for the Python function that called it. The other
threads' share is known by their CPU time alone.
"""

import json
import os
import signal
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import enumerate as threads
from types import FrameType
from typing import Final

from coordinator.cli.main import main as coordinator

# The kernel looks at this clock once a tick only, which is 4 ms on many machines.
INTERVAL_S: Final = 0.002


@dataclass(frozen=True, slots=True)
class Profile:
    """Where the time went.

    Attributes:
        samples: How often the main thread was looked at.
        own: By function: how often it was the innermost one.
        total: By function: how often it was on the stack.
        threads_s: CPU seconds by thread.
    """

    samples: int
    own: dict[str, int]
    total: dict[str, int]
    threads_s: dict[str, float]


class Sampler:
    """Counts functions; see the module."""

    def __init__(self) -> None:
        self._samples = 0
        self._own: Counter[str] = Counter()
        self._total: Counter[str] = Counter()

    def note(self, frame: FrameType | None) -> None:
        """Count the functions of this stack."""
        self._samples += 1
        seen = set()
        innermost = True
        while frame is not None:
            name = name_of(frame)
            if innermost:
                self._own[name] += 1
                innermost = False
            seen.add(name)
            frame = frame.f_back
        self._total.update(seen)

    def profile(self, threads_s: dict[str, float]) -> Profile:
        """Return what was counted."""
        return Profile(self._samples, dict(self._own), dict(self._total), threads_s)


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


class Switch:
    """Begins and ends on a signal."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._sampler: Sampler | None = None
        self._before_s: dict[str, float] = {}

    def turn(self, _signal: int, _frame: FrameType | None) -> None:
        """Begin, or end and write."""
        if self._sampler is None:
            self._sampler = Sampler()
            self._before_s = cpu_of_threads()
            signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
            return
        signal.setitimer(signal.ITIMER_PROF, 0)
        used_s = {
            name: seconds - self._before_s.get(name, 0.0)
            for name, seconds in cpu_of_threads().items()
        }
        written = self._output.with_suffix(".tmp")
        written.write_text(json.dumps(asdict(self._sampler.profile(used_s))), encoding="utf-8")
        written.rename(self._output)
        self._sampler = None

    def note(self, _signal: int, frame: FrameType | None) -> None:
        """Look at the main thread."""
        if self._sampler is not None:
            self._sampler.note(frame)


def main() -> None:
    """Run the daemon of the command line."""
    output, *arguments = sys.argv[1:]
    switch = Switch(Path(output))
    signal.signal(signal.SIGUSR1, switch.turn)
    signal.signal(signal.SIGPROF, switch.note)
    coordinator(arguments, prog_name="group-coordinator")


if __name__ == "__main__":
    main()
