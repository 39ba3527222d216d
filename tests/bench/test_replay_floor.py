"""The reference for a load reads what the daemon writes."""

import zlib
from pathlib import Path

import pytest

from bench.replay_floor import batches_of, measure
from coordinator.log.format import Entry
from coordinator.log.journal import Journal
from coordinator.log.os_directory import OsDirectory


def write_log(folder: Path, batches: int, entries: int, segment_bytes: int) -> None:
    """Write a log of so many batches through the daemon's own journal."""
    folder.mkdir()
    journal = Journal(
        OsDirectory(folder),
        num_partitions=3,
        segment_bytes=segment_bytes,
        node_id=1,
        new_cluster_id=lambda: "A" * 22,
    )
    for number in range(batches):
        value = (number, -1, "", 1_700_000_000_000, -1)
        journal.append(
            number % 3,
            [Entry(1, 0, f"g-{number}", ("orders", p), value) for p in range(entries)],
            1_700_000_000_000,
        )
        flush = journal.take_flush()
        assert flush is not None
        journal.write_flush(flush)
    journal.close(clean=True)


@pytest.mark.parametrize("segment_bytes", [4096, 1 << 20])
def test_every_batch_and_entry_of_the_log_is_read(tmp_path: Path, segment_bytes: int) -> None:
    """In sealed segments, too, which end with an index."""
    folder = tmp_path / "log"
    write_log(folder, batches=40, entries=7, segment_bytes=segment_bytes)
    found = measure(folder)
    assert (found.batches, found.entries) == (40, 280)
    assert found.seconds > 0


def test_damage_ends_what_is_read() -> None:
    """A reference over half of the log would be half the time."""
    body = bytes(31) + b"\x90"
    batch = len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body
    assert list(batches_of(batch * 2)) == [(8, 40), (48, 80)]
    assert list(batches_of(batch + b"\0" + batch[1:5] + bytes(64))) == [(8, 40)]
    assert list(batches_of(batch[:-1])) == []


def test_a_folder_without_a_batch_is_refused(tmp_path: Path) -> None:
    """Nothing takes no time."""
    with pytest.raises(ValueError, match="no batch"):
        measure(tmp_path)
