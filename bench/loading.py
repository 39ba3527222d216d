"""How long a log takes to load, against the least that reading it can take.

    python -m bench.loading [--entries-per-batch 100] [--entries 1000000] [--rounds 5]

The floor is one pass over the same batches in memory: the crc and msgpack's `unpackb` of each. The
load is the daemon's own (`Node.load`, in slices, beside an event loop that does nothing else),
from a folder in the page cache. Both are CPU time of this process; they take turns.
"""

import argparse
import gc
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgpack
import trio
import trio.lowlevel

from coordinator.config import load_settings
from coordinator.log.directory import OsDirectory
from coordinator.log.format import HEADER_BYTES, PREFIX, Entry, batch_at
from coordinator.log.journal import Journal
from coordinator.runtime.node import Node
from coordinator.runtime.worker import DiskThread
from coordinator.server.run import collector_at_rest, make_node
from protocol.groups import offsets_partition

GROUP_PARTITIONS: Final = 100
FLUSH_BATCHES: Final = 64
TIMESTAMP_MS: Final = 1_700_000_000_000
NUM_PARTITIONS: Final = 50


def open_journal(folder: Path) -> Journal:
    """Open the log in *folder*."""
    return Journal(
        OsDirectory(folder),
        num_partitions=NUM_PARTITIONS,
        segment_bytes=100 * 1024 * 1024,
        node_id=1,
        new_cluster_id=lambda: "A" * 22,
    )


def write_log(folder: Path, *, entries: int, entries_per_batch: int) -> int:
    """Write one commit of each of *entries* offsets and close cleanly; return the bytes."""
    journal = open_journal(folder)
    firsts = range(0, entries, entries_per_batch)
    for written, first in enumerate(firsts, 1):
        group, at = divmod(first, GROUP_PARTITIONS)
        group_id = f"group-{group:05d}"
        value = (1_000_000 + group, -1, "", TIMESTAMP_MS, -1)
        batch = [
            Entry(1, 0, group_id, ("orders", partition), value)
            for partition in range(at, at + entries_per_batch)
        ]
        journal.append(offsets_partition(group_id, NUM_PARTITIONS), batch, TIMESTAMP_MS)
        if written % FLUSH_BATCHES == 0:
            _flush(journal)
    _flush(journal)
    size_bytes = journal.size_bytes
    journal.close(clean=True)
    return size_bytes


def _flush(journal: Journal) -> None:
    flush = journal.take_flush()
    if flush is not None:
        journal.write_flush(flush)


def read_batches(folder: Path) -> list[bytes]:
    """Return every batch of the log as the bytes that it is."""
    journal = open_journal(folder)
    try:
        found = []
        for segment in sorted(folder.glob("*.segment")):
            data = segment.read_bytes()
            at = 0
            while (raw := batch_at(data, at)) is not None:
                found.append(data[raw.start : raw.end])
                at = raw.end
        return found
    finally:
        journal.close(clean=True)


def floor(batches: list[bytes]) -> int:
    """Check and unpack each of *batches*; return how many entries they have."""
    entries = 0
    crc32, unpackb, prefix_bytes = zlib.crc32, msgpack.unpackb, PREFIX.size
    for batch in batches:
        _, crc = PREFIX.unpack_from(batch)
        if crc32(memoryview(batch)[prefix_bytes:]) != crc:
            raise ValueError("a batch is damaged")
        entries += len(unpackb(batch[HEADER_BYTES:], use_list=False))
    return entries


class _Gaps(trio.abc.Instrument):
    """The longest work of the event loop between two looks at its sockets, in CPU time."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._since = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's signature
        self.longest_ms = max(self.longest_ms, (time.thread_time() - self._since) * 1000)

    def after_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - trio's signature
        self._since = time.thread_time()


def load(folder: Path) -> dict[str, float]:
    """Open the folder and load it; return CPU seconds of both, and the longest stall in ms."""
    measured: dict[str, float] = {}

    async def run() -> None:
        started = time.process_time()
        journal = open_journal(folder)
        measured["open_s"] = time.process_time() - started
        node = make_node(load_settings(), journal, DiskThread(), folder, emit_event=lambda *_: None)
        gaps = _Gaps()
        trio.lowlevel.add_instrument(gaps)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.run)
            await trio.lowlevel.checkpoint()
            wall = time.perf_counter()
            started = time.process_time()
            with collector_at_rest():
                await node.load()
            measured["load_s"] = time.process_time() - started
            measured["load_wall_s"] = time.perf_counter() - wall
            nursery.cancel_scope.cancel()
        trio.lowlevel.remove_instrument(gaps)
        measured["stall_ms"] = gaps.longest_ms
        _check(node)
        journal.close(clean=True)

    trio.run(run)
    gc.unfreeze()
    gc.collect()
    return measured


def _check(node: Node) -> None:
    if not node.ready:
        raise ValueError("the log was not loaded")


def _timed(work: Callable[[], Any]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def main() -> None:
    """Print the floor, the load and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--entries-per-batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size_bytes = write_log(
            folder, entries=given.entries, entries_per_batch=given.entries_per_batch
        )
        print(f"{given.entries} entries in {size_bytes} bytes")
        batches = read_batches(folder)
        rows = []
        for _ in range(given.rounds):
            measured = load(folder)
            gc.disable()
            measured["floor_s"] = _timed(lambda: floor(batches))
            gc.enable()
            measured["ratio"] = measured["load_s"] / measured["floor_s"]
            rows.append(measured)
        for key in rows[0]:
            values = sorted(row[key] for row in rows)
            print(f"{key:12} median {statistics.median(values):8.3f}  of {values}")


if __name__ == "__main__":
    main()
