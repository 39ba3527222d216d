"""The client in Spark, in one run: ``python -m bench.spark [--quick] [--only cost,pauses]``.

What coordination costs a batch, rows a second beside Spark's own sources, offsets as a table, and
how long partitions stand still when drivers come and go. Spark and the daemon share all cores.
"""

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import cached_property, partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from bench.command import Bench, Benchmark, Choice, command
from bench.fill import FillPlan
from bench.measures import (
    Aim,
    Medians,
    Samples,
    at_most,
    faster,
    field_at_most,
    percentile,
    ratio_at_most,
)
from bench.peer_jars import spark_jars
from bench.peers import KAFKA, java_version, missing, peer_serving
from bench.processes import DAEMON_NOTES, ProcessError, Server, daemon, run_json
from bench.report import Table, between, number
from bench.spark_driver import ROOT, batches_of, session
from bench.spark_sources import LOG, TOPIC, MadeUpTable, PlainSource
from client.spark import DeltaSink, FolderLogWriter, register

# Of each event, in a repetition: with three of them, a few more than twenty.
PAUSE_CYCLES: Final = 7
_CORES: Final = 2

# --- where rows go -------------------------------------------------------------------------------

# Has a query write to a folder.
Sink = Callable[[DataStreamWriter, Path], DataStreamWriter]


def nowhere(writer: DataStreamWriter, _folder: Path) -> DataStreamWriter:
    """Throw the rows away."""
    return writer.format("noop")


def to_parquet(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
    """Write the rows with Spark's own sink."""
    return writer.format("parquet").option("path", str(folder))


def to_delta(writer: DataStreamWriter, folder: Path) -> DataStreamWriter:
    """Write the rows to a table of ours, with its defaults."""
    return writer.foreachBatch(DeltaSink(folder, "bench"))


# --- what coordination costs a batch -------------------------------------------------------------

# Partitions -> batches that are measured.
COST_SIZES: Final[Mapping[int, int]] = {6: 40, 100: 40, 1_000: 20}
QUICK_COST_SIZES: Final[Mapping[int, int]] = {6: 2, 100: 2, 1_000: 2}
# Without a coordinator, and with one.
FORMATS: Final = ("plain", "coordinated")
ROWS_PER_RANGE: Final = 10
# The first batches of a query load classes and start workers.
_WARM_UP: Final = 3
_COST_TIMEOUT_S: Final = 180.0

# --- what it costs to report the log's ends ------------------------------------------------------

REPORTED, NOT_REPORTED = "ends_reported", "ends_not_reported"
ENDS_PARTITIONS: Final = 100
# One after the other, so that what changes on the machine meanwhile concerns both.
ENDS_ROUNDS: Final = 3
ENDS_BATCHES: Final = 60


def row_name(source: str, partitions: int) -> str:
    """Return the name of the row of this source at so many partitions."""
    return f"{source}_{partitions}"


def measure_cost(
    spark: SparkSession,
    source: str,
    partitions: int,
    batches: int,
    folder: Path,
    address: str,
    options: Mapping[str, str] = MappingProxyType({}),
    sink: Sink = nowhere,
) -> dict[str, float | None]:
    """Run so many batches, one right after the other, and return the medians of their times."""
    run = uuid4().hex
    writer = (
        spark.readStream.format(source)
        .option("coordinator", address)
        .option("group", f"cost-{run}")
        .option("topics", TOPIC)
        .option("log", LOG)
        .option("log.partitions", str(partitions))
        .option("maxRowsPerPartition", str(ROWS_PER_RANGE))
        .options(**options)
        .load()
        .writeStream.option("checkpointLocation", str(folder / f"checkpoint-{run}"))
    )
    query = sink(writer, folder / f"written-{run}").start()
    try:
        done = batches_of(query, _WARM_UP + batches, _COST_TIMEOUT_S)
    finally:
        query.stop()
    return summary_of(done[_WARM_UP : _WARM_UP + batches], partitions)


def summary_of(progress: Sequence[Mapping[str, Any]], partitions: int) -> dict[str, float | None]:
    """Return the medians of what Spark says of these batches, in ms.

    ``outside_ms`` is a batch without its tasks: all that a reader can make longer or shorter
    while the rows are the same.
    """
    times = [batch["durationMs"] for batch in progress]
    wrong = sum(batch["numInputRows"] != partitions * ROWS_PER_RANGE for batch in progress)
    return {
        "batches": len(times),
        "batch_ms": median([one["triggerExecution"] for one in times]),
        "outside_ms": median([one["triggerExecution"] - one["addBatch"] for one in times]),
        "latest_offset_ms": median([one["latestOffset"] for one in times]),
        "wrong": wrong,
    }


# --- rows a second -------------------------------------------------------------------------------

ROWS_TOPIC: Final = "rows"
ROWS_PARTITIONS: Final = 6
COLUMNS: Final = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("delay", pa.int32()), ("price", pa.float64())]
)
_VALUE: Final = b"v" * 100
_FLUSH_S: Final = 60.0
_READ_TIMEOUT_S: Final = 180.0


