"""Nodes of a cluster in one process: whole daemons over an ensemble in memory, in virtual time."""

import math
import random
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import Enum, auto
from typing import Any, Final

import trio

from coordinator.cluster.engine import Registration
from coordinator.cluster.entries import FORMATS
from coordinator.cluster.layout import Layout
from coordinator.cluster.node import ClusterNode
from coordinator.config import Settings, load_settings
from coordinator.log.errors import LogCorrupt
from coordinator.runtime.replication import Replication
from coordinator.runtime.snapshotter import Snapshots
from coordinator.server.run import make_authorizer, make_node
from coordinator.server.server import Server
from coordinator.server.transport import Listener
from protocol.messages import Request, Response
from tests.fakes.environment import environment
from tests.fakes.snapshots import MemoryChild
from tests.fakes.transport import MemoryTransport
from tests.server.world import WALL_MS, Client, FakeListener
from tests.sim.ensemble import CLUSTER_ID, Ensemble, Line, Undone, cluster as made_cluster
from tests.sim.timer import Timer

SESSION_TIMEOUT_MS: Final = 6_000
PARTITIONS: Final = 6
JOURNALS: Final = 3
# How long a request takes to the ensemble, and its answer back; it takes turns with the others'.
STEP_S: Final = 0.002


class Contact(Enum):
    """What a node and the ensemble hear of each other."""

    FINE = auto()
    UNHEARD = auto()  # What the node asks is done, and no answer arrives.
    DEAF = auto()  # Nothing arrives, either way; nobody has noticed.
    CUT_OFF = auto()  # There is no connection, and none can be made.


_SERVES: Final = (Contact.FINE, Contact.UNHEARD)
_HEARS: Final = (Contact.FINE, Contact.CUT_OFF)


