"""TLS on real sockets, with the certificates that docs/security.md makes."""

import re
import shutil
import signal
import socket
import ssl
import subprocess
from pathlib import Path
from typing import Final

import pytest

from protocol.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tests.guide import ROOT
from tests.integration.daemon import Connection, Daemon, daemon, until
from tests.integration.test_http import curl, http_port

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl"),
]
GUIDE: Final = ROOT / "docs/security.md"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the commands of the guide make."""
    folder = tmp_path_factory.mktemp("made")
    _, _, chapter = GUIDE.read_text(encoding="utf-8").partition("## Set-up in ten minutes")
    (commands,) = re.findall(r"```bash\n(new_key.*?)```", chapter, flags=re.DOTALL)
    done = subprocess.run(
        ["bash", "-euc", commands], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


def with_tls(made: Path, client_auth: str) -> list[str]:
    """Return the options of a daemon with listeners of all four kinds."""
    settings = (
        f"ssl.keystore.location={made / 'server.pem'}",
        f"ssl.truststore.location={made / 'ca.pem'}",
        f"ssl.client.auth={client_auth}",
        "allow.everyone.if.no.acl.found=true",
        "http.listeners=https://127.0.0.1:0,http://127.0.0.1:0",
        "storage.reserve.bytes=0",
    )
    sets = [word for setting in settings for word in ("--set", setting)]
    return ["--listen", "SSL://127.0.0.1:0", *sets]


def tls_port(running: Daemon) -> int:
    """Return where it speaks TLS; `--listen` without comes first."""
    running.ready()
    (port,) = [line["port"] for line in running.events("listening") if line["tls"]]
    return int(port)


class TlsConnection(Connection):
    """A client that verifies the daemon, and may show a certificate."""

    def __init__(self, port: int, made: Path, certificate: Path | None = None) -> None:
        super().__init__(port)
        context = ssl.create_default_context(cafile=made / "ca.pem")
        if certificate is not None:
            context.load_cert_chain(certificate)
        self.socket = context.wrap_socket(self.socket, server_hostname="coordinator.example")


def refusals(running: Daemon) -> str:
    """Return why handshakes came to nothing."""
    return " ".join(line["reason"] for line in running.events("handshake.refused"))


def test_the_guides_certificates_serve_over_tls(made: Path, tmp_path: Path) -> None:
    """Native and HTTP, for openssl, curl and Python; and without TLS where that was asked for."""
    with daemon(tmp_path / "data", options=with_tls(made, "requested")) as running:
        port = tls_port(running)
        ca = str(made / "ca.pem")
        said = subprocess.run(
            f"openssl s_client -connect localhost:{port} -CAfile {ca} -brief "
            "-verify_return_error -verify_hostname coordinator.example".split(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert "Protocol version: TLSv1.3" in said.stderr
        assert "Verification: OK" in said.stderr
        with TlsConnection(port, made) as nobody, running.connect() as plain:
            for one in (nobody, plain):
                assert isinstance(one.ask(ListGroupsRequest((), ())), ListGroupsResponse)
                found = one.ask(FindCoordinatorRequest(0, ("g",)))
                assert isinstance(found, FindCoordinatorResponse)
                own_port = one.socket.getpeername()[1]
                assert [where.port for where in found.coordinators] == [own_port]
        https = f"https://localhost:{http_port(running)}"
        assert '"status":"ready"' in curl("--cacert", ca, f"{https}/readyz")
        alice = str(made / "alice.pem")
        scraped = curl("--cacert", ca, "--cert", alice, f"{https}/metrics")
        assert 'group_coordinator_tls_handshakes_total{result="done"} 4.0' in scraped
        (left,) = re.findall(
            r"^group_coordinator_certificate_left_seconds (.*)$", scraped, re.MULTILINE
        )
        guessed = curl("--cacert", ca, "--header", "Authorization: Bearer t0p", f"{https}/metrics")
        assert '"status":401' in guessed
        until(lambda: running.events("login.refused"), "line")
        (refused,) = running.events("login.refused")
        assert (refused["principal"], refused["mechanism"]) == ("User:ANONYMOUS", "token")
        assert "t0p" not in str(refused)
        assert 364 < float(left) / 86_400 <= 365
        assert running.events("certificate.key_exposed") == []
        assert running.stop() == 0


def test_who_has_no_certificate_stays_outside(made: Path, tmp_path: Path) -> None:
    """Nor does who speaks no TLS; the others notice nothing."""
    with daemon(tmp_path / "data", options=with_tls(made, "required")) as running:
        port = tls_port(running)
        with TlsConnection(port, made, made / "alice.pem") as alice:
            with TlsConnection(port, made) as nobody, pytest.raises(OSError, match="certificate"):
                nobody.ask(ListGroupsRequest((), ()))
            until(lambda: "it shows no certificate" in refusals(running), "line")
            with socket.create_connection(("127.0.0.1", port)) as plain:
                plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
                plain.settimeout(20)
                assert plain.recv(100) == b""
            assert isinstance(alice.ask(ListGroupsRequest((), ())), ListGroupsResponse)
        assert running.stop() == 0


def test_a_renewed_certificate_is_in_force_without_a_restart(made: Path, tmp_path: Path) -> None:
    """Renamed over the old one; and a bad one leaves it as it is."""
    folder = tmp_path / "files"
    shutil.copytree(made, folder)
    commands = GUIDE.read_text(encoding="utf-8")
    (definitions,) = re.findall(r"(new_key\(\).*?)umask", commands, flags=re.DOTALL)
    (certify,) = re.findall(r"(certify\(\) \{.*?\n\})", commands, flags=re.DOTALL)
    with daemon(tmp_path / "data", options=with_tls(folder, "none")) as running:
        port = tls_port(running)
        with TlsConnection(port, made) as before:
            before.ask(ListGroupsRequest((), ()))  # Who never asks is closed while it waits.
            renew = (
                "certify new.pem renewed DNS:coordinator.example serverAuth; mv new.pem server.pem"
            )
            subprocess.run(
                ["bash", "-euc", f"{definitions}\numask 077\n{certify}\n{renew}"],
                cwd=folder,
                check=True,
                capture_output=True,
            )
            assert running.wait_for("certificate.reloaded")["subject"] == "CN=renewed"
            with TlsConnection(port, made) as after:
                assert isinstance(after.socket, ssl.SSLSocket)
                assert "renewed" in str(after.socket.getpeercert())
            assert isinstance(before.ask(ListGroupsRequest((), ())), ListGroupsResponse)

            (folder / "server.pem").write_text("not a certificate", encoding="ascii")
            running.process.send_signal(signal.SIGHUP)
            assert "no certificate in PEM" in running.wait_for("certificate.refused")["reason"]
            with TlsConnection(port, made) as after:
                assert isinstance(after.ask(ListGroupsRequest((), ())), ListGroupsResponse)
        assert running.stop() == 0


def test_a_start_with_a_certificate_that_cannot_be_is_refused(made: Path, tmp_path: Path) -> None:
    """With a line that says why, and no data folder left behind."""
    (tmp_path / "mixed.pem").write_text(
        (made / "ca.key").read_text(encoding="ascii")
        + (made / "server.pem").read_text(encoding="ascii").partition("PRIVATE KEY-----\n")[2],
        encoding="ascii",
    )
    store = f"ssl.keystore.location={tmp_path / 'mixed.pem'}"
    listen = ("--listen", "SSL://127.0.0.1:0", "--set", store)
    with daemon(tmp_path / "data", options=listen) as running:
        assert running.wait() == 78
        (refused,) = running.events("refused")

    assert "ssl.keystore.location" in refused["reason"]
    assert not (tmp_path / "data").exists()
