"""Where the daemon's CPU time goes under one row's load.

    python -m bench.hot_spots [ROW] [--seconds 5] [--lines 30]

starts a daemon on the servers' core that notes what it does (`bench.sampled`), loads it as the row
of `bench.rows` does, and prints its functions by their share of the main thread's time. It has
no part in `bench.run`.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.interpreter import prefer
from bench.processes import (
    DAEMON_SETTINGS,
    LOAD_CORE,
    SERVER_CORE,
    ProcessError,
    Server,
    cores_of_this_machine,
    serving,
)
from bench.report import text
from bench.rows import CLOSED_LOOP, ROWS, Row, Target
from bench.run import Times, load_row

_WARMUP_S: Final = 1.5
_WRITTEN_S: Final = 30
_POLL_S: Final = 0.02


def _load(row: Row, server: Server, seconds: float, core: int | None) -> dict[str, Any]:
    run = f"hot-{time.time_ns()}"
    return load_row(row, server, core=core, run=run, times=Times(0.0, 0.0, seconds))


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
    pinned = cores_of_this_machine().pinned
    output = folder / "profile.json"
    arguments = ["serve", "--listen", "127.0.0.1:0", "--data-dir", str(folder / "data")]
    for setting in DAEMON_SETTINGS:
        arguments += ["--set", setting]
    with serving(
        ["bench.sampled", str(output), *arguments],
        output=folder / "daemon.log",
        core=SERVER_CORE if pinned else None,
        graceful=True,
    ) as daemon:
        core = LOAD_CORE if pinned else None
        _load(row, daemon, _WARMUP_S, core)
        os.kill(daemon.pid, signal.SIGUSR1)
        measured = _load(row, daemon, seconds, core)
        os.kill(daemon.pid, signal.SIGUSR1)
        return measured, _written(output)


def table(
    profile: dict[str, Any], measured: dict[str, Any], lines: int
) -> list[list[tuple[str, ...]]]:
    """Return the tables: CPU by thread, functions by their own time and with what they call."""
    requests = max(measured["requests"], 1)
    threads: list[tuple[str, ...]] = [("thread", "CPU s", "us a request")]
    for name, seconds in sorted(profile["threads_s"].items(), key=lambda item: -item[1]):
        threads.append((name, f"{seconds:.2f}", f"{seconds * 1e6 / requests:.1f}"))
    tables = [threads]
    samples = max(profile["samples"], 1)
    for field, title in (("own", "itself"), ("total", "with what it calls")):
        functions: list[tuple[str, ...]] = [(f"function, {title}", "share")]
        most = [
            (name, n) for name, n in profile[field].items() if n < samples
        ]  # Not the outermost.
        most = sorted(most, key=lambda item: -item[1])[:lines]
        functions += [(name, f"{100 * count / samples:.1f} %") for name, count in most]
        tables.append(functions)
    return tables


def main() -> int:
    """Profile the row of the command line."""
    rows = {row.name: row for row in ROWS if row.target is Target.DAEMON and not row.open_share}
    parser = argparse.ArgumentParser(description="Where the daemon's CPU time goes.")
    parser.add_argument("row", nargs="?", default=CLOSED_LOOP, choices=sorted(rows))
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--lines", type=int, default=30)
    parser.add_argument("--work-dir", type=Path, default=Path("build/bench"))
    parser.add_argument("--python", type=Path, help="Runs all of it  [default: the quickest here]")
    given = parser.parse_args()
    given.work_dir.mkdir(parents=True, exist_ok=True)
    try:
        prefer("bench.hot_spots", given.python)
        with tempfile.TemporaryDirectory(prefix="hot-spots-", dir=given.work_dir) as name:
            measured, profile = measure(rows[given.row], Path(name), given.seconds)
    except ProcessError as exc:
        print(f"bench.hot_spots: {exc}", file=sys.stderr)
        return 1
    print(
        f"{rows[given.row].title}: {measured['rate_per_s']:,.0f} per s, "
        f"{measured['server_cpu_us']:.1f} us of CPU each; {profile['samples']} samples"
    )
    for lines in table(profile, measured, given.lines):
        print(f"\n{text(lines)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
