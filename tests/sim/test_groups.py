"""What groups go through: storms, deaths at bad moments, restarts, topics that come and go.

Each script runs over the whole server and the real client library; the promises of the other
simulations are checked too, and that all who live converge in time.
"""

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import pytest
import trio

from client import CooperativeStickyAssignor, RoundRobinAssignor, StickyAssignor
from tests.sim.stage import (
    CONVERGE_S,
    SESSION_S,
    Played,
    Script,
    Stage,
    ask_as_operator,
    fenced_ones_speak,
    play,
)
from tests.sim.workload import TOPIC

# A script takes as long as a hundred seeds of the others find time for.
SEEDS: Final = max(2, int(os.environ.get("SIM_SEEDS", "300")) // 100)
STORM: Final = 200

COOPERATIVE: Final[dict[str, Any]] = {"assignors": (CooperativeStickyAssignor(),)}


def played(seed: int, script: Script) -> Played:
    """Play *script*; no promise may be broken."""
    result = play(seed, script)
    assert not result.violations, f"seed {seed}: {result.violations[:5]}"
    return result


@pytest.fixture(params=range(1, SEEDS + 1))
def seed(request: pytest.FixtureRequest) -> int:
    """Return the seed that everything follows from."""
    return int(request.param)


async def gather(stage: Stage, count: int, within_s: float = 1.0, first: int = 0) -> None:
    """Start *count* readers within that time."""
    for n in range(first, first + count):
        stage.start(f"reader{n}")
        await trio.sleep(within_s / count)


def test_a_storm_of_newcomers_makes_few_generations(seed: int) -> None:
    """A cluster that starts at once must not rebalance once per driver."""

    async def script(stage: Stage) -> None:
        await gather(stage, STORM)
        await stage.converge()

    assert len(played(seed, script).generations()) <= 3


def test_a_storm_on_a_stable_group_makes_few_generations(seed: int) -> None:
    """A group that is scaled up must not rebalance once per driver either."""

    async def script(stage: Stage) -> None:
        await gather(stage, 3)
        await stage.converge()
        before.append(stage.generation)
        await gather(stage, STORM - 3, first=3)
        await stage.converge()

    before: list[int] = []
    generations = {g for g in played(seed, script).generations() if g > before[0]}
    assert len(generations) <= 3


@pytest.mark.parametrize(
    ("options", "share"), [({}, 0.5), (COOPERATIVE, 0.9)], ids=["eager", "cooperative"]
)
def test_a_flapping_member_does_not_stop_the_others(
    seed: int, options: dict[str, Any], share: float
) -> None:
    """One broken driver that dies every half session costs the others a part of their time.

    Eager ones wait for each of its dead incarnations, as long as the rebalance timeout.
    """
    flapping_s = 90

    async def script(stage: Stage) -> None:
        brief = {**options, "rebalance_timeout_ms": SESSION_S * 500}
        for n in range(3):
            stage.start(f"reader{n}", **brief)
        await stage.converge()
        began.append(trio.current_time())
        flapper = stage.start("flapper", **brief)
        while trio.current_time() < began[0] + flapping_s:
            await trio.sleep(SESSION_S / 2)
            flapper.crash()
        flapper.die()
        await stage.converge()

    began: list[float] = []
    commits = played(seed, script).commits_s("reader0", "reader1", "reader2")
    busy = {int(at - began[0]) for at in commits if 0 <= at - began[0] < flapping_s}
    assert len(busy) >= flapping_s * share


@pytest.mark.parametrize("state", ["PreparingRebalance", "CompletingRebalance"])
def test_the_leader_dies_in_the_middle_of_a_rebalance(seed: int, state: str) -> None:
    """The others have joined and wait for an assignment that nobody will make."""

    async def script(stage: Stage) -> None:
        await gather(stage, 4)
        await stage.converge()
        stage.start("newcomer")
        await stage.wait_state(state)
        stage.leader.die()
        await stage.converge()

    played(seed, script)


def test_the_first_leader_dies_before_it_syncs(seed: int) -> None:
    """Nobody has ever had an assignment, so there is nothing to fall back to."""

    async def script(stage: Stage) -> None:
        await gather(stage, 4)
        await stage.wait_state("CompletingRebalance")
        stage.leader.die()
        await stage.converge()

    played(seed, script)


@pytest.mark.parametrize(
    "state", ["PreparingRebalance", "CompletingRebalance", "Stable"], ids=lambda state: state[:9]
)
def test_everyone_dies(seed: int, state: str) -> None:
    """A power cut in their rack; then the cluster manager starts them all anew."""

    async def script(stage: Stage) -> None:
        await gather(stage, 5)
        await stage.converge()
        if state != "Stable":
            stage.start("newcomer")
        await stage.wait_state(state)
        for reader in stage.readers:
            reader.die()
        await stage.wait_state("Empty")
        await gather(stage, 5, first=10)
        await stage.converge()

    played(seed, script)


@pytest.mark.parametrize("options", [{}, COOPERATIVE], ids=["eager", "cooperative"])
def test_replies_are_lost_and_late(seed: int, options: dict[str, Any]) -> None:
    """A join or sync whose answer never came must not leave anybody waiting."""

    async def script(stage: Stage) -> None:
        network = stage.world.network
        stage.is_calm = False
        for n in range(5):
            stage.start(f"reader{n}", **options)
        network.weather.slow_chance, network.weather.slow_s = 0.2, 3.0
        for _ in range(15):
            await trio.sleep(stage.rng.uniform(0.2, 2))
            network.reset_some(stage.rng.choice(stage.readers).name)
        network.calm()
        await stage.converge()

    played(seed, script)


def test_the_server_dies_while_the_group_rebalances(seed: int) -> None:
    """What was told before the crash must stay true after it."""

    async def script(stage: Stage) -> None:
        await gather(stage, 4)
        for _ in range(4):
            await trio.sleep(stage.rng.uniform(0, 4))
            stage.rng.choice(stage.readers).crash()
            await trio.sleep(stage.rng.uniform(0, 1))
            stage.world.kill(stage.world.process, power=stage.rng.random() < 0.5)
            await stage.world.start_until_up()
        await stage.world.ensure_server()
        await stage.converge()

    played(seed, script)


@pytest.mark.parametrize("options", [{}, COOPERATIVE], ids=["eager", "cooperative"])
def test_static_members_restart_without_a_rebalance(seed: int, options: dict[str, Any]) -> None:
    """A rolling deployment moves nothing."""

    async def script(stage: Stage) -> None:
        for n in range(4):
            stage.start(f"reader{n}", pause_s=1.5, group_instance_id=f"i-{n}", **options)
        await stage.converge()
        if options:
            await trio.sleep(2)  # The second round of a cooperative group.
            await stage.converge()
        before = stage.generation
        for reader in stage.readers:
            reader.crash()
            await trio.sleep(2)
            await stage.converge()
        assert stage.generation == before

    played(seed, script)


def test_static_members_restart_while_the_group_rebalances(seed: int) -> None:
    """In every state the new incarnation takes over, and the old one is fenced (I12)."""

    async def script(stage: Stage) -> None:
        for n in range(4):
            stage.start(f"reader{n}", pause_s=0.01, group_instance_id=f"i-{n}")
        for n in range(6):
            state = stage.rng.choice(("PreparingRebalance", "CompletingRebalance", "Stable"))
            dynamic = stage.start(f"dynamic{n}")
            await stage.wait_state(state)
            stage.rng.choice(stage.readers[:4]).crash()
            await trio.sleep(stage.rng.uniform(0, 2))
            dynamic.leave()
        await stage.converge()

    played(seed, script)


def test_a_fenced_member_stays_fenced_over_a_crash(seed: int) -> None:
    """A machine that was cut off and comes back must not go on where another took over (I12)."""
    played(seed, fenced_ones_speak)


@pytest.mark.parametrize(
    "assignor", [RoundRobinAssignor, StickyAssignor, CooperativeStickyAssignor]
)
def test_members_come_and_go(seed: int, assignor: Callable[[], object]) -> None:
    """Never are two at work on one partition, in the middle of a hand-over either."""

    async def script(stage: Stage) -> None:
        stage.is_calm = False  # Whoever crashed gives nothing back; the next owner waits.
        for n in range(8):
            stage.start(f"reader{n}", assignors=(assignor(),))
            await trio.sleep(stage.rng.uniform(0, 4))
            if n % 3 == 2:
                stage.rng.choice(stage.living).leave()
            elif n == 4:
                stage.rng.choice(stage.living).crash()
        await stage.converge(2 * CONVERGE_S)

    played(seed, script)


def test_partitions_that_stay_are_read_while_others_are_handed_over(seed: int) -> None:
    """What cooperation is for: no reader stops for longer than a heartbeat."""

    async def script(stage: Stage) -> None:
        stage.start("reader0", **COOPERATIVE)
        await stage.converge()
        began.append(trio.current_time())
        for n in range(1, 4):
            stage.start(f"reader{n}", **COOPERATIVE)
            await trio.sleep(5)
        await stage.converge(2 * CONVERGE_S)
        began.append(trio.current_time())

    began: list[float] = []
    at_s = [at for at in played(seed, script).commits_s("reader0") if began[0] < at < began[1]]
    gaps = [later - earlier for earlier, later in pairwise(at_s)]
    assert max(gaps) < 2.0


@pytest.mark.parametrize("by_pattern", [True, False], ids=["pattern", "list"])
def test_topics_grow_and_go_while_they_are_read(seed: int, by_pattern: bool) -> None:
    """Nobody has to restart a driver because a source got more partitions."""
    options: dict[str, Any] = {"pattern": f"{TOPIC}.*"} if by_pattern else {}

    async def script(stage: Stage) -> None:
        stage.partitions, stage.expected = None, {TOPIC: 4}
        await ask_as_operator(stage, lambda c: c.register_topics({TOPIC: 4, "trains": 3}))
        for n in range(3):
            stage.start(f"reader{n}", **options)
        await stage.converge()
        await ask_as_operator(stage, lambda c: c.register_topics({TOPIC: 9}))
        stage.expected = {TOPIC: 9}
        await stage.converge()
        if by_pattern:
            await ask_as_operator(stage, lambda c: c.register_topics({f"{TOPIC}2": 2}))
            stage.expected = {TOPIC: 9, f"{TOPIC}2": 2}
            await stage.converge()
            await ask_as_operator(stage, lambda c: c.delete_topics([TOPIC]))
            stage.expected = {f"{TOPIC}2": 2}
            await stage.converge()
        else:
            await ask_as_operator(stage, lambda c: c.delete_topics([TOPIC]))
            stage.expected = {}
            await stage.converge()

    played(seed, script)
