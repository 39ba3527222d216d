"""What commands print: tables for people, JSON for machines, and notes on the standard error."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import click


def show(columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool) -> None:
    """Print *rows* as a table, or as JSON with the columns' names in lower case as keys."""
    if not as_json:
        table(columns, rows)
        return
    keys = [re.sub("[^a-z]+", "_", column.lower()).strip("_") for column in columns]
    values = [
        dict(zip(keys, (None if _is_unknown(v) else v for v in row), strict=True)) for row in rows
    ]
    show_json(values)


def show_json(value: Any) -> None:
    """Print *value*; what is no ASCII is escaped, so that a terminal has nothing to obey."""
    click.echo(json.dumps(value, indent=2))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print *rows* under *columns*, as wide as they need; "-" is what isn't known."""
    lines = [tuple(columns), *(tuple(_cell(value) for value in row) for row in rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        click.echo("  ".join(padded).rstrip())


def note(text: str) -> None:
    """Say something that is no result."""
    click.echo(clean(text), err=True)


def end(text: str, status: int) -> None:
    """Say why, and end the process with *status*."""
    note(text)
    sys.exit(status)


def clean(text: str) -> str:
    """Return *text* for a terminal, which must not obey names that clients have made up."""
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def time_of(wall_ms: int) -> str | None:
    """Return a time of day, None for the -1 of "never"."""
    if wall_ms < 0:
        return None
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="seconds")


def shortened(names: Sequence[object], limit: int = 5) -> str:
    """Return the first of *names*, and how many more there are."""
    more = len(names) - limit
    told = ", ".join(map(str, names[:limit]))
    return f"{told} and {more} more" if more > 0 else told


def _is_unknown(value: object) -> bool:
    return value is None or value in ("", -1)


def _cell(value: object) -> str:
    if isinstance(value, Mapping):  # An assignment: the partitions of each topic.
        value = ", ".join(f"{t}({','.join(map(str, p))})" for t, p in value.items())
    return "-" if _is_unknown(value) else clean(str(value))
