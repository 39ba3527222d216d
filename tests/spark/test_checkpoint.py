"""What a checkpoint's files say is finished."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from client.spark.errors import CheckpointError
from client.spark.listener.checkpoint import (
    FinishedBatch,
    LocalFiles,
    SparkFiles,
    checkpoint_files,
    parse_offsets,
    read_finished,
)

BATCH = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
KAFKA = '{"orders":{"0":5}}'
FILES = '{"logOffset":0}'


class Made:
    """A checkpoint as Spark makes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True)
        (folder / "metadata").write_text('{"id":"query-1"}')

    def planned(self, batch: int, *sources: str, version: str = "v1") -> None:
        """Log a batch."""
        lines = [version, BATCH, *sources]
        (self.folder / "offsets" / str(batch)).write_text("\n".join(lines))
        (self.folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")

    def done(self, batch: int, version: str = "v1") -> None:
        """Log its end."""
        text = f'{version}\n{{"nextBatchWatermarkMs":0}}'
        (self.folder / "commits" / str(batch)).write_text(text)

    def read(self, after: int = -1) -> list[FinishedBatch]:
        """Read it."""
        return list(read_finished(LocalFiles(str(self.folder)), after).batches)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Return an empty checkpoint."""
    return Made(tmp_path / "ck")


def test_a_batch_is_finished_when_both_logs_have_it(made: Made) -> None:
    """The offsets are written before the batch runs: alone they are only a plan."""
    for batch in (7, 8, 9):
        made.planned(batch, f'{{"orders":{{"0":{batch}}}}}')
    for batch in (6, 7, 8):
        made.done(batch)

    assert made.read() == [
        FinishedBatch(7, {"0": '{"orders":{"0":7}}'}),
        FinishedBatch(8, {"0": '{"orders":{"0":8}}'}),
    ]
    assert [batch.batch_id for batch in made.read(after=7)] == [8]


def test_batches_are_in_the_order_of_their_numbers(made: Made) -> None:
    """As text, 10 comes before 9."""
    for batch in range(8, 12):
        made.planned(batch, KAFKA)
        made.done(batch)

    assert [batch.batch_id for batch in made.read()] == [8, 9, 10, 11]


def test_the_query_is_known_by_its_id(made: Made) -> None:
    """So a checkpoint of another query is found out."""
    assert read_finished(LocalFiles(str(made.folder))).query_id == "query-1"


def test_a_checkpoint_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    """A query's first start."""
    assert read_finished(LocalFiles(str(tmp_path / "none"))) == (None, ())


@pytest.mark.parametrize(
    ("lines", "sources"),
    [
        (["v1", BATCH, KAFKA, FILES], {"0": KAFKA, "1": FILES}),
        (["v1", BATCH, "-", FILES], {"1": FILES}),
        (["v1", "", KAFKA], {"0": KAFKA}),  # Spark before 2.2 had no line about the batch.
        (["v1", BATCH], {}),
        (["v2", BATCH, f"1:{FILES}", f"orders:{KAFKA}"], {"1": FILES, "orders": KAFKA}),
        (["v2", BATCH, "0:-", f"1:{FILES}"], {"1": FILES}),
    ],
)
def test_offsets_are_read_in_both_forms(lines: list[str], sources: dict[str, str]) -> None:
    """Spark 4.1 and later can write the second one, where sources have names."""
    assert parse_offsets("\n".join(lines), "offsets/3") == sources


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("v3\n{}\n{}", "offsets/3 has version 3, this release reads up to 2: a newer Spark"),
        ("v0\n{}", "version 0"),
        ("", "offsets/3 is damaged: it begins with ''"),
        ("\x00\x00", "damaged"),
        ("vx\n", "damaged"),
        ("v2\n{}\nnonsense", "'nonsense' is no source's offset"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(text: str, why: str) -> None:
    """A wrong guess would show a lag that isn't there."""
    with pytest.raises(CheckpointError, match=why):
        parse_offsets(text, "offsets/3")


def test_a_newer_commit_log_is_refused(made: Made) -> None:
    """Who knows what a commit means there."""
    made.planned(0, KAFKA)
    made.done(0, version="v3")
    assert len(made.read()) == 1
    made.done(0, version="v4")

    with pytest.raises(CheckpointError, match=r"ck/commits/0 has version 4"):
        made.read()


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", "{"])
def test_damaged_metadata_is_an_error_that_names_the_file(made: Made, text: str) -> None:
    """Whose checkpoint is it?"""
    (made.folder / "metadata").write_text(text)

    with pytest.raises(CheckpointError, match="ck/metadata is damaged"):
        made.read()


def test_a_folder_that_can_not_be_read_is_an_error(made: Made) -> None:
    """Other than one that isn't there, it may hide batches."""
    made.planned(0, KAFKA)
    made.done(0)
    (made.folder / "offsets" / "0").write_bytes(b"v1\n\xff\xfe")

    with pytest.raises(CheckpointError, match="checkpoint "):
        made.read()


def test_at_most_the_newest_hundred_are_read(made: Made) -> None:
    """A query may keep many more; they are of no use here."""
    for batch in range(130):
        made.planned(batch, KAFKA)
        made.done(batch)

    assert [batch.batch_id for batch in made.read()] == list(range(30, 130))


class Vanishing(LocalFiles):
    """A checkpoint whose oldest batches Spark deletes after they were listed."""

    def batch_ids(self, folder: str) -> set[int]:
        """Return what was there a moment ago, too."""
        return super().batch_ids(folder) | {1, 2}


def test_batches_that_vanish_while_they_are_read_are_left_out(made: Made) -> None:
    """Spark cleans up while it runs; the newest ones stay."""
    made.planned(3, KAFKA)
    made.done(3)

    finished = read_finished(Vanishing(str(made.folder)))

    assert [batch.batch_id for batch in finished.batches] == [3]


def test_commits_without_offsets_do_not_push_out_what_is_complete(made: Made) -> None:
    """The two folders may be cleaned at different times."""
    made.planned(0, KAFKA)
    for batch in range(120):
        made.done(batch)

    assert [batch.batch_id for batch in made.read()] == [0]


@given(st.sets(st.integers(0, 30)), st.sets(st.integers(0, 30)), st.integers(-1, 30))
def test_exactly_what_both_logs_have_is_finished(
    tmp_path_factory: pytest.TempPathFactory, planned: set[int], done: set[int], after: int
) -> None:
    """Whatever Spark deleted, or had no time to write."""
    made = Made(tmp_path_factory.mktemp("some") / "ck")
    for batch in planned:
        made.planned(batch, KAFKA)
    for batch in done:
        made.done(batch)

    expected = sorted(batch for batch in planned & done if batch > after)
    assert [batch.batch_id for batch in made.read(after)] == expected


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_a_checkpoint_on_this_machine_is_read_directly(tmp_path: Path, scheme: str) -> None:
    """Without a job of Spark's. Spark takes locations as they are, so nothing is escaped."""
    made = Made(tmp_path / "a %20 check?point")
    session: Any = object()

    for spark in (None, session):
        files = checkpoint_files(f"{scheme}{made.folder}", spark)
        assert isinstance(files, LocalFiles)
        assert read_finished(files).query_id == "query-1"


@pytest.mark.parametrize("location", ["/not/here", "s3a://b/ck", "hdfs:/ck", "abfss://c@a/ck"])
def test_a_checkpoint_elsewhere_is_read_by_spark(location: str) -> None:
    """A path without a scheme may mean the cluster's file system."""
    session: Any = object()

    assert isinstance(checkpoint_files(location, session), SparkFiles)


def test_a_checkpoint_elsewhere_needs_a_session() -> None:
    """The message says so; without one, a local path is just not there."""
    with pytest.raises(CheckpointError, match=r"s3a://b/ck: only a running Spark session"):
        checkpoint_files("s3a://b/ck", None)
    assert read_finished(checkpoint_files("/not/here", None)) == (None, ())


class BrokenSession:
    """A session that is being stopped."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"no {name} any more")


def test_a_session_that_ends_meanwhile_is_an_error_of_the_checkpoint() -> None:
    """The listener lives longer than the session."""
    session: Any = BrokenSession()
    with pytest.raises(CheckpointError, match=r"s3a://b/ck: .*no read any more"):
        read_finished(checkpoint_files("s3a://b/ck", session))
