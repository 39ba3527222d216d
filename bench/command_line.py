"""What a command costs before it does anything: ``python -m bench.command_line [--quick]``.

A daemon runs on one core, and commands on another one, each a process of its own. A health check
is one every few seconds, for as long as a container lives.
"""

import os
import subprocess
import sys
import time
from typing import Final, NamedTuple

from bench.command import Bench, Benchmark, command
from bench.measures import Medians, Samples, field_at_most, percentile
from bench.processes import DAEMON_NOTES, ProcessError, daemon, on_core
from bench.report import Table, fields_table

_RUNS: Final = 11
_RUNS_QUICK: Final = 1

PING: Final = "ping"
TITLES: Final = {
    PING: "ping",
    "version": "--version",
    "help": "--help",
    "list": "groups list, without groups",
}
AIMS: Final = (
    field_at_most(PING, "cpu_s", "CPU of a ping, the interpreter's start included", 0.25, "s"),
)


class Took(NamedTuple):
    """What one process took."""

    cpu_ms: int
    wall_ms: int


def took(*arguments: str) -> Took:
    """Run a command to its end, in a process of its own.

    Raises:
        ProcessError: It failed.
    """
    began_ns = time.monotonic_ns()
    process = subprocess.Popen(
        [sys.executable, "-m", "coordinator", *arguments], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise ProcessError(f"{' '.join(arguments)} ended with {process.returncode}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Took(round(cpu_s * 1000), (time.monotonic_ns() - began_ns) // 1_000_000)


class CommandLineBench(Bench):
    """Commands against a daemon that has nothing to do."""

    def repetition(self, number: int) -> None:
        """Run each command several times, in turn."""
        cores, runs = self.choice.cores, _RUNS_QUICK if self.choice.quick else _RUNS
        with daemon(self.folder / f"data-{number}", cores.server) as server:
            at = ("--at", server.address)
            commands = {
                PING: ("ping", *at),
                "version": ("--version",),
                "help": ("--help",),
                "list": ("groups", "list", *at),
            }
            with on_core(cores.load):
                for words in commands.values():  # Later ones find in memory what these read.
                    took(*words)
                found: dict[str, list[Took]] = {name: [] for name in commands}
                for _ in range(runs):
                    for name, words in commands.items():
                        found[name].append(took(*words))
        for name, each in found.items():
            self.keep(
                name,
                {
                    "cpu_s": percentile(sorted(one.cpu_ms for one in each), 0.5) / 1000,
                    "wall_s": percentile(sorted(one.wall_ms for one in each), 0.5) / 1000,
                },
            )


def tables(samples: Samples) -> dict[str, Table]:
    """Return a line for each command."""
    fields = [
        (name, field, unit, 3)
        for name in TITLES
        for field, unit in (("cpu_s", "s of CPU"), ("wall_s", "s until it has ended"))
    ]
    return {"Commands": fields_table(Medians(samples), TITLES, fields)}


main = command(
    Benchmark(
        module="bench.command_line",
        help="Measure what the commands cost, and write the results.",
        name="command-line",
        repetitions=3,
        make=CommandLineBench,
        settings=lambda quick: {
            "runs of each command in a repetition": _RUNS_QUICK if quick else _RUNS,
            **DAEMON_NOTES,
        },
        titles=TITLES,
        aims=AIMS,
        tables=tables,
    )
)


if __name__ == "__main__":
    main()
