"""Offsets that are stored first and committed later, asked or not."""

import pytest
import trio
from trio.testing import MockClock

from client import (
    CommitRefused,
    CoordinatorUnavailable,
    OffsetAndMetadata,
    Rebalanced,
    TopicPartition,
)
from protocol import messages as m
from tests.client.conftest import World
from tests.fakes.scripted_server import Answer, Hold, group_requests

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def committed(world: World) -> list[list[tuple[int, int]]]:
    """Return (partition, offset) of each commit that came."""
    return [
        [(entry.partition, entry.offset) for topic in request.topics for entry in topic.partitions]
        for request in world.server.requests(m.OffsetCommitRequest)
        if isinstance(request, m.OffsetCommitRequest)
    ]


async def test_a_commit_without_offsets_commits_what_was_stored_once(
    autojump_clock: MockClock, world: World
) -> None:
    """The newest word per partition; and nothing needs no request."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        await member.commit()
        member.store({T0: 5, T1: 1})
        member.store({T0: OffsetAndMetadata(6, "x")})
        await member.commit()
        await member.commit()

        assert committed(world) == [[(0, 6), (1, 1)]]
        assert (await member.fetch())[T0] == OffsetAndMetadata(6, "x")

    assert group_requests(world.server)[-1] == "LeaveGroup"
    assert len(committed(world)) == 1


async def test_without_auto_commit_nothing_is_committed_unasked(
    autojump_clock: MockClock, world: World
) -> None:
    """Some callers decide for themselves, up to the end."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        member.store({T0: 5})
        await trio.sleep(100)
        await member.request_rejoin("test")
        await member.assignment()
        await member.commit()  # What was stored before was given up with its partition.

    assert committed(world) == []


async def test_auto_commit_follows_what_was_stored(autojump_clock: MockClock, world: World) -> None:
    """Every interval, and not what was only read: committed is never ahead of stored."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, auto_commit_interval_ms=5_000) as member,
    ):
        await member.assignment()
        await trio.sleep(7)

        assert committed(world) == []

        member.store({T0: 1})
        await trio.sleep(5)
        await trio.sleep(5)

        assert committed(world) == [[(0, 1)]]


async def test_auto_commit_commits_before_partitions_are_given_up_and_at_the_end(
    autojump_clock: MockClock, world: World
) -> None:
    """After the callback, which may have stored the end of a batch; before the join."""

    def on_revoked(_: object) -> None:
        member.store({T1: 8})

    async with (
        world.connect() as client,
        client.join(
            "g", ["t"], {"t": 2}, auto_commit_interval_ms=60_000, on_revoked=on_revoked
        ) as member,
    ):
        await member.assignment()
        member.store({T0: 5})
        await member.request_rejoin("test")
        await member.assignment()
        member.store({T0: 6})

    assert committed(world) == [[(0, 5), (1, 8)], [(0, 6), (1, 8)]]
    assert group_requests(world.server)[4:6] == ["OffsetCommit", "JoinGroup"]
    assert group_requests(world.server)[-2:] == ["OffsetCommit", "LeaveGroup"]


async def test_storing_needs_the_partition(autojump_clock: MockClock, world: World) -> None:
    """A worker that is late must not bring a commit of somebody else's partition about."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 1}, auto_commit_interval_ms=1_000) as member,
    ):
        with pytest.raises(Rebalanced):
            member.store({T0: 1})
        await member.assignment()
        with pytest.raises(Rebalanced, match="t-1"):
            member.store({T0: 1, T1: 1})
        with pytest.raises(ValueError, match="no offset"):
            member.store({T0: -1})
        await trio.sleep(5)

    assert committed(world) == []


async def test_a_worker_that_starts_in_the_callback_can_store_at_once(
    autojump_clock: MockClock, world: World
) -> None:
    """It may have processed something before the callback is over."""

    async def on_assigned(_: object) -> None:
        member.store({T0: 1})
        await member.commit()
        member.store({T0: 2})
        await trio.sleep(8)

    async with (
        world.connect() as client,
        client.join(
            "g", ["t"], {"t": 2}, auto_commit_interval_ms=5_000, on_assigned=on_assigned
        ) as member,
    ):
        await member.assignment()

    assert committed(world) == [[(0, 1)], [(0, 2)]]


async def test_what_was_stored_in_a_callback_that_was_cut_off_does_not_outlive_the_loss(
    autojump_clock: MockClock, world: World
) -> None:
    """Others have read on since; committing it when the partition comes back would go back."""
    calls: list[object] = []

    async def on_assigned(partitions: object) -> None:
        calls.append(partitions)
        if len(calls) == 1:
            member.store({T0: 1})
            await trio.sleep_forever()

    async with (
        world.connect() as client,
        client.join(
            "g", ["t"], {"t": 2}, auto_commit_interval_ms=60_000, on_assigned=on_assigned
        ) as member,
    ):
        with trio.move_on_after(1):
            await member.assignment()
        world.server.script(m.HeartbeatRequest, 25)
        await member.wait_rebalance_needed()
        await member.assignment()

        assert len(calls) == 2

    assert committed(world) == []


