"""A start that is refused leaves nothing behind."""

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import structlog
from click.testing import CliRunner

from coordinator.cli.main import main
from coordinator.log.directory import LOCK_NAME, OsDirectory
from coordinator.log.errors import LogLocked, LogRefused
from coordinator.log.format import FORMAT
from coordinator.log.state_files import META_NAME, decode_meta, encode_meta
from tests.log.helpers import open_real


class Found(NamedTuple):
    """What is in a folder, at any depth."""

    folders: set[str]
    files: dict[str, bytes]


def found_in(root: Path) -> Found:
    """Look at everything."""
    inside = sorted(root.rglob("*"))
    return Found(
        {str(p) for p in inside if p.is_dir()},
        {str(p): p.read_bytes() for p in inside if p.is_file()},
    )


def nothing(_: Path) -> None:
    """Leave the folder to the daemon."""


def foreign(data: Path) -> None:
    """Make a folder of something else."""
    data.mkdir()
    (data / "letter.txt").write_text("mine", encoding="utf-8")


def restored(data: Path) -> None:
    """Make a data folder as a backup may be, without the lock file."""
    open_real(data).close(clean=True)
    (data / LOCK_NAME).unlink()


def newer(data: Path) -> None:
    """Make a folder of a release to come."""
    restored(data)
    path = data / META_NAME
    path.write_bytes(encode_meta(decode_meta(path.read_bytes())._replace(format=FORMAT + 1)))


def without_manifest(data: Path) -> None:
    """Make a damaged folder."""
    restored(data)
    (data / "manifest").unlink()


@pytest.fixture
def taken() -> Iterator[int]:
    """Return a port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


Make = Callable[[Path], None]


@pytest.mark.parametrize(
    ("make", "arguments", "status"),
    [
        (nothing, ["--set", "group.max.sise=5"], 78),
        (nothing, ["--set", "cluster.id=short"], 78),
        (nothing, ["--config", "missing.toml"], 78),
        (nothing, ["--listen", "192.0.2.1:0"], 78),
        (nothing, ["--listen", "0.0.0.0:0"], 78),
        (nothing, ["--listen", "nowhere"], 78),
        (nothing, ["--listen", "127.0.0.1:0", "--listen", "127.0.0.1:{taken}"], 75),
        (nothing, ["--listen", "192.0.2.1:0", "--set", "allow.plaintext.remote=true"], 75),
        (foreign, [], 78),
        (foreign, ["--listen", "127.0.0.1:{taken}"], 75),
        (newer, [], 78),
        (restored, ["--set", "node.id=99"], 78),
        (restored, ["--set", "offsets.topic.num.partitions=51"], 78),
        (restored, ["--set", "cluster.id=R6C_erC4cJM10erf_hJ7KQ"], 78),
        (restored, ["--leader-epoch-at-least", "1073741824", *("--set", "node.id=99")], 78),
        (restored, ["--leader-epoch-at-least", "1073741825"], 2),
        (without_manifest, [], 65),
    ],
)  # fmt: skip
def test_no_refusal_leaves_anything_behind(
    make: Make, arguments: list[str], status: int, taken: int, tmp_path: Path
) -> None:
    """No folder, no lock file, no cluster id; and what was there is as it was."""
    data = tmp_path / "a" / "b" / "data"
    if make is not nothing:
        data.parent.mkdir(parents=True)
    make(data)
    before = found_in(tmp_path)
    listen = [] if "--listen" in arguments else ["--listen", "127.0.0.1:0"]
    options = ["--set", "offsets.topic.num.partitions=4"]
    options += [word.format(taken=taken) for word in arguments]
    try:
        done = CliRunner().invoke(main, ["serve", "--data-dir", str(data), *listen, *options])
    finally:
        structlog.reset_defaults()

    assert done.exit_code == status, done.output
    assert found_in(tmp_path) == before


def test_a_folder_that_can_not_be_made_leaves_no_part_of_its_path(tmp_path: Path) -> None:
    """Its last name is too long for the file system, the ones before are not."""
    with pytest.raises(LogRefused):
        OsDirectory(tmp_path / "a" / "b" / ("x" * 300))

    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_keeps_its_lock_file(tmp_path: Path) -> None:
    """Whoever comes second has not made it."""
    first, second = OsDirectory(tmp_path), OsDirectory(tmp_path)
    first.lock()
    with pytest.raises(LogLocked):
        second.lock()
    second.undo()

    assert (tmp_path / LOCK_NAME).exists()
    with pytest.raises(LogLocked):
        OsDirectory(tmp_path).lock()
    first.unlock()
    OsDirectory(tmp_path).lock()


def test_a_lock_file_that_was_removed_meanwhile_is_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else two daemons could each lock a file of their own."""
    one, other = OsDirectory(tmp_path), OsDirectory(tmp_path)
    hold = OsDirectory._hold
    held: list[int] = []

    def hold_late(self: OsDirectory, descriptor: int) -> None:
        if not held:
            # Between the opening and the locking, the one that made the file is refused.
            (tmp_path / LOCK_NAME).unlink()
        held.append(descriptor)
        hold(self, descriptor)

    monkeypatch.setattr(OsDirectory, "_hold", hold_late)
    one.lock()

    assert len(held) == 2
    with pytest.raises(LogLocked):
        other.lock()


def test_what_somebody_else_has_put_into_a_new_folder_stays(tmp_path: Path) -> None:
    """It isn't ours any more."""
    directory = OsDirectory(tmp_path / "a" / "b")
    directory.lock()
    (tmp_path / "a" / "letter.txt").write_text("mine", encoding="utf-8")
    directory.undo()

    assert found_in(tmp_path).files == {str(tmp_path / "a" / "letter.txt"): b"mine"}
    assert found_in(tmp_path).folders == {str(tmp_path / "a")}
