"""The answer to a request that failed: every API's full shape around one error code.

What is an int is -1, a str "", a bool false, bin empty, a nullable nil, an array empty;
what echoes the request is echoed. A request over several groups gets the error per group.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from protocol import messages as m
from protocol.alike import PackedPartitions
from protocol.errors import ErrorCode


def error_response(request: m.Request, error: int) -> m.Response:
    """Return the answer to *request* that says *error* and nothing else."""
    return _SHAPES[type(request)](request, error)


def find_coordinator_error(group_id: str, error: int, message: str | None) -> m.CoordinatorOfGroup:
    """Return the entry of one group that could not be located."""
    return m.CoordinatorOfGroup(group_id, error, message, -1, "", -1, -1, -1)


def describe_error(group_id: str, error: int, message: str | None) -> m.DescribedGroup:
    """Return the entry of one group that could not be described; Kafka's state for it is Dead."""
    return m.DescribedGroup(error, message, group_id, "Dead", "", "", -1, ())


# With these a JoinGroup's answer names no member: nobody could look for one.
_GROUP_NOT_SEEN: Final = frozenset(
    {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR}
)


def _unique(group_ids: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(group_ids))


_SHAPES: Final[Mapping[type, Callable[[Any, int], m.Response]]] = {
    m.ApiVersionsRequest: lambda _, e: m.ApiVersionsResponse(e, (), "", "", -1, -1),
    m.FindCoordinatorRequest: lambda r, e: m.FindCoordinatorResponse(
        tuple(find_coordinator_error(g, e, None) for g in r.group_ids)
    ),
    m.JoinGroupRequest: lambda r, e: join_error(e, "" if e in _GROUP_NOT_SEEN else r.member_id),
    m.SyncGroupRequest: lambda _, e: sync_error(e),
    m.HeartbeatRequest: lambda _, e: m.HeartbeatResponse(e),
    m.LeaveGroupRequest: lambda _, e: m.LeaveGroupResponse(e, ()),
    m.OffsetCommitRequest: lambda _, e: m.OffsetCommitResponse(e, ()),
    m.OffsetFetchRequest: lambda r, e: m.OffsetFetchResponse(
        tuple(m.GroupOffsets(g.group_id, e, ()) for g in r.groups)
    ),
    m.DescribeGroupsRequest: lambda r, e: m.DescribeGroupsResponse(
        tuple(describe_error(g, e, None)._replace(state="") for g in r.group_ids)
    ),
    m.ListGroupsRequest: lambda _, e: m.ListGroupsResponse(e, ()),
    m.DeleteGroupsRequest: lambda r, e: m.DeleteGroupsResponse(
        tuple(m.DeletedGroup(g, e) for g in _unique(r.group_ids))
    ),
    m.OffsetDeleteRequest: lambda _, e: m.OffsetDeleteResponse(e, ()),
    m.DrainMemberRequest: lambda _, e: m.DrainMemberResponse(e, ()),
    m.RegisterTopicsRequest: lambda _, e: m.RegisterTopicsResponse(e, ()),
    m.DeleteTopicsRequest: lambda _, e: m.DeleteTopicsResponse(e, ()),
    m.DescribeTopicsRequest: lambda _, e: m.DescribeTopicsResponse(e, None, (), has_more=False),
    m.ReportEndOffsetsRequest: lambda _, e: m.ReportEndOffsetsResponse(e, ()),
    m.DescribeRebalancesRequest: lambda r, e: m.DescribeRebalancesResponse(e, None, r.group_id, ()),
    m.ScanOffsetsRequest: lambda _, e: m.ScanOffsetsResponse(e, -1, (), b""),
    m.ReadOffsetChangesRequest: lambda _, e: m.ReadOffsetChangesResponse(e, (), -1, -1),
    m.DescribeLagRequest: lambda r, e: m.DescribeLagResponse(e, None, r.group_id, ()),
    m.AlterGroupRetentionRequest: lambda _, e: m.AlterGroupRetentionResponse(e),
    m.CompactLogRequest: lambda _, e: m.CompactLogResponse(e, None, -1, -1, -1, -1),
    m.DescribeNodeRequest: lambda _, e: m.DescribeNodeResponse(e, -1, -1, "", (), (), ()),
    m.ReloadPartitionRequest: lambda _, e: m.ReloadPartitionResponse(e, None, -1, -1),
}


def join_error(error: int, member_id: str, message: str | None = None) -> m.JoinGroupResponse:
    """Return a JoinGroup answer with *error*; which member id it carries is the caller's table."""
    return m.JoinGroupResponse(int(error), -1, None, None, "", False, member_id, (), message)


def sync_error(error: int, message: str | None = None) -> m.SyncGroupResponse:
    """Return a SyncGroup answer with *error*."""
    return m.SyncGroupResponse(int(error), None, None, b"", message)


def content_error(request: m.Request) -> tuple[ErrorCode, str] | None:
    """Return what is wrong with a request whose body fits its layout, or None.

    Only what one message can tell by itself: duplicates and totals (limits table rows 12
    and 15). These are answered in the request's full shape.
    """
    if type(request) is not m.OffsetCommitRequest:
        return None
    topics = request.topics
    if len(topics) == 1 and len(topics[0].partitions) == 1:
        return None  # Nearly every commit of a small group.
    total = sum([len(partitions) for _, partitions in topics])
    if total > REQUEST_PARTITIONS_MAX:
        return ErrorCode.INVALID_REQUEST, f"a commit of {total} partitions"
    if names_twice(topics):
        return ErrorCode.INVALID_REQUEST, "a commit names the same partition twice"
    return None


def names_twice(topics: Sequence[m.TopicCommit]) -> bool:
    """Say whether *topics* name one partition twice."""
    if len(topics) == 1:
        ((_, partitions),) = topics
        if isinstance(partitions, PackedPartitions):
            return len(set(partitions.numbers)) != len(partitions.numbers)
        return len(set(map(itemgetter(0), partitions))) != len(partitions)
    named = [(topic, item[0]) for topic, partitions in topics for item in partitions]
    return len(set(named)) != len(named)


# What a commit, an OffsetDelete or a ReportEndOffsets may name, all topics together.
REQUEST_PARTITIONS_MAX: Final = 10_000
