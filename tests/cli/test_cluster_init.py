"""`cluster init`, on an ensemble in memory: a folder is moved into a cluster only by a yes."""

from collections.abc import Generator
from pathlib import Path
from typing import Any, Final, Self

import pytest
from click.testing import CliRunner, Result

from coordinator.cli import cluster, common
from coordinator.cli.main import main
from coordinator.cluster import znodes
from coordinator.cluster.engine import Reply, Request
from coordinator.cluster.founding import Found
from coordinator.log.directory import OsDirectory
from coordinator.log.format import Entry
from coordinator.log.journal import Journal
from coordinator.log.state_files import MOVED_NAME
from tests.sim.ensemble import Ensemble

ID: Final = "0123456789012345678901"
SETTINGS: Final = (
    *("--set", "cluster.zookeeper=a:1/gc"),
    *("--set", "cluster.journals=2", "--set", "offsets.topic.num.partitions=3"),
)


class ZooKeeper:
    """What the command does to ZooKeeper.

    Attributes:
        ensemble: What stands under the chroot.
        has_chroot: Whether the command has made it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ensemble = Ensemble()
        self.has_chroot = False
        monkeypatch.setattr(cluster, "Visit", lambda *_, **__: Visitor(self.ensemble))
        monkeypatch.setattr(cluster, "prepare", self._prepare)
        monkeypatch.setattr(cluster, "make_chroot", self._make_chroot, raising=False)

    def _prepare(self, *_: object, makes_chroot: bool = True, **__: object) -> dict[str, str]:
        self.has_chroot |= makes_chroot
        return {}

    def _make_chroot(self, *_: object, **__: object) -> None:
        self.has_chroot = True

    @property
    def cluster(self) -> bytes | None:
        """The cluster that is there."""
        znode = self.ensemble.at(znodes.CLUSTER_ID)
        return None if znode is None else znode.data

    @property
    def is_untouched(self) -> bool:
        """Whether nothing was written."""
        return not self.has_chroot and not self.ensemble.names("")


class Visitor:
    """A session that sees all that was written."""

    def __init__(self, ensemble: Ensemble) -> None:
        self._ensemble = ensemble
        self._session = ensemble.connect()

    def do(self, operation: znodes.Operation) -> znodes.Result:
        """Do one operation."""
        self._ensemble.catch_up(self._session, self._ensemble.transactions)
        return self._ensemble.do(self._session, operation, None)

    def ask(self, request: Request) -> Reply:
        """Do one request."""
        return znodes.reply(request, self.do(znodes.operation(request)))

    def run(self, asking: Generator[Request, Reply, Any]) -> Any:
        """Do all requests of *asking*."""
        try:
            request = next(asking)
            while True:
                request = asking.send(self.ask(request))
        except StopIteration as end:
            return end.value

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """End nothing."""


@pytest.fixture
def zookeeper(monkeypatch: pytest.MonkeyPatch) -> ZooKeeper:
    """Return an ensemble without a cluster."""
    return ZooKeeper(monkeypatch)


def opened(folder: Path) -> Journal:
    """Open a data folder."""
    return Journal(
        OsDirectory(folder),
        num_partitions=3,
        segment_bytes=4096,
        node_id=1,
        new_cluster_id=lambda: ID,
        new_secret=lambda: b"s" * 16,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a stopped daemon."""
    journal = opened(tmp_path / "data")
    journal.append(1, [Entry(1, 0, "g", ("k", 1), ("v", 1))], 1_700)
    flush = journal.take_flush()
    assert flush is not None
    journal.write_flush(flush)
    journal.close(clean=True)
    return tmp_path / "data"


def content(folder: Path) -> dict[str, bytes]:
    """Return all files."""
    return {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}


def init(folder: Path, *more: str, answer: str = "") -> Result:
    """Run the command."""
    words = ("cluster", "init", "--from", str(folder), *SETTINGS, *more)
    return CliRunner().invoke(main, words, input=answer)


