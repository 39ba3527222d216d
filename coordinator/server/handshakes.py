"""The way into a listener with TLS: who is through with the handshake is handed on.

Theory of operation
===================

A handshake costs about a millisecond of the processor, a commit a twentieth of that, and anybody
who reaches the port may ask for one. So handshakes have a poller of their own, whose rounds are one
handshake long, and which rests after each, if clients have asked something meanwhile (`Share`).
However many come, they get a fifth of the event loop, in the order in which they are ready; on an
idle daemon they get all of it.

Sessions know nothing of this: their listener is a `TlsListener`, whose connections are encrypted
and have a principal already. They are counted here, all listeners together, and when there are too
many, the next ones wait in the system's queue, and connections that have said no hello yet are
ended for them, the oldest first: else a silent crowd would shut out everybody for minutes. No
address has more than three quarters of them: further ones of it are closed, or others would wait
behind its silent connections for ever.

A peer has `TIMEOUT_S` to say something, and as much again after each answer of ours: two or three
times in all. What is ready by then is looked at before anyone is called silent, so nobody is closed
because we were slow.
"""

import ssl
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Sequence
from math import inf
from typing import Final, Protocol

import trio

from coordinator.runtime.bulkhead import attempt, report
from coordinator.runtime.calls import Share
from coordinator.runtime.environment import Environment
from coordinator.runtime.poller import Poller
from coordinator.runtime.telemetry import count
from coordinator.server.client_hello import BadHello
from coordinator.server.server import accept_for_ever
from coordinator.server.session import most_of_address
from coordinator.server.transport import (
    NETWORK_ERRORS,
    Listener,
    NotTls,
    TlsTransport,
    Transport,
    attach,
)

TIMEOUT_S: Final = 5.0
# How long a peer has for its hello while another connection waits for its place.
HELLO_S: Final = 0.02
# A round: one handshake, or several looks at peers that have sent little.
SLICE_S: Final = 0.000_2
# Handshakes at a time, at most; an eighth of the descriptors for clients if that is less
# (`descriptors`).
HANDSHAKES_MAX: Final = 1_000

# How handshakes end, as they are counted.
DONE: Final = "done"
LEFT: Final = "left"
NOT_TLS: Final = "not_tls"
REFUSED: Final = "refused"
STALLED: Final = "stalled"
RESULTS: Final = (DONE, LEFT, NOT_TLS, REFUSED, STALLED)

# What OpenSSL finds wrong with a peer, for its operator.
_REASONS: Final = {
    "UNSUPPORTED_PROTOCOL": "it speaks no version of TLS that ssl.enabled.protocols has",
    "NO_SHARED_CIPHER": "it knows no cipher suite that ssl.cipher.suites has",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate, and ssl.client.auth is required",
}
_ALERT: Final = "_ALERT_"
_DOES_NOT_TRUST: Final = {"unknown ca", "bad certificate", "certificate unknown"}


class Identities(Protocol):
    """The certificate of this daemon, and who those of clients stand for."""

    @property
    def context(self) -> ssl.SSLContext:
        """What new connections are encrypted with."""

    def identify(self, certificate: bytes) -> tuple[str, int]:
        """Return who showed *certificate* (DER), and when it ends, in wall-clock milliseconds.

        Raises an Exception that says why it tells nobody.
        """


class TlsListener:
    """A listener whose connections have shaken hands."""

    def __init__(
        self, inner: Listener, handshakes: "Handshakes", no_room: Callable[[], None]
    ) -> None:
        """Make it; *no_room* is called when there is no descriptor for a connection."""
        self.inner = inner
        self.no_room = no_room
        self._handshakes = handshakes
        self._ready: deque[TlsTransport] = deque()
        self._changed = trio.Event()
        self._is_over = False

    async def accept(self) -> Transport:
        """Return the next connection."""
        await trio.lowlevel.checkpoint()
        while True:
            while not self._ready:
                if self._is_over:
                    raise trio.ClosedResourceError
                await self._changed.wait()
            transport = self._ready.popleft()
            if self._handshakes.let_go(transport):
                return transport

    def put(self, transport: TlsTransport) -> None:
        """Let it be accepted."""
        self._ready.append(transport)
        self._tell()

    def end(self) -> None:
        """Nobody is accepted any more."""
        self._is_over = True
        self._tell()

    def _tell(self) -> None:
        while self._is_over and self._ready:
            transport = self._ready.popleft()
            self._handshakes.let_go(transport)
            transport.close()
        self._changed.set()
        self._changed = trio.Event()

    def close(self) -> None:
        """Stop listening."""
        self.inner.close()


