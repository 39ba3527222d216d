"""The thread that the disk has for itself."""

import threading
from collections.abc import Callable

import outcome
import pytest
import trio

from coordinator.runtime.flusher import DiskThread, Mailbox


def disk_thread() -> DiskThread:
    """Return one whose results come back by way of trio's own."""
    return DiskThread("disk", trio.lowlevel.current_trio_token().run_sync_soon)


async def test_work_runs_in_another_thread_and_its_end_is_waited_for() -> None:
    """The event loop must not stand still for an fsync."""
    done: list[int] = []
    disk = disk_thread()

    await disk.run(lambda: done.append(threading.get_ident()))
    await disk.run(lambda: done.append(threading.get_ident()))

    assert 2 == len(done)
    assert done[0] == done[1] != threading.get_ident()


async def test_what_the_work_raises_is_raised_to_the_asker() -> None:
    """A failed fsync ends the process; nobody may miss it."""

    def fail() -> None:
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        await disk_thread().run(fail)


async def test_a_hanging_disk_does_not_keep_the_process_from_ending() -> None:
    """SIGTERM must work when fsync does not."""
    disk = disk_thread()
    release = threading.Event()
    began = threading.Event()

    def hang() -> None:
        began.set()
        release.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(disk.run, hang)
        await trio.to_thread.run_sync(began.wait)
        nursery.cancel_scope.cancel()
    release.set()

    # The late end of the abandoned work reaches nobody, and the thread goes on.
    await disk.run(lambda: None)


async def test_a_cancelled_asker_starts_nothing() -> None:
    """Work that nobody waits for must not reach the disk."""
    done: list[int] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        await disk_thread().run(lambda: done.append(1))

    assert [] == done


async def test_results_come_back_through_whoever_watches_the_sockets() -> None:
    """A flush that ends is handled in the round of the requests, without another turn."""

    def fail() -> None:
        raise OSError("the disk is gone")

    watched: list[tuple[int, Callable[[int], None]]] = []
    mailbox = Mailbox(lambda fd, on_ready: watched.append((fd, on_ready)))
    disk = DiskThread("disk", mailbox.put)
    (fd, on_ready), results = watched[0], list[outcome.Outcome[None]]()

    disk.submit(lambda: None, results.append)
    disk.submit(fail, results.append)
    while len(results) < 2:
        await trio.lowlevel.wait_readable(fd)
        on_ready(1)

    assert isinstance(results[0], outcome.Value)
    assert isinstance(results[1], outcome.Error)
