"""The client's end distrusts the server, and the server's end answers what it must."""

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from protocol.apis import ApiKey
from protocol.connection import (
    ClientConnection,
    RequestEvent,
    ServerConnection,
    encode_error,
    encode_response,
)
from protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from protocol.frames import RESPONSE_HEADER, RESPONSE_HEADER_BYTES
from protocol.messages import (
    AlterGroupRetentionRequest,
    AlterGroupRetentionResponse,
    ApiVersionsRequest,
    ApiVersionsResponse,
    BareError,
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
from tests.protocol.frames import received
from tests.protocol.invalid import frame_of

BEAT = HeartbeatRequest("g", 1, "m", None)
LIST = ListGroupsRequest((), ())
KEEP = AlterGroupRetentionRequest("g", -1)
# The requests whose answer in version 0 is an error and nothing else.
ONLY_ERROR: dict[type, tuple[Request, Response]] = {
    HeartbeatRequest: (BEAT, HeartbeatResponse(0)),
    AlterGroupRetentionRequest: (KEEP, AlterGroupRetentionResponse(0)),
}


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

    assert event.request == example.request
    assert event.response[0] == code
    if example.version > 0 or type(example.request) not in ONLY_ERROR:
        assert type(event.response) is BareError


def test_an_answer_that_is_only_an_error_is_not_taken_for_a_bare_one() -> None:
    """A success of one element would otherwise be read as `BareError(0)`."""
    for request, success in ONLY_ERROR.values():
        client, correlation_id = asked(request, 0)
        (event,) = client.receive(answer(correlation_id, 0))

        assert event.response == success
        assert type(event.response) is type(success)


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
    rows = tuple([PartitionCommit(0, 0, -1, None)] * 9_000)
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
    frame = encode_response(
        event.correlation_id, response, api_key=event.api_key, api_version=event.api_version
    )

    assert event.request == ApiVersionsRequest("client", "software", "1")
    assert msgpack.unpackb(frame[16:]) == [0, [], "s", "c", 1, 1024]


def test_an_answer_over_the_limit_becomes_an_error() -> None:
    """A client that asks for too much is told so instead of being cut off."""
    response = ListGroupsResponse(0, tuple(ListedGroup("g" * 100, "", "", "") for _ in range(10)))
    frame = encode_response(
        3, response, api_key=ApiKey.LIST_GROUPS, api_version=0, max_response_bytes=1_000
    )

    assert frame == encode_error(3, ErrorCode.RESPONSE_TOO_LARGE)


def test_a_refused_request_does_not_stop_those_behind_it() -> None:
    """Error and connection kept: the next request in the same read is handled."""
    bad = frame_of(ApiKey.HEARTBEAT, 0, b"\x90", correlation_id=1)
    good = frame_of(ApiKey.HEARTBEAT, 0, msgpack.packb(tuple(BEAT)), correlation_id=2)
    refused, event = ServerConnection().receive(bad + good)

    assert refused.correlation_id == 1
    assert isinstance(event, RequestEvent)
    assert event.request == BEAT
