"""The client for ordinary threads: the same calls, without ``await``.

One daemon thread runs the async client, heartbeats included. Every method may be called from
any thread; a call blocks only the thread that makes it.

Most methods are those of `client.Client` and `client.Member`: same arguments, results and
exceptions, which stand there.
"""

import logging
import queue
import select
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import trio

from client.api import LEAVE_TIMEOUT_MS, REQUEST_TIMEOUT_MS, Client, connect
from client.assignors import Assignor, RangeAssignor
from client.exceptions import ClientClosed
from client.member import Member
from client.membership import Assignment
from client.offset_watch import OffsetWatch
from client.operators import ColumnScan, offsets_of_page
from client.thread import ClientFacade, ClientThread, Connecting, Facade, MemberFacade
from protocol.messages import OffsetColumns, ScannedOffset
from protocol.offset_feed import OffsetEvent
from protocol.partition import TopicPartition

A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

BlockingPartitions = Mapping[str, int] | Callable[[str], Iterable[int]]
BlockingCallback = Callable[[tuple[TopicPartition, ...]], object]

logger = logging.getLogger(__name__)
_this_thread = threading.local()


class Blocking(Facade[A_co]):
    """Something async, which lives in the client's thread, for callers in other threads."""

    def run(self, call: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Run *call* in the client's thread and return what it returns."""
        raise NotImplementedError


def blocking(
    method: Callable[Concatenate[A_co, P], Awaitable[T]],
) -> Callable[Concatenate[Blocking[A_co], P], T]:
    """Return *method* without ``await``."""

    @wraps(method)
    def call(self: Blocking[A_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(partial(method, self._inner, *args, **kwargs))

    return call


class InThread(Blocking[R]):
    """Something async in a thread of its own, from ``with`` until the end of the block."""

    def __init__(self, connecting: Connecting[R]) -> None:
        """Take what makes its context manager."""
        self._ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = ClientThread(
            connecting, opened=lambda: self._ready.put(None), ended=self._ready.put
        )

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            failure = self._ready.get()
        except BaseException:  # E.g. Control-C while connecting.
            self._thread.stop()
            raise
        if failure is not None:
            self._thread.join()
            raise failure
        self._inner = self._thread.client
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave all groups (each within the leave timeout) and end the thread."""
        self._thread.stop()
        self._thread.join()

    def run(self, call: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Run *call* in the client's thread and return what it returns.

        Raises:
            TimeoutError: It took longer than *timeout_s*; it was cancelled.
            ClientClosed: The client was closed before or meanwhile.
        """
        try:
            return trio.from_thread.run(
                _with_timeout, call, timeout_s, trio_token=self._thread.token
            )
        except (trio.RunFinishedError, trio.Cancelled):
            raise ClientClosed("the client is closed") from None
        except trio.TooSlowError:
            raise TimeoutError(f"not done within {timeout_s} s") from None

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one that the client is in."""
        return self._thread.is_forked

    def run_sync(self, call: Callable[[], T]) -> T:
        """Run *call*, which doesn't wait for anything, in the client's thread.

        Raises:
            ClientClosed: The client was closed before.
        """
        try:
            return trio.from_thread.run_sync(call, trio_token=self._thread.token)
        except trio.RunFinishedError:
            raise ClientClosed("the client is closed") from None


class BlockingClient(ClientFacade, InThread[Client]):
    """A `client.api.Client` in a thread of its own; use `connect_blocking` as ``with``."""

    @contextmanager
    def join(
        self,
        group: str,
        topics: Sequence[str] | None = None,
        partitions: BlockingPartitions | None = None,
        *,
        pattern: str | None = None,
        session_timeout_ms: int = 45_000,
        rebalance_timeout_ms: int = 300_000,
        assignors: Sequence[Assignor] = (RangeAssignor(),),
        group_instance_id: str | None = None,
        host: str | None = None,
        reason: str | None = None,
        register: bool = True,
        on_assigned: BlockingCallback | None = None,
        on_revoked: BlockingCallback | None = None,
        on_lost: BlockingCallback | None = None,
        auto_commit_interval_ms: int | None = None,
        request_timeout_ms: int | None = None,
    ) -> Iterator["BlockingMember"]:
        """See `client.Client.join`. All functions run in worker threads: they may block.

        While ``on_assigned``, ``on_revoked`` or ``on_lost`` runs, another thread waits in
        `BlockingMember.assignment` or `BlockingMember.leave`. They may call everything
        else of this member and this client, such as `BlockingMember.commit`.
        """
        member = self._inner.join(
            group,
            topics,
            partial(_in_thread, partitions) if callable(partitions) else partitions,
            pattern=pattern,
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=rebalance_timeout_ms,
            assignors=assignors,
            group_instance_id=group_instance_id,
            host=host,
            reason=reason,
            register=register,
            on_assigned=on_assigned and partial(_call_back, on_assigned),
            on_revoked=on_revoked and partial(_call_back, on_revoked),
            on_lost=on_lost and partial(_call_back, on_lost),
            auto_commit_interval_ms=auto_commit_interval_ms,
            request_timeout_ms=request_timeout_ms,
        )
        blocking = BlockingMember(self, member)
        try:
            self.run(blocking.start)
            yield blocking
        finally:
            blocking.leave()

    commit = blocking(Client.commit)
    fetch_offsets = blocking(Client.fetch_offsets)

    describe_groups = blocking(Client.describe_groups)
    list_groups = blocking(Client.list_groups)
    summarize_groups = blocking(Client.summarize_groups)
    delete_groups = blocking(Client.delete_groups)
    drain_member = blocking(Client.drain_member)
    remove_static_members = blocking(Client.remove_static_members)
    remove_members = blocking(Client.remove_members)
    rebalances = blocking(Client.rebalances)

    lag = blocking(Client.lag)
    alter_offsets = blocking(Client.alter_offsets)
    delete_offsets = blocking(Client.delete_offsets)
    set_offsets_retention = blocking(Client.set_offsets_retention)
    offsets_partition = blocking(Client.offsets_partition)
    offsets_partitions = blocking(Client.offsets_partitions)
    offsets_log_ends = blocking(Client.offsets_log_ends)
    offset_changes = blocking(Client.offset_changes)

    register_topics = blocking(Client.register_topics)
    delete_topics = blocking(Client.delete_topics)
    describe_topics = blocking(Client.describe_topics)
    report_end_offsets = blocking(Client.report_end_offsets)

    describe_acls = blocking(Client.describe_acls)
    create_acls = blocking(Client.create_acls)
    delete_acls = blocking(Client.delete_acls)
    describe_users = blocking(Client.describe_users)
    set_password = blocking(Client.set_password)
    remove_password = blocking(Client.remove_password)
    describe_quotas = blocking(Client.describe_quotas)
    alter_quotas = blocking(Client.alter_quotas)

    def scan_offset_columns(
        self,
        offsets_partition: int,
        group_ids: Collection[str] | None = None,
        topics: Collection[str] | None = None,
    ) -> "BlockingColumnScan":
        """See `client.Client.scan_offset_columns`."""
        scan = self._inner.scan_offset_columns(offsets_partition, group_ids, topics)
        return BlockingColumnScan(self, scan)

    def watch_offsets(
        self,
        groups: Iterable[str] | None = None,
        topics: Iterable[str] | None = None,
        *,
        from_beginning: bool = False,
    ) -> "BlockingOffsetWatch":
        """See `client.Client.watch_offsets`."""
        watch = self._inner.watch_offsets(groups, topics, from_beginning=from_beginning)
        return BlockingOffsetWatch(self, watch)

    @property
    def inner(self) -> Client:
        """The async client, for what runs in this client's thread: `run` and `start_soon`."""
        return self._inner

    def start_soon(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do *work*, which must not raise, in the client's thread until it is done or closed.

        Raises:
            ClientClosed: The client was closed before.
        """
        self.run_sync(partial(self._inner.start_soon, work))


class BlockingColumnScan:
    """A `client.operators.ColumnScan` for ordinary threads; use as ``for``, once."""

    def __init__(self, client: BlockingClient, scan: ColumnScan) -> None:
        """Use `BlockingClient.scan_offset_columns` instead."""
        self._client = client
        self._scan = scan

    @property
    def position(self) -> int:
        """See `client.operators.ColumnScan`."""
        return self._scan.position

    def page(self) -> OffsetColumns | None:
        """See `client.operators.ColumnScan.page`."""
        return self._client.run(self._scan.page)

    def __iter__(self) -> Iterator[ScannedOffset]:
        while page := self.page():
            yield from offsets_of_page(page)


class BlockingOffsetWatch:
    """A `client.offset_watch.OffsetWatch` for ordinary threads: for ``for``."""

    def __init__(self, client: BlockingClient, watch: OffsetWatch) -> None:
        """Use `BlockingClient.watch_offsets` instead."""
        self._client = client
        self._watch = watch
        self._rest: deque[OffsetEvent] = deque()

    def page(self, timeout_s: float | None = None) -> list[OffsetEvent]:
        """See `client.offset_watch.OffsetWatch.page`.

        Raises:
            TimeoutError: Nothing has happened within *timeout_s*. Nothing is lost; call again.
        """
        return self._client.run(self._watch.page, timeout_s)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> OffsetEvent:
        if not self._rest:
            self._rest.extend(self.page())
        return self._rest.popleft()


class BlockingMember(MemberFacade, Blocking[Member]):
    """A `client.member.Member` for ordinary threads; made by `BlockingClient.join`."""

    def __init__(self, client: BlockingClient, member: Member) -> None:
        """Use `BlockingClient.join` instead."""
        self._client = client
        self._inner = member
        # For `leave_soon`: a byte one way says "leave"; end of file the other way, "done".
        self._signal_side, self._trio_side = socket.socketpair()
        self._signal_side.setblocking(False)

    async def start(self) -> None:
        """Begin with the background work. Runs in the client's thread."""
        trio.lowlevel.spawn_system_task(self._leave_when_told)
        await self._inner.__aenter__()

    def run(self, call: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """See `BlockingClient.run`."""
        return self._client.run(call, timeout_s)

    def assignment(self, timeout_s: float | None = None) -> Assignment:
        """See `client.member.Member.assignment`.

        A callback that has begun is waited for, however long it takes.

        Raises:
            TimeoutError: Not joined within *timeout_s*. Joining goes on; call again.
        """
        if getattr(_this_thread, "calls_back", False):
            # This call and the callback would wait for each other.
            raise RuntimeError("a callback of a member can't call assignment()")
        return self.run(self._inner.assignment, timeout_s)

    def wait_rebalance_needed(self, timeout_s: float | None = None) -> None:
        """See `client.member.Member.wait_rebalance_needed`.

        Raises:
            TimeoutError: No rebalance is needed within *timeout_s*.
        """
        self.run(self._inner.wait_rebalance_needed, timeout_s)

    commit = blocking(Member.commit)
    fetch = blocking(Member.fetch)
    lag = blocking(Member.lag)
    request_rejoin = blocking(Member.request_rejoin)

    def leave(self, reason: str | None = None, *, remove: bool = False) -> bool:
        """See `client.member.Member.leave`."""
        try:
            return self.run(partial(self._inner.leave, reason, remove=remove))
        except ClientClosed:
            return False  # Closing the client has left already.
        finally:
            self._signal_side.close()

    def leave_soon(self, wait_s: float = 1.0) -> bool:
        """Leave the group from a signal handler; return whether it was done within *wait_s*.

        Takes no lock and waits for no other call, so it may interrupt anything, itself
        included: one byte goes through a socket to the client's thread. In a process that was
        forked from the member's, which may have inherited the handler, it does nothing.
        """
        if self._client.is_forked:
            return True
        try:
            self._signal_side.send(b"L")
        except BlockingIOError:
            pass  # The buffer is full of unread wake-ups; one more adds nothing.
        except OSError:
            return True  # Left and closed.
        try:
            readable, _, _ = select.select([self._signal_side], [], [], wait_s)
        except (OSError, ValueError):
            return True
        return bool(readable)

    async def _leave_when_told(self) -> None:
        with self._trio_side:
            stream = trio.socket.from_stdlib_socket(self._trio_side)
            with suppress(OSError):
                if await stream.recv(1):
                    await self._leave_for_signal()

    async def _leave_for_signal(self) -> None:
        try:
            await self._inner.leave("a signal")
        except Exception:
            # A caller's own callback; nobody waits whom it could be raised to.
            logger.exception("leaving group %r because of a signal", self.group_id)


@contextmanager
def connect_blocking(
    address: str | Sequence[str],
    *,
    client_id: str = "client",
    request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    leave_timeout_ms: int = LEAVE_TIMEOUT_MS,
    **options: Any,
) -> Iterator[BlockingClient]:
    """Connect for ordinary threads; use as ``with``. Arguments and errors: `client.connect`."""
    connecting = partial(
        connect,
        address,
        client_id=client_id,
        request_timeout_ms=request_timeout_ms,
        leave_timeout_ms=leave_timeout_ms,
        **options,
    )
    with BlockingClient(connecting) as client:
        yield client


async def _with_timeout(call: Callable[[], Awaitable[T]], timeout_s: float | None) -> T:
    with trio.fail_after(float("inf") if timeout_s is None else timeout_s):
        return await call()


async def _in_thread(partitions: Callable[[str], Iterable[int]], topic: str) -> list[int]:
    # Abandoned when the member leaves, so that a slow folder can't hold that up.
    return await trio.to_thread.run_sync(lambda: list(partitions(topic)), abandon_on_cancel=True)


async def _call_back(callback: BlockingCallback, partitions: tuple[TopicPartition, ...]) -> None:
    # Not in the client's own thread: it may call the client, and wait for the answer. And never
    # abandoned: it may be half way through writing down what it has done.
    await trio.to_thread.run_sync(_call_back_here, callback, partitions)


def _call_back_here(callback: BlockingCallback, partitions: tuple[TopicPartition, ...]) -> None:
    _this_thread.calls_back = True
    try:
        callback(partitions)
    finally:
        _this_thread.calls_back = False
