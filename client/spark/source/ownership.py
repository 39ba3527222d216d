"""What a reader owns in its group: its membership, its positions, and what it has to commit.

`Ownership` is the half of the reader core that talks to the coordinator. `Membership` follows the
group, and asks for a rebalance when the topics change; `Planner` asks the log, and applies the
rules of `planning` to all owned partitions. The rules of `Ownership`:

- A commit whose answer was lost is repeated, byte for byte, until there is an answer; nothing
  else is decided before.
- Partitions are given away in `settle` only, after committing what is finished, with the pins
  cleared: Spark runs no batch then. A cooperative member hears which ones it loses only while it
  lets go of them, so everything is committed before.
- Positions are read back whenever they are not certain: of what was gained, and of everything
  after a loss or a conflict. A finished range is then committed only if the coordinator still
  has its start.
- What was read back is run only after a commit of ours was accepted: a fetch isn't fenced.
- What was read back is compared with what this reader saw before (`group_memory`): a group that
  the coordinator has forgotten is not taken for a new one.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from client.exceptions import (
    CommitRefused,
    FatalError,
    MemberLost,
    OutcomeUnknown,
    Rebalanced,
    RetriableError,
)
from client.membership import Assignment
from client.spark.errors import CoordinatedSourceError, FencedError, GroupLossError, LogFailed
from client.spark.logs.partition_log import PartitionLog
from client.spark.source.discovery import Discovery
from client.spark.source.group_memory import GroupMemory, Loss, listed, refusal
from client.spark.source.log_calls import LAG_MAX_S, LogCalls
from client.spark.source.planning import (
    Admission,
    Commit,
    Finished,
    Limits,
    Position,
    Step,
    commit_for,
    hold_partition,
    is_stored,
    plan_partition,
    still_ours,
)
from client.spark.source.reader_options import (
    ERROR,
    STARTING_OFFSETS,
    ReaderOptions,
    explained,
)
from client.spark.source.session import ReaderSession, SessionFactory
from client.spark.source.stream_offsets import Memory
from client.spark.source.way_back import Committed
from protocol.errors import ErrorCode
from protocol.partition import NO_GENERATION, TopicPartition

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Why what a reader had is somebody else's, unless it left by itself.
REMOVED: Final = "the group removed this reader"

# Rounds of rejoining within one trigger; a group that changes faster gets the next trigger.
ROUNDS_MAX: Final = 5

# Both pass, if somebody makes room; a query that waits goes on by itself then.
_RETRY_REFUSAL: Final = {ErrorCode.STORAGE_FULL, ErrorCode.QUOTA_EXCEEDED}

_NOTHING = Assignment(NO_GENERATION, "", (), is_leader=False)


class Batch(NamedTuple):
    """What may start now: its ranges are pinned."""

    generation: int
    steps: dict[TopicPartition, Step]


class _InDoubt(NamedTuple):
    commit: Commit
    unknown: bool  # Whether an attempt was made whose outcome nobody knows.


class Ownership:
    """A member of the group, and what the coordinator keeps for its partitions.

    Methods raise `RetriableError` or `OutcomeUnknown` when the coordinator is away; calling
    them again goes on where they stopped.

    Args:
        options: the checked options of the stream.
        log: where the rows are.
        open_session: makes this reader a member of its group; called on first use.
        clock: a monotonic clock in seconds.

    """

    def __init__(
        self,
        options: ReaderOptions,
        log: LogCalls,
        open_session: SessionFactory,
        clock: Callable[[], float],
    ) -> None:
        self.targets: dict[TopicPartition, int] | None = None
        self._options = options
        self._log = log
        self._planner = Planner(options, log, clock)
        self._membership = Membership(options, log, open_session, clock)
        self._memory = GroupMemory(clock)
        self._is_compared = False
        # Where the group was in each partition when this run first knew it.
        self._began: dict[TopicPartition, int] = {}
        # What we own, and wait for others to say where they were.
        self._held: set[TopicPartition] = set()
        # Of what we own, and certain; the others are fetched before anything is planned.
        self._positions: dict[TopicPartition, Position] = {}
        # Fetched, but no commit of ours has shown yet that they are really ours.
        self._unproven: set[TopicPartition] = set()
        self._finished: dict[TopicPartition, Finished] = {}
        self._in_doubt: _InDoubt | None = None
        self._latest_from: frozenset[TopicPartition] | None = None

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """The log's end of each owned partition as last seen."""
        return self._planner.ends

    @property
    def seen(self) -> Memory:
        """What was last seen of the group, for the next end offset."""
        return self._memory.seen

    @property
    def committed(self) -> dict[TopicPartition, Committed]:
        """What this run has moved the group on, with a commit whose answer was lost."""
        now = {tp: known.offset for tp, known in self._memory.seen.offsets.items()}
        if self._in_doubt is not None:
            now |= {tp: known.offset for tp, known in self._in_doubt.commit.offsets.items()}
        return {tp: Committed(at, now[tp]) for tp, at in self._began.items() if now[tp] > at}

    def remember(self, memory: Memory) -> None:
        """Take over what the checkpoint says of the group, before anything is decided by it."""
        self._memory.remember(memory)
        self._is_compared = False
        self._positions = {}
        was_there = memory.generation != NO_GENERATION
        if was_there and self._options.on_group_loss != STARTING_OFFSETS:
            self._latest_from = frozenset()  # The group isn't new, whatever it looks like.

    def finish(self, ranges: Mapping[TopicPartition, Finished]) -> None:
        """Note ranges that this process handed to Spark and whose sink is done."""
        self._finished.update(ranges)

    def hand_over_all(self) -> None:
        """Give up everything at each rebalance from now on, and wait until it is over."""
        self._membership.hand_over_all()
        self._forget_positions()

    def stop_at_ends(self) -> None:
        """Note where all partitions end now, whoever owns them: nothing is planned beyond."""
        self._membership.discovery.look()
        bounds = self._log.all_bounds(self._membership.discovery.all_partitions())
        self.targets = {tp: end for tp, (_, end) in bounds.items()}

    def others_read(self, before: str) -> bool:
        """Say whether other members read our topics while no place is kept for us; joins nothing.

        A place is kept for a static member that was restarted within its session.

        Args:
            before: the client id that this reader had in an earlier process: no other member.

        """
        session = self._membership.open()
        return session is not None and session.others_read(before)

    def settle(self, wait_s: float) -> dict[TopicPartition, Position]:
        """Be a member with an assignment and nothing in doubt; return the positions we own.

        Args:
            wait_s: how long to wait for an assignment.

        """
        self._in_rounds(lambda: self._settle_once(wait_s))
        return self._positions

    def pin_next(self, max_rows: int | None, wait_s: float) -> Batch:
        """Settle, then commit what is finished together with the pins of what comes next."""
        return self._in_rounds(lambda: self._pin_next(max_rows, wait_s))

    def check_places(self, tps: Collection[TopicPartition]) -> None:
        """Raise `RetriableError` while other readers may know more of what we own of *tps*."""
        if held := self._held.intersection(tps):
            raise RetriableError(f"nobody has said yet where {listed(held)} was")

    def prove(self, tps: Collection[TopicPartition]) -> None:
        """Have the group confirm, before ranges are run that others have pinned, that we own them.

        A fetch isn't fenced: a reader that was frozen since it joined would not know. Raises
        `RetriableError` where they are not ours any more; `settle` then says what is.
        """
        proof = Commit({}, {})
        self._add_proof(tps, proof)
        try:
            if proof.positions:
                self._transmit(_InDoubt(proof, unknown=False))
        except Rebalanced as error:
            self._moved_on(error)
            raise RetriableError(f"not ours any more: {error}") from error
        except CommitRefused as error:
            self._refused(error)
            raise RetriableError(f"not ours as they were: {error}") from error

    def with_rows(self, tps: Collection[TopicPartition]) -> set[TopicPartition]:
        """Return those of some owned partitions whose ranges that are pinned now the log holds.

        Raises:
            DataLossError: it lost rows of them, and that is to fail.

        """
        topics = self._membership.discovery.topics
        there = {tp: self._positions[tp] for tp in tps if tp.topic in topics}
        steps = self._planner.plan(there, {}, self._limits(None))
        return {tp for tp, step in steps.items() if step.pinned and step.stop > step.at}

    def depart(self, reason: str) -> bool:
        """Leave the group, and join it anew when something is asked next; see `Membership`."""
        return self._membership.depart(reason)

    def leave(self) -> None:
        """Leave the group. Never raises; may be called again, and from another thread."""
        self._membership.leave()

    @property
    def _session(self) -> ReaderSession:
        assert self._membership.session is not None
        return self._membership.session

    def _pin_next(self, max_rows: int | None, wait_s: float) -> Batch:
        try:
            assignment = self._settle_once(wait_s)
            steps = self._plan(max_rows)
            self._membership.note_ends(self._planner.ends)
        except GroupLossError:
            raise  # There is nothing to commit to.
        except CoordinatedSourceError:
            # The query ends, but not because of what it has finished: that is committed first.
            if self._finished and self._membership.assignment is not None:
                self._refresh(self._membership.assignment)
                self._send(self._only_finished())
            raise
        self._send(steps)
        self._planner.started(steps)
        if self.targets is not None and all(step.stop == step.at for step in steps.values()):
            for step in steps.values():
                if step.waiting:  # Having nothing to run would mean that all is done.
                    raise RetriableError(step.waiting)
            self.check_places(self._held)
        return Batch(assignment.generation, steps)

    def _settle_once(self, wait_s: float) -> Assignment:
        """Leave nothing in doubt: the last commit, our membership, our positions."""
        if self._in_doubt is not None:
            self._transmit(self._in_doubt)
        assignment = self._hand_over(wait_s)
        self._refresh(assignment)
        return assignment

    def _in_rounds(self, action: Callable[[], T]) -> T:
        """Do *action*, again after each time that the group moved on meanwhile."""
        for _ in range(ROUNDS_MAX):
            try:
                return action()
            except Rebalanced as error:
                self._moved_on(error)
            except CommitRefused as error:
                self._refused(error)
            except FatalError as error:
                if (reason := explained(error, self._options)) is not None:
                    raise CoordinatedSourceError(reason) from error
                raise
        raise RetriableError("the group changes faster than this reader can follow")

    # --- Membership ----------------------------------------------------------------------

    def _hand_over(self, wait_s: float) -> Assignment:
        membership = self._membership
        session = membership.open()
        if session is not None and not self._is_compared:
            self._compare_before_joining()
        if self._latest_from is None:
            self._latest_from = self._find_latest_from() if session else frozenset()
        if membership.is_current():
            assert membership.assignment is not None
            return membership.assignment
        if membership.assignment is not None:
            starts_unset = bool(self._unset_starts(membership.assignment))
            if self._finished or starts_unset:
                self._commit_before_joining(membership.assignment, starts_unset=starts_unset)
            if not membership.keeps:
                self._forget_positions()
        # A cooperative member hears in here what it loses, and gives it up: no range of it is
        # uncommitted now, and none has been planned since.
        assignment = membership.join(wait_s)
        kept = frozenset(assignment.partitions)
        self._positions = {tp: known for tp, known in self._positions.items() if tp in kept}
        return assignment

    def _commit_before_joining(self, assignment: Assignment, *, starts_unset: bool) -> None:
        """Commit what is finished, as far as the group takes commits now.

        A coordinator that was restarted in the middle of a rebalance takes none until the next
        generation, which waits for this reader. What a cooperative member has stays its own until
        it hears of that generation, and is committed then, before anything is given up.
        """
        self._refresh(assignment)
        try:
            self._send(self._only_finished())
            if starts_unset:
                self._send(self._plan_starts(assignment))
        except Rebalanced as error:
            if not self._membership.keeps or self._is_loss(error):
                raise
            logger.info("not committed before joining: %s", error)

    def _find_latest_from(self) -> frozenset[TopicPartition]:
        """Return the partitions that begin at the log's end if the group has no offset there.

        Only those that are known before this reader joins a group without any offsets: what
        appears in a group that is at work is read from its start. Asked before the join, when
        no member of the same generation can have committed yet.
        """
        if self._options.starting_offsets != "latest":
            return frozenset()
        known = frozenset(self._membership.discovery.all_partitions())
        return frozenset() if known and self._session.fetch(sorted(known)) else known

    def _unset_starts(self, assignment: Assignment) -> list[TopicPartition]:
        """Return the partitions that begin at the log's end and may have no offset yet.

        The next owner may have joined too late to see that the group had no offsets.
        """
        return [
            tp
            for tp in assignment.partitions
            if tp in (self._latest_from or ())
            and (tp not in self._positions or self._positions[tp].offset is None)
        ]

    def _moved_on(self, error: Rebalanced) -> None:
        self._in_doubt = None  # Fenced: what was not stored by now never will be.
        is_lost = self._is_loss(error)
        if is_lost or not self._membership.keeps:
            self._forget_positions()
        else:
            self._positions = {}  # Still ours, but others may have reset them.
        if is_lost:
            self._is_compared = False
            if self._options.on_fence == "fail":
                raise FencedError(f"{error}; option 'onFence' is 'fail'") from error
            logger.warning("%s; joining again, its last batch may run twice", error)

    def _is_loss(self, error: Rebalanced) -> bool:
        return isinstance(error, MemberLost) or self._session.lost

    def _refused(self, error: CommitRefused) -> None:
        codes = set(error.errors.values())
        self._positions = {}  # Some were stored; read back which, and go on from there.
        if ErrorCode.NOT_PARTITION_OWNER in codes:
            logger.warning("%s; joining again", error)
            self._session.request_rejoin("a commit was refused")
            self._forget_positions()
        elif codes <= {ErrorCode.OFFSET_CONFLICT}:
            logger.warning("%s; reading back what is stored", error)
        elif codes <= _RETRY_REFUSAL | {ErrorCode.OFFSET_CONFLICT}:
            raise RetriableError(str(error)) from error
        else:
            raise CoordinatedSourceError(str(error)) from error

    def _forget_positions(self) -> None:
        self._membership.assignment = None  # Until the next `join`.
        self._positions = {}
        self._planner.forget()

    # --- Positions and commits -----------------------------------------------------------

    def _refresh(self, assignment: Assignment) -> None:
        unknown = [tp for tp in assignment.partitions if tp not in self._positions]
        if self._membership.session is not None:
            self._read_back(unknown, assignment)
        self._finished = {
            tp: finished
            for tp, finished in self._finished.items()
            if still_ours(finished, self._positions.get(tp))
        }

    def _read_back(self, tps: Sequence[TopicPartition], assignment: Assignment) -> None:
        """Read where the group is in some owned partitions; put them back where that is lost."""
        session, memory = self._session, self._memory
        generation = assignment.generation
        if generation != memory.seen.generation and memory.is_waiting():
            tps = assignment.partitions  # Whoever came may know more of those that are back.
        elif not tps and (session.cluster_id, generation) == memory.seen[:2]:
            return
        found = self._compare(tps, generation)
        memory.own(assignment.partitions)
        back: dict[TopicPartition, Position] = {}
        self._held = set()
        if memory.is_lost and tps:
            back, self._held = memory.to_restore(found, session.places(tps))
        kept = {tp: p for tp, p in found.items() if tp not in back and tp not in self._held}
        self._unproven.update(tps)
        self._positions = {tp: p for tp, p in self._positions.items() if tp not in found} | kept
        self._note(session.cluster_id, generation, kept)
        if back:
            commit = Commit({}, {})
            for tp, place in back.items():
                commit.add(tp, place, found[tp])
            self._transmit(_InDoubt(commit, unknown=False))
            for tp, place in sorted(back.items()):
                logger.warning("%s: the group is put back to %d", tp, place.offset)
        if memory.is_lost and (unset := [tp for tp in kept if kept[tp].offset is None]):
            logger.warning("nobody knows where %s was; it is read from its start", listed(unset))

    def _note(
        self, cluster: str, generation: int, positions: Mapping[TopicPartition, Position]
    ) -> None:
        """Take note of where the group certainly is."""
        self._memory.note(cluster, generation, positions)
        for tp, known in positions.items():
            if known.offset is not None:
                self._began.setdefault(tp, known.offset)

    def _compare_before_joining(self) -> None:
        """Look, before joining (again), whether the group is still where it was."""
        topics = self._membership.discovery.topics
        tps = sorted(tp for tp in self._memory.seen.offsets if tp.topic in topics)
        if tps:
            self._compare(tps, NO_GENERATION)
        self._is_compared = True

    def _compare(
        self, tps: Sequence[TopicPartition], generation: int
    ) -> dict[TopicPartition, Position]:
        """Return where the group is in some partitions, after a loss has been dealt with."""
        session, memory = self._session, self._memory
        stored = session.fetch(tps) if tps else {}
        found = {tp: memory.read(tp, stored.get(tp), generation) for tp in tps}
        loss = memory.find_loss(session.cluster_id, generation, found)
        if loss is None:
            return found
        self._take_loss(loss)
        return {tp: memory.read(tp, stored.get(tp), generation) for tp in tps}

    def _take_loss(self, loss: Loss) -> None:
        """Go on after a loss as the option says.

        Raises:
            GroupLossError: it says that the query must end.

        """
        options, memory = self._options, self._memory
        policy = options.on_group_loss
        if policy == ERROR and loss.before.offsets:
            raise GroupLossError(refusal(loss, options.coordinator, options.group))
        what = f"the coordinator at {options.coordinator} has forgotten group {options.group!r}"
        if policy == STARTING_OFFSETS:
            logger.warning(
                "%s: %s. Reading goes on with what the group has now, else as option "
                "'startingOffsets' (%s) says: rows may be skipped, or come again",
                what,
                loss,
                options.starting_offsets,
            )
            memory.begin_anew(loss)
            return
        # A reader that knows no offsets itself waits for what others know.
        self._session.write_places(memory.places())
        logger.warning("%s: %s. It is put back where its readers were", what, loss)
        # Half of it: what must not end empty-handed waits here as well, and is not to fail for it.
        missing_s = options.coordinator_timeout_ms / 2000
        memory.put_back(loss, options.session_timeout_ms / 1000, missing_s)
        self._latest_from = frozenset()

    def _only_finished(self) -> dict[TopicPartition, Step]:
        """Return steps that start nothing. The log is not asked: it may be away, or broken."""
        return {
            tp: hold_partition(position, self._finished.get(tp), "")
            for tp, position in self._positions.items()
        }

    def _plan_starts(self, assignment: Assignment) -> dict[TopicPartition, Step]:
        """Return the steps that store where partitions begin that begin at the log's end."""
        topics = self._membership.discovery.topics
        limits = self._limits(None, plan_ranges=False)
        unset = (tp for tp in self._unset_starts(assignment) if tp.topic in topics)
        return self._planner.plan({tp: self._positions[tp] for tp in unset}, {}, limits)

    def _plan(self, max_rows: int | None) -> dict[TopicPartition, Step]:
        limits = self._limits(max_rows)
        discovery = self._membership.discovery
        topics = discovery.topics
        there = {tp: known for tp, known in self._positions.items() if tp.topic in topics}
        try:
            steps = self._planner.plan(there, self._finished, limits)
        except LogFailed:
            if not discovery.lost_topics():
                raise
            return self._plan(max_rows)
        for tp in self._positions.keys() - there.keys():
            # The topic matched the pattern and is gone: only what is finished is committed.
            steps[tp] = hold_partition(self._positions[tp], self._finished.get(tp), "")
        return steps

    def _limits(self, max_rows: int | None, *, plan_ranges: bool = True) -> Limits:
        return Limits(
            max_rows=max_rows,
            targets=self.targets,
            latest_from=self._latest_from or frozenset(),
            on_data_loss=self._options.on_data_loss,
            plan_ranges=plan_ranges,
            start_at=self._start_at(),
        )

    def _start_at(self) -> dict[TopicPartition, int]:
        """Return where those partitions begin that have no offset yet, if a time says so."""
        if self._options.starting_timestamp_ms is None:
            return {}
        topics = self._membership.discovery.topics
        unset = [
            tp
            for tp, known in self._positions.items()
            if known.offset is None and tp not in self._finished and tp.topic in topics
        ]
        return self._log.offsets_at(unset, self._options.starting_timestamp_ms) if unset else {}

    def _send(self, steps: Mapping[TopicPartition, Step]) -> None:
        commit = commit_for(steps, self._positions)
        if self._unproven:
            self._add_proof([tp for tp, step in steps.items() if step.stop > step.at], commit)
        if commit.positions:
            self._transmit(_InDoubt(commit, unknown=False))

    def _add_proof(self, tps: Collection[TopicPartition], commit: Commit) -> None:
        """Add to *commit* what is stored already, for those of *tps* that need a proof."""
        for tp in self._unproven.intersection(tps) - commit.positions.keys():
            commit.add(tp, self._positions[tp], self._positions[tp])

    def _transmit(self, doubt: _InDoubt) -> None:
        """Send a commit; it stays in doubt until there is a definite answer."""
        self._in_doubt = doubt
        try:
            self._session.commit(doubt.commit.offsets, doubt.commit.expected)
        except OutcomeUnknown:
            self._in_doubt = doubt._replace(unknown=True)
            raise
        except RetriableError:
            if not doubt.unknown:
                self._in_doubt = None  # Surely not stored: it may be planned anew.
            raise
        except (Rebalanced, CommitRefused):
            self._in_doubt = None
            raise
        self._in_doubt = None
        stored = doubt.commit.positions
        seen = self._memory.seen
        self._note(seen.cluster, seen.generation, stored)
        self._unproven.difference_update(stored)
        self._positions |= stored
        self._finished = {
            tp: finished
            for tp, finished in self._finished.items()
            if not is_stored(finished, stored.get(tp))
        }


