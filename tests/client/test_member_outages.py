"""Members go on through an outage of the coordinator, however long. The clock is virtual."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from client import (
    Client,
    ClientClosed,
    CooperativeStickyAssignor,
    CoordinatorUnavailable,
    Member,
    OffsetAndMetadata,
    OutcomeUnknown,
    RetrySettings,
    TopicPartition,
)
from client.api import REQUEST_TIMEOUT_MS
from protocol import messages as m
from tests.client.conftest import World
from tests.client.test_aio import connect_to as connect_aio_to
from tests.client.threads import connect_to
from tests.fakes.scripted_server import Drop, ScriptedServer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OUTAGE_S = 600.0  # Twenty times what a call of a client has, and far longer than a session.

Call = Callable[[Client, Member], Awaitable[object]]


async def go_away(server: ScriptedServer) -> None:
    """End the node, as it seems from outside."""
    server.unreachable = True
    for stream in server.streams:
        await stream.aclose()


async def during(outage_s: float, server: ScriptedServer, call: Awaitable[object]) -> None:
    """Make *call* while the server is away for *outage_s*; it must end once that is over."""
    await go_away(server)
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def come_back() -> None:
            await trio.sleep(outage_s)
            server.unreachable = False

        await call
    assert outage_s < trio.current_time() - began_s < outage_s + 20


async def rejoins(_: Client, member: Member) -> None:
    """Join again, as a group that has rebalanced asks for."""
    await member.request_rejoin("test")
    assert (await member.assignment()).generation == 2


async def gives_up(client: Client, member: Member) -> None:
    """Commit what is stored before the partitions are given up."""
    member.store({T0: 9})
    await rejoins(client, member)
    assert (await member.fetch())[T0] == OffsetAndMetadata(9)


async def commits(_: Client, member: Member) -> None:
    """Commit an offset."""
    await member.commit({T0: 7})


async def commits_stored(_: Client, member: Member) -> None:
    """Commit what is stored."""
    member.store({T0: 7})
    await member.commit()


async def fetches(_: Client, member: Member) -> None:
    """Fetch what is committed."""
    assert await member.fetch([T0]) == {T0: OffsetAndMetadata(5)}


@pytest.mark.parametrize("cooperative", [False, True], ids=["eager", "cooperative"])
@pytest.mark.parametrize("call", [rejoins, gives_up, commits, commits_stored, fetches])
async def test_a_member_waits_for_a_coordinator_that_is_away(
    autojump_clock: MockClock, world: World, call: Call, *, cooperative: bool
) -> None:
    """A consumer ends when its owner wants it to, and not because a daemon was restarted."""
    options: dict[str, Any] = {"auto_commit_interval_ms": 3_600_000}
    if cooperative:
        options["assignors"] = [CooperativeStickyAssignor()]
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, **options) as member,
    ):
        await member.assignment()
        await member.commit({T0: 5})
        if cooperative and call in {rejoins, gives_up}:
            await go_away(world.server)
            await member.request_rejoin("test")
            assert (await member.assignment()).generation == 1  # Kept while it joins.
            await trio.sleep(OUTAGE_S)
            world.server.unreachable = False
            await trio.sleep(10)
            assert (await member.assignment()).generation == 2
            return
        await during(OUTAGE_S, world.server, call(client, member))


@pytest.mark.parametrize("how", ["topics", "pattern", "registry"])
async def test_a_first_join_waits_for_a_coordinator_that_is_away(
    autojump_clock: MockClock, world: World, how: str
) -> None:
    """Also where the topics, or their partitions, have to be asked for first."""
    joins: dict[str, dict[str, Any]] = {
        "topics": {"topics": ["t"], "partitions": {"t": 2}},
        "pattern": {"pattern": "t", "partitions": {"t": 2}},
        "registry": {"topics": ["t"]},
    }
    async with world.connect() as client:
        await client.register_topics({"t": 2})
        if how == "registry":  # Joined by then, and the group waits for its leader.
            world.server.script(m.DescribeTopicsRequest, *[15] * 500)
        async with client.join("g", **joins[how]) as member:
            if how == "registry":
                assert (await member.assignment()).partitions == (T0, T1)
                assert trio.current_time() > OUTAGE_S
            else:
                await during(OUTAGE_S, world.server, member.assignment())


@pytest.mark.parametrize("code", [22, 25, 27])
async def test_a_member_that_was_removed_in_an_outage_joins_again_in_doubt_of_a_commit(
    autojump_clock: MockClock, world: World, code: int
) -> None:
    """What was stored last may be committed or not: `fetch` tells, and nothing ends for it."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, auto_commit_interval_ms=3_600_000) as member,
    ):
        await member.assignment()
        member.store({T0: 5})
        await member.request_rejoin("test")
        world.server.script(m.OffsetCommitRequest, Drop(applied=True), code)
        assert (await member.assignment()).generation == 2
        assert await member.fetch([T0]) == {T0: OffsetAndMetadata(5)}


async def test_a_call_of_the_client_itself_has_an_end(
    autojump_clock: MockClock, world: World
) -> None:
    """An operator, and a program that starts, want to hear that nobody is there."""
    async with world.connect() as client:
        await go_away(world.server)
        for call in (client.fetch_offsets("g"), client.commit("g", {T0: 1})):
            began_s = trio.current_time()
            with pytest.raises(CoordinatorUnavailable):
                await call
            assert 25 < trio.current_time() - began_s <= 30


