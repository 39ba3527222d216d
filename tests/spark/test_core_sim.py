"""Several readers, crashes at every step, evictions, outages and lost answers, from one seed.

A world has cooperative readers, eager ones, static ones, or all kinds at once; and a log whose
topics grow and, where readers follow a pattern, become more.
"""

import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import pytest

from client.spark.errors import GroupLossError
from client.spark.source.core import Task
from client.spark.source.stream_offsets import decode_end
from protocol.partition import TopicPartition
from tests.fakes.group_session import FakeGroup, FakeSession, Fault
from tests.spark.helpers import Checkpoint, MemoryLog, Query, tp

PARTITIONS = 3
PARTITIONS_MAX = 7
STEPS = 200
SEEDS_PER_TEST = 100  # A test for each seed would take longer to collect than all others.

Key = tuple[TopicPartition, int, int]


class Kind(Enum):
    """What sort of readers a world has."""

    EAGER = "range"
    COOPERATIVE = "cooperative"
    MIXED = "cooperative, range"


class Driver:
    """One Spark driver: a checkpoint that survives, and a process that may not."""

    def __init__(self, name: str, given: dict[str, Any]) -> None:
        self.name = name
        self.given = given
        self.checkpoint = Checkpoint()
        self.query: Query | None = None
        self.steps: Iterator[bool | None] = iter(())
        self.runs = 0
        self.busy = False
        self.frozen = False


