"""Errors in the work for one client, and what becomes of them."""

import sys

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from coordinator.group.records import RecordError
from coordinator.log.errors import LogCorrupt, LogFailed
from coordinator.runtime.bulkhead import (
    AGAIN_S,
    Task,
    attempt,
    attempt_async,
    attempt_each,
    keep_up,
    report,
)
from coordinator.runtime.poller import Poller
from coordinator.runtime.telemetry import Telemetry


class Owner:
    """An owner, which takes note of the tracebacks with which it ends."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def fail(self, exception: str) -> None:
        """Take note of it; nothing may be handled here any more."""
        assert sys.exc_info() == (None, None, None)
        self.failed.append(exception)


class Trap(BaseException):
    """Ends a process."""


def fail(with_: BaseException) -> None:
    """Raise it."""
    raise with_


async def fail_soon(with_: BaseException) -> None:
    """Raise it, later."""
    await trio.lowlevel.checkpoint()
    raise with_


async def test_an_error_ends_its_owner_once_it_is_not_handled_any_more() -> None:
    """The objects of its frames are free when the owner ends; its traceback is written down."""
    owner = Owner()
    attempt(owner, fail, KeyError("a bug"))
    await attempt_async(owner, fail_soon, KeyError("another one"))

    first, second = owner.failed
    assert "in fail\n" in first
    assert "KeyError: 'a bug'" in first
    assert "in fail_soon\n" in second


def test_each_owner_behind_one_that_fails_has_its_turn() -> None:
    """All sessions with answers send them in one loop, at the end of a round."""
    owners = [Owner() for _ in range(5)]
    served: list[Owner] = []

    def work(owner: Owner) -> None:
        served.append(owner)
        if owner in (owners[1], owners[4]):
            raise KeyError

    attempt_each(owners, work)

    assert served == owners
    assert [len(owner.failed) for owner in owners] == [0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    "error", [LogFailed("disk"), LogCorrupt("log"), RecordError("entry"), Trap()], ids=repr
)
async def test_errors_of_the_log_and_the_end_of_the_process_pass(error: BaseException) -> None:
    """Nothing can be decided after them, for nobody."""
    owner = Owner()
    with pytest.raises(type(error)):
        attempt(owner, fail, error)
    with pytest.raises(type(error)):
        await attempt_async(owner, fail_soon, error)

    assert owner.failed == []


async def test_an_error_of_the_log_passes_in_a_group_too() -> None:
    """A nursery in the work for one client wraps it, perhaps beside a bug of that work."""
    owner, bug = Owner(), KeyError("a bug")
    nested = ExceptionGroup("inner", [bug, LogFailed("disk")])
    for error in (ExceptionGroup("outer", [nested]), ExceptionGroup("", [RecordError("entry")])):
        with pytest.raises(ExceptionGroup):
            await attempt_async(owner, fail_soon, error)
        with pytest.raises(ExceptionGroup):
            attempt(owner, fail, error)
    assert owner.failed == []
    await attempt_async(owner, fail_soon, ExceptionGroup("no error of the log", [bug]))

    assert len(owner.failed) == 1


def test_what_has_no_owner_is_the_nodes_own() -> None:
    """The end of a flush, the clock: who knows what is true after an error in there?"""
    with pytest.raises(KeyError):
        attempt(None, fail, KeyError())


async def test_the_poller_goes_on_behind_an_error_of_one_owner(autojump_clock: MockClock) -> None:
    """Nearly all work for clients goes through the poller."""
    poller, owner, done = Poller(), Owner(), trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(poller.run, lambda: None)
        poller.call_soon(lambda: fail(KeyError()), owner)
        poller.call_soon(done.set)
        await done.wait()
        nursery.cancel_scope.cancel()
    poller.close()

    assert len(owner.failed) == 1


async def test_a_task_that_failed_runs_again(autojump_clock: MockClock) -> None:
    """Else all that it does is missing until the next start, and nobody knows why."""
    owner, began_s = Owner(), []

    async def work() -> None:
        began_s.append(trio.current_time())
        await fail_soon(KeyError())

    with trio.move_on_after(3 * AGAIN_S + AGAIN_S / 2):
        await keep_up(owner, work)

    assert [at_s - began_s[0] for at_s in began_s] == pytest.approx([0, 1, 2, 3])
    assert len(owner.failed) == 4


def test_each_failure_is_counted_and_logged_with_its_traceback() -> None:
    """An alert finds it, and the log says where the bug is."""
    telemetry, ended = Telemetry(), []
    with capture_logs() as lines:
        report(telemetry, "session", "192.0.2.1", "Traceback …")
        Task(telemetry, "events", lambda: ended.append(1)).fail("Traceback …")

    common = {"event": "connection.failed", "log_level": "error", "exception": "Traceback …"}
    assert lines == [
        {**common, "work": "session", "peer": "192.0.2.1"},
        {**common, "work": "events"},
    ]
    assert telemetry.connections_failed["session"] == 1
    assert telemetry.connections_failed["events"] == 1
    assert ended == [1]
