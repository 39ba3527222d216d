"""CPU per request of two checkouts in one run: ``python -m bench.compare OLD [NEW]``.

In each round a daemon of either checkout is started anew, and every row is measured on the one,
on the other, on the other once more and on the one again; who comes first changes from round to
round. So both see the same weather, and the ratio of a round compares what stood side by side. At
last each round starts a daemon of either on a log of many live offsets, and takes the time until
it is ready. The load comes from this checkout: the protocol on the wire is the same.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from bench.fill import FillPlan, is_there
from bench.interpreter import prefer
from bench.measures import median
from bench.processes import (
    LOAD_CORE,
    SERVER_CORE,
    ProcessError,
    Server,
    cores_of_this_machine,
    cpu_ns,
    daemon,
    events_of,
    output_of,
    run_json,
)
from bench.report import text
from bench.rows import LOAD, ROWS, Row, Target
from bench.run import Size, Times, load_row

OURS: Final = {row.name: row for row in ROWS if row.target is Target.DAEMON and not row.open_share}
DEFAULT: Final = (
    *("commit_1", "commit_64", "commit_256", "commit_8x64", "commit_64_p100"),
    *("fetch_64", "fetch_64_p100", "heartbeat_64", LOAD),
)
_FILL_S: Final = 900
# Of the start on many live offsets; the first two count from the start of the process.
_LOAD_FIELDS: Final = {
    "start and load, s of CPU": "cpu_s",
    "start and load, s until ready": "ready_s",
    "load alone, s": "load_s",
}


class Amount(NamedTuple):
    """How much is measured."""

    rounds: int
    times: Times
    big_log: Size


FULL: Final = Amount(5, Times(0.15, 0.75, 1.0), Size(10_000, 100))
QUICK: Final = Amount(1, Times(0.05, 0.15, 0.3), Size(100, 100))


class Side(NamedTuple):
    """One of the two checkouts."""

    name: str
    checkout: Path


class Comparison:
    """Collects, by row, a pair of samples a round: the old checkout's and the new one's."""

    def __init__(self, sides: tuple[Side, Side], folder: Path, amount: Amount) -> None:
        pinned = cores_of_this_machine().pinned
        self._server_core = SERVER_CORE if pinned else None
        self._load_core = LOAD_CORE if pinned else None
        self._sides = sides
        self._folder = folder
        self._amount = amount
        self.pairs: dict[str, list[dict[str, float]]] = {}
        self.wrong = 0

    def fill(self) -> None:
        """Make a log of many live offsets for either side, with its own daemon."""
        for side in self._sides:
            with self._daemon(side, f"large-{side.name}") as server:
                plan = FillPlan(server.host, server.port, "coordinator", *self._amount.big_log)
                module = ["bench.fill", json.dumps(asdict(plan))]
                run_json(module, core=self._load_core, timeout_s=_FILL_S)

    def round(self, number: int, rows: Sequence[Row], *, with_load: bool) -> None:
        """Measure each row on both sides, one right after the other."""
        order = self._sides if number % 2 else self._sides[::-1]
        if rows:
            with ExitStack() as stack:
                servers = {
                    side: stack.enter_context(self._daemon(side, f"{number}-{side.name}"))
                    for side in self._sides
                }
                for row in rows:
                    found: dict[Side, list[dict[str, Any]]] = {side: [] for side in order}
                    for turn, side in enumerate((*order, *order[::-1])):
                        run = f"{number}-{turn}-{row.name}"
                        found[side].append(self._row(row, servers[side], run))
                    means = {side: _mean(samples) for side, samples in found.items()}
                    self._keep(f"{row.title}, us", means, "server_cpu_us")
                    if row.connections == 1:
                        self._keep(f"{row.title}, p50 us", means, "p50_us")
                    self.wrong += sum(_wrong(sample) for two in found.values() for sample in two)
            for side in self._sides:
                shutil.rmtree(self._folder / f"{number}-{side.name}")
        if with_load:
            loads = {side: self._load(side) for side in order}
            for title, field in _LOAD_FIELDS.items():
                self._keep(title, loads, field)

    def _keep(self, title: str, found: dict[Side, dict[str, Any]], field: str) -> None:
        pair = {side.name: float(sample[field]) for side, sample in found.items()}
        self.pairs.setdefault(title, []).append(pair)

    def _row(self, row: Row, server: Server, run: str) -> dict[str, Any]:
        return load_row(
            row,
            server,
            core=self._load_core,
            run=run,
            times=self._amount.times,
        )

    def _load(self, side: Side) -> dict[str, float]:
        name = f"large-{side.name}"
        began_s = time.monotonic()
        with self._daemon(side, name) as server:
            ready_s, cpu_s = time.monotonic() - began_s, cpu_ns(server.pid) / 1e9
            plan = FillPlan(server.host, server.port, "coordinator", *self._amount.big_log)
            if not is_there(plan):
                raise ProcessError(f"the {side.name} daemon doesn't hold what was stored")
            load_ms = events_of(output_of(self._folder / name))["ready"]["load_ms"]
        return {"ready_s": ready_s, "cpu_s": cpu_s, "load_s": load_ms / 1000}

    def _daemon(self, side: Side, name: str) -> AbstractContextManager[Server]:
        folder, core = self._folder / name, self._server_core
        return daemon(folder, core, "log.cleaner.enable=false", checkout=side.checkout)


def _mean(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return what a request cost over all of the samples, and their mean median."""
    requests = sum(sample["requests"] for sample in samples)
    used_us = sum(sample["requests"] * sample["server_cpu_us"] for sample in samples)
    p50_us = sum(sample["p50_us"] for sample in samples) / len(samples)
    return {"server_cpu_us": used_us / requests, "p50_us": p50_us}


