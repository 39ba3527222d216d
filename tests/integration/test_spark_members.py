"""Reader cores with the real client against a real daemon, without Spark.

What a batch takes is decided by the test: a reader that isn't asked for its next batch is inside
of one.
"""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from client.spark.errors import CoordinatedSourceError
from client.spark.source.core import ReaderCore, Task
from client.spark.source.reader_options import parse_options
from client.spark.source.session import BlockingSession
from tests.integration.spark_support import Daemon, group_of, wait_until
from tests.spark.helpers import MemoryLog, Offset, ranges

pytestmark = [pytest.mark.integration]

PARTITIONS = 4

# Of a reader that joins, but isn't let in.
IMPATIENT = {"rebalanceTimeout": "500ms", "requestTimeout": "500ms"}


class Reader:
    """One reader process, in this one; `trigger` is what Spark does between two batches."""

    def __init__(self, log: MemoryLog, address: str, **given: str) -> None:
        given_options = {
            "coordinator": address,
            "group": "g",
            "topics": "flights",
            "sessionTimeout": "4500ms",
            "rebalanceTimeout": "30s",
            "coordinatorTimeout": "40s",
            "requestTimeout": "5s",
            "discoveryInterval": "200ms",
            "warmUp": "false",
            **given,
        }
        if "topicsPattern" in given:
            del given_options["topics"]
        options = parse_options(given_options)
        client_id = f"spark-{uuid.uuid4().hex}"
        self.sunk: list[Task] = []
        self.last: list[Task] = []
        self.at: Offset | None = None
        self.core = ReaderCore(
            options,
            log,
            open_session=lambda topics, eager: BlockingSession(
                options, client_id, log, topics, eager=eager
            ),
            client_id=client_id,
            clock=time.monotonic,
            sleep=time.sleep,
            warms_up=options.warm_up,
        )

    def resume(self, other: "Reader") -> None:
        """Begin with another one's checkpoint."""
        self.at = other.at

    def trigger(self) -> list[Task]:
        """Run one batch to its end; return what it wrote."""
        self.last = []
        start = self.core.initial_offset() if self.at is None else self.at
        end = self.core.latest_offset(start, 5)
        if end == start:
            return []
        tasks = self.core.partitions(start, json.loads(json.dumps(end)))
        self.sunk += tasks
        self.last = tasks
        self.at = json.loads(json.dumps(end))
        return tasks


