"""The group state machine and the offsets cache: pure, no I/O, no clock, no randomness."""

from coordinator.group.core import Caller, Event, GroupConfig, Now, Outcome, Reply
from coordinator.group.records import Record, RecordError, UnknownRecord
from coordinator.group.shard import GroupShard

__all__ = [
    "Caller",
    "Event",
    "GroupConfig",
    "GroupShard",
    "Now",
    "Outcome",
    "Record",
    "RecordError",
    "Reply",
    "UnknownRecord",
]
