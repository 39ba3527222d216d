"""One client's connection: frames in, calls out, answers back as they are ready.

Theory of operation
===================

The session's task only reads. Every request becomes a `Call` and is decided at once,
in the order in which it came; its answer comes back through `Call`'s callback, then or later,
into the outbox. The outbox leaves in one send at the end of the round that filled it: of the
sessions that were readable together, or of the flusher, which answers for many.

What all connections together make us hold is bounded by `server.queue` (see there).

Deadlines (first request, half a frame, idle, slow reader) are plain numbers that the server's
sweeper compares once a second; arming a timer per read would cost more than a heartbeat.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

import structlog
import trio

from coordinator.group import Caller, Now
from coordinator.runtime.calls import Call
from coordinator.server.transport import Transport
from protocol.connection import (
    BadRequest,
    RequestEvent,
    ServerConnection,
    encode_error,
    encode_response,
)
from protocol.errors import ErrorCode
from protocol.failures import join_error
from protocol.frames import FrameTooLarge
from protocol.messages import (
    ApiVersionsRequest,
    BareError,
    JoinGroupRequest,
    Response,
    SyncGroupRequest,
)

if TYPE_CHECKING:
    from coordinator.server.server import Server

log: Final = structlog.get_logger()

DEFAULT_CLIENT_ID: Final = "client"
SHED_MESSAGE: Final = "too many requests wait for other members (max.parked.requests); come back"
_BYTES_PER_READ_SECOND: Final = 64 * 1024
# After so many requests of one read, others get their turn.
_TURN_REQUESTS: Final = 64
_NEVER_MS: Final = 2**63
# They wait for other members, not for us, and a limit of their own bounds them.
_PARKING: Final = frozenset({JoinGroupRequest, SyncGroupRequest})
_NETWORK_ERRORS: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class SessionCall(Call):
    """A request of this session that has not been answered.

    It refers to the session and not to a callback made for it: that would be a cycle per
    request, which only the garbage collector ends.
    """

    __slots__ = ("event", "held_bytes", "parks", "session")

    def __init__(self, session: "Session", event: RequestEvent) -> None:
        self.request = event.request
        self.session = session
        self.event = event
        self.held_bytes = 0  # Counted by the queue while it waits for its answer.
        self.parks = type(event.request) in _PARKING

    def resolve(self, answer: Response, leader_epoch: int) -> None:
        """Put the answer into the session's outbox."""
        self.session.answer(self, answer, leader_epoch)


