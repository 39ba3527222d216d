"""The seam between the coordinated source and the data: a log of partitions."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from client.spark.options import OptionError
from protocol.partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

# Loaded on first use: each needs packages that the others don't.
BUILT_IN: Final = {
    "folder": "client.spark.logs.folder:FolderLog",
    "files": "client.spark.logs.files_log:FilesLog",
    "kafka": "client.spark.logs.kafka_log:KafkaLog",
}

OFFSET_COLUMN: Final = "offset"


class LogError(RuntimeError):
    """The log cannot be read as asked; the message says where and why."""


class LogUnavailable(LogError):
    """The log did not answer in time; the same call may work later."""


class PartitionLog(ABC):
    """Partitioned rows that each have an offset, ascending, never changed and never used twice.

    One object is made in the reader process (`partitions`, `bounds`, `schema`) and one in each
    executor task (`read`), always from the options of the stream, so a subclass keeps nothing
    that other processes would need. In the reader process two threads may call it at the same
    time. Every call must end, with a `LogUnavailable` if need be: the query waits for it.

    Six have a default: `dense_offsets`, `all_bounds`, `topics`, `offsets_at`, `hosts` and
    `topic_id`. It serves most logs, or says that the log can't do this.

    `client.spark.logs.testkit` checks a log of your own against all of this.

    Args:
        options: the options given to ``spark.readStream``, names in lower case.

    Attributes:
        dense_offsets: True if each row's offset is one higher than that of the row before. Else
            there may be gaps, and the batches that `read` yields have an int64 column ``offset``
            besides those of `schema`.

    """

    dense_offsets: ClassVar[bool] = True

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    @abstractmethod
    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of *topic*, ascending. It may grow, never shrink.

        Raises:
            LogError: there is no such topic.

        """

    @abstractmethod
    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset that can be read, and the offset after the last one.

        Both never go back. They are asked for on every trigger, so this must be cheap. It must
        never return an end that `read` can't reach yet.

        Raises:
            LogError: there is no such partition.

        """

    @abstractmethod
    def schema(self, topic: str) -> "pa.Schema":
        """Return the columns of the rows of *topic*, without the offset."""

    @abstractmethod
    def read(self, topic: str, partition: int, start: int, end: int) -> "Iterator[pa.RecordBatch]":
        """Yield exactly the rows ``start <= offset < end``, in order. Runs on executors.

        The same call yields the same rows each time, as long as they are there.

        Raises:
            LogError: some of them are not there (any more).

        """

    def all_bounds(
        self, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the `bounds` of several partitions; for logs that can ask for all at once."""
        return {tp: self.bounds(tp.topic, tp.partition) for tp in partitions}

    def topics(self) -> list[str]:
        """Return the names of all topics, ascending, for subscriptions by pattern.

        Raises:
            LogError: this log can't list its topics.

        """
        raise LogError(
            f"{type(self).__name__} can't list its topics (it has no method 'topics'); name them "
            "with option 'topics'"
        )

    def offsets_at(
        self, partitions: Collection[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int]:
        """Return where to begin in each partition to miss no row of *timestamp_ms* or later.

        That is the end where there is no such row. Older rows may follow, if the log knows
        times less exactly.

        Raises:
            LogError: this log doesn't know when its rows were written.

        """
        del partitions, timestamp_ms
        raise LogError(
            f"{type(self).__name__} doesn't know when its rows were written (it has no method "
            "'offsets_at'), so no stream can begin at a time"
        )

    def hosts(self, topic: str, partition: int) -> Sequence[str]:
        """Return the hosts that read the partition fastest; none if it doesn't matter."""
        del topic, partition
        return ()

    def topic_id(self, topic: str) -> str | None:
        """Return what changes when a topic is deleted and made anew; None if nothing tells."""
        del topic
        return None


def load_log(options: Mapping[str, str]) -> PartitionLog:
    """Make the log that the option ``log`` names: a built-in one, or ``package.module:Class``.

    Raises:
        OptionError: there is no such log; the message names the option.

    """
    value = options.get("log", "folder")
    name = BUILT_IN.get(value, value)
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        raise OptionError(
            f"option 'log' is {value!r}: it must be {', '.join(map(repr, sorted(BUILT_IN)))} or "
            "'package.module:ClassName'"
        )
    try:
        log_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"option 'log' is {value!r}, which can't be imported here ({error}); the driver and "
            "all executors need the module on their Python path"
        ) from error
    if not (isinstance(log_class, type) and issubclass(log_class, PartitionLog)):
        raise OptionError(f"option 'log' is {value!r}, which is not a subclass of PartitionLog")
    log: PartitionLog = log_class(options)
    return log
