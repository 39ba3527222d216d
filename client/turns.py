"""One commit in flight per partition, in the order in which they were asked for."""

from collections.abc import AsyncIterator, Hashable, Iterable
from contextlib import asynccontextmanager

import trio


class Turns:
    """First come, first served, per key. Two commits of different partitions don't wait."""

    def __init__(self) -> None:
        """Begin with nobody in line."""
        self._line: list[tuple[tuple[Hashable, ...], trio.Event]] = []

    @asynccontextmanager
    async def turn(self, keys: Iterable[Hashable]) -> AsyncIterator[None]:
        """Wait until everyone who came before with one of *keys* is done."""
        mine = (tuple(keys), trio.Event())
        # Usually there is nobody, and thousands of keys needn't be hashed.
        own = frozenset(mine[0]) if self._line else frozenset()
        before = [done for others, done in self._line if not own.isdisjoint(others)]
        self._line.append(mine)
        try:
            for done in before:
                await done.wait()
            yield
        finally:
            self._line.remove(mine)
            mine[1].set()
