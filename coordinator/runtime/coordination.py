"""Who coordinates which offsets partition: the seam where a cluster comes in later.

One node answers from memory; a cluster will answer from ZooKeeper, by compare-and-set
znodes, and call `ShardRunner` load and unload as leadership moves.
"""

from typing import NamedTuple, Protocol


class Leader(NamedTuple):
    """The node that leads an offsets partition, as clients reach it.

    Attributes:
        endpoints: Host and port for those who came by the first listener, the second, and so on.
    """

    node_id: int
    endpoints: tuple[tuple[str, int], ...]
    leader_epoch: int


class Coordination(Protocol):
    """What a node asks about the cluster."""

    def leader_of(self, offsets_partition: int) -> Leader | None:
        """Return the leader, or None while there is none (clients are told 15)."""


class EmbeddedCoordination:
    """A cluster of one: this node leads everything, in the epoch of its data folder."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def leader_of(self, _offsets_partition: int) -> Leader | None:
        """Return this node."""
        return self._leader
