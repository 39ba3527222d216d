"""A crash, or a failure, at every single operation of opening, flushing, rolling and closing."""

import errno
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st

from coordinator.log.errors import LogCorrupt, LogFailed
from coordinator.log.journal import Journal
from coordinator.log.recovery import BALLAST_BYTES, ROOMY_BYTES, START_BYTES
from tests.fakes.disk import CrashNow, Disk
from tests.log.helpers import append, flush, open_journal, replayed, segments_of
from tests.log.old_format import old_folder

SEGMENT_BYTES = 300
ZEROS_BYTES = 120
SEEDS = 12
WRITTEN = [0, 1, 2, 3] + [n for n in range(4, 12) for _ in range(2)]

Story = Callable[[Disk, list[int]], None]


def reopen(disk: Disk) -> Journal:
    """Open with segments small enough to roll, some of which is zeroed ahead."""
    return open_journal(disk, segment_bytes=SEGMENT_BYTES, zeros_bytes=ZEROS_BYTES)


def full_segment() -> Disk:
    """Return a disk on which the next flush rolls; numbers 0 to 3 are acknowledged."""
    disk = Disk()
    journal = reopen(disk)
    for number in range(4):
        append(journal, number % 2, number)
        flush(journal)
    assert SEGMENT_BYTES - 100 < journal.size_bytes <= SEGMENT_BYTES
    journal.close(clean=True)
    return disk


def rolling(disk: Disk, acknowledged: list[int]) -> None:
    """Open and write flushes across a roll."""
    journal = reopen(disk)
    for number in range(4, 12):
        append(journal, number % 2, number)
        append(journal, 3, number)
        flush(journal)
        acknowledged += [number, number]


def closing(disk: Disk, _: list[int]) -> None:
    """Open and stop in good order."""
    reopen(disk).close(clean=True)


def starting(disk: Disk, _: list[int]) -> None:
    """Open and do nothing."""
    reopen(disk)


def operations_of(origin: Disk, story: Story) -> int:
    """Count the operations of *story*."""
    disk = origin.copy()
    disk.plan()
    story(disk, [])
    return len(disk.operations)


def acknowledged_in(disk: Disk, number: int, story: Story) -> list[int]:
    """Run *story* up to its operation *number*; return what was acknowledged by then."""
    acknowledged = [0, 1, 2, 3]
    disk.plan(crash_at=number)
    with pytest.raises(CrashNow):
        story(disk, acknowledged)
    return acknowledged


@pytest.mark.parametrize("kill_only", [True, False])
@pytest.mark.parametrize("story", [rolling, closing])
@pytest.mark.parametrize("clean", [True, False])
def test_a_crash_at_every_operation_keeps_what_was_acknowledged(
    story: Story, *, clean: bool, kill_only: bool
) -> None:
    """Opening, copying, sealing, creating, listing, writing, closing: each step in between."""
    origin = full_segment()
    if not clean:
        origin.delete("clean")
    count = operations_of(origin, story)
    assert count > 5
    for number in range(count):
        for seed in range(1 if kill_only else SEEDS):
            disk = origin.copy()
            acknowledged = acknowledged_in(disk, number, story)
            if kill_only:
                disk.kill()
            else:
                disk.crash(random.Random(seed))
            seen = replayed(reopen(disk))

            assert WRITTEN[: len(seen)] == seen
            assert acknowledged == seen[: len(acknowledged)]
            survives_again(disk, seen, seed)


def recovered(
    crashed: Disk,
    acknowledged: list[int],
    open_: Callable[[Disk], Journal] = reopen,
    written: Sequence[int] = WRITTEN,
) -> int:
    """Recover each state that a power cut can leave of *crashed*, twice; return how many."""
    states = 0
    for states, disk in enumerate(crashed.crash_states(), 1):
        seen = replayed(open_(disk))
        assert list(written[: len(seen)]) == seen
        assert acknowledged == seen[: len(acknowledged)]
        disk.crash(random.Random(states))
        assert seen == replayed(open_(disk))
    return states


def survives_again(disk: Disk, seen: list[int], seed: int) -> None:
    """Cut the power again, at once and after a write: what was shown stays."""
    disk.crash(random.Random(seed + 1))
    journal = reopen(disk)

    assert seen == replayed(journal)

    append(journal, 2, 99)
    flush(journal)
    disk.crash(random.Random(seed + 2))
    assert [*seen, 99] == replayed(reopen(disk))


def test_a_crash_at_every_operation_of_the_first_start_can_be_repeated() -> None:
    """Nothing was acknowledged, so nothing may be refused."""
    count = operations_of(Disk(), starting)
    for number in range(count):
        for seed in range(SEEDS):
            disk = Disk()
            acknowledged_in(disk, number, starting)
            disk.crash(random.Random(seed))
            journal = reopen(disk)

            assert replayed(journal) == []
            survives_again(disk, [], seed)


