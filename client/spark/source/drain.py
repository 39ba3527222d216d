"""Stopping a query without processing any row twice."""

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, Protocol

from client.blocking import connect_blocking
from client.exceptions import CoordinatorError, FatalError
from client.security import Given
from client.spark.errors import DrainTimeout
from client.spark.source.stream_offsets import ReaderIdentity, reader_of
from protocol.errors import ErrorCode
from protocol.messages import DrainedMember

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger(__name__)

# Pause between two requests to the coordinator, in s; a drain takes a batch and a rebalance.
POLL_S: Final = 0.2

# Maximum timeout of one request to the coordinator, in milliseconds; less near the deadline.
ASK_MS_MAX: Final = 10_000


class DrainClient(Protocol):
    """The part of `client.blocking.BlockingClient` that a drain needs."""

    def drain_member(
        self, group: str, client_id: str, *, timeout_ms: int | None = None
    ) -> list[DrainedMember]:
        """Take all partitions away from the members with this client id."""


# Returns the client of a coordinator address; the number is its timeout in milliseconds.
ClientOf = Callable[[str, int], DrainClient]


def drain_and_stop(
    query: "StreamingQuery", timeout: float = 60.0, *, security: Given = None
) -> None:
    """Have the readers of *query* commit finished ranges and give up partitions; then stop it.

    The other members of the group go on with the partitions; no row is processed twice. Returns
    when the query has stopped, also if it had ended by itself.

    Args:
        query: a running query over at least one ``coordinated`` source.
        timeout: how long to wait, in seconds. It must cover the batch that is running and the
            two rounds of a rebalance.
        security: as of `client.connect`; a query's options are not known here.

    Raises:
        DrainTimeout: not done in time; the query still runs, and a plain ``query.stop()``
            would repeat at most its last batch.
        StreamingQueryException: the query failed during the drain.

    """
    with ExitStack() as stack:
        clients: dict[str, DrainClient] = {}

        def client_of(coordinator: str, timeout_ms: int) -> DrainClient:
            if coordinator not in clients:
                clients[coordinator] = stack.enter_context(
                    connect_blocking(
                        coordinator.split(","),
                        client_id="spark-drain",
                        request_timeout_ms=timeout_ms,
                        security=security,
                    )
                )
            return clients[coordinator]

        drain(query, client_of, timeout, clock=time.monotonic, sleep=time.sleep)


def run_until_stopped(
    query: "StreamingQuery", timeout: float = 60.0, *, security: Given = None
) -> None:
    """Wait until *query* ends; at Control-C or SIGTERM drain and stop it first.

    Use it in place of ``awaitTermination``: there Spark's own handler of Control-C cancels the
    batch that runs, and prints tracebacks. A second Control-C, or the end of *timeout*, stops
    the query at once; then at most its last batch runs again. Call it in the main thread.

    Args:
        query: a running query over at least one ``coordinated`` source.
        timeout: how long the drain may take, in seconds, see `drain_and_stop`.
        security: see `drain_and_stop`.

    Raises:
        StreamingQueryException: the query failed.

    """
    with _signals_counted() as asked:
        drain_now = partial(drain_and_stop, query, timeout, security=security)
        wait_and_drain(query, asked, lambda: unless_asked_again(drain_now, asked))


def wait_and_drain(
    query: "StreamingQuery",
    asked: list[int],
    drain_now: Callable[[], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Implement `run_until_stopped`; *asked* lists the signals received so far."""
    while query.isActive and not asked:
        sleep(POLL_S)
    if query.isActive:
        _tell("stopping after the batch that runs; Control-C again stops at once")
        try:
            drain_now()
        except (DrainTimeout, CoordinatorError) as error:
            query.stop()
            _tell(f"stopped without handing over, so the last batch may run again: {error}")
        else:
            _tell("stopped; nothing will run twice")
    if (failure := query.exception()) is not None:
        raise failure


def unless_asked_again(drain_now: Callable[[], None], asked: list[int]) -> None:
    """Run *drain_now* in a thread, and abandon it when a second signal comes.

    A request to a coordinator that is away takes seconds, and can't be interrupted.

    Raises:
        DrainTimeout: a second signal came first.
        Exception: any exception that *drain_now* raised.

    """
    failures: list[Exception] = []

    def work() -> None:
        try:
            drain_now()
        except Exception as error:  # noqa: BLE001 - raised below.
            failures.append(error)

    thread = threading.Thread(target=work, name="drain", daemon=True)
    thread.start()
    while thread.is_alive():
        if len(asked) > 1:
            raise DrainTimeout("it was asked for a second time")
        thread.join(POLL_S)
    if failures:
        raise failures[0]


@contextmanager
def _signals_counted() -> Iterator[list[int]]:
    """Only note SIGINT and SIGTERM: an exception inside of a call to the JVM would break it."""
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def drain(
    query: "StreamingQuery",
    client_of: ClientOf,
    timeout_s: float,
    *,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> None:
    """Implement `drain_and_stop` with clients from *client_of* and a given clock."""
    deadline_s = clock() + timeout_s

    def left_ms() -> int:
        return max(1, min(ASK_MS_MAX, int((deadline_s - clock()) * 1000)))

    why = "the query has made no progress that names its readers"
    while query.isActive:
        try:
            # Readers are looked up each time: those of a replayed batch may be gone, and the
            # names of their successors come with the next batch.
            readers = readers_of(query.lastProgress)
            waiting = [reader for reader in readers if not _drained(client_of, reader, left_ms)]
            if readers and not waiting:
                query.stop()
                return
            if waiting:
                why = f"{', '.join(r.client_id for r in waiting)} still own partitions"
        except CoordinatorError as error:
            why = str(error)
        if clock() >= deadline_s:
            raise DrainTimeout(f"not drained within {timeout_s:g} s: {why}")
        sleep(min(POLL_S, max(deadline_s - clock(), 0.0)))
    failure = query.exception()
    if failure is not None:
        raise failure


def readers_of(progress: Mapping[str, Any] | None) -> list[ReaderIdentity]:
    """Return the readers that the sources of a query's progress name."""
    sources = progress["sources"] if progress else []
    found = (reader_of(source["endOffset"]) for source in sources)
    return sorted({reader for reader in found if reader is not None})


def _drained(client_of: ClientOf, reader: ReaderIdentity, left_ms: Callable[[], int]) -> bool:
    try:
        client = client_of(reader.coordinator, left_ms())
        members = client.drain_member(reader.group, reader.client_id, timeout_ms=left_ms())
    except FatalError as error:
        if error.code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND}:
            # The member is joining (again), or belongs to an earlier process of this query.
            logger.info("no member %s to drain yet", reader.client_id)
            return False
        raise
    return bool(members) and all(member.drained for member in members)
