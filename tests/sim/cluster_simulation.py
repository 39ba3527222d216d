"""One run of a cluster from one seed: drivers over the client library, nodes that come and go."""

import random
import traceback
import warnings
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog
import trio
import trio.testing

from client import AssignmentWarning
from coordinator.cluster.journal import Role
from coordinator.config import load_settings
from coordinator.group.core import HardGroup
from coordinator.runtime.children import CompactionFailed
from coordinator.runtime.shard import ShardRunner, Status
from protocol.errors import ErrorCode
from protocol.messages import CompactLogRequest
from tests.sim.checker import check
from tests.sim.cluster import PARTITIONS, SESSION_TIMEOUT_MS, Cluster, Contact, Host, until
from tests.sim.determinism import run_deterministically, tasks
from tests.sim.ensemble import Line, Session, Undone
from tests.sim.history import History
from tests.sim.nemesis import Unheard
from tests.sim.network import Listener, Network
from tests.sim.registers import Violation
from tests.sim.simulation import Result, converge, look_once_more, server_bugs
from tests.sim.workload import BaseWorld, Driver, Operator

FAULTS_S: Final = 20.0
NODES: Final = 3
STEPS_MAX: Final = 600_000
# Whoever has a shorter session may lose it while he looks for the new leader of his group: a node
# that stands still takes a connection, and it takes a while to give that up.
FOUND_WITHIN_MS: Final = 8_000
SETTINGS: Final = (
    f"offsets.topic.num.partitions={PARTITIONS}",
    "group.initial.rebalance.delay.ms=300",
    "group.min.session.timeout.ms=1000",
    "offsets.commit.timeout.ms=2000",
)


class ClusterNetwork(Network):
    """Connections to several servers, by the names of their hosts."""

    def __init__(self, history: History, rng: random.Random, nursery: trio.Nursery) -> None:
        super().__init__(history, rng, nursery)
        self._listeners: dict[str, Listener] = {}

    def listen(self, host: str) -> Listener:
        """Listen at *host*."""
        listener = self._listeners[host] = Listener()
        return listener

    def listener_at(self, host: str) -> Listener | None:
        """Return who listens there, None if nobody does."""
        return self._listeners.get(host)

    def freeze(self, host: str) -> None:
        """The process of that host stands still: its system takes connections, and no more."""
        self._listeners[host] = Listener()
        for connection in self.connections.values():
            if connection.host == host:
                connection.to_server.hold(held=True)

    def sever_host(self, host: str) -> None:
        """The process of that host is gone."""
        self._listeners.pop(host, None)
        for connection in list(self.connections.values()):
            if connection.host == host:
                connection.close_server_end(abruptly=self.rng.random() < 0.5)


