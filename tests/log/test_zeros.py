"""Zeros that are written ahead of the batches: they are for speed, and say nothing."""

import errno
import random

import msgpack
import pytest

from coordinator.log.errors import LogCorrupt, LogFailed, SyncFailed
from coordinator.log.format import Entry
from coordinator.log.journal import ZEROS_BYTES, Journal
from tests.fakes.disk import Disk, DiskFile
from tests.log.helpers import (
    NOW_MS,
    append,
    events_of,
    flip,
    flush,
    newest_segment,
    numbers_of,
    open_journal,
    replayed,
    segments_of,
    write,
)
from tests.log.repairs import planned, repaired, verdict

ZEROS = 1_000


def opened(disk: Disk, *, segment_bytes: int = 1 << 20, zeros_bytes: int = ZEROS) -> Journal:
    """Start a process that writes zeros ahead."""
    return open_journal(disk, segment_bytes=segment_bytes, zeros_bytes=zeros_bytes)


def newest(disk: Disk) -> bytes:
    """Return what is in the segment that is appended to."""
    return disk.files()[newest_segment(disk)]


def test_a_flush_overwrites_zeros_that_are_on_disk() -> None:
    """Then its sync is one of data only: no new blocks, and no new size."""
    disk = Disk()
    journal = opened(disk)
    write(journal, 0, 0)
    first_bytes = journal.size_bytes
    (segment,) = segments_of(disk)
    assert len(newest(disk)) == first_bytes + ZEROS
    disk.plan()
    number = 1
    while journal.size_bytes + first_bytes <= len(newest(disk)):
        write(journal, 0, number)
        number += 1
    assert number > 10
    assert set(disk.operations) == {f"write {segment}", f"sync {segment}"}
    size_bytes = len(newest(disk))
    assert size_bytes == first_bytes + ZEROS
    disk.plan()
    write(journal, 0, number)

    assert disk.operations[0] == f"zero {segment}"
    assert len(newest(disk)) > size_bytes
    assert newest(disk)[journal.size_bytes :].strip(b"\0") == b""
    assert replayed(journal) == list(range(number + 1))


def test_no_more_is_zeroed_than_a_segment_has() -> None:
    """Small segments would be mostly zeros."""
    disk = Disk()
    journal = opened(disk, segment_bytes=400)
    for number in range(12):
        write(journal, 0, number)
        assert len(newest(disk)) <= 400
    append(journal, 0, 12, padding=500)
    flush(journal)

    assert len(newest(disk)) > 500
    assert replayed(journal) == list(range(13))


def test_zeros_do_not_count_as_log() -> None:
    """Nobody's reserve, ratio or report may be wrong by them."""
    disk, plain = Disk(), Disk()
    journal, other = opened(disk), opened(plain, zeros_bytes=0)
    for number in range(3):
        write(journal, 0, number)
        write(other, 0, number)
    assert len(newest(disk)) > len(newest(plain)) == journal.size_bytes

    assert (journal.size_bytes, journal.live_bytes) == (other.size_bytes, other.live_bytes)
    assert [numbers_of(batch) for batch in journal.read(0)] == [[0], [1], [2]]
    disk.kill()
    plain.kill()
    for one in (disk, plain):
        assert verdict(one) is None
        one.delete("durable")
        flip(one, newest_segment(one), 10)
    assert planned(disk).lost_bytes == planned(plain).lost_bytes > 0


def test_a_sealed_segment_ends_with_its_index() -> None:
    """What was zeroed and not used is cut off before."""
    disk, plain = Disk(), Disk()
    for one, zeros_bytes in ((disk, ZEROS), (plain, 0)):
        journal = opened(one, zeros_bytes=zeros_bytes)
        write(journal, 0, 0)
        journal.want_roll()
        flush(journal)

    assert disk.files()[segments_of(disk)[0]] == plain.files()[segments_of(plain)[0]]


def test_a_clean_stop_leaves_no_zeros_and_would_do_with_them() -> None:
    """To cut them off isn't synced: a power cut may bring them back."""
    disk = Disk()
    journal = opened(disk)
    write(journal, 0, 0)
    journal.close(clean=True)
    assert len(newest(disk)) == journal.size_bytes
    disk.put(newest_segment(disk), newest(disk) + bytes(ZEROS))
    assert verdict(disk) is None
    assert planned(disk).is_needed is False
    journal = opened(disk)
    assert "log.recovered_after_unclean_stop" not in events_of(journal)
    write(journal, 0, 1)

    assert replayed(journal) == [0, 1]


def test_of_a_torn_tail_the_zeros_behind_it_are_not_kept() -> None:
    """What is put aside is what was written."""
    disk = Disk()
    journal = opened(disk)
    write(journal, 0, 0)
    end = journal.size_bytes
    disk.kill()
    content = newest(disk)
    disk.put(newest_segment(disk), content[:end] + b"\0torn" + content[end + 5 :])
    assert replayed(opened(disk)) == [0]

    assert [c for n, c in disk.files().items() if n.startswith("aside/")] == [b"\0torn"]


