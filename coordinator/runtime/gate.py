"""Replies wait here until the log has caught up with them.

Positions are offsets of the shard's partition, not of the journal: what comes in is
"committed offset of the partition", which is "fsynced" on one node and "on all in-sync
replicas" in a cluster.
"""

import heapq
from collections import deque
from collections.abc import Callable

from coordinator.group.effects import Reply

# The offset it waits for, a number that keeps the order of decisions among replies with the same
# offset, when it is given up, the reply. A plain tuple: one is made for every commit.
Parked = tuple[int, int, int, Reply]


class ReplyGate:
    """Releases replies as the partition's committed offset passes them.

    What was just appended waits for the highest offset so far, so nearly all replies queue up in
    order. A read waits for its own group's last entry only, which may be earlier: a heap.
    """

    def __init__(self, release: Callable[[Reply], None]) -> None:
        self._release = release
        self._queue: deque[Parked] = deque()
        self._early: list[Parked] = []
        self._number = 0
        self.committed_offset = 0

    def __len__(self) -> int:
        """Return how many replies wait."""
        return len(self._queue) + len(self._early)

    def park(self, reply: Reply, *, until_offset: int, deadline_ms: int) -> None:
        """Hold *reply* until the partition is committed up to *until_offset*."""
        if until_offset <= self.committed_offset:
            self._release(reply)
            return
        self._number = number = self._number + 1
        parked = (until_offset, number, deadline_ms, reply)
        queue = self._queue
        if not queue or until_offset >= queue[-1][0]:
            queue.append(parked)
        else:
            heapq.heappush(self._early, parked)

    def advance(self, committed_offset: int) -> None:
        """Send everything that waited for *committed_offset* or less."""
        assert committed_offset >= self.committed_offset
        self.committed_offset = committed_offset
        queue, early, release = self._queue, self._early, self._release
        while queue and queue[0][0] <= committed_offset:
            if early and early[0] < queue[0]:
                release(heapq.heappop(early)[3])
            else:
                release(queue.popleft()[3])
        while early and early[0][0] <= committed_offset:
            release(heapq.heappop(early)[3])

    def give_up(self, now_ms: int | None = None) -> list[Reply]:
        """Remove and return what waited past its deadline, or with None everything."""
        late: list[Parked] = []
        kept: list[Parked] = []
        for parked in sorted([*self._queue, *self._early]):
            (late if now_ms is None or parked[2] <= now_ms else kept).append(parked)
        self._queue, self._early = deque(kept), []
        return [parked[3] for parked in late]
