"""Several members over the real core of the coordinator: hand-overs from both ends."""

import itertools
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager

import pytest
import trio
from trio.testing import MockClock

from client import Assignor, Client, FatalError, Member, MemberLost, TopicPartition, connect
from client.assignors import CooperativeStickyAssignor, StickyAssignor
from tests.client.group_server import GroupServer
from tests.fakes.scripted_server import Network

PARTITIONS = 7


class Reader:
    """A program that reads its partitions, stores what it read, and notes who reads what."""

    def __init__(self, name: str, readers: dict[TopicPartition, str], work_s: float = 0.5) -> None:
        self.name = name
        self.readers = readers
        self.work_s = work_s
        self.next: dict[TopicPartition, int] = {}
        self.reads: list[tuple[float, TopicPartition, int]] = []
        self.stop = trio.Event()
        self.member: Member | None = None

    async def on_assigned(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Begin where the last owner ended."""
        assert self.member is not None
        stored = await self.member.fetch(partitions)
        for tp in partitions:
            assert self.readers.setdefault(tp, self.name) == self.name, "two owners"
            self.next[tp] = stored[tp].offset if tp in stored else 0

    async def on_revoked(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Let go, which auto-commit completes."""
        await trio.lowlevel.checkpoint()
        for tp in partitions:
            del self.next[tp]
            assert self.readers.pop(tp) == self.name

    async def run(self, client: Client, assignors: Sequence[Assignor]) -> None:
        """Read until told to stop."""
        async with client.join(
            "g",
            ["t"],
            {"t": PARTITIONS},
            assignors=assignors,
            session_timeout_ms=6_000,
            auto_commit_interval_ms=60_000,
            on_assigned=self.on_assigned,
            on_revoked=self.on_revoked,
            on_lost=self.on_revoked,
        ) as self.member:
            while not self.stop.is_set():
                await self.member.assignment()
                await trio.sleep(self.work_s)
                for tp, offset in self.next.items():
                    self.reads.append((trio.current_time(), tp, offset))
                    self.next[tp] = offset + 1
                self.member.store(dict(self.next))


class Cluster:
    """The core behind a network that its clients connect to."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.server = GroupServer()
        self._network = Network(nursery, [self.server])
        nursery.start_soon(self.server.run)

    def connect(self, name: str) -> AbstractAsyncContextManager[Client]:
        """Connect as *name*."""
        stream = self._network.open_stream
        return connect("node1:9310", client_id=name, open_stream=stream, rng=random.Random(name))


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """Without groups."""
    async with trio.open_nursery() as nursery:
        yield Cluster(nursery)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "assignor", [StickyAssignor(), CooperativeStickyAssignor()], ids=["eager", "cooperative"]
)
async def test_members_come_and_go_and_every_record_is_read_once(
    autojump_clock: MockClock, cluster: Cluster, assignor: Assignor
) -> None:
    """Planned changes repeat nothing and skip nothing: revoke, commit, and only then the next."""
    readers: dict[TopicPartition, str] = {}
    everyone = [Reader(f"r{number}", readers, 0.3 + number / 10) for number in range(4)]
    async with trio.open_nursery() as nursery:

        async def live(reader: Reader) -> None:
            async with cluster.connect(reader.name) as client:
                await reader.run(client, [assignor])

        for reader in everyone:
            nursery.start_soon(live, reader)
            await trio.sleep(15)
        for reader in everyone[:3]:
            reader.stop.set()
            await trio.sleep(15)

        assert len(readers) == PARTITIONS
        everyone[3].stop.set()

    reads = sorted((tp, offset) for reader in everyone for _, tp, offset in reader.reads)
    for tp, group in itertools.groupby(reads, key=lambda read: read[0]):
        offsets = [offset for _, offset in group]
        assert offsets == list(range(len(offsets))), tp
    assert len({tp for tp, _ in reads}) == PARTITIONS
    assert readers == {}


async def test_partitions_that_stay_are_read_through_a_slow_rebalance(
    autojump_clock: MockClock, cluster: Cluster
) -> None:
    """One member takes 20 s for a batch: the others neither stop nor lose what is theirs."""
    readers: dict[TopicPartition, str] = {}
    fast, slow, late = (
        Reader("fast", readers),
        Reader("slow", readers, work_s=20),
        Reader("late", readers),
    )
    async with trio.open_nursery() as nursery:

        async def live(reader: Reader) -> None:
            async with cluster.connect(reader.name) as client:
                await reader.run(client, [CooperativeStickyAssignor()])

        for reader in (fast, slow):
            nursery.start_soon(live, reader)
        await trio.sleep(60)
        stays = dict(fast.next)
        began_s = trio.current_time()
        nursery.start_soon(live, late)
        await trio.sleep(100)

        assert len(late.next) >= 2
        kept = stays.keys() & fast.next.keys()
        assert kept
        for reader in (fast, slow, late):
            reader.stop.set()

    for tp in kept:
        times = [at_s for at_s, read, _ in fast.reads if read == tp and at_s >= began_s]
        assert max(after - before for before, after in itertools.pairwise(times)) < 1


async def test_a_static_member_is_replaced_without_a_rebalance(
    autojump_clock: MockClock, cluster: Cluster
) -> None:
    """The restarted program takes its partitions up; the old one learns who has its name."""
    tp = TopicPartition("t", 0)
    async with (
        cluster.connect("one") as one,
        cluster.connect("two") as two,
        one.join("g", ["t"], {"t": 2}, group_instance_id="i") as old,
        two.join("g", ["t"], {"t": 2}, group_instance_id="i") as new,
    ):
        before = await old.assignment()
        await old.commit({tp: 5})
        after = await new.assignment()

        assert (after.generation, after.partitions) == (before.generation, before.partitions)
        assert after.member_id != before.member_id
        with pytest.raises(FatalError, match="held by member"):
            await old.commit({tp: 6})

        assert (await new.fetch())[tp].offset == 5
        await new.commit({tp: 7})


async def test_a_member_that_was_removed_is_told_for_how_long_it_was_silent(
    autojump_clock: MockClock, cluster: Cluster
) -> None:
    """The commonest question about consumer groups."""
    async with (
        cluster.connect("one") as client,
        client.join("g", ["t"], {"t": 2}, session_timeout_ms=6_000) as member,
    ):
        assignment = await member.assignment()
        cluster.server.expire_in(7_000)
        with pytest.raises(MemberLost, match=r"no heartbeat for .* session timeout 6\.0 s"):
            await member.commit(dict.fromkeys(assignment.partitions, 1))
