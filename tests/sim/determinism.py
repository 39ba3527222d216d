"""The one place that makes trio's scheduling a function of a seed.

The names are trio's private ones (its own plug-in for hypothesis uses them); a test checks
that they still do what they are meant to.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import trio
import trio.testing

T = TypeVar("T")

# Several times what any run needs; a task that spins never lets virtual time pass.
STEPS_MAX: Final = 200_000
_COUNTED: Final = 1_000


class Spinning(Exception):
    """Tasks keep running and virtual time stands still."""


class _StepLimit(trio.abc.Instrument):
    """Ends a run in which something spins, which would otherwise hang the test."""

    def __init__(self, steps_max: int) -> None:
        self.scope = trio.CancelScope()
        self._steps_max = steps_max
        self.steps = 0
        self.last: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1
        if self.steps > self._steps_max - _COUNTED:
            self.last[task.name] += 1
            if self.steps == self._steps_max:
                self.scope.cancel()


def run_deterministically(
    seed: int,
    main: Callable[[trio.testing.MockClock], Awaitable[T]],
    *,
    steps_max: int = STEPS_MAX,
) -> T:
    """Run *main* under virtual time; everything that trio decides follows from *seed*.

    Raises:
        Spinning: It ran too many steps.
    """
    run: Any = trio._core._run
    clock = trio.testing.MockClock(autojump_threshold=0)
    limit = _StepLimit(steps_max)

    async def limited() -> T:
        with limit.scope:
            return await main(clock)
        raise Spinning(f"{steps_max} steps; in the last of them ran {limit.last}")

    was_allowed, state = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r.getstate()
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r.seed(seed)
    try:
        return trio.run(limited, clock=clock, instruments=[limit])
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = was_allowed
        run._r.setstate(state)