def test_the_leader_epoch_is_never_used_twice() -> None:
    """Whoever saw an epoch sees a higher one after any crash of an open."""
    origin = full_segment()
    count = operations_of(origin, closing)
    for number in range(count):
        for seed in range(SEEDS):
            disk = origin.copy()
            acknowledged_in(disk, number, closing)
            disk.crash(random.Random(seed))
            first = reopen(disk).leader_epoch
            disk.crash(random.Random(seed + 1))

            assert 1 < first < reopen(disk).leader_epoch


@pytest.mark.parametrize("has_ballast", [True, False])
def test_a_full_disk_prevents_no_start_and_does_not_fill_up_with_tries(
    *, has_ballast: bool
) -> None:
    """A supervisor starts the daemon again and again; each operation may be what finds no room."""
    origin = full_segment()
    origin.delete("clean")
    if not has_ballast:
        origin.delete("ballast")
    count = operations_of(origin, starting)
    for number in range(count):
        disk = origin.copy()
        disk.plan(fail_at=number, error=errno.ENOSPC)
        try:
            reopen(disk)
        except LogFailed:
            assert disk.operations[number] == "lock"
        disk.kill()
        assert len([name for name in disk.files() if name.endswith(".segment")]) <= 2

        assert replayed(reopen(disk)) == [0, 1, 2, 3]


@pytest.mark.parametrize("has_ballast", [True, False])
@given(
    kills=st.lists(st.integers(0, 45), max_size=12),
    clean=st.booleans(),
    torn=st.booleans(),
    free_blocks=st.sampled_from([0, 0, 0, 1, 2, 20, 200]),
    power=st.randoms(use_true_random=False) | st.none(),
)
def test_starts_that_are_killed_on_a_full_disk_use_up_nothing(
    *,
    has_ballast: bool,
    kills: list[int],
    clean: bool,
    torn: bool,
    free_blocks: int,
    power: random.Random | None,
) -> None:
    """Each one leaves what the next one needs, wherever it ends: and so does one that serves."""
    disk = full_segment()
    if not clean:
        disk.delete("clean")
        newest = max(name for name in disk.files() if name.endswith(".segment"))
        disk.put(newest, disk.files()[newest] + b"torn" * torn)
    if not has_ballast:
        disk.delete("ballast")
    files = set(disk.files()) - {"clean", "ballast"}
    used_bytes = disk.used_bytes()
    disk.limit_bytes = used_bytes + free_blocks * 4096
    for number in kills:
        disk.plan(crash_at=number)
        with suppress(CrashNow):
            reopen(disk)
        if power is None:
            disk.kill()
        else:
            disk.crash(power)

    assert replayed(reopen(disk)) == [0, 1, 2, 3]
    assert set(disk.files()) - {"ballast"} == files
    ballast_bytes = len(disk.files().get("ballast", b""))
    assert ballast_bytes >= START_BYTES or not has_ballast
    assert disk.used_bytes() <= disk.limit_bytes


def without_mark(kind: str) -> Disk:
    """Return a folder in which a start has to write `durable` where none can be left in place."""
    if kind == "old":
        return old_folder(b"")
    disk = full_segment()
    disk.delete("ballast")
    if kind == "made":  # As `log make` leaves it.
        disk.delete("durable")
    else:
        if kind == "full, unclean":
            disk.delete("clean")
        disk.limit_bytes = disk.used_bytes()
    return disk


@pytest.mark.parametrize("kind", ["full, unclean", "full, clean", "made", "old"])
def test_no_start_leaves_a_folder_that_is_refused_or_of_which_the_end_may_be_cut(kind: str) -> None:
    """Killed at each step, or without power: the position is in the file, in a name, or not needed.

    Of a folder of format 2 two starts are cut off, one after the other.
    """
    acknowledged = [] if kind == "old" else [0, 1, 2, 3]
    guarded = 0
    seen: set[tuple[tuple[str, bytes], ...]] = set()
    states = [without_mark(kind)]
    for _ in range(1 if kind == "old" else 2):
        crashed = []
        for state in states:
            for number in range(operations_of(state, starting)):
                disk = state.copy()
                disk.plan(crash_at=number)
                with suppress(CrashNow):
                    starting(disk, [])
                for left in disk.crash_states():
                    files = tuple(sorted(left.files().items()))
                    if files not in seen:
                        seen.add(files)
                        crashed.append(left)
        for left in crashed:
            journal = reopen(left.copy())
            assert replayed(journal) == acknowledged
            if acknowledged:
                cut = left.copy()
                for name in segments_of(cut):
                    cut.put(name, b"")
                with pytest.raises(LogCorrupt, match=r"on disk up to|good order"):
                    reopen(cut)
                guarded += 1
        states = crashed
    assert guarded >= 10 or not acknowledged
    assert any("durable-" in name for files in seen for name, _ in files)


