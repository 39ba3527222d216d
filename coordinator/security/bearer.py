"""Bearer tokens: signed by an issuer (JWT), or known here by their hashes. Sans I/O.

Theory of operation
===================

A token is compared with the hashes of the static ones, and else read as a JWT. Its signature is
checked before anything in it is believed, by PyJWT, with a key of the issuer's file (JWKS) and an
algorithm that fits this key: never "none", and never one in which a public key would be a shared
secret (HS256). Then the claims are judged here, by the time that the caller gives.

What makes no sense in a file of theirs is refused, and what was in force stays so (see `files`): an
issuer that publishes nonsense locks nobody out.
"""

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from coordinator.security.files import BadFile
from protocol.acls import user_name_error

# A token has to fit into one message of a log-in; `look` is asked by others, too.
TOKEN_BYTES_MAX: Final = 4_096
STATIC_TOKENS_MAX: Final = 1_000
KEYS_MAX: Final = 100
RSA_BITS: Final = range(2_048, 8_193)
CLOCK_SKEW_S: Final = 30

_SHA256: Final = re.compile(r"[0-9a-fA-F]{64}", re.ASCII)
_jws: Final = jwt.PyJWS()


class TokenRefused(Exception):
    """The token is no good; the message, which quotes nothing of it, is for the audit alone."""


class Bearing(NamedTuple):
    """Whom a token is for, and until when, where it ends at all.

    Attributes:
        digest: Of a static one; None of a signed one.

    """

    name: str
    expires_wall_ms: int | None
    digest: bytes | None = None


class Rules(NamedTuple):
    """What a signed token must say.

    Attributes:
        issuer: Who must have made it; None is whoever has the key.
        audience: One of these must be whom it is for; none is anybody.
        sub_claim: What names the principal.
        clock_skew_s: How much the issuer's clock may differ.

    """

    issuer: str | None = None
    audience: tuple[str, ...] = ()
    sub_claim: str = "sub"
    clock_skew_s: int = CLOCK_SKEW_S


# --- Static tokens ----------------------------------------------------------------------


class StaticTokens:
    """All of one file. To look for one takes as long whether it is there or not."""

    def __init__(self, tokens: Iterable[Bearing] = ()) -> None:
        self._tokens = frozenset(tokens)

    def __len__(self) -> int:
        return len(self._tokens)

    def __contains__(self, bearing: Bearing) -> bool:
        return bearing in self._tokens

    @classmethod
    def parse(cls, text: str) -> "StaticTokens":
        """Read lines of a name, the SHA-256 of the token in hex, and, if it ends, when.

        Raises:
            BadFile: A line is something else.
        """
        lines = [line.split("#", 1)[0].split() for line in text.splitlines()]
        tokens = tuple(_static(number, line) for number, line in enumerate(lines, 1) if line)
        if len(tokens) > STATIC_TOKENS_MAX:
            raise BadFile(f"{len(tokens)} tokens are more than {STATIC_TOKENS_MAX}")
        if len({one.digest for one in tokens}) < len(tokens):
            raise BadFile("two names have the same token")
        return cls(tokens)

    def find(self, token: str) -> Bearing | None:
        """Return whose *token* is."""
        digest = hashlib.sha256(token.encode(errors="surrogatepass")).digest()
        found = None
        for one in self._tokens:  # All of them, so that the time tells nothing.
            if one.digest is not None and hmac.compare_digest(one.digest, digest):
                found = one
        return found


def _static(number: int, words: list[str]) -> Bearing:
    if len(words) not in {2, 3} or not _SHA256.fullmatch(words[1]):
        # What stands there may be the token itself.
        raise BadFile(f"line {number} isn't: NAME SHA256-IN-HEX [END]")
    if why := user_name_error(words[0]):
        raise BadFile(f"line {number}: the name is not legal: {why}")
    expires_wall_ms = None
    if len(words) == 3:
        try:
            end = datetime.fromisoformat(words[2])
        except ValueError:
            raise BadFile(f"line {number}: the end is no time like 2027-01-31T00:00:00Z") from None
        end = end if end.tzinfo is not None else end.replace(tzinfo=UTC)
        expires_wall_ms = round(end.timestamp() * 1000)
    return Bearing(words[0], expires_wall_ms, bytes.fromhex(words[1]))


