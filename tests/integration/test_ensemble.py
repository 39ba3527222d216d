"""The engine on a real ensemble, and what its servers and the way there do to it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Any, Final

import outcome
import pytest
import trio

from bench.ensemble import Ensemble
from coordinator.cluster.engine import (
    Announce,
    Append,
    Code,
    Confirm,
    Connected,
    Event,
    Expired,
    Fired,
    Install,
    Leader,
    ListChunks,
    ListLog,
    ListNodes,
    ListSnapshots,
    ReadChunks,
    ReadEntries,
    ReadLeader,
    ReadNode,
    ReadPurged,
    ReadSnapshot,
    Register,
    Registration,
    RemoveChunks,
    Reply,
    Request,
    SetLeader,
    SetPurged,
    Snapshot,
    Suspended,
    Trim,
    WatchEntry,
    WriteChunk,
)
from coordinator.cluster.founding import find_or_found
from coordinator.cluster.layout import Layout
from coordinator.cluster.zookeeper import Access, ZooKeeper
from tests.integration.ensemble import Wire, wires

pytestmark = pytest.mark.integration

LAYOUT: Final = Layout(num_partitions=6, journals=2)
# The least that servers with ticks of a second allow.
SHORT_MS: Final = 2_000
WAIT_S: Final = 60.0
_chroots = count()


class World:
    """An engine, and all that it tells."""

    def __init__(self, access: Access) -> None:
        self.events: list[Event] = []
        self.names: list[str] = []
        self._changed = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def deliver(done: Callable[[Any], None], answer: outcome.Outcome[Any]) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(done, answer)

        self.access = access
        self.engine = ZooKeeper(
            access, deliver, self._told, lambda name, _: self.names.append(name)
        )

    def _told(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()
        self._changed = trio.Event()

    async def told(self, kind: type[Event]) -> Event:
        """Return the first event of this kind since it was asked last, and forget those before."""
        with trio.fail_after(WAIT_S):
            while True:
                for at, event in enumerate(self.events):
                    if isinstance(event, kind):
                        del self.events[: at + 1]
                        return event
                await self._changed.wait()

    def begin(self, request: Request) -> tuple[list[Reply], trio.Event]:
        """Ask; return where the answer will be, and what tells that it is."""
        box, answered = list[Reply](), trio.Event()

        def done(reply: Reply) -> None:
            box.append(reply)
            answered.set()

        self.engine.submit(request, done)
        return box, answered

    async def ask(self, request: Request) -> Reply:
        """Return the answer."""
        box, answered = self.begin(request)
        with trio.fail_after(WAIT_S):
            await answered.wait()
        return box[0]

    async def insist(self, request: Request) -> Reply:
        """Ask until it isn't lost, as whoever appends does."""
        while (reply := await self.ask(request)).code is Code.LOST:
            await self.told(Connected)
        return reply

    def leader(self, epoch: int, claim: str) -> Leader:
        """Return ourselves as who leads."""
        return Leader(epoch, 1, "run", self.engine.session, claim)

    async def lead(self) -> int:
        """Lead journal 0; return the version of the fence."""
        reply = await self.ask(SetLeader(0, 0, self.leader(1, "claim"), (0, 2, 4), (1,)))
        assert Reply(Code.OK) == reply
        return 1


def accessed(hosts: str, session_timeout_ms: int = 6_000) -> Access:
    """Return a way to an empty cluster of the test's own; blocks."""
    access = Access(
        hosts=hosts, chroot=f"/test/{next(_chroots)}", session_timeout_ms=session_timeout_ms
    )
    find_or_found(access, LAYOUT, cluster_id="", new_cluster_id=lambda: "0" * 22, patience_s=WAIT_S)
    return access


@asynccontextmanager
async def running(access: Access) -> AsyncIterator[World]:
    """Run an engine that has a connection."""
    world = World(access)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.engine.run)
        await world.told(Connected)
        yield world
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def wired(
    zookeeper: Ensemble, session_timeout_ms: int
) -> AsyncIterator[tuple[World, list[Wire]]]:
    """The same, with a wire to each server."""
    with wires(zookeeper) as drawn:
        async with running(accessed(_hosts(drawn), session_timeout_ms)) as world:
            yield world, drawn


def _hosts(drawn: list[Wire]) -> str:
    return ",".join(f"127.0.0.1:{wire.port}" for wire in drawn)


