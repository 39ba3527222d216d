"""Fixed layout of a cluster: the number of partitions, and the journal of each."""

from typing import NamedTuple

from coordinator.log.format import NODE_PARTITION


class Layout(NamedTuple):
    """Number of offsets partitions of a cluster, and number of journals that they share."""

    num_partitions: int
    journals: int

    def journal_of(self, partition: int) -> int:
        """Return the journal of a partition; `NODE_PARTITION` lies in journal 0."""
        return 0 if partition == NODE_PARTITION else partition % self.journals

    def partitions_of(self, journal: int) -> tuple[int, ...]:
        """Return the offsets partitions of a journal, without `NODE_PARTITION`."""
        return tuple(range(journal, self.num_partitions, self.journals))
