"""The operators' calls without an event loop."""

import pytest

from client import FatalError
from client.operators import Lag
from protocol import messages as m
from tests.client.threads import T0, connect_to
from tests.fakes.scripted_server import Answer, ScriptedServer
from tests.spark.tables.pages import page_of


def test_operators_calls_are_there_too() -> None:
    """Describe, list, delete and drain need no event loop either."""
    with connect_to(ScriptedServer()) as client:
        assert [group.group_id for group in client.list_groups()] == ["g"]
        assert [group.group_id for group in client.describe_groups(["g"])] == ["g"]
        assert client.delete_groups(["g"]) == {"g": 0}
        assert [member.drained for member in client.drain_member("g", "client")] == [True]


def test_the_registry_is_there_too() -> None:
    """Whoever makes topics is seldom a trio program."""
    server = ScriptedServer()
    with connect_to(server) as client:
        client.register_topics({"t": 2})

        assert [topic.partition_count for topic in client.describe_topics(["t"])] == [2]
        assert client.delete_topics(["t"]) == {"t": 0}

        server.script(m.ReportEndOffsetsRequest, 42)
        with pytest.raises(FatalError):
            client.report_end_offsets({T0: 1})


def test_insight_into_groups_is_there_too() -> None:
    """Each call reaches the coordinator with its arguments."""
    server = ScriptedServer()
    lag = m.DescribeLagResponse(
        0, None, "g", (m.TopicLag("t", (m.PartitionLag(0, 1, 3, 2, 0, 0, ""),)),)
    )
    columns = page_of([m.ScannedOffset("g", "t", 0, 5, -1, "", 1, -1)])
    page = m.ScanOffsetsResponse(0, 4, (), b"", (columns,))
    server.script(m.DescribeLagRequest, *[Answer(lag)] * 2)
    server.script(
        m.DescribeRebalancesRequest, Answer(m.DescribeRebalancesResponse(0, None, "g", ()))
    )
    server.script(m.OffsetDeleteRequest, Answer(m.OffsetDeleteResponse(0, ())))
    server.script(m.AlterGroupRetentionRequest, Answer(m.AlterGroupRetentionResponse(0)))
    server.script(m.LeaveGroupRequest, Answer(m.LeaveGroupResponse(0, (m.LeftMember("", "i", 0),))))
    server.script(m.ScanOffsetsRequest, Answer(page))
    server.script(m.ReadOffsetChangesRequest, Answer(m.ReadOffsetChangesResponse(0, (), 6, 6)))
    with connect_to(server) as client, client.join("g", ["t"], {"t": 1}) as member:
        assert member.lag() == client.lag("g") == {T0: Lag(1, 3, 2, None)}
        assert client.rebalances("g", 3) == []
        assert client.delete_offsets("g", [T0]) == {}
        client.set_offsets_retention("g", 5)
        assert client.remove_static_members("g", ["i"]) == {"i": 0}
        assert client.offsets_partition("g") == 0
        scan = client.scan_offset_columns(7)
        assert [offset.offset for offset in scan] == [5]
        assert client.offset_changes(7, scan.position, 3).next_position == 6

    assert server.requests(
        m.DescribeRebalancesRequest,
        m.AlterGroupRetentionRequest,
        m.ScanOffsetsRequest,
        m.ReadOffsetChangesRequest,
    ) == [
        m.DescribeRebalancesRequest("g", 3),
        m.AlterGroupRetentionRequest("g", 5),
        m.ScanOffsetsRequest(7, b"", 20_000, in_columns=True),
        m.ReadOffsetChangesRequest(7, 4, 3),
    ]
