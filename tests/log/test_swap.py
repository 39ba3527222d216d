"""A crash or a failure at every operation of a compaction, its swap, and a roll beside it."""

import errno
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from coordinator.log.compaction import Job, compact, finish
from coordinator.log.errors import LogCorrupt, LogFailed
from coordinator.log.format import Entry
from coordinator.log.journal import Journal
from coordinator.log.offline.compact import compact_stopped
from coordinator.log.swap import Swap, plan, remove_outputs
from tests.fakes.disk import CrashNow, Disk
from tests.log.helpers import NOW_MS, flush, open_journal
from tests.log.test_compaction import content, fold, gone, put

SEGMENT_BYTES: Final = 180
DROP_BEFORE_MS: Final = NOW_MS + 1

# The child's work, and the removal of sources, aren't the journal's; a sync is never repeated.
NOT_TRIED_AGAIN: Final = ("sync", "read", "create comp", "write comp", "remove 0")

Content = list[tuple[int, int, Entry]]
Story = Callable[[Disk], Journal]


def reopen(disk: Disk, *, segment_bytes: int = SEGMENT_BYTES) -> Journal:
    """Start a process."""
    return open_journal(disk, segment_bytes=segment_bytes, zeros_bytes=100)


def origin() -> Disk:
    """Return a disk with four segments; two of them have nothing that is live but one key each."""
    disk = Disk()
    journal = reopen(disk)
    for written in (
        [put(0, "g", 1, 1), put(0, "g", 2, 1), put(1, "h", 1, 1)],
        [put(0, "g", 1, 2), put(0, "g", 2, None), gone(1, "h")],
        [put(2, "k", n, n) for n in range(3)],
        [put(0, "g", 1, 3)],
    ):
        for partition, entry in written:
            journal.append(partition, [entry], NOW_MS)
        flush(journal)
    assert len(journal.manifest.segments) == 4
    journal.close(clean=True)
    return disk


def swap_of(journal: Journal, segment_bytes: int = SEGMENT_BYTES) -> Swap:
    """Compact what is sealed; return what puts the outputs in its place."""
    job = a_job(journal, segment_bytes=segment_bytes)
    return Swap(journal, job, finish(compact(journal.directory, job)))


def compacting(disk: Disk) -> Journal:
    """Compact everything, into several outputs."""
    journal = reopen(disk)
    compact_stopped(journal, segment_bytes=100, drop_before_ms=DROP_BEFORE_MS)
    assert len([s for s in journal.manifest.segments if s.compacted]) == 2
    return journal


def compacting_and_writing(disk: Disk) -> Journal:
    """Compact what is sealed; before, between and behind each step of the swap, roll."""
    journal = reopen(disk)

    def write(number: int) -> None:
        """Fill a segment of its own."""
        journal.append(3, [Entry(1, 0, "new", ("t", number), ("x" * 220,))], NOW_MS)
        flush(journal)

    swap = swap_of(journal, segment_bytes=100)
    write(0)
    swap.announce()
    write(1)
    swap.install()
    write(2)
    swap.remove()
    write(3)
    swap.forget()
    write(4)
    assert len(journal.manifest.segments) == 2 + 1 + 5
    return journal


def a_job(journal: Journal, *, segment_bytes: int = SEGMENT_BYTES) -> Job:
    """Return the compaction of what is sealed."""
    job = plan(
        journal,
        1,
        segment_bytes=segment_bytes,
        drop_before_ms=DROP_BEFORE_MS,
        leave_free_bytes=0,
    )
    assert job is not None
    return job


def crash_states(story: Story) -> Iterator[tuple[str, Disk]]:
    """Yield what a loss of power leaves at each operation of *story*, in every variant."""
    counted = origin()
    counted.plan()
    story(counted)
    for number in range(len(counted.operations)):
        disk = origin()
        disk.plan(crash_at=number)
        with pytest.raises(CrashNow):
            story(disk)
        for state in disk.crash_states():
            yield f"{number} {disk.operations[number]}", state


@pytest.mark.parametrize("story", [compacting, compacting_and_writing])
def test_power_lost_anywhere_leaves_the_old_log_or_the_new_one(story: Story) -> None:
    """At every write, sync, rename and removal, whatever of them reached the disk."""
    old = content(reopen(origin()))
    new = [item for item in content(story(origin())) if item[0] != 3]
    assert len(new) < len(old)
    assert fold(new) == fold(old)
    seen = {"old": 0, "new": 0}
    for where, disk in crash_states(story):
        journal = reopen(disk)
        found = [item for item in content(journal) if item[0] != 3]
        written = [e.key for p, _, e in content(journal) if p == 3]
        manifest = journal.manifest
        is_new = manifest.segments[0].compacted

        assert found == (new if is_new else old), where
        assert journal.compacted_below == ({0: 4, 1: 2} if is_new else {}), where
        assert written == [("t", n) for n in range(len(written))], where
        assert leftovers(disk, journal) == set(), where
        assert fold(found) == fold(old)

        journal.append(3, [Entry(1, 0, "later", ("t", 77), ("x" * 250,))], NOW_MS)
        flush(journal)
        compact_stopped(journal, segment_bytes=SEGMENT_BYTES, drop_before_ms=0)
        assert fold([i for i in content(journal) if i[0] != 3]) == fold(old), where
        journal.close(clean=False)
        assert leftovers(disk, reopen(disk)) == set(), where
        seen["new" if is_new else "old"] += 1

    assert min(seen.values()) > 20


