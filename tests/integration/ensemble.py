"""The way to a real ensemble, and what may happen there.

A `Wire` stands between one server and its clients, which cuts, and keeps bytes back, in each
direction alone. A `DataCopy` sets servers back. A `Guarded` one wants TLS and a log-in. `found`,
`wipe`, `remove` and `replace_by_empty` make a cluster, and take its data away.
"""

import shutil
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError, NotEmptyError

from bench.ensemble import HOST, QUICK_JVM, Ensemble, ensemble
from bench.peers import missing
from bench.processes import free_port
from coordinator.cluster.founding import find_or_found
from coordinator.cluster.layout import Layout
from coordinator.cluster.zookeeper import Access
from coordinator.config import load_settings
from coordinator.server.run import new_cluster_id
from tests.fakes.tls import authority, certificate

_READ_BYTES: Final = 65_536

needs_zookeeper = pytest.mark.skipif(
    missing("zookeeper") is not None, reason=f"no ZooKeeper: {missing('zookeeper')}"
)


class Wire:
    """The way to one server. What is kept back arrives late, even if its client has hung up."""

    def __init__(self, target: int) -> None:
        """Listen for clients of the server on the port *target*."""
        self._target = target
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._is_cut = False
        self._cuts = 0
        self._requests, self._replies = threading.Event(), threading.Event()
        self._sockets: set[socket.socket] = set()
        self.mend()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset all connections, and every one that comes; what is kept back is lost."""
        self._is_cut = True
        self._cuts += 1
        for sock in list(self._sockets):
            _reset(sock)
        self._requests.set()
        self._replies.set()

    def keep_requests(self) -> None:
        """Keep back what clients send from now on."""
        self._requests.clear()

    def keep_replies(self) -> None:
        """Keep back what the server sends from now on."""
        self._replies.clear()

    def silence(self) -> None:
        """Take connections, as a balancer does, and let nothing through from now on."""
        self.keep_requests()
        self.keep_replies()

    def mend(self) -> None:
        """Let all go on."""
        self._is_cut = False
        self._requests.set()
        self._replies.set()

    def close(self) -> None:
        """Cut it for good."""
        self.cut()
        with suppress(OSError):  # Closing alone would not wake who accepts.
            self._listener.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with self._listener, suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError), socket.create_connection((HOST, self._target)) as far:
            both, cuts = {near, far}, self._cuts
            self._sockets |= both
            if self._is_cut:
                _reset(near)
                return
            for sock in both:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ways = (near, far, self._requests, cuts), (far, near, self._replies, cuts)
            pumps = [threading.Thread(target=self._carry, args=way, daemon=True) for way in ways]
            for pump in pumps:
                pump.start()
            for pump in pumps:
                pump.join()
            self._sockets -= both

    def _carry(
        self, source: socket.socket, target: socket.socket, may: threading.Event, cuts: int
    ) -> None:
        with suppress(OSError):
            while data := source.recv(_READ_BYTES):
                may.wait()
                if cuts != self._cuts:  # What was in its buffer can still be read.
                    break
                target.sendall(data)
            may.wait()
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def _reset(sock: socket.socket) -> None:
    """Have it end with a reset, once who reads it has closed it."""
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RDWR)


def found(made: Ensemble, chroot: str) -> str:
    """Make a cluster with the layout of the default settings; return its id."""
    settings = load_settings()
    return find_or_found(
        Access(hosts=made.hosts, chroot=chroot, session_timeout_ms=6_000),
        Layout(settings.offsets_topic_num_partitions, settings.cluster_journals),
        cluster_id="",
        new_cluster_id=new_cluster_id,
        patience_s=60,
    ).cluster_id


def wipe(made: Ensemble, chroot: str) -> None:
    """Remove all znodes of a cluster, as an administrator's tool does, while its nodes run."""
    with _administrator(made) as client:
        while client.exists(chroot):
            with suppress(NotEmptyError, NoNodeError):  # A node has registered meanwhile.
                client.delete(chroot, recursive=True)


def remove(made: Ensemble, path: str) -> None:
    """Remove one znode."""
    with _administrator(made) as client:
        client.delete(path)


@contextmanager
def _administrator(made: Ensemble) -> Iterator[KazooClient]:
    client = KazooClient(made.hosts)
    client.start(60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def replace_by_empty(made: Ensemble) -> None:
    """Have servers without any data in place of those that there are."""
    for server in made.servers:
        server.kill()
        shutil.rmtree(server.data)
    made.start()


@contextmanager
def wires(made: Ensemble) -> Iterator[list[Wire]]:
    """Put a wire before each server of an ensemble."""
    drawn = [Wire(server.port) for server in made.servers]
    try:
        yield drawn
    finally:
        for wire in drawn:
            wire.close()


class DataCopy:
    """A copy of all that the servers of an ensemble have on disk, made while they run."""

    def __init__(self, made: Ensemble, folder: Path) -> None:
        """Copy it into *folder*, which is not there yet."""
        self._made = made
        self._copies = [
            shutil.copytree(server.data, folder / str(number))
            for number, server in enumerate(made.servers, start=1)
        ]

    def restore(self, count: int | None = None) -> None:
        """Set *count* servers back to the copy, all if None: they end, and serve again with it."""
        pairs = list(zip(self._made.servers, self._copies, strict=True))[:count]
        for server, _ in pairs:
            server.kill()
        for server, copy in pairs:
            shutil.rmtree(server.data)
            shutil.copytree(copy, server.data)
        self._made.start()


class Guarded(NamedTuple):
    """A server on its own that wants a log-in, and speaks TLS on one of its ports.

    Attributes:
        user: Who may log in, with the password "right"; and "foe" with "foe".
        port: That with TLS.
        folder: Has the password, and what its certificate is trusted by.
    """

    made: Ensemble
    user: str
    port: int
    folder: Path

    def settings(self, chroot: str) -> list[str]:
        """Return the settings of a node of a cluster in *chroot*."""
        return [
            f"cluster.zookeeper=localhost:{self.port}{chroot}",
            "cluster.zookeeper.ssl.client.enable=true",
            f"cluster.zookeeper.ssl.truststore.location={self.folder / 'ca.pem'}",
            f"cluster.zookeeper.sasl.username={self.user}",
            f"cluster.zookeeper.sasl.password.file={self.folder / 'password'}",
            "cluster.zookeeper.set.acl=true",
        ]


_JAAS: Final = """Server {
  org.apache.zookeeper.server.auth.DigestLoginModule required user_gc="right" user_foe="foe";
};
"""


@contextmanager
def guarded_server(folder: Path) -> Iterator[Guarded]:
    """Run it."""
    (folder / "jaas.conf").write_text(_JAAS, encoding="ascii")
    leaf = certificate("localhost", HOST)
    # ZooKeeper reads keys in the form of PKCS #8 alone.
    key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "server.pem").write_bytes(pem + b"".join(c.bytes() for c in leaf.cert_chain_pems))
    (folder / "password").write_text("right\n", encoding="ascii")
    authority().cert_pem.write_to_path(str(folder / "ca.pem"))
    port = free_port()
    of_servers = {
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(port),
        "secureClientPortAddress": HOST,
        "ssl.keyStore.location": str(folder / "server.pem"),
        "ssl.clientAuth": "none",
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "sessionRequireClientSASLAuth": "true",
    }
    jvm = (*QUICK_JVM, f"-Djava.security.auth.login.config={folder / 'jaas.conf'}")
    with ensemble(folder / "servers", 1, settings=of_servers, jvm=jvm) as made:
        yield Guarded(made, "gc", port, folder)
