"""Requests and responses as values; `protocol.apis` says how each lies on the wire.

They are NamedTuples in the order of the wire: decoding is one call, encoding is none
(msgpack packs a tuple as an array), and both count at 100,000 requests a second.
`?` of the specification is `| None` here. Timeouts are in milliseconds.
"""

from collections.abc import Sequence
from typing import NamedTuple

from protocol.admin_messages import (
    CompactLogRequest as CompactLogRequest,
    CompactLogResponse as CompactLogResponse,
    DeletedGroup as DeletedGroup,
    DeleteGroupsRequest as DeleteGroupsRequest,
    DeleteGroupsResponse as DeleteGroupsResponse,
    DescribedGroup as DescribedGroup,
    DescribedMember as DescribedMember,
    DescribeGroupsRequest as DescribeGroupsRequest,
    DescribeGroupsResponse as DescribeGroupsResponse,
    ListedGroup as ListedGroup,
    ListGroupsRequest as ListGroupsRequest,
    ListGroupsResponse as ListGroupsResponse,
)
from protocol.insight_messages import (
    AlterGroupRetentionRequest as AlterGroupRetentionRequest,
    AlterGroupRetentionResponse as AlterGroupRetentionResponse,
    DescribeLagRequest as DescribeLagRequest,
    DescribeLagResponse as DescribeLagResponse,
    DescribeRebalancesRequest as DescribeRebalancesRequest,
    DescribeRebalancesResponse as DescribeRebalancesResponse,
    LateMember as LateMember,
    OffsetChange as OffsetChange,
    OffsetColumns as OffsetColumns,
    PartitionLag as PartitionLag,
    ReadOffsetChangesRequest as ReadOffsetChangesRequest,
    ReadOffsetChangesResponse as ReadOffsetChangesResponse,
    Rebalance as Rebalance,
    ScannedOffset as ScannedOffset,
    ScanOffsetsRequest as ScanOffsetsRequest,
    ScanOffsetsResponse as ScanOffsetsResponse,
    TopicLag as TopicLag,
)
from protocol.membership_messages import (
    DrainedMember as DrainedMember,
    DrainMemberRequest as DrainMemberRequest,
    DrainMemberResponse as DrainMemberResponse,
    HeartbeatRequest as HeartbeatRequest,
    HeartbeatResponse as HeartbeatResponse,
    JoinGroupMember as JoinGroupMember,
    JoinGroupRequest as JoinGroupRequest,
    JoinGroupResponse as JoinGroupResponse,
    JoinProtocol as JoinProtocol,
    LeaveGroupRequest as LeaveGroupRequest,
    LeaveGroupResponse as LeaveGroupResponse,
    LeavingMember as LeavingMember,
    LeftMember as LeftMember,
    MemberAssignment as MemberAssignment,
    SyncGroupRequest as SyncGroupRequest,
    SyncGroupResponse as SyncGroupResponse,
)
from protocol.node_messages import (
    DescribeNodeRequest as DescribeNodeRequest,
    DescribeNodeResponse as DescribeNodeResponse,
    NodeMetric as NodeMetric,
    NodePartition as NodePartition,
    NodeProblem as NodeProblem,
    ReloadPartitionRequest as ReloadPartitionRequest,
    ReloadPartitionResponse as ReloadPartitionResponse,
)
from protocol.topic_messages import (
    DeletedTopic as DeletedTopic,
    DeleteTopicsRequest as DeleteTopicsRequest,
    DeleteTopicsResponse as DeleteTopicsResponse,
    DescribedTopic as DescribedTopic,
    DescribeTopicsRequest as DescribeTopicsRequest,
    DescribeTopicsResponse as DescribeTopicsResponse,
    EndOffset as EndOffset,
    PartitionEnd as PartitionEnd,
    PartitionHosts as PartitionHosts,
    RegisteredTopic as RegisteredTopic,
    RegisterTopicsRequest as RegisterTopicsRequest,
    RegisterTopicsResponse as RegisterTopicsResponse,
    ReportEndOffsetsRequest as ReportEndOffsetsRequest,
    ReportEndOffsetsResponse as ReportEndOffsetsResponse,
    TopicEnds as TopicEnds,
    TopicRegistration as TopicRegistration,
)
from protocol.types import PartitionResult as PartitionResult, TopicResult as TopicResult

# --- 18 ApiVersions ---------------------------------------------------------------------


class ApiVersionsRequest(NamedTuple):
    """The first request of a connection: who is calling, and what can you do?"""

    client_id: str
    software_name: str
    software_version: str


class ApiVersionRange(NamedTuple):
    """The versions of one API that the server answers, both ends included."""

    api_key: int
    min_version: int
    max_version: int


class ApiVersionsResponse(NamedTuple):
    """Answer to `ApiVersionsRequest`."""

    error: int
    apis: tuple[ApiVersionRange, ...]
    server_software: str
    cluster_id: str
    node_id: int
    max_request_bytes: int


# --- 10 FindCoordinator -----------------------------------------------------------------


class FindCoordinatorRequest(NamedTuple):
    """Which node coordinates these groups? ``key_type`` 0 means group."""

    key_type: int
    group_ids: tuple[str, ...]


