"""A number per partition and minute, for the last 60 minutes: soft, and compact in memory.

Theory of operation
===================

The partitions of a topic are stored in blocks of 128. A block has one flat array, so that neither
the allocator nor the garbage collector handles single partitions. The array has one column of
numbers per partition, in the order in which partitions were added. Memory is therefore used only
for partitions that exist, whatever their numbers; a growing topic adds columns, and moves none.

A column is a ring: the number of minute m is at m % 60. A block stores only its newest minute; the
first number of a later minute advances the whole block.
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
        places: The low bits of each partition, in the order of the columns.
        cells: The columns, one after the other.
        minute: The newest minute.
    """

    cells: "array[Any]"
    minute: int
    places: bytes = b""

    def place(self, partition: int) -> int:
        """Return the index of the column of *partition*, -1 without one."""
        return self.places.find(partition & _IN_BLOCK)


class Minutes:
    """Columns of the partitions of one topic.

    Attributes:
        COLUMN: An empty column. Cells after the 60 minutes are not changed here.
        CARRIED: The cell whose value starts a minute without new numbers; None: unknown.
    """

    COLUMN: ClassVar["array[Any]"]
    CARRIED: ClassVar[int | None]

    __slots__ = ("_blocks",)

    def __init__(self) -> None:
        self._blocks: dict[int, Block] = {}

    def find(self, partition: int) -> tuple[Block, int] | None:
        """Return the block and start of the column of *partition*, None without one."""
        block = self._blocks.get(partition >> BLOCK_BITS)
        if block is None:
            return None
        place = block.place(partition)
        return None if place < 0 else (block, place * len(self.COLUMN))

    def add(self, partition: int, minute: int) -> tuple[Block, int]:
        """Create the column of a *partition* without one; return its block and start."""
        place = bytes((partition & _IN_BLOCK,))
        block = self._blocks.get(partition >> BLOCK_BITS)
        if block is None:
            block = self._blocks[partition >> BLOCK_BITS] = Block(self.COLUMN[:], minute, place)
            return block, 0
        if block.minute < minute:  # The new column must not take part in earlier minutes.
            self.turn(block, minute)
        at = len(block.cells)
        block.places += place
        block.cells.extend(self.COLUMN)
        return block, at

    def put(self, minute: int, numbers: Mapping[int, float]) -> None:
        """Store the numbers of some partitions for *minute*, which is not before any stored one."""
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
        """Advance the block to *minute*, filling the minutes skipped before it."""
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
        """Return the lags of *partition* up to *minute*, beginning with the oldest known one.

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
