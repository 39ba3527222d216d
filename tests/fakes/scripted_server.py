"""A coordinator that says what a test tells it to, over in-memory streams.

Without a script it behaves like a coordinator whose groups have one member each.
"""

import re
import ssl
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import trio
import trio.testing

from coordinator.security.sasl import Authenticator, LogIn
from protocol import messages as m
from protocol.connection import (
    BadRequest,
    RequestEvent,
    ServerConnection,
    encode_response,
    throttled,
)
from protocol.errors import ErrorCode
from protocol.messages import APIS, error_response

MEMBER_ID = "client-1"


class Answer(NamedTuple):
    """Answer with *what*: a response, or a code in the request's full shape."""

    what: m.Response | int
    leader_epoch: int = -1
    throttle_time_ms: int = 0
    correlation_shift: int = 0


class Hang(NamedTuple):
    """Take the request and never answer."""


class Drop(NamedTuple):
    """Close the connection instead of answering; *applied* says whether it was done before."""

    applied: bool = True


class Hold(NamedTuple):
    """Answer only once *until* is set, with *what* or as without a script."""

    until: trio.Event
    what: m.Response | None = None


class Raw(NamedTuple):
    """Send these bytes."""

    data: bytes


Step = Answer | Hang | Drop | Hold | Raw


@dataclass(slots=True)
class Seen:
    """One request as it came."""

    connection: int
    request: m.Request
    api_version: int
    at_s: float


class _TlsStream(trio.abc.Stream):
    """A server's end, which tells the client by an alert why it closes; trio's own doesn't."""

    def __init__(self, inner: trio.SSLStream[trio.abc.Stream]) -> None:
        self._inner = inner

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive."""
        try:
            return await self._inner.receive_some(max_bytes)
        except trio.BrokenResourceError:
            await self._inner.transport_stream.send_all(self._inner._outgoing.read())
            raise

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send."""
        await self._inner.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """Wait."""
        await self._inner.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        """Close."""
        await self._inner.aclose()


