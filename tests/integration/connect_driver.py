"""A Spark Connect client with a listener, in a process of its own; started by a test.

Takes its settings as JSON in the first argument. Runs one query to the end of what is there, and
prints what the listener knows, and what Spark itself reads of the checkpoint.
"""

import json
import sys
import time

from pyspark.sql import SparkSession

from client.spark import GroupOffsetListener
from client.spark.listener.checkpoint import SparkFiles, read_finished


def main(given: dict[str, str]) -> None:
    """Run the query."""
    spark = SparkSession.builder.remote(f"sc://127.0.0.1:{given['port']}").getOrCreate()
    listener = GroupOffsetListener(
        given["coordinator"], given["group"], query_name="orders", kafka=given["kafka"]
    )
    spark.streams.addListener(listener)
    query = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", given["kafka"])
        .option("subscribe", given["topic"])
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.queryName("orders")
        .format("noop")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    end_s = time.monotonic() + 60
    # Events come over the network; the test looks at the groups only afterwards.
    while time.monotonic() < end_s and not _is_done(listener):
        time.sleep(0.1)
    read = read_finished(SparkFiles(spark, f"{given['checkpoints']}/orders"))
    # Else the client complains that its session is closed.
    spark.streams.removeListener(listener)
    listener.close(30)
    said = {
        "event": "done",
        "metrics": listener.metrics().to_dict(),
        "read": [batch.sources for batch in read.batches],
        "failed": query.exception() is not None,
    }
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    spark.stop()


def _is_done(listener: GroupOffsetListener) -> bool:
    metrics = listener.metrics()
    heard = any(query.partitions for query in metrics.queries)
    return heard and all(target.wanted and not target.due for target in metrics.targets)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
