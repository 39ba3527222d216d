"""Frames in any pieces, a client that distrusts the server, a server that answers what it must."""

import itertools
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from protocol.connection import (
    DIALECTS,
    REQUEST_HEADER,
    RESPONSE_HEADER,
    RESPONSE_HEADER_BYTES,
    SIZE,
    BadRequest,
    ClientConnection,
    FrameTooLarge,
    RequestEvent,
    ServerConnection,
    encode_error,
    encode_response,
)
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.messages import (
    APIS,
    AlterGroupRetentionRequest,
    AlterGroupRetentionResponse,
    ApiKey,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BareError,
    DeletedGroup,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinProtocol,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberAssignment,
    OffsetCommitRequest,
    PartitionCommit,
    Request,
    Response,
    SyncGroupRequest,
    TopicCommit,
)
from tests.protocol.examples import EXAMPLES
from tests.protocol.frames import frame_of, received, request_frame
from tests.protocol.invalid import CLOSE, INVALID_REQUESTS

BEAT = HeartbeatRequest("g", 1, "m", None)
LIST = ListGroupsRequest((), ())
KEEP = AlterGroupRetentionRequest("g", -1)


def answer(correlation_id: int, *body: Any) -> bytes:
    """Return a response frame around *body*."""
    packed: bytes = msgpack.packb(body)
    size = RESPONSE_HEADER_BYTES + len(packed)
    return RESPONSE_HEADER.pack(size, correlation_id, 0, -1) + packed


def asked(
    request: Request, version: int | None = None, **limits: int
) -> tuple[ClientConnection, int]:
    """Return a client that has sent *request*, and the correlation id."""
    client = ClientConnection(**limits)
    return client, client.send(request, version)[0]


def test_answers_may_come_in_any_order() -> None:
    """A parked JoinGroup must not hold up the heartbeat behind it."""
    client = ClientConnection()
    first, _ = client.send(BEAT)
    second, _ = client.send(LIST)
    events = client.receive(answer(second, 0, []) + answer(first, 27, None))

    assert [(e.correlation_id, e.response) for e in events] == [
        (second, ListGroupsResponse(0, ())),
        (first, HeartbeatResponse(27)),
    ]


def test_an_unknown_correlation_id_ends_the_connection() -> None:
    """Nothing on it can be trusted any more (row 52)."""
    client, correlation_id = asked(BEAT)

    with pytest.raises(RemoteProtocolError, match="correlation id"):
        client.receive(answer(correlation_id + 1, 0))


def test_a_second_answer_to_the_same_request_ends_the_connection() -> None:
    """Every request gets exactly one."""
    client, correlation_id = asked(BEAT)
    client.receive(answer(correlation_id, 0, None))

    with pytest.raises(RemoteProtocolError, match="correlation id"):
        client.receive(answer(correlation_id, 0, None))


@pytest.mark.parametrize("size", [0, 11, 1_001, 2**32 - 1])
def test_a_response_of_a_wrong_size_ends_the_connection(size: int) -> None:
    """It is refused by its first four bytes, before anything is buffered."""
    client, _ = asked(BEAT, max_response_bytes=1_000)

    with pytest.raises(RemoteProtocolError):
        client.receive(size.to_bytes(4, "big"))


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x92\x00", b"\x90", b"\x91\xc0", b"\x91\x00\x00", b"\x80", b"\x91\xc3"]
)
def test_a_response_that_does_not_fit_ends_the_connection(body: bytes, version: int) -> None:
    """A wrong answer is no answer."""
    client, correlation_id = asked(BEAT, version)
    frame = RESPONSE_HEADER.pack(RESPONSE_HEADER_BYTES + len(body), correlation_id, 0, -1) + body

    with pytest.raises(RemoteProtocolError):
        client.receive(frame)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.title)
