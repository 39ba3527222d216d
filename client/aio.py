"""The client for asyncio programs: the calls, arguments, results and exceptions of `client`.

The trio client lives in a thread of its own, so heartbeats go on while the event loop is busy. A
call goes there and its result comes back. Functions of the caller (callbacks, ``partitions``) run
in the event loop. A call that is cancelled is cancelled over there, and ends once that is done.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar, copy_context
from functools import partial, wraps
from typing import Any, Concatenate, Final, Generic, ParamSpec, Self, TypeVar

import trio

from client import api
from client.exceptions import ClientClosed
from client.member import Member as TrioMember
from client.membership import Assignment
from client.offset_watch import OffsetWatch as TrioOffsetWatch, Paged
from client.operators import ColumnScan as TrioColumnScan, offsets_of_page
from client.thread import ClientFacade, ClientThread, Connecting, Facade, MemberFacade
from protocol.messages import ScannedOffset

A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_JOIN: Final = inspect.signature(api.Client.join)
# Its arguments that may be a caller's own functions.
_FUNCTIONS: Final = ("partitions", "on_assigned", "on_revoked", "on_lost")


class _Way:
    """Calls from one thread to another, which is woken once for many of them."""

    def __init__(self, wake: Callable[[Callable[[], None]], object]) -> None:
        """Take what makes the other thread call a function soon."""
        self._wake = wake
        self._waiting: deque[Callable[[], object]] = deque()
        self._is_woken = False

    def put(self, call: Callable[[], object]) -> None:
        """Have *call* made in the other thread, after those that came before."""
        self._waiting.append(call)
        if not self._is_woken:
            self._is_woken = True
            self._wake(self._make_calls)

    def _make_calls(self) -> None:
        self._is_woken = False  # First: what comes from here on wakes again, if in vain.
        while self._waiting:
            self._waiting.popleft()()


class _Call(Generic[T]):
    """A call of the trio client, made for a task of the event loop."""

    def __init__(
        self, work: Callable[[], Awaitable[T]], back: _Way, end: asyncio.Future[T]
    ) -> None:
        self.end = end
        self.is_over = False
        self._work = work
        self._back = back
        self._scope = trio.CancelScope()
        self._context = copy_context()  # The task's own, for callbacks that are called in here.

    # --- In the client's thread.

    def start(self) -> None:
        """Begin; a client that is closing fails the call later."""
        with suppress(RuntimeError):
            trio.lowlevel.spawn_system_task(self._run, context=self._context)

    def cancel(self) -> None:
        """Cancel it, whether it has begun or not."""
        self._scope.cancel()

    async def _run(self) -> None:
        over: Callable[[], None] = partial(self.fail, _closed())
        try:
            with self._scope:
                over = partial(self._succeed, await self._work())
        except trio.Cancelled:
            raise  # The client's run is at its end.
        except BaseException as exc:  # noqa: BLE001 - raised in the task that called.
            over = partial(self.fail, exc)
        finally:
            self._back.put(over)

    # --- In the event loop.

    def _succeed(self, result: T) -> None:
        self.is_over = True
        if not self.end.done():
            self.end.set_result(result)

    def fail(self, error: BaseException) -> None:
        """Raise *error* in the task that called, unless that has its answer."""
        self.is_over = True
        if not self.end.done():
            self.end.set_exception(error)


# Which callback the code that runs is a part of.
_callback: ContextVar["_Callback | None"] = ContextVar("_callback", default=None)


class _Callback:
    """A caller's function that runs in the event loop, while the client's thread waits."""

    def __init__(self, function: Callable[[], object], ways: "Bridge[Any]") -> None:
        self.is_over = False
        self._function = function
        self._ways = ways
        self._context = copy_context()
        self._end = trio.Event()
        self._result: object = None
        self._error: BaseException | None = None
        self._task: asyncio.Task[None] | None = None

    # --- In the client's thread.

    async def run(self) -> Any:
        """Return what the function returns, or what it awaits; cancelling cancels it."""
        self._ways.back.put(self._start)
        try:
            await self._end.wait()
        except trio.Cancelled:
            self._ways.back.put(self._cancel)
            with trio.CancelScope(shield=True):
                await self._end.wait()
            if isinstance(self._error, asyncio.CancelledError):
                raise
        if self._error is not None:
            raise self._error
        return self._result

    # --- In the event loop.

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._call(), context=self._context)

    def _cancel(self) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _call(self) -> None:
        _callback.set(self)
        try:
            result = self._function()
            self._result = await result if inspect.isawaitable(result) else result
        except BaseException as exc:  # noqa: BLE001 - raised in the client's thread.
            self._error = exc
        finally:
            self.is_over = True
            self._ways.there.put(self._end.set)


class Bridge(Generic[T]):
    """The event loop, the client's thread, and the ways between them."""

    def __init__(self, connecting: Connecting[T]) -> None:
        self._loop = _running_loop()
        self._opened = self._loop.create_future()
        self._ended = self._loop.create_future()
        self._is_closed = False
        self._calls: set[_Call[Any]] = set()
        self.back = _Way(self._wake_loop)
        self.there = _Way(self._wake_thread)
        self._thread = ClientThread(
            connecting,
            opened=lambda: self.back.put(self._open),
            ended=lambda failure: self.back.put(partial(self._end, failure)),
        )

    async def open(self) -> T:
        """Connect; return the client."""
        self._thread.start()
        await self._opened
        return self._thread.client

    async def run(self, work: Callable[[], Awaitable[R]], *, is_cancelled: bool = False) -> R:
        """Do *work* in the client's thread, cancelled from the beginning if the caller is.

        Raises:
            ClientClosed: The client was closed before or meanwhile.
        """
        if self._is_closed:
            raise _closed()
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("a client of client.aio belongs to the event loop it was made in")
        end: asyncio.Future[R] = self._loop.create_future()
        call = _Call(work, self.back, end)
        if is_cancelled:
            call.cancel()
        self._calls.add(call)
        try:
            self.there.put(call.start)
            return await call.end
        except trio.RunFinishedError:
            raise _closed() from None
        except asyncio.CancelledError:
            if not call.is_over:
                call.end = self._loop.create_future()  # The other one is cancelled, too.
                with suppress(trio.RunFinishedError):
                    self.there.put(call.cancel)
                    await _settled(call.end)
            raise
        finally:
            self._calls.discard(call)

    async def call_back(self, function: Callable[..., object], *args: object) -> Any:
        """Call *function* in the event loop. Runs in the client's thread."""
        return await _Callback(partial(function, *args), self).run()

    async def close(self) -> None:
        """Leave all groups and end the thread, also if the caller is cancelled meanwhile."""
        self._thread.stop()
        was_cancelled = await _settled(self._ended)
        self._thread.join()
        if was_cancelled:
            raise asyncio.CancelledError

    def _wake_thread(self, call: Callable[[], None]) -> None:
        self._thread.token.run_sync_soon(call)

    def _wake_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # The loop was closed, and the client with nobody to close it.
            self._thread.stop()

    def _open(self) -> None:
        if not self._opened.done():
            self._opened.set_result(None)

    def _end(self, failure: BaseException | None) -> None:
        self._is_closed = True
        if not self._opened.done():
            self._opened.set_exception(failure or _closed())
        for call in self._calls:
            call.fail(failure or _closed())
        self._ended.set_result(None)