class World:
    """Some drivers, one group, one log, and everything that was ever written."""

    def __init__(self, seed: int, **given: str) -> None:
        self.rng = rng = random.Random(seed)
        self.given = given
        self.losses = 0
        self.errors: list[RuntimeError] = []
        self.kind = rng.choice(list(Kind))
        self.log = MemoryLog(dict.fromkeys(range(PARTITIONS), 0))
        self.group = FakeGroup([tp(p) for p in range(PARTITIONS)])
        self.by_pattern = rng.random() < 0.3
        self.drivers = [Driver(name, self._options(name)) for name in "abc"]
        self.ghosts: list[Query] = []
        self.written: list[Task] = []
        self.excuses: Counter[Key] = Counter()

    def _options(self, name: str) -> dict[str, str]:
        given = {"assignor": self.kind.value, "coordinatorTimeout": "11s", **self.given}
        if self.kind is Kind.MIXED and self.rng.random() < 0.5:
            given["assignor"] = Kind.COOPERATIVE.value
        if self.rng.random() < 0.4:
            given["groupInstanceId"] = name
        if self.by_pattern:
            given["topicsPattern"] = "flights.*"
        return given

    def ends(self) -> dict[TopicPartition, int]:
        """Return how far each partition reaches."""
        return {one: self.log.bounds(*one)[1] for one in self.group.partitions}

    def run(self) -> None:
        """Let anything happen for a while, then heal and finish."""
        self.stir()
        self.finish()

    def stir(self) -> None:
        """Let anything happen for a while."""
        for _ in range(STEPS):
            self._happen()

    def begin(self) -> None:
        """Let all drivers become members that know of each other's group, before there are rows."""
        for one in self.group.partitions:
            if self.given.get("startingOffsets") != "latest":
                self.feed(one, 1)  # There, only a range puts a partition on record.
        for _ in range(1_000):
            for driver in self.drivers:
                self.step(driver)
            if all(map(self._is_known, self.drivers)) and (
                set(self.group.offsets) >= set(self.group.partitions)
            ):
                return
        raise AssertionError("the drivers do not get to work")

    def _is_known(self, driver: Driver) -> bool:
        done = driver.checkpoint.offsets[: driver.checkpoint.commits]
        return bool(done) and bool(decode_end(json.loads(done[-1])).memory.cluster)

    def lose(self) -> None:
        """Have the coordinator forget all: its folder is lost, or the group is deleted."""
        self.losses += 1
        self.group.lose(cluster_id=f"cluster-{self.losses}" if self.rng.random() < 0.6 else None)

    def heal(self) -> None:
        """End all faults."""
        self.group.outage = False
        self.group.faults.clear()
        self.expire_ghosts()
        for driver in self.drivers:
            driver.frozen = False
            if driver.query is not None:
                driver.query.session.deaf = False

    def finish(self) -> None:
        """Let everybody work until all is committed."""
        self.heal()
        for _ in range(5_000):
            self.expire_ghosts()
            for driver in self.drivers:
                self.step(driver)
            if all((self.group.offset(one) or 0) == end for one, end in self.ends().items()):
                return

    def _happen(self) -> None:
        rng, group = self.rng, self.group
        driver = rng.choice(self.drivers)
        match rng.randrange(48):
            case 0:
                self._crash(driver)
            case 1 if driver.query:
                self._excuse(driver.query)
                group.evict(driver.query.session, noticed=rng.random() < 0.5)
            case 2:
                group.outage = not group.outage and rng.random() < 0.7
            case 3:
                group.faults.append(rng.choice(list(Fault)))
            case 4:
                group.deliver_late()
            case 5 | 6 | 7:
                self.expire_ghosts()
            case 8 | 9 | 10 | 11 | 12:
                self._change_log()
            case 13 | 14 | 15:
                self._be_slow(driver)
            case 16 if driver.query:  # Spark does not ask for too long, in whatever it does.
                self._excuse(driver.query)
                driver.query.core.depart(301)
            case _:
                self.step(driver)

    def _change_log(self) -> None:
        if self.rng.random() < 0.2:
            self._grow()
        else:
            self.feed(self.rng.choice(self.group.partitions), self.rng.randrange(1, 30))

    def _be_slow(self, driver: Driver) -> None:
        """Freeze or thaw, or have the group not wait any longer, or lose heartbeats."""
        rng = self.rng
        match rng.randrange(3):
            case 0:
                driver.frozen = not driver.frozen
            case 1 if driver.query:
                session = driver.query.session
                session.deaf, session.swift = rng.random() < 0.4, rng.random() < 0.5
            case 2 if driver.query and self.group.rebalancing:
                self._excuse(driver.query)
                self.group.go_on_without(driver.query.session)

    def feed(self, one: TopicPartition, count: int) -> None:
        """Append rows."""
        ends = self.log.others.get(one.topic, self.log.ends)
        ends[one.partition] += count

    def _grow(self) -> None:
        """Add a partition, or a topic that matches."""
        if len(self.group.partitions) == PARTITIONS_MAX:
            return
        if self.by_pattern and self.rng.random() < 0.5:
            new = TopicPartition(f"flights{len(self.group.partitions)}", 0)
            self.log.others[new.topic] = {0: 0}
        else:
            new = tp(len(self.log.ends))
            self.log.ends[new.partition] = self.log.starts[new.partition] = 0
        self.group.partitions.append(new)

    def step(self, driver: Driver) -> None:
        """Let one driver do one thing."""
        if driver.frozen:
            return
        if driver.query is None:
            driver.runs += 1
            driver.query = Query(
                self.group,
                self.log,
                checkpoint=driver.checkpoint,
                client_id=f"{driver.name}{driver.runs}",
                max_rows=self.rng.choice([3, 10, 25]),
                warms_up=self.rng.random() < 0.5,
                **driver.given,
            )
            driver.steps = iter(())
            driver.query.clock.on_sleep = self._go_on
        query = driver.query
        before = len(query.sunk)
        driver.busy = True
        try:
            if next(driver.steps, True) is not None:
                query.clock.now_s += 1
                driver.steps = query.steps()
                next(driver.steps)
        except RuntimeError as error:
            # The query ended, as by a timeout in a replay: the process is gone.
            self.errors.append(error)
            self._crash(driver)
        finally:
            driver.busy = False
        self.written += query.sunk[before:]

    def _go_on(self) -> None:
        """Let the others run while one reader blocks."""
        self.expire_ghosts()
        for driver in self.drivers:
            if not driver.busy and self.rng.random() < 0.7:
                self.step(driver)

    def _crash(self, driver: Driver) -> None:
        if driver.query is not None:
            self._excuse(driver.query)
            self.ghosts.append(driver.query)
        driver.query = None

    def expire_ghosts(self) -> None:
        """Let the sessions of crashed readers end, unless a static one has come back."""
        for ghost in self.ghosts:
            self.group.evict(ghost.session)
        self.ghosts.clear()

    def _excuse(self, query: Query) -> None:
        """Note which ranges may run once more: those of the one batch that is not committed."""
        self.excuses.update(
            _key(task) for task in query.in_flight if self.group.offset(task.tp) == task.range.start
        )


def _key(task: Task) -> Key:
    return task.tp, task.range.start, task.range.end


def _check(world: World) -> None:
    counts = Counter(_key(task) for task in world.written)
    for one, log_end in world.ends().items():
        at = 0
        for _, start, end in sorted(key for key in counts if key[0] == one):
            assert start == at, f"{one}: a gap or an overlap at {at}"
            at = end
        assert at == log_end, f"{one}: written up to {at}, the log ends at {log_end}"
        assert (world.group.offset(one) or 0) == at
    for key, count in counts.items():
        assert count - 1 <= world.excuses[key], f"{key} was written {count} times"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of warnings about outages would take most of the time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(90))
