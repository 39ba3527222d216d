"""The way to a real ensemble, and what may happen there.

A `Wire` stands between one server and its clients, which cuts, and keeps bytes back, in each
direction alone.
"""

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import pytest

from bench.ensemble import HOST, Ensemble
from bench.peers import missing

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