class Amount(NamedTuple):
    """How much is read."""

    chunks: int
    rows_per_chunk: int
    groups: int
    partitions_per_group: int

    @property
    def rows(self) -> int:
        """All rows of a topic."""
        return ROWS_PARTITIONS * self.chunks * self.rows_per_chunk

    @property
    def offsets(self) -> int:
        """All committed offsets."""
        return self.groups * self.partitions_per_group


FULL: Final = Amount(20, 20_000, 10_000, 100)
QUICK: Final = Amount(2, 500, 50, 20)


class Folders(NamedTuple):
    """The same rows as a folder log, and as Parquet files and JSON lines in a topic's folders."""

    log: Path
    parquet: Path
    json: Path


def write_files(folder: Path, amount: Amount) -> Folders:
    """Write the rows in each way, in as many files of as many rows each."""
    made = Folders(folder / "log", folder / "parquet", folder / "json")
    with FolderLogWriter.create(
        made.log, ROWS_TOPIC, COLUMNS, ROWS_PARTITIONS, fsync=False
    ) as writer:
        for partition in range(ROWS_PARTITIONS):
            own = Path(ROWS_TOPIC) / f"partition={partition}"
            for root in (made.parquet, made.json):
                (root / own).mkdir(parents=True)
            for chunk in range(amount.chunks):
                first = (partition * amount.chunks + chunk) * amount.rows_per_chunk
                rows = _rows(first, amount.rows_per_chunk)
                writer.append(partition, rows)
                parquet.write_table(rows, made.parquet / own / f"{chunk}.parquet")
                with (made.json / own / f"{chunk}.json").open("w", encoding="utf-8") as file:
                    file.writelines(json.dumps(row) + "\n" for row in rows.to_pylist())
    return made


