"""A whole daemon in memory: fake disk, fake connections, virtual time; only sockets are missing."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, TypeVar

import trio
import trio.testing
from msgspec import structs

from coordinator.config import Settings, load_settings
from coordinator.log.journal import Journal
from coordinator.runtime.coordination import EmbeddedCoordination, Leader
from coordinator.runtime.telemetry import Tee
from coordinator.server.run import (
    load_log_ins,
    make_authorizer,
    make_folder,
    make_log_ins,
    make_node,
    with_log_in,
)
from coordinator.server.server import Server
from coordinator.server.transport import Listener
from protocol.connection import ClientConnection, ResponseEvent
from protocol.consumer import Assignment, Subscription, encode_assignment, encode_subscription
from protocol.errors import ErrorCode
from protocol.messages import (
    FindCoordinatorResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinProtocol,
    MemberAssignment,
    OffsetCommitRequest,
    PartitionCommit,
    Request,
    Response,
    SyncGroupRequest,
    SyncGroupResponse,
    TopicCommit,
)
from protocol.partition import TopicPartition
from tests.fakes.compaction import MemoryChild
from tests.fakes.disk import Disk
from tests.fakes.environment import environment, in_tasks
from tests.fakes.transport import MemoryTransport

WALL_MS: Final = 1_700_000_000_000
SUBSCRIPTION: Final = encode_subscription(Subscription(("t",)))
ASSIGNMENT: Final = encode_assignment(Assignment((TopicPartition("t", 0),)))
SESSION_MS: Final = 10_000

R = TypeVar("R")


class SlowDisk:
    """Runs the disk's work at once, or holds it until the test lets it go."""

    def __init__(self) -> None:
        self._open = trio.Event()
        self._open.set()
        self.has_one_lane = True  # What holds writes holds reads, too.
        self._reads_open: trio.Event | None = None

    def hold(self) -> None:
        """Let no flush end from now on."""
        if self._open.is_set():
            self._open = trio.Event()

    def let_go(self) -> None:
        """Let them end."""
        self._open.set()

    def hold_next_read(self) -> trio.Event:
        """Let the next read of the log not begin before the event that is returned."""
        self._reads_open = trio.Event()
        return self._reads_open

    async def run_read(self, work: Callable[[], None]) -> None:
        """Run *work* in the lane of those who read."""
        gate, self._reads_open = self._reads_open, None
        if gate is not None:
            await gate.wait()
        if self.has_one_lane:
            await self._open.wait()
        await trio.lowlevel.checkpoint()
        work()

    async def run(self, work: Callable[[], None]) -> None:
        """Run *work*; no thread, which a virtual clock would not wait for."""
        await self._open.wait()
        await trio.lowlevel.checkpoint()
        work()