def test_the_ballast_comes_back_with_the_room() -> None:
    """Otherwise the next full disk would find none."""
    disk = full_segment()
    disk.delete("clean")
    disk.limit_bytes = disk.used_bytes()
    journal = reopen(disk)

    assert len(disk.files()["ballast"]) == START_BYTES
    assert not journal.lacks_ballast()

    disk.limit_bytes += ROOMY_BYTES

    assert journal.lacks_ballast()
    journal.take_ballast()
    assert len(disk.files()["ballast"]) == BALLAST_BYTES
    assert not journal.lacks_ballast()


def test_a_failure_at_every_operation_ends_the_log_and_loses_nothing() -> None:
    """EIO or a full disk in the middle of a roll or an open."""
    origin = full_segment()
    count = operations_of(origin, rolling)
    for number in range(count):
        disk = origin.copy()
        disk.plan(fail_at=number)
        acknowledged = [0, 1, 2, 3]
        with pytest.raises(LogFailed) as failure:
            rolling(disk, acknowledged)
        disk.crash(random.Random(number))
        seen = replayed(reopen(disk))

        assert failure.value.exit_status == 74
        assert WRITTEN[: len(seen)] == seen
        assert acknowledged == seen[: len(acknowledged)]


def recovering(disk: Disk, acknowledged: list[int]) -> None:
    """Open what a crash left, and write."""
    disk.delete("clean")
    rolling(disk, acknowledged)


def nearly_full_block() -> Disk:
    """Return a disk on which one of the next two flushes needs a new block of the file system."""
    disk = Disk()
    journal = open_journal(disk)
    for number in range(4):
        append(journal, 0, number, padding=940)
        flush(journal)
    assert 3900 < journal.size_bytes < 4096
    journal.close(clean=True)
    return disk


def filling(disk: Disk, acknowledged: list[int]) -> None:
    """Open, and go on writing after all room of the disk was taken in one step."""
    journal = open_journal(disk)
    disk.limit_bytes = disk.used_bytes()
    for number in range(4, 7):
        append(journal, 0, number, padding=60)
        flush(journal)
        acknowledged.append(number)
    assert journal.used_ballast


@pytest.mark.parametrize("clean", [True, False])
def test_every_state_that_a_power_cut_can_leave_of_a_disk_filled_in_one_step_is_recovered(
    *, clean: bool
) -> None:
    """A part of a flush was written, the ballast removed, and the flush written once more."""
    origin = nearly_full_block()
    if not clean:
        origin.delete("clean")
    states = 0
    for number in range(operations_of(origin, filling)):
        crashed = origin.copy()
        acknowledged = acknowledged_in(crashed, number, filling)
        states += recovered(crashed, acknowledged, open_journal, list(range(7)))
    assert states > 100


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("has_room_again", [True, False])
def test_only_a_write_without_room_is_tried_again_and_only_once(
    error: int, *, has_room_again: bool
) -> None:
    """After a sync that failed nobody knows what is on the disk, whatever the reason."""
    disk = nearly_full_block()
    journal = open_journal(disk)
    disk.plan(fail_at=0, error=error)
    append(journal, 0, 4)
    flush(journal)
    assert "ballast" not in disk.files()
    append(journal, 0, 5)
    if has_room_again:
        disk.plan(fail_at=1, error=error)
        with pytest.raises(LogFailed):
            flush(journal)
        assert [name.split()[0] for name in disk.operations] == ["write", "sync"]
    else:
        disk.limit_bytes = disk.used_bytes()
        append(journal, 0, 6, padding=5000)
        with pytest.raises(LogFailed, match="no space left"):
            flush(journal)
    disk.kill()
    disk.limit_bytes = None
    assert replayed(open_journal(disk))[:5] == list(range(5))


def rolled_without_room(
    failing: int, *, fails_again: bool = False, error: int = errno.ENOSPC, crash_at: int = -1
) -> tuple[Disk, list[int], LogFailed | CrashNow | None]:
    """Roll and write, with no room at the operation *failing* of the flush that rolls.

    The result has the numbers that were acknowledged, and how it ended if it didn't go well.
    """
    disk = full_segment()
    journal = reopen(disk)
    acknowledged = [0, 1, 2, 3]
    disk.plan(fail_at=failing, error=error, fails_again=fails_again, crash_at=crash_at)
    try:
        for number in range(4, 6):
            append(journal, 0, number)
            append(journal, 3, number)
            flush(journal)
            acknowledged += [number, number]
            disk.fail_at = None
    except (LogFailed, CrashNow) as exc:
        return disk, acknowledged, exc
    return disk, acknowledged, None


