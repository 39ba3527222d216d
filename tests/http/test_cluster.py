"""What a node of a cluster shows over HTTP: what it leads, and who has the rest."""

from dataclasses import replace

import pytest
import trio
from trio.testing import MockClock

from coordinator.http.ask import Asker
from coordinator.http.node_view import NodeView
from coordinator.http.routes import Refused
from coordinator.http.viewer import EVERYBODY
from coordinator.runtime.shard import Status
from tests.server.world import commit
from tests.sim.cluster import PARTITIONS, Contact, Host, ask, cluster, until


def asker(host: Host) -> Asker:
    """Return what looks at the groups of a node."""
    return Asker(host.node, host.store, trio.lowlevel.checkpoint)


async def test_a_node_names_the_others_and_what_they_lead(autojump_clock: MockClock) -> None:
    """Its lists are not all there is."""
    async with cluster() as here:
        for host in here.hosts.values():
            settings = replace(here.settings, node_id=host.number)
            view = NodeView(host.node, host.environment, settings, host.store, lambda: 0)
            shown = view.show({}, with_samples=False).others
            led = {
                other.number: sum(s.status is Status.ACTIVE for s in other.node.shards)
                for other in here.hosts.values()
            }

            assert {one.node_id: one.partitions for one in shown} == {
                number: count for number, count in led.items() if number != host.number
            }
            assert all(one.address == f"node{one.node_id}:9310" for one in shown)
            assert all(one.ready for one in shown)
            assert sum(led.values()) == PARTITIONS


async def test_a_group_that_another_node_leads_is_refused_with_its_address(
    autojump_clock: MockClock,
) -> None:
    """What this one holds may be behind; and whoever asks wants to know where."""
    async with cluster() as here:
        leader = here.leader_of("g")
        await ask(leader.connect(), commit(7))
        other = here.other_than(leader)

        assert await asker(leader).group("g", lambda core: "g" in core.groups, EVERYBODY)
        with pytest.raises(Refused, match=f"node {leader.number}, at {leader.name}:9310, shows it"):
            await asker(other).group("g", lambda _core: None, EVERYBODY)


async def test_while_nobody_leads_a_group_that_is_said(autojump_clock: MockClock) -> None:
    """It passes within seconds."""
    async with cluster() as here:
        leader = here.leader_of("g")
        other = here.other_than(leader)
        other.contact = Contact.CUT_OFF
        here.kill(leader)
        here.end_session(leader)
        await until(lambda: not other.machine.is_connected)
        with pytest.raises(Refused, match="no node leads its partition"):
            await asker(other).group("g", lambda _core: None, EVERYBODY)
