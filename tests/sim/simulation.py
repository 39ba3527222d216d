"""One run of the whole system from one seed."""

import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
import trio
import trio.testing

from client import AssignmentWarning
from coordinator.log.errors import LogError
from protocol.messages import JoinGroupRequest
from protocol.partition import TopicPartition
from tests.sim.checker import check
from tests.sim.determinism import run_deterministically
from tests.sim.nemesis import Nemesis
from tests.sim.registers import Violation
from tests.sim.rogues import Rogue
from tests.sim.workload import NUM_PARTITIONS, TOPIC, Driver, Operator, Surroundings, connect_as
from tests.sim.world import Process, World

FAULTS_S = 10.0
# Rebalance timeout + session timeout + what a client's retry loop may sleep.
CONVERGE_S = 40.0
# Faults that cost time on the side of the server, and nothing else.
OWN_FAULTS = ("_stall", "_slow_disk", "_shift_wall_clock")


@dataclass(slots=True)
class Result:
    """What came of a run."""

    seed: int
    trace_hash: str
    violations: list[Violation]
    acknowledged: int  # Commits on the wire that were answered 0.
    starts: int
    virtual_s: float
    evicted: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


def run_seed(
    seed: int, *, faults: bool = True, only: Sequence[str] = (), keep_lines: bool = False
) -> Result:
    """Run the world of *seed* to its end and check everything.

    Args:
        seed: What everything follows from.
        faults: Whether anything breaks.
        only: The names of the nemesis's faults to choose from; empty for a few of them all.
        keep_lines: Return the trace itself, too.
    """
    with structlog.testing.capture_logs() as logs, warnings.catch_warnings():
        # Some leaders have a bug, and are told so.
        warnings.simplefilter("ignore", AssignmentWarning)
        run = _Run(seed, faults=faults, only=only, keep_lines=keep_lines)
        try:
            result = run_deterministically(seed, run.main)
        except Exception:  # noqa: BLE001 - whatever it is, the report must name the seed
            text = traceback.format_exc()
            noted = [] if run.world is None else run.world.violations
            result = Result(seed, "", [*noted, Violation("the run failed", text)], 0, 0, 0.0)
    result.violations += server_bugs(logs)
    return result


def server_bugs(logs: list[Any]) -> list[Violation]:
    """A handler that raised is a bug, unless it was the disk that failed under it."""
    return [
        Violation("server: handler failed", repr(entry))
        for entry in logs
        if entry["event"] == "request.failed" and not isinstance(entry["exc_info"], LogError)
    ]


class _Run:
    def __init__(self, seed: int, *, faults: bool, only: Sequence[str], keep_lines: bool) -> None:
        self._seed = seed
        self._faults = faults
        self._only = only
        self._keep_lines = keep_lines
        self.world: World | None = None

    async def main(self, clock: trio.testing.MockClock) -> Result:
        async with trio.open_nursery() as outer:
            world = World(self._seed, clock, outer, keep_lines=self._keep_lines)
            self.world = world
            await self._live(world)
            outer.cancel_scope.cancel()
        history = world.history
        return Result(
            self._seed,
            history.trace_hash,
            world.violations + check(history),
            history.acknowledged,
            world.starts,
            trio.current_time(),
            world.evicted,
            history.lines,
        )

    async def _live(self, world: World) -> None:
        rng = world.rng("shape")
        groups = ["etl", "alerts"][: rng.randint(1, 2)]
        drivers = [
            Driver(world, f"{group}-{n}", group)
            for group in groups
            for n in range(rng.randint(1, 4))
        ]
        operators = [Operator(world, f"operator-{n}", groups) for n in range(rng.randint(1, 2))]
        rogues = [Rogue(world, f"rogue-{n}", groups) for n in range(rng.randint(0, 2))]
        world.start_server()
        async with trio.open_nursery() as clients:
            everybody: list[Driver | Operator | Rogue] = [*drivers, *operators, *rogues]
            for client in everybody:
                clients.start_soon(client.run)
            nemesis = Nemesis(world, drivers, self._only)
            if self._faults:
                await nemesis.run(FAULTS_S)
            else:
                await trio.sleep(FAULTS_S)
                await nemesis.heal()
            await converge(world, groups, drivers)
            check_nothing_parked(world)
            world.stopping = True
        await look_once_more(world, groups)
        process = await world.ensure_server()
        await process.node.wait_durable()
        world.check_state_is_replay(process)
        await restart_and_compare(world, process, groups)


async def converge(world: Surroundings, groups: list[str], drivers: list[Driver]) -> None:
    """L1: everybody alive ends in one generation, and every partition has an owner."""
    deadline_s = trio.current_time() + CONVERGE_S
    while trio.current_time() < deadline_s:
        await trio.sleep(0.5)
        if all(_has_converged([d for d in drivers if d.group == group]) for group in groups):
            return
    state = [
        (d.name, d.member and (d.member.generation, d.member._machine.state), d.assignment)
        for d in drivers
    ]
    world.violate("L1 no convergence", f"{CONVERGE_S} s after the last fault: {state}")


def _has_converged(drivers: list[Driver]) -> bool:
    owned: list[TopicPartition] = []
    generations = set()
    for driver in drivers:
        if not driver.settled or driver.assignment is None:
            return False
        owned += driver.assignment.partitions
        generations.add(driver.assignment.generation)
    everything = [TopicPartition(TOPIC, n) for n in range(NUM_PARTITIONS)]
    return len(generations) == 1 and sorted(owned) == everything


def check_nothing_parked(world: World) -> None:
    """L2 and L4: nothing that a living connection asked is still unanswered."""
    for connection in world.network.connections.values():
        for attempt in connection.tap.open_attempts:
            waited_s = trio.current_time() - attempt.invoked_s
            limit_s = 10.0 if isinstance(attempt.request, JoinGroupRequest) else 5.0
            if waited_s > limit_s:
                world.violate("L2/L4 unanswered", f"for {waited_s:.1f} s: {attempt.request}")


async def look_once_more(world: Surroundings, groups: list[str]) -> None:
    """Read every offset, so that no acknowledged commit goes unchecked."""
    async with connect_as(world, "auditor", world.rng("auditor")) as client:
        for group in (*groups, "plain"):
            await client.fetch_offsets(group)


async def restart_and_compare(world: World, process: Process, groups: list[str]) -> None:
    """What was acknowledged is there after one more crash, too."""
    before = [shard.core.hard_state() for shard in process.node.shards]
    world.kill(process, power=True)
    await process.ended.wait()
    again = await world.ensure_server()
    await again.node.wait_durable()
    await look_once_more(world, groups)
    after = [shard.core.hard_state() for shard in again.node.shards]
    known_before = [{g: s for g, s in shard.items() if s[0] or s[2]} for shard in before]
    known_after = [{g: s for g, s in shard.items() if s[0] or s[2]} for shard in after]
    if known_before != known_after:
        world.violate("I1/I11 restart", f"{known_before!r} became {known_after!r}")
