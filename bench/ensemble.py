"""Servers of ZooKeeper on loopback, which may be killed, frozen and started again.

``python -m bench.ensemble FOLDER`` runs three of them until it is interrupted, and prints where
they listen. They run from jars that ``python -m bench.peer_jars`` puts into ``build/peers``.
"""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from bench.peer_jars import class_path
from bench.processes import free_port

HOST: Final = "127.0.0.1"
START_S: Final = 90.0
# Those of docs: what an ensemble of a cluster's own needs.
SETTINGS: Final[Mapping[str, str]] = {
    "tickTime": "500",
    "syncLimit": "6",
    "initLimit": "60",
    "snapSizeLimitInKb": "524288",
    "autopurge.snapRetainCount": "3",
    "autopurge.purgeInterval": "1",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
}
# A small heap, and no time spent on what pays after minutes: such a server is ready in a second.
QUICK_JVM: Final = ("-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
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


def server_command(
    folder: Path, port: int, settings: Mapping[str, str], jvm: Sequence[str]
) -> list[str]:
    """Write the configuration of a server into *folder*; return what runs it there."""
    own = {"dataDir": str((folder / "data").resolve()), "clientPort": port}
    lines = {**own, "clientPortAddress": HOST, **settings}.items()
    text = "".join([f"{name}={value}\n" for name, value in lines])
    (folder / "zoo.cfg").write_text(text, encoding="utf-8")
    return ["java", *jvm, "-cp", class_path("zookeeper"), _MAIN, "zoo.cfg"]


class ZooKeeperServer:
    """One server: a process, started again with the same data.

    Attributes:
        port: Where its clients connect.
        data: The folder of its data, without its number.
    """

    def __init__(
        self, folder: Path, port: int, settings: Mapping[str, str], jvm: Sequence[str]
    ) -> None:
        self.port = port
        self.data = folder / "data" / "version-2"
        self._folder = folder
        self._command = server_command(folder, port, settings, jvm)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it; it serves a while later."""
        with (self._folder / "output").open("ab") as output:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdout=output, stderr=subprocess.STDOUT
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

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Have it answer nobody as long as the block lasts."""
        self.freeze()
        try:
            yield
        finally:
            self.thaw()


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


@contextmanager
def ensemble(
    folder: Path,
    size: int = 3,
    *,
    settings: Mapping[str, str] | None = None,
    jvm: Sequence[str] = QUICK_JVM,
) -> Iterator[Ensemble]:
    """Run an ensemble with its data in *folder*.

    Args:
        folder: Made if it isn't there.
        size: How many servers.
        settings: More than `SETTINGS`, or other values of them.
        jvm: Options of the virtual machines.

    Raises:
        EnsembleError: A server doesn't start.
    """
    ports = [(free_port(), free_port(), free_port()) for _ in range(size)]
    quorum = {
        f"server.{number}": f"{HOST}:{peers}:{elections}"
        for number, (_, peers, elections) in enumerate(ports, start=1)
        if size > 1
    }
    servers = []
    for number, (port, _, _) in enumerate(ports, start=1):
        own = folder / str(number)
        (own / "data").mkdir(parents=True)
        (own / "data" / "myid").write_text(str(number), encoding="ascii")
        asked = {**SETTINGS, **quorum, **(settings or {})}
        servers.append(ZooKeeperServer(own, port, asked, jvm))
    made = Ensemble(servers)
    try:
        made.start()
        yield made
    finally:
        for server in servers:
            server.kill()


def main() -> None:
    """Run three servers until interrupted."""
    with ensemble(Path(sys.argv[1])) as made, suppress(KeyboardInterrupt):
        print(made.hosts, flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
