"""For the examples: an end at Ctrl-C or SIGTERM that leaves the groups at once.

A program that dies without leaving costs its group the session timeout.
"""

import signal
from collections.abc import Awaitable, Callable

import trio


async def cancel_at_signal(scope: trio.CancelScope) -> None:
    """Wait for Ctrl-C or SIGTERM, and cancel *scope*."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(signals)
    scope.cancel()


async def until_stopped(work: Callable[[], Awaitable[object]]) -> None:
    """Do *work* to its end, or cancel it at a signal: members that it has leave their groups."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cancel_at_signal, nursery.cancel_scope)
        await work()
        nursery.cancel_scope.cancel()
