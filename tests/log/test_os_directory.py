"""The real folder: the fake disk must not be the only one that it works on."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.log.directory import OsDirectory
from coordinator.log.errors import FolderLost, LogFailed, LogLocked, LogRefused, SyncFailed
from tests.log.helpers import (
    append,
    events_of,
    flush,
    numbers_of,
    open_real,
    replayed,
    write,
)


@pytest.mark.parametrize("clean", [True, False])
def test_a_journal_on_the_file_system_survives_restarts(tmp_path: Path, *, clean: bool) -> None:
    """The same story as on the fake disk, with real files."""
    path = tmp_path / "new" / "data"
    for run in range(3):
        journal = open_real(path)
        assert list(range(10 * run)) == replayed(journal)
        for number in range(10 * run, 10 * run + 10):
            append(journal, number % 4, number)
            if number % 2:
                flush(journal)
        assert journal.leader_epoch == run + 1
        assert journal.size_bytes <= sum(f.stat().st_size for f in path.iterdir())
        journal.close(clean=clean)
    journal = open_real(path)

    assert [n for n in range(30) if n % 4 == 2] == [
        n for b in journal.read(2) for n in numbers_of(b)
    ]
    assert (path / "lock").exists()
    journal.close(clean=True)


def test_a_torn_tail_on_the_file_system_is_saved_and_cut(tmp_path: Path) -> None:
    """With the cache dropped, a copy made, and the rest in the folder aside."""
    journal = open_real(tmp_path)
    write(journal, 0, 1)
    journal.close(clean=False)
    (segment,) = tmp_path.glob("*.segment")
    with segment.open("r+b") as file:
        file.seek(journal.size_bytes)
        file.write(b"torn")
    journal = open_real(tmp_path)

    assert replayed(journal) == [1]
    assert "log.torn_tail_cut" in events_of(journal)
    assert [f.read_bytes() for f in (tmp_path / "aside").iterdir()] == [b"torn"]
    assert not segment.exists()
    journal.close(clean=True)


def test_a_folder_is_locked_against_this_and_other_processes(tmp_path: Path) -> None:
    """The lock goes with the process, however it ends."""
    journal = open_real(tmp_path)
    with pytest.raises(LogLocked, match="in use by another process"):
        open_real(tmp_path)
    code = (
        "import sys; from coordinator.log.directory import OsDirectory\n"
        "from coordinator.log.errors import LogLocked\n"
        "try: OsDirectory(sys.argv[1]).lock()\n"
        "except LogLocked: sys.exit(78)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]

    assert subprocess.run(command, check=False).returncode == 78
    journal.close(clean=True)
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.parametrize("call", ["fsync", "fdatasync"])
def test_a_sync_without_room_is_told_from_a_write_without_room(
    tmp_path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the write may be tried again; of a folder's names, too."""

    def fails(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    directory = OsDirectory(tmp_path)
    file = directory.create("a")
    monkeypatch.setattr(os, call, fails)
    with pytest.raises(SyncFailed, match="No space left"):
        (directory if call == "fsync" else file).sync()
    file.close()


@pytest.mark.parametrize("how", ["removed", "replaced", "moved", "folder moved"])
def test_a_lock_file_that_is_gone_is_noticed(tmp_path: Path, how: str) -> None:
    """A flock is one of a file: another process could lock the next one of that name."""
    path = tmp_path / "data"
    journal = open_real(path)
    write(journal, 0, 1)
    journal.check_ours()
    lock = path / "lock"
    if how == "folder moved":
        path.rename(tmp_path / "elsewhere")
    elif how == "moved":
        lock.rename(path / "lock.old")
    else:
        lock.unlink()
        if how == "replaced":
            lock.touch()
    journal.want_roll()
    with pytest.raises(FolderLost, match="lock file"):
        flush(journal)
    with pytest.raises(LogFailed, match="failed earlier"):
        write(journal, 0, 2)
    journal.close(clean=True)

    kept = tmp_path / "elsewhere" if how == "folder moved" else path
    assert not (kept / "clean").exists()
    assert len([*kept.glob("*.segment")]) == 1


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    """A clear message, not a traceback."""
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(LogRefused, match="can't be used"):
        OsDirectory(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    """Seen before the socket is opened."""
    tmp_path.chmod(0o500)
    with pytest.raises(LogRefused, match="not readable and writable"):
        OsDirectory(tmp_path)
    tmp_path.chmod(0o700)


def test_nothing_is_ever_created_over_an_old_file(tmp_path: Path) -> None:
    """A name that is used twice would be somebody's data."""
    directory = OsDirectory(tmp_path)
    file = directory.create("a")
    file.write(b"12345", 0)
    file.sync()
    file.close()
    file.close()
    with pytest.raises(FileExistsError):
        directory.create("a")

    assert directory.read("a", 1, 3) == b"234"
    assert directory.read("a", 4, 100) == b"5"
    assert directory.read("a", 9) == b""
    assert directory.size("a") == 5


def test_subfolders_are_made_when_something_is_moved_there(tmp_path: Path) -> None:
    """And the names in them are not taken for segments."""
    directory = OsDirectory(tmp_path)
    directory.create("a").close()
    directory.rename("a", "aside/a")
    directory.sync("aside")
    directory.sync()

    assert directory.names() == []
    assert directory.exists("aside/a")
    assert not directory.exists("aside")
    assert not directory.exists("a")
    directory.remove("a")


def test_a_short_write_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pwrite(2) and pwritev2(2) may take less than they were given."""
    write_some, write_pieces = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write_some(fd, bytes(data)[:3], at))
    monkeypatch.setattr(
        os, "pwritev", lambda fd, data, *args: write_pieces(fd, [bytes(data[0])[:3]], *args)
    )
    file = OsDirectory(tmp_path).create("a")
    file.write(b"....567", 0)
    file.write_synced(b"1234", 0)
    file.close()

    assert (tmp_path / "a").read_bytes() == b"1234567"


def test_the_room_on_the_disk_is_told(tmp_path: Path) -> None:
    """For the reserve below which commits are refused."""
    directory = OsDirectory(tmp_path)

    assert 0 < directory.free_bytes() <= directory.total_bytes()


def test_a_file_system_without_synced_writes_is_written_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gVisor's; any other error is the disk's."""
    error = errno.EOPNOTSUPP
    synced: list[int] = []

    def refuse(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "pwritev", refuse)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    journal = open_real(tmp_path)
    write(journal, 0, 1)
    assert len(synced) > 0
    error = errno.EIO
    with pytest.raises(LogFailed):
        write(journal, 0, 2)
    journal.close(clean=False)
    monkeypatch.undo()
    journal = open_real(tmp_path)
    assert [1] == replayed(journal)
    journal.close(clean=True)


def test_a_synced_write_says_how_long_it_took(tmp_path: Path) -> None:
    """It is the part of a commit's time that no code of ours can shorten."""
    directory = OsDirectory(tmp_path, iter([10.0, 10.25]).__next__)
    file = directory.create("a")
    file.write(b"1", 0)
    file.sync()
    file.write_synced(b"1", 0)
    file.close()

    assert directory.last_sync_s == 0.25
