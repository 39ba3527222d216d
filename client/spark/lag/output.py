"""Tables for a terminal. Pure."""

from collections.abc import Sequence
from datetime import datetime


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows under their names, numbers to the right; nothing known is a dash."""
    texts = [[_cell(value) for value in row] for row in rows]
    right = [
        all(row[at] is None or isinstance(row[at], int | float) for row in rows)
        for at in range(len(names))
    ]
    widths = [
        max(len(name), *(len(row[at]) for row in texts)) if texts else len(name)
        for at, name in enumerate(names)
    ]
    lines = [list(names), *texts]
    return "\n".join(
        "  ".join(
            text.rjust(width) if to_right else text.ljust(width)
            for text, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return str(value)
