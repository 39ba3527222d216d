"""A real cluster, all faults at once, for as long as one likes, and a check of all that was said.

``python -m tests.soak.cluster --minutes 15 --seed 1``

Three nodes and three servers of ZooKeeper are processes; the clients are the real library and the
workload of the simulation, in this process, and what passes on their connections is written down as
the simulation writes it down. So its checker judges: no acknowledged commit is lost, no read goes
back, generations are never told twice, nobody commits for a generation that is over. A request that
had no answer when its node was killed may be decided as long as ZooKeeper may hold something of it,
which is a session.

Besides there are *steady* groups, of one member each that never leaves: whatever becomes of nodes
and servers, they must be at their first generation at the end.

Faults come from three decks that are shuffled by the seed, of nodes, of the ensemble, and of
clients, which work side by side. At the end all is mended, everybody must recover, and everything
is read; then all nodes stop and start, and it is read again.

Then come the *losses*, each of a cluster of its own under the same servers: ZooKeeper loses what it
has acknowledged. No read may go back there, either: all nodes must end, with 65, and say why. The
nodes that an operator starts next must not found a new, empty cluster.
"""

import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

import trio

from bench.ensemble import Ensemble, ZooKeeperServer, ensemble
from client import CoordinatorUnavailable, OutcomeUnknown, RetriableError
from protocol.errors import ErrorCode
from protocol.messages import FindCoordinatorRequest
from tests import logged
from tests.integration.daemon import Connection, Daemon
from tests.integration.ensemble import DataCopy, Wire, found, wipe, wires
from tests.sim.checker import check
from tests.sim.history import History, Outcome, Tap
from tests.sim.registers import Violation
from tests.sim.simulation import converge, look_once_more
from tests.sim.workload import BaseWorld, Claims, Driver, Operator, connect_as, new_offsets
from tests.soak.faults import Deck, Fault
from tests.soak.one_client import Committer
from tests.soak.report import Report, command, listed

NODES: Final = 3
GROUPS: Final = ("alpha", "beta")
DRIVERS: Final = 3  # A group.
COMMITTERS: Final = 2
STEADY: Final = 6
SESSION_S: Final = 6.0
STEADY_SESSION_MS: Final = 15_000
# Long enough for the session to end, or too short for it.
_SPANS_S: Final = (0.3, 1.5, 4.0, 9.0)
_AWAY_S: Final = (0.1, 1.0, 8.0)
_LOOK_S: Final = 0.02
_PAUSE_S: Final = 10.0
_PAUSES_SHOWN: Final = 3
_USUAL_PACE_S: Final = 300
_KILLED: Final = -signal.SIGKILL
_LOST: Final = 65
_REFUSED: Final = 78
# Longer than a session.
_LONG_S: Final = SESSION_S + 3
_WORK_S: Final = 6.0
_END_S: Final = 120.0
_SETTINGS: Final = (
    f"cluster.session.timeout.ms={SESSION_S * 1000:.0f}",
    "group.initial.rebalance.delay.ms=300",
    "group.min.session.timeout.ms=1000",
    # Snapshots and trimming come often.
    "cluster.snapshot.entries=400",
)


@dataclass(slots=True)
class ClusterReport(Report):
    """What came of a run.

    Attributes:
        pauses: Of steady groups: from when to when no commit was acknowledged, for long.
        broken: Which fault there was, from when to when.
    """

    pauses: list[tuple[float, float]] = field(default_factory=list)
    broken: list[tuple[str, float, float]] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """Say it in words."""
        yield f"seed {self.seed}, {self.seconds:.0f} s, {self.lives} lives of {NODES} nodes"
        yield f"{sum(self.faults.values())} faults: " + listed(self.faults)
        yield "logged: " + listed(self.events)
        yield (
            f"{self.requests} requests, {self.answered} answered; {self.commits} commits, "
            f"{self.acknowledged} acknowledged; {self.claims} statements of the client library "
            "held to the wire"
        )
        for from_s, to_s in sorted(self.pauses, key=lambda one: one[0] - one[1])[:_PAUSES_SHOWN]:
            met = [
                f"{name} at {max(began_s - from_s, 0):.0f} to {ended_s - from_s:.0f} s"
                for name, began_s, ended_s in self.broken
                if began_s < to_s and ended_s > from_s
            ]
            yield f"a steady group had no commit for {to_s - from_s:.1f} s: " + ", ".join(met)
        yield from self.verdict()


