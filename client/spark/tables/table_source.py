# ruff: noqa: N802 - Spark chose the names of these methods.
"""What the tables have in common as data sources of Spark.

There is one connection per coordinator and process, kept for as long as the process lives: Spark
runs the tasks of a scan, fifty of them, in a few Python processes that it uses again, and to
connect anew for each would cost more than what it reads.

Spark refuses to read a source that could take filters while its own setting for that is off. So
each reader is there twice: as it is, and with `PushesFilters`.
"""

import os
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from client.api import connect
from client.blocking import BlockingClient
from client.exceptions import CoordinatorError
from client.spark.errors import message_alone
from client.spark.options import OptionError
from client.spark.tables.options import SPARK_SCOPES_FILTERS, TableOptions, Target, Wanted, push
from client.spark.worker_memory import settle

CLIENT_ID: Final = "spark-tables"

# A task of a Python source costs Spark about 50 ms, however little it reads, and a few of them
# read as fast as a coordinator answers.
MAX_TASKS: Final = 4

_lock: Final = threading.Lock()
_clients: Final[dict[tuple[int, Target], BlockingClient]] = {}


def client_of(target: Target) -> BlockingClient:
    """Return this process's client of *target*, connected now if there is none.

    It connects again by itself whenever it must.

    Raises:
        CoordinatorUnavailable: nobody answered in time.

    """
    # A forked process has the dictionary of its parent, but not the threads.
    key = os.getpid(), target
    with _lock:
        if key not in _clients:
            connecting = partial(
                connect,
                target.addresses,
                client_id=CLIENT_ID,
                request_timeout_ms=target.timeout_ms,
                security=target.security,
            )
            _clients[key] = BlockingClient(connecting).__enter__()
        return _clients[key]


class TableReader(DataSourceReader):
    """Reads what is wanted of a table."""

    never_null: ClassVar[Sequence[str]]

    def __init__(self, target: Target, wanted: Wanted, max_tasks: int) -> None:
        self.target = target
        self.wanted = wanted
        self.max_tasks = max_tasks

    @message_alone(CoordinatorError)
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks; none if nothing can be wanted."""
        return [] if self.wanted.is_nothing else self.tasks()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the share of one task, on an executor."""
        if partition.value is None:
            return  # Spark makes up one where there is none.
        settle()
        yield from self.read_share(partition.value)

    @property
    def client(self) -> BlockingClient:
        """The coordinator's client."""
        return client_of(self.target)

    @abstractmethod
    def tasks(self) -> Sequence[InputPartition]:
        """Return the tasks, each with its share as a value."""

    @abstractmethod
    def read_share(self, share: Any) -> Iterator[pa.RecordBatch]:
        """Read what a task has as its value."""


class PushesFilters(TableReader):
    """Reads only what a query's conditions on groups and topics allow."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what narrows groups and topics; return what Spark has to apply."""
        self.wanted, rest = push(filters, self.wanted, self.never_null)
        return rest


class TableSource(DataSource):
    """A format of a coordinator's tables; see docs/spark.md for its options.

    Raises:
        OptionError: an option is missing, unknown or impossible.

    """

    format_name: ClassVar[str]
    columns: ClassVar[StructType]

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.read.format``."""
        return cls.format_name

    def schema(self) -> StructType:
        """Return the columns, the same for every coordinator."""
        return self.columns


class BatchSource(TableSource):
    """A format that is read as a table, not as a stream."""

    option_names: ClassVar[Sequence[str]]
    readers: ClassVar[tuple[type[TableReader], type[PushesFilters]]]  # Plain, and pushing.

    @message_alone(OptionError)
    def reader(self, schema: StructType) -> TableReader:  # noqa: ARG002 - Spark's way.
        """Return what plans and reads; with filters pushed down where that is safe."""
        options = TableOptions(self.options, self.option_names)
        pushing = options.choice("pushFilters", "auto", "true", "false")
        pushes = SPARK_SCOPES_FILTERS if pushing == "auto" else pushing == "true"
        has_topics = "topics" in self.option_names
        return self.readers[pushes](
            options.target("60s"),
            Wanted(options.names("groups"), options.names("topics") if has_topics else None),
            options.number("maxTasks", MAX_TASKS),
        )
