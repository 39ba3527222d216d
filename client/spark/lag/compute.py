"""Functions from DataFrames of committed and end offsets to DataFrames of lag.

Lag in messages is ``end - committed``. Lag in seconds is the age of the first unread message: the
time since the end went past the committed offset. Computing it needs samples of the end over time;
between two samples the end is assumed to grow evenly. If a committed offset is below all samples,
the lag in seconds is a lower bound, marked by ``at_least``.

Unknown values are null, never 0. The lag of an offset beyond the end is unknown as well: either the
samples are old, or the offset is wrong.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Literal

from pyspark.sql import Column, DataFrame, Window, functions as F  # noqa: N812 - As usual.

By = Literal["lag", "lag_seconds"]

PARTITION: Final = ("topic", "partition")


def partition_lag(
    offsets: DataFrame, ends: DataFrame, *, at: datetime | None = None, missing: bool | None = None
) -> DataFrame:
    """Return the lag of each group in each partition.

    Args:
        offsets: columns ``group``, ``topic``, ``partition``, ``offset`` and optionally
            ``committed_at``, such as from the format ``group_offsets``. May be a stream.
        ends: columns ``topic``, ``partition``, ``end_offset`` and optionally ``sampled_at`` (with
            any number of samples for each partition) and ``begin_offset``. Not a stream.
        at: the time of the measurement; later samples don't count. None for now.
        missing: whether to add a row without an offset for each partition in which a group has
            none, if it has offsets in other partitions of the topic. None: true, except for a
            stream.

    Returns:
        ``at``, ``group``, ``topic``, ``partition``, ``committed``, ``end_offset``, ``lag``
        (messages), ``lag_seconds``, ``at_least`` (whether ``lag_seconds`` is a lower bound),
        ``expired`` (messages deleted before the group read them) and ``committed_at``. Lag is null
        for a partition without an offset, with an unknown end, or with an end below the offset.

    Raises:
        ValueError: a column is missing, or *missing* is true for a stream.

    """
    _need(offsets, "offsets", "group", *PARTITION, "offset")
    _need(ends, "ends", *PARTITION, "end_offset")
    if missing and offsets.isStreaming:
        raise ValueError("missing=True needs all offsets at once, and offsets is a stream")
    now = F.current_timestamp() if at is None else F.lit(at).cast("timestamp")
    histories = _histories(ends, now)
    committed_at = "committed_at" if "committed_at" in offsets.columns else "null"
    committed = offsets.select(
        "group",
        *PARTITION,
        F.col("offset").cast("long").alias("committed"),
        F.expr(committed_at).cast("timestamp").alias("committed_at"),
    )
    if missing or (missing is None and not offsets.isStreaming):
        committed = committed.unionByName(_without_offset(committed, histories))
    return _measured(committed.join(histories, [*PARTITION], "left"), now)


def group_lag(lags: DataFrame, by: Sequence[str] = ("group", "topic")) -> DataFrame:
    """Return the lag of all partitions together, per group and topic.

    Args:
        lags: the result of `partition_lag`.
        by: the columns to group by; ``("group",)`` for groups over all their topics.

    Returns:
        ``at``, the columns *by*, ``partitions``, ``unknown`` (number of partitions with unknown
        lag), ``behind`` (number with a lag above 0), ``lag`` (the sum of the known ones),
        ``lag_max``, ``worst_topic`` and ``worst_partition``, ``lag_seconds`` (the largest),
        ``at_least`` (whether ``lag_seconds`` is a lower bound: that of a partition is one, or is
        unknown), ``expired`` and ``last_commit``.

    """
    may_be_more = F.bool_or(F.coalesce("at_least", F.lit(True)))
    worst_one = F.max_by(F.struct("topic", "partition"), F.col("lag"))
    return lags.groupBy("at", *by).agg(
        F.count("*").alias("partitions"),
        F.count_if(F.col("lag").isNull()).alias("unknown"),
        F.count_if(F.col("lag") > 0).alias("behind"),
        F.sum("lag").alias("lag"),
        F.max("lag").alias("lag_max"),
        worst_one["topic"].alias("worst_topic"),
        worst_one["partition"].alias("worst_partition"),
        F.max("lag_seconds").alias("lag_seconds"),
        F.when(F.count("lag") > 0, may_be_more).alias("at_least"),
        F.sum("expired").alias("expired"),
        F.max("committed_at").alias("last_commit"),
    )


def worst(lags: DataFrame, n: int = 10, *, by: By = "lag", per: Sequence[str] = ()) -> DataFrame:
    """Return the rows with the largest lag, the largest first.

    Args:
        lags: the result of `partition_lag` or `group_lag`.
        n: number of rows.
        by: ``lag`` (messages) or ``lag_seconds``.
        per: columns; if given, *n* rows for each combination of their values, such as each topic.

    Raises:
        ValueError: *n* or *by* is invalid.

    """
    if n < 1:
        raise ValueError(f"n is {n}, it must be at least 1")
    if by not in ("lag", "lag_seconds"):
        raise ValueError(f"by is {by!r}, it must be 'lag' or 'lag_seconds'")
    names = [name for name in ("group", *PARTITION) if name in lags.columns]
    # Rows with equal lag are ordered by name, so that the result is always the same.
    order = [F.col(by).desc_nulls_last(), *(F.col(name).asc() for name in names)]
    known = lags.where(F.col(by).isNotNull())
    if not per:
        return known.orderBy(*order).limit(n)
    ranked = known.withColumn(
        "_rank", F.row_number().over(Window.partitionBy(*per).orderBy(*order))
    )
    return ranked.where(F.col("_rank") <= n).drop("_rank").orderBy(*per, *order)


def windowed(
    samples: DataFrame,
    window: str = "5 minutes",
    *,
    slide: str | None = None,
    watermark: str | None = None,
    by: Sequence[str] = ("group", "topic"),
) -> DataFrame:
    """Return statistics of lag for each window of time, from samples of `group_lag` over time.

    Args:
        samples: results of `group_lag` at different times. May be a stream. Without the column
            ``unknown`` each lag counts as known.
        window: the length of a window, such as "5 minutes".
        slide: the time between the starts of two windows; None: the length, so that windows don't
            overlap.
        watermark: how late a sample may arrive; required for a stream.
        by: the columns that were given to `group_lag`.

    Returns:
        ``window_start``, ``window_end``, the columns *by*, ``samples``, ``lag_min``, ``lag_avg``,
        ``lag_max``, ``lag_last``, ``lag_seconds_max``, ``growth`` (messages per second from the
        first sample to the last one; null with one sample, or if a lag is only partly known) and
        ``unknown_max`` (the largest number of partitions with unknown lag in a sample).

    Raises:
        ValueError: a stream without a watermark.

    """
    if samples.isStreaming:
        if watermark is None:
            raise ValueError("a stream of samples needs watermark=, such as '1 minute'")
        samples = samples.withWatermark("at", watermark)
    first_at, last_at = F.min("at"), F.max("at")
    seconds = (F.unix_micros(last_at) - F.unix_micros(first_at)) / 1e6
    first, last = F.min_by("lag", "at"), F.max_by("lag", "at")
    unknown = F.max("unknown" if "unknown" in samples.columns else F.lit(0))
    opened = F.window("at", window) if slide is None else F.window("at", window, slide)
    return (
        samples.groupBy(opened.alias("window"), *by)
        .agg(
            F.count("*").alias("samples"),
            F.min("lag").alias("lag_min"),
            F.avg("lag").alias("lag_avg"),
            F.max("lag").alias("lag_max"),
            last.alias("lag_last"),
            F.max("lag_seconds").alias("lag_seconds_max"),
            F.when(unknown == 0, F.try_divide(last - first, seconds)).alias("growth"),
            unknown.alias("unknown_max"),
        )
        .select(
            F.col("window.start").alias("window_start"),
            F.col("window.end").alias("window_end"),
            "*",
        )
        .drop("window")
    )


def _histories(ends: DataFrame, now: Column) -> DataFrame:
    """Return the begin of each partition, if known, and all samples of its end, by time.

    If the end of a partition went down, the topic was recreated: only later samples count.
    """
    has_begin = "begin_offset" in ends.columns
    sampled = "sampled_at" in ends.columns
    samples = ends.select(
        *PARTITION,
        F.col("end_offset").cast("long").alias("end"),
        (F.col("sampled_at") if sampled else now).cast("timestamp").alias("t"),
        (F.col("begin_offset") if has_begin else F.lit(None)).cast("long").alias("begin"),
    ).where(F.col("end").isNotNull() & (F.col("t") <= now))
    if sampled:
        over = Window.partitionBy(*PARTITION)
        in_order = over.orderBy("t", "end")
        fell = F.coalesce((F.col("end") < F.lag("end").over(in_order)).cast("int"), F.lit(0))
        running = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
        samples = (
            samples.withColumn("_fell", fell)
            .withColumn("_life", F.sum("_fell").over(running))
            .withColumn("_last", F.max("_life").over(over))
            .where(F.col("_life") == F.col("_last"))
        )
    return samples.groupBy(*PARTITION).agg(
        F.sort_array(F.collect_list(F.struct("t", "end"))).alias("history"),
        F.max_by("begin", "t").alias("begin"),
    )


def _without_offset(committed: DataFrame, histories: DataFrame) -> DataFrame:
    """Return a row for each partition without an offset, of the topics that a group reads."""
    reads = committed.select("group", "topic").distinct()
    return (
        reads.join(histories.select(*PARTITION), "topic")
        .join(committed.select("group", *PARTITION), ["group", *PARTITION], "left_anti")
        .select(
            "group",
            *PARTITION,
            F.lit(None).cast("long").alias("committed"),
            F.lit(None).cast("timestamp").alias("committed_at"),
        )
    )


def _measured(joined: DataFrame, now: Column) -> DataFrame:
    history, committed = F.col("history"), F.col("committed")
    newest = F.get(history, F.size(history) - 1)
    before = F.filter(history, lambda sample: sample["end"] <= committed)
    after = F.filter(history, lambda sample: sample["end"] > committed)
    step = joined.select(
        now.alias("at"),
        "group",
        *PARTITION,
        "committed",
        newest["end"].alias("end_offset"),
        F.when(newest["end"] >= committed, newest["end"] - committed).alias("lag"),
        F.get(before, F.size(before) - 1).alias("_before"),
        F.get(after, F.lit(0)).alias("_after"),
        F.greatest(F.col("begin") - committed, F.lit(0)).alias("_expired"),
        "committed_at",
    )
    known = F.col("committed").isNotNull() & F.col("end_offset").isNotNull()
    t0, t1 = F.unix_micros(F.col("_before.t")), F.unix_micros(F.col("_after.t"))
    share = (F.col("committed") - F.col("_before.end")) / (
        F.col("_after.end") - F.col("_before.end")
    )
    since = F.when(F.col("_before").isNull(), t1).otherwise(t0 + share * (t1 - t0))
    seconds = F.greatest((F.unix_micros("at") - since) / 1e6, F.lit(0.0))
    lag = F.col("lag")
    return step.select(
        "at",
        "group",
        *PARTITION,
        "committed",
        "end_offset",
        "lag",
        F.when(lag == 0, F.lit(0.0)).when(lag > 0, seconds).alias("lag_seconds"),
        F.when(lag.isNotNull(), (lag > 0) & F.col("_before").isNull()).alias("at_least"),
        F.when(known, F.col("_expired")).alias("expired"),
        "committed_at",
    )


def _need(rows: DataFrame, what: str, *names: str) -> None:
    missing = [name for name in names if name not in rows.columns]
    if missing:
        raise ValueError(
            f"{what} has no column {', '.join(map(repr, missing))} (there are "
            f"{', '.join(rows.columns)})"
        )
