"""Random histories of a cluster, over the real machines and an ensemble in memory.

A history takes steps in a random order, and any of them may fall between any two others: a request
is done or its answer arrives, a connection breaks (what was on its way is lost, dropped, or done
much later), sessions end, processes die, journals are handed over, snapshots made, entries trimmed,
readers stall. At the end all is mended, and must come to rest.

What must hold at any time:

- An entry of the log is made once, behind the one before it: no holes, and nothing comes back.
- What was acknowledged is in the log. What was answered 16 never is.
- Acknowledgements of one epoch come from one process, also if the ensemble is set back, as long as
  a restore takes more minutes by the nodes' clocks than there were claims.
- A read that was answered shows all that was acknowledged, by anyone, before it was asked.
- What a node holds is what the log says, as far as it has it, when it begins to lead all of it.
  Then it knows all topics, too, that there were when it claimed to.
- If the ensemble is set back, a node that knows more than what is left of a journal ends, before it
  answers anything from that journal, leads it, or hands it over. The others go on.
"""

import random
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

import msgpack
import pytest

from coordinator.cluster import effects as fx, entries, znodes
from coordinator.cluster.engine import Registration, Reply, Request, Snapshot
from coordinator.cluster.entries import Joiner, batches_in, decode
from coordinator.cluster.journal import Member
from coordinator.cluster.layout import Layout
from coordinator.cluster.node import ClusterNode
from coordinator.cluster.snapshots import make_snapshot
from coordinator.log.errors import LogCorrupt, LogError, LogFailed
from coordinator.log.format import Batch
from tests.sim.ensemble import CLUSTER_ID, Ensemble, Line, Undone, cluster

NODES: Final = 3
PARTITIONS: Final = 4
SESSION_TIMEOUT_MS: Final = 4_000
FOLLOW_INTERVAL_MS: Final = 50
# The time of day when a history begins, and how long a backup takes to be restored.
WALL_MS: Final = 1_700_000_000_000
RESTORE_MS: Final = 1_000 * 60_000
_LEADER_PATH: Final = re.compile(r"/journals/(\d+)/leader")
_ENTRY_PATH: Final = re.compile(r"/journals/(\d+)/log/\d+/(\d+)")


class Violation(Exception):
    """A promise was broken."""


def require(holds: bool, promise: str) -> None:
    """Raise Violation unless it *holds*; an assertion is what the product says of itself."""
    if not holds:
        raise Violation(promise)


@dataclass
class Commit:
    """A change that one node has decided."""

    token: int
    journal: int
    partition: int
    end: int


@dataclass
class Read:
    """A read that waits until what it shows is durable and confirmed."""

    journal: int
    partition: int
    number: int
    until: int
    shows: frozenset[int]
    must_show: frozenset[int]


class Log:
    """What the log of one journal really is, whoever has read it."""

    def __init__(self) -> None:
        self.entries: list[bytes] = [b""]
        # Token -> how many tokens there were before it.
        self.tokens: dict[int, int] = {}
        self._joiner = Joiner()
        self._ends: dict[int, int] = {}

    def made(self, index: int, data: bytes) -> None:
        """An entry was made."""
        require(index == len(self.entries), f"entry {index} is made behind {len(self.entries) - 1}")
        self.entries.append(data)
        body = self._joiner.take(index, decode(data, index))
        for batch in batches_in(body or b"", self._ends, has_gaps=False):
            for token in tokens_of(batch):
                self.tokens[token] = len(self.tokens)


def tokens_of(batch: Batch) -> list[int]:
    """Return what the commits of a batch are known by."""
    return [item[4][0] for item in batch.items]


