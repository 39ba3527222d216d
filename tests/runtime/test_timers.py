"""Deadlines: on time, not early, and not for what the process slept through."""

import pytest
import trio
from trio.testing import MockClock

from protocol.messages import HeartbeatResponse, JoinGroupResponse
from tests.fakes.disk import Disk
from tests.server.world import beat, commit, join, world


async def test_a_member_that_falls_silent_is_removed(autojump_clock: MockClock) -> None:
    """After its session timeout, neither earlier nor much later."""
    async with world() as w:
        client = w.connect()
        member_id = await client.join_alone(session_ms=10_000)
        await trio.sleep(9.9)
        assert await client.ask(beat(member_id)) == HeartbeatResponse(0)
        await trio.sleep(9.9)
        assert "group.member_removed" not in w.event_names()
        await trio.sleep(0.3)

        assert "group.member_removed" in w.event_names()
        assert await client.error(beat(member_id)) == 25


async def test_an_earlier_deadline_wakes_the_timers(autojump_clock: MockClock) -> None:
    """They sleep until the earliest one they know; a new member may bring an earlier one."""
    async with world() as w:
        client = w.connect()
        await client.join_alone("slow", session_ms=600_000)
        member_id = await client.join_alone("quick", session_ms=6_000)
        await trio.sleep(6.2)

        assert await client.error(beat(member_id, group_id="quick")) == 25


async def test_a_process_that_slept_evicts_nobody(autojump_clock: MockClock) -> None:
    """Nobody could have been heard meanwhile: all deadlines move by as much."""
    async with world() as w:
        client = w.connect()
        member_id = await client.join_alone(session_ms=10_000)
        await trio.sleep(9)
        await _stall(autojump_clock, 60)
        assert "stalled" in w.event_names()
        assert await client.ask(beat(member_id)) == HeartbeatResponse(0)

        # Its session starts anew from there, and still ends.
        await trio.sleep(10.3)
        assert await client.error(beat(member_id)) == 25


async def _stall(clock: MockClock, seconds: float) -> None:
    """Let time pass without anybody having a turn, as under SIGSTOP."""
    clock.autojump_threshold = float("inf")
    clock.jump(seconds)
    clock.autojump_threshold = 0
    await trio.testing.wait_all_tasks_blocked()


async def test_what_is_readable_counts_before_what_is_expired(autojump_clock: MockClock) -> None:
    """A heartbeat that lies in the socket's buffer was in time."""
    async with world() as w:
        client = w.connect()
        member_id = await client.join_alone(session_ms=10_000)
        await trio.sleep(9.8)
        # Both become runnable in the same turn of the loop.
        client.send(beat(member_id))
        autojump_clock.jump(0.3)
        await trio.testing.wait_all_tasks_blocked()

        assert "group.member_removed" not in w.event_names()
        assert await client.ask(beat(member_id)) == HeartbeatResponse(0)


async def test_the_wall_clock_ends_no_session(autojump_clock: MockClock) -> None:
    """Only the monotonic clock measures durations."""
    async with world() as w:
        client = w.connect()
        member_id = await client.join_alone()
        for jump_ms in (3_600_000, -7_200_000):
            w.wall_ms += jump_ms
            await trio.sleep(3)
            assert await client.ask(beat(member_id)) == HeartbeatResponse(0)
            assert await client.error(commit(1, group_id="x")) == 0


async def test_the_join_phase_ends_by_itself(autojump_clock: MockClock) -> None:
    """The initial delay waits for more members, and no longer than it says."""
    async with world() as w:
        client = w.connect()
        member_id = await client.member_id()
        sent = client.send(join(member_id=member_id))
        await trio.sleep(2.9)
        assert sent not in client.answers()
        await trio.sleep(0.2)

        answer = (await client.answer(sent)).response
        assert isinstance(answer, JoinGroupResponse)
        assert (answer.error, answer.generation_id) == (0, 1)


@pytest.mark.parametrize("gap_s", [5, 3_600])
async def test_members_survive_a_restart(gap_s: float, autojump_clock: MockClock) -> None:
    """Their sessions start afresh; the generation stays."""
    disk = Disk()
    async with world(disk=disk) as w:
        member_id = await w.connect().join_alone()
    disk.kill()
    await trio.sleep(gap_s)

    async with world(disk=disk) as w:
        client = w.connect()
        await trio.sleep(9)
        assert await client.ask(beat(member_id)) == HeartbeatResponse(0)