def _wrong(sample: dict[str, Any]) -> int:
    return int(sum(sample[name] for name in ("wrong", "unanswered", "differences")))


def table(pairs: dict[str, list[dict[str, float]]]) -> list[tuple[str, ...]]:
    """Return a line a row: lowest, median, highest of either side, and of the rounds' ratios."""
    lines: list[tuple[str, ...]] = [
        ("", "old min", "median", "max", "new min", "median", "max", "new/old", "min", "max")
    ]
    for title, rounds in pairs.items():
        digits = 1 if title.endswith("us") else 2
        cells = [title]
        for side in ("old", "new"):
            cells += _three([pair[side] for pair in rounds], digits, median_at=1)
        cells += _three([pair["new"] / pair["old"] for pair in rounds], 3, median_at=0)
        lines.append(tuple(cells))
    return lines


def _three(values: Sequence[float], digits: int, *, median_at: int) -> list[str]:
    shown = [min(values), max(values)]
    shown.insert(median_at, median(values))
    return [f"{value:.{digits}f}" for value in shown]


@click.command()
@click.argument("old", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument(
    "new",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(__file__).parent.parent,
)
@click.option("--quick", is_flag=True, help="One small round: a smoke test.")
@click.option("--rounds", type=click.IntRange(1), help=f"How many  [default: {FULL.rounds}]")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    help=f"Of each row, twice in a round  [default: {FULL.times.duration_s:g}]",
)
@click.option("--only", help=f"Of {','.join((*OURS, LOAD))}  [default: {','.join(DEFAULT)}]")
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/bench"),
    show_default=True,
    help="On the disk to be measured; data folders come and go in it.",
)
@click.option(
    "--python",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Runs servers and load  [default: the quickest of this and the system's]",
)
def main(
    old: Path,
    new: Path,
    *,
    quick: bool,
    rounds: int | None,
    seconds: float | None,
    only: str | None,
    work_dir: Path,
    python: Path | None,
) -> None:
    """Compare the CPU time that a request costs the daemon of checkout OLD and that of NEW.

    Exit status 1: something failed, or an answer was wrong.
    """
    names = DEFAULT if only is None else tuple(only.split(","))
    if unknown := set(names).difference(OURS, {LOAD}):
        raise click.UsageError(f"no such row: {', '.join(sorted(unknown))}")
    amount = QUICK if quick else FULL
    times = amount.times._replace(duration_s=seconds or amount.times.duration_s)
    amount = amount._replace(rounds=rounds or amount.rounds, times=times)
    work_dir.mkdir(parents=True, exist_ok=True)
    try:
        about = prefer("bench.compare", python)
    except ProcessError as exc:
        raise click.UsageError(str(exc)) from exc
    print("\n".join(f"{title}: {found}" for title, found in about.items()))
    print(f"cores: {cores_of_this_machine().note}")
    with tempfile.TemporaryDirectory(prefix="compare-", dir=work_dir.resolve()) as folder:
        sides = (Side("old", old.resolve()), Side("new", new.resolve()))
        comparison = Comparison(sides, Path(folder), amount)
        try:
            if LOAD in names:
                comparison.fill()
            for number in range(1, amount.rounds + 1):
                print(f"round {number} of {amount.rounds}", flush=True)
                rows = [OURS[name] for name in names if name in OURS]
                comparison.round(number, rows, with_load=LOAD in names)
        except ProcessError as exc:
            print(f"bench.compare: {exc}", file=sys.stderr)
            sys.exit(1)
    print(f"\n{text(table(comparison.pairs))}")
    if comparison.wrong:
        print(f"FAILED: {comparison.wrong} answers were wrong", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