def fill_kafka(address: str, amount: Amount) -> None:
    """Make the topic and produce as many rows, of 100 bytes each.

    Raises:
        ProcessError: the broker doesn't take them.

    """
    from confluent_kafka import Producer  # noqa: PLC0415 - only where Kafka is measured.
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415 - likewise.

    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics(
        [NewTopic(ROWS_TOPIC, ROWS_PARTITIONS, replication_factor=1)]
    ).values():
        made.result(_FLUSH_S)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20})
    for at in range(amount.rows // ROWS_PARTITIONS):
        for partition in range(ROWS_PARTITIONS):
            producer.produce(ROWS_TOPIC, _VALUE, b"%08d" % at, partition)
        if at % 2_000 == 0:
            producer.flush(_FLUSH_S)  # Its queue is bounded.
    if left := producer.flush(_FLUSH_S):
        raise ProcessError(f"Kafka did not take {left} messages")


def folder_log(spark: SparkSession, folders: Folders, address: str) -> DataFrame:
    """Read the folder log in a group."""
    return _in_group(spark, address, log="folder", path=str(folders.log))


def files_log(spark: SparkSession, folders: Folders, address: str, form: str) -> DataFrame:
    """Read files in a group that nobody has read before: parquet, json, or lines."""
    root = folders.parquet if form == "parquet" else folders.json
    options = {"log.format": form, "log.index": str(root / f"_index-{uuid4().hex}")}
    if form == "json":
        options["log.schema"] = _spark_columns().json()
    return _in_group(spark, address, log="files", path=str(root), **options)


def spark_files(spark: SparkSession, folders: Folders, form: str) -> DataFrame:
    """Read the same files with Spark's own source: parquet, json, or lines."""
    # Else the names of folders would make a column.
    reader = spark.readStream.option("recursiveFileLookup", "true")
    match form:
        case "parquet":
            return reader.schema(_spark_columns()).parquet(str(folders.parquet / ROWS_TOPIC))
        case "json":
            return reader.schema(_spark_columns()).json(str(folders.json / ROWS_TOPIC))
        case _:
            return reader.text(str(folders.json / ROWS_TOPIC))


def kafka_log(spark: SparkSession, kafka: str, address: str) -> DataFrame:
    """Read the Kafka topic in a group."""
    return _in_group(spark, address, log="kafka", **{"kafka.bootstrap.servers": kafka})


def spark_kafka(spark: SparkSession, kafka: str) -> DataFrame:
    """Read the Kafka topic with Spark's own source."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", ROWS_TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )


def read_all(
    rows: DataFrame, folder: Path, expected: int, sink: Sink = nowhere
) -> dict[str, float | None]:
    """Read what is there in one go and hand it to a sink; return seconds and rows a second.

    The time is that of the batches: a query's start, and a group's, are not in it.
    """
    run = uuid4().hex
    writer = rows.writeStream.option("checkpointLocation", str(folder / f"checkpoint-{run}"))
    written = folder / f"written-{run}"
    query = sink(writer, written).trigger(availableNow=True).start()
    try:
        if not query.awaitTermination(int(_READ_TIMEOUT_S)):
            raise ProcessError(f"rows were not read in {_READ_TIMEOUT_S:.0f} s")
        done = batches_of(query, 1, timeout_s=10)
    finally:
        query.stop()
    rows_read = sum(batch["numInputRows"] for batch in done)
    if sink is to_delta:  # Which may read a batch more than once.
        rows_read = DeltaTable(written).count()
    return rate(
        rows_read,
        sum(batch["durationMs"]["triggerExecution"] for batch in done) / 1000,
        expected,
    )


def rate(rows: int, seconds: float, expected: int) -> dict[str, float | None]:
    """Return a sample."""
    return {
        "rows": rows,
        "seconds": seconds,
        "rate_per_s": rows / seconds,
        "wrong": abs(rows - expected),
    }


def read_table(table: DataFrame, expected: int) -> dict[str, float | None]:
    """Read a table once and throw it away; return seconds and rows a second."""
    started_s = time.perf_counter()
    table.write.format("noop").mode("overwrite").save()
    seconds = time.perf_counter() - started_s
    return rate(table.count(), seconds, expected)


def _in_group(spark: SparkSession, address: str, **options: str) -> DataFrame:
    return (
        spark.readStream.format("coordinated")
        .option("coordinator", address)
        .option("group", f"rates-{uuid4().hex}")
        .option("topics", ROWS_TOPIC)
        .option("maxRowsPerPartition", "unlimited")
        .options(**options)
        .load()
    )


def _spark_columns() -> StructType:
    return from_arrow_schema(COLUMNS)


def _rows(first: int, count: int) -> pa.Table:
    ids = range(first, first + count)
    return pa.table(
        {
            "id": ids,
            "name": [f"flight number {number}" for number in ids],
            "delay": [number % 240 for number in ids],
            "price": [number / 4 for number in ids],
        },
        schema=COLUMNS,
    )


# --- time without progress -----------------------------------------------------------------------

# Two drivers, each with a JVM of its own. One stays, the other one comes and goes. Each says when a
# batch of which partitions is in its sink; a partition's pause is the longest time between two of
# its batches around the event.
PARTITIONS: Final = 6
TRIGGER_MS: Final = 500
SESSION_TIMEOUT_MS: Final = 3_000
JOIN, LEAVE, KILL = "join", "leave", "kill"
EVENTS: Final = (JOIN, LEAVE, KILL)
# What a driver is told, and what it says as it does it.
_COMMANDS: Final = {
    JOIN: ("start", "starting"),
    LEAVE: ("stop", "stopping"),
    KILL: ("kill", "killing"),
}
_PAUSES_SETTINGS: Final = ("group.min.session.timeout.ms=500",)
# Until both drivers, or the one that is left, do nothing but their own batches again.
_SETTLED_BATCHES: Final = 3
_EVENT_TIMEOUT_S: Final = 300.0
_OPTIONS: Final = {
    "group": "pauses",
    "log.partitions": str(PARTITIONS),
    "sessionTimeout": f"{SESSION_TIMEOUT_MS}ms",
    "rebalanceTimeout": "30s",
    "coordinatorTimeout": "60s",
}


class Batch(NamedTuple):
    """What a driver's sink has taken, and when."""

    at_s: float
    driver: str
    partitions: frozenset[int]


def pauses(batches: Sequence[Batch], event: str, event_s: float) -> dict[str, float | None]:
    """Return what an event cost, in seconds, from the batches around it, in order of time.

    ``moved_s``: The longest pause of a partition that has another owner than before.
    ``stayed_s``: Likewise of one that has the same; None if there is none.
    ``batch_s``: The time between two batches of a partition before the event.
    ``limit_s``: What a hand-over takes at least: the next batch, and after a kill the session
    timeout before it (which began with the last heartbeat, up to a third of it before the kill).

    Raises:
        ProcessError: a partition had no batch before, or after the event.

    """
    moved: list[float] = []
    stayed: list[float] = []
    quiet: list[float] = []
    for partition in range(PARTITIONS):
        mine = [batch for batch in batches if partition in batch.partitions]
        before = [batch for batch in mine if batch.at_s <= event_s]
        after = [batch for batch in mine if batch.at_s > event_s]
        if not before or not after:
            raise ProcessError(f"partition {partition} made no progress around a {event}")
        quiet += [late.at_s - early.at_s for early, late in pairwise(before)]
        around = [before[-1], *after]
        pause = max(late.at_s - early.at_s for early, late in pairwise(around))
        (stayed if before[-1].driver == after[-1].driver else moved).append(pause)
    if not moved or not quiet:
        raise ProcessError(f"no partition moved after a {event}")
    batch_s = median(quiet)
    limit_s = batch_s + (SESSION_TIMEOUT_MS / 1000 if event == KILL else 0)
    return {
        "moved_s": max(moved),
        "stayed_s": max(stayed) if stayed else None,
        "batch_s": batch_s,
        "limit_s": limit_s,
        "over_s": max(moved) - limit_s,
    }


class Driver:
    """A process of `bench.spark_driver`."""

    def __init__(self, name: str, folder: Path, address: str) -> None:
        self.name = name
        folder.mkdir(parents=True)
        given = {
            "folder": str(folder),
            "options": {**_OPTIONS, "coordinator": address},
            "trigger_ms": TRIGGER_MS,
        }
        self._output = folder / "errors"
        self.batches: list[Batch] = []
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        with self._output.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.spark_driver", json.dumps(given)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        threading.Thread(target=self._read, daemon=True).start()

    def tell(self, command: str) -> None:
        """Say what to do."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()

    def wait(self, event: str) -> float:
        """Return the time of the next event of this name.

        Raises:
            ProcessError: it doesn't come.

        """
        deadline_s = time.monotonic() + _EVENT_TIMEOUT_S
        while True:
            try:
                said = self._events.get(timeout=max(deadline_s - time.monotonic(), 0))
            except queue.Empty:
                errors = self._output.read_text(encoding="utf-8", errors="replace")
                raise ProcessError(f"{self.name}: no {event!r}:\n{errors[-2000:]}") from None
            if said["event"] == event:
                return float(said["at_s"])

    def close(self) -> None:
        """End the process, and with it its JVM."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_EVENT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            said = json.loads(line)
            if said["event"] == "batch":
                partitions = frozenset(said["partitions"])
                self.batches.append(Batch(said["at_s"], self.name, partitions))
            else:
                self._events.put(said)


class Pair:
    """The driver that stays, and the one that comes and goes."""

    def __init__(self, stays: Driver, comes: Driver) -> None:
        self._stays = stays
        self._comes = comes
        self._quiet_s = 0.0
        for driver in (stays, comes):
            driver.wait("prepared")
        stays.tell("start")
        self._settle(time.monotonic(), alone=True)

    def event(self, event: str) -> dict[str, float | None]:
        """Have the other driver join, leave or be killed; return what it cost."""
        command, said = _COMMANDS[event]
        since_s = self._quiet_s
        self._comes.tell(command)
        event_s = self._comes.wait(said)
        self._settle(event_s, alone=event != JOIN)
        if event != JOIN:
            self._comes.wait("stopped")
        return pauses(self._since(since_s), event, event_s)

    def _settle(self, since_s: float, *, alone: bool) -> None:
        """Wait until the partitions are shared out as they are to be, and for some batches more."""
        share = PARTITIONS if alone else PARTITIONS // 2
        drivers = [self._stays] if alone else [self._stays, self._comes]

        def settled() -> bool:
            last = [
                [batch for batch in driver.batches if batch.at_s > since_s][-_SETTLED_BATCHES:]
                for driver in drivers
            ]
            self._quiet_s = min((some[0].at_s for some in last if some), default=since_s)
            return all(
                len(some) == _SETTLED_BATCHES and all(len(b.partitions) == share for b in some)
                for some in last
            )

        _wait_until(
            lambda: (
                "partitions shared out; last were "
                + ", ".join(str(driver.batches[-2:]) for driver in drivers)
            ),
            settled,
        )

    def _since(self, since_s: float) -> list[Batch]:
        batches = [*self._stays.batches, *self._comes.batches]
        return sorted(batch for batch in batches if batch.at_s >= since_s)


def _wait_until(what: Callable[[], str], condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + _EVENT_TIMEOUT_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise ProcessError(f"not within {_EVENT_TIMEOUT_S:.0f} s: {what()}")
        time.sleep(0.05)


# --- what is measured, what it is held against, and how it is shown ------------------------------

# What ``--only`` chooses from.
COST, ENDS, PAUSES, LOGS, SINKS, TABLES = "cost", "ends", "pauses", "logs", "sinks", "tables"
PARTS: Final = (COST, ENDS, LOGS, SINKS, TABLES, PAUSES)

_PLAIN, _IN_GROUP = FORMATS
COST_MS: Final = 30.0
SINK_PARTITIONS: Final = 6
SINK_MS: Final = 300.0
# The first join of a new process: its JVM compiles and its workers start.
COLD_JOIN: Final = "cold_join"
PAUSE_TITLES: Final[Mapping[str, str]] = {
    COLD_JOIN: "a driver that has just started joins",
    JOIN: "a warm driver joins",
    LEAVE: "a driver stops",
    KILL: "a driver's reader is killed",
}
# Rows a second, or seconds, of the one held against those of the other.
FOLDER_LOG, SPARK_FILES = "folder_log", "spark_files"
# By the format of the files: the files log, and Spark's own source on the same files.
FILES_LOG: Final[Mapping[str, tuple[str, str]]] = {
    "lines": ("files_log_lines", "spark_text"),
    "json": ("files_log_json", "spark_json"),
    "parquet": ("files_log_parquet", SPARK_FILES),
}
KAFKA_LOG, SPARK_KAFKA = "kafka_log", "spark_kafka"
# A log that is written on, and a small batch; each to a sink of ours and of Spark's own.
DELTA_SINK, PARQUET_SINK = "delta_sink", "spark_parquet_sink"
DELTA_BATCH, PARQUET_BATCH = "delta_batch", "parquet_batch"
GROUP_OFFSETS, MADE_UP_TABLE = "group_offsets", "made_up_table"
RATE_TITLES: Final[Mapping[str, str]] = {
    FOLDER_LOG: "folder log",
    SPARK_FILES: "Spark's file source, Parquet",
    "files_log_parquet": "files log, Parquet",
    "files_log_json": "files log, JSON lines",
    "spark_json": "Spark's file source, JSON",
    "files_log_lines": "files log, lines",
    "spark_text": "Spark's file source, text",
    KAFKA_LOG: "Kafka log",
    SPARK_KAFKA: "Spark's Kafka source",
    DELTA_SINK: "folder log into DeltaSink",
    PARQUET_SINK: "folder log into Spark's Parquet sink",
    GROUP_OFFSETS: "group_offsets",
    MADE_UP_TABLE: "a reader that makes up such rows",
}
TITLES: Final[Mapping[str, str]] = {
    **{
        row_name(source, size): f"batch of {size} partitions, {what}"
        for size in COST_SIZES
        for source, what in ((_PLAIN, "no coordinator"), (_IN_GROUP, "coordinated"))
    },
    REPORTED: f"batch of {ENDS_PARTITIONS} partitions whose ends are reported",
    NOT_REPORTED: "such a batch without reports",
    **RATE_TITLES,
    DELTA_BATCH: f"batch of {SINK_PARTITIONS} partitions into DeltaSink",
    PARQUET_BATCH: f"batch of {SINK_PARTITIONS} partitions into Spark's Parquet sink",
    **PAUSE_TITLES,
}


def cost_ms(medians: Medians, size: int, field: str = "outside_ms") -> float | None:
    """Return how much longer a batch is with a coordinator."""
    with_it = medians.of(row_name(_IN_GROUP, size), field)
    without = medians.of(row_name(_PLAIN, size), field)
    return None if with_it is None or without is None else with_it - without


def sink_ms(medians: Medians) -> float | None:
    """Return how much longer a small batch is into our sink."""
    ours = medians.of(DELTA_BATCH, "batch_ms")
    theirs = medians.of(PARQUET_BATCH, "batch_ms")
    return None if ours is None or theirs is None else ours - theirs


def _cost_aim(size: int) -> Aim:
    title = f"coordination of a batch of {size} partitions"
    return at_most(f"cost_{size}", title, lambda medians: cost_ms(medians, size), COST_MS, "ms")


def _rate_aim(row: str, against: str, bound: float) -> Aim:
    title = f"{RATE_TITLES[row]}, rows a second, of {RATE_TITLES[against]}"
    return faster(row, against, title, bound)


_AIMS: Final = (
    *(_cost_aim(size) for size in COST_SIZES),
    ratio_at_most(
        REPORTED, NOT_REPORTED, "batch_ms", "a batch whose ends are reported, of one without", 1.02
    ),
    _rate_aim(FOLDER_LOG, SPARK_FILES, 0.5),
    *(_rate_aim(*rows, 0.5) for rows in FILES_LOG.values()),
    _rate_aim(KAFKA_LOG, SPARK_KAFKA, 0.5),
    _rate_aim(DELTA_SINK, PARQUET_SINK, 0.8),
    at_most("sink_ms", "DeltaSink, more a batch than Spark's Parquet sink", sink_ms, SINK_MS, "ms"),
    field_at_most(GROUP_OFFSETS, "seconds", "a million offsets as a table, warm", 2.0, "s"),
    _rate_aim(GROUP_OFFSETS, MADE_UP_TABLE, 0.8),
)


def _tables(samples: Samples) -> Mapping[str, Table]:
    medians = Medians(samples)
    return {
        "Coordination of a batch": _cost_table(medians),
        "Reports of the log's ends": _ends_table(medians),
        "Rows a second": _rate_table(medians),
        "Small batches into a sink": _sinks_table(medians),
        "Time without progress": _pause_table(medians),
    }


def _cost_table(medians: Medians) -> Table:
    """Return a line a number of partitions: a batch with and without, in ms."""
    fields = ("batch_ms", "outside_ms", "latest_offset_ms")
    lines: Table = [
        ("partitions", "batch ms", "without", "but its tasks", "without", "plan", "without", "more")
    ]
    for size in COST_SIZES:
        if (more := cost_ms(medians, size)) is None:
            continue
        values = [
            number(medians.of(row_name(source, size), field), 0)
            for field in fields
            for source in (_IN_GROUP, _PLAIN)
        ]
        lines.append((str(size), *values, number(more, 1)))
    return lines


def _ends_table(medians: Medians) -> Table:
    """Return a line for a batch with reports, and one for a batch without, in ms."""
    lines: Table = [("ends", "queries", "batch ms", "(spread)", "but its tasks", "plan")]
    for name in (REPORTED, NOT_REPORTED):
        if values := medians.values(name, "batch_ms"):
            spread = between(medians.spread(name, "batch_ms"), 0)
            fields = ("outside_ms", "latest_offset_ms")
            others = (number(medians.of(name, field), 1) for field in fields)
            batch = number(medians.of(name, "batch_ms"), 1)
            lines.append((TITLES[name], str(len(values)), batch, spread, *others))
    return lines


def _rate_table(medians: Medians) -> Table:
    """Return a line a source of rows."""
    lines: Table = [("source", "rows per s", "(spread)", "s")]
    for name, title in RATE_TITLES.items():
        if (rate := medians.of(name, "rate_per_s")) is not None:
            spread = between(medians.spread(name, "rate_per_s"), 0)
            lines.append((title, number(rate, 0), spread, number(medians.of(name, "seconds"), 2)))
    return lines


def _sinks_table(medians: Medians) -> Table:
    """Return a line a sink: how long a small batch takes."""
    lines: Table = [("sink", "batch ms", "(spread)", "but its tasks")]
    for name in (DELTA_BATCH, PARQUET_BATCH):
        if (batch := medians.of(name, "batch_ms")) is not None:
            spread = between(medians.spread(name, "batch_ms"), 0)
            outside = number(medians.of(name, "outside_ms"), 0)
            lines.append((TITLES[name], number(batch, 0), spread, outside))
    return lines


def _pause_table(medians: Medians) -> Table:
    """Return a line an event: how its pauses are distributed, in seconds."""
    lines: Table = [
        ("event", "runs", "p50 s", "p90 s", "max s", "at least", "p50 over", "others p50", "max")
    ]
    for name, title in PAUSE_TITLES.items():
        if not (moved := medians.values(name, "moved_s")):
            continue
        p90 = percentile([round(value * 1e6) for value in moved], 0.9) / 1e6
        _, others = medians.spread(name, "stayed_s") or (None, None)
        shown = (
            *(medians.of(name, "moved_s"), p90, moved[-1]),
            *(medians.of(name, field) for field in ("limit_s", "over_s", "stayed_s")),
            others,
        )
        lines.append((title, str(len(moved)), *(number(seconds, 2) for seconds in shown)))
    return lines


# --- the run -------------------------------------------------------------------------------------


class SparkBench(Bench):
    """What a part needs is started when it is needed first."""

    def __init__(self, folder: Path, choice: Choice) -> None:
        super().__init__(folder, choice)
        self._amount = QUICK if choice.quick else FULL
        self._warm: set[str] = set()
        self.about |= {name: version(name) for name in ("pyspark", "pyarrow")}
        self.about["Java"] = java_version()

    def repetition(self, number: int) -> None:
        """Measure all rows once.

        Raises:
            ProcessError: A process or a query failed.
        """
        parts: Mapping[str, Callable[[], None]] = {
            COST: self._cost,
            ENDS: self._ends,
            LOGS: self._logs,
            SINKS: self._sinks,
            TABLES: self._tables,
            PAUSES: lambda: self._pauses(number),
        }
        for name in PARTS:
            if name in self.choice.only:
                print(f"  {name}", flush=True)
                parts[name]()

    def close(self) -> None:
        """Stop the session, before anything that its processes are connected to."""
        if (spark := self.__dict__.get("_spark")) is not None:
            spark.stop()
        super().close()

    def _cost(self) -> None:
        sizes = QUICK_COST_SIZES if self.choice.quick else COST_SIZES
        for size, batches in sizes.items():
            for source in FORMATS:
                sample = measure_cost(
                    self._spark, source, size, batches, self.folder, self._daemon.address
                )
                self.keep(row_name(source, size), sample)

    def _ends(self) -> None:
        rounds, batches = (1, 2) if self.choice.quick else (ENDS_ROUNDS, ENDS_BATCHES)
        for _ in range(rounds):
            for name, reports in ((REPORTED, "true"), (NOT_REPORTED, "false")):
                options = {"reportEnds": reports, "log.grows": "true"}
                sample = measure_cost(
                    *(self._spark, _IN_GROUP, ENDS_PARTITIONS, batches),
                    *(self.folder, self._daemon.address, options),
                )
                self.keep(name, sample)

    def _sinks(self) -> None:
        spark, address, folders = self._spark, self._daemon.address, self._folders
        batches = (QUICK_COST_SIZES if self.choice.quick else COST_SIZES)[SINK_PARTITIONS]
        for rates, small, sink in (
            (PARQUET_SINK, PARQUET_BATCH, to_parquet),
            (DELTA_SINK, DELTA_BATCH, to_delta),
        ):
            self._read(rates, lambda: folder_log(spark, folders, address), sink)
            sample = measure_cost(
                *(spark, _IN_GROUP, SINK_PARTITIONS, batches, self.folder, address), sink=sink
            )
            self.keep(small, sample)

    def _logs(self) -> None:
        spark, address, folders = self._spark, self._daemon.address, self._folders
        for form, (ours, theirs) in FILES_LOG.items():
            self._read(theirs, partial(spark_files, spark, folders, form))
            self._read(ours, partial(files_log, spark, folders, address, form))
        self._read(FOLDER_LOG, lambda: folder_log(spark, folders, address))
        if (kafka := self._kafka) is None:
            return
        self._read(SPARK_KAFKA, lambda: spark_kafka(spark, kafka))
        self._read(KAFKA_LOG, lambda: kafka_log(spark, kafka, address))

    def _read(self, name: str, rows: Callable[[], DataFrame], sink: Sink = nowhere) -> None:
        for _ in range(self._times(name)):
            sample = read_all(rows(), self.folder, self._amount.rows, sink)
        self.keep(name, sample)

    def _tables(self) -> None:
        amount, spark = self._amount, self._spark
        tables = {
            MADE_UP_TABLE: spark.read.format("made-up-table")
            .option("groups", str(amount.groups))
            .option("partitions", str(amount.partitions_per_group)),
            GROUP_OFFSETS: spark.read.format("group_offsets").option(
                "coordinator", self._filled.address
            ),
        }
        for name, table in tables.items():
            for _ in range(self._times(name)):
                sample = read_table(table.load(), amount.offsets)
            self.keep(name, sample)

    def _times(self, name: str) -> int:
        """Return how often to do it, so that the last time is a warm one."""
        if name in self._warm or self.choice.quick:
            return 1
        self._warm.add(name)
        return 3

    def _pauses(self, number: int) -> None:
        folder, address = self.folder / f"pair-{number}", self._daemon.address
        with (
            closing(Driver("stays", folder / "stays", address)) as stays,
            closing(Driver("comes", folder / "comes", address)) as comes,
        ):
            drivers = Pair(stays, comes)
            self.keep(COLD_JOIN, drivers.event(JOIN))
            drivers.event(LEAVE)
            for _ in range(1 if self.choice.quick else PAUSE_CYCLES):
                self.keep(JOIN, drivers.event(JOIN))
                self.keep(LEAVE, drivers.event(LEAVE))
                drivers.event(JOIN)
                self.keep(KILL, drivers.event(KILL))

    @cached_property
    def _spark(self) -> SparkSession:
        made = session(self.folder / "scratch", _CORES)
        register(made)
        for source in (PlainSource, MadeUpTable):
            made.dataSource.register(source)
        return made

    @cached_property
    def _daemon(self) -> Server:
        return self._serve("data", *_PAUSES_SETTINGS)

    @cached_property
    def _filled(self) -> Server:
        server = self._serve("filled")
        size = (self._amount.groups, self._amount.partitions_per_group)
        plan = FillPlan(server.host, server.port, "coordinator", *size)
        run_json("bench.fill", plan, core=None)
        return server

    @cached_property
    def _folders(self) -> Folders:
        return write_files(self.folder / "rows", self._amount)

    @cached_property
    def _kafka(self) -> str | None:
        """Where a broker with the rows listens; None if there can't be one."""
        why = "not in a smoke run" if self.choice.quick else missing("kafka")
        if why is None and spark_jars("spark-kafka") is None:
            why = "Spark's connector isn't in build/peers: python -m bench.peer_jars fetch"
        if why is not None:
            self.about["Kafka"] = f"skipped: {why}"
            return None
        server = self.stack.enter_context(peer_serving(KAFKA, self.folder / "kafka", core=None))
        fill_kafka(server.address, self._amount)
        return server.address

    def _serve(self, name: str, *settings: str) -> Server:
        return self.stack.enter_context(daemon(self.folder / name, None, *settings))


def _settings(quick: bool) -> Mapping[str, str | float]:
    amount = QUICK if quick else FULL
    return {
        "cores": f"Spark local[{_CORES}] and the daemon share them; not pinned",
        **DAEMON_NOTES,
        "rows in the logs": f"{amount.rows:,}, {ROWS_PARTITIONS} partitions",
        "offsets in the table": f"{amount.offsets:,}",
    }


main = command(
    Benchmark(
        module="bench.spark",
        help="Measure the client in Spark, and write the results.",
        name="spark",
        repetitions=3,
        make=SparkBench,
        settings=_settings,
        titles=TITLES,
        aims=_AIMS,
        tables=_tables,
        parts=PARTS,
    )
)


if __name__ == "__main__":
    main()
