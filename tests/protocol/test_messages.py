"""Every message comes back as it was sent, in every version, and msgpack reads the same bytes."""

from typing import Any

import msgpack
import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from protocol import messages as m
from protocol.codec import REQUEST_CODECS, RESPONSE_CODECS
from protocol.connection import (
    DIALECTS,
    RESPONSE_HEADER,
    ClientConnection,
    ResponseEvent,
    encode_response,
    throttled,
)
from protocol.errors import ERRORS, Applied, ErrorCode, LocalProtocolError
from protocol.messages import APIS, Api, Message, error_response, first_error
from tests.protocol.examples import EXAMPLES
from tests.protocol.frames import received
from tests.protocol.strategies import messages

quick = settings(max_examples=40)
each_api = pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name)


def as_tuples(value: Any) -> Any:
    """Return *value* with tuples in the place of messages."""
    if isinstance(value, Message):
        return tuple(as_tuples(getattr(value, name)) for name in value.__struct_fields__)
    return tuple(map(as_tuples, value)) if isinstance(value, tuple) else value


def test_every_key_is_declared() -> None:
    """A key without a declaration would be announced to nobody and answered by nobody."""
    assert set(APIS) == set(m.ApiKey)
    assert all(type(api.example.request) is api.request for api in APIS.values())
    assert all(api.example.version == api.max_version for api in APIS.values())


@each_api
@quick
@given(data=st.data())
def test_requests_make_the_round_trip(api: Api, data: st.DataObject) -> None:
    """What the client sends is what the server acts on."""
    request = data.draw(messages(api.request))
    correlation_id, frame = ClientConnection().send(request)
    event = received(frame)

    assert event.request == request
    assert event.correlation_id == correlation_id
    assert event.dialect == DIALECTS[api.key, api.max_version]


@each_api
@quick
@given(data=st.data())
def test_responses_make_the_round_trip(api: Api, data: st.DataObject) -> None:
    """What the server answers is what the client believes."""
    response = data.draw(messages(api.response))
    client = ClientConnection()
    correlation_id, _ = client.send(api.example.request)
    frame = encode_response(DIALECTS[api.key, api.max_version], correlation_id, response, 9)

    assert client.receive(throttled(frame, 250)) == [
        ResponseEvent(correlation_id, api.example.request, response, 9, 250)
    ]


@each_api
@quick
@given(data=st.data())
def test_msgpack_reads_and_writes_the_same_bytes(api: Api, data: st.DataObject) -> None:
    """A second implementation of the format: neither can be wrong unnoticed."""
    for message, codec in (
        (data.draw(messages(api.request)), REQUEST_CODECS[api.key, api.max_version]),
        (data.draw(messages(api.response)), RESPONSE_CODECS[api.key, api.max_version]),
    ):
        body = codec.encode(message)

        assert body == msgpack.packb(as_tuples(message))
        assert msgpack.unpackb(body, use_list=False) == as_tuples(message)


@each_api
@quick
@given(data=st.data())
def test_an_older_version_leaves_newer_fields_out(api: Api, data: st.DataObject) -> None:
    """A peer that knows version 0 only refuses an element more; the rest comes back as it was."""
    for message, codecs in (
        (data.draw(messages(api.request)), REQUEST_CODECS),
        (data.draw(messages(api.response)), RESPONSE_CODECS),
    ):
        for version in range(api.max_version):
            codec: Any = codecs[api.key, version]
            body = codec.encode(message)
            older = codec.decode(body)

            assert type(older) is type(message)
            assert codec.encode(older) == body
            assert trimmed(msgpack.unpackb(body, use_list=False), as_tuples(message))


def trimmed(older: Any, newer: Any) -> bool:
    """Say whether *older* is *newer* without elements at the ends of its arrays."""
    if not isinstance(older, tuple) or not isinstance(newer, tuple):
        return bool(older == newer)
    return len(older) <= len(newer) and all(map(trimmed, older, newer))


def commit(expected_offset: int | None) -> m.OffsetCommitRequest:
    """Return a commit of one partition."""
    partition = m.PartitionCommit(0, 5, -1, "", expected_offset)
    return m.OffsetCommitRequest("g", -1, "", None, (m.TopicCommit("t", (partition,)),))


JOIN = m.JoinGroupRequest("g", 1, 1, "m", None, "consumer", (), None)


@pytest.mark.parametrize(
    "request_", [commit(4), msgspec.structs.replace(JOIN, topic_pattern="flights-.*")]
)
def test_what_the_version_cannot_carry_is_not_dropped_silently(request_: m.Request) -> None:
    """A conditional commit would become an unconditional one; a member would miss new topics."""
    with pytest.raises(LocalProtocolError, match="version 0"):
        ClientConnection().send(request_, 0)


@pytest.mark.parametrize("version", [-1, 3, 32_767])
def test_a_version_that_does_not_exist_is_not_sent(version: int) -> None:
    """The mistake is ours and nothing may leave."""
    with pytest.raises(LocalProtocolError):
        ClientConnection().send(commit(None), version)


