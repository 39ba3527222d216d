"""The HTTP listener of a real daemon, asked by what others use."""

import http.client
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from protocol.messages import ListGroupsRequest, ListGroupsResponse
from tests.integration.daemon import Daemon, daemon, until

pytestmark = pytest.mark.integration

ON = "http.listeners=127.0.0.1:0"


def http_port(running: Daemon) -> int:
    """Return where it answers HTTP."""
    port: int = running.wait_for("http.listening")["port"]
    return port


def curl(*arguments: str) -> str:
    """Return what curl prints."""
    if shutil.which("curl") is None:
        pytest.skip("no curl")
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "20", *arguments], capture_output=True, text=True, check=False
    )
    assert "" == done.stderr
    return done.stdout


def test_curl_is_answered(tmp_path: Path) -> None:
    """In any dialect that it speaks, several times over one connection."""
    with daemon(tmp_path / "data", ON) as running:
        url = f"http://localhost:{http_port(running)}/livez"
        code = ("-o", "/dev/null", "-w", "%{http_code} %{num_connects} ")

        assert "200 1 200 0 200 0 " == curl(*code, url, *code, url, *code, url)
        for dialect in ("--http1.0", "--http1.1", "--http2", "-I"):
            assert "200 1 " == curl(*code, dialect, url)
        assert "405 1 " == curl(*code, "-X", "DELETE", url)
        assert "413 1 " == curl(*code, "-X", "GET", "--data-binary", "@/bin/sh", url)
        assert "421 1 " == curl(*code, "-H", "Host: evil.example", url)
        assert "431 1 " == curl(*code, "-H", f"X: {'x' * 40_000}", url)
        assert 0 == running.stop()


def test_two_daemons_cannot_have_one_address(tmp_path: Path) -> None:
    """Found before there is a data folder, as for the native listener."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with daemon(tmp_path / "data", f"http.listeners=127.0.0.1:{port}") as running:
            assert 75 == running.wait()
            [refused] = running.events("refused")

    assert f"127.0.0.1:{port}" in refused["reason"]
    assert not (tmp_path / "data").exists()


def test_the_daemon_imports_nothing_of_it_by_itself() -> None:
    """Who wants none pays no memory for it."""
    code = (
        "import sys, coordinator.__main__, coordinator.server.run\n"
        "print([m for m in sys.modules if m.startswith(('h11', 'coordinator.http', 'prometheus'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == done.stdout.strip()


def test_the_door_closes_first_when_it_stops(tmp_path: Path) -> None:
    """A balancer finds nobody, while what is under way is finished."""
    with daemon(tmp_path / "data", ON) as running:
        port = http_port(running)
        running.ready()
        open_one = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        open_one.request("GET", "/livez")
        assert 200 == open_one.getresponse().status
        assert 0 == running.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        open_one.close()


def test_few_descriptors_are_for_clients_first(tmp_path: Path) -> None:
    """Many systems give 1,024; the connections of HTTP alone would take more."""
    with daemon(tmp_path / "data", ON, limit="--nofile=128") as running:
        port = http_port(running)
        running.ready()
        pages = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(40)]
        until(lambda: running.events("connection.refused"), "refusal")
        clients = [running.connect() for _ in range(50)]
        for client in clients:
            assert isinstance(client.ask(ListGroupsRequest((), ())), ListGroupsResponse)
        for client in clients:
            client.close()
        for page in pages:
            page.close()
        assert 0 == running.stop()

    reasons = {e["reason"] for e in running.events("connection.refused")}
    assert "its address has three quarters of http.max.connections" in reasons
