"""The HTTP door: all connections, what they share, and the handlers under way.

Nobody can take it all from one address: it has three quarters of the connections and streams at
most, half of the places to wait in, and its requests wait in a line of their own. All that are
under way may be one address's, as long as nobody else asks: behind a proxy everybody has the same.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from traceback import format_exc
from typing import TYPE_CHECKING, Any, Final

import structlog
import trio

from coordinator.config import Settings
from coordinator.http.connection import Asked, HttpSession, Warn
from coordinator.http.guard import refusal
from coordinator.http.pace import PIECE_S, Pace
from coordinator.http.router import Router, check_method, query_of, split_target
from coordinator.http.routes import (
    Answer,
    HttpRequest,
    NotAllowed,
    NotKnown,
    Refused,
    Route,
    Streaming,
)
from coordinator.http.viewer import EVERYBODY, FindOut, Viewer
from coordinator.names import shortened
from coordinator.runtime.bulkhead import attempt, attempt_async
from coordinator.runtime.environment import Environment
from coordinator.runtime.poller import Poller
from coordinator.runtime.telemetry import count
from coordinator.server.server import accept_for_ever, sweep_for_ever
from coordinator.server.session import (
    ADDRESS_PART,
    FAILED,
    NO_DESCRIPTORS,
    SHUTDOWN,
    SLOW_READER,
    End,
    most_of_address,
)
from coordinator.server.transport import Listener, Transport, attach
from protocol.acls import ANONYMOUS

if TYPE_CHECKING:
    from coordinator.http.entry import Entry

log: Final = structlog.get_logger()

SLICE_S: Final = PIECE_S
UNDER_WAY_MAX: Final = 16
WAITING_MAX: Final = 64
# Of all answers that their peers don't take; a scrape of 100,000 series has 12 MB.
UNSENT_BYTES_MAX: Final = 64 * 1024 * 1024
_STREAMS_RETRY_S: Final = 10
_TAKES_MOST_ROOM: Final = End(SLOW_READER, "too many answers wait behind slow reads")


class HttpSessions:
    """All HTTP connections of this process.

    Attributes:
        streams: Those that follow events.
    """

    def __init__(
        self,
        *,
        environment: Environment,
        settings: Settings,
        routes: Sequence[Route],
        pace: Pace,
        warn: Warn,
        max_connections: int,
        allowed_hosts: Callable[[], Collection[str]],
        entry: "Entry | None" = None,
    ) -> None:
        """Make it.

        Args:
            environment: Of the node; its poller is not used, as commits go first there.
            settings: Limits and deadlines.
            routes: Who answers what.
            pace: When handlers and connections may work.
            warn: As `Sessions.warn` of the native listener.
            max_connections: More are closed at once.
            allowed_hosts: Returns the names that may be asked for just now; see `guard`.
            entry: Finds out who asks; without it, everybody may see everything.
        """
        self.now = environment.now
        self.settings = settings
        self.poller = Poller(slice_s=SLICE_S)
        self.streams: dict[HttpSession, None] = {}
        self.warn = warn
        self._router = Router(routes)
        self._pace = pace
        self._max_connections = max_connections
        self._allowed_hosts = allowed_hosts
        self._entry = entry
        self._wall_clock_ms = environment.wall_clock_ms
        self._clock_s = environment.clock_s
        self.telemetry = environment.telemetry
        self._all: dict[HttpSession, None] = {}
        self._unsent: dict[HttpSession, None] = {}  # Who has yet to take an answer, by age.
        self._under_way = 0
        self._connections_of: Counter[str] = Counter()  # By address.
        self._waiting = _Lines()
        self._failed_requests = 0
        self._nursery: trio.Nursery | None = None
        self._date = (-1, "")
        environment.metrics.update(
            http_connections=lambda: len(self._all),
            http_event_streams=lambda: len(self.streams),
        )

    def __iter__(self) -> Iterator[HttpSession]:
        """Return the sessions of the moment; each may end meanwhile."""
        return iter(list(self._all))

    async def run(self, listeners: Sequence[Listener]) -> None:
        """Serve the *listeners* until cancelled; then every session ends."""
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                for listener in listeners:
                    paced = _PacedListener(listener, self._pace)
                    nursery.start_soon(
                        accept_for_ever, paced, self.begin, self.telemetry, self._no_room
                    )
                nursery.start_soon(sweep_for_ever, self, self.poller, self.now)
                nursery.start_soon(self.poller.run, _nothing, self._pace)
        finally:
            for session in self:
                session.close(SHUTDOWN)
            self.poller.close()

    # --- connections --------------------------------------------------------------------

    def begin(self, transport: Transport) -> None:
        """Start a session on *transport*, or close it when there are too many."""
        if len(self._all) >= self._max_connections:
            self._turn_away(transport, "max_connections", "http.max.connections")
            return
        if self._connections_of[transport.counts_as] >= most_of_address(self._max_connections):
            reason = "its address has three quarters of http.max.connections"
            self._turn_away(transport, "max_connections_per_ip", reason)
            return
        session = HttpSession(self, transport, self.now().mono_ms)
        self._all[session] = None
        self._connections_of[transport.counts_as] += 1
        attempt(session, self._attach, session)

    def _attach(self, session: HttpSession) -> None:
        if (no_room := attach(session.transport, self.poller, session)) is not None:
            self._turn_away(session.transport, NO_DESCRIPTORS, no_room)
            session.close(FAILED)

    def _turn_away(self, transport: Transport, word: str, reason: str) -> None:
        count(self.telemetry.http_connections_refused, word)
        self.warn("connection.refused", transport.peer, reason=reason)
        transport.close()

    def _no_room(self) -> None:
        count(self.telemetry.http_connections_refused, NO_DESCRIPTORS)

    def forget(self, session: HttpSession, why: str) -> None:
        """Note that *session* has ended, as *why* is counted."""
        if session in self._all:
            count(self.telemetry.http_connections_closed, why)
            del self._all[session]
            address = session.transport.counts_as
            self._connections_of[address] -= 1
            if not self._connections_of[address]:
                del self._connections_of[address]
        self._unsent.pop(session, None)
        self.streams.pop(session, None)
        self._waiting.leave(session)

    def follows(self, session: HttpSession) -> None:
        """Note that *session* follows events from now on."""
        self.streams[session] = None

    def waits(self, session: HttpSession) -> None:
        """Note that *session* has to wait for its peer.

        Where all of that is too much, who waits longest makes room, of the address with the most.
        """
        self._unsent[session] = None
        while len(self._unsent) > 1:
            unsent_bytes: Counter[str] = Counter()
            for one in self._unsent:
                unsent_bytes[one.transport.counts_as] += one.unsent_bytes
            if unsent_bytes.total() <= UNSENT_BYTES_MAX:
                return
            ((address, _),) = unsent_bytes.most_common(1)
            oldest = next(one for one in self._unsent if one.transport.counts_as == address)
            oldest.close_because(_TAKES_MOST_ROOM)

    def waits_no_more(self, session: HttpSession) -> None:
        """Note that it has all."""
        self._unsent.pop(session, None)

    # --- requests -----------------------------------------------------------------------

    def ask(self, session: HttpSession, asked: Asked) -> None:
        """Have the request answered, now or later."""
        transport = session.transport
        headers = asked.headers
        try:
            path, query, authority = split_target(asked.target, is_tls=transport.is_tls)
            if authority is not None:
                headers = {**headers, "host": authority}
            route, names = self._router.find(path)
            session.route_name = route.template
            check_method(route, asked.method)
            refused = refusal(headers, self._allowed_hosts(), route, is_tls=transport.is_tls)
            if refused is not None:
                raise refused
            viewer: Viewer | FindOut = EVERYBODY
            if self._entry is not None and not route.is_open:
                viewer = self._viewer(self._entry, route, path, headers, transport)
                if isinstance(viewer, Viewer):
                    self._entry.check_quota(viewer)
            parameters = query_of(query)
        except Refused as exc:
            session.refuse(exc)
            return
        request = HttpRequest(
            path=path,
            names=names,
            query=parameters,
            headers=headers,
            connection=transport,
            viewer=viewer if isinstance(viewer, Viewer) else EVERYBODY,
            body=asked.body,
        )
        find_out = None if isinstance(viewer, Viewer) else viewer
        if route.is_quick and find_out is None:
            self._answer_at_once(session, route, request)
        elif self._under_way < UNDER_WAY_MAX:
            self._start(session, route, request, find_out)
        elif self._waiting.has_place(transport.counts_as):
            self._waiting.put(session, (route, request, find_out))
        else:
            session.refuse(Refused(503, "too many requests are under way", retry_after_s=1))

    def _viewer(
        self, entry: "Entry", route: Route, path: str, headers: Mapping[str, str], peer: Transport
    ) -> Viewer | FindOut:
        """Return who asks; where nobody says who he is, the audit hears of it. Raises Refused."""
        try:
            return entry.viewer(headers, peer)
        except NotKnown as exc:
            _tell_refused(entry, peer.peer, ANONYMOUS, route, path, why=exc.detail)
            raise

    def _answer_at_once(self, session: HttpSession, route: Route, request: HttpRequest) -> None:
        """Run a handler that never waits; a task for it would cost more than what it does."""
        handling = _Timed(route.handler(request), self._clock_s)
        bug = "the handler of a quick route waits"
        try:
            next(handling.__await__())
        except StopIteration as done:
            self._answer(session, request, done.value, handling.spent_s)
            return
        except Refused as exc:
            self._refuse(session, route, request, exc, handling.spent_s)
            return
        except Exception:  # noqa: BLE001 - one handler's bug must not end the others
            bug = format_exc()
        self._failed(session, route, bug)

    def _start(
        self, session: HttpSession, route: Route, request: HttpRequest, find_out: FindOut | None
    ) -> None:
        assert self._nursery is not None
        self._under_way += 1
        self._nursery.start_soon(self._handle, session, route, request, find_out)

    async def _handle(self, session: HttpSession, *asked: Any) -> None:
        await attempt_async(session, self._handle_one, session, *asked)
        self._pace.end()
        self._under_way -= 1
        if self._waiting:
            self._start(*self._waiting.take())

    async def _handle_one(
        self, session: HttpSession, route: Route, request: HttpRequest, find_out: FindOut | None
    ) -> None:
        await self._pace.pause()
        handling = bug = None
        try:
            if find_out is not None:
                viewer = await find_out()
                request = replace(request, viewer=viewer)
                assert self._entry is not None  # It is what finds out.
                self._entry.check_quota(viewer)
            handling = _Timed(route.handler(request), self._clock_s)
            answer = await handling
            await self._pace.pause()  # Many may have waited for the same.
            if isinstance(answer, Streaming) and self._has_too_many_streams(session):
                full = "there are http.max.event.streams streams already"
                session.refuse(Refused(503, full, retry_after_s=_STREAMS_RETRY_S))
            else:
                self._answer(session, request, answer, handling.spent_s)
        except Refused as exc:
            if handling is None:  # Before anything was done for him.
                session.refuse(exc)
            else:
                self._refuse(session, route, request, exc, handling.spent_s)
        except Exception:  # noqa: BLE001 - as above
            bug = format_exc()
        if bug is not None:
            self._failed(session, route, bug)

    def _answer(
        self,
        session: HttpSession,
        request: HttpRequest,
        answer: Answer | Streaming,
        spent_s: float,
    ) -> None:
        """Send the answer; a stream that begins is a request like others."""
        parts = answer.body if isinstance(answer, Answer) else ()
        self._count_for(request.viewer, sum(map(len, parts)), spent_s)
        session.answer(request, answer)

    def _count_for(self, viewer: Viewer, size_bytes: int, spent_s: float) -> None:
        """Count a request for whoever asked."""
        if self._entry is not None and viewer is not EVERYBODY:
            self._entry.handled(viewer, size_bytes, spent_s)

    def _refuse(
        self,
        session: HttpSession,
        route: Route,
        request: HttpRequest,
        refused: Refused,
        spent_s: float,
    ) -> None:
        """Answer so; where no rule allows it, the audit hears of it."""
        self._count_for(request.viewer, 0, spent_s)
        if isinstance(refused, NotAllowed):
            assert self._entry is not None  # Else nobody is refused anything.
            peer, principal = request.connection.peer, request.viewer.principal
            said = {"error": refused.error.value, "why": "no right to it"}
            _tell_refused(self._entry, peer, principal, route, request.target, **said)
        session.refuse(refused)

    def _has_too_many_streams(self, session: HttpSession) -> bool:
        most = self.settings.http_max_event_streams
        address = session.transport.counts_as
        of_address = sum([other.transport.counts_as == address for other in self.streams])
        return len(self.streams) >= most or of_address >= most_of_address(most)

    def _failed(self, session: HttpSession, route: Route, exception: str) -> None:
        """Log a bug with a number of its own, which is all that the peer is told.

        A connection whose answer was begun, or is itself what can't be sent, ends.
        """
        if not session.owes_answer:
            session.fail(exception)
            return
        self._failed_requests += 1
        log.error(
            "http.failed",
            error_id=self._failed_requests,
            route=route.template,
            peer=session.transport.peer,
            exception=exception,
        )
        session.refuse(Refused(500, f"error {self._failed_requests} in the daemon's log"))

    def count(self, route_name: str, status: int) -> None:
        """Count an answer."""
        count(self.telemetry.http, (route_name, status))

    def date(self) -> str:
        """Return the time of day as a header has it."""
        second = self._wall_clock_ms() // 1000
        if self._date[0] != second:
            self._date = (second, formatdate(second, usegmt=True))
        return self._date[1]


class _Timed:
    """Awaits a handler, and adds up what its steps take; what it waits for in between is others'.

    Attributes:
        spent_s: The sum.
    """

    def __init__(
        self, handler: Awaitable[Answer | Streaming], clock_s: Callable[[], float]
    ) -> None:
        self._handler = handler
        self._clock_s = clock_s
        self.spent_s = 0.0

    def __await__(self) -> Generator[Any, Any, Answer | Streaming]:
        """Do what awaiting the handler does."""
        steps = self._handler.__await__()
        go_on: Callable[[], Any] = partial(next, steps)
        while True:
            began_s = self._clock_s()
            try:
                awaited = go_on()
            except StopIteration as done:
                result: Answer | Streaming = done.value
                return result
            finally:
                self.spent_s += self._clock_s() - began_s
            try:
                value = yield awaited
            except BaseException as exc:  # noqa: BLE001 - it is the handler's to see it
                go_on = partial(steps.throw, exc)
            else:
                go_on = partial(steps.send, value)


class _Lines:
    """Requests that wait to be under way: a line for each address, and these take turns."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[HttpSession, _Asked]] = {}  # The next one first.
        self._length = 0

    def __len__(self) -> int:
        """Return how many wait."""
        return self._length

    def has_place(self, address: str) -> bool:
        """Say whether one more may wait."""
        of_address = len(self._lines.get(address, ()))
        return self._length < WAITING_MAX and of_address * ADDRESS_PART < WAITING_MAX

    def put(self, session: HttpSession, asked: "_Asked") -> None:
        """Have the request of *session* wait."""
        self._lines.setdefault(session.transport.counts_as, {})[session] = asked
        self._length += 1

    def take(self) -> tuple[HttpSession, Route, HttpRequest, FindOut | None]:
        """Return the next one."""
        address, line = next(iter(self._lines.items()))
        session = next(iter(line))
        asked = line[session]
        self.leave(session)
        if line:
            self._lines[address] = self._lines.pop(address)  # The others come first.
        return session, *asked

    def leave(self, session: HttpSession) -> None:
        """Forget *session*, if it waits."""
        address = session.transport.counts_as
        line = self._lines.get(address, {})
        if line.pop(session, None) is not None:
            self._length -= 1
            if not line:
                del self._lines[address]


_Asked = tuple[Route, HttpRequest, FindOut | None]


class _PacedListener:
    """A listener whose crowds of connections come at the pace of all HTTP."""

    def __init__(self, listener: Listener, pace: Pace) -> None:
        self._listener = listener
        self._pace = pace

    async def accept(self) -> Transport:
        """Return the next connection."""
        await self._pace.pause()
        transport = await self._listener.accept()
        self._pace.begin()
        return transport

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def _tell_refused(
    entry: "Entry", peer: str, principal: str | None, route: Route, what: str, **why: Any
) -> None:
    """Tell the audit what *principal* may not."""
    api = f"{route.method} {route.template}"
    entry.audit("access.refused", peer, principal=principal, api=api, what=shortened(what), **why)


def _nothing() -> None:
    """Do nothing at a round's end: answers leave as they are ready."""