OLDER: list[tuple[m.ApiKey, m.Response, int, list[Any]]] = [
    (m.ApiKey.HEARTBEAT, m.HeartbeatResponse(25, "gone"), 0, [25]),
    (m.ApiKey.OFFSET_COMMIT, m.OffsetCommitResponse(22, (), "over"), 0, [22, []]),
    (m.ApiKey.OFFSET_COMMIT, m.OffsetCommitResponse(22, (), "over"), 1, [22, []]),
    (
        m.ApiKey.LEAVE_GROUP,
        m.LeaveGroupResponse(0, (m.LeftMember("m", None, 25, "gone"),)),
        0,
        [0, [["m", None, 25]]],
    ),
    (m.ApiKey.SYNC_GROUP, m.sync_error(22, "over"), 0, [22, None, None, b""]),
    (
        m.ApiKey.JOIN_GROUP,
        m.join_error(ErrorCode.FENCED_INSTANCE_ID, "m", "held by another"),
        0,
        [82, -1, None, None, "", False, "m", []],
    ),
    (m.ApiKey.OFFSET_COMMIT, m.OffsetCommitResponse(22, (), "over"), 2, [22, [], "over"]),
    (m.ApiKey.OFFSET_COMMIT, m.BareError(1006), 1, [1006]),
    (m.ApiKey.OFFSET_COMMIT, m.BareError(1006), 2, [1006]),
]


@pytest.mark.parametrize(("key", "response", "version", "body"), OLDER)
def test_older_versions_get_answers_without_words(
    key: m.ApiKey, response: m.Response, version: int, body: list[Any]
) -> None:
    """A version's layout stays what it was when clients were written for it."""
    frame = encode_response(DIALECTS[key, version], 7, response)

    assert msgpack.unpackb(frame[RESPONSE_HEADER.size :]) == body


# --- Failures ---------------------------------------------------------------------------

CODE = 14
TWO = ("g", "h", "g")

# From the specification: ints -1, "", false, empty bin, nil where nullable, empty arrays; what
# echoes the request is echoed; several groups get the error each.
SHAPES: list[tuple[m.Request, tuple[Any, ...]]] = [
    (m.ApiVersionsRequest("c", "s", "1"), (CODE, (), "", "", -1, -1)),
    (m.SaslHandshakeRequest("PLAIN"), (CODE, ())),
    (m.SaslAuthenticateRequest(b"n,,"), (CODE, None, b"", -1)),
    (
        m.FindCoordinatorRequest(0, TWO),
        (tuple((g, CODE, None, -1, "", -1, -1, -1) for g in TWO),),
    ),
    (
        m.JoinGroupRequest("g", 1, 1, "m", None, "consumer", (), None),
        (CODE, -1, None, None, "", False, "", (), None),
    ),
    (m.SyncGroupRequest("g", 1, "m", None, "consumer", "r", ()), (CODE, None, None, b"", None)),
    (m.HeartbeatRequest("g", 1, "m", None), (CODE, None)),
    (m.LeaveGroupRequest("g", (m.LeavingMember("m", None, None),)), (CODE, ())),
    (commit(None), (CODE, (), None)),
    (
        m.OffsetFetchRequest(tuple(m.GroupFetch(g, None) for g in TWO), False),
        (tuple((g, CODE, ()) for g in TWO),),
    ),
    (
        m.DescribeGroupsRequest(TWO),
        (tuple((CODE, None, g, "", "", "", -1, (), -1) for g in TWO),),
    ),
    (m.ListGroupsRequest((), ()), (CODE, ())),
    (m.DeleteGroupsRequest(TWO), ((("g", CODE), ("h", CODE)),)),
    (m.OffsetDeleteRequest("g", ()), (CODE, ())),
    (m.DrainMemberRequest("g", "c"), (CODE, ())),
    (m.RegisterTopicsRequest((m.TopicRegistration("t", 1, None),)), (CODE, ())),
    (m.DeleteTopicsRequest(("t",)), (CODE, ())),
    (m.DescribeTopicsRequest(("t",), None, False, "", 1), (CODE, None, (), False)),
    (m.ReportEndOffsetsRequest((m.TopicEnds("t", ()),)), (CODE, ())),
    (m.DescribeRebalancesRequest("g", 1), (CODE, None, "g", ())),
    (m.ScanOffsetsRequest(0, b"", 1), (CODE, -1, (), b"", ())),
    (m.ReadOffsetChangesRequest(0, 0, 1), (CODE, (), -1, -1)),
    (m.DescribeLagRequest("g"), (CODE, None, "g", ())),
    (m.SummarizeGroupsRequest("g", (), b"", 1, 1), (CODE, None, (), b"")),
    (m.AlterGroupRetentionRequest("g", None), (CODE,)),
    (m.AlterOffsetsRequest("g", (), False, None), (CODE, None, (), ())),
    (m.DescribeSettingsRequest(), (CODE, ())),
    (m.CompactLogRequest(), (CODE, None, -1, -1, -1, -1)),
    (m.DescribeClusterRequest(), (CODE, "", ())),
    (m.DescribeNodeRequest(), (CODE, -1, -1, "", (), (), ())),
    (m.ReloadPartitionRequest(0), (CODE, None, -1, -1)),
    (m.DescribeJournalsRequest(), (CODE, None, -1, False, -1, -1, -1, -1, (), -1)),
    (m.MoveJournalRequest(0, 1), (CODE, None)),
    (m.DescribeAclsRequest(1, None, 1, None, None, 1, 1), (CODE, None, ())),
    (m.CreateAclsRequest(()), (CODE, ())),
    (m.DeleteAclsRequest(()), (CODE, ())),
    (m.DescribeUserScramCredentialsRequest(None, "", 1), (CODE, None, (), False)),
    (m.AlterUserScramCredentialsRequest((), ()), (CODE, ())),
    (m.DescribeClientQuotasRequest(None), (CODE, None, ())),
    (m.AlterClientQuotasRequest(()), (CODE, ())),
]