def test_without_a_terminal_and_a_yes_a_folder_stays_as_it_is(
    zookeeper: ZooKeeper, folder: Path
) -> None:
    """A script that lists its folders must not take one away from its daemon."""
    before = content(folder)
    done = init(folder)

    assert (done.exit_code, done.stderr) == (3, "Dry run: nothing was changed; --yes does it.\n")
    assert str(folder) in done.stdout
    assert ID in done.stdout
    assert "/gc of ZooKeeper" in done.stdout
    assert (content(folder), zookeeper.is_untouched) == (before, True)


def test_with_a_yes_a_folder_is_moved_and_a_second_time_changes_nothing(
    zookeeper: ZooKeeper, folder: Path
) -> None:
    """A script is run again after an interruption, and has to end well."""
    done = init(folder, "--yes")
    again = init(folder, "--yes")
    asked = init(folder)

    assert (done.exit_code, again.exit_code, asked.exit_code) == (0, 0, 0), done.output
    assert zookeeper.has_chroot
    assert ID.encode() in (zookeeper.cluster or b"")
    assert "was moved into the cluster" in again.stdout
    assert again.stdout == asked.stdout


@pytest.mark.parametrize(("answer", "exit_status"), [("n\n", 3), ("\n", 3), ("", 3), ("y\n", 0)])
def test_a_person_is_asked(
    answer: str,
    exit_status: int,
    zookeeper: ZooKeeper,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Enter is no yes, and neither is the end of the input."""
    monkeypatch.setattr(common, "_is_somebody_there", lambda: True)
    done = init(folder, answer=answer)

    assert (done.exit_code, zookeeper.is_untouched) == (exit_status, exit_status == 3)
    assert "Move" in done.stderr
    assert ID in done.stderr


def test_a_dry_run_leaves_the_mark_of_an_interrupted_move(
    zookeeper: ZooKeeper, folder: Path
) -> None:
    """Without its mark the folder would be served beside a cluster that is half there."""
    (folder / MOVED_NAME).write_bytes(b"{}")

    assert (init(folder).exit_code, (folder / MOVED_NAME).exists()) == (3, True)
    assert init(folder, "--yes").exit_code == 0
    assert b"/gc" in (folder / MOVED_NAME).read_bytes()


def test_what_a_yes_could_not_do_is_refused_without_one(zookeeper: ZooKeeper, folder: Path) -> None:
    """A dry run that says yes to what will be refused misleads."""
    journal = opened(folder)
    served = init(folder)
    journal.close(clean=True)
    zookeeper.ensemble = Ensemble([znodes.Make("/brokers", b"")])
    foreign = init(folder)

    assert (served.exit_code, "stop the daemon first" in served.stderr) == (78, True)
    assert (foreign.exit_code, "holds other things: brokers" in foreign.stderr) == (78, True)


def test_a_move_that_another_one_has_finished_meanwhile_is_not_undone(
    zookeeper: ZooKeeper, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The question may stand on a terminal for an hour, and its answer must not remove the mark."""

    def answer(*_: object, **__: object) -> bool:
        monkeypatch.setattr(common, "_is_somebody_there", lambda: False)
        assert init(folder, "--yes").exit_code == 0
        return True

    monkeypatch.setattr(common, "_is_somebody_there", lambda: True)
    monkeypatch.setattr("click.confirm", answer)
    done = init(folder)

    assert (done.exit_code, "was moved into the cluster" in done.stdout) == (0, True)
    assert (folder / MOVED_NAME).exists()


def test_an_empty_cluster_is_made_without_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is there becomes another thing; compose and scripts say it as they did."""
    found = Found(ID, b"", is_new=True, unknown={})
    monkeypatch.setattr(cluster, "find_or_found", lambda *_, **__: found)
    done = CliRunner().invoke(main, ["cluster", "init", *SETTINGS])

    assert (done.exit_code, done.stdout) == (0, f"Made the cluster {ID}.\n")
