"""Connections that end at a random moment of a long answer, by the thousand, over every listener.

``python -m tests.departures --connections 20000``

Clients ask a real daemon for answers of many TLS records, read a random part, and go: by a reset, a
close, a half-close, or as their process is killed. Then the daemon has to run, to have logged no
traceback, and to hold nothing of them: no connection, no byte of an answer, no descriptor.
"""

import argparse
import json
import os
import random
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import cycle, product
from pathlib import Path
from typing import Any, Final, NamedTuple

from protocol import messages as m
from protocol.connection import ClientConnection
from tests.fakes.tls import HOST, write_stores
from tests.fuzz.episode import HELD, HELD_BEFORE
from tests.integration.daemon import ROOT, WAIT_S, Connection, Daemon, until
from tests.logged import BUGS

KINDS: Final = ("plaintext", "TLS 1.2", "TLS 1.3", "HTTP", "HTTPS")
WAYS: Final = ("reset", "close", "half-close", "kill")
CROWDS: Final = 3
# Connections of one process, which goes with them where they are killed.
BATCH: Final = 10
GROUP: Final = "long"
PARTITIONS: Final = 2_000
METADATA: Final = "m" * 100
# Bytes of an answer that a client reads at a time.
READ_BYTES: Final = 16_384


class Violation(Exception):
    """The daemon broke a promise."""


class Place(NamedTuple):
    """A daemon as its clients know it: ports and sizes of an answer, both by kind, and the CA."""

    ports: dict[str, int]
    sizes: dict[str, int]
    ca: str


# --- clients --------------------------------------------------------------------------------------


class Crowd:
    """Clients that come and go, batch after batch, each of which is a process."""

    def __init__(self, place: Place, seed: int) -> None:
        self._place = place
        self._rng = random.Random(seed)
        self._contexts = {
            kind: [_context(place.ca, version) for version in versions]
            for kind, versions in {
                "TLS 1.2": [ssl.TLSVersion.TLSv1_2],
                "TLS 1.3": [ssl.TLSVersion.TLSv1_3],
                "HTTPS": [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3],
            }.items()
        }

    def run(self, connections: int) -> None:
        """Have *connections* come and go."""
        pairs = list(product(KINDS, WAYS))
        self._rng.shuffle(pairs)
        for _, (kind, way) in zip(range(0, connections, BATCH), cycle(pairs), strict=False):
            ready, tell = os.pipe()
            child = os.fork()
            if not child:
                status = 1
                try:
                    self._batch(kind, way, tell)
                    status = 0
                finally:
                    os._exit(status)
            os.close(tell)
            self._rng.random()  # Each batch is another one.
            if way == "kill" and os.read(ready, 1):
                signal.sigtimedwait([], self._rng.choice((0, 0.001, 0.01)))
                os.kill(child, signal.SIGKILL)
            os.close(ready)
            _, status = os.waitpid(child, 0)
            if status != (signal.SIGKILL if way == "kill" else 0):
                raise Violation(f"{kind}, {way}: a client ended with {status}")
            sys.stdout.write(f"{kind}/{way}\n")

    def _batch(self, kind: str, way: str, tell: int) -> None:
        connections = []
        for _ in range(BATCH):
            connection = self._connect(kind)
            connection.sendall(_request(kind, self._rng.randint(1, 3)))
            until_bytes = self._rng.randrange(self._place.sizes[kind])
            _read(connection, until_bytes)
            if way == "kill":
                connections.append(connection)
            else:
                _leave(connection, way, self._rng)
        if way == "kill":
            os.write(tell, b"!")
            for connection in connections:
                _read(connection, self._place.sizes[kind])
            signal.pause()

    def _connect(self, kind: str) -> socket.socket:
        plain = socket.socket()
        # A small window: most of the answer is still the daemon's when its client goes.
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._rng.choice((4_096, 65_536)))
        plain.settimeout(WAIT_S)
        plain.connect(("127.0.0.1", self._place.ports[kind]))
        if kind not in self._contexts:
            return plain
        context = self._rng.choice(self._contexts[kind])
        return context.wrap_socket(plain, server_hostname=HOST)


