"""A connection in memory: the server's end, and what the test does at the other."""

import trio

from coordinator.server.transport import RECEIVE_BYTES


class MemoryTransport:
    """The server's end of one connection, and the test's.

    Attributes:
        room: How many more bytes the peer's window takes; None for any number.
        received: What the server has sent.
        closed: Whether the server has closed its end.
    """

    def __init__(self, peer: str = "192.0.2.1") -> None:
        self.peer = peer
        self.room: int | None = None
        self.received = bytearray()
        self.closed = False
        self._unread = bytearray()
        self._ended = False
        self._changed = trio.Event()

    # --- the test's end -----------------------------------------------------------------

    def put(self, data: bytes) -> None:
        """Send *data* to the server."""
        self._unread += data
        self._wake()

    def end(self) -> None:
        """Close the test's end."""
        self._ended = True
        self._wake()

    def give_room(self, room: int | None) -> None:
        """Let the server send so much."""
        self.room = room
        self._wake()

    @property
    def unread_bytes(self) -> int:
        """What the server has not read yet."""
        return len(self._unread)

    # --- the server's end ---------------------------------------------------------------

    async def receive(self) -> bytes:
        """Return what has come; empty when the peer is done."""
        while not (self._unread or self._ended):
            await self._wait()
        self._check_open()
        data = bytes(self._unread[:RECEIVE_BYTES])
        del self._unread[:RECEIVE_BYTES]
        return data

    def send_now(self, data: bytes | memoryview) -> int:
        """Take what the peer's window takes."""
        self._check_open()
        taken = len(data) if self.room is None else min(self.room, len(data))
        self.received += data[:taken]
        if self.room is not None:
            self.room -= taken
        return taken

    async def wait_writable(self) -> None:
        """Return when the peer takes data."""
        while self.room == 0:
            await self._wait()
        self._check_open()

    def close(self) -> None:
        """Close the server's end."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _wait(self) -> None:
        self._check_open()
        await self._changed.wait()
        self._check_open()

    def _check_open(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError("closed by the server")
