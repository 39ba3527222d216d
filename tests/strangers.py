"""Have strangers take all the connections that a daemon has; it goes on, and nobody notices.

``python -m tests.strangers --limits 256 1024 16384 --connections 10000``

The strangers connect to six listeners, and say nothing, or half of what they should; one of their
addresses is that of everybody else. Clients that are connected commit, heartbeat, scrape and have
the log compacted all the while. Newcomers try each listener until it serves them.
"""

import argparse
import http.client
import random
import resource
import select
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from protocol.messages import (
    ApiVersionsRequest,
    CompactLogRequest,
    CompactLogResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    JoinProtocol,
    MemberAssignment,
    OffsetCommitRequest,
    OffsetCommitResponse,
    PartitionCommit,
    SaslHandshakeRequest,
    SyncGroupRequest,
    TopicCommit,
)
from tests.fakes.tls import HOST, client_context, write_stores
from tests.integration.daemon import Connection, Daemon, daemon, until

# Seconds that a first request may take, and one more.
IN_WITHIN_S: Final = 11.0
_HALF_HELLO: Final = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + b"x" * 200
_HALVES: Final = {
    "native": b"\x00\x00\x01\x00\x00",
    "tls": _HALF_HELLO,
    "http": b"GET / HTTP/1.1\r\n",
}
_TRY_S: Final = 10.0


class Violation(Exception):
    """The daemon broke a promise."""


class Door(NamedTuple):
    """A listener. *serves* says whether it answers a new connection, or raises OSError."""

    name: str
    port: int
    half: bytes
    serves: Callable[[int], bool]


# --- those who are connected -----------------------------------------------------------------


class Insider:
    """A connection that asks something over and over, in a thread of its own.

    Attributes:
        asked: How often.
        slowest_s: The time of the slowest answer.
    """

    def __init__(self, name: str, ask: Callable[[], None], pause_s: float = 0.05) -> None:
        self.name = name
        self.asked = 0
        self.slowest_s = 0.0
        self._ask = ask
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                since_s = time.monotonic()
                self._ask()
                self.slowest_s = max(self.slowest_s, time.monotonic() - since_s)
                self.asked += 1
                if self._stop.wait(self._pause_s):
                    return
        except Exception as exc:  # noqa: BLE001 - `end` tells of it
            self._failure = exc

    def end(self) -> None:
        """Have it ask no more. Raises Violation if anything went wrong."""
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise Violation(f"{self.name} noticed something: {self._failure!r}")


def member(connection: Connection, group_id: str) -> Callable[[], None]:
    """Return what commits and heartbeats as the only member of a group."""
    protocols = (JoinProtocol("range", b""),)
    member_id, generation = "", 0
    while not generation:
        join = JoinGroupRequest(group_id, 30_000, 30_000, member_id, None, "x", protocols, None)
        joined = connection.ask(join)
        assert isinstance(joined, JoinGroupResponse)
        member_id, generation = joined.member_id, max(0, joined.generation_id)
    shares = (MemberAssignment(member_id, b""),)
    connection.ask(SyncGroupRequest(group_id, generation, member_id, None, None, None, shares))
    offset = 0

    def ask() -> None:
        nonlocal offset
        offset += 1
        partitions = tuple(PartitionCommit(p, offset, -1, "m" * 100, None) for p in range(5))
        topics = (TopicCommit("t", partitions),)
        commit = OffsetCommitRequest(group_id, generation, member_id, None, topics)
        answer = connection.ask(commit)
        assert isinstance(answer, OffsetCommitResponse)
        assert not answer.error, answer
        assert not any(one.error for topic in answer.topics for one in topic.partitions), answer
        beaten = connection.ask(HeartbeatRequest(group_id, generation, member_id, None))
        assert not beaten.error, beaten  # type: ignore[attr-defined]  # every answer has one

    return ask


def compacter(connection: Connection) -> Callable[[], None]:
    """Return what has the log compacted."""

    def ask() -> None:
        answer = connection.ask(CompactLogRequest())
        assert isinstance(answer, CompactLogResponse)
        assert not answer.error, answer

    return ask


def scraper(connection: http.client.HTTPConnection) -> Callable[[], None]:
    """Return what asks over one HTTP connection."""
    connection.connect()
    connection.auto_open = 0  # A closed connection is an error.

    def ask() -> None:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status

    return ask


# --- the strangers ----------------------------------------------------------------------------


