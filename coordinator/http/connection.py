"""One HTTP connection: bytes in, requests out, answers back. HTTP itself is h11's.

Theory of operation
===================

Like a session of the native listener, this one is no task: its transport calls it back. It takes
one request at a time; what the peer sends meanwhile stays in the socket, or in h11 if it came in
the same read. The answer's parts are sent as they are, as fast as the peer takes them; then comes
the next request.

An event stream never ends by itself, so it needs no framing: its answer lasts until the connection
closes, and one frame of bytes is the same for all peers.

After a refusal that ends the connection, what the peer still sends is read and dropped for a
while: closing at once would have the system throw away the answer, too.
"""

from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

import h11

from coordinator.config import Settings
from coordinator.group.core import Now
from coordinator.http.guard import SECURITY_HEADERS
from coordinator.http.router import METHODS, OTHER, problem, unless_known
from coordinator.http.routes import POST, Answer, HttpRequest, Refused, Streaming
from coordinator.runtime.bulkhead import attempt, report
from coordinator.runtime.poller import Poller
from coordinator.runtime.telemetry import Telemetry
from coordinator.server.session import (
    FAILED,
    IDLE,
    MALFORMED,
    PEER,
    SLOW_READER,
    TAKES_NOTHING,
    UNAUTHENTICATED,
    UNFINISHED,
    Deadlines,
    End,
)
from coordinator.server.transport import NETWORK_ERRORS, Transport

Warn = Callable[..., None]  # `Sessions.warn`: event, peer, and more by name.

HEAD_BYTES_MAX: Final = 16 * 1024
BODY_BYTES_MAX: Final = 8 * 1024
STREAM_UNSENT_BYTES_MAX: Final = 256 * 1024
# What is shorter leaves in one send; what is longer is cut, never joined.
_SEND_BYTES: Final = 64 * 1024
# After so much others have their turn.
_TURN_BYTES: Final = 256 * 1024
_BYTES_PER_SENT_SECOND: Final = 64 * 1024
_DROPPED_BYTES_MAX: Final = 1024 * 1024
_DROP_TIMEOUT_MS: Final = 2_000
# h11 takes any that is written like these.
_VERSIONS: Final = frozenset({b"1.0", b"1.1"})
_TLS: Final = b"\x16\x03"  # How a handshake begins.
_REFUSED: Final = End(MALFORMED, "its request was refused")
_SPEAKS_TLS: Final = End(MALFORMED, "it speaks TLS to a listener without (http.listeners)")
_TAKES_TOO_LITTLE: Final = End(SLOW_READER, "it takes its answer too slowly")
_MISSES_EVENTS: Final = End(SLOW_READER, "too many events wait behind a slow read")
_LINE_END: Final = b"\r\n"
_SECURITY_LINES: Final = "".join(
    [f"{name}: {value}\r\n" for name, value in SECURITY_HEADERS.items()]
).encode()
# The last is for nginx, which would keep events back.
_STREAM_HEAD: Final = (
    b"HTTP/1.1 200 OK\r\n"
    b"content-type: text/event-stream\r\n"
    b"cache-control: no-store\r\n"
    b"connection: close\r\n"
    b"x-accel-buffering: no\r\n"
)
# Browsers open connections that they may need, and keep those that they have used.
_USUAL: Final = frozenset({IDLE, _REFUSED})


class Owner(Protocol):
    """What all connections share, as one needs it."""

    settings: Settings
    poller: Poller
    telemetry: Telemetry

    @property
    def warn(self) -> Warn:
        """Log what a peer did, but not every time."""

    def now(self) -> Now:
        """Return the time."""

    def date(self) -> str:
        """Return the time of day as a header has it."""

    def ask(self, session: "HttpSession", asked: "Asked") -> None:
        """Have the request answered, now or later."""

    def count(self, route_name: str, status: int) -> None:
        """Count an answer."""

    def follows(self, session: "HttpSession") -> None:
        """Note that *session* follows events from now on."""

    def waits(self, session: "HttpSession") -> None:
        """Note that *session* has to wait for its peer; who does so longest makes room."""

    def waits_no_more(self, session: "HttpSession") -> None:
        """Note that the peer has taken all."""

    def forget(self, session: "HttpSession", why: str) -> None:
        """Note that *session* has ended, as *why* is counted."""


