"""What all connections together may make the server hold."""

from typing import Any

import pytest
import trio
import trio.testing
from msgspec import structs
from trio.testing import MockClock

from coordinator.runtime.calls import Call
from protocol.connection import REQUEST_HEADER
from protocol.errors import ErrorCode
from protocol.messages import (
    ApiKey,
    GroupFetch,
    HeartbeatResponse,
    JoinGroupResponse,
    JoinProtocol,
    ListGroupsRequest,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    SyncGroupRequest,
    TopicCommit,
)
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
    async with world("max.parked.requests=8") as w:
        client = w.connect()
        waiting = [await parked(client, f"g{number}") for number in range(2)]
        refused = (await client.answer(client.send(join("late")))).response

        assert isinstance(refused, JoinGroupResponse)
        assert ErrorCode.COORDINATOR_NOT_AVAILABLE == refused.error
        assert "max.parked.requests" in (refused.message or "")
        assert 25 == await client.error(beat(group_id="late"))
        await trio.sleep(3.1)
        assert [0, 0] == [client.answers()[sent].response.error for sent in waiting]  # type: ignore[attr-defined]  # these have one
        assert 0 == w.server.sessions.held.parked
        assert ErrorCode.MEMBER_ID_REQUIRED == await client.error(join("late"))


async def test_the_parked_requests_of_a_closed_connection_do_not_count(
    autojump_clock: MockClock,
) -> None:
    """Otherwise a client that dies often enough would lock everybody out."""
    async with world("max.parked.requests=1") as w:
        gone, friend = w.connect(), w.connect()
        await parked(gone, "g")
        await turn()
        assert 1 == w.server.sessions.held.parked
        gone.transport.end()
        await turn()

        assert 0 == w.server.sessions.held.parked
        assert ErrorCode.MEMBER_ID_REQUIRED == await friend.error(join("h"))


async def test_one_connection_or_address_parks_a_part_of_all(autojump_clock: MockClock) -> None:
    """Else one that parks 20,000 JoinGroups lets nobody else join."""
    async with world("max.parked.requests=8") as w:
        one, two, three = w.connect(), w.connect(), w.connect()
        far = w.connect("192.0.2.2")
        for number, client in enumerate((one, one, two, two)):
            await parked(client, f"g{number}")
        for client in (one, three):
            assert ErrorCode.COORDINATOR_NOT_AVAILABLE == await client.error(join("late"))
        sent = await parked(far, "far")
        await trio.sleep(3.1)

        assert 0 == far.answers()[sent].response.error  # type: ignore[attr-defined]  # it has one


async def test_the_parked_requests_of_a_closed_connection_are_taken_back_a_few_at_a_time(
    autojump_clock: MockClock,
) -> None:
    """5,000 took 40 ms, in which nobody else was heard."""
    async with world() as w:
        client = w.connect()
        for number in range(100):
            await parked(client, f"g{number}")
        await turn()
        (session,) = w.server.sessions
        session.close()
        assert 30 < w.server.sessions.held.parked < 50
        await turn()

        assert 0 == w.server.sessions.held.parked
        assert not any(shard.core.has_parked for shard in w.node.shards)


async def test_parked_joins_count_by_the_byte(autojump_clock: MockClock) -> None:
    """Each may be as large as a request."""
    async with world("queued.max.parked.bytes=40000") as w:
        client = w.connect()
        large = structs.replace(
            join("large"), member_id=await client.member_id("large"), reason="r" * 12_000
        )
        client.send(large)
        await turn()
        assert 12_000 < w.server.sessions.held.parked_bytes
        assert 1 == w.metrics["requests_parked"]()
        assert ErrorCode.COORDINATOR_NOT_AVAILABLE == await client.error(join("late"))
        client.transport.end()
        await turn()
        assert 0 == w.server.sessions.held.parked_bytes


async def test_a_parked_request_with_a_long_answer_gives_back_what_it_took(
    autojump_clock: MockClock,
) -> None:
    """Were its answer given back, too, the limit would soon be far away."""
    async with world() as w:
        client = w.connect()
        member_id = await client.member_id("g")
        protocols = (JoinProtocol("range", bytes(200_000)),)
        sent = client.send(structs.replace(join("g", member_id), protocols=protocols))
        await turn()
        assert 200_000 < w.server.sessions.held.parked_bytes
        await trio.sleep(3.1)
        assert sent in client.answers()
        assert len(client.transport.received) > 200_000
        assert 0 == w.server.sessions.held.parked_bytes


