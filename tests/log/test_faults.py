"""Every call that fails, on the real file system: nothing acknowledged is lost by it."""

import errno
import os
from pathlib import Path

import pytest

from coordinator.log.directory import OsDirectory
from coordinator.log.errors import LogFailed
from coordinator.log.journal import Journal
from tests.log.faults import ERRORS, Faults, FaultyDirectory
from tests.log.helpers import CLUSTER_ID, SECRET, append, events_of, flush, replayed

FLUSHES = 8


def opened(directory: OsDirectory) -> Journal:
    """Open with segments small enough to roll."""
    return Journal(
        directory,
        num_partitions=4,
        segment_bytes=200,
        node_id=1,
        new_cluster_id=lambda: CLUSTER_ID,
        new_secret=lambda: SECRET,
    )


def lived(path: Path, faults: Faults, acknowledged: list[int]) -> None:
    """Start, write across rolls, and stop. Raises LogFailed."""
    first = len(acknowledged)
    journal = opened(FaultyDirectory(path, faults))
    try:
        for number in range(first, first + FLUSHES):
            append(journal, number % 4, number)
            flush(journal)
            acknowledged.append(number)
    except LogFailed:
        journal.close(clean=True)  # Writes no marker any more.
        raise
    journal.close(clean=True)


def test_the_calls_are_counted(tmp_path: Path) -> None:
    """A test that fails nothing would pass for ever."""
    faults = Faults()
    lived(tmp_path, faults, [])

    calls = {"write", "zero", "ftruncate", "fdatasync", "create", "rename", "fsync", "unlink"}
    assert calls <= set(faults.calls)
    assert faults.calls.count("create") > 6


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("run", ["first start", "clean", "unclean"])
def test_whichever_call_fails_all_that_was_acknowledged_is_there(
    tmp_path: Path, error: int, run: str
) -> None:
    """EIO, or a full disk."""
    counted = Faults()
    prepared(tmp_path / "counted", run)
    lived(tmp_path / "counted", counted, prepared(tmp_path / "again", run))
    for number in range(len(counted.calls)):
        path = tmp_path / str(number)
        acknowledged = prepared(path, run)
        faults = Faults(fail_at=number, error=error)
        try:
            lived(path, faults, acknowledged)
        except LogFailed:
            pass
        else:
            # There is too little room for zeros, or for the start, and it is done without.
            assert error == errno.ENOSPC
            assert "ftruncate" in faults.calls[number:] or "unlink" in faults.calls[number:]
        journal = opened(OsDirectory(path))
        seen = replayed(journal)
        journal.close(clean=False)

        assert acknowledged == seen[: len(acknowledged)]
        assert seen == list(range(len(seen)))


def prepared(path: Path, run: str) -> list[int]:
    """Make what an earlier run left; return what it acknowledged."""
    acknowledged: list[int] = []
    if run != "first start":
        lived(path, Faults(), acknowledged)
        if run == "unclean":
            (path / "clean").unlink()
    return acknowledged


def test_a_failed_log_never_tries_again(tmp_path: Path) -> None:
    """The kernel may have dropped the pages: a second fsync would succeed without them."""
    faults = Faults()
    journal = opened(FaultyDirectory(tmp_path, faults))
    append(journal, 0, 1)
    taken = journal.take_flush()
    assert taken is not None
    faults.fail_at, faults.error = len(faults.calls) + 1, errno.EIO
    with pytest.raises(LogFailed):
        journal.write_flush(taken)
    calls = len(faults.calls)
    for _ in range(2):
        with pytest.raises(LogFailed):
            journal.write_flush(taken)
    journal.close(clean=True)

    assert len(faults.calls) == calls
    assert not (tmp_path / "clean").exists()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("tries", [1, 40])
def test_without_a_descriptor_a_roll_and_the_manifest_wait_for_one(
    tmp_path: Path, error: int, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients may have taken them all: whichever call meets that, nothing fails or is lost."""
    real = os.open
    calls: list[str] = []
    pauses: list[float] = []
    failing = range(0)

    def opened_or_not(path: Path, *how: int) -> int:
        calls.append(str(path))
        if len(calls) - 1 in failing:
            raise OSError(error, os.strerror(error), str(path))
        return real(path, *how)

    number = 0
    while number == 0 or len(pauses) == tries:
        journal = opened(OsDirectory(tmp_path / str(number), sleep=pauses.append))
        calls.clear()
        pauses.clear()
        failing = range(number, number + tries)
        with monkeypatch.context() as patched:
            patched.setattr("os.open", opened_or_not)
            for written in range(FLUSHES):
                append(journal, written % 4, written)
                flush(journal)
            journal.close(clean=True)
        assert all(0 < pause <= 1 for pause in pauses)
        journal = opened(OsDirectory(tmp_path / str(number)))
        assert replayed(journal) == list(range(FLUSHES))
        assert "log.recovered_after_unclean_stop" not in events_of(journal)
        journal.close(clean=True)
        number += 1
    assert number > 10
    assert pauses == []
