"""A run's numbers as a JSON document, a Markdown page and lines on the terminal."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bench.measures import Judged, Medians, Samples

HOW_TO_READ: Final = (
    "Medians over the repetitions. Ratios compare rates of one run on one machine; the absolute "
    "numbers are a record, not a claim. What the rows mean: bench/README.md."
)
SMOKE_NOTE: Final = (
    "A smoke run: one short repetition, to see that everything works. Its numbers mean nothing."
)


class Run(NamedTuple):
    """Everything that was found out, before any of it is judged.

    Attributes:
        samples: By row, one mapping of measured fields a repetition.
        settings: Repetitions, seconds and so on.
    """

    name: str
    quick: bool
    started: str
    environment: Mapping[str, str]
    settings: Mapping[str, str | float | int]
    samples: Samples
    repeat: str


def document_of(
    run: Run,
    title: Callable[[str], str],
    judged: Sequence[Judged],
    more: Callable[[str], Mapping[str, float | None]] = lambda _name: {},
) -> dict[str, Any]:
    """Return a run of any benchmark as what JSON can hold; *more* is told of each row."""
    medians = Medians(run.samples)
    return {
        "name": run.name,
        "smoke_run": run.quick,
        "started": run.started,
        "repeat": run.repeat,
        "environment": dict(run.environment),
        "settings": dict(run.settings),
        "rows": {
            name: {
                "title": title(name),
                "medians": {field: medians.of(name, field) for field in samples[0]},
                "spread": {field: medians.spread(name, field) for field in samples[0]},
                **more(name),
                "samples": [dict(sample) for sample in samples],
            }
            for name, samples in run.samples.items()
        },
        "aims": [aim._asdict() for aim in judged],
    }


def number(value: float | None, digits: int) -> str:
    """Return a number for a table; nothing for what was not measured."""
    return "" if value is None else f"{value:,.{digits}f}"


def aim_lines(judged: Sequence[Judged]) -> list[tuple[str, ...]]:
    """Return a header and a line an aim."""
    lines: list[tuple[str, ...]] = [("aim", "wanted", "measured", "(spread)", "")]
    for aim in judged:
        wanted = f"{'>=' if aim.at_least else '<='} {aim.bound:g} {aim.unit}".strip()
        measured = "-" if aim.value is None else f"{aim.value:.2f} {aim.unit}".strip()
        verdict = {True: "reached", False: "missed", None: "not measured"}[aim.reached]
        spread = "" if aim.spread is None else f"{aim.spread[0]:.2f} to {aim.spread[1]:.2f}"
        lines.append((aim.title, wanted, measured, spread, verdict))
    return lines


def failures(samples: Samples, title: Callable[[str], str]) -> list[str]:
    """Return what went wrong under load: such a run's numbers must not be used."""
    found = []
    for name, repetitions in samples.items():
        for field in ("wrong", "unanswered", "differences"):
            count = sum(sample.get(field) or 0 for sample in repetitions)
            if count:
                found.append(f"{title(name)}: {count:.0f} {field}")
    return found


def text(lines: Sequence[Sequence[str]]) -> str:
    """Align columns: the first to the left, the others to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown_table(lines: Sequence[Sequence[str]]) -> str:
    """Return a table whose first line is its header."""
    header, *rest = (f"| {' | '.join(line)} |" for line in lines)
    rule = "|" + "|".join("---" if i == 0 else "---:" for i in range(len(lines[0]))) + "|"
    return "\n".join([header, rule, *rest])
