"""One Spark driver: reads its share of the topic and appends it to a file, as told by stdin."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from client.spark import drain_and_stop, register, run_until_stopped
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


def dying(given: dict[str, str]) -> Callable[[DataFrame, int], None]:
    """Return a sink that kills the whole driver at the place that ``die`` names, in batch 2."""
    sink = AppendingSink(Path(given["sink"]))
    commit = Path(given["checkpoint"]) / "commits" / "2"

    def kill() -> None:
        os.killpg(0, signal.SIGKILL)

    def kill_when_committed() -> None:
        while not commit.exists():
            time.sleep(0.001)
        kill()

    def write(batch: DataFrame, batch_id: int) -> None:
        if batch_id < 2:
            sink(batch, batch_id)
        elif given["die"] == "before the sink":
            kill()
        else:
            sink(batch, batch_id)
            if given["die"] == "after the sink":
                kill()
            threading.Thread(target=kill_when_committed).start()

    return write


def main() -> None:
    """Run until stdin says how to end."""
    given = json.loads(sys.argv[1])
    scratch = Path(given["scratch"])
    scratch.mkdir(exist_ok=True)
    spark = local_spark(scratch, cores=1)
    register(spark)
    say("prepared")
    sys.stdin.readline()  # "go"
    sink = HeldSink(Path(given["sink"]))
    query = (
        stream(
            spark,
            given["address"],
            Path(given["log"]),
            maxRowsPerPartition="500",
            **json.loads(given.get("options", "{}")),
        )
        .writeStream.foreachBatch(dying(given) if "die" in given else sink)
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
        case "run":
            run_until_stopped(query)
        case "await":
            query.awaitTermination()
        case "watch":
            with suppress(StreamingQueryException):
                query.awaitTermination()
    failure = query.exception()
    say("stopped", failure=str(failure) if failure else None)
    spark.stop()


if __name__ == "__main__":
    main()
