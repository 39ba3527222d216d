"""The peers: other stores of offsets, started on loopback with their own programs.

They run from jars that ``python -m bench.peer_jars`` puts into ``build/peers``. A peer that isn't
there is skipped, and said to be.
"""

import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from bench.dialect_kafka import make_ready
from bench.dialect_zookeeper import open_session
from bench.peer_jars import FOLDER, class_path
from bench.processes import ProcessError, Server, serving

_HOST: Final = "127.0.0.1"

# What kafka-server-start.sh and zkServer.sh give the virtual machine, heap included.
_KAFKA_JVM: Final = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    *("-XX:MaxInlineLevel=15", "-Djava.awt.headless=true"),
)
_ZOOKEEPER_JVM: Final = ("-Xmx1000m",)
# Any will do, in the form of Kafka's ids: 16 bytes in base64.
_CLUSTER_ID: Final = "Z3JvdXAtY29vcmRpbmF0bw"

KAFKA_PARTITIONS: Final = 100
KAFKA_SETTINGS: Final[Mapping[str, str]] = {
    # A cluster of one node; nothing else differs from the defaults.
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
}
KAFKA_FSYNC: Final[Mapping[str, str]] = {
    "group.coordinator.append.linger.ms": "0",
    "log.flush.interval.messages": "1",
}
ZOOKEEPER_SETTINGS: Final[Mapping[str, str]] = {
    # Of the sample configuration that ships with it; then what a load of 256 connections needs.
    "tickTime": "2000",
    "maxClientCnxns": "0",
    "admin.enableServer": "false",
}


class Peer(NamedTuple):
    """One peer in one configuration.

    Attributes:
        program: ``kafka`` or ``zookeeper``: what has to be installed.
        dialect: A name of `bench.load.DIALECTS`.
        settings: What differs from its defaults.
        start: Writes its configuration into a folder and returns the command, given a free port.
        ready: Asks it something, on a fresh connection, that it only answers when it serves.
        patience_s: How long to wait for that answer before asking anew.
    """

    name: str
    title: str
    program: str
    dialect: str
    settings: Mapping[str, str]
    start: Callable[["Peer", Path, int], Sequence[str]]
    ready: Callable[[socket.socket], None] = lambda _sock: None
    patience_s: float = 60


def _java(jvm: Sequence[str], program: str, main: str, *arguments: str) -> list[str]:
    return ["java", *jvm, "-cp", class_path(program), main, *arguments]


def _write(path: Path, settings: Mapping[str, str]) -> None:
    lines = [f"{name}={value}\n" for name, value in settings.items()]
    path.write_text("".join(lines), encoding="utf-8")


def _kafka(peer: Peer, folder: Path, port: int) -> list[str]:
    config, logs = folder / "server.properties", folder / "logs"
    controller = free_port()
    _write(
        config,
        {
            **peer.settings,
            "listeners": f"PLAINTEXT://{_HOST}:{port},CONTROLLER://{_HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{_HOST}:{port}",
            "controller.quorum.voters": f"1@{_HOST}:{controller}",
            "log.dirs": str(logs),
        },
    )
    if not logs.exists():
        formatting = ["format", "-t", _CLUSTER_ID, "-c", str(config)]
        done = subprocess.run(
            _java((), "kafka", "kafka.tools.StorageTool", *formatting),
            capture_output=True,
            check=False,
            text=True,
        )
        if done.returncode:
            raise ProcessError(f"Kafka's folder could not be made: {done.stderr[-2000:]}")
    return _java(_KAFKA_JVM, "kafka", "kafka.Kafka", str(config))


def _zookeeper(peer: Peer, folder: Path, port: int) -> list[str]:
    config = folder / "zoo.cfg"
    _write(
        config,
        {
            **peer.settings,
            "dataDir": str(folder / "data"),
            "clientPort": str(port),
            "clientPortAddress": _HOST,
        },
    )
    main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
    return _java(_ZOOKEEPER_JVM, "zookeeper", main, str(config))


def _kafka_ready(sock: socket.socket) -> None:
    make_ready(sock, KAFKA_PARTITIONS)


KAFKA: Final = Peer(
    *("kafka", "Kafka, defaults", "kafka", "kafka"), KAFKA_SETTINGS, _kafka, _kafka_ready
)
KAFKA_DURABLE: Final = KAFKA._replace(
    name="kafka_fsync",
    title="Kafka, linger 0, fsync",
    settings={**KAFKA_SETTINGS, **KAFKA_FSYNC},
)
ZOOKEEPER: Final = Peer(
    *("zookeeper", "ZooKeeper", "zookeeper", "zookeeper"),
    *(ZOOKEEPER_SETTINGS, _zookeeper, open_session, 0.5),
)
PEERS: Final = (KAFKA, KAFKA_DURABLE, ZOOKEEPER)
PROGRAMS: Final = ("kafka", "zookeeper")


def missing(program: str) -> str | None:
    """Return why a program can't be run here, None if it can."""
    if not shutil.which("java"):
        return "there is no java on the PATH"
    if not class_path(program):
        return f"its jars aren't in {FOLDER}: python -m bench.peer_jars fetch"
    return None


def java_version() -> str:
    """Return what the virtual machine says it is."""
    done = subprocess.run(["java", "-version"], capture_output=True, check=False, text=True)
    words = [line for line in done.stderr.splitlines() if "version" in line]
    return words[0].strip() if words else "unknown"


def free_port() -> int:
    """Return a port of loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind((_HOST, 0))
        port: int = sock.getsockname()[1]
        return port


def peer_serving(peer: Peer, folder: Path, *, core: int | None) -> AbstractContextManager[Server]:
    """Start a peer with its data in this folder, as `serving` does."""
    folder = folder.resolve()
    folder.mkdir(exist_ok=True, parents=True)
    port = free_port()

    def address() -> tuple[str, int] | None:
        """Connect and ask: ZooKeeper listens for a while before it serves."""
        with (
            suppress(OSError),
            socket.create_connection((_HOST, port), timeout=peer.patience_s) as sock,
        ):
            # A socket that is given the very port it connects to answers itself.
            if sock.getsockname() != sock.getpeername():
                peer.ready(sock)
                return _HOST, port
        return None

    command = peer.start(peer, folder, port)
    return serving(command, address, output=folder / "output", core=core, cwd=folder)