# --- Keys of an issuer ------------------------------------------------------------------


class _Key(NamedTuple):
    """A public key, and the one algorithm or two that it is good for."""

    algorithms: tuple[str, ...]
    public: rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


class Keys:
    """The keys of one issuer by their ids; a key without one is good for tokens without one."""

    def __init__(self, keys: Mapping[str | None, _Key]) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def parse(cls, text: str) -> "Keys":
        """Read a JWKS (RFC 7517). Keys for anything but signatures of tokens are passed over.

        Raises:
            BadFile: It is none, has a key that must be secret, or none that is of use.
        """
        try:
            listed = json.loads(text)["keys"]
            described = [dict(one) for one in listed]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise BadFile('it is no JSON of the form {"keys": [...]}') from None
        if len(described) > KEYS_MAX:
            raise BadFile(f"{len(described)} keys are more than {KEYS_MAX}")
        keys: dict[str | None, _Key] = {}
        for number, one in enumerate(described, 1):
            key = _key(number, one)
            kid = one.get("kid")
            if key is None:
                continue
            if kid is not None and not isinstance(kid, str):
                raise BadFile(f"key {number}: its 'kid' is no text")
            if kid in keys:
                raise BadFile(f"key {number}: another one has the same 'kid'")
            keys[kid] = key
        if not keys:
            raise BadFile("it has no key that signs tokens by RS256, PS256, ES256 or EdDSA")
        return cls(keys)

    def payload(self, token: str) -> bytes:
        """Return what *token* says, whose signature is one of ours.

        Raises:
            TokenRefused: It isn't.
        """
        try:
            header = jwt.get_unverified_header(token)
            kid, algorithm = header.get("kid"), header.get("alg")
            key = self._key(kid if isinstance(kid, str) else None)
            if key is None:
                raise TokenRefused("signed by a key that the issuer's file doesn't have")
            if algorithm not in key.algorithms:
                raise TokenRefused("its algorithm isn't one of its key's")
            if "crit" in header or header.get("b64", True) is not True:
                raise TokenRefused("it needs an extension that isn't known here")
            payload: bytes = _jws.decode(token, key.public, algorithms=list(key.algorithms))
        except jwt.InvalidSignatureError:
            raise TokenRefused("the signature doesn't fit") from None
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise TokenRefused("neither a known token nor a signed one") from None
        return payload

    def _key(self, kid: str | None) -> _Key | None:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)


def _key(number: int, described: Mapping[str, Any]) -> _Key | None:
    """Return a key of a JWKS, None of one that is for something else."""
    kind = described.get("kty")
    if kind == "oct" or "d" in described:
        raise BadFile(f"key {number} is a secret; only public keys belong here")
    operations = described.get("key_ops", ["verify"])
    if described.get("use", "sig") != "sig" or "verify" not in operations:
        return None
    make = _MAKES.get((kind, described.get("crv")) if kind != "RSA" else ("RSA", None))
    if make is None:
        return None
    try:
        key = make(described)
    except (KeyError, ValueError, TypeError, binascii.Error):
        raise BadFile(f"key {number} is damaged") from None
    if isinstance(key.public, rsa.RSAPublicKey) and key.public.key_size not in RSA_BITS:
        raise BadFile(f"key {number} has {key.public.key_size} bits, and not 2048 to 8192")
    algorithm = described.get("alg")
    if algorithm is None:
        return key
    return key._replace(algorithms=(algorithm,)) if algorithm in key.algorithms else None


