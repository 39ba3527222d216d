"""What is to be called at some time, by one task for all that wait for it.

A task that sleeps has a cancel scope, an event and several steps of the scheduler for each thing
that it waits for; a simulation waits for little else.
"""

import heapq
import math
import random
from collections.abc import Callable

import trio


class Timer:
    """Calls at their times; of those that are due together any may come first."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._sleep = trio.CancelScope()

    def call_at(self, at_s: float, call: Callable[[], None]) -> None:
        """Call *call* when it is *at_s*, or soon if that has passed."""
        self._count += 1
        heapq.heappush(self._calls, (at_s, self._count, call))
        self._sleep.deadline = min(self._sleep.deadline, at_s)

    async def run(self) -> None:
        """Call what is due, until cancelled."""
        while True:
            next_s = self._calls[0][0] if self._calls else math.inf
            self._sleep = trio.CancelScope(deadline=next_s)
            with self._sleep:
                await trio.sleep_forever()
            now_s = trio.current_time()
            due = []
            while self._calls and self._calls[0][0] <= now_s:
                due.append(heapq.heappop(self._calls)[2])
            self._rng.shuffle(due)
            for call in due:
                call()
