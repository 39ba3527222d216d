"""What clients ask of a cluster: they ask any node, and are answered as by one."""

import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

import pytest
import trio
from trio.testing import MockClock

from client import Client, CoordinatorUnavailable, RetriableError, connect
from client.connection import Connection
from client.operators import Acl
from coordinator.config import load_settings
from coordinator.runtime.shard import Status
from protocol import messages as m
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.group_ids import NODE_PARTITION
from protocol.offset_feed import OffsetEvent
from protocol.partition import TopicPartition
from protocol.scram import ITERATIONS
from tests.sim.cluster import JOURNALS, PARTITIONS, Cluster, Contact, Host, until
from tests.sim.cluster_simulation import ClusterNetwork
from tests.sim.history import History

NODES: Final = ["node0:9310", "node1:9310", "node2:9310"]
# One in each offsets partition.
GROUPS: Final = ["a", "b", "c", "d", "e", "f"]
T0: Final = TopicPartition("t", 0)


class Surroundings:
    """A cluster, and clients of the library that reach it."""

    def __init__(self, cluster: Cluster, network: ClusterNetwork) -> None:
        self.cluster = cluster
        self.network = network

    @property
    def hosts(self) -> list[Host]:
        """All nodes."""
        return list(self.cluster.hosts.values())

    @property
    def owner(self) -> Host:
        """The node that leads what is the cluster's own."""
        return self.cluster.registrar

    @property
    def follower(self) -> Host:
        """Another node."""
        return self.cluster.other_than(self.owner)

    def connect(
        self, addresses: list[str] | None = None, **options: Any
    ) -> AbstractAsyncContextManager[Client]:
        """Connect the client library."""
        return connect(
            addresses or NODES,
            client_id="client",
            rng=random.Random(1),
            open_stream=self.network.opener("client"),
            **options,
        )


@asynccontextmanager
async def surroundings() -> AsyncIterator[Surroundings]:
    """Run three nodes that have settled."""
    settings = load_settings(overrides=[f"offsets.topic.num.partitions={PARTITIONS}"])
    async with trio.open_nursery() as nursery:
        cluster = Cluster(nursery, 1, settings)
        history = History(trio.current_time, keep_lines=False)
        network = ClusterNetwork(history, random.Random(1), nursery)
        cluster.listen = network.listen
        for number in range(3):
            cluster.start(number)
        await until(lambda: cluster.is_settled and all(map(_leads, cluster.hosts.values())))
        yield Surroundings(cluster, network)
        nursery.cancel_scope.cancel()


def _leads(host: Host) -> bool:
    return any(shard.status is Status.ACTIVE for shard in host.node.shards)


def kill(here: Surroundings, host: Host) -> None:
    """End a node, and what others see of it."""
    here.network.sever_host(host.name)
    here.cluster.kill(host)
    here.cluster.end_session(host)


async def test_topics_rules_users_and_quotas_are_known_to_any_node(
    autojump_clock: MockClock,
) -> None:
    """Whatever address a client begins with."""
    async with surroundings() as here:
        acl = Acl("User:alice", Operation.READ, ResourceType.TOPIC, "t")
        for address in NODES:
            async with here.connect([address]) as client:
                await client.register_topics({address: 3})
                await client.create_acls([acl])
                await client.set_password("alice", "secret")
                await client.alter_quotas("User:alice", {"groups": 7})
                topics = [one.topic for one in await client.describe_topics()]

                assert topics == NODES[: NODES.index(address) + 1]
                assert await client.describe_acls() == [acl]
                assert await client.describe_users() == {"alice": {"SCRAM-SHA-256": ITERATIONS}}
                assert await client.describe_quotas() == {"User:alice": {"groups": 7}}


async def test_who_follows_answers_nothing_of_the_past(autojump_clock: MockClock) -> None:
    """It may be behind, and can't know; so reads are refused as changes are."""
    reads: list[m.Request] = [
        m.DescribeTopicsRequest(None, None, False, "", 10),
        m.DescribeAclsRequest(1, None, 1, None, None, 1, 1),
        m.DescribeUserScramCredentialsRequest(None, "", 10),
        m.DescribeClientQuotasRequest(None),
        m.RegisterTopicsRequest((m.TopicRegistration("t", 1, None),)),
    ]
    async with surroundings() as here:
        for request in reads:
            answers: list[Any] = [
                await ask_over(here, host, request) for host in (here.follower, here.owner)
            ]

            assert [answer.error for answer in answers] == [ErrorCode.NOT_COORDINATOR, 0]


async def ask_over(here: Surroundings, host: Host, request: m.Request) -> m.Response:
    """Have one node answer."""
    connection = Connection(await here.network.open("asker", host.name), host.name)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection.run)
        await connection.handshake("asker")
        answer = (await connection.request(request)).response
        connection.close("done")
    return answer


