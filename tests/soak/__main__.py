"""``python -m tests.soak``: run, and say what came of it; status 1 if a promise was broken."""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

import trio

from tests.soak.run import soak


def main() -> None:
    """Run it as a command."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = partial(soak, Path(folder), seconds=arguments.minutes * 60, seed=arguments.seed)
        report = trio.run(run)
    for line in report.lines():
        sys.stdout.write(line + "\n")
    sys.exit(1 if report.violations else 0)


if __name__ == "__main__":
    main()
