"""Sinks for ``foreachBatch`` that take each range of a coordinated source once."""

from client.spark.sinks.batches import RangeBatch, each_range
from client.spark.sinks.folder import FolderSink
from client.spark.sinks.ranges import SinkError
from client.spark.sinks.sql import SqlSink
from client.spark.sinks.staging import JdbcStaging
from client.spark.sinks.table import history, live_files, positions, read
from client.spark.sinks.upkeep import compact, vacuum

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
