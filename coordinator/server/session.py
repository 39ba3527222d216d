"""One client's connection: frames in, calls out, answers back as they are ready.

Theory of operation
===================

A session is no task. The poller calls it when its socket has something to read; every request of
that read becomes a `Call` and is decided at once, in the order in which it came. Its answer comes
back through the `Call`, then or later, to what is unsent, which leaves in one send at the end of
the round in which it came. An answer that comes outside of a round wakes the poller for one.

A session that holds too much (requests in flight, unsent answers, or all sessions together: see
`Held`), or that waits for the answer to a long change (`Call.hold_next`), is *paused*: it reads no
more until answers have left. The socket is still watched, because most clients wait for their
answers anyway, and only if it gets readable all the same the poller is told to leave it alone. What
one read brought beyond the limits waits in `_untaken`.

A turn ends after `_TURN_REQUESTS` or `_TURN_S`, whatever comes first, and the rest waits for
another one. Who has used up a turn is *slow* from then on: it is not read when the poller finds
it readable, but later, among the callbacks that `Poller.call_soon` keeps. So everybody whose
requests cost little is served first in each round, and however many connections ask for much, all
of them together get one slice of a round. A request that is long in bytes waits for such a turn,
too: to read it has taken long already.
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

import structlog
from msgspec import structs

from coordinator.config import Settings
from coordinator.group.core import Caller, Now
from coordinator.log.errors import LogFailed
from coordinator.runtime.bulkhead import attempt, attempt_each, caught, is_fatal, report
from coordinator.runtime.calls import Asker, Call
from coordinator.runtime.environment import Environment
from coordinator.runtime.telemetry import KEY_BITS, count
from coordinator.server.addresses import counted_as
from coordinator.server.dispatch import Dispatcher
from coordinator.server.gatekeeper import STRANGER_REQUEST_BYTES_MAX, Gate, Gatekeeper
from coordinator.server.throttles import Throttle
from coordinator.server.transport import NETWORK_ERRORS, Transport, attach
from protocol.connection import (
    SIZE,
    BadRequest,
    Dialect,
    FrameTooLarge,
    ServerConnection,
    encode_error,
    encode_response,
    of_epoch,
    throttled,
)
from protocol.errors import ErrorCode
from protocol.messages import (
    ApiVersionsRequest,
    BareError,
    JoinGroupRequest,
    Request,
    Response,
    SyncGroupRequest,
    first_error,
    join_error,
)

log: Final = structlog.get_logger()

DEFAULT_CLIENT_ID: Final = "client"
SHED_MESSAGE: Final = "too many requests wait for other members (max.parked.requests); come back"
NEVER_MS: Final = 2**63
# After so many requests of one read, or so much time, others get their turn.
_TURN_REQUESTS: Final = 64
_TURN_S: Final = 0.002
# To read so much takes a millisecond at most.
_LONG_REQUEST_BYTES: Final = 16 * 1024
# To judge all names that fit into so much takes two.
_MANY_NAMES_BYTES: Final = 4 * 1024
# What has been read of a frame, or is still to be answered, counts by the byte; so do answers that
# are long, before they leave.
_LONG_ANSWER_BYTES: Final = 64 * 1024
# They wait for other members, not for us, and a limit of their own bounds them.
_PARKING: Final = frozenset({JoinGroupRequest, SyncGroupRequest})
_UNUSUAL: Final = _PARKING | {ApiVersionsRequest}
_SIZE_BYTES: Final = SIZE.size
# So much of a frame must come, and of answers must be taken, in a second.
_LEAST_RATE_BYTES: Final = 64 * 1024
# So many requests are taken back in half a millisecond; one connection may have thousands.
_WITHDRAWN_AT_ONCE: Final = 64
# Who waits for room, and is asked in one round whether there is enough.
_WOKEN_MAX: Final = 64
# One line per peer and second is enough to find out who sends garbage.
_LOG_PERIOD_MS: Final = 1_000
_LOGGED_PEERS_MAX: Final = 1_000


class End(NamedTuple):
    """Why the server ends a connection: as it is counted, and in words for the log."""

    counted_as: str
    reason: str


# As what connections are counted that end without a word.
PEER: Final = "peer"
FAILED: Final = "failed"
UNAUTHENTICATED: Final = "unauthenticated"
MALFORMED: Final = "malformed"
SHUTDOWN: Final = "shutdown"
STARTING: Final = "starting"
# Why a connection ends that overstays, also one of HTTP.
SLOW_READER: Final = "slow_reader"

IDLE: Final = End("idle", "it is idle")
UNFINISHED: Final = End("unfinished_request", "it stopped in the middle of a request")
TAKES_NOTHING: Final = End(SLOW_READER, "it takes no answers")
_NOT_LOGGED_IN: Final = End(UNAUTHENTICATED, "it has not logged in in time")
_TAKES_TOO_LITTLE: Final = End(SLOW_READER, "too many answers wait behind a slow read")
_TAKES_MOST_ROOM: Final = End(
    "slow_reader", "it holds the most of all unsent answers (queued.max.response.bytes)"
)
NO_DESCRIPTORS: Final = "descriptors"
_TOO_MANY_OF_PRINCIPAL: Final = "its principal has too many (quota connections)"
_QUOTA: Final = "quota"


class SessionCall(Call, eq=False):
    """A request from when it is read until it is answered; the connection makes it of a frame.

    It refers to the session and not to a callback made for it: that would be a cycle per
    request, which only the garbage collector ends. To set a field takes several times as long as
    to make the call with it.
    """

    dialect: Dialect
    correlation_id: int
    size_bytes: int
    session: "Session"
    arrived_s: float
    parks: bool = False
    is_held: bool = False  # Counted by the session while it waits for its answer.
    is_open: bool = True
    found_room: bool = False  # For its answer, when its turn came in a line.
    error: int = 0  # Of what was prepared.

    @property
    def asker(self) -> Asker:
        """The connection; once clients say who they are, whoever that is."""
        return self.session

    def prepare(self, answer: Response, leader_epoch: int, error: int | None = None) -> bytes:
        """Return the frame of *answer*, which says how long to wait if too much was taken."""
        session, asked_bytes = self.session, self.size_bytes  # A long answer is added to that.
        try:
            if error is None:
                error = first_error(answer)
            frame = encode_response(self.dialect, self.correlation_id, answer, leader_epoch)
            if len(frame) > _LONG_ANSWER_BYTES:
                if len(frame) > session.max_frame_bytes:
                    error = ErrorCode.RESPONSE_TOO_LARGE
                    frame = encode_error(self.correlation_id, error, leader_epoch)
                else:
                    session.hold_answer(self, len(frame))
            if error:
                self.error = error
            throttle = session.throttle
            if throttle is not None:
                wait_ms = throttle.take(session, _SIZE_BYTES + asked_bytes + len(frame))
                if wait_ms:
                    return throttled(frame, wait_ms)
        except Exception as exc:  # noqa: BLE001 - what decides may be at others' answers, too
            self.failed(exc)
            return b""
        return frame

    def renew(self, prepared: bytes, leader_epoch: int) -> bytes:
        """Return the frame, as of another epoch; that of an answer that failed stays empty."""
        return of_epoch(prepared, leader_epoch) if prepared else prepared

    def attempt(self, decide: Callable[[], object]) -> None:
        """Call *decide*, unless the client is gone, or its log-in has ended.

        A call is taken from its line only when there is room.
        """
        self.found_room = True
        if self.is_open and not self.session.is_closed:
            try:
                if not self.is_refused():
                    decide()
            except Exception as exc:  # noqa: BLE001 - one handler's bug must not end the others
                self.failed(exc)

    def hold_next(self) -> None:
        """Have the session take no further request until this is answered."""
        if self.is_open:
            self.session.wait_for(self)

    def failed(self, exc: Exception) -> None:
        """Answer -1, and end the connection."""
        self.session.fail_call(self, exc)

    def drop(self) -> None:
        """Answer nobody."""
        self.is_open = False

    def send(self, prepared: bytes) -> None:
        """Put the frame behind what is unsent; the round's end sends it."""
        if not self.is_open:
            return  # The client is gone, or a handler failed and was answered.
        self.is_open = False
        session = self.session
        try:
            if self.is_held:
                session.let_go(self)
            if session.is_blocked:
                session.put_behind(prepared, is_fair=self.found_room)
            else:
                session.unsent += prepared
            if not session.will_flush:
                session.flush_later()
        except Exception:  # noqa: BLE001 - as in `prepare`
            session.fail_soon(caught(session))
        kind = self.dialect.api_key | self.error << KEY_BITS if self.error else self.dialect.api_key
        session.answered.append((self.arrived_s, kind))


