"""What one client asks for, and what a stall costs, is nobody else's trouble."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from coordinator.runtime.calls import Call
from protocol.errors import ErrorCode
from protocol.messages import (
    BareError,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupFetch,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeavingMember,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
    Request,
    TopicCommit,
    TopicPartitions,
)
from tests.server.world import beat, commit, join, world

EVERYTHING = GroupFetch("g", None)
ONE_OFTEN = GroupFetch("g", (TopicPartitions("t", (0,) * 10_000),))


def large_commit() -> OffsetCommitRequest:
    """Return a commit of 100 offsets with the longest metadata."""
    commits = tuple(PartitionCommit(p, 1, -1, "m" * 4096, None) for p in range(100))
    return OffsetCommitRequest("g", -1, "", None, (TopicCommit("t", commits),))


@pytest.mark.parametrize(
    "request_",
    [
        OffsetFetchRequest((EVERYTHING,) * 10_000, False),
        OffsetFetchRequest((ONE_OFTEN,) * 9, False),
        DescribeGroupsRequest(("g",) * 10_000),
    ],
    ids=["one group again and again", "one partition again and again", "described"],
)
async def test_an_answer_stops_growing_at_its_limit(
    request_: Request, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """12 KB that ask for gigabytes must not get to the point where they are in memory."""
    async with world("response.max.bytes=1000000") as w:
        client = w.connect()
        member_id = await client.join_alone()
        core = w.node.shard_of("g").core
        if type(request_) is OffsetFetchRequest:
            leaving = (LeavingMember(member_id, None, None),)
            await client.ask(LeaveGroupRequest("g", leaving))
            await client.ask(large_commit())
        made: list[str] = []

        def counted(name: str) -> Callable[[Any], Any]:
            look = getattr(core, name)

            def count(*asked: Any) -> Any:
                made.append(name)
                return look(*asked)

            return count

        for name in ("fetch_in_slices", "describe_group"):
            monkeypatch.setattr(core, name, counted(name))

        assert BareError(ErrorCode.RESPONSE_TOO_LARGE) == await client.ask(request_)

        assert len(made) < 8_000
        assert HeartbeatResponse is type(await client.ask(beat(member_id)))


async def test_a_long_fetch_is_made_in_slices(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """A request of 1 MiB asks for a million offsets, which took 0.2 s at once."""
    async with world() as w:
        client = w.connect()
        await client.ask(commit(7))
        monkeypatch.setattr(w.node.shard_of("g").core, "fetch_offsets", None)
        often = GroupFetch("g", (TopicPartitions("t", (0,) * 1_000),) * 10)
        many = GroupFetch("g", tuple(TopicPartitions(f"t{n}", (0,)) for n in range(1_000)))
        for fetch, expected in ((often, {7}), (many, {-1})):
            found: Any = await client.ask(OffsetFetchRequest((fetch,), False))
            topics = found.groups[0].topics

            assert [one.topic for one in fetch.topics or ()] == [one.topic for one in topics]
            assert {one.offset for topic in topics for one in topic.partitions} == expected


async def test_an_answer_within_the_limit_is_whole(autojump_clock: MockClock) -> None:
    """The budget must not refuse what fits."""
    async with world("response.max.bytes=1000000") as w:
        client = w.connect()
        await client.ask(large_commit())

        fetched = await client.ask(OffsetFetchRequest((EVERYTHING,) * 2, False))
        described = await client.ask(DescribeGroupsRequest(("g", "h")))

        assert isinstance(fetched, OffsetFetchResponse)
        assert [100, 100] == [len(group.topics[0].partitions) for group in fetched.groups]
        assert isinstance(described, DescribeGroupsResponse)
        assert ["g", "h"] == [group.group_id for group in described.groups]


async def test_a_stalled_process_closes_nobody(mock_clock: MockClock) -> None:
    """While we stood still nobody could have been heard."""
    async with world("connections.max.idle.ms=2000") as w:
        client = w.connect()
        await client.ask(commit())
        for _ in range(3):
            mock_clock.jump(60)
            await trio.testing.wait_all_tasks_blocked()
        assert not client.transport.closed

        for _ in range(4):
            mock_clock.jump(1.0)
            await trio.testing.wait_all_tasks_blocked()

        assert client.transport.closed


async def test_idle_time_begins_with_the_last_answer(autojump_clock: MockClock) -> None:
    """A JoinGroup may be parked for longer than a connection may be idle."""
    async with world("connections.max.idle.ms=2000", "group.initial.rebalance.delay.ms=9000") as w:
        client = w.connect()
        member_id = await client.member_id()
        sent = client.send(join(member_id=member_id))
        await trio.sleep(9.1)
        assert (await client.answer(sent)).response is not None

        await trio.sleep(0.9)
        assert not client.transport.closed

        await trio.sleep(3)
        assert client.transport.closed


async def test_a_stop_waits_for_answers_that_are_being_sent(autojump_clock: MockClock) -> None:
    """A commit that is on disk should be known to be."""
    async with world() as w:
        client = w.connect()
        client.transport.give_room(3)
        sent = client.send(commit())
        await trio.testing.wait_all_tasks_blocked()
        stopped = trio.Event()

        async def stop() -> None:
            await w.node.drain()
            await w.server.wait_sent()
            stopped.set()

        w.nursery.start_soon(stop)
        await trio.sleep(1)
        assert not stopped.is_set()

        client.transport.give_room(None)
        await trio.sleep(1)
        assert stopped.is_set()
        assert (await client.answer(sent)).response is not None


async def test_who_pipelines_much_does_not_hold_up_the_others(autojump_clock: MockClock) -> None:
    """One read holds thousands of small requests; the others have their turn after a few."""
    async with world() as w:
        greedy, friend = w.connect(), w.connect()
        await trio.testing.wait_all_tasks_blocked()
        frames = [greedy.frame(beat())[1] for _ in range(1_000)]
        greedy.transport.put(b"".join(frames))
        sent = friend.send(beat())
        while sent not in friend.answers():
            await trio.lowlevel.checkpoint()

        assert len(greedy.answers()) <= 128
        await trio.testing.wait_all_tasks_blocked()
        assert 1_000 == len(greedy.answers())


async def test_a_heartbeat_at_the_very_end_of_its_session_counts(autojump_clock: MockClock) -> None:
    """Whatever has arrived is handled before anybody's time is up, in whatever order tasks run."""
    async with world() as w:
        client = w.connect()
        member_id = await client.join_alone()
        shard = w.node.shard_of("g")
        for _ in range(25):
            deadline_ms = shard.next_deadline_ms()
            assert deadline_ms is not None
            await trio.sleep_until((deadline_ms + 0.5) / 1000)  # When the timers wake.

            assert HeartbeatResponse(0) == await client.ask(beat(member_id))


async def test_a_request_at_the_very_end_of_the_idle_time_counts(autojump_clock: MockClock) -> None:
    """The same for the connection."""
    async with world("connections.max.idle.ms=2000") as w:
        client = w.connect()
        await client.ask(commit())
        for _ in range(25):
            for _ in range(2):
                await trio.sleep(1.0)  # In step with the sweeper, which began at the same time.
            await client.ask(commit())

            assert not client.transport.closed


async def test_an_answer_that_meets_the_end_of_the_stream_is_sent(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush may end, and the client half-close, in the same round."""
    async with world() as w:
        calls: list[Call] = []
        monkeypatch.setattr(w.server.dispatcher, "dispatch", lambda call, *_: calls.append(call))
        client = w.connect()
        sent = client.send(beat())
        await trio.testing.wait_all_tasks_blocked()
        (call,) = calls
        w.poller.call_soon(lambda: call.resolve(HeartbeatResponse(0, None), -1))
        client.transport.end()
        await trio.testing.wait_all_tasks_blocked()

        assert client.transport.closed
        assert sent in client.answers()
