"""Bearer tokens: whom they are of, and everything that must not be taken for one."""

import base64
import hashlib
import hmac
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings, strategies as st

from coordinator.security.bearer import (
    STATIC_TOKENS_MAX,
    Bearer,
    Bearing,
    Keys,
    Rules,
    StaticTokens,
    TokenRefused,
)
from coordinator.security.files import BadFile, WatchedFile
from tests.security.tokens import NOW_MS, NOW_S, jwks, private_key, public_jwk, signed, unsigned

RULES = Rules("https://issuer", ("coordinator",))


def issuer(*keys: dict[str, Any], rules: Rules = RULES) -> Bearer:
    """Return what knows the tokens of the issuer with these keys."""
    known = Keys.parse(jwks(*keys))
    return Bearer(keys=lambda: known, rules=rules)


def hashed(text: str) -> str:
    """Return the hash of a token as its file has it."""
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("kind", "algorithm"),
    [("RSA", "RS256"), ("RSA", "PS256"), ("EC", "ES256"), ("OKP", "EdDSA")],
)
def test_a_signed_token_says_who_bears_it(kind: str, algorithm: str) -> None:
    """By each of the algorithms that issuers sign with."""
    found = issuer().look(signed(kind, algorithm), NOW_MS)

    assert found == Bearing("alice", NOW_MS + 630_000)


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"exp": NOW_S - 30}, "expired"),
        ({"exp": None}, "no end"),
        ({"exp": True}, "no time"),
        ({"exp": "9999999999"}, "no time"),
        ({"exp": float("inf")}, "no time"),
        ({"exp": 10**400}, "no time"),
        ({"nbf": NOW_S + 31}, "valid yet"),
        ({"iat": NOW_S + 31}, "valid yet"),
        ({"iss": "https://other"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "another"}, "audience"),
        ({"aud": ["another", "third"]}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": {"coordinator": 1}}, "audience"),
        ({"sub": ""}, "names nobody"),
        ({"sub": "a\nb"}, "names nobody"),
        ({"sub": "x" * 256}, "names nobody"),
        ({"sub": None}, "names nobody"),
        ({"sub": 7}, "names nobody"),
        ({"sub": "*"}, "names nobody"),
        ({"sub": "ANONYMOUS"}, "names nobody"),
    ],
    ids=str,
)
def test_a_claim_that_does_not_fit_refuses_the_token(claims: dict[str, Any], why: str) -> None:
    """A good signature says who made it, not that it is for here and now."""
    with pytest.raises(TokenRefused, match=why):
        issuer().look(signed(**claims), NOW_MS)


def test_clocks_may_differ_by_the_skew() -> None:
    """Issuer and coordinator are two machines."""
    bearer = issuer(rules=RULES._replace(clock_skew_s=60))

    assert bearer.look(signed(exp=NOW_S - 59), NOW_MS).expires_wall_ms == NOW_MS + 1_000
    assert bearer.look(signed(nbf=NOW_S + 60, iat=NOW_S + 60), NOW_MS).name == "alice"


def test_what_is_not_asked_for_may_be_anything() -> None:
    """One of several audiences; another claim for the name; any issuer where none is expected."""
    assert issuer().look(signed(aud=["x", "coordinator"]), NOW_MS).name == "alice"
    anyone = issuer(rules=Rules(sub_claim="client_id"))
    assert anyone.look(signed(client_id="etl", iss=None, aud=None), NOW_MS).name == "etl"


def test_a_token_without_a_signature_is_none() -> None:
    """The classic: "none", in any spelling, and a signature of nothing."""
    algorithms: list[Any] = ["none", "None", "NONE", "", None, "HS256", "RS256", ["RS256"], {}]
    for alg in algorithms:
        with pytest.raises(TokenRefused):
            issuer().look(unsigned({"alg": alg, "kid": "RSA"}), NOW_MS)


def test_a_public_key_is_never_a_shared_secret() -> None:
    """The other classic: HS256 with the issuer's public key, which everybody has."""
    public = private_key("RSA").public_key()
    for secret in (
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.PKCS1),
    ):
        body = unsigned({"alg": "HS256", "kid": "RSA"}).removesuffix(".")
        mac = base64.urlsafe_b64encode(hmac.digest(secret, body.encode(), "sha256")).decode()
        with pytest.raises(TokenRefused, match="algorithm"):
            issuer().look(f"{body}.{mac.rstrip('=')}", NOW_MS)


