"""One history of hostile clients against a daemon in memory, made of one seed.

Some clients of each listener share a grammar, so they act in each other's names. They pipeline,
cut their bytes anywhere, read slowly, stop in the middle, reset, end; the disk hangs at times, and
time passes. Between them an honest client commits and reads what it has committed.

What must hold is checked all the while and at the end: each request has one answer or its
connection was closed, no handler has failed, the honest client was never refused, and when all
have gone nothing is left of them: no connection, request, answer, parked call, member or object.

Every third episode is against a daemon that asks who clients are (`tests.fuzz.guarded`). They log
in, or try to, and come over TLS; what they may not do must not happen, in nobody's name.
"""

import gc
import sys
import zlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Final, NamedTuple

import trio
import trio.testing
from structlog.testing import capture_logs

from coordinator.http.connection import HttpSession
from coordinator.http.entry import Entry
from coordinator.http.run import start_http
from coordinator.runtime.shard import ShardRunner
from coordinator.server.session import Session, SessionCall
from coordinator.server.transport import Listener, TlsTransport
from protocol import messages as m
from protocol.errors import ErrorCode
from tests.fakes.tls import write_stores
from tests.fakes.transport import MemoryTransport
from tests.fuzz import guarded
from tests.fuzz.frames import Account, Broken, next_bytes
from tests.fuzz.grammar import Grammar
from tests.fuzz.guarded import GuardedWorld, Visit, Wire
from tests.fuzz.people import HEADERS, NAMES, Deeds, LogIn, without_quotas, write_secrets
from tests.fuzz.secure import TlsWire
from tests.fuzz.web import Asked
from tests.logged import BUGS
from tests.server.world import Client, FakeListener, World, commit, world, world_of
from tests.sim.determinism import STEPS_MAX, run_deterministically

NATIVE, WEB = 8, 4
FRAMES: Final = 4_000
# What nobody can wait for longer: sessions, barriers, frames and answers of the grammar.
PATIENCE_S: Final = 60.0
# As long as any session may last that this daemon takes, and a bit.
SESSION_MAX_MS: Final = 30_000
SESSIONS_OVER_S: Final = SESSION_MAX_MS / 1_000 + 5
# How much of a burst is damaged. Most is not: what is closed for it gets nowhere.
_DAMAGE: Final = (0, 0, 0, 0, 0, 0.02, 0.1, 0.5)
# About what a call of a function takes with what it does between calls.
CALL_S: Final = 2e-7
# So long others may wait for one step.
STALL_MAX_S: Final = 0.02
# What a partition says that is loaded again, as operators may ask.
_COME_AGAIN: Final = frozenset({ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_COORDINATOR})
# What sessions count of what they hold.
HELD: Final = (
    *("connections", "http_connections", "http_event_streams", "requests_parked"),
    *("requests_parked_bytes", "requests_waiting_bytes", "answers_unsent_bytes"),
)
# And of what comes before them, where there is TLS.
HELD_BEFORE: Final = "tls_handshakes"
# A task that goes on for ever keeps what it looked at last, with what that refers to.
LAST_ONES: Final = 60
KINDS: Final = (Session, SessionCall, HttpSession, MemoryTransport, TlsTransport)

settle = trio.testing.wait_all_tasks_blocked


class Report(NamedTuple):
    """What came of an episode.

    Attributes:
        seed: What it was made of.
        frames: How many frames and HTTP requests were sent.
        answers: How many came back.
        longest_step: The most calls of functions in one step of a task; 0 if not counted.
        members: How many members there were in sum, as a sign of how deep it got.
        commits: How many commits were accepted.
        log_ins: How many log-ins were.
        checksum: Of the errors of all answers of the native listeners.
    """

    seed: int
    frames: int
    answers: int
    longest_step: int
    members: int
    commits: int
    log_ins: int
    checksum: int


def _taken(wire: Wire) -> bytes:
    """Take what has come."""
    if isinstance(wire, TlsWire):
        wire.turn()
    data = bytes(wire.received)
    wire.received.clear()
    return data


