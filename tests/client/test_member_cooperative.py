"""Cooperative members: what stays is never taken away, not even for a moment."""

import pytest
import trio
from trio.testing import MockClock

from client import (
    Assignment,
    ClientClosed,
    CoordinatorUnavailable,
    FatalError,
    MemberLost,
    Rebalanced,
    TopicPartition,
)
from protocol import consumer, messages as m
from tests.client.conftest import World
from tests.client.members import Told, answer, join, joined, rebalance, synced
from tests.fakes.scripted_server import MEMBER_ID, Answer, Hang, Hold, group_requests

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))


def claims(world: World) -> list[tuple[tuple[TopicPartition, ...], int]]:
    """Return what each JoinGroup claimed, and of which generation."""
    found = []
    for request in world.server.requests(m.JoinGroupRequest):
        assert isinstance(request, m.JoinGroupRequest)
        decoded = consumer.decode_subscription(request.protocols[0].metadata)
        assert decoded is not None
        found.append((decoded.owned_partitions, decoded.generation_id))
    return found


async def test_a_new_member_waits_for_its_first_assignment(
    autojump_clock: MockClock, world: World
) -> None:
    """There is nothing to work on before."""
    async with world.connect() as client, join(client) as one:
        assert one.lost
        assert (await one.assignment()).partitions == (T0, T1)
        assert claims(world) == [((), -1)] * 2


async def test_partitions_stay_while_the_group_rebalances_and_go_when_the_caller_asks(
    autojump_clock: MockClock, world: World
) -> None:
    """The whole hand-over: keep, learn, revoke and commit, join again, go on."""
    told, parked, again = Told(), trio.Event(), trio.Event()

    async def commit() -> None:
        await member.commit({T1: 5})

    callbacks = {**told.all, "on_revoked": told("on_revoked", commit)}
    async with (
        world.connect() as client,
        join(client, **callbacks) as member,
    ):
        before = await member.assignment()
        await rebalance(world, member, Hold(parked, joined(2)), synced(T0))

        assert await member.assignment() is before  # At once, although the join is parked.
        assert (member.lost, member.rebalance_needed) == (False, False)

        await member.commit({T0: 3, T1: 3})
        parked.set()
        await member.wait_rebalance_needed()  # The news are in.

        assert (member.lost, told.calls) == (False, [("on_assigned", (T0, T1))])

        await member.commit({T1: 4})  # Nobody else has it before we let go.
        world.server.script(m.JoinGroupRequest, Hold(again))
        after = await member.assignment()

        assert after == Assignment(2, MEMBER_ID, (T0,), is_leader=False)
        assert told.calls[1:] == [("on_revoked", (T1,)), ("on_assigned", ())]

        await trio.testing.wait_all_tasks_blocked()
        assert claims(world)[-2:] == [((T0, T1), 1), ((T0,), 2)]
        with pytest.raises(Rebalanced, match="t-1"):
            member.store({T1: 1})

        answer(world, m.SyncGroupRequest, synced(T0, T2))
        again.set()
        await member.wait_rebalance_needed()
        final = await member.assignment()

        assert final.partitions == (T0, T2)
        assert told.calls[3:] == [("on_assigned", (T2,))]
        assert not member.rebalance_needed  # Nothing was taken away: two rounds, not three.

    assert told.calls[4:] == [("on_revoked", (T0, T2))]


async def test_a_commit_during_the_sync_waits_and_is_repeated_in_the_new_generation(
    autojump_clock: MockClock, world: World
) -> None:
    """The coordinator knows no owners then (27), and no old generation (22)."""
    parked = trio.Event()
    async with (
        world.connect() as client,
        join(client) as member,
    ):
        await member.assignment()
        await rebalance(world, member, joined(2), Hold(parked, synced(T0)))
        await member.assignment()
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.commit, {T0: 3, T1: 4})
            await trio.sleep(5)

            assert sent(world) == []

            parked.set()

        assert sent(world) == [(2, 3)]


def sent(world: World) -> list[tuple[int, int]]:
    """Return (generation, offset of the first partition) of the commits that came."""
    return [
        (request.generation_id, request.topics[0].partitions[0].offset)
        for request in world.server.requests(m.OffsetCommitRequest)
        if isinstance(request, m.OffsetCommitRequest)
    ]


@pytest.mark.parametrize("code", [22, 27])
async def test_a_commit_that_the_new_generation_overtook_is_repeated_in_order(
    autojump_clock: MockClock, world: World, code: int
) -> None:
    """It was sent in the old generation, while the join was parked; a later one waits for it."""
    parked, held = trio.Event(), trio.Event()
    async with (
        world.connect() as client,
        join(client) as member,
    ):
        await member.assignment()
        await rebalance(world, member, Hold(parked, joined(2)), synced(T0))
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, Hold(held, m.OffsetCommitResponse(code, ())))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.commit, {T0: 3})
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(member.commit, {T0: 4})
            held.set()
            await trio.sleep(1)

            assert sent(world) == [(1, 3)]

            parked.set()

        assert sent(world) == [(1, 3), (2, 3), (2, 4)]
        assert not member.lost


