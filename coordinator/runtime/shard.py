"""One offsets partition at work: its pure core, its gate, and its place in the journal."""

import heapq
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import count
from operator import itemgetter
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from coordinator.group import node_records, records
from coordinator.group.core import Caller, Event, Now, Outcome
from coordinator.group.records import Item
from coordinator.log.errors import LogFailed
from coordinator.runtime.calls import Token
from coordinator.runtime.logs import Log
from protocol.errors import ErrorCode
from protocol.messages import HeartbeatRequest, OffsetCommitRequest, Request
from protocol.partition import NO_LEADER_EPOCH


class Status(Enum):
    """Whether the partition can be asked."""

    STARTING = "starting"  # Another node may lead it; this one has not read its log yet.
    LOADING = "loading"
    ACTIVE = "active"
    SUSPENDED = "suspended"  # Led, and cut off from the log: nothing can be decided for a while.
    CUT_OFF = "cut off"  # The same, for so long that another node may lead.
    FOLLOWING = "following"  # Another node leads it; what that decides is replayed.
    CLOSED = "closed"


# Why a partition can't be asked.
_REFUSALS: Final[Mapping[Status, ErrorCode | None]] = {
    Status.STARTING: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    Status.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    Status.ACTIVE: None,
    Status.SUSPENDED: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    Status.CUT_OFF: ErrorCode.NOT_COORDINATOR,
    Status.FOLLOWING: ErrorCode.NOT_COORDINATOR,
    Status.CLOSED: ErrorCode.NOT_COORDINATOR,
}
# In which groups live, though perhaps nothing can be asked of them.
_LED: Final = frozenset({Status.ACTIVE, Status.SUSPENDED, Status.CUT_OFF})
# In which everything is in memory that the log says.
_WHOLE: Final = _LED | {Status.FOLLOWING}
# In which nothing is in memory, and nothing will be before the log was read.
_UNREAD: Final = frozenset({Status.STARTING, Status.CLOSED})


class Services(Protocol):
    """What a shard needs of its node."""

    commit_timeout_ms: int
    now: Callable[[], Now]

    def deadline_may_be_earlier(self, deadline_ms: int | None) -> None:
        """The timer task may have to wake before it planned to."""

    def emit(self, event: Event) -> None:
        """Log an event of the core."""


class Core(Protocol):
    """The pure part of a shard: `GroupShard`, or `NodeShard` for what is the node's own."""

    storage_full: bool

    @property
    def has_parked(self) -> bool:
        """Whether a request is parked."""

    def handle(self, request: Request, token: object, caller: Caller, now: Now) -> Outcome:
        """Decide one request."""

    def interrupted(self) -> Outcome | None:
        """Return what the latest decision, if it raised, had decided already."""

    def withdraw(self, token: object, now: Now) -> Outcome | None:
        """Take back a parked request."""

    def released(self, member: Any, now: Now) -> None:
        """Note that a gated reply to *member* left the gate."""

    def kept(self, group_id: str, end_offset: int) -> None:
        """Note that what was decided about a group is in the log, up to *end_offset*."""

    def end_offset(self, group_id: str) -> int:
        """Return the end offset of a group's last entry."""

    def begin_replay(self, now: Now) -> None:
        """Note when what comes is replayed."""

    def replay(self, record: Any) -> None:
        """Apply one record of the log."""

    def caught_up(self) -> None:
        """Let others look at what was replayed, though another node leads."""

    def finish_load(self, now: Callable[[], Now]) -> Iterator[list[Outcome]]:
        """Start to serve what was replayed, in slices."""

    def unload(self, now: Now) -> list[Outcome]:
        """Stop serving, and forget everything."""

    def rest(self, now: Callable[[], Now]) -> Iterator[list[Outcome]]:
        """Stop serving, and keep what was replayed, in slices."""

    def next_deadline_ms(self) -> int | None:
        """Return when `expire` has something to do."""

    def shift_deadlines(self, by_ms: int) -> None:
        """Move all deadlines."""

    def expire(self, now: Now) -> list[Outcome]:
        """Do what is due."""


