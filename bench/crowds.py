"""Who stands beside a good client: the many, the slow, those who log in, those who attack.

As a process (``python -m bench.crowds '{"host": …}'``, a `Crowd`) it goes on until its input ends,
and then prints what came of it. All of it is one thread, but for handshakes and log-ins, of which
each waits.
"""

import base64
import hashlib
import hmac
import os
import select
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from itertools import count, repeat
from typing import Final

from bench.load import allow_descriptors
from bench.measures import latency_of
from bench.processes import LoadError, run_plan
from bench.talk import Talk, accepted, ask, connect, frame_of
from protocol import messages as m
from protocol.messages import first_error

_READ_BYTES: Final = 1 << 18
_TICK_S: Final = 0.05
# What a slow reader takes in a tick: a quarter more than he must.
_SLOW_READ_BYTES: Final = 4_096
_SMALL_BUFFER_BYTES: Final = 8_192
_IN_FLIGHT: Final = 64
_MECHANISM: Final = "SCRAM-SHA-256"
# What the attack and the slow readers ask for; `prepare` makes it.
_TOPICS: Final = 10_000
_WIDE_PARTITIONS: Final = 100_000
_COMMIT_PARTITIONS: Final = 10_000
_WIDE: Final = "crowd-wide"
_LONG: Final = "crowd-long"


@dataclass(frozen=True, slots=True)
class Crowd:
    """What to do.

    Attributes:
        idle: Connections that have said hello and are silent.
        slow: As many again, of which half send a byte at a time, and half read slowly.
        attacks: Whether each kind of `ATTACKS` is asked for, 64 at a time.
        handshakes: Threads that connect again and again, over TLS to whom `authority` certifies.
        log_ins: Threads that log in again and again, as `user` with `password`.
    """

    host: str
    port: int
    idle: int = 0
    slow: int = 0
    attacks: bool = False
    handshakes: int = 0
    authority: str = ""
    log_ins: int = 0
    user: str = ""
    password: str = ""


def prepare(host: str, port: int, *, quick: bool) -> None:
    """Have a group of 100,000 offsets, one of long texts, and 10,000 topics.

    Raises:
        LoadError: The server refuses it.
    """
    topics, wide = (100, 1_000) if quick else (_TOPICS, _WIDE_PARTITIONS)
    commits = [
        _commit(_WIDE, range(at, min(at + _COMMIT_PARTITIONS, wide)))
        for at in range(0, wide, _COMMIT_PARTITIONS)
    ]
    commits.append(_commit(_LONG, range(100), metadata="m" * 4_096))
    registered = tuple(m.TopicRegistration(f"crowd.{n}.topic", 1, None) for n in range(topics))
    with closing(connect(host, port)) as talk:
        for request in (*commits, m.RegisterTopicsRequest(registered)):
            (answer,) = ask([talk], [request])
            if answer.error or first_error(answer):
                raise LoadError(f"the server refused it: {answer}")


def _commit(group: str, partitions: range, metadata: str = "") -> m.OffsetCommitRequest:
    offsets = tuple(m.PartitionCommit(p, 2**33 + p, -1, metadata, None) for p in partitions)
    return m.OffsetCommitRequest(group, -1, "", None, (m.TopicCommit("crowd", offsets),))


def _new_patterns() -> Iterator[bytes]:
    """Yield questions for topics, each by a pattern that nobody has asked for."""
    for number in count():
        pattern = f"crowd\\.(?:[0-9]?.?){{20}}{number}"
        yield frame_of(m.DescribeTopicsRequest(None, pattern, False, "", 100), 0)


def _again(request: m.Request) -> Callable[[], Iterator[bytes]]:
    return lambda: repeat(frame_of(request, 0))


# Frames of what is long to answer, and short to ask for, most of it.
ATTACKS: Final[dict[str, Callable[[], Iterator[bytes]]]] = {
    "lists": _again(m.ListGroupsRequest(("Dead",), ())),
    "patterns": _new_patterns,
    "scans": _again(m.ScanOffsetsRequest(0, b"", 1, True, None, None)),
    "lags": _again(m.DescribeLagRequest(_WIDE)),
    "commits": _again(_commit("crowd-commits", range(_COMMIT_PARTITIONS))),
}