def test_a_flush_behind_a_hole_of_zeros_is_a_later_one() -> None:
    """The one in the hole had been acknowledged before the next began."""
    disk = Disk()
    journal = opened(disk)
    ends = []
    for number in range(3):
        write(journal, 0, number)
        ends.append(journal.size_bytes)
    disk.kill()
    disk.delete("durable")
    content = newest(disk)
    hole = bytes(ends[1] - ends[0])
    disk.put(newest_segment(disk), content[: ends[0]] + hole + content[ends[1] :])
    refused = verdict(disk)
    assert isinstance(refused, LogCorrupt)
    assert "no crash does that" in str(refused)
    repaired(disk, fences=[(0, [Entry(1, 0, "group", ("topic", 9), (9, ""))])])

    assert replayed(opened(disk)) == [0, 2, 9]


@pytest.mark.parametrize("clean", [True, False])
def test_zeros_at_the_end_of_a_batch_belong_to_it(*, clean: bool) -> None:
    """Where it ends, nobody can tell from the zeros behind it."""
    disk = Disk()
    journal = opened(disk)
    write(journal, 0, 0)
    journal.append(1, [Entry(1, 0, "group", ("topic", 1), bytes(50))], NOW_MS)
    flush(journal)
    journal.close(clean=clean)
    disk.kill()
    assert msgpack.packb(bytes(50))[-50:] == bytes(50)
    assert verdict(disk) is None
    assert planned(disk).is_needed is False
    flip(disk, newest_segment(disk), 10)
    repaired(disk, fences=[(0, [Entry(1, 0, "group", ("topic", 9), (9, ""))])])

    assert replayed(opened(disk)) == [1, 9]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_without_room_for_zeros_it_is_done_without(error: int) -> None:
    """Nothing of what a client sent has failed; the next segment gets another try."""
    disk = Disk()
    journal = opened(disk)
    append(journal, 0, 0)
    disk.plan(fail_at=0, error=error)
    flush(journal)
    assert len(newest(disk)) == journal.size_bytes
    disk.plan()
    write(journal, 0, 1)
    assert not any(operation.startswith("zero") for operation in disk.operations)
    disk.crash(random.Random(error))
    assert replayed(opened(disk.copy())) == [0, 1]
    journal = opened(disk)
    write(journal, 0, 2)
    assert len(newest(disk)) > journal.size_bytes


@pytest.mark.parametrize(("call", "error"), [(0, errno.EIO), (1, errno.EIO), (1, errno.ENOSPC)])
def test_any_other_failure_to_zero_is_one_of_the_log(call: int, error: int) -> None:
    """A disk that can't write zeros can't be trusted with data, nor one whose sync failed."""
    disk = Disk()
    journal = opened(disk)
    append(journal, 0, 0)
    disk.plan(fail_at=call, error=error)
    with pytest.raises(LogFailed):
        flush(journal)
    assert not any("truncate" in operation for operation in disk.operations)


@pytest.mark.parametrize("zeros_bytes", [0, ZEROS])
def test_one_call_that_writes_and_syncs_may_lose_all_of_it_for_lack_of_room(
    monkeypatch: pytest.MonkeyPatch, zeros_bytes: int
) -> None:
    """The call doesn't tell which of the two failed; no byte counts until both are repeated."""
    disk = Disk()
    journal = opened(disk, zeros_bytes=zeros_bytes)
    write(journal, 0, 0)
    full = [True]
    write_synced = DiskFile.write_synced

    def fail_once(file: DiskFile, data: bytes, position: int) -> None:
        if not full:
            write_synced(file, data, position)
            return
        file.write(data, position)
        disk.plan(fail_at=0, error=full.pop() and errno.ENOSPC)
        try:
            file.sync()
        except SyncFailed as exc:
            disk.plan()
            raise OSError(exc.errno, "one call") from exc

    monkeypatch.setattr(DiskFile, "write_synced", fail_once)
    for number in range(1, 60):
        write(journal, 0, number)
    assert not full
    for state in disk.crash_states():
        assert replayed(opened(state)) == list(range(60))


@pytest.mark.parametrize("free_bytes", [0, 64, 64 * 100, 1 << 40])
def test_zeros_take_a_small_share_of_what_is_free(free_bytes: int) -> None:
    """They must not be what fills the disk."""
    disk = Disk()
    disk.free_bytes = free_bytes
    journal = opened(disk, zeros_bytes=ZEROS_BYTES, segment_bytes=1 << 22)
    write(journal, 0, 0)

    assert len(newest(disk)) - journal.size_bytes == min(ZEROS_BYTES, free_bytes // 64)