class Codec(NamedTuple):
    """How the records of a core lie in the log."""

    pack: Callable[[Sequence[Any]], tuple[int, bytes]]
    read_item: Callable[[Item], Any]


GROUP_CODEC: Final = Codec(records.pack, records.read_item)
NODE_CODEC: Final = Codec(node_records.pack, node_records.read_item)

_ACTIVE: Final = Status.ACTIVE
C = TypeVar("C", bound=Core)
T = TypeVar("T")

# These only ever move a member's deadline later, so the timer need not be told.
_QUIET_REQUESTS = frozenset({HeartbeatRequest, OffsetCommitRequest})


# The offset it waits for, when it is given up, who waits, the answer as `Token.prepare` made it,
# and the member that is told. A plain tuple: one is made for every commit.
Parked = tuple[int, int, Token, Any, Any]
# Instead of the offset, where nothing was appended.
_NOTHING: Final = 2**63


class ReplyGate:
    """Holds answers until the log has caught up with them, and releases them.

    Positions are offsets of the shard's partition, not of the journal: what comes in is the
    partition's committed offset, which is what is fsynced on one node, and what all in-sync
    replicas have in a cluster.

    What was just appended waits for the highest offset so far, so nearly all answers queue up in
    order. A read waits for its own group's last entry only, which may be earlier: a heap.

    Attributes:
        park_last: Holds what waits for the highest offset so far, a `Parked`; nearly all do.
        committed_offset: See `advance`.
        told_offset: What is known up to it may be told at once.
    """

    def __init__(self, released: Callable[[Any], None]) -> None:
        """Make it; *released* is called with the member, if there is one, before each answer."""
        self._released = released
        self._queue: deque[Parked] = deque()
        self.park_last = self._queue.append
        # Each with a number: of those with the same offset, the first one decided comes first.
        self._early: list[tuple[int, int, Parked]] = []
        self._numbers = count()
        self.committed_offset = 0
        self.told_offset = 0

    def __len__(self) -> int:
        """Return how many answers wait."""
        return len(self._queue) + len(self._early)

    def park(
        self, until_offset: int, deadline_ms: int, token: Token, answer: Any, member: Any
    ) -> None:
        """Hold *answer* until the partition is committed up to *until_offset*."""
        parked = (until_offset, deadline_ms, token, answer, member)
        queue = self._queue
        if until_offset <= self.committed_offset:
            self._release(parked)
        elif not queue or until_offset >= queue[-1][0]:
            queue.append(parked)
        else:
            heapq.heappush(self._early, (until_offset, next(self._numbers), parked))

    def advance(self, committed_offset: int) -> None:
        """Send everything that waited for *committed_offset* or less."""
        assert committed_offset >= self.committed_offset
        self.committed_offset = self.told_offset = committed_offset
        queue, early = self._queue, self._early
        while queue and queue[0][0] <= committed_offset:
            # `_release` written out: nearly every answer leaves here.
            _, _, token, answer, member = queue.popleft()
            if member is not None:
                self._released(member)
            token.send(answer)
        while early and early[0][0] <= committed_offset:
            self._release(heapq.heappop(early)[2])

    def _release(self, parked: Parked) -> None:
        _, _, token, answer, member = parked
        if member is not None:
            self._released(member)
        token.send(answer)

    def give_up(self, now_ms: int | None = None) -> list[Parked]:
        """Remove what waited past its deadline, or with None everything; return it in order."""
        late: list[Parked] = []
        kept: list[Parked] = []
        waiting = [*self._queue, *(parked for _, _, parked in sorted(self._early))]
        for parked in sorted(waiting, key=itemgetter(0)):
            (late if now_ms is None or parked[1] <= now_ms else kept).append(parked)
        self._queue.clear()
        self._queue.extend(kept)
        self._early = []
        return late


