"""The grouped query without Spark: one driver or two, one fault at a time."""

from collections import Counter
from collections.abc import Mapping

import pytest

from client.exceptions import CommitRefused
from client.spark.errors import CoordinatorTimeout
from client.spark.grouped_types import GroupedQueryError, GroupedQueryFailed, Progress, mark
from client.spark.kafka_topics import KafkaTopicError
from protocol.errors import ErrorCode
from protocol.types import TopicPartition
from tests.fakes.group_session import FakeGroup, Fault
from tests.fakes.grouped import FakeDriver, FakeStore, FakeTopics, tp


class World:
    """A topic with two partitions of thirty rows, and a group."""

    def __init__(self) -> None:
        self.topics = FakeTopics(2)
        self.topics.ends = {tp(0): 30, tp(1): 30}
        self.group = FakeGroup([tp(0), tp(1)])
        self.store = FakeStore()
        self.written: Counter[tuple[int, int]] = Counter()

    def driver(self, name: str = "a", **given: object) -> FakeDriver:
        """Return a driver that has not joined yet."""
        return FakeDriver(name, self.group, self.topics, self.store, self.written, **given)

    def started(self, name: str = "a", **given: object) -> FakeDriver:
        """Return a driver whose query runs."""
        driver = self.driver(name, **given)
        driver.steps()
        return driver

    def offsets(self) -> list[int | None]:
        """Return what is committed."""
        return [self.group.offset(tp(0)), self.group.offset(tp(1))]


@pytest.fixture
def world() -> World:
    """Nothing has happened yet."""
    return World()


def test_a_run_claims_its_starting_offsets_before_it_starts(world: World) -> None:
    """Else "latest" would be another place for the next owner, and what is between is lost."""
    driver = world.driver(starting_offsets="latest")
    driver.start_error = ValueError("no start")
    with pytest.raises(ValueError, match="no start"):
        driver.steps()

    assert world.offsets() == [30, 30]


def test_a_partition_that_comes_later_is_read_from_its_start(world: World) -> None:
    """Nobody may skip what was written before the group noticed it, whatever "latest" says."""
    driver = world.driver(starting_offsets="latest")
    driver.steps()
    world.topics.ends[tp(2)] = 7
    world.group.partitions.append(tp(2))
    newcomer = world.driver(starting_offsets="latest")
    for _ in range(4):
        newcomer.steps()
        driver.steps()

    assert world.offsets() == [30, 30]
    assert world.group.offset(tp(2)) == 0


def test_only_what_the_sink_finished_is_committed(world: World) -> None:
    """A batch that is written and not logged as finished may still fail."""
    driver = world.started()
    driver.query.batch()
    driver.query.work()
    driver.query.work()
    driver.steps()

    assert driver.query.is_writing
    assert world.offsets() == [10, 10]


def test_a_hand_over_waits_for_the_end_of_the_batch_and_commits_it(world: World) -> None:
    """Planned changes repeat nothing."""
    first = world.started()
    first.query.batch()
    first.steps()
    first.query.work()
    first.query.work()
    first.on_sleep = first.query.work
    second = world.driver("b")
    second.steps()
    first.steps(2)
    second.steps(2)
    old = first.queries[0]

    assert (old.stops, old.is_writing) == (1, False)
    assert world.offsets() == [20, 20]
    assert [dict(d.query.run.starting_offsets) for d in (first, second)] == [
        {tp(0): 20},
        {tp(1): 20},
    ]
    assert max(world.written.values()) == 1


def test_a_batch_that_takes_too_long_is_interrupted(world: World) -> None:
    """The group would else go on without this driver, and commits would be refused."""
    driver = world.started()
    driver.query.batch()
    driver.steps()
    driver.query.work()
    driver.query.work()
    world.driver("b").steps()
    driver.steps()

    assert not driver.queries[0].active
    assert 40 <= driver.now_s < 60
    assert world.offsets() == [10, 10]


def test_a_rebalance_that_leaves_the_partitions_as_they_are_leaves_the_query_alone(
    world: World,
) -> None:
    """Each restart costs a second or two."""
    driver = world.driver()
    driver.is_cooperative = True
    driver.steps()
    driver.session.request_rejoin("why not")
    driver.query.batch()
    driver.steps(2)

    assert world.group.generation == 2
    assert len(driver.queries) == 1
    assert driver.query.active
    assert world.offsets() == [10, 10]


