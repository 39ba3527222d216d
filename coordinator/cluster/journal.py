"""One journal of a cluster on one node, which follows or leads it.

A pure state machine: its methods take events, and return effects to carry out.
`coordinator.cluster.node` has all journals of a node, and the session that they share; it calls
`told`, `registered`, `replied`, `fired` and `tick`. The layer above calls the rest.

Theory of operation
===================

The version of the znode `leader` is the fence: every write of a leader checks it in the same
transaction. So a leader needs no clock and no lease, and needs no notice that it is deposed.
Four activities run independently in a journal:

- The *reader* follows the log: entry after entry, or a snapshot where entries were trimmed.
- The *control* reads and writes `leader`: claims, checks, renewals, hand-overs, and a deposed
  leader's search for the outcome of its last flush. While it runs, no new write begins.
- The *writer* has one transaction of one flush in flight, and repeats the same bytes at the same
  index until the outcome is known.
- The *chores* of a leader: snapshots, trimming.

Reader, control and chores are generators. They yield requests and are sent the replies, but never
a LOST one: the reader and the control start again when the node is registered again, and a chore
repeats its request, as each of its requests may be done twice.

The order of replies makes reads safe: a read that follows a reply, in the same session, returns a
state at least as new. Every request submitted before a connection broke is answered before the
break is announced, and never afterwards.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from coordinator.cluster import entries as log_entries
from coordinator.cluster.effects import (
    Confirmed,
    CutOff,
    Deposed,
    Effect,
    Failed,
    Followed,
    HandedOver,
    HandsOver,
    KeptLead,
    Leads,
    LoadAnew,
    Paused,
    Renewed,
    Resumed,
    Send,
    SnapshotEnded,
    Written,
)
from coordinator.cluster.engine import (
    READ_CHUNKS_MAX,
    READ_ENTRIES_MAX,
    TRIM_ENTRIES_MAX,
    Append,
    Code,
    Confirm,
    Event,
    Install,
    Leader,
    ListChunks,
    ListLog,
    ListSnapshots,
    ReadChunks,
    ReadEntries,
    ReadLeader,
    ReadNode,
    ReadSnapshot,
    RemoveChunks,
    Reply,
    Request,
    SetLeader,
    SetPurged,
    Snapshot,
    Suspended,
    Trim,
    WatchEntry,
)
from coordinator.cluster.errors import ClusterRefused, LogBroken
from coordinator.cluster.follower import SnapshotReader, Tail
from coordinator.log.errors import BatchTooLarge, LogCorrupt, LogError, LogFailed
from coordinator.log.format import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    Batch,
    Flush,
    encode_batch,
    epoch_by_clock,
)

# Time without a connection before `Paused`, in milliseconds.
PAUSE_MS: Final = 1_000
DATA_WAS_LOST: Final = "data was lost, as when ZooKeeper is set back to a backup"


class Member(NamedTuple):
    """A node that may lead: one process of it, in one session."""

    node: int
    run: str
    session: int


class Role(Enum):
    """Role of this node for the journal."""

    FOLLOWING = auto()
    CLAIMING = auto()
    TAKING_OVER = auto()  # Holds the fence; reads to the end of the log.
    LEADING = auto()
    HANDING_OVER = auto()
    DEPOSED = auto()  # Finds out whether its last flush is in the log.
    FAILED = auto()


_WRITES: Final = frozenset({Role.LEADING, Role.HANDING_OVER})
_HAS_FENCE: Final = _WRITES | {Role.TAKING_OVER}
# Roles that look like leading to the shards.
_SERVES: Final = _WRITES | {Role.DEPOSED}


class Until(Enum):
    """Condition that the reader waits for, yielded instead of a request."""

    TAKEN = auto()  # The batches of all `Followed` are replayed.
    NEWS = auto()  # The log may have new entries.
    PACED = auto()  # The next read is due.


Reading = Generator[Request | Until, Reply | None, None]
Asking = Generator[Request, Reply, None]
_Handler = Callable[[Request, Reply], None]


class _Batch(NamedTuple):
    """An appended batch."""

    partition: int
    base_offset: int
    end_offset: int
    data: bytes


class _Successor(NamedTuple):
    """Target of a hand-over, and whether an operator asked for it."""

    member: Member
    is_move: bool


class _Away(NamedTuple):
    """Times at which a leader without a connection pauses, and at which others may lead."""

    paused_at_ms: int
    cut_off_at_ms: int


@dataclass(slots=True)
class _Unit:
    """A part of a flush that becomes one unit of the log.

    Attributes:
        batches: Batches of the unit.
        entries: Encoded entries, once the write has begun: the same in each attempt.
        index: Index of the first entry.
        sent: Number of entries that are in the log for certain.
        is_last: The last unit of its flush.
    """

    batches: list[_Batch]
    is_last: bool
    entries: tuple[bytes, ...] = ()
    index: int = 0
    sent: int = 0

    @property
    def ends(self) -> dict[int, int]:
        """By partition, the end offset after this unit."""
        return {batch.partition: batch.end_offset for batch in self.batches}


@dataclass(slots=True)
class _Chores:
    """Background work of a leader.

    Attributes:
        waiting: Queue of chores; the first one runs.
        wanted: Request of the running chore; its version is filled in when it is sent.
        is_asked: The request is in flight.
    """

    waiting: deque[Asking] = field(default_factory=deque)
    wanted: Any = None
    is_asked: bool = False


class ReplicatedJournal:
    """State machine of one journal on one node: follows, claims, leads, hands over.

    Attributes:
        number: Number of the journal.
        leader: Leader last seen by this node; None if there never was one.
        led_since_ms: Wall-clock time of the engine at which *leader* was written; -1: not seen yet.
        is_following: The node has reached the end of the log at least once, so it may lead.
        is_settled: In this session, the leader was read and acted upon.
        snapshot: Newest snapshot seen by this node.
        partitions: Offsets partitions in the journal.
        in_sync: Ready nodes, for the partition states that tools read.
        format: Format of new entries, which all nodes read.
        caught_up: Highest number passed to `catch_up` that is done.
    """

    def __init__(
        self,
        number: int,
        *,
        partitions: tuple[int, ...],
        new_id: Callable[[], str],
        session_timeout_ms: int,
        follow_interval_ms: int,
        keep_bytes: int = 0,
        wall_offset_ms: int = 0,
    ) -> None:
        """Start as a follower without any state.

        Args:
            number: Number of the journal.
            partitions: Offsets partitions in it, without `NODE_PARTITION`.
            new_id: Returns 32 random hex digits.
            session_timeout_ms: Time without a connection after which another node may lead.
            follow_interval_ms: Minimum time between two reads while another node leads.
            keep_bytes: Minimum size of the log that is kept, though a snapshot has it, too.
            wall_offset_ms: Wall-clock time minus monotonic time.
        """
        self.number = number
        self.partitions = partitions
        self.in_sync: tuple[int, ...] = ()
        self.format = log_entries.FORMATS[0]
        self.leader: Leader | None = None
        self.led_since_ms = -1
        self.is_following = self.is_settled = False
        self.snapshot = Snapshot()
        self._new_id = new_id
        self._session_timeout_ms = session_timeout_ms
        self._follow_interval_ms = follow_interval_ms
        self._keep_bytes, self._wall_offset_ms = keep_bytes, wall_offset_ms
        self._role = Role.FOLLOWING
        self._now_ms = 0
        self._out: list[Effect] = []
        # Reply handlers by id() of the request; the request is kept, so that the id stays unique.
        self._waiting: dict[int, tuple[Request, _Handler]] = {}
        # The session.
        self._me: Member | None = None
        self._session = 0
        self._away: _Away | None = None
        self._is_paused = self._is_cut_off = False
        # The reader.
        self._tail = Tail()
        self._is_loaded = False
        self._reader: Reading | None = None
        self._reader_until: Until | None = None
        self._untaken = self._read_at_ms = 0
        self._has_news = False
        self._snapshot_version = 0
        self._listed = 0  # Newest entry after the fence; -1: unknown.
        self._catch_up: list[int] = []  # Numbers done at the next end of the log.
        self.caught_up = 0
        # The control, and the fence.
        self._control: Asking | None = None
        self._look_again = False
        self._version = self._fence = -1  # Of `leader`: the highest seen, and our own.
        self._term: Leader | None = None  # Content of `leader` in version `_fence`.
        self._tries: set[str] = set()  # Claim ids of renewals and a hand-over.
        self._successor: _Successor | None = None
        self._given = ""  # Claim id of an attempted hand-over.
        self._is_stopped = False
        # The writer.
        self._ends: dict[int, int] = {}
        self._open: list[_Batch] = []
        self._open_bytes = 0
        self._taken: tuple[Flush, list[_Batch]] | None = None
        self._units: deque[_Unit] = deque()
        self._append_request: Append | None = None
        self._asked = self._confirmed = 0
        self._confirm_request: Confirm | None = None
        # Numbers of `confirm` that the append and the confirmation in flight cover.
        self._append_covers = self._confirm_covers = 0
        self._chores = _Chores()
        self._making = ""  # Name of the snapshot that may be installed.

    # --- state --------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self._role

    @property
    def is_leading(self) -> bool:
        """Whether this node leads: between `Leads` and `Deposed` or `HandedOver`."""
        return self._role in _SERVES

    @property
    def is_frozen(self) -> bool:
        """Whether an export has frozen the journal, by the last `leader` seen: no node may lead."""
        return self.leader is not None and self.leader.is_frozen

    @property
    def is_ready(self) -> bool:
        """Whether this node can lead at once: it has followed the log, and is settled."""
        return self.is_following and self.is_settled

    @property
    def applied(self) -> int:
        """Index of the last entry that this node has applied."""
        return self._tail.applied

    @property
    def tail_size(self) -> tuple[int, int]:
        """Number of bytes, and of entries, in the log after the snapshot."""
        return self._tail.sizes_behind(self.snapshot.index)

    @property
    def state_bytes(self) -> int:
        """Size of the journal in ZooKeeper: its snapshot and its kept log, in bytes."""
        return self.snapshot.size_bytes + self._tail.kept_bytes

    # --- for the shards, while it leads -------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """Epoch of batches and answers, 0 if there never was a leader."""
        leader = self.leader if self._term is None else self._term
        return 0 if leader is None else leader.epoch

    @property
    def open_bytes(self) -> int:
        """Bytes that were appended and not yet taken by `take_flush`."""
        return self._open_bytes

    @property
    def compacted_below(self) -> dict[int, int]:
        """Per partition, the offset below which a stream of changes can't start."""
        return self._tail.compacted_below

    def end_offset(self, partition: int) -> int:
        """Return the offset that the partition's next entry will get."""
        ends = self._ends if self._role in _SERVES else self._tail.ends
        return ends.get(partition, 0)

    def append_packed(self, partition: int, count: int, packed: bytes, timestamp_ms: int) -> int:
        """Add one batch to the open flush, as `coordinator.log.journal.Journal` does.

        Return the end offset.

        Raises:
            BatchTooLarge: The batch is too large; nothing was changed.
            LogFailed: This node doesn't lead.
        """
        if self._role not in _SERVES:
            raise LogFailed(f"journal {self.number} is another node's")
        if not count:
            raise ValueError("a batch needs an entry")
        size_bytes = HEADER_BYTES + len(packed)
        if size_bytes > BATCH_BYTES_MAX:
            raise BatchTooLarge(f"a batch of {size_bytes} bytes is over {BATCH_BYTES_MAX}")
        base_offset = self._ends.get(partition, 0)
        end_offset = self._ends[partition] = base_offset + count
        fields = (partition, self.leader_epoch, base_offset, 0, timestamp_ms, 0)
        data = b"".join(encode_batch(fields, packed))
        self._open.append(_Batch(partition, base_offset, end_offset, data))
        self._open_bytes += len(data)
        return end_offset

    def take_flush(self) -> Flush | None:
        """Return the batches appended since the last call as a flush, None if there are none."""
        if not self._open:
            return None
        batches, self._open, self._open_bytes = self._open, [], 0
        starts, at = [], 0
        for batch in batches:
            starts.append((batch.partition, at))
            at += len(batch.data)
        data = b"".join([batch.data for batch in batches])
        ends = {batch.partition: batch.end_offset for batch in batches}
        flush = Flush(0, data, rolls=False, ends=ends, batches=starts)
        self._taken = flush, batches
        return flush

    def write(self, flush: Flush) -> list[Effect]:
        """Write *flush*, one at a time and in order; `Written` reports the progress.

        The write is repeated until its outcome is known, or `Deposed` ends it.
        """
        if self._taken is None:
            return []  # Deposed since `take_flush`.
        taken, batches = self._taken
        assert taken is flush
        assert not self._units
        self._taken = None
        self._units.extend(_units_of(batches))
        self._go_on()
        return self._done()

    def confirm(self) -> int:
        """Return a number. `Confirmed` with it, or a larger one, proves that this node led now.

        A read is answered once its data is durable, and its number confirmed.
        """
        self._asked += 1
        return self._asked

    def end_round(self) -> list[Effect]:
        """Send a confirmation for waiting numbers, unless the flush in flight confirms them.

        Call it at the end of each round of requests, after the flush.
        """
        self._confirm()
        return self._done()

    # --- for the node -------------------------------------------------------------------

    def took(self, now_ms: int) -> list[Effect]:
        """Continue reading: the oldest `Followed` is replayed."""
        self._now_ms = now_ms
        self._untaken -= 1
        if not self._untaken:
            self._wake(Until.TAKEN)
        return self._done()

    def claim(self, now_ms: int) -> list[Effect]:
        """Try to lead, if the former leader is gone. `Leads` follows on success, else nothing."""
        self._now_ms = now_ms
        if self._role is Role.FOLLOWING and self._me and self.is_following and not self._control:
            self._role = Role.CLAIMING
            self._begin_control(self._claim(self._me))
        return self._done()

    def hand_over(self, to: Member, *, is_move: bool = False) -> list[Effect]:
        """Hand the journal over to another node: `HandsOver` follows, if this one leads.

        *is_move*: An operator asked for it.
        """
        if self._role is Role.LEADING:
            self._role = Role.HANDING_OVER
            self._successor, self._is_stopped = _Successor(to, is_move=is_move), False
            self._out.append(HandsOver(self.number))
        return self._done()

    def stopped(self) -> list[Effect]:
        """Continue the hand-over: the caller appends nothing more.

        Once all batches are in the log, `HandedOver`, `KeptLead` or `Deposed` follows.
        """
        if self._role is Role.HANDING_OVER:
            self._is_stopped = True
            self._go_on()
        return self._done()

    def begin_snapshot(self) -> str | None:
        """Return the name for a snapshot to be made now, None if none can begin now.

        Install the snapshot while this node still leads: another leader removes its chunks.
        `SnapshotEnded` follows in either case.
        """
        if self._role is not Role.LEADING or self._chores.waiting or self._making:
            return None
        self._making = self._new_id()
        return self._making

    def install(self, snapshot: Snapshot) -> list[Effect]:
        """Make *snapshot*, whose chunks are written, the newest one, and trim the log."""
        if self._role in _WRITES and snapshot.name == self._making:
            self._add_chore(self._install(snapshot))
        return self._done()

    def abandon_snapshot(self) -> list[Effect]:
        """Give up the begun snapshot, and remove its chunks."""
        if self._making:
            self._end_snapshot()
            self._add_chore(self._clean())
        return self._done()

    def set_purged(self, registry_version: int) -> list[Effect]:
        """Announce the registry version up to which offsets of deleted topics are removed here."""
        if self._role in _WRITES:
            self._add_chore(self._set_purged(registry_version))
        return self._done()

    def read(
        self, partition: int, from_offset: int, max_bytes: int
    ) -> Generator[ReadEntries, Reply, list[Batch]]:
        """Return the batches of one partition from the one that holds *from_offset*.

        A generator: it yields requests, is sent their replies, and returns the batches. Reading
        ends after the unit that reaches *max_bytes*, but not before one batch, if there is one.

        Raises:
            LogCorrupt: The log is damaged.
            LogFailed: The batches were trimmed, the connection broke, or this node doesn't lead
                any more: repeat the call.
        """
        # A waiting request may come here after this node's lead has ended.
        if not self._may_write or from_offset < self.compacted_below.get(partition, 0):
            raise LogFailed(f"offset {from_offset} of partition {partition} is out of reach")
        index, end = self._tail.place_of(partition, from_offset), self._tail.applied
        found: list[Batch] = []
        joiner, read_bytes = log_entries.Joiner(), 0
        while index is not None and index <= end and (read_bytes < max_bytes or not found):
            count = min(READ_ENTRIES_MAX, end + 1 - index)
            reply = yield ReadEntries(self.number, index, count)
            if reply.code is not Code.OK or not reply.value or not self._may_write:
                raise LogFailed(f"entry {index} can't be read: {reply.code.name}")
            for data in reply.value:
                body = joiner.take(index, log_entries.decode(data, index))
                index += 1
                read_bytes += len(data)
                if body is None:
                    continue
                batches = log_entries.batches_in(body, {}, has_gaps=True)
                found += [b for b in batches if b.partition == partition]
                found = [b for b in found if b.end_offset > from_offset]
                if read_bytes >= max_bytes and found:
                    return found
        return found

    # --- for the session ----------------------------------------------------------------

    def told(self, event: Event, now_ms: int) -> list[Effect]:
        """Handle `Suspended`; `node` handles the engine's other events."""
        self._now_ms = now_ms
        if isinstance(event, Suspended) and self._me is not None:
            self._me = None
            cut_off_at_ms = now_ms - event.silent_ms + self._session_timeout_ms
            self._away = _Away(min(now_ms + PAUSE_MS, cut_off_at_ms), cut_off_at_ms)
            self._waiting.clear()
            self._control = self._reader = None
            self._forget_writes()
            self._chores.is_asked = False
        return self._done()

    def registered(self, me: Member, now_ms: int) -> list[Effect]:
        """Resume work: this node is registered in the current session, which may be new."""
        self._now_ms = now_ms
        if self._role is Role.FAILED:
            return []
        is_new = me.session != self._session
        self.is_settled = self.is_settled and not is_new
        self._me, self._session, self._away = me, me.session, None
        if self._role is Role.CLAIMING:
            self._role = Role.FOLLOWING
        self._begin_control(self._go_back_to_work())
        return self._done()

    def replied(self, request: Request, reply: Reply, now_ms: int) -> list[Effect]:
        """Handle the reply to a request of this journal."""
        self._now_ms = now_ms
        waiting = self._waiting.pop(id(request), None)
        if waiting is not None and reply.code is not Code.LOST:
            if reply.code is Code.REFUSED:
                self._refused(request, reply)
            else:
                waiting[1](request, reply)
        return self._done()

    def fired(self, request: Request, now_ms: int) -> list[Effect]:
        """Handle a fired watch of this journal."""
        self._now_ms = now_ms
        if self._me is None or self._role is Role.FAILED:
            return []
        match request:
            case ReadLeader():
                self._look_at_leader()
            case ReadSnapshot():
                self._ask(ReadSnapshot(self.number), self._saw_snapshot)
            case WatchEntry():
                self._has_news = True
                self._wake(Until.NEWS)
        return self._done()

    def catch_up(self, number: int, now_ms: int) -> list[Effect]:
        """Read to the end of the log as of now, unless this node leads; see `caught_up`."""
        self._now_ms = now_ms
        self._catch_up.append(number)
        self._hurry()
        return self._done()

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due, in monotonic milliseconds; None if never."""
        if self._away is not None and self._role in _WRITES:
            if not self._is_paused:
                return self._away.paused_at_ms
            if not self._is_cut_off:
                return self._away.cut_off_at_ms
        if self._reader_waits_for(Until.PACED):
            return self._read_at_ms + self._follow_interval_ms
        return None

    def tick(self, now_ms: int) -> list[Effect]:
        self._now_ms = now_ms
        if self._away is not None and self._role in _WRITES:
            if now_ms >= self._away.paused_at_ms and not self._is_paused:
                self._is_paused = True
                self._out.append(Paused(self.number))
            if now_ms >= self._away.cut_off_at_ms and not self._is_cut_off:
                self._is_cut_off = True
                self._out.append(CutOff(self.number))
        if now_ms >= self._read_at_ms + self._follow_interval_ms:
            self._wake(Until.PACED)
        return self._done()

    # --- asking -------------------------------------------------------------------------

    def _done(self) -> list[Effect]:
        out, self._out = self._out, []
        return out

    def _ask(self, request: Request, handler: _Handler) -> None:
        self._waiting[id(request)] = (request, handler)
        self._out.append(Send(request))

    def _fail(self, reason: str, kind: type[LogError]) -> None:
        self._role = Role.FAILED
        self._waiting.clear()
        self._control = self._reader = None
        self._out.append(Failed(kind(f"journal {self.number}: {reason}")))

    def _lost(self, what: str) -> None:
        self._fail(f"{what}: {DATA_WAS_LOST}", LogCorrupt)

    def _refused(self, request: Request, reply: Reply) -> None:
        if isinstance(request, RemoveChunks | Trim | ListChunks):
            # A foreign writer changes these znodes: leave them to the next clean-up.
            self._end_snapshot()
            self._drop_chore()
        else:
            self._fail(str(reply.value), ClusterRefused)

    # --- the control --------------------------------------------------------------------

    def _begin_control(self, control: Asking) -> None:
        self._control = control
        self._step_control(None)

    def _step_control(self, reply: Reply | None) -> None:
        control = self._control
        assert control is not None
        try:
            request = next(control) if reply is None else control.send(reply)
        except StopIteration:
            if self._control is control:
                self._control = None
                self._control_ended()
            return

        def handler(_: Request, answer: Reply) -> None:
            if self._control is control:
                self._step_control(answer)

        self._ask(request, handler)

    def _control_ended(self) -> None:
        if self._role is Role.FAILED:
            return
        if self._look_again:
            self._look_at_leader()
            return
        self.is_settled = True
        self._wake(Until.NEWS)
        self._go_on()

    def _look_at_leader(self) -> None:
        if self._control is not None:
            self._look_again = True
            return
        self._look_again = False
        self._begin_control(self._settle())

    def _go_back_to_work(self) -> Asking:
        """Check this node's state of the journal after a broken connection; then resume work."""
        yield from self._verify()
        if self._role is Role.DEPOSED:
            yield from self._find_fate()
        elif self._role is not Role.FAILED:
            yield from self._settle()

    def _settle(self) -> Asking:
        """Read the leader, and act on it: follow, take over, renew, lead on, or be deposed."""
        while True:
            reply = yield ReadLeader(self.number)
            leader, version = reply.value, reply.version
            if _is_older(reply, max(self._version, self._fence), self.leader):
                self._lost("what is known of its leader is gone")
                return
            self.leader, self._version = leader, version
            self.led_since_ms = reply.changed_ms
            me = self._me
            assert me is not None
            if self._role not in _HAS_FENCE:
                if leader is not None and _names(leader, me):
                    self._take_over(leader, version)
                break
            if version > self._fence and not self._adopt(leader, version):
                return
            assert self._term is not None
            if self._term.session == me.session:
                break
            renewed = self._term_of(me, self._term, is_moved=self._term.is_moved)
            self._tries.add(renewed.claim)
            reply = yield self._set_leader(self._fence, renewed)
            if reply.code is Code.OK:
                self._have_fence(renewed, self._fence + 1)
                break
        self._start_reader()

    def _adopt(self, leader: Leader | None, version: int) -> bool:
        """Return whether this node leads on in a version of `leader` without a known reply."""
        if leader is None or leader.claim not in self._tries:
            self._depose()
            return False
        if leader.claim == self._given:
            self._handed_over()
            return False
        self._have_fence(leader, version)
        return True

    def _verify(self) -> Asking:
        """Check that the ensemble still has the state that this node knows of the journal.

        The ensemble may have been restored from a copy since the connection broke, and may know
        the session, as the copy does. Otherwise no state is older than the session has read.
        """
        newest, data = self._tail.newest
        if not newest:
            return
        found = (yield ReadEntries(self.number, newest, 1)).value
        reply = yield ReadSnapshot(self.number)
        if _is_older(reply, self._snapshot_version, self.snapshot):
            self._lost("what is known of its snapshot is gone")
        elif not found and reply.value.index < newest:
            self._lost(f"the log ends before entry {newest}")
        elif found and data not in {None, *found}:
            self._lost(f"entry {newest} is another one")
        elif (data is None or not found) and reply.version > self._snapshot_version:
            # The log may not continue from this node's state: load the newer snapshot.
            self._is_loaded = False

    def _term_of(self, member: Member, after: Leader | None, *, is_moved: bool = False) -> Leader:
        # At least the clock's epoch, as a restored or empty ensemble has too low an epoch.
        by_clock = epoch_by_clock(self._now_ms + self._wall_offset_ms)
        epoch = by_clock if after is None else max(after.epoch + 1, by_clock)
        node, run, session = member
        return Leader(epoch, node, run, session, self._new_id(), is_moved=is_moved)

    def _set_leader(self, version: int, leader: Leader) -> SetLeader:
        return SetLeader(self.number, version, leader, self.partitions, self.in_sync)

    def _have_fence(self, term: Leader, version: int) -> None:
        """Lead on in the version of `leader` that a renewal has created."""
        self._fence = self._version = version
        self._term = self.leader = term
        if self._role in _WRITES:
            self._out.append(Renewed(self.number, term.epoch))

    def _claim(self, me: Member) -> Asking:
        """Lead, if the former leader is gone: a session that ended never comes back."""
        reply = yield ReadLeader(self.number)
        leader, version = reply.value, reply.version
        if leader is not None and not _names(leader, me):
            present = yield ReadNode(leader.node, self.number)
            has_ended = present.code is Code.MISSING or present.owner != leader.session
            if leader.is_frozen or not has_ended:
                self._role = Role.FOLLOWING
                return
        claimed = self._term_of(me, leader)
        reply = yield self._set_leader(version, claimed)
        if reply.code is Code.OK:
            self._take_over(claimed, version + 1)
        else:
            self._role = Role.FOLLOWING
            self._look_again = True

    def _take_over(self, term: Leader, version: int) -> None:
        """Read to the end of the log: the fence keeps former leaders from writing after it."""
        self._role = Role.TAKING_OVER
        self._listed = -1
        self._fence = self._version = version
        self._term = self.leader = term
        self._hurry()

    def _begin_to_lead(self) -> None:
        assert self._term is not None
        self._role = Role.LEADING
        self._tail.begin_to_write()
        self._ends = dict(self._tail.ends)
        self._catch_up.clear()
        self._is_paused = self._is_cut_off = False
        self._out.append(Leads(self.number, self._term.epoch))
        self._add_chore(self._clean())
        self._go_on()

    def _depose(self) -> None:
        """Stop leading: another leader may have written. Find the fate of the flush in flight."""
        was_leading = self._role in _WRITES
        self.is_settled = False
        self._stop_writing()
        if was_leading:
            self._role = Role.DEPOSED
            self._control = self._find_fate()
            self._step_control(None)
        else:
            self._forget_term()
            self._look_again = True

    def _stop_writing(self) -> None:
        self._forget_writes()
        self._drop_chores()
        self._waiting.clear()
        self._reader = None

    def _find_fate(self) -> Asking:
        """Read the last entry of the unit in flight, and discard state that is ahead of the log."""
        unknown: dict[int, int] = {}
        unit = self._units[0] if self._units else None
        if unit is not None and unit.entries:
            last = unit.index + len(unit.entries) - 1
            reply = yield ReadEntries(self.number, last, 1)
            if reply.value == unit.entries[-1:]:
                self._out.append(Written(self.number, unit.ends, is_last=unit.is_last))
            elif not reply.value:
                reply = yield ReadSnapshot(self.number)
                if reply.value.index >= last:
                    unknown = unit.ends
        self._out.append(Deposed(self.number, unknown))
        self._forget_term()
        self._is_loaded = self.is_following = False
        self._look_again = True

    def _forget_term(self) -> None:
        """Become a follower, and forget all batches that aren't in the log."""
        self._role = Role.FOLLOWING
        self._term, self._successor, self._given = None, None, ""
        self._tries.clear()
        self._ends = {}
        self._open, self._open_bytes, self._taken = [], 0, None
        self._units.clear()
        self._confirmed = self._asked
        self._is_paused = self._is_cut_off = False

    def _give(self) -> Asking:
        """Write the successor as leader; no write is in flight, and the state equals the log."""
        assert self._term is not None
        assert self._successor is not None
        to, is_move = self._successor
        given = self._term_of(to, self._term, is_moved=is_move)
        self._given = given.claim
        self._tries.add(given.claim)
        reply = yield self._set_leader(self._fence, given)
        if reply.code is Code.OK:
            self.leader, self._version = given, self._fence + 1
            self._handed_over()
        else:
            self._look_again = True

    def _handed_over(self) -> None:
        self._stop_writing()
        self._forget_term()
        self._out.append(HandedOver(self.number))
        self._look_again = True

    def _keep_lead(self) -> None:
        """Lead on: the hand-over wasn't applied. If it is applied later, the fence reveals that."""
        assert self._term is not None
        self._role = Role.LEADING
        self._tries.discard(self._given)
        self._successor, self._given = None, ""
        self._out += [KeptLead(self.number), Leads(self.number, self._term.epoch)]

    # --- the writer ---------------------------------------------------------------------

    @property
    def _may_write(self) -> bool:
        return self._role in _WRITES and self._me is not None and self._control is None

    def _go_on(self) -> None:
        """Start all work that a leader may do now."""
        if not self._may_write:
            return
        if self._is_paused:
            self._is_paused = self._is_cut_off = False
            self._out.append(Resumed(self.number))
        if self._given:
            self._keep_lead()
        if self._units:
            self._send_unit(self._units[0])
        self._confirm()
        self._ask_chore()
        if self._role is Role.HANDING_OVER and self._is_stopped and self._is_all_written:
            self._drop_chores()
            if self._confirm_request is None:
                self._begin_control(self._give())

    @property
    def _is_all_written(self) -> bool:
        return not (self._units or self._open or self._taken)

    def _send_unit(self, unit: _Unit) -> None:
        if self._append_request is not None:
            return
        assert self._term is not None
        if not unit.entries:
            unit.index = self._tail.applied + 1
            data = b"".join([batch.data for batch in unit.batches])
            term = self._term
            unit.entries = log_entries.encode(data, term.epoch, term.claim, unit.index, self.format)
        piece = unit.entries[unit.sent : unit.sent + log_entries.PIECE_ENTRIES]
        self._append_request = Append(self.number, self._fence, unit.index + unit.sent, piece)
        self._append_covers = self._asked

        def handler(_: Request, reply: Reply) -> None:
            self._appended(unit, len(piece), reply)

        self._ask(self._append_request, handler)

    def _forget_writes(self) -> None:
        """Forget the requests in flight, whose replies won't come."""
        self._append_request = self._confirm_request = None
        self._append_covers = self._confirm_covers = 0

    def _appended(self, unit: _Unit, entries: int, reply: Reply) -> None:
        covers, self._append_covers = self._append_covers, 0
        match reply.code:
            case Code.OK:
                self._append_request = None
                self._is_confirmed(covers)
                self._is_in_log(unit, entries)
            case Code.EXISTS:
                self._begin_look(unit, entries)
            case Code.FENCED:
                self._append_request = None
                self._look_at_leader()
            case Code.GAP:
                self._lost(f"entry {unit.index + unit.sent - 1} is missing")
            case _:
                self._fail(f"an append was answered {reply.code.name}", LogBroken)

    def _begin_look(self, unit: _Unit, entries: int) -> None:
        """Read the existing entries: as the fence held, only an earlier attempt can be there."""
        index = unit.index + unit.sent
        expected = unit.entries[unit.sent : unit.sent + entries]

        def looked(_: Request, reply: Reply) -> None:
            if reply.value == expected:
                self._append_request = None
                self._is_in_log(unit, entries)
            elif reply.value != expected[: len(reply.value)]:
                self._lost(f"entry {index} is another one")
            else:
                self._ask(ReadSnapshot(self.number), looked_for_trim)

        def looked_for_trim(_: Request, reply: Reply) -> None:
            # A successor may have trimmed the entry since.
            if reply.value.index < index:
                self._lost(f"entry {index} was there, and is gone")
                return
            self._append_request = None
            self._is_in_log(unit, entries)

        self._ask(ReadEntries(self.number, index, entries), looked)

    def _is_in_log(self, unit: _Unit, entries: int) -> None:
        """Continue after a piece that is durable in the log."""
        unit.sent += entries
        if unit.sent == len(unit.entries):
            self._units.popleft()
            self._tail.wrote(unit.entries, [batch[:3] for batch in unit.batches])
            self._out.append(Written(self.number, unit.ends, is_last=unit.is_last))
        self._go_on()

    def _confirm(self) -> None:
        """Check the fence for waiting numbers, unless a request in flight does."""
        covered = max(self._confirmed, self._append_covers)
        if not self._may_write or covered >= self._asked or self._confirm_request is not None:
            return
        self._confirm_request = Confirm(self.number, self._fence)
        self._confirm_covers = self._asked

        def handler(_: Request, reply: Reply) -> None:
            covers = self._confirm_covers
            self._confirm_request, self._confirm_covers = None, 0
            if reply.code is Code.OK:
                self._is_confirmed(covers)
                self._go_on()
            else:
                self._look_at_leader()

        self._ask(self._confirm_request, handler)

    def _is_confirmed(self, number: int) -> None:
        if number > self._confirmed:
            self._confirmed = number
            self._out.append(Confirmed(self.number, number))

    # --- the reader ---------------------------------------------------------------------

    def _start_reader(self) -> None:
        if self._role not in _WRITES and self._reader is None and self._me is not None:
            self._reader = self._follow()
            self._step_reader(None)

    def _step_reader(self, reply: Reply | None) -> None:
        reader = self._reader
        assert reader is not None
        self._reader_until = None
        try:
            request = next(reader) if reply is None else reader.send(reply)
        except StopIteration:
            if self._reader is reader:
                self._reader = None
            return
        except LogError as exc:
            self._fail(str(exc), type(exc))
            return
        if isinstance(request, Until):
            self._reader_until = request
            return

        def handler(_: Request, answer: Reply) -> None:
            if self._reader is reader:
                self._step_reader(answer)

        self._ask(request, handler)

    def _wake(self, until: Until) -> None:
        if self._reader_waits_for(until):
            self._step_reader(None)

    def _reader_waits_for(self, until: Until) -> bool:
        return self._reader is not None and self._reader_until is until

    def _hurry(self) -> None:
        """Read the end of the log now."""
        self._has_news = True
        self._wake(Until.NEWS)
        self._wake(Until.PACED)

    def _follow(self) -> Reading:
        """Follow the log until this node leads."""
        while self._untaken:
            yield Until.TAKEN
        yield from self._read_snapshot()
        if not self._is_loaded:
            yield from self._load()
        while self._role not in _WRITES:
            if self._role is Role.TAKING_OVER and self._listed < 0:
                yield from self._list_newest()
            self._has_news = False
            self._read_at_ms = self._now_ms
            index, counted = self._tail.applied + 1, len(self._catch_up)
            had_fence = self._role is Role.TAKING_OVER
            reply = yield ReadEntries(self.number, index, READ_ENTRIES_MAX)
            assert reply is not None
            if reply.value:
                yield from self._follow_on(self._tail.take(reply.value))
                if len(reply.value) < READ_ENTRIES_MAX:
                    # The end: the next entry can't have been trimmed, as this one was there.
                    yield from self._end_seen(counted, had_fence=had_fence)
                    yield from self._pace()
            elif self.snapshot.index >= index:
                yield from self._load()
            elif self._is_hurried:
                yield from self._read_snapshot()
                if self.snapshot.index < index:  # Else it was trimmed.
                    yield from self._end_seen(counted, had_fence=had_fence)
            else:
                self._at_end(counted)
                yield from self._wait_for(index)
                yield from self._pace()

    def _end_seen(self, counted: int, *, had_fence: bool) -> Reading:
        """Note that the end of the log was reached, as of the time of the request.

        It is the end of the former leader's log only if this node *had_fence* at that time.
        """
        self._at_end(counted)
        if had_fence:
            while self._control is not None:
                yield Until.NEWS
            if self._tail.applied < self._listed:
                yield from self._see_gap()
            elif self._role is Role.TAKING_OVER:
                self._begin_to_lead()

    def _list_newest(self) -> Reading:
        """Find the newest entry: this node leads only once it has read up to it."""
        reply = yield ListLog(self.number, self._tail.applied + 1)
        assert reply is not None
        self._listed = max(reply.value or (0,))

    def _see_gap(self) -> Reading:
        """Check that the next entry was trimmed. Raises LogCorrupt if not: it was lost."""
        yield from self._read_snapshot()
        index = self._tail.applied + 1
        if self.snapshot.index < index:
            message = f"entry {index} is missing, and entry {self._listed} is there"
            raise LogCorrupt(f"{message}: {DATA_WAS_LOST}")

    def _wait_for(self, index: int) -> Reading:
        reply = yield WatchEntry(self.number, index)
        assert reply is not None
        while reply.code is Code.MISSING and not self._has_news and self.snapshot.index < index:
            yield Until.NEWS

    @property
    def _is_hurried(self) -> bool:
        return self._role is Role.TAKING_OVER or bool(self._catch_up)

    def _at_end(self, counted: int | None = None) -> None:
        """Note the end of the log for the first *counted* calls of `catch_up`; None for all."""
        self.is_following = True
        for number in self._catch_up[:counted]:
            self.caught_up = max(self.caught_up, number)
        del self._catch_up[:counted]

    def _pace(self) -> Reading:
        """Wait until the next read is due: a read costs more than the few entries it returns."""
        due_ms = self._read_at_ms + self._follow_interval_ms
        while self._now_ms < due_ms and not (self._is_hurried or self._role in _WRITES):
            yield Until.PACED

    def _follow_on(self, batches: Iterator[Batch]) -> Reading:
        self._untaken += 1
        self._out.append(Followed(self.number, batches))
        while self._untaken:
            yield Until.TAKEN

    def _read_snapshot(self) -> Reading:
        reply = yield ReadSnapshot(self.number)
        assert reply is not None
        self._note_snapshot(reply.value, reply.version)

    def _saw_snapshot(self, _: Request, reply: Reply) -> None:
        self._note_snapshot(reply.value, reply.version)
        self._wake(Until.NEWS)

    def _note_snapshot(self, snapshot: Snapshot, version: int) -> None:
        self.snapshot, self._snapshot_version = snapshot, version
        if self._role not in _WRITES:
            self._tail.forget(snapshot.index, self._keep_bytes)

    def _load(self) -> Reading:
        """Load the newest snapshot: this node's state isn't that of the log, or is too old."""
        while True:
            self._tail.is_dropped = True
            self._tail, self._is_loaded = Tail(), False
            self.is_following = False
            self._out.append(LoadAnew(self.number))
            snapshot, chunk = self.snapshot, 0
            reader = SnapshotReader(snapshot)
            while chunk < snapshot.chunks:
                count = min(READ_CHUNKS_MAX, snapshot.chunks - chunk)
                reply = yield ReadChunks(self.number, snapshot.name, chunk, count)
                assert reply is not None
                if not reply.value:
                    break
                for data in reply.value:
                    batches = self._tail.load(reader.feed(data, self._tail.ends))
                    yield from self._follow_on(batches)
                chunk += len(reply.value)
            else:
                reader.finish()
                self._tail.loaded(snapshot)
                yield from self._read_kept()
                self._is_loaded = True
                return
            yield from self._read_snapshot()
            if self.snapshot == snapshot:
                raise LogCorrupt(f"chunk {chunk} of snapshot {snapshot.name} is missing")

    def _read_kept(self) -> Reading:
        """Find the kept log before the snapshot's index, for readers of the stream of changes."""
        if not self._keep_bytes:
            return
        oldest = yield from self._list_oldest()
        # Entry 0 is empty.
        index, last = max(1, min(oldest.value or (1,))), self._tail.applied
        while index <= last:
            reply = yield ReadEntries(self.number, index, min(READ_CHUNKS_MAX, last - index + 1))
            assert reply is not None
            if not reply.value:
                self._tail.keep_nothing()
                return
            self._tail.keep(index, reply.value)
            index += len(reply.value)

    # --- chores -------------------------------------------------------------------------

    def _add_chore(self, chore: Asking) -> None:
        self._chores.waiting.append(chore)
        if len(self._chores.waiting) == 1:
            self._step_chore(None)

    def _drop_chore(self) -> None:
        chores = self._chores
        if chores.waiting:
            chores.waiting.popleft()
            chores.wanted, chores.is_asked = None, False
            if chores.waiting:
                self._step_chore(None)

    def _drop_chores(self) -> None:
        self._chores = _Chores()
        self._end_snapshot()

    def _end_snapshot(self) -> None:
        if self._making:
            self._making = ""
            self._out.append(SnapshotEnded(self.number))

    def _step_chore(self, reply: Reply | None) -> None:
        self._chores.is_asked = False
        chore = self._chores.waiting[0]
        try:
            self._chores.wanted = next(chore) if reply is None else chore.send(reply)
        except StopIteration:
            self._drop_chore()
        else:
            self._ask_chore()

    def _ask_chore(self) -> None:
        """Send the request of the first chore, or repeat it."""
        request = self._chores.wanted
        if request is None or not self._may_write or self._chores.is_asked:
            return
        if hasattr(request, "version"):
            request = replace(request, version=self._fence)
        self._chores.is_asked = True
        chores, chore = self._chores, self._chores.waiting[0]

        def handler(_: Request, reply: Reply) -> None:
            if self._chores is not chores or chores.waiting[0] is not chore:
                return
            if reply.code is Code.FENCED:
                self._chores.is_asked = False
                self._look_at_leader()
            else:
                self._step_chore(reply)

        self._ask(request, handler)

    def _install(self, snapshot: Snapshot) -> Asking:
        if snapshot.index > self.snapshot.index:  # Else the child read an older log.
            yield Install(self.number, self._fence, snapshot, self._snapshot_version)
        # Read the snapshot again: after a lost reply, an own install is answered CONFLICT.
        yield from self._clean()
        self._end_snapshot()

    def _clean(self) -> Asking:
        """Remove the chunks of other snapshots, and the entries that needn't be kept."""
        reply = yield ReadSnapshot(self.number)
        self._note_snapshot(reply.value, reply.version)
        reply = yield ListSnapshots(self.number)
        for name in reply.value:
            if name != self.snapshot.name:
                yield from self._remove_chunks(name)
        yield from self._trim()

    def _remove_chunks(self, name: str) -> Asking:
        reply = yield ListChunks(self.number, name)
        chunks = reply.value or ()
        for start in range(0, len(chunks) + 1, TRIM_ENTRIES_MAX):
            part = chunks[start : start + TRIM_ENTRIES_MAX]
            is_last = start + TRIM_ENTRIES_MAX > len(chunks) and not reply.stray
            yield RemoveChunks(self.number, self._fence, name, part, is_last)

    def _trim(self) -> Asking:
        """Remove entries that the snapshot has and needn't be kept, but never the newest one."""
        kept_from = self._tail.forget(self.snapshot.index, self._keep_bytes)
        last = min(kept_from - 1, self.snapshot.index, self._tail.applied - 1)
        oldest = yield from self._list_oldest()
        if oldest.value:
            for first in range(oldest.value[0], last + 1, TRIM_ENTRIES_MAX):
                until = min(first + TRIM_ENTRIES_MAX - 1, last)
                yield Trim(self.number, self._fence, first, until, bool(oldest.stray))

    def _list_oldest(self) -> Generator[Request, Reply, Reply]:
        """Return the listing of the first directory that has entries."""
        reply = yield ListLog(self.number, None)
        for directory in reply.value:
            reply = yield ListLog(self.number, directory)
            if reply.value:
                break
        return reply

    def _set_purged(self, registry_version: int) -> Asking:
        yield SetPurged(self.number, self._fence, registry_version)


def _is_older(reply: Reply, version: int, known: Leader | Snapshot | None) -> bool:
    """Return whether *reply* is older than *known*, the content in *version*."""
    is_other = reply.version == version and reply.value != known
    return reply.code is not Code.OK or reply.version < version or is_other


def _names(leader: Leader, me: Member) -> bool:
    """Return whether *leader* is this process of this node, in this session."""
    return leader.run == me.run and leader.session == me.session and not leader.is_frozen


def _units_of(batches: list[_Batch]) -> Iterator[_Unit]:
    """Split a flush into units of at most `UNIT_BYTES`, unless one batch alone is larger."""
    unit: list[_Batch] = []
    size_bytes = 0
    for batch in batches:
        if unit and size_bytes + len(batch.data) > log_entries.UNIT_BYTES:
            yield _Unit(unit, is_last=False)
            unit, size_bytes = [], 0
        unit.append(batch)
        size_bytes += len(batch.data)
    yield _Unit(unit, is_last=True)