class FencedGate(ReplyGate):
    """Holds what memory alone says, too: another node may lead the log by now, unnoticed.

    Such an answer waits for a write of the log that is taken behind it: if that one comes through,
    nobody else has led before. It may be a check alone, which passes what is yet to be written. So
    the answer waits for its offset, too, once it is confirmed.
    """

    def __init__(self, released: Callable[[Any], None], next_write: Callable[[], int]) -> None:
        """Make it; *next_write* has another write taken, and returns its number."""
        super().__init__(released)
        self._next_write = next_write
        # By the number of the write, with the offset; nothing of them was appended. Those that are
        # confirmed are the early ones.
        self._unconfirmed: deque[tuple[int, int, Parked]] = deque()
        self.told_offset = -1

    def __len__(self) -> int:
        """Return how many answers wait."""
        return super().__len__() + len(self._unconfirmed)

    def park(
        self, until_offset: int, deadline_ms: int, token: Token, answer: Any, member: Any
    ) -> None:
        """Hold *answer* until the next write has come through, and what *until_offset* tells."""
        parked = (_NOTHING, deadline_ms, token, answer, member)
        self._unconfirmed.append((self._next_write(), until_offset, parked))

    def advance(self, committed_offset: int) -> None:
        """Send what was appended up to *committed_offset*."""
        super().advance(committed_offset)
        self.told_offset = -1

    def confirm(self, write: int) -> None:
        """Send what waited for *write* or an earlier one, unless it shows what isn't kept yet."""
        unconfirmed = self._unconfirmed
        while unconfirmed and unconfirmed[0][0] <= write:
            _, until_offset, parked = unconfirmed.popleft()
            if until_offset <= self.committed_offset:
                self._release(parked)
            else:
                heapq.heappush(self._early, (until_offset, next(self._numbers), parked))

    def renew(self, leader_epoch: int) -> None:
        """Let what waits leave under another epoch of the same leader; lower ones are refused."""

        def renewed(parked: Parked) -> Parked:
            until, deadline_ms, token, answer, member = parked
            return until, deadline_ms, token, token.renew(answer, leader_epoch), member

        for at, parked in enumerate(self._queue):
            self._queue[at] = renewed(parked)
        for waiting in (self._unconfirmed, self._early):
            for at, (first, second, parked) in enumerate(waiting):
                waiting[at] = first, second, renewed(parked)

    def give_up(self, now_ms: int | None = None) -> list[Parked]:
        """Remove what waited past its deadline, or with None everything; return it in order."""
        early, self._early = sorted(self._early), []
        unconfirmed, self._unconfirmed = self._unconfirmed, deque()
        late = super().give_up(now_ms)
        for waiting, kept in ((early, self._early), (unconfirmed, self._unconfirmed)):
            for one in waiting:
                if now_ms is None or one[2][1] <= now_ms:
                    late.append(one[2])
                else:
                    kept.append(one)
        return late


