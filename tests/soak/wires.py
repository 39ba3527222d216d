"""Between clients and the daemon: a port for each client, and notes of all that passes.

Where a client speaks TLS, it does so with us, who show the daemon's certificate, and we do so with
the daemon, with the client's. So what passes can be read, and both ends are the real ones.
"""

import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count

import trio

from tests.sim.history import History, Tap
from tests.sim.registers import Violation
from tests.soak.accounts import HOST, PLAINTEXT, Accounts

_READ_BYTES = 65_536
_GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class Life:
    """One process of the daemon, and whoever was connected to it.

    Attributes:
        ports: Where it listens, by protocol.
    """

    def __init__(self, ports: Mapping[str, int]) -> None:
        self.ports = ports
        self.taps: list[Tap] = []


class Wires:
    """All connections.

    Attributes:
        violations: What the daemon showed that it must not.
    """

    def __init__(self, history: History, accounts: Accounts, nursery: trio.Nursery) -> None:
        self.violations: list[Violation] = []
        self._history = history
        self._accounts = accounts
        self._nursery = nursery
        self._numbers = count(1)
        self._life: Life | None = None
        self._scopes: dict[str, set[trio.CancelScope]] = {}

    def begin_life(self, ports: Mapping[str, int]) -> None:
        """A process of the daemon listens there."""
        self._life = Life(ports)

    def end_life(self) -> None:
        """It is gone, and decides nothing any more."""
        if self._life is not None:
            for tap in self._life.taps:
                tap.server_closed()
        self._life = None

    async def port_for(self, client: str, protocol: str = PLAINTEXT) -> int:
        """Listen for a client; return where."""
        (listener,) = await trio.open_tcp_listeners(0, host=HOST)
        self._scopes[client] = set()
        self._nursery.start_soon(
            trio.serve_listeners, lambda near: self._carry(client, protocol, near), [listener]
        )
        port: int = listener.socket.getsockname()[1]
        return port

    def cut(self, client: str) -> int:
        """Reset all connections of a client; return how many there were."""
        scopes = list(self._scopes[client])
        for scope in scopes:
            scope.cancel()
        return len(scopes)

    async def _carry(self, client: str, protocol: str, near: trio.SocketStream) -> None:
        life = self._life
        async with _closed_at_end(near):
            if life is None:
                return
            with suppress(*_GONE), trio.CancelScope() as scope:
                self._scopes[client].add(scope)
                far = await trio.open_tcp_stream(HOST, life.ports[protocol])
                async with _closed_at_end(far):
                    inner, outer = await self._secured(client, protocol, near, far)
                    tap = Tap(self._history, next(self._numbers), client)
                    life.taps.append(tap)
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(_pump, inner, outer, tap.sent, nursery.cancel_scope)
                        nursery.start_soon(_pump, outer, inner, tap.received, nursery.cancel_scope)
            self._scopes[client].discard(scope)

    async def _secured(
        self, client: str, protocol: str, near: trio.SocketStream, far: trio.SocketStream
    ) -> tuple[trio.abc.Stream, trio.abc.Stream]:
        """Return both ends, encrypted if the listener is."""
        if protocol == PLAINTEXT:
            return near, far
        accounts = self._accounts
        outer = trio.SSLStream(
            far, accounts.as_client(client, protocol), server_hostname=HOST, https_compatible=True
        )
        try:
            await outer.do_handshake()
        except trio.BrokenResourceError as exc:
            if isinstance(exc.__cause__, ssl.SSLCertVerificationError):
                self.violations.append(Violation("certificate", f"{exc.__cause__}"))
            raise
        inner = trio.SSLStream(near, accounts.as_daemon, server_side=True, https_compatible=True)
        await inner.do_handshake()
        return inner, outer


@asynccontextmanager
async def _closed_at_end(stream: trio.SocketStream) -> AsyncIterator[None]:
    """Close it without another word: TLS would wait for a peer that may stand still."""
    try:
        yield
    finally:
        await trio.aclose_forcefully(stream)


async def _pump(
    source: trio.abc.ReceiveStream,
    target: trio.abc.SendStream,
    note: Callable[[bytes], None],
    both: trio.CancelScope,
) -> None:
    """Hand on, noted first: so a request begins early, and an answer too, as seen from here.

    An answer that is noted before the client has it may be lost on the last step; the daemon has
    told it, which is what counts.
    """
    try:
        while data := await source.receive_some(_READ_BYTES):
            note(bytes(data))
            await target.send_all(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass
    both.cancel()