async def test_a_commit_that_can_not_be_repeated_says_so(
    autojump_clock: MockClock, world: World
) -> None:
    """The partition was given up meanwhile: the next owner goes on from what is stored."""
    parked, held = trio.Event(), trio.Event()
    async with (
        world.connect() as client,
        join(client) as member,
    ):
        await member.assignment()
        await rebalance(world, member, joined(2), synced(T0))
        await member.assignment()
        await member.wait_rebalance_needed()
        world.server.script(m.OffsetCommitRequest, Hold(held, m.OffsetCommitResponse(22, ())))
        async with trio.open_nursery() as nursery:

            async def commit(offset: int) -> None:
                with pytest.raises(Rebalanced):
                    await member.commit({T1: offset})

            nursery.start_soon(commit, 3)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(commit, 4)  # Waits for the first one.
            await trio.testing.wait_all_tasks_blocked()
            answer(world, m.JoinGroupRequest, joined(3))
            world.server.script(m.SyncGroupRequest, Hold(parked, synced(T0)))
            await member.assignment()
            await trio.testing.wait_all_tasks_blocked()
            held.set()
            await trio.sleep(1)
            parked.set()

        assert sent(world) == [(2, 3)]


async def test_a_commit_of_what_is_kept_is_repeated_though_another_partition_went(
    autojump_clock: MockClock, world: World
) -> None:
    """Only what it names itself must still be there."""
    held = trio.Event()
    async with (
        world.connect() as client,
        join(client) as member,
    ):
        await member.assignment()
        await rebalance(world, member, joined(2), synced(T0))
        await member.assignment()
        await member.wait_rebalance_needed()
        world.server.script(m.OffsetCommitRequest, Hold(held, m.OffsetCommitResponse(22, ())))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.commit, {T0: 3})
            await trio.testing.wait_all_tasks_blocked()
            answer(world, m.JoinGroupRequest, joined(3))
            answer(world, m.SyncGroupRequest, synced(T0))
            assert (await member.assignment()).partitions == (T0,)
            await trio.sleep(1)
            held.set()

        assert sent(world) == [(2, 3), (3, 3)]


async def test_a_commit_waits_for_a_sync_no_longer_than_it_may(
    autojump_clock: MockClock, world: World
) -> None:
    """A leader that hangs must not hang the caller."""
    async with (
        world.connect() as client,
        join(client) as member,
    ):
        await member.assignment()
        await rebalance(world, member, joined(2), Hang())
        await member.assignment()
        await trio.testing.wait_all_tasks_blocked()
        began_s = trio.current_time()
        with pytest.raises(CoordinatorUnavailable, match="rebalance goes on"):
            await member.commit({T0: 3}, timeout_ms=4_000)

        assert trio.current_time() - began_s == pytest.approx(4, abs=0.1)


@pytest.mark.parametrize(
    ("kind", "code"),
    [(m.JoinGroupRequest, 25), (m.SyncGroupRequest, 25), (m.SyncGroupRequest, 22)],
)
async def test_what_is_lost_while_joining_is_lost_at_once(
    autojump_clock: MockClock, world: World, kind: type, code: int
) -> None:
    """The group went on without this member: nothing may be claimed, stored or committed."""
    told, parked = Told(), trio.Event()
    async with (
        world.connect() as client,
        join(client, **told.all) as member,
    ):
        await member.assignment()
        world.server.script(m.HeartbeatRequest, 27)
        await member.wait_rebalance_needed()
        world.server.script(kind, code)
        world.server.script(m.SyncGroupRequest, Hold(parked))
        await member.assignment()
        await trio.sleep(1)

        assert member.lost
        with pytest.raises(Rebalanced):
            await member.commit({T0: 1})
        with pytest.raises(Rebalanced):
            member.store({T0: 1})
        assert claims(world)[-1] == ((), -1)

        parked.set()
        await member.assignment()

        assert told.calls[1:] == [("on_lost", (T0, T1)), ("on_assigned", (T0, T1))]
        assert not member.lost

    assert world.server.requests(m.OffsetCommitRequest) == []


@pytest.mark.parametrize("code", [22, 25])
async def test_a_fence_between_rebalances_is_a_loss(
    autojump_clock: MockClock, world: World, code: int
) -> None:
    """As it is for eager members."""
    told = Told()
    async with (
        world.connect() as client,
        join(client, **told.all) as member,
    ):
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, code)
        with pytest.raises(MemberLost if code == 25 else Rebalanced):
            await member.commit({T0: 1})
        await member.assignment()

        assert told.calls[1:] == [("on_lost", (T0, T1)), ("on_assigned", (T0, T1))]


