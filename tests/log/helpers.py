"""What the tests of the log share."""

import random
from collections.abc import Iterable
from pathlib import Path

from coordinator.log.directory import OsDirectory
from coordinator.log.format import Batch, Entry, Flush, FlushKey, OpenFlush
from coordinator.log.journal import Journal
from coordinator.log.replay import all_batches
from tests.fakes.disk import Disk

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
SECRET = bytes(range(16))
NOW_MS = 1_700_000_000_000


def open_journal(
    disk: Disk,
    *,
    num_partitions: int = 4,
    segment_bytes: int = 1 << 20,
    node_id: int = 1,
    leader_epoch_at_least: int = 0,
    cluster_id: str = "",
    zeros_bytes: int = 0,
) -> Journal:
    """Start a process on *disk*."""
    return Journal(
        disk.directory(),
        num_partitions=num_partitions,
        segment_bytes=segment_bytes,
        node_id=node_id,
        new_cluster_id=lambda: CLUSTER_ID,
        new_secret=lambda: SECRET if cluster_id in {"", CLUSTER_ID} else SECRET[::-1],
        leader_epoch_at_least=leader_epoch_at_least,
        cluster_id=cluster_id,
        zeros_bytes=zeros_bytes,
    )


def open_real(path: Path, *, segment_bytes: int = 300) -> Journal:
    """Open a journal on the file system."""
    return Journal(
        OsDirectory(path),
        num_partitions=4,
        segment_bytes=segment_bytes,
        node_id=1,
        new_cluster_id=lambda: CLUSTER_ID,
        new_secret=lambda: SECRET,
    )


# partition, base_offset, timestamp_ms, packed entries
OpenBatch = tuple[int, int, int, bytes]


def encode_flush(
    batches: Iterable[OpenBatch], leader_epoch: int, start: int, key: FlushKey
) -> bytes:
    """Return the bytes of a flush that begins at position *start*."""
    flush = OpenFlush(start, leader_epoch, key)
    for batch in batches:
        flush.add(*batch)
    return flush.data()


def entry(number: int, *, padding: int = 0) -> Entry:
    """Return an entry that can be told from all others."""
    return Entry(1, 0, "group", ("topic", number), (number, "x" * padding))


def wide_entry(*numbers: int, padding: int = 0) -> Entry:
    """Return one entry that stands for the entries of all *numbers*."""
    return Entry(1, 1, "group", ("topic", numbers), (numbers, "x" * padding))


def singles(entries: Iterable[Entry]) -> list[Entry]:
    """Return *entries* with one for each key that a wide one stands for."""
    found: list[Entry] = []
    for type_, version, scope, key, value in entries:
        if not isinstance(key, tuple) or not key or not isinstance(key[-1], tuple):
            found.append(Entry(type_, version, scope, key, value))
            continue
        assert isinstance(value, tuple)
        for at, element in enumerate(key[-1]):
            part = tuple(p[at] if isinstance(p, tuple) else p for p in value)
            found.append(Entry(type_, version, scope, (*key[:-1], element), part))
    return found


def append(
    journal: Journal, partition: int, *numbers: int, padding: int = 0, wide: bool = False
) -> int:
    """Append one batch with these entries, or with one *wide* entry that stands for them."""
    entries = [entry(n, padding=padding) for n in numbers]
    if wide:
        entries = [wide_entry(*numbers, padding=padding)]
    return journal.append(partition, entries, NOW_MS)


def flush(journal: Journal) -> Flush:
    """Write what was appended."""
    taken = journal.take_flush()
    assert taken is not None
    journal.write_flush(taken)
    return taken


def write(journal: Journal, partition: int, *numbers: int, padding: int = 0) -> None:
    """Append one batch and make it durable."""
    append(journal, partition, *numbers, padding=padding)
    flush(journal)


def numbers_of(batch: Batch) -> list[int]:
    """Return the numbers of the entries."""
    return [e.key[1] for _, e in batch.entries if isinstance(e.key, tuple)]


def loaded(journal: Journal) -> list[Batch]:
    """Return all that is durable, in the order of the journal."""
    return list(all_batches(journal.load()))


def replayed(journal: Journal) -> list[int]:
    """Return the numbers of all entries, in the order of the journal."""
    return [number for batch in loaded(journal) for number in numbers_of(batch)]


def newest_segment(disk: Disk) -> str:
    """Return the name of the segment that is appended to."""
    return segments_of(disk)[-1]


def segments_of(disk: Disk) -> list[str]:
    """Return the names of all segments."""
    return sorted(name for name in disk.files() if name.endswith(".segment") and "/" not in name)


def events_of(journal: Journal) -> list[str]:
    """Return the names of what the recovery did."""
    return [name for name, _ in journal.recovery_events]


def crashed_disk(disk: Disk, seed: int = 0) -> Disk:
    """Cut the power of *disk*."""
    disk.crash(random.Random(seed))
    return disk


def flipped(content: bytes, bit: int) -> bytes:
    """Return *content* with one bit turned."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def flip(disk: Disk, name: str, byte: int) -> None:
    """Turn a bit of a file."""
    disk.put(name, flipped(disk.files()[name], 8 * byte + 2))
