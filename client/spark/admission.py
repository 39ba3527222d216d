"""How many rows each partition may put into a batch of bounded size. Pure.

The rules, in this order:

1. Pinned ranges come first and whole, as many as fit, and at least one: they are owed, and cutting
   one would make a second key for the same rows.
2. What is left goes to the other partitions by max-min fairness: all get the same, and what a
   small partition doesn't need goes to the others. So a partition with a huge backlog can't hold
   up those that are nearly up to date.
3. A share is not made smaller than `SHARE_MIN` rows, because a range costs a task and a pin
   whatever its size. Where that leaves partitions out, those go first that waited longest.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from client.spark.positions import Position, Step, cut_step
from protocol.types import TopicPartition

SHARE_MIN: Final = 100


class Demand(NamedTuple):
    """What a partition would put into the batch if nothing bounded it."""

    rows: int
    pinned: bool = False
    served: int = 0  # The turn in which it last got rows; 0: never.


def share_rows(
    demands: Mapping[TopicPartition, Demand], rows_max: int, share_min: int = SHARE_MIN
) -> dict[TopicPartition, int]:
    """Return how many rows of each partition go into a batch of at most *rows_max* rows.

    More than that only if the first pinned range alone is larger.

    Args:
        demands: what each partition has.
        rows_max: the most rows in the batch, at least 1.
        share_min: the least rows of a share, if the partition has so many.

    """
    shares = dict.fromkeys(demands, 0)
    left = rows_max
    for tp in sorted(tp for tp, demand in demands.items() if demand.pinned):
        rows = demands[tp].rows
        if rows <= left or left == rows_max:
            shares[tp] = rows
            left = max(left - rows, 0)
    fresh = [tp for tp, demand in demands.items() if not demand.pinned]
    fresh.sort(key=lambda tp: (demands[tp].served, tp))
    admitted = _admitted([demands[tp].rows for tp in fresh], left, share_min)
    # The smallest first: each leaves to the others what it doesn't need.
    by_size = sorted(fresh[:admitted], key=lambda tp: demands[tp].rows)
    for index, tp in enumerate(by_size):
        shares[tp] = min(demands[tp].rows, left // (admitted - index))
        left -= shares[tp]
    for tp in fresh[admitted:]:
        shares[tp] = min(demands[tp].rows, left)
        left -= shares[tp]
    return shares


def _admitted(rows_in_turn: Sequence[int], rows_max: int, share_min: int) -> int:
    """Return how many partitions, in their turn, may have a share that is worth a range."""
    promised = 0
    for count, rows in enumerate(rows_in_turn):
        promised += min(rows, share_min)
        if promised > rows_max:
            return max(count, 1)
    return len(rows_in_turn)


class Admission:
    """Bounds one batch after the other, and remembers whose turn it is.

    Args:
        rows_max: the most rows in a batch; None for no limit.

    """

    def __init__(self, rows_max: int | None) -> None:
        self._rows_max = rows_max
        self._served: dict[TopicPartition, int] = {}
        self._turn = 0

    def admit(
        self,
        steps: Mapping[TopicPartition, Step],
        positions: Mapping[TopicPartition, Position],
    ) -> dict[TopicPartition, Step]:
        """Return the steps with their ranges cut to what the batch may hold."""
        if self._rows_max is None:
            return dict(steps)
        demands = {
            tp: Demand(step.stop - step.at, step.pinned, self._served.get(tp, 0))
            for tp, step in steps.items()
        }
        shares = share_rows(demands, self._rows_max)
        return {tp: cut_step(step, shares[tp], positions[tp]) for tp, step in steps.items()}

    def served(self, steps: Mapping[TopicPartition, Step]) -> None:
        """Note the ranges of a batch that may start: their partitions had their turn."""
        if self._rows_max is None:
            return
        self._turn += 1
        for tp, step in steps.items():
            if step.stop > step.at:
                self._served[tp] = self._turn
