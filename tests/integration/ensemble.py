"""A real ensemble of ZooKeeper on loopback, and what may happen to it and on the way there.

Servers are killed, frozen and started again; a `Wire` stands between one of them and its clients,
which cuts, and keeps bytes back, in each direction alone. ``python -m tests.integration.ensemble
FOLDER`` runs three servers until it is interrupted, and prints where they listen.
"""

import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bench.peer_jars import class_path
from bench.peers import free_port

HOST: Final = "127.0.0.1"
START_S: Final = 90.0
# Those of docs: what an ensemble of a cluster's own needs.
SETTINGS: Final[Mapping[str, str]] = {
    "tickTime": "1000",
    "syncLimit": "3",
    "initLimit": "30",
    "snapSizeLimitInKb": "524288",
    "autopurge.snapRetainCount": "3",
    "autopurge.purgeInterval": "1",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
}
# A small heap, and no time spent on what pays after minutes: such a server is ready in a second.
_JVM: Final = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
_MAIN: Final = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_READ_BYTES: Final = 65_536


class EnsembleError(Exception):
    """A server doesn't start; the message says which."""


def four_letters(port: int, word: str, *, timeout_s: float = 1.0) -> str:
    """Return what a server answers to a word of four letters. Raises OSError."""
    with socket.create_connection((HOST, port), timeout_s) as sock:
        sock.sendall(word.encode())
        answer = b"".join(iter(lambda: sock.recv(_READ_BYTES), b""))
    return answer.decode()


class ZooKeeperServer:
    """One server: a process, started again with the same data.

    Attributes:
        port: Where its clients connect.
    """

    def __init__(self, folder: Path, port: int, jvm: Sequence[str]) -> None:
        self.port = port
        self._folder = folder
        self._jvm = jvm
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; it serves a while later."""
        program = ["java", *_JVM, *self._jvm, "-cp", class_path("zookeeper"), _MAIN, "zoo.cfg"]
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                program, cwd=self._folder, stdout=output, stderr=subprocess.STDOUT
            )

    def mode(self) -> str:
        """Return what it is: leader, follower or standalone; "" while it doesn't serve."""
        with suppress(OSError):
            for line in four_letters(self.port, "srvr").splitlines():
                if line.startswith("Mode: "):
                    return line.removeprefix("Mode: ")
        return ""

    @property
    def is_running(self) -> bool:
        """Whether there is a process, frozen or not."""
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """End it as the loss of its machine would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Stop it in the middle of whatever it does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class Ensemble:
    """Servers that elect a leader among them; a single one is alone."""

    def __init__(self, servers: Sequence[ZooKeeperServer]) -> None:
        self.servers = servers

    @property
    def hosts(self) -> str:
        """Where clients connect, as connect strings have it."""
        return ",".join(f"{HOST}:{server.port}" for server in self.servers)

    def start(self) -> None:
        """Start those that don't run. Raises EnsembleError unless all serve in time."""
        for server in self.servers:
            if not server.is_running:
                server.start()
        deadline = time.monotonic() + START_S
        for number, server in enumerate(self.servers, start=1):
            while not server.mode():
                if not server.is_running or time.monotonic() > deadline:
                    raise EnsembleError(f"server {number} of ZooKeeper doesn't serve")
                time.sleep(0.02)

    def leader(self) -> ZooKeeperServer:
        """Return the server that leads, when there is one. Raises EnsembleError."""
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            for server in self.servers:
                if server.is_running and server.mode() in {"leader", "standalone"}:
                    return server
            time.sleep(0.02)
        raise EnsembleError("nobody leads the ensemble")

    def followers(self) -> list[ZooKeeperServer]:
        """Return the others."""
        leader = self.leader()
        return [server for server in self.servers if server is not leader]


@contextmanager
def ensemble(
    folder: Path,
    size: int = 3,
    *,
    settings: Mapping[str, str] | None = None,
    jvm: Sequence[str] = (),
) -> Iterator[Ensemble]:
    """Run an ensemble with its data in *folder*; *settings* and *jvm* are more of its servers'."""
    ports = [(free_port(), free_port(), free_port()) for _ in range(size)]
    quorum = {
        f"server.{number}": f"{HOST}:{peers}:{elections}"
        for number, (_, peers, elections) in enumerate(ports, start=1)
    }
    made = Ensemble(
        [
            _server(folder / str(number), number, port, quorum if size > 1 else {}, settings, jvm)
            for number, (port, _, _) in enumerate(ports, start=1)
        ]
    )
    try:
        made.start()
        yield made
    finally:
        for server in made.servers:
            server.kill()


def _server(
    folder: Path,
    number: int,
    port: int,
    quorum: Mapping[str, str],
    settings: Mapping[str, str] | None,
    jvm: Sequence[str],
) -> ZooKeeperServer:
    data = folder / "data"
    data.mkdir(parents=True)
    (data / "myid").write_text(str(number), encoding="ascii")
    own = {"dataDir": str(data.resolve()), "clientPort": str(port), "clientPortAddress": HOST}
    lines = [f"{k}={v}\n" for k, v in {**SETTINGS, **own, **quorum, **(settings or {})}.items()]
    (folder / "zoo.cfg").write_text("".join(lines), encoding="utf-8")
    return ZooKeeperServer(folder, port, jvm)


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


@contextmanager
def wires(made: Ensemble) -> Iterator[list[Wire]]:
    """Put a wire before each server of an ensemble."""
    drawn = [Wire(server.port) for server in made.servers]
    try:
        yield drawn
    finally:
        for wire in drawn:
            wire.close()


def main() -> None:
    """Run three servers until interrupted."""
    with ensemble(Path(sys.argv[1])) as made, suppress(KeyboardInterrupt):
        print(made.hosts, flush=True)  # noqa: T201 - what it is started for
        signal.pause()


if __name__ == "__main__":
    main()
