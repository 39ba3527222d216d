"""One journal of a cluster, as one node sees it: it follows it, or leads it.

A pure machine: what it is told comes by its methods, and what has to be done about it is what they
return. `coordinator.cluster.node` has all journals of a node, and the session that they share; it
calls `told`, `registered`, `replied`, `fired` and `tick`. The node over it calls the rest.

Theory of operation
===================

The version of the znode `leader` is the fence: every write of a leader checks it in the same
transaction. So a leader needs no clock and no lease, and nobody has to tell it that it is deposed.
Four things go on in a journal, each by itself:

- The *reader* follows the log: entry after entry, or a snapshot where they were trimmed.
- The *control* is about `leader`: claim, look, renew, hand over, and what a deposed leader still
  has to find out. While it is at work nothing new is written.
- The *writer* has one transaction of one flush on its way, and repeats the same bytes at the same
  index until it is known what became of them.
- The *chores* of a leader: snapshots, trimming.

Reader, control and chores are generators. They yield requests and are sent the answers, never one
that is LOST: the reader and the control begin anew when the node is registered again, and a chore
repeats its request, as each of these may be done twice.

The order of answers is what makes looking safe: what is read after an answer, in the same session,
is at least as new as that. Whatever had been asked before a connection broke is answered before it
is told that it broke, and nothing of it later.
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

# So long a connection may be away before anyone is told.
PAUSE_MS: Final = 1_000
DATA_WAS_LOST: Final = "data was lost, as when ZooKeeper is set back to a backup"


class Member(NamedTuple):
    """A node that may lead: one life of it, in one session."""

    node: int
    run: str
    session: int


class Role(Enum):
    """What this node is to the journal."""

    FOLLOWING = auto()
    CLAIMING = auto()
    TAKING_OVER = auto()  # It has the fence, and reads to the end of the log.
    LEADING = auto()
    HANDING_OVER = auto()
    DEPOSED = auto()  # It finds out what became of its last flush.
    FAILED = auto()


_WRITES: Final = frozenset({Role.LEADING, Role.HANDING_OVER})
_HAS_FENCE: Final = _WRITES | {Role.TAKING_OVER}
# As far as the shards know.
_SERVES: Final = _WRITES | {Role.DEPOSED}


class Until(Enum):
    """What the reader waits for, where it yields no request."""

    TAKEN = auto()  # What was told as `Followed` is replayed.
    NEWS = auto()  # There may be more.
    PACED = auto()  # It is time.


Reading = Generator[Request | Until, Reply | None, None]
Asking = Generator[Request, Reply, None]
_Handler = Callable[[Request, Reply], None]


class _Batch(NamedTuple):
    """One that was appended."""

    partition: int
    base_offset: int
    end_offset: int
    data: bytes


class _Successor(NamedTuple):
    """To whom the journal is handed over, and whether an operator wants that."""

    member: Member
    is_move: bool


class _Away(NamedTuple):
    """When a leader without a connection stops to decide, and when others may lead."""

    paused_at_ms: int
    cut_off_at_ms: int


@dataclass(slots=True)
class _Unit:
    """A part of a flush that is written, or to be written, as one unit of the log.

    Attributes:
        batches: What is in it.
        entries: As they are in the log, once it is begun: the same in each try.
        index: Of the first one.
        sent: How many of them are in the log for sure.
        is_last: Of its flush.
    """

    batches: list[_Batch]
    is_last: bool
    entries: tuple[bytes, ...] = ()
    index: int = 0
    sent: int = 0

    @property
    def ends(self) -> dict[int, int]:
        """By partition, the end offset with it."""
        return {batch.partition: batch.end_offset for batch in self.batches}


@dataclass(slots=True)
class _Chores:
    """What a leader does beside.

    Attributes:
        waiting: The first one is at work.
        wanted: The request that it waits for, whatever its version.
        is_asked: It is on its way.
    """

    waiting: deque[Asking] = field(default_factory=deque)
    wanted: Any = None
    is_asked: bool = False


class ReplicatedJournal:
    """See the module.

    Attributes:
        number: Of the journal.
        leader: Who leads it, as far as this node has seen; None if nobody ever did.
        led_since_ms: The wall clock of the engine when that was written; -1: not seen yet.
        is_following: It has read all that there was, at least once: it may lead.
        is_settled: It was seen in this session who leads, and done what follows from that.
        snapshot: The newest one, as far as this node has seen.
        partitions: The offsets partitions in it.
        in_sync: The nodes that are ready, for the states that tools look at.
        format: In which new entries are written: one that all nodes read.
        caught_up: The highest number of `catch_up` that it is done with.
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
        """Follow a journal, of which nothing is known yet.

        Args:
            number: Of the journal.
            partitions: The offsets partitions in it, `NODE_PARTITION` not among them.
            new_id: Returns 32 random hex digits.
            session_timeout_ms: After so long without a connection another node may lead.
            follow_interval_ms: The log is read so often, at most, while another node leads.
            keep_bytes: So much of the log is kept, at least, where a snapshot has it, too.
            wall_offset_ms: The time of day less the monotonic time.
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
        # Who is to hear the answer, by the id of the request, which is kept alive with it.
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
        self._listed = 0  # The newest entry that was there behind the fence; -1: not seen yet.
        self._catch_up: list[int] = []  # For which the next look at the end counts.
        self.caught_up = 0
        # The control, and the fence.
        self._control: Asking | None = None
        self._look_again = False
        self._version = self._fence = -1  # Of `leader`: the highest that was seen, and ours.
        self._term: Leader | None = None  # What stands in `leader` in this fence's version.
        self._tries: set[str] = set()  # Claim ids of our own renewals, and of a hand-over.
        self._successor: _Successor | None = None
        self._given = ""  # The claim id of a hand-over that was tried.
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
        # Up to which number an append, and a confirmation, confirm that are on their way.
        self._append_covers = self._confirm_covers = 0
        self._chores = _Chores()
        self._making = ""  # The snapshot that may be installed.

    # --- for whoever asks ---------------------------------------------------------------

    @property
    def role(self) -> Role:
        """What this node is to the journal."""
        return self._role

    @property
    def is_leading(self) -> bool:
        """Whether this node leads: between `Leads` and `Deposed` or `HandedOver`."""
        return self._role in _SERVES

    @property
    def is_frozen(self) -> bool:
        """Whether an export has frozen it, as far as this node has seen: no node may lead it."""
        return self.leader is not None and self.leader.is_frozen

    @property
    def is_ready(self) -> bool:
        """Whether it may be led from here at once: what this node holds is what the log says."""
        return self.is_following and self.is_settled

    @property
    def applied(self) -> int:
        """The last index of the log that this node holds."""
        return self._tail.applied

    @property
    def tail_size(self) -> tuple[int, int]:
        """How many bytes, and how many entries, of the log are behind the snapshot."""
        return self._tail.sizes_behind(self.snapshot.index)

    @property
    def state_bytes(self) -> int:
        """What the journal takes as it is kept: the snapshot, and what there is of the log."""
        return self.snapshot.size_bytes + self._tail.kept_bytes

    # --- for the shards, while it leads -------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        """The epoch that batches and answers carry, 0 if nobody leads."""
        leader = self.leader if self._term is None else self._term
        return 0 if leader is None else leader.epoch

    @property
    def open_bytes(self) -> int:
        """Bytes that were appended and not yet taken by a flush."""
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
        """Put one batch into the open flush, as `coordinator.log.journal.Journal` does.

        Raises:
            BatchTooLarge: Nothing was changed.
            LogFailed: This node does not lead.
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
        """Seal what was appended since the last call; None if that is nothing."""
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
        """Write *flush*, one at a time and in order; `Written` tells how far it is.

        It is repeated until it is known what became of it. `Deposed` ends it, too.
        """
        if self._taken is None:
            return []  # Deposed, since it was taken.
        taken, batches = self._taken
        assert taken is flush
        assert not self._units
        self._taken = None
        self._units.extend(_units_of(batches))
        self._go_on()
        return self._done()

    def confirm(self) -> int:
        """Return a number. `Confirmed` with it, or a larger one, says that this node led now.

        A read is answered once what it shows is durable, and it is confirmed.
        """
        self._asked += 1
        return self._asked

    def end_round(self) -> list[Effect]:
        """Have confirmed what waits for it, unless a flush that was just written does.

        Call it at the end of each round of requests, after the flush.
        """
        self._confirm()
        return self._done()

    # --- for the node -------------------------------------------------------------------

    def took(self, now_ms: int) -> list[Effect]:
        """Go on reading: the batches of the oldest `Followed` are replayed. `node` calls it."""
        self._now_ms = now_ms
        self._untaken -= 1
        if not self._untaken:
            self._wake(Until.TAKEN)
        return self._done()

    def claim(self, now_ms: int) -> list[Effect]:
        """Try to lead, if whoever led is gone. Nothing else comes of it than `Leads`, or not."""
        self._now_ms = now_ms
        if self._role is Role.FOLLOWING and self._me and self.is_following and not self._control:
            self._role = Role.CLAIMING
            self._begin_control(self._claim(self._me))
        return self._done()

    def hand_over(self, to: Member, *, is_move: bool = False) -> list[Effect]:
        """Have another node lead: `HandsOver` follows, if this one leads.

        With *is_move* an operator wants it there.
        """
        if self._role is Role.LEADING:
            self._role = Role.HANDING_OVER
            self._successor, self._is_stopped = _Successor(to, is_move=is_move), False
            self._out.append(HandsOver(self.number))
        return self._done()

    def stopped(self) -> list[Effect]:
        """Go on handing over: nothing more is appended.

        Once all is in the log, `HandedOver`, `KeptLead` or `Deposed` follows.
        """
        if self._role is Role.HANDING_OVER:
            self._is_stopped = True
            self._go_on()
        return self._done()

    def begin_snapshot(self) -> str | None:
        """Return the name for a snapshot that is made from here on, None if it isn't the time.

        It is to be installed while this node leads without a break: another leader removes the
        chunks that it finds. `SnapshotEnded` follows, either way.
        """
        if self._role is not Role.LEADING or self._chores.waiting or self._making:
            return None
        self._making = self._new_id()
        return self._making

    def install(self, snapshot: Snapshot) -> list[Effect]:
        """Make a snapshot the newest one, whose chunks are written, and trim the log."""
        if self._role in _WRITES and snapshot.name == self._making:
            self._add_chore(self._install(snapshot))
        return self._done()

    def abandon_snapshot(self) -> list[Effect]:
        """The snapshot that was begun comes to nothing: remove what there is of it."""
        if self._making:
            self._end_snapshot()
            self._add_chore(self._clean())
        return self._done()

    def set_purged(self, registry_version: int) -> list[Effect]:
        """Tell all nodes up to where offsets of deleted topics are removed from this journal."""
        if self._role in _WRITES:
            self._add_chore(self._set_purged(registry_version))
        return self._done()

    def read(
        self, partition: int, from_offset: int, max_bytes: int
    ) -> Generator[ReadEntries, Reply, list[Batch]]:
        """Return the batches of one partition from the one that holds *from_offset*.

        A generator: it yields requests, is sent their answers, and returns what it has read.
        It ends after the unit with which so many bytes were read, and has one batch at least, if
        there is one.

        Raises:
            LogCorrupt: Damage.
            LogFailed: It was trimmed meanwhile, the connection broke, or this node does not lead
                any more: ask again.
        """
        # The request may have waited: the lead that it saw then may be over.
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
        """Take note that the connection broke; what else the engine tells, `node` sees to."""
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
        """Go on: this node is registered in the session that there is, which may be a new one."""
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
        """Take note of an answer to a request of this journal's."""
        self._now_ms = now_ms
        waiting = self._waiting.pop(id(request), None)
        if waiting is not None and reply.code is not Code.LOST:
            if reply.code is Code.REFUSED:
                self._refused(request, reply)
            else:
                waiting[1](request, reply)
        return self._done()

    def fired(self, request: Request, now_ms: int) -> list[Effect]:
        """Take note that what a request of this journal's watches is different now."""
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
        """Return when `tick` has something to do, monotonic."""
        if self._away is not None and self._role in _WRITES:
            if not self._is_paused:
                return self._away.paused_at_ms
            if not self._is_cut_off:
                return self._away.cut_off_at_ms
        if self._reader_waits_for(Until.PACED):
            return self._read_at_ms + self._follow_interval_ms
        return None

    def tick(self, now_ms: int) -> list[Effect]:
        """Do what is due."""
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
            # Left to the next one: somebody writes there, who is no leader.
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
        """Verify what this node knows of the journal, as a connection broke; then go on."""
        yield from self._verify()
        if self._role is Role.DEPOSED:
            yield from self._find_fate()
        elif self._role is not Role.FAILED:
            yield from self._settle()

    def _settle(self) -> Asking:
        """See who leads, and act upon it: follow, take over, renew, go on, or be deposed."""
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
        """Say whether this node goes on leading, in a version that it has not heard of."""
        if leader is None or leader.claim not in self._tries:
            self._depose()
            return False
        if leader.claim == self._given:
            self._handed_over()
            return False
        self._have_fence(leader, version)
        return True

    def _verify(self) -> Asking:
        """See that the ensemble still has what this node knows of the journal.

        It may have been set back to a copy since the connection broke, and may know the session,
        as the copy does. In one that was not, nothing is older than what the session has seen.
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
            # Nothing shows whether the log goes on from what is held: load the newer snapshot.
            self._is_loaded = False

    def _term_of(self, member: Member, after: Leader | None, *, is_moved: bool = False) -> Leader:
        # By the clock, too: an ensemble that was set back, or is empty, knows too low an epoch.
        by_clock = epoch_by_clock(self._now_ms + self._wall_offset_ms)
        epoch = by_clock if after is None else max(after.epoch + 1, by_clock)
        node, run, session = member
        return Leader(epoch, node, run, session, self._new_id(), is_moved=is_moved)

    def _set_leader(self, version: int, leader: Leader) -> SetLeader:
        return SetLeader(self.number, version, leader, self.partitions, self.in_sync)

    def _have_fence(self, term: Leader, version: int) -> None:
        """Lead on in a version that a renewal has made."""
        self._fence = self._version = version
        self._term = self.leader = term
        if self._role in _WRITES:
            self._out.append(Renewed(self.number, term.epoch))

    def _claim(self, me: Member) -> Asking:
        """Lead, if who led is gone: a session that ended never comes back."""
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
        """Read to the end: nothing of older leaders comes behind that any more."""
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
        """Another leader may have written. Find out what became of the flush on its way."""
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
        """Look at the last index of the unit on its way, and forget what is ahead of the log."""
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
        """Be no leader any more."""
        self._role = Role.FOLLOWING
        self._term, self._successor, self._given = None, None, ""
        self._tries.clear()
        self._ends = {}
        self._open, self._open_bytes, self._taken = [], 0, None
        self._units.clear()
        self._confirmed = self._asked
        self._is_paused = self._is_cut_off = False

    def _give(self) -> Asking:
        """Have the successor lead; nothing is on its way, and memory holds what the log does."""
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
        """The hand-over did not come through; if it does later, the fence tells."""
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
        """Do whatever may be done now, as the leader."""
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
        """What is on its way is not heard of any more."""
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
        """Look at what is there: the fence held, so it can only be an earlier try of ours."""
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
            # A successor may have trimmed it since.
            if reply.value.index < index:
                self._lost(f"entry {index} was there, and is gone")
                return
            self._append_request = None
            self._is_in_log(unit, entries)

        self._ask(ReadEntries(self.number, index, entries), looked)

    def _is_in_log(self, unit: _Unit, entries: int) -> None:
        """Go on behind a piece that is in the log for ever."""
        unit.sent += entries
        if unit.sent == len(unit.entries):
            self._units.popleft()
            self._tail.wrote(unit.entries, [batch[:3] for batch in unit.batches])
            self._out.append(Written(self.number, unit.ends, is_last=unit.is_last))
        self._go_on()

    def _confirm(self) -> None:
        """Check the fence for whoever waits for it, unless what is on its way does."""
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
        """Look at the end of the log now."""
        self._has_news = True
        self._wake(Until.NEWS)
        self._wake(Until.PACED)

    def _follow(self) -> Reading:
        """Read on, until this node leads."""
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
                    # What comes next was not there; nor was it trimmed, as this came before it.
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
        """Take note of the end of the log, as of when it was asked for.

        It is the last leader's end only if this node *had_fence* before it asked.
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
        """See up to where there are entries, which all have to be read before this node leads."""
        reply = yield ListLog(self.number, self._tail.applied + 1)
        assert reply is not None
        self._listed = max(reply.value or (0,))

    def _see_gap(self) -> Reading:
        """Look whether the next entry was trimmed. Raises LogCorrupt if not: it is gone."""
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
        """Take note that the end of the log was seen, by whoever asked before it was read."""
        self.is_following = True
        for number in self._catch_up[:counted]:
            self.caught_up = max(self.caught_up, number)
        del self._catch_up[:counted]

    def _pace(self) -> Reading:
        """Wait until it is time for the next read: each costs more than what it brings."""
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
        """Begin with the newest snapshot: what this node holds is none of the log's, or too old."""
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
        """See where the log lies that the snapshot has, for those who read the changes."""
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
        """Have the request of the first chore done, or done again."""
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
        if snapshot.index > self.snapshot.index:  # Else the child has seen an older log.
            yield Install(self.number, self._fence, snapshot, self._snapshot_version)
        # It looks what stands there: a try whose answer was lost looks like another one's.
        yield from self._clean()
        self._end_snapshot()

    def _clean(self) -> Asking:
        """Remove the chunks of other snapshots, and the entries that nobody needs."""
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
        """Remove what the snapshot has and nobody reads, but never the newest entry."""
        kept_from = self._tail.forget(self.snapshot.index, self._keep_bytes)
        last = min(kept_from - 1, self.snapshot.index, self._tail.applied - 1)
        oldest = yield from self._list_oldest()
        if oldest.value:
            for first in range(oldest.value[0], last + 1, TRIM_ENTRIES_MAX):
                until = min(first + TRIM_ENTRIES_MAX - 1, last)
                yield Trim(self.number, self._fence, first, until, bool(oldest.stray))

    def _list_oldest(self) -> Generator[Request, Reply, Reply]:
        """Return what lies in the first directory that isn't empty but for a stray."""
        reply = yield ListLog(self.number, None)
        for directory in reply.value:
            reply = yield ListLog(self.number, directory)
            if reply.value:
                break
        return reply

    def _set_purged(self, registry_version: int) -> Asking:
        yield SetPurged(self.number, self._fence, registry_version)


def _is_older(reply: Reply, version: int, known: Leader | Snapshot | None) -> bool:
    """Return whether a znode was read as it was before *known* stood there in *version*."""
    is_other = reply.version == version and reply.value != known
    return reply.code is not Code.OK or reply.version < version or is_other


def _names(leader: Leader, me: Member) -> bool:
    """Return whether *leader* is this life of this node, in this session."""
    return leader.run == me.run and leader.session == me.session and not leader.is_frozen


def _units_of(batches: list[_Batch]) -> Iterator[_Unit]:
    """Cut a flush into units; one that is no larger than that fits into one transaction."""
    unit: list[_Batch] = []
    size_bytes = 0
    for batch in batches:
        if unit and size_bytes + len(batch.data) > log_entries.UNIT_BYTES:
            yield _Unit(unit, is_last=False)
            unit, size_bytes = [], 0
        unit.append(batch)
        size_bytes += len(batch.data)
    yield _Unit(unit, is_last=True)
