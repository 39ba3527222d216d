"""Static members, patterns of topics, and what the registry knows."""

import pytest
import trio
from trio.testing import MockClock

from client import FatalError, TopicPartition
from client.assignors import AssignmentWarning
from protocol import consumer, messages as m
from protocol.messages import ApiKey
from tests.client.conftest import World
from tests.fakes.scripted_server import Answer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def joins(world: World) -> list[m.JoinGroupRequest]:
    """Return the JoinGroup requests that came."""
    return [r for r in world.server.requests() if isinstance(r, m.JoinGroupRequest)]


def subscription(request: m.JoinGroupRequest) -> consumer.Subscription:
    """Return what it subscribes to with its first assignor."""
    decoded = consumer.decode_subscription(request.protocols[0].metadata)
    assert decoded is not None
    return decoded


def register(world: World, **topics: int) -> None:
    """Make topics known."""
    for name, count in topics.items():
        hosts = (m.PartitionHosts(0, ("h1",)),)
        world.server.topics[name] = m.TopicRegistration(name, count, hosts)


@pytest.mark.parametrize("how", ["the block ends", "it leaves"])
async def test_a_static_member_keeps_its_place_when_it_ends(
    autojump_clock: MockClock, world: World, how: str
) -> None:
    """It is restarted soon, and nobody wants a rebalance for that."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, group_instance_id="i1") as member,
    ):
        await member.assignment()
        if how == "it leaves":
            assert not await member.leave("a restart")

    assert {"i1"} == {request.group_instance_id for request in joins(world)}
    assert world.server.requests(m.LeaveGroupRequest) == []


async def test_a_static_member_leaves_for_good_if_told_so(
    autojump_clock: MockClock, world: World
) -> None:
    """It won't come back, so that the others needn't wait for its session."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, group_instance_id="i1") as member,
    ):
        await member.assignment()

        assert await member.leave("scaled in", remove=True)

    (request,) = world.server.requests(m.LeaveGroupRequest)
    assert isinstance(request, m.LeaveGroupRequest)
    assert request.members == (m.LeavingMember("client-1", "i1", "scaled in"),)


async def test_a_fenced_instance_says_who_has_its_name(
    autojump_clock: MockClock, world: World
) -> None:
    """The usual cause is two programs with the same setting: it must say which."""
    message = "instance id 'i1' is held by member i1-7 (client two) from host 192.0.2.9"
    fenced = Answer(m.OffsetCommitResponse(82, (), message))
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, group_instance_id="i1") as member,
    ):
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, fenced)
        for call in (lambda: member.commit({T0: 1}), member.assignment, member.commit):
            with pytest.raises(FatalError, match=r"held by member i1-7 .* from host 192\.0\.2\.9"):
                await call()


async def test_a_pattern_is_resolved_before_every_join(
    autojump_clock: MockClock, world: World
) -> None:
    """The coordinator compares it with what it knows; clients never evaluate patterns."""
    register(world, t1=1, t2=2, u=1)
    async with world.connect() as client, client.join("g", pattern="t[0-9]") as member:
        assert (await member.assignment()).partitions == (("t1", 0), ("t2", 0), ("t2", 1))

        register(world, t3=1)
        await member.request_rejoin("test")
        assignment = await member.assignment()

        assert TopicPartition("t3", 0) in assignment.partitions

    first, *_, last = joins(world)
    assert (first.topic_pattern, subscription(first).topics) == ("t[0-9]", ("t1", "t2"))
    assert subscription(last).topics == ("t1", "t2", "t3")


async def test_a_member_can_change_what_it_reads(autojump_clock: MockClock, world: World) -> None:
    """For programs that find out themselves which topics there are."""
    register(world, t1=1, t2=2)
    async with world.connect() as client, client.join("g", ["t1"]) as member:
        await member.assignment()

        await member.request_rejoin("one more", ["t2", "t1"])
        more = await member.assignment()
        await member.request_rejoin("as before")
        again = await member.assignment()

    assert {tp.topic for tp in more.partitions} == {"t1", "t2"}
    assert again.partitions == more.partitions
    assert [subscription(one).topics for one in joins(world)][-2:] == [("t1", "t2")] * 2


async def test_what_matches_a_pattern_is_not_for_the_caller_to_say(
    autojump_clock: MockClock, world: World
) -> None:
    """The next join would ask the registry again, and forget what was said."""
    async with world.connect() as client, client.join("g", pattern="t") as member:
        with pytest.raises(ValueError, match="pattern"):
            await member.request_rejoin("one more", ["u"])


@pytest.mark.parametrize(
    ("removed", "named"),
    [
        (ApiKey.DESCRIBE_TOPICS, "DESCRIBE_TOPICS not at all"),
        (None, "JOIN_GROUP .* needs version 1"),
    ],
)
async def test_a_server_without_patterns_is_told_apart(
    autojump_clock: MockClock, world: World, removed: ApiKey | None, named: str
) -> None:
    """Joining without the pattern would look fine and never see a new topic."""
    world.server.versions[ApiKey.JOIN_GROUP] = (0, 0)
    if removed is not None:
        del world.server.versions[removed]
    async with world.connect() as client, client.join("g", pattern="t") as member:
        with pytest.raises(FatalError, match=named):
            await member.assignment()

    assert joins(world) == []


async def test_an_old_server_still_serves_members_without_a_pattern(
    autojump_clock: MockClock, world: World
) -> None:
    """Version 0 has all that they need."""
    for key in (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP, ApiKey.HEARTBEAT, ApiKey.LEAVE_GROUP):
        world.server.versions[key] = (0, 0)
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        await trio.sleep(10)

        assert not member.rebalance_needed


async def test_a_pattern_that_is_none_is_an_error_at_once(
    autojump_clock: MockClock, world: World
) -> None:
    """With what the coordinator's parser said."""
    refused = m.DescribeTopicsResponse(128, "missing ]: [a-", (), has_more=False)
    world.server.script(m.DescribeTopicsRequest, Answer(refused))
    async with world.connect() as client, client.join("g", pattern="[a-") as member:
        for _ in range(2):
            with pytest.raises(FatalError, match=r"missing \]"):
                await member.assignment()

    assert len(world.server.requests(m.DescribeTopicsRequest)) == 1


async def test_the_leader_asks_the_registry_where_the_caller_knows_no_partitions(
    autojump_clock: MockClock, world: World
) -> None:
    """Whoever knows the source has registered it."""
    register(world, t=2)
    async with world.connect() as client, client.join("g", ["t"]) as member:
        assert (await member.assignment()).partitions == (T0, T1)


async def test_a_topic_that_is_not_registered_has_no_partitions(
    autojump_clock: MockClock, world: World
) -> None:
    """It may be registered any moment; until then a warning says why nothing is read."""
    async with world.connect() as client, client.join("g", ["t"]) as member:
        with pytest.warns(AssignmentWarning, match="'t'.*no partitions"):
            assignment = await member.assignment()

        assert assignment.partitions == ()


async def test_host_and_the_past_travel_with_the_subscription(
    autojump_clock: MockClock, world: World
) -> None:
    """The leader places by host; an eager member claims nothing, as it gave everything up."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, host="h1") as member,
    ):
        await member.assignment()
        await member.request_rejoin("test")
        await member.assignment()

    first, _, last = joins(world)
    assert (subscription(last).rack_id, subscription(last).owned_partitions) == ("h1", ())
    assert first.protocols != last.protocols  # Or a follower would get its old assignment back.