async def test_a_commit_by_hand_is_the_last_word(autojump_clock: MockClock, world: World) -> None:
    """What was stored before must not come after it and go back."""
    async with (
        world.connect() as client,
        client.join("g", ["t"], {"t": 2}, auto_commit_interval_ms=5_000) as member,
    ):
        await member.assignment()
        member.store({T0: 5, T1: 5})
        await member.commit({T0: 9})
        await trio.sleep(20)

    assert committed(world) == [[(0, 9)], [(1, 5)]]


async def test_what_is_stored_during_a_commit_is_committed_next(
    autojump_clock: MockClock, world: World
) -> None:
    """The answer is about the older offset."""
    held = trio.Event()
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        member.store({T0: 5})
        world.server.script(m.OffsetCommitRequest, Hold(held))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(member.commit)
            await trio.testing.wait_all_tasks_blocked()
            member.store({T0: 6})
            held.set()
        await member.commit()

    assert committed(world) == [[(0, 5)], [(0, 6)]]


async def test_auto_commit_goes_on_after_an_outage(
    autojump_clock: MockClock, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It tells the log once for each outage, and keeps what was stored."""

    def told() -> list[str]:
        return [r.getMessage() for r in caplog.records if r.name == "client.commits"]

    async with (
        world.connect(request_timeout_ms=2_000) as client,
        client.join("g", ["t"], {"t": 2}, auto_commit_interval_ms=5_000) as member,
    ):
        await member.assignment()
        member.store({T0: 5})
        for outage in range(1, 3):
            world.server.script(m.OffsetCommitRequest, *[15] * 500)
            await trio.sleep(100)

            assert [outage, True] == [len(told()), "auto-commit in group 'g'" in told()[-1]]

            world.server.forget_script()
            await trio.sleep(10)

            assert (await member.fetch())[T0].offset == 4 + outage

            member.store({T0: 5 + outage})


@pytest.mark.parametrize("full", [1004, 1005])
async def test_an_offset_that_is_refused_for_good_is_not_repeated(
    full: int, autojump_clock: MockClock, world: World
) -> None:
    """Such as one with too much metadata; a full disk or quota may have room later."""
    results = tuple(m.PartitionResult(number, code) for number, code in ((0, 12), (1, full)))
    refused = Answer(m.OffsetCommitResponse(0, (m.TopicResult("t", results),)))
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        member.store({T0: 5, T1: 5})
        world.server.script(m.OffsetCommitRequest, refused)
        with pytest.raises(CommitRefused):
            await member.commit()
        await member.commit()

    assert committed(world)[1:] == [[(1, 5)]]


async def test_an_outage_holds_the_partitions_until_their_offsets_are_committed(
    autojump_clock: MockClock, world: World
) -> None:
    """Giving them up uncommitted would have the next owner do it all again; calling again helps."""
    told: list[object] = []
    async with (
        world.connect() as client,
        client.join(
            "g",
            ["t"],
            {"t": 2},
            auto_commit_interval_ms=60_000,
            on_revoked=told.append,
            request_timeout_ms=2_000,
        ) as member,
    ):
        await member.assignment()
        member.store({T0: 5})
        await member.request_rejoin("test")
        world.server.script(m.OffsetCommitRequest, *[15] * 30)
        with pytest.raises(CoordinatorUnavailable):
            await member.assignment()

        assert not member.lost

        world.server.forget_script()

        assert (await member.assignment()).generation == 2
        assert told == [(T0, T1)]

    assert (0, 5) in committed(world)[-1]


async def test_a_coordinator_that_is_away_does_not_hold_up_the_end(
    autojump_clock: MockClock, world: World
) -> None:
    """Leaving tries to commit for as long as leaving may take, and no longer."""
    async with world.connect() as client:
        async with client.join("g", ["t"], {"t": 2}, auto_commit_interval_ms=60_000) as member:
            await member.assignment()
            member.store({T0: 5})
            world.server.script(m.OffsetCommitRequest, *[15] * 30)
            began_s = trio.current_time()

        assert trio.current_time() - began_s <= 1


async def test_expected_offsets_need_offsets(autojump_clock: MockClock, world: World) -> None:
    """What was stored has no expectation that the caller could name."""
    async with world.connect() as client, client.join("g", ["t"], {"t": 2}) as member:
        await member.assignment()
        with pytest.raises(ValueError, match="expected"):
            await member.commit(expected={T0: 1})
