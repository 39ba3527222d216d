"""Users, log-ins and rules with real processes: the way of docs/security.md."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import client
from client.blocking import connect_blocking
from tests.guide import ROOT
from tests.integration.daemon import daemon

pytestmark = pytest.mark.integration

ROOTS = "first-administrator-5c1"
ALICES = "alices-password-9e2"


def run(port: int, config: Path, *words: str) -> tuple[int, str]:
    """Run a command; return its status and what it says."""
    command = [sys.executable, "-m", "coordinator", *words, "--at", f"127.0.0.1:{port}"]
    done = subprocess.run(
        [*command, "--command-config", str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def properties(folder: Path, name: str, password: str) -> Path:
    """Return a file by which commands log in."""
    path = folder / f"{name}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.username={name}\nsasl.password={password}\n"
    )
    return path


def free_port() -> int:
    """Return a port that nobody has: clients are told of it before it is taken."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_user_comes_in_by_rules_and_is_cut_off(tmp_path: Path) -> None:
    """From nothing to a driver that commits; and no secret in what the daemon says."""
    (tmp_path / "root.password").write_text(f"{ROOTS}\n")
    (tmp_path / "alice.password").write_text(f"{ALICES}\n")
    root = properties(tmp_path, "root", ROOTS)
    alice = properties(tmp_path, "alice", ALICES)
    port = free_port()
    settings = (
        "sasl.bootstrap.user=root",
        f"sasl.bootstrap.password.file={tmp_path / 'root.password'}",
        f"advertised.listeners=127.0.0.1:{port}",
        "storage.reserve.bytes=0",
    )
    sets = [word for setting in settings for word in ("--set", setting)]
    options = ["--listen", f"SASL_PLAINTEXT://127.0.0.1:{port}", *sets]
    with daemon(tmp_path / "data", options=options) as running:
        running.ready()
        words = ["--password-file", str(tmp_path / "alice.password"), "--yes"]
        assert run(port, root, "users", "add", "alice", *words)[0] == 0
        config = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": "alice",
            "sasl.password": ALICES,
        }
        with connect_blocking(f"127.0.0.1:{port}", security=config) as driver:
            offsets = {client.TopicPartition("orders", 0): 5}
            with pytest.raises(client.NotAuthorized):
                driver.commit("etl", offsets)
            rule = ("acls", "add", "User:alice", "read", "--group", "etl", "--topic", "orders")
            assert run(port, root, *rule, "--yes")[0] == 0
            driver.commit("etl", offsets)
            roots = config | {"sasl.username": "root", "sasl.password": ROOTS}
            with (
                connect_blocking(f"127.0.0.1:{port}", security=roots) as other,
                other.join("etl", ["orders"], {"orders": 1}) as leader,
                driver.join("etl", ["payments"], {"payments": 1}) as member,
            ):
                leader.assignment(timeout_s=60)
                with pytest.raises(client.NotAuthorized, match="no right to READ topic 'payments'"):
                    member.assignment(timeout_s=60)
            assert run(port, alice, "acls", "list")[0] == 1
            assert run(port, root, "users", "remove", "alice", "--yes")[0] == 0
            with pytest.raises(client.AuthenticationFailed):
                driver.commit("etl", offsets)
        shown = run(port, root, "config", "show")[1]
        assert running.events("access.refused")
        assert running.events("login.refused")
        for secret in (ROOTS, ALICES):
            assert secret not in shown + repr(running.lines) + repr(running.stray)
