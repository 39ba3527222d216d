"""The command of a benchmark: options, repetitions, results; what it measures is the caller's."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import click

from bench.interpreter import prefer
from bench.measures import Aim, Medians, Samples, judge
from bench.processes import Cores, ProcessError, cores_of_this_machine
from bench.report import SMOKE_NOTE, Run, Table, aims_table, document, failures, page, text


class Choice(NamedTuple):
    """What is asked for.

    Attributes:
        quick: One small repetition.
        only: The parts to measure.
        peers: The peers to measure along, if they are installed.
    """

    quick: bool
    cores: Cores
    only: frozenset[str]
    peers: frozenset[str]


TURNS: Final = 8
# Of what `bench.load` measures.
_LOADED: Final = ("server_cpu_us", "rate_per_s", "wrong", "unanswered", "differences")


class Bench(ABC):
    """One run; collects samples by row.

    Attributes:
        about: What was found out about the environment.
        stack: Closed at the end of the run.
    """

    def __init__(self, folder: Path, choice: Choice) -> None:
        self.folder = folder
        self.choice = choice
        self.samples: dict[str, list[Mapping[str, float | None]]] = {}
        self.about: dict[str, str] = {}
        self.stack = ExitStack()

    @abstractmethod
    def repetition(self, number: int) -> None:
        """Measure all rows once. Raises ProcessError."""

    def keep(self, name: str, sample: Mapping[str, float | None]) -> None:
        """Add a repetition's sample of a row."""
        self.samples.setdefault(name, []).append(sample)

    def keep_by_turns(
        self, loads: Mapping[str, Callable[[], Mapping[str, float]]], turns: int = TURNS
    ) -> None:
        """Add the medians of what each load by name comes to.

        A machine's speed changes by more than what is looked for here, a few per cent: many short
        turns meet the same changes.
        """
        samples: dict[str, list[Mapping[str, float]]] = {name: [] for name in loads}
        for turn in range(turns):
            for name in list(loads)[:: 1 if turn % 2 else -1]:
                samples[name].append(loads[name]())
        for name, found in samples.items():
            self.keep(name, {field: median([one[field] for one in found]) for field in _LOADED})

    def close(self) -> None:
        """Stop what stayed."""
        self.stack.close()


class Benchmark(NamedTuple):
    """What tells one benchmark from another.

    Attributes:
        module: Run with ``python -m``.
        name: Of the result files.
        repetitions: How many, if nothing else is asked for and it is no smoke run.
        make: Makes a bench of (folder for its data, what is asked for).
        settings: What a run is made with, besides repetitions and cores, of (quick).
        titles: Of all rows, by name.
        tables: What is shown besides the aims, by heading.
        parts: What can be measured without the rest.
        peers: What can be measured along.
    """

    module: str
    help: str
    name: str
    repetitions: int
    make: Callable[[Path, Choice], Bench]
    settings: Callable[[bool], Mapping[str, str | float]]
    titles: Mapping[str, str]
    aims: Sequence[Aim]
    tables: Callable[[Samples], Mapping[str, Table]]
    parts: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()


class Names(click.ParamType[frozenset[str]]):
    """Names with commas between them, each one of the known."""

    name = "names"

    def __init__(self, known: Sequence[str]) -> None:
        self._known = known

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[str]:
        """Return the names."""
        names = frozenset(value.split(",")) if isinstance(value, str) else frozenset(value)
        if unknown := names.difference(self._known):
            self.fail(
                f"{', '.join(sorted(unknown))}: not one of {', '.join(self._known)}", param, ctx
            )
        return names


