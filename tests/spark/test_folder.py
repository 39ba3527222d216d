"""The folder log: whole chunks, dense offsets, readable while somebody appends."""

import os
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from client.spark.logs.folder import BATCH_ROWS_MAX, FolderLog, FolderLogWriter
from client.spark.logs.partition_log import LogError, PartitionLog, load_log
from client.spark.options import OptionError
from protocol.partition import TopicPartition
from tests.spark.helpers import MemoryLog

SCHEMA = pa.schema([("id", pa.int64())])


def rows(start: int, end: int) -> pa.Table:
    """Return rows whose id is their offset."""
    return pa.table({"id": list(range(start, end))}, schema=SCHEMA)


def ids(log: PartitionLog, partition: int, start: int, end: int) -> list[int]:
    """Read a range."""
    return [i for batch in log.read("t", partition, start, end) for i in batch["id"].to_pylist()]


@pytest.fixture
def log(tmp_path: Path) -> FolderLog:
    """A log in an empty folder."""
    return FolderLog({"path": str(tmp_path)})


def test_what_is_appended_can_be_read_in_any_cut(tmp_path: Path, log: FolderLog) -> None:
    """Ranges don't care for chunks."""
    with FolderLogWriter.create(tmp_path, "t", SCHEMA, 2) as writer:
        assert writer.append(1, rows(0, 3)) == (0, 3)
        assert writer.append(1, rows(3, 4).to_batches()[0]) == (3, 4)
        assert writer.append(1, rows(4, 10)) == (4, 10)
        assert writer.append(1, rows(10, 10)) == (10, 10)

    assert log.partitions("t") == [0, 1]
    assert log.bounds("t", 0) == (0, 0)
    assert log.bounds("t", 1) == (0, 10)
    for start in range(10):
        for end in range(start, 11):
            assert ids(log, 1, start, end) == list(range(start, end))


@pytest.mark.parametrize("fsync", [True, False])
def test_a_new_topic_is_on_disk_before_its_first_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: bool
) -> None:
    """A chunk that survives a power failure is worth nothing in a folder that doesn't."""
    synced: list[str] = []
    monkeypatch.setattr(
        "client.spark.logs.folder.os.fsync",
        lambda fd: synced.append(Path(f"/dev/fd/{fd}").readlink().name),
    )

    FolderLogWriter.create(tmp_path, "t", SCHEMA, 2, fsync=fsync).close()

    building = f".t.{os.getpid()}.building"
    expected = ["_schema.arrow", "_topic_id", "0", "1", building, tmp_path.name]
    assert synced == (expected if fsync else [])


def test_the_layout_is_as_documented(tmp_path: Path) -> None:
    """Other programs may write it."""
    with FolderLogWriter.create(tmp_path, "t", SCHEMA, 1) as writer:
        writer.append(0, rows(0, 3))

    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == [
        "t/0/00000000000000000000-00000000000000000003.arrow",
        "t/_schema.arrow",
        "t/_topic_id",
        "t/_writer.lock",
    ]


def test_a_large_append_is_read_in_bounded_batches(tmp_path: Path, log: FolderLog) -> None:
    """An executor holds one batch at a time."""
    with FolderLogWriter.create(tmp_path, "t", SCHEMA, 1) as writer:
        writer.append(0, rows(0, 2 * BATCH_ROWS_MAX + 1))

    sizes = [batch.num_rows for batch in log.read("t", 0, 5, 2 * BATCH_ROWS_MAX + 1)]

    assert sizes == [BATCH_ROWS_MAX - 5, BATCH_ROWS_MAX, 1]


def test_topics_are_listed_and_told_apart(tmp_path: Path, log: FolderLog) -> None:
    """A topic that was made anew under the same name is another one."""
    for name in ("t", "a"):
        FolderLogWriter.create(tmp_path, name, SCHEMA, 1).close()
    (tmp_path / "not-a-topic").mkdir()
    (tmp_path / ".u.1.building").mkdir()
    before = log.topic_id("t")

    assert log.topics() == ["a", "t"]
    assert before == FolderLog({"path": str(tmp_path)}).topic_id("t") != log.topic_id("a")

    shutil.rmtree(tmp_path / "t")
    FolderLogWriter.create(tmp_path, "t", SCHEMA, 1).close()
    assert log.topic_id("t") not in {None, before}

    (tmp_path / "t" / "_topic_id").unlink()
    assert log.topic_id("t") is None
    with pytest.raises(LogError, match="can't be listed"):
        FolderLog({"path": str(tmp_path / "nope")}).topics()


def test_a_time_is_found_by_when_a_chunk_was_written(tmp_path: Path, log: FolderLog) -> None:
    """All of a chunk's rows are as old as the chunk."""
    with FolderLogWriter.create(tmp_path, "t", SCHEMA, 2) as writer:
        for at in (0, 2, 4):
            writer.append(0, rows(at, at + 2))
    for at in (0, 2, 4):
        path = tmp_path / "t" / "0" / f"{at:020d}-{at + 2:020d}.arrow"
        os.utime(path, ns=(0, (1_000 + at) * 1_000_000))
    both = [TopicPartition("t", 0), TopicPartition("t", 1)]

    found = [log.offsets_at(both, ms)[both[0]] for ms in (0, 1000, 1001, 1002, 1004, 1005)]

    assert found == [0, 0, 2, 2, 4, 6]
    assert log.offsets_at(both, 0)[both[1]] == 0


