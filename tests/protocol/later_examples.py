"""The examples of what came after version 0 of the first APIs; see `tests.protocol.examples`."""

from typing import Final

from protocol import messages as m
from protocol.body import pack
from protocol.errors import ErrorCode
from tests.protocol.example import ASSIGNMENT, GROUP, MEMBER, OTHER, SUBSCRIPTION, Example

_STARTED_MS: Final = 1_785_000_000_000

_NEWER_VERSIONS: Final = (
    Example(
        "a member joins by pattern",
        1,
        m.JoinGroupRequest(
            GROUP,
            45_000,
            300_000,
            MEMBER,
            None,
            "consumer",
            (m.JoinProtocol("range", SUBSCRIPTION),),
            None,
            "flights(-.*)?",
        ),
        m.JoinGroupResponse(
            0,
            2,
            "consumer",
            "range",
            MEMBER,
            False,
            MEMBER,
            (m.JoinGroupMember(MEMBER, None, SUBSCRIPTION),),
        ),
    ),
    Example(
        "a static member finds its place taken",
        1,
        m.JoinGroupRequest(
            GROUP,
            45_000,
            300_000,
            OTHER,
            "etl-1",
            "consumer",
            (m.JoinProtocol("range", SUBSCRIPTION),),
            None,
        ),
        m.JoinGroupResponse(
            ErrorCode.FENCED_INSTANCE_ID,
            -1,
            None,
            None,
            "",
            False,
            OTHER,
            (),
            f"instance id 'etl-1' is held by member {MEMBER} (client driver-1) from host 10.0.0.7",
        ),
    ),
    Example(
        "the leader assigns, version 1",
        1,
        m.SyncGroupRequest(
            GROUP, 1, MEMBER, None, "consumer", "range", (m.MemberAssignment(MEMBER, ASSIGNMENT),)
        ),
        m.SyncGroupResponse(0, "consumer", "range", ASSIGNMENT),
    ),
    Example(
        "a member syncs too late",
        1,
        m.SyncGroupRequest(GROUP, 3, MEMBER, None, "consumer", "range", ()),
        m.SyncGroupResponse(
            ErrorCode.ILLEGAL_GENERATION,
            None,
            None,
            b"",
            "generation 3 is over, the group is at 5",
        ),
    ),
    Example(
        "a member is alive, version 1",
        1,
        m.HeartbeatRequest(GROUP, 1, MEMBER, None),
        m.HeartbeatResponse(0),
    ),
    Example(
        "a removed member learns why",
        1,
        m.HeartbeatRequest(GROUP, 1, OTHER, None),
        m.HeartbeatResponse(
            ErrorCode.UNKNOWN_MEMBER_ID, "no heartbeat for 10.2 s, session timeout 10.0 s"
        ),
    ),
    Example(
        "an operator removes a static member",
        1,
        m.LeaveGroupRequest(
            GROUP,
            (m.LeavingMember("", "etl-1", "host is gone"), m.LeavingMember(OTHER, None, None)),
        ),
        m.LeaveGroupResponse(
            0,
            (
                m.LeftMember("", "etl-1", 0),
                m.LeftMember(OTHER, None, ErrorCode.UNKNOWN_MEMBER_ID, "left: shutting down"),
            ),
        ),
    ),
    Example(
        "a commit, version 2",
        2,
        m.OffsetCommitRequest(
            GROUP,
            1,
            MEMBER,
            None,
            (m.TopicCommit("flights", (m.PartitionCommit(0, 42, -1, ""),)),),
        ),
        m.OffsetCommitResponse(0, (m.TopicResult("flights", (m.PartitionResult(0, 0),)),)),
    ),
    Example(
        "a commit of an older generation",
        2,
        m.OffsetCommitRequest(
            GROUP,
            3,
            MEMBER,
            None,
            (m.TopicCommit("flights", (m.PartitionCommit(0, 42, -1, None, 41),)),),
        ),
        m.OffsetCommitResponse(
            ErrorCode.ILLEGAL_GENERATION, (), "generation 3 is over, the group is at 5"
        ),
    ),
    Example(
        "who is in a group, and how long its offsets are kept",
        1,
        m.DescribeGroupsRequest((GROUP,)),
        m.DescribeGroupsResponse(
            (
                m.DescribedGroup(
                    0,
                    None,
                    GROUP,
                    "Stable",
                    "consumer",
                    "range",
                    1,
                    (
                        m.DescribedMember(
                            MEMBER, "etl-1", "driver-1", "10.0.0.7", SUBSCRIPTION, ASSIGNMENT
                        ),
                    ),
                    offsets_retention_ms=604_800_000,
                ),
            )
        ),
    ),
)

