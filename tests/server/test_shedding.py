"""What all connections together may make the server hold."""

import trio
import trio.testing
from trio.testing import MockClock

from protocol.connection import REQUEST_HEADER
from protocol.errors import ErrorCode
from protocol.messages import ApiKey, HeartbeatResponse, JoinGroupResponse
from tests.server.world import Client, beat, commit, join, world


async def turn() -> None:
    """Let everybody finish what they can do now."""
    await trio.testing.wait_all_tasks_blocked()


async def parked(client: Client, group_id: str) -> int:
    """Park a JoinGroup of a new member; return its correlation id."""
    return client.send(join(group_id, await client.member_id(group_id)))


async def test_a_join_beyond_the_parked_ones_is_refused_and_may_come_back(
    autojump_clock: MockClock,
) -> None:
    """Definite and retriable: nothing was decided, and those that wait go on waiting."""
    async with world("max.parked.requests=2") as w:
        client = w.connect()
        waiting = [await parked(client, f"g{number}") for number in range(2)]
        refused = (await client.answer(client.send(join("late")))).response

        assert isinstance(refused, JoinGroupResponse)
        assert ErrorCode.COORDINATOR_NOT_AVAILABLE == refused.error
        assert "max.parked.requests" in (refused.message or "")
        assert 25 == await client.error(beat(group_id="late"))
        await trio.sleep(3.1)
        assert [0, 0] == [client.answers()[sent].response.error for sent in waiting]  # type: ignore[attr-defined]  # these have one
        assert 0 == w.server.sessions.queue.parked
        assert ErrorCode.MEMBER_ID_REQUIRED == await client.error(join("late"))


async def test_the_parked_requests_of_a_closed_connection_do_not_count(
    autojump_clock: MockClock,
) -> None:
    """Otherwise a client that dies often enough would lock everybody out."""
    async with world("max.parked.requests=1") as w:
        gone, friend = w.connect(), w.connect()
        await parked(gone, "g")
        await turn()
        assert 1 == w.server.sessions.queue.parked
        gone.transport.end()
        await turn()

        assert 0 == w.server.sessions.queue.parked
        assert ErrorCode.MEMBER_ID_REQUIRED == await friend.error(join("h"))


def half_frame(client: Client, size: int) -> None:
    """Begin a frame of *size* bytes."""
    client.transport.put(REQUEST_HEADER.pack(size, ApiKey.HEARTBEAT, 0, 1) + bytes(20))


async def test_half_read_frames_over_the_limit_stop_further_large_ones_only(
    autojump_clock: MockClock,
) -> None:
    """A begun frame is read to its end; heartbeats pass, or an attack would evict everybody."""
    async with world("queued.max.request.bytes=100000") as w:
        large, late, friend = w.connect(), w.connect(), w.connect()
        half_frame(large, 100_000)
        await turn()
        assert w.server.sessions.queue.bytes >= w.server.sessions.queue.max_bytes
        half_frame(late, 50_000)
        await turn()
        late.transport.put(bytes(1_000))
        await turn()

        assert 1_000 == late.transport.unread_bytes
        assert isinstance(await friend.ask(beat()), HeartbeatResponse)
        large.transport.put(bytes(1_000))
        await turn()
        assert 0 == large.transport.unread_bytes
        large.transport.end()
        await turn()
        assert 0 == late.transport.unread_bytes
        assert 50_000 == w.server.sessions.queue.bytes
        late.transport.end()
        await turn()
        assert 0 == w.server.sessions.queue.bytes


async def test_the_room_of_a_connection_that_timed_out_is_given_to_who_waits(
    autojump_clock: MockClock,
) -> None:
    """Nothing that is ready tells of it."""
    async with world("queued.max.request.bytes=100000") as w:
        large, late = w.connect(), w.connect()
        half_frame(large, 100_000)
        await turn()
        half_frame(late, 50_000)
        await turn()
        late.transport.put(bytes(1_000))
        await turn()
        assert 1_000 == late.transport.unread_bytes
        await trio.sleep(13)

        assert large.transport.closed
        assert 0 == late.transport.unread_bytes


async def test_unanswered_requests_count_until_they_are_answered(
    autojump_clock: MockClock,
) -> None:
    """A slow disk must not let the memory grow with the number of connections."""
    async with world("queued.max.request.bytes=2000") as w:
        clients = [w.connect() for _ in range(3)]
        w.slow_disk.hold()
        for client in clients:
            client.send(commit(1, *range(200), group_id="g"))
        await turn()
        assert w.server.sessions.queue.bytes >= w.server.sessions.queue.max_bytes
        more = [clients[0].send(commit(2))]
        await turn()  # It waited for something to read before the queue was full.
        more.append(clients[0].send(commit(3)))
        await turn()
        assert clients[0].transport.unread_bytes > 0
        w.slow_disk.let_go()
        await turn()

        assert set(more) <= set(clients[0].answers())
        assert 0 == w.server.sessions.queue.bytes
