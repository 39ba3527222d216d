"""The command of a benchmark: options, repetitions, results; what it measures is the caller's."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import click

from bench.environment import environment, is_memory
from bench.processes import ProcessError, cores_of_this_machine
from bench.report import SMOKE_NOTE, Run, Samples, text


class Bench(Protocol):
    """One run; collects samples by row."""

    @property
    def samples(self) -> Samples:
        """What was measured so far."""
        ...

    def repetition(self, number: int) -> None:
        """Measure all rows once. Raises ProcessError."""


class Benchmark(NamedTuple):
    """What tells one benchmark from another.

    Attributes:
        module: Run with ``python -m``.
        name: Of the result files, and of those of a smoke run; likewise the repetitions.
        make: Makes a bench of (folder for its data, quick, pinned to cores).
        settings: What a run is made with, besides repetitions and cores, of (quick).
        tables: What the terminal shows, from a finished run.
    """

    module: str
    help: str
    name: str
    quick_name: str
    repetitions: int
    make: Callable[[Path, bool, bool], Bench]
    settings: Callable[[bool], Mapping[str, str | float]]
    document: Callable[[Run], dict[str, Any]]
    markdown: Callable[[Run], str]
    tables: Callable[[Run], Sequence[Sequence[tuple[str, ...]]]]
    failures: Callable[[Samples], list[str]]


def command(benchmark: Benchmark) -> click.Command:
    """Return the command that runs *benchmark*, and writes and shows its results."""

    @click.command(help=benchmark.help)
    @click.option(
        "--quick", is_flag=True, help="One small repetition (also QUICK=1): a smoke test."
    )
    @click.option(
        "--name",
        help=f"Name of the result files  [default: {benchmark.name}, or {benchmark.quick_name}]",
    )
    @click.option(
        "--results",
        type=click.Path(path_type=Path, file_okay=False),
        help="Where they go  [default: bench/results, or build/bench for a quick run]",
    )
    @click.option(
        "--work-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=Path("build/bench"),
        show_default=True,
        help="On the disk to be measured; data folders come and go in it.",
    )
    @click.option(
        "--repetitions",
        type=click.IntRange(1),
        help=f"How many  [default: {benchmark.repetitions}, quick 1]",
    )
    def main(
        quick: bool,
        name: str | None,
        results: Path | None,
        work_dir: Path,
        repetitions: int | None,
    ) -> None:
        quick = quick or os.environ.get("QUICK", "") not in {"", "0"}
        # A smoke run's numbers are worth nothing: they don't belong beside the real ones.
        results = results or (work_dir if quick else Path("bench/results"))
        name = name or (benchmark.quick_name if quick else benchmark.name)
        repetitions = repetitions or (1 if quick else benchmark.repetitions)
        work_dir.mkdir(parents=True, exist_ok=True)
        try:
            run = _measure(benchmark, name, work_dir, repetitions, quick=quick)
        except ProcessError as exc:
            print(f"bench: {exc}", file=sys.stderr)
            sys.exit(1)
        _write(benchmark, run, results)
        for lines in benchmark.tables(run):
            print(f"\n{text(lines)}")
        if quick:
            print(f"\n{SMOKE_NOTE}")
        failed = benchmark.failures(run.samples)
        for failure in failed:
            print(f"FAILED: {failure}", file=sys.stderr)
        sys.exit(1 if failed else 0)

    return main


def _measure(
    benchmark: Benchmark, name: str, work_dir: Path, repetitions: int, *, quick: bool
) -> Run:
    cores = cores_of_this_machine()
    print(f"cores: {cores.note}")
    if is_memory(work_dir):
        print("The work folder is in memory: nothing durable is measured. Choose --work-dir.")
    about = environment(work_dir)
    started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    with tempfile.TemporaryDirectory(prefix=f"{benchmark.name}-", dir=work_dir) as folder:
        bench = benchmark.make(Path(folder), quick, cores.pinned)
        for number in range(1, repetitions + 1):
            print(f"repetition {number} of {repetitions}", flush=True)
            bench.repetition(number)
    settings = {"repetitions": repetitions, "cores": cores.note, **benchmark.settings(quick)}
    repeat = f"python -m {benchmark.module}" + (" --quick" if quick else "")
    return Run(name, quick, started, about, settings, bench.samples, repeat)


def _write(benchmark: Benchmark, run: Run, results: Path) -> None:
    results.mkdir(parents=True, exist_ok=True)
    content = json.dumps(benchmark.document(run), indent=1)
    (results / f"{run.name}.json").write_text(content + "\n", encoding="utf-8")
    (results / f"{run.name}.md").write_text(benchmark.markdown(run), encoding="utf-8")
