"""The journal in good weather, and when the disk fails."""

import errno
from typing import Any

import msgpack
import pytest

from coordinator.log import format as log_format
from coordinator.log.directory import Directory
from coordinator.log.errors import BatchTooLarge, LogFailed
from coordinator.log.format import HEADER_BYTES, NODE_PARTITION, Entry, Index
from coordinator.log.journal import Journal
from coordinator.log.segments import ActiveSegment, read_footer
from coordinator.log.state_files import SegmentInfo
from tests.fakes.disk import Disk
from tests.log.helpers import (
    NOW_MS,
    append,
    entry,
    events_of,
    flush,
    loaded,
    newest_segment,
    numbers_of,
    open_journal,
    replayed,
    segments_of,
    write,
)


@pytest.fixture
def disk() -> Disk:
    """An empty disk."""
    return Disk()


def test_what_was_written_is_replayed_in_order(disk: Disk) -> None:
    """Memory is rebuilt from this and nothing else."""
    journal = open_journal(disk)
    append(journal, 0, 1, 2)
    append(journal, 3, 3)
    append(journal, NODE_PARTITION, 4)
    flush(journal)
    write(journal, 0, 5)
    journal.close(clean=True)

    batches = list(loaded(open_journal(disk)))

    assert [(b.partition, b.base_offset, numbers_of(b)) for b in batches] == [
        (0, 0, [1, 2]),
        (3, 0, [3]),
        (NODE_PARTITION, 0, [4]),
        (0, 2, [5]),
    ]
    assert (1, entry(2)) == batches[0].entries[1]
    assert {1} == {b.leader_epoch for b in batches}
    assert {NOW_MS} == {b.timestamp_ms for b in batches}


def test_a_tombstone_and_an_empty_value_are_told_apart(disk: Disk) -> None:
    """A tombstone deletes; an empty value is a value."""
    journal = open_journal(disk)
    entries = [Entry(1, 0, "g", ("k",), None), Entry(1, 0, "", ("k", b"\x00", -1), ())]
    journal.append(0, entries, NOW_MS)
    flush(journal)

    (batch,) = loaded(journal)

    assert entries == [e for _, e in batch.entries]


def test_offsets_grow_by_partition_from_zero(disk: Disk) -> None:
    """The gate of each shard waits for offsets of its own partition."""
    journal = open_journal(disk)

    assert append(journal, 1, 1, 2) == 2
    assert append(journal, 2, 3) == 1
    assert append(journal, 1, 4) == 3
    assert [journal.end_offset(p) for p in range(3)] == [0, 3, 1]
    assert flush(journal).ends == {1: 3, 2: 1}


def test_offsets_go_on_after_a_restart(disk: Disk) -> None:
    """An offset is never given twice."""
    journal = open_journal(disk, segment_bytes=300)
    for number in range(20):
        write(journal, number % 3, number, number)
    journal.close(clean=True)

    journal = open_journal(disk, segment_bytes=300)

    assert [journal.end_offset(p) for p in range(4)] == [14, 14, 12, 0]
    assert append(journal, 0, 1, 2) == 16


def test_appending_goes_on_while_a_flush_is_written(disk: Disk) -> None:
    """Group commit: the next flush gathers while this one is on its way."""
    journal = open_journal(disk)
    append(journal, 0, 1)
    first = journal.take_flush()
    append(journal, 0, 2)
    append(journal, 1, 3)
    assert first is not None
    journal.write_flush(first)

    assert first.ends == {0: 1}
    assert flush(journal).ends == {0: 2, 1: 1}
    assert replayed(journal) == [1, 2, 3]


def test_nothing_appended_is_nothing_to_flush(disk: Disk) -> None:
    """An idle daemon doesn't sync."""
    assert open_journal(disk).take_flush() is None


def test_one_flush_is_one_write_and_one_sync(disk: Disk) -> None:
    """Whatever number of partitions it touches."""
    journal = open_journal(disk)
    for partition in range(4):
        append(journal, partition, partition)
    disk.plan()
    flush(journal)
    (segment,) = segments_of(disk)

    assert [f"write {segment}", f"sync {segment}"] == disk.operations


