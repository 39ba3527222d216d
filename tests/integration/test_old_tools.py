"""A cluster's directories in ZooKeeper, as tools of Kafka 0.8 and its ZooKeeper read them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from kazoo.client import KazooClient

from bench.ensemble import Ensemble
from bench.peer_jars import class_path
from tests.integration.cluster_support import Nodes, cluster
from tests.integration.daemon import until
from tests.integration.ensemble import needs_zookeeper

pytestmark = [
    pytest.mark.integration,
    needs_zookeeper,
    pytest.mark.skipif(not class_path("kafka-0.8"), reason="no jars of Kafka 0.8: make peers"),
]

CHROOT: Final = "/old-tools"
PARTITIONS: Final = 7
JOURNALS: Final = 3
SOURCE: Final = Path(__file__).with_name("OldTools.java")
OFFSETS: Final = "/brokers/topics/__consumer_offsets"


def run_java(*arguments: str, lines: str = "") -> str:
    """Run a tool of Kafka 0.8, with *lines* as its input; return what it prints."""
    done = subprocess.run(
        ["java", "-Xmx96m", "-cp", class_path("kafka-0.8"), *arguments],
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def shell(at: str, *lines: str) -> str:
    """Run lines in the shell of ZooKeeper 3.4, as ``zookeeper-shell`` does."""
    words = ("org.apache.zookeeper.ZooKeeperMain", "-server", at)
    return run_java(*words, lines="".join([f"{line}\n" for line in (*lines, "quit")]))


def topics(at: str, *options: str) -> list[dict[str, str]]:
    """Return what ``kafka-topics --describe`` prints of each partition."""
    printed = run_java("kafka.admin.TopicCommand", "--zookeeper", at, "--describe", *options)
    rows = [line.split("\t")[1:] for line in printed.splitlines() if line.startswith("\t")]
    return [dict(field.split(": ", 1) for field in row) for row in rows]


@contextmanager
def looking(at: str) -> Iterator[KazooClient]:
    """Look at znodes without a tool."""
    client = KazooClient(at)
    client.start()
    yield client
    client.stop()
    client.close()


def leaders(client: KazooClient) -> list[tuple[int, int]]:
    """Return who leads each partition, and its epoch, by what nodes themselves go by."""
    found = [client.get(f"/journals/{number}/leader")[0] for number in range(JOURNALS)]
    each = [json.loads(data or b'{"node":-1,"epoch":0}') for data in found]
    return [(one["node"], one["epoch"]) for one in (each * PARTITIONS)[:PARTITIONS]]


def test_tools_of_old_show_who_leads_before_and_after_a_node_is_killed(
    zookeeper: Ensemble,
) -> None:
    """Scripts of many years go on: brokers, leaders, epochs, who is in sync, the cluster's id."""
    at = f"{zookeeper.hosts}{CHROOT}"
    settings = (
        f"cluster.journals={JOURNALS}",
        f"offsets.topic.num.partitions={PARTITIONS}",
        "cluster.session.timeout.ms=4000",
    )

    def old_tools() -> set[str]:
        return set(run_java(str(SOURCE), at, str(PARTITIONS)).splitlines())

    def expected(client: KazooClient, nodes: Nodes) -> set[str]:
        lines = {f"broker {node} 127.0.0.1:{one.port}" for node, one in nodes.running.items()}
        for number, (node, epoch) in enumerate(leaders(client)):
            state = json.loads(client.get(f"{OFFSETS}/partitions/{number}/state")[0])
            assert node in state["isr"]
            lines.add(f"partition {number} leader {node} epoch {epoch} isr {state['isr']}")
        return lines

    with cluster(at, *settings, nodes=2) as nodes, looking(at) as client:
        until(lambda: {node for node, _ in leaders(client)} == {1, 2}, "both lead")

        # It may be balanced meanwhile.
        until(lambda: old_tools() == expected(client, nodes), "the tool shows that")
        assert topics(at, "--unavailable-partitions") == []
        assert topics(at, "--under-replicated-partitions") == []
        cluster_id = nodes.running[1].wait_for("cluster.found")["cluster_id"]
        printed = shell(at, "ls /brokers/ids", "get /cluster/id", "get /brokers/ids/2")
        assert "[1, 2]" in printed
        assert f'{{"version":1,"id":"{cluster_id}"}}' in printed
        assert f'"host":"127.0.0.1","port":{nodes.running[2].port},' in printed

        before = leaders(client)
        nodes.kill(1)
        until(lambda: {node for node, _ in leaders(client)} == {2}, "node 2 leads all")
        assert old_tools() == expected(client, nodes)
        found = zip(topics(at), before, leaders(client), strict=True)
        for row, (node, epoch), (_, now) in found:
            assert row["Leader"] == "2"
            # Of what node 2 has led all along nothing is written.
            assert (now > epoch, row["Isr"]) == (True, "2") if node == 1 else now == epoch
