"""Log calls that block."""

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from client.spark.logs.partition_log import LogUnavailable
from client.spark.source.log_calls import Call, Watchdog, patience_s
from tests.spark.helpers import options


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
