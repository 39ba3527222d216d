"""The format ``coordinated``: the reader core as a PySpark data source.

Spark makes these objects in several processes: in short planning workers, in the one long-lived
reader process of a query run, and, as pickled copies, in executors. Only the reader process may
join the group, so the reader does nothing before `initialOffset`, `latestOffset`, `partitions` or
`prepareForTriggerAvailableNow` is called; Spark calls these in the reader process only.

A source can't see its query. `QueryGuard`, in the driver's process, can, and has the readers of
incorrect queries end.
"""

import atexit
import gc
import heapq
import logging
import os
import select
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from client.exceptions import CoordinatorError
from client.outages import one_line
from client.spark.errors import CoordinatedSourceError, LogFailed, message_alone
from client.spark.logs.partition_log import LogError, PartitionLog, load_log
from client.spark.options import OptionError, with_secrets
from client.spark.source.attention import Attention
from client.spark.source.core import ReaderCore, Task
from client.spark.source.discovery import matching_topics
from client.spark.source.interpreters import check_python
from client.spark.source.log_calls import Watchdog, patience_s
from client.spark.source.query_guard import QueryGuard, Refusals, readers_note, sources_of
from client.spark.source.reader_options import ReaderOptions, client_id_of, parse_options
from client.spark.source.reading import SourceRange, read_range, with_source_columns
from client.spark.source.session import BlockingSession
from client.spark.source.stream_offsets import OffsetFormatError
from client.spark.tables.groups import GroupMembersSource, GroupRebalancesSource
from client.spark.tables.offset_log import OffsetLogSource
from client.spark.tables.offset_table import GroupOffsetsSource
from client.spark.tables.options import SPARK_SCOPES_FILTERS
from client.spark.worker_memory import settle

# ruff: noqa: N802 - Spark chose the names of these methods.

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

logger = logging.getLogger(__name__)
PACKAGE_LOGGER: Final = logging.getLogger("client")

FORMAT_NAME: Final = "coordinated"

# Rows of a partition in a batch without a limit of its own: Spark keeps no limit at all for a run
# of one batch, which is refused.
NO_MAX_ROWS: Final = 2**63 - 1
ONE_BATCH: Final = (
    "Spark runs this query as a single batch, by trigger(once=True), or because another source of "
    "it doesn't support trigger(availableNow=True). Offsets are committed when the next batch is "
    "asked for, so none would be, and each run would write the same rows again. For a run that "
    "ends when all is read use trigger(availableNow=True), and a query of its own for that other "
    "source"
)

# Maximum number of tasks without rows: more cores than a driver has to warm.
WARM_TASKS_MAX: Final = 64

_BEFORE: Final = (
    StructField("topic", StringType(), nullable=True),
    StructField("partition", IntegerType(), nullable=True),
    StructField("offset", LongType(), nullable=True),
)
_AFTER: Final = (
    StructField("range_start", LongType(), nullable=True),
    StructField("range_end", LongType(), nullable=True),
    StructField("generation", IntegerType(), nullable=True),
)

# Timeout for leaving the group at SIGTERM, in seconds. Spark doesn't wait for the reader; if the
# coordinator doesn't answer in time, the membership ends with the session timeout.
LEAVE_WAIT_S: Final = 1.0


# Time that the end of a program waits for Spark's pending listener events, in milliseconds.
UNHEARD_MS_MAX: Final = 1_000


def register(spark: "SparkSession") -> None:
    """Register the formats with a session, and watch for incorrect queries.

    The formats are ``coordinated`` and the tables, such as ``group_offsets``.

    Raises:
        PythonMismatch: Spark's workers would run on another Python than this program.

    """
    is_connect = type(spark).__module__.startswith("pyspark.sql.connect")
    if not is_connect:
        check_python(spark.sparkContext.pythonExec)
    if SPARK_SCOPES_FILTERS:
        # Without this setting Spark refuses to read a Python source that could take filters.
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    driver = uuid.uuid4().hex
    for source in (
        _made_for(spark.conf.get("spark.app.name", ""), driver),
        GroupOffsetsSource,
        OffsetLogSource,
        GroupMembersSource,
        GroupRebalancesSource,
    ):
        spark.dataSource.register(source)
    # Spark Connect logs errors at its shutdown for listeners that are still registered.
    if not is_connect:
        guard = QueryGuard(driver, partial(sources_of, spark, FORMAT_NAME))
        spark.streams.addListener(guard)
        atexit.register(take_off, spark, guard)


