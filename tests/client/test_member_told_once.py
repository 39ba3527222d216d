"""A caller is told of each coming and going of a partition once, whatever comes in between."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from client import ClientClosed, CoordinatorUnavailable, Member, MemberLost, TopicPartition
from protocol import messages as m
from tests.client.conftest import World
from tests.client.test_member_callbacks import Told
from tests.client.test_member_cooperative import join, joined, rebalance, synced

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def failing_once(told: Told, name: str) -> dict[str, Any]:
    """Return callbacks; the first call of *name* raises."""
    bugs = [LookupError]

    async def fail() -> None:
        if bugs:
            raise bugs.pop()

    return {**told.all, name: told(name, fail)}


async def outage(world: World, member: Member, tp: TopicPartition) -> None:
    """Let what is stored of *tp* be impossible to commit while `assignment` gives it up."""
    member.store({tp: 5})
    world.server.script(m.OffsetCommitRequest, *[15] * 30)
    with pytest.raises(CoordinatorUnavailable):
        await member.assignment()
    world.server.forget_script()


async def session_over(world: World, member: Member) -> None:
    """Let the coordinator remove *member*."""
    world.server.script(m.HeartbeatRequest, 25)
    await trio.sleep(5)
    assert member.lost


@pytest.mark.parametrize("leaves", [False, True])
async def test_what_was_revoked_is_not_lost_once_more(
    autojump_clock: MockClock, world: World, *, leaves: bool
) -> None:
    """The caller let go of it; only its stored offsets could not be committed in time."""
    told = Told()
    async with (
        world.connect(request_timeout_ms=2_000) as client,
        client.join("g", ["t"], {"t": 2}, auto_commit_interval_ms=60_000, **told.all) as member,
    ):
        await member.assignment()
        await member.request_rejoin("test")
        await outage(world, member, T0)
        await session_over(world, member)
        if not leaves:
            await member.assignment()

    names = [name for name, _ in told.calls]
    assert names == ["on_assigned", "on_revoked", *["on_assigned", "on_revoked"][: 2 - 2 * leaves]]


async def test_a_commit_on_revoke_that_comes_too_late_is_no_second_call(
    autojump_clock: MockClock, world: World
) -> None:
    """Also where the callback lets its exception out; the partitions were let go all the same."""
    told = Told()

    async def commit() -> None:
        await member.commit({T0: 7})

    callbacks = {**told.all, "on_revoked": told("on_revoked", commit)}
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}, **callbacks) as member:
        await member.assignment()
        await member.request_rejoin("test")
        world.server.script(m.OffsetCommitRequest, 25)
        with pytest.raises(MemberLost):
            await member.assignment()
        await member.assignment()

        assert [name for name, _ in told.calls] == ["on_assigned", "on_revoked", "on_assigned"]


@pytest.mark.parametrize("end", ["on_revoked", "on_lost"])
async def test_only_what_was_not_revoked_goes_later(
    autojump_clock: MockClock, world: World, end: str
) -> None:
    """A cooperative member has given up one partition; the others go with its membership."""
    told = Told()
    async with (
        world.connect(request_timeout_ms=2_000) as client,
        join(client, {"t": 3}, auto_commit_interval_ms=60_000, **told.all) as member,
    ):
        await member.assignment()
        await rebalance(world, member, joined(2), synced(T0, T1))
        await member.assignment()
        await member.wait_rebalance_needed()
        await outage(world, member, T2)
        if end == "on_lost":
            await session_over(world, member)

    assert told.calls[1:] == [("on_revoked", (T2,)), (end, (T0, T1))]


async def test_what_came_with_an_exception_is_given_up_at_the_end(
    autojump_clock: MockClock, world: World
) -> None:
    """Half of the workers may have been started."""
    told = Told()
    callbacks = failing_once(told, "on_assigned")
    async with world.connect() as client:
        member = await client.join("g", ["t"], {"t": 2}, **callbacks).__aenter__()
        with pytest.raises(LookupError):
            await member.assignment()
        await member.leave()

    assert told.calls == [("on_assigned", (T0, T1)), ("on_revoked", (T0, T1))]


async def test_what_came_with_an_exception_can_be_lost(
    autojump_clock: MockClock, world: World
) -> None:
    """They were assigned all the same."""
    told = Told()
    callbacks = failing_once(told, "on_assigned")
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}, **callbacks) as member:
        with pytest.raises(LookupError):
            await member.assignment()

        assert (await member.assignment()).partitions == (T0, T1)
        assert len(told.calls) == 1

        await session_over(world, member)
        await member.assignment()

    names = [name for name, _ in told.calls]
    assert names == ["on_assigned", "on_lost", "on_assigned", "on_revoked"]


async def test_a_call_beside_the_end_tells_nothing(autojump_clock: MockClock, world: World) -> None:
    """Everything goes at the end, in one call: news of a rebalance would tell it twice."""
    told = Told()

    async def finish() -> None:
        await trio.sleep(3)

    callbacks = {**told.all, "on_revoked": told("on_revoked", finish)}
    async with world.connect() as client, join(client, {"t": 3}, **callbacks) as member:
        await member.assignment()
        await rebalance(world, member, joined(2), synced(T0, T1))
        await member.assignment()
        await member.wait_rebalance_needed()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.leave)
            await wait_all_tasks_blocked()
            with pytest.raises(ClientClosed):
                await member.assignment()

    assert told.calls[1:] == [("on_revoked", (T0, T1, T2))]
