"""Several Spark drivers, killed and frozen, write to one Delta table and to one database."""

import random
import signal
import sqlite3
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from client.spark.sinks import SqlSink
from tests.integration.spark_support import GROUP, Driver, Feeder, daemon, group_of, wait_until
from tests.spark.delta_support import offsets

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.nightly]

KILLS = 2

# Each start of a driver has a first batch, in which Spark compiles everything.
FIRST_BATCH_S = 300.0


def test_whoever_dies_or_sleeps_each_row_is_in_each_sink_once(tmp_path: Path) -> None:
    """The promise of the sinks, with SIGKILL at any moment and a late writer."""
    rng = random.Random(3)
    db = tmp_path / "sink.db"
    out = tmp_path / "out"
    _make_table(db)
    with ExitStack() as stack:
        running = stack.enter_context(daemon(tmp_path / "data"))
        group = stack.enter_context(group_of(running))
        feeder = Feeder(tmp_path / "log")
        stack.callback(feeder.close)

        def prepare(name: str) -> Driver:
            driver = Driver(
                name,
                tmp_path / "drivers",
                feeder.root,
                running.address,
                script="sink_driver.py",
                out=str(out),
                db=str(db),
            )
            stack.callback(driver.kill)
            return driver

        feeder.feed(20, period_s=0.3)
        first, second = prepare("a"), prepare("b")
        for driver in (first, second):
            _wait_prepared(driver)
            driver.tell("go")
        _wait_rows(first)
        _wait_rows(second)
        for _ in range(KILLS):
            again = prepare("b")  # The same checkpoint: it begins with a replay.
            _wait_prepared(again)
            _let_pass(first, rng)
            second.kill()
            _wait_rows(first)
            again.tell("go")
            _wait_rows(again)
            second = again
        first.signal(signal.SIGSTOP)  # Somewhere in a batch.
        evicted = running.evictions()
        wait_until("an eviction", lambda: running.evictions() > evicted, FIRST_BATCH_S)
        _wait_rows(second)
        first.signal(signal.SIGCONT)
        _wait_rows(first)
        ends = feeder.stop()
        wait_until("all rows committed", lambda: group.offsets() == ends, FIRST_BATCH_S)
        for driver in (first, second):
            driver.tell("drain")
            wait_until("a drain", lambda: bool(driver.lines.named("stopped")), FIRST_BATCH_S)  # noqa: B023 - Done at once.
            assert driver.lines.wait("stopped")["failure"] is None

    everything = Counter((p, offset) for p, end in ends.items() for offset in range(end))
    assert Counter(offsets(out)) == everything
    with sqlite3.connect(db) as looked:
        in_table = looked.execute("SELECT partition, offset FROM events").fetchall()
    looked.close()
    assert Counter(in_table) == everything


def _wait_rows(driver: Driver) -> None:
    before = driver.size()
    wait_until(f"rows of {driver.name}", lambda: driver.size() > before, FIRST_BATCH_S)


def _wait_prepared(driver: Driver) -> None:
    wait_until("Spark is up", lambda: bool(driver.lines.named("prepared")), FIRST_BATCH_S)


def _let_pass(driver: Driver, rng: random.Random) -> None:
    """Wait for some batches of *driver*, so that the other one is anywhere in its own."""
    for _ in range(rng.randrange(1, 4)):
        _wait_rows(driver)


def _make_table(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA journal_mode = WAL")
        columns = "topic, partition, offset, id, name, range_start, range_end, generation"
        db.execute(f"CREATE TABLE events ({columns})")
    db.close()
    SqlSink(partial(sqlite3.connect, path), table="events", group=GROUP).create_tables()
