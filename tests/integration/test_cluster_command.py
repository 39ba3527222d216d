"""A cluster is made of a node's folder, and looked at, on a real ensemble."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from bench.ensemble import Ensemble
from coordinator.cluster import znodes
from coordinator.cluster.engine import (
    READ_CHUNKS_MAX,
    Code,
    Leader,
    ReadChunks,
    ReadLeader,
    ReadNode,
    ReadSnapshot,
    Register,
    Registration,
    SetLeader,
    Snapshot,
)
from coordinator.cluster.follower import SnapshotReader
from coordinator.cluster.zookeeper import Access, Visit
from coordinator.log.directory import OsDirectory
from coordinator.log.format import NODE_PARTITION, Batch, Entry
from coordinator.log.journal import Journal
from coordinator.log.replay import all_batches
from tests.integration.cluster_support import cluster
from tests.integration.daemon import daemon, run_cli, until

pytestmark = pytest.mark.integration

PARTITIONS: Final = 7
JOURNALS: Final = 3
SESSION: Final = "cluster.session.timeout.ms=4000"
ID: Final = "0123456789012345678901"
_numbers = count()
Fold = dict[tuple[int, str, int, Any], tuple[int, Any]]


@pytest.fixture
def access(zookeeper: Ensemble) -> Access:
    """Return a way to a chroot that nobody has used."""
    chroot = f"/command/{next(_numbers)}"
    return Access(hosts=zookeeper.hosts, chroot=chroot, session_timeout_ms=6_000)


def options(access: Access, *more: str) -> list[str]:
    """Return the settings of a node of the cluster there."""
    settings = (
        f"cluster.zookeeper={access.hosts}{access.chroot}",
        f"cluster.journals={JOURNALS}",
        f"offsets.topic.num.partitions={PARTITIONS}",
        *more,
    )
    return [word for setting in settings for word in ("--set", setting)]


def opened(folder: Path) -> Journal:
    """Open a folder."""
    return Journal(
        OsDirectory(folder),
        num_partitions=PARTITIONS,
        segment_bytes=4096,
        node_id=1,
        new_cluster_id=lambda: ID,
        new_secret=lambda: b"s" * 16,
    )


def filled(folder: Path) -> tuple[Fold, dict[int, int], int]:
    """Write a log; return what it comes to, where its partitions end, and its epoch."""
    journal = opened(folder)
    partitions = (*range(PARTITIONS - 1), NODE_PARTITION)  # One of them is empty.
    for number in range(120):
        partition = partitions[number % len(partitions)]
        scope = f"group-{number % 3}"
        value = None if number % 11 == 0 else ("x" * 40, number)
        journal.append(partition, [Entry(1, 0, scope, ("k", number % 5), value)], 1_700 + number)
        if (flush := journal.take_flush()) is not None:
            journal.write_flush(flush)
    fold = folded(all_batches(journal.load()))
    ends = {p: journal.end_offset(p) for p in partitions}
    journal.close(clean=True)
    return fold, ends, journal.leader_epoch


def folded(batches: Iterator[Batch]) -> Fold:
    """Return of each key where and what its last entry is, if it is no tombstone."""
    fold: Fold = {}
    for batch in batches:
        for offset, entry in batch.entries:
            key = (batch.partition, entry.scope, entry.type, entry.key)
            fold.pop(key, None)
            if entry.value is not None:
                fold[key] = (offset, entry.value)
    return fold


def snapshot_of(visit: Visit, number: int) -> Snapshot:
    """Return what a journal begins with."""
    reply = visit.ask(ReadSnapshot(number))
    assert isinstance(reply.value, Snapshot)
    return reply.value


def read(visit: Visit) -> tuple[Fold, dict[int, int]]:
    """Return what the snapshots of a cluster come to, and where their partitions end."""
    fold: Fold = {}
    ends: dict[int, int] = {}
    for number in range(JOURNALS):
        snapshot = snapshot_of(visit, number)
        reader, chunks = SnapshotReader(snapshot), 0
        seen: dict[int, int] = {}
        batches: list[Batch] = []
        while chunks < snapshot.chunks:
            reply = visit.ask(ReadChunks(number, snapshot.name, chunks, READ_CHUNKS_MAX))
            for chunk in reply.value:
                batches += reader.feed(chunk, seen)
            chunks += len(reply.value)
        reader.finish()
        here = folded(iter(batches))
        assert {number} >= {0 if p == NODE_PARTITION else p % JOURNALS for p, *_ in here}
        fold |= here
        ends |= snapshot.ends
    return fold, ends


def test_a_folder_becomes_a_cluster_and_is_not_served_alone(access: Access, tmp_path: Path) -> None:
    """Two coordinators of the same groups would each take commits that the other doesn't know."""
    fold, ends, epoch = filled(tmp_path / "data")

    init = ("cluster", "init", "--from", str(tmp_path / "data"), *options(access))
    kept = {one.name: one.read_bytes() for one in (tmp_path / "data").iterdir()}
    dry = run_cli(*init)
    assert (3, True) == (dry.returncode, "--yes" in dry.stderr)
    assert kept == {one.name: one.read_bytes() for one in (tmp_path / "data").iterdir()}
    with Visit(replace(access, chroot=""), patience_s=30) as visit:
        assert znodes.Seen(False) == visit.do(znodes.Look(access.chroot))

    done = run_cli(*init, "--yes")

    assert (0, "") == (done.returncode, done.stderr)
    assert f"is the cluster {ID} now" in done.stdout
    with Visit(access, patience_s=30) as visit:
        assert (fold, ends) == read(visit)
        for number in range(JOURNALS):
            leader = visit.ask(ReadLeader(number)).value
            assert (leader.epoch > epoch, leader.node, leader.session) == (True, -1, 0)
    with daemon(tmp_path / "data", f"offsets.topic.num.partitions={PARTITIONS}") as alone:
        assert "were moved into a cluster" in alone.wait_for("refused")["reason"]
        assert alone.wait() == 78

    again = run_cli(*init)
    assert (0, True) == (again.returncode, "was moved into the cluster" in again.stdout)