@pytest.mark.parametrize(("request_", "shape"), SHAPES, ids=lambda v: type(v).__name__)
def test_an_error_has_the_shape_of_the_specification(
    request_: m.Request, shape: tuple[Any, ...]
) -> None:
    """A client that reads a fixed layout must find it in every answer."""
    assert as_tuples(error_response(request_, CODE)) == shape


def test_the_table_has_every_request() -> None:
    """A request without a line here could be answered in any shape."""
    assert {type(request) for request, _ in SHAPES} == {api.request for api in APIS.values()}


@each_api
@settings(max_examples=15)
@given(data=st.data(), code=st.sampled_from(list(ErrorCode)))
def test_any_failure_can_be_read_by_the_client(
    api: Api, data: st.DataObject, code: ErrorCode
) -> None:
    """Whatever was asked, and whatever the error."""
    request = data.draw(messages(api.request))
    client = ClientConnection()
    correlation_id, _ = client.send(request)
    response = error_response(request, code)
    frame = encode_response(DIALECTS[api.key, api.max_version], correlation_id, response)
    (event,) = client.receive(frame)

    assert event.response == response


def test_single_groups_can_fail_with_a_reason() -> None:
    """For people; clients go by the code."""
    assert as_tuples(m.find_coordinator_error("g", 15, "no leader")) == (
        "g", 15, "no leader", -1, "", -1, -1, -1,
    )  # fmt: skip
    assert as_tuples(m.describe_error("g", 69, "no such group")) == (
        69, "no such group", "g", "Dead", "", "", -1, (), -1,
    )  # fmt: skip
    assert m.join_error(82, "m", "held by m2").message == "held by m2"
    assert m.sync_error(82, "held by m2").message == "held by m2"


@pytest.mark.parametrize(
    ("code", "member_id"), [(24, "m"), (26, "m"), (25, "m"), (1000, "m"), (14, ""), (16, "")]
)
def test_a_refused_join_names_the_member_if_somebody_looked(code: int, member_id: str) -> None:
    """Kafka's table: 24 and 26 echo the id, 14 and 16 don't."""
    assert error_response(JOIN, code) == m.join_error(code, member_id)


def test_every_code_says_whether_it_applied() -> None:
    """A client decides by that whether repeating is safe."""
    assert set(ERRORS) == set(ErrorCode)
    unknown = {code for code, info in ERRORS.items() if info.applied is Applied.UNKNOWN}
    assert unknown == {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.OUTCOME_UNKNOWN,
        ErrorCode.RESPONSE_TOO_LARGE,
    }
    assert [c for c, info in ERRORS.items() if info.applied is Applied.YES] == [ErrorCode.NONE]


def test_examples_are_numbered_one_after_the_other() -> None:
    """Their numbers are correlation ids in the vectors."""
    assert [example.number for example in EXAMPLES] == list(range(len(EXAMPLES)))


def errors_in(value: Any) -> list[int]:
    """Return the error codes of *value* and all of its parts, in order."""
    if isinstance(value, tuple):
        return [error for part in value for error in errors_in(part)]
    if isinstance(value, m.PartitionOffset) or not isinstance(value, Message):
        return []
    return [
        error
        for name in value.__struct_fields__
        for error in (
            [getattr(value, name)] if name == "error" else errors_in(getattr(value, name))
        )
    ]


@each_api
@quick
@given(data=st.data())
def test_an_answer_counts_as_its_first_error(api: Api, data: st.DataObject) -> None:
    """A shape that nobody thought of would count every failure of its parts as a success."""
    response = data.draw(messages(api.response))

    assert first_error(response) == next(filter(None, errors_in(response)), 0)
    assert first_error(error_response(api.example.request, 16)) == 16
    assert first_error(m.BareError(-1)) == -1


def test_what_is_packed_already_counts_as_a_success() -> None:
    """A fetch of many groups packs each of them as it is found; failures it leaves as they are."""
    packed: Any = (msgspec.Raw(b"x"), m.GroupOffsets("g", ErrorCode.NOT_COORDINATOR, ()))

    assert first_error(m.OffsetFetchResponse(packed)) == 16
