"""The client's end of TLS over a connection in memory, which may be spoiled on the way."""

import ssl
from random import Random

from tests.fakes.tls import TlsPeer
from tests.fakes.transport import MemoryTransport

# Of connections: some end in the middle of a handshake, of some a bit is changed.
_SPOILED = 0.05


class TlsWire:
    """As `MemoryTransport` is for its client, with TLS between.

    Attributes:
        received: What the server has said; `turn` adds to it.
    """

    def __init__(self, inner: MemoryTransport, context: ssl.SSLContext, rng: Random) -> None:
        self.received = bytearray()
        self._inner = inner
        self._peer = TlsPeer(inner, context)
        self._rng = rng
        self._spoils_at = rng.randrange(12) if rng.random() < _SPOILED else -1
        self._turns = 0
        self._said = bytearray()
        self._is_over = False
        self.turn()

    def turn(self) -> None:
        """Take what has come, and send what there is to send."""
        if self._is_over:
            return
        peer = self._peer
        try:
            peer.take()
            if self._said and peer.is_encrypted:
                peer.say(bytes(self._said))
                self._said.clear()
        except ssl.SSLError:  # What it was told, or wants to tell, is over.
            self._is_over = True
        self.received += peer.heard
        peer.heard.clear()
        if self._turns == self._spoils_at and peer.to_send:
            self._spoil(peer.to_send)
        self._turns += 1
        peer.put()

    def _spoil(self, data: bytearray) -> None:
        at = self._rng.randrange(len(data))
        if self._rng.random() < 0.5:
            data[at] ^= 1 << self._rng.randrange(8)
        else:
            del data[at:]
            self._is_over = True

    # --- the test's end of a transport ----------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the server has closed its end."""
        return self._inner.closed

    def put(self, data: bytes) -> None:
        """Send *data*, once the handshake is over."""
        self._said += data
        self.turn()

    def give_room(self, room: int | None) -> None:
        """Let the server send so much; in a handshake, whose sizes vary, all or nothing."""
        self._inner.give_room(room if self._peer.is_encrypted or not room else None)

    def end(self) -> None:
        """Close the test's end."""
        self._inner.end()

    def reset(self) -> None:
        """Break the connection."""
        self._inner.reset()

    def reset_behind(self, size_bytes: int) -> None:
        """Break the connection behind *size_bytes* of the server's ciphertext."""
        self._inner.reset_behind(size_bytes)