class _Hostile(ABC):
    """A client that comes back as somebody else when it has left, or was closed."""

    def __init__(self, come: Callable[[], Visit]) -> None:
        self._come = come
        self.sent = self.answers = 0
        self._begin()

    def _begin(self) -> None:
        self.wire, self.log_in, self._principal = self._come()
        self._has_left = False

    @property
    def sent_so_far(self) -> int:
        """How many frames or requests were sent."""
        return self.sent

    @abstractmethod
    def burst(self) -> None:
        """Send some frames or requests."""

    @abstractmethod
    def ask_long(self) -> None:
        """Ask for a long answer."""

    def break_in_an_answer(self, rng: Random) -> None:
        """Have the connection reset at a random moment of a long answer."""
        self._renew()
        self.wire.reset_behind(rng.randrange(60_000))
        self.ask_long()
        self._has_left = True

    @abstractmethod
    def check(self) -> None:
        """Take what came, and see that it may be."""

    @abstractmethod
    def _check_owed(self) -> None:
        """See that nothing is owed."""

    @abstractmethod
    def _count(self) -> None:
        """Add up what the connection that ends has brought."""

    def leave(self, how: Callable[[], None]) -> None:
        """Go without a word, and come back as somebody else."""
        self._renew()
        how()
        self._has_left = True

    def _renew(self) -> None:
        if self.wire.closed or self._has_left:
            self.check()
            self._count()
            self.wire.end()  # A break may not have come.
            self._begin()

    def end(self) -> None:
        """See that nothing is owed, and go."""
        self.check()
        if not (self.wire.closed or self._has_left):
            self._check_owed()
        self._count()
        self.wire.end()


class _Native(_Hostile):
    """A hostile client of the native protocol."""

    def __init__(self, come: Callable[[], Visit], grammar: Grammar, deeds: Deeds) -> None:
        self._grammar = grammar
        self._deeds = deeds
        self.commits = self.log_ins = self.checksum = 0
        super().__init__(come)

    def _begin(self) -> None:
        """Say what a connection says first, or not."""
        super()._begin()
        self.account = Account()
        if self._grammar.rng.random() < 0.5:
            hello = m.ApiVersionsRequest("fuzz", "fuzz", "1")
            self._send(self.account.frame(hello, 0))

    def _send(self, data: bytes) -> None:
        self.wire.put(data)
        self.account.sent(data)

    def burst(self) -> None:
        """Send some frames, in one piece or cut; or go on with a log-in."""
        rng = self._grammar.rng
        self._renew()
        if self.log_in is not None and self._goes_on(self.log_in):
            return
        damage = rng.choice(_DAMAGE)
        # The first of a stranger is the last.
        is_known = self.log_in is None or self.log_in.principal is not None
        times = _burst(rng) if is_known else 2
        data = b"".join([next_bytes(self._grammar, self.account, damage) for _ in range(times)])
        if rng.random() < 0.02:
            data = data[: rng.randrange(len(data) + 1)]
        self._send(data)

    def ask_long(self) -> None:
        """Ask who coordinates many groups."""
        self._send(self.account.long_frames())

    def _goes_on(self, log_in: LogIn) -> bool:
        """Say what comes next in a log-in; few say something else in between."""
        rng = self._grammar.rng
        if not log_in.is_under_way and log_in.principal is not None and rng.random() < 0.02:
            log_in.begin(rng.choice(NAMES))
        if not log_in.is_under_way:
            return False
        self._send(log_in.next_bytes(self.account))
        return rng.random() < 0.95

    @property
    def sent_so_far(self) -> int:
        """How many frames were sent."""
        return self.sent + self.account.frames

    def _count(self) -> None:
        self.sent += self.account.frames
        self.answers += self.account.answers

    def check(self) -> None:
        """Take what came, and see that it is what was asked for."""
        log_in = self.log_in
        for request, answer in self.account.received(_taken(self.wire)):
            # Not its bytes: there are nonces in some.
            told = f"{type(answer).__name__} {m.first_error(answer)}"
            self.checksum = zlib.crc32(told.encode(), self.checksum)
            if log_in is not None:
                self.log_ins += log_in.heard(request, answer)
            principal = self._principal if log_in is None else log_in.principal
            self._deeds.check(request, answer, principal)
            self._grammar.learn(request, answer)
            self.commits += isinstance(answer, m.OffsetCommitResponse) and answer.error == 0

    def _check_owed(self) -> None:
        if self.account.must_close:
            raise Broken("a connection went on behind what is no frame")
        unanswered = self.account.unanswered()
        if unanswered:
            raise Broken(f"never answered: {unanswered[:3]}")