class Client:
    """The test's end of a connection."""

    def __init__(self, transport: MemoryTransport) -> None:
        self.transport = transport
        self._protocol = ClientConnection()
        self._taken = 0
        self._answers: dict[int, ResponseEvent] = {}

    def frame(self, request: Request, version: int | None = None) -> tuple[int, bytes]:
        """Return a request's correlation id and bytes, which the test sends as it likes."""
        return self._protocol.send(request, version)

    def send(self, request: Request, version: int | None = None) -> int:
        """Send a request and return its correlation id."""
        correlation_id, frame = self.frame(request, version)
        self.transport.put(frame)
        return correlation_id

    def answers(self) -> dict[int, ResponseEvent]:
        """Return everything that came, by correlation id."""
        new = bytes(self.transport.received[self._taken :])
        self._taken += len(new)
        for event in self._protocol.receive(new):
            self._answers[event.correlation_id] = event
        return self._answers

    def has(self, correlation_id: int) -> bool:
        """Say whether that answer came."""
        return correlation_id in self.answers()

    async def answer(self, correlation_id: int) -> ResponseEvent:
        """Return the answer, which must be there once everybody has had a turn."""
        await trio.testing.wait_all_tasks_blocked()
        return self.answers()[correlation_id]

    async def ask(self, request: Request, version: int | None = None) -> Response:
        """Send a request and return its answer."""
        return (await self.answer(self.send(request, version))).response

    async def error(self, request: Request) -> int:
        """Send a request and return its error; what it says in words is tested with the groups."""
        response: Any = await self.ask(request)
        error: int = response.error
        return error

    async def join_alone(
        self, group_id: str = "g", session_ms: int = SESSION_MS, assignment: bytes = ASSIGNMENT
    ) -> str:
        """Become the only, stable member of a group; return the member id."""
        member_id = await self.member_id(group_id, session_ms)
        sent = self.send(join(group_id, member_id, session_ms))
        await trio.sleep(3.1)
        joined = (await self.answer(sent)).response
        assert isinstance(joined, JoinGroupResponse)
        assert joined.error == 0
        shares = (MemberAssignment(member_id, assignment),)
        generation = joined.generation_id
        synced = await self.ask(
            SyncGroupRequest(group_id, generation, member_id, None, None, None, shares)
        )
        assert synced == SyncGroupResponse(0, "consumer", "range", assignment)
        return member_id

    async def member_id(self, group_id: str = "g", session_ms: int = SESSION_MS) -> str:
        """Ask for a member id."""
        response = await self.ask(join(group_id, "", session_ms))
        assert isinstance(response, JoinGroupResponse)
        assert response.error == ErrorCode.MEMBER_ID_REQUIRED
        return response.member_id


class FakeListener:
    """A door that the test opens, or jams with an error."""

    def __init__(self) -> None:
        self._put, self._take = trio.open_memory_channel[MemoryTransport | OSError](100)

    def arrive(self, what: MemoryTransport | OSError) -> None:
        """Let a connection, or a failure to take one, arrive."""
        self._put.send_nowait(what)

    async def accept(self) -> MemoryTransport:
        """Return the next connection."""
        try:
            what = await self._take.receive()
        except trio.EndOfChannel:
            raise trio.ClosedResourceError from None
        if isinstance(what, OSError):
            raise what
        return what

    def close(self) -> None:
        """Close the door."""
        self._put.close()


class World:
    """The daemon, and everything around it that a test may touch."""

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        settings: Settings,
        disk: Disk,
        max_connections: int = 10_000,
    ) -> None:
        self.nursery = nursery
        self.settings = settings
        self.disk = disk
        self.slow_disk = SlowDisk()
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.tee = Tee(lambda name, fields: self.events.append((name, fields)))
        self.wall_ms = WALL_MS
        self._ids = 0
        self.journal = Journal(
            disk.directory(),
            num_partitions=settings.offsets_topic_num_partitions,
            segment_bytes=settings.offsets_topic_segment_bytes,
            node_id=settings.node_id,
            new_cluster_id=lambda: "A" * 22,
            new_secret=lambda: bytes(16),
        )
        self.child = MemoryChild(self.journal.directory)
        self.environment = environment(
            submit=in_tasks(self.slow_disk.run, lambda: nursery),
            run_blocking=self.slow_disk.run,
            run_reading=self.slow_disk.run_read,
            new_uuid=self._new_uuid,
            wall_clock_ms=lambda: self.wall_ms,
            emit_event=self.tee,
        )
        self.poller = self.environment.poller
        self.metrics = self.environment.metrics
        self.store = make_folder(settings, self.journal, self.environment, self.child.run)
        self.node = make_node(settings, self.store, self.environment)
        endpoints = tuple((told.host, told.port) for told in settings.addresses_told())
        leader = Leader(settings.node_id, endpoints, self.journal.leader_epoch)
        self.log_ins = load_log_ins(settings)
        self.listeners = [FakeListener() for _ in settings.listener_addresses()]
        self.listener = self.listeners[0]
        self.server = Server(
            node=self.node,
            environment=self.environment,
            settings=settings,
            coordination=EmbeddedCoordination(leader),
            max_connections=max_connections,
            authorizer=make_authorizer(settings, self.node),
            begin_log_in=make_log_ins(self.log_ins, self.node),
        )
        if self.log_ins is not None:
            self.log_ins.take_secret(self.journal.key.secret)

    def _new_uuid(self) -> str:
        self._ids += 1
        return f"{self._ids:032x}"

    def connect(self, peer: str = "192.0.2.1", listener: int = 0) -> Client:
        """Connect, to that listener."""
        transport = MemoryTransport(peer)
        self.listeners[listener].arrive(transport)
        return Client(transport)

    def doors(self) -> list[Listener]:
        """Return what sessions come from."""
        return list[Listener](self.listeners)

    def event_names(self) -> list[str]:
        """Return the names of the events, in order."""
        return [name for name, _ in self.events]


