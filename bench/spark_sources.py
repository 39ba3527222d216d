# ruff: noqa: N802, D102 - Spark chose the names of these methods.
"""What the Spark rows read: a log of made-up rows, and the reader with and without its group.

The rows are the same at every offset and cost next to nothing to make, and both readers put them
into the same tasks: what is measured is the reader.
"""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from bench.fill import group_name
from client.spark import PartitionLog
from client.spark.logs.partition_log import load_log
from client.spark.source.core import Task
from client.spark.source.data_source import (
    CoordinatedSource,
    CoordinatedStreamReader,
    ranges_partitions,
)
from client.spark.source.reader_options import parse_options
from client.spark.source.stream_offsets import Range
from client.spark.tables.offset_table import SCHEMA
from protocol.partition import TopicPartition

TOPIC: Final = "made-up"
LOG: Final = "bench.spark_sources:MadeUpLog"
_END: Final = 2**50
_PAGE: Final = 10_000
_SCHEMA: Final = pa.schema([("id", pa.int64()), ("name", pa.string())])


class MadeUpLog(PartitionLog):
    """As many partitions as ``log.partitions`` says, each practically without an end.

    ``log.pid_file``: where the reader process leaves its process id.
    ``log.grows``: "true" if the ends are others each time.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._told = False
        self._grows = options.get("log.grows") == "true"

    def partitions(self, topic: str) -> list[int]:  # noqa: ARG002 - all topics are alike.
        """Return the partitions."""
        return list(range(int(self.options["log.partitions"])))

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:  # noqa: ARG002 - likewise.
        """Return the bounds, and tell once who asks: only a reader does."""
        if not self._told and (pid_file := self.options.get("log.pid_file")):
            Path(pid_file).write_text(str(os.getpid()), encoding="ascii")
        self._told = True
        return 0, _END + time.monotonic_ns() if self._grows else _END

    def schema(self, topic: str) -> pa.Schema:  # noqa: ARG002 - likewise.
        """Return the columns."""
        return _SCHEMA

    def read(
        self,
        topic: str,  # noqa: ARG002 - likewise.
        partition: int,  # noqa: ARG002 - likewise.
        start: int,
        end: int,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as one batch."""
        ids = pa.array(range(start, end), pa.int64())
        names = pa.repeat(pa.scalar("made up"), end - start)
        yield pa.RecordBatch.from_arrays([ids, names], schema=_SCHEMA)


class PlainReader(CoordinatedStreamReader):
    """Plans the same ranges from the offset that Spark hands back, in no group."""

    _log: PartitionLog | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before any batch."""
        return {}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the next range of each partition."""
        if self._log is None:
            self._log = load_log(self._options)
        assert isinstance(limit, ReadMaxRows)
        end = {}
        for partition in self._log.partitions(TOPIC):
            key = f"{TOPIC}-{partition}"
            earliest, log_end = self._log.bounds(TOPIC, partition)
            at = start[key]["e"] if key in start else earliest
            end[key] = {"s": at, "e": min(at + limit.max_rows, log_end), "g": 0}
        return end

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the log's ends, as the coordinated reader does."""
        if self._log is None:
            return None
        return dict.fromkeys(map(str, self._log.partitions(TOPIC)), _END)

    def partitions(
        self,
        start: dict[str, Any],  # noqa: ARG002 - the end says all.
        end: dict[str, Any],
    ) -> list[InputPartition]:
        """Return the same tasks as the coordinated reader."""
        options = parse_options(self._options)
        ranges = [
            Task(TopicPartition(TOPIC, int(key.rpartition("-")[2])), Range(at["s"], at["e"], 0))
            for key, at in end.items()
        ]
        return ranges_partitions(sorted(ranges), options)

    def stop(self) -> None:
        """Nobody has to be told."""


class PlainSource(CoordinatedSource):
    """`PlainReader` as a format; the options ``coordinator`` and ``group`` are not used."""

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.readStream.format``."""
        return "plain"

    def streamReader(self, schema: StructType) -> PlainReader:
        """Return the reader."""
        return PlainReader(self._options, schema)


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
