"""The one place that makes trio's scheduling a function of a seed.

The names are trio's private ones (its own plug-in for hypothesis uses them); a test checks
that they still do what they are meant to.
"""

import math
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


class Tasks(deque[trio.lowlevel.Task]):
    """trio's queue of the tasks that are to run; it ends a run in which something spins.

    Some tasks may stand still, as those of a stopped process do. Time goes by meanwhile, and
    everything that became due is due at once when they go on.
    """

    def __init__(self, steps_max: int) -> None:
        """Use `install` instead."""
        super().__init__()
        self.scope = trio.CancelScope()
        self.last: Counter[str] = Counter()
        self._steps_left = steps_max
        self._roots: set[trio.lowlevel.Task] = set()
        self._held: list[trio.lowlevel.Task] = []

    @classmethod
    def install(cls, steps_max: int) -> "Tasks":
        """Have this run use it from now on, for so many steps."""
        runner = _runner()
        queue = cls(steps_max)
        queue.extend(runner.runq)
        runner.runq = queue
        return queue

    def append(self, task: trio.lowlevel.Task) -> None:
        """Have *task* run, now or when it may."""
        self._steps_left -= 1
        if self._steps_left < _COUNTED:
            self.last[task.name] += 1
            if not self._steps_left:
                self.scope.cancel()
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

    Args:
        seed: What everything follows from.
        main: Gets the clock.
        steps_max: How many steps the tasks may take.

    Raises:
        Spinning: It ran too many steps.
    """
    run: Any = trio._core._run
    clock = _clock()

    async def limited() -> T:
        tasks = Tasks.install(steps_max)
        with tasks.scope:
            return await main(clock)
        raise Spinning(f"{steps_max} steps; in the last of them ran {tasks.last}")

    was_allowed, state = run._ALLOW_DETERMINISTIC_SCHEDULING, run._r.getstate()
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r.seed(seed)
    try:
        return trio.run(limited, clock=clock)
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = was_allowed
        run._r.setstate(state)


def tasks() -> Tasks:
    """Return the queue of this run."""
    queue: Tasks = _runner().runq
    return queue


def _clock() -> trio.testing.MockClock:
    """Return a clock that knows no other, and jumps to the next deadline when all tasks wait.

    trio's own asks the machine's at each look, collects statistics at each jump, and sees that
    something is due in the next round only.
    """
    clock = trio.testing.MockClock(autojump_threshold=0)

    def jump() -> None:
        runner = _runner()
        deadline_s = runner.deadlines.next_deadline()
        if deadline_s < math.inf:
            shadowed._virtual_base = deadline_s
            runner.deadlines.expire(deadline_s)

    shadowed: Any = clock
    shadowed.current_time = lambda: shadowed._virtual_base
    shadowed._autojump = jump
    return clock


def _runner() -> Any:
    run: Any = trio._core._run
    return run.GLOBAL_RUN_CONTEXT.runner
