"""The engine over a client of kazoo's that does as it is told."""

import logging.handlers
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import outcome
import pytest
import trio
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from kazoo import exceptions as zk
from kazoo.protocol import serialization as packets
from kazoo.protocol.states import Callback, EventType, KeeperState, WatchedEvent, ZnodeStat
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
from trio.testing import MockClock

from coordinator.cluster import znodes, zookeeper
from coordinator.cluster.engine import (
    Append,
    Code,
    Connected,
    Event,
    Expired,
    Fired,
    ListNodes,
    ReadEntries,
    ReadLeader,
    Reply,
    Suspended,
    WatchEntry,
)
from coordinator.cluster.zookeeper import (
    OPEN,
    OWNED,
    Access,
    ZooKeeper,
    _Handler,
    _Stream,
    access_of,
    packet,
    quiet_logger,
    result,
)
from coordinator.config import ConfigError, load_settings
from tests.fakes.tls import certificate

SESSION: Final = (7, b"password")
NEXT: Final = (8, b"another")
STAT: Final = ZnodeStat(*[0] * len(ZnodeStat._fields))
HANGS_S: Final = 18.0
GIVEN_UP_S: Final = 30.0


class FakeClient:
    """A client whose connection is the test's."""

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.handler = options["handler"]
        self.client_state = KeeperState.CLOSED
        self.client_id: tuple[int, bytes] | None = None
        self.last_zxid = 0
        self.asked: list[tuple[Any, Any]] = []
        self.is_stopped = False
        self._listener: Callable[[str], None]

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Have it called with each change."""
        self._listener = listener

    def start_async(self) -> threading.Event:
        """Do nothing by itself."""
        return threading.Event()

    def become(self, state: str, session: tuple[int, bytes] | None = None) -> None:
        """Be in a state, and say so, as kazoo's thread does."""
        self.client_state, self.client_id = state, session
        self._listener(state)

    def end(self) -> None:
        """Have the connection's thread end."""
        self.handler.spawn(lambda: None).join()

    def fire(self, path: str, kind: str) -> None:
        """Call the watchers that were asked with for a path."""
        for asked, _ in self.asked:
            if getattr(asked, "watcher", None) and asked.path == path:
                event = WatchedEvent(kind, KeeperState.CONNECTED, path)
                self.handler.dispatch_callback(Callback("watch", asked.watcher, (event,)))

    def _call(self, asked: Any, answer: Any) -> None:
        self.asked.append((asked, answer))

    def stop(self) -> None:
        """Note it."""
        self.is_stopped = True

    def close(self) -> None:
        """Do nothing."""


class World:
    """An engine, its clients, and all that it tells."""

    def __init__(self) -> None:
        self.clients: list[FakeClient] = []
        self.told: list[Event | Reply | str] = []
        self.access = Access(hosts="a:1,b:2", chroot="/gc", session_timeout_ms=6_000)
        token = trio.lowlevel.current_trio_token()

        def deliver(done: Callable[[Any], None], answer: outcome.Outcome[Any]) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done, answer)

        self.engine = ZooKeeper(
            self.access,
            deliver,
            self.told.append,
            lambda name, _: self.told.append(name),
            clients=self._made,
            clock_s=lambda: self.clock_s,
        )
        self.clock_s = 0.0

    def _made(self, **options: Any) -> FakeClient:
        self.clients.append(FakeClient(**options))
        return self.clients[-1]

    def submit(self, request: Any) -> None:
        """Ask, and note the answer."""
        self.engine.submit(request, self.told.append)

    async def news(self) -> list[Event | Reply | str]:
        """Return what was told since it was asked last."""
        await trio.testing.wait_all_tasks_blocked()
        told, self.told[:] = list(self.told), []
        return told


@asynccontextmanager
async def running() -> AsyncIterator[World]:
    """Run an engine."""
    world = World()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.engine.run)
        await trio.testing.wait_all_tasks_blocked()
        yield world
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected() -> AsyncIterator[World]:
    """Run an engine that has a connection."""
    async with running() as world:
        world.clients[0].become(KeeperState.CONNECTED, SESSION)
        assert ["zookeeper.connected", Connected(7)] == await world.news()
        yield world