class Host:
    """One life of a node.

    Attributes:
        line: To the ensemble.
        contact: With the ensemble; may be set.
        wall_shift_ms: How wrong its wall clock is.
        events: What it logged.
        child: Makes its snapshots.
        ended: Why its process has ended, "" if it hasn't.
    """

    def __init__(self, cluster: "Cluster", number: int) -> None:
        self.number = number
        self._cluster = cluster
        self._contact = Contact.FINE
        self._heard_s = 0.0  # Time of its last good contact, if it hears nothing.
        # What arrives at the ensemble does so though the node stands still; what arrives at the
        # node waits for its task.
        self._will_serve = False
        self._hears_s = math.inf
        self._arrived = trio.Event()
        self.wall_shift_ms = 0
        self.name = f"node{number}"
        self.ended = ""
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.scope = trio.CancelScope()
        rng = cluster.rng

        def new_id() -> str:
            return f"{rng.getrandbits(128):032x}"

        endpoints = (cluster.endpoint.format(self.name),)
        self.machine = ClusterNode(
            registration=Registration(
                number, endpoints, WALL_MS, new_id(), cluster.formats, is_ready=False
            ),
            layout=Layout(PARTITIONS, JOURNALS),
            new_id=new_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            follow_interval_ms=50,
            keep_bytes=cluster.settings.cluster_tail_bytes,
            wall_offset_ms=WALL_MS,
        )
        self.machine.cluster_id = CLUSTER_ID
        self.environment = surroundings = environment(
            submit=_nothing,
            new_uuid=new_id,
            wall_clock_ms=lambda: WALL_MS + int(trio.current_time() * 1000) + self.wall_shift_ms,
            emit_event=self._hear,
        )
        self.child = MemoryChild(cluster.ensemble)
        self.store = Replication(
            self.machine,
            surroundings,
            cluster_id=CLUSTER_ID,
            num_partitions=PARTITIONS,
            state_max_bytes=cluster.state_max_bytes,
            snapshots=Snapshots(self.child.run, cluster.tail_bytes, cluster.tail_entries),
        )
        self.line = Line(cluster.ensemble, self.store.told)
        self.store.engine = self.line
        self.node = make_node(cluster.settings, self.store, surroundings)
        self.server = Server(
            node=self.node,
            environment=surroundings,
            settings=cluster.settings,
            coordination=self.store,
            max_connections=1_000,
            authorizer=make_authorizer(cluster.settings, self.node),
        )
        self.listener = cluster.listen(self.name)
        self.line.stirred = self.stir
        self.task: trio.lowlevel.Task  # Once it runs.

    async def stop(self) -> None:
        """Do what SIGTERM has a node do."""
        await self.node.hand_over()
        await self.node.drain()

    def _hear(self, name: str, fields: dict[str, Any]) -> None:
        self.events.append((name, fields))
        self._cluster.heard(self, name, fields)

    async def run(self) -> None:
        """Run until killed, or until it ends as the ensemble was set back."""
        self.task = trio.lowlevel.current_task()
        try:
            await self._run()
        except* LogCorrupt as failed:
            if not self._cluster.is_set_back:
                raise
            self.ended = "".join(traceback.format_exception(failed))
            self._cluster.kill(self)

    async def _run(self) -> None:
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.node.run)
                nursery.start_soon(self.server.run, list[Listener]([self.listener]))
                nursery.start_soon(self._hear_ensemble)

    # --- the ensemble -------------------------------------------------------------------

    @property
    def contact(self) -> Contact:
        """What it and the ensemble hear of each other."""
        return self._contact

    @contact.setter
    def contact(self, contact: Contact) -> None:
        was_fine, self._contact = self._contact is Contact.FINE, contact
        if was_fine:
            self._heard_s = trio.current_time()
        self.stir()

    def stir(self) -> None:
        """There may be something to carry, which takes a step."""
        if self._has_errands and not self._will_serve:
            self._will_serve = True
            self._cluster.timer.call_at(trio.current_time() + STEP_S, self._serve)
        if self._has_news and self._hears_s == math.inf:
            self._hears_s = trio.current_time() + STEP_S
            self._cluster.timer.call_at(self._hears_s, self._arrived.set)

    def _serve(self) -> None:
        """Have done what it asked, and what others wrote seen."""
        line = self.line
        self._will_serve = False
        while line.has_requests and self._is_served:
            line.serve()
        if self._is_served:
            line.see(self._cluster.newest_seen(line))
        self.stir()

    async def _hear_ensemble(self) -> None:
        """Take the answers, and see that there is a connection."""
        line = self.line
        self.stir()
        while True:
            await self._arrived.wait()
            if trio.current_time() > self._hears_s:
                # It stood still; clients may come first now, and meet one who knows nothing yet.
                await trio.sleep(self._cluster.rng.choice((0, STEP_S)))
            self._arrived = trio.Event()
            self._hears_s = math.inf
            self._cluster.rested(self)
            if self._is_lost:
                is_fine = self._contact is Contact.FINE
                silent_s = 0.0 if is_fine else trio.current_time() - self._heard_s
                self._cluster.undone(line.drop(round(silent_s * 1000)))
            if self._may_connect:
                line.connect(self._cluster.newest_seen(line))
            while line.has_answers and self._contact in _HEARS:
                line.deliver()
            self.stir()

    @property
    def _is_served(self) -> bool:
        line = self.line
        return line.is_connected and not line.is_over and self._contact in _SERVES

    @property
    def _has_errands(self) -> bool:
        return self._is_served and (self.line.has_requests or self.line.lags)

    @property
    def _is_lost(self) -> bool:
        line = self.line
        is_over = line.is_over and self._contact in _HEARS
        return line.is_connected and (is_over or self._contact is Contact.CUT_OFF)

    @property
    def _has_news(self) -> bool:
        is_heard = self.line.has_answers and self._contact in _HEARS
        return is_heard or self._may_connect or self._is_lost

    @property
    def _may_connect(self) -> bool:
        return not self.line.is_connected and self._contact is Contact.FINE

    # --- for tests ----------------------------------------------------------------------

    def connect(self) -> Client:
        """Connect to it."""
        assert isinstance(self.listener, FakeListener)
        transport = MemoryTransport("192.0.2.1")
        self.listener.arrive(transport)
        return Client(transport)

    def serves(self, group_id: str) -> bool:
        """Say whether it serves a group."""
        return self.node.shard_of(group_id).refusal() is None

    def told(self, name: str) -> list[dict[str, Any]]:
        """Return what the events of that name say."""
        return [fields for told, fields in self.events if told == name]


def _nothing(_work: object, _done: object) -> None:
    raise AssertionError("a node of a cluster has no disk")


