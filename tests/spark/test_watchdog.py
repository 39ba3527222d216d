"""Log calls that block, and reads that fail or are silent."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from client.spark.errors import LogFailed
from client.spark.logs.partition_log import LogError, LogUnavailable
from client.spark.source.log_calls import Call, Watchdog, patience_s
from client.spark.source.reading import ReadMonitor, read_range
from tests.spark.helpers import MemoryLog, options


def never(done: threading.Event, _seconds: float) -> bool:
    """Wait for an event as if it took too long, unless it is set."""
    return done.is_set()


@pytest.fixture
def block() -> Iterator[Callable[[], object]]:
    """Return a call that blocks until the test is over."""
    over = threading.Event()
    yield lambda: over.wait(60)
    over.set()


def test_calls_are_made_in_order_in_one_thread_that_is_not_ours() -> None:
    """A log need not be safe for threads, and may keep what belongs to a thread."""

    def where(number: int) -> tuple[int, int]:
        return number, threading.get_ident()

    watchdog = Watchdog(10.0)
    calls = [Call(str(number), partial(where, number)) for number in range(5)]

    first, second = watchdog.run(calls), watchdog.run(calls)

    assert [n for n, _ in first + second] == [0, 1, 2, 3, 4] * 2
    assert len({thread for _, thread in first + second} - {threading.get_ident()}) == 1


def test_an_exception_takes_the_place_of_a_result() -> None:
    """The other calls of the batch count."""
    error = KeyError("x")

    def fail() -> None:
        raise error

    assert Watchdog(10.0).run([Call("a", fail), Call("b", lambda: 2)]) == [error, 2]


def test_what_was_answered_before_a_call_blocked_counts(block: Callable[[], object]) -> None:
    """One stuck partition must not hide the others."""
    seconds = iter(range(1_000))
    answered = threading.Event()

    def wait(done: threading.Event, _seconds: float) -> bool:
        answered.wait(60)
        return done.is_set()

    def answer() -> int:
        return 1

    def stuck() -> object:
        answered.set()
        return block()

    watchdog = Watchdog(5.0, clock=lambda: float(next(seconds)), wait=wait)
    result, first, second = watchdog.run(
        [Call("p-0", answer), Call("p-1", stuck), Call("p-2", answer)]
    )

    assert result == 1
    assert isinstance(first, LogUnavailable)
    assert "p-1 has not answered for" in str(first)
    assert second is first
    (after,) = watchdog.run([Call("p-0", answer)])  # The thread is not back yet.
    assert "p-1 has not answered for" in str(after)


def test_a_call_that_comes_back_late_frees_the_log() -> None:
    """A network that hangs for a minute is no reason to end a query."""
    seconds = iter(range(1_000))
    entered, over = threading.Event(), threading.Event()
    waits = [lambda done: entered.wait(60) and done.is_set()] * 7

    def wait(done: threading.Event, _seconds: float) -> bool:
        return waits.pop()(done) if waits else done.wait(60)

    def late() -> None:
        entered.set()
        over.wait(60)

    skipped: list[int] = []
    watchdog = Watchdog(5.0, clock=lambda: float(next(seconds)), wait=wait)
    given_up = watchdog.run([Call("late", late), Call("skipped", lambda: skipped.append(1))])
    assert all(isinstance(answer, LogUnavailable) for answer in given_up)
    waits.clear()
    over.set()

    assert watchdog.run([Call("next", lambda: 2)]) == [2]
    assert skipped == []  # Nobody waits for it any more.


@pytest.mark.parametrize(
    ("log_timeout", "rebalance_timeout", "seconds"), [("2m", "10m", 120), ("10m", "2m", 30)]
)
def test_patience_leaves_time_for_a_hand_over(
    log_timeout: str, rebalance_timeout: str, seconds: int
) -> None:
    """A rebalance that begins while a log blocks must not evict the reader."""
    given = options(
        logTimeout=log_timeout, rebalanceTimeout=rebalance_timeout, coordinatorTimeout="20m"
    )

    assert patience_s(given) == seconds


class ReadingLog(MemoryLog):
    """Yields what it is given, or raises it."""

    rows: tuple[pa.RecordBatch | Exception, ...] = ()

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield or raise."""
        for rows in self.rows:
            if isinstance(rows, Exception):
                raise rows
            yield rows


TASK: Any = SimpleNamespace(topic="flights", partition=3, start=10, end=20, generation=1)
ROWS = pa.RecordBatch.from_pydict({"id": [1]})


@pytest.mark.parametrize("error", [LogError("gone"), ZeroDivisionError("gone")])
def test_a_read_that_fails_names_its_range(error: Exception) -> None:
    """Spark shows the message of one task of many."""
    log = ReadingLog({3: 20})
    log.rows = (ROWS, error)
    rows = read_range(log, TASK, 10.0)
    assert next(rows) is ROWS

    words = rf"flights-3: read\(10, 20\) of the log ReadingLog failed: {type(error).__name__}: gone"
    with pytest.raises(LogFailed, match=words):
        next(rows)


def test_a_silent_read_is_warned_of_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """It can't be given up, but a hanging task without a word is a riddle."""
    now = [0.0]
    monitor = ReadMonitor(clock=lambda: now[0])
    monitor.watch("read", "flights-3: read(10, 20)", 30.0)
    for now[0] in (29.0, 30.0, 31.0, 59.0, 60.0):
        monitor.look()

    assert [record.getMessage() for record in caplog.records] == [
        f"flights-3: read(10, 20) has yielded nothing for {seconds} s" for seconds in (30, 60)
    ]
    monitor.done("read")
    now[0] = 200.0
    monitor.look()
    assert len(caplog.records) == 2


def test_what_spark_does_with_rows_is_not_the_logs_silence(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A slow sink is another matter."""
    now = [0.0]
    monitor = ReadMonitor(clock=lambda: now[0])
    log = ReadingLog({3: 20})
    log.rows = (ROWS, ROWS)

    for _ in read_range(log, TASK, 10.0, monitor):
        now[0] += 100.0
        monitor.look()

    assert caplog.text == ""