async def test_a_request_without_a_connection_is_lost_at_once() -> None:
    """Kazoo would keep it, and send it when nobody expects it any more."""
    async with running() as world:
        world.submit(ReadLeader(0))

        assert world.told == []  # Never before `submit` has returned.
        assert [Reply(Code.LOST)] == await world.news()
        assert world.clients[0].asked == []


async def test_requests_go_out_under_the_chroot_and_answers_come_back_in_order() -> None:
    """Who asks twice must know which answer is which."""
    async with connected() as world:
        world.submit(ReadLeader(0))
        world.submit(Append(0, 3, 9, (b"entry",)))
        (read, first), (multi, second) = world.clients[0].asked
        first.set((b"", STAT))
        second.set([])

        assert "/gc/journals/0/leader" == read.path
        assert b"/gc/journals/0/log/0/9" in multi.serialize()
        assert [Reply(Code.OK, changed_ms=STAT.mtime), Reply(Code.OK)] == await world.news()


async def test_what_is_on_its_way_is_lost_before_the_connection_is_told_to_be() -> None:
    """Who hears that the connection broke looks at what is left, and finds nothing half done."""
    async with connected() as world:
        world.submit(ReadLeader(0))
        world.submit(ReadLeader(1))
        (_, first), (_, second) = world.clients[0].asked
        first.set_exception(zk.ConnectionLoss())
        world.clients[0].become(KeeperState.CONNECTING)

        lost = Reply(Code.LOST)
        assert [lost, lost, "zookeeper.suspended", Suspended()] == await world.news()

        # kazoo had it in its queue, and has sent it on the next connection.
        world.clients[0].become(KeeperState.CONNECTED, SESSION)
        second.set((b"", STAT))
        assert ["zookeeper.connected", Connected(7)] == await world.news()


async def test_a_request_that_crosses_the_news_of_a_broken_connection_is_lost_once() -> None:
    """Kazoo drops some of them for good; nobody may wait for those."""
    async with connected() as world:
        client = world.clients[0]
        client.become(KeeperState.CONNECTING)
        client.become(KeeperState.EXPIRED_SESSION)
        client.become(KeeperState.CONNECTED, NEXT)
        world.submit(ReadLeader(0))  # The event loop knows of nothing yet.

        assert [
            Reply(Code.LOST),
            "zookeeper.suspended",
            Suspended(),
            "zookeeper.session_expired",
            Expired(),
            "zookeeper.connected",
            Connected(8),
        ] == await world.news()


async def test_a_watch_is_told_once_and_behind_the_answer_that_set_it() -> None:
    """A second event of the same change would have everybody read it twice."""
    async with connected() as world:
        client = world.clients[0]
        world.submit(ListNodes())
        world.submit(ListNodes())
        for _, answer in client.asked:
            answer.set(["1"])
        client.fire("/gc/brokers/ids", EventType.CHILD)
        client.fire("/gc/brokers/ids", EventType.CHILD)

        assert [
            Reply(Code.OK, (1,)),
            Reply(Code.OK, (1,)),
            Fired(ListNodes()),
        ] == await world.news()


async def test_watches_that_kazoo_keeps_are_equal_for_equal_requests() -> None:
    """It keeps a set of them for each znode, which otherwise grew with every look."""
    async with connected() as world:
        world.submit(WatchEntry(0, 5))
        world.submit(WatchEntry(0, 5))
        (first, _), (second, _) = world.clients[0].asked

        assert len({first.watcher, second.watcher}) == 1


async def test_a_watch_ends_with_its_connection() -> None:
    """Kazoo calls all watchers then, and what they would tell is told already."""
    async with connected() as world:
        client = world.clients[0]
        world.submit(WatchEntry(0, 5))
        client.asked[0][1].set(None)
        client.become(KeeperState.CONNECTING)
        client.fire("/gc/journals/0/log/0/5", EventType.NONE)
        client.become(KeeperState.CONNECTED, SESSION)
        client.fire("/gc/journals/0/log/0/5", EventType.CREATED)

        assert Fired(WatchEntry(0, 5)) not in await world.news()