def test_a_batch_over_the_limit_changes_nothing(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused while deciding, so the refusal is definite."""
    monkeypatch.setattr("coordinator.log.journal.BATCH_BYTES_MAX", 200)
    journal = open_journal(disk)
    append(journal, 0, 1)
    open_bytes = journal.open_bytes
    with pytest.raises(BatchTooLarge):
        append(journal, 0, 2, padding=200)

    assert (1, open_bytes) == (journal.end_offset(0), journal.open_bytes)
    assert append(journal, 0, 3) == 2
    flush(journal)
    assert replayed(journal) == [1, 3]


def test_the_largest_batch_can_be_read_again(disk: Disk) -> None:
    """The limit of writing is the limit of reading."""
    journal = open_journal(disk)
    empty = len(msgpack.packb([[0, 1, 0, "", ["k"], b"\x00" * (1 << 16)]])) - (1 << 16)
    value = bytes(log_format.BATCH_BYTES_MAX - HEADER_BYTES - empty)
    journal.append(0, [Entry(1, 0, "", ("k",), value)], NOW_MS)
    assert journal.open_bytes == log_format.BATCH_BYTES_MAX
    flush(journal)
    write(journal, 0, 1)
    disk.kill()

    journal = open_journal(disk)

    assert [value, (1, "")] == [b.entries[0][1].value for b in loaded(journal)]
    assert [b.base_offset + 1 for b in journal.read(0)] == [1, 2]


def test_a_value_that_cannot_be_packed_changes_nothing(disk: Disk) -> None:
    """A programming error must not leave half a batch in the packer."""
    journal = open_journal(disk)
    with pytest.raises(TypeError):
        journal.append(0, [Entry(1, 0, "g", ("k",), object())], NOW_MS)
    write(journal, 0, 7)

    assert replayed(journal) == [7]


@pytest.mark.parametrize("partition", [-1, 4, NODE_PARTITION - 1, NODE_PARTITION + 1])
def test_a_partition_that_is_not_there_is_refused(disk: Disk, partition: int) -> None:
    """What replay would refuse must not be written."""
    journal = open_journal(disk)
    with pytest.raises(ValueError, match="partition"):
        append(journal, partition, 1)
    with pytest.raises(ValueError, match="entry"):
        append(journal, 0)

    assert journal.take_flush() is None


def test_segments_roll_between_flushes_only(disk: Disk) -> None:
    """A flush never spans segments, so a torn one is at the end of the newest."""
    journal = open_journal(disk, segment_bytes=600)
    for number in range(12):
        append(journal, 0, number, padding=60)
        append(journal, 1, number, padding=60)
        flush(journal)

    assert len(segments_of(disk)) == 6
    assert [n for n in range(12) for _ in range(2)] == replayed(journal)
    sealed_bytes = sum(s.data_bytes or 0 for s in journal.manifest.segments)
    assert journal.size_bytes == sealed_bytes + len(disk.files()[newest_segment(disk)])
    assert journal.live_bytes == journal.size_bytes


def test_a_flush_that_fills_a_segment_exactly_stays_in_it(disk: Disk) -> None:
    """The setting is what a segment may hold; only the next byte is too many."""
    measured = open_journal(Disk())
    write(measured, 0, 1)
    write(measured, 0, 2)
    journal = open_journal(disk, segment_bytes=measured.size_bytes)
    write(journal, 0, 1)
    write(journal, 0, 2)
    assert len(segments_of(disk)) == 1

    append(journal, 0, 3)
    assert flush(journal).rolls


def test_one_partition_is_read_alone_from_an_offset(disk: Disk) -> None:
    """An election or a follower needs one partition, not the node."""
    journal = open_journal(disk, segment_bytes=500)
    for number in range(40):
        append(journal, number % 3, number, number + 1000)
        if number % 2:
            flush(journal)
    assert len(segments_of(disk)) > 3
    expected = [n for n in range(40) if n % 3 == 1]
    for offset in range(2 * len(expected) + 1):
        batches = list(journal.read(1, offset))

        assert expected[offset // 2 :] == [numbers_of(b)[0] for b in batches]
        assert {1} >= {b.partition for b in batches}
    assert list(journal.read(3)) == []
    assert list(journal.read(NODE_PARTITION)) == []


def test_reading_ends_after_so_many_bytes_and_goes_on_from_there(disk: Disk) -> None:
    """A stream of changes must not hold a thread for as long as the log is; it gets on, though."""
    journal = open_journal(disk, segment_bytes=500)
    for number in range(40):
        write(journal, number % 3, number)
    seen: list[int] = []
    offset = reads = 0
    while batches := list(journal.read(1, offset, max_bytes=200)):
        seen += [n for b in batches for n in numbers_of(b)]
        offset = batches[-1].entries[-1][0] + 1
        reads += 1

    assert [n for n in range(40) if n % 3 == 1] == seen
    assert 3 < reads
    assert 1 == len(list(journal.read(1, max_bytes=0)))


def test_segments_below_the_offset_are_not_opened(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever follows the changes asks every second, and the log may have a thousand segments."""
    opened: list[str] = []

    def noted(directory: Directory, segment: SegmentInfo) -> Index:
        opened.append(segment.name)
        return read_footer(directory, segment)

    monkeypatch.setattr("coordinator.log.journal.read_footer", noted)
    journal = open_journal(disk, segment_bytes=300)
    for number in range(30):
        write(journal, 0, number)
    assert [29] == [n for b in journal.read(0, 29) for n in numbers_of(b)]
    assert not opened
    disk.kill()
    journal = open_journal(disk, segment_bytes=300)
    assert list(range(30)) == replayed(journal)
    opened.clear()

    assert [29] == [n for b in journal.read(0, 29) for n in numbers_of(b)]
    assert not opened
    assert [27, 28, 29] == [n for b in journal.read(0, 27) for n in numbers_of(b)][-3:]
    assert 3 < len(segments_of(disk))
    assert 2 >= len(opened)


def test_reading_sees_only_what_is_durable(disk: Disk) -> None:
    """Nobody is told of what a crash can take back."""
    journal = open_journal(disk)
    write(journal, 0, 1)
    append(journal, 0, 2)
    journal.take_flush()

    assert [n for b in journal.read(0) for n in numbers_of(b)] == [1]
    assert replayed(journal) == [1]


def test_reading_through_a_roll_loses_and_repeats_nothing(disk: Disk) -> None:
    """The worker may seal the segment while the loop reads it."""
    journal = open_journal(disk, segment_bytes=300)
    for number in range(4):
        write(journal, 0, number)
    reading = journal.read(0)
    seen = numbers_of(next(reading))
    for number in range(4, 20):
        write(journal, 0, number)
    seen += [n for b in reading for n in numbers_of(b)]

    assert seen[:4] == [0, 1, 2, 3]
    assert list(range(len(seen))) == seen


def test_reading_while_a_flush_is_noted_never_sees_a_place_without_data(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader in another thread gets its turn between any two steps of the flusher's."""
    journal = open_journal(disk)
    write(journal, 0, 1)
    seen: list[list[int]] = []

    def change_watched(segment: ActiveSegment, name: str, value: object) -> None:
        seen.append([n for b in journal.read(0) for n in numbers_of(b)])
        object.__setattr__(segment, name, value)
        seen.append([n for b in journal.read(0) for n in numbers_of(b)])

    monkeypatch.setattr(ActiveSegment, "__setattr__", change_watched)
    write(journal, 0, 2)

    assert seen
    assert all(numbers in ([1], [1, 2]) for numbers in seen)


@pytest.mark.parametrize(("step", "error"), [(0, errno.EIO), (1, errno.EIO), (1, errno.ENOSPC)])
def test_after_a_failed_write_or_sync_nothing_goes_on(disk: Disk, step: int, error: int) -> None:
    """A second fsync can succeed without the data: it is never tried."""
    journal = open_journal(disk)
    write(journal, 0, 1)
    append(journal, 0, 2)
    taken = journal.take_flush()
    assert taken is not None
    disk.plan(fail_at=step, error=error)
    with pytest.raises(LogFailed) as failure:
        journal.write_flush(taken)
    operations = list(disk.operations)

    assert failure.value.exit_status == 74
    with pytest.raises(LogFailed):
        journal.write_flush(taken)
    with pytest.raises(LogFailed):
        append(journal, 0, 3)
    journal.close(clean=True)
    assert operations == disk.operations
    assert "clean" not in disk.files()


def test_data_that_a_failed_sync_left_in_memory_is_not_served(disk: Disk) -> None:
    """The page cache shows it, the disk doesn't have it: fsyncgate."""
    journal = open_journal(disk)
    write(journal, 0, 1)
    append(journal, 0, 2)
    taken = journal.take_flush()
    assert taken is not None
    disk.plan(fail_at=1)
    with pytest.raises(LogFailed):
        journal.write_flush(taken)
    disk.kill()
    journal = open_journal(disk)

    assert replayed(journal) == [1]


def test_what_a_killed_process_wrote_is_made_durable_before_it_is_served(disk: Disk) -> None:
    """Otherwise a power cut after the restart takes back what was shown."""
    journal = open_journal(disk)
    append(journal, 0, 1)
    taken = journal.take_flush()
    assert taken is not None
    disk.plan(crash_at=1)
    with pytest.raises(Exception, match="sync"):
        journal.write_flush(taken)
    disk.kill()
    shown = replayed(open_journal(disk))

    assert shown == [1]
    for state in disk.crash_states():
        assert replayed(open_journal(state)) == [1]


def test_a_failed_open_says_that_the_disk_failed(disk: Disk) -> None:
    """The operator sees which it is: a bad folder or a bad disk."""
    open_journal(disk).close(clean=True)
    disk.plan(fail_at=2)
    with pytest.raises(LogFailed, match="can't be opened"):
        open_journal(disk)
    disk.plan()
    open_journal(disk)


def test_a_clean_stop_needs_everything_written(disk: Disk) -> None:
    """The marker says where the journal ends; it must be true."""
    journal = open_journal(disk)
    append(journal, 0, 1)
    with pytest.raises(RuntimeError):
        journal.close(clean=True)
    flush(journal)
    journal.close(clean=True)
    journal.close(clean=True)
    with pytest.raises(LogFailed):
        append(journal, 0, 2)

    assert replayed(open_journal(disk)) == [1]


def test_a_clean_stop_is_opened_without_a_copy(disk: Disk) -> None:
    """A planned restart is cheap."""
    journal = open_journal(disk)
    write(journal, 0, 1)
    journal.close(clean=True)
    before = segments_of(disk)
    journal = open_journal(disk)

    assert before == segments_of(disk)
    assert events_of(journal) == []
    assert "clean" not in disk.files()


def test_each_open_raises_the_leader_epoch(disk: Disk) -> None:
    """Clients tell a restarted coordinator from an old one by it."""
    epochs = []
    for clean in (True, False, True):
        journal = open_journal(disk)
        epochs.append(journal.leader_epoch)
        write(journal, 0, 1)
        journal.close(clean=clean)
    journal = open_journal(disk, leader_epoch_at_least=50)

    assert (epochs, journal.leader_epoch) == ([1, 2, 3], 50)
    assert [b.leader_epoch for b in loaded(journal)] == [1, 2, 3]
    assert journal.meta.cluster_id == "A" * 22


@pytest.mark.parametrize(("name", "value"), [("num_partitions", 0), ("segment_bytes", 1)])
def test_impossible_settings_are_refused(disk: Disk, name: str, value: int) -> None:
    """Before anything is touched."""
    setting: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=name):
        open_journal(disk, **setting)

    assert disk.files() == {}


def test_flushes_are_written_in_the_order_they_were_taken(disk: Disk) -> None:
    """Positions are given when a flush is taken."""
    journal: Journal = open_journal(disk)
    append(journal, 0, 1)
    journal.take_flush()
    append(journal, 0, 2)
    second = journal.take_flush()
    assert second is not None
    with pytest.raises(RuntimeError):
        journal.write_flush(second)
