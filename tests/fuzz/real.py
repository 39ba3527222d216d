"""Hostile clients over real sockets against a daemon of its own process.

What only a real process has is looked at here: its memory, its descriptors, and for how long
somebody else's request waits. All else is what episodes check, too. As there, some daemons ask who
clients are.
"""

import statistics
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import trio

from protocol.acls import ANONYMOUS
from protocol.messages import DescribeNodeRequest
from tests.fakes.tls import HOST, certificate, client_context, write_stores
from tests.fuzz.bystander import Bystander, connect
from tests.fuzz.episode import HELD
from tests.fuzz.frames import Account, Broken, next_bytes
from tests.fuzz.grammar import Grammar
from tests.fuzz.people import HEADERS, NAMES, Deeds, LogIn, enrolling, without_quotas, write_secrets
from tests.fuzz.web import Asked
from tests.integration.daemon import Daemon, reset_at_close
from tests.logged import BUGS

NATIVE, WEB = 12, 6
PATIENCE_S: Final = 60.0
_GONE: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
_SETTINGS: Final = ("group.max.session.timeout.ms=30000", "storage.reserve.bytes=0")
_LISTENERS: Final = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
# Failures of log-ins count by address, and the honest have one of their own.
_ADDRESSES: Final = tuple(f"127.0.0.{number}" for number in range(2, 10))


class Sizes(NamedTuple):
    """What the process holds."""

    memory_bytes: int
    descriptors: int
    threads: int


class Real(NamedTuple):
    """What came of it.

    Attributes:
        frames: How many frames and requests were sent.
        log_ins: How many log-ins were.
        before: What the process held at the beginning, warm.
        most: The most that it held meanwhile.
        after: What it held when all had gone.
        waited_s: How long each request of somebody else took, in order of length.
    """

    frames: int
    log_ins: int
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


class _Visit(NamedTuple):
    """A connection that somebody has opened; see `tests.fuzz.guarded.Visit`."""

    stream: trio.abc.Stream
    socket: trio.SocketStream
    log_in: LogIn | None
    principal: str | None


class _Open:
    """A daemon that asks nobody who he is, and the ways to it.

    Attributes:
        headers: What may say over HTTP who somebody is.
        asks: Whether the honest have to log in.
    """

    headers: Sequence[str] = ()
    asks = False

    def __init__(self, folder: Path) -> None:
        """Start it over *folder*."""
        self.daemon = self._start(folder).ready()
        listening = self.daemon.events("listening")
        self.ports = [line["port"] for line in listening]
        self.honest_port = self.ports[self.asks]
        self._web_port: int = self.daemon.wait_for("http.listening")["port"]

    def _start(self, folder: Path) -> Daemon:
        return Daemon(folder / "data", (*_SETTINGS, "http.listeners=127.0.0.1:0"))

    def forgive(self) -> None:
        """Take back what quotas were set meanwhile; blocks."""

    async def visit(self, _rng: Random) -> _Visit:
        """Connect to a listener of the native protocol."""
        stream = await trio.open_tcp_stream("127.0.0.1", self.honest_port)
        return _Visit(stream, stream, None, None)

    async def visit_web(self, _rng: Random) -> trio.abc.Stream:
        """Connect to that of HTTP."""
        return await trio.open_tcp_stream("127.0.0.1", self._web_port)


