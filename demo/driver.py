"""One Spark driver of the demo: reads its share of the flights, writes to the one Delta table.

It prints what it does as JSON lines. ``drain`` on its standard input makes it finish, hand over
everything and stop; the end of its standard input means that the demo is gone.
"""

import json
import logging
import os
import queue
import signal
import sys
import threading
from pathlib import Path
from typing import Final

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from client.spark import DeltaSink, drain_and_stop, register
from client.spark.sinks import ranges
from demo.names import GROUP, TOPIC, Folders
from demo.spark_session import spark_session

SESSION_TIMEOUT_MS: Final = 4_000
REBALANCE_TIMEOUT_MS: Final = 60_000
ROWS_PER_PARTITION: Final = 5_000
DRAIN_S: Final = 60
_POLL_S: Final = 0.2


def emit(event: str, **fields: object) -> None:
    """Print one event; one write, because several threads do."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


class LeftOut(logging.Handler):
    """Tells of each range that comes again, and that the sink leaves out."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass on what the sink logs."""
        match record.args:
            case (ranges.PartitionKey() as key, int(start), int(end), _):
                emit("range.left_out", partition=key.partition, rows=end - start)


class BatchWriter:
    """Writes each batch to the table that all drivers share."""

    def __init__(self, table: Path) -> None:
        self._sink = DeltaSink(table, GROUP)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Write *rows*, the batch with the number *batch*."""
        emit("batch.begun", batch=batch)
        with ranges.persisted(rows):
            self._sink(rows, batch)
            emit("batch.written", batch=batch, rows=rows.count())


def start_query(
    spark: SparkSession, name: str, coordinator: str, folders: Folders
) -> StreamingQuery:
    """Start reading as a member of the group."""
    register(spark)
    flights = (
        spark.readStream.format("coordinated")
        .option("coordinator", coordinator)
        .option("group", GROUP)
        .option("topics", TOPIC)
        .option("log", "folder")
        .option("path", str(folders.log))
        .option("maxRowsPerPartition", str(ROWS_PER_PARTITION))
        .option("sessionTimeout", f"{SESSION_TIMEOUT_MS}ms")
        .option("rebalanceTimeout", f"{REBALANCE_TIMEOUT_MS}ms")
        .load()
    )
    return (
        flights.writeStream.queryName(name)
        .foreachBatch(BatchWriter(folders.table))
        .option("checkpointLocation", str(folders.checkpoints / name))
        .trigger(processingTime="1 second")
        .start()
    )


def read_commands(commands: "queue.SimpleQueue[str]") -> None:
    """Pass the lines of standard input on; at its end, end this whole process group."""
    for line in sys.stdin:
        commands.put(line.strip())
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


@click.command()
@click.argument("name")
@click.option("--coordinator", required=True)
@click.option("--home", required=True, type=click.Path(path_type=Path))
def main(name: str, coordinator: str, home: Path) -> None:
    """Run the driver NAME until it is told to drain."""
    commands: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=read_commands, args=(commands,), daemon=True).start()
    ranges.logger.addHandler(LeftOut())
    ranges.logger.setLevel(logging.INFO)
    emit("starting", pid=os.getpid())
    folders = Folders(home)
    spark = spark_session(name, cores=1, scratch=folders.run / "scratch" / name)
    query = start_query(spark, name, coordinator, folders)
    emit("started")
    while query.isActive:
        try:
            command = commands.get(timeout=_POLL_S)
        except queue.Empty:
            continue
        if command == "drain":
            drain_and_stop(query, timeout=DRAIN_S)
            emit("drained")
    if (error := query.exception()) is not None:
        emit("failed", error=str(error)[:2000])
        sys.exit(1)
    spark.stop()


if __name__ == "__main__":
    main()
