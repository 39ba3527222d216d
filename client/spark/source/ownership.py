"""A reader's part of its group: its membership, its positions, and its pending commits.

`Ownership` is the half of the reader core that talks to the coordinator. `Membership` follows the
group, and asks for a rebalance when the topics change; `Planner` asks the log, and applies the
rules of `planning` to all owned partitions. The rules of `Ownership`:

- A commit whose answer was lost is repeated, byte for byte, until there is an answer; nothing
  else is decided before.
- Partitions are given away in `settle` only, after committing what is finished, with the pins
  cleared: Spark runs no batch then. A cooperative member hears which ones it loses only while it
  lets go of them, so everything is committed before.
- Positions are read back whenever they are not certain: those of gained partitions, and all of
  them after a loss or a conflict. A finished range is then committed only if the coordinator still
  has its start.
- A range that was read back is run only after a commit of this reader was accepted: a fetch isn't
  fenced.
- Positions that were read back are compared with those that this reader saw before
  (`group_memory`): a group that the coordinator has forgotten is not taken for a new one.
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

# Reason for the loss of partitions, unless this reader left by itself.
REMOVED: Final = "the group removed this reader"

# Rounds of rejoining within one trigger; a group that changes faster gets the next trigger.
ROUNDS_MAX: Final = 5

# Both errors pass once an operator makes room; a waiting query then goes on by itself.
_RETRY_REFUSAL: Final = {ErrorCode.STORAGE_FULL, ErrorCode.QUOTA_EXCEEDED}

_NOTHING = Assignment(NO_GENERATION, "", (), is_leader=False)


class Batch(NamedTuple):
    """A batch that may start: its ranges are pinned."""

    generation: int
    steps: dict[TopicPartition, Step]


class _InDoubt(NamedTuple):
    commit: Commit
    unknown: bool  # Whether the outcome of an attempt is unknown.


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
        # Owned partitions whose place after a loss other readers have yet to write down.
        self._held: set[TopicPartition] = set()
        # Certain positions of owned partitions; the others are fetched before anything is planned.
        self._positions: dict[TopicPartition, Position] = {}
        # Fetched positions whose ownership no accepted commit of this reader has proved yet.
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
        """The group as this reader last saw it, for the next end offset."""
        return self._memory.seen

    @property
    def committed(self) -> dict[TopicPartition, Committed]:
        """The offsets that this run has committed, including a commit whose answer was lost."""
        now = {tp: known.offset for tp, known in self._memory.seen.offsets.items()}
        if self._in_doubt is not None:
            now |= {tp: known.offset for tp, known in self._in_doubt.commit.offsets.items()}
        return {tp: Committed(at, now[tp]) for tp, at in self._began.items() if now[tp] > at}

    def remember(self, memory: Memory) -> None:
        """Take over the checkpoint's memory of the group, before any decision about the group."""
        self._memory.remember(memory)
        self._is_compared = False
        self._positions = {}
        was_there = memory.generation != NO_GENERATION
        if was_there and self._options.on_group_loss != STARTING_OFFSETS:
            self._latest_from = frozenset()  # The group isn't new, even if it has no offsets.

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
        """Raise `RetriableError` while other readers may know a later place of owned *tps*."""
        if held := self._held.intersection(tps):
            raise RetriableError(f"nobody has said yet where {listed(held)} was")

    def prove(self, tps: Collection[TopicPartition]) -> None:
        """Have the group confirm that this reader owns *tps*, before it runs ranges others pinned.

        A fetch isn't fenced: a reader that was frozen since it joined would not notice a loss.
        Raises `RetriableError` if partitions are no longer owned; `settle` returns those that are.
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
        """Return the partitions among owned *tps* whose pinned ranges the log still holds.

        Raises:
            DataLossError: the log lost rows, and option 'onDataLoss' is 'error'.

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
            raise  # There is no group to commit to.
        except CoordinatedSourceError:
            # The query ends, but its finished ranges are good: they are committed first.
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
        """Do *action*, at most `ROUNDS_MAX` times: again after a rebalance or a refused commit."""
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
        # In `join` a cooperative member learns which partitions it loses, and gives them up: they
        # have no uncommitted range now, and none has been planned since.
        assignment = membership.join(wait_s)
        kept = frozenset(assignment.partitions)
        self._positions = {tp: known for tp, known in self._positions.items() if tp in kept}
        return assignment

    def _commit_before_joining(self, assignment: Assignment, *, starts_unset: bool) -> None:
        """Commit finished ranges, if the group accepts commits now.

        A coordinator that was restarted in the middle of a rebalance accepts no commit until the
        next generation, which waits for this reader. A cooperative member keeps its partitions
        until it learns of that generation, and commits then, before it gives any up.
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

        These are the partitions known before this reader joins a group without any offsets: a
        partition that appears in a group at work is read from its start. The offsets are fetched
        before the join, when no member of the same generation can have committed yet.
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
        self._in_doubt = None  # Fenced: a commit that isn't stored now never will be.
        is_lost = self._is_loss(error)
        if is_lost or not self._membership.keeps:
            self._forget_positions()
        else:
            self._positions = {}  # Still owned, but other clients may have reset them.
        if is_lost:
            self._is_compared = False
            if self._options.on_fence == "fail":
                raise FencedError(f"{error}; option 'onFence' is 'fail'") from error
            logger.warning("%s; joining again, its last batch may run twice", error)

    def _is_loss(self, error: Rebalanced) -> bool:
        return isinstance(error, MemberLost) or self._session.lost

    def _refused(self, error: CommitRefused) -> None:
        codes = set(error.errors.values())
        self._positions = {}  # Some offsets were stored; read back which, and go on from there.
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
        """Read the positions of owned partitions *tps*; restore those that the group has lost."""
        session, memory = self._session, self._memory
        generation = assignment.generation
        if generation != memory.seen.generation and memory.is_waiting():
            # New members may know a later place of restored partitions.
            tps = assignment.partitions
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
        self._memory.note(cluster, generation, positions)
        for tp, known in positions.items():
            if known.offset is not None:
                self._began.setdefault(tp, known.offset)

    def _compare_before_joining(self) -> None:
        """Compare the group's offsets with those last seen, before this reader joins (again)."""
        topics = self._membership.discovery.topics
        tps = sorted(tp for tp in self._memory.seen.offsets if tp.topic in topics)
        if tps:
            self._compare(tps, NO_GENERATION)
        self._is_compared = True

    def _compare(
        self, tps: Sequence[TopicPartition], generation: int
    ) -> dict[TopicPartition, Position]:
        """Return the group's positions in *tps*, after a loss has been dealt with."""
        session, memory = self._session, self._memory
        stored = session.fetch(tps) if tps else {}
        found = {tp: memory.read(tp, stored.get(tp), generation) for tp in tps}
        loss = memory.find_loss(session.cluster_id, generation, found)
        if loss is None:
            return found
        self._take_loss(loss)
        return {tp: memory.read(tp, stored.get(tp), generation) for tp in tps}

    def _take_loss(self, loss: Loss) -> None:
        """Go on after a loss as option 'onGroupLoss' says.

        Raises:
            GroupLossError: the option is 'error'.

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
        # A reader that knows no offsets itself waits for the places of other readers.
        self._session.write_places(memory.places())
        logger.warning("%s: %s. It is put back where its readers were", what, loss)
        # Half of the timeout: `_until_done` waits through this as well, and must not time out.
        missing_s = options.coordinator_timeout_ms / 2000
        memory.put_back(loss, options.session_timeout_ms / 1000, missing_s)
        self._latest_from = frozenset()

    def _only_finished(self) -> dict[TopicPartition, Step]:
        """Return steps that start no range. The log is not asked: it may be down, or broken."""
        return {
            tp: hold_partition(position, self._finished.get(tp), "")
            for tp, position in self._positions.items()
        }

    def _plan_starts(self, assignment: Assignment) -> dict[TopicPartition, Step]:
        """Return the steps that store the start of partitions that begin at the log's end."""
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
            # The topic matched the pattern and is gone: only its finished ranges are committed.
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
        """Return the start of partitions without an offset, if 'startingTimestamp' is set."""
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
        """Add to *commit* the stored positions of those of *tps* whose ownership needs a proof."""
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
                self._in_doubt = None  # Surely not stored: the next trigger may plan a new commit.
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
        assignment: the partitions of this reader; None before it joined, and after it lost all.
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
        """Say whether the assignment is current; if not, commit finished ranges, then `join`.

        Raises:
            MemberLost: this reader's partitions belong to others.

        """
        session, assignment = self.session, self.assignment
        if session is None or assignment is None:
            return False
        if (session.lost or session.losses != self._losses) and assignment.partitions:
            raise MemberLost(self._why_lost)
        return not session.rebalance_needed and not self._must_rebalance(session, assignment)

    def join(self, wait_s: float) -> Assignment:
        """Join the group, or continue joining; return the assignment.

        Raises:
            MemberLost: this reader's partitions belong to others.

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
        """Have the ends of partitions reported to the coordinator."""
        if self.session is not None:
            self.session.note_ends(ends)

    def depart(self, reason: str) -> bool:
        """Leave the group until the next call joins it anew; say whether there was a session.

        Never raises. May be called from another thread, but not during another call.
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
        """Look for new topics and partitions when due; request a rebalance if there are any."""
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
        """Say whether partitions are unassigned one discovery interval after the rebalance.

        A reader that gives up a partition requests the round that assigns it to another reader; a
        static reader that was restarted in between can't. Checked once per generation.
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
        """Say whether the topics have partitions that the last assignment didn't include.

        The comparison is with the partitions known at that assignment, maybe long ago.
        """
        found = self.discovery.partitions
        if listed := session.listed or self._listed:
            return any(listed.get(topic) != partitions for topic, partitions in found.items())
        # A restarted static leader took over an assignment that this process didn't compute.
        grown = session.unassigned(found)
        if not grown:
            self._listed = found
        return grown


class Planner:
    """Plans the next range of each partition, from what the log shows.

    Between triggers it remembers since when a log ends too early, and which partition's turn it is
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

        A partition whose log can't be asked now is held: its finished range is committed, and
        no range starts.

        Raises:
            DataLossError: the next rows are gone, and option 'onDataLoss' is 'error'.
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
        """Note that the ranges of *steps* may start; log which lost rows they leave out."""
        for step in steps.values():
            if step.lost:
                logger.warning("%s", step.lost)
        self._admission.served(steps)

    def forget(self) -> None:
        """Forget the waiting times: the partitions are others from now on."""
        self._waiting_since_s.clear()
