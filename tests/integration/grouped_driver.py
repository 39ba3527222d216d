"""One driver of a grouped query: appends the values that it reads to a file."""

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame

from client.spark import GroupedKafkaQuery
from tests.integration.spark_support import local_spark


def say(event: str, **fields: object) -> None:
    """Print one JSON line."""
    print(json.dumps({"event": event, **fields}), flush=True)  # noqa: T201 - it is the protocol.


def main() -> None:
    """Run until a signal comes."""
    given = json.loads(sys.argv[1])
    scratch = Path(given["scratch"])
    scratch.mkdir(exist_ok=True)
    sink = Path(given["sink"])

    def write(batch: DataFrame, _batch_id: int) -> None:
        values = [row[0] for row in batch.selectExpr("CAST(value AS STRING)").collect()]
        with sink.open("a") as file:
            file.write("".join(f"{value}\n" for value in values))

    spark = local_spark(scratch, cores=1)
    say("prepared")
    sys.stdin.readline()  # "go"
    GroupedKafkaQuery(
        spark,
        coordinator=given["address"],
        group=given["group"],
        topics=[given["topic"]],
        kafka_options={
            "kafka.bootstrap.servers": given["kafka"],
            "maxOffsetsPerTrigger": given["batch"],
        },
        build=lambda df: df.writeStream.foreachBatch(write),
        checkpoint_root=given["root"],
        session_timeout_s=6.0,
        rebalance_timeout_s=40.0,
        coordinator_timeout_s=60.0,
    ).run()
    say("stopped")
    spark.stop()


if __name__ == "__main__":
    main()