class _Handshake:
    """One that goes on, as the poller calls it."""

    def __init__(self, owner: "Handshakes", transport: TlsTransport, listener: TlsListener) -> None:
        self.transport = transport
        self.listener = listener
        self.until_s = trio.current_time() + TIMEOUT_S
        self._owner = owner
        self._answers = 0  # What we have said.

    def readable(self) -> None:
        """Go on."""
        transport = self.transport
        refused: tuple[str, str | None]
        try:
            is_over = transport.shake_hands()
            transport.want(reading=True, writing=not transport.flush())
        except NotTls as exc:
            refused = NOT_TLS, str(exc)
        except BadHello as exc:
            refused = REFUSED, str(exc)
        except ssl.SSLError as exc:
            refused = REFUSED, reason_of(exc)
        except NETWORK_ERRORS as exc:
            # Who only looks whether the port is open, as probes do, is no news.
            refused = LEFT, str(exc) if transport.has_begun else None
        else:
            if is_over:
                self._owner.finish(self)
            elif transport.answers != self._answers:
                self._answers = transport.answers
                self._owner.wait_for(self)
            return
        self._owner.refuse(self, *refused)

    def writable(self) -> None:
        """The rest of what it says has room now."""
        self.readable()

    def broken(self) -> None:
        """The peer is gone."""
        self._owner.refuse(self, LEFT, None)

    def fail(self, exception: str) -> None:
        """Report a bug in work for this handshake, which ends."""
        report(self._owner.telemetry, "handshake", self.transport.peer, exception)
        self._owner.refuse(self, REFUSED, None)


