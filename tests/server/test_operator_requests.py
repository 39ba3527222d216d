"""What operators ask of a whole daemon: its settings, and other offsets for an active group."""

from trio.testing import MockClock

from protocol import messages as m
from tests.server.world import beat, world


async def test_a_daemon_tells_what_it_is_set_to(autojump_clock: MockClock) -> None:
    """Also while it loads, which is when somebody asks why it takes so long."""
    async with world("group.max.size=7", load=False) as w:
        answer = await w.connect().ask(m.DescribeSettingsRequest())

    assert isinstance(answer, m.DescribeSettingsResponse)
    found = {one.name: one for one in answer.settings}
    assert found["group.max.size"] == m.NodeSetting(
        "group.max.size", "7", "10000", "command line --set"
    )
    assert found["node.id"].origin == "default"


async def test_an_owner_is_removed_and_its_partition_altered_at_once(
    autojump_clock: MockClock,
) -> None:
    """The answer comes when both are on disk."""
    topics = (m.AlteredTopic("t", (m.AlteredOffset(0, 70, -1, None, -1),)),)
    async with world() as w:
        client = w.connect()
        member_id = await client.join_alone()
        refused = await client.ask(m.AlterOffsetsRequest("g", topics, False, None))
        done = await client.ask(m.AlterOffsetsRequest("g", topics, True, "wrong rows"))
        error = await client.error(beat(member_id))
        fetch = m.GroupFetch("g", None)
        stored = await client.ask(m.OffsetFetchRequest((fetch,), require_stable=False))

    def result(error: int) -> tuple[m.TopicResult, ...]:
        return (m.TopicResult("t", (m.PartitionResult(0, error),)),)

    assert refused == m.AlterOffsetsResponse(0, None, result(1009), ())
    assert done == m.AlterOffsetsResponse(0, None, result(0), (member_id,))
    assert error == 25
    assert isinstance(stored, m.OffsetFetchResponse)
    assert stored.groups[0].topics[0].partitions[0].offset == 70
