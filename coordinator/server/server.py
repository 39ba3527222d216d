"""The door: accepts connections, owns their sessions, and closes those that overstay."""

import errno
import socket
from typing import Any, Final, Protocol

import structlog
import trio

from coordinator.config import Settings
from coordinator.group import Now
from coordinator.runtime.node import Node
from coordinator.runtime.poller import Poller
from coordinator.runtime.timekeeper import LATE_MS
from coordinator.server.dispatch import Dispatcher
from coordinator.server.resting import REST_S, Resting
from coordinator.server.session import Session
from coordinator.server.transport import SocketTransport, Transport
from protocol.connection import BadRequest, RequestEvent

# ------------------------------------------------------------------------------------------
# What the requests of all connections together may hold: row 29 of the table of limits.


class Waiting(Protocol):
    """A session that reads no more until there is room."""

    def resume(self) -> None:
        """Look again."""


class RequestQueue:
    """Bytes of requests that are not answered yet or half read, and parked requests.

    A frame that was begun has its announced size reserved and is read to its end, so that
    sessions can't wait for one another for ever; the last one may go over the limit. Parked
    requests count by number and not by bytes: what ends their wait must always be read.
    """

    def __init__(self, *, max_bytes: int, max_parked: int) -> None:
        self._max_bytes = max_bytes
        self._max_parked = max_parked
        self._waiting: dict[Waiting, None] = {}
        self.bytes = 0
        self.parked = 0
        self.is_full = False

    def add(self, size_bytes: int) -> None:
        """Count bytes that are held from here on, or no longer, if there are less than none.

        Wakes who waits once there is room.
        """
        self.bytes += size_bytes
        self.is_full = self.bytes >= self._max_bytes
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, {}
            for session in waiting:
                session.resume()

    def wait(self, session: Waiting) -> None:
        """Wake *session* when there is room."""
        self._waiting[session] = None

    def leave(self, session: Waiting) -> None:
        """Forget *session*, which has ended."""
        self._waiting.pop(session, None)

    def park(self, *, is_join: bool) -> bool:
        """Count a request that waits for other members; say whether it may.

        Only joins are refused: a SyncGroup belongs to a member that is counted already.
        """
        self.parked += 1
        return not is_join or self.parked <= self._max_parked

    def unpark(self) -> None:
        """Count one less."""
        self.parked -= 1


# ------------------------------------------------------------------------------------------
# The door: accepts connections, owns their sessions, and closes those that overstay.

log: Final = structlog.get_logger()

SWEEP_PERIOD_S: Final = 1.0
SENT_POLL_S: Final = 0.02  # Only while the daemon stops.
ACCEPT_PAUSE_S: Final = 0.1
BACKLOG: Final = 1024
# trio's own list: the process or the machine has no room for another socket just now.
_NO_ROOM: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
# accept(2) on Linux also reports what went wrong with the new connection; the next one is fine.
_BROKEN_PEER: Final = frozenset(
    {errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.ENOPROTOOPT, errno.EHOSTDOWN, errno.ENONET}
    | {errno.EHOSTUNREACH, errno.EOPNOTSUPP, errno.ENETUNREACH, errno.ECONNRESET, errno.ETIMEDOUT}
)
# One line per peer and second is enough to find out who sends garbage.
_LOG_PERIOD_MS: Final = 1_000
_LOGGED_PEERS_MAX: Final = 1_000


class Listener(Protocol):
    """Where connections come from."""

    async def accept(self) -> Transport:
        """Return the next connection. Raises OSError when there is no room for one."""

    def close(self) -> None:
        """Stop listening."""