class CoordinatorOfGroup(NamedTuple):
    """Where one group lives."""

    group_id: str
    error: int
    message: str | None
    node_id: int
    host: str
    port: int
    offsets_partition: int
    leader_epoch: int


class FindCoordinatorResponse(NamedTuple):
    """Answer to `FindCoordinatorRequest`, one entry per group id."""

    coordinators: tuple[CoordinatorOfGroup, ...]


# --- 8 OffsetCommit ---------------------------------------------------------------------


class PartitionCommit(NamedTuple):
    """The next offset to read of one partition.

    ``expected_offset`` (version 1): None = no check, -1 = only if nothing is committed,
    else only if that is the committed offset.
    """

    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    expected_offset: int | None = None


class TopicCommit(NamedTuple):
    """The partitions of one topic in an `OffsetCommitRequest`.

    In a request that was read they are tuples without names (`ArrayOf.plain`), or packed ones.
    """

    topic: str
    partitions: Sequence[PartitionCommit]


class OffsetCommitRequest(NamedTuple):
    """Store how far a group has come. Generation -1 and member "" for a group without members."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    topics: tuple[TopicCommit, ...]


class OffsetCommitResponse(NamedTuple):
    """Answer to `OffsetCommitRequest`: an error of the whole group, or one per partition."""

    error: int
    topics: tuple[TopicResult, ...]
    message: str | None = None  # Version 2: the error of the whole group in words.


# --- 9 OffsetFetch ----------------------------------------------------------------------


class TopicPartitions(NamedTuple):
    """Some partitions of one topic."""

    topic: str
    partitions: tuple[int, ...]


class GroupFetch(NamedTuple):
    """What to fetch of one group; ``topics`` None means everything that is committed."""

    group_id: str
    topics: tuple[TopicPartitions, ...] | None


class OffsetFetchRequest(NamedTuple):
    """How far have these groups come?"""

    groups: tuple[GroupFetch, ...]
    require_stable: bool


class PartitionOffset(NamedTuple):
    """A committed offset; -1 where there is none (and then epoch -1, metadata "", error 0)."""

    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    error: int


class TopicOffsets(NamedTuple):
    """The committed offsets of one topic."""

    topic: str
    partitions: tuple[PartitionOffset, ...]


class GroupOffsets(NamedTuple):
    """The committed offsets of one group."""

    group_id: str
    error: int
    topics: tuple[TopicOffsets, ...]


class OffsetFetchResponse(NamedTuple):
    """Answer to `OffsetFetchRequest`, in the order asked."""

    groups: tuple[GroupOffsets, ...]


# --- 47 OffsetDelete --------------------------------------------------------------------


class OffsetDeleteRequest(NamedTuple):
    """Forget committed offsets of topics that the group doesn't subscribe to."""

    group_id: str
    topics: tuple[TopicPartitions, ...]


class OffsetDeleteResponse(NamedTuple):
    """Answer to `OffsetDeleteRequest`: an error of the whole group, or one per partition."""

    error: int
    topics: tuple[TopicResult, ...]


# --- An error that stands alone ---------------------------------------------------------


class BareError(NamedTuple):
    """``[error]``: codes 42 (unreadable), 35, -1 and 1006 have no other shape."""

    error: int


class PackedResponse(NamedTuple):
    """A response whose fields were packed as they were made, in the order of its layout.

    For answers so long or so frequent that making them of tuples first is most of their cost.
    Only for layouts whose versions differ in nothing but the number of their outermost fields.
    """

    fields: tuple[bytes, ...]


Request = (
    ApiVersionsRequest
    | FindCoordinatorRequest
    | JoinGroupRequest
    | SyncGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | OffsetCommitRequest
    | OffsetFetchRequest
    | DescribeGroupsRequest
    | ListGroupsRequest
    | DeleteGroupsRequest
    | OffsetDeleteRequest
    | DrainMemberRequest
    | RegisterTopicsRequest
    | DeleteTopicsRequest
    | DescribeTopicsRequest
    | ReportEndOffsetsRequest
    | DescribeRebalancesRequest
    | ScanOffsetsRequest
    | ReadOffsetChangesRequest
    | DescribeLagRequest
    | AlterGroupRetentionRequest
    | CompactLogRequest
    | DescribeNodeRequest
    | ReloadPartitionRequest
)

Response = (
    ApiVersionsResponse
    | FindCoordinatorResponse
    | JoinGroupResponse
    | SyncGroupResponse
    | HeartbeatResponse
    | LeaveGroupResponse
    | OffsetCommitResponse
    | OffsetFetchResponse
    | DescribeGroupsResponse
    | ListGroupsResponse
    | DeleteGroupsResponse
    | OffsetDeleteResponse
    | DrainMemberResponse
    | RegisterTopicsResponse
    | DeleteTopicsResponse
    | DescribeTopicsResponse
    | ReportEndOffsetsResponse
    | DescribeRebalancesResponse
    | ScanOffsetsResponse
    | ReadOffsetChangesResponse
    | DescribeLagResponse
    | AlterGroupRetentionResponse
    | CompactLogResponse
    | DescribeNodeResponse
    | ReloadPartitionResponse
    | BareError
)

# What a server answers with: a response, or one that is packed already.
Answer = Response | PackedResponse