class Scene:
    """A daemon, a log, and readers that are stopped at the end."""

    def __init__(self, stack: ExitStack, coordinator: Daemon) -> None:
        self.log = MemoryLog(dict.fromkeys(range(PARTITIONS), 100_000))
        self.group = stack.enter_context(group_of(coordinator))
        self._address = coordinator.address
        self._stack = stack
        self.pool = stack.enter_context(ThreadPoolExecutor())

    def reader(self, **given: str) -> Reader:
        """Return a reader that has not joined yet."""
        made = Reader(self.log, self._address, **given)
        self._stack.callback(made.core.stop)
        return made

    def run_until(self, what: str, condition: Callable[[], bool], *readers: Reader) -> None:
        """Let readers work, each in a thread of its own, until *condition* is true."""
        enough = threading.Event()

        def go_on(reader: Reader) -> None:
            while not enough.wait(0.02):
                reader.trigger()

        running = [self.pool.submit(go_on, reader) for reader in readers]
        try:
            wait_until(what, lambda: condition() or any(one.done() for one in running))
        finally:
            enough.set()
        for one in running:
            one.result()

    def share(self, *readers: Reader) -> None:
        """Let readers work until each has an equal share, all of the same generation."""

        def shared() -> bool:
            last = [list(one.last) for one in readers]
            tasks = [task for one in last for task in one]
            return (
                {len(one) for one in last} == {PARTITIONS // len(readers)}
                and len({task.tp for task in tasks}) == PARTITIONS
                and len({task.range.generation for task in tasks}) == 1
            )

        self.run_until("shares", shared, *readers)

    def state(self) -> str:
        """Return the state of the group."""
        (group,) = self.group.client.describe_groups(["g"])
        return group.state.lower()

    def members(self) -> list[str]:
        """Return the ids of all members."""
        (group,) = self.group.client.describe_groups(["g"])
        return [member.member_id for member in group.members]


@pytest.fixture
def scene(coordinator: Daemon) -> Iterator[Scene]:
    """A scene without readers."""
    with ExitStack() as stack:
        yield Scene(stack, coordinator)


def expect_each_range_once(*readers: Reader) -> None:
    """Check that nothing is missing and nothing was written twice."""
    written = sorted(ranges([task for reader in readers for task in reader.sunk]))
    for partition in range(PARTITIONS):
        ends = [end for p, _, end in written if p == partition]
        assert ends == list(range(5, 5 * len(ends) + 5, 5))


def test_what_is_kept_goes_on_while_a_reader_is_inside_of_a_long_batch(scene: Scene) -> None:
    """The group waits for the slow one for as long as it takes; the quick one doesn't."""
    slow, quick, late = scene.reader(), scene.reader(), scene.reader()
    scene.share(slow, quick)

    joining = scene.pool.submit(late.trigger)
    wait_until("a rebalance", lambda: scene.state() == "preparingrebalance")
    batches = [quick.trigger() for _ in range(30)]

    assert scene.state() == "preparingrebalance"
    assert {len(tasks) for tasks in batches} == {PARTITIONS // 2}
    scene.run_until("the join", joining.done, slow, quick)
    readers = (slow, quick, late)
    scene.run_until("a share for each", lambda: all(one.last for one in readers), *readers)
    expect_each_range_once(*readers)


def test_a_static_reader_comes_back_without_a_rebalance(scene: Scene) -> None:
    """Its place is kept, and its forerunner hears why it ends.

    No session ends here: they are long, as a busy machine's heartbeats may be late.
    """
    other, old, new = (
        scene.reader(groupInstanceId=name, sessionTimeout="30s") for name in ("o", "me", "me")
    )
    scene.share(other, old)
    generation = old.sunk[-1].range.generation
    mine = {task.tp for task in old.sunk if task.range.generation == generation}

    wait_until("rows of the new one", lambda: bool(new.trigger()))

    assert {task.tp for task in new.sunk} == mine
    assert new.sunk[0].range.generation == generation
    with pytest.raises(CoordinatedSourceError, match="option 'groupInstanceId': another reader"):
        wait_until("the end of the old one", lambda: not old.trigger() and False)
    new.core.stop()
    assert len(scene.members()) == 2


@pytest.mark.nightly
def test_a_static_leader_finds_what_grew_while_it_was_away(scene: Scene) -> None:
    """It took over an assignment that it has not computed."""
    old = scene.reader(groupInstanceId="me")
    old.trigger()
    old.core.stop()
    scene.log.ends[PARTITIONS] = 5
    new = scene.reader(groupInstanceId="me")

    wait_until("the new partition", lambda: len(new.trigger()) == PARTITIONS + 1)


@pytest.mark.nightly
def test_a_pattern_takes_in_topics_that_come_later(scene: Scene) -> None:
    """All readers say anew what they read, in one rebalance or two."""
    readers = [scene.reader(topicsPattern="fl.*") for _ in range(2)]
    scene.share(*readers)
    scene.log.others["flown"] = dict.fromkeys(range(2), 100_000)

    def topics() -> set[str]:
        return {task.tp.topic for reader in readers for task in reader.last}

    scene.run_until("the new topic", lambda: topics() == {"flights", "flown"}, *readers)


@pytest.mark.nightly
@pytest.mark.parametrize("kinds", [("cooperative,range", "cooperative"), ("range", "range")])
def test_readers_of_all_kinds_share_a_group(scene: Scene, kinds: tuple[str, str]) -> None:
    """As while one kind is replaced by the other, driver by driver."""
    one, two = (scene.reader(assignor=kind) for kind in kinds)

    scene.share(one, two)

    expect_each_range_once(one, two)


@pytest.mark.nightly
def test_a_reader_of_the_release_before_is_named(scene: Scene) -> None:
    """It offers range only; the message says which option lets the two live together."""
    old, new = scene.reader(assignor="range"), scene.reader()
    old.trigger()

    with pytest.raises(CoordinatedSourceError, match="option 'assignor' is 'cooperative'"):
        new.trigger()


@pytest.mark.nightly
def test_available_now_readers_end_only_when_all_is_read(scene: Scene) -> None:
    """Two that start together share the work, and neither takes "not mine yet" for "done"."""
    scene.log.ends = dict.fromkeys(range(PARTITIONS), 50)

    def run(reader: Reader) -> None:
        reader.core.prepare_available_now()
        reader.trigger()  # At least one empty batch, that publishes the reader.
        while reader.trigger():
            pass
        reader.core.stop()

    readers = [scene.reader() for _ in range(2)]
    for future in [scene.pool.submit(run, reader) for reader in readers]:
        future.result(60)

    expect_each_range_once(*readers)
    assert scene.group.offsets() == dict.fromkeys(range(PARTITIONS), 50)


def test_a_reader_joins_after_it_has_warmed_up(scene: Scene) -> None:
    """Until then the others go on with all partitions, and nobody waits for it."""
    at_work, new = scene.reader(), scene.reader(warmUp="true")
    scene.share(at_work)

    assert new.trigger() == []

    assert new.core.warming_up
    assert len(scene.members()) == 1
    assert len(at_work.trigger()) == PARTITIONS
    scene.share(at_work, new)
    expect_each_range_once(at_work, new)


def test_a_topic_may_come_while_a_reader_warms_up(scene: Scene) -> None:
    """It has said by then what it reads, and not joined."""
    at_work = scene.reader(topicsPattern="fl.*")
    new = scene.reader(topicsPattern="fl.*", warmUp="true")
    scene.share(at_work)
    new.trigger()
    assert new.core.warming_up
    scene.log.others["flown"] = dict.fromkeys(range(2), 100_000)

    def counts() -> list[int]:
        return sorted(len(reader.last) for reader in (at_work, new))

    scene.run_until("the new topic", lambda: counts() == [3, 3], at_work, new)


def test_a_reader_begins_at_once_where_nobody_reads(scene: Scene) -> None:
    """All have left, or the group isn't known yet."""
    gone, new = scene.reader(), scene.reader(warmUp="true")
    scene.share(gone)
    gone.core.stop()

    assert len(new.trigger()) == PARTITIONS
    assert len(scene.reader(group="other", warmUp="true").trigger()) == PARTITIONS


def test_others_are_those_that_read_the_same_topics(scene: Scene) -> None:
    """A group may have a query for each of its topics; they never give each other anything."""
    at_work = scene.reader()
    scene.share(at_work)
    scene.log.others["trains"] = {0: 100}
    new = scene.reader(topics="trains", warmUp="true", **IMPATIENT)

    new.core.latest_offset({}, 5)

    assert not new.core.warming_up


def test_a_reader_that_was_killed_is_no_other(scene: Scene) -> None:
    """Its session goes on for a while; nobody reads its partitions."""
    killed, again = scene.reader(), scene.reader(warmUp="true", **IMPATIENT)
    scene.share(killed)

    again.resume(killed)
    again.trigger()

    assert not again.core.warming_up


@pytest.mark.parametrize(("instance", "warms_up"), [("a", False), ("b", True)])
def test_a_static_reader_warms_up_only_where_it_is_new(
    scene: Scene, instance: str, *, warms_up: bool
) -> None:
    """The partitions of a place that is kept are nobody's until it is taken."""
    at_work = scene.reader(groupInstanceId="a")
    scene.share(at_work)

    new = scene.reader(groupInstanceId=instance, warmUp="true")
    new.trigger()

    assert new.core.warming_up == warms_up


def test_a_reader_that_stops_while_it_warms_up_was_never_there(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """There is nothing to leave, and nobody notices."""
    at_work, new = scene.reader(), scene.reader(warmUp="true")
    scene.share(at_work)
    generation = at_work.last[0].range.generation
    new.trigger()

    new.core.stop()

    assert "could not leave" not in caplog.text
    assert {task.range.generation for task in at_work.trigger()} == {generation}
