"""Certificates of an authority of the tests' own, and the client's end of TLS in memory."""

import ssl
import warnings
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Final

import trustme

from tests.fakes.transport import MemoryTransport

OURS: Final = "ours"
_AUTHORITIES: Final[dict[str, trustme.CA]] = {}
HOST: Final = "coordinator.example"
NOW: Final = datetime.now(UTC)  # OpenSSL goes by the real time.
NOW_MS: Final = int(NOW.timestamp() * 1000)


def authority(name: str = OURS) -> trustme.CA:
    """Return the authority of this name, which all tests share."""
    if name not in _AUTHORITIES:
        _AUTHORITIES[name] = trustme.CA(organization_name=name)
    return _AUTHORITIES[name]


@cache
def certificate(
    *names: str, by: str = OURS, days: int = 365, life_days: int = 500
) -> trustme.LeafCert:
    """Return the certificate for *names*, which ends so many days after `NOW`."""
    ends = NOW + timedelta(days=days)
    begins = ends - timedelta(days=life_days)
    return authority(by).issue_cert(*names, not_before=begins, not_after=ends)


def write_key_store(
    path: Path, leaf: trustme.LeafCert, key_of: trustme.LeafCert | None = None
) -> None:
    """Write the file of ``ssl.keystore.location``."""
    key = (key_of or leaf).private_key_pem.bytes()
    path.write_bytes(key + b"".join(blob.bytes() for blob in leaf.cert_chain_pems))
    path.chmod(0o600)


def write_stores(folder: Path, leaf: trustme.LeafCert | None = None) -> list[str]:
    """Write both stores, and return the settings that name them."""
    write_key_store(folder / "server.pem", leaf or certificate(HOST))
    authority().cert_pem.write_to_path(folder / "ca.pem")
    return [
        f"ssl.keystore.location={folder / 'server.pem'}",
        f"ssl.truststore.location={folder / 'ca.pem'}",
    ]


def client_context(
    leaf: trustme.LeafCert | None = None,
    *,
    trusts: str = OURS,
    only: ssl.TLSVersion | None = None,
) -> ssl.SSLContext:
    """Return what a client with this certificate, or without, speaks with."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority(trusts).configure_trust(context)
    if leaf is not None:
        leaf.configure_cert(context)
    if only is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # What is old is meant to be.
            context.minimum_version = context.maximum_version = only
        context.set_ciphers("ALL:@SECLEVEL=0")
    return context


class TlsPeer:
    """A client: what it says and hears, over a connection in memory that the test cuts as it likes.

    Attributes:
        wire: The connection.
        heard: What the server has said.
        has_ended: The server has said that it says no more.
        to_send: Ciphertext that was not put on the wire yet.
    """

    def __init__(
        self,
        wire: MemoryTransport,
        context: ssl.SSLContext | None = None,
        name: str = HOST,
    ) -> None:
        self.wire = wire
        self.heard = bytearray()
        self.has_ended = False
        self.to_send = bytearray()
        self._is_encrypted = False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = (context or client_context()).wrap_bio(
            self._incoming, self._outgoing, server_hostname=name
        )

    def say(self, data: bytes) -> None:
        """Encrypt *data*; `turn` sends it."""
        self._tls.write(data)

    def take(self) -> None:
        """Read what has come, and go on with the handshake; raises what a client would."""
        self._incoming.write(bytes(self.wire.received))
        self.wire.received.clear()
        try:
            if not self._is_encrypted:
                self._tls.do_handshake()
                self._is_encrypted = True
            while data := self._tls.read(1 << 16):
                self.heard += data
            self.has_ended = True
        except ssl.SSLZeroReturnError:  # As after an end that it has answered itself.
            self.has_ended = True
        except ssl.SSLWantReadError:
            pass
        finally:
            self.to_send += self._outgoing.read()

    @property
    def is_encrypted(self) -> bool:
        """Whether the handshake is over, for this end."""
        return self._is_encrypted

    def turn(self) -> None:
        """Take what has come, and put what there is to say on the wire."""
        try:
            self.take()
        finally:
            self.put()

    def put(self) -> None:
        """Put what there is to say on the wire."""
        self.to_send += self._outgoing.read()
        self.wire.put(bytes(self.to_send))
        self.to_send.clear()

    def say_no_more(self) -> None:
        """Send close_notify."""
        with suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self.put()