def test_power_lost_while_leftovers_are_removed_leaves_none_for_ever() -> None:
    """A file that comes back after the manifest has forgotten it would be kept as a stranger's."""
    disk = origin()
    journal = reopen(disk)
    job = a_job(journal)
    swap = Swap(journal, job, finish(compact(journal.directory, job)))
    swap.announce()
    swap.install()
    disk.kill()
    expected = content(reopen(disk.copy()))
    counted = disk.copy()
    counted.plan()
    reopen(counted)
    for number in range(len(counted.operations)):
        again = disk.copy()
        again.plan(crash_at=number)
        with pytest.raises(CrashNow):
            reopen(again)
        for state in again.crash_states():
            journal = reopen(state)

            assert content(journal) == expected, counted.operations[number]
            assert [n for n in leftovers(state, journal) if not n.startswith("aside/0")] == []
            sources = {f"aside/{segment.name}" for segment in job.segments}
            assert not sources & set(state.files()), counted.operations[number]


def leftovers(disk: Disk, journal: Journal) -> set[str]:
    """Return the files that nobody needs, but for what an interrupted flush or roll leaves."""
    needed = {segment.name for segment in journal.manifest.segments}
    needed |= {"meta", "manifest", "lock", "clean", "durable", "ballast"}
    return {
        name
        for name, data in disk.files().items()
        if data and not name.endswith(".torn") and name not in needed
    }


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("story", [compacting, compacting_and_writing])
def test_a_failure_anywhere_ends_the_journal_or_only_the_compaction(
    story: Story, error: int
) -> None:
    """What the child writes may fail without harm; what the journal writes is fail-stop.

    But a start, a roll or a swap for which there is no room goes on once the ballast is thrown off.
    """
    old = fold(content(reopen(origin())))
    counted = origin()
    counted.plan()
    story(counted)
    started = counted.operations.index("open durable")
    for number, operation in enumerate(counted.operations):
        disk = origin()
        disk.plan(fail_at=number, error=error)
        is_start, is_others = 0 < number <= started, operation.startswith(NOT_TRIED_AGAIN)
        if error == errno.ENOSPC and (is_start or (number > started and not is_others)):
            journal = story(disk)
            assert journal.used_ballast or is_start or "zero" in operation, operation
            assert fold([i for i in content(journal) if i[0] != 3]) == old, operation
        else:
            with pytest.raises((LogFailed, OSError)):
                story(disk)
        disk.kill()
        journal = reopen(disk)

        assert fold([i for i in content(journal) if i[0] != 3]) == old, operation
        assert leftovers(disk, journal) == set(), operation


def swap_that_finds_no_room(
    disk: Disk, failing: int, *, crash_at: int | None = None
) -> tuple[Journal, Exception | None]:
    """Compact, with no room at an operation of the swap, also not in that of the ballast."""
    journal = reopen(disk)
    swap = swap_of(journal, segment_bytes=100)
    disk.plan(fail_at=failing, error=errno.ENOSPC, fails_again=True, crash_at=crash_at)
    try:
        swap.announce()
        swap.install()
    except (OSError, LogFailed, CrashNow) as exc:
        return journal, exc
    return journal, None


def test_a_swap_that_finds_no_room_leaves_the_log_and_the_journal_as_they_were() -> None:
    """On a full disk the outputs must not stay, and the next compaction must be possible."""
    whole = origin()
    swap_that_finds_no_room(whole, 1_000)
    abandoned = states = 0
    for failing, operation in enumerate(whole.operations):
        disk = origin()
        journal, end = swap_that_finds_no_room(disk, failing)
        if operation.startswith("sync"):
            assert isinstance(end, LogFailed), operation
            continue
        assert isinstance(end, OSError), operation
        assert disk.operations.count("remove ballast") == 1
        abandoned += 1
        count = len(disk.operations)
        disk.plan()
        remove_outputs(journal.directory)
        old = content(reopen(origin()))
        assert content(journal) == old
        assert journal.manifest.dispensable == ()
        assert leftovers(disk, journal) <= {"manifest.tmp"}
        flush_one(journal)
        compact_stopped(journal, segment_bytes=SEGMENT_BYTES, drop_before_ms=DROP_BEFORE_MS)
        assert fold([i for i in content(journal) if i[0] != 3]) == fold(old)
        assert leftovers(disk, journal) == set()
        for number in range(failing + 1, count):
            crashed = origin()
            _, end = swap_that_finds_no_room(crashed, failing, crash_at=number)
            assert isinstance(end, CrashNow)
            for state in crashed.crash_states():
                states += 1
                again = reopen(state)
                assert content(again) == old, (operation, number)
                assert leftovers(state, again) == set(), (operation, number)
    assert abandoned == 10
    assert states > 100


