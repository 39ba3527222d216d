"""What is done to the daemon and to its clients, and in which order."""

import os
import random
import shutil
import signal
import struct
import subprocess
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

import trio

from protocol.connection import ClientConnection
from protocol.messages import ApiVersionsRequest
from tests.integration.daemon import Daemon, reset_at_close
from tests.sim.registers import Violation
from tests.soak.accounts import HOST
from tests.soak.node import KILLED, WRITE_FAILED, Node

_DAY_NS: Final = 86_400 * 10**9
_CALLS: Final = "pwritev2,fdatasync"
_CHURN: Final = 50
_START_MAX_S: Final = 60
_PAUSE_S: Final = (0.5, 4.0)
_BY_STRACE: Final = frozenset({"slow disk", "hanging disk", "write error"})
_ON_SMALL_DISK: Final = frozenset({"full disk", "no room at all"})


class Fault(NamedTuple):
    """One of them."""

    do: Callable[[], Awaitable[None]]
    ends_life: bool = False


class Deck:
    """Faults in an order that the seed gives; none again before all others have come."""

    def __init__(
        self, faults: Mapping[str, Fault], rng: random.Random, counts: Counter[str]
    ) -> None:
        self._faults = faults
        self._rng = rng
        self._counts = counts

    async def play(self, pace: float, is_over: Callable[[], bool], *, lethal: bool) -> None:
        """Do one after the other until it is over; all at least once, if they may be lethal."""
        chosen = [name for name, fault in self._faults.items() if lethal or not fault.ends_life]
        must_go_on = lethal
        while must_go_on or not is_over():
            self._rng.shuffle(chosen)
            for name in chosen:
                if not must_go_on and is_over():
                    return
                await self._faults[name].do()
                self._counts[name] += 1
                await trio.sleep(self._rng.uniform(*_PAUSE_S) * pace)
            must_go_on = False


def impossible(*, small_disk: bool) -> frozenset[str]:
    """Return what can't be done on this machine: some need strace, some a disk of their own."""
    by_strace = frozenset() if shutil.which("strace") else _BY_STRACE
    return by_strace | (frozenset() if small_disk else _ON_SMALL_DISK)


