"""Folders of files that others write: offsets that stay, whatever the files do."""

import bz2
import gzip
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql.types import ArrayType, DateType, StructType

from client.spark.logs import files_formats, files_index, files_log, files_read
from client.spark.logs.files_formats import (
    FORMATS,
    count_lines,
    lines_of,
    parse_files_options,
    strings_of,
    without_returns,
)
from client.spark.logs.files_index import Piece, PieceIndex
from client.spark.logs.files_log import FilesLog, ListFiles, files_below
from client.spark.logs.files_read import KeptFiles
from client.spark.logs.partition_log import LogError, LogUnavailable
from client.spark.logs.testkit import CHECKS, Check
from client.spark.options import OptionError
from protocol.partition import TopicPartition
from tests.spark.log_subjects import SCHEMA, FilesSubject, write_file

TP = TopicPartition("t", 0)
NOW_S = 2_000_000_000.0


# A process is much to start, for each format.
CASES = [
    pytest.param(
        form,
        check,
        id=f"{form}-{check}",
        marks=[pytest.mark.nightly] if check.name == "executor" and form != "json" else [],
    )
    for form in FORMATS
    for check in CHECKS
]


@pytest.mark.parametrize(("form", "check"), CASES)
def test_every_kind_of_file_keeps_the_rules(form: str, check: Check, tmp_path: Path) -> None:
    """All that the coordinated source relies on."""
    check(FilesSubject(tmp_path, form))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the topic t."""
    made = tmp_path / "t"
    made.mkdir()
    return made


def log_of(
    folder: Path,
    form: str = "lines",
    *,
    now_s: float = NOW_S,
    given: Mapping[str, str] | None = None,
    list_files: ListFiles = files_below,
) -> FilesLog:
    """Return a log over the folder's parent, at a time of the test's choice."""
    options = {"path": str(folder.parent), "log.format": form, **(given or {})}
    if form == "json":
        options["log.schema"] = "id bigint, name string"
    return FilesLog(options, clock=lambda: now_s, list_files=list_files)


def write(path: Path, content: str | bytes, age_s: float = 0.0, *, append: bool = False) -> None:
    """Write a file that was changed so long before NOW_S."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    with path.open("ab" if append else "wb") as file:
        file.write(data)
    os.utime(path, (NOW_S - age_s, NOW_S - age_s))


def lines(log: FilesLog, start: int | None = None, end: int | None = None) -> list[Any]:
    """Read a range of lines, else all."""
    low, high = log.bounds(*TP)
    start, end = low if start is None else start, high if end is None else end
    return [value for batch in log.read(*TP, start, end) for value in batch.column(0).to_pylist()]


def test_a_late_file_goes_behind_whatever_its_name(folder: Path) -> None:
    """An offset that was given stays; that is what the index is for."""
    write(folder / "b.log", "b1\nb2\n", age_s=5)
    assert lines(log_of(folder)) == ["b1", "b2"]

    write(folder / "a.log", "a1\n", age_s=100)
    write(folder / "b.log", "b3\n", append=True)

    log = log_of(folder)
    assert lines(log) == ["b1", "b2", "a1", "b3"]
    assert lines(log, 1, 3) == ["b2", "a1"]


def test_files_that_are_found_together_come_in_the_order_of_their_time(folder: Path) -> None:
    """And then of their names; folders within the topic are walked."""
    write(folder / "2024" / "z.log", "1\n", age_s=30)
    write(folder / "2023" / "b.log", "3\n", age_s=10)
    write(folder / "2023" / "a.log", "2\n", age_s=10)

    assert lines(log_of(folder)) == ["1", "2", "3"]


def test_half_a_line_waits_for_its_end(folder: Path) -> None:
    """A row that is delivered in halves is two wrong rows."""
    write(folder / "a.log", "one\ntw")
    log = log_of(folder)
    assert lines(log) == ["one"]
    assert log.bounds(*TP) == (0, 1)

    write(folder / "a.log", "o\n", append=True)
    assert lines(log) == ["one", "two"]


