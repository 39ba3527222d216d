"""Several Spark drivers, each a process group of its own, share one topic.

One long story instead of many short ones, because starting a driver is what takes the time: each
step begins where the one before ended, and the sinks are judged over the whole.
"""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.integration.spark_support import (
    NUM_PARTITIONS,
    Daemon,
    Driver,
    Feeder,
    Group,
    Written,
    daemon,
    group_of,
    wait_until,
)
from tests.spark.fault_support import shows

pytestmark = [pytest.mark.integration, pytest.mark.spark]


class Scene:
    """A daemon, a topic that grows, and drivers."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        self.folder = folder
        self.daemon: Daemon = stack.enter_context(daemon(folder / "data"))
        self.group: Group = stack.enter_context(group_of(self.daemon))
        self.feeder = Feeder(folder / "log")
        stack.callback(self.feeder.close)
        self._stack = stack
        self.sinks: set[Path] = set()

    def prepare(self, name: str) -> Driver:
        """Start a driver's process; its query waits for `Driver.go`."""
        driver = Driver(name, self.folder / "drivers", self.feeder.root, self.daemon.address)
        self._stack.callback(driver.kill)
        self.sinks.add(driver.sink)
        return driver

    def written(self) -> Written:
        """Return what all drivers wrote together."""
        return Written(*self.sinks)

    def finish(self) -> Written:
        """Stop the feed, wait until all of it is committed, and check for gaps."""
        ends = self.feeder.stop()
        wait_until("all rows committed", lambda: self.group.offsets() == ends)
        written = self.written()
        written.expect_all(ends)
        return written


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A scene without drivers."""
    with ExitStack() as stack:
        yield Scene(stack, tmp_path)


@shows("member frozen past its session and thawed")
def test_drivers_join_freeze_die_come_back_and_drain(scene: Scene) -> None:
    """Planned changes repeat nothing; a freeze or a kill costs one batch; nothing is ever lost."""
    scene.feeder.feed(5, period_s=0.5)
    first, second = scene.prepare("a"), scene.prepare("b")
    first.go()
    first.wait_rows()
    second.go()  # Joins while the first one runs.
    second.wait_rows()
    third = scene.prepare("a")  # Takes its time; needed further down.
    scene.group.wait_members(2)
    first.wait_rows()
    assert scene.written().repeated == []
    assert scene.daemon.evictions() == 0

    first.signal(signal.SIGSTOP)  # Past its session: the second one takes over.
    wait_until("the first eviction", lambda: scene.daemon.evictions() == 1)
    scene.group.wait_members(1)
    second.wait_rows()
    first.signal(signal.SIGCONT)
    scene.group.wait_members(2)  # It joins again by itself.
    first.wait_rows()
    # One batch holds at most one range of each partition.
    assert len(scene.written().repeated) <= NUM_PARTITIONS

    first.kill()  # Driver, JVM and Python workers at once.
    wait_until("the second eviction", lambda: scene.daemon.evictions() == 2)
    scene.group.wait_members(1)
    second.wait_rows()
    third.go()  # The first one again, from its old checkpoint: begins with a replay.
    third.wait_rows()
    scene.group.wait_members(2)
    repeated = scene.written().repeated
    assert len(repeated) <= 2 * NUM_PARTITIONS

    second.tell("drain")
    assert second.lines.wait("stopped")["failure"] is None
    scene.group.wait_members(1)
    third.wait_rows()
    written = scene.finish()
    assert written.repeated == repeated
    assert max(written.ranges.values()) <= 3

    third.kill_jvm()  # Its reader notices, and leaves without being evicted.
    wait_until("an empty group", lambda: scene.group.member_ids() == [])
    assert scene.daemon.evictions() == 2


@pytest.mark.nightly
def test_what_is_kept_goes_on_while_a_driver_joins(scene: Scene) -> None:
    """The join waits for a driver that is inside of a long batch; the third one doesn't."""
    scene.feeder.feed(5, period_s=0.2)
    slow, quick = scene.prepare("slow"), scene.prepare("quick")
    slow.go()
    slow.wait_rows()
    quick.go()
    quick.wait_rows()
    scene.group.wait_members(2)
    late = scene.prepare("late")
    late.lines.wait("prepared")
    slow.hold()
    slow.wait_rows()  # And does not end that batch.

    late.tell("go")
    wait_until("a rebalance", lambda: scene.group.state() == "preparingrebalance")
    before = quick.size()
    for _ in range(5):
        quick.wait_rows()

    assert scene.group.state() == "preparingrebalance"
    assert quick.size() > before
    slow.release()
    late.wait_rows()
    slow.wait_rows()
    quick.wait_rows()
    assert scene.finish().repeated == []
    assert scene.daemon.evictions() == 0
