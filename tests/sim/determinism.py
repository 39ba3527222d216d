"""The one place that makes trio's scheduling a function of a seed.

The names are trio's private ones (its own plug-in for hypothesis uses them); a test checks
that they still do what they are meant to.
"""

from collections import Counter, deque
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


class Standstill(deque[trio.lowlevel.Task]):
    """trio's queue of the tasks that are to run; some stand still, as a stopped process does.

    Time goes by meanwhile, and everything that became due is due at once when they go on.
    """

    def __init__(self) -> None:
        """Use `install` instead."""
        super().__init__()
        self._roots: set[trio.lowlevel.Task] = set()
        self._held: list[trio.lowlevel.Task] = []

    @classmethod
    def install(cls) -> "Standstill":
        """Have this run use it from now on."""
        run: Any = trio._core._run
        runner = run.GLOBAL_RUN_CONTEXT.runner
        queue = cls()
        queue.extend(runner.runq)
        runner.runq = queue
        return queue

    def append(self, task: trio.lowlevel.Task) -> None:
        """Have *task* run, now or when it may."""
        if self._roots and self._stands_still(task):
            self._held.append(task)
        else:
            super().append(task)

    def freeze(self, root: trio.lowlevel.Task) -> None:
        """Have *root*, and all tasks below it, stand still."""
        self._roots.add(root)
        runnable = list(self)
        self.clear()
        for task in runnable:
            self.append(task)

    def thaw(self, root: trio.lowlevel.Task) -> None:
        """Have them go on."""
        self._roots.discard(root)
        held, self._held = self._held, []
        for task in held:
            self.append(task)

    def _stands_still(self, task: trio.lowlevel.Task) -> bool:
        at: trio.lowlevel.Task | None = task
        while at is not None:
            if at in self._roots:
                return True
            at = None if at.parent_nursery is None else at.parent_nursery.parent_task
        return False


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