class _Peer:
    """A connection of the crowd. Raises LoadError when the server ends it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._unsent = b""
        sock.setblocking(False)

    def send(self, data: bytes) -> None:
        """Send as much as the socket takes, and keep the rest."""
        self._unsent += data
        with suppress(BlockingIOError):
            self._unsent = self._unsent[self.sock.send(self._unsent) :]

    def receive(self, most_bytes: int) -> bytes:
        """Return what has come."""
        try:
            data = self.sock.recv(most_bytes)
        except BlockingIOError:
            return b""
        if not data:
            raise LoadError("the server closed a connection of the crowd")
        return data


class _Asking(_Peer):
    """Asks for more with each answer, which it only counts.

    Attributes:
        answers: How many have come.
    """

    def __init__(self, sock: socket.socket, frames: Iterator[bytes], in_flight: int) -> None:
        super().__init__(sock)
        self.answers = 0
        self._frames = frames
        self._head = b""
        self._left_bytes = 0  # Of the answer that is being read.
        for _ in range(in_flight):
            self.send(next(self._frames))

    def read(self, most_bytes: int = _READ_BYTES) -> None:
        """Take some of the answers."""
        data = memoryview(self._head + self.receive(most_bytes))
        self._head = b""
        before = self.answers
        while data:
            if self._left_bytes:
                taken = min(self._left_bytes, len(data))
                self._left_bytes -= taken
                data = data[taken:]
                self.answers += not self._left_bytes
            elif len(data) < 4:
                self._head = bytes(data)
                break
            else:
                self._left_bytes = int.from_bytes(data[:4])
                data = data[4:]
        self.send(b"".join([next(self._frames) for _ in range(self.answers - before)]))


class _Dripping(_Peer):
    """Sends heartbeats a byte at a time."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        self._frame = frame_of(m.HeartbeatRequest("crowd", 1, "nobody", None), 0)
        self._sent = 0

    def drip(self) -> None:
        """Send one more, and read what has come."""
        at = self._sent % len(self._frame)
        self.send(self._frame[at : at + 1])
        self._sent += 1
        self.receive(_READ_BYTES)


