"""All examples: the one of each declaration, and more of some versions and answers."""

from typing import Final

from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.messages import ASSIGNMENT, GROUP, MEMBER, OTHER, STARTED_MS, SUBSCRIPTION, Example

_MORE: Final = (
    Example(
        2,
        "a member joins and leads",
        0,
        m.JoinGroupRequest(
            GROUP,
            45_000,
            300_000,
            MEMBER,
            None,
            "consumer",
            (m.JoinProtocol("range", SUBSCRIPTION),),
            "first start",
        ),
        m.JoinGroupResponse(
            0,
            1,
            "consumer",
            "range",
            MEMBER,
            False,
            MEMBER,
            (m.JoinGroupMember(MEMBER, None, SUBSCRIPTION),),
        ),
    ),
    Example(
        3,
        "a new member gets its id",
        0,
        m.JoinGroupRequest(
            GROUP, 45_000, 300_000, "", None, "consumer", (m.JoinProtocol("range", b""),), None
        ),
        m.JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, -1, None, None, "", False, MEMBER, ()),
    ),
    Example(
        4,
        "the leader assigns",
        0,
        m.SyncGroupRequest(
            GROUP, 1, MEMBER, None, "consumer", "range", (m.MemberAssignment(MEMBER, ASSIGNMENT),)
        ),
        m.SyncGroupResponse(0, "consumer", "range", ASSIGNMENT),
    ),
    Example(
        5,
        "a member is alive",
        0,
        m.HeartbeatRequest(GROUP, 1, MEMBER, None),
        m.HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    Example(
        6,
        "a member leaves",
        0,
        m.LeaveGroupRequest(GROUP, (m.LeavingMember(MEMBER, None, "stopped"),)),
        m.LeaveGroupResponse(0, (m.LeftMember(MEMBER, None, 0),)),
    ),
    Example(
        7,
        "a commit",
        0,
        m.OffsetCommitRequest(
            GROUP,
            1,
            MEMBER,
            None,
            (m.TopicCommit("flights", (m.PartitionCommit(0, 42, -1, "", None),)),),
        ),
        m.OffsetCommitResponse(0, (m.TopicResult("flights", (m.PartitionResult(0, 0),)),)),
    ),
    Example(
        8,
        "a commit that names what it expects",
        1,
        m.OffsetCommitRequest(
            GROUP,
            1,
            MEMBER,
            None,
            (
                m.TopicCommit(
                    "flights",
                    (
                        m.PartitionCommit(0, 42, -1, "batch 7", -1),
                        m.PartitionCommit(1, 2**63 - 1, 5, None, 41),
                    ),
                ),
            ),
        ),
        m.OffsetCommitResponse(
            0,
            (
                m.TopicResult(
                    "flights",
                    (m.PartitionResult(0, 0), m.PartitionResult(1, ErrorCode.OFFSET_CONFLICT)),
                ),
            ),
        ),
    ),
    Example(
        10,
        "all offsets of two groups",
        0,
        m.OffsetFetchRequest((m.GroupFetch(GROUP, None), m.GroupFetch("", None)), True),
        m.OffsetFetchResponse(
            (
                m.GroupOffsets(GROUP, 0, ()),
                m.GroupOffsets("", ErrorCode.INVALID_GROUP_ID, ()),
            )
        ),
        -1,
    ),
    Example(
        11,
        "who is in a group",
        0,
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
                            MEMBER, None, "driver-1", "127.0.0.1", SUBSCRIPTION, ASSIGNMENT
                        ),
                    ),
                ),
            )
        ),
    ),
    Example(
        12,
        "which groups are there",
        0,
        m.ListGroupsRequest(("Stable", "Empty"), ()),
        m.ListGroupsResponse(0, (m.ListedGroup(GROUP, "consumer", "Stable", "classic"),)),
        -1,
    ),
    Example(
        17,
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
        19,
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
        21,
        "a removed member learns why",
        1,
        m.HeartbeatRequest(GROUP, 1, OTHER, None),
        m.HeartbeatResponse(
            ErrorCode.UNKNOWN_MEMBER_ID, "no heartbeat for 10.2 s, session timeout 10.0 s"
        ),
    ),
    Example(
        24,
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
        26,
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
        29,
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
        32,
        "all offsets of an offsets partition",
        0,
        m.ScanOffsetsRequest(15, b"", 1),
        m.ScanOffsetsResponse(
            0,
            1_712,
            (m.ScannedOffset(GROUP, "flights", 0, 42, -1, "batch 7", STARTED_MS, -1),),
            b"\x01\x02",
        ),
    ),
    Example(
        53,
        "the two journals of a cluster",
        0,
        m.DescribeJournalsRequest(),
        m.DescribeJournalsResponse(
            0,
            None,
            1,
            True,
            1,
            1,
            43_420_000,
            314_572_800,
            (
                m.DescribedJournal(
                    0, 1, 7, STARTED_MS, 90_000, 1_200, 9_417_000, 88_800, 34_000_000
                ),
                m.DescribedJournal(1, -1, 3, STARTED_MS, 12, 12, 3_000, 0, 0),
            ),
        ),
        -1,
    ),
    Example(
        41,
        "how far behind are all groups",
        0,
        m.SummarizeGroupsRequest("etl.*", (), b"", 100, 3),
        m.SummarizeGroupsResponse(
            0,
            None,
            (m.GroupSummary(GROUP, "consumer", "Stable", 1, 2, 1, 8, 20, 150_000, (20, -1, 12)),),
            b"",
        ),
        -1,
    ),
)

# An example's place is its correlation id in the vectors, so new ones take the next number.
EXAMPLES: Final = tuple(
    sorted((*(api.example for api in m.APIS.values()), *_MORE), key=lambda e: e.number)
)
