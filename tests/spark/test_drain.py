"""`drain_and_stop` with a query and a coordinator that do as the test says."""

import json
import signal
import threading
from collections.abc import Callable

import pytest

from client.exceptions import CoordinatorUnavailable, FatalError
from client.spark.errors import DrainTimeout
from client.spark.source.drain import (
    drain,
    readers_of,
    run_until_stopped,
    unless_asked_again,
    wait_and_drain,
)
from client.spark.source.stream_offsets import ReaderIdentity, encode_end
from protocol.errors import ErrorCode
from protocol.messages import DrainedMember
from tests.spark.helpers import Clock


def progress(*client_ids: str) -> dict[str, object]:
    """Return a progress whose sources name these readers."""
    return {
        "sources": [
            {"endOffset": json.dumps(encode_end({}, ReaderIdentity("h:1", "g", client_id)))}
            for client_id in client_ids
        ]
    }


class FakeQuery:
    """A running query."""

    def __init__(self, *client_ids: str) -> None:
        self.isActive = True
        self.lastProgress = progress(*client_ids) if client_ids else None
        self.failure: Exception | None = None

    def stop(self) -> None:
        """Stop."""
        self.isActive = False

    def exception(self) -> Exception | None:
        """Return why it failed."""
        return self.failure


class FakeCoordinator:
    """Drains a member when it was asked often enough."""

    def __init__(self, **asks: int) -> None:
        self.asks = asks
        self.errors: list[Exception] = []
        self.timeouts_ms: list[int | None] = []

    def drain_member(
        self, group: str, client_id: str, *, timeout_ms: int | None = None
    ) -> list[DrainedMember]:
        """Answer as planned."""
        self.timeouts_ms.append(timeout_ms)
        if self.errors:
            raise self.errors.pop(0)
        if client_id not in self.asks:
            raise FatalError("no such member", code=ErrorCode.UNKNOWN_MEMBER_ID)
        self.asks[client_id] -= 1
        return [DrainedMember(f"{client_id}-1", self.asks[client_id] <= 0)]


def run(
    query: FakeQuery, coordinator: FakeCoordinator, on_sleep: Callable[[], None] = lambda: None
) -> Clock:
    """Drain with a timeout of 10 s; return the clock."""
    clock = Clock()
    clock.on_sleep = on_sleep
    drain(query, lambda *_: coordinator, 10, clock=clock, sleep=clock.sleep)  # type: ignore[arg-type]  # fakes with what is used
    return clock


def test_the_query_stops_only_when_its_reader_owns_nothing() -> None:
    """Before that a stop could fall between the sink and the commit."""
    query = FakeQuery("a")

    clock = run(query, FakeCoordinator(a=4))

    assert not query.isActive
    assert len(clock.slept) == 3


def test_all_readers_of_a_query_are_drained() -> None:
    """A union may have several coordinated sources."""
    query = FakeQuery("a", "b")

    run(query, FakeCoordinator(a=2, b=5))

    assert not query.isActive


def test_the_name_of_a_reader_may_come_later() -> None:
    """The first batch publishes it; that of a replay may name a process that is gone."""
    query = FakeQuery()
    names = iter(["gone", "gone", "a"])

    def next_progress() -> None:
        query.lastProgress = progress(next(names, "a"))

    coordinator = FakeCoordinator(a=1)
    run(query, coordinator, next_progress)

    assert not query.isActive
    assert coordinator.asks == {"a": 0}  # It was not stopped for the one that is gone.


def test_an_outage_is_waited_out() -> None:
    """The drain is asked for again anyway."""
    query = FakeQuery("a")
    coordinator = FakeCoordinator(a=1)
    coordinator.errors = [CoordinatorUnavailable("away")] * 3

    run(query, coordinator)

    assert not query.isActive


def test_a_drain_that_takes_too_long_leaves_the_query_running() -> None:
    """Whether to stop anyway is the caller's decision."""
    query = FakeQuery("a")

    with pytest.raises(DrainTimeout, match="within 10 s: a still own"):
        run(query, FakeCoordinator(a=10_000))

    assert query.isActive


def test_no_question_waits_longer_than_the_drain_may_take() -> None:
    """With a coordinator that is away, the caller's timeout would be overrun by far."""
    clock = Clock()
    coordinator = FakeCoordinator(a=10_000)
    asked: list[int] = []

    def client_of(_: str, timeout_ms: int) -> FakeCoordinator:
        asked.append(timeout_ms)
        return coordinator

    with pytest.raises(DrainTimeout):
        drain(FakeQuery("a"), client_of, 12, clock=clock, sleep=clock.sleep)  # type: ignore[arg-type]  # fakes with what is used

    assert asked == coordinator.timeouts_ms
    assert asked[0] == 10_000
    assert asked[-10] < 2_100
    assert asked[-1] < 210


