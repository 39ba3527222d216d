"""Checkpoints in a folder: what they say is finished, and who may delete them."""

import os
from pathlib import Path

import pytest

from client.spark.errors import CheckpointError
from client.spark.run_store import FileRunStore, StoreUnavailable, decode_offsets
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


def test_a_batch_whose_offsets_are_gone_is_an_error_that_passes(store: FileRunStore) -> None:
    """Guessing would be a gap."""
    folder = batch(store, "a.1", 3, 5, done=True)
    (folder / "offsets" / "3").unlink()
    with pytest.raises(StoreUnavailable, match="can't be read now"):
        store.finished("a.1")


def test_of_two_sources_the_one_behind_counts() -> None:
    """As in a union of the rows with themselves."""
    text = HEAD + '{"t":{"0":7,"1":3}}\n-\n{"t":{"0":5}}\n{"logOffset":3}'

    assert decode_offsets(text, "ck") == {tp(0): 5, tp(1): 3}


@pytest.mark.parametrize("text", ["", "v2\n{}\n{}"])
def test_another_version_is_refused_by_name(text: str) -> None:
    """It may mean something else."""
    with pytest.raises(CheckpointError, match=r"ck.* 'v1'"):
        decode_offsets(text, "ck")


def test_only_old_runs_of_clients_that_are_gone_are_swept(store: FileRunStore) -> None:
    """A run that is written to may be a zombie's, and its successor looks there."""
    for run in ("dead.1", "dead.2", "alive.1"):
        folder = batch(store, run, 0, 1, done=True)
        if run != "dead.2":
            for path in (folder, *folder.rglob("*")):
                os.utime(path, (0, 0))

    assert store.sweep({"alive"}, 3600.0) == ["dead.1"]
    assert store.finished("dead.1") == {}
    assert store.finished("dead.2") == store.finished("alive.1") == {tp(0): 1}


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
