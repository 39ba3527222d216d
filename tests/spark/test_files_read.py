"""Ranges of files in any order, and that going on costs no beginning anew."""

import bz2
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from client.spark.logs import files_formats, files_index, files_log, files_read
from client.spark.logs.files_formats import count_lines, lines_of, strings_of, without_returns
from client.spark.logs.files_index import Piece, PieceIndex
from client.spark.logs.files_log import FilesLog
from client.spark.logs.partition_log import LogError
from tests.spark.log_subjects import SCHEMA, write_file

ROWS = 60
ABOUT = {"format": "lines", "partitions": None}


def table_of(count: int, first: int = 0) -> pa.Table:
    """Return rows that are all different."""
    ids = list(range(first, first + count))
    return pa.table({"id": ids, "name": [f"n{i}" for i in ids]}, schema=SCHEMA)


def write(folder: Path, form: str) -> FilesLog:
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
    log = write(tmp_path_factory.mktemp("log"), form)
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
    log = write(tmp_path, form)
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
    log = write(tmp_path, "parquet")
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
    log = write(tmp_path, form)
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
    log = write(tmp_path, form)
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
