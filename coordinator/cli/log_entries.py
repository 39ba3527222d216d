"""Entries of the log in words: what their types are called, and what their fields are.

Nothing here can fail: of a type that this release doesn't know, or of another shape, the plain
values are shown.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from coordinator.cli.output import time_of
from coordinator.group import records, topic_records
from coordinator.log.format import NODE_PARTITION, Entry
from protocol.consumer import decode_assignment, decode_subscription
from protocol.messages import LateMember, Rebalance


class _Shape(NamedTuple):
    name: str
    key: tuple[str, ...]
    value: tuple[str, ...]


_TOMBSTONE: Final = _Shape("scope-deleted", (), ())
_GROUP_SHAPES: Final[Mapping[int, _Shape]] = {
    records.OFFSET_COMMITTED: _Shape(
        "offset",
        ("topic", "partition"),
        ("offset", "leader_epoch", "metadata", "commit_timestamp_ms", "expire_timestamp_ms"),
    ),
    records.GROUP_METADATA: _Shape("group", (), records.GroupMetadata._fields[1:]),
    records.GROUP_GENERATION: _Shape("generation", (), records.GroupGeneration._fields[1:]),
    records.GROUP_DELETED: _TOMBSTONE,
    records.GROUP_RETENTION: _Shape("retention", (), ("retention_ms",)),
    records.GROUP_REBALANCED: _Shape("rebalance", ("slot",), Rebalance._fields),
}
_TOPIC_SHAPES: Final[Mapping[int, _Shape]] = {
    topic_records.TOPIC: _Shape("topic", (), topic_records.TopicRegistered._fields[1:]),
    topic_records.TOPIC_END: _Shape("end-offset", ("partition",), ("end_offset", "reported_ms")),
    topic_records.REGISTRY: _Shape("registry", (), topic_records.RegistryChanged._fields),
    topic_records.TOPIC_FORGOTTEN: _TOMBSTONE,
}
TYPE_NAMES: Final = sorted({s.name for s in (*_GROUP_SHAPES.values(), *_TOPIC_SHAPES.values())})


class Named(NamedTuple):
    """An entry for people, of plain JSON values; bytes are hexadecimal."""

    type_name: str  # "unknown" for a type that isn't.
    key: Any
    value: Any


def named(partition: int, entry: Entry) -> Named:
    """Return *entry* with names for everything that has one."""
    shapes = _TOPIC_SHAPES if partition == NODE_PARTITION else _GROUP_SHAPES
    shape = shapes.get(entry.type)
    if shape is None:
        return Named("unknown", plain(entry.key), plain(entry.value))
    value = _fields(shape.value, entry.value)
    if isinstance(value, dict):
        members, late = value.get("members"), value.get("late")
        if shape.name == "group" and isinstance(members, list | tuple):
            value["members"] = [_member(m, value.get("protocol_type")) for m in members]
        elif shape.name == "rebalance" and isinstance(late, list | tuple):
            value["late"] = [_fields(LateMember._fields, member) for member in late]
    return Named(shape.name, plain(_fields(shape.key, entry.key)), plain(value))


def plain(value: Any) -> Any:
    """Return *value* as JSON can carry it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return value


def text_of(type_name: str, key: Any, value: Any) -> str:
    """Return key and value of `named` in one line: name=value, "deleted" for a tombstone."""
    if value is None and type_name == _TOMBSTONE.name:
        return ""
    return " ".join(filter(None, (_words(key), "deleted" if value is None else _words(value))))


def _words(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value) if value else ""
    return " ".join(f"{name}={_word(name, part)}" for name, part in value.items())


def time_word(wall_ms: int) -> str:
    """Return a time of day; "-" for the -1 of "never", the number where it is no time."""
    try:
        return time_of(wall_ms) or "-"
    except (OverflowError, ValueError, OSError):
        return str(wall_ms)


def _word(name: str, value: Any) -> str:
    if name.endswith("timestamp_ms") and type(value) is int:
        return time_word(value)
    if isinstance(value, dict):
        return "{" + _words(value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_word("", part) for part in value) + "]"
    if isinstance(value, str):
        return f'"{value}"'
    return "-" if value is None else str(value)


def _fields(names: Sequence[str], values: Any) -> Any:
    """Return *values* under their names; an older version of an entry has fewer."""
    if not isinstance(values, list | tuple) or len(values) > len(names):
        return values
    return dict(zip(names, values, strict=False))


def _member(values: Any, protocol_type: Any) -> Any:
    member = _fields(records.MemberMetadata._fields, values)
    if isinstance(member, dict) and protocol_type == "consumer":
        member["subscription"] = _subscription(member.get("subscription"))
        member["assignment"] = _assignment(member.get("assignment"))
    return member


def _subscription(data: Any) -> Any:
    found = decode_subscription(data) if isinstance(data, bytes) else None
    if found is None:
        return data
    return {
        "topics": found.topics,
        "owned": _by_topic(found.owned_partitions),
        "generation": found.generation_id,
        "rack": found.rack_id,
        "user_data": found.user_data,
    }


def _assignment(data: Any) -> Any:
    found = decode_assignment(data) if isinstance(data, bytes) else None
    if found is None:
        return data
    return {"partitions": _by_topic(found.partitions), "user_data": found.user_data}


def _by_topic(partitions: Sequence[tuple[str, int]]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics
