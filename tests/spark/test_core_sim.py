"""Several readers, crashes at every step, evictions, outages and lost answers, from one seed."""

import logging
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from client.spark.core import Task
from tests.fakes.group_session import FakeGroup, Fault
from tests.spark.helpers import Checkpoint, MemoryLog, Query, tp

PARTITIONS = 3
STEPS = 200


class Driver:
    """One Spark driver: a checkpoint that survives, and a process that may not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checkpoint = Checkpoint()
        self.query: Query | None = None
        self.steps: Iterator[bool | None] = iter(())
        self.runs = 0
        self.busy = False


class World:
    """Some drivers, one group, one log, and everything that was ever written."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.log = MemoryLog(dict.fromkeys(range(PARTITIONS), 0))
        self.group = FakeGroup([tp(p) for p in range(PARTITIONS)])
        self.drivers = [Driver(name) for name in "abc"]
        self.ghosts: list[Query] = []
        self.written: list[Task] = []
        self.excuses: Counter[tuple[int, int, int]] = Counter()

    def run(self) -> None:
        """Let anything happen for a while, then heal and finish."""
        for _ in range(STEPS):
            self._happen()
        self.group.outage = False
        self.group.faults.clear()
        for _ in range(5_000):
            self._expire_ghosts()
            for driver in self.drivers:
                self._step(driver)
            if all(self.group.offset(tp(p)) == end for p, end in self.log.ends.items() if end):
                return

    def _happen(self) -> None:
        rng, group = self.rng, self.group
        driver = rng.choice(self.drivers)
        match rng.randrange(40):
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
                self._expire_ghosts()
            case 8 | 9 | 10 | 11:
                self.log.ends[rng.randrange(PARTITIONS)] += rng.randrange(1, 30)
            case _:
                self._step(driver)

    def _step(self, driver: Driver) -> None:
        if driver.query is None:
            driver.runs += 1
            driver.query = Query(
                self.group,
                self.log,
                checkpoint=driver.checkpoint,
                client_id=f"{driver.name}{driver.runs}",
                max_rows=self.rng.choice([3, 10, 25]),
                coordinatorTimeout="11s",
            )
            driver.steps = iter(())
            driver.query.clock.on_sleep = self._go_on
        query = driver.query
        before = len(query.sunk)
        driver.busy = True
        try:
            if next(driver.steps, True) is not None:
                driver.steps = query.steps()
                next(driver.steps)
        except RuntimeError:  # The query ended, as by a timeout in a replay: the process is gone.
            self._crash(driver)
        finally:
            driver.busy = False
        self.written += query.sunk[before:]

    def _go_on(self) -> None:
        """Let the others run while one reader blocks."""
        self._expire_ghosts()
        for driver in self.drivers:
            if not driver.busy and self.rng.random() < 0.7:
                self._step(driver)

    def _crash(self, driver: Driver) -> None:
        if driver.query is not None:
            self._excuse(driver.query)
            self.ghosts.append(driver.query)
        driver.query = None

    def _expire_ghosts(self) -> None:
        for ghost in self.ghosts:
            self.group.evict(ghost.session)
        self.ghosts.clear()

    def _excuse(self, query: Query) -> None:
        """Note which ranges may run once more: those of the one batch that is not committed."""
        self.excuses.update(
            _key(task) for task in query.in_flight if self.group.offset(task.tp) == task.range.start
        )


def _key(task: Task) -> tuple[int, int, int]:
    return task.tp.partition, task.range.start, task.range.end


def _check(world: World) -> None:
    counts = Counter(_key(task) for task in world.written)
    for partition in range(PARTITIONS):
        at = 0
        for _, start, end in sorted(key for key in counts if key[0] == partition):
            assert start == at, f"partition {partition}: a gap or an overlap at {at}"
            at = end
        assert at == world.log.ends[partition]
        assert (world.group.offset(tp(partition)) or 0) == at
    for key, count in counts.items():
        assert count - 1 <= world.excuses[key], f"{key} was written {count} times"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of warnings about outages would take most of the time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_no_row_is_lost_and_ranges_repeat_whole(seed: int) -> None:
    """No gaps; a range is the same for all; one batch at most per crash or eviction."""
    _run_and_check(seed)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(1_000, 3_000))
def test_it_holds_for_many_more_seeds(seed: int) -> None:
    """The rare interleavings."""
    _run_and_check(seed)


def _run_and_check(seed: int) -> None:
    world = World(seed)

    world.run()

    _check(world)


def test_the_simulation_is_not_too_kind() -> None:
    """It must contain repeated ranges, or it shows nothing."""
    repeated = 0
    for seed in range(30):
        world = World(seed)
        world.run()
        repeated += len(world.written) - len({_key(task) for task in world.written})

    assert repeated > 30
