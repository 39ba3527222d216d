"""What the load generator sends, and how it judges the first answers."""

import socket
from collections.abc import Iterator
from threading import Thread

import pytest

from bench.dialects import (
    COMMIT,
    DIALECTS,
    FETCH,
    FIRST_OFFSET,
    HEARTBEAT,
    WORKLOADS,
    CoordinatorDialect,
    DialectError,
    EchoDialect,
    Exchange,
    Load,
)
from protocol.connection import RequestEvent, encode_response
from protocol.messages import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    GroupFetch,
    GroupOffsets,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionOffset,
    PartitionResult,
    Request,
    Response,
    SyncGroupRequest,
    SyncGroupResponse,
    TopicOffsets,
    TopicResult,
)
from tests.fakes.named import NamedServerConnection


class Shop:
    """A coordinator in a few lines: it keeps offsets, and gives every group to its only member."""

    def __init__(self, *, commit_error: int = 0) -> None:
        self.offsets: dict[tuple[str, int], int] = {}
        self.commit_error = commit_error
        self.seen: list[Request] = []

    def answer(self, request: Request) -> Response:
        """Answer one request."""
        self.seen.append(request)
        match request:
            case ApiVersionsRequest():
                return ApiVersionsResponse(0, (), "shop", "cluster", 0, 1 << 20)
            case JoinGroupRequest(member_id=""):
                return JoinGroupResponse(79, -1, None, None, "", False, "m-1", ())
            case JoinGroupRequest():
                return JoinGroupResponse(0, 1, "bench", "alone", "m-1", False, "m-1", ())
            case SyncGroupRequest():
                return SyncGroupResponse(0, "bench", "alone", b"everything")
            case HeartbeatRequest():
                return HeartbeatResponse(0)
            case OffsetCommitRequest(group_id, _, _, _, topics):
                for commit in topics[0].partitions:
                    self.offsets[group_id, commit.partition] = commit.offset
                results = tuple(
                    PartitionResult(c.partition, self.commit_error) for c in topics[0].partitions
                )
                return OffsetCommitResponse(0, (TopicResult(topics[0].topic, results),))
            case OffsetFetchRequest(groups):
                return OffsetFetchResponse(tuple(self._fetch(group) for group in groups))
        raise AssertionError(request)

    def _fetch(self, fetch: GroupFetch) -> GroupOffsets:
        assert fetch.topics is not None
        return GroupOffsets(
            fetch.group_id,
            0,
            tuple(
                TopicOffsets(
                    wanted.topic,
                    tuple(
                        PartitionOffset(p, self.offsets.get((fetch.group_id, p), -1), -1, "", 0)
                        for p in wanted.partitions
                    ),
                )
                for wanted in fetch.topics
            ),
        )

    def serve(self, sock: socket.socket) -> None:
        """Answer until the other end closes."""
        connection = NamedServerConnection()
        while data := sock.recv(1 << 16):
            for event in connection.receive(data):
                assert isinstance(event, RequestEvent)
                sock.sendall(
                    encode_response(
                        event.correlation_id,
                        self.answer(event.request),
                        api_key=event.api_key,
                        api_version=event.api_version,
                    )
                )
        sock.close()


@pytest.fixture
def shop() -> Shop:
    """A server that does as asked."""
    return Shop()


@pytest.fixture
def sock(shop: Shop) -> Iterator[socket.socket]:
    """A blocking socket with the shop at its other end."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    thread = Thread(target=shop.serve, args=(theirs,))
    thread.start()
    yield ours
    ours.close()
    thread.join(60)


def requests_of(exchanges: list[Exchange]) -> list[RequestEvent]:
    """Read back what the exchanges would send, as a server does."""
    connection = NamedServerConnection()
    events = connection.receive(b"".join(exchange.next_request() for exchange in exchanges))
    read = [event for event in events if isinstance(event, RequestEvent)]
    assert len(read) == len(exchanges)
    return read


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_dialect_sends_valid_requests_numbered_by_slot(
    workload: str, sock: socket.socket
) -> None:
    """The slot is the correlation id, by which answers find their send time."""
    for name in DIALECTS:
        dialect = DIALECTS[name](Load(workload, window=3, partitions=2, run="r"))
        events = requests_of(dialect.prepare(sock, 5))
        assert [event.correlation_id for event in events] == [0, 1, 2]


@pytest.mark.parametrize("workload", [COMMIT, FETCH])
def test_the_echo_gets_the_same_frames_as_the_coordinator(
    workload: str, sock: socket.socket
) -> None:
    """A ceiling for smaller frames would be no ceiling."""
    load = Load(workload, window=2, partitions=100, run="r")
    real = CoordinatorDialect(load).prepare(sock, 1)
    echo = EchoDialect(load).prepare(sock, 1)
    assert [e.request for e in real] == [e.request for e in echo]


def test_each_commit_carries_a_new_offset_for_its_first_partition(sock: socket.socket) -> None:
    """The same offset again and again would let a server do less than it must."""
    load = Load(COMMIT, window=1, partitions=3, run="r")
    exchanges = CoordinatorDialect(load).prepare(sock, 0)
    sent = [requests_of(exchanges)[0].request for _ in range(3)]
    offsets = [
        [p.offset for p in request.topics[0].partitions]
        for request in sent
        if isinstance(request, OffsetCommitRequest)
    ]
    others = [FIRST_OFFSET + (1 << 32), FIRST_OFFSET + (2 << 32)]
    assert offsets == [[FIRST_OFFSET + n, *others] for n in (1, 2, 3)]


def test_groups_are_never_shared_between_connections_and_slots(sock: socket.socket) -> None:
    """One commit in flight per group, and groups that spread over the offsets partitions."""
    dialect = CoordinatorDialect(Load(COMMIT, window=4, partitions=1, run="r"))
    groups = {
        event.request.group_id
        for number in range(3)
        for event in requests_of(dialect.prepare(sock, number))
        if isinstance(event.request, OffsetCommitRequest)
    }
    assert len(groups) == 12


def test_a_heartbeat_is_that_of_a_real_member(sock: socket.socket) -> None:
    """Anything else would measure how fast the server says no."""
    dialect = CoordinatorDialect(Load(HEARTBEAT, window=1, partitions=1, run="r"))
    event = requests_of(dialect.prepare(sock, 0))[0]
    assert event.request == HeartbeatRequest("bench-r-000-000", 1, "m-1", None)


def test_a_first_answer_with_an_error_stops_the_run(shop: Shop, sock: socket.socket) -> None:
    """All later answers are compared with it: it must be right itself."""
    shop.commit_error = 1004
    with pytest.raises(DialectError, match="1004"):
        CoordinatorDialect(Load(COMMIT, window=2, partitions=1, run="r")).prepare(sock, 0)


def test_commits_that_were_not_kept_are_found_afterwards(shop: Shop, sock: socket.socket) -> None:
    """An acknowledgement without the commit is no throughput."""
    dialect = CoordinatorDialect(Load(COMMIT, window=3, partitions=2, run="r"))
    exchanges = dialect.prepare(sock, 0)
    assert dialect.differences(sock, 0, exchanges) == 0
    exchanges[1].next_request()  # As if it had been sent and acknowledged.
    assert dialect.differences(sock, 0, exchanges) == 1
    shop.offsets.clear()
    assert dialect.differences(sock, 0, exchanges) == 3
