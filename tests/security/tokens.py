"""An issuer of tokens with keys of every kind, for tests. The keys are made anew in each run."""

import base64
import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

NOW_S: Final = 1_785_000_000
NOW_MS: Final = NOW_S * 1000
CLAIMS: Final[Mapping[str, Any]] = {
    "sub": "alice",
    "iss": "https://issuer",
    "aud": "coordinator",
    "exp": NOW_S + 600,
}


@cache
def private_key(kind: str) -> Any:
    """Return the key of "RSA", "RSA-2", "EC" or "OKP"."""
    if kind.startswith("RSA"):
        return rsa.generate_private_key(65537, 2048)
    if kind == "EC":
        return ec.generate_private_key(ec.SECP256R1())
    return ed25519.Ed25519PrivateKey.generate()


def public_jwk(kind: str, **more: Any) -> dict[str, Any]:
    """Return the public key as a file of keys has it; its id is *kind* unless *more* says else."""
    algorithm: Any = {"R": RSAAlgorithm, "E": ECAlgorithm, "O": OKPAlgorithm}[kind[0]]
    described = json.loads(algorithm.to_jwk(private_key(kind).public_key()))
    described.pop("key_ops", None)
    return {**described, "kid": kind, **more}


def jwks(*keys: Mapping[str, Any]) -> str:
    """Return the file with *keys*, by default one of every kind."""
    return json.dumps({"keys": keys or [public_jwk(kind) for kind in ("RSA", "EC", "OKP")]})


def signed(
    kind: str = "RSA",
    algorithm: str = "RS256",
    header: Mapping[str, Any] | None = None,
    **claims: Any,
) -> str:
    """Return a token that the issuer has signed; a claim that is None is left out."""
    said = {k: v for k, v in {**CLAIMS, **claims}.items() if v is not None}
    headers = {"kid": kind} if header is None else dict(header)
    return jwt.PyJWS().encode(json.dumps(said).encode(), private_key(kind), algorithm, headers)


def unsigned(header: Mapping[str, Any], end: str = "") -> str:
    """Return a token with any header, and *end* for its signature."""

    def part(value: Mapping[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part(header)}.{part(CLAIMS)}.{end}"