def test_a_cooperative_hand_over_keeps_what_stays_and_repeats_nothing(world: World) -> None:
    """What goes is committed before the group may give it to the other."""
    first, second = world.driver(), world.driver("b")
    first.is_cooperative = second.is_cooperative = True
    first.steps()
    first.query.batch()
    second.steps()
    for _ in range(4):
        first.steps()
        second.steps()
    for driver in (first, second):
        driver.query.batch()
        driver.steps()

    assert {len(d.query.run.starting_offsets) for d in (first, second)} == {1}
    assert world.offsets() == [20, 20]
    assert max(world.written.values()) == 1


def test_a_query_ends_when_more_partitions_come_and_begins_again_with_all(world: World) -> None:
    """Nobody else would read them; nothing is revoked that could tell."""
    first, second = world.driver(), world.driver("b")
    first.is_cooperative = second.is_cooperative = True
    for _ in range(4):
        first.steps()
        second.steps()
    first.query.batch()
    first.steps()
    world.group.evict(second.session)
    first.query.batch()
    first.steps(4)

    assert len(first.query.run.starting_offsets) == 2
    assert sorted(first.query.run.starting_offsets.values()) == [0, 20]


def test_a_driver_that_was_removed_stops_at_once_and_commits_nothing(world: World) -> None:
    """Its partitions are somebody else's."""
    driver = world.started()
    driver.query.batch()
    driver.query.work()
    driver.query.work()
    world.group.evict(driver.session)
    driver.core.step()

    assert not driver.query.active
    assert driver.now_s < 1
    assert world.offsets() == [0, 0]
    driver.steps()  # It joins again by itself.
    assert len(driver.queries) == 2


def test_a_driver_that_was_removed_does_not_wait_for_its_batch(world: World) -> None:
    """Whatever it still writes, the next owner writes, too; its checkpoint is left to be read."""
    driver = world.started()
    driver.query.batch()
    driver.steps()
    driver.query.batch()
    driver.query.work()
    driver.query.work()
    commits = len(driver.session.requests)
    world.group.evict(driver.session)
    driver.core._drop("fenced")

    assert driver.now_s < 2
    assert len(driver.session.requests) == commits
    assert world.store.finished("a.1") == {tp(0): 20, tp(1): 20}


def test_what_is_finished_while_the_end_is_noticed_is_committed_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A last batch between the two looks would be left to be repeated."""
    driver = world.started()
    driver.query.batch()
    driver.steps()
    query, finished = driver.query, world.store.finished

    def ends_meanwhile(run: str) -> Mapping[TopicPartition, int]:
        seen = finished(run)
        if query.active:
            query.batch()
            query.active = False
        return seen

    monkeypatch.setattr(world.store, "finished", ends_meanwhile)
    while driver.steps():
        pass

    assert world.offsets() == [20, 20]


def test_a_commit_that_is_fenced_ends_the_run(world: World) -> None:
    """The heartbeat may know later than the commit."""
    driver = world.started()
    driver.query.batch()
    world.group.evict(driver.session, noticed=False)
    driver.group.outage = False
    driver.session.generation = world.group.generation
    driver.core.step()

    assert not driver.queries[0].active
    assert world.offsets() == [0, 0]


def test_who_takes_over_begins_where_the_dead_drivers_sink_was(world: World) -> None:
    """So a crash repeats what was in flight only, not what was finished and not yet committed."""
    first = world.started()
    first.query.batch()
    first.steps()
    first.query.batch()  # Finished, and then the process dies.
    world.group.evict(first.session)
    second = world.started("b")

    assert dict(second.query.run.starting_offsets) == {tp(0): 20, tp(1): 20}
    assert world.offsets() == [20, 20]


def test_a_reset_after_a_crash_is_not_overruled_by_the_dead_drivers_checkpoint(
    world: World,
) -> None:
    """An operator who wants rows again must get them again."""
    first = world.started()
    first.query.batch()
    first.steps()
    first.query.batch()
    world.group.evict(first.session)
    world.group.reset(tp(0), 3)
    second = world.started("b")

    assert dict(second.query.run.starting_offsets) == {tp(0): 3, tp(1): 20}


def test_what_a_sink_that_was_never_seen_finished_is_not_trusted(world: World) -> None:
    """A file sink that skips batches calls them finished, too."""
    first = world.started()
    first.query.batch()
    world.group.evict(first.session)
    second = world.started("b")

    assert dict(second.query.run.starting_offsets) == {tp(0): 0, tp(1): 0}


def test_a_reset_of_a_running_group_begins_a_new_run_there(world: World) -> None:
    """The group's offsets count, not the checkpoint."""
    driver = world.started()
    driver.query.batch()
    driver.steps()
    world.group.reset(tp(0), 3)
    driver.query.batch()
    driver.steps(2)

    assert not driver.queries[0].active
    assert dict(driver.query.run.starting_offsets) == {tp(0): 3, tp(1): 20}


