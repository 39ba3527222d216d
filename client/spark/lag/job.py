"""``python -m client.spark.lag``: prints the lag of groups, once or at an interval."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click
from pyspark.errors import PySparkException

from client.exceptions import CoordinatorError
from client.security import Security, read_properties, without_literals
from client.spark.lag.compute import windowed, worst
from client.spark.lag.ends import kafka_ends, log_ends, registry_ends
from client.spark.lag.history import Sample, keep_sample, read_samples, take_sample, watch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Exit status if a lag exceeds --max-lag or --max-seconds.
TOO_FAR_BEHIND: Final = 3
# Columns with the number of partitions of unknown lag, and columns about those of known lag.
UNKNOWN: Final = ("unknown", "unknown_max")
OF_KNOWN: Final = frozenset(
    {"lag", "lag_seconds", "lag_min", "lag_avg", "lag_max", "lag_last", "lag_seconds_max"}
)
# Columns of each kind of table.
SHOWN: Final = {
    "groups": (
        "group topic lag lag_seconds at_least behind partitions unknown worst_topic "
        "worst_partition expired last_commit"
    ),
    "partitions": (
        "group topic partition lag lag_seconds at_least committed end_offset expired committed_at"
    ),
    "windows": (
        "window_start group topic samples lag_min lag_avg lag_max lag_last lag_seconds_max growth "
        "unknown_max"
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Groups and topics to measure, and the sources of their offsets."""

    coordinator: str | None
    security: dict[str, str]
    groups: tuple[str, ...]
    topics: tuple[str, ...]
    offsets: str | None
    ends: str
    kafka: dict[str, str]
    log: dict[str, str]

    def take(self, spark: "SparkSession") -> tuple["DataFrame", "DataFrame"]:
        """Return the current committed offsets and end offsets."""
        return self._offsets(spark), self._ends(spark)

    def _offsets(self, spark: "SparkSession") -> "DataFrame":
        if self.offsets is None:
            # Imported late, as its import loads more of Spark.
            from client.spark.source.data_source import register  # noqa: PLC0415 - as said.

            register(spark)
            assert self.coordinator is not None
            reader = spark.read.format("group_offsets").options(**self.security)
            rows = reader.option("coordinator", self.coordinator).load()
        else:
            rows = spark.read.parquet(self.offsets)
        # The format pushes these filters down to the coordinator.
        if self.groups:
            rows = rows.where(rows["group"].isin(*self.groups))
        if self.topics:
            rows = rows.where(rows["topic"].isin(*self.topics))
        return rows

    def _ends(self, spark: "SparkSession") -> "DataFrame":
        topics = list(self.topics) or None
        if self.ends == "registry":
            assert self.coordinator is not None
            return registry_ends(spark, self.coordinator, topics=topics, security=self.security)
        if self.ends == "kafka":
            return kafka_ends(spark, self.kafka, topics=topics)
        if self.ends == "log":
            assert topics is not None
            return log_ends(spark, self.log, topics)
        return spark.read.parquet(self.ends)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Options of the output, and the limits that fail the command."""

    level: str
    top: int
    by: str
    per: tuple[str, ...]
    output: str
    max_lag: int | None
    max_seconds: float | None

    def report(self, sample: Sample) -> bool:
        """Print the largest lags, then the unknown ones; return whether one is over a limit."""
        rows = sample.groups if self.level == "groups" else sample.partitions
        rows = rows.persist()
        try:
            found = worst(rows, self.top, by=self.by, per=self.per)  # type: ignore[arg-type]  # By click.
            unknown = rows.where(rows[self.by].isNull()).sort("group", "topic").limit(self.top)
            self.show(found.unionByName(unknown), self.level)
            return self._exceeded(rows)
        finally:
            rows.unpersist()

    def show(self, rows: "DataFrame", what: str) -> None:
        """Print *rows*; *what* is a key of `SHOWN`."""
        names = SHOWN[what].split()
        listed = [row.asDict() for row in rows.select(*names).collect()]
        if self.output == "json":
            for row in listed:
                click.echo(json.dumps(row, default=_text))
        else:
            click.echo(table(names, [_in_part(row, names) for row in listed]))

    def _exceeded(self, rows: "DataFrame") -> bool:
        too_far = []
        if self.max_lag is not None:
            too_far.append(rows["lag"] > self.max_lag)
        if self.max_seconds is not None:
            too_far.append(rows["lag_seconds"] > self.max_seconds)
        return any(not rows.where(condition).isEmpty() for condition in too_far)


def _security(path: str | None) -> dict[str, str]:
    """Return the properties in a file; secrets must be references, as Spark shows properties."""
    if path is None:
        return {}
    try:
        properties = read_properties(path)
        without_literals(properties)
        Security.of(properties)
    except ValueError as error:
        raise click.UsageError(f"--coordinator-config: {error}") from None
    return properties


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--coordinator", help="host:port, or several of them separated by commas.")
@click.option(
    "--coordinator-config",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FILE",
    help="Properties for the coordinator: security.protocol, sasl.* and ssl.*; secrets as "
    "{file:/path} or {env:NAME}, since Spark shows them.",
)
@click.option("--group", "groups", multiple=True, help="Only this group. May be repeated.")
@click.option("--topic", "topics", multiple=True, help="Only this topic. May be repeated.")
@click.option("--offsets", help="A Parquet folder of committed offsets, in place of a coordinator.")
@click.option(
    "--ends",
    default="registry",
    show_default=True,
    metavar="SOURCE",
    help="Where end offsets are: registry (of the coordinator), kafka, log, or a Parquet folder.",
)
@click.option(
    "--kafka",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of confluent-kafka, such as bootstrap.servers. May be repeated.",
)
@click.option(
    "--kafka-config",
    type=click.Path(exists=True, dir_okay=False),
    help="A file of such settings, one a line; for passwords.",
)
@click.option(
    "--log",
    "log",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option of the log, such as path. May be repeated.",
)
@click.option("--history", help="A folder to keep samples in, for lag in seconds and windows.")
@click.option(
    "--span",
    default=24.0,
    show_default=True,
    type=click.FloatRange(min=0.01),
    help="How many hours of it to look at.",
)
@click.option("--every", help="Go on, with a sample so often, such as '30 seconds'.")
@click.option("--window", help="Show what --history holds in windows, such as '5 minutes'.")
@click.option(
    "--level",
    type=click.Choice(["groups", "partitions"]),
    default="groups",
    show_default=True,
    help="What to list.",
)
@click.option(
    "--by",
    type=click.Choice(["lag", "lag_seconds"]),
    default="lag",
    show_default=True,
    help="What makes one worse than another.",
)
@click.option(
    "--top", type=click.IntRange(min=1), default=20, show_default=True, help="How many to list."
)
@click.option(
    "--per",
    type=click.Choice(["group", "topic"]),
    multiple=True,
    help="List so many of each group, or of each topic.",
)
@click.option(
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="How to print.",
)
@click.option(
    "--max-lag",
    type=click.IntRange(min=0),
    metavar="MESSAGES",
    help=f"End with status {TOO_FAR_BEHIND} if any is further behind.",
)
@click.option(
    "--max-seconds", type=click.FloatRange(min=0), metavar="SECONDS", help="The same, by age."
)
def main(
    *,
    coordinator: str | None,
    coordinator_config: str | None,
    groups: tuple[str, ...],
    topics: tuple[str, ...],
    offsets: str | None,
    ends: str,
    kafka: tuple[str, ...],
    kafka_config: str | None,
    log: tuple[str, ...],
    history: str | None,
    span: float,
    every: str | None,
    window: str | None,
    **shown: Any,
) -> None:
    """Tell which groups are behind, by how many messages, and since when.

    Runs where Spark runs: with python -m, with spark-submit, or with SPARK_REMOTE set. Lag in
    seconds needs earlier samples: keep them with --history.
    """
    wanted = Wanted(
        coordinator=coordinator,
        security=_security(coordinator_config),
        groups=groups,
        topics=topics,
        offsets=offsets,
        ends=ends,
        kafka=_kafka(kafka, kafka_config),
        log=_settings("--log", log),
    )
    _check(wanted, history=history, every=every, window=window)
    show = Shown(**shown)
    try:
        spark = _session()
        too_far = _run(spark, wanted, show, history, timedelta(hours=span), every, window)
    except (CoordinatorError, PySparkException, ImportError, RuntimeError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    if too_far:
        sys.exit(TOO_FAR_BEHIND)


def _run(
    spark: "SparkSession",
    wanted: Wanted,
    show: Shown,
    history: str | None,
    span: timedelta,
    every: str | None,
    window: str | None,
) -> bool:
    if window is not None:
        assert history is not None
        samples = read_samples(spark, history, since=datetime.now(UTC) - span)
        show.show(windowed(samples, window).orderBy("window_start", "group", "topic"), "windows")
        return False
    if every is not None:
        assert history is not None
        query = watch(
            spark,
            wanted.take,
            history,
            every=every,
            checkpoint=Path(history) / "checkpoint",
            then=show.report,
            span=span,
        )
        query.awaitTermination()
        return False
    if history is None:
        return show.report(take_sample(spark, *wanted.take(spark), None))
    return show.report(keep_sample(spark, *wanted.take(spark), history, span=span))


def _check(wanted: Wanted, *, history: str | None, every: str | None, window: str | None) -> None:
    if (every or window) and history is None:
        raise click.UsageError("--every and --window need --history, the folder of the samples")
    if every and window:
        raise click.UsageError("--every keeps samples and --window shows them: one at a time")
    if window:
        return
    if wanted.coordinator is None and (wanted.offsets is None or wanted.ends == "registry"):
        raise click.UsageError(
            "--coordinator is missing: the offsets (or --offsets) and, by default, the end "
            "offsets (or --ends) come from there"
        )
    if wanted.ends == "kafka" and "bootstrap.servers" not in wanted.kafka:
        raise click.UsageError("--ends kafka needs --kafka bootstrap.servers=host:port")
    if wanted.ends == "log" and not wanted.topics:
        raise click.UsageError("--ends log needs --topic: a log can't list its topics")


def _kafka(given: Sequence[str], path: str | None) -> dict[str, str]:
    lines: list[str] = []
    if path is not None:
        with Path(path).open(encoding="utf-8") as file:
            lines = [text for line in file if (text := line.strip()) and text[0] != "#"]
    return _settings("--kafka-config", lines) | _settings("--kafka", given)


def _settings(option: str, given: Sequence[str]) -> dict[str, str]:
    settings = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            # The message doesn't show the text, which may contain a password.
            raise click.UsageError(f"{option}: each setting must be NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings


def _session() -> "SparkSession":
    from pyspark.sql import SparkSession  # noqa: PLC0415 - --help need not wait for it.

    spark: SparkSession = (
        SparkSession.builder.appName("lag")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    return spark


class AtLeast(NamedTuple):
    """Lower bound of a number, as some partitions have an unknown lag."""

    number: float


def _in_part(row: Mapping[str, Any], names: Iterable[str]) -> list[object]:
    """Return the cells of a row; numbers are `AtLeast` if the lag of a partition is unknown."""
    is_part = any(row.get(name) for name in UNKNOWN)
    return [
        AtLeast(row[name]) if is_part and name in OF_KNOWN and row[name] is not None else row[name]
        for name in names
    ]


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return *rows* as a text table below *names*, numbers to the right; a dash for None."""
    texts = [[_cell(value) for value in row] for row in rows]
    right = [
        all(row[at] is None or isinstance(row[at], int | float | AtLeast) for row in rows)
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
    if isinstance(value, AtLeast):
        return f"≥ {_cell(value.number)}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return str(value)
