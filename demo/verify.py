"""The check with Spark: reads the table that the drivers wrote and compares it with the data set.

The data set is read from its CSV file again, by Spark and not by the code that fed the log.
Prints one JSON line with the facts; `demo.story` says what they mean.
"""

import json
from pathlib import Path
from typing import Final

import click
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession, functions as f

from demo.names import Folders
from demo.spark_session import spark_session

_SCHEMA: Final = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, "
    "arr_time INT, sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, "
    "tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT, hour INT, "
    "minute INT, time_hour TIMESTAMP"
)
_FILES_MAX: Final = 1_000_000


def read_table(spark: SparkSession, table: Path) -> DataFrame:
    """Return the rows of a Delta table: Spark needs a package of its own for more than that."""
    # By default hundreds of files are looked at by as many tasks.
    spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.threshold", _FILES_MAX)
    return spark.read.parquet(*DeltaTable(table).file_uris())


def differences(expected: DataFrame, found: DataFrame) -> tuple[int, int]:
    """Return how many rows of *expected* are not found, and how many found are not expected.

    Rows are counted by a 64-bit hash of all columns. The hash alone skips nulls, so which
    columns are null goes into it too.
    """
    columns = [f.col(name) for name in expected.columns]
    row = f.xxhash64(*columns, *(column.isNull() for column in columns))
    counted = expected.select(row.alias("row"), f.lit(1).alias("one")).unionAll(
        found.select(row.alias("row"), f.lit(-1).alias("one"))
    )
    more = f.sum("one").alias("more")
    surplus = f.col("more")
    totals = (
        counted.groupBy("row")
        .agg(more)
        .agg(f.sum(f.greatest(surplus, f.lit(0))), f.sum(f.greatest(-surplus, f.lit(0))))
        .collect()[0]
    )
    return totals[0] or 0, totals[1] or 0


@click.command()
@click.option("--home", required=True, type=click.Path(path_type=Path))
def main(home: Path) -> None:
    """Print what is in the table, and how it differs from the data set."""
    folders = Folders(home)
    spark = spark_session("verify", cores=2, scratch=folders.run / "scratch" / "verify")
    expected = spark.read.csv(str(folders.csv), schema=_SCHEMA, header=True, nullValue="NA")
    rows = read_table(spark, folders.table)
    missing, foreign = differences(expected, rows)
    facts = {
        "event": "verified",
        "flights": expected.count(),
        "rows": rows.count(),
        "different": rows.select("partition", "offset").distinct().count(),
        "missing": missing,
        "foreign": foreign,
        "versions": DeltaTable(folders.table).version(),
    }
    print(json.dumps(facts), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