class Asked(NamedTuple):
    """A request as it came, whole."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class HttpSession:
    """One peer.

    Attributes:
        unsent_bytes: What waits for the peer to take it.
        deadlines: Until when it must have done something.
        route_name: The template of the request under way, as answers are counted by.
    """

    def __init__(self, owner: Owner, transport: Transport, now_ms: int) -> None:
        self._owner = owner
        self.transport = transport
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._request: h11.Request | None = None  # Begun, and not answered to the end.
        self._body = bytearray()
        self.route_name = OTHER
        self._stream: Streaming | None = None
        self._unsent: deque[bytes] = deque()
        self._sent_of_first = 0
        self.unsent_bytes = 0
        self._is_writing = False  # The poller tells when the peer takes more.
        self._is_reading = True
        self._is_last = False  # Close after what is unsent.
        self._dropped_bytes: int | None = None  # What was read since nothing is taken any more.
        self.is_closed = False
        self.deadlines = Deadlines(owner.settings, now_ms)
        self._answer_ms = 0  # When an answer must be sent to its end.

    # --- reading ------------------------------------------------------------------------

    def readable(self) -> None:
        """Read once, and take the request that this completes."""
        if self._is_asked and self._stream is None and self._dropped_bytes is None:
            self._want(reading=False, writing=self._is_writing)
            return
        is_gone, data = False, None
        try:
            data = self.transport.receive_now()
        except NETWORK_ERRORS:  # Nothing is closed in here: the traceback holds what it holds.
            is_gone = True
        if is_gone:
            self.close()
        if data is None:
            return
        if self._stream is not None or self._dropped_bytes is not None:
            self._drop(data)
            return
        self._http.receive_data(data)
        self._next(is_end=not data)

    def writable(self) -> None:
        """Send more of what the peer didn't take before."""
        self._send()

    def broken(self) -> None:
        """Nothing can be sent any more."""
        self.close()

    @property
    def _is_asked(self) -> bool:
        """Whether a whole request is under way."""
        return self._request is not None and self._http.their_state is not h11.SEND_BODY

    def _drop(self, data: bytes) -> None:
        if self._dropped_bytes is not None:
            self._dropped_bytes += len(data)
        if not data or (self._dropped_bytes or 0) > _DROPPED_BYTES_MAX:
            self.close()

    def _next(self, *, is_end: bool = False) -> None:
        """Take the next request out of what has come."""
        try:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._request = event
                refused = _refusal_of_head(event)
                if refused is not None:
                    self._refuse_rest(refused)
                    return
                event = self._http.next_event()
            while isinstance(event, h11.Data):
                self._body += event.data
                event = self._http.next_event()
        except h11.RemoteProtocolError as exc:
            if self._http.trailing_data[0].startswith(_TLS):
                self.close_because(_SPEAKS_TLS)
                return
            # What h11 says behind a colon repeats what came.
            self._refuse_rest(Refused(exc.error_status_hint, str(exc).partition(":")[0]))
            return
        if isinstance(event, h11.EndOfMessage):
            self._ask()
        elif isinstance(event, h11.ConnectionClosed) or is_end:
            self.close()
        elif self._request is not None or self._http.trailing_data[0]:
            self.deadlines.inside_frame(0, self._owner.now().mono_ms)

    def _refuse_rest(self, refused: Refused) -> None:
        """Answer that *refused*, and take nothing more."""
        self._dropped_bytes = 0
        self._answer(problem(refused))

    def _ask(self) -> None:
        self.deadlines.not_reading()
        request = self._request
        assert request is not None
        headers: dict[str, str] = {}
        for raw_name, raw_value in request.headers:
            name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        body = bytes(self._body)
        self._body.clear()
        method, target = request.method.decode("ascii"), request.target.decode("ascii")
        self._owner.ask(self, Asked(method, target, headers, body))

    # --- answering ----------------------------------------------------------------------

    def answer(self, request: HttpRequest, answer: Answer | Streaming) -> None:
        """Send what the request gets; the peer may be gone meanwhile."""
        if self.is_closed:
            return
        if isinstance(answer, Answer):
            self._answer(unless_known(answer, request))
        else:
            self._begin_stream(answer)

    @property
    def owes_answer(self) -> bool:
        """Whether no part of the answer has been given."""
        return self._http.our_state is h11.SEND_RESPONSE and self._stream is None

    def refuse(self, refused: Refused) -> None:
        """Answer that the request was *refused*, and go on."""
        if not self.is_closed:
            self._answer(problem(refused))

    def _answer(self, answer: Answer) -> None:
        has_body = answer.status != HTTPStatus.NOT_MODIFIED
        length = sum(len(part) for part in answer.body)
        headers = {"cache-control": "no-cache"}
        headers |= {name.lower(): value for name, value in answer.headers.items()}
        if has_body:
            headers["content-type"] = answer.content_type
            headers["content-length"] = str(length)
        if answer.etag is not None:
            headers["etag"] = answer.etag
        if self._dropped_bytes is not None:
            headers["connection"] = "close"
        self._owner.count(self.route_name, answer.status)
        head = self._http.send(
            h11.Response(
                status_code=answer.status,
                headers=list(headers.items()),
                reason=HTTPStatus(answer.status).phrase,
            )
        )
        assert head is not None
        parts = [head[: -len(_LINE_END)] + self._usual_lines()]
        if has_body and length and not self._is_head():
            # All that h11 needs to know is how long it is.
            self._http.send_with_data_passthrough(h11.Data(data=range(length)))  # type: ignore[arg-type]
            parts += answer.body
        self._http.send(h11.EndOfMessage())
        if length + len(head) <= _SEND_BYTES:
            parts = [b"".join(parts)]
        self._is_last = self._http.our_state is h11.MUST_CLOSE or self._dropped_bytes is not None
        now_ms = self._owner.now().mono_ms
        self._answer_ms = (
            now_ms + self._owner.settings.send_timeout_ms + length * 1000 // _BYTES_PER_SENT_SECOND
        )
        self._put(parts)

    def _usual_lines(self) -> bytes:
        """Return the end of a head: what all have, which h11 would check each time."""
        return b"date: %s\r\n%s\r\n" % (self._owner.date().encode(), _SECURITY_LINES)

    def _is_head(self) -> bool:
        return self._request is not None and self._request.method == b"HEAD"

    def _begin_stream(self, streaming: Streaming) -> None:
        self._owner.count(self.route_name, HTTPStatus.OK)
        head = _STREAM_HEAD + self._usual_lines()
        if self._is_head():
            self._is_last = True
            self._put([head])
            return
        self._stream = streaming
        self._owner.follows(self)
        self._want(reading=True, writing=self._is_writing)  # The end shows that the peer left.
        self._put([head])
        if not self.is_closed:
            streaming.begin(self)

    # --- the peer of an event stream ----------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether anybody is there."""
        return not self.is_closed

    def end(self, reason: str) -> None:
        """End it, from this side."""
        self.close_because(End(UNAUTHENTICATED, reason))

    def send(self, frame: bytes) -> None:
        """Send *frame*, or queue it behind what the peer has not taken."""
        if self.is_closed:
            return
        if self.unsent_bytes + len(frame) > STREAM_UNSENT_BYTES_MAX:
            self.close_because(_MISSES_EVENTS)
        else:
            self._put([frame])

    # --- sending ------------------------------------------------------------------------

    def _put(self, parts: list[bytes]) -> None:
        self._unsent.extend(parts)
        self.unsent_bytes += sum(len(part) for part in parts)
        if not self._is_writing:
            self._send()

    def _send(self) -> None:
        """Send as much as the peer takes, up to a turn's share."""
        unsent = self._unsent
        had_bytes = self.unsent_bytes
        is_gone = False
        try:
            while unsent and had_bytes - self.unsent_bytes < _TURN_BYTES:
                first, begin = unsent[0], self._sent_of_first
                piece = first
                if begin or len(first) > _SEND_BYTES:
                    piece = first[begin : begin + _SEND_BYTES]
                sent = self.transport.send_now(piece)
                self.unsent_bytes -= sent
                self._sent_of_first += sent
                if self._sent_of_first == len(first):
                    unsent.popleft()
                    self._sent_of_first = 0
                if sent < len(piece):
                    break
        except NETWORK_ERRORS:  # As in `readable`.
            is_gone = True
        if is_gone:
            self.close()
            return
        if not unsent:
            self._all_sent()
            return
        if self.unsent_bytes < had_bytes or not self._is_writing:
            # `_answer_ms` has the least rate.
            self.deadlines.sending(self.unsent_bytes, None, self._owner.now().mono_ms)
        if not self._is_writing:
            self._want(reading=self._is_reading, writing=True)
            self._owner.waits(self)

    def _all_sent(self) -> None:
        if self._is_writing:
            self._want(reading=self._is_reading, writing=False)
            self._owner.waits_no_more(self)
        if self._stream is not None:
            return
        if self._dropped_bytes is not None:
            self._want(reading=True, writing=False)
            self._answer_ms = self._owner.now().mono_ms + _DROP_TIMEOUT_MS
        elif self._is_last:
            self.close()
        else:
            self._request = None
            self.route_name = OTHER
            self._http.start_next_cycle()
            self.deadlines.between_frames(self._owner.now().mono_ms)
            self._want(reading=True, writing=False)
            if self._http.trailing_data[0]:
                self._owner.poller.call_soon(self._go_on, self)

    def _go_on(self) -> None:
        """Take what an earlier read has brought, unless a later one came first."""
        if not (self.is_closed or self._is_asked or self._dropped_bytes is not None):
            self._next()

    def fail(self, exception: str) -> None:
        """Report a bug in work for this connection, which ends."""
        report(self._owner.telemetry, "http", self.transport.peer, exception)
        self.close(FAILED)

    def _want(self, *, reading: bool, writing: bool) -> None:
        self._is_reading, self._is_writing = reading, writing
        self.transport.want(reading=reading, writing=writing)

    # --- the end --------------------------------------------------------------------------

    def close_if_overdue(self, now_ms: int) -> None:
        """End the connection if its peer should have done something by now, and say why."""
        end = self._overdue(now_ms)
        if end is not None:
            self.close_because(end)

    def _overdue(self, now_ms: int) -> End | None:
        if self._is_writing:
            if now_ms >= self.deadlines.send_ms:
                return TAKES_NOTHING
            if self._stream is None and now_ms >= self._answer_ms:
                return _TAKES_TOO_LITTLE
            return None
        if self._dropped_bytes is not None:
            return _REFUSED if now_ms >= self._answer_ms else None
        if self._is_asked or now_ms < self.deadlines.read_ms:
            return None
        return UNFINISHED if self.deadlines.is_reading_frame else IDLE

    def close_because(self, end: End) -> None:
        """End the connection, and say why in the log unless that happens all the time."""
        if end not in _USUAL:
            self._owner.warn("connection.closed", self.transport.peer, reason=end.reason)
        self.close(end.counted_as)

    def close(self, why: str = PEER) -> None:
        """End the connection, and the stream on it. Idempotent.

        Whose request was refused as a whole has ended for that, whatever came after. Each step is
        taken, even if one before it fails.
        """
        if self.is_closed:
            return
        self.is_closed = True
        attempt(self, self.transport.close)
        self._unsent.clear()
        self.unsent_bytes = 0
        attempt(self, self._owner.forget, self, why if self._dropped_bytes is None else MALFORMED)
        stream, self._stream = self._stream, None
        if stream is not None:
            attempt(self, stream.end, self)


def _refusal_of_head(request: h11.Request) -> Refused | None:
    """Return why nothing more is taken after this head, or None."""
    if request.http_version not in _VERSIONS:
        return Refused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1.0 and 1.1 are spoken")
    method = request.method.decode("ascii")
    if method not in METHODS:
        return Refused(
            HTTPStatus.METHOD_NOT_ALLOWED,
            "what is shown is read-only, but for the log-in: GET, HEAD and POST",
            headers={"allow": ", ".join(sorted(METHODS))},
        )
    head_bytes = len(request.target)
    most = BODY_BYTES_MAX if method == POST else 0
    for name, value in request.headers:
        head_bytes += len(name) + len(value) + 4
        if name == b"transfer-encoding" or (name == b"content-length" and int(value) > most):
            detail = f"a body here has at most {most} bytes" if most else "a GET has no body here"
            return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, detail)
    if head_bytes > HEAD_BYTES_MAX:
        return Refused(
            HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
            f"the head of the request has more than {HEAD_BYTES_MAX} bytes",
        )
    return None