# --- the clients' connections --------------------------------------------------------------


class _Tapped(trio.abc.Stream):
    """A connection of which is written down what passes."""

    def __init__(self, stream: trio.SocketStream, tap: Tap) -> None:
        self._stream = stream
        self._tap = tap

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send it, noted first: so a request begins early."""
        self._tap.sent(bytes(data))
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See trio."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Return what came, noted first."""
        data = await self._stream.receive_some(max_bytes)
        self._tap.received(bytes(data))
        return data

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()


class Roads:
    """The way from clients to nodes: see `tests.sim.workload.Wires`."""

    def __init__(self, history: History) -> None:
        self.taps: dict[int, list[Tap]] = {}  # By the port of the node that lives.
        self._history = history
        self._numbers = count(1)
        self._streams: dict[str, set[trio.SocketStream]] = {}
        self._away: set[str] = set()

    def opener(self, client: str) -> Callable[[str, int], Awaitable[trio.abc.Stream]]:
        """Return what connects a client."""

        async def open_stream(host: str, port: int) -> trio.abc.Stream:
            if client in self._away or port not in self.taps:
                raise OSError("nobody is there")
            taps = self.taps[port]
            stream = await trio.open_tcp_stream(host, port)
            tap = Tap(self._history, next(self._numbers), client)
            taps.append(tap)
            self._streams.setdefault(client, set()).add(stream)
            return _Tapped(stream, tap)

        return open_stream

    def cut_off(self, client: str) -> None:
        """Let it connect no more."""
        self._away.add(client)

    def reconnect(self, client: str) -> None:
        """Let it connect."""
        self._away.discard(client)

    def reset_some(self, client: str | None) -> None:
        """Reset the connections of one client, or all."""
        for name in list(self._streams) if client is None else [client]:
            for stream in self._streams.pop(name, ()):
                stream.socket.close()


# --- nodes ---------------------------------------------------------------------------------


class NodeProcess:
    """One node: a process that is started again whenever it has ended.

    Attributes:
        daemon: The life of the moment.
        wires: Its ways to the servers of ZooKeeper.
        down_s: How long it stays away when it ends next.
    """

    def __init__(self, number: int, drawn: list[Wire], world: "ClusterWorld") -> None:
        self.number = number
        self.wires = drawn
        self.down_s = 0.0
        self.port = 0
        self.daemon: Daemon | None = None
        self._may_end: set[int] = set()
        self._world = world
        self.is_over = trio.Event()
        self._is_ready = trio.Event()

    async def run(self) -> None:
        """Keep it running, until the nursery ends."""
        world, roads = self._world, self._world.network
        hosts = ",".join(f"127.0.0.1:{wire.port}" for wire in self.wires)
        settings = (
            *_SETTINGS,
            f"node.id={self.number}",
            f"cluster.zookeeper={hosts}{world.chroot}",
        )
        while not world.data_is_lost:
            self._may_end.clear()
            world.report.lives += 1
            daemon = self.daemon = Daemon(None, settings, port=self.port)
            try:
                if await self._told("listening"):
                    self.port = daemon.port
                    roads.taps[self.port] = []
                if await self._told("ready"):
                    self._is_ready.set()
                await self._told("the end of its process")
            finally:
                self._is_ready = trio.Event()
                self._end(daemon)
            await trio.sleep(self.down_s)
        self.is_over.set()

    async def _told(self, event: str) -> bool:
        """Return whether it tells of an event before its process ends."""
        assert self.daemon is not None
        while not self.daemon.events(event):
            if self._status is not None:
                return False
            await trio.sleep(_LOOK_S)
        return True

    @property
    def _status(self) -> int | None:
        assert self.daemon is not None
        return self.daemon.process.poll()

    def _end(self, daemon: Daemon) -> None:
        if daemon.process.poll() is None:
            self._may_end.add(_KILLED)
            daemon.kill()
        status = daemon.wait()
        world = self._world
        taps = world.network.taps.pop(self.port, [])
        world.nursery.start_soon(_lose, taps)
        world.report.events.update(line["event"] for line in daemon.lines)
        world.evictions += [
            line
            for line in daemon.events("group.member_removed")
            if line["client_id"].startswith("steady") and line["reason"] != "left"
        ]
        world.evictions += [
            line
            for line in daemon.events("group.rebalance_started")
            if line["group"].startswith("steady") and line["trigger"] == "topics changed"
        ]
        if status not in self._may_end:
            told = "".join(daemon.stray)[-3_000:] or str(daemon.lines[-3:])
            world.violate("end", f"node {self.number} ended with {status}: {told}")

    @property
    def port_is_open(self) -> bool:
        """Whether this life of it takes connections."""
        return self.daemon is not None and bool(self.daemon.events("listening"))

    def may_end_with(self, status: int) -> None:
        """Let this life of it end with *status*."""
        self._may_end.add(status)

    async def ready(self) -> None:
        """Return when it is ready."""
        while not self._is_ready.is_set():
            await self._is_ready.wait()

    def signal(self, number: int, status: int | None = None) -> None:
        """Send a signal, which may end it with *status*."""
        if status is not None:
            self._may_end.add(status)
        if self.daemon is not None and self._status is None:
            self.daemon.process.send_signal(number)


