"""A client that is sure whom it talks to, and says who it is; and one that can't."""

import hashlib
import logging
import os
import pickle
import ssl
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from trio.testing import MockClock

from client import (
    AuthenticationFailed,
    Client,
    CoordinatorUnavailable,
    FatalError,
    NotAuthorized,
    OffsetAndMetadata,
    Security,
    TopicPartition,
    connect,
)
from client.backoff import RetrySettings
from client.security import NAMES, read_properties, without_literals
from coordinator.security.bearer import Bearer, StaticTokens
from coordinator.security.sasl import MECHANISMS, SCRAM, Authenticator, credential_of
from protocol import messages as m
from protocol.errors import ErrorCode
from tests.fakes.scripted_server import Answer, Drop, Network, Raw, ScriptedServer

MARKER = "never-to-be-seen"  # In every secret.
PASSWORD, TOKEN = f"{MARKER}-password", f"{MARKER}-token"
KNOWN = {("alice", mechanism): credential_of(PASSWORD, mechanism) for mechanism in SCRAM}
TOKENS = StaticTokens.parse(f"etl {hashlib.sha256(TOKEN.encode()).hexdigest()}")
BY_SCRAM = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "alice",
    "sasl.password": PASSWORD,
}
BY_TOKEN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.token": TOKEN,
}
TP = TopicPartition("t", 0)


def authenticator(**changes: Any) -> Authenticator:
    """Return one that knows alice and a token."""
    arguments: dict[str, Any] = {
        "mechanisms": MECHANISMS,
        "credential": lambda name, mechanism: KNOWN.get((name, mechanism)),
        "bearer": Bearer(tokens=lambda: TOKENS),
        "secret": b"secret",
    }
    return Authenticator(**arguments | changes)


@asynccontextmanager
async def network(server: ScriptedServer) -> AsyncIterator[Network]:
    """Run *server*."""
    async with trio.open_nursery() as nursery:
        yield Network(nursery, [server])
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def connected(
    server: ScriptedServer, security: Any, timeout_ms: int = 5_000
) -> AsyncIterator[Client]:
    """Connect to *server*; errors as a caller sees them."""
    failure: BaseException | None = None
    host, port = server.address
    async with network(server) as net:
        try:
            async with connect(
                f"{host}:{port}",
                security=security,
                open_stream=net.open_stream,
                retry=RetrySettings(backoff_ms=10, backoff_max_ms=10),
                request_timeout_ms=timeout_ms,
            ) as client:
                yield client
        except Exception as exc:  # noqa: BLE001 - raised below, out of the nursery.
            failure = exc
    if failure is not None:
        raise failure


async def refused(server: ScriptedServer, security: Any) -> AuthenticationFailed:
    """Return why connecting fails, which takes one attempt."""
    with pytest.raises(AuthenticationFailed) as caught:
        async with connected(server, security):
            pass
    assert server.connections <= 1
    assert MARKER not in str(caught.value)
    assert MARKER not in "".join(traceback.format_exception(caught.value))
    return caught.value


# --- log-ins ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("security", "principal"),
    [
        (BY_SCRAM, "User:alice"),
        (BY_SCRAM | {"sasl.mechanism": "scram-sha-512"}, "User:alice"),
        (BY_TOKEN, "User:etl"),
        (BY_TOKEN | {"sasl.oauthbearer.token": lambda: TOKEN}, "User:etl"),
    ],
    ids=["SCRAM-SHA-256", "SCRAM-SHA-512", "token", "what returns a token"],
)
async def test_a_client_logs_in_before_it_asks(security: dict[str, Any], principal: str) -> None:
    """By each mechanism, and once for all requests of a connection."""
    server = ScriptedServer()
    server.authenticator = authenticator()
    async with connected(server, security) as client:
        await client.commit("g", {TP: OffsetAndMetadata(1)})
        assert (await client.fetch_offsets("g"))[TP].offset == 1

    assert [one.principal for one in server.log_ins] == [principal]
    assert [type(r) for r in server.requests()][:2] == [
        m.ApiVersionsRequest,
        m.SaslHandshakeRequest,
    ]


