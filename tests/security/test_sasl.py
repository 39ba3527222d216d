"""Log-ins: who gets in, and that nobody else learns anything."""

import base64
import gc
import hashlib
import weakref
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from scramp import ScramClient

from coordinator.security.bearer import Bearer, StaticTokens
from coordinator.security.sasl import (
    MECHANISMS,
    SCRAM,
    Accepted,
    Authenticator,
    Challenge,
    Conversation,
    Credential,
    LogIn,
    Refused,
    UnsupportedMechanism,
    credential_of,
    with_bootstrap,
)
from protocol.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from protocol.scram import ITERATIONS, ITERATIONS_MAX, ITERATIONS_MIN, SALT_BYTES

NOW_MS = 1_785_000_000_000
TOKENS = StaticTokens.parse(
    f"etl {hashlib.sha256(b'token').hexdigest()}\n"
    f"brief {hashlib.sha256(b'brief').hexdigest()} 2026-07-25T17:21:00Z"
)
KNOWN = {
    ("alice", mechanism): credential_of("pencil", mechanism, salt=bytes(SALT_BYTES))
    for mechanism in SCRAM
}


def authenticator(**changes: Any) -> Authenticator:
    """Return one that knows alice, by "pencil", and two tokens."""
    arguments: dict[str, Any] = {
        "mechanisms": MECHANISMS,
        "credential": lambda name, mechanism: KNOWN.get((name, mechanism)),
        "bearer": Bearer(tokens=lambda: TOKENS),
        "secret": b"of the data folder",
    }
    return Authenticator(**arguments | changes)


def by_scram(
    begun: Conversation, name: str, password: str, mechanism: str = "SCRAM-SHA-256"
) -> Accepted | Refused:
    """Log in, as a client does that checks what the server says."""
    client = ScramClient([mechanism], name, password)
    challenge = begun.step(client.get_client_first().encode(), NOW_MS)
    assert isinstance(challenge, Challenge)
    client.set_server_first(challenge.data.decode())
    result = begun.step(client.get_client_final().encode(), NOW_MS)
    assert not isinstance(result, Challenge)
    if isinstance(result, Accepted):
        client.set_server_final(result.data.decode())
    return result


@pytest.mark.parametrize("mechanism", SCRAM)
def test_who_knows_the_password_is_let_in(mechanism: str) -> None:
    """And the client learns that this is the right server."""
    found = by_scram(authenticator().begin(mechanism), "alice", "pencil", mechanism)

    assert isinstance(found, Accepted)
    assert (found.principal, found.expires_wall_ms) == ("User:alice", None)


def test_a_conversation_that_is_over_leaves_nothing_to_the_collector() -> None:
    """It would let thousands of them lie, each with 3 KB, though those who logged in stay."""
    gc.collect()
    gc.disable()
    try:
        begun = authenticator().begin("SCRAM-SHA-256")
        gone = weakref.ref(begun)
        logged_in = by_scram(begun, "alice", "pencil")
        del begun
        assert isinstance(logged_in, Accepted)
        assert gone() is None
    finally:
        gc.enable()


