"""The client against the whole daemon, in one trio run: no sockets, no disk, virtual time."""

import errno
import random
from collections.abc import AsyncIterator, Callable
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


class Restarted:
    """A daemon that is killed and started again on its disk, and the way of each program to it.

    Attributes:
        cut_off: The programs that can't reach it, though it runs.

    """

    def __init__(self, nursery: trio.Nursery) -> None:
        self.cut_off: set[str] = set()
        self._nursery = nursery
        self._disk = Disk()
        self._starts = 0
        self._daemon: World | None = None
        self._life = trio.CancelScope()
        self._ended = trio.Event()
        self._wires: list[tuple[str, Wire]] = []

    async def start(self) -> None:
        """Start it."""
        await self._nursery.start(self._run)

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        self._ended = trio.Event()
        with trio.CancelScope() as self._life:
            async with served(disk=self._disk) as here:
                self._starts += 1
                here.daemon._ids = self._starts << 32  # No member id comes twice.
                self._daemon = here.daemon
                task_status.started()
                await trio.sleep_forever()
        self._ended.set()

    async def kill(self) -> None:
        """End it without a word."""
        self._daemon = None
        self._life.cancel()
        await self._ended.wait()
        self._disk.kill()
        self._break(lambda _: True)

    def cut(self, program: str) -> None:
        """Let *program* not reach it from now on."""
        self.cut_off.add(program)
        self._break(lambda name: name == program)

    def _break(self, is_broken: Callable[[str], bool]) -> None:
        for name, wire in self._wires:
            if is_broken(name):
                wire.reset()
                wire.close()
        self._wires = [(name, wire) for name, wire in self._wires if not wire.closed]

    def connect(self, program: str) -> AbstractAsyncContextManager[Client]:
        """Connect as *program*."""

        async def open_stream(_host: str, _port: int) -> Any:
            await trio.lowlevel.checkpoint()
            if self._daemon is None or program in self.cut_off:
                raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
            wire = Wire()
            self._daemon.listener.arrive(wire)
            self._wires.append((program, wire))
            return wire

        return connect(
            "127.0.0.1:9310", client_id=program, open_stream=open_stream, rng=random.Random(program)
        )
