"""The client in a thread of its own, shared by `client.blocking` and `client.aio`."""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import Final, Generic, TypeVar

import trio

from client.api import Client
from client.counts import ClientNow, MemberNow
from client.exceptions import ClientClosed
from client.member import Member
from client.offsets import Offsets

A_co = TypeVar("A_co", covariant=True)
T = TypeVar("T")

# Makes the context manager of what lives in the thread: a client, mostly.
Connecting = Callable[[], AbstractAsyncContextManager[T]]
THREAD_NAME: Final = "group-client"


class ClientThread(Generic[T]):
    """A daemon thread with a trio run, in which a client lives from `start` until `stop`.

    Attributes:
        client: The client, once *opened* was called.

    """

    client: T

    def __init__(
        self,
        connecting: Connecting[T],
        *,
        opened: Callable[[], object],
        ended: Callable[[BaseException | None], object],
    ) -> None:
        """Take what connects, and whom to tell. Both are told in the new thread.

        Args:
            connecting: Makes the client's context manager.
            opened: Called when the client is connected.
            ended: Called when the run is over, with why if something was raised.
        """
        self._connecting = connecting
        self._opened = opened
        self._ended = ended
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self._is_stopped = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)

    @property
    def token(self) -> trio.lowlevel.TrioToken:
        """How other threads reach the run, once it has begun.

        Raises:
            ClientClosed: This process is a fork of the one with the thread: nobody would answer.
        """
        if self.is_forked:
            raise ClientClosed("the client is in the process that this one was forked from")
        assert self._token is not None
        return self._token

    @property
    def is_forked(self) -> bool:
        """Whether the thread is another process's, which has the same sockets."""
        return os.getpid() != self._pid

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()

    def stop(self) -> None:
        """Leave all groups (each within the leave timeout), close all connections, end.

        May be called at any time, from any thread.
        """
        self._is_stopped = True
        if self._token is not None and not self.is_forked:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        failure = None
        try:
            trio.run(self._serve)
        except BaseException as exc:  # noqa: BLE001 - handed to whoever connects.
            failure = exc
        self._ended(failure)

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        if self._is_stopped:  # Before there was a token to stop it with.
            self._scope.cancel()
        with self._scope:
            async with self._connecting() as self.client:
                self._opened()
                await trio.sleep_forever()


class Facade(Generic[A_co]):
    """Something of the client's thread, for callers elsewhere."""

    _inner: A_co


class ClientFacade(Facade[Client]):
    """Properties and snapshot of a client, for other threads."""

    @property
    def cluster_id(self) -> str:
        """See `client.Client.cluster_id`."""
        return self._inner.cluster_id

    def now(self) -> ClientNow:
        """See `client.Client.now`."""
        return self._inner.now()


class MemberFacade(Facade[Member]):
    """Properties and non-blocking calls of a member, for other threads."""

    @property
    def group_id(self) -> str:
        """The group."""
        return self._inner.group_id

    @property
    def member_id(self) -> str:
        """See `client.Member.member_id`."""
        return self._inner.member_id

    @property
    def generation(self) -> int:
        """See `client.Member.generation`."""
        return self._inner.generation

    @property
    def rebalance_needed(self) -> bool:
        """See `client.Member.rebalance_needed`."""
        return self._inner.rebalance_needed

    @property
    def lost(self) -> bool:
        """See `client.Member.lost`."""
        return self._inner.lost

    @property
    def has_left(self) -> bool:
        """See `client.Member.has_left`."""
        return self._inner.has_left

    def now(self) -> MemberNow:
        """See `client.Member.now`."""
        return self._inner.now()

    def store(self, offsets: Offsets) -> None:
        """See `client.Member.store`."""
        self._inner.store(offsets)