@pytest.mark.parametrize("fault", list(Fault))
def test_a_commit_without_an_answer_is_found_out_about(world: World, fault: Fault) -> None:
    """Whether it was stored or not, or comes late: nothing is lost and nothing goes back."""
    driver = world.started()
    driver.query.batch()
    world.group.faults.append(fault)
    driver.steps()
    driver.query.batch()
    driver.steps(2)
    world.group.deliver_late()
    driver.query.batch()
    driver.steps(2)

    assert world.offsets() == [30, 30]
    assert len(driver.queries) == 1


def test_in_an_outage_the_query_runs_on_for_a_while_and_then_pauses(world: World) -> None:
    """Others may have the partitions by then, and all that this driver does would be repeated."""
    driver = world.started(coordinator_timeout_s=1000.0)
    driver.query.batch()
    driver.steps()
    world.group.outage = True
    driver.query.batch()
    driver.steps(2)
    assert driver.query.active
    driver.steps(20)

    assert not driver.query.active
    world.group.outage = False
    driver.steps(3)
    assert world.offsets() == [20, 20]
    assert dict(driver.query.run.starting_offsets) == {tp(0): 20, tp(1): 20}
    assert driver.query.active


def test_an_outage_of_the_checkpoints_is_waited_out(world: World) -> None:
    """Without the commit log nobody knows what is finished."""
    driver = world.started()
    driver.query.batch()
    world.store.is_away = True
    driver.steps(2)
    assert world.offsets() == [0, 0]
    world.store.is_away = False
    driver.steps()

    assert world.offsets() == [10, 10]


def test_a_driver_that_never_gets_an_assignment_ends_with_a_message(world: World) -> None:
    """A wrong address must not look like a quiet topic."""
    world.group.outage = True
    driver = world.driver()
    with pytest.raises(CoordinatorTimeout, match=r"coordinator_timeout_s.*host:1"):
        driver.steps(100)


def test_a_wrong_topic_is_told_before_joining(world: World) -> None:
    """A group whose leader can't tell its partitions would be stuck."""
    driver = world.driver(topics=("wrong",))
    with pytest.raises(KafkaTopicError, match="wrong"):
        driver.steps()

    assert world.group.members == {}


def test_a_query_that_fails_begins_again_at_the_groups_offsets(world: World) -> None:
    """One bad moment of a sink needs nobody at night."""
    driver = world.started()
    driver.query.batch()
    driver.query.fail(ValueError("sink"))
    driver.steps(10)

    assert dict(driver.query.run.starting_offsets) == {tp(0): 10, tp(1): 10}
    assert driver.query.active
    assert driver.queries[0].run.name in world.store.removed


def test_a_query_that_fails_again_and_again_ends_with_sparks_error(world: World) -> None:
    """A poisoned message must not be tried for ever, and not be skipped."""
    driver = world.started()
    error = ValueError("sink")

    def go_on_failing() -> None:
        for _ in range(100):
            driver.query.fail(error)
            driver.steps()

    with pytest.raises(GroupedQueryFailed, match="3 times in a row") as caught:
        go_on_failing()

    assert caught.value.__cause__ is error
    assert world.offsets() == [0, 0]


