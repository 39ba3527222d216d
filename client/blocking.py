"""The client for ordinary threads: the same calls, without ``await``.

One daemon thread runs the async client, heartbeats included. Every method may be called from
any thread; a call blocks only the thread that makes it.
"""

import logging
import queue
import select
import socket
import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

from client.api import LEAVE_TIMEOUT_MS, REQUEST_TIMEOUT_MS, Client, connect
from client.assignors import Assignor, RangeAssignor
from client.exceptions import ClientClosed
from client.member import Member
from client.offset_stream import CHANGES_PER_PAGE, ColumnScan, OffsetChanges, offsets_of_page
from client.offsets import Assignment, OffsetAndMetadata, Offsets
from client.operators import REBALANCES_MAX, Lag, OperatorCalls
from client.topics import TopicSource
from protocol.messages import (
    DescribedGroup,
    DescribedTopic,
    DrainedMember,
    ListedGroup,
    OffsetColumns,
    Rebalance,
    ScannedOffset,
)
from protocol.partition import TopicPartition

# ------------------------------------------------------------------------------------------
# The operators' calls for ordinary threads; see `client.operators` for each.

T = TypeVar("T")


class BlockingColumnScan:
    """A `client.offset_stream.ColumnScan` for ordinary threads; use as ``for``, once."""

    def __init__(self, run: Callable[..., OffsetColumns | None], scan: ColumnScan) -> None:
        """Use `client.blocking.BlockingClient.scan_offset_columns` instead."""
        self._run = run
        self._scan = scan

    @property
    def position(self) -> int:
        """See `client.offset_stream.ColumnScan.position`."""
        return self._scan.position

    def page(self) -> OffsetColumns | None:
        """See `client.offset_stream.ColumnScan.page`."""
        return self._run(self._scan.page)

    def __iter__(self) -> Iterator[ScannedOffset]:
        while page := self.page():
            yield from offsets_of_page(page)