async def _lose(taps: list[Tap]) -> None:
    """What had no answer may be decided as long as ZooKeeper may hold something of it."""
    try:
        await trio.sleep(2 * SESSION_S)
    finally:
        for tap in taps:
            tap.server_closed()


# --- the world -----------------------------------------------------------------------------


class ClusterWorld(BaseWorld):
    """What clients live in: see `tests.sim.workload.Surroundings`.

    Attributes:
        evictions: Of steady members, and rebalances of theirs that topics have brought about.
    """

    def __init__(
        self, report: ClusterReport, made: Ensemble, nursery: trio.Nursery, folder: Path
    ) -> None:
        super().__init__(report.seed, History(trio.current_time))
        self.report = report
        self.folder = folder
        self.made = made
        self.nursery = nursery
        self.network = Roads(self.history)
        self.nodes: list[NodeProcess] = []
        self.evictions: list[dict[str, object]] = []
        self.chroot = "/soak"
        self.ports: list[int] = []  # Of nodes that a supervisor has.
        self.data_is_lost = False  # If it is, a node that ends isn't started again.

    @property
    def zookeeper(self) -> str:
        """Where the cluster is, past all wires."""
        return f"cluster.zookeeper={self.made.hosts}{self.chroot}"

    @property
    def address(self) -> list[str]:
        """Where the nodes are."""
        return [f"127.0.0.1:{port}" for port in self.ports or [one.port for one in self.nodes]]

    def is_cooperative(self, group: str) -> bool:
        """Say how the members of *group* hand partitions over."""
        return group == GROUPS[0]


class Steady:
    """A member that never leaves, alone in its group."""

    def __init__(self, world: ClusterWorld, name: str) -> None:
        self._world = world
        self._name = name

    async def run(self) -> None:
        """Commit and read back, until the world stops."""
        world, since_s = self._world, trio.current_time()
        async with (
            connect_as(world, self._name, world.rng(self._name)) as client,
            client.join(
                self._name, ["t"], {"t": 2}, session_timeout_ms=STEADY_SESSION_MS
            ) as member,
        ):
            while not world.stopping:
                await trio.sleep(0.1)
                with suppress(RetriableError, OutcomeUnknown, CoordinatorUnavailable):
                    assignment = await member.assignment()
                    if assignment.generation != 1:
                        world.violate("rebalance", f"{self._name}: {assignment}")
                        return
                    offsets = new_offsets(world, list(assignment.partitions))
                    claims = Claims(world, self._name, offsets)
                    try:
                        await member.commit(offsets)
                    except (OutcomeUnknown, CoordinatorUnavailable):
                        claims.all(Outcome.INFO)
                        continue
                    claims.all(Outcome.OK)
                    now_s = trio.current_time()
                    if now_s - since_s > _PAUSE_S:
                        world.report.pauses.append((since_s, now_s))
                    since_s = now_s
                    found = await member.fetch(assignment.partitions)
                    if found != offsets:
                        world.violate("read", f"{self._name}: {found} after {offsets}")