def flush_one(journal: Journal) -> None:
    """Write an entry of partition 3."""
    journal.append(3, [Entry(1, 0, "new", ("t", 1), ("x" * 220,))], NOW_MS)
    flush(journal)


def test_what_a_failed_compaction_wrote_is_removed() -> None:
    """A full disk must not stay full."""
    disk = origin()
    journal = reopen(disk)
    before = set(disk.files())
    work = compact(journal.directory, a_job(journal))
    disk.plan(fail_at=9, error=errno.ENOSPC)
    with pytest.raises(OSError, match="planned failure"):
        list(work)
    assert set(disk.files()) > before
    remove_outputs(journal.directory)

    assert set(disk.files()) == before


def test_an_output_that_is_not_as_was_said_is_never_installed() -> None:
    """The child may have been killed in the middle of its last write."""
    disk = origin()
    journal = reopen(disk)
    job = a_job(journal)
    compacted = finish(compact(journal.directory, job))
    name = compacted.outputs[0].name
    disk.put(name, disk.files()[name][:-1])

    with pytest.raises(LogCorrupt, match="no valid index"):
        Swap(journal, job, compacted).check()


def test_an_output_that_is_gone_is_never_installed() -> None:
    """A rename that is left out, as it was done before there was no room, must not hide that."""
    disk = origin()
    swap = swap_of(reopen(disk))
    swap.announce()
    disk.delete("compaction-2-1-0.tmp")

    with pytest.raises(LogFailed, match="manifest"):
        swap.install()


def test_a_read_goes_on_over_a_swap() -> None:
    """It has seen a part of the old log, so it must see the rest of the old one."""
    disk = origin()
    journal = reopen(disk)
    old = [offset for b in journal.read(0) for offset, _ in b.entries]
    reading = journal.read(0)
    seen = [next(reading).base_offset]
    swap = swap_of(journal)
    swap.announce()
    swap.install()
    before = journal.readers.now()

    assert journal.readers.any_left(before)

    seen += [b.base_offset for b in reading]

    assert old == seen
    assert not journal.readers.any_left(before)

    swap.remove()
    swap.forget()

    assert [offset for b in journal.read(0) for offset, _ in b.entries] == [2, 4]
    assert journal.manifest.dispensable == ()
    assert set(journal._sealed_ends) <= {s.name for s in journal.manifest.segments}


def test_a_read_that_is_given_up_holds_nothing_back() -> None:
    """Nor does one that never began."""
    journal = reopen(origin())
    reading, _never_begun = journal.read(0), journal.read(1)
    next(reading)
    before = journal.readers.now()
    assert len(before) == 1
    del reading

    assert not journal.readers.any_left(before)


def test_a_roll_can_be_asked_for() -> None:
    """A compaction by command takes in what was written so far."""
    disk = Disk()
    journal = reopen(disk, segment_bytes=10_000)

    assert journal.want_roll() == 0
    assert journal.take_flush() is None

    journal.append(0, [put(0, "g", 1, 1)[1]], NOW_MS)
    flush(journal)
    position = journal.want_roll()
    rolling = flush(journal)

    assert (rolling.rolls, rolling.data) == (True, b"")
    assert journal.want_roll() == position == journal.manifest.segments[-1].base
    assert journal.take_flush() is None

    journal.append(0, [put(0, "g", 2, 2)[1]], NOW_MS)
    flush(journal)
    assert journal.want_roll() > position
    journal.append(0, [put(0, "g", 3, 3)[1]], NOW_MS)
    assert flush(journal).rolls
    assert [s.end is None for s in journal.manifest.segments] == [False, False, True]
    assert [offset for _, offset, _ in content(journal)] == [0, 1, 2]

    journal.close(clean=True)
    assert [offset for _, offset, _ in content(reopen(disk))] == [0, 1, 2]


def test_nothing_is_changed_in_a_log_that_failed_or_is_closed() -> None:
    """A swap that comes too late must not touch the folder of another process."""
    disk = origin()
    journal = reopen(disk)
    job = a_job(journal)
    compacted = finish(compact(journal.directory, job))
    journal.close(clean=True)
    before = disk.files()

    with pytest.raises(LogFailed):
        Swap(journal, job, compacted).announce()
    assert disk.files() == before
