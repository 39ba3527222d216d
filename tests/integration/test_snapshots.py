"""Snapshots over a real ensemble, by real child processes, and what may happen to them."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain, count, islice
from pathlib import Path
from typing import Final

import pytest
import trio

from bench.ensemble import Ensemble
from coordinator.cluster import snapshot_child
from coordinator.cluster.engine import ListLog, ListSnapshots, ReadSnapshot
from coordinator.cluster.zookeeper import Access, Visit
from protocol.group_ids import offsets_partition
from tests.integration.cluster_support import Nodes, cluster, workers
from tests.integration.daemon import Daemon, until

pytestmark = pytest.mark.integration

SETTINGS: Final = (
    "cluster.session.timeout.ms=4000",
    "cluster.snapshot.entries=32",
    "cluster.journals=3",
    "group.initial.rebalance.delay.ms=0",
)
JOURNALS: Final = 3


def _in_journal(number: int) -> list[str]:
    """Return two groups of one journal."""
    names = (f"group-{n}" for n in count())
    return list(islice((g for g in names if offsets_partition(g, 50) % JOURNALS == number), 2))


GROUPS: Final = tuple(chain.from_iterable(map(_in_journal, range(JOURNALS))))
_numbers = count()


@pytest.fixture
def access(zookeeper: Ensemble) -> Access:
    """Return a way to a chroot that nobody has used."""
    chroot = f"/snapshots/{next(_numbers)}"
    return Access(hosts=zookeeper.hosts, chroot=chroot, session_timeout_ms=6_000)


@pytest.fixture
def nodes(access: Access) -> Iterator[Nodes]:
    """Run three nodes there."""
    with cluster(f"{access.hosts}{access.chroot}", *SETTINGS) as running:
        yield running


def left(access: Access) -> list[tuple[int, int]]:
    """Return of each journal how many entries, and how many snapshots, are in ZooKeeper."""
    with Visit(access, patience_s=30) as visit:
        return [
            (
                sum(len(visit.ask(ListLog(number, d)).value) for d in _directories(visit, number)),
                len(visit.ask(ListSnapshots(number)).value),
            )
            for number in range(JOURNALS)
        ]


def _directories(visit: Visit, number: int) -> tuple[int, ...]:
    found: tuple[int, ...] = visit.ask(ListLog(number, None)).value
    return found


def kill_children(node: Daemon) -> None:
    """Kill the processes that make snapshots for a node."""
    for task in Path(f"/proc/{node.process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # It has just ended.
            for pid in map(int, (task / "children").read_text(encoding="ascii").split()):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if snapshot_child.__name__.encode() in command.split(b"\0"):
                    os.kill(pid, signal.SIGKILL)


async def test_snapshots_are_made_under_load_and_nobody_notices(
    nodes: Nodes, access: Access
) -> None:
    """Commits go on, and what a new node reads is what was acknowledged."""
    async with workers(nodes, *GROUPS) as working:
        for worker in working.values():
            await worker.commits_on(60)
        made = {line["journal"] for line in nodes.events("compaction.finished")}
        assert made == set(range(JOURNALS))
        for number in (1, 2, 3):
            await trio.to_thread.run_sync(nodes.stop, number)
            await trio.to_thread.run_sync(nodes.start, number)
        for worker in working.values():
            await worker.commits_on()

        assert [worker.generations for worker in working.values()] == [{1}] * len(GROUPS)
    assert nodes.events("compaction.failed") == []


async def test_a_child_that_is_killed_leaves_nothing_behind(nodes: Nodes, access: Access) -> None:
    """Another one makes what it did not, and its chunks are gone."""
    async with workers(nodes, *GROUPS) as working:
        node = nodes.running[1]

        def has_failed() -> bool:
            # Not by one kill: a child that has told what it made has done its work.
            kill_children(node)
            return bool(node.events("compaction.failed"))

        await trio.to_thread.run_sync(until, has_failed, "failure")
        finished = len(node.events("compaction.finished"))
        for worker in working.values():
            await worker.commits_on(40)

        def is_made() -> bool:
            return len(node.events("compaction.finished")) > finished

        await trio.to_thread.run_sync(until, is_made, "another")
        assert "was killed by signal 9" in node.events("compaction.failed")[0]["reason"]
    until(lambda: all(snapshots == 1 for _, snapshots in left(access)), "one snapshot each")


async def test_the_next_leader_goes_on_where_one_was_killed_in_its_trimming(
    nodes: Nodes, access: Access
) -> None:
    """What it left of the log, and of older snapshots, would be there for ever."""
    async with workers(nodes, *GROUPS) as working:
        leader = nodes.leader_of(GROUPS[0])
        with Visit(access, patience_s=30) as visit:

            def is_there() -> bool:
                return bool(visit.ask(ReadSnapshot(0)).value.name)

            await trio.to_thread.run_sync(until, is_there, "snapshot")
        nodes.kill(leader)
        for worker in working.values():
            await worker.commits_on(40)
        assert [worker.generations for worker in working.values()] == [{1}] * len(GROUPS)

        def is_tidy() -> bool:
            return all(entries < 150 and snapshots <= 1 for entries, snapshots in left(access))

        # What is left of a child that ended with its node goes with the next snapshot.
        await trio.to_thread.run_sync(until, is_tidy, "short logs and one snapshot each")
