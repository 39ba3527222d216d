"""Who coordinates which offsets partition, and what there is to say about a cluster.

A node with a folder leads everything; for one of a cluster `replication` answers, from its watched
copy of what ZooKeeper says.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from protocol import messages as m

# Host and port for those who came by the first listener, the second, and so on.
Endpoints = tuple[tuple[str, int], ...]


def address_of(endpoints: Endpoints) -> str:
    """Return where people find a node: the first of its endpoints, as ``host:port``."""
    host, port = endpoints[0]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Leader(NamedTuple):
    """The node that leads an offsets partition, as clients reach it."""

    node_id: int
    endpoints: Endpoints
    leader_epoch: int


class Peer(NamedTuple):
    """A node that is there, as clients reach it.

    Attributes:
        is_ready: Whether it may come to lead.
    """

    node_id: int
    endpoints: Endpoints
    is_ready: bool


class Coordination(Protocol):
    """What a node asks about the cluster."""

    def leader_of(self, offsets_partition: int) -> Leader | None:
        """Return the leader, or None while there is none (clients are told 15).

        None, too, while the node can't know: who asks another one may be told.
        """

    def why_unled(self, offsets_partition: int) -> str:
        """Return in words why no leader of a partition is known; "" if nothing is known of it."""

    def nodes(self) -> Sequence[Peer]:
        """Return the nodes that are there, this one among them, by id."""

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

    def why_unled(self, _offsets_partition: int) -> str:
        """Return nothing: this node leads everything."""
        return ""

    def nodes(self) -> Sequence[Peer]:
        """Return this node."""
        return [Peer(self._leader.node_id, self._leader.endpoints, is_ready=True)]

    def describe(self) -> m.DescribeJournalsResponse | None:
        """Return None: it is in no cluster."""
        return None

    def move(self, journal: int, to: int, _done: Callable[[bool], None]) -> None:
        """Refuse it."""
        raise ValueError(f"this node is in no cluster: journal {journal} can't move to {to}")