async def test_any_node_says_who_leads_and_who_is_there(autojump_clock: MockClock) -> None:
    """A client begins with one address; those who want all groups ask all leaders."""
    async with surroundings() as here:
        own = m.FindCoordinatorRequest(m.KEY_TYPE_CLUSTER, ("",))
        every = m.FindCoordinatorRequest(m.KEY_TYPE_PARTITION, ())
        for host in here.hosts:
            found: Any = await ask_over(here, host, own)
            leaders: Any = await ask_over(here, host, every)
            nodes: Any = await ask_over(here, host, m.DescribeClusterRequest())

            assert [(c.host, c.offsets_partition) for c in found.coordinators] == [
                (here.owner.name, NODE_PARTITION)
            ]
            assert [c.offsets_partition for c in leaders.coordinators] == list(range(PARTITIONS))
            assert {c.host for c in leaders.coordinators} == {one.name for one in here.hosts}
            assert [(n.node_id, n.host, n.is_ready) for n in nodes.nodes] == [
                (one.number, one.name, True) for one in here.hosts
            ]


async def test_all_groups_are_listed_once_whoever_leads_them(autojump_clock: MockClock) -> None:
    """Also while a node that led some of them has just died."""
    async with surroundings() as here, here.connect() as client:
        for group in GROUPS:
            await client.commit(group, {T0: 1})
        assert len({here.cluster.leader_of(group) for group in GROUPS}) == JOURNALS

        assert sorted(g.group_id for g in await client.list_groups()) == GROUPS
        assert sorted(g.group for g in await client.summarize_groups()) == GROUPS

        kill(here, here.follower)

        assert sorted(g.group_id for g in await client.list_groups()) == GROUPS
        assert sorted(g.group for g in await client.summarize_groups()) == GROUPS


async def test_a_list_of_what_a_node_does_not_lead_is_refused(autojump_clock: MockClock) -> None:
    """Else groups would be missing in it, and nobody could tell."""
    async with surroundings() as here:
        leader = here.cluster.leader_of("a")
        other = here.cluster.other_than(leader)
        partition = leader.node.shard_of("a").partition
        for request in (
            m.ListGroupsRequest((), (), (partition,)),
            m.SummarizeGroupsRequest(None, (), b"", 10, 0, (partition,)),
        ):
            answers: list[Any] = [await ask_over(here, host, request) for host in (leader, other)]

            assert [answer.error for answer in answers] == [0, ErrorCode.NOT_COORDINATOR]
        beyond: Any = await ask_over(here, leader, m.ListGroupsRequest((), (), (PARTITIONS,)))
        assert beyond.error == ErrorCode.INVALID_REQUEST


async def test_what_happens_to_offsets_is_followed_over_all_nodes(
    autojump_clock: MockClock,
) -> None:
    """Each knows the changes of what it leads."""
    seen: list[OffsetEvent] = []
    async with surroundings() as here, here.connect() as client:
        await client.commit("a", {T0: 1})

        async def watch() -> None:
            async for event in client.watch_offsets(from_beginning=True):
                seen.append(event)  # noqa: PERF401 - it has no end

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            await trio.sleep(2)
            for group in GROUPS:
                await client.commit(group, {T0: 2})
            await until(lambda: len([e for e in seen if e.kind == "committed"]) == len(GROUPS))
            nursery.cancel_scope.cancel()

    assert [e.group_id for e in seen if e.kind == "found"] == ["a"]
    assert sorted(str(e.group_id) for e in seen if e.kind == "committed") == GROUPS


async def test_a_node_that_is_cut_off_sends_nobody_astray(autojump_clock: MockClock) -> None:
    """It still believes that a node leads that is gone: it says that it can't know.

    A client that began with it asks the others.
    """
    async with surroundings() as here, here.connect() as client:
        dead = here.cluster.leader_of("a")
        lost, alive = [host for host in here.hosts if host is not dead]
        await client.commit("a", {T0: 1})
        lost.contact = Contact.CUT_OFF
        await until(lambda: not lost.machine.is_connected)
        kill(here, dead)
        found: Any = await ask_over(here, lost, m.FindCoordinatorRequest(0, ("a",)))

        assert [c.error for c in found.coordinators] == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
        async with here.connect([f"{lost.name}:9310", f"{alive.name}:9310"]) as other:
            await other.commit("a", {T0: 2})
            assert here.cluster.leader_of("a") is alive


async def commit_while_lost(here: Surroundings, client: Client, lost: Host) -> float:
    """Commit while a node hears nothing of the ensemble, which ends its session; return how long.

    The node is not told that it is over.
    """
    lost.contact = Contact.DEAF
    began_s = trio.current_time()

    async def expire() -> None:
        await trio.sleep(6)
        here.cluster.end_session(lost)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(expire)
        await client.commit("a", {T0: 2})
    return trio.current_time() - began_s


