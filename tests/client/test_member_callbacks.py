"""What a member tells its caller about partitions, and when: each coming and going once."""

from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from client import (
    ClientClosed,
    CoordinatorUnavailable,
    FatalError,
    Member,
    MemberLost,
    TopicPartition,
)
from client.api import LEAVE_TIMEOUT_MS
from protocol import messages as m
from tests.client.conftest import World
from tests.client.members import Told, join, joined, rebalance, synced
from tests.fakes.scripted_server import Answer, group_requests

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


async def test_everything_is_revoked_before_the_join_and_given_after_it(
    autojump_clock: MockClock, world: World
) -> None:
    """As Kafka's eager consumers do it; a commit on revoke is still accepted."""
    told = Told()

    async def commit() -> None:
        assert not member.lost
        await member.commit({T0: 7})

    callbacks = {**told.all, "on_revoked": told("on_revoked", commit)}
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}, **callbacks) as member:
        await member.assignment()
        await member.request_rejoin("test")
        await member.assignment()

    assert told.calls == [
        ("on_assigned", (T0, T1)),
        ("on_revoked", (T0, T1)),
        ("on_assigned", (T0, T1)),
        ("on_revoked", (T0, T1)),
    ]
    assert group_requests(world.server) == [
        "JoinGroup",
        "JoinGroup",
        "RegisterTopics",
        "SyncGroup",
        "OffsetCommit",
        "JoinGroup",
        "SyncGroup",
        "OffsetCommit",
        "LeaveGroup",
    ]


@pytest.mark.parametrize("code", [22, 25])
async def test_what_somebody_else_has_already_is_lost_and_not_revoked(
    autojump_clock: MockClock, world: World, code: int
) -> None:
    """Committing is in vain then, and nothing stored before is tried."""
    told = Told()
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, auto_commit_interval_ms=60_000, **told.all) as member,
    ):
        await member.assignment()
        member.store({T0: 1})
        world.server.script(m.HeartbeatRequest, code)
        await member.wait_rebalance_needed()
        await member.assignment()

        assert told.calls[1:] == [("on_lost", (T0, T1)), ("on_assigned", (T0, T1))]

        await member.commit()

    assert world.server.requests(m.OffsetCommitRequest) == []


async def test_a_fenced_member_is_told_of_its_loss_before_it_fails(
    autojump_clock: MockClock, world: World
) -> None:
    """Its caller has to stop its workers also if nothing follows."""
    told = Told()
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}, **told.all) as member:
        await member.assignment()
        held = m.HeartbeatResponse(82, "instance id 'x' is held by member x-2")
        world.server.script(m.HeartbeatRequest, Answer(held))
        await member.wait_rebalance_needed()
        with pytest.raises(FatalError, match="held by member x-2"):
            await member.assignment()

    assert told.calls[1:] == [("on_lost", (T0, T1))]


async def test_a_plain_function_will_do(autojump_clock: MockClock, world: World) -> None:
    """Not every callback has something to wait for."""
    given: list[object] = []
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 1}, on_assigned=given.append) as member,
    ):
        await member.assignment()

    assert given == [(T0,)]


async def test_what_a_callback_raises_comes_out_and_the_next_call_goes_on(
    autojump_clock: MockClock, world: World
) -> None:
    """It was called; calling it again could never end for one that always fails."""
    told = Told()

    async def fail() -> None:
        raise LookupError

    callbacks = {**told.all, "on_revoked": told("on_revoked", fail)}
    async with world.connect() as client:
        member = await client.join("g", ["t"], {"t": 2}, **callbacks).__aenter__()
        await member.assignment()
        await member.request_rejoin("test")
        with pytest.raises(LookupError):
            await member.assignment()

        assert not member.lost
        assert (await member.assignment()).generation == 2
        assert [name for name, _ in told.calls] == ["on_assigned", "on_revoked", "on_assigned"]

        with pytest.raises(LookupError):
            await member.leave()

    assert len(world.server.requests(m.LeaveGroupRequest)) == 1


async def test_a_callback_that_raised_is_called_for_the_next_assignment(
    autojump_clock: MockClock, world: World
) -> None:
    """Also where that holds the same partitions, after those of the first one were lost."""
    told, bugs = Told(), [True]

    async def fail() -> None:
        if bugs.pop():
            raise LookupError

    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, on_assigned=told("on_assigned", fail)) as member,
    ):
        with pytest.raises(LookupError):
            await member.assignment()
        world.server.script(m.HeartbeatRequest, 25)
        await member.wait_rebalance_needed()
        bugs.append(False)
        await member.assignment()

    assert told.calls == [("on_assigned", (T0, T1))] * 2