class Session:
    """What the server knows about one connection."""

    def __init__(self, server: "Server", transport: Transport, now_ms: int) -> None:
        self.server = server
        self.transport = transport
        self.caller = Caller(DEFAULT_CLIENT_ID, transport.peer)
        self.scope = trio.CancelScope()
        settings = server.settings
        self._settings = settings
        self._connection = ServerConnection(
            max_request_bytes=settings.socket_request_max_bytes,
            max_sync_request_bytes=settings.sync_request_max_bytes,
        )
        self._calls: dict[SessionCall, None] = {}
        self._in_flight = 0
        self._queue = server.queue
        self._read_bytes = 0  # Of a request of the last read, on average.
        self._reserved_bytes = 0  # For the frame that is being read.
        self._outbox: deque[bytes] = deque()
        self._unsent_bytes = 0
        self._sending = False  # The drain task has the outbox.
        self._in_turn = False  # Its own task is deciding, and looks at the outbox after that.
        self._resume = trio.Event()
        self._closing = False  # Answer what is in the outbox, then close.
        self._read_deadline_ms = now_ms + settings.first_request_timeout_ms
        self._reading_frame = False
        self._send_deadline_ms = 0

    # --- reading ------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until either side ends it. Never raises."""
        try:
            with self.scope:
                await self._read()
        except _NETWORK_ERRORS:
            pass
        finally:
            self._abandon()

    async def _read(self) -> None:
        while not self._closing:
            if self._must_pause():
                await self._pause()
                continue
            if self._connection.unfinished_bytes:
                self._reserve()
            data = await self.transport.receive()
            if not data:
                self.flush()
                return
            now = self.server.node.now()
            before_bytes = self._connection.unfinished_bytes
            try:
                events = self._connection.receive(data)
            except FrameTooLarge as exc:
                self.server.protocol_violation(self, str(exc))
                return
            if events:  # An unfinished frame behind whole ones is a new one.
                self._reading_frame = False
                whole_bytes = before_bytes + len(data) - self._connection.unfinished_bytes
                self._read_bytes = whole_bytes // len(events)
                if self._reserved_bytes:
                    self._release()
            self._set_read_deadline(now.mono_ms)
            if len(events) == 1:
                self._take_one(events[0], now)
            else:
                await self._take_many(events, now)
        self.flush()
        # The peer gets the answer that says why before the connection ends.
        while self._outbox:
            self._resume = trio.Event()
            await self._resume.wait()

    def _take_one(self, event: RequestEvent | BadRequest, now: Now) -> None:
        self._in_turn = True
        self._take(event, now)
        self._in_turn = False
        if self._outbox:
            self.server.turn_over(self)

    async def _take_many(self, events: list[RequestEvent | BadRequest], now: Now) -> None:
        """Take what was pipelined into one read, no more at a time than the limits allow.

        One read holds thousands of small requests, and each may ask for a large answer.
        """
        for number, event in enumerate(events):
            if number % _TURN_REQUESTS == _TURN_REQUESTS - 1 or self._must_pause():
                self.flush()
                await trio.lowlevel.checkpoint()
                while self._must_pause():
                    await self._pause()
                now = self.server.node.now()
            self._take(event, now)

    async def _pause(self) -> None:
        """Wait until answers have left. Time in which we don't read is not the peer's."""
        self._read_deadline_ms = _NEVER_MS
        self._resume = trio.Event()
        await self._resume.wait()
        self._reading_frame = False
        self._set_read_deadline(self.server.node.now().mono_ms)

    def _must_pause(self) -> bool:
        return (
            self._in_flight >= self._settings.max_in_flight_requests
            or self._unsent_bytes >= self._settings.send_buffer_max_bytes
            or (self._queue.is_full and self._is_paused_by_queue())
        )

    def _is_paused_by_queue(self) -> bool:
        """Say whether to wait for room; whoever has nothing here may still ask something small."""
        if self._reserved_bytes or not (self._in_flight or self._connection.unfinished_bytes):
            return False
        self._queue.wait(self)
        return True

    def _reserve(self) -> None:
        """Have room for the rest of a begun frame, so that it is always read to its end."""
        if not self._reserved_bytes:
            self._reserved_bytes = self._connection.announced_bytes
            self._queue.add(self._reserved_bytes)

    def _release(self) -> None:
        reserved_bytes, self._reserved_bytes = self._reserved_bytes, 0
        self._queue.remove(reserved_bytes)

    def resume(self) -> None:
        """Look again whether there is something to do."""
        self._resume.set()

    def _take(self, event: RequestEvent | BadRequest, now: Now) -> None:
        if type(event) is BadRequest:
            if not self._closing:
                self.server.bad_request(self, event)
                self._send(encode_error(event.correlation_id, event.error))
                self._closing = event.close
            return
        assert type(event) is RequestEvent
        if self._closing:
            return
        if type(event.request) is ApiVersionsRequest:
            self.caller = Caller(event.request.client_id, self.transport.peer)
        call = SessionCall(self, event)
        self._calls[call] = None
        if not call.parks:
            self._in_flight += 1
        elif not self._queue.park(is_join=type(event.request) is JoinGroupRequest):
            self.server.shed(self)
            call.resolve(join_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, "", SHED_MESSAGE), -1)
            return
        try:
            self.server.dispatcher.dispatch(call, self.caller, now)
        except Exception as exc:  # noqa: BLE001 - one handler's bug must not end the others
            error_id = self.server.handler_failed(self, event, exc)
            if call in self._calls:
                call.resolve(BareError(ErrorCode.UNKNOWN_SERVER_ERROR), -1)
            self._closing = True
            log.debug("session.closing", error_id=error_id)
        if not call.parks and call in self._calls:
            call.held_bytes = self._read_bytes
            self._queue.add(call.held_bytes)

    # --- answering ----------------------------------------------------------------------

    def answer(self, call: SessionCall, response: Response, leader_epoch: int) -> None:
        """Put the answer of *call* into the outbox; the turn's end sends it."""
        if call not in self._calls:
            return  # The client is gone, or a handler failed and was answered.
        del self._calls[call]
        self._forget(call)
        if not call.parks:
            self._in_flight -= 1
        event = call.event
        frame = encode_response(
            event.correlation_id,
            response,
            api_key=event.api_key,
            api_version=event.api_version,
            leader_epoch=leader_epoch,
            max_response_bytes=self._settings.response_max_bytes,
        )
        self._send(frame)

    def _forget(self, call: SessionCall) -> None:
        """Take *call* out of what all sessions together hold."""
        if call.parks:
            self._queue.unpark()
        elif call.held_bytes:
            self._queue.remove(call.held_bytes)

    def _send(self, frame: bytes) -> None:
        # While the drain task has the outbox, `flush` watches what piles up behind it.
        if not self._in_turn and (not self._outbox or self._sending):
            self.server.has_answers(self)
        self._outbox.append(frame)
        self._unsent_bytes += len(frame)

    def flush(self) -> None:
        """Send what is ready, all at once; what the socket doesn't take waits for it."""
        if self._sending:
            behind_bytes = self._unsent_bytes - len(self._outbox[0]) if self._outbox else 0
            if behind_bytes > self._settings.send_buffer_max_bytes:
                self.server.closed_by_limit(self, "too many answers wait behind a slow read")
                self.scope.cancel()
            return
        if not self._outbox:
            return
        outbox = self._outbox
        data = outbox[0] if len(outbox) == 1 else b"".join(outbox)
        try:
            sent = self.transport.send_now(data)
        except _NETWORK_ERRORS:
            self.scope.cancel()
            return
        if sent == len(data):
            outbox.clear()
            self._unsent_bytes = 0
        else:
            self._forget_sent(sent)
            self._sending = True
            self._note_send_progress()
            self.server.start_soon(self._send_rest)
        if not self._resume.is_set():
            self._resume.set()

    async def _send_rest(self) -> None:
        try:
            while self._outbox:
                # The session may end, and empty the outbox, while this waits; then either call
                # raises, the second one where both became runnable at once.
                frame = self._outbox[0]
                await self.transport.wait_writable()
                sent = self.transport.send_now(frame)
                if sent:
                    self._forget_sent(sent)
                    self._note_send_progress()
                self._resume.set()
        except _NETWORK_ERRORS:
            self.scope.cancel()
        finally:
            self._sending = False
            self._resume.set()

    def _forget_sent(self, sent: int) -> None:
        """Take *sent* bytes off the front of the outbox; a frame cut in two stays whole behind."""
        self._unsent_bytes -= sent
        outbox = self._outbox
        while sent and sent >= len(outbox[0]):
            sent -= len(outbox.popleft())
        if sent:
            outbox[0] = outbox[0][sent:]

    # --- deadlines and the end ----------------------------------------------------------

    def _set_read_deadline(self, now_ms: int) -> None:
        settings = self._settings
        if not self._connection.unfinished_bytes:
            self._reading_frame = False
            self._read_deadline_ms = now_ms + settings.connections_max_idle_ms
        elif not self._reading_frame:
            self._reading_frame = True
            allowed_s = self._connection.announced_bytes / _BYTES_PER_READ_SECOND
            allowed_ms = settings.request_read_timeout_ms + int(allowed_s * 1000)
            self._read_deadline_ms = now_ms + allowed_ms

    def _note_send_progress(self) -> None:
        now_ms = self.server.node.now().mono_ms
        self._send_deadline_ms = now_ms + self._settings.send_timeout_ms

    @property
    def has_unsent(self) -> bool:
        """Whether answers wait for the peer to take them."""
        return bool(self._outbox)

    def shift_deadlines(self, by_ms: int) -> None:
        """Give the peer back the time in which this process could not have heard it."""
        self._read_deadline_ms += by_ms
        self._send_deadline_ms += by_ms

    def overdue(self, now_ms: int) -> str | None:
        """Return why the connection must end now, or None."""
        if self._sending:
            return "it takes no answers" if now_ms >= self._send_deadline_ms else None
        if now_ms < self._read_deadline_ms or self._must_pause():
            return None
        if self._reading_frame:
            return "it stopped in the middle of a request"
        if self._calls:
            # It waits for us, with a JoinGroup parked; its idle time begins with the answer.
            self._read_deadline_ms = now_ms + self._settings.connections_max_idle_ms
            return None
        return "it is idle"

    def _abandon(self) -> None:
        """The connection is over: withdraw what is parked, forget what is unanswered."""
        self.transport.close()
        self._outbox.clear()
        self._unsent_bytes = 0
        self._queue.leave(self)
        self._release()
        calls, self._calls = self._calls, {}
        for call in calls:
            self._forget(call)
            if call.parks:
                self.server.dispatcher.withdraw(call, self.server.node.now())
