"""Who everybody is: the certificates of the daemon and of clients, users and their passwords."""

import random
import secrets
import ssl
from functools import cache
from pathlib import Path
from typing import Final

import trustme

from tests.fakes.tls import authority, certificate, client_context, write_key_store

HOST: Final = "127.0.0.1"
PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
SASL_SSL: Final = "SASL_SSL"
# Those of the daemon, in this order.
LISTENERS: Final = (PLAINTEXT, SSL, SASL_SSL)
ROOT: Final = "root"
# Longer ago, and by more, than any clock is off.
_EXPIRED_DAYS: Final = -30
_ROTTEN: Final = ("no PEM", "cut off", "the key of another", "expired", "missing")


class Accounts:
    """All of a run.

    Attributes:
        passwords: Those in force, by user.
        past: Those that were, with whose.
        as_daemon: What is shown to clients, with the daemon's certificate.
        leaf: The certificate that the daemon is to show.
        trust_store: The file of authorities that both ends trust.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        """*folder* is where their files go."""
        self.passwords: dict[str, str] = {}
        self.past: list[tuple[str, str]] = []
        self._folder = folder / "accounts"
        self._folder.mkdir()
        self._rng = rng
        self._renewals = 0
        self._key_store = self._folder / "server.pem"
        self.trust_store = self._folder / "ca.pem"
        authority().cert_pem.write_to_path(self.trust_store)
        self.hand_out(ROOT, secrets.token_hex())
        self.renew()

    def settings(self) -> dict[str, str | bool]:
        """Return the daemon's; everybody may do what no rule is about."""
        return {
            "ssl.keystore.location": str(self._key_store),
            "ssl.truststore.location": str(self.trust_store),
            "ssl.client.auth": "requested",
            "sasl.bootstrap.user": ROOT,
            "sasl.bootstrap.password.file": str(self._secret(ROOT)),
            "allow.everyone.if.no.acl.found": True,
        }

    def properties(self, name: str, protocol: str) -> dict[str, str]:
        """Return what the client library is told to be *name*."""
        match protocol:
            case "SSL":
                return self._by_certificate(name, certificate(name))
            case "SASL_SSL":
                return self.guess(name, f"{{file:{self._secret(name)}}}")
            case _:
                return {"security.protocol": protocol}

    def strangers_properties(self) -> dict[str, str]:
        """Return those of somebody whose authority nobody trusts."""
        return self._by_certificate("stranger", certificate("stranger", by="theirs"))

    def guess(self, name: str, password: str) -> dict[str, str]:
        """Return those of somebody who says that he is *name*."""
        return self._by_tls(SASL_SSL) | {
            "sasl.mechanism": "SCRAM-SHA-256",
            "sasl.username": name,
            "sasl.password": password,
        }

    def _by_certificate(self, name: str, leaf: trustme.LeafCert) -> dict[str, str]:
        path = self._folder / f"{name}.pem"
        write_key_store(path, leaf)
        return self._by_tls(SSL) | {"ssl.keystore.location": str(path)}

    def _by_tls(self, protocol: str) -> dict[str, str]:
        return {
            "security.protocol": protocol,
            "ssl.truststore.location": str(self.trust_store),
        }

    def hand_out(self, name: str, password: str) -> None:
        """Let *name* know the password by which to log in from now on."""
        path = self._secret(name)
        newer = path.with_suffix(".newer")
        newer.write_text(f"{password}\n", encoding="ascii")
        newer.rename(path)

    def as_client(self, name: str, protocol: str) -> ssl.SSLContext:
        """Return how *name* speaks TLS with the daemon."""
        return _context_of(name if protocol == SSL else None)

    # --- the daemon's certificate ---------------------------------------------------------------

    def renew(self) -> None:
        """Give the daemon another certificate."""
        self._renewals += 1
        self.leaf = certificate(HOST, f"renewed-{self._renewals}.example")
        self.as_daemon = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.leaf.configure_cert(self.as_daemon)
        self.mend()

    def spoil(self) -> str:
        """Have it be one that can't be; return what is wrong with it."""
        what = self._rng.choice(_ROTTEN)
        newer = self._key_store.with_suffix(".newer")
        write_key_store(newer, self.leaf)
        good = newer.read_bytes()
        match what:
            case "no PEM":
                newer.write_bytes(b"no certificate")
            case "cut off":
                newer.write_bytes(good[: self._rng.randrange(len(good) // 2)])
            case "the key of another":
                write_key_store(newer, self.leaf, key_of=certificate("another.example"))
            case "expired":
                write_key_store(newer, certificate(HOST, days=_EXPIRED_DAYS))
        newer.rename(self._key_store)
        if what == "missing":
            self._key_store.unlink()
        return what

    def mend(self) -> None:
        """Put the right one where it belongs."""
        newer = self._key_store.with_suffix(".newer")
        write_key_store(newer, self.leaf)
        newer.rename(self._key_store)

    def is_shown(self, der: bytes | None) -> bool:
        """Say whether this is the right one."""
        return der == ssl.PEM_cert_to_DER_cert(self.leaf.cert_chain_pems[0].bytes().decode())

    def _secret(self, name: str) -> Path:
        return self._folder / f"{name}.password"


@cache
def _context_of(name: str | None) -> ssl.SSLContext:
    return client_context(None if name is None else certificate(name))
