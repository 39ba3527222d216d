"""The logs of a cluster under one node: what the others decide is followed, what it leads is kept.

Theory of operation
===================

`coordinator.cluster` decides, as pure machines: who leads what, what is asked of the engine, what
came of it. This has their requests done, and does to the shards what they say. A journal's shards
go through these, and a node may be anywhere in it with each journal:

    closed -> following -> active (-> suspended -> active) -> following, handed over
      ^          |            |
      +----------+------------+------ deposed, or what is held is not what the log says

- *Following*, batches are replayed as they come, in slices, by one task for each journal. So a
  node that comes to lead has the state already: it gives members their sessions, and nobody loads
  or rebalances.
- *Active*, a flush is one write of the machine. What memory alone says waits for a confirmation
  besides: see `FencedGate`.
- *Suspended*: there is no connection. Nothing is decided, and nobody is evicted.

What groups know of topics comes from journal 0. While a node has forgotten that one, because it was
deposed there, the groups that it leads are suspended.

Everything that the machines say is done in the order in which they say it. What takes long (to
replay, to begin to lead) is queued for the journal's task; if what it was for is over by then, it
ends by itself.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final

import outcome
import trio

from coordinator.cluster import effects as e
from coordinator.cluster.engine import Engine, Event, Reply, Request
from coordinator.cluster.journal import PAUSE_MS, ReplicatedJournal, Role
from coordinator.cluster.node import ClusterNode
from coordinator.group.core import Now
from coordinator.log.errors import LogError, LogFailed
from coordinator.log.format import Batch, Flush
from coordinator.runtime.calls import SLICE_S
from coordinator.runtime.coordination import Leader, NotLed, Peer
from coordinator.runtime.environment import Done, Environment
from coordinator.runtime.health import STORAGE, UNWRITTEN_BYTES_MAX, ZOOKEEPER, Health
from coordinator.runtime.logs import Log, LogUser, OutOfReach, ReplayLog
from coordinator.runtime.shard import ShardRunner, Status
from coordinator.runtime.snapshotter import Snapshots, Snapshotter
from protocol import messages as m
from protocol.errors import ErrorCode

# A slice of so many entries holds requests up for a few milliseconds.
FOLLOW_SLICE_ENTRIES: Final = 1_000
# What a hand-over takes, and more: what can wait stays out of its way for so long.
REST_AFTER_S: Final = 0.2

_IS_FULL: Final = "the logs have reached cluster.state.max.bytes: new offsets are refused"
_IS_SLOW: Final = "what is to be written does not reach the logs: new offsets are refused"
_NO_CONNECTION: Final = "this node has no connection to ZooKeeper"
_IS_FROZEN: Final = "the cluster was exported, and is frozen until `cluster thaw`"
_IS_AWAY: Final = (
    "ZooKeeper can't be reached, or still waits for the end of this node's former session: nothing "
    "is decided here, and others may lead what this node led"
)

Runner = ShardRunner[Any]


class ReplicatedLog:
    """One journal of a cluster, as a node's log.

    Attributes:
        append_packed: See `ReplicatedJournal`; likewise ``end_offset`` and ``take_flush``.
        is_fenced: It is.
        last_sync_s: How long the latest flush took.
        last_wait_s: None: flushes don't wait for a thread of their own.
    """

    last_wait_s: float | None = None

    def __init__(self, journal: ReplicatedJournal, store: "Replication") -> None:
        self.append_packed = journal.append_packed
        self.end_offset = journal.end_offset
        self.take_flush = journal.take_flush
        self.is_fenced = True
        self.last_sync_s = 0.0
        self._journal = journal
        self._store = store
        self._done: Done | None = None  # Of the flush that is on its way.
        self._began_s = 0.0

    @property
    def leader_epoch(self) -> int:
        """See `ReplicatedJournal.leader_epoch`."""
        return self._journal.leader_epoch

    @property
    def open_bytes(self) -> int:
        """See `ReplicatedJournal.open_bytes`."""
        return self._journal.open_bytes

    @property
    def compacted_below(self) -> dict[int, int]:
        """See `ReplicatedJournal.compacted_below`."""
        return self._journal.compacted_below

    def next_write(self) -> int:
        """Have the lead confirmed at the end of the round; return the confirmation's number."""
        self._store.want_end_round()
        return self._journal.confirm()

    def write(self, flush: Flush, done: Done) -> None:
        """Have *flush* written, and then call *done*."""
        self._done = done
        self._began_s = self._store.clock_s()
        self._store.do(self._journal.write(flush))

    def flush_ended(self, result: outcome.Outcome[None]) -> None:
        """Tell whoever waits for the flush on its way, if there is one."""
        done, self._done = self._done, None
        if done is not None:
            self.last_sync_s = self._store.clock_s() - self._began_s
            done(result)

    async def fetch(
        self, partition: int, from_offset: int, max_bytes: int
    ) -> Generator[Batch, None, None]:
        """Return batches of what is kept of the log.

        Raises:
            OutOfReach: There is no connection, or it was trimmed meanwhile.
            LogCorrupt: Damage.
        """
        reading = self._journal.read(partition, from_offset, max_bytes)
        try:
            request = next(reading)
            while True:
                request = reading.send(await self._store.ask(request))
        except StopIteration as end:
            found: list[Batch] = end.value
            return (batch for batch in found)
        except LogFailed as exc:
            raise OutOfReach from exc


