"""What is measured of Spark, what the numbers are held against, and how they are shown."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench import report, spark_pauses
from bench.judging import Aim, Medians, Samples, judge
from bench.measures import median, percentile
from bench.report import HOW_TO_READ, SMOKE_NOTE, Run, aim_lines, markdown_table, number
from bench.spark_cost import FORMATS, SIZES, row_name

# What ``--only`` chooses from.
COST, PAUSES, LOGS, TABLES = "cost", "pauses", "logs", "tables"
PARTS: Final = (COST, LOGS, TABLES, PAUSES)

_PLAIN, _IN_GROUP = FORMATS
COST_MS: Final = 30.0
# The first join of a new process: its JVM compiles and its workers start.
COLD_JOIN: Final = "cold_join"
PAUSE_TITLES: Final[Mapping[str, str]] = {
    COLD_JOIN: "a driver that has just started joins",
    spark_pauses.JOIN: "a warm driver joins",
    spark_pauses.LEAVE: "a driver stops",
    spark_pauses.KILL: "a driver's reader is killed",
}
# Rows a second, or seconds, of the one held against those of the other.
FOLDER_LOG, SPARK_FILES = "folder_log", "spark_files"
# By the format of the files: the files log, and Spark's own source on the same files.
FILES_LOG: Final[Mapping[str, tuple[str, str]]] = {
    "lines": ("files_log_lines", "spark_text"),
    "json": ("files_log_json", "spark_json"),
    "parquet": ("files_log_parquet", SPARK_FILES),
}
KAFKA_LOG, SPARK_KAFKA = "kafka_log", "spark_kafka"
GROUP_OFFSETS, MADE_UP_TABLE = "group_offsets", "made_up_table"
RATE_TITLES: Final[Mapping[str, str]] = {
    FOLDER_LOG: "folder log",
    SPARK_FILES: "Spark's file source, Parquet",
    "files_log_parquet": "files log, Parquet",
    "files_log_json": "files log, JSON lines",
    "spark_json": "Spark's file source, JSON",
    "files_log_lines": "files log, lines",
    "spark_text": "Spark's file source, text",
    KAFKA_LOG: "Kafka log",
    SPARK_KAFKA: "Spark's Kafka source",
    GROUP_OFFSETS: "group_offsets",
    MADE_UP_TABLE: "a reader that makes up such rows",
}
TITLES: Final[Mapping[str, str]] = {
    **{
        row_name(source, size): f"batch of {size} partitions, {what}"
        for size in SIZES
        for source, what in ((_PLAIN, "no coordinator"), (_IN_GROUP, "coordinated"))
    },
    **RATE_TITLES,
    **PAUSE_TITLES,
}


def cost_ms(medians: Medians, size: int, field: str = "outside_ms") -> float | None:
    """Return how much longer a batch is with a coordinator."""
    with_it = medians.of(row_name(_IN_GROUP, size), field)
    without = medians.of(row_name(_PLAIN, size), field)
    return None if with_it is None or without is None else with_it - without


def _cost_aim(size: int) -> Aim:
    return Aim(
        f"cost_{size}",
        f"coordination of a batch of {size} partitions",
        lambda medians: cost_ms(medians, size),
        COST_MS,
        at_least=False,
        unit="ms",
    )


def _rate_aim(row: str, against: str, bound: float) -> Aim:
    return Aim(
        f"{row}/{against}",
        f"{RATE_TITLES[row]}, rows a second, of {RATE_TITLES[against]}",
        lambda medians: medians.ratio(row, against),
        bound,
        at_least=True,
        unit="",
    )


SPARK_AIMS: Final = (
    *(_cost_aim(size) for size in SIZES),
    _rate_aim(FOLDER_LOG, SPARK_FILES, 0.5),
    *(_rate_aim(*rows, 0.5) for rows in FILES_LOG.values()),
    _rate_aim(KAFKA_LOG, SPARK_KAFKA, 0.5),
    Aim(
        "group_offsets_s",
        "a million offsets as a table, warm",
        lambda medians: medians.of(GROUP_OFFSETS, "seconds"),
        2.0,
        at_least=False,
        unit="s",
    ),
    _rate_aim(GROUP_OFFSETS, MADE_UP_TABLE, 0.8),
)


def document(run: Run) -> dict[str, Any]:
    """Return the whole run as what JSON can hold."""
    judged = judge(Medians(run.samples), SPARK_AIMS)
    return report.document_of(run, TITLES.__getitem__, judged)


def cost_table(medians: Medians) -> list[tuple[str, ...]]:
    """Return a line a number of partitions: a batch with and without, in ms."""
    fields = ("batch_ms", "outside_ms", "latest_offset_ms")
    lines: list[tuple[str, ...]] = [
        ("partitions", "batch ms", "without", "but its tasks", "without", "plan", "without", "more")
    ]
    for size in SIZES:
        if (more := cost_ms(medians, size)) is None:
            continue
        values = [
            number(medians.of(row_name(source, size), field), 0)
            for field in fields
            for source in (_IN_GROUP, _PLAIN)
        ]
        lines.append((str(size), *values, number(more, 1)))
    return lines


def rate_table(medians: Medians) -> list[tuple[str, ...]]:
    """Return a line a source of rows."""
    lines: list[tuple[str, ...]] = [("source", "rows per s", "(spread)", "s")]
    for name, title in RATE_TITLES.items():
        spread = medians.spread(name, "rate_per_s")
        if spread is not None:
            lines.append(
                (
                    title,
                    number(medians.of(name, "rate_per_s"), 0),
                    f"{spread[0]:,.0f}-{spread[1]:,.0f}",
                    number(medians.of(name, "seconds"), 2),
                )
            )
    return lines


def pause_table(samples: Samples) -> list[tuple[str, ...]]:
    """Return a line an event: how its pauses are distributed, in seconds."""
    lines: list[tuple[str, ...]] = [
        ("event", "runs", "p50 s", "p90 s", "max s", "at least", "p50 over", "others p50", "max")
    ]
    for name, title in PAUSE_TITLES.items():
        runs = samples.get(name)
        if not runs:
            continue
        moved, stayed = _sorted(runs, "moved_s"), _sorted(runs, "stayed_s")
        lines.append(
            (
                title,
                str(len(moved)),
                number(median(moved), 2),
                number(_at(moved, 0.9), 2),
                number(moved[-1], 2),
                number(median(_sorted(runs, "limit_s")), 2),
                number(median(_sorted(runs, "over_s")), 2),
                number(median(stayed) if stayed else None, 2),
                number(stayed[-1] if stayed else None, 2),
            )
        )
    return lines


def _sorted(runs: Sequence[Mapping[str, float | None]], field: str) -> list[float]:
    return sorted(value for run in runs if (value := run.get(field)) is not None)


def _at(ordered: list[float], share: float) -> float:
    return percentile([round(value * 1e6) for value in ordered], share) / 1e6


def failures(samples: Samples) -> list[str]:
    """Return what was wrong: such a run's numbers must not be used."""
    return report.failures(samples, TITLES.__getitem__)


