"""Which ranges of a batch are read by one Spark task. Pure.

A task of a Python source costs Spark some tens of milliseconds, whatever it reads, so a batch of a
thousand small ranges must not be a thousand tasks; and a few large ranges must not wait for one
another. So ranges are put together only where there are more of them than *tasks_min*, and then
into tasks of about *rows_per_task* rows each. A range is never cut.
"""

import heapq
from collections.abc import Sequence

from client.spark.core import Task


def pack_ranges(ranges: Sequence[Task], tasks_min: int, rows_per_task: int) -> list[list[Task]]:
    """Put all *ranges* into tasks of about equal size; each task in the ranges' own order.

    Args:
        ranges: the ranges of a batch.
        tasks_min: how many tasks there are at least, if there are so many ranges.
        rows_per_task: how many rows a task may hold before there are more tasks than that.

    """
    rows = [one.range.end - one.range.start for one in ranges]
    tasks = min(len(ranges), max(tasks_min, -(-sum(rows) // rows_per_task)))
    packed: list[list[int]] = [[] for _ in range(tasks)]
    # The largest first, each to the task that has least: none is then much longer than the others.
    loads = [(0, 0, task) for task in range(tasks)]  # Rows, ranges, and whose.
    for index in sorted(range(len(ranges)), key=lambda index: -rows[index]):
        held, count, task = loads[0]
        packed[task].append(index)
        heapq.heapreplace(loads, (held + rows[index], count + 1, task))
    return [[ranges[index] for index in sorted(one)] for one in packed]
