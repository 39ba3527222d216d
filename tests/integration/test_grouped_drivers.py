"""Two drivers of a grouped query, each a process group of its own; one is killed."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.integration.kafka_support import Broker, needs_connector
from tests.integration.spark_support import (
    DEADLINE_S,
    GROUP,
    ROOT,
    Daemon,
    Lines,
    group_of,
    wait_until,
)

pytestmark = [
    pytest.mark.integration,
    pytest.mark.spark,
    pytest.mark.nightly,
    needs_connector,
]

BATCH = 40
PERIOD_S = 0.2
STARTUP_S = 180.0


class Driver:
    """A driver process."""

    def __init__(self, name: str, folder: Path, daemon: Daemon, kafka: Broker, topic: str) -> None:
        self.sink = folder / f"{name}.txt"
        given = {
            "address": daemon.address,
            "kafka": kafka.address,
            "topic": topic,
            "group": GROUP,
            "batch": str(BATCH),
            "sink": str(self.sink),
            "root": str(folder / "ck"),
            "scratch": str(folder / f"{name}-{uuid4().hex}"),
        }
        with (folder / f"{name}.err").open("ab") as err:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).parent / "grouped_driver.py"),
                    json.dumps(given),
                ],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                start_new_session=True,
            )
        self.lines = Lines(self.process)

    def go(self) -> None:
        """Start the query, as soon as Spark is up."""
        wait_until("Spark", lambda: bool(self.lines.named("prepared")), STARTUP_S)
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def values(self) -> list[str]:
        """Return what it has written."""
        return self.sink.read_text().split() if self.sink.exists() else []

    def wait_rows(self) -> None:
        """Wait until it wrote something new."""
        before = len(self.values())
        wait_until(f"rows in {self.sink.name}", lambda: len(self.values()) > before, STARTUP_S)

    def kill(self) -> None:
        """SIGKILL the driver, its JVM and all its Python workers."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.lines.close()
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def feeding(kafka: Broker, topic: str) -> Iterator[dict[int, int]]:
    """Produce to two partitions all the time; yields how many are there."""
    ends = {0: 0, 1: 0}
    over = threading.Event()

    def feed() -> None:
        while not over.wait(PERIOD_S):
            kafka.produce(
                topic, {p: [f"{p}-{end + i}" for i in range(5)] for p, end in ends.items()}
            )
            for p in ends:
                ends[p] += 5

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield ends
    finally:
        over.set()
        thread.join(DEADLINE_S)


def test_a_killed_driver_costs_one_batch_and_a_restart_goes_on_where_the_group_is(
    kafka: Broker, coordinator: Daemon, tmp_path: Path
) -> None:
    """The whole guarantee: no gap, one batch twice, nothing on SIGTERM, checkpoints cleaned."""
    topic = f"orders-{uuid4().hex[:8]}"
    kafka.create(topic, 2)
    drivers: list[Driver] = []

    def driver(name: str) -> Driver:
        drivers.append(Driver(name, tmp_path, coordinator, kafka, topic))
        return drivers[-1]

    try:
        with group_of(coordinator) as group:
            with feeding(kafka, topic) as ends:
                first, second = driver("a"), driver("b")
                first.go()
                first.wait_rows()
                second.go()
                second.wait_rows()
                first.wait_rows()
                assert max(Counter(first.values() + second.values()).values()) == 1

                first.kill()
                wait_until("the eviction", lambda: coordinator.evictions() == 1)
                second.wait_rows()
                again = driver("a")  # Appends to the same file, with a new checkpoint.
                again.go()
                again.wait_rows()
                second.wait_rows()
            wait_until("all committed", lambda: group.offsets() == ends, STARTUP_S)
            for one in (again, second):
                one.process.send_signal(signal.SIGTERM)
                one.lines.wait("stopped")
            assert group.offsets() == ends
        written = Counter(again.values() + second.values())
    finally:
        for one in drivers:
            one.kill()

    assert set(written) == {f"{p}-{i}" for p, end in ends.items() for i in range(end)}
    assert max(written.values()) <= 2
    assert sum(written.values()) - len(written) <= BATCH
    # Only that of the killed driver is left; it is deleted when it is an hour old.
    assert len(list((tmp_path / "ck" / GROUP).iterdir())) <= 1