class Cluster:
    """The ensemble, and the nodes of the moment by number."""

    def __init__(self, nursery: trio.Nursery, seed: int, settings: Settings) -> None:
        self.rng = random.Random(seed)
        self.nursery = nursery
        self.timer = Timer(random.Random(seed))
        nursery.start_soon(self.timer.run)
        self.settings = settings
        self.state_max_bytes = 1_000_000
        self.formats = FORMATS  # Of the release that the next node runs.
        self.endpoint = "plain://{}:9310"  # Of the next node, with its name.
        self.tail_bytes = settings.cluster_snapshot_bytes
        self.tail_entries = settings.cluster_snapshot_entries
        self.heard: Callable[[Host, str, dict[str, Any]], None] = lambda _host, _name, _fields: None
        # Called with a node that has done what it heard, before it hears more.
        self.rested: Callable[[Host], None] = lambda _host: None
        self.listen: Callable[[str], Listener] = lambda _name: FakeListener()
        self.undone: Callable[[list[Undone]], None] = lambda _undone: None
        self.newest_seen: Callable[[Line], int] = lambda _line: self.ensemble.transactions
        self.ensemble = Ensemble(made_cluster(PARTITIONS, JOURNALS))
        self.ensemble.stirred = self._stir
        self.hosts: dict[int, Host] = {}
        self.is_set_back = False

    def start(self, number: int) -> Host:
        """Start a node."""
        host = self.hosts[number] = Host(self, number)
        self.nursery.start_soon(host.run)
        return host

    def _stir(self) -> None:
        for host in self.hosts.values():
            host.stir()

    def kill(self, host: Host) -> None:
        """End a node at once; its session lives on."""
        host.scope.cancel()
        host.contact = Contact.CUT_OFF
        self.undone(host.line.abandon())
        del self.hosts[host.number]

    def end_session(self, host: Host) -> None:
        """Have the ensemble end the session of a node."""
        assert host.line.session is not None
        self.ensemble.end(host.line.session)

    async def set_back(self, transactions: int) -> None:
        """Have the ensemble set back to a copy of then, which has the sessions of the nodes."""
        for host in self.hosts.values():
            host.contact = Contact.CUT_OFF
        await trio.sleep(1)
        self.is_set_back = True
        self.ensemble.set_back(transactions)
        for host in list(self.hosts.values()):
            host.contact = Contact.FINE

    def leader_of(self, group_id: str) -> Host:
        """Return the node that serves a group."""
        (host,) = [host for host in self.hosts.values() if host.serves(group_id)]
        return host

    @property
    def registrar(self) -> Host:
        """The node that decides about topics, and all else that is the cluster's own."""
        (host,) = [h for h in self.hosts.values() if h.node.registry.refusal() is None]
        return host

    def other_than(self, host: Host) -> Host:
        """Return another node."""
        return next(other for other in self.hosts.values() if other is not host)

    async def new_leader_of(self, group_id: str, old: Host) -> Host:
        """Wait until another node than *old* serves a group, and return it."""
        others = [host for host in self.hosts.values() if host is not old]
        await until(lambda: any(host.serves(group_id) for host in others))
        return next(host for host in others if host.serves(group_id))

    @property
    def is_settled(self) -> bool:
        """Whether every journal is led by one node, and all others follow."""
        refusals = [
            [host.node.shards[p].refusal() for host in self.hosts.values()]
            for p in range(PARTITIONS)
        ]
        are_whole = all(host.node.ready for host in self.hosts.values())
        return are_whole and all(found.count(None) == 1 for found in refusals)


async def until(is_so: Callable[[], bool], timeout_s: float = 60) -> None:
    """Return when *is_so* says so."""
    with trio.fail_after(timeout_s):
        while not is_so():  # noqa: ASYNC110 - virtual time
            await trio.sleep(STEP_S)


async def ask(client: Client, request: Request, timeout_s: float = 60) -> Response:
    """Send *request*, and return its answer, which may need the ensemble."""
    sent = client.send(request)
    with trio.fail_after(timeout_s):
        while True:
            found = client.answers().get(sent)
            if found is not None:
                return found.response
            await trio.sleep(STEP_S)


@asynccontextmanager
async def cluster(*settings: str, nodes: int = 3, seed: int = 1) -> AsyncIterator[Cluster]:
    """Run nodes, which have settled, as long as the block lasts."""
    overrides = [f"offsets.topic.num.partitions={PARTITIONS}", *settings]
    async with trio.open_nursery() as nursery:
        here = Cluster(nursery, seed, load_settings(overrides=overrides))
        for number in range(nodes):
            here.start(number)
        await until(lambda: here.is_settled)
        yield here
        nursery.cancel_scope.cancel()
