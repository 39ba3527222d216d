"""Keep a failure in the work for one client from all others.

The poller, the accept loop, the sweep, timers and tasks call code that works for one client, which
has an *owner*: a connection, or a task. `attempt` is the one place that catches what this code
raises. The traceback is kept as text; the exception, with all that its frames hold, is gone before
the owner ends. Errors of the log and of the records in it pass: no decision can follow on them.
A request that fails is answered before its connection ends, so a session catches what its handlers
raise. The same errors pass there, but for `LogFailed`: a journal that another node leads raises it,
too, and where the disk failed, the task that flushes ends the process and names the cause.
Work without an owner is the node's own, and its errors end the process.
"""

import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

import structlog
import trio

from coordinator.group.records import RecordError
from coordinator.log.errors import LogError
from coordinator.runtime.telemetry import Telemetry, count

log: Final = structlog.get_logger()

FATAL: Final = (LogError, RecordError)
# Pause before a task that failed runs again, in seconds.
AGAIN_S: Final = 1.0


class Owner(Protocol):
    """A connection or a task, which ends alone when its work raises."""

    def fail(self, exception: str) -> None:
        """Report the *exception*, a formatted traceback, and end."""


OwnerT = TypeVar("OwnerT", bound=Owner)


def attempt(owner: Owner | None, work: Callable[..., object], *args: Any) -> None:
    """Call *work* for its *owner*; None is the node."""
    exception = None
    try:
        work(*args)
    except Exception:  # noqa: BLE001 - see `caught`
        exception = caught(owner)
    if exception is not None and owner is not None:
        owner.fail(exception)


def attempt_each(owners: Iterable[OwnerT], work: Callable[[OwnerT], object]) -> None:
    """Call *work* for each of the *owners*; those that don't fail cost no call more."""
    rest = iter(owners)
    owner: OwnerT | None = None
    is_done = False
    while not is_done:
        exception = None
        try:
            for owner in rest:
                work(owner)
            is_done = True
        except Exception:  # noqa: BLE001 - see `caught`
            exception = caught(owner)
        if exception is not None and owner is not None:
            owner.fail(exception)


async def attempt_async(owner: Owner, work: Callable[..., Awaitable[object]], *args: Any) -> None:
    """Do the same with *work* that waits."""
    exception = None
    try:
        await work(*args)
    except Exception:  # noqa: BLE001 - see `caught`
        exception = caught(owner)
    if exception is not None:
        owner.fail(exception)


def caught(owner: Owner | None) -> str:
    """Return the traceback of the exception that is handled, or raise it where it has to pass."""
    if owner is None or is_fatal(sys.exception()):
        raise  # noqa: PLE0704 - called in an except block
    return traceback.format_exc()


def is_fatal(exc: BaseException | None) -> bool:
    """Say whether *exc* ends the process; a nursery wraps such an error in a group."""
    if isinstance(exc, BaseExceptionGroup):
        return exc.subgroup(FATAL) is not None
    return isinstance(exc, FATAL)


async def keep_up(owner: Owner, work: Callable[[], Awaitable[object]]) -> None:
    """Run *work*, which ends only by an error, and run it again after each."""
    while True:
        await attempt_async(owner, work)
        await trio.sleep(AGAIN_S)


def report(telemetry: Telemetry, work: str, peer: str | None, exception: str) -> None:
    """Log and count the failure of one client's connection or task."""
    count(telemetry.connections_failed, work)
    fields = {} if peer is None else {"peer": peer}
    log.error("connection.failed", work=work, **fields, exception=exception)


class Task:
    """A task for clients: see `Owner`."""

    def __init__(
        self, telemetry: Telemetry, name: str, end: Callable[[], None] = lambda: None
    ) -> None:
        """Make it; *end* is called after each failure."""
        self._telemetry = telemetry
        self._name = name
        self._end = end

    def fail(self, exception: str) -> None:
        """Report it."""
        report(self._telemetry, self._name, None, exception)
        self._end()
