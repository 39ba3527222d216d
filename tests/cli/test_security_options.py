"""Commands that log in: the file of properties, the variable for it, and that no secret shows."""

import socket
import traceback
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec import structs

from coordinator.cli.main import main
from coordinator.security.sasl import Authenticator, LogIn, credential_of
from protocol import messages as m
from tests.fakes.command_line import CommandLine, FakeSocket

MARKER = "never-to-be-seen"
KNOWN = credential_of(MARKER, "SCRAM-SHA-256")


def command_line(monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """Return a command line before a coordinator that knows alice."""
    log_in = LogIn(
        Authenticator(
            mechanisms=("SCRAM-SHA-256",),
            credential=lambda name, _: KNOWN if name == "alice" else None,
            bearer=None,
            secret=b"secret",
        )
    )
    return CommandLine(
        monkeypatch,
        {
            m.SaslHandshakeRequest: log_in.handshake,
            m.SaslAuthenticateRequest: lambda request: log_in.authenticate(request, 0),
            m.SummarizeGroupsRequest: lambda request: (
                structs.replace(m.APIS[m.ApiKey.SUMMARIZE_GROUPS].example.response, groups=())
                if log_in.principal == "User:alice"
                else m.error_response(request, 34)
            ),
        },
    )


def written(folder: Path, password: str) -> str:
    """Return a file of properties."""
    path = folder / "client.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.username=alice\nsasl.password={password}\n"
    )
    return str(path)


def test_a_command_logs_in_by_a_file_of_properties(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As Kafka's tools do, so that no secret is in a list of processes."""
    path = written(tmp_path, MARKER)
    line = command_line(monkeypatch)
    assert line.run("groups", "list", "--command-config", path).exit_code == 0
    assert len(line.of_type(m.SaslAuthenticateRequest)) == 2

    monkeypatch.setenv("COORDINATOR_COMMAND_CONFIG", path)
    assert command_line(monkeypatch).run("groups", "list").exit_code == 0


@pytest.mark.parametrize(
    ("password", "says"),
    [
        (f"{MARKER}-2", "refused the log-in of user 'alice'"),
        ("{file:/not/there}", "no such readable file"),
        ("", "sasl.password is missing"),
    ],
    ids=str,
)
def test_a_log_in_that_fails_is_told_without_the_secret(
    password: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With what to look at, and at once."""
    line = command_line(monkeypatch)
    result = line.run("groups", "list", "--command-config", written(tmp_path, password))

    assert (result.exit_code, line.connections) == (1, 1)
    assert says in result.output
    assert MARKER not in result.output
    assert result.exception is not None
    assert MARKER not in "".join(traceback.format_exception(result.exception))


def test_a_file_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is said to anybody."""
    line = command_line(monkeypatch)
    result = line.run("groups", "list", "--command-config", "/not/there")

    assert result.exit_code == 1
    assert "/not/there: No such file" in result.output
    assert line.asked == []


@pytest.mark.parametrize(
    ("words", "may_be_starting"),
    [(b"", True), (b"\x15\x03\x01\x00\x02\x02\x46", False)],
    ids=["none", "alert"],
)
def test_a_listener_of_tls_is_guessed_by_a_command_without(
    monkeypatch: pytest.MonkeyPatch, words: bytes, *, may_be_starting: bool
) -> None:
    """OpenSSL closes without a word, others send an alert; neither says what to do.

    A node closes so, too, while ZooKeeper hasn't told it yet which cluster it is of.
    """
    monkeypatch.setattr(FakeSocket, "sendall", lambda *_: None)
    monkeypatch.setattr(FakeSocket, "recv", lambda *_: words)
    done = command_line(monkeypatch).run("groups", "list")

    assert done.exit_code == 69
    assert "maybe its listener is one for TLS: security.protocol" in done.stderr
    assert ("has yet to reach ZooKeeper" in done.stderr) is may_be_starting


def test_a_coordinator_that_has_answered_is_not_taken_for_one_with_tls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may close for any reason of its own."""
    recv, heard = FakeSocket.recv, []

    def first_only(one: FakeSocket, size: int) -> bytes:
        heard.append(recv(one, size))
        return heard[0] if len(heard) == 1 else b""

    monkeypatch.setattr(FakeSocket, "recv", first_only)
    done = command_line(monkeypatch).run("groups", "list")

    assert done.stderr.endswith(": it closed the connection without an answer\n")


@pytest.mark.parametrize(
    ("servers", "at", "asked"),
    [
        ("bootstrap.servers=b:9, c:8\n", (), [("b", 9), ("c", 8)]),
        ("bootstrap.servers=b:9\n", ("--at", "a:1"), [("a", 1)]),
        ("", (), [("127.0.0.1", 9310)]),
        ("bootstrap.servers=\n", (), [("127.0.0.1", 9310)]),
    ],
)
def test_a_file_of_properties_says_where_the_coordinator_is_unless_the_command_does(
    servers: str,
    at: tuple[str, ...],
    asked: list[tuple[str, int]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """One file for each environment, as operators of Kafka have it: no address to mistake."""
    path = tmp_path / "client.properties"
    path.write_text(f"{servers}security.protocol=PLAINTEXT\n")
    wheres: list[tuple[str, int]] = []

    def connect(where: tuple[str, int], **_: object) -> FakeSocket:
        wheres.append(where)
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", connect)
    words = ["ping", *at, "--command-config", str(path)]
    assert CliRunner().invoke(main, words).exit_code == 1
    assert wheres == asked


def test_an_address_in_a_file_of_properties_that_is_none_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The default address instead would be another coordinator."""
    path = tmp_path / "client.properties"
    path.write_text("bootstrap.servers=b\n")
    line = command_line(monkeypatch)
    done = CliRunner().invoke(main, ["groups", "list", "--command-config", str(path)])

    assert (done.exit_code, line.connections) == (1, 0)
    assert "bootstrap.servers: 'b' is not host:port" in done.stderr


def test_a_command_logs_in_by_a_file_that_says_where_the_coordinator_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Such a file was refused as a whole."""
    path = Path(written(tmp_path, MARKER))
    path.write_text(f"bootstrap.servers=127.0.0.1:1\n{path.read_text()}")
    line = command_line(monkeypatch)
    done = CliRunner().invoke(main, ["groups", "list", "--command-config", str(path)])

    assert (done.exit_code, line.connections) == (0, 1), done.output