class Strangers:
    """Connections that are made at once, and never do what they should."""

    def __init__(self, doors: Sequence[Door], number: int, addresses: int, seed: int) -> None:
        """Make them; those that the daemon closes are closed here, too."""
        self._rng = random.Random(seed)
        self._addresses = [f"127.0.0.{1 + number}" for number in range(addresses)]
        self._doors = doors
        self._all: dict[int, tuple[socket.socket, bytes]] = {}
        self._epoll = select.epoll()
        self.closed = 0
        for made in range(number):
            self._connect(doors[made % len(doors)])
            if made % 50 == 49:
                self.look(0)

    def _connect(self, door: Door) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        sock.bind((self._rng.choice(self._addresses), 0))
        with suppress(BlockingIOError):
            sock.connect(("127.0.0.1", door.port))
        says = self._rng.choice((b"", door.half))
        self._all[sock.fileno()] = sock, says
        self._epoll.register(sock, select.EPOLLIN | (select.EPOLLOUT if says else 0))

    def look(self, timeout_s: float) -> None:
        """See what became of them."""
        for number, mask in self._epoll.poll(timeout_s):
            sock, says = self._all[number]
            try:
                if mask & ~select.EPOLLOUT and not sock.recv(4096):
                    raise ConnectionResetError
                if mask & select.EPOLLOUT:
                    sock.send(says)
                    self._epoll.modify(number, select.EPOLLIN)
            except OSError:
                self._epoll.unregister(number)
                sock.close()
                del self._all[number]
                self.closed += 1

    def look_for(self, duration_s: float) -> None:
        """See so long what becomes of them."""
        until_s = time.monotonic() + duration_s
        while (left_s := until_s - time.monotonic()) > 0:
            self.look(left_s)

    def close(self) -> None:
        """End all."""
        for sock, _ in self._all.values():
            sock.close()
        self._epoll.close()


# --- the daemon, and what has to hold ------------------------------------------------------------


@contextmanager
def serving(folder: Path, limit: int) -> Iterator[tuple[Daemon, list[Door]]]:
    """Run a daemon with six listeners that may open *limit* files."""
    folder.mkdir(parents=True)
    (folder / "password").write_text("a-secret-of-the-test")
    settings = [
        *write_stores(folder),
        "storage.reserve.bytes=0",
        "offsets.topic.num.partitions=4",
        "offsets.topic.segment.bytes=65536",
        "group.initial.rebalance.delay.ms=0",
        "allow.everyone.if.no.acl.found=true",
        "http.metrics.anonymous=true",
        "sasl.bootstrap.user=admin",
        f"sasl.bootstrap.password.file={folder / 'password'}",
        "http.listeners=http://127.0.0.1:0,https://127.0.0.1:0",
    ]
    listeners = [f"{kind}://127.0.0.1:0" for kind in ("SSL", "SASL_PLAINTEXT", "SASL_SSL")]
    options = [word for one in listeners for word in ("--listen", one)]
    options += [word for one in settings for word in ("--set", one)]
    with daemon(folder / "data", options=options, limit=f"--nofile={limit}") as one:
        one.ready()
        plain, tls, sasl, sasl_tls = (line["port"] for line in one.events("listening"))
        http_port, https_port = (line["port"] for line in one.events("http.listening"))
        half, half_of_http = _HALVES["native"], _HALVES["http"]
        yield (
            one,
            [
                Door("PLAINTEXT", plain, half, _serves),
                Door("SSL", tls, _HALF_HELLO, _serves_over_tls),
                Door("SASL_PLAINTEXT", sasl, half, _serves_log_ins),
                Door("SASL_SSL", sasl_tls, _HALF_HELLO, _serves_over_tls),
                Door("HTTP", http_port, half_of_http, _serves_http),
                Door("HTTPS", https_port, _HALF_HELLO, _serves_https),
            ],
        )


def over_tls(port: int) -> Connection:
    """Return a connection over TLS. Raises OSError."""
    connection = Connection(port, timeout_s=_TRY_S)
    try:
        connection.socket = client_context().wrap_socket(connection.socket, server_hostname=HOST)
    except OSError:
        connection.close()
        raise
    return connection


def _serves(port: int) -> bool:
    with Connection(port, timeout_s=_TRY_S) as connection:
        return connection.ask(ApiVersionsRequest("test", "test", "1")) is not None


def _serves_log_ins(port: int) -> bool:
    with Connection(port, timeout_s=_TRY_S) as connection:
        return connection.ask(SaslHandshakeRequest("SCRAM-SHA-256")) is not None


def _serves_over_tls(port: int) -> bool:
    with over_tls(port) as connection:
        return connection.ask(SaslHandshakeRequest("SCRAM-SHA-256")) is not None


def _serves_http(port: int) -> bool:
    return _is_alive(http.client.HTTPConnection("127.0.0.1", port, timeout=_TRY_S))


def _serves_https(port: int) -> bool:
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port, timeout=_TRY_S, context=_context_for_http()
    )
    return _is_alive(connection)