def test_the_algorithm_must_be_one_of_its_key() -> None:
    """A key that is said to be for PS256 isn't one for RS256, and none is for another kind's."""
    only_ps = issuer(public_jwk("RSA", alg="PS256"))
    with pytest.raises(TokenRefused, match="algorithm"):
        only_ps.look(signed(algorithm="RS256"), NOW_MS)
    assert only_ps.look(signed(algorithm="PS256"), NOW_MS).name == "alice"
    with pytest.raises(TokenRefused, match="algorithm"):
        issuer().look(signed(header={"kid": "EC"}), NOW_MS)


def test_keys_are_rotated_by_their_ids() -> None:
    """Old and new are in the file for a while; another issuer's are not."""
    one, both = issuer(public_jwk("RSA")), issuer(public_jwk("RSA"), public_jwk("RSA-2"))

    assert both.look(signed("RSA"), NOW_MS).name == "alice"
    assert both.look(signed("RSA-2"), NOW_MS).name == "alice"
    with pytest.raises(TokenRefused, match="doesn't have"):
        one.look(signed("RSA-2"), NOW_MS)
    with pytest.raises(TokenRefused, match="signature"):
        one.look(signed("RSA-2", header={"kid": "RSA"}), NOW_MS)
    # Without an id there must be no doubt which key is meant.
    assert one.look(signed(header={}), NOW_MS).name == "alice"
    with pytest.raises(TokenRefused, match="doesn't have"):
        both.look(signed(header={}), NOW_MS)


def test_an_extension_that_must_be_understood_is_refused() -> None:
    """RFC 7515: whoever doesn't know it must not accept the token."""
    with pytest.raises(TokenRefused):
        issuer().look(signed(header={"kid": "RSA", "crit": ["x"], "x": 1}), NOW_MS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON"),
        ("[]", "no JSON"),
        ('{"keys": 1}', "no JSON"),
        ('{"keys": [1]}', "no JSON"),
        ("[" * 100_000, "no JSON"),
        ('{"keys": []}', "no key"),
        ("oct", "secret"),
        ({"d": "AQAB"}, "secret"),
        ({"n": "AQAB"}, "bits|damaged"),
        ({"kid": 1}, "no text"),
        ({"use": "enc"}, "no key"),
        ({"key_ops": ["encrypt"]}, "no key"),
        ({"alg": "RS1"}, "no key"),
    ],
    ids=str,
)
def test_a_file_of_keys_that_makes_no_sense_is_refused(
    text: str | dict[str, Any], why: str
) -> None:
    """And one that has a secret in it, which should lie nowhere."""
    if text == "oct":
        text = jwks({"kty": "oct", "k": "c2VjcmV0"})
    with pytest.raises(BadFile, match=why):
        Keys.parse(jwks(public_jwk("RSA", **text)) if isinstance(text, dict) else text)


def test_damaged_and_doubtful_keys_are_refused() -> None:
    """Nobody guesses which of two is meant."""
    for kind in ("EC", "OKP"):
        with pytest.raises(BadFile, match="damaged"):
            Keys.parse(jwks(public_jwk(kind, x="AQAB")))
    with pytest.raises(BadFile, match="same 'kid'"):
        Keys.parse(jwks(public_jwk("RSA"), public_jwk("RSA-2", kid="RSA")))
    with pytest.raises(BadFile, match="more than"):
        Keys.parse(jwks(*[public_jwk("RSA", kid=str(i)) for i in range(101)]))


def test_a_static_token_is_known_by_its_hash() -> None:
    """So the file lets nobody in who reads it."""
    lines = f"# of the night\netl {hashed('s3cret')}\nold {hashed('o')} 2026-07-25T17:20:00Z\n"
    tokens = StaticTokens.parse(lines)
    bearer = Bearer(tokens=lambda: tokens)

    assert bearer.look("s3cret", NOW_MS)[:2] == ("etl", None)
    assert bearer.look("o", NOW_MS - 1).name == "old"
    with pytest.raises(TokenRefused, match="expired"):
        bearer.look("o", NOW_MS)
    for text in ("", "s3cre", "s3cret ", hashed("s3cret"), "\ud800"):
        with pytest.raises(TokenRefused, match="no known token"):
            bearer.look(text, NOW_MS)