class Handshakes:
    """All of this process."""

    def __init__(
        self,
        *,
        environment: Environment,
        identities: Identities,
        warn: Callable[..., None],
        at_most: int,
        clock_s: Callable[[], float],
    ) -> None:
        """Make it.

        Args:
            environment: Of the node; its telemetry says whether clients ask something.
            identities: Certificates.
            warn: As `Sessions.warn`.
            at_most: So many at a time.
            clock_s: How work is measured: the processor's time of this thread, best.
        """
        self.poller = Poller(slice_s=SLICE_S, clock_s=clock_s)
        self._identities = identities
        self._warn = warn
        self._at_most = at_most
        self.telemetry = environment.telemetry
        self._share = Share(lambda: self.telemetry.received_bytes, clock_s)
        self._under_way: dict[_Handshake, None] = {}  # By when they must have said something.
        self._count_of: Counter[str] = Counter()  # By address, as the next.
        self._held: set[Transport] = set()  # Those that nobody has accepted yet included.
        self._has_room = trio.Event()
        self._has_room.set()
        for result in RESULTS:
            self.telemetry.handshakes.setdefault(result, 0)
        environment.metrics.update(tls_handshakes=lambda: len(self._under_way))

    async def run(self, listeners: Sequence[TlsListener]) -> None:
        """Serve the *listeners* until cancelled; then every handshake ends."""
        try:
            async with trio.open_nursery() as nursery:
                for listener in listeners:
                    nursery.start_soon(self._accept, listener)
                nursery.start_soon(self._end_overdue)
                nursery.start_soon(self.poller.run, _nothing, self._share)
        finally:
            for handshake in list(self._under_way):
                self._forget(handshake)
                handshake.transport.close()
            for listener in listeners:
                listener.end()
            self.poller.close()

    async def _accept(self, listener: TlsListener) -> None:
        def begin(inner: Transport) -> None:
            self._begin(inner, listener)

        gate = _Gate(listener.inner, self.room)
        await accept_for_ever(gate, begin, self.telemetry, listener.no_room)
        listener.end()

    async def room(self) -> None:
        """Return when another one may begin; one that hasn't said hello in time is ended for it."""
        while len(self._held) >= self._at_most:
            silent = next((one for one in self._under_way if not one.transport.answers), None)
            hello_until_s = inf if silent is None else silent.until_s - TIMEOUT_S + HELLO_S
            with trio.move_on_at(hello_until_s) as waited:
                await self._has_room.wait()
            if silent is None or not waited.cancelled_caught:
                continue
            await self.poller.caught_up()
            if len(self._held) >= self._at_most and not silent.transport.answers:
                reason = f"no client hello within {HELLO_S} s, and others wait"
                attempt(silent, self.refuse, silent, STALLED, reason)

    def _begin(self, inner: Transport, listener: TlsListener) -> None:
        transport = TlsTransport(inner, self._identities.context)
        handshake = _Handshake(self, transport, listener)
        if (no_room := attach(transport, self.poller, handshake)) is not None:
            listener.no_room()
            self._warn("connection.refused", inner.peer, reason=no_room)
            inner.close()
            return
        self._under_way[handshake] = None
        self._held.add(transport)
        self._count_of[inner.counts_as] += 1
        if self._count_of[inner.counts_as] > most_of_address(self._at_most):
            self.refuse(handshake, REFUSED, "its address has three quarters of all handshakes")
        elif len(self._held) >= self._at_most:
            self._has_room = trio.Event()

    def wait_for(self, handshake: _Handshake) -> None:
        """It was our turn, and now it is the peer's."""
        self._forget(handshake)
        handshake.until_s = trio.current_time() + TIMEOUT_S
        self._under_way[handshake] = None

    async def _end_overdue(self) -> None:
        while True:
            oldest = next(iter(self._under_way), None)
            until_s = trio.current_time() + TIMEOUT_S if oldest is None else oldest.until_s
            await trio.sleep_until(until_s)
            await self.poller.caught_up()
            for handshake in list(self._under_way):
                if handshake.until_s > trio.current_time():
                    break
                reason = f"no handshake within {TIMEOUT_S:.0f} s"
                attempt(handshake, self.refuse, handshake, STALLED, reason)

    def finish(self, handshake: _Handshake) -> None:
        """Hand the connection on."""
        transport = handshake.transport
        certificate = transport.certificate()
        refused = None
        try:
            if certificate is not None:
                identity = self._identities.identify(certificate)
                transport.principal, transport.ends_wall_ms = identity
        except Exception as exc:  # noqa: BLE001 - whatever is in a certificate ends one connection
            refused = str(exc)
        if refused is not None:
            self.refuse(handshake, REFUSED, refused)
            return
        transport.detach()
        handshake.listener.put(transport)
        count(self.telemetry.handshakes, DONE)
        self._forget(handshake)  # At last: what raises above ends in `refuse`.

    def refuse(self, handshake: _Handshake, result: str, reason: str | None) -> None:
        """End it, and say why if there is a reason. Idempotent."""
        if not self._forget(handshake):
            return
        count(self.telemetry.handshakes, result)
        transport = handshake.transport
        attempt(handshake, transport.close)
        self.let_go(transport)
        if reason is not None:
            self._warn("handshake.refused", transport.peer, reason=reason)

    def _forget(self, handshake: _Handshake) -> bool:
        return self._under_way.pop(handshake, handshake) is None

    def let_go(self, transport: Transport) -> bool:
        """Count one less; return False if it was refused meanwhile, or let go before."""
        if transport not in self._held:
            return False
        self._held.remove(transport)
        self._count_of[transport.counts_as] -= 1
        if not self._count_of[transport.counts_as]:
            del self._count_of[transport.counts_as]
        self._has_room.set()
        return True


class _Gate:
    """A listener that takes the next connection, and hands it on when there is room for it."""

    def __init__(self, listener: Listener, room: Callable[[], Awaitable[None]]) -> None:
        self._listener = listener
        self._room = room

    async def accept(self) -> Transport:
        """Return the next connection."""
        transport = await self._listener.accept()
        try:
            await self._room()
        except trio.Cancelled:
            transport.close()
            raise
        return transport

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def reason_of(failure: ssl.SSLError) -> str:
    """Return why a handshake came to nothing, in words for the log."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {failure.verify_message}"
    reason = failure.reason or str(failure)
    _, is_alert, alert = reason.partition(_ALERT)
    if not is_alert:
        return _REASONS.get(reason, reason.replace("_", " ").lower())
    said = alert.replace("_", " ").lower()
    if said in _DOES_NOT_TRUST:
        return f"it does not accept our certificate ({said})"
    return f"it breaks off ({said})"


def _nothing() -> None:
    """Do nothing at a round's end."""