# --- faults --------------------------------------------------------------------------------


class Faults:
    """What is done, and mended again."""

    def __init__(self, world: ClusterWorld, drivers: list[Driver], pace: float) -> None:
        self._world = world
        self._drivers = drivers
        self._pace = pace
        self._rng = world.rng("faults")
        self._numbers = count()

    def of_nodes(self) -> Mapping[str, Fault]:
        """Return those of nodes, and of their way to ZooKeeper."""
        return {
            "kill -9 of a node": Fault(partial(self._end, signal.SIGKILL, _KILLED)),
            "SIGTERM of a node": Fault(partial(self._end, signal.SIGTERM, 0)),
            "freeze of a node": Fault(self._freeze),
            "cut to ZooKeeper": Fault(partial(self._wires, Wire.cut)),
            "late requests": Fault(partial(self._wires, Wire.keep_requests)),
            "late replies": Fault(partial(self._wires, Wire.keep_replies)),
            "lost answers": Fault(partial(self._lose, Wire.keep_replies)),
            "balancer without a server": Fault(partial(self._lose, Wire.silence)),
            "topic deleted before a hand-over": Fault(self._delete_topic),
        }

    def of_ensemble(self) -> Mapping[str, Fault]:
        """Return those of ZooKeeper's servers."""
        return {
            "kill -9 of ZooKeeper's leader": Fault(partial(self._kill_servers, 1, leads=True)),
            "kill -9 of a follower": Fault(partial(self._kill_servers, 1, leads=False)),
            "kill -9 of a majority": Fault(partial(self._kill_servers, 2, leads=True)),
            "freeze of ZooKeeper's leader": Fault(partial(self._freeze_server, leads=True)),
            "freeze of a follower": Fault(partial(self._freeze_server, leads=False)),
            "one server set back": Fault(self._set_one_back),
            "start of a node without ZooKeeper": Fault(self._start_without_servers),
        }

    def of_clients(self) -> Mapping[str, Fault]:
        """Return those of clients."""
        return {
            "crash of a client": Fault(self._crash),
            "cut of clients": Fault(self._cut_clients),
        }

    def _span_s(self) -> float:
        return self._rng.choice(_SPANS_S) * self._pace

    async def _some_node(self) -> NodeProcess:
        node = self._rng.choice(self._world.nodes)
        with trio.move_on_after(60):
            await node.ready()
        return node

    async def _end(self, number: int, status: int) -> None:
        node = await self._some_node()
        node.down_s = self._rng.choice(_AWAY_S) * self._pace
        node.signal(number, status)
        await trio.sleep(node.down_s)

    async def _freeze(self) -> None:
        node = await self._some_node()
        node.signal(signal.SIGSTOP)
        await trio.sleep(self._span_s())
        node.signal(signal.SIGCONT)

    async def _wires(self, do: Callable[[Wire], None]) -> None:
        node = await self._some_node()
        for wire in node.wires:
            do(wire)
        await trio.sleep(self._span_s())
        for wire in node.wires:
            wire.mend()

    async def _lose(self, do: Callable[[Wire], None]) -> None:
        """Let nothing come back for longer than a session, nor later."""
        node = await self._some_node()
        for wire in node.wires:
            do(wire)
        await trio.sleep(_LONG_S)
        for wire in node.wires:
            wire.cut()
            wire.mend()

    async def _delete_topic(self) -> None:
        topic = f"deleted-{next(self._numbers)}"
        async with connect_as(self._world, "deleter", self._rng) as client:
            with suppress(RetriableError, OutcomeUnknown, CoordinatorUnavailable):
                await client.register_topics({topic: 1})
                await client.delete_topics([topic])
        await self._end(signal.SIGTERM, 0)

    async def _set_one_back(self) -> None:
        """Give one server what it had a while ago: the others have the rest."""
        made = self._world.made
        folder = self._world.folder / f"copy-{next(self._numbers)}"
        copy = await trio.to_thread.run_sync(DataCopy, made, folder)
        await trio.sleep(self._span_s())
        await trio.to_thread.run_sync(copy.restore, 1)

    async def _start_without_servers(self) -> None:
        """Have a node start without a majority: it is there at once, and answers 15."""
        node = await self._some_node()
        leader, others = await self._servers()
        for server in (leader, *others):
            server.kill()
        ended, node.down_s = node.daemon, 0.0
        node.signal(signal.SIGKILL, _KILLED)
        with trio.move_on_after(_END_S):
            while node.daemon is ended or not node.port_is_open:  # noqa: ASYNC110 - another thread's
                await trio.sleep(_LOOK_S)
            answer = await trio.to_thread.run_sync(_coordinator, node.port)
            if answer not in {None, ErrorCode.COORDINATOR_NOT_AVAILABLE}:
                self._world.violate("start", f"node {node.number}: {answer}")
        await trio.to_thread.run_sync(self._world.made.start)

    async def _kill_servers(self, number: int, *, leads: bool) -> None:
        leader, others = await self._servers()
        for server in ([leader, *others] if leads else others)[:number]:
            server.kill()
        await trio.sleep(self._span_s())
        await trio.to_thread.run_sync(self._world.made.start)

    async def _freeze_server(self, *, leads: bool) -> None:
        leader, others = await self._servers()
        server = leader if leads else self._rng.choice(others)
        server.freeze()
        await trio.sleep(self._span_s())
        server.thaw()
        await trio.to_thread.run_sync(self._world.made.start)

    async def _servers(self) -> tuple[ZooKeeperServer, list[ZooKeeperServer]]:
        """Return who leads the ensemble, and the others."""
        made = self._world.made
        leader = await trio.to_thread.run_sync(made.leader)
        return leader, [server for server in made.servers if server is not leader]

    async def _crash(self) -> None:
        self._rng.choice(self._drivers).crash()
        await trio.sleep(1)

    async def _cut_clients(self) -> None:
        self._world.network.reset_some(None)
        await trio.sleep(3)


