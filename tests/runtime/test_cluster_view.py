"""What each node of a cluster tells operators: journals that are led, frozen, or neither."""

from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from coordinator.cluster import znodes
from coordinator.cluster.engine import NO_LEADER, Leader, ReadLeader, SetLeader
from coordinator.http.ask import Asker
from coordinator.http.routes import Refused
from coordinator.http.viewer import EVERYBODY
from coordinator.runtime.shard import ShardRunner, Status
from protocol import messages as m
from protocol.errors import ErrorCode
from tests.sim.cluster import JOURNALS, PARTITIONS, Cluster, Contact, Host, ask, cluster, until

AWAY: Final = "this node has no connection to ZooKeeper"
NAMES: Final = ("journals_led", "journals_without_leader", "journals_frozen", "cluster_nodes")


def told(host: Host) -> tuple[int, ...]:
    """Return what a node tells under NAMES."""
    return tuple(int(host.environment.metrics[name]()) for name in NAMES)


def led(host: Host) -> int:
    """Return how many journals a node serves, by what `health --all` counts."""
    runners: list[ShardRunner[Any]] = [*host.node.shards, host.node.registry]
    served = [runner.partition for runner in runners if runner.status is Status.ACTIVE]
    return len({host.machine.journal_of(partition).number for partition in served})


def freeze(here: Cluster, *, is_frozen: bool = True) -> None:
    """Do to ZooKeeper what an export does, or `cluster thaw`."""
    session = here.ensemble.connect()

    def done(request: Any) -> Any:
        here.ensemble.catch_up(session, here.ensemble.transactions)
        return znodes.reply(request, here.ensemble.do(session, znodes.operation(request), request))

    for number in range(JOURNALS):
        read = done(ReadLeader(number))
        nobody = Leader(read.value.epoch + 1, NO_LEADER, "", 0, "claim", is_frozen=is_frozen)
        done(SetLeader(number, read.version, nobody, (), ()))


async def located(host: Host) -> list[m.CoordinatorOfGroup]:
    """Ask a node where each offsets partition, and what is the cluster's own, is led."""
    client = host.connect()
    answers: list[Any] = [
        await ask(client, m.FindCoordinatorRequest(m.KEY_TYPE_PARTITION, ())),
        await ask(client, m.FindCoordinatorRequest(m.KEY_TYPE_CLUSTER, ("",))),
    ]
    return [one for answer in answers for one in answer.coordinators]


async def test_every_node_tells_how_many_journals_have_no_leader(
    autojump_clock: MockClock,
) -> None:
    """Of all together, so that nobody has to add up what some nodes don't tell yet."""
    async with cluster() as here:
        first, *_ = here.hosts.values()

        assert sum(led(host) for host in here.hosts.values()) == JOURNALS
        assert [told(host) for host in here.hosts.values()] == [
            (led(host), 0, 0, 3) for host in here.hosts.values()
        ]
        lost = led(first)
        here.kill(first)
        here.end_session(first)
        await until(lambda: all(told(host)[1] == lost for host in here.hosts.values()))
        await until(lambda: here.is_settled)
        assert [told(host) for host in here.hosts.values()] == [
            (led(host), 0, 0, 2) for host in here.hosts.values()
        ]


async def test_no_journal_is_without_a_leader_for_longer_where_a_node_is_added(
    autojump_clock: MockClock,
) -> None:
    """A node leads before anybody scrapes it: added up, what the others lead was too little."""
    async with cluster(nodes=2) as here:
        old = list(here.hosts.values())
        new = here.start(2)
        without = 0
        with trio.fail_after(60):
            while not led(new):
                without = max(without, *(told(host)[1] for host in old))
                await trio.sleep(0.01)
        await trio.sleep(60)

        assert without <= 1  # While one is handed over.
        assert [told(host)[1] for host in old] == [0, 0]
        assert sum(told(host)[0] for host in old) < JOURNALS


async def test_a_node_without_zookeeper_tells_that_it_leads_nothing(
    autojump_clock: MockClock,
) -> None:
    """So does its health, which somebody compares with the graph at night."""
    async with cluster() as here:
        hosts = list(here.hosts.values())
        for host in hosts:
            host.contact = Contact.CUT_OFF
        await trio.sleep(2)

        assert [led(host) for host in hosts] == [0, 0, 0]
        assert [told(host) for host in hosts] == [(0, JOURNALS, 0, 0)] * 3
        for host in hosts:
            host.contact = Contact.FINE
        await until(lambda: here.is_settled)
        assert [told(host) for host in hosts] == [(led(host), 0, 0, 3) for host in hosts]


async def test_a_node_says_that_it_misses_zookeeper_where_it_knows_no_leader(
    autojump_clock: MockClock,
) -> None:
    """That a partition has no leader is no help: ZooKeeper is what has to be seen to."""
    async with cluster() as here:
        leader = here.leader_of("g")
        for host in here.hosts.values():
            host.contact = Contact.CUT_OFF
        await trio.sleep(2)
        found = await located(leader)

        assert len(found) == PARTITIONS + 1
        assert {one.error for one in found} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert all(str(one.message).endswith(f"has no leader: {AWAY}") for one in found)
        asker = Asker(leader.node, leader.store, trio.lowlevel.checkpoint)
        with pytest.raises(Refused, match=AWAY):
            await asker.group("g", lambda _: None, EVERYBODY)


async def test_a_node_that_starts_without_zookeeper_says_so(autojump_clock: MockClock) -> None:
    """It may do so for as long as ZooKeeper is away."""
    async with cluster(nodes=1) as here:
        here.hosts[0].contact = Contact.CUT_OFF
        new = here.start(1)
        new.contact = Contact.CUT_OFF
        await trio.sleep(2)
        summarize = m.SummarizeGroupsRequest(None, (), b"", 10, 0, None)
        answer: Any = await ask(new.connect(), summarize)
        find: Any = await ask(new.connect(), m.FindCoordinatorRequest(0, ("g",)))

        assert AWAY in answer.message
        assert AWAY in str(find.coordinators[0].message)


async def test_a_frozen_cluster_is_told_from_one_that_has_lost_its_leaders(
    autojump_clock: MockClock,
) -> None:
    """It was exported on purpose; an operator who is woken would look for a fault."""
    async with cluster() as here:
        freeze(here)
        hosts = list(here.hosts.values())
        await until(lambda: all(told(host) == (0, 0, JOURNALS, 3) for host in hosts))
        found = await located(hosts[0])
        seen: Any = await ask(hosts[0].connect(), m.DescribeJournalsRequest())

        assert {one.error for one in found} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        assert all("frozen" in str(one.message) for one in found)
        assert all("cluster thaw" in str(one.message) for one in found)
        assert [one.is_frozen for one in seen.journals] == [True] * JOURNALS
        freeze(here, is_frozen=False)
        await until(lambda: here.is_settled)
        assert [told(host)[1:3] for host in hosts] == [(0, 0)] * 3
        seen = await ask(hosts[0].connect(), m.DescribeJournalsRequest())
        assert [one.is_frozen for one in seen.journals] == [False] * JOURNALS


async def test_a_partition_that_has_lost_its_leader_gets_no_reason(
    autojump_clock: MockClock,
) -> None:
    """Another node takes over, and nothing is known to be wrong."""
    async with cluster() as here:
        leader = here.registrar
        other = here.other_than(leader)
        here.kill(leader)
        here.end_session(leader)
        await until(lambda: told(other)[1] > 0)
        said = [str(one.message) for one in await located(other) if one.error]

        assert said
        assert all(message.endswith("has no leader") for message in said)