async def _settled(future: asyncio.Future[Any]) -> bool:
    """Wait until *future* is done, even if cancelled; return whether that happened.

    The future takes the client's leave timeout at most, or as long as a callback resists its
    own cancellation.
    """
    was_cancelled = False
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError:
            was_cancelled = True
    if not future.cancelled():
        future.exception()  # Seen: whoever was cancelled has no use for it.
    return was_cancelled


def _running_loop() -> asyncio.AbstractEventLoop:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "client.aio.connect works in asyncio programs only; use client.connect with trio, "
            "and client.blocking.connect_blocking in ordinary threads"
        ) from None


def _closed() -> ClientClosed:
    return ClientClosed("the client is closed")


class Aio(Facade[A_co]):
    """Something of the client's thread, for tasks of the event loop."""

    def __init__(self, bridge: Bridge[Any], inner: A_co) -> None:
        """Use `connect`, `Client.join` or `Client.scan_offset_columns` instead."""
        self._bridge = bridge
        self._inner = inner


def awaited(
    method: Callable[Concatenate[A_co, P], Awaitable[T]],
) -> Callable[Concatenate[Aio[A_co], P], Coroutine[Any, Any, T]]:
    """Return *method* for tasks of the event loop."""

    @wraps(method)
    async def call(self: Aio[A_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        bridge, inner = self._bridge, self._inner
        return await bridge.run(partial(method, inner, *args, **kwargs))

    return call


def _connecting(
    connect: Callable[P, AbstractAsyncContextManager[api.Client]],
) -> Callable[P, AbstractAsyncContextManager["Client"]]:
    """Return *connect* for tasks of the event loop."""

    @wraps(connect)
    @asynccontextmanager
    async def connecting(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator["Client"]:
        bridge = Bridge(partial(connect, *args, **kwargs))
        try:
            yield Client(bridge, await bridge.open())
        finally:
            await bridge.close()

    return connecting


def _joining(
    join: Callable[Concatenate[api.Client, P], TrioMember],
) -> Callable[Concatenate["Client", P], "Member"]:
    """Return *join* for tasks of the event loop; the caller's functions are called there."""

    @wraps(join)
    def joining(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> "Member":
        bridge, inner = self._bridge, self._inner
        bound = _JOIN.bind(inner, *args, **kwargs)
        for name in _FUNCTIONS:
            if callable(function := bound.arguments.get(name)):
                bound.arguments[name] = partial(bridge.call_back, function)
        return Member(bridge, join(*bound.args, **bound.kwargs))

    return joining


class Client(ClientFacade, Aio[api.Client]):
    """A `client.Client` for asyncio programs; made by `connect`."""

    join = _joining(api.Client.join)

    commit = awaited(api.Client.commit)
    fetch_offsets = awaited(api.Client.fetch_offsets)

    describe_groups = awaited(api.Client.describe_groups)
    list_groups = awaited(api.Client.list_groups)
    summarize_groups = awaited(api.Client.summarize_groups)
    delete_groups = awaited(api.Client.delete_groups)
    drain_member = awaited(api.Client.drain_member)
    remove_static_members = awaited(api.Client.remove_static_members)
    remove_members = awaited(api.Client.remove_members)
    rebalances = awaited(api.Client.rebalances)

    lag = awaited(api.Client.lag)
    alter_offsets = awaited(api.Client.alter_offsets)
    delete_offsets = awaited(api.Client.delete_offsets)
    set_offsets_retention = awaited(api.Client.set_offsets_retention)
    offsets_partition = awaited(api.Client.offsets_partition)
    offsets_partitions = awaited(api.Client.offsets_partitions)
    offsets_log_ends = awaited(api.Client.offsets_log_ends)
    offset_changes = awaited(api.Client.offset_changes)

    register_topics = awaited(api.Client.register_topics)
    delete_topics = awaited(api.Client.delete_topics)
    describe_topics = awaited(api.Client.describe_topics)
    report_end_offsets = awaited(api.Client.report_end_offsets)

    describe_acls = awaited(api.Client.describe_acls)
    create_acls = awaited(api.Client.create_acls)
    delete_acls = awaited(api.Client.delete_acls)
    describe_users = awaited(api.Client.describe_users)
    set_password = awaited(api.Client.set_password)
    remove_password = awaited(api.Client.remove_password)
    describe_quotas = awaited(api.Client.describe_quotas)
    alter_quotas = awaited(api.Client.alter_quotas)

    def scan_offset_columns(
        self,
        offsets_partition: int,
        group_ids: Collection[str] | None = None,
        topics: Collection[str] | None = None,
    ) -> "ColumnScan":
        """See `client.Client.scan_offset_columns`."""
        scan = self._inner.scan_offset_columns(offsets_partition, group_ids, topics)
        return ColumnScan(self._bridge, scan)

    def watch_offsets(
        self,
        groups: Iterable[str] | None = None,
        topics: Iterable[str] | None = None,
        *,
        from_beginning: bool = False,
    ) -> "OffsetWatch":
        """See `client.Client.watch_offsets`."""
        watch = self._inner.watch_offsets(groups, topics, from_beginning=from_beginning)
        return OffsetWatch(self._bridge, watch)


class ColumnScan(Aio[TrioColumnScan]):
    """A `client.operators.ColumnScan` for asyncio programs: for ``async for``, once."""

    @property
    def position(self) -> int:
        """See `client.operators.ColumnScan`."""
        return self._inner.position

    page = awaited(TrioColumnScan.page)

    async def __aiter__(self) -> AsyncIterator[ScannedOffset]:
        while page := await self.page():
            for offset in offsets_of_page(page):
                yield offset


class OffsetWatch(Aio[TrioOffsetWatch], Paged):
    """A `client.offset_watch.OffsetWatch` for asyncio programs: for ``async for``."""

    def __init__(self, bridge: Bridge[Any], inner: TrioOffsetWatch) -> None:
        """Use `Client.watch_offsets` instead."""
        Aio.__init__(self, bridge, inner)
        Paged.__init__(self)

    page = awaited(TrioOffsetWatch.page)


class Member(MemberFacade, Aio[TrioMember]):
    """A `client.Member` for asyncio programs; made by `Client.join`, for ``async with``."""

    async def __aenter__(self) -> Self:
        await self._bridge.run(self._inner.__aenter__)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        is_cancelled = kind is not None and not issubclass(kind, Exception)
        await self._bridge.run(self._inner.leave, is_cancelled=is_cancelled)

    async def assignment(self) -> Assignment:
        """See `client.Member.assignment`."""
        callback = _callback.get()
        if callback is not None and not callback.is_over:
            # This call and the callback would wait for each other.
            raise RuntimeError("a callback of a member can't call assignment()")
        return await self._bridge.run(self._inner.assignment)

    wait_rebalance_needed = awaited(TrioMember.wait_rebalance_needed)
    request_rejoin = awaited(TrioMember.request_rejoin)
    commit = awaited(TrioMember.commit)
    fetch = awaited(TrioMember.fetch)
    lag = awaited(TrioMember.lag)
    leave = awaited(TrioMember.leave)


connect = _connecting(api.connect)
