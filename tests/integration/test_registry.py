"""Consumers of ours beside real ones of Kafka 0.8.2, in the registry of a real ZooKeeper."""

import asyncio
import random
import re
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
from kazoo.exceptions import NoNodeError

from bench.ensemble import Ensemble, ensemble
from client.exceptions import (
    ClientClosed,
    CoordinatorError,
    FatalError,
    OutcomeUnknown,
    Rebalanced,
)
from client.zookeeper.consumer import Consumer, join
from client.zookeeper.forms import join_aio, join_blocking
from client.zookeeper.membership import Assignment
from protocol.partition import TopicPartition
from tests.integration.ensemble import wires
from tests.integration.registry_support import (
    DEADLINE_S,
    GROUP,
    OldConsumers,
    Registry,
    example,
    missing_old,
    old_consumers,
    owned_by,
    program,
    until,
)

pytestmark = pytest.mark.integration

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ensemble]:
    """One server for all tests, which lets sessions end soon."""
    if why := missing_old():
        pytest.skip(f"no consumers of Kafka 0.8: {why}")
    with ensemble(tmp_path_factory.mktemp("zookeeper"), 1, settings={"tickTime": "500"}) as made:
        yield made


@pytest.fixture
def registry(zookeeper: Ensemble) -> Iterator[Registry]:
    """A part of the ensemble for each test."""
    made = Registry(zookeeper.hosts)
    yield made
    made.close()


