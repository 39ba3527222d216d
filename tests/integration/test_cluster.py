"""Three nodes over a real ensemble: what clients notice when one of them goes away."""

from collections.abc import Iterator
from itertools import count
from typing import Final

import pytest

from bench.ensemble import Ensemble
from tests.integration.cluster_support import Nodes, cluster, workers

pytestmark = pytest.mark.integration

# The shortest that the ensemble grants: what a test waits for after a kill.
SESSION: Final = "cluster.session.timeout.ms=4000"
# Of journals that are led by different nodes, some of them.
GROUPS: Final = tuple(f"group-{number}" for number in range(4))
_numbers = count()


@pytest.fixture
def nodes(zookeeper: Ensemble) -> Iterator[Nodes]:
    """Run three nodes in a chroot that nobody has used."""
    where = f"{zookeeper.hosts}/cluster/{next(_numbers)}"
    with cluster(where, SESSION, "group.initial.rebalance.delay.ms=0") as running:
        yield running


async def test_groups_go_on_unchanged_when_the_node_that_leads_them_is_killed(nodes: Nodes) -> None:
    """Another node has followed, so members keep their ids, their generation and their offsets."""
    async with workers(nodes, *GROUPS) as working:
        nodes.kill(nodes.leader_of(GROUPS[0]))
        for worker in working.values():
            await worker.commits_on()

        assert [len(worker.member_ids) for worker in working.values()] == [1] * len(GROUPS)
        assert [worker.generations for worker in working.values()] == [{1}] * len(GROUPS)
    assert nodes.events("journal.led")
    assert not nodes.events("journal.deposed")


async def test_a_node_that_stops_hands_over_first(nodes: Nodes) -> None:
    """So nobody waits for the end of its session: the others lead before it has gone."""
    async with workers(nodes, *GROUPS) as working:
        stopped = nodes.stop(nodes.leader_of(GROUPS[0]))
        for worker in working.values():
            await worker.commits_on()

        assert [worker.generations for worker in working.values()] == [{1}] * len(GROUPS)
    led = {line["journal"] for line in stopped.events("journal.led")}
    assert led <= {line["journal"] for line in stopped.events("journal.handed_over")}
    assert stopped.events("stopped")[0]["clean"]


async def test_a_node_that_comes_back_follows_and_leads_again(nodes: Nodes) -> None:
    """A rolling restart: each node in turn, and nobody rebalances."""
    async with workers(nodes, *GROUPS) as working:
        for number in (1, 2, 3):
            nodes.stop(number)
            nodes.start(number)
        for worker in working.values():
            await worker.commits_on()

        assert [worker.generations for worker in working.values()] == [{1}] * len(GROUPS)