@pytest.mark.parametrize("code", [42, 35, -1, 1006])
def test_a_bare_error_is_recognised_for_every_request(example: Any, code: int) -> None:
    """It has the length of some real answers, which then say the same."""
    client, correlation_id = asked(example.request, example.version)
    (event,) = client.receive(encode_error(correlation_id, code))
    only_error: dict[tuple[type, int], Response] = {
        (HeartbeatRequest, 0): HeartbeatResponse(code),
        (AlterGroupRetentionRequest, 0): AlterGroupRetentionResponse(code),
    }
    expected = only_error.get((type(example.request), example.version), BareError(code))

    assert event.request == example.request
    assert event.response == expected


@pytest.mark.parametrize(
    ("request_", "success"),
    [(BEAT, HeartbeatResponse(0)), (KEEP, AlterGroupRetentionResponse(0))],
)
def test_an_answer_that_is_only_an_error_is_not_taken_for_a_bare_one(
    request_: Request, success: Response
) -> None:
    """A success of one element would otherwise be read as `BareError(0)`."""
    client, correlation_id = asked(request_, 0)
    (event,) = client.receive(answer(correlation_id, 0))

    assert event.response == success


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
def test_an_answer_that_is_one_array_is_not_taken_for_a_bare_error(count: int) -> None:
    """However many elements it has, which decides how msgpack writes its length."""
    client, correlation_id = asked(DeleteGroupsRequest(("g",)))
    response = DeleteGroupsResponse((DeletedGroup("g", 0),) * count)
    frame = encode_response(DIALECTS[ApiKey.DELETE_GROUPS, 0], correlation_id, response)
    (event,) = client.receive(frame)

    assert event.response == response


def test_elements_that_a_newer_server_appends_are_ignored() -> None:
    """That is how the protocol grows, at every depth."""
    client, correlation_id = asked(LIST)
    frame = answer(correlation_id, 0, [["g", "", "Empty", "classic", 5]], "new", [1])
    (event,) = client.receive(frame)

    assert event.response == ListGroupsResponse(0, (ListedGroup("g", "", "Empty", "classic"),))


def test_an_unknown_error_code_is_passed_on() -> None:
    """What it means is for the caller to say; it is never taken for success."""
    client, correlation_id = asked(BEAT)
    (event,) = client.receive(answer(correlation_id, 31_000, None))

    assert event.response == HeartbeatResponse(31_000)


@settings(max_examples=300)
@given(body=st.binary(max_size=40), number=st.integers(0, len(EXAMPLES) - 1))
def test_noise_in_an_answer_never_raises_anything_else(body: bytes, number: int) -> None:
    """The client's retry loop catches one class."""
    client, correlation_id = asked(EXAMPLES[number].request)
    frame = RESPONSE_HEADER.pack(RESPONSE_HEADER_BYTES + len(body), correlation_id, 0, -1) + body
    try:
        (event,) = client.receive(frame)
    except RemoteProtocolError:
        return
    assert event.correlation_id == correlation_id


def test_correlation_ids_wrap_around() -> None:
    """They are signed 32 bits on the wire, and connections live long."""
    client = ClientConnection()
    client._next_correlation_id = 2**31 - 1

    assert client.send(BEAT)[0] == 2**31 - 1
    assert client.send(BEAT)[0] == 0


@pytest.mark.parametrize(
    "request_",
    [
        HeartbeatRequest("g", 2**31, "m", None),
        HeartbeatRequest("g", 1, "m" * 301, None),
        HeartbeatRequest("g", 1, "m", ""),
        HeartbeatRequest("\ud800", 1, "m", None),
        ApiVersionsRequest("", "s", "1"),
    ],
    ids=range(5),
)
def test_a_request_that_breaks_the_protocol_is_not_sent(request_: Request) -> None:
    """The caller hears of it here, and not as a closed connection."""
    client = ClientConnection()

    with pytest.raises(LocalProtocolError):
        client.send(request_)
    assert client.send(BEAT)[0] == 0


def test_a_request_of_too_many_values_is_not_sent() -> None:
    """The server would refuse it, however few bytes it has."""
    rows = tuple([PartitionCommit(0, 0, -1, None, None)] * 9_000)
    topics = tuple(TopicCommit(topic, rows) for topic in ("a", "b"))

    with pytest.raises(LocalProtocolError, match="more than 100000 values"):
        ClientConnection().send(OffsetCommitRequest("g", -1, "", None, topics))


