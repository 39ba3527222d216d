"""Files of offsets: what ``offsets export`` writes, and ``offsets import`` and resets read.

A file is CSV or JSON lines. CSV begins with the names of its columns, which may stand in any order;
without them it is as kafka-consumer-groups.sh has it: ``group,topic,partition,offset``, or without
the group where the command line names it. A JSON line is an object with the same names as keys.

    group,topic,partition,offset,leader_epoch,metadata
    billing,orders,0,1000,-1,
    {"group": "billing", "topic": "orders", "partition": 0, "offset": 1000}

A file is read as a whole before anything is done with it, and all that is wrong is told by line.
"""

import csv
import io
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TextIO

import click

from coordinator.cli.output import JSON
from coordinator.names import escaped, quoted
from protocol.fields import TEXT_BYTES_MAX, TOPIC_BYTES_MAX
from protocol.group_ids import group_id_error, name_error
from protocol.partition import INT32_MAX, INT64_MAX, NO_LEADER_EPOCH, TopicPartition
from protocol.text import some_of

COLUMNS: Final = ("group", "topic", "partition", "offset", "leader_epoch", "metadata")
_REQUIRED: Final = ("topic", "partition", "offset")
# What is wrong in more lines is wrong in the file.
_ERRORS_TOLD_MAX: Final = 10


class FileOffset(NamedTuple):
    """One committed offset in a file; None is what the file says nothing of."""

    group_id: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    metadata: str | None = None

    @property
    def where(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)


def read_offsets(
    path: str, what: str, only: str | None = None, groups: Collection[str] | None = None
) -> list[FileOffset]:
    """Return the offsets in the file at *path*, in its order; "-" is the standard input.

    Args:
        path: The file.
        what: Which option or argument names it, for errors.
        only: Whose they are, where the file doesn't say; None if it must.
        groups: Those that it may name; None for any.

    Raises:
        click.BadParameter: It can't be read, or something in it is wrong; the message says in
            which lines.
    """
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as exc:
        raise click.BadParameter(f"{path}: {exc.strerror}", param_hint=what) from exc
    try:
        return parse_offsets(_decoded(data), only, groups)
    except ValueError as exc:
        raise click.BadParameter(f"{path}: {exc}", param_hint=what) from exc


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")  # Spreadsheets put a byte order mark in front.
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise ValueError(f"line {line}: this is no UTF-8") from exc


def parse_offsets(
    text: str, only: str | None = None, groups: Collection[str] | None = None
) -> list[FileOffset]:
    """Return the offsets in *text*; see `read_offsets`.

    Raises:
        ValueError: Something is wrong; the message says in which lines.
    """
    found: list[FileOffset] = []
    seen: dict[tuple[str, str, int], int] = {}
    errors: list[str] = []
    lines = _json_lines(text) if text.lstrip()[:1] == "{" else _csv_lines(text, only)
    for number, read in lines:
        try:
            one = _checked(read(), only, groups)
            before = seen.setdefault(one[:3], number)
            if before != number:
                _fail(f"{one.where} is there twice, first in line {before}")
        except ValueError as exc:
            errors.append(f"line {number}: {exc}")
            continue
        found.append(one)
    if errors:
        raise ValueError(some_of(errors, _ERRORS_TOLD_MAX, between="; "))
    return found


_Fields = Mapping[str, Any]
# The number of a line, and what reads it: that raises ValueError.
_Lines = Iterator[tuple[int, Callable[[], _Fields]]]


def _json_lines(text: str) -> _Lines:
    for number, line in enumerate(io.StringIO(text), 1):
        if line.strip():
            yield number, partial(_json_object, line)


def _json_object(line: str) -> _Fields:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"this is no JSON: {exc}") from exc
    if not isinstance(found, dict):
        _fail("this is no JSON object")
    _check_names(found)
    for name, value in found.items():
        wanted = int if name in {"partition", "offset", "leader_epoch"} else str
        if value is not None and type(value) is not wanted:
            raise ValueError(f"{quoted(str(value))} is no {name}")
    return found


def _csv_lines(text: str, only: str | None) -> _Lines:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names: tuple[str, ...] | None = None
    is_first = True
    while True:
        number = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as exc:
            yield number, partial(_fail, str(exc))
            continue
        if row is None:
            return
        if not row:
            continue
        if is_first and {one.strip() for one in row} >= set(_REQUIRED):
            names = tuple(one.strip() for one in row)
            yield from _errors_of_head(number, names)
        else:
            yield number, partial(_csv_object, row, names, only)
        is_first = False