def test_a_last_line_without_an_end_counts_when_its_file_is_settled(folder: Path) -> None:
    """Many files end without one; what comes later is a row of its own."""
    write(folder / "a.log", "one\ntwo", age_s=59)
    assert lines(log_of(folder)) == ["one"]

    log = log_of(folder, now_s=NOW_S + 1)
    assert lines(log) == ["one", "two"]

    write(folder / "a.log", "late\nthree\n", append=True)
    assert lines(log) == ["one", "two", "late", "three"]
    assert lines(log, 1, 2) == ["two"]


def test_hidden_and_unfinished_names_are_passed_over(folder: Path) -> None:
    """So that a writer can rename a file when it is done."""
    for name in (".a.log", "_SUCCESS", "a.log.tmp", "b.crc", "_temporary/0/c.log"):
        write(folder / name, "no\n")
    write(folder / "a.log", "yes\n")
    write(folder / "a.txt", "no\n")

    assert lines(log_of(folder, given={"log.pattern": "*.log"})) == ["yes"]


def test_a_file_that_shrinks_is_an_error(folder: Path) -> None:
    """Its rows are others now, under the same offsets."""
    write(folder / "a.log", "one\ntwo\n")
    log = log_of(folder)
    log.bounds(*TP)
    write(folder / "a.log", "1\n")

    with pytest.raises(LogError, match=r"a\.log was changed: files of a log may only grow"):
        log.bounds(*TP)
    with pytest.raises(LogError, match=r"a\.log is shorter than it was"):
        list(log.read(*TP, 0, 2))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_file_that_is_written_once_may_not_change(folder: Path, form: str) -> None:
    """The same for files with a footer."""
    rows = pa.table({"id": [1, 2, 3], "name": ["a", "b", "c"]}, schema=SCHEMA)
    write_file(folder / f"x.{form}", rows, form)
    log = log_of(folder, form)
    assert log.bounds(*TP) == (0, 3)
    write_file(folder / f"x.{form}", pa.concat_tables([rows] * 9), form)

    with pytest.raises(LogError, match="was changed: files of a log may only be written once"):
        log.bounds(*TP)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_file_without_its_footer_is_waited_for_and_then_told(folder: Path, form: str) -> None:
    """Others need not wait for it."""
    whole = folder / f"whole.{form}"
    write_file(whole, pa.table({"id": [1], "name": ["a"]}, schema=SCHEMA), form)
    data = whole.read_bytes()
    write(folder / f"half.{form}", data[:-4], age_s=1)

    assert log_of(folder, form).bounds(*TP) == (0, 1)
    with pytest.raises(LogError, match=rf"half\.{form} can't be read as {form}, although nobody"):
        log_of(folder, form, now_s=NOW_S + 60).bounds(*TP)

    write(folder / f"half.{form}", data)
    assert log_of(folder, form).bounds(*TP) == (0, 2)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("rows", [0, 50])
def test_any_range_of_a_file_is_found(folder: Path, form: str, rows: int) -> None:
    """Over row groups and batches; an empty file takes no offset."""
    empty = pa.table({"id": [], "name": []}, schema=SCHEMA)
    write_file(folder / f"a.{form}", empty, form)
    table = pa.table({"id": list(range(rows)), "name": ["n"] * rows}, schema=SCHEMA)
    write_file(folder / f"b.{form}", table, form)
    log = log_of(folder, form)

    assert log.bounds(*TP) == (0, rows)
    for start in range(0, rows, 3):
        for end in range(start, rows + 1, 5):
            found = [i for b in log.read(*TP, start, end) for i in b.column("id").to_pylist()]
            assert found == list(range(start, end))


def test_files_are_spread_over_partitions_by_name(folder: Path) -> None:
    """Each in one of them, always the same."""
    for number in range(40):
        write(folder / f"{number}.log", f"{number}\n")
    log = log_of(folder, given={"log.partitions": "3"})

    assert log.partitions("t") == [0, 1, 2]
    found = [
        [v for b in log.read("t", p, *log.bounds("t", p)) for v in b.column(0).to_pylist()]
        for p in range(3)
    ]
    assert sorted(int(v) for values in found for v in values) == list(range(40))
    assert all(found)
    other = log_of(folder, given={"log.partitions": "4"})
    for _ in range(2):
        with pytest.raises(LogError, match=r"was made with .*'partitions': 3.*not with"):
            other.bounds("t", 0)
    with pytest.raises(LogError, match=r"was made with .*'partitions': 3.*not with"):
        log_of(folder, given={"log.partitions": "2"}).bounds(*TP)