def take_off(spark: "SparkSession", guard: "StreamingQueryListener") -> None:
    """Remove the listener *guard*: Spark prints a trace if it calls a process that has ended.

    Waits for pending events first: the end of a query that was just stopped may be among them.
    """
    with suppress(Exception):
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty(UNHEARD_MS_MAX)  # noqa: SLF001 - there is no other way.
    with suppress(Exception):  # The session, or all of Spark, has ended before.
        spark.streams.removeListener(guard)


def _made_for(app_name: str | None, driver: str) -> type[DataSource]:
    """Return a source class with the application's name, which Spark doesn't pass to readers."""
    about = {"app_name": app_name or "", "driver": driver}
    return type("NamedSource", (CoordinatedSource,), about)


class RangesPartition(InputPartition):
    """The ranges that one task reads, on their way to an executor."""

    def __init__(self, ranges: Sequence[SourceRange]) -> None:
        super().__init__(tuple(ranges))
        self.ranges = ranges


class CoordinatedSource(DataSource):
    """The data source ``coordinated``; see docs/spark.md for its options.

    Attributes:
        app_name: the Spark application; its readers are named after it.
        driver: id of the call of `register`, as in the notes of its guard.

    Raises:
        OptionError: an option is missing, unknown or impossible.

    """

    app_name: ClassVar[str] = ""
    driver: ClassVar[str] = ""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = {name.lower(): value for name, value in options.items()}
        with message_alone(OptionError):
            parse_options(self._options)

    @classmethod
    def name(cls) -> str:
        """Return the name for ``spark.readStream.format``."""
        return FORMAT_NAME

    @message_alone(OptionError, LogError)
    def schema(self) -> StructType:
        """Return topic, partition, offset, the topics' own columns, and those of the range."""
        columns = _value_schema(_load(self._options), parse_options(self._options))
        taken = {field.name for field in (*_BEFORE, *_AFTER)} & set(columns.names)
        if taken:
            raise OptionError(
                f"option 'topics': the log has columns named {', '.join(sorted(taken))}, which "
                "are the source's own; rename them in the log"
            )
        return StructType([*_BEFORE, *from_arrow_schema(columns).fields, *_AFTER])

    @message_alone(OptionError)
    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's way.
        """Say that this is a stream.

        Raises:
            OptionError: always.

        """
        raise OptionError(
            "the format 'coordinated' is a stream: use spark.readStream, with "
            ".trigger(availableNow=True) for a run that ends when all is read"
        )

    def streamReader(self, schema: StructType) -> "CoordinatedStreamReader":
        """Return the reader. Planning workers call this too, so it joins no group."""
        return CoordinatedStreamReader(self._options, schema, self.app_name, self.driver)


class CoordinatedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Adapts `ReaderCore` to the calls that Spark makes."""

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        app_name: str = "",
        driver: str = "",
        refusals: Refusals | None = None,
    ) -> None:
        self._options = dict(options)
        self._schema = schema
        self._app_name = app_name
        self._driver = driver
        self._refusals = refusals or Refusals()
        self._core: ReaderCore | None = None
        self._attention: Attention | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields that executors need; the membership stays in the reader process."""
        return {**self.__dict__, "_core": None, "_attention": None}

    def initialOffset(self) -> dict[str, Any]:
        """Join the group and return the offset before any batch."""
        with self._asked() as core:
            return core.initial_offset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option ``maxRowsPerPartition``, which counts per partition."""
        max_rows = parse_options(self._options).max_rows_per_partition
        return ReadMaxRows(NO_MAX_ROWS if max_rows is None else max_rows)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Commit finished ranges, hand over if asked, pin and return the next batch.

        Raises:
            CoordinatedSourceError: Spark runs one batch only, and has no limit then.

        """
        if isinstance(limit, ReadAllAvailable):
            with hidden_traceback():
                raise CoordinatedSourceError(ONE_BATCH)
        max_rows = parse_options(self._options).max_rows_per_partition
        with self._asked() as core:
            return dict(core.latest_offset(start, max_rows))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the log's ends as last seen, for the progress."""
        return self._core.report_latest() if self._core else None

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the log's ends as of now."""
        with self._asked() as core:
            core.prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the ranges of the batch, distributed over tasks."""
        options = parse_options(self._options)
        with self._asked() as core:
            ranges = core.partitions(start, end)
        return warm_partitions(options) if core.warming_up else ranges_partitions(ranges, options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range after the other, on an executor."""
        assert isinstance(partition, RangesPartition)
        if partition.ranges:  # Tasks without rows only load modules.
            settle()
        log = _load(self._options)
        silence_s = patience_s(parse_options(self._options))
        columns = to_arrow_schema(self._schema, timezone="UTC")
        for one in partition.ranges:
            rows = read_range(log, one, silence_s)
            yield from with_source_columns(rows, one, columns, dense=log.dense_offsets)

    def stop(self) -> None:
        """Leave the group."""
        if self._core is not None:
            self._core.stop()

    @contextmanager
    def _asked(self) -> Iterator[ReaderCore]:
        with hidden_traceback():
            core = self._joined()
            with self._attention or nullcontext():
                yield core

    def _joined(self) -> ReaderCore:
        if self._core is None:
            options = parse_options(self._options)
            # A query that is started twice, or restarted, is another reader each time.
            client_id = client_id_of(options, self._app_name, uuid.uuid4().hex[:8])
            log_to_stderr(f"{client_id} (group {options.group})")
            if reason := self._refusals.reason(readers_note(self._driver, options)):
                raise CoordinatedSourceError(reason)
            core = ReaderCore(
                options,
                _load(self._options),
                open_session=lambda topics, eager: BlockingSession(
                    options, client_id, core.log, topics, eager=eager
                ),
                client_id=client_id,
                clock=time.monotonic,
                sleep=time.sleep,
                run=Watchdog(patience_s(options)).run,
                refused=lambda: self._refusals.reason(client_id),
                warms_up=options.warm_up,
            )
            self._core = core
            self._attention = Attention(options.max_poll_interval_ms / 1000, core.depart)
            self._attention.watch()
            gc.freeze()  # Else the collector scans all imported modules every few triggers.
            LeaveOnSigterm(core.stop).install()
        return self._core


@contextmanager
def hidden_traceback() -> Iterator[None]:
    """Have Spark show only the message of an error that needs no traceback; log it first.

    A log's own error keeps its traceback: its author needs it.
    """
    try:
        yield
    except LogFailed:
        raise
    except (CoordinatedSourceError, CoordinatorError, OptionError, OffsetFormatError) as error:
        logger.error("the query ends: %s", error)  # noqa: TRY400 - before Spark's own traceback.
        with message_alone(Exception):
            raise


# --- Tasks ---------------------------------------------------------------------------------


def ranges_partitions(ranges: Sequence[Task], options: ReaderOptions) -> list[InputPartition]:
    """Return *ranges* distributed over tasks, as input partitions of Spark."""
    return [
        RangesPartition([SourceRange(*one.tp, *one.range) for one in task])
        for task in pack_ranges(ranges, options.min_tasks, options.rows_per_task)
    ]


def warm_partitions(options: ReaderOptions) -> list[InputPartition]:
    """Return the tasks without rows that let Spark start its Python workers, which load the log."""
    return [RangesPartition(()) for _ in range(min(options.min_tasks, WARM_TASKS_MAX))]


