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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.peer_jars import spark_jars
from bench.processes import ProcessError, python_path
from bench.spark_sources import LOG, TOPIC
from client.spark import register

ROWS_PER_RANGE: Final = 5
ROOT: Final = Path(__file__).parent.parent
_POLL_S: Final = 0.05


# --- sessions, here and in the benchmark ---------------------------------------------------------


def session(scratch: Path, cores: int) -> SparkSession:
    """Return a session on so many cores, with Spark's own defaults where speed is concerned."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = python_path(ROOT)
    scratch.mkdir(parents=True, exist_ok=True)
    settings = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(scratch),
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
    }
    if (jars := spark_jars("spark-kafka")) is not None:
        settings["spark.jars"] = jars
    builder = SparkSession.builder.master(f"local[{cores}]").appName("bench")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made: SparkSession = builder.getOrCreate()
    return made


def batches_of(query: StreamingQuery, count: int, timeout_s: float) -> Sequence[Mapping[str, Any]]:
    """Wait until *query* has finished so many batches with rows; return all of them.

    Raises:
        ProcessError: the query failed, or took longer.

    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        done = [progress for progress in query.recentProgress if progress["numInputRows"]]
        if len(done) >= count:
            return done
        if (failure := query.exception()) is not None:
            raise ProcessError(f"a query failed: {failure}")
        if time.monotonic() > deadline_s:
            raise ProcessError(f"{len(done)} of {count} batches in {timeout_s:.0f} s")
        time.sleep(_POLL_S)


# --- the driver ----------------------------------------------------------------------------------


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