# --- a run ---------------------------------------------------------------------------------


async def soak(folder: Path, *, seconds: float, seed: int) -> ClusterReport:
    """Run that long, and at least until each fault has come; then let all recover, and judge."""
    report = ClusterReport(seed, seconds)
    with ensemble(folder) as made, ExitStack() as stack:
        await trio.to_thread.run_sync(found, made, "/soak")
        async with trio.open_nursery() as nursery:
            world = ClusterWorld(report, made, nursery, folder)
            for number in range(1, NODES + 1):
                drawn = stack.enter_context(wires(made))
                world.nodes.append(NodeProcess(number, drawn, world))
                nursery.start_soon(world.nodes[-1].run)
            for node in world.nodes:
                await node.ready()
            await _suffer(world)
            nursery.cancel_scope.cancel()
        await _judge(world)
        for name, loss in LOSSES.items():
            await _lose_data(report, made, folder, name, loss)
            report.faults[name] += 1
    report.violations += [Violation("events", text) for text in logged.PROBLEMS]
    return report


async def _judge(world: ClusterWorld) -> None:
    """Hold what was said in *world* to the promises."""
    report = world.report
    for tap in [tap for taps in world.network.taps.values() for tap in taps]:
        tap.server_closed()
    report.violations += world.violations
    report.violations += await trio.to_thread.run_sync(check, world.history)
    report.violations += [Violation("evicted", str(line)) for line in world.evictions]
    report.count(world.history)


