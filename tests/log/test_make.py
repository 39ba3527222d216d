"""A data folder that is made of batches from elsewhere."""

from typing import Final

import msgpack
import pytest

from coordinator.log.errors import LogCorrupt, LogRefused
from coordinator.log.format import FORMAT, FlushKey, encode_batch
from coordinator.log.offline.make import NewFolder, check_is_new
from coordinator.log.replay import all_batches
from coordinator.log.state_files import Meta
from tests.fakes.disk import Disk
from tests.log.helpers import open_journal

KEY: Final = FlushKey(bytes(16))
META: Final = Meta(FORMAT, "A" * 22, 1, 4, 7, KEY)


def batch(partition: int, base_offset: int) -> list[bytes]:
    """Return a batch of one entry, of epoch 3."""
    item = (0, 1, 1, "g", ("k", base_offset), (base_offset,))
    fields = (partition, 3, base_offset, 0, 1_700, KEY.check(3, 0))
    return list(encode_batch(fields, msgpack.packb([item])))


def made(disk: Disk, segment_bytes: int = 1_000_000) -> None:
    """Make a folder with ten entries in each of two partitions, and one that has lost its last."""
    folder = NewFolder(disk.directory(), META, segment_bytes=segment_bytes)
    for offset in range(10):
        for partition in (0, 2):
            folder.add(partition, offset + 1, batch(partition, offset))
    folder.finish({0: 10, 2: 15, 3: 4}, {3: 4})


@pytest.mark.parametrize("segment_bytes", [100, 1_000_000])
def test_it_is_opened_as_after_a_clean_stop(segment_bytes: int) -> None:
    """With the positions that there were; new entries go behind them, in a higher epoch."""
    disk = Disk()
    made(disk, segment_bytes)
    journal = open_journal(disk)
    found = [(b.partition, b.base_offset) for b in all_batches(journal.load())]

    assert found == [(p, offset) for offset in range(10) for p in (0, 2)]
    assert [journal.end_offset(p) for p in range(4)] == [10, 0, 15, 4]
    assert (journal.leader_epoch, journal.compacted_below) == (8, {3: 4})
    # Two batches are more than 100 bytes; and the newest one, which is empty.
    assert len(journal.manifest.segments) == (2 if segment_bytes > 100 else 11)


def test_a_folder_that_has_lost_everything_keeps_its_positions() -> None:
    """What is appended next must not be where something was."""
    disk = Disk()
    NewFolder(disk.directory(), META, segment_bytes=1_000).finish({1: 9}, {1: 9})
    journal = open_journal(disk)

    assert (list(all_batches(journal.load())), journal.end_offset(1)) == ([], 9)


def test_a_folder_that_is_not_finished_is_none() -> None:
    """It would be served without what is missing."""
    disk = Disk()
    folder = NewFolder(disk.directory(), META, segment_bytes=1_000)
    folder.add(0, 1, batch(0, 0))
    folder.undo()

    assert disk.directory().names() == []
    folder = NewFolder(disk.directory(), META, segment_bytes=10)
    for offset in range(2):
        folder.add(0, offset + 1, batch(0, offset))
    with pytest.raises(LogRefused, match="not empty"):
        check_is_new(disk.directory())
    with pytest.raises(LogCorrupt):
        open_journal(disk)
