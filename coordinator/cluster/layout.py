"""What is fixed when a cluster is made: how many partitions, and in which journal each lies."""

from typing import NamedTuple

from coordinator.log.format import NODE_PARTITION


class Layout(NamedTuple):
    """How many offsets partitions a cluster has, and how many journals they share."""

    num_partitions: int
    journals: int

    def journal_of(self, partition: int) -> int:
        """Return in which journal a partition lies; the node's own in 0."""
        return 0 if partition == NODE_PARTITION else partition % self.journals

    def partitions_of(self, journal: int) -> tuple[int, ...]:
        """Return the offsets partitions in a journal."""
        return tuple(range(journal, self.num_partitions, self.journals))
