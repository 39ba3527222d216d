"""A Spark driver that shares the orders with every other driver of its group: start several."""

import sys

from pyspark.sql import DataFrame, SparkSession

from client.spark import register, run_until_stopped

name = sys.argv[1]  # Each driver has a name, and so its own checkpoint and output folder.
spark = SparkSession.builder.master("local[2]").appName(name).getOrCreate()
register(spark)
orders = (
    spark.readStream.format("coordinated")
    .options(coordinator="127.0.0.1:9310", group="etl-orders", topics="order-files")
    .options(log="folder", path="logs")
    .load()
)


def write(rows: DataFrame, batch: int) -> None:
    """Replace the batch's folder: doing a batch again leaves nothing twice."""
    rows.write.mode("overwrite").parquet(f"out/{name}/batch={batch}")


query = orders.writeStream.foreachBatch(write).option("checkpointLocation", f"checkpoints/{name}")
run_until_stopped(query.start())  # Until Ctrl-C or SIGTERM; nothing is processed twice.