class ClusterWorld(BaseWorld):
    """What drivers live in, and what becomes of the nodes."""

    def __init__(self, seed: int, nursery: trio.Nursery, *, keep_lines: bool) -> None:
        super().__init__(seed, History(trio.current_time, keep_lines=keep_lines))
        self.nursery = nursery
        self.network = ClusterNetwork(self.history, self.rng("network"), nursery)
        self.drivers: list[Driver] = []
        tail_bytes = self.rng("tail").choice((0, 2_000))
        settings = load_settings(overrides=[*SETTINGS, f"cluster.tail.bytes={tail_bytes}"])
        self.cluster = Cluster(nursery, seed, settings)
        self.cluster.tail_entries = self.rng("snapshots").choice((20, 100, 4_096))
        self.cluster.listen = self.network.listen
        self.cluster.heard = self._on_event
        self.cluster.rested = self._check_followed
        self.cluster.undone = self._maybe_later
        self.cluster.newest_seen = self._newest_seen
        self.found_within_ms = FOUND_WITHIN_MS
        self._rng = self.rng("ensemble")
        # What the first node that followed so far held, by partition and index of the journal.
        self._followed: dict[tuple[int, int], dict[str, HardGroup]] = {}
        # Up to where that was compared, since a partition of a node was loaded the latest time.
        self._checked: dict[tuple[Host, int, int], int] = {}

    @property
    def address(self) -> list[str]:
        """Where the nodes are."""
        return [f"node{number}:9310" for number in range(NODES)]

    def _on_event(self, host: Host, name: str, fields: dict[str, Any]) -> None:
        self.history.note("event", host.name, name, fields)
        if name == "group.member_removed" and fields["reason"] == "session expired":
            # A driver that died is back under the same name, maybe, as another member.
            living = {d.member.member_id: d for d in self.drivers if d.member is not None}
            driver = living.get(fields["member_id"])
            if driver is not None and driver.session_timeout_ms >= self.found_within_ms:
                self.violate("evicted", f"{driver.name} by {host.name}: {fields['detail']}")

    # --- the ensemble -------------------------------------------------------------------

    def _newest_seen(self, line: Line) -> int:
        """Return up to which transaction a server shows what others wrote: it may lag."""
        newest = self.cluster.ensemble.transactions
        if self.healed or self._rng.random() < 0.8:
            return newest
        seen = 0 if line.session is None else line.session.seen
        return max(seen, newest - self._rng.choice((1, 3, 30)))

    def _maybe_later(self, undone: list[Undone]) -> None:
        """What was asked over a connection that broke is done later, or never."""
        if undone and self._rng.random() < 0.5:
            self.nursery.start_soon(self._later, undone)

    async def _later(self, undone: list[Undone]) -> None:
        await trio.sleep(self._rng.choice((0, 0.01, 1, 8)))
        for request in undone:
            request.do(self.cluster.ensemble)

    def end(self, session: Session | None) -> None:
        """Have a session end, if it hasn't."""
        if session is not None and not session.has_ended:
            self.cluster.ensemble.end(session)

    async def end_unless_heard(self, host: Host) -> None:
        """Have the session of a node end that isn't heard of in time."""
        session = host.line.session
        await trio.sleep(SESSION_TIMEOUT_MS / 1000)
        if host.contact is not Contact.FINE or host.scope.cancel_called:
            self.end(session)

    # --- what must hold -----------------------------------------------------------------

    def _check_followed(self, host: Host) -> None:
        """Whoever follows holds the same as others did who had read as far.

        What a deposed leader kept too much of is soon overwritten: later nobody sees it.
        """
        for journal in host.machine.journals:
            if journal.role is not Role.FOLLOWING or not journal.is_following:
                continue
            for partition in journal.partitions:
                runner = host.node.shards[partition]
                life = host, partition, runner.unloads
                is_new = self._checked.get(life) != journal.applied
                if runner.status is Status.FOLLOWING and is_new:
                    self._checked[life] = journal.applied
                    state = _held(runner)
                    known = self._followed.setdefault((partition, journal.applied), state)
                    if state != known:
                        text = f"{life[1:]} of {host.name}: {state!r}, not {known!r}"
                        self.violate("I11 nodes differ", text)

    def check_states(self) -> None:
        """Every node holds the same of each partition, whoever leads it."""
        for partition in range(PARTITIONS):
            found = [_held(host.node.shards[partition]) for host in self.cluster.hosts.values()]
            if any(state != found[0] for state in found):
                self.violate("I11 nodes differ", f"partition {partition}: {found!r}")

    def check_answers(self) -> None:
        """Nobody is made to wait for a load: a node leads when it has everything."""
        for attempt in self.history.attempts:
            error = getattr(attempt.response, "error", 0)
            if error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                self.violate("loading", f"{attempt.client}: {attempt.request}")


def _held(runner: ShardRunner[Any]) -> dict[str, HardGroup]:
    """Return what a partition's memory holds that is hard."""
    groups: dict[str, HardGroup] = runner.core.hard_state()
    return {g: state for g, state in groups.items() if state.generation or state.offsets}


