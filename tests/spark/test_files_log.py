"""Folders of files that others write: offsets that stay, whatever the files do."""

import bz2
import gzip
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql.types import ArrayType, DateType, StructType

from client.spark.logs import files_formats, files_index, files_log
from client.spark.logs.files_formats import FORMATS, parse_files_options
from client.spark.logs.files_index import Piece, PieceIndex
from client.spark.logs.files_log import FilesLog, ListFiles, files_below
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
