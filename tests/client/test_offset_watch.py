"""Following committed offsets with ``async for``, through outages. The clock is virtual."""

import logging

import pytest
import trio
from trio.testing import MockClock

from client import FatalError, OffsetEvent
from client.offset_watch import OffsetWatch
from protocol import messages as m
from tests.client.conftest import World
from tests.fakes.log_server import LogServer
from tests.fakes.offsets_log import Key, OffsetsLog
from tests.fakes.scripted_server import Answer, Network


@pytest.fixture
def log(world: World) -> OffsetsLog:
    """Return the log of the only node."""
    log = OffsetsLog()
    serve(world, log)
    return log


def serve(world: World, log: OffsetsLog) -> LogServer:
    """Have a node with *log* answer from now on."""
    server = LogServer(log)
    network: Network = world.network
    network.servers[server.address] = server
    return server


async def next_kinds(watch: OffsetWatch) -> list[str]:
    """Return what comes next."""
    return [event.kind for event in await watch.page()]


async def test_each_change_comes_once_with_where_it_is(
    autojump_clock: MockClock, world: World, log: OffsetsLog
) -> None:
    """What is there first, and then what happens, for as long as somebody asks."""
    log.commit("g", "t", 0, 1, "m")
    found: list[OffsetEvent] = []
    async with world.connect() as client:
        async for event in client.watch_offsets(["g"], from_beginning=True):
            found.append(event)
            match len(found):
                case 2:
                    log.commit("h", "t", 0, 1)
                    log.remove("g", "t", 0)
                    log.delete("g")
                case 4:
                    break

    assert found == [
        OffsetEvent(None, "scan", None, None, None, None, None, None, 0, 1),
        OffsetEvent(1_000, "found", "g", "t", 0, 1, -1, "m", 0, 1),
        OffsetEvent(1_002, "removed", "g", "t", 0, None, None, None, 0, 2),
        OffsetEvent(1_003, "group deleted", "g", None, None, None, None, None, 0, 3),
    ]


async def test_waiting_may_be_cancelled_at_any_moment_and_loses_nothing(
    autojump_clock: MockClock, world: World, log: OffsetsLog
) -> None:
    """A timeout around it is the way to look at something else meanwhile."""
    log.page_size = 2
    known: dict[Key, int] = {}
    async with world.connect() as client:
        watch = client.watch_offsets(from_beginning=True)
        for number in range(30):
            log.commit("g", "t", number, number)
            with trio.move_on_after(0.001 * number):
                await watch.page()
            with trio.CancelScope() as scope:
                scope.cancel()
                await watch.page()
        log.commit("g", "t", 30, 30)
        log.floor = log.end  # It has to be scanned, all of it.
        with trio.move_on_after(60):
            async for event in watch:
                if event.kind == "found":
                    assert event.topic is not None
                    assert event.partition is not None
                    assert event.offset is not None
                    known["g", event.topic, event.partition] = event.offset

    assert known == {key: one.offset for key, one in log.state.items()}


async def test_it_outlives_an_outage_of_hours_and_goes_on_where_it_was(
    autojump_clock: MockClock,
    world: World,
    log: OffsetsLog,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Longer than any call tries, with a line when it begins and one when it ends."""
    caplog.set_level(logging.INFO, "client")
    server = serve(world, log)
    async with world.connect() as client, trio.open_nursery() as nursery:
        watch = client.watch_offsets()

        async def come_back() -> None:
            await trio.sleep(2)
            log.commit("g", "t", 0, 1)
            await trio.sleep(2)
            await server.go_away()
            await trio.sleep(7_200)
            log.commit("g", "t", 0, 2)
            server.unreachable = False

        nursery.start_soon(come_back)

        assert [1] == [event.offset for event in await watch.page()]
        assert [2] == [event.offset for event in await watch.page()]

    away, back = [record.getMessage() for record in caplog.records]
    assert away.endswith("trying again")
    assert "answers again, after 720" in back


async def test_what_the_log_no_longer_has_is_scanned_anew_and_logged(
    autojump_clock: MockClock,
    world: World,
    log: OffsetsLog,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After a compaction, and where another cluster's coordinator answers."""
    server = serve(world, log)
    async with world.connect() as client:
        watch = client.watch_offsets(from_beginning=True)
        assert await next_kinds(watch) == ["scan"]
        log.commit("g", "t", 0, 1)
        log.floor = log.end
        assert await next_kinds(watch) == ["scan", "found"]
        await server.go_away()
        other = OffsetsLog()
        other.commit("h", "t", 0, 1)
        serve(world, other).cluster_id = "other"
        assert await next_kinds(watch) == ["scan", "found"]

    gone, other_cluster = [r.getMessage() for r in caplog.records if r.name == "client.offsets"]
    assert gone.startswith("The log of offsets partition 0 no longer has the changes from 0 on")
    assert other_cluster.startswith("Another coordinator answers, of the cluster other")


async def test_a_refusal_or_a_broken_page_is_an_error(
    autojump_clock: MockClock, world: World, log: OffsetsLog
) -> None:
    """Rather than nothing, for ever."""
    server = serve(world, log)
    broken = m.ScanOffsetsResponse(0, 1, (), b"", (m.OffsetColumns(("g",), ()),))
    server.script(m.DescribeNodeRequest, Answer(m.DescribeNodeResponse(42, 0, 0, "", (), (), ())))
    async with world.connect() as client:
        watch = client.watch_offsets(from_beginning=True)
        with pytest.raises(FatalError, match="42"):
            await watch.page()
        server.script(m.ScanOffsetsRequest, Answer(broken))
        with pytest.raises(FatalError, match="can't be read"):
            await watch.page()

        assert await next_kinds(watch) == ["scan"]
