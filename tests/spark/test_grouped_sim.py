"""Several grouped drivers, crashes at every call, evictions and outages, from one seed."""

import logging
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings, strategies as st

from client.spark.errors import CoordinatedSourceError
from client.spark.grouped_types import GroupedRun
from tests.fakes.group_session import FakeGroup, Fault
from tests.fakes.grouped import Crash, FakeDriver, FakeQuery, FakeStore, FakeTopics, tp

PARTITIONS = 3
STEPS = 150


class World:
    """Some drivers, and everything that was ever written."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.is_cooperative = self.rng.random() < 0.6
        self.topics = FakeTopics(PARTITIONS)
        self.group = FakeGroup([tp(p) for p in range(PARTITIONS)])
        self.store = FakeStore()
        self.written: Counter[tuple[int, int]] = Counter()
        self.excused: Counter[tuple[int, int]] = Counter()
        self.judged: set[str] = set()
        self.num_drivers = 0
        self.drivers = [self._driver() for _ in range(3)]
        self.busy: set[str] = set()
        self.ghosts: list[FakeDriver] = []

    def run(self) -> None:
        """Let anything happen for a while, then heal and finish."""
        for _ in range(STEPS):
            self._happen()
            self._check_committed()
        self.group.outage = self.store.is_away = False
        self.group.faults.clear()
        for driver in self.drivers:
            driver.fuse.left = None
        for _ in range(3_000):
            self._expire()
            for driver in list(self.drivers):
                self._step(driver)
                for query in driver.queries:
                    query.work()
            self._check_committed()
            if all(self.group.offset(p) == end for p, end in self.topics.ends.items()):
                return

    def _driver(self) -> FakeDriver:
        self.num_drivers += 1
        driver = FakeDriver(
            f"d{self.num_drivers}", self.group, self.topics, self.store, self.written
        )
        driver.max_rows = self.rng.choice([1, 4, 15])
        driver.is_cooperative = self.is_cooperative
        driver.on_sleep = self._go_on
        driver.may_start = self._judge_start
        # Its last commit may fail, and then the same holds as in a crash.
        driver.on_stop = lambda query: self._excuse_query(driver, query)
        return driver

    def _happen(self) -> None:  # noqa: C901 - one case for each thing that may happen.
        rng, group = self.rng, self.group
        driver = rng.choice(self.drivers)
        match rng.randrange(40):
            case 0:
                driver.fuse.left = rng.randrange(12)
            case 1 if driver.sessions:
                self._excuse(driver)
                group.evict(driver.session, noticed=rng.random() < 0.5)
            case 2:
                group.outage = not group.outage and rng.random() < 0.7
            case 3:
                group.faults.append(rng.choice(list(Fault)))
            case 4:
                group.deliver_late()
            case 5:
                self.store.is_away = not self.store.is_away and rng.random() < 0.5
            case 6 if driver.queries:
                self._excuse(driver)
                driver.query.fail(ValueError("sink"))
            case 7 | 8:
                self._expire()
            case 9 | 10 | 11 | 12:
                self.topics.ends[tp(rng.randrange(PARTITIONS))] += rng.randrange(1, 30)
            case n if n < 26:
                self._work(driver)
            case _:
                self._step(driver)

    def _step(self, driver: FakeDriver) -> None:
        if driver.name in self.busy or driver not in self.drivers:
            return
        self.busy.add(driver.name)
        try:
            is_going_on = driver.core.step()
            driver.now_s += 0.5
        except Crash:
            is_going_on = False
            self._excuse(driver)
        except CoordinatedSourceError:  # Such as an outage for too long: it is restarted.
            driver.fuse.left = None
            self._excuse(driver)
            driver.core.close()
            is_going_on = False
        finally:
            self.busy.discard(driver.name)
        if not is_going_on:
            for query in driver.queries:
                query.active = False
            self.ghosts.append(driver)
            self.drivers[self.drivers.index(driver)] = self._driver()

    def _work(self, driver: FakeDriver) -> None:
        for query in driver.queries:
            query.work()
            if query.active and driver.sessions[-1].member_id not in self.group.members:
                self._excuse(driver)  # It goes on, unaware that it was removed.

    def _go_on(self) -> None:
        """Let the others run while one waits."""
        for driver in list(self.drivers):
            if self.rng.random() < 0.7:
                self._work(driver)
        for driver in list(self.drivers):
            if self.rng.random() < 0.5:
                self._step(driver)

    def _expire(self) -> None:
        for ghost in self.ghosts:
            if ghost.sessions:
                self.group.evict(ghost.session)
        self.ghosts.clear()

    def _excuse(self, driver: FakeDriver) -> None:
        """Note which rows may come once more: those in flight, and of a run not seen to work."""
        for query in driver.queries:
            if query.active:
                self._excuse_query(driver, query)

    def _excuse_query(self, driver: FakeDriver, query: FakeQuery) -> None:
        for p, start in query.run.starting_offsets.items():
            is_trusted = driver.is_trusted(query, p)
            since = query.at[p] if is_trusted else start
            to = query.planned[p] if query.planned is not None else query.at[p]
            for offset in range(since, to):
                self.excused[p.partition, offset] = max(
                    self.excused[p.partition, offset], self.written[p.partition, offset] + 1
                )

    def _judge_start(self, run: GroupedRun) -> None:
        """No run may start before the previous owner has stopped, or was fenced."""
        for driver in self.drivers:
            for query in driver.queries:
                is_member = driver.session.member_id in self.group.members
                if query.active and is_member:
                    shared = query.run.starting_offsets.keys() & run.starting_offsets
                    assert not shared, f"{run.name} begins while {query.run.name} has {shared}"

    def _check_committed(self) -> None:
        """What is committed must be written, all of it."""
        for p in self.topics.ends:
            for offset in range(self.group.offset(p) or 0):
                assert self.written[p.partition, offset], f"{p}: {offset} is committed, not done"


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Thousands of warnings about outages would take most of the time."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_happens_nothing_is_lost_and_only_what_was_in_flight_is_repeated(
    seed: int,
) -> None:
    """The guarantee, under crashes before and after each call."""
    world = World(seed)
    world.run()

    for p, end in world.topics.ends.items():
        assert world.group.offset(p) == end
        for offset in range(end):
            count = world.written[p.partition, offset]
            assert 1 <= count <= max(1, world.excused[p.partition, offset])