class Replication:
    """The store of a node of a cluster. It has no tasks of its own before `run`.

    Attributes:
        logs: By number.
        replays: None: they are followed.
        health: See `Store`; likewise ``cluster_id`` and ``num_partitions``.
        refuses: Whether new data is to be refused, as of the last look.
        is_exhausted: Whether generations and assignments are to be refused, too.
        alarm_bytes: With so much to be written, look again at once.
        state_max_bytes: So much all logs together may come to, as they are kept.
        nodes_expected: How many nodes the cluster should have; 0 if that isn't set.
        machine: Decides.
        find: Finds the cluster, before anything is asked of `engine`; sets ``cluster_id``.
        compact: See `Snapshotter.submit`; likewise ``stop``.
    """

    def __init__(
        self,
        machine: ClusterNode,
        environment: Environment,
        *,
        cluster_id: str,
        num_partitions: int,
        state_max_bytes: int,
        snapshots: Snapshots,
        nodes_expected: int = 0,
    ) -> None:
        """Make it; `engine` is set, and its events reach `told`, before `run`."""
        self.machine = machine
        self.engine: Engine
        self.find: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        self.health = Health(environment, ZOOKEEPER)
        self.cluster_id = cluster_id
        self.num_partitions = num_partitions
        self.state_max_bytes = state_max_bytes
        self.nodes_expected = nodes_expected
        self.refuses = self.is_exhausted = False
        self.alarm_bytes = UNWRITTEN_BYTES_MAX // 2
        self.clock_s = environment.clock_s
        self._now = environment.now
        self._emit_event = environment.emit_event
        self._poller = environment.poller
        self._of_journal = [_Journal(journal, self) for journal in machine.journals]
        self.logs: Sequence[Log] = [one.log for one in self._of_journal]
        self.replays: Sequence[ReplayLog] = ()
        # By journal, up to which version of the registry it has no offsets of deleted topics, and
        # what it was asked to say of that.
        self._purged: dict[int, int] = {}
        self._purged_asked: dict[int, int] = {}
        self._node: LogUser
        self._effects: deque[e.Effect] = deque()
        self._is_doing = False
        self._failure: LogError | None = None
        self._kick = trio.Event()
        self._wakes_at_ms: int | None = None
        self._round_end_is_wanted = False
        self._done_something = trio.Event()
        self._closed = set(self._of_journal)  # Their shards don't hold what the log says.
        self._is_loaded = False
        self._away_since_ms: int | None = None  # Without a session, at the last look.
        self._began_ms = 0
        self._entries = 0
        self._snapshotter = Snapshotter(
            machine.journals, snapshots, environment, self.health, self.do
        )
        self.compact = self._snapshotter.submit
        self.stop = self._snapshotter.stop
        environment.metrics.update(
            log_bytes=lambda: self._state_bytes,
            log_bytes_limit=lambda: self.state_max_bytes,
            log_unflushed_bytes=lambda: sum(log.open_bytes for log in self.logs),
            journals=lambda: len(machine.journals),
            journals_led=lambda: sum(journal.is_led for journal in self._of_journal),
            journals_without_leader=lambda: sum(map(self._has_no_leader, machine.journals)),
            journals_frozen=lambda: sum(journal.is_frozen for journal in machine.journals),
            cluster_nodes=lambda: len(machine.nodes) if machine.is_connected else 0,
            cluster_nodes_expected=lambda: self.nodes_expected,
        )

    # --- for the server -----------------------------------------------------------------

    def leader_of(self, offsets_partition: int) -> Leader | None:
        """Return who leads a partition, None while nobody who is there does; see `Coordination`."""
        found = self.machine.leader_of(offsets_partition) if self.machine.is_connected else None
        if found is None:
            return None
        leader, registration = found
        return Leader(leader.node, registration.addresses, leader.epoch)

    def why_unled(self, offsets_partition: int) -> str:
        """Return why a partition has no leader, "" if that isn't known; see `Coordination`."""
        if not self.machine.is_connected:
            return _NO_CONNECTION
        return _IS_FROZEN if self.machine.journal_of(offsets_partition).is_frozen else ""

    def _has_no_leader(self, journal: ReplicatedJournal) -> bool:
        """Say whether this node can name none, though the journal should have one."""
        is_known = self.machine.is_connected and self.machine.leading_node(journal) >= 0
        return not (is_known or journal.is_frozen)

    def nodes(self) -> Sequence[Peer]:
        """Return the registered nodes, as far as this one has seen; see `Coordination`."""
        return [
            Peer(node, registration.addresses, registration.is_ready)
            for node, (registration, _) in sorted(self.machine.nodes.items())
        ]

    async def hand_over(self) -> None:
        """Hand over what this node leads, and return when others lead it, or nobody can."""
        self.do(self.machine.drain(self._now().mono_ms))
        while self.machine.can_hand_over and any(j.is_leading for j in self.machine.journals):
            self._done_something = trio.Event()
            await self._done_something.wait()

    def move(self, journal: int, to: int, done: Callable[[bool], None]) -> None:
        """Hand a journal over; see `Coordination`."""
        journals = self.machine.journals
        if journal >= len(journals):
            raise ValueError(f"there is no journal {journal} of {len(journals)}")
        if not journals[journal].is_leading:
            raise NotLed(f"journal {journal} is not led by this node")
        effects = self.machine.move(journal, to, self._now().mono_ms)
        self._of_journal[journal].moves.append((to, done))
        self.do(effects)

    def describe(self) -> m.DescribeJournalsResponse:
        """Return what this node has of the journals; see `Coordination`."""
        return m.DescribeJournalsResponse(
            ErrorCode.NONE,
            None,
            self.machine.node_id,
            self.machine.is_connected,
            *self.machine.formats,
            self._state_bytes,
            self.state_max_bytes,
            tuple(map(self._described, self.machine.journals)),
            self.nodes_expected,
        )

    def _described(self, journal: ReplicatedJournal) -> m.DescribedJournal:
        tail_bytes, tail_entries = journal.tail_size
        return m.DescribedJournal(
            journal.number,
            self.machine.leading_node(journal),
            journal.leader_epoch,
            journal.led_since_ms,
            journal.applied,
            tail_entries,
            tail_bytes,
            journal.snapshot.index,
            journal.snapshot.size_bytes,
            journal.is_frozen,
        )

    # --- the engine ---------------------------------------------------------------------

    def told(self, event: Event) -> None:
        """Take note of what the engine tells."""
        self.do(self.machine.told(event, self._now().mono_ms))

    def _replied(self, request: Request, reply: Reply) -> None:
        self.do(self.machine.replied(request, reply, self._now().mono_ms))

    async def ask(self, request: Request) -> Reply:
        """Have *request* done, and return the answer."""
        answered = trio.Event()
        replies: list[Reply] = []

        def done(reply: Reply) -> None:
            replies.append(reply)
            answered.set()

        self.engine.submit(request, done)
        await answered.wait()
        return replies[0]

    def do(self, effects: Iterable[e.Effect]) -> None:
        """Do what the machines say, in its order."""
        self._effects.extend(effects)
        if self._is_doing:
            return  # Whoever is at it goes on with these.
        self._is_doing = True
        try:
            while self._effects:
                self._do_one(self._effects.popleft())
        finally:
            self._is_doing = False
        self._let_follow()
        self._done_something.set()
        self._kick_clock()

    def _let_follow(self) -> None:
        """Have the shards follow whose journals were read to their end, for the first time."""
        caught_up = [one for one in self._closed if one.has_caught_up]
        for one in caught_up:
            self._closed.discard(one)
            one.follow()
        if not caught_up:
            return
        self._node.tell_changes(self._now())
        self.changed()
        if not (self._is_loaded or self._closed):
            self._is_loaded = True
            load_ms = self._now().mono_ms - self._began_ms
            self._node.loaded(self._entries, load_ms)

    def _do_one(self, effect: e.Effect) -> None:
        match effect:
            case e.Send(request):
                self.engine.submit(request, partial(self._replied, request))
            case e.Purged(number, version):
                self._purged[number] = version
                self._node.purged_changed()
            case e.Stranger(broker):
                self._emit_event("zookeeper.stranger", {"broker": broker})
            case e.Stray(path):
                self._emit_event("zookeeper.stray", {"znode": path})
            case e.SnapshotEnded():
                self._snapshotter.ended()
            case e.Failed(error):
                self._fail(error)
            case _:
                self._of_journal[effect.journal].do(effect, self._node, self._now())

    def _fail(self, error: LogError) -> None:
        """End the process; nothing more is acknowledged."""
        self._failure = self._failure or error
        self._kick.set()

    # --- rounds -------------------------------------------------------------------------

    def want_end_round(self) -> None:
        """Somebody waits for a confirmation: have `end_round` called soon."""
        if not self._round_end_is_wanted:
            self._round_end_is_wanted = True
            if not self._poller.in_round:
                self._poller.call_soon(self.end_round)

    def end_round(self) -> None:
        """Have confirmed what waits for that."""
        if self._round_end_is_wanted:
            self._round_end_is_wanted = False
            # All at once: behind what is done, every journal's deadline is looked at.
            ended = [journal.end_round() for journal in self.machine.journals]
            self.do(chain.from_iterable(ended))

    # --- deleted topics -----------------------------------------------------------------

    def purged(self, log: int) -> int:
        """Return up to which version of the registry a journal has none of their offsets."""
        return self._purged.get(log, 0)

    def set_purged(self, log: int, version: int) -> None:
        """Tell all nodes that, if this one leads the journal."""
        journal = self.machine.journals[log]
        known = max(self.purged(log), self._purged_asked.get(log, 0))
        if version > known and journal.is_leading:
            self._purged_asked[log] = version
            self.do(journal.set_purged(version))

    @property
    def logs_repeats(self) -> bool:
        """See `Store.logs_repeats`."""
        return self.machine.journals[0].format > 1

    # --- room ---------------------------------------------------------------------------

    @property
    def _state_bytes(self) -> int:
        """What all logs come to as they are kept: snapshots, and what lies behind them."""
        return sum(journal.state_bytes for journal in self.machine.journals)

    def look(self) -> None:
        """See how much is kept, how much waits to be, and whether it can be."""
        state_bytes = self._state_bytes
        unwritten = sum(log.open_bytes for log in self.logs)
        is_full, is_slow = state_bytes >= self.state_max_bytes, unwritten > self.alarm_bytes
        self.refuses = is_full or is_slow
        # What is needed to shrink takes a little, too.
        self.is_exhausted = (
            state_bytes >= self.state_max_bytes * 11 // 10 or unwritten > UNWRITTEN_BYTES_MAX
        )
        self._snapshotter.look(is_full=is_full)
        self.health.report(STORAGE, _IS_FULL if is_full else _IS_SLOW if is_slow else None)
        now_ms = self._now().mono_ms
        if self.machine.is_connected:
            self._away_since_ms = None
        elif self._away_since_ms is None:
            self._away_since_ms = now_ms
        is_away = self._away_since_ms is not None and now_ms >= self._away_since_ms + PAUSE_MS
        self.health.report(ZOOKEEPER, _IS_AWAY if is_away else None)

    def tend(self) -> None:
        """Do nothing: every write finds out whether the logs are still led."""

    def begin(self) -> None:
        """Do nothing: snapshots keep the logs small."""

    def flushed(self) -> None:
        """Do nothing: the machine has heard of it."""

    # --- tasks --------------------------------------------------------------------------

    async def run(self, node: LogUser) -> None:
        """Find the cluster, then follow and lead, until cancelled.

        Raises:
            LogError: There is no cluster that will do, or what it keeps can't be led or followed
                any more.
        """
        self._node = node
        self._began_ms = self._now().mono_ms
        for journal in self._of_journal:
            journal.runners = node.runners_in(journal.number)
        await self.find()
        async with trio.open_nursery() as nursery:
            for journal in self._of_journal:
                nursery.start_soon(journal.run, node, self._now)
            nursery.start_soon(self._run_clock)
            nursery.start_soon(self.engine.run)
            nursery.start_soon(self._snapshotter.run)

    def _kick_clock(self) -> None:
        at_ms = self.machine.next_deadline_ms()
        if at_ms is not None and (self._wakes_at_ms is None or at_ms < self._wakes_at_ms):
            self._kick.set()

    async def _run_clock(self) -> None:
        while True:
            if self._failure is not None:
                raise self._failure
            self._kick = trio.Event()
            self._wakes_at_ms = at_ms = self.machine.next_deadline_ms()
            # Half a millisecond more: in floating point, the deadline may read as one too early.
            until_s = float("inf") if at_ms is None else (at_ms + 0.5) / 1000
            with trio.move_on_at(until_s):
                await self._kick.wait()
            now_ms = self._now().mono_ms
            if at_ms is not None and now_ms >= at_ms:
                self.do(self.machine.tick(now_ms))

    # --- for the journals ---------------------------------------------------------------

    def forgotten(self, one: "_Journal") -> None:
        """The shards of a journal hold nothing any more."""
        self._closed.add(one)

    def replayed(self, number: int, entries: int) -> None:
        """What was followed of a journal is replayed: go on reading."""
        self._entries += entries
        self.do(self.machine.took(number, self._now().mono_ms))

    def ended(self, number: int) -> None:
        """A term has ended, and with it what the journal was asked to do beside."""
        self._purged_asked.pop(number, None)

    def changed(self) -> None:
        """The status of shards is another one: see who may serve, and whether all is loaded."""
        topics_are_known = not self._of_journal[0].runners[0].is_unread
        now_ms = self._now().mono_ms
        for journal in self._of_journal:
            journal.let_serve(now_ms, may_serve=topics_are_known)

    def tell(self, name: str, number: int, **fields: int) -> None:
        """Log an event of a journal."""
        self._emit_event(name, {"journal": number, **fields})