@pytest.mark.parametrize(
    ("security", "says"),
    [
        (BY_SCRAM | {"sasl.password": f"{MARKER}-wrong"}, "user 'alice' by SCRAM-SHA-256: check"),
        (BY_SCRAM | {"sasl.username": "bob"}, "refused the log-in of user 'bob'"),
        (BY_TOKEN | {"sasl.oauthbearer.token": f"{MARKER}-2"}, "check sasl.oauthbearer.token"),
        (BY_TOKEN | {"sasl.oauthbearer.token": f"{MARKER} two"}, "is no token"),
        (BY_SCRAM | {"sasl.password": "{env:NOT_THERE}"}, "no such environment variable"),
        (BY_SCRAM | {"sasl.password": "{file:/not/there}"}, "no such readable file"),
        (BY_SCRAM | {"sasl.password": f"{MARKER}\x00"}, "characters that SCRAM forbids"),
        (None, "wants a log-in: set security.protocol"),
    ],
    ids=str,
)
async def test_a_wrong_secret_is_told_at_once(security: Any, says: str) -> None:
    """One attempt and no thirty seconds; what it says has no secret in it."""
    server = ScriptedServer()
    server.authenticator = authenticator()
    if security is None:  # It can be connected, and nothing else.
        with pytest.raises(AuthenticationFailed, match=says):
            async with connected(server, security) as client:
                await client.list_groups()
        return

    error = await refused(server, security)
    assert says in str(error)
    assert isinstance(error, FatalError)


async def test_a_mechanism_that_the_server_lacks_is_named_with_those_it_has() -> None:
    """So the next attempt of a person is the right one."""
    server = ScriptedServer()
    server.authenticator = authenticator(mechanisms=("SCRAM-SHA-512",))

    error = await refused(server, BY_SCRAM)
    assert "doesn't take SCRAM-SHA-256 (sasl.mechanism); it takes SCRAM-SHA-512" in str(error)
    assert error.code == ErrorCode.UNSUPPORTED_SASL_MECHANISM


async def test_an_older_server_takes_no_log_in() -> None:
    """It is said, and the secret stays here."""
    server = ScriptedServer()
    del server.versions[m.ApiKey.SASL_HANDSHAKE]

    with pytest.raises(FatalError, match="SASL_HANDSHAKE not at all"):
        async with connected(server, BY_SCRAM):
            pass


async def test_a_server_that_does_not_know_the_user_is_not_believed() -> None:
    """Whoever says "yes" to any proof doesn't have the keys."""
    server = ScriptedServer()
    server.authenticator = authenticator()
    decided = server._of_a_log_in
    for final in (b"v=" + b"A" * 43 + b"=", b"e=other-error", b"\xff", b""):

        def lying(request: m.Request, log_in: Any, final: bytes = final) -> Any:
            step = decided(request, log_in)
            if isinstance(request, m.SaslAuthenticateRequest) and b"p=" in request.auth_bytes:
                return Answer(m.SaslAuthenticateResponse(0, None, final, 0))
            return step

        server._of_a_log_in = lying  # type: ignore[method-assign]  # it is to lie.
        server.connections = 0
        error = await refused(server, BY_SCRAM)
        assert "didn't prove that it knows user 'alice'" in str(error)


@pytest.mark.parametrize("rounds", [1_000_001, 10_000_000, 10**19])
async def test_a_server_can_not_make_the_client_work_for_long(rounds: int) -> None:
    """It asks for iterations before it has proven anything."""
    server = ScriptedServer()
    server.script(m.SaslHandshakeRequest, 0)

    def asking(request: m.Request) -> m.Response:
        assert isinstance(request, m.SaslAuthenticateRequest)
        nonce = request.auth_bytes.rpartition(b"r=")[2].decode()
        data = f"r={nonce}x,s={'QQ' * 8},i={rounds}".encode()
        return m.SaslAuthenticateResponse(0, None, data, 0)

    handle = server.handle
    server.handle = lambda request: (  # type: ignore[method-assign]  # it is to ask for much.
        asking(request) if isinstance(request, m.SaslAuthenticateRequest) else handle(request)
    )
    error = await refused(server, BY_SCRAM)
    assert f"asks for {rounds} iterations" in str(error)


async def test_a_server_that_has_no_users_yet_is_asked_again() -> None:
    """It is loading: that passes, other than a wrong password."""
    server = ScriptedServer()
    server.authenticator = authenticator()
    server.script(m.SaslHandshakeRequest, 14)
    server.script(m.SaslAuthenticateRequest, 14)
    async with connected(server, BY_SCRAM):
        pass

    assert server.connections == 3


