"""The command of a benchmark: options, repetitions, results; what it measures is the caller's."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import click

from bench.interpreter import prefer
from bench.measures import Samples
from bench.processes import ProcessError, cores_of_this_machine
from bench.report import SMOKE_NOTE, Run, text


class Bench(Protocol):
    """One run; collects samples by row."""

    @property
    def samples(self) -> Samples:
        """What was measured so far."""
        ...

    @property
    def about(self) -> Mapping[str, str]:
        """What was found out about the environment."""
        ...

    def repetition(self, number: int) -> None:
        """Measure all rows once. Raises ProcessError."""


class Choice(NamedTuple):
    """What is asked for.

    Attributes:
        quick: One small repetition.
        pinned: Server and load have a core each.
        only: The parts to measure.
        peers: The peers to measure along, if they are installed.
    """

    quick: bool
    pinned: bool
    only: frozenset[str]
    peers: frozenset[str]


class Benchmark(NamedTuple):
    """What tells one benchmark from another.

    Attributes:
        module: Run with ``python -m``.
        name: Of the result files, and of those of a smoke run; likewise the repetitions.
        make: Makes a bench of (folder for its data, what is asked for).
        settings: What a run is made with, besides repetitions and cores, of (quick).
        tables: What the terminal shows, from a finished run.
        parts: What can be measured without the rest.
        peers: What can be measured along.
    """

    module: str
    help: str
    name: str
    quick_name: str
    repetitions: int
    make: Callable[[Path, Choice], AbstractContextManager[Bench]]
    settings: Callable[[bool], Mapping[str, str | float]]
    document: Callable[[Run], dict[str, Any]]
    markdown: Callable[[Run], str]
    tables: Callable[[Run], Sequence[Sequence[tuple[str, ...]]]]
    failures: Callable[[Samples], list[str]]
    parts: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()


class _Names(click.ParamType[frozenset[str]]):
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
    @click.option(
        "--only",
        type=_Names(benchmark.parts),
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
        type=_Names(benchmark.peers),
        help=f"Which of them: of {','.join(benchmark.peers)}  [default: all]",
        hidden=not benchmark.peers,
    )
    @click.option(
        "--python",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        help="Runs servers and load  [default: the quickest of this and the system's]",
    )
    def main(
        quick: bool,
        name: str | None,
        results: Path | None,
        work_dir: Path,
        repetitions: int | None,
        only: frozenset[str] | None,
        with_peers: bool | None,
        peers: frozenset[str] | None,
        python: Path | None,
    ) -> None:
        quick = quick or os.environ.get("QUICK", "") not in {"", "0"}
        # A smoke run's numbers are worth nothing: they don't belong beside the real ones.
        results = results or (work_dir if quick else Path("bench/results"))
        name = name or (benchmark.quick_name if quick else benchmark.name)
        repetitions = repetitions or (1 if quick else benchmark.repetitions)
        work_dir.mkdir(parents=True, exist_ok=True)
        if with_peers is None:
            with_peers = peers is not None or not quick
        wanted = (frozenset(benchmark.peers) if peers is None else peers) if with_peers else ()
        choice = Choice(
            quick,
            cores_of_this_machine().pinned,
            only or frozenset(benchmark.parts),
            frozenset(wanted),
        )
        try:
            about = prefer(benchmark.module, python)
            run = _measure(benchmark, name, work_dir, repetitions, choice, about)
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
    benchmark: Benchmark,
    name: str,
    work_dir: Path,
    repetitions: int,
    choice: Choice,
    python: Mapping[str, str],
) -> Run:
    cores = cores_of_this_machine()
    print("\n".join(f"{title}: {found}" for title, found in python.items()))
    print(f"cores: {cores.note}")
    if is_memory(work_dir):
        print("The work folder is in memory: nothing durable is measured. Choose --work-dir.")
    about = environment(work_dir) | dict(python)
    started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    with tempfile.TemporaryDirectory(prefix=f"{benchmark.name}-", dir=work_dir) as folder:
        with benchmark.make(Path(folder), choice) as bench:
            for number in range(1, repetitions + 1):
                print(f"repetition {number} of {repetitions}", flush=True)
                bench.repetition(number)
        samples, about = bench.samples, about | dict(bench.about)
    settings = {"repetitions": repetitions, "cores": cores.note, **benchmark.settings(choice.quick)}
    return Run(name, choice.quick, started, about, settings, samples, _repeat(benchmark, choice))


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


def _write(benchmark: Benchmark, run: Run, results: Path) -> None:
    results.mkdir(parents=True, exist_ok=True)
    content = json.dumps(benchmark.document(run), indent=1)
    (results / f"{run.name}.json").write_text(content + "\n", encoding="utf-8")
    (results / f"{run.name}.md").write_text(benchmark.markdown(run), encoding="utf-8")


# --- what a result depends on besides the code: no paths, no host names --------------------------

_LIBRARIES: Final = ("trio", "msgpack", "msgspec", "structlog", "click")


def environment(data_dir: Path) -> dict[str, str]:
    """Describe machine, disk, versions and commit, as texts by name."""
    filesystem, device = _filesystem(data_dir)
    found = {
        "CPU": f"{_cpu_model()}, {os.cpu_count()} core(s)",
        "kernel": f"{platform.system()} {platform.release()}",
        "filesystem": filesystem,
        "disk": _disk(data_dir) or device,
        "commit": _commit(),
        "load before": _load_average(),
    }
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = "not installed"
    return found


def is_memory(data_dir: Path) -> bool:
    """Return whether the folder is in memory, where fsync costs nothing and proves nothing."""
    return _filesystem(data_dir)[0] in {"tmpfs", "ramfs"}


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _filesystem(folder: Path) -> tuple[str, str]:
    """Return type and device of the mount that the folder is on."""
    best = ("", "unknown", "unknown")
    try:
        mounts = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        mounts = []
    absolute = folder.resolve()
    for mount in mounts:
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
    try:
        head = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{head} with uncommitted changes" if changed else head


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        capture_output=True,
        check=True,
        text=True,
        cwd=Path(__file__).parent,
    )
    return done.stdout.strip()


def _load_average() -> str:
    try:
        return f"{os.getloadavg()[0]:.2f}"
    except OSError:
        return "unknown"
