"""Who coordinates which offsets partition, and what there is to say about a cluster.

A node with a folder leads everything; for one of a cluster `replication` answers.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

from protocol import messages as m


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

    def describe(self) -> m.DescribeJournalsResponse | None:
        """Return what this node has of its cluster's journals, None if it is in none."""

    def move(self, journal: int, to: int, done: Callable[[bool], None]) -> None:
        """Hand a journal over, and tell *done* whether the node *to* leads it.

        Raises:
            NotLed: This node doesn't lead it.
            ValueError: It can't be handed over to that node; the message says why.
        """


class NotLed(Exception):
    """Another node leads the journal, or nobody does."""


class EmbeddedCoordination:
    """A cluster of one: this node leads everything, in the epoch of its data folder."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader

    def leader_of(self, _offsets_partition: int) -> Leader | None:
        """Return this node."""
        return self._leader

    def describe(self) -> m.DescribeJournalsResponse | None:
        """Return None: it is in no cluster."""
        return None

    def move(self, journal: int, to: int, _done: Callable[[bool], None]) -> None:
        """Refuse it."""
        raise ValueError(f"this node is in no cluster: journal {journal} can't move to {to}")
