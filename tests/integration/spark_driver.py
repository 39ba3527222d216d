"""One Spark driver: reads its share of the topic and appends it to a file, as told by stdin."""

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame

from client.spark import drain_and_stop, register
from tests.integration.spark_support import AppendingSink, local_spark, stream


def say(event: str, **fields: object) -> None:
    """Print one JSON line."""
    print(json.dumps({"event": event, **fields}), flush=True)  # noqa: T201 - it is the protocol.


class HeldSink(AppendingSink):
    """Doesn't end a batch as long as there is a file with its name and ``.hold``."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Append, then wait."""
        super().__call__(batch, batch_id)
        while self.path.with_suffix(".hold").exists():
            time.sleep(0.05)


def main() -> None:
    """Run until stdin says how to end."""
    given = json.loads(sys.argv[1])
    scratch = Path(given["scratch"])
    scratch.mkdir(exist_ok=True)
    spark = local_spark(scratch, cores=1)
    register(spark)
    say("prepared")
    sys.stdin.readline()  # "go"
    query = (
        stream(spark, given["address"], Path(given["log"]), maxRowsPerPartition="500")
        .writeStream.foreachBatch(HeldSink(Path(given["sink"])))
        .option("checkpointLocation", given["checkpoint"])
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    say("started")
    match sys.stdin.readline().strip():
        case "stop":
            query.stop()
        case "drain":
            drain_and_stop(query)
    failure = query.exception()
    say("stopped", failure=str(failure) if failure else None)
    spark.stop()


if __name__ == "__main__":
    main()
