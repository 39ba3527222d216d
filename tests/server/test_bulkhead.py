"""An error in the work for one client ends that client's connection or task, and nothing else.

A life of clients over each listener is played once to write down every call that is made for them
of what can fail: transports, connections, guards, the dispatcher, sessions, tasks. Then it is
played again and again, and each time one of these calls raises, instead of being done or behind
it. The daemon has to go on, and to hold nothing of them in the end.
"""

import gc
import inspect
import os
import ssl
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, NamedTuple, NoReturn

import h11
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from coordinator.http.api import Api
from coordinator.http.connection import HttpSession
from coordinator.http.events import Hub
from coordinator.http.overview import Overview
from coordinator.http.server import HttpSessions
from coordinator.runtime.calls import Slices
from coordinator.runtime.group_lags import GroupLags
from coordinator.runtime.node import PatternMatcher
from coordinator.runtime.offset_changes import ChangesRead, ChangesReader
from coordinator.server import handshakes, session as sessions
from coordinator.server.gatekeeper import Gatekeeper
from coordinator.server.handshakes import TlsListener
from coordinator.server.session import Session
from coordinator.server.transport import TlsTransport, Transport
from protocol import messages as m
from protocol.connection import ClientConnection, ServerConnection
from tests.fakes.tls import certificate, client_context
from tests.fakes.transport import MemoryTransport
from tests.fuzz.episode import HELD, HELD_BEFORE, KINDS, LAST_ONES, Place, guarded_place, open_place
from tests.fuzz.guarded import GuardedWorld
from tests.fuzz.people import EVE, password_of, token_of
from tests.fuzz.secure import TlsWire
from tests.logged import BUGS
from tests.protocol.frames import frame_of
from tests.server.test_log_ins import log_in
from tests.server.world import SUBSCRIPTION, Client, FakeListener, World, beat, commit

VICTIM: Final = "192.0.2.66"
GROUP: Final = "a-group"
settle = trio.testing.wait_all_tasks_blocked


class Injected(Exception):
    """A bug that nobody has foreseen."""


