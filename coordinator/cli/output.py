"""What commands print: results on the standard output, and notes on the standard error.

`Output` prints a result in the form that ``--output`` asked for:

* ``table`` is for people, and styled on a terminal. Its columns are as wide as they need, for cut
  and awk. "-" is what isn't known.
* ``json`` is an array of objects, the columns' names in lower case as keys; null isn't known.
* ``csv`` has the same keys as its first line; what isn't known is empty.

None, "" and -1 are "not known": a number that may be -1 is handed over as text. Characters that a
terminal would obey are escaped everywhere, and nothing in a name is ever taken for markup.

    output.show(("GROUP", "STATE"), rows)                  # a table
    output.lines("{}: {}", ("GROUP", "STATUS"), rows)      # for people a sentence for each row
    output.say("Nothing is wrong.")                        # for programs a note
    output.json(value)                                     # where output.form is JSON
"""

import csv
import functools
import io
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, NoReturn, TextIO, TypeVar

import click

from coordinator.names import escaped

TABLE: Final = "table"
JSON: Final = "json"
CSV: Final = "csv"
FORMS: Final = (TABLE, JSON, CSV)
# Styling takes a moment for each cell; nobody reads more lines than this on a terminal.
_STYLED_ROWS_MAX: Final = 1_000
_LINE_CHARS_MAX: Final = 100_000
_AT_LEAST: Final = "≥ "
# So much of a column's name tells it from the others.
_HEAD_CHARS_MIN: Final = 5
# Fewer things are done before anybody would look at a bar.
_BAR_FROM: Final = 20

T = TypeVar("T")


class Table(NamedTuple):
    """Rows under the names of their columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


class Output:
    """Prints results in one form."""

    def __init__(self, form: str = TABLE) -> None:
        self.form = form

    def show(
        self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, failed: bool = False
    ) -> None:
        """Print *rows* under *columns*.

        Args:
            columns: Their names.
            rows: Of cells.
            failed: Something was told to be wrong; people need no empty table besides.
        """
        if self.form == JSON:
            keys = _keys(columns)
            self.json([dict(zip(keys, map(_known, row), strict=True)) for row in rows])
        elif self.form == CSV:
            for line in (_keys(columns), *rows):
                click.echo(csv_line(line))
        elif (found := list(rows)) or not failed:
            print_table(Table(columns, found), sys.stdout)

    def lines(self, text: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print for people the line ``text.format(*row)`` of each row, else the rows."""
        if self.form != TABLE:
            self.show(columns, rows)
            return
        for row in rows:
            click.echo(text.format(*map(_cell, row)))

    def say(self, text: str) -> None:
        """Print a sentence, which for people belongs to the result, and for programs doesn't."""
        click.echo(escaped(text), err=self.form != TABLE)

    def json(self, value: Any) -> None:
        """Print *value*; what is no ASCII is escaped, so that a terminal has nothing to obey."""
        click.echo(json.dumps(value, indent=2))


def prints(command: Callable[..., object]) -> Callable[..., None]:
    """Take ``--output``, and give *command* an `Output` as its first argument."""

    @click.option(
        "--output",
        "form",
        type=click.Choice(FORMS),
        default=TABLE,
        show_default=True,
        help="For people, or for programs.",
    )
    @functools.wraps(command)
    def printing(*arguments: Any, form: str, **options: Any) -> None:
        command(Output(form), *arguments, **options)

    return printing


def print_table(table: Table, stream: TextIO) -> None:
    """Print a table for people."""
    if stream.isatty() and len(table.rows) <= _STYLED_ROWS_MAX:
        from rich.console import Console  # noqa: PLC0415  # Slow to import, for terminals only.

        # Whole lines, however narrow the terminal is: it wraps them itself, and a name stays one.
        Console(file=stream, width=_LINE_CHARS_MAX).print(styled(table))
        return
    lines = [tuple(table.columns), *(tuple(map(_cell, row)) for row in table.rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(table.columns))]
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        click.echo("  ".join(padded).rstrip(), file=stream)


def styled(table: Table, width: int = _LINE_CHARS_MAX) -> Any:
    """Return a table for `rich`, numbers to the right; what doesn't fit into *width* is cut.

    First the names of columns of numbers, then names, and numbers last.
    """
    from rich.table import Table as RichTable  # noqa: PLC0415  # Slow to import.
    from rich.text import Text  # noqa: PLC0415  # likewise

    # A Text is shown as it is; markup is read in a str only.
    text = functools.partial(Text, no_wrap=True, overflow="ellipsis")
    result = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    cells = [tuple(map(_cell, row)) for row in table.rows]
    widths = [max(map(len, column)) for column in zip(table.columns, *cells, strict=True)]
    is_narrow = sum(widths) + 2 * len(widths) > width
    for at, column in enumerate(table.columns):
        is_number = all(_is_number(row[at]) for row in table.rows)
        head = text(column)
        if is_number and is_narrow:
            head.truncate(max(_HEAD_CHARS_MIN, *(len(row[at]) for row in cells), 0))
        side: Any = "right" if is_number else "left"
        # Rich takes room from columns that may wrap, as long as it can. None does: see `text`.
        result.add_column(head, justify=side, no_wrap=is_number)
    for row in cells:
        result.add_row(*map(text, row))
    return result


def tracked(items: Sequence[T], what: str) -> Iterator[T]:
    """Yield *items*, and on a terminal show how many are done; *what* says of what."""
    if len(items) < _BAR_FROM or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console  # noqa: PLC0415  # Slow to import, for terminals only.
    from rich.progress import track  # noqa: PLC0415  # likewise

    yield from track(items, what, console=Console(stderr=True), transient=True)


def note(text: str) -> None:
    """Say something that is no result."""
    click.echo(escaped(text), err=True)


def end(text: str, status: int) -> NoReturn:
    """Say why, and end the process with *status*."""
    note(text)
    sys.exit(status)


def at_least(number: int) -> str:
    """Return the cell of a number that is known in part, for people."""
    return f"{_AT_LEAST}{number}"


def time_of(wall_ms: int) -> str | None:
    """Return a time of day, None for the -1 of "never"."""
    if wall_ms < 0:
        return None
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="seconds")


def csv_line(values: Sequence[object]) -> str:
    """Return a line for a spreadsheet, without its end; what isn't known is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([_cell(value, unknown="") for value in values])
    return text.getvalue()


def counted(number: int, noun: str) -> str:
    """Return "1 group" or "2 groups"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _keys(columns: Sequence[str]) -> list[str]:
    return [re.sub("[^a-z]+", "_", column.lower()).strip("_") for column in columns]


def _is_unknown(value: object) -> bool:
    return value is None or value in ("", -1)


def _is_number(value: object) -> bool:
    is_part = isinstance(value, str) and value.startswith(_AT_LEAST)
    return type(value) is int or is_part or _is_unknown(value)


def _known(value: object) -> object:
    return None if _is_unknown(value) else value


def _cell(value: object, *, unknown: str = "-") -> str:
    if isinstance(value, Mapping):  # An assignment: the partitions of each topic.
        value = ", ".join(f"{t}({','.join(map(str, p))})" for t, p in value.items())
    return unknown if _is_unknown(value) else escaped(str(value))
