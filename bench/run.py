"""Everything in one run: ``python -m bench.run [--quick]``.

Daemon and echo servers run on one core, the load generator on another one. Every repetition
starts them anew, the daemon with an empty data folder, and goes through all rows, so that a
machine that gets slower or faster meanwhile hits a row and its ceiling alike.
"""

import json
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from bench import report
from bench.command import Benchmark, command
from bench.fsync_floor import RECORD_BYTES
from bench.load import Plan
from bench.processes import (
    LOAD_CORE,
    SERVER_CORE,
    Server,
    resident_mb,
    run_json,
    serving,
)
from bench.rows import (
    CLOSED_LOOP,
    FLOOR,
    IDLE_MEMORY,
    LOADED_MEMORY,
    ROWS,
    Medians,
    Row,
    Target,
    judge,
)

_IDLE_S: Final = 1.0
_SETUP_S: Final = 120
# A member that is alone in its group need not wait for others; all else is as by default.
_DAEMON_SETTINGS: Final = ("group.initial.rebalance.delay.ms=0",)


class Scale(NamedTuple):
    """How long it takes."""

    warmup_s: float
    duration_s: float


FULL: Final = Scale(warmup_s=0.7, duration_s=2.5)
QUICK: Final = Scale(warmup_s=0.15, duration_s=0.4)


class Bench:
    """One run; collects samples by row."""

    def __init__(self, scale: Scale, folder: Path, *, pinned: bool) -> None:
        self._scale = scale
        self._folder = folder
        self._server_core = SERVER_CORE if pinned else None
        self._load_core = LOAD_CORE if pinned else None
        self.samples: dict[str, list[dict[str, float | None]]] = {}

    def repetition(self, number: int) -> None:
        """Start everything, measure all rows once, stop everything.

        Raises:
            ProcessError: A process failed.
        """
        with ExitStack() as stack:
            servers = {
                Target.DAEMON: stack.enter_context(self._daemon(number)),
                Target.ECHO: stack.enter_context(self._echo("stream", number)),
                Target.ECHO_SOCKET: stack.enter_context(self._echo("socket", number)),
            }
            daemon = servers[Target.DAEMON]
            time.sleep(_IDLE_S)
            self._keep(IDLE_MEMORY, {"resident_mb": resident_mb(daemon.pid)})
            self._floor()
            for row in ROWS:
                self._row(row, servers[row.target], f"{number}-{row.name}")
            self._keep(LOADED_MEMORY, {"resident_mb": resident_mb(daemon.pid)})

    def _keep(self, name: str, sample: dict[str, float | None]) -> None:
        self.samples.setdefault(name, []).append(sample)

    def _daemon(self, number: int) -> AbstractContextManager[Server]:
        data_dir = self._folder / f"data-{number}"
        arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir)]
        for setting in _DAEMON_SETTINGS:
            arguments += ["--set", setting]
        return serving(
            ["coordinator", *arguments],
            output=self._folder / f"daemon-{number}.log",
            core=self._server_core,
            graceful=True,
        )

    def _echo(self, kind: str, number: int) -> AbstractContextManager[Server]:
        return serving(
            ["bench.echo_server", kind],
            output=self._folder / f"echo-{kind}-{number}.log",
            core=self._server_core,
            graceful=False,
        )

    def _floor(self) -> None:
        """Measure the disk where the daemon's worker thread would: on its core and its disk."""
        arguments = [str(self._folder), str(self._scale.duration_s), str(RECORD_BYTES)]
        self._keep(
            FLOOR,
            run_json(["bench.fsync_floor", *arguments], core=self._server_core, timeout_s=_SETUP_S),
        )

    def _row(self, row: Row, server: Server, run: str) -> None:
        rate_per_s = None
        if row.open_share is not None:
            reached = self.samples[CLOSED_LOOP][-1]["rate_per_s"]
            rate_per_s = row.open_share * (reached or 0.0)
        plan = Plan(
            host=server.host,
            port=server.port,
            dialect="coordinator" if row.target is Target.DAEMON else "echo",
            workload=row.workload,
            connections=row.connections,
            window=row.window,
            partitions=row.partitions,
            warmup_s=self._scale.warmup_s,
            duration_s=self._scale.duration_s,
            run=run,
            rate_per_s=rate_per_s,
            server_pid=server.pid,
        )
        measured = run_json(
            ["bench.load", json.dumps(asdict(plan))],
            core=self._load_core,
            timeout_s=_SETUP_S + self._scale.warmup_s + self._scale.duration_s,
        )
        self._keep(row.name, measured)


def _settings(quick: bool) -> dict[str, str | float]:
    scale = QUICK if quick else FULL
    return {
        "warm-up, s": scale.warmup_s,
        "measured, s": scale.duration_s,
        "daemon": "defaults, " + ", ".join(_DAEMON_SETTINGS),
        "durability": "fdatasync before every acknowledgement",
        "fsync floor record, bytes": RECORD_BYTES,
    }


main = command(
    Benchmark(
        module="bench.run",
        help="Measure the coordinator against a bare echo and the disk, and write the results.\n\n"
        "Exit status 1: something failed, or an answer was wrong. A missed aim is no failure.",
        name="latest",
        quick_name="quick",
        repetitions=5,
        make=lambda folder, quick, pinned: Bench(QUICK if quick else FULL, folder, pinned=pinned),
        settings=_settings,
        document=report.document,
        markdown=report.markdown,
        tables=lambda run: (report.table(run), report.aim_lines(judge(Medians(run.samples)))),
        failures=report.failures,
    )
)


if __name__ == "__main__":
    main()
