"""Group coordination for PySpark's Structured Streaming.

Everything that a user needs is importable from here. The names are loaded on first use, so that
a process that only writes a folder log, say, doesn't load pyspark.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from client.kafka_groups.cluster import KafkaUnavailable
    from client.spark.errors import (
        CheckpointError,
        CoordinatedSourceError,
        CoordinatorTimeout,
        DataLossError,
        DrainTimeout,
        FencedError,
        GroupLossError,
        LogFailed,
        PythonMismatch,
        StatefulQueryError,
    )
    from client.spark.listener.checkpoint import checkpoint_offsets
    from client.spark.listener.listener import GroupOffsetListener
    from client.spark.listener.metrics import ListenerMetrics
    from client.spark.logs.folder import FolderLog, FolderLogWriter
    from client.spark.logs.partition_log import LogError, LogUnavailable, PartitionLog
    from client.spark.options import OptionError
    from client.spark.sinks.delta import DeltaSink
    from client.spark.sinks.ranges import SinkError
    from client.spark.sinks.sql import JdbcStaging, SqlSink
    from client.spark.source.data_source import register
    from client.spark.source.drain import drain_and_stop, run_until_stopped
    from client.spark.source.starting_offsets import (
        KafkaTopicError,
        StartingOffsetsError,
        starting_offsets,
        starting_offsets_at,
    )
    from client.spark.tables.bulk import BulkWriteError, write_group_offsets

__all__ = [
    "BulkWriteError",
    "CheckpointError",
    "CoordinatedSourceError",
    "CoordinatorTimeout",
    "DataLossError",
    "DeltaSink",
    "DrainTimeout",
    "FencedError",
    "FolderLog",
    "FolderLogWriter",
    "GroupLossError",
    "GroupOffsetListener",
    "JdbcStaging",
    "KafkaTopicError",
    "KafkaUnavailable",
    "ListenerMetrics",
    "LogError",
    "LogFailed",
    "LogUnavailable",
    "OptionError",
    "PartitionLog",
    "PythonMismatch",
    "SinkError",
    "SqlSink",
    "StartingOffsetsError",
    "StatefulQueryError",
    "checkpoint_offsets",
    "drain_and_stop",
    "register",
    "run_until_stopped",
    "starting_offsets",
    "starting_offsets_at",
    "write_group_offsets",
]

# Where the names are that `errors` doesn't have.
_NAMES: Final = {
    "listener.checkpoint": ("checkpoint_offsets",),
    "listener.listener": ("GroupOffsetListener",),
    "listener.metrics": ("ListenerMetrics",),
    "logs.folder": ("FolderLog", "FolderLogWriter"),
    "logs.partition_log": ("LogError", "LogUnavailable", "PartitionLog"),
    "options": ("OptionError",),
    "sinks.delta": ("DeltaSink",),
    "sinks.ranges": ("SinkError",),
    "sinks.sql": ("JdbcStaging", "SqlSink"),
    "source.data_source": ("register",),
    "source.drain": ("drain_and_stop", "run_until_stopped"),
    "source.starting_offsets": (
        "KafkaTopicError",
        "KafkaUnavailable",
        "StartingOffsetsError",
        "starting_offsets",
        "starting_offsets_at",
    ),
    "tables.bulk": ("BulkWriteError", "write_group_offsets"),
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = next((module for module, names in _NAMES.items() if name in names), "errors")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