def test_a_request_over_the_limit_is_not_sent() -> None:
    """The server would close the connection without a word."""
    protocols = tuple(JoinProtocol(f"p{n}", bytes(250_000)) for n in range(5))
    join = JoinGroupRequest("g", 1, 1, "", None, "consumer", protocols, None)
    assignments = tuple(MemberAssignment(f"m{n}", bytes(250_000)) for n in range(5))
    sync = SyncGroupRequest("g", 1, "m", None, None, None, assignments)

    with pytest.raises(LocalProtocolError, match="over 1048576"):
        ClientConnection().send(join)
    _, frame = ClientConnection().send(sync)
    assert received(frame).request == sync


@pytest.mark.parametrize("version", [0, 1, 4, 32_767, -1])
def test_api_versions_is_answered_whatever_its_version(version: int) -> None:
    """Two releases that share nothing else must be able to say so."""
    body = msgpack.packb(("client", "software", "1"))
    event = received(frame_of(ApiKey.API_VERSIONS, version, body))
    response = ApiVersionsResponse(0, (), "s", "c", 1, 1024)
    frame = encode_response(event.dialect, event.correlation_id, response)

    assert event.request == ApiVersionsRequest("client", "software", "1")
    assert msgpack.unpackb(frame[16:]) == [0, [], "s", "c", 1, 1024]


def test_an_answer_of_the_limit_itself_is_read() -> None:
    """Both ends count alike: what the server may send, the client takes."""
    response = ListGroupsResponse(0, (ListedGroup("g" * 100, "", "", ""),))
    dialect = DIALECTS[ApiKey.LIST_GROUPS, APIS[ApiKey.LIST_GROUPS].max_version]
    frame = encode_response(dialect, 0, response)
    limit = len(frame) - SIZE.size
    client, correlation_id = asked(LIST, max_response_bytes=limit)
    sent = encode_response(dialect, correlation_id, response)
    (event,) = client.receive(sent)

    assert event.response == response


def test_a_refused_request_does_not_stop_those_behind_it() -> None:
    """Error and connection kept: the next request in the same read is handled."""
    bad = frame_of(ApiKey.HEARTBEAT, 0, b"\x90", correlation_id=1)
    good = frame_of(ApiKey.HEARTBEAT, 0, msgpack.packb(("g", 1, "m", None)), correlation_id=2)
    refused, event = ServerConnection(RequestEvent).receive(bad + good)

    assert refused.correlation_id == 1
    assert isinstance(event, RequestEvent)
    assert event.request == BEAT


# --- Frames -----------------------------------------------------------------------------

FRAMES = [request_frame(e.request, e.version, e.number) for e in EXAMPLES]
ANSWERED = [bad for bad in INVALID_REQUESTS if bad.verdict != CLOSE and len(bad.frame) < 2_000]


@pytest.mark.parametrize("number", range(len(FRAMES)), ids=lambda n: EXAMPLES[n].title)
def test_a_frame_may_come_byte_by_byte(number: int) -> None:
    """TCP promises nothing about pieces."""
    frame = FRAMES[number]
    whole = ServerConnection(RequestEvent).receive(frame)
    connection = ServerConnection(RequestEvent)
    for at in range(len(frame) - 1):
        assert connection.receive(frame[at : at + 1]) == []
        assert len(connection.unfinished) == at + 1
    assert connection.announced_bytes == len(frame) - 4

    assert connection.receive(frame[-1:]) == whole
    assert len(connection.unfinished) == 0
    assert connection.announced_bytes == 0


@pytest.mark.parametrize("bad", ANSWERED, ids=lambda bad: bad.name)
def test_an_invalid_frame_may_come_byte_by_byte(bad: object) -> None:
    """The verdict must not depend on how the network cut it."""
    frame = bad.frame  # type: ignore[attr-defined]  # pytest hands over an object
    connection = ServerConnection(RequestEvent)
    events = [event for byte in frame for event in connection.receive(bytes([byte]))]

    assert events == ServerConnection(RequestEvent).receive(frame)


