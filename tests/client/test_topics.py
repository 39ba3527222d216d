"""The registry of topics, as clients see it. The clock is virtual."""

import pytest
from trio.testing import MockClock

from client import ErrorCode, FatalError, TopicPartition, operators
from client.operators import TopicSource
from protocol import messages as m
from protocol.messages import PartitionResult, TopicResult
from tests.client.conftest import World
from tests.fakes.scripted_server import Answer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_topics_are_described_by_name_by_pattern_or_all(
    autojump_clock: MockClock, world: World
) -> None:
    """What isn't registered is said so, and never has 0 partitions."""
    async with world.connect() as client:
        await client.register_topics({"orders": 2, "flights": 6})

        described = await client.describe_topics(["orders", "nothing", "orders"])
        assert [(one.topic, one.error, one.partition_count) for one in described] == [
            ("orders", 0, 2),
            ("nothing", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        ]
        assert [one.topic for one in await client.describe_topics(pattern="f.*")] == ["flights"]
        assert [one.topic for one in await client.describe_topics()] == ["flights", "orders"]
        assert await client.describe_topics([]) == []
        with pytest.raises(ValueError, match="not by both"):
            await client.describe_topics(["orders"], "f.*")


async def test_many_topics_come_in_pages(
    autojump_clock: MockClock, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One answer can't hold a hundred thousand topics with their end offsets."""
    monkeypatch.setattr(operators, "TOPICS_PER_PAGE", 3)
    names = [f"t{number}" for number in range(8)]
    async with world.connect() as client:
        await client.register_topics(dict.fromkeys(names, 1))

        assert [one.topic for one in await client.describe_topics()] == names
        assert [one.topic for one in await client.describe_topics(names)] == names

    starts = [r.start_after for r in world.server.requests(m.DescribeTopicsRequest)]  # type: ignore[attr-defined]
    assert starts[:3] == ["", "t2", "t5"]


@pytest.mark.parametrize("by_name", [True, False])
async def test_a_page_that_is_too_large_is_asked_for_in_smaller_ones(
    autojump_clock: MockClock, world: World, *, by_name: bool
) -> None:
    """A few topics of very many partitions fill an answer as well."""
    world.server.script(m.DescribeTopicsRequest, 1006, 1006)
    async with world.connect() as client:
        await client.register_topics({"a": 1, "b": 1})

        described = await client.describe_topics(["a", "b"] if by_name else None)

    assert [one.topic for one in described] == ["a", "b"]
    sizes = [r.max_topics for r in world.server.requests(m.DescribeTopicsRequest)]  # type: ignore[attr-defined]
    assert sizes == [1000, 500, 250]


async def test_a_topic_that_is_too_large_alone_is_an_error(
    autojump_clock: MockClock, world: World
) -> None:
    """Asking for less than one topic is not possible, and asking for ever no help."""
    world.server.script(m.DescribeTopicsRequest, *[1006] * 100)
    async with world.connect() as client:
        with pytest.raises(FatalError, match="RESPONSE_TOO_LARGE"):
            await client.describe_topics(["a"])


async def test_a_wrong_pattern_is_told_with_what_is_wrong(
    autojump_clock: MockClock, world: World
) -> None:
    """The coordinator reads the pattern, so only it knows where it ends to make sense."""
    answer = m.DescribeTopicsResponse(128, "missing ): (a", (), has_more=False)
    world.server.script(m.DescribeTopicsRequest, Answer(answer))
    async with world.connect() as client:
        with pytest.raises(FatalError, match=r"missing \): \(a") as caught:
            await client.describe_topics(pattern="(a")

    assert caught.value.code == ErrorCode.INVALID_REGULAR_EXPRESSION


async def test_hosts_are_registered_where_they_are_known(
    autojump_clock: MockClock, world: World
) -> None:
    """No hosts given leaves those that are registered; an empty mapping takes them away."""
    async with world.connect() as client:
        await client.register_topics(
            {
                "near": TopicSource(2, {1: ["host-b", "host-a"], 0: []}),
                "nowhere": TopicSource(1, {}),
                "plain": 3,
            }
        )

    assert world.server.requests(m.RegisterTopicsRequest) == [
        m.RegisterTopicsRequest(
            (
                m.TopicRegistration("near", 2, (m.PartitionHosts(1, ("host-b", "host-a")),)),
                m.TopicRegistration("nowhere", 1, ()),
                m.TopicRegistration("plain", 3, None),
            )
        )
    ]


async def test_a_topic_that_is_refused_is_named(autojump_clock: MockClock, world: World) -> None:
    """The others are registered, so the caller must know which are not."""
    refused = m.RegisteredTopic("t", 37, "topic t has 8 partitions, not 6", 8)
    answer = m.RegisterTopicsResponse(0, (m.RegisteredTopic("s", 0, None, 1), refused))
    world.server.script(m.RegisterTopicsRequest, Answer(answer))
    async with world.connect() as client:
        with pytest.raises(FatalError, match=r"t: .*topic t has 8 partitions, not 6") as caught:
            await client.register_topics({"s": 1, "t": 6})

    assert caught.value.code == ErrorCode.INVALID_PARTITIONS
    assert "s:" not in str(caught.value)


async def test_a_topic_that_is_still_being_deleted_is_waited_for(
    autojump_clock: MockClock, world: World
) -> None:
    """Its offsets go in the background; a source that is made anew just has to wait a little."""
    purging = m.RegisterTopicsResponse(0, (m.RegisteredTopic("t", 15, None, -1),))
    world.server.script(m.RegisterTopicsRequest, Answer(purging), Answer(purging))
    async with world.connect() as client:
        await client.register_topics({"t": 1})

    assert len(world.server.requests(m.RegisterTopicsRequest)) == 3


async def test_deleted_topics_are_told_one_by_one(autojump_clock: MockClock, world: World) -> None:
    """As groups are: a script goes on if a topic is gone already."""
    async with world.connect() as client:
        await client.register_topics({"t": 1})

        assert await client.delete_topics(["t", "u", "t"]) == {
            "t": 0,
            "u": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await client.delete_topics([]) == {}


async def test_a_change_that_is_refused_as_a_whole_is_an_error(
    autojump_clock: MockClock, world: World
) -> None:
    """An answer without topics must not look like one about no topics."""
    world.server.script(m.RegisterTopicsRequest, 42)
    world.server.script(m.DeleteTopicsRequest, 42)
    async with world.connect() as client:
        with pytest.raises(FatalError, match="INVALID_REQUEST"):
            await client.register_topics({"t": 0})
        with pytest.raises(FatalError, match="INVALID_REQUEST"):
            await client.delete_topics(["t"])


async def test_end_offsets_are_reported_by_partition(
    autojump_clock: MockClock, world: World
) -> None:
    """And those that the registry doesn't know are named."""
    results = (TopicResult("t", (PartitionResult(0, 0), PartitionResult(1, 3))),)
    world.server.script(m.ReportEndOffsetsRequest, Answer(m.ReportEndOffsetsResponse(0, results)))
    async with world.connect() as client:
        await client.report_end_offsets({})
        with pytest.raises(FatalError, match="t-1: UNKNOWN_TOPIC_OR_PARTITION") as caught:
            await client.report_end_offsets({T1: 7, T0: 0})
        for nonsense in (-1, 2**63, True):
            with pytest.raises(ValueError, match="no end offset"):
                await client.report_end_offsets({T0: nonsense})

    assert "t-0" not in str(caught.value)
    assert world.server.requests(m.ReportEndOffsetsRequest) == [
        m.ReportEndOffsetsRequest((m.TopicEnds("t", (m.PartitionEnd(0, 0), m.PartitionEnd(1, 7))),))
    ]