def _context(ca: str, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = context.maximum_version = version
    return context


def _request(kind: str, times: int) -> bytes:
    if kind.startswith("HTTP"):
        return b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    connection = ClientConnection()
    fetch = m.OffsetFetchRequest((m.GroupFetch(GROUP, None),), False)
    return b"".join([connection.send(fetch)[1] for _ in range(times)])


def _read(connection: socket.socket, size_bytes: int) -> int:
    """Read up to *size_bytes*; return the number of bytes that came."""
    read_bytes = 0
    while read_bytes < size_bytes:
        data = connection.recv(min(READ_BYTES, size_bytes - read_bytes))
        if not data:
            break
        read_bytes += len(data)
    return read_bytes


def _leave(connection: socket.socket, way: str, rng: random.Random) -> None:
    if way == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif way == "half-close":
        # The socket below, so that the answer goes on; with TLS without its word for the end.
        socket.socket.shutdown(connection, socket.SHUT_WR)
        with suppress(OSError):
            _read(connection, rng.choice((0, 50_000, 10_000_000)))
    connection.close()


# --- the daemon -----------------------------------------------------------------------------------


def run(folder: Path, *, connections: int, seed: int = 0) -> str:
    """Have *connections* come and go; return a line that says what was seen. Raises Violation."""
    settings = [
        *write_stores(folder),
        "http.listeners=http://127.0.0.1:0,https://127.0.0.1:0",
        "http.max.connections=1000",
    ]
    one = Daemon(folder / "data", settings, options=["--listen=SSL://127.0.0.1:0"]).ready()
    try:
        found = _run(one, str(folder / "ca.pem"), connections, seed)
        status = one.stop()
    finally:
        if one.process.poll() is None:
            one.kill()
    failed = [line for line in one.lines if line["event"] in BUGS or "exception" in line]
    if status or failed or one.stray:
        raise Violation(f"exit {status}, {len(failed)} tracebacks: {failed[:1]} {one.stray[:3]}")
    return found


def _run(one: Daemon, ca: str, connections: int, seed: int) -> str:
    _commit(one)
    place = _place(one, ca)
    _wait_until_nothing_is_held(one)
    before = _descriptors(one)
    each = -(-connections // CROWDS)
    command = [sys.executable, "-m", "tests.departures", "--crowd", json.dumps(place)]
    crowds = [
        subprocess.Popen(
            [*command, f"--connections={each}", f"--seed={seed * CROWDS + number}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(CROWDS)
    ]
    lines = [line for crowd in crowds for line in crowd.communicate()[0].splitlines()]
    if any(crowd.returncode for crowd in crowds) or one.process.poll() is not None:
        raise Violation(f"the daemon: {one.process.poll()}; {one.lines[-1]} {one.stray[-3:]}")
    _wait_until_nothing_is_held(one)
    until(lambda: _descriptors(one) <= before, "end of the descriptors")
    batches = Counter(lines)
    ways = ", ".join(
        f"{BATCH * batches[f'{kind}/{way}']} {kind} {way}" for kind in KINDS for way in WAYS
    )
    size = min(place.sizes.values())
    return (
        f"{BATCH * len(lines)} connections went in an answer of {size} bytes or more: 0 ends, "
        f"0 tracebacks, nothing held, {before} descriptors as before ({ways})"
    )


def _commit(one: Daemon) -> None:
    """Have a group whose offsets make a long answer."""
    with one.connect() as connection:
        for first in range(0, PARTITIONS, 500):
            commits = tuple(
                m.PartitionCommit(number, 1, -1, METADATA, None)
                for number in range(first, first + 500)
            )
            connection.ask(
                m.OffsetCommitRequest(GROUP, -1, "", None, (m.TopicCommit("t", commits),))
            )


def _place(one: Daemon, ca: str) -> Place:
    """Find the ports, and see how long answers are."""
    plain, tls = [line["port"] for line in one.events("listening")]
    one.wait_for("http.listening")
    until(lambda: len(one.events("http.listening")) == 2, "both listeners of HTTP")
    http, https = [line["port"] for line in one.events("http.listening")]
    ports = dict(zip(KINDS, (plain, tls, tls, http, https), strict=True))
    with Connection(plain) as native, Connection(http) as web:
        sizes = [_size_of(native.socket, "plaintext"), _size_of(web.socket, "HTTP")]
    return Place(ports, {kind: sizes[kind.startswith("HTTP")] for kind in KINDS}, ca)


def _size_of(connection: socket.socket, kind: str) -> int:
    """Return how long one answer is."""
    connection.sendall(_request(kind, 1))
    connection.settimeout(2)
    size_bytes = 0
    with suppress(TimeoutError):
        while data := connection.recv(1 << 20):
            size_bytes += len(data)
    return size_bytes


def _wait_until_nothing_is_held(one: Daemon) -> None:
    held: dict[str, int] = {}

    def is_over() -> bool:
        with one.connect() as asking:
            answer: Any = asking.ask(m.DescribeNodeRequest())
        found = {metric.name: metric.value for metric in answer.metrics}
        held.update({name: found[name] for name in (*HELD, HELD_BEFORE)})
        held["connections"] -= 1  # The one that asks.
        return not any(held.values())

    try:
        until(is_over, "end of all that is held", pause_s=0.2)
    except AssertionError as exc:
        raise Violation(f"held: {held}") from exc


def _descriptors(one: Daemon) -> int:
    return sum(1 for _ in Path(f"/proc/{one.process.pid}/fd").iterdir())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--crowd", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.crowd is not None:
        Crowd(Place(*json.loads(options.crowd)), options.seed).run(options.connections)
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            said = run(Path(folder), connections=options.connections, seed=options.seed)
        except Violation as exc:
            sys.exit(f"violation: {exc}")
    sys.stdout.write(said + "\n")


if __name__ == "__main__":
    main()