def _context_for_http() -> ssl.SSLContext:
    context = client_context()
    context.check_hostname = False  # The certificate has another name than the address.
    return context


def _is_alive(connection: http.client.HTTPConnection) -> bool:
    try:
        connection.request("GET", "/livez")
        return connection.getresponse().status == 200
    except http.client.HTTPException as exc:
        raise ConnectionError(str(exc)) from exc
    finally:
        connection.close()


class Newcomer(threading.Thread):
    """Tries a listener until it serves.

    Attributes:
        took_s: How long that was after the last stranger came.
    """

    def __init__(self, door: Door, since_s: float) -> None:
        super().__init__()
        self.door = door
        self.took_s = float("inf")
        self._since_s = since_s
        self.start()

    def run(self) -> None:
        """Try for a minute."""
        while time.monotonic() - self._since_s < 60:
            with suppress(OSError):
                if self.door.serves(self.door.port):
                    self.took_s = time.monotonic() - self._since_s
                    return
            threading.Event().wait(0.05)


def descriptors(one: Daemon) -> int:
    """Return how many files the daemon has open."""
    return sum(1 for _ in Path(f"/proc/{one.process.pid}/fd").iterdir())


def check(one: Daemon, took_s: dict[str, float], within_s: float, compacted: int) -> None:
    """Look at what came of it. Raises Violation."""
    if late := {name: took for name, took in took_s.items() if took > within_s}:
        raise Violation(f"newcomers were late: {late} of {took_s}")
    if not compacted:
        raise Violation("no compaction came to its end")
    for event in ("accept.paused", "connection.failed", "request.failed", "log.failed"):
        if found := one.events(event):
            raise Violation(f"{len(found)} times {event}: {found[0]}")


def run(
    folder: Path,
    *,
    limit: int,
    connections: int,
    addresses: int,
    within_s: float = IN_WITHIN_S,
    seed: int = 0,
) -> str:
    """Send the strangers; return a line that says what came of it. Raises Violation."""
    with serving(folder, limit) as (one, doors), ExitStack() as ended:
        plain, tls = doors[0].port, doors[1].port
        first, second = one.connect(), over_tls(tls)
        second.socket.settimeout(30)
        third = Connection(plain)
        pages = http.client.HTTPConnection("127.0.0.1", doors[4].port, timeout=30)
        for here in (first, second, third, pages):
            ended.callback(here.close)
        insiders = [
            Insider("a member", member(first, "one")),
            Insider("a member over TLS", member(second, "two")),
            Insider("compactions", compacter(third), 0.5),
            Insider("a scraper", scraper(pages), 0.5),
        ]
        until(lambda: all(insider.asked for insider in insiders), "first answers")
        before = min(descriptors(one) for _ in range(100))  # Without a child that compacts.
        began_s = time.monotonic()
        strangers = Strangers(doors, connections, addresses, seed)
        ended.callback(strangers.close)
        since_s = time.monotonic()
        newcomers = [Newcomer(door, since_s) for door in doors]
        most, compacted = 0, insiders[2].asked
        while any(newcomer.is_alive() for newcomer in newcomers):
            strangers.look_for(0.5)
            most = max(most, descriptors(one))
            if one.process.poll() is not None:
                raise Violation(f"the daemon ended with {one.wait()}: {one.lines[-3:]} {one.stray}")
        compacted = insiders[2].asked - compacted
        for insider in insiders:
            insider.end()
        took_s = {newcomer.door.name: newcomer.took_s for newcomer in newcomers}
        check(one, took_s, within_s, compacted)
        strangers.close()
        until(lambda: descriptors(one) <= before, "end of all descriptors of strangers")
        status = one.stop()
        if status or one.stray:
            raise Violation(f"the daemon ended with {status}, and said {one.stray}")
        slowest_s = max(insider.slowest_s for insider in insiders[:2])
    after = ", ".join(f"{name} {took:.1f}" for name, took in took_s.items())
    return (
        f"ulimit -n {limit}: {connections} strangers of {addresses} addresses within "
        f"{since_s - began_s:.1f} s, {strangers.closed} were closed; at most {most} descriptors, "
        f"{compacted} compactions, slowest commit and heartbeat {slowest_s * 1000:.0f} ms; "
        f"newcomers were in after {max(took_s.values()):.1f} s ({after})"
    )


def main() -> None:
    """Run it as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limits", type=int, nargs="+", default=[256, 1_024, 16_384])
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--addresses", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        for limit in arguments.limits:
            try:
                said = run(
                    Path(folder) / str(limit),
                    limit=limit,
                    connections=arguments.connections,
                    addresses=arguments.addresses,
                    seed=arguments.seed,
                )
            except Violation as exc:
                sys.exit(f"violation at ulimit -n {limit}: {exc}")
            sys.stdout.write(said + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
