"""Lag that is simply there: what a leader tells the registry, and all groups in a few numbers."""

import logging
from collections.abc import Iterable

import pytest
import trio
from trio.testing import MockClock

from client import (
    Client,
    CooperativeStickyAssignor,
    FatalError,
    GroupSummary,
    Member,
    RangeAssignor,
    TopicPartition,
)
from protocol import messages as m
from protocol.messages import ApiKey
from tests.client.conftest import World
from tests.client.served import Served, served
from tests.fakes.scripted_server import Answer, Hang

T0 = TopicPartition("t", 0)


async def registered(client: Client) -> dict[str, int]:
    """Return the registered topics."""
    return {one.topic: one.partition_count for one in await client.describe_topics()}


async def rebalances_of(client: Client, group: str = "g") -> int:
    """Return how many rebalances a group has had, once it is at rest."""
    await trio.sleep(10)
    return len(await client.rebalances(group))


def topics_of(here: Served) -> int:
    """Return how often the registry has changed."""
    return here.daemon.node.registry.core.registry.version


@pytest.mark.parametrize(
    "assignor", [RangeAssignor(), CooperativeStickyAssignor()], ids=["eager", "cooperative"]
)
async def test_what_a_leader_knows_of_topics_is_registered_without_a_rebalance(
    assignor: RangeAssignor | CooperativeStickyAssignor, autojump_clock: MockClock
) -> None:
    """So that lag can be known; nobody needs to do anything for it."""
    async with (
        served() as here,
        here.connect() as client,
        client.join("g", ["t", "u"], {"t": 2}, assignors=[assignor]) as member,
    ):
        with pytest.warns(match="'u'"):
            assignment = await member.assignment()
        await member.commit({T0: 3})

        assert await registered(client) == {"t": 2}
        assert len(assignment.partitions) == 2
        assert await rebalances_of(client) == 1
        assert not member.rebalance_needed

        await client.report_end_offsets({T0: 10})
        (group,) = await client.summarize_groups()
        assert (group.lag, group.unknown, group.members) == (7, 1, 1)


async def test_a_topic_is_told_once_and_again_when_it_has_grown(
    autojump_clock: MockClock,
) -> None:
    """By the leader alone; what it asks its caller may differ each time."""
    numbers = [2]

    async def partitions(_topic: str) -> Iterable[int]:
        await trio.lowlevel.checkpoint()
        return range(numbers[0])

    async with (
        served() as here,
        here.connect() as client,
        here.connect() as other,
        client.join("g", ["t"], partitions) as member,
    ):
        await member.assignment()
        told = topics_of(here)
        async with other.join("g", ["t"], {"t": 9}) as follower:
            await rebalance(follower, member)

            assert (await registered(client), topics_of(here)) == ({"t": 2}, told)

            numbers[0] = 3
            await member.request_rejoin("more")
            await rebalance(member, follower)

            assert await registered(client) == {"t": 3}

            numbers[0] = 1
            await member.request_rejoin("fewer")
            await rebalance(member, follower)

            assert await registered(client) == {"t": 3}


async def rebalance(first: Member, second: Member) -> None:
    """Let *first* join, and *second* again when it hears of that."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.assignment)
        await second.wait_rebalance_needed()
        await second.assignment()


async def test_what_was_registered_so_refuses_no_commit(autojump_clock: MockClock) -> None:
    """Others know more partitions, and committed them before."""
    async with served() as here, here.connect() as client:
        async with client.join("g", ["t"], {"t": 2}) as member:
            await member.assignment()
            await client.commit("operator", {TopicPartition("t", 7): 1})

        await client.register_topics({"t": 2})
        async with client.join("h", ["t"], {"t": 1}) as member:
            await member.assignment()

        assert await registered(client) == {"t": 2}


async def test_who_wants_nothing_registered_says_so(autojump_clock: MockClock) -> None:
    """And a member that asks the registry has nothing to tell it."""
    async with served() as here, here.connect() as client:
        async with client.join("g", ["t"], {"t": 2}, register=False) as member:
            await member.assignment()
        with pytest.warns(match="no partitions"):
            async with client.join("h", ["t"]) as member:
                await member.assignment()

        assert await registered(client) == {}


@pytest.mark.parametrize("failure", ["refused", "hangs", "old"])
async def test_a_topic_that_can_not_be_registered_is_logged_and_no_more(
    failure: str,
    autojump_clock: MockClock,
    world: World,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A reader works without lag. An older coordinator would bound commits, so it isn't asked."""
    caplog.set_level(logging.WARNING, "client.topics")
    if failure == "old":
        world.server.versions[ApiKey.REGISTER_TOPICS] = (0, 0)
    elif failure == "refused":
        refused = (m.RegisteredTopic("t", 42, "a name that nobody likes", -1),)
        world.server.script(m.RegisterTopicsRequest, Answer(m.RegisterTopicsResponse(0, refused)))
    else:
        world.server.script(m.RegisterTopicsRequest, *[Hang()] * 9)
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        began = trio.current_time()
        assert len((await member.assignment()).partitions) == 2
        await member.request_rejoin("again")
        await member.assignment()

        assert trio.current_time() - began <= 7
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == (2 if failure == "hangs" else 1)
    assert all("'t'" in line for line in lines)
    sent = world.server.requests(m.RegisterTopicsRequest)
    assert all(request.is_observed for request in sent)
    assert bool(sent) == (failure != "old")


async def test_registering_leaves_time_to_assign(autojump_clock: MockClock, world: World) -> None:
    """A group that is in a hurry is in a hurry at every rebalance: it would never come to rest."""
    world.server.script(m.RegisterTopicsRequest, *[Hang()] * 9)
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, rebalance_timeout_ms=3_000) as member,
    ):
        began = trio.current_time()
        await member.assignment()

        assert trio.current_time() - began <= 1


async def test_all_groups_come_page_by_page(autojump_clock: MockClock, world: World) -> None:
    """What is not known is None, and never a number."""
    first = m.GroupSummary("a", "consumer", "Stable", 1, 2, 1, 0, 4, 60_500, (-1, 4))
    second = m.GroupSummary("b", "", "Empty", 0, 1, 1, -1, -1, -1, ())
    world.server.script(
        m.SummarizeGroupsRequest,
        Answer(m.SummarizeGroupsResponse(0, None, (first,), b"more")),
        Answer(m.SummarizeGroupsResponse(0, None, (second,), b"")),
        Answer(m.SummarizeGroupsResponse(128, "missing )", (), b"")),
    )
    async with world.connect() as client:
        assert await client.summarize_groups("[ab]", states=["Stable"], samples=2) == [
            GroupSummary("a", "Stable", "consumer", 1, 2, 1, 0, 4, 60_500, (None, 4)),
            GroupSummary("b", "Empty", "", 0, 1, 1, None, None, None, ()),
        ]
        with pytest.raises(FatalError, match="missing"):
            await client.summarize_groups("(")

    asked = world.server.requests(m.SummarizeGroupsRequest)
    assert [request.cursor for request in asked] == [b"", b"more", b""]
    assert asked[0] == m.SummarizeGroupsRequest("[ab]", ("Stable",), b"", 2_000, 2)