def test_the_conversation_of_the_standard_is_understood() -> None:
    """RFC 7677's own example ends with the signature that it prints."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    credential = credential_of("pencil", "SCRAM-SHA-256", salt=salt, iterations=4_096)
    begun: Any = authenticator(credential=lambda *_: credential).begin("SCRAM-SHA-256")
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    begun._server.s_nonce = type(begun._server.s_nonce)(nonce[20:])

    first = begun.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", NOW_MS)
    proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    last = begun.step(f"c=biws,r={nonce},p={proof}".encode(), NOW_MS)

    assert first == Challenge(f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    signature = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert isinstance(last, Accepted)
    assert last[:3] == ("User:user", signature, None)


def test_an_unknown_user_looks_like_a_wrong_password() -> None:
    """From outside: the same messages of the same lengths, and the same salt each time."""
    known = authenticator()
    salts: dict[str, str] = {}
    for name in ("alice", "nobody", "nobody"):
        answer = known.begin("SCRAM-SHA-256").step(f"n,,n={name},r=abc".encode(), NOW_MS)
        assert isinstance(answer, Challenge)
        parts = dict(part.split("=", 1) for part in answer.data.decode().split(","))
        assert salts.setdefault(name, parts["s"]) == parts["s"]
        assert len(base64.b64decode(parts["s"])) == SALT_BYTES
        assert parts["i"] == str(ITERATIONS)
    assert salts["alice"] != salts["nobody"]

    # Only the audit can tell them apart.
    assert [by_scram(known.begin(SCRAM[0]), name, "wrong") for name in salts] == [
        Refused("SCRAM-SHA-256: invalid-proof of user 'alice'"),
        Refused("SCRAM-SHA-256: no such user"),
    ]


def test_the_work_for_an_unknown_user_is_that_for_a_known_one() -> None:
    """Counted, as a clock would say it only on a quiet machine."""
    asked: list[str] = []
    made: list[str] = []

    class Counting(Authenticator):
        def made_up(self, name: str, mechanism: str) -> Credential:
            made.append(name)
            return super().made_up(name, mechanism)

    def look(name: str, mechanism: str) -> Credential | None:
        asked.append(name)
        return KNOWN.get((name, mechanism))

    known = Counting(mechanisms=SCRAM, credential=look, bearer=None, secret=b"s")
    for name in ("alice", "nobody"):
        by_scram(known.begin("SCRAM-SHA-256"), name, "wrong")

    assert asked == made == ["alice", "nobody"]


def test_made_up_credentials_are_like_those_that_there_are() -> None:
    """And not to be had without the secret."""
    known, other = authenticator(), authenticator(secret=b"another")

    assert known.made_up("x", SCRAM[0])[0] != other.made_up("x", SCRAM[0])[0]
    assert known.made_up("x", SCRAM[0])[0] != known.made_up("x", SCRAM[1])[0]


@pytest.mark.parametrize("iterations", [ITERATIONS_MIN - 1, ITERATIONS_MAX + 1])
def test_a_record_that_asks_for_other_than_sound_work_lets_nobody_in(iterations: int) -> None:
    """Too few are no protection, too many are an attack on the client."""
    credential = (*KNOWN["alice", "SCRAM-SHA-256"][:3], iterations)
    begun = authenticator(credential=lambda *_: credential).begin("SCRAM-SHA-256")

    assert by_scram(begun, "alice", "pencil") == Refused("SCRAM-SHA-256: no such user")


@pytest.mark.parametrize("name", ["*", "ANONYMOUS"])
def test_nobody_logs_in_as_nobody_in_particular(name: str) -> None:
    """What rules say of everybody would be about him, also with a credential of before."""
    credential = KNOWN["alice", "SCRAM-SHA-256"]
    begun = authenticator(credential=lambda *_: credential).begin("SCRAM-SHA-256")

    assert by_scram(begun, name, "pencil") == Refused("SCRAM-SHA-256: no such user")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,n=alice",
        b"n,a=root,n=alice,r=abc",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,m=ext,n=alice,r=abc",
        b"n,,n=a=lice,r=abc",
        b"\xff",
        b"n,,n=alice,r=" + b"a" * 4_096,
    ],
    ids=lambda message: repr(message[:24]),
)
def test_a_bad_message_ends_the_conversation(message: bytes) -> None:
    """And what comes after it, as well-formed as it may be, changes nothing."""
    begun = authenticator().begin("SCRAM-SHA-256")

    assert isinstance(begun.step(message, NOW_MS), Refused)
    assert begun.step(b"n,,n=alice,r=abc", NOW_MS) == Refused("a message after the end")


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=3), st.sampled_from(MECHANISMS))
def test_no_bytes_are_more_than_refused(messages: list[bytes], mechanism: str) -> None:
    """They come from somebody nobody knows yet."""
    begun = authenticator().begin(mechanism)

    for data in (b"n,,n=alice,r=abc", *messages):
        assert not isinstance(begun.step(data, NOW_MS), Accepted)


@settings(max_examples=50)
@given(st.text(min_size=1, max_size=40), st.text(min_size=1, max_size=40))
def test_a_password_lets_in_and_another_does_not(password: str, other: str) -> None:
    """Whatever characters they have; what stringprep makes equal is equal."""
    try:
        credential = credential_of(password, "SCRAM-SHA-256")
        twin = credential_of(other, "SCRAM-SHA-256", salt=credential[0])
    except ValueError:
        return  # Not a password at all.
    known = authenticator(credential=lambda *_: credential)

    assert isinstance(by_scram(known.begin(SCRAM[0]), "alice", password), Accepted)
    bad = by_scram(known.begin(SCRAM[0]), "alice", other)
    assert isinstance(bad, Accepted) is (twin == credential)


def test_the_first_administrator_is_in_no_log() -> None:
    """Known from a setting, with a salt like anybody's, the same at each start."""
    plain = authenticator()
    lookup = with_bootstrap(lambda *_: None, "admin", "first", plain.made_up)
    known = authenticator(credential=lookup)

    for mechanism in SCRAM:
        found = by_scram(known.begin(mechanism), "admin", "first", mechanism)
        assert isinstance(found, Accepted)
        kept = lookup("admin", mechanism)
        assert kept is not None
        assert kept[0::3] == plain.made_up("admin", mechanism)[0::3]
    assert isinstance(by_scram(known.begin("SCRAM-SHA-256"), "admin", "x"), Refused)
    assert lookup("alice", SCRAM[0]) is None


