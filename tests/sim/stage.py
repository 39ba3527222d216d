"""Groups on a stage: real clients that live and die as a script says, over the whole server."""

import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import trio
import trio.testing

from client import (
    AssignmentWarning,
    Client,
    CoordinatorError,
    CoordinatorUnavailable,
    Member,
    RangeAssignor,
    RetriableError,
)
from protocol.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
)
from protocol.partition import TopicPartition
from tests.sim.checker import check
from tests.sim.determinism import run_deterministically
from tests.sim.history import History
from tests.sim.registers import Violation
from tests.sim.rogues import Speaker
from tests.sim.simulation import check_nothing_parked, look_once_more, restart_and_compare
from tests.sim.workload import TOPIC, Driver, connect_as
from tests.sim.world import World

GROUP: Final = "etl"
SESSION_S, REBALANCE_S = 6, 6
CONVERGE_S: Final = SESSION_S + REBALANCE_S + 1
STEPS_MAX: Final = 2_000_000

Script = Callable[["Stage"], Awaitable[None]]


class Reader(Driver):
    """Reads until the script ends it; what it holds is checked against all others."""

    def __init__(self, stage: "Stage", name: str, *, pause_s: float, options: Any) -> None:
        super().__init__(stage.world, name, GROUP)
        self.stage = stage
        self.pause_s = pause_s
        self.is_gone = False
        self.held: set[TopicPartition] = set()
        self._options: Mapping[str, Any] = {
            "topics": None if "pattern" in options else [TOPIC],
            "partitions": stage.partitions,
            "session_timeout_ms": SESSION_S * 1_000,
            "rebalance_timeout_ms": REBALANCE_S * 1_000,
            "assignors": (RangeAssignor(),),
            **options,
        }

    async def run(self) -> None:
        """Live, and live again after each death unless it is gone for good."""
        while not self.world.stopping and not self.is_gone:
            self._life = trio.CancelScope()
            try:
                with self._life:
                    await self._live()
            except CoordinatorUnavailable:
                pass
            except CoordinatorError as exc:
                self.world.violate("client: gave up", f"{self.name}: {exc!r}")
            self.member = self.assignment = None
            await trio.sleep(self.pause_s)
            self.world.network.reconnect(self.name)

    def crash(self) -> None:
        """Die without a word: whoever held its partitions holds them no more."""
        self._release(self.held)
        super().crash()

    def die(self) -> None:
        """The same, for good."""
        self.is_gone = True
        self.crash()

    def leave(self) -> None:
        """End as programs should: the group is told."""
        self.is_gone = True
        self._release(self.held)
        self._life.cancel()

    async def _live(self) -> None:
        async with (
            connect_as(self.world, self.name, self._rng) as client,
            client.join(
                GROUP,
                **self._options,
                on_assigned=self._hold,
                on_revoked=self._release,
                on_lost=self._release,
            ) as member,
        ):
            self.member = member
            while not self.world.stopping:
                with suppress(RetriableError):
                    self.assignment = await member.assignment()
                    await self._read(member)

    async def _read(self, member: Member) -> None:
        assert self.assignment is not None
        while not self.world.stopping:
            await trio.sleep(self._rng.uniform(0.1, 0.4))
            if member.rebalance_needed:
                return
            if self.assignment.partitions:
                await self._commit(member, self.assignment, None)

    def _hold(self, partitions: Sequence[TopicPartition]) -> None:
        for tp in partitions:
            owner = self.stage.holders.setdefault(tp, self)
            if owner is not self and self.stage.is_calm:
                text = f"{tp} is with {self.name} and still with {owner.name}"
                self.world.violate("I6 held by two at a time", text)
            self.stage.holders[tp] = self
        self.held.update(partitions)

    def _release(self, partitions: Sequence[TopicPartition] | set[TopicPartition]) -> None:
        for tp in list(partitions):
            if self.stage.holders.get(tp) is self:
                del self.stage.holders[tp]
            self.held.discard(tp)


