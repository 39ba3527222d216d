"""One accepted connection, as a session needs it.

A plain `trio.SocketStream` costs a checkpoint per call and can only send from a task of its
own. The reply of a commit leaves from the flusher's task, for many sessions at a time, so sending
is tried at once and without an await, and a task is started only when the socket is full.
Simulations bring an in-memory transport of the same shape.
"""

import socket
from typing import Final, Protocol

import trio

RECEIVE_BYTES: Final = 64 * 1024


class Transport(Protocol):
    """A byte stream to one peer. Errors of the network are OSError or trio's resource errors."""

    peer: str

    async def receive(self) -> bytes:
        """Return what has come, at most `RECEIVE_BYTES`; empty when the peer is done."""

    def send_now(self, data: bytes | memoryview) -> int:
        """Take as much of *data* as fits without waiting, and return how much; may be 0."""

    async def wait_writable(self) -> None:
        """Return when `send_now` will take something."""

    def close(self) -> None:
        """Close at once; wakes whoever waits with trio.ClosedResourceError. Idempotent."""


class SocketTransport:
    """A TCP connection."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = sock
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def receive(self) -> bytes:
        """Return what has come; empty when the peer is done."""
        while True:
            # Waiting first: a client that waits for its answers has nothing to read yet.
            await trio.lowlevel.wait_readable(self._socket)
            try:
                return self._socket.recv(RECEIVE_BYTES)
            except (BlockingIOError, InterruptedError):
                continue

    def send_now(self, data: bytes | memoryview) -> int:
        """Take as much of *data* as the socket's buffer does."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    async def wait_writable(self) -> None:
        """Return when the socket takes data again."""
        await trio.lowlevel.wait_writable(self._socket)

    def close(self) -> None:
        """Close the socket."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()