class Session:
    """One client's connection.

    Attributes:
        caller: Who is at the other end, as groups know it.
        listener: The number of that by which he came.
        answered: See `Sessions`.
        unsent: Answers that have not left; the first one may have left in part.
        is_blocked: The peer takes no more; the poller tells when it does again.
        in_flight: Requests without an answer, but for those that wait for other members.
        is_paused: Whether no more is read from it until answers have left.
        throttle: What his principal takes; None: nobody asks who he is, or it isn't known yet.
        deadlines: Until when the peer must have done something.
    """

    # Python 3.11 looks up each method anew of what has more than 30 attributes and no slots.
    __slots__ = (
        "__weakref__",
        "_address",
        "_all",
        "_awaited",
        "_begun_bytes",
        "_clock_s",
        "_closes_as",
        "_connection",
        "_dispatcher",
        "_fair_bytes",
        "_has_ended",
        "_has_finished",
        "_is_closing",
        "_is_judged",
        "_is_slow",
        "_is_timed",
        "_max_in_flight",
        "_max_unsent_bytes",
        "_now",
        "_parked",
        "_parked_bytes",
        "_poller",
        "_sessions",
        "_telemetry",
        "_unpaid_s",
        "_unsent_bytes",
        "_untaken",
        "_untaken_bytes",
        "_will_go_on",
        "answered",
        "caller",
        "deadlines",
        "gate",
        "in_flight",
        "is_blocked",
        "is_closed",
        "is_paused",
        "listener",
        "max_frame_bytes",
        "throttle",
        "transport",
        "unsent",
        "will_flush",
    )

    def __init__(
        self,
        sessions: "Sessions",
        transport: Transport,
        address: "Held",
        now_ms: int,
        *,
        listener: int,
    ) -> None:
        settings = sessions.settings
        self._sessions = sessions
        self._poller = sessions.poller
        self._now = sessions.now
        self._clock_s = sessions.clock_s
        self.transport = transport
        self.caller = Caller(
            DEFAULT_CLIENT_ID,
            transport.peer,
            transport.principal,
            connection=sessions.telemetry.connections_accepted + 1,
        )
        self.listener = listener
        self.is_closed = False
        # Names of its own for what every request looks at.
        self._dispatcher: Dispatcher | Gate = sessions.dispatcher
        self.gate: Gate | None = None
        self.throttle: Throttle | None = None
        self._all = sessions.held
        self._address = address  # What it and its neighbours hold.
        self._telemetry = sessions.telemetry
        self.answered = sessions.answered
        self._max_in_flight = settings.max_in_flight_requests
        self._max_unsent_bytes = settings.send_buffer_max_bytes
        self.max_frame_bytes = _SIZE_BYTES + settings.response_max_bytes
        self._connection = ServerConnection(
            SessionCall,
            self,
            max_request_bytes=settings.socket_request_max_bytes,
            max_sync_request_bytes=settings.sync_request_max_bytes,
        )
        self._untaken: list[SessionCall | BadRequest] = []
        self._parked: dict[SessionCall, int] = {}  # With what of each counts.
        self.in_flight: dict[SessionCall, None] = {}
        self._awaited: SessionCall | None = None  # Nothing behind it is taken before its answer.
        # What has come of a frame that is being read, and what was read and waits for a turn.
        self._begun_bytes = self._untaken_bytes = 0
        self._has_finished = False  # A frame that was read although there was no room.
        self._parked_bytes = 0
        self._unsent_bytes = 0  # What of `unsent` the peer was offered, and didn't take.
        self.unsent = bytearray()
        self.is_blocked = False
        # What was unsent as the peer was blocked, or with the latest fair answer.
        self._fair_bytes = 0
        self.will_flush = False  # It is listed as one with something to send.
        self.is_paused = False
        self._will_go_on = False  # The poller calls for what is untaken, or unread.
        # Its latest turn took as long as one may; so did judging the request that is next.
        self._is_slow = self._is_judged = False
        self._is_timed = False  # Each turn is paid for.
        self._is_closing = False  # Answer what is unsent, then close.
        self._has_ended = False  # The peer sends no more, and may still want its answers.
        self._closes_as = MALFORMED
        self._unpaid_s = inf  # Since when its turn is not paid for.
        self.deadlines = Deadlines(settings, now_ms)

    def begin(self, *, must_log_in: bool) -> None:
        """Take requests from now on."""
        keeper, transport = self._sessions.gatekeeper, self.transport
        if must_log_in:
            self.gate = keeper.closed_gate(self, transport.peer)
            self._max_in_flight = 1
            self._connection.limit(STRANGER_REQUEST_BYTES_MAX)
            # Both are that long after it came.
            self.deadlines.log_in_ms = self.deadlines.read_ms
        elif keeper.has_gates:
            self.gate = keeper.gate(
                self, transport.peer, transport.principal, transport.ends_wall_ms
            )
        if self.gate is not None:
            self._dispatcher = self.gate
        if (no_room := attach(transport, self._poller, self)) is not None:
            self._sessions.refuse(transport, NO_DESCRIPTORS, no_room)
            self.close(FAILED)

    # --- logging in ---------------------------------------------------------------------

    def may_ask_more(self) -> None:
        """The log-in is done: the limits are those of everybody."""
        settings = self._sessions.settings
        self._max_in_flight = settings.max_in_flight_requests
        self._connection.limit(settings.socket_request_max_bytes, settings.sync_request_max_bytes)
        self.deadlines.log_in_ms = NEVER_MS

    def close_after_answers(self, why: str) -> None:
        """End the connection once its answers have left."""
        self._is_closing = True
        self._closes_as = why
        self._pause()
        self.flush_later()

    def close_if_over(self, wall_ms: int) -> None:
        """Do that if what the client had shown is in force no more."""
        over = None if self.gate is None else self.gate.over_because(wall_ms)
        if over is not None:
            self.close_because_over(over)

    def close_because_over(self, reason: str) -> None:
        """Take nothing more, and end the connection once it has its answers; say why in the log."""
        if self._is_closing:
            return
        self._sessions.warn("connection.closed", self.transport.peer, reason=reason)
        self.take_no_more()

    def take_no_more(self, why: str = UNAUTHENTICATED) -> None:
        """Drop what was read and not taken, and end the connection once it has its answers."""
        self._has_ended = True
        self._drop_untaken()
        self.close_after_answers(why)

    def refuse(self) -> None:
        """End the connection now, as its principal has too many."""
        self._sessions.refuse(self.transport, _QUOTA, _TOO_MANY_OF_PRINCIPAL)
        self.close(UNAUTHENTICATED)

    # --- who asks, for those who answer ---------------------------------------------------

    def refusal(self) -> int:
        """Return the error of all that is not decided yet, once the log-in has ended; 0 before."""
        return 0 if self.gate is None else self.gate.refusal(self._now().wall_ms)

    def judge(self, request: Request) -> Any:
        """Return the verdict on a part of what was asked, by the rules of now."""
        return None if self.gate is None else self.gate.judge(request, self._now())

    def sees_group(self, name: str) -> bool:
        """Say whether a group may be shown in a list."""
        return self.gate is None or self.gate.sees_group(name)

    def sees_topic(self, name: str) -> bool:
        """Say whether a topic may be shown in a list."""
        return self.gate is None or self.gate.sees_topic(name)

    @property
    def takes_answers(self) -> bool:
        """Whether the peer takes them, or few wait for it."""
        is_behind = self.is_blocked and len(self.unsent) >= self._max_unsent_bytes
        return self.is_closed or not is_behind

    # --- taking too much ----------------------------------------------------------------

    def mute(self) -> None:
        """Read no more from it."""
        self._max_in_flight = 0  # Every session compares this anyway.
        self._pause()

    def unmute(self) -> None:
        """Read on."""
        self._max_in_flight = self._sessions.settings.max_in_flight_requests
        self.resume()

    def time_turns(self, *, is_timed: bool) -> None:
        """Pay for what each turn takes, or no more; who isn't timed pays nothing."""
        self._is_timed = is_timed

    def spent_us(self) -> int:
        """Return what its turn has taken since it was asked last; 0 outside of one."""
        now_s = self._clock_s()
        spent_s = now_s - self._unpaid_s
        if spent_s <= 0:
            return 0
        self._unpaid_s = now_s
        return int(spent_s * 1_000_000)

    def spend(self, worked_s: float) -> None:
        """Note that its requests took so much of the event loop outside of its turns."""
        if self.throttle is not None:
            self.throttle.spend(self, int(worked_s * 1_000_000))

    # --- reading ------------------------------------------------------------------------

    def readable(self) -> None:
        """Read once, and take what that completes, unless others come first."""
        if self.is_paused or self._is_slow:
            self._stand_aside()
            return
        began_s = self._poller.now_s
        is_gone, data = False, None
        try:
            data = self.transport.receive_now()
        except NETWORK_ERRORS:  # Nothing is closed in here: the traceback holds what it holds.
            is_gone = True
        if not data:
            if is_gone:
                self.close()
            elif data is not None:
                self._end_of_stream()
            return
        sessions, connection = self._sessions, self._connection
        self._telemetry.received_bytes += len(data)
        now = sessions.round_now()
        connection.arrived_s = sessions.arrived_s
        try:
            calls = connection.receive(data)
        except FrameTooLarge as exc:
            too_large = End(MALFORMED, str(exc))
        else:
            self._take_turn(calls, now, began_s)
            return
        count(self._telemetry.refused, "too_large")
        self._close_because(too_large)

    def _stand_aside(self) -> None:
        if self.is_paused:
            self.transport.want(reading=False, writing=self.is_blocked)
        else:
            self._go_on_soon()

    def _end_of_stream(self) -> None:
        """The peer sends no more: answer what it has asked, but nothing waits for others."""
        self._withdraw()
        self._has_ended = self._is_closing = True
        self._closes_as = PEER
        self._pause()
        self.transport.want(reading=False, writing=self.is_blocked)
        self.flush()
        self.resume()

    def writable(self) -> None:
        """Send more of the answers that the peer didn't take before."""
        self._send()

    def broken(self) -> None:
        """Nothing can be sent any more; what the peer still asked, nobody waits for."""
        self.close()

    def _go_on(self) -> None:
        """Take more of what an earlier read has brought, or read."""
        self._will_go_on = False
        if self.is_closed:
            return
        if not self.is_paused:
            self._is_slow = False
            self.readable()
            return
        if not self._must_pause():
            now = self._sessions.round_now()
            self._take_turn(self._untaken, now, self._poller.now_s, is_own=True)

    def fail(self, exception: str) -> None:
        """Report a bug in work for this connection, which ends."""
        report(self._telemetry, "session", self.transport.peer, exception)
        self.close(FAILED)

    def fail_soon(self, exception: str) -> None:
        """Do that when nothing else goes on."""
        self._poller.call_soon(partial(self.fail, exception), self)

    def _take_turn(
        self,
        calls: list[SessionCall | BadRequest],
        now: Now,
        began_s: float,
        *,
        is_own: bool = False,
    ) -> None:
        """Take what was pipelined into one read, and decide whether to read on.

        One read holds thousands of small requests, and each may ask for a large answer: no more
        are taken at a time than the limits allow. The turn began at *began_s*; *is_own*: it began
        with this.
        """
        if self._is_timed:
            self._unpaid_s = began_s
        if self._begun_bytes or self._connection.unfinished:
            self._count_begun(has_ended=bool(calls))
        # A local: Python 3.11 is slow to call at once what is an attribute and no method.
        clock_s = self._clock_s
        taken, must_pause, is_slow = 0, not calls and self._must_pause(), self._is_judged
        self._is_judged = False
        for call in calls:
            if call.size_bytes > _MANY_NAMES_BYTES and self._must_wait(call, began_s, is_own):
                self._is_judged = is_slow or clock_s() - began_s >= _TURN_S
                break
            self._take(call, now)
            taken += 1
            if clock_s() - began_s >= _TURN_S:
                is_slow = True
            must_pause = self._must_pause()
            if must_pause or is_slow or taken == _TURN_REQUESTS:
                break
        del calls[:taken]
        self._untaken, self._is_slow = calls, is_slow
        if calls or self._untaken_bytes or self._has_finished:
            self._count_untaken()
        if must_pause or calls or self._begun_bytes or self.is_paused:
            self._end_turn(now.mono_ms, must_pause=must_pause)
        else:
            self.deadlines.between_frames(now.mono_ms)
        if self._is_timed:
            self._pay()

    def _must_wait(self, call: SessionCall | BadRequest, began_s: float, is_own: bool) -> bool:
        """Say whether a long *call* has to wait: for its own turn, or until it is judged."""
        if call.size_bytes > _LONG_REQUEST_BYTES and not is_own:
            return True
        if self.gate is None or type(call) is BadRequest:
            return False
        clock_s = self._clock_s
        return not self.gate.has_judged(call.request, lambda: clock_s() - began_s >= _TURN_S)

    def _end_turn(self, now_ms: int, *, must_pause: bool) -> None:
        if must_pause:
            self._pause()
            if self._is_closing:
                self._drop_untaken()
                self.flush_later()
        elif self._untaken:
            self._pause()
            self._go_on_soon()
        else:
            self._read_on(now_ms)

    def _pay(self) -> None:
        spent_us, self._unpaid_s = self.spent_us(), inf
        if self.throttle is not None:
            self.throttle.spend(self, spent_us)

    def _count_begun(self, *, has_ended: bool) -> None:
        """Count what has come of a frame; *has_ended*: another one than before."""
        if has_ended:
            self.deadlines.is_reading_frame = False
            self._has_finished = self._address.finishing is self
        begun_bytes = len(self._connection.unfinished)
        if begun_bytes != self._begun_bytes:
            self._hold(begun_bytes - self._begun_bytes)
            self._begun_bytes = begun_bytes

    def _count_untaken(self) -> None:
        """Count what was read and waits for a turn, or until it is judged."""
        untaken_bytes = sum([call.size_bytes for call in self._untaken])
        self._hold(untaken_bytes - self._untaken_bytes)
        self._untaken_bytes = untaken_bytes
        self._leave_room()

    def _drop_untaken(self) -> None:
        self._untaken.clear()
        self._count_untaken()

    def _leave_room(self) -> None:
        """Let another one of the address finish a frame, once the one finished here is answered."""
        if self._has_finished and not (self._untaken or self.in_flight):
            self._has_finished = False
            self._address.finishing = None

    def _read_on(self, now_ms: int) -> None:
        if self._begun_bytes:
            missing_bytes = _SIZE_BYTES + self._connection.announced_bytes - self._begun_bytes
            self.deadlines.inside_frame(missing_bytes, now_ms)
        else:
            self.deadlines.between_frames(now_ms)
        if self.is_paused:
            self.is_paused = False
            self.transport.want(reading=True, writing=self.is_blocked)

    def resume(self) -> None:
        """Look again whether to read on, or to end."""
        if self._is_closing:
            if not (self.unsent or (self._has_ended and self.in_flight)):
                self.close(self._closes_as)
        elif self.is_paused and not self._must_pause():
            self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._will_go_on:
            self._will_go_on = True
            self._poller.call_soon(self._go_on, self)

    def _pause(self) -> None:
        self.is_paused = True
        self.deadlines.not_reading()

    def _must_pause(self) -> bool:
        if (
            len(self.in_flight) >= self._max_in_flight
            or len(self.unsent) >= self._max_unsent_bytes
            or self._is_closing
            or self._awaited is not None
        ):
            return True
        held, address = self._all, self._address
        if (
            held.bytes >= held.max_bytes or address.bytes >= held.address_max_bytes
        ) and self._waits_for_room():
            return True
        return self.is_blocked and held.unsent_bytes >= held.max_unsent_bytes // 2

    def wait_for(self, call: SessionCall) -> None:
        """Take no further request until *call* is answered."""
        self._awaited = call

    def _waits_for_room(self) -> bool:
        """Say whether to wait for room; whoever has nothing here may still ask something small.

        One begun frame of each address is read to its end, so that nobody waits for ever.
        """
        if not self.in_flight:
            if not self._begun_bytes:
                return False
            if self._address.finishing in {None, self}:
                self._address.finishing = self
                return False
        self._all.wait(self)
        return True

    def _hold(self, size_bytes: int) -> None:
        """Count bytes of a request, or of its answer, until it has left."""
        self._all.bytes += size_bytes
        self._address.bytes += size_bytes

    def hold_answer(self, call: SessionCall, size_bytes: int) -> None:
        """Count a long answer of *call* that may have to wait for the disk."""
        if call.is_held and not call.parks:
            self._hold(size_bytes)
        call.size_bytes += size_bytes

    def _take(self, call: SessionCall | BadRequest, now: Now) -> None:
        if type(call) is BadRequest:
            self._refuse(call)
            return
        if type(call.request) in _UNUSUAL and not self._take_unusual(call, call.request):
            return
        try:
            self._dispatcher.dispatch(call, self.caller, now)
        except Exception as exc:  # noqa: BLE001 - one handler's bug must not end the others
            self.fail_call(call, exc)
        if not call.is_open:
            return
        if not call.parks:
            call.is_held = True
            self.in_flight[call] = None
            # `_hold` written out, as in `let_go`: all that waits for the disk comes by both.
            self._all.bytes += call.size_bytes
            self._address.bytes += call.size_bytes
        elif type(call.request) is SyncGroupRequest:
            # The leader's assignments are in force, and those of others nobody looks at.
            call.request = structs.replace(call.request, assignments=())

    def fail_call(self, call: SessionCall, exc: Exception) -> None:
        """Answer *call*, whose handler had a bug, and end the connection; see `bulkhead`."""
        # The disk's thread knows first that the log failed: all ends, without a bug to look for.
        if not isinstance(exc, LogFailed):
            if is_fatal(exc):
                raise exc
            self._sessions.request_failed(call, exc)
            if call.is_open and self._closes_as is not FAILED:
                self._closes_as = FAILED  # This answer may fail, too.
                call.resolve(BareError(ErrorCode.UNKNOWN_SERVER_ERROR), -1)
        self.close_after_answers(FAILED)

    def _take_unusual(self, call: SessionCall, request: Request) -> bool:
        """Note what *call* says of its sender, or that it may wait; say whether it is decided."""
        if type(request) is ApiVersionsRequest:
            self.caller = self.caller._replace(client_id=request.client_id)
            if self._sessions.dispatcher.has_cluster:
                return True
            # Clients remember the cluster's id, and take another one for another cluster.
            call.drop()
            self.take_no_more(STARTING)
            return False
        if self.gate is not None and self.gate.is_closed:
            return True
        call.parks = True
        return self._park(call)

    def _refuse(self, bad: BadRequest) -> None:
        is_unknown = bad.error is ErrorCode.UNSUPPORTED_VERSION
        count(self._telemetry.refused, "unsupported" if is_unknown else "malformed")
        self._sessions.warn(
            "request.refused",
            self.transport.peer,
            error=bad.error.name,
            reason=bad.reason,
            closed=bad.close,
        )
        frame = encode_error(bad.correlation_id, bad.error)
        wait_ms = 0 if self.throttle is None else self.throttle.take(self, len(frame))
        self.put_behind(throttled(frame, wait_ms) if wait_ms else frame)
        self.flush_later()
        self._is_closing = bad.close

    def _park(self, call: SessionCall) -> bool:
        """Count a request that may wait for other members; say whether it may.

        Only joins are refused: a SyncGroup belongs to a member that is counted already, and what
        is long in it isn't kept.
        """
        is_join = type(call.request) is JoinGroupRequest
        is_shed = is_join and self._all.has_no_place(
            self._address, len(self._parked), self._parked_bytes
        )
        self._parked[call] = size_bytes = call.size_bytes if is_join else 0
        call.is_held = True
        self._count_parked(1, size_bytes)
        if not is_shed:
            return True
        count(self._telemetry.refused, "parked_limit")
        self._sessions.warn("request.shed", self.transport.peer, reason="max.parked.requests")
        call.resolve(join_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, "", SHED_MESSAGE), -1)
        return False

    def _count_parked(self, requests: int, size_bytes: int) -> None:
        self._parked_bytes += size_bytes
        for held in (self._all, self._address):
            held.parked += requests
            held.parked_bytes += size_bytes

    # --- answering ----------------------------------------------------------------------

    def let_go(self, call: SessionCall) -> None:
        """A request that waited has its answer."""
        if call.parks:
            self._count_parked(-1, -self._parked.pop(call))
        else:
            del self.in_flight[call]
            if call is self._awaited:
                self._awaited = None
            self._all.bytes -= call.size_bytes
            self._address.bytes -= call.size_bytes
            if self._has_finished:
                self._leave_room()

    def put_behind(self, frame: bytes, *, is_fair: bool = False) -> None:
        """Put *frame* behind what is unsent.

        Where there is room for a byte there is room for one answer, however long. *is_fair*: there
        was when work on it began, which takes long. Other answers come all the same, to what was
        asked before: there may be as much of them as the limit, see `flush`.
        """
        is_fair = is_fair or len(self.unsent) < self._max_unsent_bytes
        self.unsent += frame
        if is_fair:
            self._fair_bytes = len(self.unsent)

    def flush_later(self) -> None:
        """Send what is unsent at the end of the round."""
        if not self.will_flush:
            self.will_flush = True
            self._sessions.with_answers.append(self)
            if not self._poller.in_round:
                self._poller.wake()

    def flush(self) -> None:
        """Send what is ready, all at once; what the socket doesn't take waits for it."""
        self.will_flush = False
        if not (self.is_blocked or self.is_closed):
            self._send()
        elif self.is_closed:
            return
        elif len(self.unsent) > self._fair_bytes + self._max_unsent_bytes:
            self._close_because(_TAKES_TOO_LITTLE)
        else:
            self._count_unsent(len(self.unsent))

    def _count_unsent(self, unsent_bytes: int) -> None:
        more_bytes = unsent_bytes - self._unsent_bytes
        self._unsent_bytes = unsent_bytes
        self._all.unsent_bytes += more_bytes
        self._address.unsent_bytes += more_bytes

    def _send(self) -> None:
        unsent = self.unsent
        try:
            sent = self.transport.send_now(unsent)
        except NETWORK_ERRORS:
            sent = -1  # As in `readable`.
        if sent < 0:
            self.close()
            return
        self._telemetry.sent_bytes += sent
        del unsent[:sent]
        if unsent or self.is_blocked:
            took_bytes = sent if self.is_blocked else None
            self.deadlines.sending(len(unsent), took_bytes, self._now().mono_ms)
            if not self.is_blocked:
                self._fair_bytes = len(unsent)
            self.is_blocked = bool(unsent)
            self._count_unsent(len(unsent))
            self.transport.want(reading=not self.is_paused, writing=self.is_blocked)
        if self.is_paused:
            self.resume()

    # --- the end --------------------------------------------------------------------------

    @property
    def has_unsent(self) -> bool:
        """Whether answers wait for the peer to take them."""
        return bool(self.unsent)

    def close_if_overdue(self, now_ms: int) -> None:
        """End the connection if its peer should have done something by now, and say why."""
        end = self._overdue(now_ms)
        if end is not None:
            self._close_because(end)

    def weight(self) -> tuple[int, int]:
        """Return what it, and before that its address, holds of unsent answers, to compare."""
        return self._address.unsent_bytes, self._unsent_bytes

    def make_room(self) -> None:
        """End the connection: it holds more of all unsent answers than any other."""
        self._close_because(_TAKES_MOST_ROOM)

    def _overdue(self, now_ms: int) -> End | None:
        if self.gate is not None:
            over = self.gate.over_because(self._now().wall_ms)
            if over is not None:
                return End(UNAUTHENTICATED, over)
            if now_ms >= self.deadlines.log_in_ms:
                return _NOT_LOGGED_IN
        if self.is_blocked:
            return TAKES_NOTHING if now_ms >= self.deadlines.send_ms else None
        if now_ms < self.deadlines.read_ms or self._must_pause():
            return None
        if self.deadlines.is_reading_frame:
            return UNFINISHED
        if self.in_flight or self._parked:
            # It waits for us, with a JoinGroup parked; its idle time begins with the answer.
            self.deadlines.between_frames(now_ms)
            return None
        return IDLE

    def _close_because(self, end: End) -> None:
        """End the connection, and say why in the log."""
        self._sessions.warn("connection.closed", self.transport.peer, reason=end.reason)
        self.close(end.counted_as)

    def close(self, why: str = PEER) -> None:
        """End the connection: withdraw what is parked, forget what is unanswered. Idempotent.

        Each step is taken, even if one before it fails.
        """
        if self.is_closed:
            return
        self.is_closed = self._is_closing = True
        count(self._telemetry.connections_closed, why)
        leave = () if self.gate is None else (self.gate.leave,)
        end = partial(self._sessions.forget, self)
        # With no cycle left at the end, nothing waits for the collector.
        let_go = self._connection.let_go
        for step in (self.transport.close, *leave, self._give_back, self._withdraw, end, let_go):
            attempt(self, step)
        self._poller.wake()  # Others may wait for the room that this one took.

    def _give_back(self) -> None:
        self.unsent.clear()
        self._count_unsent(0)
        self._drop_untaken()
        self._all.leave(self)
        if self._address.finishing is self:
            self._address.finishing = None
        self._hold(-self._begun_bytes)
        for call in self.in_flight:
            call.is_open = False
            self._hold(-call.size_bytes)
        self.in_flight.clear()
        self._awaited = None

    def _withdraw(self) -> None:
        """Take back what waits for other members: nobody waits for its answer."""
        for call in self._parked:
            call.is_open = False
        self._withdraw_some()

    def _withdraw_some(self) -> None:
        for call in list(islice(self._parked, _WITHDRAWN_AT_ONCE)):
            self._count_parked(-1, -self._parked.pop(call))
            attempt(self, self._sessions.dispatcher.withdraw, call, self._now())
        if self._parked:
            self._poller.call_soon(self._withdraw_some, self)


