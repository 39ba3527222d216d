"""What grouped runs leave behind: who may still need it, and who must not be misled by it."""

from collections import Counter
from collections.abc import Mapping

import pytest

from client.spark.errors import CheckpointError
from client.spark.grouped_types import mark
from protocol.types import TopicPartition
from tests.fakes.group_session import FakeGroup
from tests.fakes.grouped import FakeDriver, FakeStore, FakeTopics, tp

HOUR_S = 3601.0


class DamagedStore(FakeStore):
    """Checkpoints of which some can't be understood."""

    def __init__(self) -> None:
        super().__init__()
        self.damaged: set[str] = set()

    def finished(self, run: str) -> Mapping[TopicPartition, int]:
        """Return what the run's commit log says, if it is whole."""
        if run in self.damaged:
            raise CheckpointError(f"{run}/commits/0 is damaged")
        return super().finished(run)


class World:
    """A topic with two partitions of thirty rows, and a group."""

    def __init__(self) -> None:
        self.topics = FakeTopics(2)
        self.topics.ends = {tp(0): 30, tp(1): 30}
        self.group = FakeGroup([tp(0), tp(1)])
        self.store = DamagedStore()

    def driver(self, name: str, **given: object) -> FakeDriver:
        """Return a driver whose query has committed a batch."""
        driver = FakeDriver(name, self.group, self.topics, self.store, Counter(), **given)
        driver.steps()
        driver.query.batch()
        driver.steps()
        return driver


@pytest.fixture
def world() -> World:
    """Nothing has happened yet."""
    return World()


def test_what_an_unclaimed_partition_needs_is_kept(world: World) -> None:
    """Its next owner may come after a night, and must find how far the dead driver was."""
    driver = world.driver("a")
    world.store.runs |= {"dead.1": {}, "dead.2": {}}
    world.store.old = {"dead.1", "dead.2"}
    world.group.reset(tp(1), 5, mark("dead.1", is_trusted=True))
    driver.now_s += HOUR_S
    driver.steps()

    assert "dead.2" in world.store.removed
    assert "dead.1" in world.store.runs


def test_a_driver_that_never_starts_again_still_cleans_up(world: World) -> None:
    """The dead one's checkpoint is too young when its partitions are taken over."""
    driver = world.driver("a")
    world.store.runs["dead.1"] = {}
    driver.now_s += HOUR_S
    driver.steps()
    assert "dead.1" in world.store.runs
    world.store.old = {"dead.1"}
    driver.now_s += HOUR_S
    driver.steps()

    assert "dead.1" in world.store.removed
    assert len(driver.queries) == 1


def test_a_drivers_own_old_runs_are_deleted_and_its_active_one_is_not(world: World) -> None:
    """A driver that is removed now and then lives for months, and each time leaves one."""
    driver = world.driver("a")
    world.group.evict(driver.session)
    driver.steps(2)
    assert {"a.1", "a.2"} <= world.store.runs.keys()
    world.store.old = {"a.1", "a.2"}  # The topic may be quiet.
    driver.now_s += HOUR_S
    driver.steps()

    assert set(world.store.runs) == {"a.2"}


def test_offsets_put_back_with_their_metadata_are_where_it_goes_on(world: World) -> None:
    """As from a table that was saved an hour ago: the running query's word counts no more."""
    driver = world.driver("a")
    saved = dict(world.group.offsets)
    driver.query.batch()
    driver.steps()
    assert world.group.offset(tp(0)) == 20
    world.group.offsets.update(saved)
    driver.query.batch()
    driver.steps(2)

    assert dict(driver.query.run.starting_offsets) == {tp(0): 10, tp(1): 10}


def test_a_dead_drivers_damaged_checkpoint_stops_nobody(world: World) -> None:
    """After a power cut there may be empty files; what is committed is good enough."""
    first = world.driver("a")
    first.query.batch()
    world.store.damaged.add(first.query.run.name)
    world.group.evict(first.session)
    second = FakeDriver("b", world.group, world.topics, world.store, Counter())
    second.steps()

    assert dict(second.query.run.starting_offsets) == {tp(0): 10, tp(1): 10}


def test_a_query_may_fail_for_days(world: World) -> None:
    """With a limit as good as none, the pause must not grow beyond all numbers."""
    driver = world.driver("a", max_failures=10**6)
    for _ in range(1100):
        driver.query.fail(ValueError("sink"))
        driver.steps()
        driver.now_s += 61
        driver.steps()

    assert driver.query.active
