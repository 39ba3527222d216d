"""One request and one answer of every API and version, as a small group would exchange them.

The vectors, the examples of the documentation and several tests are made of these. An example's
place is its correlation id in the vectors, so new ones are only ever appended.
"""

from typing import Final

from protocol import messages as m
from protocol.errors import ErrorCode
from tests.protocol.example import ASSIGNMENT, GROUP, LEADER_EPOCH, MEMBER, SUBSCRIPTION, Example
from tests.protocol.later_examples import LATER_EXAMPLES

EXAMPLES: Final[tuple[Example, ...]] = (
    Example(
        "who are you",
        0,
        m.ApiVersionsRequest("driver-1", "my-client", "1.0"),
        m.ApiVersionsResponse(
            0,
            (m.ApiVersionRange(8, 0, 1), m.ApiVersionRange(18, 0, 0)),
            "group-coordinator/0.1.0",
            "c0FmZS1hbmQtc291bmQhIQ",
            1,
            1_048_576,
        ),
        -1,
    ),
    Example(
        "where does a group live",
        0,
        m.FindCoordinatorRequest(0, (GROUP,)),
        m.FindCoordinatorResponse(
            (m.CoordinatorOfGroup(GROUP, 0, None, 1, "127.0.0.1", 9310, 15, LEADER_EPOCH),)
        ),
    ),
    Example(
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
        "a new member gets its id",
        0,
        m.JoinGroupRequest(
            GROUP, 45_000, 300_000, "", None, "consumer", (m.JoinProtocol("range", b""),), None
        ),
        m.JoinGroupResponse(ErrorCode.MEMBER_ID_REQUIRED, -1, None, None, "", False, MEMBER, ()),
    ),
    Example(
        "the leader assigns",
        0,
        m.SyncGroupRequest(
            GROUP, 1, MEMBER, None, "consumer", "range", (m.MemberAssignment(MEMBER, ASSIGNMENT),)
        ),
        m.SyncGroupResponse(0, "consumer", "range", ASSIGNMENT),
    ),
    Example(
        "a member is alive",
        0,
        m.HeartbeatRequest(GROUP, 1, MEMBER, None),
        m.HeartbeatResponse(ErrorCode.REBALANCE_IN_PROGRESS),
    ),
    Example(
        "a member leaves",
        0,
        m.LeaveGroupRequest(GROUP, (m.LeavingMember(MEMBER, None, "stopped"),)),
        m.LeaveGroupResponse(0, (m.LeftMember(MEMBER, None, 0),)),
    ),
    Example(
        "a commit",
        0,
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
        "some offsets of a group",
        0,
        m.OffsetFetchRequest(
            (m.GroupFetch(GROUP, (m.TopicPartitions("flights", (0, 1)),)),), False
        ),
        m.OffsetFetchResponse(
            (
                m.GroupOffsets(
                    GROUP,
                    0,
                    (
                        m.TopicOffsets(
                            "flights",
                            (
                                m.PartitionOffset(0, 42, -1, "batch 7", 0),
                                m.PartitionOffset(1, -1, -1, "", 0),
                            ),
                        ),
                    ),
                ),
            )
        ),
    ),
    Example(
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
        "which groups are there",
        0,
        m.ListGroupsRequest(("Stable", "Empty"), ()),
        m.ListGroupsResponse(0, (m.ListedGroup(GROUP, "consumer", "Stable", "classic"),)),
        -1,
    ),
    Example(
        "delete a group",
        0,
        m.DeleteGroupsRequest((GROUP,)),
        m.DeleteGroupsResponse((m.DeletedGroup(GROUP, ErrorCode.NON_EMPTY_GROUP),)),
    ),
    Example(
        "forget offsets",
        0,
        m.OffsetDeleteRequest(GROUP, (m.TopicPartitions("flights", (0,)),)),
        m.OffsetDeleteResponse(
            0,
            (
                m.TopicResult(
                    "flights", (m.PartitionResult(0, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC),)
                ),
            ),
        ),
    ),
    Example(
        "take the partitions of a client away",
        0,
        m.DrainMemberRequest(GROUP, "driver-1"),
        m.DrainMemberResponse(0, (m.DrainedMember(MEMBER, drained=False),)),
    ),
    *LATER_EXAMPLES,
)
