"""The blocking client without sockets, and ordinary threads that use it."""

import queue
import threading
from collections.abc import Callable
from typing import Any

import trio

from client.blocking import connect_blocking
from protocol.partition import TopicPartition
from tests.fakes.scripted_server import ScriptedServer

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def connect_to(server: ScriptedServer, **options: Any) -> Any:
    """Connect with the server in the client's own trio run: no sockets, no other process."""

    async def open_stream(host: str, port: int) -> trio.abc.Stream:
        await trio.lowlevel.checkpoint()
        if server.unreachable:
            raise ConnectionRefusedError
        ours, theirs = trio.testing.memory_stream_pair()
        trio.lowlevel.spawn_system_task(server.serve, theirs)
        return ours

    return connect_blocking("node1:9310", client_id="client", open_stream=open_stream, **options)


def in_threads(*calls: Callable[[], object]) -> None:
    """Run every call in a thread of its own; raise what any of them raises."""
    failures: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def guarded(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as exc:  # noqa: BLE001 - raised by the test's own thread.
            failures.put(exc)

    threads = [threading.Thread(target=guarded, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not failures.empty():
        raise failures.get()
