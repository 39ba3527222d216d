"""What is counted of requests, answers and connections, and for how long they took."""

import errno
from collections import Counter
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs
from trio.testing import MockClock

from coordinator.group.shard import GroupShard
from protocol.connection import REQUEST_HEADER
from protocol.errors import ErrorCode
from protocol.histogram import TIME_BOUNDS_S, Histogram
from protocol.messages import (
    ApiKey,
    GroupFetch,
    ListGroupsRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    TopicCommit,
    TopicPartitions,
)
from tests.protocol.frames import frame_of
from tests.server.world import Client, beat, commit, join, world

COMMIT, HEARTBEAT, JOIN = ApiKey.OFFSET_COMMIT, ApiKey.HEARTBEAT, ApiKey.JOIN_GROUP
UNKNOWN_API = REQUEST_HEADER.pack(8, 999, 0, 1)


async def turn() -> None:
    """Let everybody finish what they can do now."""
    await trio.testing.wait_all_tasks_blocked()


def counted(histogram: Histogram) -> dict[float, int]:
    """Return how many values are in which bucket, by its upper bound."""
    bounds = (*histogram.bounds, float("inf"))
    return {bound: times for bound, times in zip(bounds, histogram.counts, strict=True) if times}


async def test_a_parked_join_counts_the_time_for_which_it_waited(
    autojump_clock: MockClock,
) -> None:
    """Who looks why consumers don't start must find it here."""
    async with world("group.initial.rebalance.delay.ms=3000") as w:
        await w.connect().join_alone()
        telemetry = w.environment.telemetry

        assert counted(telemetry.requests[JOIN]) == {0.0005: 1, 5.0: 1}
        assert telemetry.requests[JOIN].total == pytest.approx(3, abs=0.01)
        assert telemetry.errors == {(JOIN, ErrorCode.MEMBER_ID_REQUIRED): 1}


async def test_a_commit_counts_the_time_of_the_disk(autojump_clock: MockClock) -> None:
    """The disk, and the wait for its thread, are nearly all of it, side by side."""
    async with world() as w:
        telemetry = w.environment.telemetry
        client = w.connect()
        w.slow_disk.hold()
        began_s = trio.current_time()
        client.send(commit(1))
        await trio.sleep(0.2)
        assert telemetry.flush_began_s() == pytest.approx(began_s)
        assert COMMIT not in telemetry.requests
        client.send(commit(2))
        await trio.sleep(0.15)
        w.journal.directory.last_sync_s = 0.004
        w.slow_disk.let_go()
        await turn()

        assert counted(telemetry.requests[COMMIT]) == {0.25: 1, 0.5: 1}
        assert telemetry.requests[COMMIT].total == pytest.approx(0.5)
        assert counted(telemetry.flush_s) == {0.0005: 1, 0.5: 1}
        assert counted(telemetry.fsync_s) == {0.005: 2}
        # The second one waited in the first one's place, and began at once.
        assert counted(telemetry.flush_wait_s) == {0.0005: 1, 0.5: 1}
        assert telemetry.flush_wait_s.total == pytest.approx(0.35)
        assert counted(telemetry.flush_bytes) == {512: 2}
        assert telemetry.flush_began_s() is None


async def test_what_waits_for_its_turn_counts_from_the_read_that_brought_it(
    autojump_clock: MockClock,
) -> None:
    """Time in the server's memory is the server's, though the limits kept it from deciding."""
    async with world("max.in.flight.requests=1") as w:
        client = w.connect()
        w.slow_disk.hold()
        client.send(commit(1))
        client.send(beat())
        await trio.sleep(2)
        w.slow_disk.let_go()
        await turn()

        assert counted(w.environment.telemetry.requests[HEARTBEAT]) == {2.5: 1}


async def test_errors_of_parts_count_as_errors_of_the_answer(autojump_clock: MockClock) -> None:
    """A commit that fails for one partition has no code of the whole, and is in no log."""
    async with world() as w:
        telemetry = w.environment.telemetry
        client = w.connect()
        good, bad = PartitionCommit(0, 5, -1, "", None), PartitionCommit(1, 5, -1, "", 4)
        await client.ask(OffsetCommitRequest("g", -1, "", None, (TopicCommit("t", (good, bad)),)))
        await client.ask(commit(1, 0, 1))

        assert sum(telemetry.requests[COMMIT].counts) == 2
        assert telemetry.errors == {(COMMIT, ErrorCode.OFFSET_CONFLICT): 1}