class Reader:
    """A consumer of ours, and a user who hands over whenever he is asked to."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.assignment: Assignment | None = None

    async def run(self) -> None:
        """Take each assignment."""
        while True:
            self.assignment = await self.consumer.assignment()
            await self.consumer.wait_rebalance_needed()

    @property
    def partitions(self) -> set[TopicPartition]:
        """What it has."""
        return set() if self.assignment is None else set(self.assignment.partitions)


@asynccontextmanager
async def reading(registry: Registry, **what: Any) -> AsyncIterator[Reader]:
    """Have a consumer of ours in the group."""
    async with join(registry.address, GROUP, **what) as consumer, trio.open_nursery() as nursery:
        reader = Reader(consumer)
        nursery.start_soon(reader.run)
        yield reader
        nursery.cancel_scope.cancel()


async def shared(registry: Registry, *readers: Reader) -> None:
    """Wait until each partition is with whom the formula names, and ours know."""
    ids = {one.consumer.consumer_id for one in readers}

    def is_shared() -> bool:
        owners = registry.owners()
        return (
            ids <= registry.registrations().keys()
            and owners == registry.shares()
            and all(
                one.partitions == owned_by(owners, [one.consumer.consumer_id]) for one in readers
            )
        )

    await until(is_shared)


async def test_old_and_new_consumers_share_topics_until_the_last_old_one_is_gone(
    registry: Registry, tmp_path: Path
) -> None:
    """This is what a team does while it moves, one program after the other."""
    registry.put_topic("t", 7)
    registry.put_topic("logs.a", 3)
    with old_consumers(registry, tmp_path) as old:
        await old.join("one", "static", "t", 2)
        await old.join("two", "white_list", "t|logs.*")
        async with reading(registry, topics={"t": 2}) as first:
            await shared(registry, first)
            await old.join("three", "black_list", "logs[.]a", 11)
            async with reading(registry, white_list="t, logs.*") as second:
                await shared(registry, first, second)
                assert second.partitions
                registry.put_topic("t", 30)
                registry.put_topic("logs.b", 4)
                await shared(registry, first, second)
                await old.leave("three")
                await shared(registry, first, second)
                await old.leave("one")
                await shared(registry, first, second)
                await old.leave("two")
                await shared(registry, first, second)
            await shared(registry, first)
            assert len(first.partitions) == 30


async def test_a_registration_is_byte_for_byte_what_an_old_consumer_writes(
    registry: Registry, tmp_path: Path
) -> None:
    """Tools that read the registry know nothing of us, and need not."""
    registry.put_topic("t", 1)
    with old_consumers(registry, tmp_path) as old:
        await old.join("named", "static", "t", 3)
        await old.join("white", "white_list", r"t.*\d|u,v", 2)
        await old.join("black", "black_list", "[^t].*|b")
    async with (
        join(registry.address, GROUP, {"t": 3}) as named,
        join(registry.address, GROUP, white_list=r"t.*\d|u,v", num_streams=2) as white,
        join(registry.address, GROUP, black_list="[^t].*|b") as black,
    ):
        await until(lambda: len(registry.registrations()) == 6)
        registered = registry.registrations()

        for ours, name in [(named, "named"), (white, "white"), (black, "black")]:
            of_old = registered[f"{GROUP}_{name}"]
            assert _without_time(of_old) == _without_time(registered[ours.consumer_id])


class Crowd:
    """Consumers of both kinds that come and go by chance."""

    def __init__(
        self, registry: Registry, old: OldConsumers, nursery: trio.Nursery, seed: int
    ) -> None:
        self._registry = registry
        self._old = old
        self._nursery = nursery
        self._rng = random.Random(seed)
        self._names = (f"old{number}" for number in count())
        self._old_ones: list[str] = []
        self._ours: list[tuple[Reader, trio.CancelScope]] = []
        self._sizes = {"t": 5}
        registry.put_topic("t", 5)

    async def step(self) -> None:
        """Let one thing happen."""
        rng, registry = self._rng, self._registry
        match rng.choice(
            ["join", "old joins", "old joins", "join", "go", "old goes", "end", "grow"]
        ):
            case "join":
                self._ours.append(await self._nursery.start(self._live))
            case "old joins":
                self._old_ones.append(next(self._names))
                kind, topics = rng.choice([("static", "t"), ("white_list", "t|u.*")])
                await self._old.join(self._old_ones[-1], kind, topics, rng.choice([1, 2, 11]))
            case "go" if self._ours:
                self._ours.pop(rng.randrange(len(self._ours)))[1].cancel()
            case "old goes" if self._old_ones:
                await self._old.leave(self._old_ones.pop(rng.randrange(len(self._old_ones))))
            case "end" if self._ours:
                reader, _ = rng.choice(self._ours)
                with suppress(NoNodeError):
                    await trio.to_thread.run_sync(registry.end_session, reader.consumer)
            case _:
                topic = rng.choice(["t", "u1", "u2"])
                self._sizes[topic] = self._sizes.get(topic, 0) + 3
                registry.put_topic(topic, self._sizes[topic])

    async def _live(self, task_status: trio.TaskStatus[tuple[Reader, trio.CancelScope]]) -> None:
        what: dict[str, Any] = self._rng.choice([{"topics": ["t"]}, {"white_list": "t,u.*"}])
        threads = self._rng.choice([1, 2, 11])
        with trio.CancelScope() as scope:
            async with reading(self._registry, **what, num_streams=threads) as reader:
                task_status.started((reader, scope))
                await trio.sleep_forever()

    async def settled(self) -> None:
        """Wait until all have their shares."""
        await until(
            lambda: len(self._registry.registrations()) == len(self._ours) + len(self._old_ones)
        )
        await shared(self._registry, *[reader for reader, _ in self._ours])


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
async def test_the_same_through_a_history_that_chance_makes(
    registry: Registry, tmp_path: Path, seed: int
) -> None:
    """Nobody thinks of everything that old consumers may do in one moment."""
    with old_consumers(registry, tmp_path) as old:
        async with trio.open_nursery() as nursery:
            crowd = Crowd(registry, old, nursery, seed)
            for _ in range(8):
                for _ in range(4):
                    await crowd.step()
                await crowd.settled()
            nursery.cancel_scope.cancel()


def _without_time(data: bytes) -> bytes:
    return re.sub(rb'"timestamp":"\d{13}"', b"", data)


async def test_an_offset_is_where_old_consumers_look_for_it(registry: Registry) -> None:
    """Both go on where the other was."""
    registry.put_topic("t", 2)
    async with join(registry.address, GROUP, ["t"]) as consumer:
        await consumer.assignment()
        assert await consumer.fetch([T0, T1]) == {}
        await consumer.commit({T0: 5})
        await consumer.commit({T0: 6, T1: 7})
        registry.kazoo.set(f"/consumers/{GROUP}/offsets/t/1", b"70")

        assert await consumer.fetch([T0, T1]) == {T0: 6, T1: 70}
        assert registry.kazoo.get(f"/consumers/{GROUP}/offsets/t/0")[0] == b"6"


async def test_who_is_no_member_any_more_commits_nothing(registry: Registry) -> None:
    """A process that was frozen for long believes that it still has its partitions."""
    registry.put_topic("t", 1)
    async with join(registry.address, GROUP, ["t"]) as consumer:
        await consumer.assignment()
        await consumer.commit({T0: 5})
        await trio.to_thread.run_sync(registry.end_session, consumer)

        with pytest.raises((Rebalanced, OutcomeUnknown)):
            await consumer.commit({T0: 4})
        assert await consumer.fetch([T0]) == {T0: 5}


@pytest.mark.parametrize("harm", [Registry.end_session, Registry.remove])
async def test_a_consumer_registers_again_when_its_session_or_its_node_is_gone(
    registry: Registry, harm: Callable[[Registry, Consumer], None]
) -> None:
    """Nobody should have to restart it."""
    registry.put_topic("t", 2)
    async with reading(registry, topics=["t"]) as reader:
        await shared(registry, reader)
        before = registry.sessions()
        await trio.to_thread.run_sync(harm, registry, reader.consumer)

        await shared(registry, reader)
        assert (registry.sessions() == before) == (harm is Registry.remove)


async def test_partitions_count_as_lost_before_the_ensemble_can_give_them_away(
    registry: Registry, zookeeper: Ensemble
) -> None:
    """With the ensemble out of reach nobody knows who has them next."""
    registry.put_topic("t", 1)
    async with join(registry.address, GROUP, ["t"]) as consumer:
        await consumer.assignment()
        with zookeeper.servers[0].frozen():
            began_s = trio.current_time()
            with trio.fail_after(30):
                await consumer.wait_rebalance_needed()
            assert consumer.lost
            assert trio.current_time() - began_s < 6
            with pytest.raises(CoordinatorError):
                await consumer.commit({T0: 1}, timeout_ms=100)

        assert (await consumer.assignment()).partitions == (T0,)
        await consumer.commit({T0: 2})


async def ask_often(consumer: Consumer) -> None:
    """Fetch again and again, and never wait for long."""
    while True:
        with suppress(CoordinatorError):
            await consumer.fetch([T0], timeout_ms=300)
        await trio.sleep(0.1)


@pytest.mark.parametrize("asks", [False, True])
async def test_a_session_shorter_than_asked_for_has_one_owner_at_a_time(
    registry: Registry, zookeeper: Ensemble, caplog: pytest.LogCaptureFixture, *, asks: bool
) -> None:
    """The server grants 20 ticks, 10 s, and gives partitions away after those.

    kazoo takes each request for a sign of life, so one that asks often would never notice.
    """
    registry.put_topic("t", 1)
    with wires(zookeeper) as (wire,):
        far = {
            "zookeeper.connect": registry.address_at(wire.port),
            "zookeeper.session.timeout.ms": "60000",
        }
        async with join(far, GROUP, ["t"]) as first:
            assert (await first.assignment()).partitions == (T0,)
            async with join(registry.address, GROUP, ["t"]) as second:
                await until(lambda: len(registry.registrations()) == 2)
                async with trio.open_nursery() as nursery:
                    if asks:
                        nursery.start_soon(ask_often, first)
                    wire.silence()
                    with trio.fail_after(DEADLINE_S):
                        while not (await second.assignment()).partitions:
                            await second.wait_rebalance_needed()
                    assert first.lost
                    nursery.cancel_scope.cancel()
    (told,) = [one.getMessage() for one in caplog.records if one.name == "client.zookeeper"]
    assert "grants sessions of 10000 ms, and not the 60000 ms" in told


async def test_an_owners_node_that_stays_is_told_of_and_claimed_once_it_is_deleted(
    registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    """A tool that copied znodes from elsewhere has made it so; no consumer of it will ever end."""
    registry.put_topic("t", 2)
    path = f"/consumers/{GROUP}/owners/t/0"
    registry.kazoo.create(path, b"etl_elsewhere-0", makepath=True)

    def told() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "client.zookeeper"]

    async with reading(registry, topics=["t"]) as reader:
        await until(lambda: bool(told()))
        await until(lambda: reader.partitions == {T1})
        registry.kazoo.delete(path)
        await until(lambda: reader.partitions == {T0, T1})
    (words,) = told()
    assert f"{path} is persistent, and names 'etl_elsewhere-0'" in words
    assert registry.address in words


# Commits as often as it can, until that fails; then it goes on as the example does.
COMMITS = """
import sys
from client import OutcomeUnknown, Rebalanced, TopicPartition
from client.zookeeper.forms import join_blocking

