"""Any message that the protocol allows."""

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import strategies as st

from protocol import messages as m
from protocol.errors import ErrorCode

i16 = st.integers(-(2**15), 2**15 - 1)
i32 = st.integers(-(2**31), 2**31 - 1)
count = st.integers(0, 2**31 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
epoch = st.integers(-1, 2**31 - 1)
retention = st.integers(-1, 2**63 - 1)
offset = st.integers(0, 2**63 - 1)
text = st.text(max_size=8)
code = st.sampled_from([int(c) for c in ErrorCode]) | i16
blob = st.binary(max_size=8)
maybe_text = st.none() | text
boolean = st.booleans()


def names(max_bytes: int) -> st.SearchStrategy[str]:
    """Return names: 1 to *max_bytes* bytes of UTF-8 without control characters."""
    legal = st.characters(exclude_categories=("Cc", "Cs"))
    return st.text(legal, min_size=1, max_size=6) | st.sampled_from(
        ["n" * max_bytes, "\u00e9" * (max_bytes // 2), "\u00a0", "a b", "\U0001f600", "\u2028"]
    )


name = names(255)
topic = names(249)
pattern = st.none() | names(4_096)
instance = st.none() | name
member_id = st.just("") | names(300)


def many(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Return a few of *inner*."""
    return st.lists(inner, max_size=3).map(tuple)


_partitions = many(st.builds(m.TopicPartitions, topic, many(count)))
_results = many(st.builds(m.TopicResult, text, many(st.builds(m.PartitionResult, i32, code))))
_commit = st.builds(
    m.PartitionCommit,
    count,
    offset,
    epoch,
    maybe_text,
    st.none() | st.integers(-1, 2**63 - 1),
)
_offsets = st.builds(
    m.TopicOffsets,
    text,
    many(st.builds(m.PartitionOffset, i32, i64, epoch, text, code)),
)
_described_member = st.builds(m.DescribedMember, text, maybe_text, text, text, blob, blob)
_hosts = st.builds(m.PartitionHosts, count, many(name))
_late_member = st.builds(m.LateMember, text, text, text, text, i64, boolean)
_rebalance = st.builds(
    m.Rebalance,
    i64,
    i64,
    text,
    text,
    maybe_text,
    text,
    text,
    text,
    i32,
    i32,
    i64,
    i64,
    i32,
    text,
    many(_late_member),
)
_described_topic = st.builds(
    m.DescribedTopic,
    text,
    code,
    i32,
    many(_hosts),
    many(st.builds(m.EndOffset, count, offset, i64)),
)
_scanned = st.builds(m.ScannedOffset, text, text, count, offset, i32, text, i64, i64)
_columns = st.builds(m.OffsetColumns, many(text), many(text), blob, blob, blob, blob, blob)
_change = st.builds(m.OffsetChange, offset, text, text, text, i32, i64, i32, text, i64)
_lag = st.builds(m.PartitionLag, count, i64, i64, i64, i64, i64, text)

REQUESTS: Final[Mapping[type, st.SearchStrategy[Any]]] = {
    m.ApiVersionsRequest: st.builds(m.ApiVersionsRequest, name, text, text),
    m.FindCoordinatorRequest: st.builds(m.FindCoordinatorRequest, i32, many(text)),
    m.JoinGroupRequest: st.builds(
        m.JoinGroupRequest,
        text,
        i32,
        count,
        member_id,
        instance,
        st.just("") | name,
        many(st.builds(m.JoinProtocol, name, blob)),
        maybe_text,
        pattern,
    ),
    m.SyncGroupRequest: st.builds(
        m.SyncGroupRequest,
        text,
        epoch,
        member_id,
        instance,
        maybe_text,
        maybe_text,
        many(st.builds(m.MemberAssignment, member_id, blob)),
    ),
    m.HeartbeatRequest: st.builds(m.HeartbeatRequest, text, epoch, member_id, instance),
    m.LeaveGroupRequest: st.builds(
        m.LeaveGroupRequest,
        text,
        many(st.builds(m.LeavingMember, member_id, instance, maybe_text)),
    ),
    m.OffsetCommitRequest: st.builds(
        m.OffsetCommitRequest,
        text,
        epoch,
        member_id,
        instance,
        many(st.builds(m.TopicCommit, topic, many(_commit))),
    ),
    m.OffsetFetchRequest: st.builds(
        m.OffsetFetchRequest,
        many(st.builds(m.GroupFetch, text, st.none() | _partitions)),
        boolean,
    ),
    m.DescribeGroupsRequest: st.builds(m.DescribeGroupsRequest, many(text)),
    m.ListGroupsRequest: st.builds(m.ListGroupsRequest, many(text), many(text)),
    m.DeleteGroupsRequest: st.builds(m.DeleteGroupsRequest, many(text)),
    m.OffsetDeleteRequest: st.builds(m.OffsetDeleteRequest, text, _partitions),
    m.DrainMemberRequest: st.builds(m.DrainMemberRequest, text, name),
    m.RegisterTopicsRequest: st.builds(
        m.RegisterTopicsRequest,
        many(st.builds(m.TopicRegistration, topic, count, st.none() | many(_hosts))),
    ),
    m.DeleteTopicsRequest: st.builds(m.DeleteTopicsRequest, many(topic)),
    m.DescribeTopicsRequest: st.builds(
        m.DescribeTopicsRequest, st.none() | many(topic), pattern, boolean, text, count
    ),
    m.ReportEndOffsetsRequest: st.builds(
        m.ReportEndOffsetsRequest,
        many(st.builds(m.TopicEnds, topic, many(st.builds(m.PartitionEnd, count, offset)))),
    ),
    m.DescribeRebalancesRequest: st.builds(m.DescribeRebalancesRequest, text, count),
    m.ScanOffsetsRequest: st.builds(
        m.ScanOffsetsRequest,
        count,
        blob,
        count,
        boolean,
        st.none() | many(text),
        st.none() | many(text),
    ),
    m.ReadOffsetChangesRequest: st.builds(m.ReadOffsetChangesRequest, count, offset, count),
    m.DescribeLagRequest: st.builds(m.DescribeLagRequest, text),
    m.AlterGroupRetentionRequest: st.builds(
        m.AlterGroupRetentionRequest, text, st.none() | retention
    ),
    m.CompactLogRequest: st.builds(m.CompactLogRequest),
    m.DescribeNodeRequest: st.builds(m.DescribeNodeRequest),
    m.ReloadPartitionRequest: st.builds(m.ReloadPartitionRequest, count),
}

RESPONSES: Final[Mapping[type, st.SearchStrategy[Any]]] = {
    m.ApiVersionsRequest: st.builds(
        m.ApiVersionsResponse,
        code,
        many(st.builds(m.ApiVersionRange, i32, i32, i32)),
        text,
        text,
        i32,
        i32,
    ),
    m.FindCoordinatorRequest: st.builds(
        m.FindCoordinatorResponse,
        many(st.builds(m.CoordinatorOfGroup, text, code, maybe_text, i32, text, i32, i32, epoch)),
    ),
    m.JoinGroupRequest: st.builds(
        m.JoinGroupResponse,
        code,
        epoch,
        maybe_text,
        maybe_text,
        text,
        boolean,
        text,
        many(st.builds(m.JoinGroupMember, text, maybe_text, blob)),
        maybe_text,
    ),
    m.SyncGroupRequest: st.builds(
        m.SyncGroupResponse, code, maybe_text, maybe_text, blob, maybe_text
    ),
    m.HeartbeatRequest: st.builds(m.HeartbeatResponse, code, maybe_text),
    m.LeaveGroupRequest: st.builds(
        m.LeaveGroupResponse,
        code,
        many(st.builds(m.LeftMember, text, maybe_text, code, maybe_text)),
    ),
    m.OffsetCommitRequest: st.builds(m.OffsetCommitResponse, code, _results, maybe_text),
    m.OffsetFetchRequest: st.builds(
        m.OffsetFetchResponse, many(st.builds(m.GroupOffsets, text, code, many(_offsets)))
    ),
    m.DescribeGroupsRequest: st.builds(
        m.DescribeGroupsResponse,
        many(
            st.builds(
                m.DescribedGroup,
                code,
                maybe_text,
                text,
                text,
                text,
                text,
                epoch,
                many(_described_member),
                retention,
            )
        ),
    ),
    m.ListGroupsRequest: st.builds(
        m.ListGroupsResponse, code, many(st.builds(m.ListedGroup, text, text, text, text))
    ),
    m.DeleteGroupsRequest: st.builds(
        m.DeleteGroupsResponse, many(st.builds(m.DeletedGroup, text, code))
    ),
    m.OffsetDeleteRequest: st.builds(m.OffsetDeleteResponse, code, _results),
    m.DrainMemberRequest: st.builds(
        m.DrainMemberResponse, code, many(st.builds(m.DrainedMember, text, boolean))
    ),
    m.RegisterTopicsRequest: st.builds(
        m.RegisterTopicsResponse,
        code,
        many(st.builds(m.RegisteredTopic, text, code, maybe_text, i32)),
    ),
    m.DeleteTopicsRequest: st.builds(
        m.DeleteTopicsResponse, code, many(st.builds(m.DeletedTopic, text, code))
    ),
    m.DescribeTopicsRequest: st.builds(
        m.DescribeTopicsResponse, code, maybe_text, many(_described_topic), boolean
    ),
    m.ReportEndOffsetsRequest: st.builds(m.ReportEndOffsetsResponse, code, _results),
    m.DescribeRebalancesRequest: st.builds(
        m.DescribeRebalancesResponse, code, maybe_text, text, many(_rebalance)
    ),
    m.ScanOffsetsRequest: st.builds(
        m.ScanOffsetsResponse, code, i64, many(_scanned), blob, many(_columns)
    ),
    m.ReadOffsetChangesRequest: st.builds(
        m.ReadOffsetChangesResponse, code, many(_change), i64, i64
    ),
    m.DescribeLagRequest: st.builds(
        m.DescribeLagResponse, code, maybe_text, text, many(st.builds(m.TopicLag, text, many(_lag)))
    ),
    m.AlterGroupRetentionRequest: st.builds(m.AlterGroupRetentionResponse, code),
    m.CompactLogRequest: st.builds(m.CompactLogResponse, code, maybe_text, i64, i64, i64, i64),
    m.DescribeNodeRequest: st.builds(
        m.DescribeNodeResponse,
        code,
        i32,
        i32,
        text,
        many(st.builds(m.NodeProblem, text, text)),
        many(st.builds(m.NodePartition, count, text, i64, i64)),
        many(st.builds(m.NodeMetric, text, i64)),
    ),
    m.ReloadPartitionRequest: st.builds(m.ReloadPartitionResponse, code, maybe_text, i64, i64),
}
