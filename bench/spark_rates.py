# ruff: noqa: D102 - Spark chose the methods of a source.
"""Rows a second of sources on the same rows: ours, and what they are held against."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import uuid4

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from bench.fill import group_name
from bench.processes import ProcessError
from bench.spark_session import batches_of
from client.spark import FolderLogWriter
from client.spark.tables.offset_table import SCHEMA

TOPIC: Final = "rows"
PARTITIONS: Final = 6
COLUMNS: Final = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("delay", pa.int32()), ("price", pa.float64())]
)
_VALUE: Final = b"v" * 100
_FLUSH_S: Final = 60.0
_TIMEOUT_S: Final = 180.0
_PAGE: Final = 10_000


class Amount(NamedTuple):
    """How much is read."""

    chunks: int
    rows_per_chunk: int
    groups: int
    partitions_per_group: int

    @property
    def rows(self) -> int:
        """All rows of a topic."""
        return PARTITIONS * self.chunks * self.rows_per_chunk

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
    with FolderLogWriter.create(made.log, TOPIC, COLUMNS, PARTITIONS, fsync=False) as writer:
        for partition in range(PARTITIONS):
            own = Path(TOPIC) / f"partition={partition}"
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
    for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, replication_factor=1)]).values():
        made.result(_FLUSH_S)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20})
    for number in range(amount.rows // PARTITIONS):
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, _VALUE, b"%08d" % number, partition)
        if number % 2_000 == 0:
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
            return reader.schema(_spark_columns()).parquet(str(folders.parquet / TOPIC))
        case "json":
            return reader.schema(_spark_columns()).json(str(folders.json / TOPIC))
        case _:
            return reader.text(str(folders.json / TOPIC))


def kafka_log(spark: SparkSession, kafka: str, address: str) -> DataFrame:
    """Read the Kafka topic in a group."""
    return _in_group(spark, address, log="kafka", **{"kafka.bootstrap.servers": kafka})


def spark_kafka(spark: SparkSession, kafka: str) -> DataFrame:
    """Read the Kafka topic with Spark's own source."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", kafka)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )


def read_all(rows: DataFrame, folder: Path, expected: int) -> dict[str, float | None]:
    """Read what is there in one go and throw it away; return seconds and rows a second.

    The time is that of the batches: a query's start, and a group's, are not in it.
    """
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(folder / f"checkpoint-{uuid4().hex}"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        if not query.awaitTermination(int(_TIMEOUT_S)):
            raise ProcessError(f"rows were not read in {_TIMEOUT_S:.0f} s")
        done = batches_of(query, 1, timeout_s=10)
    finally:
        query.stop()
    return rate(
        sum(batch["numInputRows"] for batch in done),
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


class MadeUpTable(DataSource):
    """What `group_offsets` would read, made up where it is read: as many tasks and rows."""

    @classmethod
    def name(cls) -> str:
        return "made-up-table"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's way.
        return _MadeUpReader(int(self.options["groups"]), int(self.options["partitions"]))


class _MadeUpReader(DataSourceReader):
    _TASKS: Final = 4

    def __init__(self, groups: int, partitions: int) -> None:
        self._groups = groups
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(task) for task in range(self._TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = to_arrow_schema(SCHEMA, timezone="UTC")
        mine = range(partition.value, self._groups, self._TASKS)
        at_once = max(_PAGE // self._partitions, 1)
        for at in range(0, len(mine), at_once):
            yield _page(mine[at : at + at_once], self._partitions, schema)


def _page(groups: range, partitions: int, schema: pa.Schema) -> pa.RecordBatch:
    count = len(groups) * partitions
    numbers = list(range(partitions)) * len(groups)
    made: Mapping[str, Any] = {
        "group": [group_name(group) for group in groups for _ in range(partitions)],
        "topic": ["orders"] * count,
        "partition": numbers,
        "offset": [1_000_000 + number for number in numbers],
        "metadata": [""] * count,
        "committed_at": [1_700_000_000_000_000 + number for number in numbers],
        "offsets_partition": [group % 50 for group in groups for _ in range(partitions)],
    }
    return pa.RecordBatch.from_arrays(
        [pa.array(made.get(field.name, [None] * count), field.type) for field in schema],
        schema=schema,
    )


def _in_group(spark: SparkSession, address: str, **options: str) -> DataFrame:
    return (
        spark.readStream.format("coordinated")
        .option("coordinator", address)
        .option("group", f"rates-{uuid4().hex}")
        .option("topics", TOPIC)
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