T0 = TopicPartition("t", 0)
with join_blocking(sys.argv[1], "etl", ["t"]) as consumer:
    consumer.assignment()
    offset = 0
    while True:
        offset += 1
        try:
            consumer.commit({T0: offset})
        except (OutcomeUnknown, Rebalanced) as error:
            print(type(error).__name__, consumer.fetch([T0])[T0], flush=True)
            break
        if offset == 10:
            print("commits", flush=True)
    while True:
        print(len(consumer.assignment().partitions), flush=True)
        consumer.wait_rebalance_needed()
"""


async def test_a_frozen_consumer_learns_that_others_went_on_and_takes_nothing_back(
    registry: Registry,
) -> None:
    """Its connection broke under a commit: whether that is stored, only a fetch can say."""
    registry.put_topic("t", 1)
    with program("-c", COMMITS, registry.address) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "commits\n"
        async with join(registry.address, GROUP, ["t"]) as other:
            await until(lambda: len(registry.registrations()) == 2)
            process.send_signal(signal.SIGSTOP)
            with trio.fail_after(DEADLINE_S):
                while not (await other.assignment()).partitions:
                    await other.wait_rebalance_needed()
            await other.commit({T0: 10**9})
            process.send_signal(signal.SIGCONT)
            told = (await trio.to_thread.run_sync(process.stdout.readline)).split()
            assert told[0] in {"OutcomeUnknown", "Rebalanced"}  # Nearly always the first one.
            assert int(told[1]) == 10**9
            assert await other.fetch([T0]) == {T0: 10**9}
        # The other has left.
        while (line := await trio.to_thread.run_sync(process.stdout.readline)) != "1\n":
            assert line == "0\n"


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_example_reads_on_where_others_were_and_leaves(registry: Registry, signum: int) -> None:
    """It is what people begin with."""
    registry.put_topic("t", 1)
    registry.kazoo.create(f"/consumers/{GROUP}/offsets/t/0", b"70", makepath=True)
    with example(registry) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "t-0 from 70 to 79\n"
        assert process.stdout.readline() == "t-0 from 80 to 89\n"
        process.send_signal(signum)
        assert process.stdout.readlines()[-1] == "left the group\n"

    assert process.returncode == 0
    assert not registry.registrations()


async def test_old_consumers_take_over_from_a_killed_one(
    registry: Registry, tmp_path: Path
) -> None:
    """Its nodes are gone with its session, and they go on from its last commit."""
    registry.put_topic("t", 4)
    with old_consumers(registry, tmp_path) as old, example(registry) as process:
        await until(lambda: len(registry.owners()) == 4)
        await old.join("old", "static", "t")
        await shared(registry)
        assert len(owned_by(registry.owners(), [f"{GROUP}_old"])) == 2
        process.kill()

        await until(lambda: len(registry.registrations()) == 1)
        await shared(registry)
        assert len(owned_by(registry.owners(), [f"{GROUP}_old"])) == 4


def test_threads_have_the_same_calls(registry: Registry) -> None:
    """Most programs that read beside old consumers are no trio programs."""
    registry.put_topic("t", 1)
    with join_blocking(registry.address, GROUP, ["t"]) as consumer:
        assert consumer.assignment(timeout_s=30).partitions == (T0,)
        assert (consumer.group, consumer.lost) == (GROUP, False)
        consumer.commit({T0: 3})
        assert consumer.fetch([T0]) == {T0: 3}
        with pytest.raises(TimeoutError):
            consumer.wait_rebalance_needed(timeout_s=0.01)
        with pytest.raises(Rebalanced):
            consumer.commit({T1: 3})
    with pytest.raises(ClientClosed):
        consumer.assignment()


def test_asyncio_programs_have_the_same_calls(registry: Registry) -> None:
    """As above."""
    registry.put_topic("t", 1)

    async def live() -> None:
        async with join_aio(registry.address, GROUP, ["t"]) as consumer:
            assert (await consumer.assignment()).partitions == (T0,)
            assert not consumer.rebalance_needed
            await consumer.commit({T0: 3})
            assert await consumer.fetch([T0]) == {T0: 3}
            with pytest.raises(Rebalanced):
                await consumer.commit({T1: 3})

    with ThreadPoolExecutor(1) as pool:  # Playwright keeps a loop of its own in this one.
        pool.submit(asyncio.run, live()).result()


async def test_a_chroot_that_is_not_there_is_told(registry: Registry) -> None:
    """With it made, this would be a group of one that never sees a topic."""
    async with join(f"{registry.address}/typo", GROUP, ["t"]) as consumer:
        with pytest.raises(FatalError, match="typo"):
            await consumer.assignment()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_client_of_kazoo_whose_loop_ends_is_replaced(registry: Registry) -> None:
    """An error that it doesn't expect ends it for good, and nobody is told but us."""
    registry.put_topic("t", 1)
    async with join(registry.address, GROUP, ["t"]) as consumer:
        first = await consumer.assignment()
        client = consumer._driver._session._client  # type: ignore[union-attr]  # It has one.
        client._connection._connect_attempt = _fail
        client._connection._socket.shutdown(socket.SHUT_RDWR)

        await consumer.wait_rebalance_needed()
        second = await consumer.assignment()
        while second.awaited or not second.partitions:
            await consumer.wait_rebalance_needed()
            second = await consumer.assignment()
        assert second.generation > first.generation
        assert consumer._driver._session._client is not client  # type: ignore[union-attr]  # As above.


def _fail(*_: object) -> None:
    raise RuntimeError("as kazoo never expects it")