class _Web(_Hostile):
    """A hostile client of the HTTP listener."""

    def __init__(self, come: Callable[[], Visit], rng: Random, headers: Sequence[str]) -> None:
        self._rng = rng
        self._headers = headers
        super().__init__(come)

    def _begin(self) -> None:
        super()._begin()
        self._asked = Asked(self._rng, self._headers, is_wild=self._rng.random() < 0.5)

    def burst(self) -> None:
        """Send some requests."""
        self._renew()
        times = self._rng.randint(1, 6)
        self.sent += times
        self.wire.put(b"".join([self._asked.next_bytes() for _ in range(times)]))

    def ask_long(self) -> None:
        """Ask for a document."""
        self.sent += 1
        self.wire.put(self._asked.long_bytes())

    def _count(self) -> None:
        self.answers += self._asked.answers

    def check(self) -> None:
        """Take what came, and see that it may be."""
        self._asked.received(_taken(self.wire))

    def _check_owed(self) -> None:
        unanswered = self._asked.unanswered()
        if unanswered:
            raise Broken(f"{len(unanswered)} requests were never answered")


class _Honest:
    """A client with manners: the others' deeds must not reach it."""

    def __init__(self, connect: Callable[[], Awaitable[Client]]) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._heard_s = 0.0
        self._offset = 0

    async def work(self) -> None:
        """Commit, and see the commit."""
        self._offset += 1
        done = await self.ask(commit(self._offset, group_id="honest"))
        if done.topics[0].partitions[0].error:
            raise Broken(f"the honest client was told {done}")
        fetch = m.GroupFetch("honest", None)
        seen = await self.ask(m.OffsetFetchRequest((fetch,), False))
        offset = seen.groups[0].topics[0].partitions[0].offset
        if offset != self._offset:
            raise Broken(f"committed {self._offset}, and read {offset}")

    async def ask(self, request: m.Request) -> Any:
        """Return the answer; while its partition is loaded again, it has to come again."""
        client = await self._present()
        for _ in range(20):
            answer = await client.ask(request)
            if (error := m.first_error(answer)) not in _COME_AGAIN:
                return answer
            await trio.sleep(0.1)
        raise Broken(f"the honest client was told {error} for two seconds")

    async def _present(self) -> Client:
        """Return the connection; a new one after having been idle for too long."""
        silent_s = trio.current_time() - self._heard_s
        if self._client is not None and self._client.transport.closed:
            if silent_s < SESSION_MAX_MS / 1_000:
                raise Broken(f"the honest client was closed after {silent_s} s")
            self._client = None
        if self._client is None:
            self._client = await self._connect()
        self._heard_s = trio.current_time()
        return self._client


class _Steps(trio.abc.Instrument):
    """Counts the calls of functions in each step of a task: how long others wait, without a clock.

    A step is what trio's loop can't interrupt.
    """

    def __init__(self) -> None:
        self.longest = 0
        self._calls = self._before = 0

    def clock_s(self) -> float:
        """Return the time that was worked, as if each call took as long as the next."""
        return (self._before + self._calls) * CALL_S

    def before_task_step(self, _task: trio.lowlevel.Task) -> None:
        """Begin to count."""
        self._before += self._calls
        self._calls = 0
        sys.setprofile(self._count)

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """Remember the longest one of the daemon."""
        sys.setprofile(None)
        if not task.name.startswith("tests."):
            self.longest = max(self.longest, self._calls)

    def _count(self, _frame: FrameType, event: str, _arg: object) -> None:
        if event in {"call", "c_call"}:
            self._calls += 1


