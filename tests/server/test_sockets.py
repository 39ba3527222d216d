"""Sessions over real sockets and the real epoll: what a connection in memory can't show."""

import socket
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
import trio.testing

from coordinator.config import load_settings
from coordinator.server.session import HeldByAll, Session
from coordinator.server.transport import Listener, listen
from protocol.connection import ClientConnection, ResponseEvent
from protocol.messages import HeartbeatResponse, ListGroupsRequest, ListGroupsResponse, Request
from tests.fakes.disk import Disk
from tests.server.world import World, beat, commit, join

GIVE_UP_S = 20


class Door(World):
    """A daemon with a real door."""

    def __init__(self, nursery: trio.Nursery, *settings: str) -> None:
        overrides = ["offsets.topic.num.partitions=4", "storage.reserve.bytes=0", *settings]
        super().__init__(nursery, settings=load_settings(overrides=overrides), disk=Disk())
        self.door = listen("127.0.0.1", 0)

    def sessions(self) -> list[Session]:
        """Return who is connected."""
        return list(self.server.sessions)


@asynccontextmanager
async def door(*settings: str) -> AsyncIterator[Door]:
    """Run a daemon as long as the block lasts."""
    async with trio.open_nursery() as nursery:
        here = Door(nursery, *settings)
        nursery.start_soon(here.node.run)
        nursery.start_soon(here.server.run, list[Listener]([here.door]))
        await here.node.load()
        try:
            yield here
        finally:
            here.door.close()
        nursery.cancel_scope.cancel()


class Peer:
    """A client's socket, without a thread or a task of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._protocol = ClientConnection()
        self.answers: list[ResponseEvent] = []
        self.is_closed = False
        sock.setblocking(False)

    def send(self, *requests: Request) -> None:
        """Send requests in one go."""
        data = b"".join(self._protocol.send(request)[1] for request in requests)
        assert len(data) == self.sock.send(data)

    def has(self, count: int) -> bool:
        """Read what is there; say whether there were so many answers."""
        self.read(1 << 20)
        return len(self.answers) >= count

    def read(self, max_bytes: int) -> None:
        """Read some of what is there."""
        try:
            data = self.sock.recv(max_bytes)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        self.is_closed = self.is_closed or not data
        self.answers += self._protocol.receive(data)

    def ended(self) -> bool:
        """Say whether the server has closed the connection."""
        self.read(1 << 20)
        return self.is_closed

    def reset(self) -> None:
        """End with a reset instead of a FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


@contextmanager
def peers(w: Door, count: int = 1, *, window_bytes: int = 0) -> Iterator[list[Peer]]:
    """Connect."""
    socks = []
    for _ in range(count):
        sock = socket.socket()
        if window_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window_bytes)
        sock.connect(("127.0.0.1", w.door.port))
        socks.append(sock)
    try:
        yield [Peer(sock) for sock in socks]
    finally:
        for sock in socks:
            sock.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let everybody run until *condition* holds."""
    with trio.fail_after(GIVE_UP_S):
        while not condition():
            await trio.lowlevel.checkpoint()


async def rounds(w: Door, count: int) -> None:
    """Let the poller have some rounds."""
    for _ in range(count):
        await w.poller.caught_up()


async def test_many_connections_are_answered_each_its_own() -> None:
    """One task serves them all."""
    async with door() as w:
        with peers(w, 50) as all_:
            for number, peer in enumerate(all_):
                peer.send(*[beat(group_id=f"g{number}")] * (1 + number % 3))
            await until(lambda: all(p.has(1 + n % 3) for n, p in enumerate(all_)))

            assert 50 == len(w.sessions())
            assert {HeartbeatResponse} == {type(a.response) for p in all_ for a in p.answers}
        await until(lambda: not w.sessions())


async def test_a_half_close_behind_a_request_is_answered_first() -> None:
    """Data and the end of it come together."""
    async with door() as w:
        with peers(w) as (peer,):
            peer.send(beat())
            peer.sock.shutdown(socket.SHUT_WR)
            await until(peer.ended)

            assert 1 == len(peer.answers)
            assert [] == w.sessions()


async def ask_too_much(w: Door, slow: Peer, friend: Peer) -> None:
    """Have *slow*, which doesn't read, ask for more than its socket takes: lists of 40 groups."""
    for number in range(40):
        friend.send(commit(group_id=f"group-{number}" + "x" * 200))
    await until(lambda: friend.has(40))
    for _ in range(400):
        slow.send(ListGroupsRequest((), ()))
    await until(lambda: any(s.is_blocked for s in w.sessions()))


