"""Sinks for ``foreachBatch`` that take each range of a coordinated source once."""

from typing import TYPE_CHECKING

from client.spark.sinks.ranges import RangeBatch, SinkError, each_range
from client.spark.sinks.sql import JdbcStaging, SqlSink

if TYPE_CHECKING:
    from client.spark.sinks.delta import DeltaSink

__all__ = [
    "DeltaSink",
    "JdbcStaging",
    "RangeBatch",
    "SinkError",
    "SqlSink",
    "each_range",
]


def __getattr__(name: str) -> object:
    if name != "DeltaSink":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Only here, as it needs a library that who writes to a database may not have.
    from client.spark.sinks.delta import DeltaSink  # noqa: PLC0415 - as said.

    return DeltaSink
