"""The peers: other stores of offsets, started on loopback with their own programs.

They run from jars that ``python -m bench.peer_jars`` puts into ``build/peers``. A peer that isn't
there is skipped, and said to be.
"""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from bench.dialect_kafka import make_ready
from bench.dialect_zookeeper import open_session
from bench.ensemble import HOST, server_command
from bench.peer_jars import FOLDER, class_path
from bench.processes import ProcessError, Server, free_port, serving

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
    return _broker(folder, peer.settings, port, {1: free_port()})


def _broker(
    folder: Path, settings: Mapping[str, str], port: int, controllers: Mapping[int, int]
) -> list[str]:
    """Make a broker's folder; return what runs it. *controllers* are all nodes' second ports."""
    config, logs = folder / "server.properties", folder / "logs"
    controller = controllers[int(settings["node.id"])]
    voters = [f"{node}@{HOST}:{other}" for node, other in controllers.items()]
    _write(
        config,
        {
            **settings,
            "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
            "controller.quorum.voters": ",".join(voters),
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
    return server_command(folder, port, peer.settings, _ZOOKEEPER_JVM)


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


def peer_serving(peer: Peer, folder: Path, *, core: int | None) -> AbstractContextManager[Server]:
    """Start a peer with its data in this folder, as `serving` does."""
    folder = folder.resolve()
    folder.mkdir(exist_ok=True, parents=True)
    port = free_port()
    command = peer.start(peer, folder, port)
    answering = partial(_answering, peer, port)
    return serving(command, answering, output=folder / "output", core=core, cwd=folder)


def _answering(peer: Peer, port: int) -> tuple[str, int] | None:
    """Connect and ask: ZooKeeper listens for a while before it serves."""
    with (
        suppress(OSError),
        socket.create_connection((HOST, port), timeout=peer.patience_s) as sock,
    ):
        # A socket that is given the very port it connects to answers itself.
        if sock.getsockname() != sock.getpeername():
            peer.ready(sock)
            return HOST, port
    return None


@contextmanager
def brokers_serving(folder: Path, count: int) -> Iterator[list[Server]]:
    """Start brokers of Kafka, all of them controllers, each with a copy of the offsets' topic.

    Raises:
        ProcessError: One doesn't start.
    """
    ports = {node: free_port() for node in range(1, count + 1)}
    controllers = {node: free_port() for node in ports}
    with ExitStack() as stack:
        servers = []
        for node, port in ports.items():
            own = folder.resolve() / str(node)
            own.mkdir(parents=True)
            copies = {"node.id": str(node), "offsets.topic.replication.factor": str(count)}
            command = _broker(own, {**KAFKA_SETTINGS, **copies}, port, controllers)
            # None answers before most of them are there, and none with an offsets' topic before
            # all of them are.
            address = partial(_answering, KAFKA, port) if node == count else _listening_at(port)
            starting = serving(command, address, output=own / "output", core=None, cwd=own)
            servers.append(stack.enter_context(starting))
        yield servers
        for server in servers:  # The last ones would wait for the others, to say farewell.
            os.kill(server.pid, signal.SIGKILL)


def _listening_at(port: int) -> Callable[[], tuple[str, int]]:
    return lambda: (HOST, port)
