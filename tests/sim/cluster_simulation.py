"""One run of a cluster from one seed: drivers over the client library, nodes that come and go."""

import random
import traceback
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, Final

import structlog
import trio
import trio.testing

from client import AssignmentWarning
from coordinator.config import load_settings
from coordinator.server.session import DEFAULT_CLIENT_ID
from protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from tests.sim.checker import check
from tests.sim.cluster import PARTITIONS, SESSION_TIMEOUT_MS, Cluster, Host, until
from tests.sim.determinism import run_deterministically
from tests.sim.history import History
from tests.sim.network import Listener, Network
from tests.sim.registers import Violation
from tests.sim.simulation import Result, converge, look_once_more, server_bugs
from tests.sim.workload import Driver

FAULTS_S: Final = 20.0
NODES: Final = 3
STEPS_MAX: Final = 600_000
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


class ClusterWorld:
    """What drivers live in, and what becomes of the nodes."""

    def __init__(self, seed: int, nursery: trio.Nursery) -> None:
        self.seed = seed
        self.nursery = nursery
        self.history = History(trio.current_time, keep_lines=False)
        self.network = ClusterNetwork(self.history, self.rng("network"), nursery)
        self.violations: list[Violation] = []
        self.evicted: list[str] = []
        self.away: set[str] = set()
        self.healed = False
        self.stopping = False
        self.security = None
        self.cluster = Cluster(nursery, seed, load_settings(overrides=SETTINGS))
        self.cluster.listen = self.network.listen
        self.cluster.heard = self._on_event
        self._last_id = 0
        self._rng = self.rng("faults")

    @property
    def address(self) -> list[str]:
        """Where the nodes are."""
        return [f"node{number}:9310" for number in range(NODES)]

    def rng(self, purpose: str) -> random.Random:
        """Return randomness of its own for each purpose."""
        return random.Random(f"{self.seed} {purpose}")

    def is_cooperative(self, group: str) -> bool:
        """Say how the members of *group* hand partitions over."""
        return self.rng(f"group {group}").random() < 0.4

    def next_id(self) -> int:
        """Return a number that no commit has had."""
        self._last_id += 1
        return self._last_id

    def violate(self, invariant: str, text: str) -> None:
        """Note a promise that was broken."""
        self.violations.append(Violation(invariant, text))

    def _on_event(self, name: str, fields: dict[str, Any]) -> None:
        if (
            name == "group.member_removed"
            and fields["reason"] == "session expired"
            and fields["client_id"] != DEFAULT_CLIENT_ID
            and fields["client_id"] not in self.away
        ):
            self.evicted.append(fields["client_id"])

    # --- faults -------------------------------------------------------------------------

    async def break_things(self, drivers: list[Driver]) -> None:
        """Break one thing after the other, then mend all of them."""
        rng = self._rng
        faults: list[Callable[[], Awaitable[None]]] = [
            self._kill,
            self._restart,
            self._cut_off,
            self._deafen,
            self._end_session,
            self._move,
        ]
        chosen = rng.sample(faults, rng.randint(1, len(faults)))
        end_s = trio.current_time() + FAULTS_S
        while trio.current_time() < end_s:
            await trio.sleep(rng.expovariate(1 / 2))
            fault = rng.choice(chosen)
            self.history.note("fault", fault.__name__)
            await fault()
            if rng.random() < 0.2:
                rng.choice(drivers).crash()
        self.healed = True
        self.network.calm()
        for driver in drivers:
            self.network.reconnect(driver.name)
        for host in self.cluster.hosts.values():
            host.is_cut_off = host.is_deaf = False
        for number in range(NODES):
            if number not in self.cluster.hosts:
                self.cluster.start(number)

    def _any(self) -> Host | None:
        hosts = list(self.cluster.hosts.values())
        return self._rng.choice(hosts) if hosts else None

    async def _kill(self) -> None:
        host = self._any()
        if host is not None:
            self._end(host)
            await self._down(host)

    async def _restart(self) -> None:
        host = self._any()
        if host is None:
            return
        with trio.move_on_after(5):
            await host.node.drain()
        self._end(host)
        await self._down(host)

    def _end(self, host: Host) -> None:
        self.network.sever_host(host.name)
        self.cluster.kill(host)
        self.nursery.start_soon(self._time_out, host)

    async def _time_out(self, host: Host) -> None:
        """End the session of who doesn't come back in time."""
        session = host.line.session
        await trio.sleep(SESSION_TIMEOUT_MS / 1000)
        is_back = not (host.is_cut_off or host.is_deaf or host.scope.cancel_called)
        if session is not None and not session.has_ended and not is_back:
            self.cluster.ensemble.end(session)

    async def _down(self, host: Host) -> None:
        await trio.sleep(self._rng.choice((0, 0.5, 4, 8)))
        if host.number not in self.cluster.hosts:
            self.cluster.start(host.number)

    async def _cut_off(self) -> None:
        host = self._any()
        if host is not None:
            host.is_cut_off = True
            self.nursery.start_soon(self._time_out, host)
            await trio.sleep(self._rng.choice((0.3, 2, 8)))
            host.is_cut_off = False

    async def _deafen(self) -> None:
        host = self._any()
        if host is not None:
            host.is_deaf = True
            await trio.sleep(self._rng.choice((0.3, 2, 4)))  # Then a client gives a server up.
            host.is_deaf = False

    async def _end_session(self) -> None:
        host = self._any()
        if host is not None and host.line.session is not None:
            self.cluster.ensemble.end(host.line.session)

    async def _move(self) -> None:
        host, other = self._any(), self._any()
        journals = [] if host is None else [j for j in host.machine.journals if j.is_leading]
        if host is None or other is None or not journals:
            return
        journal = self._rng.choice(journals).number
        try:
            effects = host.machine.move(journal, other.number, host.node.now().mono_ms)
        except ValueError:
            return  # It is not ready, or the same.
        host.store.do(effects)

    # --- what must hold -----------------------------------------------------------------

    def check_states(self) -> None:
        """Every node holds the same of each partition, whoever leads it."""
        for partition in range(PARTITIONS):
            states = [h.node.shards[partition].core for h in self.cluster.hosts.values()]
            found = [
                {g: s for g, s in core.hard_state().items() if s.generation or s.offsets}
                for core in states
            ]
            if any(state != found[0] for state in found):
                self.violate("I11 nodes differ", f"partition {partition}: {found!r}")