async def test_a_member_waits_no_longer_than_it_was_told(
    autojump_clock: MockClock, world: World
) -> None:
    """By the call, or when it joined: assignment, fetch and commit alike."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, request_timeout_ms=3_000) as member,
    ):
        await member.assignment()
        await go_away(world.server)
        await member.request_rejoin("test")
        for call, most_s in (
            (member.fetch(), 3),
            (member.fetch(timeout_ms=5_000), 5),
            (member.commit({T0: 1}), 3),
            (member.commit({T0: 1}, timeout_ms=5_000), 5),
            (member.assignment(), 3),
        ):
            began_s = trio.current_time()
            with pytest.raises(CoordinatorUnavailable):
                await call
            assert most_s - 2.1 < trio.current_time() - began_s <= most_s
        with pytest.raises(ValueError, match="request_timeout_ms"):
            client.join("h", ["t"], request_timeout_ms=-1)


async def test_a_commit_that_may_be_stored_when_time_is_up_keeps_the_partitions(
    autojump_clock: MockClock, world: World
) -> None:
    """The next owner would read rows again that the same call, repeated, would commit."""
    async with (
        world.connect() as client,
        client.join(
            "g", ["t"], {"t": 2}, request_timeout_ms=3_000, auto_commit_interval_ms=3_600_000
        ) as member,
    ):
        await member.assignment()
        member.store({T0: 5})
        await member.request_rejoin("test")
        world.server.script(m.OffsetCommitRequest, Drop(applied=False), *[15] * 100)
        with pytest.raises(OutcomeUnknown):
            await member.assignment()
        world.server.forget_script()
        assert (await member.assignment()).generation == 2
        assert await member.fetch([T0]) == {T0: OffsetAndMetadata(5)}


async def test_a_member_that_waits_can_be_cancelled_and_leaves(
    autojump_clock: MockClock, world: World
) -> None:
    """Its owner may want it to end in the middle of an outage."""
    async with world.connect() as client:
        with trio.move_on_after(100) as scope:
            async with client.join("g", ["t"], {"t": 2}) as member:
                await member.assignment()
                await go_away(world.server)
                await member.commit({T0: 1})
        assert scope.cancelled_caught
        assert 100 <= trio.current_time() < 102


def refuse_for_now(server: ScriptedServer, kind: type) -> None:
    """Refuse requests of *kind* for longer than a call goes on that has a millisecond."""
    server.script(kind, *[15] * 40)


def test_the_blocking_form_waits_as_the_other_does() -> None:
    """A thread's loop rides out the same outage."""
    server = ScriptedServer()
    with (
        connect_to(server, retry=RetrySettings(1, 2)) as client,
        client.join("g", ["t"], {"t": 2}) as member,
    ):
        member.assignment()
        client.inner._router.request_timeout_ms = 1
        refuse_for_now(server, m.OffsetFetchRequest)
        assert member.fetch() == {}
        refuse_for_now(server, m.OffsetCommitRequest)
        member.commit({T0: 5})
        refuse_for_now(server, m.JoinGroupRequest)
        member.request_rejoin("test")
        assert member.assignment().generation == 2
        refuse_for_now(server, m.OffsetFetchRequest)
        with pytest.raises(CoordinatorUnavailable):
            client.fetch_offsets("g")


def test_the_asyncio_form_waits_as_the_other_does() -> None:
    """A task's loop rides out the same outage."""
    server = ScriptedServer()

    async def main() -> None:
        async with (
            connect_aio_to(server, retry=RetrySettings(1, 2)) as client,
            client.join("g", ["t"], {"t": 2}) as member,
        ):
            await member.assignment()
            client._inner._router.request_timeout_ms = 1
            refuse_for_now(server, m.OffsetFetchRequest)
            assert await member.fetch() == {}
            refuse_for_now(server, m.OffsetCommitRequest)
            await member.commit({T0: 5})
            refuse_for_now(server, m.JoinGroupRequest)
            await member.request_rejoin("test")
            assert (await member.assignment()).generation == 2
            refuse_for_now(server, m.OffsetFetchRequest)
            with pytest.raises(CoordinatorUnavailable):
                await client.fetch_offsets("g")

    asyncio.run(main())


async def test_calls_that_wait_end_after_their_member_has_left(
    autojump_clock: MockClock, world: World
) -> None:
    """A program that stops in an outage waits for its workers before it closes the client."""
    async with world.connect() as client:
        member = await client.join("g", ["t"], {"t": 2}, auto_commit_interval_ms=10**9).__aenter__()
        await member.assignment()
        member.store({T0: 9})
        await go_away(world.server)
        await member.request_rejoin("test")

        async def waits(call: Callable[[], Awaitable[object]]) -> None:
            with pytest.raises(ClientClosed, match="left"):
                await call()

        with trio.fail_after(2 * OUTAGE_S):
            async with trio.open_nursery() as nursery:
                for call in (partial(member.commit, {T1: 7}), member.fetch, member.assignment):
                    nursery.start_soon(waits, call)
                await trio.sleep(OUTAGE_S)
                assert not await member.leave()
                left_s = trio.current_time()
        assert trio.current_time() - left_s <= REQUEST_TIMEOUT_MS / 1000
        with pytest.raises(CoordinatorUnavailable):
            await member.fetch()
