"""Where the daemon's CPU time goes under one row's load.

    python -m bench.hot_spots [ROW] [--seconds 5] [--lines 30]

starts a daemon on the servers' core that notes what it does (`bench.sampled`), loads it as the row
of `bench.rows` does, and prints its functions by their share of the main thread's time. It has
no part in `bench.run`.
"""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import click

from bench.command import python_option, work_dir_option
from bench.interpreter import prefer
from bench.processes import ProcessError, cores_of_this_machine, daemon
from bench.report import Table, text
from bench.rows import CLOSED_LOOP, OURS, Row
from bench.run import Times, load_row

_WARMUP_S: Final = 1.5
_WRITTEN_S: Final = 30
_POLL_S: Final = 0.02


def _written(output: Path) -> dict[str, Any]:
    deadline = time.monotonic() + _WRITTEN_S
    while not output.exists():
        if time.monotonic() > deadline:
            raise ProcessError("the daemon wrote no profile")
        time.sleep(_POLL_S)
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return found


def measure(row: Row, folder: Path, seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the load generator measured, and the profile of the same time.

    Raises:
        ProcessError: A process failed.
    """
    cores, output = cores_of_this_machine(), folder / "profile.json"
    with daemon(folder / "data", cores.server, module=("bench.sampled", str(output))) as server:

        def load(run: str, seconds: float) -> dict[str, Any]:
            return load_row(row, server, core=cores.load, run=run, times=Times(0, 0, seconds))

        load("warm-up", _WARMUP_S)
        os.kill(server.pid, signal.SIGRTMIN)
        measured = load("measured", seconds)
        os.kill(server.pid, signal.SIGRTMIN)
        return measured, _written(output)


def tables(profile: dict[str, Any], measured: dict[str, Any], lines: int) -> list[Table]:
    """Return the tables: CPU by thread, functions by their own time and with what they call."""
    requests, samples = max(measured["requests"], 1), max(profile["samples"], 1)
    threads: Table = [("thread", "CPU s", "us a request")]
    for name, seconds in sorted(profile["threads_s"].items(), key=lambda item: -item[1]):
        threads.append((name, f"{seconds:.2f}", f"{seconds * 1e6 / requests:.1f}"))
    found = [threads]
    for field, title in (("own", "itself"), ("total", "with what it calls")):
        inner = [item for item in profile[field].items() if item[1] < samples]  # Not the outermost.
        most = sorted(inner, key=lambda item: -item[1])[:lines]
        shares = [(name, f"{100 * count / samples:.1f} %") for name, count in most]
        found.append([(f"function, {title}", "share"), *shares])
    return found


@click.command()
@click.argument("name", metavar="ROW", type=click.Choice(sorted(OURS)), default=CLOSED_LOOP)
@click.option("--seconds", type=float, default=5.0, show_default=True)
@click.option("--lines", type=int, default=30, show_default=True)
@work_dir_option
@python_option
def main(name: str, seconds: float, lines: int, work_dir: Path, python: Path | None) -> None:
    """Show where the daemon's CPU time goes under the load of a row."""
    work_dir.mkdir(parents=True, exist_ok=True)
    try:
        prefer("bench.hot_spots", python)
        with tempfile.TemporaryDirectory(prefix="hot-spots-", dir=work_dir) as folder:
            measured, profile = measure(OURS[name], Path(folder), seconds)
    except ProcessError as exc:
        sys.exit(f"bench.hot_spots: {exc}")
    print(
        f"{OURS[name].title}: {measured['rate_per_s']:,.0f} per s, "
        f"{measured['server_cpu_us']:.1f} us of CPU each; {profile['samples']} samples"
    )
    for table in tables(profile, measured, lines):
        print(f"\n{text(table)}")


if __name__ == "__main__":
    main()