class _Crowding:
    """All connections of a crowd but for log-ins, and what came of them."""

    def __init__(self, crowd: Crowd, stack: ExitStack) -> None:
        """Connect; *stack* closes everything."""
        self._crowd = crowd
        self._stack = stack
        self._epoll = stack.enter_context(select.epoll())
        self._epoll.register(sys.stdin, select.EPOLLIN | select.EPOLLHUP)
        self._asking: dict[int, _Asking] = {}
        self.attacks = {
            name: self._ask_much(frames()) for name, frames in ATTACKS.items() if crowd.attacks
        }
        for _ in range(crowd.idle):
            self._connect()
        self._dripping = [_Dripping(self._connect()) for _ in range(crowd.slow // 2)]
        everything = m.OffsetFetchRequest((m.GroupFetch(_LONG, None),), False)
        self._slow_readers = [
            _Asking(self._connect(_SMALL_BUFFER_BYTES), _again(everything)(), 1)
            for _ in range(crowd.slow - crowd.slow // 2)
        ]

    def _connect(self, buffer_bytes: int = 0) -> socket.socket:
        talk = connect(self._crowd.host, self._crowd.port)
        self._stack.callback(talk.close)
        if buffer_bytes:
            talk.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        accepted(ask([talk], [m.ApiVersionsRequest("crowd", "bench", "0")]))
        return talk.sock

    def _ask_much(self, frames: Iterator[bytes]) -> _Asking:
        asking = _Asking(self._connect(), frames, _IN_FLIGHT)
        self._epoll.register(asking.sock, select.EPOLLIN)
        self._asking[asking.sock.fileno()] = asking
        return asking

    def run(self) -> None:
        """Go on until standard input ends."""
        next_tick_s = time.monotonic()
        while True:
            for fd, _ in self._epoll.poll(max(0, next_tick_s - time.monotonic())):
                if fd == sys.stdin.fileno():
                    return
                self._asking[fd].read()
            if time.monotonic() >= next_tick_s:
                next_tick_s += _TICK_S
                for dripping in self._dripping:
                    dripping.drip()
                for reader in self._slow_readers:
                    reader.read(_SLOW_READ_BYTES)
                for asking in self._asking.values():
                    asking.send(b"")  # What the socket did not take.


def run(crowd: Crowd) -> dict[str, float]:
    """Go on until standard input ends.

    Returns:
        Of each kind of attack its answers, of handshakes and log-ins how many there were and their
        p99 (``log_ins``, ``log_ins_p99_us``), and the ``seconds`` that all of it took.

    Raises:
        LoadError: The server ended a connection, or refused a log-in.
    """
    allow_descriptors(crowd.idle + crowd.slow + crowd.handshakes + crowd.log_ins + 64)
    stranger = _Stranger(crowd)
    with ExitStack() as stack:
        crowding = _Crowding(crowd, stack)
        strangers = (
            _Again("handshakes", crowd.handshakes, stranger.shake_hands),
            _Again("log_ins", crowd.log_ins, stranger.log_in),
        )
        print("begun", flush=True)
        began_s = time.monotonic()
        crowding.run()
        seconds = time.monotonic() - began_s
        found = {f"{name}_answers": float(one.answers) for name, one in crowding.attacks.items()}
        for one in strangers:
            found |= one.stop()
        return {**found, "seconds": seconds}


class _Again:
    """Threads that do something again and again."""

    def __init__(self, name: str, threads: int, once: Callable[[], None]) -> None:
        """Start them."""
        self._name = name
        self._once = once
        self._took_ns: list[int] = []
        self._failures: list[str] = []
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._done.is_set():
            began_ns = time.perf_counter_ns()
            try:
                self._once()
            except (OSError, LoadError) as exc:
                self._failures.append(str(exc))
                return
            self._took_ns.append(time.perf_counter_ns() - began_ns)

    def stop(self) -> dict[str, float]:
        """Stop them; return what came of it. Raises LoadError."""
        self._done.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise LoadError(f"of the {self._name}, one failed: {self._failures[0]}")
        if not self._threads:
            return {}
        if not self._took_ns:
            raise LoadError(f"there were no {self._name}")
        p99_us = latency_of(self._took_ns).p99_us
        return {self._name: float(len(self._took_ns)), f"{self._name}_p99_us": p99_us}


class _Stranger:
    """Connects, proves who is who, and leaves."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._trusting = (
            ssl.create_default_context(cafile=crowd.authority) if crowd.authority else None
        )
        self._salted: dict[bytes, bytes] = {}  # Like a client that remembers it: see RFC 5802, 5.1.

    def shake_hands(self) -> None:
        """Have a handshake of TLS."""
        connect(self._crowd.host, self._crowd.port, self._trusting).close()

    def log_in(self) -> None:
        """Log in by SCRAM."""
        with closing(connect(self._crowd.host, self._crowd.port)) as talk:
            self._log_in(talk)

    def _log_in(self, talk: Talk) -> None:
        (answer,) = ask([talk], [m.SaslHandshakeRequest(_MECHANISM)])
        accepted([answer])
        nonce = base64.b64encode(os.urandom(18)).decode()
        bare = f"n={self._crowd.user},r={nonce}"
        first = self._say(talk, f"n,,{bare}").decode()
        fields = dict(part.split("=", 1) for part in first.split(","))
        final = f"c=biws,r={fields['r']}"
        key = hmac.digest(self._salted_password(fields), b"Client Key", "sha256")
        signed = f"{bare},{first},{final}".encode()
        signature = hmac.digest(hashlib.sha256(key).digest(), signed, "sha256")
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self._say(talk, f"{final},p={base64.b64encode(proof).decode()}")

    def _say(self, talk: Talk, message: str) -> bytes:
        (answer,) = ask([talk], [m.SaslAuthenticateRequest(message.encode())])
        accepted([answer])
        said: bytes = answer.auth_bytes
        return said

    def _salted_password(self, fields: dict[str, str]) -> bytes:
        salt = base64.b64decode(fields["s"])
        found = self._salted.get(salt)
        if found is None:
            password = self._crowd.password.encode()
            found = hashlib.pbkdf2_hmac("sha256", password, salt, int(fields["i"]))
            self._salted[salt] = found
        return found


if __name__ == "__main__":
    run_plan("bench.crowds", Crowd, run)
