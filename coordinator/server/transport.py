"""Connections and listeners, as sessions and the server need them, and those of TCP.

A session is no task: it is called back when its transport has something to read or takes data
again, in a round of the poller (`runtime.poller`), and never waits. Simulations bring an in-memory
transport of the same shape.

`TlsTransport` is TLS over any transport of this shape. OpenSSL works on buffers in memory and
never sees a socket. Three things make it as good as the transport below, for whoever is above:

- *Whatever one receive brings is decrypted at once*, so nothing but the beginning of a record is
  kept, and who waits for the socket to be readable misses nothing.
- *A record counts as sent when all of it has left.* Until then its bytes are still the session's,
  which offers them again first; they are not encrypted again. So what a session knows of unsent
  bytes, of peers that take nothing and of a drain holds as without TLS, and not more than one
  record is kept here, however slowly its peer reads.
- What OpenSSL itself has to say (the handshake, an alert, the answer to a change of keys) leaves
  when it comes up, or when the transport below takes it.
"""

import socket
import ssl
from contextlib import suppress
from typing import Any, Final, Protocol

import trio

from coordinator.runtime.bulkhead import attempt
from coordinator.runtime.poller import BROKEN, READABLE, WRITABLE, Poller
from coordinator.server.addresses import counted_as, named
from coordinator.server.client_hello import HANDSHAKE_RECORD, ClientHello
from protocol.acls import ANONYMOUS

RECEIVE_BYTES: Final = 64 * 1024
# Connections that wait to be accepted, of a listener; the system cuts it to net.core.somaxconn.
BACKLOG: Final = 4096
# The plaintext of a TLS record, at most.
RECORD_BYTES: Final = 16 * 1024
# After so much others have their turn: to encrypt it takes some tenths of a millisecond.
_SEND_TURN_BYTES: Final = 256 * 1024
# Of ciphertext that OpenSSL has made by itself and the peer doesn't take.
_UNASKED_BYTES_MAX: Final = 256 * 1024
_HTTP_METHODS: Final = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"OPTIONS ")
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

    def fail(self, exception: str) -> None:
        """See `bulkhead.Owner`: one of these has raised it."""


class Transport(Protocol):
    """A byte stream to one peer. Errors of the network are `NETWORK_ERRORS`.

    Attributes:
        peer: Its address (`named`).
        counts_as: The one that it counts as, where each has a share (`counted_as`).
        principal: Who it is, as far as the connection itself tells; ``User:ANONYMOUS`` otherwise.
        is_tls: Whether nobody between the two can read along.
        ends_wall_ms: When what tells so ends, a certificate; None is never.
    """

    peer: str
    counts_as: str
    principal: str
    is_tls: bool
    ends_wall_ms: int | None

    def attach(self, poller: Poller, reader: Reader) -> None:
        """Call *reader* back from now on, when there is something to receive. Raises OSError."""

    def detach(self) -> None:
        """Call nobody back any more. It may be attached again, also to another poller."""

    def want(self, *, reading: bool, writing: bool) -> None:
        """Say what to be called back for."""

    def receive_now(self) -> bytes | None:
        """Return what has come, at most `RECEIVE_BYTES`; empty at the end, None for nothing yet.

        With TLS there may be a record more.
        """

    def send_now(self, data: bytes | bytearray) -> int:
        """Take as much of *data* as fits without waiting, and return how much; may be 0.

        What is not taken must be at the beginning of what is offered next.
        """

    def close(self) -> None:
        """Close at once, and call nobody back any more. Idempotent."""


def attach(transport: Transport, poller: Poller, reader: Reader) -> str | None:
    """Attach *reader* to *transport*; if no descriptor is left for that, return the reason."""
    try:
        transport.attach(poller, reader)
    except OSError as exc:
        return str(exc.strerror)
    return None


class Listener(Protocol):
    """Where connections come from."""

    async def accept(self) -> Transport:
        """Return the next connection. Raises OSError when there is no room for one."""

    def close(self) -> None:
        """Stop listening."""