def _rsa(described: Mapping[str, Any]) -> _Key:
    numbers = rsa.RSAPublicNumbers(_number(described["e"]), _number(described["n"]))
    return _Key(("RS256", "PS256"), numbers.public_key())


def _p256(described: Mapping[str, Any]) -> _Key:
    x, y = _number(described["x"]), _number(described["y"])
    return _Key(("ES256",), ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key())


def _ed25519(described: Mapping[str, Any]) -> _Key:
    public = ed25519.Ed25519PublicKey.from_public_bytes(_bytes(described["x"]))
    return _Key(("EdDSA",), public)


_MAKES: Final[Mapping[tuple[object, object], Callable[[Mapping[str, Any]], _Key]]] = {
    ("RSA", None): _rsa,
    ("EC", "P-256"): _p256,
    ("OKP", "Ed25519"): _ed25519,
}


def _bytes(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _number(text: str) -> int:
    return int.from_bytes(_bytes(text))


# --- Whoever bears a token --------------------------------------------------------------


class Bearer:
    """Knows whose a token is."""

    def __init__(
        self,
        *,
        tokens: Callable[[], StaticTokens] = StaticTokens,
        keys: Callable[[], Keys | None] = lambda: None,
        rules: Rules | None = None,
    ) -> None:
        """Take what returns the tokens and keys that are in force at the moment."""
        self._tokens = tokens
        self._keys = keys
        self._rules = rules or Rules()

    @property
    def sources(self) -> tuple[object, object]:
        """What tokens are looked for in: another one once a file was replaced."""
        return self._tokens(), self._keys()

    def look(self, token: str, wall_ms: int) -> Bearing:
        """Return who bears *token*.

        Raises:
            TokenRefused: It is nobody's, or not now.
        """
        if len(token) > TOKEN_BYTES_MAX:
            raise TokenRefused(f"a token of {len(token)} characters")
        found = self._tokens().find(token)
        if found is None:
            keys = self._keys()
            if keys is None:
                raise TokenRefused("no known token")
            found = _judged(keys.payload(token), self._rules, wall_ms)
        if found.expires_wall_ms is not None and wall_ms >= found.expires_wall_ms:
            raise TokenRefused("it has expired")
        return found

    def has(self, bearing: Bearing) -> bool:
        """Say whether a token is still in its file; a signed one has an end instead."""
        return bearing.digest is None or bearing in self._tokens()


def _judged(payload: bytes, rules: Rules, wall_ms: int) -> Bearing:
    """Return who a signed token is for.

    Raises:
        TokenRefused: Its claims say that it isn't for here, or not for now.
    """
    try:
        claims = json.loads(payload)
    except (ValueError, RecursionError):
        raise TokenRefused("its claims are no JSON") from None
    if not isinstance(claims, dict):
        raise TokenRefused("its claims are no object")
    skew_ms = rules.clock_skew_s * 1000
    expires_ms = _time_ms(claims, "exp")
    if expires_ms is None:
        raise TokenRefused("it has no end (exp)")
    for begin in ("nbf", "iat"):
        not_before_ms = _time_ms(claims, begin)
        if not_before_ms is not None and wall_ms < not_before_ms - skew_ms:
            raise TokenRefused(f"it isn't valid yet ({begin})")
    if rules.issuer is not None and claims.get("iss") != rules.issuer:
        raise TokenRefused("it has another issuer (iss)")
    audience = claims.get("aud")
    intended = audience if isinstance(audience, list) else [audience]
    if rules.audience and not any(one in intended for one in rules.audience):
        raise TokenRefused("it is for another audience (aud)")
    name = claims.get(rules.sub_claim)
    if not isinstance(name, str) or user_name_error(name) is not None:
        raise TokenRefused(f"its {rules.sub_claim!r} names nobody")
    return Bearing(name, expires_ms + skew_ms)


def _time_ms(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if value is None:
        return None
    # No NaN is in a range, and an int of any size is compared without becoming a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise TokenRefused(f"its {name!r} is no time")
    return int(value * 1000)
