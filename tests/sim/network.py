"""A network in memory: late, in pieces, and cut at any moment.

Each connection is two pipes. A pipe keeps the order of its bytes, delays them, hands them out
in pieces and takes only so many. The client's end is a `trio.abc.Stream`, the server's a
`coordinator.server.transport.Transport`.
"""

import random
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from coordinator.server.transport import RECEIVE_BYTES
from tests.fakes.transport import ReadyInMemory
from tests.sim.history import History, Tap
from tests.sim.timer import Timer


@dataclass(slots=True)
class Weather:
    """How bad the network is; the nemesis changes it while it runs."""

    delay_s: float = 0.001  # An ordinary chunk takes up to twice that.
    slow_chance: float = 0.0  # That a chunk takes up to `slow_s`.
    slow_s: float = 0.0
    split_chance: float = 0.0  # That a receive gets only a part of what is there.
    partial_send_chance: float = 0.0  # That `send_now` takes only a part, or nothing.


class Pipe:
    """Bytes in one direction."""

    CAPACITY_BYTES = 64 * 1024

    def __init__(self, weather: Weather, rng: random.Random, timer: Timer) -> None:
        self._weather = weather
        self._rng = rng
        self._timer = timer
        self._chunks: deque[tuple[float, bytes]] = deque()
        self._waiting = trio.lowlevel.ParkingLot()
        # Called when there may be something to get that wasn't there before, or more room.
        self.tell: Callable[[], None] = lambda: None
        self._last_s = 0.0
        self._held = False
        self.buffered_bytes = 0
        self.ended = False  # No more is sent; what is under way arrives.
        self.broken = False

    def put(self, data: bytes) -> None:
        """Send *data*: it arrives later, behind what was sent before."""
        weather, rng = self._weather, self._rng
        # Whole steps, so that much happens in the same instant, in any order.
        delay_s = rng.randrange(3) * weather.delay_s
        if rng.random() < weather.slow_chance:
            delay_s = rng.uniform(0, weather.slow_s)
        self._last_s = max(self._last_s, trio.current_time() + delay_s)
        self._chunks.append((self._last_s, data))
        self.buffered_bytes += len(data)
        self._timer.call_at(self._last_s, self._wake)

    @property
    def room_bytes(self) -> int:
        """How much may be sent before the other end reads."""
        return max(0, self.CAPACITY_BYTES - self.buffered_bytes)

    async def get(self, max_bytes: int) -> bytes:
        """Return what has arrived, or a part of it; empty at the end. Raises when broken."""
        if self.has_arrived:
            await trio.lowlevel.checkpoint()
        while not self.has_arrived:
            await self._waiting.park()
        data = self.get_now(max_bytes)
        assert data is not None
        return data

    def get_now(self, max_bytes: int) -> bytes | None:
        """Return the same without waiting; None when nothing has arrived."""
        if self.broken:
            raise trio.BrokenResourceError("the connection was reset")
        if not self.has_arrived:
            return None
        return self._take(max_bytes) if self._chunks else b""

    @property
    def has_arrived(self) -> bool:
        """Whether there is something to get: data, the end, or an error."""
        if self._chunks and not self.broken:
            return not self._held and self._chunks[0][0] <= trio.current_time()
        return self.ended

    def hold(self, held: bool) -> None:
        """Stop, or go on, delivering."""
        self._held = held
        self._wake()

    def hurry(self) -> None:
        """Deliver at once what was to come late."""
        now_s = trio.current_time()
        self._chunks = deque((now_s, data) for _, data in self._chunks)
        self._last_s = now_s
        self._wake()

    def end(self) -> None:
        """Send no more."""
        self.ended = True
        self._wake()

    def cut(self) -> None:
        """Lose what is under way; both ends see an error."""
        self.broken = self.ended = True
        self._chunks.clear()
        self.buffered_bytes = 0
        self._wake()

    async def wait_room(self) -> None:
        """Return when there is room, or no hope."""
        while not self.room_bytes and not self.broken:
            await self._waiting.park()

    def _take(self, max_bytes: int) -> bytes:
        _, data = self._chunks.popleft()
        limit = max_bytes
        if self._rng.random() < self._weather.split_chance:
            limit = min(limit, self._rng.randint(1, max(1, len(data))))
        if len(data) > limit:
            self._chunks.appendleft((trio.current_time(), data[limit:]))
            data = data[:limit]
        self.buffered_bytes -= len(data)
        self._wake()
        return data

    def _wake(self) -> None:
        self._waiting.unpark_all()
        self.tell()


class Connection:
    """Both pipes, and what the history knows of them."""

    def __init__(self, network: "Network", number: int, client: str, host: str) -> None:
        self.number = number
        self.host = host
        self.client = client
        self.network = network
        self.to_server = Pipe(network.weather, network.rng, network.timer)
        self.to_client = Pipe(network.weather, network.rng, network.timer)
        self.tap = Tap(network.history, number, client)
        self.server_closed = False

    def reset(self) -> None:
        """Break both directions at once."""
        self.network.history.note("reset", self.number)
        self.to_server.cut()
        self.to_client.cut()

    def close_server_end(self, *, abruptly: bool = False) -> None:
        """The server is done with it: from here on it decides nothing that came over it."""
        if self.server_closed:
            return
        self.server_closed = True
        self.tap.server_closed()
        self.to_server.cut()
        if abruptly:
            self.to_client.cut()
        else:
            self.to_client.end()
        self.network.forget(self)


