"""Which error comes first: what the request itself says, then the partition, then the group.

The table of tests/group/test_requests_by_state.py begins where this one ends: with a partition
that is loaded and here.
"""

import pytest
from trio.testing import MockClock

from protocol import messages as m
from tests.server.world import commit, join, world

# A column is what the offsets partition of the group is: still loading, or gone elsewhere. A
# group id that is no legal one ("") and a session timeout out of bounds don't need it.
TABLE = """
                                       loading   elsewhere
JoinGroup                              14        16
JoinGroup, short session               26        26
JoinGroup, bad group                   24        24
JoinGroup, bad group, short session    24        24
SyncGroup                              14        16
SyncGroup, bad group                   24        24
Heartbeat                              14        16
Heartbeat, bad group                   24        24
LeaveGroup                             14        16
LeaveGroup, bad group                  24        24
OffsetCommit                           14        16
OffsetCommit, twice                    42        42
OffsetCommit, bad group                24        24
OffsetCommit, bad group, twice         24        24
OffsetFetch                            14        16
OffsetFetch, bad group                 24        24
DescribeGroups                         14        16
DescribeGroups, bad group              24        24
ListGroups                             14        0
ListGroups, of a partition             14        16
SummarizeGroups                        14        0
SummarizeGroups, of a partition        14        16
SummarizeGroups, none at a time        42        42
SummarizeGroups, bad pattern           128       128
DeleteGroups                           14        16
DeleteGroups, bad group                24        24
OffsetDelete                           14        16
OffsetDelete, bad group                24        24
DrainMember                            14        16
DrainMember, bad group                 24        24
AlterOffsets                           14        16
AlterOffsets, twice                    42        42
AlterOffsets, bad group                24        24
AlterGroupRetention                    14        16
AlterGroupRetention, bad group         24        24
DescribeRebalances                     14        16
DescribeRebalances, bad group          24        24
DescribeLag                            14        16
DescribeLag, bad group                 24        24
"""
ALTERED = m.AlteredOffset(0, 5, -1, "", None)
LINES = [line.rsplit(maxsplit=2) for line in TABLE.splitlines()[2:]]
ROWS = [
    (asked, state, int(code))
    for asked, *codes in LINES
    for state, code in zip(("loading", "elsewhere"), codes, strict=True)
]


def request_of(asked: str) -> m.Request:
    """Return the request that a line of the table names."""
    api, *how = asked.split(", ")
    group = "" if "bad group" in how else "g"
    partitions = (0,) if "of a partition" in how else None
    requests: dict[str, m.Request] = {
        "JoinGroup": join(group, "m", 5_999 if "short session" in how else 10_000),
        "SyncGroup": m.SyncGroupRequest(group, 1, "m", None, None, None, ()),
        "Heartbeat": m.HeartbeatRequest(group, 1, "m", "i-1"),
        "LeaveGroup": m.LeaveGroupRequest(group, (m.LeavingMember("m", None, None),)),
        "OffsetCommit": commit(1, *((0, 0) if "twice" in how else (0,)), group_id=group),
        "OffsetFetch": m.OffsetFetchRequest((m.GroupFetch(group, None),), False),
        "DescribeGroups": m.DescribeGroupsRequest((group,)),
        "ListGroups": m.ListGroupsRequest((), (), partitions),
        "SummarizeGroups": m.SummarizeGroupsRequest(
            "(" if "bad pattern" in how else None,
            (),
            b"",
            int("none at a time" not in how),
            0,
            partitions,
        ),
        "DeleteGroups": m.DeleteGroupsRequest((group,)),
        "OffsetDelete": m.OffsetDeleteRequest(group, (m.TopicPartitions("t", (0,)),)),
        "DrainMember": m.DrainMemberRequest(group, "c"),
        "AlterOffsets": m.AlterOffsetsRequest(
            group,
            (m.AlteredTopic("t", (ALTERED,) * (2 if "twice" in how else 1)),),
            remove_owners=False,
            reason=None,
        ),
        "AlterGroupRetention": m.AlterGroupRetentionRequest(group, -1),
        "DescribeRebalances": m.DescribeRebalancesRequest(group, 1),
        "DescribeLag": m.DescribeLagRequest(group),
    }
    return requests[api]


def error_of(response: m.Response) -> int:
    """Return the error of an answer, or of the only group in it."""
    groups = getattr(response, "groups", ())
    error: int = groups[0].error if groups else response.error  # type: ignore[attr-defined]  # the others have one
    return error


@pytest.mark.parametrize(
    ("asked", "state", "expected"), ROWS, ids=lambda value: str(value).replace(", ", "-")
)
async def test_the_request_comes_first_and_then_the_partition(
    asked: str, state: str, expected: int, autojump_clock: MockClock
) -> None:
    """A client with a bug in it must hear of that, also while it would have to wait."""
    async with world(load=state == "elsewhere") as w:
        if state == "elsewhere":
            await w.node.drain()

        assert expected == error_of(await w.connect().ask(request_of(asked)))