class Faults:
    """Breaks one thing after the other, then mends all of them."""

    def __init__(self, world: ClusterWorld, only: Sequence[str]) -> None:
        self._world = world
        self._cluster = world.cluster
        self._rng = world.rng("faults")
        self._faults: list[Callable[[], Awaitable[None]]] = [
            self._kill,
            self._stop,
            self._freeze,
            self._cut_off,
            self._deafen,
            self._lose_answers,
            self._end_session,
            self._take_ensemble_away,
            self._elect,
            self._move,
            self._snapshot,
            self._shift_wall_clock,
        ]
        self._only = only
        self._chosen: list[Callable[[], Awaitable[None]]] = []
        self._stops: trio.Nursery  # While things break.

    async def run(self, duration_s: float) -> None:
        """Break things for so long."""
        world, rng = self._world, self._rng
        # A run with a few kinds of faults goes deeper into each than one with all of them.
        self._chosen = rng.sample(self._faults, rng.randint(1, 5))
        if self._only:
            self._chosen = [fault for fault in self._faults if fault.__name__ in self._only]
        if set(self._chosen) <= {self._take_ensemble_away, self._snapshot, self._shift_wall_clock}:
            world.found_within_ms = 0  # Every group stays where it is.
        end_s = trio.current_time() + duration_s
        async with trio.open_nursery() as self._stops:
            while trio.current_time() < end_s:
                await trio.sleep(rng.expovariate(1 / 2))
                fault = rng.choice(self._chosen)
                world.history.note("fault", fault.__name__)
                await fault()
                if rng.random() < 0.2 and not self._only:
                    rng.choice(world.drivers).crash()
        world.history.note("healed")
        world.healed = True
        world.network.calm()
        for driver in world.drivers:
            world.network.reconnect(driver.name)
        for host in self._cluster.hosts.values():
            host.contact = Contact.FINE
        for number in range(NODES):
            if number not in self._cluster.hosts:
                self._cluster.start(number)

    def _any(self) -> Host | None:
        hosts = list(self._cluster.hosts.values())
        return self._rng.choice(hosts) if hosts else None

    # --- nodes --------------------------------------------------------------------------

    async def _kill(self) -> None:
        host = self._any()
        if host is not None:
            self._end(host)
            self._world.nursery.start_soon(self._world.end_unless_heard, host)
            await self._start_again(host)

    async def _stop(self) -> None:
        """As SIGTERM does: hand over, then end the session. The next one may come in between."""
        host = self._any()
        if host is not None:
            self._stops.start_soon(self._stop_one, host)
            if self._rng.random() < 0.5:
                await trio.sleep(self._rng.choice((0, 0.003, 0.006, 0.02, 0.2)))
                await self._rng.choice(self._chosen)()

    async def _stop_one(self, host: Host) -> None:
        with trio.move_on_after(self._rng.choice((0.005, 5, 5))):
            await host.stop()
        if not host.scope.cancel_called:
            self._end(host)
            self._world.end(host.line.session)
            await self._start_again(host)

    def _end(self, host: Host) -> None:
        self._world.network.sever_host(host.name)
        self._cluster.kill(host)

    async def _start_again(self, host: Host) -> None:
        await trio.sleep(self._rng.choice((0, 0.5, 4, 8)))
        if host.number not in self._cluster.hosts:
            self._cluster.start(host.number)

    async def _freeze(self) -> None:
        """As SIGSTOP does, to one node or to most of them."""
        hosts = list(self._cluster.hosts.values())
        frozen = self._rng.sample(hosts, min(len(hosts), self._rng.choice((1, 1, 2))))
        for host in frozen:
            tasks().freeze(host.task)
        for_s = self._rng.choice((0.3, 2, 9))
        await trio.sleep(min(for_s, SESSION_TIMEOUT_MS / 1000))
        if for_s * 1000 > SESSION_TIMEOUT_MS:
            for host in frozen:
                self._world.end(host.line.session)
            await trio.sleep(for_s - SESSION_TIMEOUT_MS / 1000)
        for host in frozen:
            tasks().thaw(host.task)

    async def _shift_wall_clock(self) -> None:
        host = self._any()
        if host is not None:
            host.wall_shift_ms += self._rng.randint(-3_600_000, 3_600_000)

    # --- between a node and the ensemble ------------------------------------------------

    async def _cut_off(self) -> None:
        host = self._any()
        if host is not None:
            await self._lose([host], Contact.CUT_OFF, self._rng.choice((0.3, 2, 8)))

    async def _deafen(self) -> None:
        """A server of the ensemble stands still; a client gives it up after a while."""
        host = self._any()
        if host is not None:
            await self._lose([host], Contact.DEAF, self._rng.choice((0.3, 2, 4)))
            if self._rng.random() < 0.3:
                await self._lose([host], Contact.CUT_OFF, self._rng.choice((0, 4)))

    async def _lose_answers(self) -> None:
        """What was asked is done, and then the connection breaks."""
        host = self._any()
        if host is not None:
            await self._lose([host], Contact.UNHEARD, self._rng.choice((0.05, 0.5, 4)))
            await self._lose([host], Contact.CUT_OFF, self._rng.choice((0, 0.3)))

    async def _lose(self, hosts: list[Host], contact: Contact, for_s: float) -> None:
        for host in hosts:
            host.contact = contact
            self._world.nursery.start_soon(self._world.end_unless_heard, host)
        await trio.sleep(for_s)
        for host in hosts:
            if not host.scope.cancel_called:
                host.contact = Contact.FINE

    async def _end_session(self) -> None:
        """Once, or twice in a row."""
        host = self._any()
        if host is None:
            return
        self._world.end(host.line.session)
        if self._rng.random() < 0.5:
            await trio.sleep(self._rng.choice((0.003, 0.01, 0.03)))
            self._world.end(host.line.session)

    # --- the ensemble -------------------------------------------------------------------

    async def _take_ensemble_away(self) -> None:
        """A majority of its servers, or the disks: nothing is done, and no session ends."""
        hosts = list(self._cluster.hosts.values())
        for host in hosts:
            host.contact = Contact.CUT_OFF
        await trio.sleep(self._rng.choice((0.5, 3, 12)))
        for host in hosts:
            if not host.scope.cancel_called:
                host.contact = Contact.FINE

    async def _elect(self) -> None:
        """The ensemble's leader is gone: all connections break, and come back one by one."""
        hosts = list(self._cluster.hosts.values())
        for host in hosts:
            host.contact = Contact.CUT_OFF
        await trio.sleep(self._rng.choice((0.2, 2)))
        for host in hosts:
            await trio.sleep(self._rng.choice((0, 0.01, 0.5)))
            if not host.scope.cancel_called:
                host.contact = Contact.FINE

    # --- operators ----------------------------------------------------------------------

    async def _move(self) -> None:
        host, other = self._any(), self._any()
        journals = [] if host is None else [j for j in host.machine.journals if j.is_leading]
        if host is None or other is None or not journals:
            return
        journal = self._rng.choice(journals).number
        with suppress(ValueError):  # It is not ready, or the same.
            host.store.do(host.machine.move(journal, other.number, host.node.now().mono_ms))

    async def _snapshot(self) -> None:
        """As CompactLog asks for; some journals are so small that they ask themselves."""
        for host in self._cluster.hosts.values():
            if self._rng.random() < 0.1:
                host.child.deaths.append(CompactionFailed("killed"))
            host.node.compact(Unheard(CompactLogRequest()))


