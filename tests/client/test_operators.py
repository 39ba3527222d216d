"""What operators ask about groups, offsets and topics. The clock is virtual."""

from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, strategies as st
from msgspec import structs
from trio.testing import MockClock

from client import (
    Client,
    ErrorCode,
    FatalError,
    OffsetAndMetadata,
    OutcomeUnknown,
    RetriableError,
    TopicPartition,
    operators,
)
from client.operators import Lag, OffsetChanges, PositionTooOld, TopicSource, offsets_of_page
from protocol import messages as m
from protocol.messages import ApiKey, PartitionResult, TopicResult
from tests.client.conftest import World
from tests.fakes.scan_pages import page_of
from tests.fakes.scripted_server import Answer, Drop

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def rebalance(number: int) -> m.Rebalance:
    """Return one that a member caused."""
    return m.Rebalance(
        number, 1, "member joined", "m", None, "c", "h", "new", 0, 1, 3000, 2, 1, "stable", ()
    )


async def test_rebalances_are_told_newest_first(autojump_clock: MockClock, world: World) -> None:
    """In the coordinator's order, and as many as were asked for."""
    history = (rebalance(2), rebalance(1))
    answer = m.DescribeRebalancesResponse(0, None, "g", history)
    world.server.script(m.DescribeRebalancesRequest, Answer(answer))
    async with world.connect() as client:
        assert await client.rebalances("g", 2) == list(history)

    assert world.server.requests(m.DescribeRebalancesRequest) == [
        m.DescribeRebalancesRequest("g", 2)
    ]


async def test_a_refusal_tells_the_coordinators_own_words(
    autojump_clock: MockClock, world: World
) -> None:
    """The number alone doesn't say which group, or what is wrong with it."""
    refused = m.DescribeRebalancesResponse(69, "no group 'g' here", "g", ())
    world.server.script(m.DescribeRebalancesRequest, Answer(refused))
    async with world.connect() as client:
        with pytest.raises(FatalError, match="no group 'g' here") as caught:
            await client.rebalances("g")

    assert caught.value.code == ErrorCode.GROUP_ID_NOT_FOUND


async def test_what_is_not_known_of_a_lag_is_none(autojump_clock: MockClock, world: World) -> None:
    """Taken for a number, -1 would look like a consumer that is ahead."""
    partitions = (
        m.PartitionLag(0, 7, 10, 3, 1, 2, "member-1"),
        m.PartitionLag(1, -1, 10, -1, -1, 2, ""),
        m.PartitionLag(2, 7, -1, -1, 1, -1, ""),
        m.PartitionLag(3, 0, 0, 0, 1, 2, ""),
        m.PartitionLag(4, 8, 7, 0, 1, 2, ""),  # As release 0.1.0 says it.
        m.PartitionLag(5, 8, 7, -1, 1, 2, ""),
    )
    answer = m.DescribeLagResponse(0, None, "g", (m.TopicLag("t", partitions),))
    world.server.script(m.DescribeLagRequest, Answer(answer))
    async with world.connect() as client:
        assert await client.lag("g") == {
            T0: Lag(committed=7, end=10, lag=3, owner="member-1"),
            T1: Lag(committed=None, end=10, lag=None, owner=None),
            TopicPartition("t", 2): Lag(committed=7, end=None, lag=None, owner=None),
            TopicPartition("t", 3): Lag(committed=0, end=0, lag=0, owner=None),
            TopicPartition("t", 4): Lag(committed=8, end=7, lag=None, owner=None),
            TopicPartition("t", 5): Lag(committed=8, end=7, lag=None, owner=None),
        }