async def test_an_entry_that_is_there_is_not_watched() -> None:
    """Its removal, much later, is nobody's business."""
    async with connected() as world:
        client = world.clients[0]
        world.submit(WatchEntry(0, 5))
        client.asked[0][1].set(STAT)
        client.fire("/gc/journals/0/log/0/5", EventType.DELETED)

        assert [Reply(Code.OK)] == await world.news()


async def test_a_client_whose_thread_has_ended_is_replaced_in_its_session(
    autojump_clock: MockClock,
) -> None:
    """It ends at anything that kazoo doesn't know, and the node would be cut off for good."""
    async with connected() as world:
        world.submit(ReadLeader(0))
        world.clients[0].end()
        await trio.sleep(5)
        world.clients[1].become(KeeperState.CONNECTED, SESSION)
        # The old one says that it is closed, after all.
        world.clients[0].become(KeeperState.CLOSED)

        assert [
            Reply(Code.LOST),
            "zookeeper.suspended",
            Suspended(),
            "zookeeper.client_replaced",
            "zookeeper.connected",
            Connected(7),
        ] == await world.news()
        assert SESSION == world.clients[1].options["client_id"]


async def test_who_goes_on_with_a_session_has_seen_what_it_has(autojump_clock: MockClock) -> None:
    """A server that is behind would show it the past, which a node takes for lost data."""
    async with connected() as world:
        world.clients[0].last_zxid = 41
        world.clients[0].become(KeeperState.CLOSED)
        world.clients[0].last_zxid = 0  # As kazoo does behind that.
        world.clients[0].end()
        await trio.sleep(5)

        assert 41 == world.clients[1].last_zxid


async def test_a_client_that_hangs_is_replaced_in_a_session_of_its_own(
    autojump_clock: MockClock,
) -> None:
    """Once it wakes up it ends its session, which must not be the new one's."""
    async with connected() as world:
        world.clients[0].last_zxid = 41
        world.clients[0].become(KeeperState.CONNECTING)
        world.clock_s = HANGS_S
        await trio.sleep(5)
        assert len(world.clients) == 1

        world.clock_s = HANGS_S + 1
        await trio.sleep(5)
        assert len(world.clients) == 2
        assert (None, 0) == (world.clients[1].options["client_id"], world.clients[1].last_zxid)


async def test_a_client_that_nobody_lets_in_is_replaced_in_a_session_of_its_own(
    autojump_clock: MockClock,
) -> None:
    """Servers of an ensemble that was set back refuse whoever has seen more than they have."""
    async with connected() as world:
        world.clock_s = 100
        await trio.sleep(5)
        world.clients[0].become(KeeperState.CONNECTING)
        await world.news()
        for after_s in (10.0, 20.0, GIVEN_UP_S):
            world.clock_s = world.clients[0].handler.tried_s = 100 + after_s
            await trio.sleep(5)
            assert len(world.clients) == 1

        world.clock_s += 1
        await trio.sleep(5)
        assert len(world.clients) == 2
        assert world.clients[1].options["client_id"] is None


async def test_a_session_that_all_servers_refuse_is_given_up_when_its_time_is_over(
    autojump_clock: MockClock,
) -> None:
    """An ensemble without its data serves newcomers alone, which find out what is missing."""
    async with connected() as world:
        world.clock_s = 100
        handler = world.clients[0].handler
        handler.refusals = 1  # The connection that is used.
        await trio.sleep(5)
        assert handler.refusals == 0
        world.clients[0].become(KeeperState.CONNECTING)
        await world.news()
        for after_s, refusals in ((6, 4), (7, 3), (7, 4)):
            assert len(world.clients) == 1
            handler.refusals = refusals
            world.clock_s = handler.tried_s = 100 + after_s
            await trio.sleep(5)

        assert len(world.clients) == 2
        assert world.clients[1].options["client_id"] is None


