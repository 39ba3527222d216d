"""CPU per request of two checkouts in one run: ``python -m bench.compare OLD [NEW]``.

In each round a daemon of either checkout is started anew, and every row is measured on the one,
on the other, on the other once more and on the one again; who comes first changes from round to
round. So both see the same weather, and the ratio of a round compares what stood side by side. At
last each round starts a daemon of either on a log of many live offsets, and takes the time until
it is ready. The load comes from this checkout: the protocol on the wire is the same.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import click

from bench.command import Names, python_option, work_dir_option
from bench.interpreter import prefer
from bench.processes import ProcessError, Server, cores_of_this_machine, daemon, run_json
from bench.report import Table, number, text
from bench.rows import LOAD, OURS, Row
from bench.run import BY_COMMAND_ONLY, Size, Times, fill_plan, load_row, start_on

DEFAULT: Final = (
    *("commit_1", "commit_64", "commit_256", "commit_8x64", "commit_64_p100"),
    *("fetch_64", "fetch_64_p100", "heartbeat_64", LOAD),
)
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


class Comparison:
    """Collects, by row, a pair of samples a round: the old checkout's and the new one's."""

    def __init__(self, sides: Mapping[str, Path], folder: Path, amount: Amount) -> None:
        self._cores = cores_of_this_machine()
        self._sides = sides
        self._folder = folder
        self._amount = amount
        self.pairs: dict[str, list[dict[str, float]]] = {}
        self.wrong = 0

    def fill(self) -> None:
        """Make a log of many live offsets for either side, with its own daemon."""
        for side in self._sides:
            with self._daemon(side, self._large(side), BY_COMMAND_ONLY) as server:
                plan = fill_plan(server, self._amount.big_log)
                run_json("bench.fill", plan, core=self._cores.load)

    def round(self, number: int, rows: Sequence[Row], *, with_load: bool) -> None:
        """Measure each row on both sides, one right after the other."""
        order = list(self._sides)[:: 1 if number % 2 else -1]
        folders = {side: self._folder / f"{number}-{side}" for side in order}
        if rows:
            with ExitStack() as stack:
                servers = {
                    side: stack.enter_context(self._daemon(side, folder))
                    for side, folder in folders.items()
                }
                for row in rows:
                    self._row(row, [(side, servers[side]) for side in (*order, *order[::-1])])
            for folder in folders.values():
                shutil.rmtree(folder)
        if with_load:
            core = self._cores.server
            loads = {
                side: start_on(self._large(side), self._amount.big_log, core, self._sides[side])
                for side in order
            }
            for title, field in _LOAD_FIELDS.items():
                self._keep(title, loads, field)

    def _row(self, row: Row, turns: Sequence[tuple[str, Server]]) -> None:
        found: dict[str, list[dict[str, Any]]] = {side: [] for side, _ in turns}
        for side, server in turns:
            run, times = f"{row.name}-{time.monotonic_ns()}", self._amount.times
            sample = load_row(row, server, core=self._cores.load, run=run, times=times)
            found[side].append(sample)
            self.wrong += sum(sample[name] for name in ("wrong", "unanswered", "differences"))
        means = {side: _mean(samples) for side, samples in found.items()}
        self._keep(f"{row.title}, us", means, "server_cpu_us")
        if row.connections == 1:
            self._keep(f"{row.title}, p50 us", means, "p50_us")

    def _keep(self, title: str, found: Mapping[str, Mapping[str, float]], field: str) -> None:
        pair = {side: sample[field] for side, sample in found.items()}
        self.pairs.setdefault(title, []).append(pair)

    def _large(self, side: str) -> Path:
        return self._folder / f"large-{side}"

    def _daemon(self, side: str, folder: Path, *settings: str) -> AbstractContextManager[Server]:
        return daemon(folder, self._cores.server, *settings, checkout=self._sides[side])


def _mean(samples: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Return what a request cost over all of the samples, and their mean median."""
    requests = sum(sample["requests"] for sample in samples)
    used_us = sum(sample["requests"] * sample["server_cpu_us"] for sample in samples)
    p50_us = sum(sample["p50_us"] for sample in samples) / len(samples)
    return {"server_cpu_us": used_us / requests, "p50_us": p50_us}


def table(pairs: dict[str, list[dict[str, float]]]) -> Table:
    """Return a line a row: lowest, median, highest of either side, and of the rounds' ratios."""
    lines: Table = [
        ("", "old min", "median", "max", "new min", "median", "max", "new/old", "min", "max")
    ]
    for title, rounds in pairs.items():
        digits = 1 if title.endswith("us") else 2
        cells = []
        for side in ("old", "new"):
            values = [pair[side] for pair in rounds]
            cells += [number(of(values), digits) for of in (min, median, max)]
        ratios = [pair["new"] / pair["old"] for pair in rounds]
        cells += [number(of(ratios), 3) for of in (median, min, max)]
        lines.append((title, *cells))
    return lines


_CHECKOUT: Final = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command()
@click.argument("old", type=_CHECKOUT)
@click.argument("new", type=_CHECKOUT, default=Path(__file__).parent.parent)
@click.option("--quick", is_flag=True, help="One small round: a smoke test.")
@click.option("--rounds", type=click.IntRange(1), help=f"How many  [default: {FULL.rounds}]")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    help=f"Of each row, twice in a round  [default: {FULL.times.duration_s:g}]",
)
@click.option(
    "--only",
    type=Names((*OURS, LOAD)),
    default=DEFAULT,
    help=f"Of {','.join((*OURS, LOAD))}  [default: {','.join(DEFAULT)}]",
)
@work_dir_option
@python_option
def main(
    old: Path,
    new: Path,
    *,
    quick: bool,
    rounds: int | None,
    seconds: float | None,
    only: frozenset[str],
    work_dir: Path,
    python: Path | None,
) -> None:
    """Compare the CPU time that a request costs the daemon of checkout OLD and that of NEW.

    Exit status 1: something failed, or an answer was wrong.
    """
    amount = QUICK if quick else FULL
    times = amount.times._replace(duration_s=seconds or amount.times.duration_s)
    amount = amount._replace(rounds=rounds or amount.rounds, times=times)
    rows = [row for name, row in OURS.items() if name in only]
    work_dir.mkdir(parents=True, exist_ok=True)
    try:
        for title, found in prefer("bench.compare", python).items():
            print(f"{title}: {found}")
        print(f"cores: {cores_of_this_machine().note}")
        with tempfile.TemporaryDirectory(prefix="compare-", dir=work_dir.resolve()) as folder:
            sides = {"old": old.resolve(), "new": new.resolve()}
            comparison = Comparison(sides, Path(folder), amount)
            if LOAD in only:
                comparison.fill()
            for turn in range(1, amount.rounds + 1):
                print(f"round {turn} of {amount.rounds}", flush=True)
                comparison.round(turn, rows, with_load=LOAD in only)
    except ProcessError as exc:
        sys.exit(f"bench.compare: {exc}")
    print(f"\n{text(table(comparison.pairs))}")
    if comparison.wrong:
        sys.exit(f"FAILED: {comparison.wrong} answers were wrong")


if __name__ == "__main__":
    main()
