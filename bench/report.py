"""A run's numbers as a JSON document, a Markdown page and lines on the terminal."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from bench.aims import AIMS
from bench.judging import Judged, Medians, Samples, judge
from bench.rows import (
    BEFORE_COMPACTION,
    CEILINGS,
    FILLED_MEMORY,
    FLOOR,
    IDLE_MEMORY,
    KAFKA_START,
    LOADED_MEMORY,
    ROWS,
    START,
    START_FLOOR,
    WHILE_COMPACTING,
)

_SCALED: Final = ("rate_per_s", "p50_us", "p99_us", "max_us")
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


_TITLES: Final[Mapping[str, str]] = {
    FLOOR: "fsync floor (write + fdatasync)",
    IDLE_MEMORY: "idle daemon",
    LOADED_MEMORY: "daemon after all loads",
    FILLED_MEMORY: "daemon with much in memory",
    START: "start with a large log",
    START_FLOOR: "crc and unpackb of its batches",
    KAFKA_START: "start with a large log: Kafka",
    BEFORE_COMPACTION: "commit, open loop before a compaction",
    WHILE_COMPACTING: "commit, open loop while the log is compacted",
}
# What is neither a rate nor a latency: row, field, unit and digits.
_OTHER: Final = (
    (IDLE_MEMORY, "resident_mb", "MB resident", 1),
    (LOADED_MEMORY, "resident_mb", "MB resident", 1),
    (FILLED_MEMORY, "resident_mb", "MB resident", 1),
    (FILLED_MEMORY, "bytes_per_offset", "bytes an offset", 0),
    (START, "start_s", "s until every offset is there", 2),
    (START, "load_s", "s of it to load", 2),
    (START, "resident_mb", "MB resident", 1),
    (START, "bytes_per_offset", "bytes an offset", 0),
    (START_FLOOR, "seconds", "s", 2),
    (KAFKA_START, "start_s", "s until every offset is there", 2),
    (KAFKA_START, "serving_s", "s of it until it coordinates", 2),
    (KAFKA_START, "resident_mb", "MB resident", 1),
    (WHILE_COMPACTING, "seconds", "s to compact", 2),
)


def document(run: Run) -> dict[str, Any]:
    """Return the whole run as what JSON can hold: samples, medians, ratios, aims."""
    medians = Medians(run.samples)

    def of_its_echo(name: str) -> dict[str, float | None]:
        ratio = medians.ratio(name, CEILINGS[name]) if name in CEILINGS else None
        return {"of_its_echo": ratio}

    return document_of(run, _title, judge(medians, AIMS), of_its_echo)


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


def _title(name: str) -> str:
    titles = {row.name: row.title for row in ROWS}
    return (titles | dict(_TITLES))[name]


def table(run: Run) -> list[tuple[str, ...]]:
    """Return the header and a line a row: medians, and the spread of the rate."""
    medians = Medians(run.samples)
    lines: list[tuple[str, ...]] = [
        ("load", "per s", "(spread)", "p50 ms", "p99 ms", "max ms", "of echo", "CPU", "CPU us")
    ]
    for name in run.samples:
        spread = medians.spread(name, "rate_per_s")
        if spread is None:
            continue
        rate, p50, p99, most = (medians.of(name, field) for field in _SCALED)
        lines.append(
            (
                _title(name),
                number(rate, 0),
                f"{spread[0]:,.0f}-{spread[1]:,.0f}",
                *(number(None if us is None else us / 1000, 3) for us in (p50, p99, most)),
                number(medians.ratio(name, CEILINGS[name]), 2) if name in CEILINGS else "",
                number(medians.of(name, "server_busy"), 2),
                number(medians.of(name, "server_cpu_us"), 1),
            )
        )
    return lines


def other_table(run: Run) -> list[tuple[str, ...]]:
    """Return the header and a line for each other number that was measured."""
    medians = Medians(run.samples)
    lines: list[tuple[str, ...]] = [("", "median", "(spread)", "")]
    for name, field, unit, digits in _OTHER:
        value, spread = medians.of(name, field), medians.spread(name, field)
        if value is not None and spread is not None:
            between = "-".join(number(end, digits) for end in spread)
            lines.append((_title(name), number(value, digits), between, unit))
    return lines


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


def failures(samples: Samples, title: Callable[[str], str] = _title) -> list[str]:
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


def markdown(run: Run) -> str:
    """Return the page for people."""
    medians = Medians(run.samples)
    late = medians.of("commit_open_50", "late_p99_us")
    parts = [
        f"# Benchmark: {run.name}",
        *([f"**{SMOKE_NOTE}**"] if run.quick else []),
        f"Run on {run.started}. Repeat it with `{run.repeat}`.",
        HOW_TO_READ,
        "## Aims",
        markdown_table(aim_lines(judge(medians, AIMS))),
        "## Rows",
        markdown_table(table(run)),
        *(
            []
            if late is None
            else [f"In the open loop the generator itself was late by {late / 1000:.3f} ms (p99)."]
        ),
        "## Memory, start, compaction",
        markdown_table(other_table(run)),
        *[f"**Failed: {failure}**" for failure in failures(run.samples)],
        "## Environment",
        markdown_table([("", ""), *run.environment.items()]),
        "## Settings",
        markdown_table([("", ""), *((k, str(v)) for k, v in run.settings.items())]),
    ]
    return "\n\n".join(parts) + "\n"