class OnTheDaemon:
    """Faults of the daemon, of its machine, and of strangers."""

    def __init__(self, node: Node, disk: Path, rng: random.Random, pace: float) -> None:
        """*pace* is how long everything takes: 1 for long runs, less for short ones."""
        self._node = node
        self._disk = disk
        self._rng = rng
        self._pace = pace

    def all(self) -> dict[str, Fault]:
        """Return them by name."""
        return {
            "kill -9": Fault(self._kill, ends_life=True),
            "SIGTERM": Fault(self._stop, ends_life=True),
            "pause of the daemon": Fault(self._pause),
            "clock jump": Fault(self._jump),
            "reload": Fault(self._reload),
            "bad reload": Fault(self._reload_badly),
            "churn of connections": Fault(self._churn),
            "hostile connection": Fault(self._hostile),
            "slow disk": Fault(self._slow_disk),
            "hanging disk": Fault(self._hanging_disk),
            "write error": Fault(self._write_error, ends_life=True),
            "full disk": Fault(self._full_disk),
            "no room at all": Fault(self._no_room, ends_life=True),
        }

    async def _some_time(self, low_s: float, high_s: float) -> None:
        await trio.sleep(self._rng.uniform(low_s, high_s) * self._pace)

    async def _kill(self) -> None:
        daemon = await self._node.serving()
        with self._node.may_end(KILLED):
            daemon.process.kill()
            await self._node.ended(self._node.lives)

    async def _stop(self) -> None:
        await self._node.stop(for_good=False)

    async def _pause(self) -> None:
        daemon = await self._node.serving()
        daemon.process.send_signal(signal.SIGSTOP)
        await self._some_time(0.2, 9)
        daemon.process.send_signal(signal.SIGCONT)

    async def _jump(self) -> None:
        await self._node.serving()
        self._node.clock.set_ns(self._rng.randint(-_DAY_NS, _DAY_NS))

    async def _reload(self) -> None:
        daemon = await self._node.serving()
        before = self._node.count("settings.reloaded")
        self._node.configure(max_connections=self._rng.randint(1_000, 2_000))
        daemon.process.send_signal(signal.SIGHUP)
        await self._node.event("settings.reloaded", before)

    async def _reload_badly(self) -> None:
        daemon = await self._node.serving()
        before = self._node.count("settings.refused")
        self._node.configure(max_connections=-1)
        daemon.process.send_signal(signal.SIGHUP)
        await self._node.event("settings.refused", before)
        self._node.configure()

    async def _slow_disk(self) -> None:
        delay_us = self._rng.randint(20_000, 400_000)
        daemon = await self._node.serving()
        with self._injected(daemon, f"{_CALLS}:delay_enter={delay_us}"):
            await self._some_time(3, 10)

    async def _hanging_disk(self) -> None:
        daemon = await self._node.serving()
        # Longer than a commit waits.
        with self._injected(daemon, f"{_CALLS}:delay_enter=1500000:when=1"):
            await trio.sleep(2)

    async def _write_error(self) -> None:
        daemon = await self._node.serving()
        call = self._rng.choice(_CALLS.split(","))
        life = self._node.lives
        broken = self._injected(daemon, f"{call}:error=EIO:when=1")
        with self._node.may_end(WRITE_FAILED):
            # No fdatasync comes before a segment is full.
            with broken, trio.move_on_after(20 * self._pace + 2):
                await self._node.ended(life)
            await trio.sleep(0.5)  # It may be ending.

    @contextmanager
    def _injected(self, daemon: Daemon, what: str) -> Iterator[None]:
        calls = what.partition(":")[0]
        command = ["strace", "-f", "-q", "-o", "/dev/null", "-e", f"trace={calls}"]
        command += ["-e", f"inject={what}", "-p", str(daemon.process.pid)]
        tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            tracer.terminate()
            tracer.wait()

    async def _full_disk(self) -> None:
        await self._node.serving()
        before = self._node.count("storage.full")
        with self._filled(leave_bytes=1_000_000):
            await self._node.event("storage.full", before)
            await self._some_time(2, 8)

    async def _no_room(self) -> None:
        """With the reserve set aside; then it must start, and serve, on the full disk."""
        daemon = await self._node.serving()
        life = self._node.lives
        before = self._node.count("settings.reloaded")
        self._node.configure(storage_reserve_bytes=0)
        daemon.process.send_signal(signal.SIGHUP)
        await self._node.event("settings.reloaded", before)
        self._node.configure()
        with self._node.may_end(WRITE_FAILED), self._filled(leave_bytes=0):
            with trio.move_on_after(20):
                await self._node.ended(life)
            with trio.move_on_after(_START_MAX_S) as scope:
                await self._node.serving()
                await self._some_time(0.5, 3)
            if scope.cancelled_caught:
                text = f"nothing serves on a full disk for {_START_MAX_S} s"
                self._node.violations.append(Violation("start on a full disk", text))
        if self._node.lives == life:
            daemon.process.send_signal(signal.SIGHUP)

    @contextmanager
    def _filled(self, *, leave_bytes: int) -> Iterator[None]:
        filler = self._disk / "filler"
        status = os.statvfs(self._disk)
        try:
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                file.write(bytes(max(0, status.f_bavail * status.f_frsize - leave_bytes)))
            yield
        finally:
            filler.unlink(missing_ok=True)

    async def _churn(self) -> None:
        await self._node.serving()
        port = self._rng.choice(list(self._node.ports().values()))
        with suppress(OSError):
            async with trio.open_nursery() as nursery:
                for _ in range(_CHURN):
                    nursery.start_soon(self._come_and_go, port)

    async def _come_and_go(self, port: int) -> None:
        _, hello = ClientConnection().send(ApiVersionsRequest("soak", "soak", "1"))
        with suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_tcp_stream(HOST, port) as stream:
                await trio.sleep(self._rng.uniform(0, 1) * self._pace)
                await stream.send_all(hello)
                if self._rng.random() < 0.5:
                    reset_at_close(stream)
                else:
                    await stream.receive_some(1_000)

    async def _hostile(self) -> None:
        await self._node.serving()
        port = self._rng.choice(list(self._node.ports().values()))
        said = [
            b"GET / HTTP/1.1\r\n\r\n",
            self._rng.randbytes(5_000),
            struct.pack(">I", 2**31) + b"x",
            struct.pack(">I", 1_000) + b"half",
            b"",
        ]
        for words in said:
            with suppress(OSError, trio.BrokenResourceError):
                async with await trio.open_tcp_stream(HOST, port) as stream:
                    await stream.send_all(words)
                    with trio.move_on_after(1 * self._pace):
                        while await stream.receive_some(10_000):
                            pass


class OnClients:
    """Faults of the clients, and of their way to the daemon."""

    def __init__(
        self,
        processes: Mapping[str, trio.Process],
        cut: Callable[[str], int],
        rng: random.Random,
        pace: float,
    ) -> None:
        self._processes = processes
        self._cut = cut
        self._rng = rng
        self._pace = pace

    def all(self) -> dict[str, Fault]:
        """Return them by name."""
        return {
            "kill -9 of a client": Fault(self._kill),
            "pause of a client": Fault(self._pause),
            "cut connection": Fault(self._cut_off),
        }

    async def _kill(self) -> None:
        self._processes[self._one()].kill()

    async def _pause(self) -> None:
        process = self._processes[self._one()]
        process.send_signal(signal.SIGSTOP)
        # Up to more than the longest session, so some come back to a group without them.
        await trio.sleep(self._rng.uniform(0.5, 12) * self._pace)
        process.send_signal(signal.SIGCONT)

    async def _cut_off(self) -> None:
        self._cut(self._one())

    def _one(self) -> str:
        return self._rng.choice(sorted(self._processes))
