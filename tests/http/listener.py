"""The HTTP listener in memory: fake connections, virtual time, routes of the test's own."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import h11
import trio
import trio.testing

from coordinator.config import Settings, load_settings
from coordinator.http.entry import Entry
from coordinator.http.pace import Pace
from coordinator.http.routes import Answer, HttpRequest, Route
from coordinator.http.server import HttpSessions
from coordinator.runtime.environment import Done, Work
from protocol.acls import ANONYMOUS
from tests.fakes.environment import environment
from tests.fakes.transport import MemoryTransport
from tests.server.world import FakeListener


def get(path: str = "/", *lines: str, method: str = "GET", version: str = "1.1") -> bytes:
    """Return a request with a Host that may be asked for, unless *lines* have another."""
    has_host = any(line.lower().startswith("host:") for line in lines)
    head = [f"{method} {path} HTTP/{version}", *([] if has_host else ["Host: localhost"]), *lines]
    return "\r\n".join([*head, "", ""]).encode("latin-1")


class Reply(NamedTuple):
    """One whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes


class Listener:
    """The listener, and what it logged.

    Attributes:
        asked: How much clients of the native listener have asked so far.
        warned: Events and their reasons.
        entry: Asks who somebody is, if anything does.
        audited: Events of log-ins.
    """

    def __init__(
        self,
        routes: Callable[["Listener"], Sequence[Route]],
        settings: Settings,
        entry: Callable[["Listener"], Entry] | None = None,
    ) -> None:
        def submit(_work: Work, _done: Done) -> None:
            raise AssertionError("nothing is written here")

        self.environment = environment(submit=submit, wall_clock_ms=lambda: 1_700_000_000_000)
        self.telemetry = self.environment.telemetry
        self.asked = 0
        self.warned: list[tuple[str, str]] = []
        self.pace = Pace(lambda: self.asked, trio.current_time)
        self.audited: list[tuple[str, dict[str, Any]]] = []
        self.entry = None if entry is None else entry(self)
        self.sessions = HttpSessions(
            environment=self.environment,
            settings=settings,
            routes=routes(self),
            pace=self.pace,
            warn=self._warn,
            max_connections=settings.http_max_connections,
            allowed_hosts=lambda: ("listed.example",),
            entry=self.entry,
        )
        self.door = FakeListener()

    def _warn(self, event: str, _peer: str, **fields: Any) -> None:
        self.warned.append((event, fields["reason"]))

    def audit(self, event: str, peer: str, **fields: Any) -> None:
        """Take note of what an entry tells."""
        self.audited.append((event, {"peer": peer, **fields}))

    def connect(
        self, *, is_tls: bool = False, principal: str = ANONYMOUS, peer: str = "192.0.2.1"
    ) -> MemoryTransport:
        """Return the test's end of a new connection."""
        transport = MemoryTransport(peer)
        transport.is_tls, transport.principal = is_tls, principal
        self.door.arrive(transport)
        return transport

    async def ask(self, *requests: bytes, method: str = "GET", **peer: Any) -> list[Reply]:
        """Send *requests* in one go over a connection of their own; return what came."""
        transport = self.connect(**peer)
        transport.put(b"".join(requests))
        await trio.testing.wait_all_tasks_blocked()
        return replies(transport, method)


def replies(transport: MemoryTransport, method: str = "GET") -> list[Reply]:
    """Return every answer that has come to *transport*, and forget it."""
    data = bytes(transport.received)
    transport.received.clear()
    found: list[Reply] = []
    while data:
        client = h11.Connection(h11.CLIENT)
        client.send(h11.Request(method=method, target="/", headers=[("host", "localhost")]))
        client.send(h11.EndOfMessage())
        client.receive_data(data)
        head = client.next_event()
        assert isinstance(head, h11.Response), head
        body = b""
        while True:
            event = client.next_event()
            if not isinstance(event, h11.Data):
                assert isinstance(event, h11.EndOfMessage), event
                break
            body += event.data
        headers = {name.decode(): value.decode() for name, value in head.headers}
        found.append(Reply(head.status_code, headers, body))
        data = client.trailing_data[0]
    return found


@asynccontextmanager
async def listener(
    *routes: Route,
    settings: Sequence[str] = (),
    entry: Callable[[Listener], Entry] | None = None,
    more: Callable[[Listener], Sequence[Route]] = lambda _here: (),
) -> AsyncIterator[Listener]:
    """Run a listener with *routes*, and *more* of what needs it, as long as the block lasts."""
    async with trio.open_nursery() as nursery:
        here = Listener(
            lambda here: (*routes, *more(here)), load_settings(overrides=settings), entry
        )
        nursery.start_soon(here.sessions.run, [here.door])
        yield here
        nursery.cancel_scope.cancel()


def text(template: str, *parts: bytes, etag: str | None = None, quick: bool = False) -> Route:
    """Return a route that answers with *parts*."""

    async def handler(_request: HttpRequest) -> Answer:
        if not quick:
            await trio.lowlevel.checkpoint()
        return Answer(content_type="text/plain", body=parts, etag=etag)

    return Route(template, handler, is_quick=quick)