async def test_a_connection_that_breaks_tells_how_long_nothing_had_come() -> None:
    """Others may lead a session's length after the last answer, whenever that is noticed."""
    async with connected() as world:
        world.clients[0].handler.heard_s, world.clock_s = 3.0, 7.4
        world.clients[0].become(KeeperState.CONNECTING)

        assert ["zookeeper.suspended", Suspended(4_400)] == await world.news()


@pytest.mark.parametrize(
    ("is_asked", "hears", "hung_up_after_s"),
    [(True, False, 2.5), (True, True, 0), (False, False, 0)],
)
async def test_a_connection_on_which_an_answer_is_overdue_is_ended(
    is_asked: bool,
    hears: bool,
    hung_up_after_s: float,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server that hangs cost its clients two thirds of a session; an idle one costs nothing."""
    async with connected() as world:
        handler = world.clients[0].handler
        begun_s = trio.current_time()
        hung_up: list[float] = []
        monkeypatch.setattr(
            handler, "hang_up", lambda: hung_up.append(trio.current_time() - begun_s)
        )
        if is_asked:
            world.submit(ReadLeader(0))
        for second in range(4):
            if hears:
                handler.heard_s = second
            await trio.sleep(1)

        assert hung_up[:1] == ([pytest.approx(hung_up_after_s)] if hung_up_after_s else [])


class Doorkeeper:
    """A server that takes connections, and gives each the same answer, or none.

    Attributes:
        heard: The first bytes of each connection.
    """

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard: list[bytes] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with ExitStack() as kept, suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                kept.enter_context(near)
                self.heard.append(near.recv(100))
                if self._answer is not None:
                    near.sendall(self._answer)
                    near.close()

    def close(self) -> None:
        """End it."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()


@pytest.fixture
def doors() -> Iterator[Callable[[bytes | None], Doorkeeper]]:
    """Make servers that answer so."""
    made: list[Doorkeeper] = []

    def make(answer: bytes | None) -> Doorkeeper:
        made.append(Doorkeeper(answer))
        return made[-1]

    yield make
    for one in made:
        one.close()


SERVING: Final = b"Zookeeper version: 3.9.4\nMode: follower\n"
IDLE: Final = b"This ZooKeeper instance is not currently serving requests\n"
READ_ONLY: Final = b"Zookeeper version: 3.9.4\nMode: read-only\nNode count: 5\n"


def handler_of(*doors: Doorkeeper, session_timeout_ms: int = 60_000) -> _Handler:
    """Return the handler of a client of these servers."""
    hosts = ",".join(f"127.0.0.1:{door.port}" for door in doors)
    access = Access(hosts=hosts, chroot="", session_timeout_ms=session_timeout_ms)
    return _Handler(access, lambda done, answer: done(answer), lambda _: None, float)


def test_servers_are_visited_side_by_side(
    doors: Callable[[bytes | None], Doorkeeper],
) -> None:
    """One that hangs takes connections: each cost a third of a session, one after the other."""
    frozen, idle, serving = doors(None), doors(IDLE), doors(SERVING)
    handler = handler_of(frozen, idle, serving)

    handler.create_connection(("127.0.0.1", frozen.port), "127.0.0.1").close()

    assert f"127.0.0.1:{serving.port}" == handler.server


def test_a_server_that_serves_is_left_to_those_who_chose_it(
    doors: Callable[[bytes | None], Doorkeeper], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise all nodes would crowd at the quickest one."""
    monkeypatch.setattr(zookeeper, "_HEAD_START_S", 60.0)  # This machine may be slow.
    chosen, other = doors(SERVING), doors(SERVING)
    handler = handler_of(other, chosen)

    handler.create_connection(("127.0.0.1", chosen.port), "127.0.0.1").close()

    assert f"127.0.0.1:{chosen.port}" == handler.server
    assert other.heard == []


@pytest.mark.parametrize("answer", [None, IDLE, READ_ONLY, b""])
def test_no_session_is_prolonged_where_no_answer_comes(
    answer: bytes | None, doors: Callable[[bytes | None], Doorkeeper]
) -> None:
    """Each try to connect would: nobody else could lead while answers alone are lost."""
    door = doors(answer)
    handler = handler_of(door, session_timeout_ms=300)

    with pytest.raises(OSError, match=r"no server|timed out|serving requests|read-only|hangs up"):
        handler.create_connection(("127.0.0.1", door.port), "127.0.0.1").close()

    assert set(door.heard) == {b"srvr"}


async def test_a_session_that_has_expired_is_not_gone_on_with(autojump_clock: MockClock) -> None:
    """It is no more, and asking for it costs a round."""
    async with connected() as world:
        world.clients[0].become(KeeperState.EXPIRED_SESSION)
        world.clients[0].end()
        await trio.sleep(5)

        assert world.clients[1].options["client_id"] is None


async def test_the_session_is_ended_with_the_engine() -> None:
    """Others wait for its end, or for its timeout."""
    async with connected() as world:
        pass

    assert world.clients[0].is_stopped


# --- Settings -------------------------------------------------------------------------------

ENSEMBLE: Final = "cluster.zookeeper=a:1,[::1]:2/gc"


def accessed(*overrides: str) -> Access:
    """Return how the ensemble is reached that these settings name."""
    return access_of(load_settings(overrides=[ENSEMBLE, *overrides]))


def test_an_ensemble_is_reached_as_the_settings_say(tmp_path: Path) -> None:
    """The password is in a file, and in nothing that is shown."""
    (tmp_path / "password").write_text("right\r\nnot this\n", encoding="utf-8")

    access = accessed(
        "cluster.zookeeper.sasl.username=gc",
        f"cluster.zookeeper.sasl.password.file={tmp_path / 'password'}",
        "cluster.zookeeper.set.acl=true",
        "cluster.session.timeout.ms=4000",
    )

    assert access == Access(
        hosts="a:1,[::1]:2",
        chroot="/gc",
        session_timeout_ms=4_000,
        user="gc",
        password="right",
        is_owned=True,
    )
    assert "right" not in repr(access)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ssl.truststore.location", "ssl.truststore.location: .*/missing can't be used"),
        ("ssl.keystore.location", "ssl.keystore.location: .*/missing can't be used"),
    ],
)
def test_a_store_that_cannot_be_read_is_refused_by_its_name(
    tmp_path: Path, name: str, words: str
) -> None:
    """There are two with such names for the listeners, too."""
    with pytest.raises(ConfigError, match=rf"^cluster\.zookeeper\.{words}"):
        accessed(
            "cluster.zookeeper.ssl.client.enable=true",
            f"cluster.zookeeper.{name}={tmp_path / 'missing'}",
        )


def test_an_encrypted_key_is_read_by_its_password(tmp_path: Path) -> None:
    """New certificates are read for each connection, so a wrong password is found now."""
    leaf = certificate("node")
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    sealed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"pw"))
    chain = b"".join(one.bytes() for one in leaf.cert_chain_pems)
    (tmp_path / "node.pem").write_bytes(sealed + chain)
    (tmp_path / "right").write_text("pw\n", encoding="utf-8")
    (tmp_path / "wrong").write_text("no\n", encoding="utf-8")
    stores = (
        "cluster.zookeeper.ssl.client.enable=true",
        f"cluster.zookeeper.ssl.keystore.location={tmp_path / 'node.pem'}",
    )
    password = f"cluster.zookeeper.ssl.key.password.file={tmp_path}"

    assert accessed(*stores, f"{password}/right").new_tls is not None
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location: .*node\.pem can't be used"):
        accessed(*stores, f"{password}/wrong")
    with pytest.raises(ConfigError, match=r"there is no .*ssl\.key\.password\.file"):
        accessed(*stores)


# --- Packets and results --------------------------------------------------------------------


def answer_of(*parts: bytes) -> bytes:
    """Return the body of a multiRead's answer."""
    return b"".join(parts) + bytes(packets.multiheader_struct.pack(-1, True, -1))


def found(data: bytes) -> bytes:
    """Return what getData found, inside of it."""
    stat = packets.stat_struct.pack(*[0] * 3, 0, 4, 0, 0, 99, *[0] * 3)
    header = packets.multiheader_struct.pack(packets.GetData.type, False, 0)
    return bytes(header + packets.write_buffer(data) + stat)


def failed(code: int) -> bytes:
    """Return an error inside of it."""
    return bytes(packets.multiheader_struct.pack(-1, False, code) + packets.int_struct.pack(code))


GET: Final = znodes.Get(("/a", "/b", "/c"), watches=False)


def read_many(body: bytes) -> znodes.Result:
    """Return what this answer to `GET` means."""
    asked = packet(GET, "/gc", OPEN, lambda _: None)
    return result(GET, outcome.capture(lambda: asked.deserialize(b"head" + body, 4)))


def test_many_znodes_are_read_at_once() -> None:
    """One by one costs followers ten times the CPU."""
    a, c = znodes.Znode(b"one", 4, 99, STAT.mtime), znodes.Znode(b"", 4, 99, STAT.mtime)

    body = answer_of(found(b"one"), failed(zk.NoNodeError.code), found(b""))
    assert znodes.Contents((a, None, c)) == read_many(body)


@pytest.mark.parametrize(
    ("code", "means"),
    [
        (zk.NoAuthError.code, znodes.Odd("ZooKeeper's rules don't allow it")),
        (zk.ThrottledOpError.code, znodes.Lost()),
        (-999, znodes.Lost()),
    ],
)
def test_an_error_among_what_is_read_is_not_taken_for_its_end(
    code: int, means: znodes.Result
) -> None:
    """A follower that takes it so misses what comes behind."""
    assert means == read_many(answer_of(found(b"one"), failed(code), found(b"")))


def test_many_reads_are_written_as_zookeeper_reads_them() -> None:
    """An operation after the other, then the mark of the end."""
    asked = packet(GET, "", OPEN, lambda _: None)

    header = b"\0\0\0\x04\0\xff\xff\xff\xff"
    paths = [b"\0\0\0\x02" + path + b"\0" for path in (b"/a", b"/b", b"/c")]
    assert header.join([b"", *paths]) + b"\xff\xff\xff\xff\x01\xff\xff\xff\xff" == asked.serialize()
    assert asked.type == 22


MULTI: Final = znodes.Multi(
    (
        znodes.Check("/a", 3, {}),
        znodes.Make("/b", b"data"),
        znodes.Make("/c", b"", is_ephemeral=True),
        znodes.Set("/\xe4", b"x", 7, {}),
        znodes.Remove("/e", {}),
    )
)


@pytest.mark.parametrize(("acl", "rules"), [(OPEN, OPEN_ACL_UNSAFE), (OWNED, CREATOR_ALL_ACL)])
def test_a_transaction_has_the_bytes_that_kazoo_gives_it(acl: bytes, rules: list[ACL]) -> None:
    """Ours is written in a third of the time."""
    theirs = packets.Transaction(
        [
            packets.CheckVersion("/gc/a", 3),
            packets.Create("/gc/b", b"data", rules, 0),
            packets.Create("/gc/c", b"", rules, 1),
            packets.SetData("/gc/\xe4", b"x", 7),
            packets.Delete("/gc/e", -1),
        ]
    )

    ours = packet(MULTI, "/gc", acl, lambda _: None)
    assert (theirs.type, theirs.serialize()) == (ours.type, ours.serialize())


def applied(kind: int, body: bytes = b"") -> bytes:
    """Return what a change came to, inside of an answer."""
    return bytes(packets.multiheader_struct.pack(kind, False, 0)) + body


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        (answer_of(applied(13), applied(1, b"\0\0\0\2/b")), []),
        (answer_of(failed(-103), failed(-2)), [zk.BadVersionError, zk.RuntimeInconsistency]),
        (answer_of(failed(0), failed(-110)), [zk.RolledBackError, zk.NodeExistsError]),
        (answer_of(), []),
    ],
)
def test_the_answer_of_a_transaction_is_its_errors(body: bytes, errors: list[type]) -> None:
    """All or nothing: what was applied needs no look."""
    asked = packet(MULTI, "/gc", OPEN, lambda _: None)

    assert errors == [type(one) for one in asked.deserialize(b"head" + body, 4)]


