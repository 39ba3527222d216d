"""Between clients and the daemon: a port for each client, and notes of all that passes."""

from collections.abc import Callable
from itertools import count

import trio

from tests.sim.history import History, Tap

_READ_BYTES = 65_536


class Life:
    """One process of the daemon, and whoever was connected to it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.taps: list[Tap] = []


class Wires:
    """All connections."""

    def __init__(self, history: History, nursery: trio.Nursery) -> None:
        self._history = history
        self._nursery = nursery
        self._numbers = count(1)
        self._life: Life | None = None
        self._scopes: dict[str, set[trio.CancelScope]] = {}

    def begin_life(self, port: int) -> None:
        """A process of the daemon listens there."""
        self._life = Life(port)

    def end_life(self) -> None:
        """It is gone, and decides nothing any more."""
        if self._life is not None:
            for tap in self._life.taps:
                tap.server_closed()
        self._life = None

    async def port_for(self, client: str) -> int:
        """Listen for a client; return where."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self._scopes[client] = set()
        self._nursery.start_soon(
            trio.serve_listeners, lambda near: self._carry(client, near), [listener]
        )
        port: int = listener.socket.getsockname()[1]
        return port

    def cut(self, client: str) -> int:
        """Reset all connections of a client; return how many there were."""
        scopes = list(self._scopes[client])
        for scope in scopes:
            scope.cancel()
        return len(scopes)

    async def _carry(self, client: str, near: trio.SocketStream) -> None:
        life = self._life
        async with near:
            if life is None:
                return
            try:
                far = await trio.open_tcp_stream("127.0.0.1", life.port)
            except OSError:
                return
            tap = Tap(self._history, next(self._numbers), client)
            life.taps.append(tap)
            with trio.CancelScope() as scope:
                self._scopes[client].add(scope)
                async with far, trio.open_nursery() as nursery:
                    nursery.start_soon(_pump, near, far, tap.sent, nursery.cancel_scope)
                    nursery.start_soon(_pump, far, near, tap.received, nursery.cancel_scope)
            self._scopes[client].discard(scope)


async def _pump(
    source: trio.SocketStream,
    target: trio.SocketStream,
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