async def test_what_is_ignored_of_a_parked_request_is_not_kept(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SyncGroup of a follower may have 8 MiB of assignments that nobody looks at."""
    async with world() as w:
        calls: list[Call] = []
        dispatch = w.server.dispatcher.dispatch

        def noting(call: Call, *rest: Any) -> None:
            calls.append(call)
            dispatch(call, *rest)

        monkeypatch.setattr(w.server.dispatcher, "dispatch", noting)
        clients = [w.connect(), w.connect()]
        joins = [await parked(client, "g") for client in clients]
        await trio.sleep(6.5)
        (leader,) = {c.answers()[j].response.leader for c, j in zip(clients, joins, strict=True)}  # type: ignore[attr-defined]  # a join's
        for client, joined in zip(clients, joins, strict=True):
            member_id = client.answers()[joined].response.member_id  # type: ignore[attr-defined]  # likewise
            if member_id != leader:
                shares = (MemberAssignment(member_id, bytes(200_000)),)
                client.send(SyncGroupRequest("g", 1, member_id, None, None, None, shares))
        await turn()
        sync = calls[-1].request

        assert isinstance(sync, SyncGroupRequest)
        assert () == sync.assignments
        assert 1 == w.server.sessions.held.parked
        assert 0 == w.server.sessions.held.parked_bytes


async def test_nobody_is_waited_for_longer_than_the_setting_says(autojump_clock: MockClock) -> None:
    """A rebalance timeout of 2**31 ms would hold up the others of the group for ever."""
    async with world("group.max.rebalance.timeout.ms=30000") as w:
        lazy, other = w.connect(), w.connect()
        lazy_id = await lazy.member_id()
        forever = structs.replace(join(member_id=lazy_id), rebalance_timeout_ms=2**31 - 1)
        sent = lazy.send(forever)
        await trio.sleep(3.1)
        generation = (await lazy.answer(sent)).response.generation_id  # type: ignore[attr-defined]  # a join's
        shares = (MemberAssignment(lazy_id, b""),)
        await lazy.ask(SyncGroupRequest("g", generation, lazy_id, None, None, None, shares))
        other_id = await other.member_id()
        sent = other.send(structs.replace(join(member_id=other_id), rebalance_timeout_ms=1_000))
        for _ in range(31):
            assert sent not in other.answers()
            await trio.sleep(1)
            await lazy.error(beat(lazy_id, generation))

        assert 0 == (await other.answer(sent)).response.error  # type: ignore[attr-defined]  # likewise


def half_frame(client: Client, size: int, came_bytes: int = 20) -> None:
    """Begin a frame of *size* bytes."""
    client.transport.put(REQUEST_HEADER.pack(size, ApiKey.HEARTBEAT, 0, 1) + bytes(came_bytes))


async def test_who_announces_a_large_frame_takes_no_room(autojump_clock: MockClock) -> None:
    """Nine headers of 15 bytes once held up everybody's larger requests for two minutes."""
    async with world("queued.max.request.bytes=100000") as w:
        for _ in range(9):
            half_frame(w.connect(), 100_000)
        await turn()
        friend = w.connect()
        commits = [friend.send(commit(1, *range(5_000))) for _ in range(3)]
        await turn()

        assert set(commits) <= set(friend.answers())
        assert w.server.sessions.held.bytes < 1_000


async def test_half_read_frames_over_the_limit_stop_those_of_their_address_only(
    autojump_clock: MockClock,
) -> None:
    """One of them is read to its end; heartbeats pass, or an attack would evict everybody."""
    async with world("queued.max.request.bytes=100000") as w:
        first, second, friend = w.connect(), w.connect(), w.connect()
        far = w.connect("192.0.2.2")
        half_frame(first, 90_000, 60_000)
        await turn()
        for client in (second, far):
            half_frame(client, 90_000, 20_000)
        await turn()
        for client in (second, far):
            client.transport.put(bytes(10_000))
        await turn()

        assert [10_000, 0] == [c.transport.unread_bytes for c in (second, far)]
        assert isinstance(await friend.ask(beat()), HeartbeatResponse)
        first.transport.put(bytes(10_000))
        await turn()
        assert 0 == first.transport.unread_bytes
        first.transport.end()
        await turn()
        assert 0 == second.transport.unread_bytes
        second.transport.end()
        far.transport.end()
        await turn()
        assert 0 == w.server.sessions.held.bytes


async def test_the_next_frame_over_the_limit_is_read_when_the_one_before_is_answered(
    autojump_clock: MockClock,
) -> None:
    """Each was read to its end as soon as the one before was: with a slow disk, all of them."""
    async with world("queued.max.request.bytes=100000") as w:
        clients = [w.connect() for _ in range(10)]
        w.slow_disk.hold()
        sent = [client.send(commit(2**40, *range(9_000))) for client in clients]
        await turn()
        in_flight = sum(len(session.in_flight) for session in w.server.sessions)
        assert in_flight <= 2
        w.slow_disk.let_go()
        await turn()

        assert all(n in client.answers() for client, n in zip(clients, sent, strict=True))
        assert w.server.sessions.held.bytes == 0


async def test_the_room_of_a_connection_that_timed_out_is_given_to_who_waits(
    autojump_clock: MockClock,
) -> None:
    """Nothing that is ready tells of it."""
    async with world("queued.max.request.bytes=100000") as w:
        large, late = w.connect(), w.connect()
        half_frame(large, 90_000, 60_000)
        await turn()
        half_frame(late, 50_000)
        await turn()
        late.transport.put(bytes(1_000))
        await turn()
        assert 1_000 == late.transport.unread_bytes
        await trio.sleep(13)

        assert large.transport.closed
        assert 0 == late.transport.unread_bytes


async def test_who_holds_most_of_all_unsent_answers_is_closed(autojump_clock: MockClock) -> None:
    """300 connections that didn't read took 1.5 GB with 6 KB of requests."""
    async with world("queued.max.response.bytes=300000") as w:
        for number in range(100):
            await w.connect().ask(commit(group_id=f"group-{number}" + "x" * 200))
        far, *greedy = [w.connect("192.0.2.2"), *[w.connect() for _ in range(50)]]
        for client in (far, *greedy):
            client.transport.give_room(0)
            client.send(ListGroupsRequest((), ()))
            await turn()
            assert w.server.sessions.held.unsent_bytes <= 300_000

        assert 200_000 < w.server.sessions.held.unsent_bytes
        assert not far.transport.closed
        assert 30 < sum(client.transport.closed for client in greedy)
        assert isinstance(await w.connect().ask(beat()), HeartbeatResponse)
        for client in (far, *greedy):
            client.transport.reset()
        await turn()
        assert 0 == w.server.sessions.held.unsent_bytes


async def test_long_answers_count_while_they_wait_for_the_disk(autojump_clock: MockClock) -> None:
    """A slow disk must not let the memory grow with what is asked."""
    async with world() as w:
        client = w.connect()
        commits = tuple(PartitionCommit(p, 1, -1, "m" * 4_000, None) for p in range(30))
        await client.ask(OffsetCommitRequest("g", -1, "", None, (TopicCommit("t", commits),)))
        w.slow_disk.hold()
        client.send(commit())
        client.send(OffsetFetchRequest((GroupFetch("g", None),), False))
        await turn()
        assert 80_000 < w.server.sessions.held.bytes
        w.slow_disk.let_go()
        await turn()
        assert 0 == w.server.sessions.held.bytes


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::{}"])
async def test_one_address_does_not_take_all_connections(
    address: str, autojump_clock: MockClock
) -> None:
    """10,000 silent ones of an address shut everybody else out."""
    async with world("max.connections.per.ip=3") as w:
        silent = [w.connect(address.format(n)) for n in range(4)]
        far = w.connect("192.0.2.2")
        await turn()

        assert [False, False, False, True] == [c.transport.closed for c in silent]
        assert 1 == w.environment.telemetry.connections_refused["max_connections_per_ip"]
        assert isinstance(await far.ask(beat()), HeartbeatResponse)
        silent[0].transport.end()
        await turn()
        assert isinstance(await w.connect(address.format(5)).ask(beat()), HeartbeatResponse)


async def test_a_half_close_waits_for_the_answers_of_the_disk(autojump_clock: MockClock) -> None:
    """Who sends a last commit and closes its end wants to know that it is kept."""
    async with world() as w:
        client = w.connect()
        w.slow_disk.hold()
        sent = client.send(commit())
        await turn()
        client.transport.end()
        await turn()
        assert not client.transport.closed
        w.slow_disk.let_go()
        await turn()

        assert sent in client.answers()
        assert client.transport.closed


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
        assert w.server.sessions.held.bytes >= w.server.sessions.held.max_bytes
        more = [clients[0].send(commit(2))]
        await turn()  # It waited for something to read before the queue was full.
        more.append(clients[0].send(commit(3)))
        await turn()
        assert clients[0].transport.unread_bytes > 0
        w.slow_disk.let_go()
        await turn()

        assert set(more) <= set(clients[0].answers())
        assert 0 == w.server.sessions.held.bytes