def run_episode(seed: int, frames: int = FRAMES) -> Report:
    """Play the episode of *seed* with about so many *frames* and requests.

    Each tenth seed has the work between two turns of the loop counted, which takes twice as long.

    Raises:
        Broken: A promise was; with the seed.
    """
    steps = _Steps()

    async def run(_clock: trio.testing.MockClock) -> Report:
        if seed % 10 == 0:
            trio.lowlevel.add_instrument(steps)
        return await _Episode(seed, frames).run(steps)

    try:
        with capture_logs() as lines:
            report = run_deterministically(seed, run, steps_max=50 * frames + STEPS_MAX)
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise Broken(f"seed {seed}, {frames} frames: {first!r}") from first
    failed = [line for line in lines if line["event"] in BUGS]
    if failed:
        cause = failed[0].get("exc_info")
        raise Broken(f"seed {seed}, {frames} frames: {len(failed)} x {failed[0]}") from cause
    return report


class _Episode:
    def __init__(self, seed: int, frames: int) -> None:
        self._seed = seed
        self._rng = Random(f"fuzz {seed}")
        self._grammar = Grammar(self._rng)
        self._frames = frames
        self._is_guarded = is_guarded(seed)
        self._members = 0
        self._is_held = False  # The disk.
        self._kinds_before = _number_of_kinds()

    async def run(self, steps: _Steps) -> Report:
        begin = guarded_place if self._is_guarded else open_place
        async with begin(steps.clock_s) as place:
            w = place.world
            w.tee.add(self._heard)
            honest = _Honest(place.honest)
            await honest.work()
            deeds = Deeds()
            natives = [
                _Native(partial(place.visit, self._rng), self._grammar, deeds)
                for _ in range(NATIVE)
            ]
            webs = [
                _Web(partial(place.visit_web, self._rng), self._rng, place.headers)
                for _ in range(WEB)
            ]
            await self._misbehave(w, natives, webs, honest)
            await self._heal(w, natives, webs, honest)
            everybody: list[_Hostile] = [*natives, *webs]
            for client in everybody:
                client.end()
            report = Report(
                self._seed,
                sum(client.sent for client in everybody),
                sum(client.answers for client in everybody),
                steps.longest,
                self._members,
                sum(client.commits for client in natives),
                sum(client.log_ins for client in natives),
                zlib.crc32(repr([client.checksum for client in natives]).encode()),
            )
            del client, natives, webs, everybody
            await settle()
            await self._check_nothing_is_left(w)
            await honest.work()
        return report

    def _heard(self, name: str, _fields: dict[str, Any]) -> None:
        self._members += name == "group.member_added"

    async def _misbehave(
        self, w: World, natives: list[_Native], webs: list[_Web], honest: _Honest
    ) -> None:
        everybody: list[_Hostile] = [*natives, *webs]
        while sum(client.sent_so_far for client in everybody) < self._frames:
            client: _Hostile = self._rng.choice(natives)
            if self._rng.random() < 0.25:
                client = self._rng.choice(webs)
            await self._act(w, client)
            await settle()
            client.check()
            if not self._is_held and self._rng.random() < 0.05:
                await honest.work()

    async def _act(self, w: World, client: _Hostile) -> None:
        """Have *client* send something, mostly; or something happens to it, or to the disk."""
        rng = self._rng
        draw = rng.random()
        if draw < 0.85:
            client.burst()
        elif draw < 0.95:
            await trio.sleep(rng.choice((0.01, 0.1, 0.3, 0.4, 1, 3)))
        elif draw < 0.97:
            client.wire.give_room(rng.choice((0, 1, 100, 5_000, None, None, None, None)))
        elif draw < 0.984:
            client.break_in_an_answer(rng)
        elif draw < 0.988:
            client.leave(rng.choice((client.wire.reset, client.wire.end)))
        elif draw < 0.99:
            w.slow_disk.hold()
            self._is_held = True
        else:
            w.slow_disk.let_go()
            self._is_held = False

    async def _heal(
        self, w: World, natives: list[_Native], webs: list[_Web], honest: _Honest
    ) -> None:
        w.slow_disk.let_go()
        everybody: list[_Hostile] = [*natives, *webs]
        for client in everybody:
            client.wire.give_room(None)
        if self._is_guarded:
            for _ in range(5):  # Handshakes go on as long as both ends speak.
                await trio.sleep(0.5)
                for client in everybody:
                    client.check()
            await honest.ask(without_quotas())
        await trio.sleep(PATIENCE_S)
        parked, known = w.metrics["requests_parked"](), _parked(w)
        if parked != known:
            raise Broken(f"{parked} requests are parked, and the groups know of {known}")

    async def _check_nothing_is_left(self, w: World) -> None:
        await trio.sleep(SESSIONS_OVER_S)
        shards: list[ShardRunner[Any]] = [*w.node.shards, w.node.registry]
        left = {
            # Of connections none: the honest one was idle for too long.
            **{name: w.metrics[name]() for name in HELD},
            HELD_BEFORE: w.metrics[HELD_BEFORE]() if self._is_guarded else 0,
            "answers in a gate": sum(len(shard.gate) for shard in shards),
            "parked in a group": _parked(w),
            "members": _sum_of_groups(w, lambda group: len(group.members)),
            "ids given out": _sum_of_groups(w, lambda group: len(group.pending)),
        }
        if any(left.values()):
            raise Broken(f"left behind: { {what: n for what, n in left.items() if n} }")
        more = _number_of_kinds() - self._kinds_before
        if more > LAST_ONES:
            raise Broken(f"{more} objects left behind")