@pytest.mark.parametrize(
    "line",
    [
        *("etl", "etl s3cret", "etl  " + "0" * 63, f"e\x07 {hashed('x')}"),
        *(f"etl {hashed('x')} soon", f"* {hashed('x')}", f"ANONYMOUS {hashed('x')}"),
    ],
)
def test_a_bad_line_of_tokens_is_named_without_what_it_says(line: str) -> None:
    """Whoever wrote the token instead of its hash must not find it in the log."""
    with pytest.raises(BadFile, match="line 2") as caught:
        StaticTokens.parse("# tokens\n" + line)
    assert "s3cret" not in str(caught.value)


def test_tokens_are_bounded_and_each_is_of_one_name() -> None:
    """All are compared in each log-in, whoever asks."""
    with pytest.raises(BadFile, match="more than"):
        StaticTokens.parse("\n".join(f"u {i:064x}" for i in range(STATIC_TOKENS_MAX + 1)))
    with pytest.raises(BadFile, match="same token"):
        StaticTokens.parse(f"a {hashed('x')}\nb {hashed('x').upper()}")
    with pytest.raises(TokenRefused, match="characters"):
        issuer().look("a" * 4_097, NOW_MS)


def test_a_file_that_changes_is_read_anew_and_a_bad_one_is_not_taken(tmp_path: Path) -> None:
    """An issuer that publishes nonsense locks nobody out, and is told of once."""
    path = tmp_path / "tokens"
    path.write_text(f"a {hashed('one')}")
    file = WatchedFile(path, StaticTokens.parse)
    bearer = Bearer(tokens=file)
    assert not file.refresh()
    before = bearer.look("one", NOW_MS)

    path.write_text(f"a {hashed('one')}\nb")  # Somebody is writing.
    assert not file.refresh()
    path.write_text(f"b {hashed('other')} # longer")
    assert not file.refresh()
    assert bearer.has(before)
    assert file.refresh()
    assert not bearer.has(before)
    assert bearer.look("other", NOW_MS).name == "b"
    path.write_text("b secret-by-mistake")
    assert not file.refresh()
    with pytest.raises(BadFile, match="tokens: line 1") as caught:
        file.refresh()
    assert "secret" not in str(caught.value)
    assert not file.refresh()
    path.unlink()
    assert not file.refresh()
    with pytest.raises(BadFile, match="No such file"):
        file.refresh()
    assert bearer.look("other", NOW_MS).name == "b"
    with pytest.raises(BadFile, match="No such file"):
        file.refresh(force=True)
    path.write_bytes(b"\xff")
    assert not file.refresh()
    with pytest.raises(BadFile, match="UTF-8"):
        file.refresh()
    os.truncate(path, 2 * 1024 * 1024)
    assert not file.refresh()
    with pytest.raises(BadFile, match="more than 1048576 bytes"):
        file.refresh()


@settings(max_examples=200)
@given(st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda b: b.decode("latin1"))))
def test_no_text_is_more_than_refused(text: str) -> None:
    """Whatever stands where a token should: it comes from somebody nobody knows."""
    with pytest.raises(TokenRefused):
        issuer().look(text, NOW_MS)


@settings(max_examples=200)
@given(st.data())
def test_no_changed_token_is_taken(data: st.DataObject) -> None:
    """One other byte anywhere, and the signature is of something else."""
    good = signed("OKP", "EdDSA")
    # The very last character has bits that say nothing.
    at = data.draw(st.integers(0, len(good) - 2))
    other = data.draw(st.characters(codec="ascii").filter(lambda c: c != good[at]))

    with pytest.raises(TokenRefused):
        issuer().look(good[:at] + other + good[at + 1 :], NOW_MS)


def test_a_header_that_nests_deep_is_only_refused() -> None:
    """It is read before the signature is."""
    deep = base64.urlsafe_b64encode(b"[" * 2_900).decode().rstrip("=")
    with pytest.raises(TokenRefused):
        issuer().look(f"{deep}.e30.", NOW_MS)