async def test_a_log_in_is_renewed_before_it_ends(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the same connection, and as often as needed; requests go on."""

    async def here(call: Callable[[], Any], **_: Any) -> Any:
        """Run *call* at once: a jump of the clock doesn't wait for what a thread still does."""
        await trio.lowlevel.checkpoint()
        return call()

    monkeypatch.setattr(trio.to_thread, "run_sync", here)
    server = ScriptedServer()
    server.authenticator = authenticator(max_session_ms=60_000)
    async with connected(server, BY_SCRAM) as client:
        for _ in range(3):
            ends = server.log_ins[0].ends_wall_ms
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(59)
            while server.log_ins[0].ends_wall_ms == ends:
                await trio.lowlevel.checkpoint()
            await client.list_groups()

    assert server.connections == 1


async def test_a_log_in_that_ended_is_followed_by_another() -> None:
    """A laptop slept: that is no reason to give up a call."""
    server = ScriptedServer()
    server.authenticator = authenticator()
    server.script(m.ListGroupsRequest, ErrorCode.SASL_AUTHENTICATION_FAILED)
    async with connected(server, BY_TOKEN) as client:
        assert [one.group_id for one in await client.list_groups()] == ["g"]

    assert server.connections == 2


async def test_a_password_that_was_changed_ends_a_client_that_runs() -> None:
    """With why, at its next call; it doesn't hammer the server."""
    server = ScriptedServer()
    server.authenticator = authenticator()
    async with connected(server, BY_TOKEN) as client:
        server.authenticator = authenticator(bearer=Bearer())
        server.script(m.ListGroupsRequest, Drop())
        with pytest.raises(AuthenticationFailed, match="refused the log-in"):
            await client.list_groups()

    assert server.connections == 2


@pytest.mark.parametrize("code", [29, 30, 31])
async def test_what_the_principal_may_not_do_is_told_at_once(code: int) -> None:
    """Nobody grants it while a loop tries."""
    server = ScriptedServer()
    server.script(m.ListGroupsRequest, code)
    server.script(m.OffsetCommitRequest, code)
    with pytest.raises(NotAuthorized, match="AUTHORIZATION_FAILED"):
        async with connected(server, None) as client:
            await client.list_groups()
    with pytest.raises(NotAuthorized, match="may not do this"):
        async with connected(server, None) as client:
            await client.commit("g", {TP: OffsetAndMetadata(1)})
    assert len(server.requests(m.ListGroupsRequest, m.OffsetCommitRequest)) == 2


async def test_a_member_that_may_not_read_its_group_any_more_ends() -> None:
    """The right was taken away while it ran."""
    server = ScriptedServer()
    server.script(m.JoinGroupRequest, 30)
    with pytest.raises(NotAuthorized, match="GROUP_AUTHORIZATION_FAILED"):
        async with connected(server, None) as client, client.join("g", ["t"], {"t": 1}) as member:
            await member.assignment()


# --- TLS --------------------------------------------------------------------------------


class Certificates:
    """An authority with a server's certificate, in files and as the server's settings."""

    def __init__(self, folder: Path, name: str = "node1", **more: Any) -> None:
        self.authority = trustme.CA()
        self.trust = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(self.trust)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.authority.issue_cert(name, **more).configure_cert(self.context)

    def server(self) -> ScriptedServer:
        """Return a server that speaks TLS."""
        server = ScriptedServer()
        server.tls = self.context
        return server

    def client(self, **more: Any) -> dict[str, Any]:
        """Return the properties of a client that trusts the authority."""
        properties = {"security.protocol": "SSL", "ssl.truststore.location": str(self.trust)}
        return properties | {name.replace("_", "."): value for name, value in more.items()}


async def test_a_client_of_tls_trusts_who_is_signed_for(tmp_path: Path) -> None:
    """And logs in over it, if it is to."""
    certificates = Certificates(tmp_path)
    server = certificates.server()
    server.authenticator = authenticator()
    async with connected(
        server, BY_SCRAM | certificates.client() | {"security.protocol": "SASL_SSL"}
    ) as client:
        await client.commit("g", {TP: OffsetAndMetadata(1)})

    assert server.log_ins[0].principal == "User:alice"


async def test_a_certificate_that_nobody_signed_is_refused(tmp_path: Path) -> None:
    """By this client's authorities: the system's, or those of another file."""
    (tmp_path / "other").mkdir()
    other = Certificates(tmp_path / "other")

    error = await refused(Certificates(tmp_path).server(), other.client())
    assert "nobody in ssl.truststore.location has signed it" in str(error)
    assert isinstance(error.cause, ssl.SSLCertVerificationError)


async def test_a_certificate_of_another_name_is_refused(tmp_path: Path) -> None:
    """Unless the properties say that the name doesn't matter."""
    certificates = Certificates(tmp_path, "node2")

    error = await refused(certificates.server(), certificates.client())
    assert "not valid for 'node1'" in str(error)
    unchecked = certificates.client(ssl_endpoint_identification_algorithm="")
    async with connected(certificates.server(), unchecked):
        pass


async def test_a_certificate_that_has_expired_is_refused(tmp_path: Path) -> None:
    """Told as that: somebody has to renew it."""
    past = datetime(2020, 1, 1, tzinfo=UTC)
    certificates = Certificates(
        tmp_path, not_before=datetime(2019, 1, 1, tzinfo=UTC), not_after=past
    )

    error = await refused(certificates.server(), certificates.client())
    assert "it has expired" in str(error)


async def test_a_client_s_own_certificate_is_presented(tmp_path: Path) -> None:
    """From one file with key and chain; without it the server's refusal is told."""
    certificates = Certificates(tmp_path)
    certificates.context.verify_mode = ssl.CERT_REQUIRED
    certificates.authority.configure_trust(certificates.context)
    keystore = tmp_path / "client.pem"
    certificates.authority.issue_cert("alice").private_key_and_cert_chain_pem.write_to_path(
        keystore
    )

    mine = certificates.client(ssl_keystore_location=str(keystore))
    async with connected(certificates.server(), mine) as client:
        await client.list_groups()
    error = await refused(certificates.server(), certificates.client())
    assert "wants a client's certificate: set ssl.keystore.location" in str(error)
    trustme.CA().issue_cert("alice").private_key_and_cert_chain_pem.write_to_path(keystore)
    error = await refused(certificates.server(), mine)
    assert "ssl.keystore.location" in str(error)


async def test_a_server_of_tls_is_recognised_by_a_plaintext_client(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """OpenSSL closes without a word, others send an alert."""
    with pytest.raises(CoordinatorUnavailable, match="maybe it speaks TLS"):
        async with connected(Certificates(tmp_path).server(), None, timeout_ms=5):
            pass
    server = ScriptedServer()
    server.script(m.ApiVersionsRequest, Raw(b"\x15\x03\x01\x00\x02\x02\x46"))
    error = await refused(server, None)
    assert "speaks TLS: set security.protocol to SSL or SASL_SSL" in str(error)


@pytest.mark.parametrize("first", ["g", "gg"])
async def test_an_answer_that_goes_on_like_an_alert_of_tls_is_an_answer(first: str) -> None:
    """A long one is read in parts, and each may begin with any bytes."""
    kind = "\x15\x03" * 16_000  # By one of two names the second part begins with an alert's.
    groups = tuple(m.ListedGroup(name, kind, "Empty", "classic") for name in (first, "h", "i"))
    server = ScriptedServer()
    server.script(m.ListGroupsRequest, Answer(m.ListGroupsResponse(0, groups)))
    async with connected(server, None) as client:
        assert [one.group_id for one in await client.list_groups()] == [first, "h", "i"]

    assert server.connections == 1


async def test_a_plaintext_server_is_told_of_to_a_client_of_tls(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that closes may be going down, so it is tried again; one that answers is recognised."""
    certificates = Certificates(tmp_path)

    async def here(work: Callable[[], Any]) -> Any:
        return work()

    # The clock would jump while a thread works.
    monkeypatch.setattr(trio.to_thread, "run_sync", here)

    async def closes(host: str, port: int) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.aclose()
        return ours

    async def answers(host: str, port: int) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        return ours

    for open_stream, kind in ((closes, CoordinatorUnavailable), (answers, AuthenticationFailed)):
        with pytest.raises(kind, match="plaintext one"):
            async with connect(
                "node1:1",
                security=certificates.client(),
                open_stream=open_stream,
                request_timeout_ms=50,
            ):
                pass


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"ssl.truststore.location": "/not/there"}, "ssl.truststore.location: /not/there: No such"),
        ({"ssl.truststore.location": "junk"}, "has no PEM of certificates"),
        ({"ssl.keystore.location": "junk"}, "no PEM of a key with its certificates"),
    ],
    ids=str,
)
async def test_a_file_that_can_not_be_used_is_named(
    properties: dict[str, str], says: str, tmp_path: Path
) -> None:
    """With what was expected there."""
    (tmp_path / "junk").write_text("junk")
    named = {
        name: str(tmp_path / value) if value == "junk" else value
        for name, value in properties.items()
    }
    error = await refused(ScriptedServer(), {"security.protocol": "SSL"} | named)

    assert says in str(error)


# --- the value --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({"security.protocoll": "SSL"}, "no property 'security.protocoll'"),
        ({"security.protocol": "TLS"}, "must be one of 'PLAINTEXT', 'SSL'"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is ''"),
        (BY_SCRAM | {"sasl.mechanism": "PLAIN"}, "sasl.mechanism is 'PLAIN'"),
        (BY_SCRAM | {"sasl.password": ""}, "sasl.password is missing"),
        (BY_TOKEN | {"sasl.oauthbearer.token": ""}, "sasl.oauthbearer.token is missing"),
        ({"ssl.endpoint.identification.algorithm": "http"}, "'https', ''"),
        ({"sasl.password": 5}, "must be a text"),
        ("/not/there", "No such file"),
    ],
    ids=str,
)
def test_impossible_properties_are_named(properties: Any, says: str) -> None:
    """Before anything is connected."""
    with pytest.raises(ValueError, match=says.replace("(", "\\(")):
        Security.of(properties)


def test_a_file_of_properties_is_as_kafkas_tools_have_it(tmp_path: Path) -> None:
    """A line that is none is named by its number: it may be half of a secret."""
    path = tmp_path / "client.properties"
    lines = [f"{name} = {value}" for name, value in BY_SCRAM.items()]
    path.write_text("# mine\n\n" + "\n".join(lines))
    assert Security.of(path) == Security.of(str(path)) == Security.of(BY_SCRAM)

    for bad in (f"sasl.password {PASSWORD}", f"{lines[0]}\n{lines[0]}"):
        path.write_text(bad)
        with pytest.raises(ValueError, match="NAME=VALUE") as caught:
            read_properties(path)
        assert MARKER not in str(caught.value)
    path.write_bytes(b"\xff")
    with pytest.raises(ValueError, match="UTF-8"):
        read_properties(path)


def test_no_secret_is_shown_by_the_value() -> None:
    """Not in its repr, which ends up in logs and tracebacks."""
    values = dict.fromkeys(NAMES, MARKER) | BY_SCRAM | {"sasl.username": "alice"}
    values |= {"ssl.endpoint.identification.algorithm": "https", "ssl.truststore.location": ""}
    values |= {"ssl.keystore.location": ""}
    security = Security.of(values)

    assert MARKER in security.password + security.key_password
    assert MARKER not in f"{security!r}{security}"
    assert pickle.loads(pickle.dumps(security)) == security


def test_a_value_for_others_to_see_says_only_where_secrets_are() -> None:
    """Spark shows options in plans."""
    without_literals({"sasl.password": "{file:/run/p}", "ssl.key.password": "", "x": MARKER})
    for name in ("sasl.password", "sasl.oauthbearer.token", "ssl.key.password"):
        for value in (MARKER, f"x{{env:A}}{MARKER}"):
            with pytest.raises(ValueError, match=f"^{name} must say where") as caught:
                without_literals({name: value})
            assert MARKER not in str(caught.value)


async def test_secrets_are_read_where_they_are_at_each_log_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A token that is replaced while a program runs is taken; nothing of it is logged."""
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "token"
    path.write_text("old-" + TOKEN)
    server = ScriptedServer()
    server.authenticator = authenticator()
    by_file = BY_TOKEN | {"sasl.oauthbearer.token": f"{{file:{path}}}"}
    await refused(server, by_file)

    path.write_text(TOKEN + "\n")
    async with connected(server, by_file):
        pass
    monkeypatch.setitem(os.environ, "COORDINATOR_PASSWORD", PASSWORD)
    async with connected(server, BY_SCRAM | {"sasl.password": "{env:COORDINATOR_PASSWORD}"}):
        pass
    assert MARKER not in caplog.text