class ScriptedServer:
    """One node. `script` takes steps for the next requests of a kind."""

    def __init__(self, address: tuple[str, int] = ("node1", 9310)) -> None:
        self.address = address
        self.coordinator = address
        self.seen: list[Seen] = []
        self.connections = 0
        self.open_connections = 0
        self.unreachable = False
        self.offsets: dict[tuple[str, str, int], m.PartitionOffset] = {}
        self.topics: dict[str, m.TopicRegistration] = {}
        self.generation = 0
        self.versions = {key: (0, api.max_version) for key, api in APIS.items()}
        self.cluster_id = "scripted-cluster"
        self.max_request_bytes = 1024 * 1024
        self.streams: list[trio.abc.Stream] = []
        self.tls: ssl.SSLContext | None = None
        self.authenticator: Authenticator | None = None
        self.log_ins: list[LogIn] = []
        self._steps: dict[type, deque[Step]] = defaultdict(deque)

    def script(self, kind: type, *steps: Step | int) -> None:
        """Do *steps* about the next requests of *kind*; a number is an error code."""
        self._steps[kind].extend(Answer(step) if isinstance(step, int) else step for step in steps)

    def forget_script(self) -> None:
        """Answer as a coordinator does from now on."""
        self._steps.clear()

    def requests(self, *kinds: type) -> list[Any]:
        """Return what came, of *kinds* only if any are given."""
        return [seen.request for seen in self.seen if not kinds or type(seen.request) in kinds]

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until it ends."""
        self.connections += 1
        self.open_connections += 1
        if self.tls is not None:
            stream = _TlsStream(
                trio.SSLStream(stream, self.tls, server_side=True, https_compatible=True)
            )
        self.streams.append(stream)
        log_in = None if self.authenticator is None else LogIn(self.authenticator)
        if log_in is not None:
            self.log_ins.append(log_in)
        number = self.connections
        protocol = ServerConnection(RequestEvent)
        sending = trio.Lock()
        try:
            async with stream, trio.open_nursery() as nursery:
                while data := await stream.receive_some():
                    for event in protocol.receive(bytes(data)):
                        assert not isinstance(event, BadRequest), event
                        self.seen.append(
                            Seen(
                                number,
                                event.request,
                                event.dialect.api_version,
                                trio.current_time(),
                            )
                        )
                        steps = self._steps[type(event.request)]
                        step = steps.popleft() if steps else None
                        if step is None and log_in is not None:
                            step = self._of_a_log_in(event.request, log_in)
                        nursery.start_soon(self._perform, event, step, stream, sending)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.open_connections -= 1

    def _of_a_log_in(self, request: m.Request, log_in: LogIn) -> Step | None:
        """Return what to answer because of who asks; None: what anybody gets."""
        wall_ms = round(trio.current_time() * 1000)
        match request:
            case m.SaslHandshakeRequest():
                return Answer(log_in.handshake(request))
            case m.SaslAuthenticateRequest():
                return Answer(log_in.authenticate(request, wall_ms))
            case m.ApiVersionsRequest():
                return None
            case _ if log_in.principal is None:
                return Answer(ErrorCode.ILLEGAL_SASL_STATE)
            case _ if log_in.ends_wall_ms is not None and wall_ms >= log_in.ends_wall_ms:
                return Answer(ErrorCode.SASL_AUTHENTICATION_FAILED)
            case _:
                return None

    async def _perform(
        self,
        event: RequestEvent,
        step: Step | None,
        stream: trio.abc.Stream,
        sending: trio.Lock,
    ) -> None:
        answer: Answer | None = None
        match step:
            case Answer():
                answer = step
            case Hang():
                return
            case Drop():
                if step.applied:
                    self.handle(event.request)
                await stream.aclose()
                return
            case Raw():
                async with sending:
                    await stream.send_all(step.data)
                return
            case Hold():
                await step.until.wait()
                answer = None if step.what is None else Answer(step.what)
        answer = answer or Answer(self.handle(event.request))
        what = answer.what
        response = error_response(event.request, what) if isinstance(what, int) else what
        correlation_id = event.correlation_id + answer.correlation_shift
        data = encode_response(event.dialect, correlation_id, response, answer.leader_epoch)
        async with sending:
            await stream.send_all(throttled(data, answer.throttle_time_ms))

    def handle(self, request: m.Request) -> m.Response:
        """Answer like a coordinator whose groups have one member each."""
        table: dict[type, Callable[[Any], m.Response]] = {
            m.ApiVersionsRequest: self._api_versions,
            m.FindCoordinatorRequest: self.find,
            m.JoinGroupRequest: self._join,
            m.SyncGroupRequest: self._sync,
            m.HeartbeatRequest: lambda _: m.HeartbeatResponse(0),
            m.LeaveGroupRequest: lambda r: m.LeaveGroupResponse(
                0, tuple(m.LeftMember(one.member_id, None, 0) for one in r.members)
            ),
            m.OffsetCommitRequest: self._commit,
            m.OffsetFetchRequest: lambda r: m.OffsetFetchResponse(
                tuple(self._fetch(one) for one in r.groups)
            ),
            m.DrainMemberRequest: lambda _: m.DrainMemberResponse(
                0, (m.DrainedMember(MEMBER_ID, drained=True),)
            ),
            m.ListGroupsRequest: lambda _: m.ListGroupsResponse(
                0, (m.ListedGroup("g", "", "Empty", "classic"),)
            ),
            m.DescribeGroupsRequest: lambda r: m.DescribeGroupsResponse(
                tuple(m.DescribedGroup(0, None, g, "Empty", "", "", -1, ()) for g in r.group_ids)
            ),
            m.DeleteGroupsRequest: lambda r: m.DeleteGroupsResponse(
                tuple(m.DeletedGroup(group, 0) for group in r.group_ids)
            ),
            m.RegisterTopicsRequest: self._register,
            m.DeleteTopicsRequest: lambda r: m.DeleteTopicsResponse(
                0,
                tuple(
                    m.DeletedTopic(name, 3 if self.topics.pop(name, None) is None else 0)
                    for name in r.topics
                ),
            ),
            m.DescribeTopicsRequest: self._describe_topics,
        }
        return table[type(request)](request)

    def _register(self, request: m.RegisterTopicsRequest) -> m.RegisterTopicsResponse:
        for one in request.topics:
            self.topics[one.topic] = one
        return m.RegisterTopicsResponse(
            0,
            tuple(
                m.RegisteredTopic(one.topic, 0, None, one.partition_count) for one in request.topics
            ),
        )

    def _describe_topics(self, request: m.DescribeTopicsRequest) -> m.DescribeTopicsResponse:
        if request.topics is None:
            names = [
                name
                for name in sorted(self.topics)
                if name > request.start_after
                and (request.pattern is None or re.fullmatch(request.pattern, name))
            ]
        else:
            names = list(request.topics)
        page = names[: request.max_topics]
        return m.DescribeTopicsResponse(
            0, None, tuple(map(self._described, page)), has_more=len(page) < len(names)
        )

    def _described(self, name: str) -> m.DescribedTopic:
        found = self.topics.get(name)
        if found is None:
            return m.DescribedTopic(name, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, (), ())
        return m.DescribedTopic(name, 0, found.partition_count, found.hosts or (), ())

    def _api_versions(self, _: m.ApiVersionsRequest) -> m.ApiVersionsResponse:
        apis = tuple(
            m.ApiVersionRange(key, low, high) for key, (low, high) in sorted(self.versions.items())
        )
        return m.ApiVersionsResponse(
            0, apis, "scripted/1", self.cluster_id, 1, self.max_request_bytes
        )

    def find(self, request: m.FindCoordinatorRequest) -> m.FindCoordinatorResponse:
        """Name the coordinator of each group."""
        host, port = self.coordinator
        return m.FindCoordinatorResponse(
            tuple(
                m.CoordinatorOfGroup(group, 0, None, 1, host, port, 0, -1)
                for group in request.group_ids
            )
        )

    def _sync(self, request: m.SyncGroupRequest) -> m.SyncGroupResponse:
        mine = [a.assignment for a in request.assignments if a.member_id == MEMBER_ID]
        return m.SyncGroupResponse(0, "consumer", request.protocol_name, mine[0] if mine else b"")

    def _join(self, request: m.JoinGroupRequest) -> m.JoinGroupResponse:
        if not request.member_id:
            return m.JoinGroupResponse(
                ErrorCode.MEMBER_ID_REQUIRED, -1, None, None, "", False, MEMBER_ID, ()
            )
        self.generation += 1
        protocol = request.protocols[0]
        members = (m.JoinGroupMember(request.member_id, None, protocol.metadata),)
        return m.JoinGroupResponse(
            0,
            self.generation,
            "consumer",
            protocol.name,
            request.member_id,
            False,
            request.member_id,
            members,
        )

    def _commit(self, request: m.OffsetCommitRequest) -> m.OffsetCommitResponse:
        for topic in request.topics:
            for entry in topic.partitions:
                self.offsets[request.group_id, topic.topic, entry.partition] = m.PartitionOffset(
                    entry.partition, entry.offset, entry.leader_epoch, entry.metadata or "", 0
                )
        return m.OffsetCommitResponse(
            0,
            tuple(
                m.TopicResult(
                    topic.topic,
                    tuple(m.PartitionResult(entry.partition, 0) for entry in topic.partitions),
                )
                for topic in request.topics
            ),
        )

    def _fetch(self, fetch: m.GroupFetch) -> m.GroupOffsets:
        if fetch.topics is None:
            wanted = [key[1:] for key in self.offsets if key[0] == fetch.group_id]
        else:
            wanted = [(topic.topic, p) for topic in fetch.topics for p in topic.partitions]
        topics: dict[str, list[m.PartitionOffset]] = defaultdict(list)
        for topic_name, partition in wanted:
            nothing = m.PartitionOffset(partition, -1, -1, "", 0)
            found = self.offsets.get((fetch.group_id, topic_name, partition), nothing)
            topics[topic_name].append(found)
        return m.GroupOffsets(
            fetch.group_id,
            0,
            tuple(m.TopicOffsets(name, tuple(entries)) for name, entries in topics.items()),
        )


class Network:
    """Connects clients with servers by address. `open_stream` goes into `connect`."""

    def __init__(self, nursery: trio.Nursery, servers: Iterable[ScriptedServer]) -> None:
        self._nursery = nursery
        self.servers = {server.address: server for server in servers}
        self.asked: list[tuple[str, int]] = []
        self.wrap: Callable[[trio.abc.Stream], trio.abc.Stream] = lambda stream: stream

    async def open_stream(self, host: str, port: int) -> trio.abc.Stream:
        """Connect, or raise OSError."""
        self.asked.append((host, port))
        await trio.lowlevel.checkpoint()
        server = self.servers.get((host, port))
        if server is None or server.unreachable:
            raise ConnectionRefusedError(f"nobody listens on {host}:{port}")
        ours, theirs = trio.testing.memory_stream_pair()
        self._nursery.start_soon(server.serve, theirs)
        return self.wrap(ours)


def group_requests(server: ScriptedServer) -> list[str]:
    """Return the kinds of requests about groups in the order in which they came."""
    return [
        type(request).__name__.removesuffix("Request")
        for request in server.requests()
        if not isinstance(request, m.ApiVersionsRequest | m.FindCoordinatorRequest)
    ]
