"""Which Python runs a benchmark: the quickest one here that can run this checkout.

    python -m bench.interpreter

prints one line of JSON about the Python that runs it: its ABI, how it was built, and the CPU time
of a fixed piece of work. `prefer` asks this of every candidate and goes on under the quickest.
What a build says of itself can't decide: distributions optimise the executable by profile, and
install the configuration of the shared library, which they don't. So the work decides.
"""

import json
import os
import platform
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from bench.processes import ProcessError

_FOLDERS: Final = ("/usr/bin", "/usr/local/bin")
# Less than this is noise; then the Python that was started stays.
_WORTH_CHANGING: Final = 1.05
_TURNS: Final = 3
_TIMEOUT_S: Final = 60
# Tells the process that goes on what was found out before.
_FOUND: Final = "BENCH_PYTHON_FOUND"


class Python(NamedTuple):
    """An interpreter.

    Attributes:
        abi: The end of the names of the extension modules that it loads.
        build: How it was built, for people; without paths.
        seconds: CPU time of `work`.
    """

    abi: str
    build: str
    seconds: float


def prefer(module: str, wanted: Path | None) -> Mapping[str, str]:
    """Go on as ``python -m module`` under the preferred Python, with this command line.

    The quickest of this one and those in the system's folders, of the same ABI, is preferred.
    Another one than this replaces this process, and finds this checkout and these packages on its
    path; so it needs none of its own.

    Args:
        module: What this process was started as.
        wanted: The Python to take instead.

    Returns:
        What to tell about the Python that runs, by name.

    Raises:
        ProcessError: ``wanted`` can't run this checkout.
    """
    if (found := os.environ.pop(_FOUND, None)) is not None:
        about: dict[str, str] = json.loads(found)
        return about
    this = Path(sys.executable)
    wanted = None if wanted is None else wanted.absolute()
    others = _system_pythons(this) if wanted is None else [wanted]
    pythons = _measured([this, *others])
    if this not in pythons or (wanted is not None and wanted not in pythons):
        raise ProcessError("the Python that was asked for can't run this checkout")
    chosen = wanted or quickest(pythons, this)
    about = _about(pythons[chosen], pythons[this], as_started=chosen == this)
    if chosen != this:
        environment = _environment() | {_FOUND: json.dumps(about)}
        sys.stdout.flush()
        os.execve(chosen, [str(chosen), "-m", module, *sys.argv[1:]], environment)
    return about


def quickest(pythons: Mapping[Path, Python], this: Path) -> Path:
    """Return the quickest; *this* unless another one is clearly quicker."""
    best = min(pythons, key=lambda path: pythons[path].seconds)
    return best if pythons[this].seconds / pythons[best].seconds >= _WORTH_CHANGING else this


def _about(chosen: Python, this: Python, *, as_started: bool) -> dict[str, str]:
    if as_started:
        return {"Python": chosen.build, "calibration": "no quicker Python of this ABI is here"}
    ratio = f"{this.seconds / chosen.seconds:.2f} times as fast in pure Python"
    return {
        "Python": chosen.build,
        "calibration": f"{ratio} as the one it was started with: {this.build}",
    }


def _system_pythons(this: Path) -> list[Path]:
    """Return the other Pythons of this minor version in the system's folders."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = {Path(folder, name).resolve() for folder in _FOLDERS}
    return sorted(path for path in found - {this.resolve()} if path.exists())


def _environment() -> dict[str, str]:
    paths = [
        Path(__file__).parents[1],
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
    ]
    path = os.pathsep.join(dict.fromkeys(map(str, paths)))
    return {**os.environ, "PYTHONPATH": path}


def _measured(paths: list[Path]) -> dict[Path, Python]:
    """Return those that can run this checkout, each with its best time; they take turns."""
    abi = sysconfig.get_config_var("EXT_SUFFIX")
    best: dict[Path, Python] = {}
    for _ in range(_TURNS):
        for path in paths:
            done = subprocess.run(
                [path, "-m", __name__],
                capture_output=True,
                check=False,
                env=_environment(),
                timeout=_TIMEOUT_S,
            )
            if done.returncode == 0 and (python := Python(**json.loads(done.stdout))).abi == abi:
                best[path] = min(best.get(path, python), python, key=lambda one: one.seconds)
    return best


# --- what a Python says of itself -----------------------------------------------------------------


def build() -> str:
    """Return version, compiler and options of this Python, as far as they are on record."""
    variables = sysconfig.get_config_vars()
    configured = str(variables.get("CONFIG_ARGS", ""))
    flags = f"{variables.get('PY_CORE_CFLAGS', '')} {variables.get('PY_CORE_LDFLAGS', '')}"
    levels = [flag for flag in flags.split() if flag.startswith("-O")]
    goto = bool(variables.get("USE_COMPUTED_GOTOS") or variables.get("HAVE_COMPUTED_GOTOS"))
    goto = goto and "--without-computed-gotos" not in configured
    pgo = "--enable-optimizations" in configured or "-fprofile-use" in flags
    lto = "--with-lto" in configured or "-flto" in flags
    parts = [
        f"{platform.python_implementation()} {platform.python_version()}",
        platform.python_compiler(),
        levels[-1] if levels else "optimisation level unknown",
        "computed gotos" if goto else "no computed gotos",
    ]
    if (pgo, lto) != (True, True) and _record_is_of_another_build():
        parts.append("PGO and LTO unknown (its record is the shared library's, and it uses none)")
    else:
        parts += ["PGO" if pgo else "no PGO", "LTO" if lto else "no LTO"]
    return ", ".join(parts)


def _record_is_of_another_build() -> bool:
    """Return whether this executable holds what its configuration puts into a shared library."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return bool(sysconfig.get_config_var("Py_ENABLE_SHARED")) and "/libpython" not in maps


# --- the work -------------------------------------------------------------------------------------


class _Group:
    """A little of what a coordinator does for a commit: look up, compare, keep, hand over."""

    __slots__ = ("_generation", "_offsets", "_waiting")

    def __init__(self) -> None:
        self._offsets: dict[int, tuple[int, int, str]] = {}
        self._generation = 1
        self._waiting: list[tuple[int, int]] = []

    def commit(self, partition: int, offset: int) -> int:
        known = self._offsets.get(partition)
        if known is not None and known[0] > offset:
            return 1
        self._offsets[partition] = (offset, self._generation, "")
        self._waiting.append((partition, offset))
        return 0

    def flush(self) -> int:
        taken = self._waiting
        self._waiting = []
        try:
            return sum([offset & 3 for _, offset in taken])
        finally:
            self._generation += 1


def work(rounds: int) -> int:
    """Do a fixed amount of work for the interpreter alone."""
    groups = {f"group-{number}": _Group() for number in range(64)}
    total = 0
    for offset in range(rounds):
        for group in groups.values():
            for partition in range(4):
                total += group.commit(partition, offset)
            total += group.flush()
    return total


def main() -> None:
    """Describe this Python, if it can run what the benchmarks start."""
    # A Python that can't import the daemon fails here.
    import coordinator.cli.serve  # noqa: F401, PLC0415  # Slow to import, and only wanted here.

    best_s = float("inf")
    for _ in range(12):
        began_s = time.process_time()
        work(100)
        best_s = min(best_s, time.process_time() - began_s)
    abi = str(sysconfig.get_config_var("EXT_SUFFIX"))
    print(json.dumps(Python(abi, build(), best_s)._asdict()))


if __name__ == "__main__":
    main()
