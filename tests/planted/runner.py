"""Runs the test that must notice a bug, in a process of its own in which it is planted."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.planted.bugs import BUGS

ROOT: Final = Path(__file__).parents[2]
FAILED: Final = 1  # What pytest returns if tests failed, and nothing else went wrong.
TIMEOUT_S: Final = 600


def is_caught(name: str) -> bool:
    """Return whether the test that must notice the bug fails with it.

    Raises:
        RuntimeError: It did not run.
    """
    bug = BUGS[name]
    options = ("-q", "-x", "-p", "no:cacheprovider", "-p", "tests.planted.plugin")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"{bug.file}::{bug.test}"],
        cwd=ROOT,
        env={**os.environ, "PLANTED_BUG": name},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    if done.returncode not in {0, FAILED}:
        raise RuntimeError(f"{name}: {done.stdout}{done.stderr}")
    return done.returncode == FAILED


def catches(names: list[str], processes: int) -> Iterator[tuple[str, bool]]:
    """Return of each bug whether it is caught."""
    with ThreadPoolExecutor(processes) as pool:
        yield from zip(names, pool.map(is_caught, names), strict=True)


def table() -> str:
    """Return the bugs and the test that notices each, as docs/reliability.md has them."""
    lines = ["| planted bug | noticed by |", "|---|---|"]
    lines += [f"| {bug.what} | `{bug.test}`, {bug.file} |" for bug in BUGS.values()]
    return "\n".join(lines) + "\n"