async def test_a_journal_is_led_appended_to_and_read(zookeeper: Ensemble) -> None:
    """Each transaction checks what it has to, and says which check failed."""
    async with running(accessed(zookeeper.hosts)) as world:
        code, nobody, fence, *_ = await world.ask(ReadLeader(0))
        assert (Code.OK, None, 0) == (code, nobody, fence)
        version = await world.lead()
        assert Code.FENCED is (await world.ask(Append(0, 0, 1, (b"x",)))).code
        assert Code.GAP is (await world.ask(Append(0, version, 2, (b"x",)))).code
        assert Code.OK is (await world.ask(Append(0, version, 1, (b"one", b"two")))).code
        assert Code.EXISTS is (await world.ask(Append(0, version, 1, (b"one", b"two")))).code
        assert Code.OK is (await world.ask(Confirm(0, version))).code
        assert Code.FENCED is (await world.ask(Confirm(0, version + 1))).code
        assert Reply(Code.OK, (b"", b"one", b"two")) == await world.ask(ReadEntries(0, 0, 64))
        assert Reply(Code.OK, ()) == await world.ask(ReadEntries(0, 3, 64))
        assert Code.OK is (await world.ask(Append(0, version, 3, (b"three",)))).code
        assert Code.OK is (await world.ask(Trim(0, version, 0, 1))).code
        assert Reply(Code.OK, (0,)) == await world.ask(ListLog(0, None))
        assert Reply(Code.OK, (2, 3)) == await world.ask(ListLog(0, 0))
        assert Code.OK is (await world.ask(Trim(0, version, 2, 2))).code
        assert Code.MISSING is (await world.ask(Trim(0, version, 2, 2))).code


async def test_nodes_and_leaders_are_watched(zookeeper: Ensemble) -> None:
    """Any node answers from what it has seen; a change that it misses leads clients astray."""
    node = Registration(1, ("plain://h:9310",), 1700, "run", (1, 1), is_ready=False)
    async with running(accessed(zookeeper.hosts)) as world:
        assert Reply(Code.OK, ()) == await world.ask(ListNodes())
        assert Code.OK is (await world.ask(Register(node))).code
        assert Fired(ListNodes()) == await world.told(Fired)
        assert Code.EXISTS is (await world.ask(Register(node))).code
        reply = await world.ask(ReadNode(1))
        assert (node, world.engine.session) == (reply.value, reply.owner)
        assert Code.OK is (await world.ask(Announce(replace(node, is_ready=True)))).code
        assert Fired(ReadNode(1)) == await world.told(Fired)
        assert Reply(Code.MISSING) == await world.ask(WatchEntry(0, 1))
        version = await world.lead()
        await world.ask(Append(0, version, 1, (b"x",)))
        assert Fired(WatchEntry(0, 1)) == await world.told(Fired)


async def test_snapshots_are_written_installed_and_removed(zookeeper: Ensemble) -> None:
    """What nobody points at means nothing; what is pointed at is replaced fenced."""
    snapshot = Snapshot(1, "new", 2, 8, 99, {0: 4}, {})
    async with running(accessed(zookeeper.hosts)) as world:
        version = await world.lead()
        for chunk in (0, 1):
            assert Code.OK is (await world.ask(WriteChunk(0, "new", chunk, b"data"))).code
        assert Code.EXISTS is (await world.ask(WriteChunk(0, "new", 1, b"data"))).code
        empty = await world.ask(ReadSnapshot(0))
        assert Snapshot() == empty.value
        assert Code.OK is (await world.ask(Install(0, version, snapshot, empty.version))).code
        assert Code.CONFLICT is (await world.ask(Install(0, version, snapshot, 0))).code
        found = await world.ask(ReadSnapshot(0))
        assert found.changed_ms > 0
        assert Reply(Code.OK, snapshot, 1) == found._replace(changed_ms=-1)
        assert Reply(Code.OK, (b"data",)) == await world.ask(ReadChunks(0, "new", 1, 8))
        assert Reply(Code.OK, (0, 1)) == await world.ask(ListChunks(0, "new"))
        # Where something is left nothing is done at all.
        assert Code.REFUSED is (await world.ask(RemoveChunks(0, version, "new", (0,), True))).code
        assert Code.OK is (await world.ask(RemoveChunks(0, version, "new", (0, 1), True))).code
        assert Reply(Code.OK, ()) == await world.ask(ListSnapshots(0))
        assert Code.OK is (await world.ask(SetPurged(0, version, 12))).code
        assert 12 == (await world.ask(ReadPurged(0))).value


async def test_large_transactions_fit_by_default(zookeeper: Ensemble) -> None:
    """512 KiB of entries is what a flush may have."""
    async with running(accessed(zookeeper.hosts)) as world:
        version = await world.lead()
        entries = (bytes(64 * 1024),) * 8
        assert Code.OK is (await world.ask(Append(0, version, 1, entries))).code
        assert entries == (await world.ask(ReadEntries(0, 1, 64))).value


async def test_a_lost_session_is_told_and_followed_by_another(zookeeper: Ensemble) -> None:
    """Its registration is gone with it, and others may lead."""
    node = Registration(1, ("plain://h:1",), 1, "run", (1, 1), is_ready=True)
    async with wired(zookeeper, SHORT_MS) as (world, drawn):
        before = world.engine.session
        await world.ask(Register(node))
        for wire in drawn:
            wire.cut()
        await world.told(Suspended)
        assert Reply(Code.LOST) == await world.ask(ReadLeader(0))
        async with running(replace(world.access, hosts=zookeeper.hosts)) as other:
            with trio.fail_after(WAIT_S):
                while await other.ask(ReadNode(1)) != Reply(Code.MISSING):
                    await other.told(Fired)
        for wire in drawn:
            wire.mend()
        await world.told(Expired)
        await world.told(Connected)
        assert before != world.engine.session