class Deadlines:
    """Until when the peer of one session must have done something, in monotonic milliseconds.

    Plain numbers that the server compares once a second: arming a timer per read would cost more
    than a heartbeat.

    Attributes:
        read_ms: When the peer must have sent a request, or the rest of one.
        log_in_ms: When it must have logged in.
        send_ms: When it must have taken some of the answers that wait for it.
        is_reading_frame: Whether `read_ms` counts from the beginning of an unfinished frame.
    """

    __slots__ = (
        "_missing_bytes",
        "_settings",
        "_to_take_bytes",
        "idle_ms",
        "is_reading_frame",
        "log_in_ms",
        "read_ms",
        "send_ms",
    )

    def __init__(self, settings: Settings, now_ms: int) -> None:
        self._settings = settings
        self.idle_ms = settings.connections_max_idle_ms
        self.read_ms = now_ms + settings.first_request_timeout_ms
        self.send_ms = 0
        self.log_in_ms = NEVER_MS
        self.is_reading_frame = False
        self._missing_bytes = 0  # Of the frame, as its time began.
        self._to_take_bytes = 0  # Before the peer is given new time.

    def between_frames(self, now_ms: int) -> None:
        """The peer may be silent now."""
        self.is_reading_frame = False
        self.read_ms = now_ms + self.idle_ms

    def inside_frame(self, missing_bytes: int, now_ms: int) -> None:
        """So much of a frame is still to come: in time, or at the least rate and then some more.

        How often its bytes drip doesn't matter.
        """
        timeout_ms = self._settings.request_read_timeout_ms
        came_bytes = self._missing_bytes - missing_bytes
        if not self.is_reading_frame or came_bytes * 1000 >= _LEAST_RATE_BYTES * timeout_ms:
            self.is_reading_frame = True
            self._missing_bytes = missing_bytes
            self.read_ms = now_ms + timeout_ms

    def not_reading(self) -> None:
        """Time in which we don't read is not the peer's."""
        self.is_reading_frame = False
        self.read_ms = NEVER_MS

    def sending(self, unsent_bytes: int, took_bytes: int | None, now_ms: int) -> None:
        """The peer took something, None if it is the first time that it doesn't take all.

        It must take what is unsent in time, or at the least rate.
        """
        self._to_take_bytes -= took_bytes or 0
        if took_bytes is None or self._to_take_bytes <= 0:
            timeout_ms = self._settings.send_timeout_ms
            self._to_take_bytes = min(unsent_bytes, _LEAST_RATE_BYTES * timeout_ms // 1000)
            self.send_ms = now_ms + timeout_ms

    def shift(self, by_ms: int) -> None:
        """Give the peer back the time in which this process could not have heard it."""
        self.read_ms += by_ms
        self.send_ms += by_ms
        self.log_in_ms += by_ms


# A connection may hold a quarter of what is for all of them, and an address a half.
CONNECTION_PART: Final = 4
ADDRESS_PART: Final = 2


def most_of_address(most: int) -> int:
    """Return how many of *most* connections, or of what only those have, one address may have."""
    return -(-3 * most // 4)


class Held:
    """What the connections of one address hold.

    Attributes:
        connections: How many there are.
        bytes: Requests that are not answered or half read, and long answers to them.
        parked: Requests that wait for other members; `parked_bytes` is their size.
        unsent_bytes: Answers that were offered, and not taken.
        finishing: Whose frame is read to its end although there is no room.
    """

    def __init__(self) -> None:
        self.connections = 0
        self.bytes = 0
        self.parked = 0
        self.parked_bytes = 0
        self.unsent_bytes = 0
        self.finishing: Session | None = None


class HeldByAll(Held):
    """What all connections hold, and may.

    A frame counts as its bytes come: who announces a large one has nothing by it. Over the limit
    whoever holds something is not read, until there is room; see `Session._waits_for_room`.
    Parked requests don't count there: what ends their wait must always be read.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.max_bytes = settings.queued_max_request_bytes
        self.address_max_bytes = self.max_bytes // ADDRESS_PART
        self.max_parked = settings.max_parked_requests
        self.max_parked_bytes = settings.queued_max_parked_bytes
        self.max_unsent_bytes = settings.queued_max_response_bytes
        self._waiting: dict[Session, None] = {}

    def wake(self) -> None:
        """Let some of those that wait look whether there is room, in turn."""
        for session in list(islice(self._waiting, _WOKEN_MAX)):
            self._waiting.pop(session, None)  # What another one does may end it.
            attempt(session, session.resume)

    def wait(self, session: Session) -> None:
        """Wake *session* when there may be room, at the end of a round."""
        self._waiting[session] = None

    def leave(self, session: Session) -> None:
        """Forget *session*, which has ended."""
        self._waiting.pop(session, None)

    def has_no_place(self, address: Held, parked: int, parked_bytes: int) -> bool:
        """Say whether one more may not be parked by a connection that has so much already."""
        return (
            self.parked >= self.max_parked
            or address.parked * ADDRESS_PART >= self.max_parked
            or parked * CONNECTION_PART >= self.max_parked
            or self.parked_bytes >= self.max_parked_bytes
            or address.parked_bytes * ADDRESS_PART >= self.max_parked_bytes
            or parked_bytes * CONNECTION_PART >= self.max_parked_bytes
        )


class Sessions:
    """All sessions of this process, and what they share.

    Attributes:
        held: What they hold together.
        with_answers: Those with something to send at the end of this round.
        arrived_s: When what this round has read came, once `round_now` was called in it.
        answered: Of each answer that leaves at the end of this round, when its request came, and of
            what kind it is (see `Telemetry.round_answered`).
    """

    def __init__(
        self,
        *,
        environment: Environment,
        settings: Settings,
        gatekeeper: Gatekeeper,
        start_flushes: Callable[[], None],
        max_connections: int,
    ) -> None:
        self.now = environment.now
        self.poller = environment.poller
        self.settings = settings
        self.gatekeeper = gatekeeper
        self.dispatcher = gatekeeper.dispatcher
        self.held = HeldByAll(settings)
        self._held_by: dict[str, Held] = {}
        self.with_answers: list[Session] = []
        self.telemetry = environment.telemetry
        self.clock_s = environment.clock_s
        self.arrived_s = 0.0
        self.answered: list[tuple[float, int]] = []
        self._start_flushes = start_flushes
        self.max_connections = max_connections
        self._all: dict[Session, None] = {}
        self._round_now: Now | None = None
        self._ends_strangers = False
        self._failed_requests = 0
        self._last_warned_ms: dict[str, int] = {}
        environment.metrics.update(
            connections=lambda: len(self._all),
            connections_limit=lambda: self.max_connections,
            requests_parked=lambda: self.held.parked,
            requests_parked_limit=lambda: self.held.max_parked,
            requests_parked_bytes=lambda: self.held.parked_bytes,
            requests_parked_bytes_limit=lambda: self.held.max_parked_bytes,
            requests_waiting_bytes=lambda: self.held.bytes,
            requests_waiting_bytes_limit=lambda: self.held.max_bytes,
            answers_unsent_bytes=lambda: self.held.unsent_bytes,
            answers_unsent_bytes_limit=lambda: self.held.max_unsent_bytes,
        )

    def __iter__(self) -> Iterator[Session]:
        """Return the sessions of the moment; each may end meanwhile."""
        return iter(list(self._all))

    def begin(self, transport: Transport, *, listener: int = 0, must_log_in: bool = False) -> None:
        """Start a session on *transport*, or close it when there are too many.

        It came by the listener of this number.
        """
        if len(self._all) >= self.max_connections:
            self.refuse(transport, "max_connections", "max.connections")
            return
        address = self._held_by.get(transport.counts_as) or Held()
        if address.connections >= self._max_connections_per_ip:
            self.refuse(transport, "max_connections_per_ip", "max.connections.per.ip")
            return
        if not must_log_in and not self._has_place(transport.principal):
            self.refuse(transport, _QUOTA, _TOO_MANY_OF_PRINCIPAL)
            return
        session = Session(self, transport, address, self.now().mono_ms, listener=listener)
        self._all[session] = None
        self._held_by[transport.counts_as] = address
        address.connections += 1
        self.telemetry.connections_accepted += 1
        attempt(session, partial(session.begin, must_log_in=must_log_in))

    def _has_place(self, principal: str) -> bool:
        keeper = self.gatekeeper
        return not keeper.has_gates or keeper.throttles.has_place(principal)

    def users_changed(self) -> None:
        """Users have other passwords now, or none: end the sessions that these were for."""
        self._ends_strangers = True
        self.poller.wake()

    def _end_strangers(self) -> None:
        """End the sessions whose users have other passwords now, or none, before that is answered.

        What was decided for them is answered, as to the one who asked for this.
        """
        self._ends_strangers = False
        wall_ms = self.now().wall_ms
        for session in self:
            attempt(session, session.close_if_over, wall_ms)

    def refuse(self, transport: Transport, word: str, reason: str) -> None:
        """Close a connection at once, which is counted as *word*, and say why in the log."""
        count(self.telemetry.connections_refused, word)
        self.warn("connection.refused", transport.peer, reason=reason)
        transport.close()

    def has_no_room(self) -> None:
        """Count that a connection waits outside, as there is no descriptor for it."""
        count(self.telemetry.connections_refused, NO_DESCRIPTORS)

    def forget(self, session: Session) -> None:
        """Note that *session* has ended."""
        if self._all.pop(session, self) is self:
            return
        address = session.transport.counts_as
        self._held_by[address].connections -= 1
        if not self._held_by[address].connections:
            del self._held_by[address]

    @property
    def _max_connections_per_ip(self) -> int:
        """How many connections one address may have: never all of them, but for a few."""
        return min(self.settings.max_connections_per_ip, most_of_address(self.max_connections))

    def round_now(self) -> Now:
        """Return the time, the same for all sessions of a round."""
        now = self._round_now
        if now is None:
            now = self._round_now = self.now()
            self.arrived_s = self.clock_s()
        return now

    def end_round(self) -> None:
        """Start the flush and send what this round has answered, after all sessions had their turn.

        A send wakes the peer, and on the same machine takes our core for it: so no session sends
        in its own turn. The disk comes first, as it works while the answers are sent. It comes
        again after them: who can't be sent to is closed, and the groups of its parked requests may
        decide something.
        """
        self._round_now = None
        if self._ends_strangers:
            self._end_strangers()
        self._start_flushes()
        held = self.held
        # Who can't be sent to is closed, and others may get answers.
        while self.with_answers or held.unsent_bytes > held.max_unsent_bytes:
            sessions, self.with_answers = self.with_answers, []
            attempt_each(sessions, Session.flush)
            if held.unsent_bytes > held.max_unsent_bytes:
                heaviest = max(self._all, key=Session.weight)
                attempt(heaviest, heaviest.make_room)
        held.wake()
        self._start_flushes()
        if self.answered:
            self.telemetry.round_answered(self.clock_s(), self.answered)
            self.answered.clear()

    def request_failed(self, call: SessionCall, exc: Exception) -> None:
        """Log a bug with a number of its own."""
        self._failed_requests += 1
        count(self.telemetry.refused, FAILED)
        log.error(
            "request.failed",
            error_id=self._failed_requests,
            api=call.dialect.api_key.name,
            peer=call.session.transport.peer,
            exc_info=exc,
        )

    def warn(self, event: str, peer: str, **fields: Any) -> None:
        """Log what *peer* did, but not every time."""
        now_ms, address = self.now().mono_ms, counted_as(peer)
        if now_ms - self._last_warned_ms.get(address, -_LOG_PERIOD_MS) < _LOG_PERIOD_MS:
            return
        if len(self._last_warned_ms) >= _LOGGED_PEERS_MAX:
            self._last_warned_ms.clear()
        self._last_warned_ms[address] = now_ms
        log.warning(event, peer=peer, **fields)