class ClientStream(trio.abc.Stream):
    """The client's end."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send everything, or raise."""
        await trio.lowlevel.checkpoint()
        self._check()
        pipe, rest = self._connection.to_server, bytes(data)
        self._connection.tap.sent(rest)
        while rest:
            await pipe.wait_room()
            self._check()
            size = pipe.room_bytes
            pipe.put(rest[:size])
            rest = rest[size:]

    async def wait_send_all_might_not_block(self) -> None:
        """Return when there is room."""
        await trio.lowlevel.checkpoint()
        self._check()
        await self._connection.to_server.wait_room()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what has come."""
        self._check()
        data = await self._connection.to_client.get(max_bytes or RECEIVE_BYTES)
        self._check()
        self._connection.tap.received(data)
        return data

    async def aclose(self) -> None:
        """Close; the server reads what was sent before, then the end."""
        if not self._closed:
            self._closed = True
            self._connection.to_server.end()
            self._connection.to_client.cut()
        await trio.lowlevel.checkpoint()

    def _check(self) -> None:
        if self._closed:
            raise trio.ClosedResourceError("the stream was closed")
        if self._connection.to_server.broken and self._connection.to_client.broken:
            raise trio.BrokenResourceError("the connection was reset")


class ServerTransport(ReadyInMemory):
    """The server's end."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection.client)
        if connection.network.history.tells_principals:
            self.principal = f"User:{connection.client}"
        self._connection = connection
        self._rng = connection.network.rng
        self._weather = connection.network.weather
        connection.to_client.tell = connection.to_server.tell = self._look

    def receive_now(self) -> bytes | None:
        """Return what has come; empty when the peer is done."""
        self._check()
        return self._connection.to_server.get_now(RECEIVE_BYTES)

    def send_now(self, data: bytes | bytearray) -> int:
        """Take as much of *data* as there is room for, sometimes less."""
        self._check()
        pipe = self._connection.to_client
        if pipe.broken:
            raise trio.BrokenResourceError("the connection was reset")
        taken = bytes(data[: pipe.room_bytes])
        if self._rng.random() < self._weather.partial_send_chance:
            taken = taken[: self._rng.randint(0, len(taken))]
        if taken:
            pipe.put(taken)
        return len(taken)

    def close(self) -> None:
        """Close at once."""
        self.detach()
        self._connection.close_server_end()

    def _can_receive(self) -> bool:
        return self._connection.server_closed or self._connection.to_server.has_arrived

    def _can_send(self) -> bool:
        pipe = self._connection.to_client
        return self._connection.server_closed or pipe.broken or pipe.room_bytes > 0

    def _is_broken(self) -> bool:
        return self._connection.server_closed or self._connection.to_server.broken

    def _check(self) -> None:
        if self._connection.server_closed:
            raise trio.ClosedResourceError("the transport was closed")


class Listener:
    """Where one process of the server gets its connections from."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[ServerTransport](1_000)

    def offer(self, transport: ServerTransport) -> None:
        """Bring a connection."""
        self._send.send_nowait(transport)

    async def accept(self) -> ServerTransport:
        """Return the next connection."""
        return await self._receive.receive()

    def close(self) -> None:
        """Stop listening."""
        self._receive.close()


class Network:
    """All connections, and whether anybody listens."""

    def __init__(self, history: History, rng: random.Random, nursery: trio.Nursery) -> None:
        self.history = history
        self.rng = rng
        self.timer = Timer(rng)
        nursery.start_soon(self.timer.run)
        self.weather = Weather()
        self.listener: Listener | None = None
        self.connections: dict[int, Connection] = {}
        self._cut_off: set[str] = set()
        self._count = 0

    def opener(self, client: str) -> Callable[[str, int], Awaitable[trio.abc.Stream]]:
        """Return the `open_stream` of the client with that name."""

        async def open_stream(host: str, _port: int) -> trio.abc.Stream:
            return await self.open(client, host)

        return open_stream

    def listener_at(self, _host: str) -> Listener | None:
        """Return who listens there, None if nobody does."""
        return self.listener

    async def open(self, client: str, host: str = "") -> ClientStream:
        """Connect. Raises OSError when nobody listens or the client is cut off."""
        await trio.sleep(self.rng.uniform(0, self.weather.delay_s))
        if client in self._cut_off:
            await trio.sleep(1.0)
            raise TimeoutError("no route to the server")
        listener = self.listener_at(host)
        if listener is None:
            raise ConnectionRefusedError("nobody listens")
        self._count += 1
        connection = Connection(self, self._count, client, host)
        self.connections[self._count] = connection
        self.history.note("open", connection.number, client)
        listener.offer(ServerTransport(connection))
        return ClientStream(connection)

    def forget(self, connection: Connection) -> None:
        """The connection is over."""
        self.connections.pop(connection.number, None)

    def sever(self) -> None:
        """The server's process is gone: nobody listens, and no byte leaves it any more."""
        self.listener = None
        for connection in list(self.connections.values()):
            connection.close_server_end(abruptly=self.rng.random() < 0.5)

    def cut_off(self, client: str) -> None:
        """Hold everything between the client and the server."""
        self._cut_off.add(client)
        self._hold(client, held=True)

    def reconnect(self, client: str) -> None:
        """Deliver again."""
        self._cut_off.discard(client)
        self._hold(client, held=False)

    def reset_some(self, client: str | None) -> None:
        """Reset the connections of one client, or all."""
        for connection in list(self.connections.values()):
            if client is None or connection.client == client:
                connection.reset()

    def calm(self) -> None:
        """Have fair weather from now on, for what is under way, too."""
        self.weather.slow_chance = self.weather.slow_s = 0.0
        for connection in self.connections.values():
            connection.to_server.hurry()
            connection.to_client.hurry()

    def _hold(self, client: str, *, held: bool) -> None:
        for connection in self.connections.values():
            if connection.client == client:
                connection.to_server.hold(held)
                connection.to_client.hold(held)