class SocketListener:
    """A listening TCP socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock

    @property
    def port(self) -> int:
        """The port it listens on, also where 0 was asked for."""
        number: int = self._socket.getsockname()[1]
        return number

    async def accept(self) -> Transport:
        """Return the next connection."""
        while True:
            await trio.lowlevel.wait_readable(self._socket)
            if self._socket.fileno() < 0:  # Closed in the turn in which it became readable.
                raise trio.ClosedResourceError
            try:
                sock, address = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                continue
            return SocketTransport(sock, str(address[0]))

    def close(self) -> None:
        """Stop listening."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def listen(host: str, port: int) -> SocketListener:
    """Return a listener on *host*:*port*. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return SocketListener(sock)


class Server:
    """All sessions of this process.

    Attributes:
        poller: Watches their sockets, and whatever else should be handled in the same rounds.
        with_answers: Sessions with something to send at the end of this round.
        somebody_waits: Whether one of this round's sessions asks again and again.
    """

    def __init__(
        self,
        *,
        node: Node,
        settings: Settings,
        dispatcher: Dispatcher,
        max_connections: int,
        poller: Poller | None = None,
    ) -> None:
        self.node = node
        self.settings = settings
        self.dispatcher = dispatcher
        self.queue = RequestQueue(
            max_bytes=settings.queued_max_request_bytes, max_parked=settings.max_parked_requests
        )
        self.poller = poller = poller or Poller()
        self.with_answers: list[Session] = []
        self._max_connections = max_connections
        self._sessions: dict[Session, None] = {}
        self.somebody_waits = False
        self._resting = Resting()
        self._round_now: Now | None = None
        self._errors = 0
        self._last_logged_ms: dict[str, int] = {}
        # The disk first: it works while the answers are sent. Again after that, because who
        # can't be sent to is closed, and the groups of its parked requests may decide something.
        poller.at_round_end += [node.flusher.start, self._end_round, node.flusher.start]
        node.flusher.will_start = lambda: poller.in_round
        node.after_release = self.flush
        node.timekeeper.hear_everybody = poller.caught_up

    def connections(self) -> int:
        """Return how many there are."""
        return len(self._sessions)

    async def run(self, listeners: list[Listener]) -> None:
        """Serve the *listeners* until cancelled; then every session ends."""
        try:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(self._accept_for_ever, listener)
                nursery.start_soon(self._sweep_for_ever)
                nursery.start_soon(self.poller.run)
        finally:
            for session in list(self._sessions):
                session.close()
            self.poller.close()

    async def wait_sent(self) -> None:
        """Return when every answer has left, or its connection has ended."""
        while any(session.has_unsent for session in self._sessions):  # noqa: ASYNC110 - an event per answer, to be looked at once in a daemon's life, costs more
            await trio.sleep(SENT_POLL_S)

    def serve(self, transport: Transport) -> None:
        """Start a session on *transport*, or close it when there are too many."""
        if len(self._sessions) >= self._max_connections:
            self._log_seldom("connection.refused", transport.peer, reason="max.connections")
            transport.close()
            return
        session = Session(self, transport, self.node.now().mono_ms)
        try:
            transport.attach(self.poller, session)
        except OSError as exc:
            self._log_seldom("connection.refused", transport.peer, reason=str(exc.strerror))
            transport.close()
            return
        self._sessions[session] = None

    def forget(self, session: Session) -> None:
        """Note that *session* has ended."""
        self._sessions.pop(session, None)

    async def _accept_for_ever(self, listener: Listener) -> None:
        while True:
            try:
                transport = await listener.accept()
            except trio.ClosedResourceError:
                return
            except OSError as exc:
                if exc.errno not in _NO_ROOM | _BROKEN_PEER:
                    raise
                log.warning("accept.paused", reason=exc.strerror)
                await trio.sleep(ACCEPT_PAUSE_S)
                continue
            self.serve(transport)

    async def _sweep_for_ever(self) -> None:
        while True:
            planned_ms = self.node.now().mono_ms + int(SWEEP_PERIOD_S * 1000)
            await trio.sleep(SWEEP_PERIOD_S)
            late_ms = self.node.now().mono_ms - planned_ms
            if late_ms > LATE_MS:
                # The process was stopped or starved: no peer is to blame for that time.
                for session in self._sessions:
                    session.deadlines.shift(late_ms)
                continue
            # What is readable is read before anyone is called silent (see `Node`).
            await self.poller.caught_up()
            now_ms = self.node.now().mono_ms
            for session in list(self._sessions):
                reason = session.overdue(now_ms)
                if reason is not None:
                    self.closed_by_limit(session, reason)
                    session.close()
            self.flush()  # Whoever waited for one of them may have an answer now.

    # --- rounds -------------------------------------------------------------------------

    def round_now(self) -> Now:
        """Return the time, the same for all sessions of a round: a look at it takes 1 µs."""
        now = self._round_now
        if now is None:
            now = self._round_now = self.node.now()
        return now

    def _end_round(self) -> None:
        """Send what this round has answered, after all of its sessions had their turn.

        A send wakes the peer, and on the same machine takes our core for it. Sending at the end
        of the round instead of each session's turn took a fetch from 91 to 68 µs of CPU.
        """
        now, self._round_now = self._round_now, None
        if now is not None:
            waits = self.somebody_waits or self.node.flusher.is_busy
            self._resting.round_over(now.mono_ms, len(self.with_answers), waits)
            self.poller.rest_s = REST_S if self._resting.is_resting else 0.0
            self.somebody_waits = False
        self.flush()

    def flush(self) -> None:
        """Send every session's answers, each in one go."""
        while self.with_answers:  # Who can't be sent to is closed, and others may get answers.
            sessions, self.with_answers = self.with_answers, []
            for session in sessions:
                session.flush()

    # --- what sessions report -----------------------------------------------------------

    def bad_request(self, session: Session, bad: BadRequest) -> None:
        """Note a request that could not be handled."""
        self._log_seldom(
            "request.refused",
            session.transport.peer,
            error=bad.error.name,
            reason=bad.reason,
            closed=bad.close,
        )

    def protocol_violation(self, session: Session, reason: str) -> None:
        """Note a connection that had to be closed without an answer."""
        self._log_seldom("connection.closed", session.transport.peer, reason=reason)

    def shed(self, session: Session) -> None:
        """Note a JoinGroup that was refused because too many requests wait."""
        self._log_seldom("request.shed", session.transport.peer, reason="max.parked.requests")

    def closed_by_limit(self, session: Session, reason: str) -> None:
        """Note a connection that overstayed."""
        self._log_seldom("connection.closed", session.transport.peer, reason=reason)

    def handler_failed(self, session: Session, event: RequestEvent, exc: Exception) -> None:
        """Log a bug with a number of its own."""
        self._errors += 1
        log.error(
            "request.failed",
            error_id=self._errors,
            api=event.api_key.name,
            peer=session.transport.peer,
            exc_info=exc,
        )

    def session_failed(self, session: Session, exc: Exception) -> None:
        """Log a bug outside of any request."""
        log.error("session.failed", peer=session.transport.peer, exc_info=exc)

    def _log_seldom(self, event: str, peer: str, **fields: Any) -> None:
        now_ms = self.node.now().mono_ms
        if now_ms - self._last_logged_ms.get(peer, -_LOG_PERIOD_MS) < _LOG_PERIOD_MS:
            return
        if len(self._last_logged_ms) >= _LOGGED_PEERS_MAX:
            self._last_logged_ms.clear()
        self._last_logged_ms[peer] = now_ms
        log.warning(event, peer=peer, **fields)