async def _suffer(world: ClusterWorld) -> None:
    report = world.report
    pace = min(1.0, report.seconds / _USUAL_PACE_S)
    drivers = [Driver(world, f"{group}-{n}", group) for group in GROUPS for n in range(DRIVERS)]
    clients: list[Driver | Operator | Committer | Steady] = [
        *drivers,
        Operator(world, "operator", list(GROUPS)),
        *(Committer(world, f"committer-{n}", f"fast-{n}") for n in range(COMMITTERS)),
        *(Steady(world, f"steady-{n}") for n in range(STEADY)),
    ]
    faults = Faults(world, drivers, pace)
    begun_s = trio.current_time()

    def is_over() -> bool:
        return trio.current_time() >= begun_s + report.seconds

    async with trio.open_nursery() as working:
        for client in clients:
            working.start_soon(client.run)
        await trio.sleep(5)
        async with trio.open_nursery() as players:
            for name, chosen in (
                ("nodes", faults.of_nodes()),
                ("ensemble", faults.of_ensemble()),
                ("clients", faults.of_clients()),
            ):
                timed = {
                    fault_name: Fault(partial(_timed, report, fault_name, fault.do))
                    for fault_name, fault in chosen.items()
                }
                deck = Deck(timed, world.rng(f"deck of {name}"), report.faults)
                players.start_soon(partial(deck.play, pace, is_over, lethal=True))
        report.seconds = trio.current_time() - begun_s
        world.healed = True
        for node in world.nodes:
            await node.ready()
        await converge(world, list(GROUPS), drivers)
        world.stopping = True
    everybody = [*GROUPS, *(f"fast-{n}" for n in range(COMMITTERS))]
    everybody += [f"steady-{n}" for n in range(STEADY)]
    await look_once_more(world, everybody)
    for node in world.nodes:
        node.down_s = 5
        node.signal(signal.SIGTERM, 0)
    await trio.sleep(3)
    for node in world.nodes:
        await node.ready()
    await look_once_more(world, everybody)


# --- losses --------------------------------------------------------------------------------


class Loss(NamedTuple):
    """How ZooKeeper loses data, and what an operator meets who starts a node again.

    Attributes:
        is_wiped: Nothing is left: then the start is refused.
        has_election: The servers have another leader since the copy was made.
        is_idle: Nothing is asked of the nodes any more.
        nodes: As many as one supervisor has; None for a process each.
    """

    is_wiped: bool = False
    has_election: bool = False
    is_idle: bool = False
    nodes: int | None = None


LOSSES: Final[Mapping[str, Loss]] = {
    "ZooKeeper set back": Loss(),
    "ZooKeeper set back after an election": Loss(has_election=True),
    "ZooKeeper set back behind idle journals": Loss(is_idle=True),
    "ZooKeeper set back under serve --nodes": Loss(nodes=2),
    "ZooKeeper wiped": Loss(is_wiped=True),
}


class Supervised:
    """Nodes of one ``serve --nodes``, in place of processes that the soak starts again."""

    def __init__(self, world: ClusterWorld, nodes: int) -> None:
        """Start *nodes* of them."""
        settings = (*_SETTINGS, "node.id=1", world.zookeeper)
        self.daemon = Daemon(None, settings, options=("--nodes", str(nodes)))
        self._nodes = nodes

    async def ports(self) -> list[int]:
        """Return where the nodes listen, when all are ready."""
        while len(self.daemon.events("ready")) < self._nodes:  # noqa: ASYNC110 - a thread's
            await trio.sleep(_LOOK_S)
        return [line["port"] for line in self.daemon.events("listening")]