def test_a_query_without_readers_is_not_stopped_by_mistake() -> None:
    """It has no coordinated source, or never ran a batch."""
    query = FakeQuery()

    with pytest.raises(DrainTimeout, match="names its readers"):
        run(query, FakeCoordinator())


def test_a_refused_drain_says_why() -> None:
    """An old server, say."""
    coordinator = FakeCoordinator()
    coordinator.errors = [FatalError("UNSUPPORTED_VERSION", code=35)] * 100

    with pytest.raises(DrainTimeout, match="UNSUPPORTED_VERSION"):
        run(FakeQuery("a"), coordinator)


def test_a_query_that_ended_by_itself_is_fine_unless_it_failed() -> None:
    """AvailableNow may end while we wait."""
    query = FakeQuery("a")
    query.stop()
    run(query, FakeCoordinator())

    query.failure = ValueError("broken sink")
    with pytest.raises(ValueError, match="broken sink"):
        run(query, FakeCoordinator())


def test_sources_without_a_reader_are_passed_over() -> None:
    """A join with a Kafka source, or a first batch's None."""
    assert readers_of({"sources": [{"endOffset": None}, {"endOffset": '{"t":{"0":1}}'}]}) == []
    assert readers_of(None) == []


# --- Waiting for Control-C -----------------------------------------------------------------------


def test_a_signal_drains_the_query_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """One line when it begins, one when it is done, and no traceback."""
    query, asked, clock = FakeQuery("a"), [], Clock()

    def ask_in_a_while() -> None:
        if clock.now_s > 5:
            asked.append(signal.SIGINT)

    clock.on_sleep = ask_in_a_while
    wait_and_drain(query, asked, lambda: run(query, FakeCoordinator(a=2)), clock.sleep)  # type: ignore[arg-type]  # fakes with what is used

    assert not query.isActive
    assert capsys.readouterr().err.splitlines() == [
        "stopping after the batch that runs; Control-C again stops at once",
        "stopped; nothing will run twice",
    ]


def test_a_drain_in_vain_ends_with_a_plain_stop(capsys: pytest.CaptureFixture[str]) -> None:
    """Who presses Control-C wants an end; the line says what it costs."""
    query = FakeQuery("a")

    wait_and_drain(query, [signal.SIGTERM], lambda: run(query, FakeCoordinator(a=10_000)))  # type: ignore[arg-type]  # fakes with what is used

    assert not query.isActive
    assert "the last batch may run again: not drained within 10 s" in capsys.readouterr().err


def test_a_second_signal_does_not_wait_for_a_coordinator_that_is_away() -> None:
    """It stops at once, as the line says: a question to nobody takes ten seconds."""
    answered, asked = threading.Event(), [signal.SIGINT, signal.SIGINT]

    with pytest.raises(DrainTimeout, match="a second time"):
        unless_asked_again(lambda: [None, answered.wait()][0], asked)  # type: ignore[arg-type]  # signals are numbers

    answered.set()


def test_what_ends_a_drain_reaches_who_asked_for_it() -> None:
    """Else a query that failed meanwhile would look as if it had stopped."""

    def fail() -> None:
        raise ValueError("broken sink")

    with pytest.raises(ValueError, match="broken sink"):
        unless_asked_again(fail, [signal.SIGINT])


def test_a_query_that_ends_while_it_is_waited_for_is_not_drained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Only its failure is of interest then."""
    query = FakeQuery("a")
    query.stop()
    query.failure = ValueError("broken sink")

    with pytest.raises(ValueError, match="broken sink"):
        wait_and_drain(query, [], lambda: pytest.fail("drained"))  # type: ignore[arg-type]  # fakes with what is used

    assert capsys.readouterr().err == ""


def test_signals_do_nothing_but_ask_and_are_as_before_afterwards() -> None:
    """An exception out of a handler would break a call to the JVM."""
    before = signal.getsignal(signal.SIGINT)
    asked: list[bool] = []

    class Interrupted(FakeQuery):
        def __getattribute__(self, name: str) -> object:
            """Be interrupted as soon as somebody looks whether it runs."""
            if name == "isActive" and not asked:
                asked.append(True)
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGINT)
            return super().__getattribute__(name)

    interrupted = Interrupted()
    run_until_stopped(interrupted)  # type: ignore[arg-type]  # a fake with what is used

    assert not interrupted.isActive
    assert signal.getsignal(signal.SIGINT) is before