class _Guarded(_Open):
    """One that does."""

    headers = HEADERS
    asks = True

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        with connect(self.honest_port, asks=True) as root:
            for request in enrolling():
                answer: Any = root.ask(request)
                assert not any(one.error for one in answer.results), answer

    def _start(self, folder: Path) -> Daemon:
        more = ("ssl.client.auth=requested", "http.listeners=https://127.0.0.1:0")
        settings = (*_SETTINGS, *more, *write_stores(folder), *write_secrets(folder))
        listeners = [f"--listen={protocol}://127.0.0.1:0" for protocol in _LISTENERS[1:]]
        return Daemon(folder / "data", settings, options=listeners)

    def forgive(self) -> None:
        """Take them back."""
        with connect(self.honest_port, asks=True) as root:
            root.ask(without_quotas())

    async def visit(self, rng: Random) -> _Visit:
        """Be somebody, by one of the listeners."""
        number = rng.randrange(len(_LISTENERS))
        protocol = _LISTENERS[number]
        socket = await self._come(rng, self.ports[number])
        log_in = LogIn(rng) if protocol.startswith("SASL") else None
        if protocol == "SSL":
            name = rng.choice((*NAMES, None))
            principal = ANONYMOUS if name is None else f"User:{name}"
            return _Visit(_over_tls(socket, name), socket, log_in, principal)
        stream = _over_tls(socket, None) if protocol == "SASL_SSL" else socket
        return _Visit(stream, socket, log_in, ANONYMOUS)

    async def visit_web(self, rng: Random) -> trio.abc.Stream:
        """Be somebody at the listener of HTTP."""
        socket = await self._come(rng, self._web_port)
        return _over_tls(socket, rng.choice((*NAMES, None, None, None)))

    async def _come(self, rng: Random, port: int) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", port, local_address=rng.choice(_ADDRESSES))


def _over_tls(socket: trio.SocketStream, name: str | None) -> trio.abc.Stream:
    context = client_context(None if name is None else certificate(name))
    return trio.SSLStream(socket, context, server_hostname=HOST, https_compatible=True)


def run_real(seed: int, frames: int, *, is_guarded: bool) -> Real:
    """Send *frames* to a daemon of its own. Raises Broken: a promise was."""
    with TemporaryDirectory() as folder:
        place = (_Guarded if is_guarded else _Open)(Path(folder))
        daemon = place.daemon
        try:
            found: Real = trio.run(_Hostility(place, seed, frames).run)
        finally:
            status = daemon.stop()
        failed = [line for line in daemon.lines if line["event"] in BUGS]
        if failed or status or daemon.stray:
            raise Broken(f"seed {seed}: exit {status}, {failed[:1]} {daemon.stray[:3]}")
        return found