async def _lose_data(
    report: ClusterReport, made: Ensemble, folder: Path, name: str, loss: Loss
) -> None:
    """Have a cluster lose data while clients work, and see that it ends, and stays so."""
    async with trio.open_nursery() as nursery:
        world = ClusterWorld(report, made, nursery, folder)
        world.chroot = "/" + name.replace(" ", "-").replace("--", "")
        await trio.to_thread.run_sync(found, made, world.chroot)
        with ExitStack() as stack:
            ends = await _started(world, loss, nursery, stack)
            working = trio.CancelScope()
            nursery.start_soon(_work, world, working)
            await trio.sleep(_WORK_S)
            copy = await trio.to_thread.run_sync(
                DataCopy, made, folder / world.chroot.removeprefix("/")
            )
            if loss.has_election:
                (await trio.to_thread.run_sync(made.leader)).kill()
                await trio.to_thread.run_sync(made.start)
            await trio.sleep(_WORK_S)
            if loss.is_idle:
                working.cancel()
                await trio.sleep(1)
            world.data_is_lost = True
            if loss.is_wiped:
                await trio.to_thread.run_sync(wipe, made, world.chroot)
            else:
                await trio.to_thread.run_sync(copy.restore)
            await ends()
        nursery.cancel_scope.cancel()
    if loss.is_wiped:
        for chroot in (world.chroot, "/another"):
            world.chroot = chroot
            await _refused(world)
    await _judge(world)


async def _work(world: ClusterWorld, scope: trio.CancelScope) -> None:
    """Commit and read back until cancelled."""
    with scope:
        async with trio.open_nursery() as working:
            for number in range(COMMITTERS):
                working.start_soon(Committer(world, f"c-{number}", f"fast-{number}").run)
            for number in range(STEADY):
                working.start_soon(Steady(world, f"steady-{number}").run)


async def _started(
    world: ClusterWorld, loss: Loss, nursery: trio.Nursery, stack: ExitStack
) -> Callable[[], Awaitable[None]]:
    """Start the nodes; return what waits until all have ended, and looks at why."""
    if loss.nodes is not None:
        supervised = Supervised(world, loss.nodes)
        daemon = supervised.daemon
        stack.callback(daemon.kill)
        world.ports = await supervised.ports()
        world.network.taps |= {port: [] for port in world.ports}

        async def have_given_up() -> None:
            with trio.move_on_after(_END_S):
                while daemon.process.poll() is None:  # noqa: ASYNC110 - a process of its own
                    await trio.sleep(_LOOK_S)
            _look_at_end(world, daemon, daemon.process.poll())
            if len(daemon.events("node.given_up")) != loss.nodes:
                world.violate("final", f"not all are given up: {daemon.events('node.ended')}")

        return have_given_up
    for number in range(1, NODES + 1):
        node = NodeProcess(number, stack.enter_context(wires(world.made)), world)
        world.nodes.append(node)
        nursery.start_soon(node.run)
    for node in world.nodes:
        await node.ready()
        node.may_end_with(_LOST)

    async def have_ended() -> None:
        with trio.move_on_after(_END_S):
            for node in world.nodes:
                await node.is_over.wait()
        for node in world.nodes:
            assert node.daemon is not None
            _look_at_end(world, node.daemon, node.daemon.process.poll())

    return have_ended


def _look_at_end(world: ClusterWorld, daemon: Daemon, status: int | None) -> None:
    said = [line["reason"] for name in ("log.failed", "refused") for line in daemon.events(name)]
    if status != _LOST or not said or not all("data" in reason for reason in said):
        world.violate("final", f"it ended with {status}, and said {said}")


async def _refused(world: ClusterWorld) -> None:
    """Start a node as an operator would who has seen nothing: it must not begin anew."""
    daemon = Daemon(None, (*_SETTINGS, "node.id=1", world.zookeeper))
    status = await trio.to_thread.run_sync(daemon.wait)
    if status != _REFUSED or daemon.events("log.created"):
        world.violate("founded", f"in {world.chroot} it ended with {status}: {daemon.lines}")


def _coordinator(port: int) -> int | None:
    """Return with which error a node tells of a coordinator, None if it is gone."""
    try:
        with Connection(port) as connection:
            answer: Any = connection.ask(FindCoordinatorRequest(0, ("alpha",)))
    except OSError:
        return None
    error: int = answer.coordinators[0].error
    return error


async def _timed(report: ClusterReport, name: str, do: Callable[[], Awaitable[None]]) -> None:
    began_s = trio.current_time()
    await do()
    report.broken.append((name, began_s, trio.current_time()))


if __name__ == "__main__":
    command("tests.soak.cluster", soak, minutes=15)
