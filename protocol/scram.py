"""Credentials of SCRAM (RFC 5802, RFC 7677): mechanisms, bounds, and how keys come of a password.

Whoever sets a password makes the keys himself and sends those (KIP-554): neither the password nor
anything that would do in its place ever crosses the wire, or is kept.
"""

import hashlib
import hmac
import string
from collections.abc import Mapping
from enum import IntEnum
from typing import Final, NamedTuple


class Mechanism(IntEnum):
    """Kafka's numbers."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        """The mechanism's name in SASL, for example "SCRAM-SHA-256"."""
        return self.name.replace("_", "-")


MECHANISMS: Final[Mapping[str, Mechanism]] = {m.sasl_name: m for m in Mechanism}
KEY_BYTES: Final[Mapping[Mechanism, int]] = {
    Mechanism.SCRAM_SHA_256: 32,
    Mechanism.SCRAM_SHA_512: 64,
}
_HASHES: Final[Mapping[Mechanism, str]] = {
    Mechanism.SCRAM_SHA_256: "sha256",
    Mechanism.SCRAM_SHA_512: "sha512",
}
# RFC 7677 asks for 4,096 at least; each log-in costs its client that many hashes.
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 1_000_000
# Everybody's: the challenge tells both, and any other one would tell that there is such a user.
ITERATIONS: Final = 16_384
SALT_BYTES: Final = 24
PASSWORD_CHARACTERS_MAX: Final = 1_024
# Of these SASLprep (RFC 4013), which some clients do and others don't, makes the same again.
_TYPABLE: Final = frozenset(string.ascii_letters + string.digits + string.punctuation + " ")


class Keys(NamedTuple):
    """Keys by which a server checks a password; they can't be used to log in."""

    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        """Keep the keys out of every text."""
        return "Keys(…)"


def password_problem(password: str) -> str | None:
    """Return why *password* can't be one, None if it can; the text doesn't show it."""
    if not password:
        return "the password is empty"
    if len(password) > PASSWORD_CHARACTERS_MAX:
        return f"the password is longer than {PASSWORD_CHARACTERS_MAX} characters"
    if not _TYPABLE.issuperset(password):
        return "the password has characters that are not printable ASCII"
    return None


def keys_of(password: str, mechanism: Mechanism, salt: bytes, iterations: int) -> Keys:
    """Return the keys of *password* (RFC 5802, section 3).

    Raises:
        ValueError: The password can't be one, see `password_problem`.
    """
    problem = password_problem(password)
    if problem is not None:
        raise ValueError(problem)
    name = _HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", name)
    return Keys(hashlib.new(name, client_key).digest(), hmac.digest(salted, b"Server Key", name))
