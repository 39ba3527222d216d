"""Several nodes of one machine under one supervisor, over a real ensemble."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from bench.ensemble import Ensemble
from tests.integration.daemon import Daemon, ServiceManager, daemon, run_cli, until

pytestmark = pytest.mark.integration

NODES: Final = (4, 5)
_numbers = count()


@contextmanager
def nodes(zookeeper: Ensemble, *prefix: str) -> Iterator[Daemon]:
    """Run two nodes in a chroot that nobody has used; wait until both are ready."""
    where = f"cluster.zookeeper={zookeeper.hosts}/nodes/{next(_numbers)}"
    settings = (
        where,
        "cluster.create=true",
        f"node.id={NODES[0]}",
        "cluster.session.timeout.ms=4000",
    )
    with daemon(None, *settings, prefix=prefix, options=[f"--nodes={len(NODES)}"]) as one:
        until(lambda: {line["node_id"] for line in one.events("ready")} == {*NODES}, "both ready")
        yield one


def pids(one: Daemon) -> dict[int, int]:
    """Return by node the process that was started last."""
    return {line["node"]: line["pid"] for line in one.events("node.started")}


def is_there(pid: int) -> bool:
    """Say whether a process runs; one of another parent is not left as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_node_that_is_killed_is_started_again_and_a_stop_ends_all(zookeeper: Ensemble) -> None:
    """Its journals are led by the other one meanwhile, and the supervisor says what happened."""
    with nodes(zookeeper) as one:
        first = pids(one)
        os.kill(first[4], signal.SIGKILL)
        until(lambda: len(one.events("ready")) == 3, "the node again")
        one.process.send_signal(signal.SIGHUP)
        until(lambda: len(one.events("settings.reloaded")) == 3, "a reload of all three")
        status = one.stop()

        assert status == 0
        assert pids(one)[5] == first[5]
        (ended,) = one.events("node.ended")
        assert (ended["node"], ended["exit_status"], ended["retry_in_ms"]) == (4, 137, 1000)
        assert {line["node_id"] for line in one.events("stopped") if line["clean"]} == {*NODES}
        assert not any(map(is_there, pids(one).values()))
        assert one.stray == []


def test_nodes_end_with_a_supervisor_that_is_killed(zookeeper: Ensemble) -> None:
    """The next start would find their ports taken, and nobody would know whose they are."""
    with nodes(zookeeper) as one:
        one.process.kill()

        until(lambda: not any(map(is_there, pids(one).values())), "the end of all")


def test_systemd_hears_of_all_nodes_as_of_one_daemon(zookeeper: Ensemble, tmp_path: Path) -> None:
    """It starts what needs the coordinator when it is ready, and knows nothing of nodes."""
    with ServiceManager(tmp_path) as systemd, nodes(zookeeper, *systemd.prefix) as one:
        assert "STATUS=2 of 2 nodes are ready" in systemd.hear("READY=1")
        systemd.hear_reload_and_stop(one)


def test_nodes_without_a_cluster_or_with_a_folder_are_refused(tmp_path: Path) -> None:
    """Two processes would have one folder."""
    folder = ("--data-dir", str(tmp_path / "data"))
    somewhere = ("--set", "cluster.zookeeper=127.0.0.1:1/x")
    refused: list[Any] = [
        run_cli("serve", "--nodes", "2", *folder),
        run_cli("serve", "--nodes", "2", *folder, *somewhere),
        run_cli("serve", "--nodes", "2", *somewhere, "--listen", "127.0.0.1:65535"),
    ]

    assert [done.returncode for done in refused] == [2, 2, 78]
    assert "--nodes needs a cluster (cluster.zookeeper)" in refused[0].stderr
    assert "A node of a cluster (cluster.zookeeper) has no --data-dir." in refused[1].stderr
    assert "listeners of node 2: there is no port 65536" in refused[2].stderr
