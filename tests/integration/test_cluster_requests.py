"""What commands and clients ask of three nodes over a real ensemble, whichever they begin with."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

import client
from bench.ensemble import Ensemble
from client.blocking import connect_blocking
from protocol.partition import TopicPartition
from tests.integration.cluster_support import Nodes, cluster
from tests.integration.daemon import Daemon, run_cli, until

pytestmark = pytest.mark.integration

SESSION: Final = "cluster.session.timeout.ms=4000"
GROUPS: Final = [f"group-{number}" for number in range(8)]
T0: Final = TopicPartition("orders", 0)
_numbers = count()


@pytest.fixture
def nodes(zookeeper: Ensemble) -> Iterator[Nodes]:
    """Run three nodes in a chroot that nobody has used."""
    with cluster(f"{zookeeper.hosts}/requests/{next(_numbers)}", SESSION) as running:
        yield running


def rows(*arguments: str) -> list[dict[str, Any]]:
    """Run a command that shows rows, and return them."""
    done = run_cli(*arguments, "--output", "json")
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def test_commands_show_all_of_a_cluster_from_any_node(nodes: Nodes) -> None:
    """Topics, groups and lag lie with different nodes; and one of these is away in the end."""
    with connect_blocking(nodes.addresses) as driver:
        driver.register_topics({"orders": 1})
        driver.report_end_offsets({T0: 12})
        for group in GROUPS:
            driver.commit(group, {T0: 5})
    assert len({nodes.leader_of(group) for group in GROUPS}) > 1
    for address in nodes.addresses:
        listed = rows("groups", "list", "--at", address)
        topics = rows("topics", "list", "--at", address)
        shown = rows("groups", "describe", *GROUPS, "--at", address)
        exported = run_cli("offsets", "export", "--all-groups", "--at", address, "--output", "json")
        kept = list(map(json.loads, exported.stdout.splitlines()))

        assert sorted(group["group"] for group in listed) == GROUPS
        assert [topic["topic"] for topic in topics] == ["orders"]
        assert {(row["group"], row["lag"]) for row in shown} == {(g, 7) for g in GROUPS}
        assert {(row["group"], row["offset"]) for row in kept} == {(g, 5) for g in GROUPS}
    at = ("--at", ",".join(nodes.addresses))
    assert run_cli("health", "--all", *at).returncode == 0
    nodes.kill(1)
    away = run_cli("health", "--all", *at)
    assert (away.returncode, "away" in away.stdout) == (1, True)
    until(lambda: run_cli("groups", "list", *at).returncode == 0, "all are led")


def test_a_password_is_over_on_every_node(zookeeper: Ensemble, tmp_path: Path) -> None:
    """It is changed where the users are decided; sessions elsewhere end, too."""
    for name in ("root", "alice", "other"):
        (tmp_path / name).write_text(f"{name}s-secret\n")
    (tmp_path / "config").write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.username=root\nsasl.password=roots-secret\n"
    )
    ports = [_free_port() for _ in range(3)]
    settings = (
        f"cluster.zookeeper={zookeeper.hosts}/requests/{next(_numbers)}",
        "cluster.create=true",
        "sasl.bootstrap.user=root",
        f"sasl.bootstrap.password.file={tmp_path / 'root'}",
    )
    running = [
        Daemon(
            None,
            (*settings, f"node.id={number}"),
            options=("--listen", f"SASL_PLAINTEXT://127.0.0.1:{port}"),
        )
        for number, port in enumerate(ports, 1)
    ]
    addresses = [f"127.0.0.1:{port}" for port in ports]

    def users(*arguments: str) -> None:
        where = ("--at", ",".join(addresses), "--command-config", str(tmp_path / "config"))
        done = run_cli(*arguments, *where, "--yes")
        assert done.returncode == 0, done.stderr

    try:
        for one in running:
            one.ready()
        users("users", "add", "alice", "--password-file", str(tmp_path / "alice"))
        users("acls", "add", "User:alice", "read", "--group", "etl", "--topic", "orders")
        config = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": "alices-secret",
        }
        for address in addresses:
            with connect_blocking(address, security=config) as driver:
                driver.commit("etl", {T0: 5})
        with ExitStack() as stack:
            drivers = [
                stack.enter_context(connect_blocking(address, security=config))
                for address in addresses
            ]
            users("users", "password", "alice", "--password-file", str(tmp_path / "other"))
            until(lambda: all(one.events("connection.closed") for one in running), "sessions end")
            for driver in drivers:
                with pytest.raises(client.AuthenticationFailed):
                    driver.commit("etl", {T0: 6})
    finally:
        for one in running:
            one.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
