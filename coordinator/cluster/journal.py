"""One journal of a cluster, as one node sees it: it follows it, or leads it.

A pure machine: what it is told comes by its methods, and what has to be done about it is what they
return. `coordinator.cluster.node` has all journals of a node, and the session that they share; it
calls `told`, `replied` and `tick`. The node over it calls the rest.
"""

from collections.abc import Callable, Generator
from typing import NamedTuple

from coordinator.cluster.effects import Effect
from coordinator.cluster.engine import Event, Leader, ReadEntries, Reply, Request, Snapshot
from coordinator.log.format import Batch, Flush


class Member(NamedTuple):
    """A node that may lead: one life of it, in one session."""

    node: int
    run: str
    session: int


class ReplicatedJournal:
    """See the module.

    Attributes:
        number: Of the journal.
        leader: Who leads it, as far as this node has seen; None if nobody ever did.
        is_leading: Between `Leads` and `Deposed` or `HandedOver`.
        is_following: It has read all that there was, at least once: it may lead.
        applied: The last index of the log that the node holds.
        snapshot: The newest one, as far as this node has seen.
        tail_bytes: Of the entries behind the snapshot, as they lie in the log.
    """

    number: int
    leader: Leader | None
    is_leading: bool
    is_following: bool
    applied: int
    snapshot: Snapshot
    tail_bytes: int

    def __init__(
        self,
        number: int,
        *,
        partitions: tuple[int, ...],
        new_id: Callable[[], str],
        session_timeout_ms: int,
        follow_interval_ms: int,
    ) -> None:
        """Follow a journal, of which nothing is known yet.

        Args:
            number: Of the journal.
            partitions: The offsets partitions in it, `NODE_PARTITION` not among them.
            new_id: Returns 32 random hex digits.
            session_timeout_ms: After so long without a connection another node may lead.
            follow_interval_ms: The log is read so often, at most, while another node leads.
        """
        raise NotImplementedError

    # --- for the shards, while it leads -------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """The epoch that batches and answers carry: of `leader`, 0 if there is none."""
        raise NotImplementedError

    @property
    def open_bytes(self) -> int:
        """Bytes that were appended and not yet taken by a flush."""
        raise NotImplementedError

    @property
    def compacted_below(self) -> dict[int, int]:
        """Per partition, the offset below which a stream of changes can't start."""
        raise NotImplementedError

    def end_offset(self, partition: int) -> int:
        """Return the offset that the partition's next entry will get."""
        raise NotImplementedError

    def append_packed(self, partition: int, count: int, packed: bytes, timestamp_ms: int) -> int:
        """Put one batch into the open flush, as `coordinator.log.journal.Journal` does.

        Raises:
            BatchTooLarge: Nothing was changed.
            LogFailed: This node does not lead.
        """
        raise NotImplementedError

    def take_flush(self) -> Flush | None:
        """Seal what was appended since the last call; None if that is nothing."""
        raise NotImplementedError

    def write(self, flush: Flush) -> list[Effect]:
        """Write *flush*, one at a time and in order; `Written` tells how far it is.

        It is repeated until it is known what became of it. `Deposed` ends it, too.
        """
        raise NotImplementedError

    def confirm(self) -> int:
        """Return a number. `Confirmed` with it, or a larger one, says that this node led now.

        A read is answered once what it shows is durable, and it is confirmed.
        """
        raise NotImplementedError

    def end_round(self) -> list[Effect]:
        """Have confirmed what waits for it, unless a flush that was just written does.

        Call it at the end of each round of requests, after the flush.
        """
        raise NotImplementedError

    # --- for the node -------------------------------------------------------------------

    def took(self, now_ms: int) -> list[Effect]:
        """Go on reading: the batches of the latest `Followed` are replayed."""
        raise NotImplementedError

    def claim(self, now_ms: int) -> list[Effect]:
        """Try to lead, if whoever led is gone. Nothing else comes of it than `Leads`, or not."""
        raise NotImplementedError

    def hand_over(self, to: Member) -> list[Effect]:
        """Have another node lead: `HandsOver` follows, if this one leads."""
        raise NotImplementedError

    def stopped(self) -> list[Effect]:
        """Go on handing over: nothing more is appended.

        Once all is in the log, `HandedOver`, `KeptLead` or `Deposed` follows.
        """
        raise NotImplementedError

    def install(self, snapshot: Snapshot) -> list[Effect]:
        """Make a snapshot the newest one, whose chunks are written, and trim the log."""
        raise NotImplementedError

    def set_purged(self, registry_version: int) -> list[Effect]:
        """Tell all nodes up to where offsets of deleted topics are removed from this journal."""
        raise NotImplementedError

    def read(
        self, partition: int, from_offset: int, max_bytes: int
    ) -> Generator[ReadEntries, Reply, list[Batch]]:
        """Return the batches of one partition from the one that holds *from_offset*.

        A generator: it yields requests, is sent their answers, and returns what it has read.
        *from_offset* is not below `compacted_below`. It ends after the batch for which so many
        bytes were read, and has one at least, if there is one.

        Raises:
            LogCorrupt: Damage.
            LogFailed: It was trimmed meanwhile, or the connection broke: ask again.
        """
        raise NotImplementedError

    # --- for the session ----------------------------------------------------------------

    def told(self, event: Event, now_ms: int) -> list[Effect]:
        """Take note of what the engine tells."""
        raise NotImplementedError

    def registered(self, me: Member, now_ms: int) -> list[Effect]:
        """Go on: this node is registered in the session that there is, which may be a new one."""
        raise NotImplementedError

    def replied(self, request: Request, reply: Reply, now_ms: int) -> list[Effect]:
        """Take note of an answer to a request of this journal's."""
        raise NotImplementedError

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` has something to do, monotonic."""
        raise NotImplementedError

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due."""
        raise NotImplementedError