@dataclass
class World:
    """What nobody in the cluster sees whole.

    Attributes:
        logs: By journal.
        acked: By partition, what was acknowledged.
        refused: What was answered 16.
        topics: By journal, how much was in the log of the topics when it was claimed last.
        runs: By journal and epoch, the process that acknowledges in it.
        is_set_back: The ensemble was, so a node may end.
        is_wiped: Its znodes were removed, those of living sessions, too.
    """

    rng: random.Random
    journals: int
    ensemble: Ensemble
    logs: list[Log]
    now_ms: int = 0
    acked: dict[int, set[int]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    topics: dict[int, int] = field(default_factory=dict)
    runs: dict[tuple[int, int], str] = field(default_factory=dict)
    late: list[Undone] = field(default_factory=list)
    tokens: Iterator[int] = field(default_factory=lambda: count(1))
    is_set_back: bool = False
    is_wiped: bool = False
    looked: int = 0
    acks: int = 0
    reads: int = 0

    def look(self) -> None:
        """See what was written since the last look."""
        for number, steps in enumerate(self.ensemble._steps[self.looked :], self.looked):
            for step in steps:
                self._look_at_leader(step.path, number)
                match = _ENTRY_PATH.fullmatch(step.path)
                znode = match and self.ensemble.at(step.path)
                if match and znode and int(match[2]):
                    self.logs[int(match[1])].made(int(match[2]), znode.data)
        self.looked = self.ensemble.transactions

    def set_back(self, transactions: int) -> list[Log]:
        """Set the ensemble back; return the logs as they were."""
        self.look()
        before, self.logs = self.logs, [Log() for _ in self.logs]
        for journal, log in enumerate(before):
            names = self.ensemble.names(f"/journals/{journal}/log/0", transactions)
            end = max(map(int, names or ("0",)))
            for index, data in enumerate(log.entries[1 : end + 1], start=1):
                self.logs[journal].made(index, data)
        self.ensemble.set_back(transactions)
        self.looked = self.ensemble.transactions
        left = {token for log in self.logs for token in log.tokens}
        self.acked = {partition: tokens & left for partition, tokens in self.acked.items()}
        self.topics.clear()
        self.is_set_back = True
        return before

    def _look_at_leader(self, path: str, number: int) -> None:
        """See that nobody took a journal from a living session, but who has it."""
        match = _LEADER_PATH.fullmatch(path)
        if not match:
            return
        before, now = [
            znodes.decode_leader(self.ensemble.data(path, n)) for n in (number, number + 1)
        ]
        if now is None or (before is not None and before.run == now.run):
            return
        self.topics[int(match[1])] = len(self.logs[0].tokens)
        if before is None:
            return
        writer, session = self.ensemble.writers[number], self.ensemble.session(before.session)
        is_living = session.ended_at is None or session.ended_at > number
        may_take = writer == before.session or not is_living or self.is_wiped
        require(may_take, "taken from a living session")


class Host:
    """One life of a node's process, as the node over the machines will be."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        rng = world.rng
        self.run = f"{rng.getrandbits(128):032x}"
        self.cluster = ClusterNode(
            registration=Registration(
                number, (f"plain://node{number}:9310",), 0, self.run, (1, 1), is_ready=False
            ),
            layout=Layout(PARTITIONS, world.journals),
            new_id=lambda: f"{rng.getrandbits(128):032x}",
            session_timeout_ms=SESSION_TIMEOUT_MS,
            follow_interval_ms=FOLLOW_INTERVAL_MS,
            keep_bytes=rng.choice((0, 300)),
            wall_offset_ms=WALL_MS,
        )
        self.cluster.cluster_id = CLUSTER_ID
        self.line = Line(world.ensemble, self._told)
        self.held: list[dict[int, None]] = [{} for _ in range(world.journals)]
        self.epochs: dict[int, int] = {}  # Of the journals that it serves.
        self.terms: dict[int, int] = {}  # The epochs that it was told last.
        self.followed: list[deque[Iterator[Batch]]] = [deque() for _ in range(world.journals)]
        self.commits: list[Commit] = []
        self.reads: list[Read] = []
        self.durable: dict[int, int] = {}
        self.confirmed = [0] * world.journals
        self.is_writing: set[int] = set()
        self.to_stop: set[int] = set()
        self.paused: set[int] = set()
        self.snapshots: list[tuple[int, Snapshot]] = []
        # Journals of which it knows more than is left -> the last entry that it knows.
        self._knows: dict[int, tuple[int, bytes]] = {}
        self.is_over = False
        self.error: LogError | None = None

    # --- effects ------------------------------------------------------------------------

    def act(self, effects: list[fx.Effect]) -> None:
        """Do what the machines say."""
        for effect in effects:
            if isinstance(effect, fx.Send):
                self._send(effect.request)
            else:
                _ACTIONS[type(effect)](self, effect)

    def _send(self, request: Request) -> None:
        def done(reply: Reply) -> None:
            self.world.look()
            self.act(self.cluster.replied(request, reply, self.world.now_ms))

        self.line.submit(request, done)

    def _told(self, event: Any) -> None:
        self.world.look()
        self.act(self.cluster.told(event, self.world.now_ms))

    def _load_anew(self, effect: fx.LoadAnew) -> None:
        require(not self.followed[effect.journal], "a load begins while batches are replayed")
        misses = self.misses(effect.journal)
        known, _ = self._knows.pop(effect.journal, (0, b""))
        # Others have written on, and trimmed what it knows: it holds nothing of that any more.
        is_trimmed = self.cluster.journals[effect.journal].snapshot.index >= known
        require(is_trimmed or not misses, "it forgets what was lost")
        self.held[effect.journal].clear()

    def _followed(self, effect: fx.Followed) -> None:
        self.followed[effect.journal].append(effect.batches)

    def _leads(self, effect: fx.Leads) -> None:
        journal, log = effect.journal, self.world.logs[effect.journal]
        self._require_all_is_left(journal, "it leads")
        held = self.held[journal]
        # It may be deposed by now, and not know it: then there is more.
        whole = list(log.tokens)[: len(held)] == list(held)
        require(whole, f"node {self.number} leads journal {journal} and holds another log")
        knows_topics = len(self.held[0]) >= self.world.topics.get(journal, 0)
        require(knows_topics, "a group knows topics that its node doesn't")
        self.epochs[journal] = self.terms[journal] = effect.epoch
        self.to_stop.discard(journal)
        for partition in self.cluster.journals[journal].partitions:
            self.durable[partition] = self.cluster.journals[journal].end_offset(partition)

    def _renewed(self, effect: fx.Renewed) -> None:
        self.terms[effect.journal] = effect.epoch
        if effect.journal in self.epochs:
            self.epochs[effect.journal] = effect.epoch

    def _written(self, effect: fx.Written) -> None:
        world, journal = self.world, effect.journal
        self._require_all_is_left(journal, "it acknowledges")
        self.durable |= effect.ends
        waiting = [c for c in self.commits if c.journal == journal]
        for commit in waiting:
            if commit.end <= self.durable.get(commit.partition, 0):
                self.commits.remove(commit)
                require(commit.token in world.logs[journal].tokens, "acknowledged, not in the log")
                epoch = self.terms[journal]
                run = world.runs.setdefault((journal, epoch), self.run)
                require(run == self.run, f"two processes acknowledge in epoch {epoch}")
                world.acked.setdefault(commit.partition, set()).add(commit.token)
                world.acks += 1
        if effect.is_last:
            self.is_writing.discard(journal)
        self._answer_reads()

    def _confirmed(self, effect: fx.Confirmed) -> None:
        self.confirmed[effect.journal] = effect.number
        self._answer_reads()

    def _answer_reads(self) -> None:
        for read in tuple(self.reads):
            is_durable = read.until <= self.durable.get(read.partition, 0)
            if is_durable and read.number <= self.confirmed[read.journal]:
                self.reads.remove(read)
                self._require_all_is_left(read.journal, "it answers a read")
                require(read.must_show <= read.shows, "a read answers with the past")
                self.world.reads += 1

    def _deposed(self, effect: fx.Deposed) -> None:
        journal = effect.journal
        for commit in tuple(self.commits):
            if commit.journal == journal:
                self.commits.remove(commit)
                if commit.end > effect.unknown.get(commit.partition, 0):
                    self.world.refused.add(commit.token)
        self._stops_serving(journal)
        self.is_writing.discard(journal)
        self.to_stop.discard(journal)
        self.paused.discard(journal)

    def _stops_serving(self, journal: int) -> None:
        self.epochs.pop(journal, None)
        self.reads = [read for read in self.reads if read.journal != journal]

    def _hands_over(self, effect: fx.HandsOver) -> None:
        self.epochs.pop(effect.journal, None)
        self.to_stop.add(effect.journal)

    def _handed_over(self, effect: fx.HandedOver) -> None:
        self._require_all_is_left(effect.journal, "it hands over")
        self._stops_serving(effect.journal)
        left = [commit for commit in self.commits if commit.journal == effect.journal]
        require(not left, "handed over before all was written")

    def _require_all_is_left(self, journal: int, what: str) -> None:
        require(not self.misses(journal), f"{what}, though data was lost")

    def misses(self, journal: int) -> bool:
        """Say whether this node knows more than is left of a journal.

        An entry on its way from a leader may be made again, as the same bytes.
        """
        if journal not in self._knows:
            return False
        index, data = self._knows[journal]
        return self.world.logs[journal].entries[index : index + 1] != [data]

    def set_back(self, before: list[Log]) -> None:
        """Take note of what it knows of the logs as they were *before*."""
        for journal, log in enumerate(before):
            known = self.cluster.journals[journal].applied
            self._knows[journal] = known, log.entries[known]
        left = {token for log in self.world.logs for token in log.tokens}
        self.reads = [replace(r, must_show=r.must_show & left) for r in self.reads]

    def _failed(self, effect: fx.Failed) -> None:
        self.error = self.error or effect.error
        self.is_over = self.world.is_set_back and isinstance(effect.error, LogCorrupt)
        if self.is_over:
            self.epochs.clear()
            return
        raise Violation(f"node {self.number} gives up: {effect.error}")

    # --- what may happen ----------------------------------------------------------------

    def commit(self, journal: int) -> None:
        """Decide a change, if the journal is served here."""
        if journal not in self.epochs or journal in self.paused:
            return
        machine, world = self.cluster.journals[journal], self.world
        partition, token = world.rng.choice(machine.partitions), next(world.tokens)
        packed = msgpack.packb([(0, 1, 1, "g", (token,), ("x" * world.rng.choice((1, 60, 300)),))])
        end = machine.append_packed(partition, 1, packed, world.now_ms)
        self.held[journal][token] = None
        self.commits.append(Commit(token, journal, partition, end))

    def read(self, journal: int) -> None:
        """Ask for what a partition holds, if it is served here."""
        if journal not in self.epochs or journal in self.paused:
            return
        machine = self.cluster.journals[journal]
        partition = self.world.rng.choice(machine.partitions)
        must_show = frozenset(self.world.acked.get(partition, ()))
        shows = frozenset(self.held[journal])
        until = machine.end_offset(partition)
        self.reads.append(Read(journal, partition, machine.confirm(), until, shows, must_show))

    def flush(self, journal: int) -> None:
        """End a round of requests."""
        machine = self.cluster.journals[journal]
        if journal not in self.is_writing and (flush := machine.take_flush()):
            self.is_writing.add(journal)
            self.act(machine.write(flush))
        self.act(machine.end_round())

    def stop(self, journal: int) -> None:
        """Have decided nothing more, as a hand-over asks."""
        if journal in self.to_stop:
            self.flush(journal)
            if not self.cluster.journals[journal].open_bytes:
                self.to_stop.discard(journal)
                self.act(self.cluster.journals[journal].stopped())

    def take(self, journal: int) -> None:
        """Replay what was followed."""
        if self.followed[journal]:
            for batch in self.followed[journal][0]:
                self.held[journal] |= dict.fromkeys(tokens_of(batch))
            self.followed[journal].popleft()
            self.act(self.cluster.took(journal, self.world.now_ms))

    def tick(self) -> None:
        """Let the machines see the time."""
        deadline_ms = self.cluster.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= self.world.now_ms:
            self.act(self.cluster.tick(self.world.now_ms))
            deadline_ms = self.cluster.next_deadline_ms()
            is_done = deadline_ms is None or deadline_ms > self.world.now_ms
            require(is_done, "it is time for something, again and again")

    def move(self, journal: int, to: int) -> None:
        """Hand a journal over, as an operator may ask."""
        with suppress(ValueError):
            self.act(self.cluster.move(journal, to, self.world.now_ms))

    def make_snapshot(self, journal: int) -> None:
        """Have a child make a snapshot, in a session that may see less."""
        world, name = self.world, self.cluster.journals[journal].begin_snapshot()
        if name is None:
            return
        behind = world.rng.choice((0, 0, 5, 50))
        session = world.ensemble.connect(max(0, world.ensemble.transactions - behind))
        asking, reply = make_snapshot(journal, name), None
        try:
            while True:
                request = next(asking) if reply is None else asking.send(reply)
                operation = znodes.operation(request)
                reply = znodes.reply(request, world.ensemble.do(session, operation, None))
        except StopIteration as done:
            self.snapshots.append((journal, done.value))
        except LogFailed:
            self.act(self.cluster.journals[journal].abandon_snapshot())

    def install(self) -> None:
        """Have a snapshot installed that a child has made."""
        if self.snapshots:
            journal, snapshot = self.snapshots.pop(0)
            self.act(self.cluster.journals[journal].install(snapshot))


_ACTIONS: dict[type, Callable[[Host, Any], None]] = {
    fx.LoadAnew: Host._load_anew,
    fx.Followed: Host._followed,
    fx.Leads: Host._leads,
    fx.KeptLead: lambda host, effect: None,
    fx.Renewed: Host._renewed,
    fx.Written: Host._written,
    fx.Confirmed: Host._confirmed,
    fx.Deposed: Host._deposed,
    fx.HandsOver: Host._hands_over,
    fx.HandedOver: Host._handed_over,
    fx.Paused: lambda host, effect: host.paused.add(effect.journal),
    fx.CutOff: lambda host, effect: require(effect.journal in host.paused, "cut off, not paused"),
    fx.Resumed: lambda host, effect: host.paused.discard(effect.journal),
    fx.SnapshotEnded: lambda host, effect: None,
    fx.Purged: lambda host, effect: None,
    fx.Stranger: lambda host, effect: None,
    fx.Failed: Host._failed,
}


class History:
    """One random history; the same seed makes the same one."""

    def __init__(
        self, seed: int, steps: int = 120, journals: int = 0, *, is_set_back: bool = False
    ) -> None:
        self.rng = random.Random(seed)
        self.steps = steps
        self._is_set_back = is_set_back
        self._clock_goes_on = seed % 2 == 0
        journals = journals or self.rng.choice((1, 1, 1, 2))
        ensemble = Ensemble(cluster(PARTITIONS, journals))
        self._founding = ensemble.transactions
        self.world = World(self.rng, journals, ensemble, [Log() for _ in range(journals)])
        self.hosts = [Host(self.world, number) for number in range(NODES)]
        self._stalled: Host | None = None
        self._unused_until_ms = 0
        # How large a part of a unit is: in most histories they have one, as nearly always.
        self._part_bytes = self.rng.choice((64 * 1024, 64 * 1024, 90))
        faults = self.rng.choice((0.3, 1.0, 2.0))
        weights = {
            self._serve: 12.0,
            self._deliver: 12.0,
            self._see: 4.0,
            self._take: 4.0,
            self._commit: 12.0,
            self._flush: 10.0,
            self._read: 14.0,
            self._stop: 3.0,
            self._time: 4.0,
            self._run_on: 12.0,
            self._all_run_on: 8.0,
            self._snapshot: 3.0,
            self._install: 4.0,
            self._late: 4.0 * faults,
            self._drop: 3.0 * faults,
            self._connect: 5.0,
            self._end_session: 2.0 * faults,
            self._crash: 0.5 * faults,
            self._stall: 2.0 * faults,
            self._move: 2.0,
            self._usurp: 1.5 * faults,
            self._repeat_late: 1.0 * faults,
        }
        self._kinds, self._weights = list(weights), list(weights.values())

    def run(self) -> World:
        """Take all steps, and mend. Raises Violation."""
        with _parts_of(self._part_bytes):
            self.come_to_rest()
            self._take_steps()
            if self._is_set_back:
                self.set_back()
                self._take_steps()
            self._mend()
        return self.world

    def _take_steps(self) -> None:
        for kind in self.rng.choices(self._kinds, self._weights, k=self.steps):
            if self.hosts:
                kind()
                self.world.look()
                self._bury()

    def set_back(self, behind: int | None = None) -> None:
        """Have the ensemble set back by *behind* transactions, by some if None."""
        world = self.world
        self._stalled = None
        for host in self.hosts:
            if host.line.is_connected:
                host.line.drop()
        world.late.clear()
        if behind is None:
            behind = self.rng.choice((1, 2, 3, 5, 10, 30, 100))
        if self._clock_goes_on:
            world.now_ms += RESTORE_MS
        else:
            world.runs.clear()  # Nodes whose claim is lost claim again, and reuse the epoch.
        before = world.set_back(max(self._founding, world.ensemble.transactions - behind))
        for host in self.hosts:
            host.set_back(before)

    def wipe(self) -> None:
        """Have all znodes removed one by one, in any order, while the nodes go on."""
        self.world.is_set_back = self.world.is_wiped = True
        while self.world.ensemble.wipe(self.rng.choice):
            for host in self.hosts:
                if self.rng.random() < 0.1:
                    for journal in range(self.world.journals):
                        host.commit(journal)
                    self.do_all(host)
            self.world.look()
            self._bury()
        self.come_to_rest()

    def _bury(self) -> None:
        """Have those end that refuse to go on; nobody starts them again."""
        for host in [host for host in self.hosts if host.is_over]:
            self.hosts.remove(host)
            if host.line.is_connected:
                host.line.drop()
            if self._stalled is host:
                self._stalled = None

    # --- steps --------------------------------------------------------------------------

    def _host(self) -> Host:
        return self.rng.choice([h for h in self.hosts if h is not self._stalled] or self.hosts)

    def _stall(self) -> None:
        """Have a process stand still for a while, or go on."""
        self._stalled = self.rng.choice((None, self._leading()))

    def _usurp(self) -> None:
        """Have others lead what one process leads that hears of nothing, and goes on."""
        old, journal = self._leading(), self._journal()
        self._stalled = old
        for act in self.rng.choices((old.commit, old.flush, old.read), k=self.rng.randrange(5)):
            act(journal)
        for _ in range(self.rng.choice((0, 1, 3))):
            if old.line.has_requests and old.line.is_connected:
                old.line.serve()
        if old.line.session is not None and not old.line.session.has_ended:
            self._end(old.line.session)
        self._others_run_on(journal)
        old.read(journal)
        old.flush(journal)
        if old.line.is_connected and self.rng.random() < 0.5:
            self._return_half(old, journal)
        self._stalled = None

    def _others_run_on(self, journal: int) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self._all_run_on()
        if self.rng.random() < 0.5:
            for host in self.hosts:
                if host is not self._stalled and journal in host.epochs:
                    host.make_snapshot(journal)
                    host.install()
            self._all_run_on()

    def _return_half(self, host: Host, journal: int) -> None:
        """Have a process registered anew, and handed the journal, before it hears of either.

        It isn't ready yet, and no plan gives it anything; but nothing is safe because of that.
        """
        host.line.drop()
        host.line.connect()
        if host.line.has_requests:
            host.line.serve()
        self._all_run_on()
        assert host.line.session is not None
        registered = self.world.ensemble.at(znodes.node_path(host.number))
        if registered is None or registered.owner != host.line.session.number:
            return  # A former life of it is still there: nobody knows of this one.
        successor = Member(host.number, host.run, host.line.session.number)
        for other in self.hosts:
            if other is not host and journal in other.epochs:
                other.act(other.cluster.journals[journal].hand_over(successor))
        self._all_run_on()

    def _repeat_late(self) -> None:
        """Have an append arrive that was repeated, and trimmed, since."""
        host, journal = self._leading(), self._journal()
        if journal not in host.epochs or not host.line.is_connected:
            return
        host.commit(journal)
        host.flush(journal)
        late = host.line.drop()
        for _ in range(self.rng.randint(1, 3)):
            self._all_run_on()
        host.make_snapshot(journal)
        host.install()
        self._all_run_on()
        for request in late:
            request.do(self.world.ensemble)

    def _leading(self) -> Host:
        leading = [host for host in self.hosts if host.epochs]
        return self.rng.choice(leading or self.hosts)

    def _run_on(self) -> None:
        """Have one process do all that waits for it."""
        self.do_all(self._host())

    def _all_run_on(self) -> None:
        """Have all processes do what they do, but the one that stands still."""
        for _ in range(self.rng.randint(1, 6)):
            self._let_pass(self.rng.choice((20, 400)))
            self._commit()
            for host in self.hosts:
                if host is not self._stalled:
                    self.do_all(host)
                    host.tick()

    def _journal(self) -> int:
        return self.rng.randrange(self.world.journals)

    def _serve(self) -> None:
        # Also of one that stands still: its requests were sent before.
        ready = [host for host in self.hosts if host.line.has_requests and host.line.is_connected]
        if ready:
            line = self.rng.choice(ready).line
            for _ in range(self.rng.choice((1, 1, 3, 8))):
                if line.has_requests:
                    line.serve()

    def _deliver(self) -> None:
        ready = [h for h in self.hosts if h.line.has_answers and h is not self._stalled]
        if ready:
            line = self.rng.choice(ready).line
            for _ in range(self.rng.choice((1, 1, 3, 8))):
                if line.has_answers:
                    line.deliver()

    def _see(self) -> None:
        line = self._host().line
        if line.is_connected and line.session:
            seen = self.rng.choice((line.session.seen + 1, self.world.ensemble.transactions))
            line.see(min(seen, self.world.ensemble.transactions))

    def _take(self) -> None:
        self._host().take(self._journal())

    def _commit(self) -> None:
        # Whoever serves, so that most of it is done.
        journal = self._journal()
        serving = [h for h in self.hosts if journal in h.epochs and h is not self._stalled]
        if serving:
            host = self.rng.choice(serving)
            for _ in range(self.rng.choice((1, 1, 1, 4))):
                host.commit(journal)

    def _flush(self) -> None:
        self._host().flush(self._journal())

    def _read(self) -> None:
        self._host().read(self._journal())

    def _stop(self) -> None:
        self._host().stop(self._journal())

    def _time(self) -> None:
        self._let_pass(self.rng.choice((1, 20, 60, 300, 1_100, 5_000)))
        for host in self.hosts:
            if host is not self._stalled:
                host.tick()

    def _let_pass(self, past_ms: int) -> None:
        self.world.now_ms += past_ms
        if self.world.now_ms >= self._unused_until_ms:
            self._unused_until_ms = self.world.now_ms + SESSION_TIMEOUT_MS
            self._end_unused()

    def _snapshot(self) -> None:
        host, journal = self._leading(), self._journal()
        if journal in host.epochs and host is not self._stalled:
            host.make_snapshot(journal)

    def _install(self) -> None:
        self._host().install()

    def _late(self) -> None:
        if self.world.late:
            at = self.rng.randrange(len(self.world.late))
            self.world.late.pop(at).do(self.world.ensemble)

    def _drop(self) -> None:
        self._cut(self._host())

    def _cut(self, host: Host) -> None:
        if host.line.is_connected:
            undone = host.line.drop(self.rng.choice((0, 0, 900, 3_500, 9_000)))
            # Those that arrive do so in their order, now or much later.
            kept = undone[: self.rng.choice((0, len(undone), self.rng.randint(0, len(undone))))]
            if self.rng.random() < 0.5:
                self.world.late += kept
            else:
                for request in kept:
                    request.do(self.world.ensemble)

    def _connect(self) -> None:
        away = [host for host in self.hosts if not host.line.is_connected]
        if away:
            transactions = self.world.ensemble.transactions
            behind = self.rng.choice((0, 3, 30))
            line = self.rng.choice(away).line
            if line.session and not line.session.has_ended and self.rng.random() < 0.1:
                line.connect_anew(max(0, transactions - behind))
            else:
                line.connect(max(0, transactions - behind))

    def _end_session(self) -> None:
        session = self.rng.choice((self._leading(), self._host())).line.session
        if session is not None and not session.has_ended:
            self._end(session)

    def _end(self, session: Any) -> None:
        self.world.ensemble.end(session)
        for host in self.hosts:
            uses_it = host.line.session is session and host.line.is_connected
            # It hears of that now, or when it is connected again.
            if uses_it and host is not self._stalled and self.rng.random() < 0.5:
                self._cut(host)

    def _crash(self) -> None:
        at = self.rng.randrange(len(self.hosts))
        dead = self.hosts[at]
        if dead.line.is_connected:
            undone = dead.line.drop()
            if self.rng.random() < 0.5:
                self.world.late += undone
        self.hosts[at] = Host(self.world, dead.number)
        if self._stalled is dead:
            self._stalled = None
        if dead.line.session is not None and self.rng.random() < 0.8:
            self.world.ensemble.end(dead.line.session)

    def _move(self) -> None:
        self._leading().move(self._journal(), self.rng.randrange(NODES))

    # --- the end ------------------------------------------------------------------------

    def _mend(self) -> None:
        """Heal everything, and see that it comes to rest as it should."""
        world = self.world
        self._stalled = None
        for late in world.late:
            late.do(world.ensemble)
        world.late.clear()
        world.look()
        self._end_unused()
        self.come_to_rest()
        lost = [j for host in self.hosts for j in range(world.journals) if host.misses(j)]
        require(not lost, "a node doesn't see that data was lost")
        for journal, log in enumerate(world.logs if self.hosts else ()):
            serving = [host for host in self.hosts if journal in host.epochs]
            require(len(serving) == 1, f"journal {journal} has {len(serving)} leaders at rest")
            for host in self.hosts:
                require(list(host.held[journal]) == list(log.tokens), "a node holds another log")
        for host in self.hosts:
            require(not host.commits, "a commit is never answered")
            require(not host.reads, "a read is never answered")
        in_log = {token for log in world.logs for token in log.tokens}
        acked = {token for tokens in world.acked.values() for token in tokens}
        require(acked <= in_log, "acknowledged, and not in the log")
        require(not world.refused & in_log, "answered 16, and in the log")

    def _end_unused(self) -> None:
        """End the sessions that no process uses any more."""
        used = {id(host.line.session) for host in self.hosts}
        for session in self.world.ensemble.sessions:
            if id(session) not in used and not session.has_ended:
                self.world.ensemble.end(session)

    def come_to_rest(self) -> None:
        """Let everything happen in its order, until nothing does."""
        quiet = 0
        for _ in range(3_000):
            is_busy = False
            for host in self.hosts:
                is_busy |= self.do_all(host)
            self._bury()
            self.world.look()
            quiet = 0 if is_busy else quiet + 1
            if quiet > 8:
                return
            if not is_busy:
                self.world.now_ms += 500
                self._end_unused()
                for host in self.hosts:
                    host.tick()
        raise Violation("it never comes to rest")

    def do_all(self, host: Host) -> bool:
        """Do all that waits at one host; return whether anything did."""
        line, ensemble = host.line, self.world.ensemble
        if line.is_connected and line.session and line.session.has_ended:
            self._cut(host)
        if not line.is_connected:
            line.connect()
            return True
        line.see(ensemble.transactions)
        is_busy = line.has_requests or line.has_answers
        while line.has_requests or line.has_answers:
            while line.has_requests:
                line.serve()
            while line.has_answers:
                line.deliver()
        for journal in range(self.world.journals):
            is_busy |= bool(host.followed[journal])
            host.take(journal)
            host.stop(journal)
            host.flush(journal)
        return is_busy or line.has_requests


@contextmanager
def _parts_of(size_bytes: int) -> Iterator[None]:
    """Cut units into parts of so many bytes, and if these are small, few go into a transaction."""
    with pytest.MonkeyPatch.context() as patch:
        if size_bytes < 1024:
            patch.setattr(entries, "_BODY_BYTES_MAX", size_bytes)
            patch.setattr(entries, "PIECE_ENTRIES", 2)
            patch.setattr(entries, "UNIT_BYTES", 300)
        yield
