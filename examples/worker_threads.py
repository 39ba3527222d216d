"""A worker thread per partition: order within each, and none waits for another."""

import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from queue import SimpleQueue

from source import END, handle, read

from client import Rebalanced, TopicPartition
from client.blocking import connect_blocking

queues: dict[TopicPartition, SimpleQueue[str | None]] = {}
workers: dict[TopicPartition, Future[None]] = {}
positions: dict[TopicPartition, int] = {}


def work(tp: TopicPartition, messages: SimpleQueue[str | None], start: int) -> None:
    """Handle the messages of one partition in their order, until None comes."""
    with suppress(Rebalanced):  # Lost meanwhile: the next owner does the rest.
        for offset, message in enumerate(iter(messages.get, None), start):
            handle(str(message))
            member.store({tp: offset + 1})  # In memory.


def stop(partitions: tuple[TopicPartition, ...]) -> None:
    """Let workers finish their queues; what they stored is committed before the partitions go."""
    for tp in partitions:
        queues.pop(tp).put(None)
    for tp in partitions:
        workers.pop(tp).result()


def start(partitions: tuple[TopicPartition, ...]) -> None:
    """Start a worker where the group is."""
    committed = member.fetch(partitions)
    for tp in partitions:
        positions[tp] = committed[tp].offset if tp in committed else 0
        queues[tp] = SimpleQueue()
        workers[tp] = pool.submit(work, tp, queues[tp], positions[tp])


signal.signal(signal.SIGTERM, signal.default_int_handler)  # As Ctrl-C: the group is left.

with (
    suppress(KeyboardInterrupt),
    ThreadPoolExecutor(max_workers=100) as pool,
    connect_blocking("127.0.0.1:9310", client_id="example") as client,
    client.join(
        "worker-threads",
        ["flights"],
        {"flights": 4},
        on_assigned=start,
        on_revoked=stop,
        on_lost=stop,
        auto_commit_interval_ms=1_000,
    ) as member,
):
    while any(positions[tp] < END for tp in member.assignment().partitions):
        for tp in [tp for tp in queues if queues[tp].qsize() < 10]:
            for message in read(tp, positions[tp]):
                queues[tp].put(message)
                positions[tp] += 1
        time.sleep(0.01)
