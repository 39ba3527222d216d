"""Lists that are long, made in turns, so that everybody else has theirs in between."""

import heapq
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

from coordinator.http.routes import Pause

T = TypeVar("T")

_TURN_ROWS: Final = 500


async def in_turns(rows: Iterable[T | None], pause: Pause) -> list[T]:
    """Return what *rows* yields; None is a turn that is over."""
    found = []
    for row in rows:
        if row is None:
            await pause()
        else:
            found.append(row)
    return found


async def sorted_in_turns(
    rows: Sequence[T], key: Callable[[T], Any], pause: Pause, turn_rows: int = _TURN_ROWS
) -> list[T]:
    """Return *rows* in the order of their *key*; a turn puts so many of them in order."""
    unsorted = iter(rows)
    runs = []
    while run := sorted(islice(unsorted, turn_rows), key=key):
        runs.append(run)
        await pause()
    if len(runs) <= 1:
        return runs[0] if runs else []
    merged = heapq.merge(*runs, key=key)
    order: list[T] = []
    while part := list(islice(merged, turn_rows)):
        order += part
        await pause()
    return order
