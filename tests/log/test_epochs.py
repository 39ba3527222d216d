"""Leader epochs that never repeat: not in a folder, and not in its copies, as the clock counts."""

from hypothesis import given, strategies as st

from coordinator.log.format import epoch_by_clock
from coordinator.log.recovery import LEADER_EPOCH_ASKED_MAX
from tests.fakes.disk import Disk
from tests.log.helpers import NOW_MS, open_journal

MINUTE_MS = 60_000
YEAR_MS = 365 * 24 * 60 * MINUTE_MS


def start(disk: Disk, wall_ms: int) -> int:
    """Start a daemon on *disk* at that time, kill it, and return its epoch."""
    journal = open_journal(disk, leader_epoch_at_least=epoch_by_clock(wall_ms))
    journal.close(clean=False)
    return journal.leader_epoch


def copy_of(disk: Disk) -> Disk:
    """Return another disk with the same files."""
    copy = Disk()
    for name, content in disk.files().items():
        copy.put(name, content)
    return copy


def test_a_restored_copy_begins_above_all_that_the_folder_told_since() -> None:
    """Clients refuse what comes in a lower epoch, and take what comes in the same one for new."""
    disk = Disk()
    start(disk, NOW_MS)
    backup = copy_of(disk)
    told = [start(disk, NOW_MS + day * 24 * 60 * MINUTE_MS) for day in range(1, 30)]

    assert start(backup, NOW_MS + 30 * 24 * 60 * MINUTE_MS) > max(told)


def test_an_empty_folder_begins_above_all_that_the_lost_one_told() -> None:
    """A wiped disk is a new cluster, whose clients may be the old ones."""
    told = start(Disk(), NOW_MS)

    assert told == NOW_MS // MINUTE_MS
    assert start(Disk(), NOW_MS + MINUTE_MS) > told


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 10**6), st.booleans()), min_size=1, max_size=30
    )
)
def test_no_epoch_is_told_twice_however_often_a_folder_is_copied(
    steps: list[tuple[int, int, bool]],
) -> None:
    """Nothing has to notice that a folder is a copy."""
    disks, wall_ms, told = [Disk()], NOW_MS, [0]
    for which, minutes, is_copied in steps:
        wall_ms += minutes * MINUTE_MS
        disk = disks[which % len(disks)]
        if is_copied:
            disks.append(copy_of(disk))
        told.append(start(disk, wall_ms))
        assert told[-1] > max(told[:-1])


@given(st.lists(st.integers(-100 * YEAR_MS, 10_000 * YEAR_MS), min_size=1, max_size=30))
def test_epochs_of_one_folder_rise_and_have_room_whatever_the_clock_says(
    clock: list[int],
) -> None:
    """A clock that was wrong once must not use them up: behind the last one there is no start."""
    disk, told = Disk(), 0
    for wall_ms in clock:
        before, told = told, start(disk, wall_ms)
        assert before < told < LEADER_EPOCH_ASKED_MAX
