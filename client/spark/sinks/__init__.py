"""Sinks for ``foreachBatch`` that take each range of a coordinated source once."""

from client.spark.sinks.folder import FolderSink
from client.spark.sinks.ranges import RangeBatch, SinkError, each_range
from client.spark.sinks.sql import JdbcStaging, SqlSink
from client.spark.sinks.table import compact, history, live_files, positions, read, vacuum

__all__ = [
    "FolderSink",
    "JdbcStaging",
    "RangeBatch",
    "SinkError",
    "SqlSink",
    "compact",
    "each_range",
    "history",
    "live_files",
    "positions",
    "read",
    "vacuum",
]
