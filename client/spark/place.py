"""One reader's place in its group: which partitions it has, and when that is about to change."""

import logging
from collections.abc import Callable

from client.exceptions import MemberLost
from client.spark.discovery import Discovery
from client.spark.log import PartitionLog
from client.spark.options import ReaderOptions
from client.spark.session import ReaderSession, SessionFactory
from client.types import Assignment
from protocol.types import NO_GENERATION

logger = logging.getLogger(__name__)

_NOTHING = Assignment(NO_GENERATION, "", (), is_leader=False)


class Place:
    """A membership, and what its reader knows of it.

    Args:
        options: the checked options of the stream.
        log: where the rows are.
        open_session: makes this reader a member of its group; called on first use.
        clock: a monotonic clock in seconds.

    Attributes:
        assignment: what this reader has; None before it joined, and after it lost all.
        session: the membership; None before it is used.
        found: the topics and partitions.

    """

    def __init__(
        self,
        options: ReaderOptions,
        log: PartitionLog,
        open_session: SessionFactory,
        clock: Callable[[], float],
    ) -> None:
        self.assignment: Assignment | None = None
        self.session: ReaderSession | None = None
        self.found = Discovery(options, log, clock)
        self._open_session = open_session
        self._subscribed: tuple[str, ...] = ()
        self._listed: dict[str, list[int]] = {}
        self._losses = 0
        self._eager = False
        self._seen_in = self._complete_in = NO_GENERATION

    @property
    def keeps(self) -> bool:
        """Whether the partitions that stay are kept through a rebalance."""
        return self.session is not None and self.session.cooperative

    def open(self) -> ReaderSession | None:
        """Become a member, unless there is no topic to read; joins with `join`."""
        if self.session is None:
            if self.found.is_due:
                self.found.look()
            self._subscribed = self.found.topics
            if self._subscribed:
                self.session = self._open_session(self.found.topics, self._eager)
        return self.session

    def hand_over_all(self) -> None:
        """Give up everything at each rebalance from now on, and wait until it is over."""
        self._eager = True
        if self.keeps:
            assert self.session is not None
            self.session.leave()
            self.session = self.assignment = None

    def is_current(self) -> bool:
        """Say whether what we have stands: else commit what is finished, then `join`.

        Raises:
            MemberLost: what we had is somebody else's.

        """
        session, assignment = self.session, self.assignment
        if session is None or assignment is None:
            return False
        if (session.lost or session.losses != self._losses) and assignment.partitions:
            raise MemberLost("the group removed this reader")
        return not session.rebalance_needed and not self._must_rebalance(session, assignment)

    def join(self, wait_s: float) -> Assignment:
        """Join, or go on with it, as far as the group lets us; return what we have then.

        Raises:
            MemberLost: what we had is somebody else's.

        """
        session = self.session
        if session is None:
            return _NOTHING
        self.found.look_again()  # The group must not wait for the log.
        self._subscribe(session)
        before, losses = self.assignment, self._losses
        assignment = session.assignment(wait_s)
        self._losses = session.losses
        if before is not None and before.partitions and session.losses != losses:
            self.assignment = None
            raise MemberLost("the group removed this reader")
        if before is None or before.generation != assignment.generation:
            logger.info(
                "generation %d: this reader owns %s",
                assignment.generation,
                ", ".join(map(str, assignment.partitions)) or "nothing",
            )
        self.assignment = assignment
        return assignment

    def forget(self) -> None:
        """Have nothing until the next `join`."""
        self.assignment = None

    def leave(self) -> None:
        """Leave the group. Never raises; may be called again, and from another thread."""
        session = self.session
        if session is not None:
            session.leave()

    def _must_rebalance(self, session: ReaderSession, assignment: Assignment) -> bool:
        """Look for new topics and partitions now and then; ask for a rebalance if there are."""
        found = self.found
        is_due = found.is_due
        if is_due:
            found.look_again()
        if self._subscribe(session):
            return True
        if not (is_due and assignment.is_leader):
            return False
        if self._have_grown(session):
            session.request_rejoin("the topics' partitions changed")
            return True
        if self._is_left_over(session, assignment.generation):
            session.request_rejoin("partitions were given up, and nobody has them")
            return True
        return False

    def _is_left_over(self, session: ReaderSession, generation: int) -> bool:
        """Say whether partitions that were to move are nobody's, an interval after the rebalance.

        Who gives up a partition asks for the round that gives it to another; a static reader that
        was restarted in between doesn't know of it. Asked once per generation.
        """
        if self._complete_in == generation or self._seen_in != generation:
            self._seen_in = generation
            return False
        if session.unassigned(self.found.partitions):
            return True
        self._complete_in = generation
        return False

    def _subscribe(self, session: ReaderSession) -> bool:
        """Tell the group which topics we read if these have changed; return whether they have."""
        topics = self.found.topics
        if topics == self._subscribed:
            return False
        session.request_rejoin("the topics changed", topics)
        self._subscribed = topics
        return True

    def _have_grown(self, session: ReaderSession) -> bool:
        """Say whether there are partitions that were not shared out.

        What counts is what was known when that was done, perhaps by now long ago.
        """
        found = self.found.partitions
        if listed := session.listed or self._listed:
            return any(listed.get(topic) != partitions for topic, partitions in found.items())
        # A static leader that was restarted: it took over what it hasn't computed.
        grown = session.unassigned(found)
        if not grown:
            self._listed = found
        return grown