@pytest.mark.parametrize(
    ("answer", "means"),
    [
        (outcome.Value([]), znodes.Applied()),
        (
            outcome.Value([zk.RolledBackError(), zk.NodeExistsError()]),
            znodes.Failed(1, znodes.Failure.NODE_EXISTS),
        ),
        (
            outcome.Value([zk.BadVersionError(), zk.RuntimeInconsistency()]),
            znodes.Failed(0, znodes.Failure.BAD_VERSION),
        ),
        (
            outcome.Value([zk.RolledBackError(), zk.QuotaExceededError()]),
            znodes.Odd("the quota of ZooKeeper is used up"),
        ),
        (outcome.Value([zk.RuntimeInconsistency()]), znodes.Lost()),
        (outcome.Error(zk.SessionMovedError()), znodes.Lost()),
        (outcome.Error(zk.OperationTimeoutError()), znodes.Lost()),
        (outcome.Error(RuntimeError("xids do not match")), znodes.Lost()),
    ],
)
def test_what_a_transaction_came_to(answer: outcome.Outcome[Any], means: znodes.Result) -> None:
    """Surely applied, surely not, or nobody knows: the protocol rests on the difference."""
    assert means == result(MULTI, answer)


def test_a_missing_znode_is_no_error_of_a_read() -> None:
    """Followers read what isn't there yet all the time."""
    get, children = znodes.Get(("/a",), watches=True), znodes.Children("/a", watches=True)

    assert znodes.Contents((None,)) == result(get, outcome.Error(zk.NoNodeError()))
    assert znodes.Names(None) == result(children, outcome.Error(zk.NoNodeError()))
    assert znodes.Seen(is_there=False) == result(znodes.Look("/a"), outcome.Value(None))


