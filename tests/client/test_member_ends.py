"""Turns of commits, and how a member's life ends."""

import pytest
import trio
from trio.testing import MockClock

from client import (
    Assignment,
    ClientClosed,
    CoordinatorUnavailable,
    FatalError,
    MemberLost,
    OffsetAndMetadata,
    Rebalanced,
    TopicPartition,
)
from protocol import messages as m
from tests.client.conftest import World
from tests.fakes.scripted_server import MEMBER_ID, Hang, Hold, group_requests

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_a_member_joins_commits_fetches_and_leaves(
    autojump_clock: MockClock, world: World
) -> None:
    """The whole life once: it is what the README's example does."""
    async with world.connect() as client:
        async with client.join("g", ["t"], {"t": 2}) as member:
            assignment = await member.assignment()

            assert Assignment(1, MEMBER_ID, (T0, T1), is_leader=True) == assignment

            await member.commit({T0: 5, T1: OffsetAndMetadata(7, "pin")})

            assert {
                T0: OffsetAndMetadata(5),
                T1: OffsetAndMetadata(7, "pin"),
            } == await member.fetch()

        assert client.cluster_id == "scripted-cluster"

    assert group_requests(world.server) == [
        "JoinGroup",
        "JoinGroup",
        "SyncGroup",
        "OffsetCommit",
        "OffsetFetch",
        "LeaveGroup",
    ]


async def test_commits_of_one_partition_wait_for_each_other(
    autojump_clock: MockClock, world: World
) -> None:
    """Two in flight could be stored in either order once a connection breaks between them."""
    held = trio.Event()
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, Hold(held))
        async with trio.open_nursery() as nursery:
            for offset in range(1, 6):
                nursery.start_soon(member.commit, {T0: offset})
                await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(member.commit, {T1: 9})
            await trio.testing.wait_all_tasks_blocked()

            assert len(world.server.requests(m.OffsetCommitRequest)) == 2

            held.set()

    offsets = [
        request.topics[0].partitions[0].offset
        for request in world.server.requests(m.OffsetCommitRequest)
        if isinstance(request, m.OffsetCommitRequest)
    ]
    assert offsets == [1, 9, 2, 3, 4, 5]


async def test_without_an_assignment_nothing_is_sent(
    autojump_clock: MockClock, world: World
) -> None:
    """The coordinator would refuse it, too; this way it is surely not stored."""
    async with world.connect() as client:
        async with client.join("g", ["t"], {"t": 2}) as member:
            with pytest.raises(Rebalanced, match="no assignment now"):
                await member.commit({T0: 1})
            await member.assignment()
            world.server.script(m.HeartbeatRequest, 25)
            await member.wait_rebalance_needed()
            with pytest.raises(MemberLost):
                await member.commit({T0: 1})
        with pytest.raises(ClientClosed):
            await member.commit({T0: 1})

    assert world.server.requests(m.OffsetCommitRequest) == []


async def test_the_callers_own_exception_comes_back_unwrapped(
    autojump_clock: MockClock, world: World
) -> None:
    """From the partitions function, and from the block."""

    def partitions(topic: str) -> list[int]:
        raise LookupError(topic)

    with pytest.raises(LookupError, match="t"):
        async with world.connect() as client, client.join("g", ["t"], partitions) as member:
            await member.assignment()

    assert len(world.server.requests(m.LeaveGroupRequest)) == 1


async def test_leaving_is_bounded(autojump_clock: MockClock, world: World) -> None:
    """A program that ends must not hang because the coordinator does."""
    async with world.connect() as client:
        async with client.join("g", ["t"], {"t": 2}) as member:
            await member.assignment()
            world.server.script(m.LeaveGroupRequest, Hang())
            began_s = trio.current_time()

        assert trio.current_time() - began_s == 1
        assert not await member.leave()


async def test_a_cancelled_block_still_leaves(autojump_clock: MockClock, world: World) -> None:
    """Control-C is the usual end of a consumer."""
    with trio.move_on_after(5):
        async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
            await member.assignment()
            await trio.sleep_forever()

    assert len(world.server.requests(m.LeaveGroupRequest)) == 1
    assert world.server.open_connections == 0


async def test_closing_the_client_leaves_every_group(
    autojump_clock: MockClock, world: World
) -> None:
    """All at the same time, so that many members don't take many seconds."""
    async with world.connect() as client:
        for group in ["g", "h", "i"]:
            member = await client.join(group, ["t"], {"t": 2}).__aenter__()
            await member.assignment()
        world.server.script(m.LeaveGroupRequest, Hang(), Hang(), Hang())
        began_s = trio.current_time()

    assert trio.current_time() - began_s == 1
    assert len(world.server.requests(m.LeaveGroupRequest)) == 3


async def test_a_closed_client_says_so(autojump_clock: MockClock, world: World) -> None:
    """Not "unavailable": trying again won't help."""
    async with world.connect() as client:
        member = client.join("g", ["t"], {"t": 2})
        with pytest.raises(RuntimeError, match="async with"):
            await member.assignment()
    with pytest.raises(ClientClosed):
        await client.list_groups()
    with pytest.raises(ClientClosed):
        async with client.join("g", ["t"], {"t": 2}):
            pass


async def test_arguments_that_make_no_sense_are_refused_at_once(
    autojump_clock: MockClock, world: World
) -> None:
    """Not by a rebalance later."""
    async with world.connect() as client:
        with pytest.raises(ValueError, match="topics"):
            client.join("g", "flights", {})
        with pytest.raises(ValueError, match="topics"):
            client.join("g", [], {})
        with pytest.raises(ValueError, match="assignor"):
            client.join("g", ["t"], {}, assignors=())


async def test_a_commit_waits_for_its_turn_no_longer_than_it_may(
    autojump_clock: MockClock, world: World
) -> None:
    """An earlier commit that can't get through must not hold this one beyond its own time."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, Hang())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.commit, {T0: 1})
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(CoordinatorUnavailable, match="earlier commit"):
                await member.commit({T0: 2}, timeout_ms=3_000)

            assert trio.current_time() == 3

        assert await member.fetch() == {T0: OffsetAndMetadata(1)}
        assert await member.fetch([]) == {}


async def test_a_refusal_after_leaving_changes_nothing(
    autojump_clock: MockClock, world: World
) -> None:
    """The member is gone whatever a late answer says."""
    held = trio.Event()
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, Hold(held, m.OffsetCommitResponse(82, ())))
        async with trio.open_nursery() as nursery:

            async def commit() -> None:
                with pytest.raises(FatalError, match="FENCED"):
                    await member.commit({T0: 1})

            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked()
            await member.leave()
            held.set()

        with pytest.raises(ClientClosed):
            await member.assignment()