def test_whatever_happens_no_row_is_lost_and_ranges_repeat_whole(seed: int) -> None:
    """No gaps; a range is the same for all; one batch at most per crash or eviction."""
    _run_and_check(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1_000, 4_000, SEEDS_PER_TEST))
def test_it_holds_for_many_more_seeds(first: int) -> None:
    """The rare interleavings."""
    _run_seeds(first, _run_and_check)


def _run_seeds(first: int, run: Callable[[int], None]) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        try:
            run(seed)
        except AssertionError as broken:
            broken.add_note(f"seed {seed}")
            raise


def _run_and_check(seed: int) -> None:
    world = World(seed)

    world.run()

    _check(world)
    assert not _refusals(world)


def _refusals(world: World) -> list[GroupLossError]:
    return [error for error in world.errors if isinstance(error, GroupLossError)]


@pytest.mark.parametrize("seed", range(90))
def test_whenever_the_coordinator_forgets_all_no_row_is_lost(seed: int) -> None:
    """Put back by the readers, from memories and checkpoints, whoever comes first."""
    _lose_and_check(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1_000, 3_000, SEEDS_PER_TEST))
def test_no_loss_loses_rows_for_many_more_seeds(first: int) -> None:
    """The rare interleavings."""
    _run_seeds(first, _lose_and_check)


def _lose_and_check(seed: int) -> None:
    start = random.Random(-seed).choice(["earliest", "latest"])
    world = World(seed, startingOffsets=start, onGroupLoss="checkpoint")
    world.begin()

    for _ in range(3):
        world.stir()
        world.lose()
    world.stir()
    world.finish()

    for one, log_end in world.ends().items():
        at = 0
        for _, begin, end in sorted(_key(task) for task in world.written if task.tp == one):
            assert begin <= at, f"{one}: a gap at {at}"
            at = max(at, end)
        assert at == log_end, f"{one}: written up to {at}, the log ends at {log_end}"
        assert (world.group.offset(one) or 0) == log_end
    assert not _refusals(world)


@pytest.mark.parametrize("seed", range(30))
def test_whenever_the_coordinator_forgets_all_every_query_says_so(seed: int) -> None:
    """Nobody goes on by himself, and nothing is committed that would hide the loss."""
    world = World(seed, startingOffsets="latest")
    world.begin()
    world.stir()
    world.finish()
    world.lose()
    world.group.cluster_id = "another"
    written = len(world.written)
    for one in world.group.partitions:
        world.feed(one, 10)

    for _ in range(60):
        for driver in world.drivers:
            world.step(driver)
        world.expire_ghosts()

    assert len(_refusals(world)) >= len(world.drivers)
    assert not world.group.offsets
    assert len(world.written) == written


@pytest.mark.parametrize("seed", range(60))
def test_what_is_kept_goes_on_while_a_rebalance_waits_for_somebody(seed: int) -> None:
    """One driver inside of a long batch, or frozen, must not stop all others."""
    _run_and_probe(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1_000, 2_000, SEEDS_PER_TEST))
def test_what_is_kept_goes_on_for_many_more_seeds(first: int) -> None:
    """The rare interleavings."""
    _run_seeds(first, _run_and_probe)


def _run_and_probe(seed: int) -> None:
    world = World(seed)
    world.stir()
    world.finish()
    slow, *others = world.drivers
    for _ in range(200):  # Until the last rebalance is over.
        for driver in world.drivers:
            world.step(driver)
    slow.frozen = True
    _join(world.group.session("newcomer", cooperative=True))
    assert world.group.rebalancing
    kept = [
        one
        for driver in others
        if driver.query is not None and driver.query.session.cooperative
        for one, owner in world.group.owners.items()
        if owner == driver.query.session.member_id
    ]
    for one in kept:
        world.feed(one, 40)

    for _ in range(400):
        for driver in others:
            world.step(driver)

    assert world.group.rebalancing
    for one in kept:
        assert world.group.offset(one) == world.ends()[one], f"{one} waits"
    assert kept or world.kind is not Kind.COOPERATIVE


def _join(session: FakeSession) -> None:
    session.topics = ("flights",)
    session.group.join(session)


def test_the_simulation_is_not_too_kind() -> None:
    """It must contain repeated ranges, and all kinds of readers, or it shows nothing."""
    repeated: Counter[Kind] = Counter()
    losses: Counter[bool] = Counter()
    for seed in range(60):
        world = World(seed)
        world.run()
        repeated[world.kind] += len(world.written) - len({_key(task) for task in world.written})
        for driver in world.drivers:
            if driver.query is not None:
                losses["groupInstanceId" in driver.given] += driver.query.session.losses

    assert min(repeated[kind] for kind in Kind) > 20
    assert min(losses.values()) > 5
