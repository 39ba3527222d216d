"""What coordination costs a micro-batch: the same batches with and without a group."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import SparkSession

from bench.measures import median
from bench.spark_session import batches_of
from bench.spark_sources import LOG, TOPIC

# Partitions -> batches that are measured.
SIZES: Final[Mapping[int, int]] = {6: 40, 100: 40, 1_000: 20}
QUICK_SIZES: Final[Mapping[int, int]] = {6: 2, 100: 2, 1_000: 2}
# Without a coordinator, and with one.
FORMATS: Final = ("plain", "coordinated")
ROWS_PER_RANGE: Final = 10
# The first batches of a query load classes and start workers.
_WARM_UP: Final = 3
_TIMEOUT_S: Final = 180.0


def row_name(source: str, partitions: int) -> str:
    """Return the name of the row of this source at so many partitions."""
    return f"{source}_{partitions}"


def measure(
    spark: SparkSession, source: str, partitions: int, batches: int, folder: Path, address: str
) -> dict[str, float | None]:
    """Run so many batches, one right after the other, and return the medians of their times."""
    run = uuid4().hex
    query = (
        spark.readStream.format(source)
        .option("coordinator", address)
        .option("group", f"cost-{run}")
        .option("topics", TOPIC)
        .option("log", LOG)
        .option("log.partitions", str(partitions))
        .option("maxRowsPerPartition", str(ROWS_PER_RANGE))
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder / f"checkpoint-{run}"))
        .start()
    )
    try:
        done = batches_of(query, _WARM_UP + batches, _TIMEOUT_S)
    finally:
        query.stop()
    return summary(done[_WARM_UP : _WARM_UP + batches], partitions)


def summary(progress: Sequence[Mapping[str, Any]], partitions: int) -> dict[str, float | None]:
    """Return the medians of what Spark says of these batches, in ms.

    ``outside_ms`` is a batch without its tasks: all that a reader can make longer or shorter
    while the rows are the same.
    """
    times = [batch["durationMs"] for batch in progress]
    wrong = sum(batch["numInputRows"] != partitions * ROWS_PER_RANGE for batch in progress)
    return {
        "batches": len(times),
        "batch_ms": median([one["triggerExecution"] for one in times]),
        "outside_ms": median([one["triggerExecution"] - one["addBatch"] for one in times]),
        "latest_offset_ms": median([one["latestOffset"] for one in times]),
        "wrong": wrong,
    }
