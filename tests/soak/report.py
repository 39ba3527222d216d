"""What came of a run, and the command that makes one."""

import argparse
import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from tests.sim.history import History
from tests.sim.registers import Violation


@dataclass(slots=True)
class Report(ABC):
    """What came of a run, of whichever kind.

    Attributes:
        faults: How often each came.
        events: How often each was logged.
        lives: How often a process of the coordinator was started.
    """

    seed: int
    seconds: float
    faults: Counter[str] = field(default_factory=Counter)
    events: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    requests: int = 0
    answered: int = 0
    commits: int = 0
    acknowledged: int = 0
    claims: int = 0
    violations: list[Violation] = field(default_factory=list)

    def count(self, history: History) -> None:
        """Add the numbers of what was said."""
        attempts = history.attempts
        self.requests += len(attempts)
        self.claims += len(history.claims)
        self.answered += sum(attempt.response is not None for attempt in attempts)
        self.commits += len(history.commits)
        self.acknowledged += history.acknowledged

    @abstractmethod
    def lines(self) -> Iterator[str]:
        """Say it in words."""

    def verdict(self) -> Iterator[str]:
        """Say whether promises were broken."""
        yield f"{len(self.violations)} violations"
        yield from (f"violation: {one.invariant}: {one.text}" for one in self.violations)


def listed(counts: Counter[str]) -> str:
    """Return how often each came, in one line."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def command(module: str, soak: Callable[..., Awaitable[Report]], *, minutes: float) -> None:
    """Run *soak* as the command of *module*, for so many *minutes* unless told otherwise."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = partial(soak, Path(folder), seconds=arguments.minutes * 60, seed=arguments.seed)
        report = trio.run(run)
    for line in report.lines():
        sys.stdout.write(line + "\n")
    sys.exit(1 if report.violations else 0)