_TOPICS: Final = (
    Example(
        "topics become known",
        0,
        m.RegisterTopicsRequest(
            (
                m.TopicRegistration("flights", 2, (m.PartitionHosts(0, ("host-a", "host-b")),)),
                m.TopicRegistration("weather", 1, None),
            )
        ),
        m.RegisterTopicsResponse(
            0,
            (
                m.RegisteredTopic("flights", 0, None, 2),
                m.RegisteredTopic(
                    "weather",
                    ErrorCode.INVALID_PARTITIONS,
                    "topic weather has 4 partitions and can't shrink to 1",
                    4,
                ),
            ),
        ),
        -1,
    ),
    Example(
        "topics are gone",
        0,
        m.DeleteTopicsRequest(("weather", "rain")),
        m.DeleteTopicsResponse(
            0,
            (
                m.DeletedTopic("weather", 0),
                m.DeletedTopic("rain", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ),
        ),
        -1,
    ),
    Example(
        "which topics match",
        0,
        m.DescribeTopicsRequest(None, "flights(-.*)?", True, "", 100),
        m.DescribeTopicsResponse(
            0,
            None,
            (
                m.DescribedTopic(
                    "flights",
                    0,
                    2,
                    (m.PartitionHosts(0, ("host-a", "host-b")),),
                    (m.EndOffset(0, 50, _STARTED_MS),),
                ),
            ),
            has_more=False,
        ),
        -1,
    ),
    Example(
        "topics by name",
        0,
        m.DescribeTopicsRequest(("rain",), None, False, "", 1),
        m.DescribeTopicsResponse(
            0,
            None,
            (m.DescribedTopic("rain", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, (), ()),),
            has_more=False,
        ),
        -1,
    ),
    Example(
        "how far partitions reach",
        0,
        m.ReportEndOffsetsRequest(
            (m.TopicEnds("flights", (m.PartitionEnd(0, 50), m.PartitionEnd(9, 1))),)
        ),
        m.ReportEndOffsetsResponse(
            0,
            (
                m.TopicResult(
                    "flights",
                    (
                        m.PartitionResult(0, 0),
                        m.PartitionResult(9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
                    ),
                ),
            ),
        ),
        -1,
    ),
)

_INSIGHT: Final = (
    Example(
        "why did a group rebalance",
        0,
        m.DescribeRebalancesRequest(GROUP, 1),
        m.DescribeRebalancesResponse(
            0,
            None,
            GROUP,
            (
                m.Rebalance(
                    7,
                    _STARTED_MS,
                    "session expired",
                    OTHER,
                    None,
                    "driver-2",
                    "10.0.0.8",
                    "no heartbeat for 10.2 s, session timeout 10.0 s",
                    4,
                    5,
                    1_204,
                    35,
                    1,
                    "stable",
                    (m.LateMember(MEMBER, "driver-1", "10.0.0.7", "join", 1_204, removed=False),),
                ),
            ),
        ),
    ),
    Example(
        "all offsets of an offsets partition",
        0,
        m.ScanOffsetsRequest(15, b"", 1),
        m.ScanOffsetsResponse(
            0,
            1_712,
            (m.ScannedOffset(GROUP, "flights", 0, 42, -1, "batch 7", _STARTED_MS, -1),),
            b"\x01\x02",
        ),
    ),
    Example(
        "some offsets of an offsets partition, in columns, version 1",
        1,
        m.ScanOffsetsRequest(15, b"", 2, in_columns=True, group_ids=(GROUP,), topics=None),
        m.ScanOffsetsResponse(
            0,
            1_712,
            (),
            b"",
            (
                m.OffsetColumns(
                    (GROUP,),
                    ("flights",),
                    (2).to_bytes(4),
                    pack((0, 42, -1, "batch 7", 0)) + pack((1, 300, 5, "", 0)),
                    (12).to_bytes(2) + (8).to_bytes(2),
                    2 * _STARTED_MS.to_bytes(8),
                    b"",
                ),
            ),
        ),
    ),
    Example(
        "what has changed since",
        0,
        m.ReadOffsetChangesRequest(15, 1_712, 100),
        m.ReadOffsetChangesResponse(
            0,
            (
                m.OffsetChange(
                    1_712, "committed", GROUP, "flights", 0, 43, -1, "", _STARTED_MS + 5
                ),
                m.OffsetChange(1_714, "removed", GROUP, "weather", 0, -1, -1, "", _STARTED_MS + 9),
                m.OffsetChange(1_715, "group deleted", GROUP, "", -1, -1, -1, "", _STARTED_MS + 9),
            ),
            1_716,
            1_716,
        ),
    ),
    Example(
        "how far behind is a group",
        0,
        m.DescribeLagRequest(GROUP),
        m.DescribeLagResponse(
            0,
            None,
            GROUP,
            (
                m.TopicLag(
                    "flights",
                    (
                        m.PartitionLag(0, 42, 50, 8, _STARTED_MS, _STARTED_MS + 5, MEMBER),
                        m.PartitionLag(1, -1, -1, -1, -1, -1, MEMBER),
                    ),
                ),
            ),
        ),
    ),
    Example(
        "keep a group's offsets for ever",
        0,
        m.AlterGroupRetentionRequest(GROUP, -1),
        m.AlterGroupRetentionResponse(0),
    ),
)

_LOG: Final = (
    Example(
        "compact the log",
        0,
        m.CompactLogRequest(),
        m.CompactLogResponse(0, None, 41_932_800, 9_200_117, 9_187_402, 2_140),
        -1,
    ),
)

_NODE: Final = (
    Example(
        "a node loads, and its disk is nearly full",
        0,
        m.DescribeNodeRequest(),
        m.DescribeNodeResponse(
            0,
            1,
            7,
            "unhealthy",
            (m.NodeProblem("storage", "the disk's reserve is reached"),),
            (m.NodePartition(0, "loading", 1_200, 90_000), m.NodePartition(65_535, "active", 3, 3)),
            (m.NodeMetric("log_bytes", 43_420_000),),
        ),
    ),
    Example(
        "load a partition again",
        0,
        m.ReloadPartitionRequest(7),
        m.ReloadPartitionResponse(0, None, 20_000, 85),
    ),
)

LATER_EXAMPLES: Final = _NEWER_VERSIONS + _TOPICS + _INSIGHT + _NODE + _LOG