def test_all_frames_may_come_in_one_read() -> None:
    """A pipelining client sends many at once; they keep their order."""
    events = ServerConnection(RequestEvent).receive(b"".join(FRAMES))

    assert [event.correlation_id for event in events] == list(range(len(FRAMES)))
    assert [e.request for e in events if isinstance(e, RequestEvent)] == [
        example.request for example in EXAMPLES
    ]


def test_what_follows_a_frame_is_kept_for_the_next_read() -> None:
    """The end of one read is the middle of a frame as a rule."""
    connection = ServerConnection(RequestEvent)
    first = connection.receive(FRAMES[0] + FRAMES[1][:5])

    assert [e.correlation_id for e in first] == [0]
    assert len(connection.unfinished) == 5
    assert [e.correlation_id for e in connection.receive(FRAMES[1][5:])] == [1]


@settings(max_examples=100)
@given(cuts=st.lists(st.integers(0, sum(map(len, FRAMES))), max_size=20))
def test_any_cutting_gives_the_same_requests(cuts: list[int]) -> None:
    """Wherever the reads end."""
    stream = b"".join(FRAMES)
    edges = [0, *sorted(cuts), len(stream)]
    connection = ServerConnection(RequestEvent)
    events = [
        event
        for start, end in itertools.pairwise(edges)
        for event in connection.receive(stream[start:end])
    ]

    assert events == ServerConnection(RequestEvent).receive(stream)


def header(size: int, api_key: int = ApiKey.HEARTBEAT) -> bytes:
    """Return the header of a request that announces *size*."""
    return REQUEST_HEADER.pack(size, api_key, 0, 1)


@pytest.mark.parametrize("size", [0, 7, 1024 * 1024 + 1, 8 * 1024 * 1024 + 1, 2**32 - 1])
def test_a_size_that_is_not_allowed_ends_it_at_once(size: int) -> None:
    """Nothing is allocated or waited for on the word of four bytes."""
    data = header(size)
    connection = ServerConnection(RequestEvent)

    with pytest.raises(FrameTooLarge):
        connection.receive(data[:6])
    assert len(connection.unfinished) <= 6


def test_only_sync_group_may_be_large() -> None:
    """The leader of a large group sends everybody's assignment; nobody else needs the room."""
    size = 8 * 1024 * 1024
    connection = ServerConnection(RequestEvent)

    assert connection.receive(header(size, ApiKey.SYNC_GROUP)[:5]) == []
    assert connection.receive(header(size, ApiKey.SYNC_GROUP)[5:]) == []
    with pytest.raises(FrameTooLarge):
        ServerConnection(RequestEvent).receive(header(1024 * 1024 + 1, ApiKey.JOIN_GROUP))


def test_the_limit_itself_is_allowed() -> None:
    """`size` is what the limits limit."""
    connection = ServerConnection(RequestEvent, max_request_bytes=100, max_sync_request_bytes=200)
    (event,) = connection.receive(header(100) + bytes(92))

    assert isinstance(event, BadRequest)
    with pytest.raises(FrameTooLarge):
        connection.receive(header(101))


def test_the_limit_itself_is_allowed_in_pieces() -> None:
    """Its size is judged before the rest is there."""
    connection = ServerConnection(RequestEvent, max_request_bytes=100, max_sync_request_bytes=200)
    frame = header(100) + bytes(92)
    events = [event for byte in frame for event in connection.receive(bytes([byte]))]

    assert events == ServerConnection(RequestEvent).receive(frame)


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        (b"\x16\x03\x01\x02\x00", "TLS"),
        (b"\x15\x03\x01\x02\x00", "TLS"),
        (b"GET / HTTP/1.1\r\n", "HTTP"),
        (b"POST /x HTTP/1.1\r\n", "HTTP"),
    ],
)
def test_the_log_line_guesses_what_a_stranger_speaks(start: bytes, hint: str) -> None:
    """It is a mistyped port nearly every time (row 4)."""
    with pytest.raises(FrameTooLarge, match=hint):
        ServerConnection(RequestEvent).receive(start)
