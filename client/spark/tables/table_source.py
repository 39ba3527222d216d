# ruff: noqa: N802 - Spark chose the names of these methods.
"""Base classes of the tables as data sources of Spark.

A process has one connection per coordinator, and keeps it until the process ends. Spark runs the
tasks of a scan, about fifty, in a few Python processes that it reuses; a new connection for each
task would take more time than its read.

Spark refuses to read a source that supports filters while Spark's own setting for filters is off.
Each reader therefore has two classes: a plain one, and one with `PushesFilters`.
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

# Default of the option ``maxTasks``. A task of a Python source takes Spark about 50 ms even if it
# reads little, and a few tasks read as fast as a coordinator answers.
MAX_TASKS: Final = 4

_lock: Final = threading.Lock()
_clients: Final[dict[tuple[int, Target], BlockingClient]] = {}


def client_of(target: Target) -> BlockingClient:
    """Return this process's client of *target*; connect if there is none yet.

    The client connects again by itself after a lost connection.

    Raises:
        CoordinatorUnavailable: no answer in time.

    """
    # A forked process inherits the dictionary, but not the clients' threads.
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
    """Reads the selected rows of a table."""

    never_null: ClassVar[Sequence[str]]

    def __init__(self, target: Target, wanted: Wanted, max_tasks: int) -> None:
        self.target = target
        self.wanted = wanted
        self.max_tasks = max_tasks

    @message_alone(CoordinatorError)
    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks; none if no row can match."""
        return [] if self.wanted.is_nothing else self.tasks()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the share of one task, on an executor."""
        if partition.value is None:
            return  # Spark adds an empty task if there is none.
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
        """Read the rows of one task; *share* is the task's value."""


class PushesFilters(TableReader):
    """Reads only what a query's conditions on groups and topics allow."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters on groups and topics; return those that Spark has to apply."""
        self.wanted, rest = push(filters, self.wanted, self.never_null)
        return rest


class TableSource(DataSource):
    """A format of a coordinator's tables; see docs/spark.md for its options.

    Raises:
        OptionError: an option is missing, unknown or invalid.

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
    readers: ClassVar[
        tuple[type[TableReader], type[PushesFilters]]
    ]  # Without and with pushed filters.

    @message_alone(OptionError)
    def reader(self, schema: StructType) -> TableReader:  # noqa: ARG002 - Spark's way.
        """Return the reader; it pushes filters down if the option allows it, or Spark is safe."""
        options = TableOptions(self.options, self.option_names)
        pushing = options.choice("pushFilters", "auto", "true", "false")
        pushes = SPARK_SCOPES_FILTERS if pushing == "auto" else pushing == "true"
        has_topics = "topics" in self.option_names
        return self.readers[pushes](
            options.target("60s"),
            Wanted(options.names("groups"), options.names("topics") if has_topics else None),
            options.number("maxTasks", MAX_TASKS),
        )
