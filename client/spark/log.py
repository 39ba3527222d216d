"""The seam between the coordinated source and the data: a log of partitions."""

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from client.spark.options import OptionError

if TYPE_CHECKING:
    import pyarrow as pa


class LogError(RuntimeError):
    """The log cannot be read as asked; the message says where and why."""


class PartitionLog(ABC):
    """Partitioned rows with dense offsets: each row's offset is one higher than the last one's.

    One object is made in the reader process (`partitions`, `bounds`, `schema`) and one in each
    executor task (`read`), always from the options of the stream, so a subclass keeps nothing
    that other processes would need.

    Args:
        options: the options given to ``spark.readStream``, names in lower case.

    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = options

    @abstractmethod
    def partitions(self, topic: str) -> list[int]:
        """Return the partitions of *topic*, ascending. It may grow, never shrink."""

    @abstractmethod
    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset that can be read, and the offset after the last one.

        Called for each owned partition on every trigger: it must be cheap. It must never
        return an end that `read` can't reach yet.
        """

    @abstractmethod
    def schema(self, topic: str) -> "pa.Schema":
        """Return the columns of the rows of *topic*."""

    @abstractmethod
    def read(self, topic: str, partition: int, start: int, end: int) -> "Iterator[pa.RecordBatch]":
        """Yield exactly the rows ``start <= offset < end``, in order. Runs on executors."""


def load_log(options: Mapping[str, str]) -> PartitionLog:
    """Make the log that the option ``log`` names: ``folder``, or ``package.module:Class``.

    Raises:
        OptionError: there is no such log; the message names the option.

    """
    name = options.get("log", "folder")
    if name == "folder":
        from client.spark.folder import FolderLog  # noqa: PLC0415 - needs pyarrow; others may not.

        return FolderLog(options)
    module_name, colon, class_name = name.partition(":")
    if not (module_name and colon and class_name):
        raise OptionError(
            f"option 'log' is {name!r}: it must be 'folder' or 'package.module:ClassName'"
        )
    try:
        log_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"option 'log' is {name!r}, which can't be imported here ({error}); the driver and "
            "all executors need the module on their Python path"
        ) from error
    if not (isinstance(log_class, type) and issubclass(log_class, PartitionLog)):
        raise OptionError(f"option 'log' is {name!r}, which is not a subclass of PartitionLog")
    log: PartitionLog = log_class(options)
    return log
