"""A run's numbers as a JSON document, a Markdown page and lines on the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from bench.measures import Judged, Medians, Samples

_HOW_TO_READ: Final = (
    "Medians over the repetitions. Ratios compare rates of one run on one machine; the absolute "
    "numbers are a record, not a claim. What the rows mean: bench/README.md."
)
SMOKE_NOTE: Final = (
    "A smoke run: one short repetition, to see that everything works. Its numbers mean nothing."
)

# A header, and lines as long as it is.
Table = list[tuple[str, ...]]


class Run(NamedTuple):
    """Everything that was found out.

    Attributes:
        settings: Repetitions, seconds and so on.
        samples: By row, one mapping of measured fields a repetition.
        titles: By row.
        tables: What the page shows besides the aims, by heading.
    """

    name: str
    quick: bool
    started: str
    repeat: str
    environment: Mapping[str, str]
    settings: Mapping[str, str | float]
    samples: Samples
    titles: Mapping[str, str]
    tables: Mapping[str, Table]
    aims: Sequence[Judged]


def document(run: Run) -> dict[str, Any]:
    """Return the run as what JSON can hold."""
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
                "title": run.titles[name],
                "medians": {field: medians.of(name, field) for field in samples[0]},
                "spread": {field: medians.spread(name, field) for field in samples[0]},
                "samples": [dict(sample) for sample in samples],
            }
            for name, samples in run.samples.items()
        },
        "aims": [aim._asdict() for aim in run.aims],
    }


def page(run: Run) -> str:
    """Return the page for people."""
    sections: dict[str, Table] = {
        "Aims": aims_table(run.aims),
        **run.tables,
        "Environment": [("", ""), *run.environment.items()],
        "Settings": [("", ""), *((name, str(value)) for name, value in run.settings.items())],
    }
    parts = [
        f"# Benchmark: {run.name}",
        *([f"**{SMOKE_NOTE}**"] if run.quick else []),
        f"Run on {run.started}. Repeat it with `{run.repeat}`.",
        _HOW_TO_READ,
        *[f"**Failed: {failure}**" for failure in failures(run.samples, run.titles)],
        *[f"## {heading}\n\n{_markdown(table)}" for heading, table in sections.items()],
    ]
    return "\n\n".join(parts) + "\n"


def failures(samples: Samples, titles: Mapping[str, str]) -> list[str]:
    """Return what went wrong under load: such a run's numbers must not be used."""
    found = []
    for name, repetitions in samples.items():
        for field in ("wrong", "unanswered", "differences"):
            count = sum(sample.get(field) or 0 for sample in repetitions)
            if count:
                found.append(f"{titles[name]}: {count:.0f} {field}")
    return found


def number(value: float | None, digits: int) -> str:
    """Return a number for a table; nothing for what was not measured."""
    return "" if value is None else f"{value:,.{digits}f}"


def between(spread: tuple[float, float] | None, digits: int) -> str:
    """Return lowest and highest for a table."""
    return "-".join(number(end, digits) for end in spread or ())


def aims_table(judged: Sequence[Judged]) -> Table:
    """Return a line an aim."""
    lines: Table = [("aim", "wanted", "measured", "(spread)", "")]
    for aim in judged:
        wanted = f"{'>=' if aim.at_least else '<='} {aim.bound:g} {aim.unit}".strip()
        measured = "-" if aim.value is None else f"{aim.value:.2f} {aim.unit}".strip()
        verdict = {True: "reached", False: "missed", None: "not measured"}[aim.reached]
        spread = "" if aim.spread is None else f"{aim.spread[0]:.2f} to {aim.spread[1]:.2f}"
        lines.append((aim.title, wanted, measured, spread, verdict))
    return lines


def fields_table(
    medians: Medians, titles: Mapping[str, str], fields: Sequence[tuple[str, str, str, int]]
) -> Table:
    """Return a line for each of these that was measured: row, field, what it is, and digits."""
    lines: Table = [("", "median", "(spread)", "")]
    for row, field, what, digits in fields:
        if (value := medians.of(row, field)) is not None:
            spread = between(medians.spread(row, field), digits)
            lines.append((titles[row], number(value, digits), spread, what))
    return lines


def text(lines: Table) -> str:
    """Align columns: the first to the left, the others to the right."""
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _markdown(lines: Table) -> str:
    header, *rest = (f"| {' | '.join(line)} |" for line in lines)
    rule = "|" + "|".join("---" if i == 0 else "---:" for i in range(len(lines[0]))) + "|"
    return "\n".join([header, rule, *rest])
