"""Requests and answers of the HTTP listener, and who answers which path. Pure."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol
from urllib.parse import urlencode

from coordinator.http.viewer import Connection, Viewer
from coordinator.names import shortened
from protocol.errors import ErrorCode

GET: Final = "GET"
HEAD: Final = "HEAD"
POST: Final = "POST"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One GET or HEAD, or one POST with its body.

    Attributes:
        path: As it came, without the query.
        names: What stands in the braces of the route's template, decoded.
        query: Each parameter with its values, in their order.
        headers: By lower-case name; a repeated one is joined by commas.
        viewer: Who asks; of a route that is open to everybody, nobody in particular.
        connection: What it came by.
    """

    path: str
    names: Mapping[str, str]
    query: Mapping[str, Sequence[str]]
    headers: Mapping[str, str]
    viewer: Viewer
    connection: Connection
    body: bytes = b""

    @property
    def target(self) -> str:
        """The path with the query."""
        return self.path + (f"?{urlencode(self.query, doseq=True)}" if self.query else "")

    def need_cluster(self) -> None:
        """Raise Refused if the viewer doesn't see the node."""
        if not self.viewer.sees_cluster:
            words = f"{self.viewer.principal} needs DESCRIBE of the cluster for this"
            raise NotAllowed(words, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def need_group(self, group_id: str) -> None:
        """Raise Refused if the viewer knows of a group, and may see no more of it than that."""
        viewer = self.viewer
        if viewer.sees_cluster and not viewer.sees_group(group_id):
            group = shortened(group_id)
            words = f"{viewer.principal} needs DESCRIBE of group {group} for this"
            raise NotAllowed(words, ErrorCode.GROUP_AUTHORIZATION_FAILED)


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

    def end(self, reason: str) -> None:
        """End it, from this side."""

    def fail(self, exception: str) -> None:
        """End it, as work for it had a bug: see `bulkhead.Owner`."""


@dataclass(frozen=True, slots=True)
class Streaming:
    """An answer that goes on: *begin* is called once its head is queued, *end* when it is over."""

    begin: Callable[[EventStream], None]
    end: Callable[[EventStream], None]


class Refused(Exception):
    """The request can't be answered; becomes a problem in JSON (RFC 9457)."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        retry_after_s: int | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(detail)
        self.headers = headers
        self.status = status
        self.detail = detail
        self.retry_after_s = retry_after_s


class NotKnown(Refused):
    """Whoever asks doesn't say who he is: 401."""

    def __init__(self, detail: str, *, headers: Mapping[str, str]) -> None:
        super().__init__(401, detail, headers=headers)


class NotAllowed(Refused):
    """No rule allows it to whoever asks: 403. A client would have heard *error*."""

    def __init__(self, detail: str, error: ErrorCode) -> None:
        super().__init__(403, detail)
        self.error = error


Handler = Callable[[HttpRequest], Awaitable[Answer | Streaming]]


@dataclass(frozen=True, slots=True)
class Route:
    """*template* such as ``/api/v1/groups/{group}``; a name is one segment, slashes encoded.

    A segment can't carry every name: browsers take ``..`` for a step up, however it is encoded.
    """

    template: str
    handler: Handler
    is_quick: bool = False  # It never waits, and so needs no turn: health, the page's files.
    is_open: bool = False  # To everybody, whoever he is: the same, and the log-in.
    method: str = GET  # A GET is a HEAD, too.


Pause = Callable[[], Awaitable[None]]  # Of `pace.Pace`: call it after each tenth of a millisecond.