class BlockingOperators:
    """The part of `client.blocking.BlockingClient` that joins no group."""

    _client: OperatorCalls

    def run(self, call: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Run *call* in the client's thread and return what it returns."""
        raise NotImplementedError

    def describe_groups(self, groups: Iterable[str]) -> list[DescribedGroup]:
        """See `client.Client.describe_groups`."""
        return self.run(partial(self._client.describe_groups, groups))

    def list_groups(
        self, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[ListedGroup]:
        """See `client.Client.list_groups`."""
        return self.run(partial(self._client.list_groups, states, types))

    def delete_groups(self, groups: Iterable[str]) -> dict[str, int]:
        """See `client.Client.delete_groups`."""
        return self.run(partial(self._client.delete_groups, groups))

    def drain_member(
        self, group: str, client_id: str, *, timeout_ms: int | None = None
    ) -> list[DrainedMember]:
        """See `client.Client.drain_member`."""
        return self.run(partial(self._client.drain_member, group, client_id, timeout_ms=timeout_ms))

    def remove_static_members(
        self, group: str, instance_ids: Iterable[str], reason: str | None = None
    ) -> dict[str, int]:
        """See `client.Client.remove_static_members`."""
        return self.run(partial(self._client.remove_static_members, group, instance_ids, reason))

    def remove_members(
        self, group: str, member_ids: Iterable[str], reason: str | None = None
    ) -> dict[str, int]:
        """See `client.Client.remove_members`."""
        return self.run(partial(self._client.remove_members, group, member_ids, reason))

    def rebalances(self, group: str, limit: int = REBALANCES_MAX) -> list[Rebalance]:
        """See `client.Client.rebalances`."""
        return self.run(partial(self._client.rebalances, group, limit))

    def lag(self, group: str) -> dict[TopicPartition, Lag]:
        """See `client.Client.lag`."""
        return self.run(partial(self._client.lag, group))

    def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """See `client.Client.delete_offsets`."""
        return self.run(partial(self._client.delete_offsets, group, partitions))

    def set_offsets_retention(self, group: str, retention_ms: int | None) -> None:
        """See `client.Client.set_offsets_retention`."""
        self.run(partial(self._client.set_offsets_retention, group, retention_ms))

    def offsets_partition(self, group: str) -> int:
        """See `client.Client.offsets_partition`."""
        return self.run(partial(self._client.offsets_partition, group))

    def offsets_partitions(self) -> list[int]:
        """See `client.Client.offsets_partitions`."""
        return self.run(self._client.offsets_partitions)

    def offsets_log_ends(self) -> dict[int, int]:
        """See `client.Client.offsets_log_ends`."""
        return self.run(self._client.offsets_log_ends)

    def scan_offset_columns(
        self,
        offsets_partition: int,
        group_ids: Collection[str] | None = None,
        topics: Collection[str] | None = None,
    ) -> BlockingColumnScan:
        """See `client.Client.scan_offset_columns`."""
        scan = self._client.scan_offset_columns(offsets_partition, group_ids, topics)
        return BlockingColumnScan(self.run, scan)

    def offset_changes(
        self, offsets_partition: int, position: int, max_changes: int = CHANGES_PER_PAGE
    ) -> OffsetChanges:
        """See `client.Client.offset_changes`."""
        return self.run(
            partial(self._client.offset_changes, offsets_partition, position, max_changes)
        )

    def register_topics(self, topics: Mapping[str, int | TopicSource]) -> None:
        """See `client.Client.register_topics`."""
        self.run(partial(self._client.register_topics, topics))

    def delete_topics(self, topics: Iterable[str]) -> dict[str, int]:
        """See `client.Client.delete_topics`."""
        return self.run(partial(self._client.delete_topics, topics))

    def describe_topics(
        self,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        *,
        with_end_offsets: bool = False,
    ) -> list[DescribedTopic]:
        """See `client.Client.describe_topics`."""
        return self.run(
            partial(
                self._client.describe_topics, topics, pattern, with_end_offsets=with_end_offsets
            )
        )

    def report_end_offsets(self, ends: Mapping[TopicPartition, int]) -> None:
        """See `client.Client.report_end_offsets`."""
        self.run(partial(self._client.report_end_offsets, ends))


# ------------------------------------------------------------------------------------------
# The client for ordinary threads: the same calls, without ``await``.

BlockingPartitions = Mapping[str, int] | Callable[[str], Iterable[int]]
BlockingCallback = Callable[[tuple[TopicPartition, ...]], object]

logger = logging.getLogger(__name__)
_this_thread = threading.local()


class BlockingClient(BlockingOperators):
    """A `client.api.Client` in a thread of its own; use `connect_blocking` as ``with``."""

    def __init__(self, connecting: Callable[[], Any]) -> None:
        """Take what makes the async client's context manager."""
        self._connecting = connecting
        self._client: Client
        self._token: trio.lowlevel.TrioToken
        self._stop: trio.Event
        self._abandoned = False
        self._ready: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="group-client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            failure = self._ready.get()
        except BaseException:  # Such as Control-C while connecting.
            self._abandoned = True
            raise
        if failure is not None:
            self._thread.join()
            raise failure
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave all groups (each within the leave timeout) and end the thread."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    @property
    def cluster_id(self) -> str:
        """See `client.api.Client.cluster_id`."""
        return self._client.cluster_id

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
        on_assigned: BlockingCallback | None = None,
        on_revoked: BlockingCallback | None = None,
        on_lost: BlockingCallback | None = None,
        auto_commit_interval_ms: int | None = None,
    ) -> Iterator["BlockingMember"]:
        """See `client.Client.join`. All functions run in worker threads: they may block.

        While ``on_assigned``, ``on_revoked`` or ``on_lost`` runs, another thread waits in
        `BlockingMember.assignment` or `BlockingMember.leave`. They may call everything
        else of this member and this client, such as `BlockingMember.commit`.
        """
        member = self._client.join(
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
            on_assigned=on_assigned and partial(_call_back, on_assigned),
            on_revoked=on_revoked and partial(_call_back, on_revoked),
            on_lost=on_lost and partial(_call_back, on_lost),
            auto_commit_interval_ms=auto_commit_interval_ms,
        )
        blocking = BlockingMember(self, member)
        try:
            self.run(blocking.start)
            yield blocking
        finally:
            blocking.leave()

    def commit(
        self,
        group: str,
        offsets: Offsets,
        expected: Mapping[TopicPartition, int] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """See `client.api.Client.commit`."""
        self.run(partial(self._client.commit, group, offsets, expected, timeout_ms=timeout_ms))

    def fetch_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """See `client.api.Client.fetch_offsets`."""
        return self.run(
            partial(self._client.fetch_offsets, group, partitions, timeout_ms=timeout_ms)
        )

    def run(self, call: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Run *call* in the client's thread and return what it returns.

        Raises:
            TimeoutError: It took longer than *timeout_s*; it was cancelled.
            ClientClosed: The client was closed before or meanwhile.
        """
        try:
            return trio.from_thread.run(_with_timeout, call, timeout_s, trio_token=self._token)
        except (trio.RunFinishedError, trio.Cancelled) as exc:
            raise ClientClosed("the client is closed") from exc
        except trio.TooSlowError as exc:
            raise TimeoutError(f"not done within {timeout_s} s") from exc

    def run_sync(self, call: Callable[[], T]) -> T:
        """Run *call*, which doesn't wait for anything, in the client's thread.

        Raises:
            ClientClosed: The client was closed before.
        """
        try:
            return trio.from_thread.run_sync(call, trio_token=self._token)
        except trio.RunFinishedError as exc:
            raise ClientClosed("the client is closed") from exc

    def _run(self) -> None:
        try:
            trio.run(self._serve)
        except BaseException as exc:  # noqa: BLE001 - handed to the thread that connects.
            self._ready.put(exc)

    async def _serve(self) -> None:
        self._stop = trio.Event()
        self._token = trio.lowlevel.current_trio_token()
        async with self._connecting() as self._client:
            self._ready.put(None)
            if not self._abandoned:
                await self._stop.wait()


class BlockingMember:
    """A `client.member.Member` for ordinary threads; made by `BlockingClient.join`."""

    def __init__(self, client: BlockingClient, member: Member) -> None:
        """Use `BlockingClient.join` instead."""
        self._client = client
        self._member = member
        # For `leave_soon`: a byte one way says "leave"; end of file the other way, "done".
        self._signal_side, self._trio_side = socket.socketpair()
        self._signal_side.setblocking(False)

    async def start(self) -> None:
        """Begin with the background work. Runs in the client's thread."""
        trio.lowlevel.spawn_system_task(self._leave_when_told)
        await self._member.__aenter__()

    @property
    def group_id(self) -> str:
        """The group."""
        return self._member.group_id

    @property
    def member_id(self) -> str:
        """See `client.member.Member.member_id`."""
        return self._member.member_id

    @property
    def generation(self) -> int:
        """See `client.member.Member.generation`."""
        return self._member.generation

    @property
    def rebalance_needed(self) -> bool:
        """See `client.member.Member.rebalance_needed`. Doesn't block."""
        return self._member.rebalance_needed

    @property
    def lost(self) -> bool:
        """See `client.member.Member.lost`. Doesn't block."""
        return self._member.lost

    def assignment(self, timeout_s: float | None = None) -> Assignment:
        """See `client.member.Member.assignment`.

        A callback that has begun is waited for, however long it takes.

        Raises:
            TimeoutError: Not joined within *timeout_s*. Joining goes on; call again.
        """
        if getattr(_this_thread, "calls_back", False):
            # It would wait for the callback that waits for it.
            raise RuntimeError("a callback of a member can't call assignment()")
        return self._client.run(self._member.assignment, timeout_s)

    def wait_rebalance_needed(self, timeout_s: float | None = None) -> None:
        """See `client.member.Member.wait_rebalance_needed`.

        Raises:
            TimeoutError: No rebalance is needed within *timeout_s*.
        """
        self._client.run(self._member.wait_rebalance_needed, timeout_s)

    def store(self, offsets: Offsets) -> None:
        """See `client.member.Member.store`."""
        self._client.run_sync(partial(self._member.store, offsets))

    def commit(
        self,
        offsets: Offsets | None = None,
        expected: Mapping[TopicPartition, int] | None = None,
        *,
        timeout_ms: int | None = None,
    ) -> None:
        """See `client.member.Member.commit`."""
        self._client.run(partial(self._member.commit, offsets, expected, timeout_ms=timeout_ms))

    def fetch(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout_ms: int | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """See `client.member.Member.fetch`."""
        return self._client.run(partial(self._member.fetch, partitions, timeout_ms=timeout_ms))

    def lag(self) -> dict[TopicPartition, Lag]:
        """See `client.member.Member.lag`."""
        return self._client.run(self._member.lag)

    def request_rejoin(self, reason: str, topics: Iterable[str] | None = None) -> None:
        """See `client.member.Member.request_rejoin`."""
        self._client.run(partial(self._member.request_rejoin, reason, topics))

    def leave(self, reason: str | None = None, *, remove: bool = False) -> bool:
        """See `client.member.Member.leave`."""
        try:
            return self._client.run(partial(self._member.leave, reason, remove=remove))
        except ClientClosed:
            return False  # Closing the client has left already.
        finally:
            self._signal_side.close()

    def leave_soon(self, wait_s: float = 1.0) -> bool:
        """Leave the group from a signal handler; return whether it was done within *wait_s*.

        Takes no lock and waits for no other call, so it may interrupt anything, itself
        included: one byte goes through a socket to the client's thread.
        """
        try:
            self._signal_side.send(b"L")
        except BlockingIOError:
            pass  # It was told often enough.
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
            await self._member.leave("a signal")
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
