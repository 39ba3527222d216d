"""The client against the whole daemon, in one trio run: no sockets, no disk, virtual time."""

import random
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import trio

from client import Client, connect
from client.zookeeper.storage import Given
from tests.fakes.disk import Disk
from tests.fakes.transport import MemoryTransport
from tests.server.world import World, world


class Wire(MemoryTransport, trio.abc.Stream):
    """One connection: the server's end, and the client's."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = trio.Event()

    def send_now(self, data: bytes | bytearray) -> int:
        """Take data from the server, and tell the client."""
        taken = super().send_now(data)
        self._wake()
        return taken

    def close(self) -> None:
        """Close the server's end, and tell the client."""
        super().close()
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return what the server has sent; empty when it has closed the connection."""
        await trio.lowlevel.checkpoint()
        while not self.received and not self.closed:
            await self._changed.wait()
        data = bytes(self.received)
        self.received.clear()
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send to the server."""
        await trio.lowlevel.checkpoint()
        if self.closed:
            raise trio.BrokenResourceError
        self.put(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        """Return at once."""
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        """Close the client's end."""
        self.end()
        await trio.lowlevel.checkpoint()


class Served:
    """A running daemon, and a way to connect to it."""

    def __init__(self, daemon: World) -> None:
        self.daemon = daemon

    def connect(
        self, client_id: str = "client", offset_storage: Given = None
    ) -> AbstractAsyncContextManager[Client]:
        """Connect."""
        return connect(
            "127.0.0.1:9310",
            client_id=client_id,
            offset_storage=offset_storage,
            open_stream=self._open_stream,
            rng=random.Random(7),
        )

    async def _open_stream(self, _host: str, _port: int) -> Any:
        await trio.lowlevel.checkpoint()
        wire = Wire()
        self.daemon.listener.arrive(wire)
        return wire


@asynccontextmanager
async def served(*settings: str, disk: Disk | None = None) -> AsyncIterator[Served]:
    """Run a daemon as long as the block lasts; groups begin without a delay."""
    async with world("group.initial.rebalance.delay.ms=0", *settings, disk=disk) as daemon:
        yield Served(daemon)