def _errors_of_head(number: int, names: tuple[str, ...]) -> _Lines:
    try:
        _check_names(names)
        if len(set(names)) != len(names):
            _fail("a column is there twice")
    except ValueError as exc:
        yield number, partial(_fail, str(exc))


def _fail(text: str) -> NoReturn:
    raise ValueError(text)


def _csv_object(row: list[str], names: tuple[str, ...] | None, only: str | None) -> _Fields:
    if names is None:
        # As Kafka's tool has it, which knows nothing of spaces either.
        names = COLUMNS[:4] if only is None or len(row) == 4 else COLUMNS[1:4]
        row = [one.strip() for one in row]
    if len(row) != len(names):
        raise ValueError(f"{len(row)} columns; {','.join(names)} is wanted")
    found: dict[str, Any] = dict(zip(names, row, strict=True))
    for name in ("partition", "offset", "leader_epoch"):
        if name in found:
            found[name] = _number(found[name].strip(), name)
    if not found.get("group"):
        found["group"] = None
    return found


def _number(text: str, what: str) -> int | None:
    if not text and what == "leader_epoch":
        return None
    if text == "-1" and what == "leader_epoch":
        return NO_LEADER_EPOCH
    # isdecimal alone would also take digits of other scripts.
    if not (text.isascii() and text.isdecimal()) or len(text) > 19:
        raise ValueError(f"{quoted(text)} is no {what}")
    return int(text)


def _check_names(names: Iterable[str]) -> None:
    if strangers := [name for name in names if name not in COLUMNS]:
        raise ValueError(f"{quoted(strangers[0])} is none of {', '.join(COLUMNS)}")


def _checked(fields: _Fields, only: str | None, groups: Collection[str] | None) -> FileOffset:
    found: dict[str, Any] = {**dict.fromkeys(COLUMNS), "group": only}
    found |= {name: value for name, value in fields.items() if value is not None}
    for name in ("group", *_REQUIRED):
        if found[name] is None:
            raise ValueError(f"there is no {name}")
    one = FileOffset(*(found[name] for name in COLUMNS))
    if groups is not None and one.group_id not in groups:
        raise ValueError(f"group {quoted(one.group_id)} is none of those asked for")
    for what, problem in (
        ("group", group_id_error(one.group_id)),
        ("topic", name_error(one.topic, TOPIC_BYTES_MAX)),
    ):
        if problem:
            raise ValueError(f"the {what} {quoted(found[what])} is not legal: {problem}")
    for name, low, high in (
        ("partition", 0, INT32_MAX),
        ("offset", 0, INT64_MAX),
        ("leader_epoch", NO_LEADER_EPOCH, INT32_MAX),
    ):
        if found[name] is not None and not low <= found[name] <= high:
            raise ValueError(f"{quoted(str(found[name]))} is no {name}")
    if one.metadata is not None and len(_bytes_of(one.metadata)) > TEXT_BYTES_MAX:
        raise ValueError(f"the metadata is longer than {TEXT_BYTES_MAX} bytes of UTF-8")
    return one


def _bytes_of(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as exc:  # Halves of characters, which JSON can write.
        raise ValueError("the metadata is no Unicode") from exc


def write_offsets(offsets: Iterable[FileOffset], form: str, stream: TextIO) -> None:
    """Write *offsets* without the names of the columns; CSV is exact, but not on a terminal."""
    is_terminal = stream.isatty()
    for one in offsets:
        if form == JSON:
            stream.write(json_line(COLUMNS, one))
        else:
            stream.write(csv_line(one, for_terminal=is_terminal))


def csv_line(row: Iterable[object], *, for_terminal: bool = False) -> str:
    r"""Return a line of CSV, ended by "\n"; texts with line ends of any kind are quoted.

    It is exact, but for a terminal, which must not obey what is in it.
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(row)
    text = line.getvalue().removesuffix("\r\n")
    return (escaped(text) if for_terminal else text) + "\n"


def json_line(names: Iterable[str], row: Iterable[object]) -> str:
    """Return an object in one line; what is no ASCII is escaped: a terminal has nothing to obey."""
    return json.dumps(dict(zip(names, row, strict=True))) + "\n"
