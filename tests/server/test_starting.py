"""The answers of a node before it has found its cluster, and read what is in it."""

import random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from client import connect
from coordinator.config import load_settings
from coordinator.runtime.health import LOADING, ZOOKEEPER, status_of
from coordinator.runtime.shard import Status
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.messages import APIS, ApiKey, error_response
from tests.server.world import answer_or_end, commit, without_words
from tests.sim.cluster import PARTITIONS, Cluster, Contact, Host, ask, until
from tests.sim.cluster_simulation import ClusterNetwork
from tests.sim.history import History

ANSWERED = [key for key in APIS if key != ApiKey.API_VERSIONS]
WHO_ARE_YOU = m.ApiVersionsRequest("client", "t", "1")


class Starting:
    """A node that has yet to find its cluster, which it does when `found` is set."""

    def __init__(self, nursery: trio.Nursery) -> None:
        settings = load_settings(overrides=[f"offsets.topic.num.partitions={PARTITIONS}"])
        self.cluster = Cluster(nursery, 1, settings)
        self.network = ClusterNetwork(
            History(trio.current_time, keep_lines=False), random.Random(1), nursery
        )
        self.found = trio.Event()

    def start(self, cluster_id: str = "") -> Host:
        """Start it; *cluster_id* is what its settings say."""
        host = self.cluster.start(0)
        host.contact = Contact.CUT_OFF
        host.store.cluster_id = cluster_id

        async def find() -> None:
            await self.found.wait()
            host.store.cluster_id = "A" * 22
            host.contact = Contact.FINE

        host.store.find = find
        return host


async def answer(host: Host, request: m.Request) -> Any:
    """Return the answer, None if the connection was closed instead."""
    client = host.connect()
    found = await answer_or_end(client, request, within_s=1)
    assert found is not None or client.transport.closed
    return found


@pytest.mark.parametrize("key", ANSWERED, ids=lambda key: APIS[key].name)
async def test_a_node_that_starts_answers_each_request_with_15_in_its_shape(
    key: ApiKey, autojump_clock: MockClock
) -> None:
    """A client tries again at 15; it would wait in vain for a node that only takes connections."""
    async with trio.open_nursery() as nursery:
        host = Starting(nursery).start()
        request = APIS[key].example.request
        expected = error_response(request, ErrorCode.COORDINATOR_NOT_AVAILABLE)

        assert without_words(await answer(host, request)) == without_words(expected)
        nursery.cancel_scope.cancel()


async def test_a_node_that_starts_is_served_from_as_soon_as_it_can(
    autojump_clock: MockClock,
) -> None:
    """The connections of the time before are good; a shard says 15 until its log was read."""
    async with trio.open_nursery() as nursery:
        starting = Starting(nursery)
        host = starting.start()
        client = host.connect()
        before: Any = await ask(client, commit(7))
        assert before.error == ErrorCode.COORDINATOR_NOT_AVAILABLE
        seen: set[int | None] = set()
        starting.found.set()
        while None not in seen:
            seen.add(host.node.shard_of("g").refusal())
            await trio.sleep(0.001)

        after: Any = await ask(client, commit(7))
        assert after.error == ErrorCode.NONE
        # Before it follows, and before it leads: nobody is told that another node does.
        assert seen <= {None, *map(ErrorCode, (14, 15, 16))}
        assert not host.told("journal.deposed")
        nursery.cancel_scope.cancel()


async def test_a_load_from_a_snapshot_is_part_of_the_start(autojump_clock: MockClock) -> None:
    """Every start drops what it holds, which is nothing: that is no lead that was lost."""
    async with trio.open_nursery() as nursery:
        starting = Starting(nursery)
        host = starting.start()
        await trio.sleep(1)
        for shard in host.node.shards:
            shard.drop(host.node.now())

        assert {shard.status for shard in host.node.shards} == {Status.STARTING}
        assert {s.refusal() for s in host.node.shards} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        nursery.cancel_scope.cancel()


async def test_nobody_is_told_an_id_of_the_cluster_that_is_not_known(
    autojump_clock: MockClock,
) -> None:
    """Clients remember it: another one, also none, is another cluster, whose offsets aren't theirs.

    So a connection is closed instead, and a client goes on to the next node.
    """
    async with trio.open_nursery() as nursery:
        starting = Starting(nursery)
        host = starting.start()
        assert await answer(host, WHO_ARE_YOU) is None
        assert host.environment.telemetry.connections_closed["starting"] == 1

        starting.found.set()
        await until(lambda: host.serves("g"))
        assert (await answer(host, WHO_ARE_YOU)).cluster_id == "A" * 22
        nursery.cancel_scope.cancel()


async def test_an_id_that_is_set_is_told_at_once(autojump_clock: MockClock) -> None:
    """The start is refused if ZooKeeper has another one."""
    async with trio.open_nursery() as nursery:
        host = Starting(nursery).start("B" * 22)
        assert (await answer(host, WHO_ARE_YOU)).cluster_id == "B" * 22
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("cluster_id", ["", "A" * 22])
async def test_a_client_waits_for_a_node_that_starts(
    cluster_id: str, autojump_clock: MockClock
) -> None:
    """The client neither hangs nor gives up, and takes the cluster for no other one than it is."""
    async with trio.open_nursery() as nursery:
        starting = Starting(nursery)
        starting.cluster.listen = starting.network.listen
        starting.start(cluster_id)

        async def find() -> None:
            await trio.sleep(5)
            starting.found.set()

        nursery.start_soon(find)
        async with connect(
            ["node0:9310"],
            client_id="client",
            rng=random.Random(1),
            open_stream=starting.network.opener("client"),
        ) as client:
            assert await client.fetch_offsets("g") == {}
            assert starting.found.is_set()
            assert client.cluster_id == "A" * 22
        nursery.cancel_scope.cancel()


async def test_a_node_that_starts_is_not_ready_and_says_why(autojump_clock: MockClock) -> None:
    """The node is alive: a restart would only begin anew to wait for ZooKeeper."""
    async with trio.open_nursery() as nursery:
        host = Starting(nursery).start()
        await trio.sleep(5)
        wrong = {check.part: check.reason for check in host.node.checks.look() if not check.ok}

        assert set(wrong) == {LOADING, ZOOKEEPER}
        assert "ZooKeeper can't be reached" in str(wrong[ZOOKEEPER])
        assert status_of(host.node.checks.look()) != "ready"
        nursery.cancel_scope.cancel()