@pytest.mark.parametrize(
    "message",
    [
        b"n,,\x01auth=Bearer token\x01\x01",
        b"n,a=etl,\x01host=h\x01port=1\x01auth=Bearer token\x01\x01",
        b"y,,\x01auth=bearer token\x01\x01",
    ],
)
def test_who_has_the_token_is_let_in(message: bytes) -> None:
    """In the forms that RFC 7628 allows."""
    found = authenticator().begin("OAUTHBEARER").step(message, NOW_MS)

    assert isinstance(found, Accepted)
    assert found[:3] == ("User:etl", b"", None)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,\x01auth=Bearer token",
        b"n,,\x01auth=Bearer token\x01",
        b"n,,\x01auth=Basic token\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer token\x01auth=Bearer token\x01\x01",
        b"n,a=root,\x01auth=Bearer token\x01\x01",
        b"n,x,\x01auth=Bearer token\x01\x01",
        b"n,,x\x01auth=Bearer token\x01\x01",
        b"p=x,,\x01auth=Bearer token\x01\x01",
        b"n,,\x01auth=Bearer wrong\x01\x01",
        b"n,,\x01auth=Bearer \xff\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * 4_096 + b"\x01\x01",
    ],
    ids=lambda message: repr(message[:40]),
)
def test_another_message_than_a_known_token_is_refused(message: bytes) -> None:
    """Also of somebody who has a token, and wants to be another."""
    begun = authenticator().begin("OAUTHBEARER")

    assert isinstance(begun.step(message, NOW_MS), Refused)
    good = b"n,,\x01auth=Bearer token\x01\x01"
    assert begun.step(good, NOW_MS) == Refused("a message after the end")


def test_a_mechanism_that_is_not_enabled_does_not_begin() -> None:
    """Nor one that nobody knows."""
    some = authenticator(mechanisms=("SCRAM-SHA-512",), bearer=None)

    for name in ("SCRAM-SHA-256", "OAUTHBEARER", "PLAIN", ""):
        with pytest.raises(UnsupportedMechanism):
            some.begin(name)
    with pytest.raises(ValueError, match="no mechanism 'PLAIN'"):
        authenticator(mechanisms=("PLAIN",))
    with pytest.raises(ValueError, match="needs the keys"):
        authenticator(bearer=None)


# --- the log-in of a connection ---------------------------------------------------------


def present(log_in: LogIn, token: bytes, wall_ms: int = NOW_MS) -> tuple[int, int]:
    """Log in by a token; return the error and the session's lifetime."""
    assert log_in.handshake(SaslHandshakeRequest("OAUTHBEARER")).error == 0
    message = b"n,,\x01auth=Bearer " + token + b"\x01\x01"
    answer = log_in.authenticate(SaslAuthenticateRequest(message), wall_ms)
    assert answer.auth_bytes == b""
    assert answer.message == ("authentication failed" if answer.error else None)
    return answer.error, answer.session_lifetime_ms


def test_a_log_in_lasts_as_long_as_what_it_rests_on() -> None:
    """The token's end or the setting's, whichever is first; without either it has no end."""
    for longest_ms, token, lifetime_ms in [
        (0, b"token", 0),
        (0, b"brief", 60_000),
        (10_000, b"brief", 10_000),
        (90_000, b"brief", 60_000),
        (90_000, b"token", 90_000),
    ]:
        log_in = LogIn(authenticator(max_session_ms=longest_ms))
        assert present(log_in, token) == (0, lifetime_ms)
        assert log_in.ends_wall_ms == (NOW_MS + lifetime_ms if lifetime_ms else None)


def test_who_logs_in_again_must_be_the_same() -> None:
    """A connection's members and rights are of the principal that it had."""
    log_in = LogIn(authenticator(max_session_ms=10_000))
    assert present(log_in, b"token") == (0, 10_000)
    assert present(log_in, b"token", NOW_MS + 5_000) == (0, 10_000)
    assert (log_in.principal, log_in.ends_wall_ms) == ("User:etl", NOW_MS + 15_000)

    assert present(log_in, b"brief") == (58, 0)
    assert (log_in.principal, log_in.failures) == (None, 1)
    assert log_in.refused_because == "logged in again as another than User:etl"


def test_a_log_in_out_of_turn_is_34() -> None:
    """No message without a handshake, and no handshake inside a conversation."""
    log_in = LogIn(authenticator())
    assert log_in.authenticate(SaslAuthenticateRequest(b"x"), NOW_MS).error == 34
    assert log_in.handshake(SaslHandshakeRequest("SCRAM-SHA-256")).error == 0
    assert log_in.handshake(SaslHandshakeRequest("SCRAM-SHA-256")).error == 34
    assert log_in.authenticate(SaslAuthenticateRequest(b"x"), NOW_MS).error == 34
    refused = log_in.handshake(SaslHandshakeRequest("PLAIN"))
    assert (refused.error, refused.mechanisms) == (33, MECHANISMS)
    assert log_in.failures == 4


def test_every_failure_sounds_the_same() -> None:
    """What it was is for the audit alone."""
    log_in = LogIn(authenticator())

    answers, reasons = set(), set()
    for token in (b"wrong", b"", b"\xff"):
        answers.add(present(log_in, token))
        reasons.add(log_in.refused_because)
    assert (answers, len(reasons)) == ({(58, 0)}, 3)