@pytest.mark.parametrize(("name", "pack"), [("a.gz", gzip.compress), ("a.bz2", bz2.compress)])
def test_compressed_lines_are_read_like_others(folder: Path, name: str, pack: Any) -> None:
    """Most archives of lines are."""
    write(folder / name, pack(b"one\ntwo\nthree\n"), age_s=100)
    log = log_of(folder)

    assert lines(log) == ["one", "two", "three"]
    assert lines(log, 1, 2) == ["two"]


def test_a_large_text_is_read_from_the_middle(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without all that is before; also of a compressed one, and with lines longer than a piece."""
    monkeypatch.setattr(files_log, "parts_of", _small_parts)
    rows = [f"{i}" * (1 + i % 7) for i in range(300)]
    rows[100] = "x" * 500
    text = "".join(f"{row}\n" for row in rows)
    write(folder / "a.log", text, age_s=200)
    write(folder / "b.gz", gzip.compress(text.encode()), age_s=100)
    log = log_of(folder)

    assert log.bounds(*TP) == (0, 600)
    index = PieceIndex(folder / "_index", 0, {"format": "lines", "partitions": None})
    index.load()
    assert len(index.pieces) > 40
    for start, end in [(0, 600), (99, 102), (299, 301), (350, 351), (599, 600)]:
        assert lines(log, start, end) == (rows + rows)[start:end]


def _small_parts(*args: Any, **kwargs: Any) -> Any:
    return files_formats.parts_of(*args, piece_bytes=64, **kwargs)


@pytest.mark.parametrize("text", ["a\r\nb\r\n", "a\nb\n"])
def test_both_line_ends_are_taken_off(folder: Path, text: str) -> None:
    """Whatever system wrote the file."""
    write(folder / "a.log", text)

    assert lines(log_of(folder)) == ["a", "b"]


def test_bytes_that_are_no_text_are_replaced(folder: Path) -> None:
    """Spark's own source does the same; the JVM would stumble over them."""
    write(folder / "a.log", b"ok\n\xff\xfe\n\n")

    assert lines(log_of(folder)) == ["ok", "\ufffd\ufffd", ""]


def rows_of(log: FilesLog) -> list[Any]:
    """Read all rows."""
    return [row for b in log.read(*TP, *log.bounds(*TP)) for row in b.to_pylist()]


def test_json_is_read_by_its_schema(folder: Path) -> None:
    """Missing fields are null, others are left out; a blank line keeps its offset."""
    write(folder / "a.json", '{"id": 1, "name": "a", "x": []}\n\n{"name": "b"}\n  \n{}\n')

    assert rows_of(log_of(folder, "json")) == [
        {"id": 1, "name": "a"},
        {"id": None, "name": None},
        {"id": None, "name": "b"},
        {"id": None, "name": None},
        {"id": None, "name": None},
    ]


@pytest.mark.parametrize(
    "bad", ["{nope", '{"id": "text"}', "[1]", "null", "7", '{"id": 1} {"id": 2}']
)
def test_a_line_that_does_not_fit_is_told_or_null(folder: Path, bad: str) -> None:
    """With its file and offset."""
    write(folder / "a.json", f'{{"id": 1}}\n{bad}\n{{"id": 3}}\n')

    with pytest.raises(LogError, match=r"a\.json: the line with offset 1 doesn't fit"):
        rows_of(log_of(folder, "json"))
    found = rows_of(log_of(folder, "json", given={"log.badRows": "null"}))
    assert [row["id"] for row in found] == [1, None, 3]


def test_a_range_of_nothing_but_null_is_told(folder: Path) -> None:
    """It ends the process, in pyarrow."""
    write(folder / "a.json", "null\n")

    with pytest.raises(LogError, match=r"offset 0 doesn't fit 'log\.schema': a line holds no JSON"):
        rows_of(log_of(folder, "json"))


def test_dates_are_read_from_json_at_any_depth(folder: Path) -> None:
    """The guide names them among the types."""
    write(folder / "a.json", '{"d": "2026-11-21", "s": {"l": ["2026-11-22", null]}}\n{}\n')
    inner = StructType().add("l", ArrayType(DateType()))
    kind = StructType().add("d", DateType()).add("s", inner).json()
    log = FilesLog({"path": str(folder.parent), "log.format": "json", "log.schema": kind})

    assert rows_of(log) == [
        {"d": date(2026, 11, 21), "s": {"l": [date(2026, 11, 22), None]}},
        {"d": None, "s": None},
    ]


def test_only_files_are_read(folder: Path) -> None:
    """A link to the newest folder is common; reading a pipe would block for ever."""
    write(folder / "2026" / "a.log", "x\n")
    (folder / "latest").symlink_to("2026")
    os.mkfifo(folder / "pipe")

    assert lines(log_of(folder)) == ["x"]


def test_a_padded_number_of_a_partition_is_told(folder: Path) -> None:
    """Each would else read the files of all."""
    write(folder / "partition=00" / "a.log", "x\n")

    with pytest.raises(LogError, match=r"partition=00: .* without leading zeros"):
        log_of(folder).partitions("t")
    with pytest.raises(LogError, match=r"partition=00: .* without leading zeros"):
        log_of(folder).bounds("t", 0)


def test_names_that_are_no_text_are_spread_too(folder: Path) -> None:
    """Any bytes may be a name on Linux."""
    write(Path(os.fsdecode(os.fsencode(folder) + b"/\xff.log")), "x\n")
    log = log_of(folder, given={"log.partitions": "2"})

    assert sum(log.bounds("t", partition)[1] for partition in (0, 1)) == 1


def test_a_folder_that_vanishes_while_it_is_listed_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever deletes old days does it at any time."""
    write(folder / "a.log", "x\n")
    write(folder / "old" / "b.log", "y\n")
    scandir = os.scandir

    def deleting(path: Path) -> Any:
        if path == folder / "old":
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", deleting)

    assert lines(log_of(folder)) == ["x"]


def test_a_size_from_before_is_no_change(folder: Path) -> None:
    """A network file system shows what others wrote late, but to who opens the file."""
    write(folder / "a.log", "x\ny\n")
    assert lines(log_of(folder)) == ["x", "y"]

    def stale(path: Path) -> Any:
        return ((name, seen._replace(size=2)) for name, seen in files_below(path))

    assert lines(log_of(folder, list_files=stale)) == ["x", "y"]


def test_columns_come_from_the_first_file_and_stay(folder: Path) -> None:
    """In every process, also when that file is gone."""
    log = log_of(folder, "parquet")
    with pytest.raises(LogError, match=r"no file of topic 't' .* option 'log.schema'"):
        log.schema("t")

    first = pa.table({"id": [1], "tag": pa.array(["a"]).dictionary_encode()})
    pq.write_table(first, folder / "a.parquet")
    schema = pa.schema([("id", pa.int64()), ("tag", pa.string())])
    assert log.schema("t") == schema
    log.bounds(*TP)

    pq.write_table(pa.table({"id": pa.array([2], pa.int32()), "x": [1]}), folder / "b.parquet")
    (folder / "a.parquet").unlink()
    again = log_of(folder, "parquet")
    assert again.schema("t") == schema
    assert again.bounds(*TP) == (1, 2)
    assert rows_of(again) == [{"id": 2, "tag": None}]

    pq.write_table(pa.table({"id": ["text"]}), folder / "c.parquet")
    with pytest.raises(LogError, match=r"c\.parquet: column 'id' is string, which doesn't fit"):
        rows_of(again)


def test_a_time_is_found_by_when_files_were_changed(folder: Path) -> None:
    """Older rows of a file that is still written may follow; none is missed."""
    for number, age_s in enumerate((30, 20, 10)):
        write(folder / f"{number}.log", "x\ny\n", age_s=age_s)
    log = log_of(folder)

    found = [log.offsets_at([TP], int(NOW_S - age_s) * 1000)[TP] for age_s in (99, 20, 19, 10, 9)]

    assert found == [0, 2, 4, 4, 6]


def test_readers_that_discover_at_once_agree(folder: Path) -> None:
    """Each process has an index of its own to begin with; the file decides."""
    one, other = log_of(folder), log_of(folder)
    write(folder / "b.log", "b\n", age_s=5)
    assert one.bounds(*TP) == (0, 1)
    write(folder / "a.log", "a\n", age_s=9)
    assert other.bounds(*TP) == (0, 2)

    assert lines(one) == lines(other) == ["b", "a"]


def test_a_listing_that_another_reader_has_overtaken_is_no_damage(folder: Path) -> None:
    """Its sizes are smaller than what the index has by then."""
    other = log_of(folder)
    write(folder / "a.log", "a\n")

    def list_slowly(path: Path) -> Any:
        listed = list(files_below(path))
        if other.bounds(*TP) == (0, 1):
            write(folder / "a.log", "b\n", append=True)
            assert other.bounds(*TP) == (0, 2)
        return listed

    assert log_of(folder, list_files=list_slowly).bounds(*TP) == (0, 2)


def test_a_file_that_changes_while_it_is_read_waits(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looked like the end of its last line was none."""
    write(folder / "a.log", "one\ntw", age_s=100)

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        parts = list(files_formats.parts_of(*args, **kwargs))
        write(folder / "a.log", "o\n", append=True)
        return parts

    log = log_of(folder)
    with monkeypatch.context() as patched:
        patched.setattr(files_log, "parts_of", overtaken)
        assert log.bounds(*TP) == (0, 0)

    assert lines(log) == ["one", "two"]


def test_a_listing_that_lags_loses_nothing(folder: Path) -> None:
    """On a network file system a file may be missing from it for a moment."""
    write(folder / "a.log", "a\n", age_s=5)
    write(folder / "b.log", "b\n")
    lags = False
    log = log_of(folder, list_files=lambda path: [] if lags else files_below(path))
    assert log.bounds(*TP) == (0, 2)

    lags = True
    assert log.bounds(*TP) == (0, 2)

    (folder / "a.log").unlink()
    assert log.bounds(*TP) == (1, 2)


def test_the_index_heals_after_a_crash_and_stays_small(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a line at its end is cut off; lines that were replaced go."""
    monkeypatch.setattr(files_index, "STALE_MAX", 5)
    path = folder / "_index" / "0.jsonl"
    log = log_of(folder)
    for number in range(40):
        write(folder / "a.log", f"{number}\n", append=True)
        assert log.bounds(*TP) == (0, number + 1)
        with path.open("ab") as file:
            file.write(b'["half')

    assert lines(log) == lines(log_of(folder)) == [str(number) for number in range(40)]
    assert len(path.read_bytes().splitlines()) < 12


def test_an_index_that_was_damaged_is_told(folder: Path) -> None:
    """Guessing offsets would be loss or repetition."""
    write(folder / "a.log", "a\n")
    log_of(folder).bounds(*TP)
    path = folder / "_index" / "0.jsonl"
    path.write_bytes(path.read_bytes() + b'["a.log",9,10,5,6,0]\n')

    with pytest.raises(LogError, match=r"is damaged: .*does not begin where"):
        log_of(folder).bounds(*TP)


def test_an_index_that_cannot_be_written_is_told(folder: Path, tmp_path: Path) -> None:
    """A read-only share is usual; the index may lie elsewhere."""
    write(folder / "a.log", "a\n")
    (folder / "_index").write_text("in the way")
    with pytest.raises(LogError, match=r"can't be written .*option 'log.index'"):
        log_of(folder).bounds(*TP)

    elsewhere = log_of(folder, given={"log.index": str(tmp_path / "index")})
    assert lines(elsewhere) == ["a"]
    assert (tmp_path / "index" / "t" / "0.jsonl").exists()


def test_a_reader_waits_for_another_with_a_bound(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many new files take a while, but not for ever."""
    monkeypatch.setattr(files_index, "LOCK_WAIT_S", 0.0)
    write(folder / "a.log", "a\n")
    index = PieceIndex(folder / "_index", 0, {"format": "lines", "partitions": None})

    with index.adding(), pytest.raises(LogUnavailable, match="another process has been adding"):
        log_of(folder).bounds(*TP)
    assert log_of(folder).bounds(*TP) == (0, 1)


def test_topics_and_what_is_not_there(folder: Path) -> None:
    """A wrong path is the most likely mistake."""
    (folder.parent / "other").mkdir()
    log = log_of(folder)

    assert log.topics() == ["other", "t"]
    for topic in ("nope", "", "..", "_index", "a/b"):
        with pytest.raises(LogError, match=r"topic"):
            log.partitions(topic)
    with pytest.raises(LogError, match="has no partition 7"):
        log.bounds("t", 7)
    with pytest.raises(LogError, match="can't be listed"):
        log_of(folder / "nope" / "t").topics()


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_no_row_is_lost_or_moved_whatever_files_do(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Files come, grow by parts of lines, and go; readers look at any time."""
    folder = tmp_path_factory.mktemp("log") / "t"
    folder.mkdir()
    texts: dict[str, bytes] = {}
    gone: set[str] = set()
    seen: dict[int, str] = {}
    log = log_of(folder)
    names = st.sampled_from(["a", "b", "sub/c", "d"])
    for _ in range(data.draw(st.integers(1, 12))):
        action = data.draw(st.sampled_from(["append", "append", "look", "look anew", "delete"]))
        name = data.draw(names)
        if action == "append" and name not in gone:
            added = data.draw(st.sampled_from([b"", b"x\n", b"y", b"\n", b"z\nz\nz", b"\n\n"]))
            texts[name] = texts.get(name, b"") + added
            write(folder / name, added, append=True)
        elif action == "delete" and name in texts:
            (folder / name).unlink()
            del texts[name]
            gone.add(name)
        if action == "look anew":
            log = log_of(folder)
        first, end = log.bounds(*TP)
        found = dict(zip(range(first, end), lines(log, first, end), strict=True))
        for offset, line in found.items():
            assert seen.setdefault(offset, line) == line
        assert end == len(seen)
    left: Sequence[str] = [
        line for text in texts.values() for line in text.decode().split("\n")[:-1]
    ]
    if not gone:
        assert sorted(found.values()) == sorted(left)


@pytest.mark.parametrize(
    ("given_options", "message"),
    [
        ({"log.format": "lines"}, "option 'path' is missing"),
        ({"path": "/x"}, "option 'log.format' is ''"),
        ({"path": "/x", "log.format": "csv"}, "it must be lines or json or parquet or arrow"),
        ({"path": "/x", "log.format": "json"}, "option 'log.schema' is missing"),
        ({"path": "/x", "log.format": "lines", "log.schema": "a int"}, "one column 'value'"),
        ({"path": "/x", "log.format": "json", "log.schema": "a what"}, "has 'a what'"),
        ({"path": "/x", "log.format": "json", "log.schema": "a int(3,4)"}, "has 'a int"),
        ({"path": "/x", "log.format": "json", "log.schema": "{}"}, "no schema of Spark's"),
        ({"path": "/x", "log.format": "lines", "log.partitions": "0"}, "'log.partitions' is '0'"),
        ({"path": "/x", "log.format": "lines", "log.settle": "soon"}, "'log.settle' is 'soon'"),
        ({"path": "/x", "log.format": "lines", "log.badRows": "skip"}, "'log.badRows' is 'skip'"),
        ({"path": "/x", "log.format": "lines", "log.patern": "*"}, "'log.patern' is unknown"),
    ],
)
def test_a_wrong_option_is_named(given_options: dict[str, str], message: str) -> None:
    """With what it may be."""
    with pytest.raises(OptionError, match=message):
        FilesLog(given_options)


def test_a_schema_is_given_in_words_or_as_json() -> None:
    """Words for flat rows, Spark's JSON for any."""
    text = "id bigint, `my name` STRING, price decimal(10, 2), at timestamp"
    nested = {
        "type": "struct",
        "fields": [
            {
                "name": "tags",
                "type": {"type": "array", "elementType": "string", "containsNull": True},
                "nullable": True,
                "metadata": {},
            }
        ],
    }

    def schema(value: str) -> pa.Schema:
        options = {"path": "/x", "log.format": "json", "log.schema": value}
        return parse_files_options(options).schema

    assert schema(text) == pa.schema(
        [
            ("id", pa.int64()),
            ("my name", pa.string()),
            ("price", pa.decimal128(10, 2)),
            ("at", pa.timestamp("us", tz="UTC")),
        ]
    )
    assert schema(json.dumps(nested)).field("tags").type == pa.list_(pa.string())


def test_a_piece_is_written_as_documented(folder: Path) -> None:
    """Other programs may read the index."""
    write(folder / "a.log", "one\ntwo\n")
    log_of(folder).bounds(*TP)

    header, piece = (folder / "_index" / "0.jsonl").read_text().splitlines()

    assert json.loads(header) == {"version": 1, "format": "lines", "partitions": None}
    assert Piece(*json.loads(piece)) == Piece("a.log", 0, 8, 0, 2, 0)


# --- Ranges in any order, and going on where the last one ended ----------------------------


ROWS = 60
ABOUT = {"format": "lines", "partitions": None}


def table_of(count: int, first: int = 0) -> pa.Table:
    """Return rows that are all different."""
    ids = list(range(first, first + count))
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=SCHEMA)


def write_rows(folder: Path, form: str) -> FilesLog:
    """Write a file of rows, in several pieces, row groups or batches; return a log over it."""
    topic = folder / "t"
    topic.mkdir(parents=True)
    kind, _, compression = form.partition(".")
    if kind in {"lines", "json"}:
        text = "".join(f"{json.dumps(row)}\n" for row in table_of(ROWS).to_pylist()).encode()
        packed = {"": text, "gz": gzip.compress(text), "bz2": bz2.compress(text)}[compression]
        (topic / f"a.{compression or 'log'}").write_bytes(packed)
    else:
        write_file(topic / f"a.{form}", table_of(ROWS), form, batch_rows=25)
    given_options = {"path": str(folder), "log.format": kind}
    if kind == "json":
        given_options["log.schema"] = "id bigint, name string"
    return FilesLog(given_options)


def ids_of(log: FilesLog, start: int, end: int) -> list[int]:
    """Read the ids of a range."""
    rows = (row for batch in log.read("t", 0, start, end) for row in batch.to_pylist())
    return [row["id"] if "id" in row else json.loads(row["value"])["id"] for row in rows]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have batches of few rows and pieces of few bytes."""

    def small_parts(*args: Any, **kwargs: Any) -> Iterator[files_formats.Part]:
        return files_formats.parts_of(*args, piece_bytes=200, **kwargs)

    monkeypatch.setattr(files_read, "BATCH_ROWS_MAX", 7)
    monkeypatch.setattr(files_log, "parts_of", small_parts)


FORMS = ["lines", "lines.gz", "json", "json.bz2", "parquet", "arrow"]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("form", FORMS)
@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_ranges_in_any_order_give_their_rows(
    form: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever was read before: forwards, again, and some of it twice at once."""
    log = write_rows(tmp_path_factory.mktemp("log"), form)
    assert log.bounds("t", 0) == (0, ROWS)
    offset = st.integers(0, ROWS)
    for low, high in data.draw(st.lists(st.tuples(offset, offset), min_size=1, max_size=8)):
        start, end = min(low, high), max(low, high)
        assert ids_of(log, start, end) == list(range(start, end))
        stopped = iter(log.read("t", 0, start, ROWS))
        next(stopped, None)
        assert ids_of(log, end, ROWS) == list(range(end, ROWS))
        stopped.close()  # type: ignore[attr-defined] # It is a generator.


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("form", "opens"),
    [
        ("parquet", (files_read, "_ParquetRows")),
        ("arrow", (files_read, "_ArrowRows")),
        ("lines.gz", (files_read, "open_text")),
    ],
)
def test_ranges_one_after_the_other_open_a_file_once(
    form: str, opens: tuple[Any, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a log of its own, as every task has; else a row would cost all before it."""
    log = write_rows(tmp_path, form)
    log.bounds("t", 0)
    real, calls = getattr(*opens), []

    def counted(*args: Any) -> Any:
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(*opens, counted)
    for start in range(0, ROWS, 4):
        assert ids_of(FilesLog(log.options), start, start + 4) == list(range(start, start + 4))

    assert len(calls) == 1


def test_a_row_group_is_decoded_once_for_all_its_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those before the first range are not."""
    monkeypatch.setattr(files_read, "BATCH_ROWS_MAX", 7)
    log = write_rows(tmp_path, "parquet")
    log.bounds("t", 0)
    real, groups = pq.ParquetFile.iter_batches, []

    def counted(self: pq.ParquetFile, *args: Any, **kwargs: Any) -> Any:
        groups.append(kwargs["row_groups"][0])
        return real(self, *args, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted)
    for start, end in [(30, 35), (35, 45), (45, 50), (51, 52), (3, 4), (55, 56)]:
        assert ids_of(log, start, end) == list(range(start, end))

    assert groups == [1, 0, 2]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_file_in_place_of_another_is_read_and_not_what_was_kept(
    form: str, tmp_path: Path
) -> None:
    """With fewer rows, that is told."""
    log = write_rows(tmp_path, form)
    log.bounds("t", 0)
    assert ids_of(log, 0, 5) == [0, 1, 2, 3, 4]
    path = tmp_path / "t" / f"a.{form}"
    path.unlink()
    write_file(path, table_of(10, 100), form)

    assert ids_of(log, 5, 7) == [105, 106]
    with pytest.raises(LogError, match=r"from 5 to 11 can't be read: it holds 10 rows only"):
        ids_of(log, 5, 11)
    path.unlink()
    with pytest.raises(LogError, match="No such file"):
        ids_of(log, 7, 8)


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_file_with_none_of_the_columns_has_rows_of_nulls(form: str, tmp_path: Path) -> None:
    """Each row keeps its offset."""
    log = write_rows(tmp_path, form)
    assert log.schema("t") == SCHEMA
    log.bounds("t", 0)
    write_file(tmp_path / "t" / f"b.{form}", pa.table({"x": ["y"] * 30}), form)

    assert log.bounds("t", 0) == (0, ROWS + 30)
    assert ids_of(log, ROWS - 1, ROWS + 9) == [ROWS - 1] + [None] * 9


@given(st.lists(st.sampled_from([b"a", b"\xc3\xa9", b"\xff", b"\r", b"\n", b"\r\n", b"{"])))
def test_lines_are_cut_as_a_split_would(parts: list[bytes]) -> None:
    """Without an object for each."""
    text = b"".join(parts)
    lines = lines_of(text)
    split = text.removesuffix(b"\n").split(b"\n") if text else []

    assert len(lines) == len(split)
    assert count_lines(text, len(text)) == text.count(b"\n")
    for low in range(len(split)):
        part = lines.part(low, len(split))
        assert part.begin_with("{") == all(line.startswith(b"{") for line in split[low:])
        ended = [
            line.removesuffix(b"\r") if low + number < text.count(b"\n") else line
            for number, line in enumerate(split[low:])
        ]
        found = strings_of(without_returns(part))
        found.validate(full=True)
        assert found.to_pylist() == [line.decode("utf-8", "replace") for line in ended]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    grown=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=40),
    scan_bytes=st.sampled_from([1, 30, 200]),
)
def test_a_range_is_found_in_the_index_as_if_all_were_loaded(
    grown: list[tuple[int, int]], scan_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With pieces that grew, files without rows, and half a line of who crashed."""
    folder = tmp_path_factory.mktemp("index")
    index = PieceIndex(folder, 0, ABOUT)
    with index.adding():
        for number, (rows, times) in enumerate(grown):
            at = index.end
            index.add([Piece(f"{number}", 0, n, at, at + rows * n, 0) for n in range(1, times + 1)])
    with (folder / "0.jsonl").open("ab") as file:
        file.write(b'["half')
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files_index, "SCAN_BYTES", scan_bytes)
        for start in range(index.end):
            for end in range(start + 1, index.end + 1, 3):
                wanted = [
                    piece
                    for piece in index.pieces
                    if piece.end > max(start, piece.base) and piece.base < end
                ]
                assert PieceIndex(folder, 0, ABOUT).find(start, end) == wanted


def test_what_is_wrong_with_an_index_is_told_by_a_range_too(tmp_path: Path) -> None:
    """An executor may be the first to see it."""
    index = PieceIndex(tmp_path, 0, ABOUT)
    assert index.find(0, 1) == []
    with index.adding():
        index.add([Piece("a", 0, 9, 0, 5, 0)])
    with pytest.raises(LogError, match="was made with"):
        PieceIndex(tmp_path, 0, {**ABOUT, "format": "json"}).find(0, 1)
    with (tmp_path / "0.jsonl").open("a") as file:
        file.write('["b",0,9,6,7,0]\n')
    with pytest.raises(LogError, match=r"is damaged: .*does not begin where"):
        index.find(0, 7)


# --- Open files that a process keeps -------------------------------------------------------


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
