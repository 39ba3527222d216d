"""A member from joining to leaving, over the wire."""

from itertools import pairwise

import pytest
import trio
from trio.testing import MockClock

from client import (
    Assignment,
    CoordinatorUnavailable,
    FatalError,
    MemberLost,
    Rebalanced,
    TopicPartition,
)
from protocol import messages as m
from tests.client.conftest import World
from tests.fakes.scripted_server import MEMBER_ID, Hold

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_heartbeats_go_on_while_the_caller_works(
    autojump_clock: MockClock, world: World
) -> None:
    """A batch may take longer than the session."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 1}, session_timeout_ms=6_000) as member,
    ):
        await member.assignment()
        await trio.sleep(60)
        await member.commit({T0: 1})

    beats = [s.at_s for s in world.server.seen if isinstance(s.request, m.HeartbeatRequest)]
    assert {2.0} == {round(after - before, 2) for before, after in pairwise(beats)}
    assert 29 <= len(beats) <= 30


async def test_a_parked_join_holds_up_nobody_on_the_connection(
    autojump_clock: MockClock, world: World
) -> None:
    """Another member's heartbeats and commits share the connection with it."""
    parked = trio.Event()
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 1}) as one,
        client.join("h", ["t"], {"t": 1}) as two,
    ):
        await one.assignment()
        async with trio.open_nursery() as nursery:
            world.server.script(m.JoinGroupRequest, Hold(parked))
            nursery.start_soon(two.assignment)
            await trio.sleep(100)
            await one.commit({T0: 1})

            assert trio.current_time() == 100
            assert len(world.server.requests(m.HeartbeatRequest)) > 30

            parked.set()

    assert world.server.connections == 1


async def test_a_rebalance_is_followed_when_the_caller_asks(
    autojump_clock: MockClock, world: World
) -> None:
    """Between the news and the call, the partitions are still ours and commits count."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.HeartbeatRequest, 27)
        await member.wait_rebalance_needed()

        assert (member.rebalance_needed, member.lost) == (True, False)

        await member.commit({T0: 1})

        assert (await member.assignment()).generation == 2
        assert (member.rebalance_needed, member.lost) == (False, False)


@pytest.mark.parametrize(
    ("code", "error", "next_id"),
    [
        (22, Rebalanced, MEMBER_ID),
        (27, Rebalanced, MEMBER_ID),
        (25, MemberLost, ""),
        (69, MemberLost, ""),
    ],
)
async def test_a_refused_commit_says_what_to_do(
    autojump_clock: MockClock,
    world: World,
    code: int,
    error: type[Rebalanced],
    next_id: str,
) -> None:
    """The next assignment() does it."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, code)
        with pytest.raises(error) as caught:
            await member.commit({T0: 1})

        assert error is type(caught.value)
        assert member.rebalance_needed
        assert (code != 27) == member.lost

        before = len(world.server.requests(m.JoinGroupRequest))
        await member.assignment()
        request = world.server.requests(m.JoinGroupRequest)[before]

        assert isinstance(request, m.JoinGroupRequest)
        assert next_id == request.member_id
        await member.commit({T0: 1})


async def test_a_late_refusal_of_the_old_generation_disturbs_nobody(
    autojump_clock: MockClock, world: World
) -> None:
    """The commit fails, but the new generation that was joined meanwhile stands."""
    held = trio.Event()
    refused = m.OffsetCommitResponse(22, ())
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.OffsetCommitRequest, Hold(held, refused))
        outcome: list[type] = []

        async def commit() -> None:
            try:
                await member.commit({T0: 1})
            except Rebalanced as exc:
                outcome.append(type(exc))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit)
            await trio.testing.wait_all_tasks_blocked()
            await member.request_rejoin("test")
            await member.assignment()
            held.set()

        assert [Rebalanced] == outcome
        assert (member.generation, member.rebalance_needed, member.lost) == (2, False, False)


async def test_a_fenced_member_stays_out(autojump_clock: MockClock, world: World) -> None:
    """Joining again would fence the other one, and so on for ever."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        world.server.script(m.HeartbeatRequest, 82)
        await member.wait_rebalance_needed()
        for _ in range(2):
            with pytest.raises(FatalError, match="FENCED_INSTANCE_ID"):
                await member.assignment()
        with pytest.raises(FatalError):
            await member.commit({T0: 1})

    assert len(world.server.requests(m.JoinGroupRequest)) == 2


async def test_two_tasks_that_ask_get_the_same_assignment(
    autojump_clock: MockClock, world: World
) -> None:
    """One join serves both."""
    got: list[Assignment] = []
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:

        async def ask() -> None:
            got.append(await member.assignment())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)

    assert got[0] is got[1]
    assert len(world.server.requests(m.JoinGroupRequest)) == 2


async def test_giving_up_on_waiting_does_not_give_up_the_join(
    autojump_clock: MockClock, world: World
) -> None:
    """A driver looks in between for what else it has to do."""
    parked = trio.Event()
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        world.server.script(m.JoinGroupRequest, Hold(parked))
        with trio.move_on_after(5) as scope:
            await member.assignment()

        assert scope.cancelled_caught

        parked.set()
        await trio.sleep(5)

        assert not member.rebalance_needed
        assert (await member.assignment()).generation == 1
        assert trio.current_time() == 5 + 5


async def test_a_coordinator_that_is_away_while_joining_is_an_error_that_passes(
    autojump_clock: MockClock, world: World
) -> None:
    """The same member joins when it is back."""
    async with (
        world.connect(request_timeout_ms=3_000) as client,
        client.join("g", ["t"], {"t": 2}) as member,
    ):
        world.server.script(m.JoinGroupRequest, *[15] * 30)
        with pytest.raises(CoordinatorUnavailable):
            await member.assignment()

        assert trio.current_time() <= 3

        world.server.forget_script()

        assert (await member.assignment()).generation == 1


async def test_joins_that_come_to_nothing_are_paused_between(
    autojump_clock: MockClock, world: World
) -> None:
    """A client and a server that disagree must not spin."""
    world.server.script(m.JoinGroupRequest, *[25] * 8)
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()

    assert trio.current_time() >= 0.05 + 0.1 + 0.2 + 0.4 + 0.8 + 1 + 1


async def test_partitions_may_come_from_an_async_function(
    autojump_clock: MockClock, world: World
) -> None:
    """Listing them may take long; heartbeats go on meanwhile."""

    async def partitions(topic: str) -> list[int]:
        await trio.sleep(10)
        return [4, 2, 4]

    async with world.connect() as client, client.join("g", ["t"], partitions) as member:
        assignment = await member.assignment()

        assert (TopicPartition("t", 2), TopicPartition("t", 4)) == assignment.partitions

    assert len(world.server.requests(m.HeartbeatRequest)) == 3