def pack_ranges(ranges: Sequence[Task], tasks_min: int, rows_per_task: int) -> list[list[Task]]:
    """Put all *ranges* into tasks of about equal size; each task in the ranges' own order.

    A task of a Python source costs Spark some tens of milliseconds, even with few rows, so a batch
    of a thousand small ranges must not be a thousand tasks; and a few large ranges must not wait
    for one another. Ranges are therefore put together only if there are more than *tasks_min*,
    and then into tasks of about *rows_per_task* rows each. A range is never cut.

    Args:
        ranges: the ranges of a batch.
        tasks_min: the minimum number of tasks; fewer only if there are fewer ranges.
        rows_per_task: the rows that a task may hold before there are more than *tasks_min* tasks.

    """
    rows = [one.range.end - one.range.start for one in ranges]
    tasks = min(len(ranges), max(tasks_min, -(-sum(rows) // rows_per_task)))
    packed: list[list[int]] = [[] for _ in range(tasks)]
    # The largest range first, each to the task with the fewest rows: tasks get about equal sizes.
    loads = [(0, 0, task) for task in range(tasks)]  # Rows, ranges, task.
    for index in sorted(range(len(ranges)), key=lambda index: -rows[index]):
        held, count, task = loads[0]
        packed[task].append(index)
        heapq.heapreplace(loads, (held + rows[index], count + 1, task))
    return [[ranges[index] for index in sorted(one)] for one in packed]


# --- The log -------------------------------------------------------------------------------


def _load(options: Mapping[str, str]) -> PartitionLog:
    return load_log(with_secrets(options))


def _value_schema(log: PartitionLog, options: ReaderOptions) -> pa.Schema:
    topics = matching_topics(options, log)
    option = "topics" if options.topics_pattern is None else "topicsPattern"
    if not topics:
        raise OptionError(
            f"option '{option}': no topic of the log matches, so the columns are not known; "
            "make a topic first, or give the columns with .schema(...)"
        )
    first, *others = topics
    columns = log.schema(first)
    for topic in others:
        if not log.schema(topic).equals(columns):
            raise OptionError(
                f"option '{option}': {first!r} and {topic!r} have different columns; read them "
                "with a stream each"
            )
    return columns


# --- What the reader process says ----------------------------------------------------------


def log_to_stderr(who: str, package: logging.Logger = PACKAGE_LOGGER) -> None:
    """Have the reader process log in the layout of Spark's lines, unless logging is set up already.

    Python's handler of last resort shows warnings only, without time and without reader: a driver's
    standard error mixes lines of several readers with Spark's.
    """
    if package.hasHandlers():
        return
    handler = logging.StreamHandler()
    who = one_line(who).replace("%", "%%")
    layout = f"%(asctime)s %(levelname)s {who}: %(message)s"
    handler.setFormatter(logging.Formatter(layout, "%y/%m/%d %H:%M:%S"))
    package.addHandler(handler)
    package.setLevel(logging.INFO)


# --- The end of the reader process ---------------------------------------------------------


class LeaveOnSigterm:
    """Calls *leave* in a thread of its own when SIGTERM arrives, then ends the process.

    Spark stops a query by sending SIGTERM to its reader process, sometimes twice, while the main
    thread may be anywhere, also inside a lock. The handler therefore takes no lock: it
    writes a byte to a pipe on whose other end a thread waits, gives that thread a moment to leave,
    and exits.

    Args:
        leave: leaves the group; must be thread-safe.

    """

    def __init__(self, leave: Callable[[], None]) -> None:
        self._leave = leave
        self._asked_r, self._asked_w = os.pipe()
        self._left_r, self._left_w = os.pipe()

    def install(self) -> None:
        """Take over SIGTERM. Does nothing but warn outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            logger.warning("not in the main thread: the reader will not leave on SIGTERM")
            return
        threading.Thread(target=self._wait_and_leave, name="leave-on-sigterm", daemon=True).start()
        signal.signal(signal.SIGTERM, self._on_sigterm)

    def _wait_and_leave(self) -> None:
        os.read(self._asked_r, 1)
        try:
            self._leave()
        finally:
            os.write(self._left_w, b".")

    def _on_sigterm(self, _signum: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(self._asked_w, b".")
        select.select([self._left_r], [], [], LEAVE_WAIT_S)
        os._exit(0)
