"""Samples over time, in a folder, from which lag in seconds and windows are computed.

::

    <folder>/ends/day=2024-05-01/*.parquet    end offsets of all partitions, per sample
    <folder>/lag/day=2024-05-01/*.parquet     lag per group and topic, per sample

Only one process at a time may write samples to a folder; any number may read. Folders of old days
may be deleted.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import Column, functions as F  # noqa: N812 - As usual.

from client.spark.lag.compute import group_lag, partition_lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ENDS_SCHEMA: Final = (
    "topic string, partition int, begin_offset long, end_offset long, sampled_at timestamp, "
    "day date"
)
SAMPLES_SCHEMA: Final = (
    "at timestamp, group string, topic string, partitions long, unknown long, behind long, "
    "lag long, lag_max long, worst_topic string, worst_partition int, lag_seconds double, "
    "at_least boolean, expired long, last_commit timestamp, day date"
)
# Default age of the oldest end offsets that are read.
SPAN: Final = timedelta(days=1)


class Sample(NamedTuple):
    """Lag at one time: per partition, and per group and topic."""

    partitions: "DataFrame"
    groups: "DataFrame"


def read_ends(
    spark: "SparkSession", folder: str | Path, *, since: datetime | None = None
) -> "DataFrame":
    """Return the end offsets stored in *folder*; empty if there are none."""
    return _read(spark, Path(folder) / "ends", ENDS_SCHEMA, "sampled_at", since)


def read_samples(
    spark: "SparkSession", folder: str | Path, *, since: datetime | None = None
) -> "DataFrame":
    """Return the lag per group and topic stored in *folder*; empty if there is none."""
    return _read(spark, Path(folder) / "lag", SAMPLES_SCHEMA, "at", since)


def take_sample(
    spark: "SparkSession",
    offsets: "DataFrame",
    ends: "DataFrame",
    folder: str | Path | None,
    *,
    at: datetime | None = None,
    span: timedelta = SPAN,
) -> Sample:
    """Measure lag at the time *at*, without storing it.

    Args:
        spark: the session.
        offsets: see `partition_lag`.
        ends: the current end offsets; one later than the sample counts as of *at*.
        folder: the folder with earlier end offsets; None for none.
        at: the time of the sample; None for now.
        span: age of the oldest end offsets to read; bounds lag in seconds.

    """
    at = datetime.now(UTC) if at is None else at
    ends = _by(at, ends)
    if folder is not None:
        kept = read_ends(spark, folder, since=at - span)
        ends = kept.unionByName(ends, allowMissingColumns=True)
    partitions = partition_lag(offsets, ends, at=at)
    return Sample(partitions, group_lag(partitions))


def keep_sample(
    spark: "SparkSession",
    offsets: "DataFrame",
    ends: "DataFrame",
    folder: str | Path,
    *,
    at: datetime | None = None,
    span: timedelta = SPAN,
) -> Sample:
    """Measure lag, and store it and the end offsets in *folder*.

    Args:
        spark: the session.
        offsets: see `partition_lag`.
        ends: the current end offsets.
        folder: the folder for samples, under the same path for the driver and all executors.
        at: the time of the sample; None for now.
        span: age of the oldest end offsets to read; bounds lag in seconds.

    """
    at = datetime.now(UTC) if at is None else at
    ends = _by(at, ends).persist()
    try:
        sample = take_sample(spark, offsets, ends, folder, at=at, span=span)
        groups = sample.groups.persist()
        try:
            # The sample first: it reads the stored ends, to which the new ends are then added.
            _append(groups, Path(folder) / "lag", F.to_date("at"))
            _append(ends, Path(folder) / "ends", F.to_date("sampled_at"))
        finally:
            groups.unpersist()
    finally:
        ends.unpersist()
    return sample


def watch(
    spark: "SparkSession",
    take: Callable[["SparkSession"], tuple["DataFrame", "DataFrame"]],
    folder: str | Path,
    *,
    every: str = "30 seconds",
    checkpoint: str | Path,
    then: Callable[[Sample], object] | None = None,
    span: timedelta = SPAN,
) -> "StreamingQuery":
    """Start a query that stores a sample in *folder* at an interval.

    If a sample fails (such as when the coordinator or Kafka is down), the query ends; start it
    again.

    Args:
        spark: the session.
        take: returns the current offsets and ends; called for every sample.
        folder: see `keep_sample`.
        every: the interval, in the form of Spark's triggers, such as "30 seconds".
        checkpoint: the query's checkpoint folder.
        then: called with each sample, such as to send an alert.
        span: see `keep_sample`.

    """

    def sample(batch: "DataFrame", _batch_id: int) -> None:
        session = batch.sparkSession
        taken = keep_sample(session, *take(session), folder, span=span)
        if then is not None:
            then(taken)

    # The source "rate" serves as a clock; its rows aren't used.
    return (
        spark.readStream.format("rate")
        .load()
        .writeStream.queryName("lag")
        .foreachBatch(sample)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=every)
        .start()
    )


def _by(at: datetime, ends: "DataFrame") -> "DataFrame":
    """Return *ends* with no ``sampled_at`` later than *at*, as `partition_lag` ignores later ones.

    End offsets are read after *at* was set, and the clock of another machine may be ahead of ours.
    """
    now = F.lit(at).cast("timestamp")
    sampled_at = F.least("sampled_at", now) if "sampled_at" in ends.columns else now
    return ends.withColumn("sampled_at", sampled_at)


def _append(rows: "DataFrame", folder: Path, day: Column) -> None:
    dated = rows.withColumn("day", day)
    dated.coalesce(1).write.partitionBy("day").mode("append").parquet(str(folder.absolute()))


def _read(
    spark: "SparkSession", folder: Path, schema: str, time: str, since: datetime | None
) -> "DataFrame":
    if not folder.is_dir():
        return spark.createDataFrame([], schema).drop("day")
    rows = spark.read.schema(schema).parquet(str(folder.absolute()))
    if since is not None:
        # Days are of the session's time zone, which is at most a day away from any other one.
        first: date = since.date() - timedelta(days=1)
        rows = rows.where((F.col("day") >= F.lit(first)) & (F.col(time) >= F.lit(since)))
    return rows.drop("day")
