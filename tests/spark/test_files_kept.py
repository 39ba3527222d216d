"""Open files that a process keeps: never those of another file, and not many."""

import os
from pathlib import Path

import pytest

from client.spark.logs.files_read import KeptFiles


class Opened:
    """Something open that can be closed."""

    def __init__(self) -> None:
        self.done = False
        self.closed = 0

    def close(self) -> None:
        """Count it."""
        self.closed += 1


def used(kept: KeptFiles[Opened], path: Path, how: str = "") -> Opened:
    """Use what is open of a file once."""
    with kept.use(path, how, Opened) as opened:
        assert not opened.closed
    return opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file."""
    made = tmp_path / "a"
    made.write_text("x")
    return made


def test_what_is_open_is_lent_again(path: Path) -> None:
    """That is what it is for; to whoever reads the file in the same way."""
    kept = KeptFiles[Opened]()
    first = used(kept, path)

    assert used(kept, path) is first
    assert used(kept, path, "otherwise") is not first
    assert used(kept, path) is first


def test_two_users_at_once_have_one_each(path: Path) -> None:
    """Each moves its position."""
    kept = KeptFiles[Opened]()
    with kept.use(path, "", Opened) as one:
        other = used(kept, path)

    assert other is not one
    assert (one.closed, other.closed) == (0, 1)


def test_a_file_that_has_changed_is_opened_anew(path: Path) -> None:
    """Also one of the same size, in its place."""
    kept = KeptFiles[Opened]()
    grown = used(kept, path)
    path.write_text("xx")
    replaced = used(kept, path)
    other = path.with_name("b")
    other.write_text("yy")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.rename(path)
    newest = used(kept, path)

    assert [grown.closed, replaced.closed, newest.closed] == [1, 1, 0]
    path.unlink()
    with pytest.raises(FileNotFoundError):
        used(kept, path)


def test_a_file_that_changes_while_it_is_open_is_not_taken_for_the_new_one(path: Path) -> None:
    """The old one would be read for ever."""
    kept = KeptFiles[Opened]()
    with kept.use(path, "", Opened) as old:
        path.write_text("xx")

    assert used(kept, path) is not old
    assert old.closed == 1


def test_what_failed_or_is_done_is_not_kept(path: Path) -> None:
    """Nobody knows where it is, or needs it."""
    kept = KeptFiles[Opened]()
    with pytest.raises(ValueError, match="x"), kept.use(path, "", Opened) as failed:
        raise ValueError("x")
    with kept.use(path, "", Opened) as done:
        done.done = True

    assert used(kept, path) not in (failed, done)
    assert (failed.closed, done.closed) == (1, 1)


def test_the_file_that_was_used_longest_ago_goes(tmp_path: Path) -> None:
    """Open files are few in a process."""
    kept = KeptFiles[Opened](most=2)
    a, b, c = (tmp_path / name for name in "abc")
    for one in (a, b, c):
        one.touch()
    opened = {one: used(kept, one) for one in (a, b)}
    used(kept, a)
    used(kept, c)

    assert (opened[a].closed, opened[b].closed) == (0, 1)
    assert used(kept, a) is opened[a]


def test_a_child_process_opens_files_of_its_own(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would move the position of its parent."""
    kept = KeptFiles[Opened]()
    first = used(kept, path)
    monkeypatch.setattr(os, "getpid", lambda: -1)

    assert used(kept, path) is not first