def test_a_writer_goes_on_where_the_last_one_stopped(tmp_path: Path, log: FolderLog) -> None:
    """Offsets are never used twice."""
    with FolderLogWriter.create(tmp_path, "t", SCHEMA, 1) as writer:
        writer.append(0, rows(0, 3))
    with FolderLogWriter(tmp_path, "t") as writer:
        assert writer.end(0) == 3
        writer.append(0, rows(3, 5))

    assert ids(log, 0, 0, 5) == [0, 1, 2, 3, 4]


def test_half_a_chunk_is_invisible_and_replaced(tmp_path: Path, log: FolderLog) -> None:
    """A writer may die at any moment."""
    with FolderLogWriter.create(tmp_path, "t", SCHEMA, 1) as writer:
        (tmp_path / "t" / "0" / f".{0:020d}.building").write_bytes(b"half")
        assert log.bounds("t", 0) == (0, 0)
        writer.append(0, rows(0, 2))

    assert ids(log, 0, 0, 2) == [0, 1]


def test_a_topic_has_one_writer_at_a_time(tmp_path: Path) -> None:
    """Two would use the same offsets."""
    with (
        FolderLogWriter.create(tmp_path, "t", SCHEMA, 1),
        pytest.raises(LogError, match="another process is writing"),
    ):
        FolderLogWriter(tmp_path, "t")
    FolderLogWriter(tmp_path, "t").close()


def test_a_topic_is_made_once(tmp_path: Path) -> None:
    """Making it again would lose its rows."""
    FolderLogWriter.create(tmp_path, "t", SCHEMA, 1).close()

    with pytest.raises(LogError, match="can't be made"):
        FolderLogWriter.create(tmp_path, "t", SCHEMA, 1)


def test_missing_things_are_named(tmp_path: Path, log: FolderLog) -> None:
    """A wrong path is the most likely mistake."""
    with pytest.raises(LogError, match="no topic 'nope'"):
        log.partitions("nope")
    with pytest.raises(LogError, match="no topic 'nope'"):
        log.schema("nope")
    with pytest.raises(LogError, match="no topic 'nope'"):
        FolderLogWriter(tmp_path, "nope")
    with FolderLogWriter.create(tmp_path, "t", SCHEMA, 1) as writer:
        with pytest.raises(LogError, match="no partition 7"):
            writer.append(7, rows(0, 1))
        with pytest.raises(ValueError, match="columns"):
            writer.append(0, pa.table({"x": [1]}))
    with pytest.raises(LogError, match="no partition folder"):
        log.bounds("t", 7)
    with pytest.raises(ValueError, match="num_partitions"):
        FolderLogWriter.create(tmp_path, "u", SCHEMA, 0)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", ".hidden", "a" * 250])
def test_a_topic_name_stays_inside_the_folder(log: FolderLog, topic: str) -> None:
    """It becomes part of a path."""
    with pytest.raises(ValueError, match="a topic of a folder log"):
        log.partitions(topic)


def test_rows_that_are_not_there_are_not_skipped(tmp_path: Path, log: FolderLog) -> None:
    """A short read would be silent loss."""
    with FolderLogWriter.create(tmp_path, "t", SCHEMA, 1) as writer:
        writer.append(0, rows(0, 3))
        writer.append(0, rows(3, 5))
    with pytest.raises(LogError, match="rows from 5 to 9 are missing"):
        ids(log, 0, 1, 9)

    next((tmp_path / "t" / "0").glob("00000000000000000000-*")).unlink()

    assert log.bounds("t", 0) == (3, 5)
    with pytest.raises(LogError, match="rows from 1 to 5 are missing"):
        ids(log, 0, 1, 5)


def test_a_hole_is_damage(tmp_path: Path, log: FolderLog) -> None:
    """Reading on behind it would be silent loss."""
    with FolderLogWriter.create(tmp_path, "t", SCHEMA, 1) as writer:
        for at in range(3):
            writer.append(0, rows(at, at + 1))
    next((tmp_path / "t" / "0").glob(f"{1:020d}-*")).unlink()

    with pytest.raises(LogError, match="damaged"):
        log.bounds("t", 0)


def test_a_reader_never_sees_an_end_that_it_cannot_read(tmp_path: Path, log: FolderLog) -> None:
    """Readers take no lock while a writer appends."""
    chunks = 300
    with FolderLogWriter.create(tmp_path, "t", SCHEMA, 1, fsync=False) as writer:

        def append() -> None:
            for at in range(chunks):
                writer.append(0, rows(2 * at, 2 * at + 2))

        thread = threading.Thread(target=append)
        thread.start()
        end = 0
        while end < 2 * chunks:
            before, (_, end) = end, log.bounds("t", 0)
            assert ids(log, 0, before, end) == list(range(before, end))
        thread.join()


def test_a_log_is_found_by_name() -> None:
    """Executors import it by the same name."""
    assert isinstance(load_log({"log": "tests.spark.test_folder:OwnLog"}), OwnLog)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("nope", "package.module:ClassName"),
        ("nope:Nope", "can't be imported"),
        ("tests.spark.test_folder:Nope", "can't be imported"),
        ("tests.spark.test_folder:SCHEMA", "not a subclass"),
    ],
)
def test_a_log_that_is_none_is_refused(name: str, why: str) -> None:
    """By the option's name."""
    with pytest.raises(OptionError, match=f"option 'log'.*{why}"):
        load_log({"log": name})


def test_a_folder_log_needs_its_path() -> None:
    """There is no default for where data is."""
    with pytest.raises(OptionError, match="option 'path' is missing"):
        load_log({})


class OwnLog(MemoryLog):
    """A user's own log."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__({0: 1})
        self.options = options
