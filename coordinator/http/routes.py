"""Requests and answers of the HTTP listener, and who answers which path. Pure."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One GET or HEAD.

    Attributes:
        path: As it came, without the query; for `Refused` and the log.
        names: What stands in the braces of the route's template, decoded.
        query: Each parameter with its values, in their order.
        headers: By lower-case name; a repeated one is joined by commas.
    """

    path: str
    names: Mapping[str, str]
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A whole answer; `connection` adds length, date and the headers that every answer has.

    Attributes:
        body: In parts that are sent as they are, so that a long one is never joined.
        etag: With quotes; a request that has it already gets 304 and no body.
    """

    status: int = 200
    content_type: str = "application/json"
    body: Sequence[bytes] = ()
    etag: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class EventStream(Protocol):
    """The peer of one open event stream."""

    def send(self, frame: bytes) -> None:
        """Queue whole frames; ends the stream where too much waits already."""

    @property
    def is_open(self) -> bool:
        """Whether anybody is there."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """An answer that goes on: *begin* is called once its head is queued, *end* when it is over."""

    begin: Callable[[EventStream], None]
    end: Callable[[EventStream], None]


class Refused(Exception):
    """The request can't be answered; becomes a problem in JSON (RFC 9457)."""

    def __init__(self, status: int, detail: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s


Handler = Callable[[HttpRequest], Awaitable[Answer | Streaming]]


@dataclass(frozen=True, slots=True)
class Route:
    """*template* such as ``/api/v1/groups/{group}``; a name is one segment, slashes encoded."""

    template: str
    handler: Handler
    is_quick: bool = False  # It never waits, and so needs no turn: health, the page's files.


Pause = Callable[[], Awaitable[None]]  # Of `pace.Pace`: call it after each tenth of a millisecond.