def test_an_interrupted_move_begins_anew(access: Access, tmp_path: Path) -> None:
    """There is no cluster before its id, however much of it is there."""
    fold, ends, _ = filled(tmp_path / "data")
    init = ("cluster", "init", "--yes", "--from", str(tmp_path / "data"))

    small = run_cli(*init, *options(access, "cluster.state.max.bytes=1048576"))
    assert small.returncode == 0, small.stderr
    with Visit(access, patience_s=30) as visit:
        undone = znodes.Multi((znodes.Remove(znodes.CLUSTER_ID, {}),))
        assert znodes.Applied() == visit.do(undone)

    done = run_cli(*init, *options(access))
    assert (0, "") == (done.returncode, done.stderr)
    with Visit(access, patience_s=30) as visit:
        assert (fold, ends) == read(visit)


def test_a_cluster_that_is_there_is_not_written_over(access: Access, tmp_path: Path) -> None:
    """Its groups would be gone."""
    filled(tmp_path / "data")
    empty = run_cli("cluster", "init", *options(access))
    assert (0, True) == (empty.returncode, empty.stdout.startswith("Made the cluster"))
    there = run_cli("cluster", "init", *options(access))
    assert (0, True) == (there.returncode, there.stdout.startswith("There is already"))

    done = run_cli("cluster", "init", "--yes", "--from", str(tmp_path / "data"), *options(access))
    assert (78, True) == (done.returncode, "holds the cluster" in done.stderr)
    opened(tmp_path / "data").close(clean=True)


def test_the_status_shows_who_leads_what(access: Access) -> None:
    """Somebody who is called at night looks here first."""
    none = run_cli("cluster", "status", *options(access))
    assert (78, True) == (none.returncode, "holds no cluster" in none.stderr)
    run_cli("cluster", "init", *options(access))
    with Visit(access, patience_s=30) as visit:
        node = Registration(1, ("PLAINTEXT://h:1",), 1_700_000_000_000, "run", (1, 1), True)
        assert visit.ask(Register(node)).code is Code.OK
        session = visit.ask(ReadNode(1)).owner
        for number, owner in ((0, session), (1, 99)):
            leader = Leader(number + 5, 1, "run", owner, "claim")
            assert visit.ask(SetLeader(number, 0, leader, (), (1,))).code is Code.OK

        shown = run_cli("cluster", "status", *options(access))
        told = json.loads(run_cli("cluster", "status", "--output", "json", *options(access)).stdout)

    assert (1, "Nobody leads journal 1, 2.\n") == (shown.returncode, shown.stderr)
    assert "has 1 node." in shown.stdout
    assert "Node 1 listens at PLAINTEXT://h:1, ready, since 2023-11-14" in shown.stdout
    rows = told["journals"]
    assert [1, None, None] == [row["leader"] for row in rows]
    assert [5, 6, None] == [row["epoch"] for row in rows]
    assert [0, 0, 0] == [row["last_entry"] + row["tail_entries"] for row in rows]
    assert [True, True, False] == [row["since"] is not None for row in rows]


def test_a_journal_is_moved_and_any_node_shows_it(zookeeper: Ensemble) -> None:
    """Also when a node has ended."""
    with cluster(f"{zookeeper.hosts}/command/{next(_numbers)}", SESSION) as nodes:
        at = ("--at", nodes.addresses[0])

        def journals() -> list[dict[str, Any]]:
            shown = run_cli("cluster", "status", "--output", "json", *at)
            found: list[dict[str, Any]] = json.loads(shown.stdout)["journals"]
            return found

        until(lambda: {row["leader"] for row in journals()} == {1, 2, 3}, "a share for each node")
        (journal, *_) = [row["journal"] for row in journals() if row["leader"] == 2]
        done = run_cli("cluster", "move", str(journal), "3", "--yes", *at)
        moved = journals()[journal]
        with_all = run_cli("cluster", "status", *at)
        nodes.kill(2)
        until(lambda: {row["leader"] for row in journals()} == {1, 3}, "leaders for what it led")

    assert (0, "") == (done.returncode, done.stderr)
    assert (3, {"1", "2"}) == (moved["leader"], set(moved["behind"]))
    assert (0, "") == (with_all.returncode, with_all.stderr)
