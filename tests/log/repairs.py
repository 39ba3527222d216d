"""What the tests of the repair share."""

from collections.abc import Iterable, Sequence

from coordinator.log.errors import LogRefused
from coordinator.log.format import Batch, Entry
from coordinator.log.offline.repair import Plan, Wanted, plan_repair, repair, repaired_meta
from coordinator.log.offline.survey import survey
from coordinator.log.offline.verify import verify
from tests.fakes.disk import Disk
from tests.log.helpers import NOW_MS

NOTHING = Wanted()


def planned(disk: Disk, wanted: Wanted = NOTHING, num_partitions: int = 4) -> Plan:
    """Return what a repair would do."""
    directory = disk.directory()
    directory.lock()
    try:
        found = survey(directory, wanted.cluster_id)
        return plan_repair(directory, found, num_partitions, lambda _: None)
    finally:
        directory.unlock()


def repaired(
    disk: Disk, wanted: Wanted = NOTHING, fences: Sequence[tuple[int, list[Entry]]] = ()
) -> list[str]:
    """Repair the folder; return what was put aside."""

    def fences_for(lost_bytes: int) -> Iterable[tuple[int, list[Entry]]]:
        assert lost_bytes > 0
        return fences

    plan = planned(disk, wanted)
    directory = disk.directory()
    directory.lock()
    try:
        meta = repaired_meta(plan, wanted, lambda: bytes(16))
        return repair(directory, plan, meta, fences_for, NOW_MS)
    finally:
        directory.unlock()


def verdict(disk: Disk) -> LogRefused | None:
    """Return why the daemon would not start, and see that asking changes nothing."""
    before = disk.files()
    directory = disk.directory()
    directory.lock()
    try:
        verify(directory, lambda _: None)
    except LogRefused as exc:
        return exc
    finally:
        directory.unlock()
        assert before == disk.files()
    return None


def batches_of(disk: Disk) -> list[Batch]:
    """Return what the daemon would load of the folder."""
    found: list[Batch] = []
    directory = disk.directory()
    directory.lock()
    try:
        verify(directory, found.append)
    finally:
        directory.unlock()
    return found
