"""Who is behind, and since when: lag of groups in a notebook, with plots.

Open this file as a notebook (VS Code, PyCharm and jupytext know the ``# %%`` marks), or run it as
a script: it leaves its plots in ``lag.png``.
"""

# %%
import random
from datetime import UTC, datetime, timedelta

import matplotlib as mpl
import matplotlib.dates as mdates
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from pyspark.sql import DataFrame, SparkSession

from client.spark import register
from client.spark.lag import (
    group_lag,
    keep_sample,
    partition_lag,
    read_samples,
    registry_ends,
    windowed,
    worst,
)

COORDINATOR = ""  # Such as "127.0.0.1:9310". Empty: six hours of four groups, made up.
HISTORY = "lag-history"  # Where samples are kept; each run adds one, and so does
#                          python -m client.spark.lag --every "30 seconds" --history lag-history

spark = SparkSession.builder.appName("lag").getOrCreate()
spark.conf.set("spark.sql.shuffle.partitions", "4")  # So few rows need no more.
spark.conf.set("spark.sql.session.timeZone", "UTC")

# %% [markdown]
# ## The numbers
#
# Committed offsets are a table, end offsets are another one, and lag is a function of both. A
# partition without an offset, or without a known end, has no lag: it is counted as unknown.

# %%
NOW = datetime.now(UTC).replace(microsecond=0)
STEP = timedelta(minutes=10)
STEPS = 36
PARTITIONS = 6

OFFSETS = "group string, topic string, partition int, offset long"
ENDS = "topic string, partition int, end_offset long, sampled_at timestamp"
SAMPLES = "at timestamp, group string, topic string, lag long, lag_seconds double"


def end(topic: str, partition: int, minute: float) -> int:
    """Return where a made-up partition ends, in the n-th minute; partition 4 gets the most."""
    rate = {"orders": 900, "clicks": 4000, "invoices": 30}[topic]
    return int(minute * rate * (1 + partition % 5) / 5)


def done(group: str, topic: str, partition: int, minute: float) -> int:
    """Return how far a made-up group is: one is well, one slows down, one stands, one hiccups."""
    behind = {
        "billing": 1.0,
        "search": 2 + minute * 0.18,
        "fraud": max(minute - 250, 1.0) if partition == 4 else 1.0,
        "reports": 1 + 70 * (120 < minute < 200),
    }[group]
    jitter = random.Random(f"{group}{topic}{partition}{minute}").uniform(0, 1.5)  # noqa: S311 - no secret.
    return end(topic, partition, max(minute - behind - jitter, 0))


def behind(group: str, topic: str, step: int) -> list[tuple[int, float]]:
    """Return (messages, seconds) that a made-up group is behind, per partition."""
    minute = step * STEP.seconds / 60
    found = []
    for partition in range(PARTITIONS):
        at = done(group, topic, partition, minute)
        total = max(end(topic, partition, minute), 1)
        found.append((total - at, (1 - at / total) * minute * 60))
    return found


def made_up() -> tuple[DataFrame, DataFrame]:
    """Return lag per partition now, and lag per group and topic over time."""
    reads = [("billing", "invoices"), ("billing", "orders"), ("search", "clicks")]
    reads += [("fraud", "orders"), ("reports", "clicks"), ("reports", "orders")]
    times = [NOW - STEP * (STEPS - step) for step in range(STEPS + 1)]
    ends = [
        (topic, partition, end(topic, partition, step * STEP.seconds / 60), at)
        for topic in ("orders", "clicks", "invoices")
        for partition in range(PARTITIONS)
        for step, at in enumerate(times)
    ]
    committed = [
        (group, topic, partition, done(group, topic, partition, STEPS * STEP.seconds / 60))
        for group, topic in reads
        for partition in range(PARTITIONS)
    ]
    lags = partition_lag(
        spark.createDataFrame(committed, OFFSETS), spark.createDataFrame(ends, ENDS), at=NOW
    )
    samples = [
        (at, group, topic, sum(lag for lag, _ in parts), max(seconds for _, seconds in parts))
        for group, topic in reads
        for step, at in enumerate(times)
        if step and (parts := behind(group, topic, step))
    ]
    return lags.cache(), spark.createDataFrame(samples, SAMPLES).cache()