class SocketTransport:
    """A TCP connection."""

    principal = ANONYMOUS
    is_tls = False
    ends_wall_ms: int | None = None

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.peer = named(peer)
        self.counts_as = counted_as(self.peer)
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

        poller.watch(self._socket.fileno(), on_ready, owner=reader)
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

    def detach(self) -> None:
        """Have nobody watch it."""
        poller, self._poller = self._poller, None
        self._mask = READABLE
        if poller is not None:
            poller.unwatch(self._socket.fileno())

    def close(self) -> None:
        """Close the socket."""
        try:
            self.detach()
        finally:
            self._socket.close()


class NotTls(ConnectionError):
    """The peer's first bytes are no handshake; the message says what they look like."""


class _Over:
    """A stand-in for OpenSSL's end where a connection is closed, or its hello isn't whole."""

    def read(self, _size_bytes: int) -> bytes:
        raise trio.ClosedResourceError

    def write(self, _data: object) -> int:
        raise trio.ClosedResourceError

    def unwrap(self) -> None:
        raise trio.ClosedResourceError


_OVER: Final[Any] = _Over()
_NOTHING: Final = ssl.MemoryBIO()


class TlsTransport:
    """TLS over another transport, this end being the server's.

    First call `shake_hands` whenever there may be something to read, and `flush` when the transport
    takes data again, until the handshake is over. It is attached to sessions after that.

    Attributes:
        has_begun: Whether the peer has said anything.
        answers: How often we have said something in the handshake.
    """

    is_tls = True

    def __init__(self, inner: Transport, context: ssl.SSLContext) -> None:
        self.peer = inner.peer
        self.counts_as = inner.counts_as
        self.principal = ANONYMOUS
        self.ends_wall_ms: int | None = None
        self._inner = inner
        self._context = context
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject = _OVER
        self._hello: ClientHello | None = ClientHello()  # Until it is whole.
        self.has_begun = False
        self.answers = 0
        self._is_encrypted = False  # The handshake is over.
        self._unsent = b""  # Ciphertext.
        self._promised_bytes = 0  # What of the session's is in there, and was not called taken.
        self._has_ended = False  # The peer sends no more.
        self._poller: Poller | None = None
        self._reader: Reader | None = None
        self._reading, self._writing = True, False

    # --- the handshake ------------------------------------------------------------------

    def shake_hands(self) -> bool:
        """Go on with what has come; return whether the handshake is over, and all of it has left.

        Raises:
            NotTls: The peer speaks something else.
            BadHello: Its first message is too long, or damaged.
            ssl.SSLError: It comes to nothing; closing tells the peer why.
            OSError: The peer is gone.
        """
        data = self._inner.receive_now()
        if data is not None:
            if not data:
                raise ConnectionResetError("it left in the middle of the handshake")
            if not self.has_begun and data[0] != HANDSHAKE_RECORD:
                raise NotTls(_not_tls(data))
            self.has_begun = True
            if self._hello is None:
                self._incoming.write(data)
            elif self._hello.add(data):
                self._incoming.write(self._hello.data)
                self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
                self._hello = None
        if self._hello is not None:
            return False
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
            self._is_encrypted = True
        self.answers += self._outgoing.pending > 0
        return self.flush() and self._is_encrypted

    def certificate(self) -> bytes | None:
        """Return the peer's certificate (DER), which was verified; None if it showed none."""
        return self._tls.getpeercert(binary_form=True)

    # --- what sessions call ---------------------------------------------------------------

    def attach(self, poller: Poller, reader: Reader) -> None:
        """Call *reader* back; soon if something came with the end of the handshake."""
        self._inner.attach(poller, self)
        self._poller, self._reader = poller, reader
        if self._incoming.pending:
            poller.call_soon(self.readable, self)

    def detach(self) -> None:
        """Call nobody back any more."""
        self._reader = None
        self._reading, self._writing = True, False
        self._inner.detach()

    def want(self, *, reading: bool, writing: bool) -> None:
        """Say what to be called back for."""
        self._reading, self._writing = reading, writing
        self._inner.want(reading=reading, writing=writing or bool(self._unsent))
        if reading and self._has_ended and self._poller is not None:
            self._poller.call_soon(
                self.readable, self
            )  # The transport below may never be readable.

    def receive_now(self) -> bytes | None:
        """Return what has come, decrypted; empty when the peer is done.

        Whether it says so or only closes makes no difference: who speaks here has lengths in front
        of what it says, so what was cut off is never taken for whole.
        """
        if self._has_ended:
            return b""
        data = self._inner.receive_now()
        if data:
            self._incoming.write(data)
        elif data is not None:
            self._incoming.write_eof()
        elif not self._incoming.pending:
            return None
        received, self._has_ended = self._decrypted()
        if self._outgoing.pending:
            self.flush()
        if not received:
            return b"" if self._has_ended else None
        if self._has_ended and self._poller is not None:
            self._poller.call_soon(self.readable, self)
        return received[0] if len(received) == 1 else b"".join(received)

    def _decrypted(self) -> tuple[list[bytes], bool]:
        """Return everything of which the whole record has come, and whether the peer is done."""
        parts: list[bytes] = []
        read, incoming = self._tls.read, self._incoming
        try:
            while part := read(RECORD_BYTES):
                parts.append(part)
                # OpenSSL takes no byte behind a record before it is asked for the next one.
                if not (incoming.pending or incoming.eof):
                    return parts, False
        except ssl.SSLWantReadError:
            return parts, False
        except ssl.SSLEOFError:
            pass
        return parts, True

    def send_now(self, data: bytes | bytearray) -> int:
        """Take what the transport below does, by whole records."""
        if self._unsent and not self.flush():
            return 0
        taken, self._promised_bytes = self._promised_bytes, 0
        if not taken and 0 < len(data) <= RECORD_BYTES:  # Nearly always.
            return self._send_record(data)
        end = min(len(data), taken + _SEND_TURN_BYTES)
        with memoryview(data) as view:
            while taken < end:
                # A traceback keeps what lives in the frame: the slice ends here, by itself.
                with view[taken : min(taken + RECORD_BYTES, end)] as piece:
                    sent = self._send_record(piece)
                if not sent:
                    break
                taken += sent
        return taken

    def _send_record(self, data: bytes | bytearray | memoryview) -> int:
        """Encrypt *data*, and return how much that is if all of it has left; else 0."""
        self._tls.write(data)
        size = len(data)
        if self.flush():
            return size
        self._promised_bytes = size
        return 0

    def flush(self) -> bool:
        """Send ciphertext; return whether all of it has left. Raises `NETWORK_ERRORS`."""
        unsent = self._unsent + self._outgoing.read()
        if not unsent:
            return True
        sent = self._inner.send_now(unsent)
        self._unsent = unsent[sent:]
        if not self._unsent:
            return True
        if len(self._unsent) > _UNASKED_BYTES_MAX:
            raise trio.BrokenResourceError("it takes nothing, and asks for more and more")
        if not self._writing:
            self._inner.want(reading=self._reading, writing=True)
        return False

    def close(self) -> None:
        """Close, and tell the peer that nothing was cut off, or why the handshake failed.

        What OpenSSL has allocated is let go of here: 36 KB that the garbage collector knows nothing
        of, and so lets lie while a session that has ended waits for it.
        """
        try:
            self.detach()
            with suppress(*NETWORK_ERRORS):
                if self._is_encrypted:
                    with suppress(ssl.SSLError):  # The peer's end has yet to come.
                        self._tls.unwrap()
                self.flush()
        finally:
            self._tls, self._incoming, self._outgoing = _OVER, _NOTHING, _NOTHING
            self._hello = None
            self._inner.close()

    # --- what the transport below calls --------------------------------------------------

    def readable(self) -> None:
        """Pass it on."""
        if self._reader is not None:
            attempt(self._reader, self._reader.readable)

    def writable(self) -> None:
        """Pass it on to who waits for it, or send what is left of our own."""
        if self._reader is None:
            return
        if self._writing:
            attempt(self._reader, self._reader.writable)
            return
        is_broken = False
        try:
            if self.flush():
                self._inner.want(reading=self._reading, writing=False)
        except NETWORK_ERRORS:
            is_broken = True
        if is_broken:
            self.broken()

    def broken(self) -> None:
        """Pass it on."""
        if self._reader is not None:
            attempt(self._reader, self._reader.broken)

    def fail(self, exception: str) -> None:
        """Pass it on."""
        if self._reader is not None:
            self._reader.fail(exception)


def _not_tls(start: bytes) -> str:
    if start.startswith(_HTTP_METHODS):
        return "it speaks HTTP without TLS here; its address should begin with https"
    return "it speaks without TLS here"


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