def run_seed(seed: int, *, only: Sequence[str] = (), keep_lines: bool = False) -> Result:
    """Run the cluster of *seed* to its end and check everything.

    Args:
        seed: What everything follows from.
        only: The names of the faults to choose from; empty for a few of them all.
        keep_lines: Return the trace itself, too.
    """
    worlds: list[ClusterWorld] = []

    async def main(_clock: trio.testing.MockClock) -> Result:
        async with trio.open_nursery() as nursery:
            world = ClusterWorld(seed, nursery, keep_lines=keep_lines)
            worlds.append(world)
            await _live(world, only)
            nursery.cancel_scope.cancel()
        history = world.history
        world.check_answers()
        violations = world.violations + check(history)
        time_s = trio.current_time()
        return Result(
            seed,
            history.trace_hash,
            violations,
            history.acknowledged,
            0,
            time_s,
            lines=history.lines,
        )

    with structlog.testing.capture_logs() as logs, warnings.catch_warnings():
        warnings.simplefilter("ignore", AssignmentWarning)
        try:
            result = run_deterministically(seed, main, steps_max=STEPS_MAX)
        except Exception:  # noqa: BLE001 - whatever it is, the report must name the seed
            noted = [violation for world in worlds for violation in world.violations]
            lines = [line for world in worlds for line in world.history.lines]
            failed = Violation("the run failed", traceback.format_exc())
            result = Result(seed, "", [*noted, failed], 0, 0, 0.0, lines=lines)
    result.violations += server_bugs(logs)
    return result


async def _live(world: ClusterWorld, only: Sequence[str]) -> None:
    rng = world.rng("shape")
    groups = ["etl", "alerts"][: rng.randint(1, 2)]
    world.drivers += [
        Driver(world, f"{group}-{n}", group) for group in groups for n in range(rng.randint(1, 3))
    ]
    operators = [Operator(world, f"operator-{n}", groups) for n in range(rng.randint(0, 1))]
    for number in range(NODES):
        world.cluster.start(number)
    async with trio.open_nursery() as clients:
        everybody: list[Driver | Operator] = [*world.drivers, *operators]
        for client in everybody:
            clients.start_soon(client.run)
        await Faults(world, only).run(FAULTS_S)
        await converge(world, groups, world.drivers)
        world.stopping = True
    await until(lambda: world.cluster.is_settled)
    await look_once_more(world, groups)
    # A node that has the log alone comes to the same.
    world.cluster.start(NODES)
    await until(lambda: world.cluster.is_settled)
    await trio.sleep(1)
    world.check_states()
