"""Spark drivers on a cluster, whose nodes are killed in the middle of their work."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Final

import pytest

from bench.ensemble import Ensemble
from client.blocking import connect_blocking
from tests.integration.cluster_support import Nodes, cluster
from tests.integration.spark_support import GROUP, Driver, Feeder, Group, Written, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.spark]

KILLS: Final = 3
SETTINGS: Final = ("cluster.session.timeout.ms=4000", "group.min.session.timeout.ms=1000")
# Two Sparks at a time, and three nodes beside them.
START_S: Final = 180.0
_numbers = count()


@pytest.fixture
def nodes(zookeeper: Ensemble) -> Iterator[Nodes]:
    """Run three nodes in a chroot that nobody has used."""
    where = f"{zookeeper.hosts}/spark/{next(_numbers)}"
    with cluster(where, *SETTINGS) as running:
        yield running


def wait_for_more(group: Group) -> None:
    """Wait until every partition is committed further than it is as soon as somebody answers."""
    before = group.offsets()
    wait_until(
        "more is committed", lambda: all(group.offsets()[p] > at for p, at in before.items())
    )


def test_drivers_write_each_row_once_while_their_groups_node_is_killed_again_and_again(
    nodes: Nodes, tmp_path: Path
) -> None:
    """A batch that is under way when the node goes is committed at the next one, and not done anew.

    The node has no disk that would have to come back, and nobody joins, leaves or rebalances.
    """
    with ExitStack() as stack:
        feeder = Feeder(tmp_path / "log")
        stack.callback(feeder.close)
        drivers = [
            Driver(name, tmp_path / "drivers", feeder.root, ",".join(nodes.addresses))
            for name in ("a", "b")
        ]
        for driver in drivers:
            stack.callback(driver.kill)
            driver.go()
        group = Group(stack.enter_context(connect_blocking(nodes.addresses, client_id="test")))
        wait_until("two members", lambda: len(group.member_ids()) == len(drivers), START_S)
        members = group.member_ids()
        feeder.feed(5)
        for driver in drivers:
            driver.wait_rows()
        generation = group.client.describe_groups([GROUP])[0].generation_id
        for _ in range(KILLS):
            killed = nodes.leader_of(GROUP)
            nodes.kill(killed)
            wait_for_more(group)
            nodes.start(killed)
        ends = feeder.stop()
        wait_until("all rows are committed", lambda: group.offsets() == ends)
        written = Written(*(driver.sink for driver in drivers))

        written.expect_all(ends)
        assert written.repeated == []
        assert group.member_ids() == members
        assert group.client.describe_groups([GROUP])[0].generation_id == generation