async def test_a_join_that_fails_in_the_background_is_told_to_the_next_call(
    autojump_clock: MockClock, world: World
) -> None:
    """The caller's own bug must not make the group rebalance for ever without a word."""
    bugs = [False, True, False]

    def partitions(_: str) -> list[int]:
        if bugs.pop(0):
            raise LookupError
        return [0, 1]

    async with (
        world.connect() as client,
        join(client, partitions) as member,
    ):
        before = await member.assignment()
        await member.request_rejoin("test")

        assert await member.assignment() is before

        await member.wait_rebalance_needed()
        with pytest.raises(LookupError):
            await member.assignment()

        assert not member.lost
        await member.commit({T0: 1})
        assert await member.assignment() is before
        await member.wait_rebalance_needed()
        assert (await member.assignment()).generation > 1


async def test_stored_offsets_of_what_goes_are_committed_before_it_goes(
    autojump_clock: MockClock, world: World
) -> None:
    """And those of what stays needn't hurry."""
    async with (
        world.connect() as client,
        join(client, auto_commit_interval_ms=600_000) as member,
    ):
        await member.assignment()
        await rebalance(world, member, joined(2), synced(T0))
        await member.assignment()
        member.store({T0: 3, T1: 4})
        await member.wait_rebalance_needed()
        await member.assignment()

        assert sent(world) == [(2, 4)]
        assert group_requests(world.server)[-1] == "OffsetCommit"


async def test_a_member_with_nothing_left_waits(autojump_clock: MockClock, world: World) -> None:
    """It would spin otherwise; and what it gave up goes in the same call."""
    again = trio.Event()
    async with (
        world.connect() as client,
        join(client) as member,
    ):
        await member.assignment()
        await rebalance(world, member, joined(2), synced())
        await member.assignment()
        await member.wait_rebalance_needed()
        world.server.script(m.JoinGroupRequest, Hold(again))
        with trio.move_on_after(10) as scope:
            await member.assignment()

        assert scope.cancelled_caught
        assert claims(world)[-1] == ((), -1)

        again.set()
        await member.assignment()


async def test_two_rebalances_while_the_caller_works_are_both_told(
    autojump_clock: MockClock, world: World
) -> None:
    """The first one's news come before the second join, which claims what is left."""
    told = Told()
    async with (
        world.connect() as client,
        join(client, **told.all) as member,
    ):
        await member.assignment()
        await rebalance(world, member, joined(2), synced(T1, T2))
        await member.assignment()
        await member.wait_rebalance_needed()
        world.server.script(m.HeartbeatRequest, 27)
        await trio.sleep(10)
        await member.assignment()
        await trio.testing.wait_all_tasks_blocked()

        assert told.calls[1:] == [("on_revoked", (T0,)), ("on_assigned", (T2,))]
        assert claims(world)[-1] == ((T1, T2), 2)


async def test_leaving_while_the_group_rebalances_gives_up_what_is_there(
    autojump_clock: MockClock, world: World
) -> None:
    """Its stored offsets are committed in the old generation, as nobody owns a new one."""
    told = Told()
    async with world.connect() as client:
        async with join(client, **told.all, auto_commit_interval_ms=600_000) as member:
            await member.assignment()
            member.store({T0: 3})
            await rebalance(world, member, Hang(), joined(2))
            await member.assignment()

        assert told.calls[1:] == [("on_revoked", (T0, T1))]
        assert sent(world) == [(1, 3)]


async def test_news_that_nobody_took_are_not_told_after_leaving(
    autojump_clock: MockClock, world: World
) -> None:
    """The partitions are others' by then."""
    told = Told()
    async with world.connect() as client:
        async with join(client, **told.all) as member:
            await member.assignment()
            await rebalance(world, member, joined(2), synced(T0, T2))
            await member.assignment()
            await member.wait_rebalance_needed()
        with pytest.raises(ClientClosed):
            await member.assignment()

    assert told.calls[1:] == [("on_revoked", (T0, T1))]


async def test_a_fenced_cooperative_member_fails_and_has_nothing(
    autojump_clock: MockClock, world: World
) -> None:
    """82 while it joins: somebody has its name."""
    told = Told()
    async with (
        world.connect() as client,
        join(client, **told.all) as member,
    ):
        await member.assignment()
        await rebalance(world, member, Answer(82), joined(2))
        await member.assignment()
        await member.wait_rebalance_needed()
        with pytest.raises(FatalError):
            await member.assignment()

        assert told.calls[1:] == [("on_lost", (T0, T1))]
