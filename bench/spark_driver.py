"""One Spark driver of a group, told by its standard input: ``python -m bench.spark_driver JSON``.

``start`` starts its query, ``stop`` stops it, ``kill`` sends SIGKILL to its reader process, which
then can neither leave the group nor be heard of again. It prints a line of JSON for everything
that happens; times are of the machine's monotonic clock, which all processes share.
"""

import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.spark_session import session
from bench.spark_sources import LOG, TOPIC
from client.spark import register

ROWS_PER_RANGE: Final = 5


def say(event: str, **fields: object) -> None:
    """Print one line."""
    print(json.dumps({"event": event, "at_s": time.monotonic(), **fields}), flush=True)


def write(batch: DataFrame, _batch_id: int) -> None:
    """Say which partitions made progress; this is the sink."""
    rows = batch.select("partition").collect()
    if rows:
        say("batch", partitions=sorted({row[0] for row in rows}))


def start(spark: SparkSession, given: dict[str, Any], pid_file: Path) -> StreamingQuery:
    """Start the query."""
    pid_file.unlink(missing_ok=True)
    return (
        spark.readStream.format("coordinated")
        .options(**given["options"])
        .option("topics", TOPIC)
        .option("log", LOG)
        .option("log.pid_file", str(pid_file))
        .option("maxRowsPerPartition", str(ROWS_PER_RANGE))
        .load()
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(Path(given["folder"]) / "checkpoint"))
        .trigger(processingTime=f"{given['trigger_ms']} milliseconds")
        .start()
    )


def main() -> None:
    """Do what is asked until there is nothing more to read."""
    given = json.loads(sys.argv[1])
    folder = Path(given["folder"])
    pid_file = folder / "reader.pid"
    spark = session(folder / "scratch", cores=1)
    register(spark)
    say("prepared")
    query: StreamingQuery | None = None
    for line in sys.stdin:
        match line.strip():
            case "start":
                say("starting")
                query = start(spark, given, pid_file)
            case "stop" if query is not None:
                say("stopping")
                query.stop()
                say("stopped")
            case "kill" if query is not None:
                say("killing")
                os.kill(int(pid_file.read_text(encoding="ascii")), signal.SIGKILL)
                with suppress(StreamingQueryException):
                    query.awaitTermination()
                say("stopped")
    if query is not None:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