_FOLDER: Final = click.Path(path_type=Path, file_okay=False)
work_dir_option: Final = click.option(
    "--work-dir",
    type=_FOLDER,
    default=Path("build/bench"),
    show_default=True,
    help="On the disk to be measured; data folders come and go in it.",
)
python_option: Final = click.option(
    "--python",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Runs servers and load  [default: the quickest of this and the system's]",
)


_EXIT_STATUS: Final = (
    "Exit status 1: something failed, or an answer was wrong. A missed aim is no failure."
)


def command(benchmark: Benchmark) -> click.Command:
    """Return the command that runs *benchmark*, and writes and shows its results."""

    @click.command(help=f"{benchmark.help}\n\n{_EXIT_STATUS}")
    @click.option(
        "--quick", is_flag=True, help="One small repetition (also QUICK=1): a smoke test."
    )
    @click.option("--name", help=f"Of the result files  [default: {benchmark.name}(-quick)]")
    @click.option(
        "--results",
        type=_FOLDER,
        help="Where they go  [default: bench/results, or build/bench for a quick run]",
    )
    @work_dir_option
    @click.option(
        "--repetitions",
        type=click.IntRange(1),
        help=f"How many  [default: {benchmark.repetitions}, quick 1]",
    )
    @click.option(
        "--only",
        type=Names(benchmark.parts),
        default=benchmark.parts,
        help=f"Of {','.join(benchmark.parts)}  [default: all]",
        hidden=not benchmark.parts,
    )
    @click.option(
        "--peers/--no-peers",
        "with_peers",
        default=None,
        help="Measure peers along, if installed  [default: yes, but not in a quick run]",
        hidden=not benchmark.peers,
    )
    @click.option(
        "--peer",
        "peers",
        type=Names(benchmark.peers),
        help=f"Which of them: of {','.join(benchmark.peers)}  [default: all]",
        hidden=not benchmark.peers,
    )
    @python_option
    def main(
        quick: bool,
        name: str | None,
        results: Path | None,
        work_dir: Path,
        repetitions: int | None,
        only: frozenset[str],
        with_peers: bool | None,
        peers: frozenset[str] | None,
        python: Path | None,
    ) -> None:
        quick = quick or os.environ.get("QUICK", "") not in {"", "0"}
        # A smoke run's numbers are worth nothing: they don't belong beside the real ones.
        results = results or (work_dir if quick else Path("bench/results"))
        name = name or f"{benchmark.name}{'-quick' if quick else ''}"
        if with_peers is None:
            with_peers = peers is not None or not quick
        peers = (peers or frozenset(benchmark.peers)) if with_peers else frozenset()
        choice = Choice(quick, cores_of_this_machine(), only, peers)
        work_dir.mkdir(parents=True, exist_ok=True)
        try:
            about = prefer(benchmark.module, python)
            run = _measure(
                *(benchmark, name, work_dir, choice, about),
                repetitions or (1 if quick else benchmark.repetitions),
            )
        except ProcessError as exc:
            sys.exit(f"{benchmark.module}: {exc}")
        results.mkdir(parents=True, exist_ok=True)
        content = json.dumps(document(run), indent=1)
        (results / f"{run.name}.json").write_text(content + "\n", encoding="utf-8")
        (results / f"{run.name}.md").write_text(page(run), encoding="utf-8")
        for table in (*run.tables.values(), aims_table(run.aims)):
            print(f"\n{text(table)}")
        if quick:
            print(f"\n{SMOKE_NOTE}")
        if failed := failures(run.samples, run.titles):
            sys.exit("\n".join(f"FAILED: {failure}" for failure in failed))

    return main


def _measure(
    benchmark: Benchmark,
    name: str,
    work_dir: Path,
    choice: Choice,
    python: Mapping[str, str],
    repetitions: int,
) -> Run:
    print("\n".join(f"{title}: {found}" for title, found in python.items()))
    print(f"cores: {choice.cores.note}")
    about = environment(work_dir)
    if about["filesystem"] in {"tmpfs", "ramfs"}:
        print("The work folder is in memory: nothing durable is measured. Choose --work-dir.")
    started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    with (
        # Spark's own processes have other working folders.
        tempfile.TemporaryDirectory(prefix=f"{benchmark.name}-", dir=work_dir.resolve()) as folder,
        closing(benchmark.make(Path(folder), choice)) as bench,
    ):
        for number in range(1, repetitions + 1):
            print(f"repetition {number} of {repetitions}", flush=True)
            bench.repetition(number)
    return Run(
        name,
        choice.quick,
        started,
        repeat=_repeat(benchmark, choice),
        environment={**about, **python, **bench.about},
        settings={
            "repetitions": repetitions,
            "cores": choice.cores.note,
            **benchmark.settings(choice.quick),
        },
        samples=bench.samples,
        titles=benchmark.titles,
        # A part that wasn't measured has no lines.
        tables={h: table for h, table in benchmark.tables(bench.samples).items() if table[1:]},
        aims=judge(Medians(bench.samples), benchmark.aims),
    )


def _repeat(benchmark: Benchmark, choice: Choice) -> str:
    words = ["python -m", benchmark.module]
    if choice.quick:
        words.append("--quick")
    if choice.only != frozenset(benchmark.parts):
        words.append(f"--only {','.join(sorted(choice.only))}")
    if not choice.peers and benchmark.peers and not choice.quick:
        words.append("--no-peers")
    elif choice.peers and (choice.quick or choice.peers != frozenset(benchmark.peers)):
        words.append(f"--peer {','.join(sorted(choice.peers))}")
    return " ".join(words)


# --- what a result depends on besides the code: no paths, no host names --------------------------

_LIBRARIES: Final = ("trio", "msgpack", "msgspec", "structlog", "click")


def environment(data_dir: Path) -> dict[str, str]:
    """Describe machine, disk, versions and commit, as texts by name."""
    filesystem, device = _filesystem(data_dir)
    return {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} core(s)",
        "kernel": f"{platform.system()} {platform.release()}",
        "filesystem": filesystem,
        "disk": _disk(data_dir) or device,
        "commit": _commit(),
        "load before": f"{os.getloadavg()[0]:.2f}",
        **{library: version(library) for library in _LIBRARIES},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(folder: Path) -> tuple[str, str]:
    """Return type and device of the mount that the folder is on."""
    best = ("", "unknown", "unknown")
    absolute = folder.resolve()
    for mount in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        device, point, kind = mount.split()[:3]
        if len(point) >= len(best[0]) and absolute.is_relative_to(point):
            best = (point, kind, device)
    # The device's last name only, such as vda; a network share's server is nobody's business.
    return best[1], best[2].rpartition("/")[2]


def _disk(folder: Path) -> str:
    """Return what the kernel says about the disk, "" if nothing."""
    try:
        device = folder.stat().st_dev
        block = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
        if not (block / "queue").is_dir():  # A partition: its disk is the folder above.
            block = block.parent
        rotational = (block / "queue/rotational").read_text(encoding="ascii").strip()
        cache = (block / "queue/write_cache").read_text(encoding="ascii").strip()
    except OSError:
        return ""
    kind = "rotating" if rotational == "1" else "not rotating"
    return f"{block.name}, {kind}, {cache} cache"


def _commit() -> str:
    """Return the commit of this checkout, and whether anything else is in it."""
    mark = "--dirty= with uncommitted changes"
    done = subprocess.run(
        ["git", "describe", "--always", "--abbrev=12", "--exclude=*", mark],
        capture_output=True,
        check=False,
        text=True,
        cwd=Path(__file__).parent,
    )
    return done.stdout.strip() or "unknown"