def run_seed(seed: int) -> Result:
    """Run the cluster of *seed* to its end and check everything."""
    worlds: list[ClusterWorld] = []

    async def main(_clock: trio.testing.MockClock) -> Result:
        async with trio.open_nursery() as nursery:
            world = ClusterWorld(seed, nursery)
            worlds.append(world)
            await _live(world)
            nursery.cancel_scope.cancel()
        acknowledged = sum(
            isinstance(a.response, OffsetCommitResponse) and a.response.error == 0
            for a in world.history.attempts
            if isinstance(a.request, OffsetCommitRequest)
        )
        violations = world.violations + check(world.history)
        trace_hash, time_s = world.history.trace_hash, trio.current_time()
        return Result(seed, trace_hash, violations, acknowledged, 0, time_s, world.evicted)

    with structlog.testing.capture_logs() as logs, warnings.catch_warnings():
        warnings.simplefilter("ignore", AssignmentWarning)
        try:
            result = run_deterministically(seed, main, steps_max=STEPS_MAX)
        except Exception:  # noqa: BLE001 - whatever it is, the report must name the seed
            noted = [violation for world in worlds for violation in world.violations]
            failed = Violation("the run failed", traceback.format_exc())
            result = Result(seed, "", [*noted, failed], 0, 0, 0.0)
    result.violations += server_bugs(logs)
    return result


async def _live(world: ClusterWorld) -> None:
    rng = world.rng("shape")
    groups = ["etl", "alerts"][: rng.randint(1, 2)]
    drivers = [
        Driver(world, f"{group}-{n}", group) for group in groups for n in range(rng.randint(1, 3))
    ]
    for number in range(NODES):
        world.cluster.start(number)
    async with trio.open_nursery() as clients:
        for driver in drivers:
            clients.start_soon(driver.run)
        await world.break_things(drivers)
        await converge(world, groups, drivers)
        world.stopping = True
    await until(lambda: world.cluster.is_settled)
    await look_once_more(world, groups)
    await trio.sleep(1)
    world.check_states()
