"""A connection in memory: the server's end, and what the test does at the other."""

import trio

from coordinator.runtime.poller import Poller
from coordinator.server.addresses import counted_as
from coordinator.server.transport import RECEIVE_BYTES, Reader
from protocol.acls import ANONYMOUS


class ReadyInMemory:
    """Calls a reader back as the poller does for a socket: in a round, as long as it is ready.

    A transport says what it is ready for, and calls `_look` whenever that may have changed.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.counts_as = counted_as(peer)
        self.principal = ANONYMOUS
        self.is_tls = False
        self.ends_wall_ms: int | None = None
        self._poller: Poller | None = None
        self._reader: Reader | None = None
        self._reading, self._writing = True, False
        self._will_look = False

    def attach(self, poller: Poller, reader: Reader) -> None:
        """Call *reader* back in the poller's rounds."""
        self._poller, self._reader = poller, reader
        self._look()

    def want(self, *, reading: bool, writing: bool) -> None:
        """Say what to be called back for."""
        self._reading, self._writing = reading, writing
        self._look()

    def _can_receive(self) -> bool:
        raise NotImplementedError

    def _can_send(self) -> bool:
        raise NotImplementedError

    def _is_broken(self) -> bool:
        return False

    def detach(self) -> None:
        """Call nobody back any more."""
        self._reader = None
        self._reading, self._writing = True, False

    def _look(self) -> None:
        if self._reader is None or self._poller is None or self._will_look:
            return
        if (
            (self._reading and self._can_receive())
            or (self._writing and self._can_send())
            or self._is_broken()
        ):
            self._will_look = True
            self._poller.call_soon(self._call_back, self._reader)

    def _call_back(self) -> None:
        self._will_look = False
        if self._reader is not None and self._writing and self._can_send():
            self._reader.writable()
        if self._reader is not None:
            if self._reading and self._can_receive():
                self._reader.readable()
            elif self._is_broken():
                self._reader.broken()
        self._look()


class MemoryTransport(ReadyInMemory):
    """The server's end of one connection, and the test's.

    Attributes:
        room: How many more bytes the peer's window takes; None for any number.
        received: What the server has sent.
        closed: Whether the server has closed its end.
    """

    def __init__(self, peer: str = "192.0.2.1") -> None:
        super().__init__(peer)
        self.room: int | None = None
        self.received = bytearray()
        self.closed = False
        self._unread = bytearray()
        self._ended = False
        self._was_reset = False
        self._sent_before_reset: int | None = None

    # --- the test's end -----------------------------------------------------------------

    def put(self, data: bytes) -> None:
        """Send *data* to the server."""
        self._unread += data
        self._look()

    def end(self) -> None:
        """Close the test's end."""
        self._ended = True
        self._look()

    def reset(self) -> None:
        """Break the connection: what is unread is lost."""
        self._was_reset = True
        self._look()

    def reset_behind(self, size_bytes: int) -> None:
        """Break the connection at the send that goes beyond *size_bytes*."""
        self._sent_before_reset = size_bytes

    def give_room(self, room: int | None) -> None:
        """Let the server send so much."""
        self.room = room
        self._look()

    @property
    def unread_bytes(self) -> int:
        """What the server has not read yet."""
        return len(self._unread)

    # --- the server's end ---------------------------------------------------------------

    def receive_now(self) -> bytes | None:
        """Return what has come; empty when the peer is done."""
        self._check_open()
        data = bytes(self._unread[:RECEIVE_BYTES])
        del self._unread[:RECEIVE_BYTES]
        return data if data or self._ended else None

    def send_now(self, data: bytes | bytearray) -> int:
        """Take what the peer's window takes."""
        self._check_open()
        taken = len(data) if self.room is None else min(self.room, len(data))
        if self._sent_before_reset is not None:
            self._sent_before_reset -= taken
            if self._sent_before_reset < 0:
                self.reset()
                self._check_open()
        self.received += data[:taken]
        if self.room is not None:
            self.room -= taken
        return taken

    def close(self) -> None:
        """Close the server's end."""
        self.closed = True
        self.detach()

    def _can_receive(self) -> bool:
        return bool(self._unread) or self._ended or self._was_reset

    def _can_send(self) -> bool:
        return self.room != 0

    def _is_broken(self) -> bool:
        return self._was_reset

    def _check_open(self) -> None:
        if self.closed:
            raise trio.ClosedResourceError("closed by the server")
        if self._was_reset:
            raise trio.BrokenResourceError("reset by the peer")
