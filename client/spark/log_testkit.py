"""Checks for a `PartitionLog` of your own; the guide's import path of `logs.testkit`."""

from client.spark.logs.testkit import CHECKS, Check, LogCheckFailed, LogSubject, check_log

__all__ = ["CHECKS", "Check", "LogCheckFailed", "LogSubject", "check_log"]
