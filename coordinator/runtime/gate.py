"""Replies wait here until the log has caught up with them.

Positions are offsets of the shard's partition, not of the journal: what comes in is
"committed offset of the partition", which is "fsynced" on one node and "on all in-sync
replicas" in a cluster.
"""

import heapq
from collections.abc import Callable
from typing import NamedTuple

from coordinator.group.effects import Reply


class Parked(NamedTuple):
    """A reply, the offset it waits for, and when it is given up."""

    until_offset: int
    number: int  # Keeps the order of decisions among replies with the same offset.
    deadline_ms: int
    reply: Reply


class ReplyGate:
    """Releases replies as the partition's committed offset passes them.

    A read waits for its own group's last entry only, so offsets don't come in order: a heap.
    """

    def __init__(self, release: Callable[[Reply], None]) -> None:
        self._release = release
        self._parked: list[Parked] = []
        self._number = 0
        self.committed_offset = 0

    def __len__(self) -> int:
        """Return how many replies wait."""
        return len(self._parked)

    def park(self, reply: Reply, *, until_offset: int, deadline_ms: int) -> None:
        """Hold *reply* until the partition is committed up to *until_offset*."""
        if until_offset <= self.committed_offset:
            self._release(reply)
            return
        self._number += 1
        heapq.heappush(self._parked, Parked(until_offset, self._number, deadline_ms, reply))

    def advance(self, committed_offset: int) -> None:
        """Send everything that waited for *committed_offset* or less."""
        assert committed_offset >= self.committed_offset
        self.committed_offset = committed_offset
        parked = self._parked
        while parked and parked[0].until_offset <= committed_offset:
            self._release(heapq.heappop(parked).reply)

    def give_up(self, now_ms: int | None = None) -> list[Reply]:
        """Remove and return what waited past its deadline, or with None everything."""
        late: list[Parked] = []
        kept: list[Parked] = []
        for parked in self._parked:
            is_late = now_ms is None or parked.deadline_ms <= now_ms
            (late if is_late else kept).append(parked)
        heapq.heapify(kept)
        self._parked = kept
        return [parked.reply for parked in sorted(late)]
