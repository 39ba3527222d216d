"""Become the daemon, whose clock of the day is off by as much as a file says at that moment.

``python -m tests.soak.clock FILE python -m MODULE ARGUMENT…``. The kernel can shift only clocks
that nobody can set, and those only before a start.
"""

import mmap
import runpy
import sys
import time
from pathlib import Path
from typing import Final

_BYTES: Final = 8


class Shift:
    """By how much the clock is off, as both sides see it.

    Attributes:
        prefix: The command that becomes the one behind it, with that clock.
    """

    def __init__(self, path: Path) -> None:
        self.prefix = (sys.executable, "-m", "tests.soak.clock", str(path))
        if not path.exists():
            path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _BYTES)

    def get_ns(self) -> int:
        """Return it."""
        return int.from_bytes(self._shared[:], sys.byteorder, signed=True)

    def set_ns(self, value: int) -> None:
        """Change it, for a process that runs, too."""
        self._shared[:] = value.to_bytes(_BYTES, sys.byteorder, signed=True)


def main() -> None:
    """Shift the clock and run the module."""
    shift = Shift(Path(sys.argv[1]))
    now_ns = time.time_ns
    time.time_ns = lambda: now_ns() + shift.get_ns()
    sys.argv = sys.argv[4:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
