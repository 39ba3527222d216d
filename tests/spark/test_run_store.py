"""Checkpoints in a folder: what they say is finished, and who may delete them."""

import os
from pathlib import Path

import pytest

from client.spark.errors import CheckpointError
from client.spark.run_store import FileRunStore, StoreUnavailable
from tests.fakes.grouped import tp

HEAD = 'v1\n{"batchWatermarkMs":0}\n'


@pytest.fixture
def store(tmp_path: Path) -> FileRunStore:
    """An empty store."""
    return FileRunStore(str(tmp_path), "g/1")


def batch(store: FileRunStore, run: str, number: int, end: int, *, done: bool) -> Path:
    """Write a batch as Spark does."""
    folder = Path(store.location(run).removeprefix("file://"))
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "offsets" / str(number)).write_text(HEAD + f'{{"t":{{"0":{end}}}}}')
    (folder / "offsets" / f".{number}.crc").touch()
    if done:
        (folder / "commits" / str(number)).write_text("v1\n{}")
    return folder


def test_only_batches_in_the_commit_log_are_finished(store: FileRunStore) -> None:
    """The offset log is written before a batch."""
    assert store.finished("a.1") == {}
    batch(store, "a.1", 9, 90, done=True)
    batch(store, "a.1", 10, 100, done=True)
    batch(store, "a.1", 11, 110, done=False)

    assert store.finished("a.1") == {tp(0): 100}


def test_a_batch_whose_offsets_are_gone_does_not_count(store: FileRunStore) -> None:
    """What came before it is still finished; guessing would be a gap."""
    batch(store, "a.1", 2, 4, done=True)
    assert store.finished("a.1") == {tp(0): 4}
    folder = batch(store, "a.1", 3, 5, done=True)
    (folder / "offsets" / "3").unlink()

    assert store.finished("a.1") == {tp(0): 4}


def test_files_that_are_no_text_are_an_error_that_passes(store: FileRunStore) -> None:
    """A file system that is ill may recover."""
    folder = batch(store, "a.1", 3, 5, done=True)
    (folder / "offsets" / "3").write_bytes(b"\xff")
    with pytest.raises(StoreUnavailable, match="can't be read now"):
        store.finished("a.1")


@pytest.mark.parametrize(
    "text",
    [
        'v1\n{}\n{"t":{"0":7,"1":3}}\n-\n{"t":{"0":5}}\n{"logOffset":3}',
        'v2\n{}\n0:{"t":{"0":7,"1":3}}\nother:{"t":{"0":5}}\n2:{"logOffset":3}',
    ],
)
def test_of_two_sources_the_one_behind_counts(store: FileRunStore, text: str) -> None:
    """As in a union of the rows with themselves; Spark has two forms of the offset log."""
    folder = batch(store, "a.1", 3, 5, done=True)
    (folder / "offsets" / "3").write_text(text)

    assert store.finished("a.1") == {tp(0): 5, tp(1): 3}


def test_one_runs_checkpoint_says_nothing_of_another(store: FileRunStore) -> None:
    """A driver that takes over looks at several, in turns with its own."""
    batch(store, "a.1", 9, 90, done=True)
    batch(store, "b.1", 3, 5, done=True)

    assert [store.finished(run) for run in ("a.1", "b.1", "c.1", "a.1")] == [
        {tp(0): 90},
        {tp(0): 5},
        {},
        {tp(0): 90},
    ]


@pytest.mark.parametrize(("folder", "text"), [("offsets", "v3\n{}"), ("commits", "v99\n{}")])
def test_another_version_is_refused_by_name(store: FileRunStore, folder: str, text: str) -> None:
    """It may mean something else."""
    (batch(store, "a.1", 0, 1, done=True) / folder / "0").write_text(text)
    with pytest.raises(CheckpointError, match=rf"a.1/{folder}/0 .*a newer Spark wrote it"):
        store.finished("a.1")


def test_only_old_runs_of_clients_that_are_gone_are_swept(store: FileRunStore) -> None:
    """A run that is written to may be a zombie's, and its successor looks there."""
    for run in ("dead.1", "dead.2", "dead.3", "alive.1"):
        folder = batch(store, run, 0, 1, done=True)
        if run != "dead.2":
            for path in (folder, *folder.rglob("*")):
                os.utime(path, (0, 0))

    assert store.sweep({"alive"}, {"dead.3"}, 3600.0) == ["dead.1"]
    assert store.finished("dead.1") == {}
    for kept in ("dead.2", "dead.3", "alive.1"):
        assert store.finished(kept) == {tp(0): 1}


def test_removing_what_is_not_there_is_fine(store: FileRunStore) -> None:
    """A query may end before Spark has made its checkpoint."""
    store.remove("a.1")
    batch(store, "a.2", 0, 1, done=True)
    store.remove("a.2")

    assert store.finished("a.2") == {}


@pytest.mark.parametrize("root", ["relative/path", "nowhere://x/y"])
def test_a_root_that_can_not_be_opened_is_refused_by_name(root: str) -> None:
    """Spark and Python would mean different folders."""
    with pytest.raises(ValueError, match="checkpoint_root is"):
        FileRunStore(root, "g")