def measured() -> tuple[DataFrame, DataFrame]:
    """Return the same of your groups, and keep a sample."""
    register(spark)
    offsets = spark.read.format("group_offsets").option("coordinator", COORDINATOR).load()
    sample = keep_sample(spark, offsets, registry_ends(spark, COORDINATOR), HISTORY, at=NOW)
    return sample.partitions.cache(), read_samples(spark, HISTORY).cache()


lags, samples = measured() if COORDINATOR else made_up()

# %% [markdown]
# ## Who is behind now

# %%
group_lag(lags).orderBy("lag", ascending=False).select(
    "group", "topic", "lag", "lag_seconds", "behind", "partitions", "unknown", "worst_partition"
).show()

# %%
worst(lags, 5, by="lag_seconds").select("group", "topic", "partition", "lag", "lag_seconds").show()

# %% [markdown]
# ## How it came to that
#
# Growth is in messages per second, from the first sample of a window to its last: above 0 a group
# loses ground. What stands still for long has growth, whatever its lag.

# %%
windows = windowed(samples, "1 hour")
windows.orderBy("group", "topic", "window_start").show(50)

# %%
INK, MUTED, GRID = "#1f2430", "#6b7280", "#e5e7eb"
COLOURS = ["#2563eb", "#d97706", "#059669", "#be185d", "#7c3aed", "#475569"]
mpl.rcParams.update(
    {
        "axes.edgecolor": GRID,
        "axes.labelcolor": MUTED,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "font.size": 9,
        "text.color": INK,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
    }
)


def plot_ages(axes: Axes) -> None:
    """Draw the age of the oldest message not done, per group and topic, over time."""
    rows = samples.select("at", "group", "topic", "lag_seconds").orderBy("at").collect()
    lines: dict[str, list[tuple[datetime, float]]] = {}
    for at, group, topic, seconds in rows:
        if seconds is not None:
            lines.setdefault(f"{group} · {topic}", []).append((at, seconds / 60))
    worst_first = sorted(lines, key=lambda name: -lines[name][-1][1])[: len(COLOURS)]
    for name, colour in zip(worst_first, COLOURS, strict=False):
        times, minutes = zip(*lines[name], strict=True)
        axes.plot(times, minutes, color=colour, linewidth=1.8, label=name)
    axes.set_title("Age of the oldest message not done (minutes)")
    axes.xaxis.set_major_formatter(mdates.DateFormatter("%H:%M"))  # type: ignore[no-untyped-call]  # It has no types.
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="upper left")


def plot_worst(axes: Axes) -> None:
    """Draw the partitions that are furthest behind."""
    rows = worst(lags, 8, by="lag_seconds").collect()[::-1]
    names = [f"{row['group']} · {row['topic']}-{row['partition']}" for row in rows]
    minutes = [row["lag_seconds"] / 60 for row in rows]
    bars = axes.barh(names, minutes, color=COLOURS[0], height=0.6)
    axes.bar_label(bars, [f"{row['lag']:,} messages" for row in rows], padding=4, color=MUTED)
    axes.set_title("Worst partitions now (minutes)")
    axes.set_xlim(right=max(minutes, default=1) * 1.35)
    axes.tick_params(axis="y", length=0)


def plot_growth(axes: Axes, figure: Figure) -> None:
    """Draw growth per hour: where red, a group lost ground."""
    rows = windows.where("growth IS NOT NULL").collect()
    names = sorted({f"{row['group']} · {row['topic']}" for row in rows})
    starts = sorted({row["window_start"] for row in rows})
    cells = [[float("nan")] * len(starts) for _ in names]
    for row in rows:
        name = f"{row['group']} · {row['topic']}"
        cells[names.index(name)][starts.index(row["window_start"])] = row["growth"]
    largest = max((abs(row["growth"]) for row in rows), default=1) or 1
    image = axes.imshow(cells, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto")
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(range(len(starts)), [f"{start:%H:%M}" for start in starts])
    axes.set_title("Growth of lag per hour (messages per second)")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(image, ax=axes, pad=0.02).outline.set_visible(False)


figure = plt.figure(figsize=(11, 8), layout="constrained")
grid = figure.add_gridspec(2, 2)
plot_ages(figure.add_subplot(grid[0, :]))
plot_worst(figure.add_subplot(grid[1, 0]))
plot_growth(figure.add_subplot(grid[1, 1]), figure)
figure.savefig("lag.png", dpi=110)
plt.show()