class Membership:
    """The reader's membership of the group: which partitions it has, and when that changes.

    Args:
        options: the checked options of the stream.
        log: where the rows are.
        open_session: makes this reader a member of its group; called on first use.
        clock: a monotonic clock in seconds.

    Attributes:
        assignment: what this reader has; None before it joined, and after it lost all.
        session: the membership; None before it is used.
        discovery: the topics and partitions.

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
        self.discovery = Discovery(options, log, clock)
        self._open_session = open_session
        self._subscribed: tuple[str, ...] = ()
        self._listed: dict[str, list[int]] = {}
        self._losses = 0
        self._eager = False
        self._why_lost = REMOVED
        self._seen_in = self._complete_in = NO_GENERATION

    @property
    def keeps(self) -> bool:
        """Whether the partitions that stay are kept through a rebalance."""
        return self.session is not None and self.session.cooperative

    def open(self) -> ReaderSession | None:
        """Become a member, unless there is no topic to read; joins with `join`."""
        if self.session is None:
            if self.discovery.is_due:
                self.discovery.look()
            self._subscribed = self.discovery.topics
            if self._subscribed:
                self.session = self._open_session(self.discovery.topics, self._eager)
                self.session.note_topics(self.discovery.partitions)
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
            raise MemberLost(self._why_lost)
        return not session.rebalance_needed and not self._must_rebalance(session, assignment)

    def join(self, wait_s: float) -> Assignment:
        """Join, or go on with it, as far as the group lets us; return what we have then.

        Raises:
            MemberLost: what we had is somebody else's.

        """
        session = self.session
        if session is None:
            return _NOTHING
        self._look(session)  # The group must not wait for the log.
        self._subscribe(session)
        before, losses = self.assignment, self._losses
        assignment = session.assignment(wait_s)
        self._losses = session.losses
        self._why_lost = REMOVED
        if before is not None and before.partitions and session.losses != losses:
            self.assignment = None
            raise MemberLost(REMOVED)
        if before is None or before.generation != assignment.generation:
            logger.info(
                "generation %d: this reader owns %s",
                assignment.generation,
                ", ".join(map(str, assignment.partitions)) or "nothing",
            )
        self.assignment = assignment
        return assignment

    def note_ends(self, ends: Mapping[TopicPartition, int]) -> None:
        """Have the coordinator told where partitions end."""
        if self.session is not None:
            self.session.note_ends(ends)

    def depart(self, reason: str) -> bool:
        """Leave the group, to join it anew when something is asked next; say whether we were in it.

        Never raises. May be called from another thread, beside no other call.
        """
        if self.session is None:
            return False
        self._why_lost = f"this reader left the group: {reason}"
        self.session.depart(reason)
        return True

    def leave(self) -> None:
        """Leave the group. Never raises; may be called again, and from another thread."""
        session = self.session
        if session is not None:
            session.leave()

    def _look(self, session: ReaderSession) -> None:
        self.discovery.look_again()
        session.note_topics(self.discovery.partitions)

    def _must_rebalance(self, session: ReaderSession, assignment: Assignment) -> bool:
        """Look for new topics and partitions now and then; ask for a rebalance if there are."""
        is_due = self.discovery.is_due
        if is_due:
            self._look(session)
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
        if session.unassigned(self.discovery.partitions):
            return True
        self._complete_in = generation
        return False

    def _subscribe(self, session: ReaderSession) -> bool:
        """Tell the group which topics we read if these have changed; return whether they have."""
        topics = self.discovery.topics
        if topics == self._subscribed:
            return False
        session.request_rejoin("the topics changed", topics)
        self._subscribed = topics
        return True

    def _have_grown(self, session: ReaderSession) -> bool:
        """Say whether there are partitions that were not shared out.

        What counts is what was known when that was done, perhaps by now long ago.
        """
        found = self.discovery.partitions
        if listed := session.listed or self._listed:
            return any(listed.get(topic) != partitions for topic, partitions in found.items())
        # A static leader that was restarted: it took over what it hasn't computed.
        grown = session.unassigned(found)
        if not grown:
            self._listed = found
        return grown


class Planner:
    """Plans the next range of each partition, from what the log shows.

    It remembers from one trigger to the next since when a log ends too early, and whose turn it is
    in a batch of bounded size.

    Args:
        options: the checked options of the stream.
        log: where the rows are.
        clock: a monotonic clock in seconds.

    """

    def __init__(self, options: ReaderOptions, log: LogCalls, clock: Callable[[], float]) -> None:
        self.ends: dict[TopicPartition, int] = {}  # The log's ends as last seen.
        self._log = log
        self._clock = clock
        self._admission = Admission(options.max_rows_per_batch)
        self._waiting_since_s: dict[TopicPartition, float] = {}

    def plan(
        self,
        positions: Mapping[TopicPartition, Position],
        finished: Mapping[TopicPartition, Finished],
        limits: Limits,
    ) -> dict[TopicPartition, Step]:
        """Return a step for each partition.

        A partition whose log can't be asked now is held: what is finished is committed, and
        nothing new starts.

        Raises:
            DataLossError: rows that should come next are gone and that is to fail.
            LogFailed: the log fails for good, or for too long.

        """
        steps: dict[TopicPartition, Step] = {}
        self.ends = {}
        self._waiting_since_s = waiting = {
            tp: since_s for tp, since_s in self._waiting_since_s.items() if tp in positions
        }
        views = self._log.view(positions)
        for tp, position in positions.items():
            view = views[tp]
            if isinstance(view, RetriableError):
                steps[tp] = hold_partition(position, finished.get(tp), str(view))
                continue
            self.ends[tp] = view.end
            if tp in waiting:
                view = view._replace(lag_over=self._clock() - waiting[tp] >= LAG_MAX_S)
            steps[tp] = step = plan_partition(tp, position, finished.get(tp), view, limits)
            if not step.waiting:
                waiting.pop(tp, None)
            elif tp not in waiting:
                logger.warning("%s; waiting up to %g s for it", step.waiting, LAG_MAX_S)
                waiting[tp] = self._clock()
        return self._admission.admit(steps, positions)

    def started(self, steps: Mapping[TopicPartition, Step]) -> None:
        """Note that the ranges of these steps may start; say which rows they leave out."""
        for step in steps.values():
            if step.lost:
                logger.warning("%s", step.lost)
        self._admission.served(steps)

    def forget(self) -> None:
        """Begin anew with other partitions."""
        self._waiting_since_s.clear()