async def test_deleted_offsets_are_told_one_by_one(autojump_clock: MockClock, world: World) -> None:
    """Some may go while a topic that is still read keeps the others."""
    results = (TopicResult("t", (PartitionResult(0, 0), PartitionResult(1, 86))),)
    world.server.script(m.OffsetDeleteRequest, Answer(m.OffsetDeleteResponse(0, results)))
    async with world.connect() as client:
        assert await client.delete_offsets("g", []) == {}
        codes = await client.delete_offsets("g", [T1, T0, T0])

    assert codes == {T0: 0, T1: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    assert world.server.requests(m.OffsetDeleteRequest) == [
        m.OffsetDeleteRequest("g", (m.TopicPartitions("t", (0, 1)),))
    ]


async def test_more_offsets_than_fit_are_deleted_in_several_requests(
    autojump_clock: MockClock, world: World
) -> None:
    """A group holds ten times what a request may name."""
    done = Answer(m.OffsetDeleteResponse(0, ()))
    world.server.script(m.OffsetDeleteRequest, done, done, done)
    async with world.connect() as client:
        await client.delete_offsets("g", [TopicPartition("t", n) for n in range(20_001)])

    asked = world.server.requests(m.OffsetDeleteRequest)
    sizes = [len(r.topics[0].partitions) for r in asked if isinstance(r, m.OffsetDeleteRequest)]
    assert sizes == [10_000, 10_000, 1]


async def test_offsets_of_a_group_that_is_not_there_are_an_error(
    autojump_clock: MockClock, world: World
) -> None:
    """Nothing was deleted, and an empty answer would hide a misspelt name."""
    world.server.script(m.OffsetDeleteRequest, 69)
    async with world.connect() as client:
        with pytest.raises(FatalError, match="GROUP_ID_NOT_FOUND"):
            await client.delete_offsets("g", [T0])


async def test_a_retention_is_for_ever_or_a_time_or_the_setting(
    autojump_clock: MockClock, world: World
) -> None:
    """And nothing else, such as a negative time after a wrong subtraction."""
    world.server.script(
        m.AlterGroupRetentionRequest, *[Answer(m.AlterGroupRetentionResponse(0))] * 3, 69
    )
    async with world.connect() as client:
        for retention_ms in (-1, 60_000, None):
            await client.set_offsets_retention("g", retention_ms)
        with pytest.raises(FatalError, match="GROUP_ID_NOT_FOUND"):
            await client.set_offsets_retention("g", 1)
        with pytest.raises(ValueError, match="-1 is for ever"):
            await client.set_offsets_retention("g", -2)

    assert [-1, 60_000, None, 1] == [
        request.retention_ms
        for request in world.server.requests(m.AlterGroupRetentionRequest)
        if isinstance(request, m.AlterGroupRetentionRequest)
    ]


async def test_offsets_are_altered_with_all_that_is_known_of_them(
    autojump_clock: MockClock, world: World
) -> None:
    """A refusal after a lost answer may be of what the lost one has done."""
    answer = m.AlterOffsetsResponse(
        0, None, (m.TopicResult("t", (m.PartitionResult(0, 1009),)),), ("m",)
    )
    world.server.script(m.AlterOffsetsRequest, Answer(answer), Drop(applied=False), Answer(answer))
    async with world.connect() as client:
        done = await client.alter_offsets(
            "g", {T0: OffsetAndMetadata(5, "m", 3)}, {T0: -1}, remove_owners=True, reason="why"
        )
        with pytest.raises(OutcomeUnknown, match="an earlier attempt was not answered"):
            await client.alter_offsets("g", {T0: 5})
        with pytest.raises(ValueError, match="is no offset"):
            await client.alter_offsets("g", {T0: -5})

    assert done == ({T0: 1009}, ("m",))
    first = world.server.requests(m.AlterOffsetsRequest)[0]
    altered = m.AlteredOffset(0, 5, 3, "m", -1)
    assert first == m.AlterOffsetsRequest("g", (m.AlteredTopic("t", (altered,)),), True, "why")


async def test_static_members_are_removed_by_their_instance_ids(
    autojump_clock: MockClock, world: World
) -> None:
    """An operator knows the names that were given, not the ids that were made."""
    left = (m.LeftMember("", "a", 0), m.LeftMember("", "b", 25))
    world.server.script(m.LeaveGroupRequest, Answer(m.LeaveGroupResponse(0, left)))
    async with world.connect() as client:
        assert await client.remove_static_members("g", []) == {}
        codes = await client.remove_static_members("g", ["a", "b", "a"], "gone for good")

    assert codes == {"a": 0, "b": ErrorCode.UNKNOWN_MEMBER_ID}
    assert world.server.requests(m.LeaveGroupRequest) == [
        m.LeaveGroupRequest(
            "g",
            (
                m.LeavingMember("", "a", "gone for good"),
                m.LeavingMember("", "b", "gone for good"),
            ),
        )
    ]


async def test_the_offsets_partition_of_a_group_can_be_asked_for(
    autojump_clock: MockClock, world: World
) -> None:
    """A scan names an offsets partition, and whoever looks for a group must know which."""
    found = m.CoordinatorOfGroup("g", 0, None, 1, "node1", 9310, 17, -1)
    world.server.script(
        m.FindCoordinatorRequest, *[Answer(m.FindCoordinatorResponse((found,)))] * 2
    )
    async with world.connect() as client:
        assert await client.offsets_partition("g") == 17


def scanned(group: str, partition: int) -> m.ScannedOffset:
    """Return a committed offset."""
    return m.ScannedOffset(group, "t", partition, 5, -1, "", 1, -1)


async def test_a_scan_goes_on_page_by_page_and_keeps_its_first_position(
    autojump_clock: MockClock, world: World
) -> None:
    """Changes that came between two pages are after the first page's position only."""
    offsets = [scanned("a", 0), scanned("a", 1), scanned("b", 0)]
    pages = [
        m.ScanOffsetsResponse(0, 40, (), b"a1", (page_of(offsets[:2]),)),
        m.ScanOffsetsResponse(0, 44, (), b"a9", (m.OffsetColumns(),)),
        m.ScanOffsetsResponse(0, 45, (), b"", (page_of(offsets[2:]),)),
    ]
    world.server.script(m.ScanOffsetsRequest, *map(Answer, pages))
    async with world.connect() as client:
        scan = client.scan_offset_columns(3)
        assert scan.position == -1

        assert [offset async for offset in scan] == offsets
        assert scan.position == 40
        assert [offset async for offset in scan] == []


SCANNED = st.builds(
    m.ScannedOffset,
    st.sampled_from("gh"),
    st.sampled_from("tu"),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.text(max_size=40),
    st.integers(0, 2**53),
    st.integers(-1, 2**53),
)


@given(st.lists(SCANNED, max_size=20))
def test_the_offsets_of_a_page_are_read_one_by_one(offsets: list[m.ScannedOffset]) -> None:
    """Every field, and the names of its run for each."""
    assert offsets_of_page(page_of(offsets)) == offsets


PAGE = page_of([m.ScannedOffset("g", "t", 0, 5, -1, "m", 1, 2)])


@pytest.mark.parametrize(
    "page",
    [
        structs.replace(PAGE, rows=b""),
        structs.replace(PAGE, rows=PAGE.rows[:-1]),
        structs.replace(PAGE, rows=PAGE.rows * 2),
        structs.replace(PAGE, rows=b"\x05"),
        structs.replace(PAGE, rows=PAGE.rows.replace(b"m", b"\xff")),
        structs.replace(PAGE, counts=b"\0\0\0"),
        structs.replace(PAGE, counts=b"\0\0\0\2"),
        structs.replace(PAGE, topics=()),
        structs.replace(PAGE, group_ids=("g", "h")),
        structs.replace(PAGE, committed_ms=b""),
        structs.replace(PAGE, expire_ms=bytes(7)),
    ],
)
def test_a_page_that_is_not_of_the_protocol_is_refused(page: m.OffsetColumns) -> None:
    """Rather an error than offsets that nobody committed."""
    with pytest.raises(FatalError, match="can't be read"):
        offsets_of_page(page)


async def test_a_scan_in_columns_goes_on_until_the_last_page(
    autojump_clock: MockClock, world: World
) -> None:
    """A page may be empty and not the last one, where only some topics are wanted."""
    first, second = (
        m.OffsetColumns((group,), ("t",), (1).to_bytes(4), b"row", b"\0\3", bytes(8), b"")
        for group in "ab"
    )
    pages = [
        m.ScanOffsetsResponse(0, 40, (), b"1", (first,)),
        m.ScanOffsetsResponse(0, 44, (), b"2", (m.OffsetColumns(),)),
        m.ScanOffsetsResponse(0, 45, (), b"", (second,)),
    ]
    world.server.script(m.ScanOffsetsRequest, *map(Answer, pages))
    async with world.connect() as client:
        scan = client.scan_offset_columns(3, ["a", "b"], {"t"})

        assert [await scan.page() for _ in range(3)] == [first, second, None]
        assert scan.position == 40

    assert world.server.requests(m.ScanOffsetsRequest) == [
        m.ScanOffsetsRequest(3, cursor, 20_000, True, ("a", "b"), ("t",))
        for cursor in (b"", b"1", b"2")
    ]


async def test_an_old_coordinator_that_knows_no_columns_is_told_of(
    autojump_clock: MockClock, world: World
) -> None:
    """An answer of version 0 would show all groups, in another form."""
    world.server.versions[ApiKey.SCAN_OFFSETS] = 0, 0
    async with world.connect() as client:
        with pytest.raises(FatalError, match=r"SCAN_OFFSETS only in versions .0, 0."):
            await client.scan_offset_columns(3).page()


async def test_members_are_removed_by_their_ids(autojump_clock: MockClock, world: World) -> None:
    """Whoever moves a group's offsets sends its members back to the start."""
    left = (m.LeftMember("a", None, 0), m.LeftMember("b", None, 25))
    world.server.script(m.LeaveGroupRequest, Answer(m.LeaveGroupResponse(0, left)))
    async with world.connect() as client:
        assert await client.remove_members("g", []) == {}
        codes = await client.remove_members("g", ["a", "b", "a"], "a reset")

    assert codes == {"a": 0, "b": ErrorCode.UNKNOWN_MEMBER_ID}
    assert world.server.requests(m.LeaveGroupRequest) == [
        m.LeaveGroupRequest(
            "g", (m.LeavingMember("a", None, "a reset"), m.LeavingMember("b", None, "a reset"))
        )
    ]


async def test_the_offsets_partitions_are_those_that_hold_offsets(
    autojump_clock: MockClock, world: World
) -> None:
    """The node has one more, for its topics."""
    partitions = tuple(m.NodePartition(number, "active", 7, 7) for number in (1, 0, 65_535))
    described = m.DescribeNodeResponse(0, 1, 1, "ready", (), partitions, ())
    world.server.script(m.DescribeNodeRequest, *[Answer(described)] * 2)
    async with world.connect() as client:
        assert await client.offsets_partitions() == [0, 1]
        assert await client.offsets_log_ends() == {0: 7, 1: 7}


async def test_an_offsets_partition_that_is_not_there_cannot_be_scanned(
    autojump_clock: MockClock, world: World
) -> None:
    """It is not the same as one without offsets."""
    world.server.script(m.ScanOffsetsRequest, 42)
    async with world.connect() as client:
        with pytest.raises(FatalError, match="offsets partition 50"):
            await client.scan_offset_columns(50).page()


async def test_changes_say_where_to_go_on(autojump_clock: MockClock, world: World) -> None:
    """And whether there is more at the moment."""
    change = m.OffsetChange(41, "committed", "g", "t", 0, 6, -1, "", 1)
    answer = m.ReadOffsetChangesResponse(0, (change,), 43, 50)
    world.server.script(m.ReadOffsetChangesRequest, Answer(answer))
    async with world.connect() as client:
        assert await client.offset_changes(3, 40) == OffsetChanges((change,), 43, 50)


async def test_a_position_that_is_gone_has_an_exception_of_its_own(
    autojump_clock: MockClock, world: World
) -> None:
    """Whoever follows the changes scans anew; for all else somebody must be told."""
    world.server.script(m.ReadOffsetChangesRequest, 1008, 42)
    async with world.connect() as client:
        with pytest.raises(PositionTooOld, match="from 40 on"):
            await client.offset_changes(3, 40)
        with pytest.raises(FatalError) as caught:
            await client.offset_changes(99, 40)

    assert not isinstance(caught.value, PositionTooOld)


async def test_an_operators_change_that_is_never_answered_is_unknown(
    autojump_clock: MockClock, world: World
) -> None:
    """A script that goes on as if nothing was changed would be wrong half the time."""
    world.server.script(m.AlterGroupRetentionRequest, *[Drop(applied=False)] * 100)
    async with world.connect(request_timeout_ms=1_000) as client:
        with pytest.raises(OutcomeUnknown):
            await client.set_offsets_retention("g", 1)


async def test_a_limit_is_told_at_once_and_in_words(
    autojump_clock: MockClock, world: World
) -> None:
    """Somebody has to make room first; who tries again until time is up only hides that."""
    words = "User:a has 3 already, its quota topics is 3"
    full = m.RegisterTopicsResponse(0, (m.RegisteredTopic("t", 1005, words, -1),))
    no_group = m.OffsetCommitResponse(1005, (), "User:a has 2 already, its quota groups is 2")
    world.server.script(m.RegisterTopicsRequest, Answer(full))
    world.server.script(m.OffsetCommitRequest, Answer(no_group))
    async with world.connect() as client:
        with pytest.raises(FatalError, match=words):
            await client.register_topics({"t": 1})
        with pytest.raises(FatalError, match="its quota groups is 2"):
            await client.commit("g", {TopicPartition("t", 0): 1})


async def test_who_is_refused_until_time_is_up_is_told_the_coordinators_words(
    autojump_clock: MockClock, world: World
) -> None:
    """A number says less than what was measured."""
    full = m.OffsetCommitResponse(1004, (), "the disk is full or too slow, 3 MB are left")
    world.server.script(m.OffsetCommitRequest, *[Answer(full)] * 100)
    async with world.connect(request_timeout_ms=1_000) as client:
        with pytest.raises(RetriableError, match="3 MB are left"):
            await client.commit("g", {TopicPartition("t", 0): 1})


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

    starts = [r.start_after for r in world.server.requests(m.DescribeTopicsRequest)]
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
    sizes = [r.max_topics for r in world.server.requests(m.DescribeTopicsRequest)]
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


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.delete_topics("tt"),
        lambda client: client.describe_topics("tt"),
        lambda client: client.delete_groups("gg"),
        lambda client: client.describe_groups("gg"),
        lambda client: client.remove_members("g", "mm"),
        lambda client: client.remove_static_members("g", "ii"),
        lambda client: client.list_groups("Stable"),
        lambda client: client.summarize_groups(states="Stable"),
    ],
)
async def test_the_letters_of_one_name_are_not_taken_for_names(
    autojump_clock: MockClock, world: World, ask: Callable[[Client], Awaitable[object]]
) -> None:
    """A topic "t" would be deleted, and its offsets, by whoever meant "tt"."""
    async with world.connect() as client:
        asked = len(world.server.seen)
        with pytest.raises(TypeError, match="must be a sequence of names, not '"):
            await ask(client)
        with pytest.raises(TypeError, match="topics must be a sequence of names, not 'tt'"):
            client.watch_offsets(topics="tt")

    assert len(world.server.seen) == asked
