"""Segments as compaction will leave them can be read already: the format carries them."""

from array import array

import msgpack
import pytest

from coordinator.log.errors import LogCorrupt
from coordinator.log.format import Index, encode_batch, encode_footer
from coordinator.log.state_files import (
    Manifest,
    SegmentInfo,
    decode_manifest,
    encode_manifest,
    segment_name,
)
from tests.fakes.disk import Disk
from tests.log.helpers import append, entry, flush, loaded, newest_segment, open_journal, replayed

# Partition, base offset and numbers of what compaction kept; offsets with gaps.
KEPT = [(0, 3, [3]), (1, 5, [15]), (0, 9, [9])]


def compacted_disk(*, flush_start: int = 0) -> Disk:
    """Return a disk whose first segment was compacted; partition 2 lost all it had."""
    disk = Disk()
    journal = open_journal(disk, segment_bytes=650)
    for number in range(10):
        append(journal, 0, number)
    flush(journal)
    for number in range(20, 24):
        append(journal, 0, number)
        flush(journal)
    journal.close(clean=True)
    manifest = decode_manifest(disk.files()["manifest"])
    old = manifest.segments[0]
    assert old.end is not None
    data = b""
    positions: dict[int, array[int]] = {0: array("I"), 1: array("I")}
    for partition, base_offset, numbers in KEPT:
        positions[partition].append(len(data))
        packed = msgpack.packb([(d, *entry(n)) for d, n in enumerate(numbers)])
        raw = (partition, 1, base_offset, flush_start, 0)
        data += b"".join(encode_batch(raw, packed))
    index = Index(old.base, old.end, {0: 10, 1: 6, 2: 77}, positions)
    name = segment_name(old.base, manifest.next_serial)
    disk.delete(old.name)
    disk.put(name, data + encode_footer(index))
    segments = (
        SegmentInfo(name, old.base, old.end, len(data), compacted=True),
        *manifest.segments[1:],
    )
    below = {0: 8, 2: 77}
    disk.put("manifest", encode_manifest(Manifest(segments, below, manifest.next_serial + 1)))
    return disk


def test_gaps_are_fine_in_a_compacted_segment() -> None:
    """Each kept entry has its offset, and the journal goes on as before."""
    journal = open_journal(compacted_disk())

    assert replayed(journal) == [3, 15, 9, 20, 21, 22, 23]
    assert [b.base_offset for b in loaded(journal)][:3] == [3, 5, 9]


def test_a_partition_that_lost_all_entries_keeps_its_end_offset() -> None:
    """Otherwise an offset would be given twice."""
    disk = compacted_disk()
    journal = open_journal(disk, segment_bytes=100)

    assert [journal.end_offset(p) for p in range(4)] == [14, 6, 77, 0]

    append(journal, 2, 50)
    assert flush(journal).ends == {2: 78}
    append(journal, 2, 51)
    flush(journal)
    disk.kill()
    journal = open_journal(disk)

    assert replayed(journal)[-2:] == [50, 51]
    assert [b.base_offset for b in journal.read(2)] == [77, 78]


def test_one_partition_of_a_compacted_segment_is_read_alone() -> None:
    """From an offset that may itself be gone."""
    journal = open_journal(compacted_disk())

    assert [b.base_offset for b in journal.read(0, 4)] == [9, 10, 11, 12, 13]
    assert [b.base_offset for b in journal.read(1)] == [5]


def test_where_tombstones_were_dropped_is_kept() -> None:
    """Over restarts and rolls: a stream of changes from below must be refused."""
    disk = compacted_disk()
    journal = open_journal(disk, segment_bytes=100)
    append(journal, 0, 1)
    assert flush(journal).rolls
    disk.kill()

    assert open_journal(disk).compacted_below == {0: 8, 2: 77}


def test_a_batch_that_names_a_flush_does_not_belong_in_a_compacted_segment() -> None:
    """Then it is not what compaction wrote."""
    with pytest.raises(LogCorrupt, match="written elsewhere"):
        replayed(open_journal(compacted_disk(flush_start=7)))


def test_offsets_that_jump_are_corruption_where_nothing_was_compacted() -> None:
    """A segment in between is gone, though everything fits otherwise."""
    disk = Disk()
    journal = open_journal(disk)
    append(journal, 0, 1)
    taken = flush(journal)
    disk.kill()
    packed = msgpack.packb([(0, *entry(2))])
    stranger = b"".join(encode_batch((0, 1, 5, len(taken.data), 0), packed))
    disk.put(newest_segment(disk), taken.data + stranger)

    with pytest.raises(LogCorrupt, match="begins at offset 5 of partition 0, not at 1"):
        replayed(open_journal(disk))