def _number_of_kinds() -> int:
    """Return how many objects of `KINDS` there are; earlier tests may have left some."""
    gc.collect()
    return sum(isinstance(each, KINDS) for each in gc.get_objects())


def _parked(w: World) -> int:
    return sum(len(shard.core._core.parked) for shard in w.node.shards)


def _sum_of_groups(w: World, count: Callable[[Any], int]) -> int:
    return sum(count(group) for shard in w.node.shards for group in shard.core.groups.values())


def _burst(rng: Random) -> int:
    return rng.choice((1, 1, 2, 5, 10, 20, 80))


def is_guarded(seed: int) -> bool:
    """Say whether the daemon of that episode asks who clients are."""
    return seed % 3 == 1


class Place(NamedTuple):
    """A daemon, and the ways to it.

    Attributes:
        visit: Connects to a listener of the native protocol.
        visit_web: Connects to that of HTTP.
        honest: Returns a connection of somebody who may do everything.
        headers: What may say over HTTP who somebody is.
        web_door: Where connections to the listener of HTTP arrive.
    """

    world: World
    visit: Callable[[Random], Visit]
    visit_web: Callable[[Random], Visit]
    honest: Callable[[], Awaitable[Client]]
    headers: Sequence[str]
    web_door: FakeListener


_OPTIONS: Final = (
    "group.initial.rebalance.delay.ms=300",
    f"group.max.session.timeout.ms={SESSION_MAX_MS}",
    f"connections.max.idle.ms={SESSION_MAX_MS}",
)


@asynccontextmanager
async def open_place(clock_s: Callable[[], float]) -> AsyncIterator[Place]:
    """Run one that asks nobody who he is."""
    door = FakeListener()

    def visit_web(_rng: Random) -> Visit:
        wire = MemoryTransport()
        door.arrive(wire)
        return Visit(wire)

    async with world(*_OPTIONS, "http.listeners=127.0.0.1:0") as w:

        async def connect() -> Client:
            return w.connect()

        async with _with_http(w, door, clock_s):
            yield Place(w, lambda _: Visit(w.connect().transport), visit_web, connect, (), door)


@asynccontextmanager
async def guarded_place(clock_s: Callable[[], float]) -> AsyncIterator[Place]:
    """Run one that does."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        options = [*_OPTIONS, *guarded.SETTINGS, *write_stores(folder), *write_secrets(folder)]
        async with world_of(partial(GuardedWorld, clock_s=clock_s), *options) as w:
            await w.enroll()
            async with _with_http(w, w.secure_web_door, clock_s, w.entry()):
                yield Place(w, w.visit, w.visit_web, w.honest, HEADERS, w.web_door)


@asynccontextmanager
async def _with_http(
    w: World, door: Listener, clock_s: Callable[[], float], entry: Entry | None = None
) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        start_http(
            nursery,
            settings=w.settings,
            listeners=[door],
            node=w.node,
            coordination=w.server.coordination,
            environment=w.environment,
            tee=w.tee,
            warn=w.server.sessions.warn,
            max_connections=1_000,
            clock_s=clock_s,
            entry=entry,
        )
        await settle()
        yield
        nursery.cancel_scope.cancel()