@dataclass
class Faults:
    """Every call by its name, one of which raises.

    Attributes:
        calls: How often each was made.
        at: The name of the call that raises, and which one of that name; None is no call.
        is_behind: The call is done, and raises then.
        error: The class of the error.
        has_hit: Whether the call has raised.
    """

    calls: Counter[str] = field(default_factory=Counter)
    at: tuple[str, int] | None = None
    is_behind: bool = False
    error: type[Exception] = Injected
    has_hit: bool = False

    def is_hit(self, name: str) -> bool:
        """Count a call, and say whether it raises."""
        self.calls[name] += 1
        return self.at == (name, self.calls[name])

    def hit(self) -> NoReturn:
        """Raise."""
        self.has_hit = True
        raise self.error

    def call(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call *function*, or raise."""
        is_hit = self.is_hit(name)
        if is_hit and not self.is_behind:
            self.hit()
        result = function(*args, **kwargs)
        if is_hit:
            self.hit()
        return result

    async def wait(
        self, name: str, task: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any
    ) -> Any:
        """Do the same with what waits."""
        is_hit = self.is_hit(name)
        if is_hit and not self.is_behind:
            self.hit()
        result = await task(*args, **kwargs)
        if is_hit:
            self.hit()
        return result


class Proxy:
    """A stand-in for an object, whose methods may raise."""

    def __init__(
        self,
        target: Any,
        name: str,
        faults: Faults,
        is_meant: Callable[..., bool] = lambda *_args: True,
    ) -> None:
        self.__dict__.update(target=target, name=name, faults=faults, is_meant=is_meant)

    def __getattr__(self, name: str) -> Any:
        """Return what the object has."""
        value = getattr(self.__dict__["target"], name)
        if not inspect.ismethod(value):
            return value
        full = f"{self.__dict__['name']}.{name}"

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.__dict__["is_meant"](*args):
                return value(*args, **kwargs)
            return self.__dict__["faults"].call(full, value, *args, **kwargs)

        return call

    def __setattr__(self, name: str, value: Any) -> None:
        """Set what the object has."""
        setattr(self.__dict__["target"], name, value)


# The seam itself.
SEAM: Final = {"close", "fail", "fail_call", "fail_soon"}
# Methods that add and subtract, and do nothing else.
COUNTING: Final = {"_count_parked", "_count_unsent", "_count_begun", "_count_untaken", "_hold"}
TASKS: Final = (Hub, Overview, Api, GroupLags, ChangesReader, HttpSessions, PatternMatcher, Slices)
# Coroutines that run as long as the daemon does, over those above.
NOT_TASKS: Final = {"run", "run_sampling", "_handle"}


def _is_of_victim(session: Any) -> bool:
    transport = getattr(session, "transport", None)
    return transport is not None and transport.counts_as == VICTIM


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Put proxies and wrappers around everything that works for the victim."""
    found = Faults()
    _wrap_objects(monkeypatch, found)
    _wrap_makers(monkeypatch, found)
    for kind in (Session, HttpSession):
        for name, function in list(vars(kind).items()):
            if inspect.isfunction(function) and name not in SEAM | COUNTING | {"__init__"}:
                monkeypatch.setattr(kind, name, _method(found, f"{kind.__name__}.{name}", function))
    for owner in TASKS:
        for name, function in list(vars(owner).items()):
            if inspect.iscoroutinefunction(function) and name not in NOT_TASKS:
                monkeypatch.setattr(owner, name, _task(found, f"{owner.__name__}.{name}", function))
    read = ChangesRead.run
    monkeypatch.setattr(
        ChangesRead, "run", lambda *args: found.call("ChangesRead.run", read, *args)
    )
    return found


def _method(found: Faults, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_of_victim(self):
            return function(self, *args, **kwargs)
        return found.call(name, function, self, *args, **kwargs)

    return call


def _task(found: Faults, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    async def wait(*args: Any, **kwargs: Any) -> Any:
        return await found.wait(name, function, *args, **kwargs)

    return wait


def _wrap_objects(monkeypatch: pytest.MonkeyPatch, found: Faults) -> None:
    accept, make_tls = FakeListener.accept, TlsTransport
    make_connection, make_http = ServerConnection, h11.Connection

    async def accepted(self: FakeListener) -> Any:
        transport = await accept(self)
        return Proxy(transport, "socket", found) if transport.peer == VICTIM else transport

    def tls(inner: Transport, context: ssl.SSLContext) -> Any:
        if inner.peer != VICTIM:
            return make_tls(inner, context)
        return Proxy(found.call("tls()", make_tls, inner, context), "tls", found)

    def connection(make: Any, owner: Any, **limits: int) -> Any:
        made: Any = make_connection(make, owner, **limits)
        return Proxy(made, "connection", found) if _is_of_victim(owner) else made

    def http(role: Any, **limits: int) -> Any:
        made = make_http(role, **limits)
        return Proxy(made, "http", found) if role is h11.SERVER else made

    monkeypatch.setattr(FakeListener, "accept", accepted)
    monkeypatch.setattr(handshakes, "TlsTransport", tls)
    monkeypatch.setattr(sessions, "ServerConnection", connection)
    monkeypatch.setattr(h11, "Connection", http)


def _wrap_makers(monkeypatch: pytest.MonkeyPatch, found: Faults) -> None:
    def making(kind: str, make: Callable[..., Any]) -> Callable[..., Any]:
        def init(self: Any, owner: Any, transport: Any, *args: Any, **kwargs: Any) -> None:
            if transport.peer == VICTIM:
                found.call(kind, make, self, owner, transport, *args, **kwargs)
            else:
                make(self, owner, transport, *args, **kwargs)

        return init

    def guard(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(self: Any, client: Any, peer: str, *args: Any) -> Any:
            if peer != VICTIM:
                return make(self, client, peer, *args)
            return Proxy(found.call(make.__name__, make, self, client, peer, *args), "gate", found)

        return made

    put = TlsListener.put

    def hand_on(self: TlsListener, transport: Any) -> None:
        if transport.counts_as == VICTIM:
            found.call("TlsListener.put", put, self, transport)
        else:
            put(self, transport)

    monkeypatch.setattr(TlsListener, "put", hand_on)
    monkeypatch.setattr(Session, "__init__", making("Session()", Session.__init__))
    monkeypatch.setattr(HttpSession, "__init__", making("HttpSession()", HttpSession.__init__))
    monkeypatch.setattr(Gatekeeper, "gate", guard(Gatekeeper.gate))
    monkeypatch.setattr(Gatekeeper, "closed_gate", guard(Gatekeeper.closed_gate))


def _wrap_dispatcher(w: World, found: Faults) -> None:
    server: Any = w.server

    def is_victims(call: Any, *_: Any) -> bool:
        return _is_of_victim(getattr(call, "session", None))

    proxy = Proxy(server.dispatcher, "dispatcher", found, is_victims)
    server.sessions.dispatcher = server.gatekeeper.dispatcher = proxy


# --- scenes ---------------------------------------------------------------------------------------


class Peer:
    """One client, which plays its part whatever it is answered.

    Attributes:
        socket: The test's end of the connection itself.
    """

    def __init__(self, socket: MemoryTransport, wire: Any) -> None:
        self.socket = socket
        self._wire = wire
        self._connection = ClientConnection()

    def frame(self, request: m.Request) -> bytes:
        """Return the bytes of a request."""
        return self._connection.send(request)[1]

    async def put(self, *frames: bytes) -> None:
        """Send all in one go."""
        self._wire.put(b"".join(frames))
        await self.settle()

    async def ask(self, *requests: m.Request) -> None:
        """Send requests in one go."""
        await self.put(*map(self.frame, requests))

    async def settle(self) -> None:
        """Let everybody do what can be done."""
        for _ in range(3):
            await settle()
            if isinstance(self._wire, TlsWire):
                self._wire.turn()


class Scene(NamedTuple):
    """The visit of a client that comes by one listener, until it goes in one way.

    Attributes:
        listener: Its number; None is that of HTTP.
        end: How it goes.
    """

    listener: int | None
    end: str

    async def play(self, place: Place) -> None:
        """Play it."""
        socket, client = self._connect(place)
        if self.end == "stalled":
            await trio.sleep(6)
            socket.end()
            return
        wire: Any = socket
        if self.listener or (self.listener is None and place.headers):
            name = EVE if self.listener == 1 else None
            context = client_context(None if name is None else certificate(name))
            wire = TlsWire(socket, context, Random(1))
        peer = Peer(socket, wire)
        await peer.settle()
        if self.listener is None:
            await _browse(place, peer, self.end)
        else:
            if place.headers and self.listener == 0:
                with suppress(KeyError, trio.ClosedResourceError, AssertionError):
                    if self.end == "muted":
                        await log_in(client, EVE, "another one")
                    await log_in(client, EVE, password_of(EVE))
            if self.end == "muted":
                await _be_muted(place, peer)
            else:
                await _ask(place, peer, self.end)
        if self.end == "end":
            socket.give_room(None)
            await peer.settle()
            socket.end()
        elif self.end == "reset":
            socket.reset()
            await settle()
            place.world.slow_disk.let_go()
        else:
            await trio.sleep(40)  # The client takes or says nothing, and is closed for that.
        await peer.settle()
        socket.end()
        await settle()

    def _connect(self, place: Place) -> tuple[MemoryTransport, Client]:
        if self.listener is not None:
            client = place.world.connect(VICTIM, self.listener)
            return client.transport, client
        socket = MemoryTransport(VICTIM)
        place.web_door.arrive(socket)
        return socket, Client(socket)


ENDS: Final = ("end", "reset", "none")


def scenes(place: Place) -> Iterator[Scene]:
    """Yield all scenes that can be played here."""
    # A third listener would have both a log-in and TLS.
    for listener in (*range(min(2, len(place.world.listeners))), None):
        if listener == 1:
            yield Scene(listener, "stalled")
        for end in ENDS:
            yield Scene(listener, end)
        if place.headers and listener is not None:
            yield Scene(listener, "muted")


def _join(instance: str, pattern: str | None = None) -> m.JoinGroupRequest:
    protocols = (m.JoinProtocol("range", SUBSCRIPTION),)
    return m.JoinGroupRequest(
        GROUP, 10_000, 10_000, "", instance, "consumer", protocols, None, pattern
    )


async def _be_muted(place: Place, peer: Peer) -> None:
    """Ask for more than a quota allows, and lose the log-in."""
    root = await place.honest()
    for rate in (1, None):
        quota = m.AlteredPrincipal(f"User:{EVE}", (m.QuotaChange("request_rate", rate),))
        await root.ask(m.AlterClientQuotasRequest((quota,)))
        await peer.ask(*[beat()] * 20)
        await trio.sleep(7)
        await peer.settle()
    place.world.server.sessions.users_changed()
    root.transport.end()
    await peer.settle()


async def _ask(place: Place, peer: Peer, end: str) -> None:
    """Ask for something of each kind; in the end an answer waits that is long."""
    socket = peer.socket
    hello = m.ApiVersionsRequest("victim", "s", "1")
    long = commit(1, *range(1_500), group_id=GROUP)
    await peer.ask(hello, beat(), commit(2, group_id=GROUP))
    await peer.put(frame_of(999, 0, b""))
    await peer.ask(*[beat()] * 150)
    await peer.ask(m.SummarizeGroupsRequest(None, (), b"", 10, 5))
    await peer.ask(m.ReadOffsetChangesRequest(0, 0, 10))
    data = peer.frame(long)
    await peer.put(data[:5_000])
    await peer.put(data[5_000:], peer.frame(beat()))
    await peer.ask(_join("one", "a.*"))
    await peer.ask(_join("other"))
    if end == "none":
        await trio.sleep(5)
    fetch = m.OffsetFetchRequest((m.GroupFetch(GROUP, None),), False)
    socket.give_room(20_000)
    await peer.ask(*[fetch] * 4)
    socket.give_room(30_000)
    await peer.settle()
    if end == "reset":
        socket.give_room(None)
        await peer.settle()
        place.world.slow_disk.hold()
        await peer.ask(*[commit(1, group_id=GROUP)] * 70)
        await peer.ask(beat())
        return
    socket.give_room(0)
    await peer.ask(fetch, fetch)
    await peer.ask(beat())


async def _browse(place: Place, peer: Peer, end: str) -> None:
    """Ask for pages; then follow a group."""
    lines = f"Host: localhost\r\nAuthorization: Bearer {token_of(EVE)}\r\n\r\n"

    def get(path: str) -> bytes:
        return f"GET {path} HTTP/1.1\r\n{lines}".encode()

    await peer.put(get("/livez"), get("/api/v1/groups"), get("/livez"))
    peer.socket.give_room(100)
    await peer.put(get("/metrics"))
    await trio.sleep(1)
    peer.socket.give_room(None)
    await peer.settle()
    await trio.sleep(1)
    await peer.settle()
    if end == "none":
        await peer.put(b"NONSENSE / HTTP/1.1\r\n\r\n")
    else:
        await peer.put(get(f"/api/v1/events?group={GROUP}"))
        await trio.sleep(2)
        await peer.settle()
        other = await place.honest()
        await other.ask(commit(1, group_id="passing"))
        await other.ask(m.DeleteGroupsRequest(("passing",)))
        other.transport.end()
        await trio.sleep(3)
        await peer.settle()


# --- the test -------------------------------------------------------------------------------------

PLACES: Final[dict[str, Callable[..., AbstractAsyncContextManager[Place]]]] = {
    "open": open_place,
    "guarded": guarded_place,
}
# Injections at one call: at the first and the last time; each night at some between, too.
TIMES: Final = 1 + int(os.environ.get("EXAMPLES_FACTOR", "1"))
# Calls whose errors of the network say that the peer is gone.
OF_THE_NETWORK: Final = {"socket.receive_now", "socket.send_now", "tls.receive_now", "tls.send_now"}


async def check(place: Place, what: str) -> None:
    """See that the daemon serves others, and holds nothing of the victim."""
    w = place.world
    bystander = await place.honest()
    done: Any = await bystander.ask(commit(1, group_id="bystander"))
    assert done.topics[0].partitions[0].error == 0, what
    bystander.transport.end()
    await trio.sleep(1)
    names = (*HELD, HELD_BEFORE) if place.headers else HELD
    held = {name: held for name in names if (held := w.metrics[name]())}
    assert not held, (what, held)
    assert not w.server.sessions._held_by, what
    assert not isinstance(w, GuardedWorld) or not w._handshakes._held, what


def injections(calls: Counter[str]) -> Iterator[tuple[str, int, bool, type[Exception]]]:
    """Yield calls that are to raise: name, number, whether behind what it does, and what."""
    for name, times in calls.items():
        numbers = {1 + (times - 1) * step // (TIMES - 1) for step in range(TIMES)}
        for number in sorted(numbers):
            yield name, number, number == times, Injected
        if name == "TlsListener.put":
            yield name, times, False, Injected
        if name in OF_THE_NETWORK:
            yield name, times, False, ConnectionResetError


@pytest.mark.parametrize("kind", PLACES)
async def test_an_error_at_any_call_for_one_client_ends_that_one_alone(
    kind: str, faults: Faults, autojump_clock: object
) -> None:
    """The next bug may be anywhere; it must cost one connection, not the daemon."""
    with capture_logs() as lines:
        async with PLACES[kind](trio.current_time) as place:
            _wrap_dispatcher(place.world, faults)
            seen: dict[int | None, set[str]] = defaultdict(set)
            for scene in scenes(place):
                faults.calls.clear()
                await scene.play(place)
                await check(place, f"{scene}")
                assert not [line for line in lines if line["event"] in BUGS]
                new = Counter(
                    {
                        n: t
                        for n, t in faults.calls.items()
                        if TIMES > 2 or n not in seen[scene.listener]
                    }
                )
                seen[scene.listener] |= set(new)
                for name, number, is_behind, error in injections(new):
                    what = f"{scene}: {error.__name__} at {name} {number} of {new[name]}"
                    faults.calls.clear()
                    faults.at, faults.is_behind, faults.error = (name, number), is_behind, error
                    faults.has_hit = False
                    await scene.play(place)
                    faults.at = None
                    await check(place, what)
                    told = [line for line in lines if line["event"] in BUGS]
                    lines.clear()
                    assert bool(told) == (faults.has_hit and error is Injected), (what, told)
                    is_of_task = name.partition(".")[0] in {owner.__name__ for owner in TASKS}
                    assert is_of_task or {line["peer"] for line in told} <= {VICTIM}, (what, told)
            assert {"Session._go_on", "Session._overdue", "dispatcher.withdraw"} <= seen[0]
            assert {"HttpSession._overdue", "Hub._watch", "Overview.look_again"} <= seen[None]
            assert kind == "open" or "Session.unmute" in seen[0]
            assert kind == "open" or "TlsListener.put" in seen[1] & seen[None]
    gc.collect()
    kinds = [type(each).__name__ for each in gc.get_objects() if isinstance(each, KINDS)]
    assert len(kinds) <= LAST_ONES