class _Hostility:
    def __init__(self, place: _Open, seed: int, frames: int) -> None:
        self._place = place
        self._seed = seed
        self._left = frames
        self._sent = self._log_ins = 0
        self._deeds = Deeds()

    async def run(self) -> Real:
        place = self._place
        grammar = Grammar(Random(f"real {self._seed}"))
        await trio.to_thread.run_sync(self._metrics)
        before = most = self._sizes()
        begin = partial(Bystander, place.daemon.process.pid, place.honest_port, asks=place.asks)
        bystander = await trio.to_thread.run_sync(begin)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._forgive)
            async with trio.open_nursery() as hostile:
                for _ in range(NATIVE):
                    hostile.start_soon(self._natives, grammar)
                for _ in range(WEB):
                    hostile.start_soon(self._webs, grammar.rng)
                while self._left > 0:
                    await trio.sleep(0.2)
                    most = Sizes(*map(max, most, self._sizes()))
            nursery.cancel_scope.cancel()
        waited_s = await trio.to_thread.run_sync(bystander.stop)
        await self._wait_until_nothing_is_held()
        return Real(self._sent, self._log_ins, before, most, self._sizes(), sorted(waited_s))

    async def _forgive(self) -> None:
        """Take quotas back again and again: by some of them an answer is due only in minutes."""
        while True:
            await trio.sleep(PATIENCE_S / 10)
            await trio.to_thread.run_sync(self._place.forgive)

    async def _natives(self, grammar: Grammar) -> None:
        """Be one hostile client after the other."""
        rng = grammar.rng
        while self._left > 0:
            with suppress(*_GONE):
                visit = await self._place.visit(rng)
                account = Account()
                async with visit.stream, trio.open_nursery() as nursery:
                    life = nursery.cancel_scope
                    nursery.start_soon(self._listen, visit, grammar, account, life)
                    with suppress(*_GONE):
                        await self._talk(visit, grammar, account)
                        if rng.random() < 0.2:
                            await self._break_in_an_answer(visit, account, rng)
                        else:
                            await self._wait_for_answers(account)
                    life.cancel()

    async def _talk(self, visit: _Visit, grammar: Grammar, account: Account) -> None:
        rng = grammar.rng
        for _ in range(rng.randint(1, 60)):
            if visit.log_in is not None and visit.log_in.is_under_way:
                await trio.sleep(0.01)  # Until the answer to what was said before is here, mostly.
                data = visit.log_in.next_bytes(account)
            else:
                damage = rng.choice((0, 0, 0, 0, 0, 0.02, 0.3))
                times = rng.choice((1, 1, 2, 5, 20, 60))
                data = b"".join([next_bytes(grammar, account, damage) for _ in range(times)])
                self._count(times)
            account.sent(data)
            await visit.stream.send_all(data)
            await trio.sleep(rng.choice((0, 0, 0, 0.001, 0.05)))
            if self._left <= 0:
                break

    async def _break_in_an_answer(self, visit: _Visit, account: Account, rng: Random) -> None:
        """Reset the connection, half of the time at a random moment of a long answer."""
        reset_at_close(visit.socket)
        if rng.random() < 0.5:
            data = account.long_frames()
            account.sent(data)
            await visit.stream.send_all(data)
            await trio.sleep(rng.uniform(0, 0.02))
            await visit.socket.aclose()  # Without TLS's word for the end.

    def _count(self, times: int) -> None:
        self._left -= times
        self._sent += times

    async def _listen(
        self, visit: _Visit, grammar: Grammar, account: Account, life: trio.CancelScope
    ) -> None:
        rng, log_in = grammar.rng, visit.log_in
        with suppress(*_GONE):
            async for data in visit.stream:
                for request, answer in account.received(bytes(data)):
                    if log_in is not None:
                        self._log_ins += log_in.heard(request, answer)
                    principal = visit.principal if log_in is None else log_in.principal
                    self._deeds.check(request, answer, principal)
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

    async def _webs(self, rng: Random) -> None:
        while self._left > 0:
            with suppress(*_GONE):
                asked = Asked(rng, self._place.headers, is_wild=rng.random() < 0.5)
                async with await self._place.visit_web(rng) as stream:
                    for _ in range(rng.randint(1, 20)):
                        self._count(1)
                        await stream.send_all(asked.next_bytes())
                        with trio.move_on_after(rng.choice((0.001, 0.1, 0.5))):
                            data = await stream.receive_some()
                            if not data:
                                break
                            asked.received(bytes(data))

    def _metrics(self) -> dict[str, int]:
        """Return the daemon's; blocks."""
        with connect(self._place.honest_port, asks=self._place.asks) as honest:
            answer: Any = honest.ask(DescribeNodeRequest())
        return {metric.name: metric.value for metric in answer.metrics}

    async def _wait_until_nothing_is_held(self) -> None:
        held: dict[str, int] = {}
        with trio.move_on_after(PATIENCE_S):
            while True:
                found = await trio.to_thread.run_sync(self._metrics)
                held = {name: found[name] for name in HELD}
                held["connections"] -= 1  # Who asks.
                if not any(held.values()):
                    return
                await trio.sleep(0.2)
        raise Broken(f"seed {self._seed}: left behind: {held}")

    def _sizes(self) -> Sizes:
        process = Path("/proc") / str(self._place.daemon.process.pid)
        lines = (process / "status").read_text(encoding="ascii").splitlines()
        status = dict(line.split(":", 1) for line in lines)
        memory_bytes = int(status["VmRSS"].split()[0]) * 1024
        descriptors = sum(1 for _ in (process / "fd").iterdir())
        return Sizes(memory_bytes, descriptors, int(status["Threads"]))
