"""Group coordination for PySpark's Structured Streaming.

Everything that a user needs is importable from here. The names are loaded on first use, so that
a process that only writes a folder log, say, doesn't load pyspark.
"""

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from client.spark.drain import drain_and_stop
    from client.spark.errors import (
        CheckpointError,
        CoordinatedSourceError,
        CoordinatorTimeout,
        DataLossError,
        DrainTimeout,
        FencedError,
        LogFailed,
        StatefulQueryError,
    )
    from client.spark.folder import FolderLog, FolderLogWriter
    from client.spark.listener import GroupOffsetListener
    from client.spark.log import LogError, LogUnavailable, PartitionLog
    from client.spark.options import OptionError
    from client.spark.source import register

__all__ = [
    "CheckpointError",
    "CoordinatedSourceError",
    "CoordinatorTimeout",
    "DataLossError",
    "DrainTimeout",
    "FencedError",
    "FolderLog",
    "FolderLogWriter",
    "GroupOffsetListener",
    "LogError",
    "LogFailed",
    "LogUnavailable",
    "OptionError",
    "PartitionLog",
    "StatefulQueryError",
    "drain_and_stop",
    "register",
]

_MODULES: Final = {
    "CheckpointError": "errors",
    "CoordinatedSourceError": "errors",
    "CoordinatorTimeout": "errors",
    "DataLossError": "errors",
    "DrainTimeout": "errors",
    "FencedError": "errors",
    "FolderLog": "folder",
    "FolderLogWriter": "folder",
    "GroupOffsetListener": "listener",
    "LogError": "log",
    "LogFailed": "errors",
    "LogUnavailable": "log",
    "OptionError": "options",
    "PartitionLog": "log",
    "StatefulQueryError": "errors",
    "drain_and_stop": "drain",
    "register": "source",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