def operations_of_a_roll() -> list[str]:
    """Return those of the flush that rolls."""
    disk, _, _ = rolled_without_room(1_000)
    return disk.operations[: disk.operations.index("sync folder ", 9) + 1]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_filled_at_any_step_of_a_roll_ends_nothing_but_a_failed_sync_does(
    error: int,
) -> None:
    """Each step is done again in the room of the ballast, as nothing of it was acknowledged."""
    repeated = []
    for number, operation in enumerate(operations_of_a_roll()):
        disk, acknowledged, end = rolled_without_room(number, error=error)
        if operation.startswith("sync"):
            assert isinstance(end, LogFailed)
            assert disk.operations[-1].startswith(("sync", "remove"))
        else:
            assert end is None, operation
            assert "ballast" not in disk.files()
            assert len(segments_of(disk)) == 2
            repeated.append(operation.split()[0])
        disk.crash(random.Random(number))
        seen = replayed(reopen(disk))
        assert acknowledged == seen[: len(acknowledged)]
        assert WRITTEN[: len(seen)] == seen
    assert {"truncate", "write", "create", "remove", "rename"} <= set(repeated)
    assert len(repeated) == 7


def test_a_roll_without_room_is_tried_again_only_once() -> None:
    """The ballast is all that there is to be given up."""
    for number, operation in enumerate(operations_of_a_roll()):
        if operation.startswith("sync"):
            continue
        disk, acknowledged, end = rolled_without_room(number, fails_again=True)
        assert isinstance(end, LogFailed), operation
        assert end.exit_status == 74
        assert disk.operations.count("remove ballast") == 1
        disk.kill()
        seen = replayed(reopen(disk))
        assert acknowledged == seen[: len(acknowledged)]


def test_every_state_that_a_power_cut_can_leave_of_a_roll_without_room_is_recovered() -> None:
    """Cut at each step behind each step that found no room."""
    states = 0
    for failing, operation in enumerate(operations_of_a_roll()):
        if operation.startswith("sync"):
            continue
        whole, _, _ = rolled_without_room(failing)
        for number in range(failing + 1, len(whole.operations)):
            crashed, acknowledged, end = rolled_without_room(failing, crash_at=number)
            assert isinstance(end, CrashNow)
            states += recovered(crashed, acknowledged)
    assert states > 200


@pytest.mark.parametrize("story", [rolling, closing, recovering])
def test_every_state_that_a_power_cut_can_leave_is_recovered(story: Story) -> None:
    """Not samples: every prefix of the calls, and every order in which they can reach the disk."""
    origin = full_segment()
    states = 0
    for number in range(operations_of(origin, story)):
        crashed = origin.copy()
        acknowledged = acknowledged_in(crashed, number, story)
        states += recovered(crashed, acknowledged)
    assert states > 2 * operations_of(origin, story)


def test_every_state_that_a_power_cut_can_leave_of_a_first_start_is_one() -> None:
    """Nothing was kept yet: whatever is there, it begins again."""
    for number in range(operations_of(Disk(), starting)):
        crashed = Disk()
        acknowledged_in(crashed, number, starting)
        for disk in crashed.crash_states():
            assert replayed(reopen(disk)) == []


def test_the_states_of_a_power_cut_are_all_there() -> None:
    """The enumeration itself, counted by hand: of two names and a file of unsynced bytes."""
    disk = Disk()
    directory = disk.directory()
    directory.lock()
    file = directory.create("a")
    file.write(b"xy", 0)
    directory.rename("a", "b")
    found = {tuple(sorted(state.files().items())) for state in disk.crash_states()}
    tails = {b"", b"x", b"xy", b"\0\0", b"x\0", b"\0y", b"xx"}

    assert {t for ((_, t),) in found - {()}} == tails
    assert {n for ((n, _),) in found - {()}} == {"a", "b"}
    assert () in found
    assert len(found) == 1 + 2 * len(tails)


def test_of_what_is_overwritten_each_sector_is_the_old_one_or_the_new_one() -> None:
    """The enumeration again: a write over three sectors, and one that goes on behind the end."""
    disk = Disk()
    disk.put("a", bytes(160))
    file = disk.directory().open_write("a")
    file.write(b"x" * 100, 40)
    found = {state.files()["a"] for state in disk.crash_states()}
    parts = [(40, 64), (64, 128), (128, 140)]

    assert len(found) == 8
    for content in found:
        assert content[:40] + content[140:] == bytes(60)
        assert all(len(set(content[start:end])) == 1 for start, end in parts)
    file.sync()
    file.write(b"yy", 159)
    tails = {state.files()["a"][159:] for state in disk.crash_states()}
    assert {b"\0", b"y", b"yy", b"\0y", b"y\0"} <= tails
