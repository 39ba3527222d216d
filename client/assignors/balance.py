"""How many partitions of each topic each member gets, where members read different topics.

Only numbers are decided here, which is quick; which partitions these are comes after
(`client.assignors.placement`), and keeps as many as possible where they were.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappush, heapreplace

from client.assignors.audiences import Audience


def balance(
    audiences: Sequence[Audience], sizes: Sequence[int], owned: Sequence[Mapping[str, int]]
) -> list[dict[str, int]]:
    """Return, per audience, the number of partitions of each of its members.

    Nobody has two partitions more than somebody who could take one of them.

    Args:
        audiences: Who may take what; those with few members first, as they have less choice.
        sizes: The number of partitions of each audience.
        owned: How many of them each member has; what isn't owned by anybody is dealt out.

    """
    state = _Balance(audiences, owned)
    for index, size in enumerate(sizes):
        for _ in range(size - sum(owned[index].values())):
            state.give(index, state.least_loaded(index))
    state.even_out()
    return state.counts


class _Balance:
    """Numbers of partitions, and for each audience its least loaded member."""

    def __init__(self, audiences: Sequence[Audience], owned: Sequence[Mapping[str, int]]) -> None:
        self._owned = owned
        self.counts = [
            {member_id: had.get(member_id, 0) for member_id in audience.members}
            for audience, had in zip(audiences, owned, strict=True)
        ]
        self._audiences_of: dict[str, list[int]] = {}
        for index, audience in enumerate(audiences):
            for member_id in audience.members:
                self._audiences_of.setdefault(member_id, []).append(index)
        self._loads = {
            member_id: sum(self.counts[index][member_id] for index in indexes)
            for member_id, indexes in self._audiences_of.items()
        }
        # A load in a heap may be out of date, but never too high: see _take.
        self._heaps: list[list[tuple[int, int, str]]] = []
        for audience in audiences:
            heap = [(self._loads[one], place, one) for place, one in enumerate(audience.members)]
            heapify(heap)
            self._heaps.append(heap)
        self._places = [{one: place for _, place, one in heap} for heap in self._heaps]

    def least_loaded(self, index: int) -> str:
        """Return who has least of those who may take a partition of audience *index*."""
        heap = self._heaps[index]
        while True:
            load, place, member_id = heap[0]
            if load == self._loads[member_id]:
                return member_id
            heapreplace(heap, (self._loads[member_id], place, member_id))

    def give(self, index: int, member_id: str) -> None:
        """Add one partition of audience *index*."""
        self.counts[index][member_id] += 1
        self._loads[member_id] += 1

    def _take(self, index: int, member_id: str) -> None:
        self.counts[index][member_id] -= 1
        self._loads[member_id] -= 1
        for other in self._audiences_of[member_id]:
            place = self._places[other][member_id]
            heappush(self._heaps[other], (self._loads[member_id], place, member_id))

    def even_out(self) -> None:
        """Move partitions from who has more to who has less, until no move helps.

        Each move makes the sum of the squared loads smaller, so this ends, and never with a
        balance worse than before.
        """
        moved = True
        while moved:
            moved = False
            for member_id in sorted(self._loads, key=lambda one: (-self._loads[one], one)):
                while self._relieve(member_id):
                    moved = True

    def _relieve(self, member_id: str) -> bool:
        """Move one partition away if that helps; one that the member didn't have, if it can."""
        load = self._loads[member_id]
        best: tuple[bool, int, int] | None = None
        for index in self._audiences_of[member_id]:
            count = self.counts[index][member_id]
            if count == 0:
                continue
            least = self._loads[self.least_loaded(index)]
            if least + 1 < load:
                costs = count <= self._owned[index].get(member_id, 0)
                option = (costs, least, index)
                best = option if best is None else min(best, option)
        if best is None:
            return False
        index = best[2]
        to = self.least_loaded(index)
        self._take(index, member_id)
        self.give(index, to)
        return True
