"""The way of groups from a cluster into one node's folder, and into a cluster again."""

from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from bench.ensemble import Ensemble
from protocol.messages import (
    CompactLogRequest,
    DescribeGroupsRequest,
    GroupFetch,
    OffsetFetchRequest,
)
from tests.integration.cluster_support import Worker, cluster, workers
from tests.integration.daemon import Daemon, daemon, run_cli

pytestmark = pytest.mark.integration

LAYOUT: Final = ("cluster.journals=3", "offsets.topic.num.partitions=7")
GROUPS: Final = tuple(f"group-{number}" for number in range(4))
_numbers = count()


def options(where: str) -> list[str]:
    """Return the settings of a cluster as a command takes them."""
    settings = (f"cluster.zookeeper={where}", *LAYOUT)
    return [word for setting in settings for word in ("--set", setting)]


def state_of(node: Daemon) -> dict[str, Any]:
    """Return what one node, which has everything, knows of each group."""
    with node.connect() as connection:
        while True:
            described: Any = connection.ask(DescribeGroupsRequest(GROUPS))
            if all(group.error == 0 for group in described.groups):
                break
        fetch = OffsetFetchRequest(tuple(GroupFetch(name, None) for name in GROUPS), False)
        fetched: Any = connection.ask(fetch)
    return {
        group.group_id: (group.generation_id, group.members, offsets.topics)
        for group, offsets in zip(described.groups, fetched.groups, strict=True)
    }


def offset_in(state: dict[str, Any], name: str) -> int:
    """Return what a group has committed last."""
    _, _, topics = state[name]
    (offset,) = {found.offset for topic in topics for found in topic.partitions}
    committed: int = offset
    return committed


async def test_groups_move_from_a_cluster_into_a_folder_and_back(
    zookeeper: Ensemble, tmp_path: Path
) -> None:
    """With their members, generations and offsets; what was acknowledged is all there."""
    number = next(_numbers)
    where, again = (f"{zookeeper.hosts}/export/{number}/{name}" for name in ("a", "b"))
    folder = tmp_path / "data"
    export = ("cluster", "export", "--to", str(folder), *options(where))
    run = trio.to_thread.run_sync
    with cluster(where, *LAYOUT, "group.initial.rebalance.delay.ms=0", nodes=2) as nodes:
        async with workers(nodes, *GROUPS) as working:
            with nodes.running[1].connect() as connection:
                connection.ask(CompactLogRequest())
            for worker in working.values():
                await worker.commits_on(10)
            dry = await run(run_cli, *export)
            assert (dry.returncode, folder.exists()) == (3, False), dry.stderr
            done = await run(lambda: run_cli(*export, "--yes"))
        assert (done.returncode, done.stderr) == (0, "")
        assert "nobody leads it any more" in done.stdout
        frozen = await run(run_cli, "cluster", "status", *options(where))
        assert frozen.stdout.count("frozen") == 3
        at = ("--at", nodes.addresses[0])
        told = await run(run_cli, "cluster", "status", *at)
        assert (1, "Frozen, as the cluster was exported: journal 0, 1, 2.\n") == (
            told.returncode,
            told.stderr,
        )
        listed = await run(run_cli, "groups", "list", "--timeout", "1", *at)
        assert (1, True) == (listed.returncode, "frozen until `cluster thaw`" in listed.stderr)
    with daemon(folder, "offsets.topic.num.partitions=7") as alone:
        state = state_of(alone.ready())
    check(state, working)

    refused = run_cli(*export, "--yes")
    assert (refused.returncode, "not empty" in refused.stderr) == (78, True)
    moved = run_cli("cluster", "init", "--from", str(folder), "--yes", *options(again))
    assert (moved.returncode, moved.stderr) == (0, "")
    with cluster(again, *LAYOUT, nodes=1) as nodes:
        assert state_of(nodes.running[1]) == state


async def test_an_export_is_undone_and_groups_go_on(zookeeper: Ensemble, tmp_path: Path) -> None:
    """Who has exported too early must not need a backup of ZooKeeper."""
    where = f"{zookeeper.hosts}/export/{next(_numbers)}"
    thaw = ("cluster", "thaw", *options(where))
    run = trio.to_thread.run_sync
    with cluster(where, *LAYOUT, "group.initial.rebalance.delay.ms=0", nodes=2) as nodes:
        async with workers(nodes, *GROUPS) as working:
            early = await run(run_cli, *thaw)
            to = ("--to", str(tmp_path / "data"), "--yes")
            done = await run(run_cli, "cluster", "export", *to, *options(where))
            assert done.returncode == 0, done.stderr
            dry = await run(run_cli, *thaw)
            thawed = await run(lambda: run_cli(*thaw, "--yes"))
            for worker in working.values():
                await worker.commits_on(10)
        for worker in working.values():
            assert (len(worker.generations), len(worker.member_ids)) == (1, 1)

    assert (early.returncode, early.stdout.endswith(" isn't frozen.\n")) == (0, True)
    assert (dry.returncode, dry.stdout.count("frozen")) == (3, 3)
    assert (thawed.returncode, thawed.stderr) == (0, "")
    assert "may lead the cluster" in thawed.stdout


def check(state: dict[str, Any], working: dict[str, Worker]) -> None:
    """Fail unless a folder has what clients were told; what was on its way may be there, too."""
    for name, worker in working.items():
        generation, members, _ = state[name]
        assert {generation} == worker.generations
        assert {member.member_id for member in members} == worker.member_ids
        assert worker.committed <= offset_in(state, name) <= worker.committed + 1
