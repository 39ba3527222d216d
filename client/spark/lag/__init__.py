"""Lag of groups, computed on Spark from committed and end offsets, in messages and seconds."""

from client.spark.lag.compute import group_lag, partition_lag, windowed, worst
from client.spark.lag.ends import kafka_ends, log_ends, registry_ends
from client.spark.lag.history import (
    Sample,
    keep_sample,
    read_ends,
    read_samples,
    take_sample,
    watch,
)

__all__ = [
    "Sample",
    "group_lag",
    "kafka_ends",
    "keep_sample",
    "log_ends",
    "partition_lag",
    "read_ends",
    "read_samples",
    "registry_ends",
    "take_sample",
    "watch",
    "windowed",
    "worst",
]
