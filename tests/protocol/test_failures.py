"""A failed request keeps its full shape."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from protocol import messages as m
from protocol.apis import APIS, api_of, latest_version
from protocol.connection import ClientConnection, encode_response
from protocol.errors import ERRORS, Applied, ErrorCode
from protocol.failures import (
    describe_error,
    error_response,
    find_coordinator_error,
    join_error,
    sync_error,
)
from tests.protocol.strategies import REQUESTS

CODE = 14
TWO = ("g", "h", "g")

# From the specification: ints -1, "", false, empty bin, nil where nullable, empty arrays; what
# echoes the request is echoed; several groups get the error each.
SHAPES: list[tuple[m.Request, tuple[Any, ...]]] = [
    (m.ApiVersionsRequest("c", "s", "1"), (CODE, (), "", "", -1, -1)),
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
    (
        m.OffsetCommitRequest(
            "g", 1, "m", None, (m.TopicCommit("t", (m.PartitionCommit(0, 1, -1, ""),)),)
        ),
        (CODE, (), None),
    ),
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
    (m.AlterGroupRetentionRequest("g", None), (CODE,)),
    (m.CompactLogRequest(), (CODE, None, -1, -1, -1, -1)),
    (m.DescribeNodeRequest(), (CODE, -1, -1, "", (), (), ())),
    (m.ReloadPartitionRequest(0), (CODE, None, -1, -1)),
]


def test_the_table_has_every_request() -> None:
    """A request without a line here could be answered in any shape."""
    assert {api_of(request) for request, _ in SHAPES} == set(APIS)


@pytest.mark.parametrize(("request_", "shape"), SHAPES, ids=lambda v: type(v).__name__)
def test_an_error_has_the_shape_of_the_specification(
    request_: m.Request, shape: tuple[Any, ...]
) -> None:
    """A client that reads a fixed layout must find it in every answer."""
    assert error_response(request_, CODE) == shape


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
@settings(max_examples=15)
@given(data=st.data(), code=st.sampled_from(list(ErrorCode)))
def test_any_failure_can_be_read_by_the_client(
    kind: type, data: st.DataObject, code: ErrorCode
) -> None:
    """Whatever was asked, and whatever the error."""
    request = data.draw(REQUESTS[kind])
    client = ClientConnection()
    correlation_id, _ = client.send(request)
    response = error_response(request, code)
    key = api_of(request)
    (event,) = client.receive(
        encode_response(correlation_id, response, api_key=key, api_version=latest_version(key))
    )

    assert event.response == response
    assert type(event.response) is type(response)


def test_single_groups_can_fail_with_a_reason() -> None:
    """For people; clients go by the code."""
    assert find_coordinator_error("g", 15, "no leader") == (
        "g", 15, "no leader", -1, "", -1, -1, -1,
    )  # fmt: skip
    assert describe_error("g", 69, "no such group") == (
        69, "no such group", "g", "Dead", "", "", -1, (), -1,
    )  # fmt: skip
    assert join_error(82, "m", "held by m2")[-1] == sync_error(82, "held by m2")[-1] == "held by m2"
    assert join_error(79, "new-id") == (79, -1, None, None, "", False, "new-id", (), None)


@pytest.mark.parametrize(
    ("code", "member_id"), [(24, "m"), (26, "m"), (25, "m"), (1000, "m"), (14, ""), (16, "")]
)
def test_a_refused_join_names_the_member_if_somebody_looked(code: int, member_id: str) -> None:
    """Kafka's table: 24 and 26 echo the id, 14 and 16 don't."""
    request = m.JoinGroupRequest("g", 1, 1, "m", None, "consumer", (), None)

    assert error_response(request, code) == join_error(code, member_id)


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