async def test_a_slow_reader_gets_everything() -> None:
    """The socket takes a part; the rest follows when it takes more, and nothing twice."""
    async with door("send.buffer.max.bytes=4096") as w:
        with peers(w, window_bytes=4096) as (slow,), peers(w) as (friend,):
            await ask_too_much(w, slow, friend)
            (session,) = [s for s in w.sessions() if s.is_blocked]
            await rounds(w, 3)
            assert session.is_paused
            friend.send(beat())
            await until(lambda: friend.has(41))

            def has_all() -> bool:
                slow.read(3_000)
                return len(slow.answers) == 400

            await until(has_all)
            assert list(range(400)) == [answer.correlation_id for answer in slow.answers]
            assert {ListGroupsResponse} == {type(answer.response) for answer in slow.answers}
            await until(lambda: not session.is_paused)
            slow.send(beat())
            await until(lambda: slow.has(401))


async def test_a_paused_session_costs_no_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its peer sends meanwhile would otherwise keep the poller busy for nothing."""
    async with door("max.in.flight.requests=2") as w:
        w.slow_disk.hold()
        with peers(w) as (peer,):
            peer.send(commit(1), commit(2))
            await until(lambda: any(s.is_paused for s in w.sessions()))
            peer.send(commit(3))
            await rounds(w, 3)
            ended: list[int] = []
            monkeypatch.setattr(w.server.sessions, "_start_flushes", lambda: ended.append(1))
            await trio.testing.wait_all_tasks_blocked()
            assert [] == ended
            monkeypatch.undo()
            w.slow_disk.let_go()
            await until(lambda: peer.has(3))


async def test_a_reset_ends_a_session_that_reads_nothing() -> None:
    """It is paused, and its peer is gone: what it holds is given back, and nothing spins."""
    async with door("max.in.flight.requests=1", "offsets.commit.timeout.ms=60000") as w:
        w.slow_disk.hold()
        with peers(w) as (peer,):
            peer.send(commit(1))
            await until(lambda: any(s.is_paused for s in w.sessions()))
            peer.send(commit(2))
            await rounds(w, 3)
            assert w.server.sessions.held.bytes > 0
            peer.reset()
            await until(lambda: not w.sessions())

        assert 0 == w.server.sessions.held.bytes
        w.slow_disk.let_go()


async def test_a_reset_ends_a_session_that_waits_to_send() -> None:
    """It wants to write only, and the socket says that it is broken."""
    async with door("send.buffer.max.bytes=4096") as w:
        with peers(w, window_bytes=4096) as (slow,), peers(w) as (friend,):
            await ask_too_much(w, slow, friend)
            slow.reset()
            await until(lambda: len(w.sessions()) == 1)

            friend.send(beat())
            await until(lambda: friend.has(41))


async def test_connections_that_come_and_go_get_their_own_answers() -> None:
    """The system gives the number of a closed socket to the next one at once."""
    async with door() as w:
        for number in range(20):
            with peers(w, 3) as (one, two, three):
                for peer in (one, two, three):
                    peer.send(beat(group_id=f"g{number}"))
                two.reset()
                await until(lambda one=one, three=three: one.has(1) and three.has(1))  # type: ignore[misc]  # mypy can't infer the defaults

                assert (1, 1) == (len(one.answers), len(three.answers))
        await until(lambda: not w.sessions())


@pytest.mark.parametrize("pipelined", [1, 100])
async def test_a_bug_in_a_session_ends_that_one_only(
    pipelined: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sessions live in one task, so none may take it down."""

    def fail(*_: object) -> bool:
        raise ZeroDivisionError("a planted bug")

    monkeypatch.setattr(HeldByAll, "has_no_place", fail)
    async with door() as w:
        with peers(w, 2) as (unlucky, friend):
            unlucky.send(*[beat()] * (pipelined - 1), join())
            await until(unlucky.ended)
            friend.send(beat())
            await until(lambda: friend.has(1))

            assert 1 == len(w.sessions())