class Stage:
    """One group, its readers, and what a script may do to them."""

    def __init__(self, world: World, nursery: trio.Nursery) -> None:
        self.world = world
        self.rng = world.rng("script")
        self.readers: list[Reader] = []
        self.holders: dict[TopicPartition, Reader] = {}
        # How many partitions each topic has; None: the registry of the server knows.
        self.partitions: Mapping[str, int] | None = {TOPIC: 12}
        self.expected: Mapping[str, int] = {TOPIC: 12}
        self.is_calm = True  # Nobody is cut off, so nobody can hold what was taken from it.
        self._nursery = nursery

    def start(self, name: str, *, pause_s: float = 0.1, **options: Any) -> Reader:
        """Start a reader; *options* are those of `Client.join`."""
        reader = Reader(self, name, pause_s=pause_s, options=options)
        self.readers.append(reader)
        self._nursery.start_soon(reader.run)
        return reader

    @property
    def living(self) -> list[Reader]:
        """Those who are not gone for good."""
        return [reader for reader in self.readers if not reader.is_gone]

    @property
    def state(self) -> str:
        """What the server says of the group."""
        return str(self._core().describe_group(GROUP).state)

    @property
    def generation(self) -> int:
        """The group's generation."""
        return int(self._core().describe_group(GROUP).generation_id)

    @property
    def leader(self) -> Reader:
        """The reader that the server has made the leader."""
        member_id = self._core().groups[GROUP].leader
        return next(r for r in self.living if str(member_id).startswith(f"{r.name}-"))

    def _core(self) -> Any:
        assert self.world.process is not None
        return self.world.process.node.shard_of(GROUP).core

    async def wait_state(self, state: str, within_s: float = CONVERGE_S) -> None:
        """Wait for a state, looking so often that none is missed."""
        with trio.move_on_after(within_s) as scope:
            while self.state != state:  # noqa: ASYNC110 - nothing tells of it
                await trio.sleep(0.0005)
        if scope.cancelled_caught:
            self.world.violate("stage", f"{state} not reached in {within_s} s")

    async def converge(self, within_s: float = CONVERGE_S) -> None:
        """All who live end in one generation, and every partition has one owner (L1)."""
        with trio.move_on_after(within_s) as scope:
            while not self._has_converged():  # noqa: ASYNC110 - as above
                await trio.sleep(0.05)
        if scope.cancelled_caught:
            state = [(r.name, r.settled, r.assignment) for r in self.living]
            self.world.violate("L1 no convergence", f"after {within_s} s: {self.state} {state}")

    def _has_converged(self) -> bool:
        settled = [r.assignment for r in self.living if r.settled and r.assignment is not None]
        if len(settled) < len(self.living) or self.state != "Stable":
            return False
        owned = sorted(tp for assignment in settled for tp in assignment.partitions)
        everything = sorted(
            TopicPartition(topic, n) for topic, count in self.expected.items() for n in range(count)
        )
        return owned == everything and {a.generation for a in settled} == {self.generation}


class Played(NamedTuple):
    """What came of a script."""

    seed: int
    history: History
    violations: list[Violation]

    def generations(self) -> set[int]:
        """Return every generation that anybody was told."""
        return {
            attempt.response.generation_id
            for attempt in self.history.attempts
            if isinstance(attempt.request, JoinGroupRequest)
            and isinstance(attempt.response, JoinGroupResponse)
            and attempt.response.error == 0
        }

    def commits_s(self, *names: str) -> list[float]:
        """Return when the commits of these clients were sent that were stored."""
        return [
            attempt.invoked_s
            for attempt in self.history.attempts
            if attempt.client in names
            and isinstance(attempt.request, OffsetCommitRequest)
            and isinstance(attempt.response, OffsetCommitResponse)
            and attempt.response.error == 0
            and all(p.error == 0 for topic in attempt.response.topics for p in topic.partitions)
        ]


async def ask_as_operator(stage: Stage, ask: Callable[[Client], Awaitable[object]]) -> None:
    """Let an operator do something."""
    async with connect_as(stage.world, "operator", stage.world.rng("operator")) as client:
        await ask(client)


async def fenced_ones_speak(stage: Stage) -> None:
    """Let a static member be replaced, and its old id speak up again, before and after a crash."""
    reader = stage.start("reader0", pause_s=0.5, group_instance_id="i-0")
    await stage.converge()
    assert reader.member is not None
    fenced = HeartbeatRequest(GROUP, stage.generation, reader.member.member_id, "i-0")
    reader.crash()
    await trio.sleep(1)
    await stage.converge()
    for crashes in (False, True):
        if crashes:
            stage.world.kill(stage.world.process, power=True)
            await stage.world.ensure_server()
        async with await stage.world.network.open("ghost") as stream:
            await Speaker(stream).ask(fenced)
    await stage.converge()


def play(seed: int, script: Script) -> Played:
    """Play *script* to its end, and check everything that the other simulations check."""

    async def main(clock: trio.testing.MockClock) -> Played:
        async with trio.open_nursery() as outer:
            world = World(seed, clock, outer, keep_lines=False)
            world.disk_delay_s = world.usual_disk_delay_s = 0.001
            await world.ensure_server()
            async with trio.open_nursery() as clients:
                stage = Stage(world, clients)
                await script(stage)
                check_nothing_parked(world)
                world.healed = world.stopping = True
            process = await world.ensure_server()
            await look_once_more(world, [GROUP])
            await process.node.wait_durable()
            world.check_state_is_replay(process)
            await restart_and_compare(world, process, [GROUP])
            outer.cancel_scope.cancel()
        return Played(seed, world.history, world.violations + check(world.history))

    with warnings.catch_warnings():
        # A topic that was deleted is still subscribed to, and the leader is told so.
        warnings.simplefilter("ignore", AssignmentWarning)
        return run_deterministically(seed, main, steps_max=STEPS_MAX)