def test_kazoo_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    """Its complaints are the reasons of events; standard error is for people."""
    heard = logging.handlers.BufferingHandler(9)

    quiet_logger(heard).warning("Connection dropped: %s", "reset")

    assert ["Connection dropped: reset"] == [record.getMessage() for record in heard.buffer]
    assert capfd.readouterr() == ("", "")


def test_what_was_read_ahead_is_not_waited_for() -> None:
    """The answer behind the one that was asked for may be the last for a while."""
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        far.sendall(b"onetwo")
        stream = _Stream(near, 1)
        handler = _Handler(accessed(), lambda done, answer: done(answer), lambda _: None, float)

        assert ([stream], [], []) == handler.select([stream], [], [], 0)
        assert b"one" == stream.recv(3)
        assert ([stream], [], []) == handler.select([stream], [], [], 0)
        assert b"two" == stream.recv(3)
        assert ([], [], []) == handler.select([stream], [], [], 0)


def test_who_reads_hears_that_an_answer_is_overdue() -> None:
    """The event says why a connection broke, and a server that hangs says nothing itself."""
    near, far = socket.socketpair()
    with near, far:
        stream = _Stream(near, 1)
        stream.hang_up()

        with pytest.raises(OSError, match="the server doesn't answer"):
            stream.recv(100)


def test_a_server_that_takes_nothing_is_given_up() -> None:
    """Kazoo would try for ever, as fast as it can."""
    near, far = socket.socketpair()
    with near, far:
        near.setblocking(False)
        stream = _Stream(near, 0)
        with suppress(BlockingIOError):
            while near.send(bytes(65_536)):
                pass

        with pytest.raises(TimeoutError, match="takes nothing"):
            stream.send(b"more")


def test_entries_are_read_in_one_request() -> None:
    """However many are asked for."""
    operation = znodes.operation(ReadEntries(0, 5, 64))

    assert 64 == len(packet(operation, "", OPEN, lambda _: None).paths)