async def test_a_short_cut_keeps_the_session(zookeeper: Ensemble) -> None:
    """Nobody claims what is led, and nothing is loaded anew."""
    async with wired(zookeeper, 20_000) as (world, drawn):
        before = world.engine.session
        for wire in drawn:
            wire.cut()
        await world.told(Suspended)
        for wire in drawn:
            wire.mend()
        await world.told(Connected)
        assert before == world.engine.session


async def test_an_append_whose_answer_is_lost_is_found_when_it_is_repeated(
    zookeeper: Ensemble,
) -> None:
    """Nobody knows whether it was applied; the same bytes at the same index tell."""
    async with wired(zookeeper, 20_000) as (world, drawn):
        version = await world.lead()
        for wire in drawn:
            wire.keep_replies()
        append = Append(0, version, 1, (b"once",))
        box, answered = world.begin(append)
        async with running(replace(world.access, hosts=zookeeper.hosts)) as other:
            if await other.ask(WatchEntry(0, 1)) == Reply(Code.MISSING):
                await other.told(Fired)
        assert not box
        for wire in drawn:
            wire.cut()
        await answered.wait()
        assert [Reply(Code.LOST)] == box
        for wire in drawn:
            wire.mend()
        assert Reply(Code.EXISTS) == await world.insist(append)
        assert Reply(Code.OK, (b"", b"once")) == await world.insist(ReadEntries(0, 0, 64))


async def test_a_request_that_arrives_late_does_no_harm(zookeeper: Ensemble) -> None:
    """It comes on a connection that its node has given up, behind a claim that it knows not."""
    async with wired(zookeeper, SHORT_MS) as (world, drawn):
        version = await world.lead()
        for wire in drawn:
            wire.keep_requests()
        box, answered = world.begin(Append(0, version, 1, (b"late",)))
        await answered.wait()
        assert [Reply(Code.LOST)] == box
        async with running(replace(world.access, hosts=zookeeper.hosts)) as other:
            await other.ask(SetLeader(0, version, other.leader(2, "other"), (0,), (2,)))
            for wire in drawn:
                wire.mend()
            await world.told(Connected)
            # On the new connection, so behind whatever still came on the old one.
            assert Code.FENCED is (await world.insist(Append(0, version, 1, (b"again",)))).code
            assert Reply(Code.OK, (b"",)) == await other.ask(ReadEntries(0, 0, 64))
            assert Code.OK is (await other.ask(Append(0, version + 1, 1, (b"mine",)))).code


async def test_appends_go_on_when_the_leader_of_zookeeper_is_killed(zookeeper: Ensemble) -> None:
    """Each is there once, whatever became of its first try."""
    async with running(accessed(zookeeper.hosts)) as world:
        version = await world.lead()
        codes = set()
        for index in range(1, 201):
            if index == 100:
                zookeeper.leader().kill()
            reply = await world.insist(Append(0, version, index, (str(index).encode(),)))
            codes.add(reply.code)
        assert {Code.OK} <= codes <= {Code.OK, Code.EXISTS}
        log = [await world.insist(ReadEntries(0, first, 50)) for first in range(1, 201, 50)]
        assert [str(n).encode() for n in range(1, 201)] == [e for reply in log for e in reply.value]


async def test_a_server_that_freezes_is_left_within_the_session(zookeeper: Ensemble) -> None:
    """Two others serve; the node leads on, in the same session."""
    async with running(accessed(zookeeper.hosts)) as world:
        version = await world.lead()
        before = world.engine.session
        port = int(world.engine.server.rpartition(":")[2])
        (frozen,) = [server for server in zookeeper.servers if server.port == port]
        frozen.freeze()
        try:
            reply = await world.insist(Append(0, version, 1, (b"x",)))
            assert reply.code in {Code.OK, Code.EXISTS}
            assert before == world.engine.session
        finally:
            frozen.thaw()


async def test_all_goes_on_when_a_majority_comes_back(zookeeper: Ensemble) -> None:
    """No session ends while nobody can say so."""
    async with running(accessed(zookeeper.hosts, SHORT_MS)) as world:
        version = await world.lead()
        before = world.engine.session
        for server in zookeeper.servers:
            server.kill()
        await world.told(Suspended)
        await trio.to_thread.run_sync(zookeeper.start)
        await world.told(Connected)
        assert before == world.engine.session
        assert Code.OK is (await world.insist(Confirm(0, version))).code


async def test_a_client_whose_loop_ends_is_replaced_in_its_session(zookeeper: Ensemble) -> None:
    """Whatever kazoo makes of bytes that it doesn't know, the node leads on."""

    class Broken:
        type = 1

        def serialize(self) -> bytes:
            raise ZeroDivisionError

    async with running(accessed(zookeeper.hosts)) as world:
        version = await world.lead()
        before, seen = world.engine.session, world.engine._client.last_zxid
        world.engine._client._call(Broken(), None)
        await world.told(Suspended)
        await world.told(Connected)
        assert before == world.engine.session
        assert world.engine._client.last_zxid >= seen > 0
        assert "zookeeper.client_replaced" in world.names
        assert Code.OK is (await world.insist(Confirm(0, version))).code