def tables(run: Run) -> list[list[tuple[str, ...]]]:
    """Return what the terminal shows."""
    medians = Medians(run.samples)
    shown = [cost_table(medians), rate_table(medians), pause_table(run.samples)]
    return [
        *(table for table in shown if len(table) > 1),
        aim_lines(judge(medians, SPARK_AIMS)),
    ]


def markdown(run: Run) -> str:
    """Return the page for people."""
    medians = Medians(run.samples)
    parts = [
        f"# Benchmark: {run.name}",
        *([f"**{SMOKE_NOTE}**"] if run.quick else []),
        f"Run on {run.started}. Repeat it with `{run.repeat}`.",
        HOW_TO_READ,
        "## Aims",
        markdown_table(aim_lines(judge(medians, SPARK_AIMS))),
        "## Coordination of a batch",
        markdown_table(cost_table(medians)),
        "## Rows a second",
        markdown_table(rate_table(medians)),
        "## Time without progress",
        markdown_table(pause_table(run.samples)),
        *[f"**Failed: {failure}**" for failure in failures(run.samples)],
        "## Environment",
        markdown_table([("", ""), *run.environment.items()]),
        "## Settings",
        markdown_table([("", ""), *((k, str(v)) for k, v in run.settings.items())]),
    ]
    return "\n\n".join(parts) + "\n"
