"""`client.zookeeper.consumer.join` for ordinary threads, and for asyncio.

Calls and errors are the same. The consumer runs in a thread of its own, and stays a member of its
group while the program is busy.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from client.aio import Aio, Bridge, awaited
from client.blocking import InThread, blocking
from client.thread import Facade
from client.zookeeper.consumer import Consumer, join
from client.zookeeper.membership import Assignment


class _Shown(Facade[Consumer]):
    """Properties of a consumer, for both forms. None of them waits."""

    @property
    def group(self) -> str:
        """See `client.zookeeper.consumer.Consumer.group`."""
        return self._inner.group

    @property
    def consumer_id(self) -> str:
        """See `client.zookeeper.consumer.Consumer.consumer_id`."""
        return self._inner.consumer_id

    @property
    def rebalance_needed(self) -> bool:
        """See `client.zookeeper.consumer.Consumer.rebalance_needed`."""
        return self._inner.rebalance_needed

    @property
    def lost(self) -> bool:
        """See `client.zookeeper.consumer.Consumer.lost`."""
        return self._inner.lost


class BlockingConsumer(_Shown, InThread[Consumer]):
    """A `client.zookeeper.consumer.Consumer` for ordinary threads; made by `join_blocking`."""

    def assignment(self, timeout_s: float | None = None) -> Assignment:
        """See `client.zookeeper.consumer.Consumer.assignment`.

        Raises:
            TimeoutError: No assignment within *timeout_s*. Call again.
        """
        return self.run(self._inner.assignment, timeout_s)

    def wait_rebalance_needed(self, timeout_s: float | None = None) -> None:
        """See `client.zookeeper.consumer.Consumer.wait_rebalance_needed`.

        Raises:
            TimeoutError: No rebalance is needed within *timeout_s*.
        """
        self.run(self._inner.wait_rebalance_needed, timeout_s)

    fetch = blocking(Consumer.fetch)
    commit = blocking(Consumer.commit)


@contextmanager
def join_blocking(*args: Any, **options: Any) -> Iterator[BlockingConsumer]:
    """Join for ordinary threads; use as ``with``. See `client.zookeeper.consumer.join`."""
    with BlockingConsumer(partial(join, *args, **options)) as consumer:
        yield consumer


class AioConsumer(_Shown, Aio[Consumer]):
    """A `client.zookeeper.consumer.Consumer` for asyncio programs; made by `join_aio`."""

    assignment = awaited(Consumer.assignment)
    wait_rebalance_needed = awaited(Consumer.wait_rebalance_needed)
    fetch = awaited(Consumer.fetch)
    commit = awaited(Consumer.commit)


@asynccontextmanager
async def join_aio(*args: Any, **options: Any) -> AsyncIterator[AioConsumer]:
    """Join for asyncio programs; use as ``async with``. See `client.zookeeper.consumer.join`."""
    bridge = Bridge(partial(join, *args, **options))
    try:
        yield AioConsumer(bridge, await bridge.open())
    finally:
        await bridge.close()
