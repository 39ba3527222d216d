"""The garbage collector in Spark's Python workers: what is loaded is frozen before a task."""

import gc
import itertools
from collections.abc import Callable

_tasks = itertools.count(1)


def settle(task: int | None = None, freeze: Callable[[], None] = gc.freeze) -> None:
    """Take what is loaded by now out of the garbage collector's sight; for each task's start.

    Spark's worker collects all garbage after every task (pyspark's ``daemon.py``). That takes as
    long as there are objects, and with pyarrow, pandas and pyspark there are so many that it is
    most of what a small task costs. It happens once, when the first task has loaded all that tasks
    need; that stays to the end anyway.

    Args:
        task: which task of this process this is; counted if it isn't given.
        freeze: does it.

    """
    if (next(_tasks) if task is None else task) == 2:
        freeze()
