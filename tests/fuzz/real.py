"""Hostile clients over real sockets against a daemon of its own process.

What only a real process has is looked at here: its memory, its descriptors, and for how long
somebody else's request waits. All else is what episodes check, too.
"""

import statistics
from contextlib import suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

import trio

from protocol.messages import DescribeNodeRequest, DescribeNodeResponse
from tests.fuzz.bystander import Bystander
from tests.fuzz.episode import HELD
from tests.fuzz.frames import Account, Broken, next_bytes
from tests.fuzz.grammar import Grammar
from tests.fuzz.web import Asked
from tests.integration.daemon import Daemon, reset_at_close
from tests.logged import BUGS

NATIVE, WEB = 12, 6
PATIENCE_S: Final = 60.0
_GONE: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
SETTINGS: Final = ("group.max.session.timeout.ms=30000", "http.listeners=127.0.0.1:0")


class Sizes(NamedTuple):
    """What the process holds."""

    memory_bytes: int
    descriptors: int
    threads: int


class Real(NamedTuple):
    """What came of it.

    Attributes:
        frames: How many frames and requests were sent.
        before: What the process held at the beginning, warm.
        most: The most that it held meanwhile.
        after: What it held when all had gone.
        waited_s: How long each request of somebody else took, in order of length.
    """

    frames: int
    before: Sizes
    most: Sizes
    after: Sizes
    waited_s: list[float]

    @property
    def p50_s(self) -> float:
        """The median of what somebody else waited."""
        return statistics.median(self.waited_s)

    @property
    def p99_s(self) -> float:
        """What one in a hundred waited at least."""
        return self.waited_s[len(self.waited_s) * 99 // 100]


def run_real(seed: int, frames: int) -> Real:
    """Send *frames* to a daemon of its own. Raises Broken: a promise was."""
    with TemporaryDirectory() as folder:
        daemon = Daemon(Path(folder) / "data", SETTINGS).ready()
        try:
            found: Real = trio.run(_Hostility(daemon, seed, frames).run)
        finally:
            status = daemon.stop()
        failed = [line for line in daemon.lines if line["event"] in BUGS]
        if failed or status or daemon.stray:
            raise Broken(f"seed {seed}: exit {status}, {failed[:1]} {daemon.stray[:3]}")
        return found


class _Hostility:
    def __init__(self, daemon: Daemon, seed: int, frames: int) -> None:
        self._daemon = daemon
        self._seed = seed
        self._left = frames
        self._sent = 0

    async def run(self) -> Real:
        port, web_port = self._daemon.port, self._daemon.wait_for("http.listening")["port"]
        grammar = Grammar(Random(f"real {self._seed}"))
        await self._probe_once(port)
        before = most = self._sizes()
        bystander = await trio.to_thread.run_sync(Bystander, self._daemon.process.pid, port)
        async with trio.open_nursery() as hostile:
            for _ in range(NATIVE):
                hostile.start_soon(self._natives, port, grammar)
            for _ in range(WEB):
                hostile.start_soon(self._webs, web_port, grammar.rng)
            while self._left > 0:
                await trio.sleep(0.2)
                most = Sizes(*map(max, most, self._sizes()))
        waited_s = await trio.to_thread.run_sync(bystander.stop)
        await self._wait_until_nothing_is_held(port)
        return Real(self._sent, before, most, self._sizes(), sorted(waited_s))

    async def _natives(self, port: int, grammar: Grammar) -> None:
        """Be one hostile client after the other."""
        rng = grammar.rng
        while self._left > 0:
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            account = Account()
            async with stream, trio.open_nursery() as nursery:
                nursery.start_soon(self._listen, stream, grammar, account, nursery.cancel_scope)
                with suppress(*_GONE):
                    for _ in range(rng.randint(1, 60)):
                        damage = rng.choice((0, 0, 0, 0, 0, 0.02, 0.3))
                        times = rng.choice((1, 1, 2, 5, 20, 60))
                        data = b"".join(
                            [next_bytes(grammar, account, damage) for _ in range(times)]
                        )
                        self._count(times)
                        account.sent(data)
                        await stream.send_all(data)
                        await trio.sleep(rng.choice((0, 0, 0, 0.001, 0.05)))
                        if self._left <= 0:
                            break
                    if rng.random() < 0.2:
                        reset_at_close(stream)
                    else:
                        await self._wait_for_answers(account)
                nursery.cancel_scope.cancel()

    def _count(self, times: int) -> None:
        self._left -= times
        self._sent += times

    async def _listen(
        self, stream: trio.SocketStream, grammar: Grammar, account: Account, life: trio.CancelScope
    ) -> None:
        rng = grammar.rng
        with suppress(*_GONE):
            async for data in stream:
                for request, answer in account.received(bytes(data)):
                    grammar.learn(request, answer)
                if rng.random() < 0.01:
                    await trio.sleep(rng.uniform(0, 2))  # A slow reader.
        life.cancel()  # Closed by the daemon, so nothing is owed.

    async def _wait_for_answers(self, account: Account) -> None:
        if account.is_inside_a_frame or account.must_close:
            return
        with trio.move_on_after(PATIENCE_S) as scope:
            while account.unanswered():  # noqa: ASYNC110 - looked at now and then
                await trio.sleep(0.05)
        if scope.cancelled_caught:
            raise Broken(f"seed {self._seed}: never answered: {account.unanswered()[:3]}")

    async def _webs(self, port: int, rng: Random) -> None:
        while self._left > 0:
            with suppress(*_GONE):
                stream = await trio.open_tcp_stream("127.0.0.1", port)
                asked = Asked(rng, is_wild=rng.random() < 0.5)
                async with stream:
                    for _ in range(rng.randint(1, 20)):
                        self._count(1)
                        await stream.send_all(asked.next_bytes())
                        with trio.move_on_after(rng.choice((0.001, 0.1, 0.5))):
                            data = await stream.receive_some()
                            if not data:
                                break
                            asked.received(bytes(data))

    async def _probe_once(self, port: int) -> dict[str, int]:
        """Return the daemon's metrics."""
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        account = Account()
        async with stream:
            frame = account.frame(DescribeNodeRequest(), 0)
            account.sent(frame)
            await stream.send_all(frame)
            while True:
                for _, answer in account.received(bytes(await stream.receive_some())):
                    assert isinstance(answer, DescribeNodeResponse)
                    return {metric.name: metric.value for metric in answer.metrics}

    async def _wait_until_nothing_is_held(self, port: int) -> None:
        held: dict[str, int] = {}
        with trio.move_on_after(PATIENCE_S):
            while True:
                found = await self._probe_once(port)
                held = {name: found[name] for name in HELD}
                held["connections"] -= 1  # Who asks.
                if not any(held.values()):
                    return
                await trio.sleep(0.2)
        raise Broken(f"seed {self._seed}: left behind: {held}")

    def _sizes(self) -> Sizes:
        process = Path("/proc") / str(self._daemon.process.pid)
        lines = (process / "status").read_text(encoding="ascii").splitlines()
        status = dict(line.split(":", 1) for line in lines)
        memory_bytes = int(status["VmRSS"].split()[0]) * 1024
        descriptors = sum(1 for _ in (process / "fd").iterdir())
        return Sizes(memory_bytes, descriptors, int(status["Threads"]))