@pytest.mark.parametrize("others", [0, 1, 150])
@pytest.mark.parametrize(
    ("refused", "error"),
    [("", ErrorCode.INVALID_GROUP_ID), ("elsewhere", ErrorCode.NOT_COORDINATOR)],
)
async def test_a_group_that_is_refused_in_a_fetch_counts_whatever_others_it_names(
    refused: str, error: ErrorCode, others: int, autojump_clock: MockClock
) -> None:
    """The others are packed by then, and have no errors; it may come first or last."""
    async with world() as w:
        client = w.connect()
        gone = w.node.shard_of("elsewhere")
        names = [f"g{n}" for n in range(1_000)]
        good = [one for one in names if w.node.shard_of(one) is not gone][:others]
        for group_id in good:
            await client.ask(commit(group_id=group_id))
        w.node.unload(gone.partition)
        for group_ids in ([refused, *good], [*good, refused]):
            for topics in (None, (TopicPartitions("t", (0,)),)):
                fetches = tuple(GroupFetch(group_id, topics) for group_id in group_ids)
                await client.ask(OffsetFetchRequest(fetches, False))
        telemetry = w.environment.telemetry

        assert telemetry.errors == {(ApiKey.OFFSET_FETCH, error): 4}
        assert sum(telemetry.requests[ApiKey.OFFSET_FETCH].counts) == 4


async def test_an_answer_that_is_too_large_counts_as_that(autojump_clock: MockClock) -> None:
    """What was decided is a success; what is sent in its place is none."""
    async with world("response.max.bytes=65536") as w:
        client = w.connect()
        for number in range(400):
            await client.ask(commit(group_id=f"group-{number}" + "x" * 200))
        await client.ask(ListGroupsRequest((), ()))

        error = (ApiKey.LIST_GROUPS, ErrorCode.RESPONSE_TOO_LARGE)
        assert w.environment.telemetry.errors == {error: 1}


async def test_pipelined_requests_are_counted_one_by_one(autojump_clock: MockClock) -> None:
    """They are timed together, and with different errors they are different series."""
    async with world() as w:
        client = w.connect()
        for _ in range(3):
            client.send(beat(group_id="none"))
            client.send(commit(1))
        await turn()
        telemetry = w.environment.telemetry

        assert sum(telemetry.requests[HEARTBEAT].counts) == 3
        assert sum(telemetry.requests[COMMIT].counts) == 3
        assert telemetry.errors == {(HEARTBEAT, ErrorCode.UNKNOWN_MEMBER_ID): 3}


async def test_an_answer_that_nobody_takes_is_not_counted(autojump_clock: MockClock) -> None:
    """Its client is gone; to count it here and with the next one's would be twice."""
    async with world() as w:
        telemetry = w.environment.telemetry
        client, friend = w.connect(), w.connect()
        w.slow_disk.hold()
        client.send(commit(1))
        await turn()
        client.transport.reset()
        await turn()
        w.slow_disk.let_go()
        await turn()
        assert COMMIT not in telemetry.requests
        await friend.ask(commit(2))

        assert sum(telemetry.requests[COMMIT].counts) == 1
        assert +Counter(telemetry.connections_closed) == {"peer": 1}


async def test_a_disk_that_is_given_up_is_counted_once(autojump_clock: MockClock) -> None:
    """It is answered with 1000 first, and the flush finds nobody who waits."""
    async with world("offsets.commit.timeout.ms=1000") as w:
        telemetry = w.environment.telemetry
        client = w.connect()
        w.slow_disk.hold()
        client.send(commit(1))
        await trio.sleep(2)
        w.slow_disk.let_go()
        await turn()

        assert telemetry.errors == {(COMMIT, ErrorCode.OUTCOME_UNKNOWN): 1}
        assert sum(telemetry.requests[COMMIT].counts) == 1


async def test_what_is_refused_is_counted_also_where_its_line_is_kept_back(
    autojump_clock: MockClock,
) -> None:
    """One line a second is enough for the log, and says nothing about how much there is of it."""
    async with world("max.parked.requests=1") as w:
        telemetry = w.environment.telemetry
        stranger, client = w.connect(), w.connect()
        with capture_logs() as logs:
            for _ in range(3):
                stranger.transport.put(UNKNOWN_API)
            await turn()
            first = await client.member_id("a")
            second = await client.member_id("b")
            client.send(join("a", first))
            client.send(join("b", second))
            await turn()
            stranger.transport.put(frame_of(HEARTBEAT, 0, b"\xc1", 50))
            await turn()

        assert len(logs) == 1
        assert +Counter(telemetry.refused) == {"unsupported": 3, "parked_limit": 1, "malformed": 1}
        assert +Counter(telemetry.connections_closed) == {"malformed": 1}


