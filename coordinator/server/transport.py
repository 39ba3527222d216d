"""Connections and listeners, as sessions and the server need them, and those of TCP.

A session is no task: it is called back when its transport has something to read or takes data
again, in a round of the poller (`runtime.poller`), and never waits. Simulations bring an in-memory
transport of the same shape.
"""

import socket
from typing import Final, Protocol

import trio

from coordinator.runtime.poller import BROKEN, READABLE, WRITABLE, Poller

RECEIVE_BYTES: Final = 64 * 1024
BACKLOG: Final = 1024
# What a transport raises when the connection is over.
NETWORK_ERRORS: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class Reader(Protocol):
    """Who is called back; each as long as it is so, unless the transport was told otherwise."""

    def readable(self) -> None:
        """There is something to receive: data, the end, or an error."""

    def writable(self) -> None:
        """`send_now` takes something, or raises."""

    def broken(self) -> None:
        """The connection is over, though nobody wanted to read or write."""


class Transport(Protocol):
    """A byte stream to one peer. Errors of the network are `NETWORK_ERRORS`."""

    peer: str

    def attach(self, poller: Poller, reader: Reader) -> None:
        """Call *reader* back from now on, when there is something to receive. Raises OSError."""

    def want(self, *, reading: bool, writing: bool) -> None:
        """Say what to be called back for."""

    def receive_now(self) -> bytes | None:
        """Return what has come, at most `RECEIVE_BYTES`; empty at the end, None for nothing yet."""

    def send_now(self, data: bytes | bytearray) -> int:
        """Take as much of *data* as fits without waiting, and return how much; may be 0."""

    def close(self) -> None:
        """Close at once, and call nobody back any more. Idempotent."""


class Listener(Protocol):
    """Where connections come from."""

    async def accept(self) -> Transport:
        """Return the next connection. Raises OSError when there is no room for one."""

    def close(self) -> None:
        """Stop listening."""


class SocketTransport:
    """A TCP connection."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = sock
        self._poller: Poller | None = None
        self._mask = READABLE
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def attach(self, poller: Poller, reader: Reader) -> None:
        """Have the poller watch the socket."""
        readable, writable, broken = reader.readable, reader.writable, reader.broken

        def on_ready(mask: int) -> None:
            if mask == READABLE:
                readable()
                return
            if mask & WRITABLE:
                writable()
            # A receive tells data from the end and from an error; on a closed socket it raises.
            if mask & READABLE:
                readable()
            elif mask & BROKEN:
                broken()

        poller.watch(self._socket.fileno(), on_ready)
        self._poller = poller

    def want(self, *, reading: bool, writing: bool) -> None:
        """Change what the poller looks for."""
        mask = (READABLE if reading else 0) | (WRITABLE if writing else 0)
        if mask != self._mask and self._poller is not None:
            self._mask = mask
            self._poller.modify(self._socket.fileno(), mask)

    def receive_now(self) -> bytes | None:
        """Return what has come; empty when the peer is done."""
        try:
            return self._socket.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return None

    def send_now(self, data: bytes | bytearray) -> int:
        """Take as much of *data* as the socket's buffer does."""
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0

    def close(self) -> None:
        """Close the socket."""
        poller, self._poller = self._poller, None
        if poller is not None:
            poller.unwatch(self._socket.fileno())
        self._socket.close()


class SocketListener:
    """A listening TCP socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock

    @property
    def port(self) -> int:
        """The port it listens on, also where 0 was asked for."""
        number: int = self._socket.getsockname()[1]
        return number

    async def accept(self) -> Transport:
        """Return the next connection."""
        # Who asks first and waits then stays runnable while they come in crowds: a busy poller
        # lets a runnable task run at once, and one that waits for a descriptor of trio's later.
        await trio.lowlevel.checkpoint()
        while True:
            if self._socket.fileno() < 0:  # Closed in the turn in which it became readable.
                raise trio.ClosedResourceError
            try:
                sock, address = self._socket.accept()
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._socket)
            except (InterruptedError, ConnectionAbortedError):
                continue
            else:
                return SocketTransport(sock, str(address[0]))

    def close(self) -> None:
        """Stop listening."""
        if self._socket.fileno() >= 0:
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


def listen(host: str, port: int) -> SocketListener:
    """Return a listener on *host*:*port*. Raises OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        None if host == "*" else host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return SocketListener(sock)