async def test_a_callback_that_was_cancelled_is_called_again(
    autojump_clock: MockClock, world: World
) -> None:
    """A caller that looks for other work in between must not skip the end of a batch."""
    told = Told()

    async def finish_the_batch() -> None:
        await trio.sleep(3 if len(told.calls) == 2 else 0)

    callbacks = {**told.all, "on_revoked": told("on_revoked", finish_the_batch)}
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}, **callbacks) as member:
        await member.assignment()
        await member.request_rejoin("test")
        with trio.move_on_after(1):
            await member.assignment()

        assert (member.lost, member.rebalance_needed) == (False, True)

        await member.assignment()

    names = [name for name, _ in told.calls]
    assert names[:4] == ["on_assigned", "on_revoked", "on_revoked", "on_assigned"]


async def test_who_leaves_in_a_callback_gets_no_further_one(
    autojump_clock: MockClock, world: World
) -> None:
    """The caller knows what it is doing; a callback within a callback would surprise it."""
    told = Told()

    async def leave() -> None:
        await member.leave("enough")

    callbacks = {**told.all, "on_revoked": told("on_revoked", leave)}
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}, **callbacks) as member:
        await member.assignment()
        await member.request_rejoin("test")
        with pytest.raises(ClientClosed):
            await member.assignment()

    assert [name for name, _ in told.calls] == ["on_assigned", "on_revoked"]
    assert len(world.server.requests(m.LeaveGroupRequest)) == 1


async def test_asking_for_the_assignment_in_a_callback_is_an_error(
    autojump_clock: MockClock, world: World
) -> None:
    """It would wait for itself."""

    async def on_assigned(_: object) -> None:
        await member.assignment()

    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, on_assigned=on_assigned) as member,
    ):
        with pytest.raises(RuntimeError, match="callback"):
            await member.assignment()


async def test_two_tasks_that_ask_are_not_told_twice(
    autojump_clock: MockClock, world: World
) -> None:
    """The second one finds the assignment that the first was told of."""
    told = Told()
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}, **told.all) as member:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.assignment)
            nursery.start_soon(member.assignment)

        assert told.calls == [("on_assigned", (T0, T1))]


async def test_a_fence_in_the_middle_of_giving_up_is_no_second_call(
    autojump_clock: MockClock, world: World
) -> None:
    """The caller has let go already; the commit on revoke says that it came too late."""
    told = Told()

    async def commit() -> None:
        world.server.script(m.OffsetCommitRequest, 25)
        with pytest.raises(MemberLost):
            await member.commit({T0: 7})

    callbacks = {**told.all, "on_revoked": told("on_revoked", commit)}
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}, **callbacks) as member:
        await member.assignment()
        await member.request_rejoin("test")
        await member.assignment()

        assert [name for name, _ in told.calls] == ["on_assigned", "on_revoked", "on_assigned"]


async def test_the_end_of_the_block_waits_for_the_caller_to_finish(
    autojump_clock: MockClock, world: World
) -> None:
    """A planned stop must not repeat a batch, however long it takes; the group waits."""
    told = Told()

    async def finish_the_batch() -> None:
        await trio.sleep(20)
        await member.commit({T0: 9})

    callbacks = {"on_revoked": told("on_revoked", finish_the_batch)}
    async with world.connect() as client:
        async with client.join("g", ["t"], {"t": 2}, **callbacks) as member:
            await member.assignment()

        assert trio.current_time() >= 20

    assert group_requests(world.server)[-2:] == ["OffsetCommit", "LeaveGroup"]


async def test_a_program_that_is_cancelled_has_the_leave_timeout_for_its_callback(
    autojump_clock: MockClock, world: World
) -> None:
    """Control-C ends it soon, but what is quick is still done, the commit as well."""
    told = Told()

    async def commit_and_hang() -> None:
        await member.commit({T0: 9})
        await trio.sleep_forever()

    with trio.move_on_after(5):
        async with (
            world.connect() as client,
            client.join(
                "g", ["t"], {"t": 2}, on_revoked=told("on_revoked", commit_and_hang)
            ) as member,
        ):
            await member.assignment()
            await trio.sleep_forever()

    assert trio.current_time() == pytest.approx(5 + LEAVE_TIMEOUT_MS / 1000)
    assert group_requests(world.server)[-2:] == ["OffsetCommit", "LeaveGroup"]


async def test_a_lost_member_that_leaves_says_lost(autojump_clock: MockClock, world: World) -> None:
    """Nothing of it is there to be given up."""
    told = Told()
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}, **told.all) as member:
        await member.assignment()
        world.server.script(m.HeartbeatRequest, 25)
        await member.wait_rebalance_needed()

    assert told.calls[1:] == [("on_lost", (T0, T1))]


def failing_once(told: Told, name: str) -> dict[str, Any]:
    """Return callbacks; the first call of *name* raises."""
    bugs = [LookupError]

    async def fail() -> None:
        if bugs:
            raise bugs.pop()

    return {**told.all, name: told(name, fail)}


# Gives up on a coordinator that is away, and doesn't commit before that by itself.
IMPATIENT: Final[dict[str, Any]] = {
    "request_timeout_ms": 2_000,
    "auto_commit_interval_ms": 60_000,
}


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
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, **IMPATIENT, **told.all) as member,
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
        world.connect() as client,
        join(client, {"t": 3}, **IMPATIENT, **told.all) as member,
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