class _Journal:
    """One journal under a node: its log, its shards, and what is yet to be done to them."""

    def __init__(self, journal: ReplicatedJournal, store: Replication) -> None:
        self.number = journal.number
        self.log = ReplicatedLog(journal, store)
        self.runners: Sequence[Runner] = ()
        self._journal = journal
        self._store = store
        self._queue: deque[e.Followed | e.Leads | e.HandsOver] = deque()
        self.moves: list[tuple[int, Callable[[bool], None]]] = []  # Asked for by operators.
        self._wake = trio.Event()
        self._is_paused = self._is_cut_off = False
        self._suspended_since_ms: int | None = None
        self._handlers: Mapping[type, Callable[[Any, LogUser, Now], None]] = {
            e.Followed: self._put_off,
            e.Leads: self._put_off,
            e.KeptLead: self._kept_lead,
            e.Written: self._written,
            e.Confirmed: self._confirmed,
            e.Renewed: self._renewed,
            e.LoadAnew: self._load_anew,
            e.Deposed: self._deposed,
            e.HandsOver: self._hands_over,
            e.HandedOver: self._handed_over,
            e.Paused: self._paused,
            e.CutOff: self._cut_off,
            e.Resumed: self._resumed,
        }

    # --- at once ------------------------------------------------------------------------

    @property
    def has_caught_up(self) -> bool:
        """Whether everything was read and replayed, at least once."""
        # `Leads` may come in the same step: then the shards follow first, and lead in their turn.
        is_replayed = not any(isinstance(effect, e.Followed) for effect in self._queue)
        return self._journal.is_following and is_replayed

    @property
    def is_led(self) -> bool:
        """Whether this node leads it, and reaches what keeps it."""
        return self._journal.is_leading and not self._is_paused

    def follow(self) -> None:
        """Let the shards follow."""
        for runner in self.runners:
            runner.follow()

    def do(self, effect: Any, node: LogUser, now: Now) -> None:
        """Do what the machine says of this journal."""
        self._handlers[type(effect)](effect, node, now)

    def _put_off(
        self, effect: e.Followed | e.Leads | e.HandsOver, _node: LogUser, _now: Now
    ) -> None:
        self._queue.append(effect)
        self._wake.set()

    def _written(self, effect: e.Written, node: LogUser, _now: Now) -> None:
        if effect.is_last:
            self.log.flush_ended(outcome.Value(None))  # Whoever wrote it tells the node.
        else:
            node.advance(effect.ends)

    def _confirmed(self, effect: e.Confirmed, _node: LogUser, now: Now) -> None:
        for runner in self.runners:
            runner.confirm(effect.number, now)

    def _renewed(self, _effect: e.Renewed, _node: LogUser, _now: Now) -> None:
        for runner in self.runners:
            runner.renew()

    def _load_anew(self, _effect: e.LoadAnew, _node: LogUser, now: Now) -> None:
        self._forget({}, now)

    def _deposed(self, effect: e.Deposed, _node: LogUser, now: Now) -> None:
        self._store.tell("journal.deposed", self.number)
        self._end_moves()
        self._forget(effect.unknown, now)
        self.log.flush_ended(outcome.Error(OutOfReach()))

    def _hands_over(self, effect: e.HandsOver, node: LogUser, now: Now) -> None:
        for runner in self.runners:
            runner.hand_over()
        self._is_over()
        self._store.do(self._journal.stopped())
        self._put_off(effect, node, now)  # No other node waits for that: it takes long.

    def _handed_over(self, _effect: e.HandedOver, _node: LogUser, _now: Now) -> None:
        self._store.tell("journal.handed_over", self.number)
        self._end_moves()

    def _kept_lead(self, _effect: e.KeptLead, _node: LogUser, _now: Now) -> None:
        self._end_moves()

    def _end_moves(self) -> None:
        """Tell whoever has asked for a hand-over what came of it."""
        moves, self.moves = self.moves, []
        leader = self._journal.leader
        for to, done in moves:
            done(leader is not None and leader.node == to)

    def _paused(self, _effect: e.Paused, _node: LogUser, _now: Now) -> None:
        self._store.tell("journal.cut_off", self.number)
        self._is_paused = True
        self._store.changed()

    def _cut_off(self, _effect: e.CutOff, _node: LogUser, _now: Now) -> None:
        self._is_cut_off = True
        self._store.changed()

    def _resumed(self, _effect: e.Resumed, _node: LogUser, _now: Now) -> None:
        self._store.tell("journal.reached", self.number)
        self._is_paused = self._is_cut_off = False
        self._store.changed()

    def _forget(self, unknown: dict[int, int], now: Now) -> None:
        """Answer whatever waits, and hold nothing of the journal any more."""
        for runner in self.runners:
            runner.drop(now, unknown.get(runner.partition, 0))
        self._store.forgotten(self)
        self._is_over()

    def _is_over(self) -> None:
        """The term has ended; what is not done for it yet ends by itself."""
        self._is_paused = self._is_cut_off = False
        self._suspended_since_ms = None
        self._store.ended(self.number)
        self._store.changed()

    def let_serve(self, now_ms: int, *, may_serve: bool) -> None:
        """Suspend the shards, or have them go on."""
        if (self.number and not may_serve) or self._is_paused:
            for runner in self.runners:
                runner.suspend(is_cut_off=self._is_cut_off)
            if self._suspended_since_ms is None:
                self._suspended_since_ms = now_ms
        elif self._suspended_since_ms is not None:
            suspended_ms, self._suspended_since_ms = now_ms - self._suspended_since_ms, None
            for runner in self.runners:
                runner.resume(suspended_ms)

    # --- in turns -----------------------------------------------------------------------

    async def run(self, node: LogUser, now: Callable[[], Now]) -> None:
        """Replay what comes, and begin to lead, in the order of the machine, until cancelled.

        Raises:
            LogError, RecordError: What was read can't be replayed.
        """
        while True:
            while not self._queue:
                self._wake = trio.Event()
                await self._wake.wait()
            effect = self._queue.popleft()
            if isinstance(effect, e.Followed):
                entries = await self._replay(effect.batches)
                if not self.number:
                    node.tell_changes(now())
                self._store.replayed(self.number, entries)
            elif isinstance(effect, e.HandsOver):
                await self._rest(now)
            elif self._journal.role is Role.LEADING:
                await self._lead(node, now, effect.epoch)

    async def _replay(self, batches: Iterable[Batch]) -> int:
        """Replay *batches*, which end when they are of no use any more; return how many entries."""
        runner_of = {runner.partition: runner for runner in self.runners}
        entries, pause_at = 0, FOLLOW_SLICE_ENTRIES
        for batch in batches:
            runner_of[batch.partition].replay(batch.items)
            entries += batch.num_keys
            if entries >= pause_at:
                pause_at = entries + FOLLOW_SLICE_ENTRIES
                await trio.lowlevel.checkpoint()
        return entries

    async def _rest(self, now: Callable[[], Now]) -> None:
        """Let go of what is soft, and answer who is parked."""
        await trio.sleep(REST_AFTER_S)
        for runner in self.runners:
            for _ in runner.rest(now):
                await trio.lowlevel.checkpoint()

    async def _lead(self, node: LogUser, now: Callable[[], Now], epoch: int) -> None:
        """Serve, unless the term ends meanwhile, or what is held is what it was."""
        following = [runner for runner in self.runners if runner.status is Status.FOLLOWING]
        loads = [runner.begin_to_lead() for runner in following]
        clock_s = self._store.clock_s
        until_s = clock_s() + SLICE_S
        for runner, load in zip(following, loads, strict=True):
            for _ in runner.finish_load(now):
                # Among commits a turn of all others takes many times what a small shard does.
                if clock_s() < until_s:
                    continue
                await trio.lowlevel.checkpoint()
                until_s = clock_s() + SLICE_S
                if not runner.is_loading(load):
                    return
            node.activated(runner)
        self._store.tell("journal.led", self.number, leader_epoch=epoch)
        self._store.changed()
