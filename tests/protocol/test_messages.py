"""Every message comes back as it was sent."""

from typing import Any

import msgpack
import pytest
from hypothesis import given, settings, strategies as st

from protocol.apis import APIS, api_of, latest_version
from protocol.connection import ClientConnection, ResponseEvent, encode_response
from protocol.errors import LocalProtocolError
from protocol.failures import join_error, sync_error
from protocol.frames import RESPONSE_HEADER
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    LeftMember,
    OffsetCommitRequest,
    OffsetCommitResponse,
    PartitionCommit,
    Request,
    Response,
    SyncGroupRequest,
    TopicCommit,
)
from tests.protocol.examples import EXAMPLES
from tests.protocol.frames import received
from tests.protocol.strategies import REQUESTS, RESPONSES

quick = settings(max_examples=40)
ANSWERS = {type(example.request): example.request for example in EXAMPLES}


def test_the_strategies_know_every_message() -> None:
    """A message without a strategy would never be tried."""
    assert set(REQUESTS) == set(RESPONSES) == {api.request.make for api in APIS.values()}


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
@quick
@given(data=st.data())
def test_requests_make_the_round_trip(kind: type, data: st.DataObject) -> None:
    """What the client sends is what the server acts on."""
    request = data.draw(REQUESTS[kind])
    correlation_id, frame = ClientConnection().send(request)
    event = received(frame)

    assert event.request == request
    assert type(event.request) is kind
    assert event.correlation_id == correlation_id
    assert event.api_version == latest_version(api_of(request))


@pytest.mark.parametrize("kind", RESPONSES, ids=lambda kind: kind.__name__)
@quick
@given(data=st.data())
def test_responses_make_the_round_trip(kind: type, data: st.DataObject) -> None:
    """What the server answers is what the client believes."""
    response = data.draw(RESPONSES[kind])
    request: Any = ANSWERS[kind]
    client = ClientConnection()
    correlation_id, _ = client.send(request)
    key = api_of(request)
    frame = encode_response(
        correlation_id,
        response,
        api_key=key,
        api_version=latest_version(key),
        leader_epoch=9,
        throttle_time_ms=250,
    )
    (event,) = client.receive(frame)

    assert event == ResponseEvent(correlation_id, request, response, 9, 250)
    assert type(event.response) is type(response)


def commit(expected_offset: int | None) -> OffsetCommitRequest:
    """Return a commit of one partition."""
    partition = PartitionCommit(0, 5, -1, "", expected_offset)
    return OffsetCommitRequest("g", -1, "", None, (TopicCommit("t", (partition,)),))


def test_an_older_version_leaves_newer_fields_out() -> None:
    """A server that knows version 0 only refuses a fifth element."""
    _, frame = ClientConnection().send(commit(None), 0)
    event = received(frame)

    assert event.api_version == 0
    assert event.request == commit(None)


def test_a_check_that_the_version_cannot_carry_is_not_dropped_silently() -> None:
    """Dropping the expected offset would turn a conditional commit into an unconditional one."""
    with pytest.raises(LocalProtocolError, match="version 0"):
        ClientConnection().send(commit(4), 0)


def test_a_pattern_that_the_version_cannot_carry_is_not_dropped_silently() -> None:
    """The member would never hear of a new topic that matches."""
    join = JoinGroupRequest("g", 1, 1, "m", None, "consumer", (), None, "flights-.*")

    with pytest.raises(LocalProtocolError, match="version 0"):
        ClientConnection().send(join, 0)


OLDER: list[tuple[Request, Response, int, list[Any]]] = [
    (HeartbeatRequest("g", 1, "m", None), HeartbeatResponse(25, "gone"), 0, [25]),
    (commit(None), OffsetCommitResponse(22, (), "over"), 0, [22, []]),
    (commit(None), OffsetCommitResponse(22, (), "over"), 1, [22, []]),
    (
        LeaveGroupRequest("g", ()),
        LeaveGroupResponse(0, (LeftMember("m", None, 25, "gone"),)),
        0,
        [0, [["m", None, 25]]],
    ),
    (
        SyncGroupRequest("g", 1, "m", None, None, None, ()),
        sync_error(22, "over"),
        0,
        [22, None, None, b""],
    ),
    (
        JoinGroupRequest("g", 1, 1, "m", None, "consumer", (), None),
        join_error(82, "m", "held by another"),
        0,
        [82, -1, None, None, "", False, "m", []],
    ),
]


@pytest.mark.parametrize(("request_", "response", "version", "body"), OLDER)
def test_older_versions_get_answers_without_words(
    request_: Request, response: Response, version: int, body: list[Any]
) -> None:
    """A version's layout stays what it was when clients were written for it."""
    frame = encode_response(7, response, api_key=api_of(request_), api_version=version)

    assert msgpack.unpackb(frame[RESPONSE_HEADER.size :]) == body


@pytest.mark.parametrize("version", [-1, 3, 32_767])
def test_a_version_that_does_not_exist_is_not_sent(version: int) -> None:
    """The mistake is ours and nothing may leave."""
    with pytest.raises(LocalProtocolError):
        ClientConnection().send(commit(None), version)
