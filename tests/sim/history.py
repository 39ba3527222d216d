"""What clients asked and what they were told, in the order in which it happened.

Every request on the wire is an `Attempt`: invoked when the client hands it to its stream, ended
when the answer is there, or else when the server can no longer decide it. Numbers of events, not
virtual times, give the order: much happens in the same virtual instant, but never at once.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from protocol.connection import (
    BadRequest,
    ClientConnection,
    FrameTooLarge,
    RequestEvent,
    ServerConnection,
)
from protocol.errors import ERRORS, Applied, ErrorCode, RemoteProtocolError
from protocol.messages import (
    ApiVersionsRequest,
    OffsetCommitRequest,
    OffsetCommitResponse,
    Request,
    Response,
)

Key = tuple[str, str, int]  # Group, topic, partition.


class Outcome(Enum):
    """What is known of a request's effect."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


def outcome_of(code: int) -> Outcome:
    """Return what *code* says; a code that is not in the table says nothing."""
    try:
        applied = ERRORS[ErrorCode(code)].applied
    except ValueError:
        return Outcome.INFO
    return {Applied.YES: Outcome.OK, Applied.NO: Outcome.FAIL, Applied.UNKNOWN: Outcome.INFO}[
        applied
    ]


@dataclass(slots=True, eq=False)
class Attempt:
    """One request on the wire."""

    client: str
    connection: int
    request: Request
    invoked: int
    response: Response | None = None
    ended: int | None = None  # None: the server may still decide it.
    invoked_s: float = 0.0


@dataclass(slots=True)
class Claim:
    """What the client library told its user about one partition of one commit."""

    key: Key
    metadata: str
    outcome: Outcome


class History:
    """Everything that happened, and a hash of it.

    Attributes:
        tells_principals: Whether each client has said who it is.
    """

    def __init__(
        self, now_s: Callable[[], float] = lambda: 0.0, *, keep_lines: bool = False
    ) -> None:
        self.attempts: list[Attempt] = []
        self.claims: list[Claim] = []
        self.garbage: list[str] = []  # Answers that break the protocol.
        self.lines: list[str] = []
        self.now_s = now_s
        self.tells_principals = False
        self._keep_lines = keep_lines
        self._events = 0
        self._hash = hashlib.sha256()

    @property
    def trace_hash(self) -> str:
        """The same for two runs only if the same happened in the same order at the same time."""
        return self._hash.hexdigest()

    @property
    def commits(self) -> list[Attempt]:
        """What was asked to commit."""
        return [one for one in self.attempts if isinstance(one.request, OffsetCommitRequest)]

    @property
    def acknowledged(self) -> int:
        """How many of these were answered 0."""
        answers = [commit.response for commit in self.commits]
        return sum(isinstance(one, OffsetCommitResponse) and one.error == 0 for one in answers)

    def note(self, kind: str, *fields: object) -> int:
        """Put an event into the trace; return its number."""
        self._events += 1
        line = f"{self._events} {self.now_s():.6f} {kind} {fields!r}"
        self._hash.update(line.encode())
        if self._keep_lines:
            self.lines.append(line)
        return self._events

    def invoke(self, client: str, connection: int, request: Request) -> Attempt:
        """A client sends a request."""
        number = self.note("invoke", client, connection, request)
        attempt = Attempt(client, connection, request, number, invoked_s=self.now_s())
        self.attempts.append(attempt)
        return attempt

    def answer(self, attempt: Attempt, response: Response) -> None:
        """A client has its answer."""
        attempt.ended = self.note("answer", attempt.client, attempt.connection, response)
        attempt.response = response

    def lose(self, attempt: Attempt) -> None:
        """From here on the server can't decide the request any more; its effect is unknown."""
        attempt.ended = self.note("lost", attempt.client, attempt.connection)

    def claim(self, key: Key, metadata: str, outcome: Outcome) -> None:
        """The client library told its user what became of a commit."""
        self.note("claim", key, metadata, outcome.value)
        self.claims.append(Claim(key, metadata, outcome))


class Tap:
    """Listens in on one connection at the client's end."""

    def __init__(self, history: History, number: int, client: str) -> None:
        self._history = history
        self._number = number
        self._client = client
        self._requests = ServerConnection(RequestEvent)
        self._responses = ClientConnection()
        self._open: dict[int, Attempt] = {}
        self._is_deaf = False  # The client broke the protocol; what follows is nobody's request.

    @property
    def open_attempts(self) -> list[Attempt]:
        """What waits for an answer."""
        return list(self._open.values())

    def sent(self, data: bytes) -> None:
        """The client sends *data*."""
        if self._is_deaf:
            return
        try:
            events = self._requests.receive(data)
        except FrameTooLarge:
            self._is_deaf = True
            return
        for event in events:
            self._requested(event)

    def _requested(self, event: RequestEvent | BadRequest) -> None:
        correlation_id = event.correlation_id
        in_flight = self._responses._in_flight
        if isinstance(event, BadRequest):
            # Its answer is a bare error, which reads alike whatever was asked.
            in_flight[correlation_id] = (ApiVersionsRequest("", "", ""), 0)
            self._is_deaf = self._is_deaf or event.close
            return
        in_flight[correlation_id] = (event.request, event.dialect.api_version)
        attempt = self._history.invoke(self._client, self._number, event.request)
        self._open[correlation_id] = attempt

    def received(self, data: bytes) -> None:
        """The client reads *data*."""
        try:
            events = self._responses.receive(data)
        except RemoteProtocolError as exc:
            self._history.garbage.append(f"connection {self._number}: {exc}")
            return
        for event in events:
            attempt = self._open.pop(event.correlation_id, None)
            if attempt is not None and attempt.ended is None:
                self._history.answer(attempt, event.response)
            elif attempt is not None:
                # It came while the connection was closing: as good as an answer.
                attempt.response = event.response
                attempt.ended = self._history.note("answer", self._client, event.response)

    def server_closed(self) -> None:
        """The server's end is closed; answers that are under way may still arrive."""
        for attempt in self._open.values():
            self._history.lose(attempt)