def test_failures_with_progress_in_between_are_no_row(world: World) -> None:
    """A sink that fails once a day works."""
    driver = world.started()
    for _ in range(3):
        driver.query.batch()
        driver.query.fail(ValueError("sink"))
        driver.steps(10)

    assert world.offsets() == [30, 30]


def test_a_query_that_ends_by_itself_ends_the_whole(world: World) -> None:
    """Such as with availableNow."""
    driver = world.started()
    driver.query.batch()
    driver.query.active = False

    assert not driver.steps()
    assert world.offsets() == [10, 10]
    assert driver.session.left
    assert world.store.runs == {}


def test_a_stop_commits_what_is_finished_leaves_and_cleans_up(world: World) -> None:
    """The next driver begins exactly there."""
    driver = world.started()
    driver.query.batch()
    driver.core.request_stop()

    assert not driver.steps()
    assert world.offsets() == [10, 10]
    assert driver.session.left
    assert world.store.runs == {}


def test_a_second_stop_does_not_wait_for_the_batch(world: World) -> None:
    """Who presses Control-C twice means it."""
    driver = world.started()
    driver.query.work()
    driver.query.work()
    driver.core.request_stop()
    driver.core.request_stop()
    driver.core.step()

    assert driver.now_s < 1
    assert not driver.query.active


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress("ForeachBatchSink", ("dedupe",)), "stateful"),
        (Progress("FileSink[file:/data/out]", ()), "skips batch ids"),
    ],
)
def test_a_query_that_would_lose_rows_is_refused_before_anything_is_committed(
    world: World, progress: Progress, words: str
) -> None:
    """Each run begins with batch 0 and without state."""
    driver = world.started()
    driver.query.seen = progress
    driver.query.batch()
    with pytest.raises(GroupedQueryError, match=words):
        driver.steps()
    driver.core.close()

    assert not driver.query.active
    assert world.offsets() == [0, 0]
    assert dict(world.started("b").query.run.starting_offsets) == {tp(0): 0, tp(1): 0}


def test_a_file_sink_with_a_folder_per_run_is_fine(world: World) -> None:
    """That is what the message advises."""
    driver = world.started()
    driver.query.seen = Progress(f"FileSink[file:/out/{driver.query.run.name}]", ())
    driver.query.batch()
    driver.steps()

    assert world.offsets() == [10, 10]


def test_checkpoints_of_dead_drivers_are_deleted_and_those_of_members_are_not(
    world: World,
) -> None:
    """They would else pile up for ever."""
    world.driver("b").steps()
    world.store.runs |= {"dead.7": {}, "dead.8": {}, "b.9": {}}
    world.store.old = {"dead.7", "b.9"}
    driver = world.driver("a")
    driver.steps()
    for other in world.group.members.values():
        other.assignment()
    driver.steps(2)

    assert "dead.7" in world.store.removed
    assert {"dead.8", "b.9"} <= world.store.runs.keys()


def test_topics_that_grow_make_the_leader_ask_for_a_rebalance(world: World) -> None:
    """The new partitions would else belong to nobody."""
    driver = world.started()
    driver.core._partitions_of("t")
    world.topics.ends[tp(2)] = 5
    driver.now_s += 100
    driver.steps()

    assert driver.session.rejoins == ["the topics' partitions changed"]


def test_a_driver_without_partitions_waits(world: World) -> None:
    """More drivers than partitions stand by."""
    world.group.drain("a")
    driver = world.driver()
    driver.steps()
    world.group.drain("a")
    driver.steps(5)

    assert driver.steps()
    assert all(not query.active for query in driver.queries)


def test_a_full_disk_of_the_coordinator_is_waited_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends, and nothing is lost meanwhile."""
    driver = world.started()
    driver.query.batch()

    def full(*_: object) -> None:
        raise CommitRefused({tp(0): ErrorCode.STORAGE_FULL, tp(1): ErrorCode.STORAGE_FULL})

    with monkeypatch.context() as patched:
        patched.setattr(driver.session, "commit", full)
        driver.steps(2)
    assert world.offsets() == [0, 0]
    driver.steps()

    assert world.offsets() == [10, 10]
    assert world.group.offsets[tp(0)].metadata == mark("a.1", is_trusted=True)