W = TypeVar("W", bound=World)


def world(
    *settings: str,
    disk: Disk | None = None,
    load: bool = True,
    max_connections: int = 10_000,
) -> AbstractAsyncContextManager[World]:
    """Run a daemon as long as the block lasts."""
    return world_of(World, *settings, disk=disk, load=load, max_connections=max_connections)


@asynccontextmanager
async def world_of(
    kind: Callable[..., W],
    *settings: str,
    disk: Disk | None = None,
    load: bool = True,
    max_connections: int = 10_000,
) -> AsyncIterator[W]:
    """Run one whose world *kind* makes, as `World` does."""
    overrides = ["offsets.topic.num.partitions=4", "storage.reserve.bytes=0", *settings]
    async with trio.open_nursery() as nursery:
        here = kind(
            nursery,
            settings=load_settings(overrides=overrides),
            disk=disk or Disk(),
            max_connections=max_connections,
        )
        nursery.start_soon(here.node.run)
        doors = here.doors()
        addresses = here.settings.listener_addresses()
        nursery.start_soon(here.server.run, doors, with_log_in(doors, addresses))
        if load:
            await here.node.load()
        await trio.testing.wait_all_tasks_blocked()
        yield here
        nursery.cancel_scope.cancel()


def join(
    group_id: str = "g", member_id: str = "", session_ms: int = SESSION_MS
) -> JoinGroupRequest:
    """Return a JoinGroup."""
    protocols = (JoinProtocol("range", SUBSCRIPTION),)
    return JoinGroupRequest(
        group_id, session_ms, 60_000, member_id, None, "consumer", protocols, None
    )


def beat(member_id: str = "m", generation: int = 1, group_id: str = "g") -> HeartbeatRequest:
    """Return a heartbeat."""
    return HeartbeatRequest(group_id, generation, member_id, None)


def commit(offset: int = 1, *partitions: int, group_id: str = "g") -> OffsetCommitRequest:
    """Return a commit without a member."""
    commits = tuple(PartitionCommit(p, offset, -1, "", None) for p in partitions or (0,))
    return OffsetCommitRequest(group_id, -1, "", None, (TopicCommit("t", commits),))


async def answer_or_end(client: Client, request: Request, within_s: float = 2) -> Any:
    """Ask; return the answer, which may be a delayed failure, or None if the connection ends."""
    sent = client.send(request)
    with trio.move_on_after(within_s):
        while sent not in client.answers() and not client.transport.closed:  # noqa: ASYNC110 - a fake tells nobody
            await trio.sleep(0.01)
    found = client.answers().get(sent)
    return None if found is None else found.response


def without_words(response: Any) -> Any:
    """Return an answer without its message: its shape is one promise, its text another."""
    if isinstance(response, FindCoordinatorResponse):
        return FindCoordinatorResponse(tuple(map(without_words, response.coordinators)))
    has_words = hasattr(response, "message")
    return structs.replace(response, message=None) if has_words else response