async def test_a_bug_of_ours_is_counted(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has its number; an alert must not have to read the log."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(GroupShard, "handle", broken)
    async with world() as w:
        telemetry = w.environment.telemetry
        with capture_logs():
            await w.connect().ask(beat())

        assert +Counter(telemetry.refused) == {"failed": 1}
        assert telemetry.errors == {(HEARTBEAT, ErrorCode.UNKNOWN_SERVER_ERROR): 1}
        assert +Counter(telemetry.connections_closed) == {"failed": 1}


def _says_nothing(client: Client) -> None:
    del client


def _stops_inside(client: Client) -> None:
    client.transport.put(REQUEST_HEADER.pack(100, HEARTBEAT, 0, 1))


def _takes_nothing(client: Client) -> None:
    client.transport.give_room(3)
    client.send(beat())


def _sends_too_much(client: Client) -> None:
    client.transport.put(REQUEST_HEADER.pack(2**30, HEARTBEAT, 0, 1))


def _leaves(client: Client) -> None:
    client.transport.end()


@pytest.mark.parametrize(
    ("what", "why"),
    [
        (_says_nothing, "idle"),
        (_stops_inside, "unfinished_request"),
        (_takes_nothing, "slow_reader"),
        (_sends_too_much, "malformed"),
        (_leaves, "peer"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_connections_are_counted_by_why_they_end(
    what: Any, why: str, autojump_clock: MockClock
) -> None:
    """Who alerts on slow readers must not be woken by idle ones."""
    async with world() as w:
        telemetry = w.environment.telemetry
        client = w.connect()
        await turn()
        assert telemetry.connections_accepted == 1
        what(client)
        await trio.sleep(15)

        assert +Counter(telemetry.connections_closed) == {why: 1}
        assert +Counter(telemetry.refused) == ({"too_large": 1} if what is _sends_too_much else {})


async def test_connections_at_the_end_of_the_daemon_are_counted(
    autojump_clock: MockClock,
) -> None:
    """Otherwise a rolling restart looks like clients that leave."""
    async with world() as w:
        w.connect()
        await turn()

    assert +Counter(w.environment.telemetry.connections_closed) == {"shutdown": 1}


async def test_connections_that_are_not_taken_are_counted(autojump_clock: MockClock) -> None:
    """Each client logs an error of its own; here they are one number."""
    async with world(max_connections=1) as w:
        telemetry = w.environment.telemetry
        for _ in range(3):
            w.connect()
        w.listener.arrive(OSError(errno.EMFILE, "too many open files"))
        w.listener.arrive(OSError(errno.ECONNRESET, "reset"))
        await trio.sleep(0.05)

        assert telemetry.connections_accepted == 1
        assert +Counter(telemetry.connections_refused) == {"max_connections": 2, "descriptors": 1}


async def test_bytes_are_counted_both_ways(autojump_clock: MockClock) -> None:
    """What a network card says, by the one process that matters."""
    async with world() as w:
        client = w.connect()
        _, frame = client.frame(beat())
        client.transport.put(frame)
        await turn()
        telemetry = w.environment.telemetry

        assert telemetry.received_bytes == len(frame)
        assert telemetry.sent_bytes == len(client.transport.received)


async def test_a_rebalance_of_the_real_core_is_counted(autojump_clock: MockClock) -> None:
    """The events are the core's, and nothing but this test ties the two together."""
    async with world("group.initial.rebalance.delay.ms=3000") as w:
        telemetry = w.environment.telemetry
        client = w.connect()
        await client.join_alone()
        await trio.sleep(60)

        assert telemetry.rebalances == {
            ("member joined", "stable"): 1,
            ("session expired", "empty"): 1,
        }
        assert counted(telemetry.rebalance_s["member joined"]) == {5.0: 1}
        assert counted(telemetry.phase_s["join"]) == {5.0: 1}
        assert +Counter(telemetry.members_removed) == {"session expired": 1}


async def test_bounds_hold_what_they_say(autojump_clock: MockClock) -> None:
    """docs/metrics.md names them, and alerts are written for them."""
    assert [1000 * bound for bound in TIME_BOUNDS_S[:10]] == [
        0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500,
    ]  # fmt: skip
    assert TIME_BOUNDS_S[10:] == (1, 2.5, 5, 10)
