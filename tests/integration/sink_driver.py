"""One Spark driver that writes to a Delta table and a database, both shared by all drivers."""

import json
import sqlite3
import sys
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame

from client.spark import DeltaSink, SqlSink, drain_and_stop, register
from tests.integration.spark_support import GROUP, AppendingSink, local_spark, stream


def connect(path: str) -> sqlite3.Connection:
    """Open the database; another driver may be at it for a while."""
    return sqlite3.connect(path, timeout=30)


def main() -> None:
    """Run until stdin says drain."""
    given = json.loads(sys.argv[1])
    scratch = Path(given["scratch"])
    scratch.mkdir(exist_ok=True)
    spark = local_spark(scratch, cores=1)
    register(spark)
    print(json.dumps({"event": "prepared"}), flush=True)  # noqa: T201 - It is the protocol.
    sys.stdin.readline()  # "go"
    table = DeltaSink(given["out"], GROUP)
    database = SqlSink(partial(connect, given["db"]), table="events", group=GROUP)
    seen = AppendingSink(Path(given["sink"]))

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        table(batch, batch_id)
        database(batch, batch_id)
        seen(batch, batch_id)
        batch.unpersist()

    query = (
        stream(spark, given["address"], Path(given["log"]), maxRowsPerPartition="500")
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", given["checkpoint"])
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    sys.stdin.readline()  # "drain"
    drain_and_stop(query)
    failure = query.exception()
    text = str(failure) if failure else None
    print(json.dumps({"event": "stopped", "failure": text}), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main()
