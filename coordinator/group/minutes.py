"""A number of each of many partitions in each of the last minutes: soft, and small.

Theory of operation
===================

The partitions of a topic lie in blocks of 128. A block has one flat array, so that neither the
allocator nor the garbage collector sees a partition: a column of numbers for each that was ever
noted, in the order in which they came. So a topic may have any partitions, and they cost no more
than they are; and one that grows adds columns, and moves none.

A column is a ring: the number of minute m lies at m % 60. A block knows its newest minute alone;
the first that is noted in a later one turns the whole block to it.
"""

from array import array
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from msgspec import Struct

from coordinator.group.lag_samples import SAMPLES_KEPT, UNKNOWN

BLOCK_BITS: Final = 7
_IN_BLOCK: Final = (1 << BLOCK_BITS) - 1


class Block(Struct, eq=False, gc=False):
    """The columns of some partitions.

    Attributes:
        places: The last bits of each partition, in the order of the columns.
        cells: The columns, one after the other.
        minute: The newest.
    """

    cells: "array[Any]"
    minute: int
    places: bytes = b""

    def place(self, partition: int) -> int:
        """Return which column is that of *partition*, -1 for none."""
        return self.places.find(partition & _IN_BLOCK)


class Minutes:
    """The partitions of one topic.

    Attributes:
        COLUMN: An empty column. What follows its 60 minutes is left alone.
        CARRIED: The cell with which a minute begins in which nothing is noted; None: unknown.
    """

    COLUMN: ClassVar["array[Any]"]
    CARRIED: ClassVar[int | None]

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}

    def find(self, partition: int) -> tuple[Block, int] | None:
        """Return where the column of *partition* begins, None if it has none."""
        block = self._blocks.get(partition >> BLOCK_BITS)
        if block is None:
            return None
        place = block.place(partition)
        return None if place < 0 else (block, place * len(self.COLUMN))

    def add(self, partition: int, minute: int) -> tuple[Block, int]:
        """Make the column of a *partition* that has none; return where it begins."""
        place = bytes((partition & _IN_BLOCK,))
        block = self._blocks.get(partition >> BLOCK_BITS)
        if block is None:
            block = self._blocks[partition >> BLOCK_BITS] = Block(self.COLUMN[:], minute, place)
            return block, 0
        if block.minute < minute:  # The new column has no part in what was before.
            self.turn(block, minute)
        at = len(block.cells)
        block.places += place
        block.cells.extend(self.COLUMN)
        return block, at

    def put(self, minute: int, numbers: Mapping[int, float]) -> None:
        """Note the numbers of some partitions in *minute*, which is no earlier than any noted."""
        slot, step, latest = minute % SAMPLES_KEPT, len(self.COLUMN), -1
        for partition, number in numbers.items():
            if partition >> BLOCK_BITS != latest:
                latest = partition >> BLOCK_BITS
                block = self._blocks.get(latest) or self._blocks.setdefault(
                    latest, Block(self.COLUMN[:0], minute)
                )
                if block.minute != minute:
                    self.turn(block, minute)
            place = block.place(partition)
            at = self.add(partition, minute)[1] if place < 0 else place * step
            block.cells[at + slot] = number

    def turn(self, block: Block, minute: int) -> None:
        """Begin *minute*, and those that were missed before it."""
        cells, step = block.cells, len(self.COLUMN)
        before = cells[self.CARRIED or 0 :: step]
        if self.CARRIED is None:
            before = self.COLUMN[:1] * len(before)
        for missed in range(max(block.minute, minute - SAMPLES_KEPT) + 1, minute + 1):
            cells[missed % SAMPLES_KEPT :: step] = before
        block.minute = minute


class LagCurves(Minutes):
    """The lag of each partition of a topic that a group has committed."""

    COLUMN = array("f", [UNKNOWN]) * SAMPLES_KEPT
    CARRIED = None

    __slots__ = ()

    def last(self, partition: int, minute: int) -> tuple[int, ...]:
        """Return the lags of *partition* up to *minute*, the oldest that is known first.

        The sample of *minute* itself may not have been taken yet.
        """
        found = self.find(partition)
        if found is None:
            return ()
        block, at = found
        turn = at + block.minute % SAMPLES_KEPT + 1
        column = block.cells[turn : at + SAMPLES_KEPT] + block.cells[at:turn]
        lags = [round(lag) for lag in column]
        missed = min(max(minute - 1 - block.minute, 0), SAMPLES_KEPT)
        lags = (lags + [UNKNOWN] * missed)[-SAMPLES_KEPT:]
        first = next((at for at, lag in enumerate(lags) if lag != UNKNOWN), len(lags))
        return tuple(lags[first:])
