"""All journals of one node, and the session that they share: who leads which, and who is there.

A pure machine, as the journals are. Events and answers of the engine go in here; effects come out,
here and from the journals' own methods. `Send` of either goes to the engine, and its answer to
`replied` here.
"""

from collections.abc import Callable, Sequence

from coordinator.cluster.effects import Effect
from coordinator.cluster.engine import Event, Leader, Registration, Reply, Request
from coordinator.cluster.journal import ReplicatedJournal


class ClusterNode:
    """See the module.

    Attributes:
        journals: By number.
        nodes: The registered nodes, by id, as far as this one has seen.
        is_connected: Whether there is a session in which this node is registered.
    """

    journals: Sequence[ReplicatedJournal]
    nodes: dict[int, Registration]
    is_connected: bool

    def __init__(
        self,
        *,
        registration: Registration,
        num_partitions: int,
        journals: int,
        new_id: Callable[[], str],
        session_timeout_ms: int,
        follow_interval_ms: int,
    ) -> None:
        """Be a node that is about to start.

        Args:
            registration: Of this node, not ready yet.
            num_partitions: Offsets partitions of the cluster.
            journals: How many there are; partition p lies in journal p modulo that.
            new_id: Returns 32 random hex digits.
            session_timeout_ms: As the engine was asked for.
            follow_interval_ms: How often a journal is read at most that another node leads.
        """
        raise NotImplementedError

    def leader_of(self, partition: int) -> tuple[Leader, Registration] | None:
        """Return who leads an offsets partition, None while nobody who is there does."""
        raise NotImplementedError

    def told(self, event: Event, now_ms: int) -> list[Effect]:
        """Take note of what the engine tells."""
        raise NotImplementedError

    def replied(self, request: Request, reply: Reply, now_ms: int) -> list[Effect]:
        """Take note of an answer."""
        raise NotImplementedError

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to do, monotonic."""
        raise NotImplementedError

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due: claim what nobody leads, balance, repeat what was lost."""
        raise NotImplementedError

    def drain(self, now_ms: int) -> list[Effect]:
        """Hand over everything, and claim nothing any more.

        `HandsOver` comes for each journal that it leads, if there is a node to take it. It is over
        when no journal `is_leading`.
        """
        raise NotImplementedError

    def move(self, journal: int, to: int, now_ms: int) -> list[Effect]:
        """Hand one journal over to a ready node, as an operator asks.

        Raises:
            ValueError: This node does not lead it, or the other one is not ready.
        """
        raise NotImplementedError