async def test_a_client_outlives_the_node_that_it_began_with(autojump_clock: MockClock) -> None:
    """It has met others since, and asks those."""
    async with surroundings() as here:
        first = here.owner
        async with here.connect([f"{first.name}:9310"]) as client:
            for group in GROUPS:
                await client.commit(group, {T0: 1})
            kill(here, first)
            for group in GROUPS:
                await client.commit(group, {T0: 2})
            await client.register_topics({"t": 1})

            assert [one.topic for one in await client.describe_topics()] == ["t"]


async def test_a_frozen_coordinator_is_given_up_before_long(autojump_clock: MockClock) -> None:
    """It answers nothing and refuses nothing, and its listener takes connections."""
    async with surroundings() as here, here.connect() as client:
        frozen = here.cluster.leader_of("a")
        await client.commit("a", {T0: 1})
        here.network.freeze(frozen.name)

        assert await commit_while_lost(here, client, frozen) < 8


async def test_a_coordinator_that_can_not_write_is_not_asked_for_ever(
    autojump_clock: MockClock,
) -> None:
    """It says that it doesn't know what became of the commit, and believes that it leads."""
    async with surroundings() as here, here.connect() as client:
        lost = here.cluster.leader_of("a")
        await client.commit("a", {T0: 1})

        assert await commit_while_lost(here, client, lost) < 12


async def test_a_client_that_gives_up_says_what_the_nodes_miss(autojump_clock: MockClock) -> None:
    """Its last words go to an operator, who has to see to ZooKeeper and not to the nodes."""
    async with surroundings() as here, here.connect() as client:
        for host in here.hosts:
            host.contact = Contact.CUT_OFF
        await trio.sleep(2)
        with pytest.raises(CoordinatorUnavailable, match="no connection to ZooKeeper"):
            await client.commit("a", {T0: 1}, timeout_ms=10_000)


async def test_a_change_of_users_and_quotas_is_told_on_every_node(
    autojump_clock: MockClock,
) -> None:
    """Sessions of a changed password end there, too, and who waits for a quota may go on."""
    told: list[str] = []
    async with surroundings() as here, here.connect() as client:
        for host in here.hosts:
            host.node.users_changed = lambda name=host.name: told.append(f"users {name}")  # type: ignore[misc]  # lambdas
            host.node.quotas_changed = lambda name=host.name: told.append(f"quotas {name}")  # type: ignore[misc]  # as above
        await client.set_password("alice", "secret")
        await until(lambda: len(told) == 3)
        await client.alter_quotas("User:alice", {"groups": 7})
        await until(lambda: len(told) == 6)
        await client.register_topics({"t": 1})
        await trio.sleep(1)

        assert sorted(told) == [f"{what} node{n}" for what in ("quotas", "users") for n in range(3)]


async def test_rules_are_in_force_on_every_node(autojump_clock: MockClock) -> None:
    """Whoever is asked decides by what he follows."""
    async with surroundings() as here, here.connect() as client:
        await client.create_acls([Acl("User:alice", Operation.READ, ResourceType.GROUP, "a")])

        def may() -> list[bool]:
            rules = [host.node.registry.core.rules for host in here.hosts]
            right = ("User:alice", "h", Operation.READ, ResourceType.GROUP, "a")
            return [one.allows(*right) for one in rules]

        await until(lambda: all(may()))
        await client.delete_acls(await client.describe_acls())
        await until(lambda: not any(may()))


async def test_groups_hear_of_topics_while_their_node_is_cut_off(
    autojump_clock: MockClock,
) -> None:
    """A group by pattern is told once it can be: else it would never read the new topic."""
    async with surroundings() as here, here.connect() as client:
        await client.register_topics({"orders": 1})
        group = next(g for g in GROUPS if here.cluster.leader_of(g) is not here.owner)
        async with client.join(group, pattern="orders.*", session_timeout_ms=30_000) as member:
            first = await member.assignment()
            assert {tp.topic for tp in first.partitions} == {"orders"}
            leader = here.cluster.leader_of(group)
            leader.contact = Contact.CUT_OFF
            await until(lambda: leader.node.shard_of(group).status is Status.SUSPENDED)
            await client.register_topics({"orders-2": 1})
            leader.contact = Contact.FINE
            await until(lambda: member.rebalance_needed)
            second = await member.assignment()

            assert {tp.topic for tp in second.partitions} == {"orders", "orders-2"}


async def test_a_list_waits_until_everything_is_led(autojump_clock: MockClock) -> None:
    """Half of all groups would be taken for all of them."""
    async with surroundings() as here, here.connect(request_timeout_ms=3_000) as client:
        for host in here.hosts:
            host.contact = Contact.CUT_OFF
        await until(lambda: not any(host.machine.is_connected for host in here.hosts))

        with pytest.raises(RetriableError):
            await client.list_groups()
