"""Plant each bug, or those that are named; tell which are noticed: `python -m tests.planted`."""

import argparse
import sys

from tests.planted.bugs import BUGS
from tests.planted.runner import catches, table


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted", description=__doc__)
    parser.add_argument("bugs", nargs="*", metavar="bug", help="only these")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--table", action="store_true", help="print the table of the docs instead")
    options = parser.parse_args()
    if options.table:
        print(table(), end="")  # noqa: T201 - the result
        return
    missed = 0
    for name, is_caught in catches(options.bugs or list(BUGS), options.processes):
        missed += not is_caught
        print(f"{'caught' if is_caught else 'MISSED'} {name}", flush=True)  # noqa: T201 - the result
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