class ShardRunner(Generic[C]):
    """Applies what the core decides: log, then gate, then the answer.

    Attributes:
        log: Where the partition lies.
        unloads: How often it has stopped to serve what is in memory.
    """

    def __init__(
        self,
        partition: int,
        core: C,
        codec: Codec,
        log: Log,
        want_flush: Callable[[], None],
        services: Services,
    ) -> None:
        """Make it; *want_flush* is called when something waits for a flush of *log*."""
        self.partition = partition
        self.core = core
        self.log = log
        self.status = Status.STARTING if log.is_fenced else Status.LOADING
        self.gate = (
            FencedGate(self._released, self._next_write)
            if log.is_fenced
            else ReplyGate(self._released)
        )
        self._services = services
        self._leader_epoch = log.leader_epoch
        self._append = log.append_packed
        self._pack = codec.pack
        self._read_item = codec.read_item
        self._want_flush = want_flush
        self._commit_timeout_ms = services.commit_timeout_ms
        self._now = Now(0, 0)  # Of the step that is being done, for replies that leave in it.
        self.unloads = 0

    # --- requests -----------------------------------------------------------------------

    def refusal(self) -> ErrorCode | None:
        """Return why the partition can't be asked now, or None."""
        return _REFUSALS[self.status]

    @property
    def is_whole(self) -> bool:
        """Whether everything is in memory that the log says, whoever leads."""
        return self.status in _WHOLE

    @property
    def is_unread(self) -> bool:
        """Whether nothing is in memory, and the log is not being read to serve here."""
        return self.status in _UNREAD

    @property
    def is_led(self) -> bool:
        """Whether its groups live here, though perhaps nothing can be asked of them now."""
        return self.status in _LED

    def handle(self, request: Request, token: Token, caller: Caller, now: Now) -> None:
        """Decide one request of one group; the answer reaches *token* now or later."""
        if self.status is not _ACTIVE:
            self._refuse(token)
            return
        try:
            outcome = self.core.handle(request, token, caller, now)
        except Exception:
            self._keep_half_done(now)
            raise
        self.apply(outcome, now)
        if type(request) not in _QUIET_REQUESTS:
            self._services.deadline_may_be_earlier(self.core.next_deadline_ms())

    def read(self, group_id: str | None, token: Token, look: Callable[[], Any], now: Now) -> None:
        """Answer with what *look* sees now, once the group's last entry is committed.

        With *group_id* None the answer waits for every group of the shard.
        """
        if not self.refuses(token):
            self.tell(group_id, token, look(), now)

    def refuses(self, token: Token) -> bool:
        """Say whether the partition can't be asked now; *token* is told so."""
        if self.status is _ACTIVE:
            return False
        self._refuse(token)
        return True

    def tell(
        self,
        group_id: str | None,
        token: Token,
        seen: Any,
        now: Now,
        error: int | None = None,
    ) -> None:
        """Do what `read` does, with what was *seen* just now, and `Token.prepare` with *error*."""
        answer = token.prepare(seen, self._leader_epoch, error)
        if group_id is None:
            until = self.log.end_offset(self.partition)
        else:
            until = self.core.end_offset(group_id)
        if until <= self.gate.told_offset:
            token.send(answer)
        else:
            self.gate.park(until, now.mono_ms + self._commit_timeout_ms, token, answer, None)

    def read_in_slices(
        self,
        group_id: str | None,
        token: Token,
        looking: Generator[None, None, Any],
        now: Callable[[], Now],
    ) -> Iterator[None]:
        """Do what `read` does with what *looking* returns in the end, which takes long.

        If the partition was unloaded meanwhile, what was seen may never have been durable: 16.
        """
        unloads = self.unloads
        if self.refuses(token):
            return
        seen = yield from looking
        if self.unloads != unloads:
            token.fail(ErrorCode.NOT_COORDINATOR, NO_LEADER_EPOCH)
        elif not self.refuses(token):
            self.tell(group_id, token, seen, now())

    def decide(self, decide: Callable[[], tuple[Outcome, Any]], token: Token, now: Now) -> None:
        """Do what *decide* returns; its share of the answer reaches *token* once that is kept."""
        if self.refuses(token):
            return
        outcome, share = self._decided(decide, now)
        outcome.replies.append((token, share, None, True, None))
        self.apply(outcome, now)

    def change(self, decide: Callable[[], Outcome], now: Now) -> None:
        """Do what *decide* returns, which answers nobody; nothing while this isn't served."""
        if self.status is Status.ACTIVE:
            self.apply(self._decided(decide, now), now)

    def withdraw(self, token: Token, now: Now) -> None:
        """The client behind a parked JoinGroup or SyncGroup is gone."""
        if self.status in _LED:
            outcome = self._decided(partial(self.core.withdraw, token, now), now)
            if outcome is not None:
                self.apply(outcome, now)
            self._services.deadline_may_be_earlier(self.core.next_deadline_ms())

    # --- time ---------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return when `expire` has something to do."""
        return self.core.next_deadline_ms() if self.status is Status.ACTIVE else None

    def expire(self, now: Now) -> None:
        """Do what is due."""
        self._apply_all(self.core.expire(now), now)

    def give_up(self, now: Now) -> None:
        """Answer OUTCOME_UNKNOWN where a flush took longer than the commit timeout."""
        self._fail(self.gate.give_up(now.mono_ms), ErrorCode.OUTCOME_UNKNOWN, now)

    # --- the log ------------------------------------------------------------------------

    def advance(self, committed_offset: int, now: Now) -> None:
        """The partition is committed up to *committed_offset*: let go what waited for it."""
        self._now = now
        self.gate.advance(committed_offset)

    def begin_load(self) -> int:
        """Be loaded from the log from here on, closed as it is; return the number of this load."""
        assert self.status is Status.CLOSED
        self.status = Status.LOADING
        return self.unloads

    def is_loading(self, number: int) -> bool:
        """Say whether the load *number* is still wanted."""
        return self.status is Status.LOADING and self.unloads == number

    @property
    def is_durable(self) -> bool:
        """Whether everything that was appended is on disk."""
        return self.log.end_offset(self.partition) <= self.gate.committed_offset

    def replay(self, items: Iterable[Item]) -> None:
        """Load entries of the log. Raises RecordError on one that this code can't know."""
        self.core.begin_replay(self._services.now())
        replay, read_item = self.core.replay, self._read_item
        for item in items:
            replay(read_item(item))

    def finish_load(self, now: Callable[[], Now]) -> Iterator[None]:
        """Everything is replayed: start to serve, and yield after every slice of that."""
        self.renew()
        self.gate.advance(self.log.end_offset(self.partition))
        for outcomes in self.core.finish_load(now):
            self._apply_all(outcomes, now())
            yield
        self.status = Status.ACTIVE
        self._services.deadline_may_be_earlier(self.core.next_deadline_ms())

    def unload(self, now: Now) -> None:
        """Stop serving: 16 for what is parked; what was appended is answered when durable."""
        self.status = Status.CLOSED
        self.unloads += 1
        if self.core.has_parked:
            self._leave(self.core.unload(now), now)

    def drop(self, now: Now, doubtful_offset: int = _NOTHING - 1) -> None:
        """Stop serving at once, and forget everything.

        What was appended up to *doubtful_offset* and isn't durable is answered 1000, as it may be
        in the log, or come there. Everything else is answered 16.
        """
        if self.status is not Status.STARTING:
            self.status = Status.CLOSED
        self.unloads += 1
        waiting = self.gate.give_up()
        doubtful = [parked for parked in waiting if parked[0] <= doubtful_offset]
        self._fail(doubtful, ErrorCode.OUTCOME_UNKNOWN, now)
        self._fail(waiting[len(doubtful) :], ErrorCode.NOT_COORDINATOR, now)
        self._leave(self.core.unload(now), now)

    # --- terms of a leader --------------------------------------------------------------

    def _next_write(self) -> int:
        self._want_flush()
        return self.log.next_write()

    def confirm(self, write: int, now: Now) -> None:
        """The log has passed the fence with *write*: let go what waited for that."""
        assert isinstance(self.gate, FencedGate)
        self._now = now
        self.gate.confirm(write)

    def follow(self) -> None:
        """The log was read to its end: go on replaying what another node decides."""
        assert self.status in _UNREAD
        self.core.caught_up()
        self.status = Status.FOLLOWING

    def begin_to_lead(self) -> int:
        """Have whoever asks wait for `finish_load`; return the number of this load."""
        assert self.status is Status.FOLLOWING
        self.status = Status.LOADING
        return self.unloads

    def renew(self) -> None:
        """Answer by the epoch that the log has now."""
        self._leader_epoch = self.log.leader_epoch
        if isinstance(self.gate, FencedGate):
            self.gate.renew(self._leader_epoch)

    def suspend(self, *, is_cut_off: bool) -> None:
        """Decide nothing, as nothing comes into the log; what is parked waits."""
        if self.status in _LED:
            self.status = Status.CUT_OFF if is_cut_off else Status.SUSPENDED

    def resume(self, after_ms: int) -> None:
        """Go on as if the *after_ms* had not been: nobody could be heard."""
        if self.status in _LED:
            self.core.shift_deadlines(after_ms)
            self.status = Status.ACTIVE
            self._services.deadline_may_be_earlier(self.core.next_deadline_ms())

    def hand_over(self) -> None:
        """Answer 16 from here on; what was appended is answered when it is durable. `rest` next."""
        if self.status is not Status.FOLLOWING and not self.is_unread:
            self.status = Status.FOLLOWING
            self.unloads += 1

    def rest(self, now: Callable[[], Now]) -> Iterator[None]:
        """Answer what is parked, and keep what was replayed, to follow; unless it is dropped."""
        unloads = self.unloads
        if self.status is not Status.FOLLOWING:
            return
        for outcomes in self.core.rest(now):
            self._leave(outcomes, now())
            yield
            if self.unloads != unloads:
                return

    def apply(self, outcome: Outcome, now: Now) -> None:
        """Log, gate and tell what the core decided."""
        self._now = now
        until = None
        if outcome.records:
            # Locals: Python 3.11 is slow to call at once what is an attribute and no method.
            pack, append = self._pack, self._append
            kept, want_flush = self.core.kept, self._want_flush
            num_offsets, packed = pack(outcome.records)
            try:
                until = append(self.partition, num_offsets, packed, now.wall_ms)
            except LogFailed:
                # Memory is ahead of a log that takes nothing more: nobody may look until the end.
                self.status = Status.CLOSED
                raise
            kept(outcome.group_id, until)
            want_flush()
        park_last = self.gate.park_last
        token: Any  # The core keeps it unread.
        for token, response, error, gated, member in outcome.replies:
            answer = token.prepare(response, self._leader_epoch, error)
            if not gated:
                token.send(answer)
                continue
            deadline_ms = now.mono_ms + self._commit_timeout_ms
            if until is not None:
                park_last((until, deadline_ms, token, answer, member))
            else:
                until_kept = self.core.end_offset(outcome.group_id)
                self.gate.park(until_kept, deadline_ms, token, answer, member)
        for event in outcome.events:
            self._services.emit(event)

    # --- inside -------------------------------------------------------------------------

    def _decided(self, decide: Callable[[], T], now: Now) -> T:
        try:
            return decide()
        except Exception:
            self._keep_half_done(now)
            raise

    def _keep_half_done(self, now: Now) -> None:
        """Log what a decision that raised had replayed: memory must not get ahead of the log.

        The asker is told "unknown", which is then true.
        """
        half_done = self.core.interrupted()
        if half_done is not None:
            half_done.replies.clear()
            self.apply(half_done, now)

    def _apply_all(self, outcomes: Iterable[Outcome], now: Now) -> None:
        for outcome in outcomes:
            self.apply(outcome, now)

    def _refuse(self, token: Token) -> None:
        """Refuse it, and name no epoch: the client may have seen a later one."""
        refused = self.refusal()
        assert refused is not None
        token.fail(refused, NO_LEADER_EPOCH)

    def _released(self, member: Any) -> None:
        # It may be armed again by this, for longer than the timekeeper ever sleeps.
        self.core.released(member, self._now)

    def _leave(self, outcomes: Iterable[Outcome], now: Now) -> None:
        """Answer what was parked in the core; it waits for nothing any more."""
        for outcome in outcomes:
            outcome.replies = [(*reply[:3], False, reply[4]) for reply in outcome.replies]
            self.apply(outcome, now)

    def _fail(self, given_up: Iterable[Parked], error: ErrorCode, now: Now) -> None:
        for _, _, token, _, member in given_up:
            if member is not None:
                self.core.released(member, now)
            token.fail(error, NO_LEADER_EPOCH)
