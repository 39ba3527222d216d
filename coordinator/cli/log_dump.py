"""What ``log dump`` prints: the entries of a stopped data folder, as lines of text or JSON.

The commands of `log` share what opens the folder and what finds the live entries.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from coordinator.cli.common import by_topic
from coordinator.cli.output import CSV, JSON, TABLE, csv_line, end, time_of
from coordinator.group import acls, node_records, quotas, records, registry, users
from coordinator.log.compaction import LiveCursor, PackedBatch, find_live
from coordinator.log.directory import Directory, OsDirectory, ReadOnlyDirectory
from coordinator.log.errors import (
    EXIT_WRITE_FAILED,
    LogCorrupt,
    LogError,
    LogIncompatible,
    LogLocked,
    LogRefused,
)
from coordinator.log.format import NODE_PARTITION, Batch, Entry
from coordinator.log.offline.salvage import Damage, Kept, Salvage
from coordinator.log.offline.survey import Survey, survey
from coordinator.log.offline.verify import Verified, verify
from coordinator.names import escaped
from protocol.consumer import decode_assignment, decode_subscription
from protocol.messages import LateMember, Rebalance

# Tombstones of this age and younger are shown as live: all of them.
_KEEP_TOMBSTONES_MS: Final = -(2**62)


@contextmanager
def complaining() -> Iterator[None]:
    """End the process, with the status that says why, if the folder or the disk is no good."""
    try:
        yield
    except LogLocked as exc:
        end(f"{exc}: stop the daemon first", exc.exit_status)
    except LogError as exc:
        end(str(exc), exc.exit_status)
    except BrokenPipeError:  # Of the standard output: it was piped into something like head.
        raise
    except OSError as exc:
        end(f"the disk fails: {exc}", EXIT_WRITE_FAILED)


@contextmanager
def stopped(data_dir: Path, *, read_only: bool) -> Iterator[Directory]:
    """Hold the folder's lock; what can't go on ends the process."""
    with complaining():
        # First, as the other one would make a folder that isn't there.
        directory: OsDirectory = ReadOnlyDirectory(data_dir)
        if not read_only:
            directory = OsDirectory(data_dir)
        directory.lock()
        try:
            yield directory
        finally:
            directory.unlock()


def verdict_of(directory: Directory) -> Verified | LogRefused | None:
    """Return what the daemon would say of the folder; None of one in which nothing was kept."""
    try:
        return verify(directory, _check_records)
    except LogRefused as exc:
        return exc


def partitions_of(found: Survey) -> int:
    """Return the number of offsets partitions; if it isn't known, as many as there can be."""
    return NODE_PARTITION if found.meta is None else found.meta.num_partitions


def live_of(directory: Directory, found: Survey, num_partitions: int) -> LiveCursor:
    """Find what a compaction would keep."""

    def packed() -> Iterator[PackedBatch]:
        for item in Salvage(directory, found, num_partitions).read_all():
            if type(item) is Kept:
                batch = item.batch
                data = item.found.data[item.found.raw.entries_at :]
                yield batch.partition, batch.base_offset, batch.timestamp_ms, data

    return LiveCursor(find_live(packed, _KEEP_TOMBSTONES_MS))


def _check_records(batch: Batch) -> None:
    """See that the daemon could load the batch."""
    read = node_records.read_item if batch.partition == NODE_PARTITION else records.read_item
    where = f"(the batch at offset {batch.base_offset} of partition {batch.partition})"
    try:
        for item in batch.items:
            read(item)
    except records.UnknownRecord as exc:
        raise LogIncompatible(f"the log is a newer release's: {exc} {where}") from exc
    except records.RecordError as exc:
        raise LogCorrupt(f"the log is damaged: {exc} {where}") from exc


class Filter(NamedTuple):
    """Which entries are wanted; None is any."""

    partition: int | None
    scope: str | None
    type_name: str | None  # Or the number.
    from_offset: int
    tells_live: bool
    live_only: bool


class Line(NamedTuple):
    """One line of output."""

    text: str
    is_entry: bool
    is_damage: bool = False


def dump_lines(directory: Directory, wanted: Filter, form: str) -> Iterator[Line]:
    """Yield a line for each entry that is wanted, and for all that is wrong, in one of the forms.

    They come as they are read: JSON is an object a line, as a whole array may not fit into memory.
    """
    found = survey(directory)
    num_partitions = partitions_of(found)
    if form == CSV:
        yield Line(csv_line(_CSV_COLUMNS), is_entry=False)
    for problem in found.problems:
        yield _problem_line(problem.file, None, problem.what, form)
    live = live_of(directory, found, num_partitions) if wanted.tells_live else None
    for item in Salvage(directory, found, num_partitions).read_all():
        if type(item) is Damage:
            yield _damage_line(item, form)
        elif type(item) is Kept:
            yield from _entry_lines(item, wanted, live, form)


def _entry_lines(kept: Kept, wanted: Filter, live: LiveCursor | None, form: str) -> Iterator[Line]:
    partition = kept.batch.partition
    if wanted.partition not in {None, partition}:
        return
    for offset, entry in kept.batch.entries:
        is_live = None if live is None else live.is_live(partition, offset)
        if (
            (is_live or not wanted.live_only)
            and offset >= wanted.from_offset
            and wanted.scope in {None, entry.scope}
        ):
            fields = _dumped_fields(kept, offset, entry, is_live)
            if wanted.type_name in {None, fields["type"], str(entry.type)}:
                yield Line(_FORMATS[form](fields), is_entry=True)


def _dumped_fields(kept: Kept, offset: int, entry: Entry, is_live: bool | None) -> dict[str, Any]:
    raw, source = kept.found.raw, kept.source
    name = _named(raw.partition, entry)
    fields: dict[str, Any] = {
        "segment": source.file,
        "byte": kept.found.start,
        "position": source.segment.base + kept.found.start,
        "flush_start": raw.flush_start,
        "leader_epoch": raw.leader_epoch,
        "timestamp_ms": raw.timestamp_ms,
        "partition": "node" if raw.partition == NODE_PARTITION else raw.partition,
        "offset": offset,
        "type": name.type_name,
        "type_number": entry.type,
        "version": entry.version,
        "scope": entry.scope,
        "key": name.key,
        "value": name.value,
    }
    if source.segment.compacted:
        # What was between the batches is gone, and so is the place of each.
        del fields["position"], fields["flush_start"]
    if is_live is not None:
        fields["live"] = is_live
    return fields


def _text(fields: dict[str, Any]) -> str:
    name = fields["type"]
    if name == "unknown":
        name = f"type {fields['type_number']} version {fields['version']}"
    where = f"{fields['segment']}:{fields['byte']}"
    if "position" in fields:
        where += f" position={fields['position']} flush={fields['flush_start']}"
    live = {None: "", True: " live", False: " dead"}[fields.get("live")]
    content = _text_of(fields["type"], fields["key"], fields["value"])
    return escaped(
        f"{where} epoch={fields['leader_epoch']} {_time_text(fields['timestamp_ms'])} "
        f"partition={fields['partition']} offset={fields['offset']}{live} {name} "
        f'"{fields["scope"]}" {content}'.rstrip()
    )


def _csv(fields: dict[str, Any]) -> str:
    content = {name: json.dumps(fields[name]) for name in ("key", "value")}
    return csv_line([{**fields, **content}.get(name) for name in _CSV_COLUMNS])


_CSV_COLUMNS: Final = (
    *("segment", "byte", "position", "flush_start", "leader_epoch", "timestamp_ms", "partition"),
    *("offset", "live", "type", "type_number", "version", "scope", "key", "value", "problem"),
)
_FORMATS: Final[Mapping[str, Callable[[dict[str, Any]], str]]] = {
    TABLE: _text,
    JSON: json.dumps,
    CSV: _csv,
}


def _damage_line(damage: Damage, form: str) -> Line:
    file = damage.source.file or damage.source.segment.name
    what = f"{damage.what}; the next start cuts it off" if damage.is_torn else damage.what
    line = _problem_line(file, (damage.start, damage.end), what, form)
    return line._replace(is_damage=not damage.is_torn)


def _problem_line(file: str, at: tuple[int, int] | None, what: str, form: str) -> Line:
    start, stop = at or (None, None)
    if form == JSON:
        problem = {"file": file, "byte": start, "end": stop, "what": what}
        text = json.dumps({"problem": _plain(problem)})
    elif form == CSV:
        problem = {"segment": file, "byte": start, "problem": what}
        text = csv_line([problem.get(name) for name in _CSV_COLUMNS])
    else:
        text = escaped(f"# {byte_range(file, start, stop)}: {what}")
    return Line(text, is_entry=False, is_damage=True)


def byte_range(file: str, start: int | None, stop: int | None) -> str:
    """Return the bytes of a file as a person says it; the file alone if there are none."""
    if start is None or stop is None:
        return file
    if stop - start <= 1:
        return f"{file}, byte {start}"
    return f"{file}, bytes {start} to {stop - 1}"


# Entries with names for their types and fields. Nothing here can fail: of a type that this release
# doesn't know, or of another shape, the plain values are shown.


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
    records.GROUP_REBALANCED: _Shape("rebalance", ("slot",), Rebalance.__struct_fields__),
    records.GROUP_OWNED: _Shape("owner", (), records.GroupOwned._fields[1:]),
}
_NODE_SHAPES: Final[Mapping[int, _Shape]] = {
    registry.TOPIC: _Shape("topic", (), registry.TopicRegistered._fields[1:]),
    registry.TOPIC_END: _Shape("end-offset", ("partition",), ("end_offset", "reported_ms")),
    registry.ENDS_REPEATED: _Shape("end-offset-repeated", ("partition",), ("reported_ms",)),
    registry.REGISTRY: _Shape("registry", (), registry.RegistryChanged._fields),
    registry.TOPIC_FORGOTTEN: _TOMBSTONE,
    acls.RULE: _Shape("acl", acls.Rule._fields, ()),
    users.CREDENTIAL: _Shape("credential", ("user", "mechanism"), ("iterations",)),
    quotas.QUOTA: _Shape("quota", ("principal", "key"), ("value",)),
}
TYPE_NAMES: Final = sorted({s.name for s in (*_GROUP_SHAPES.values(), *_NODE_SHAPES.values())})


class _Named(NamedTuple):
    """An entry for people, of plain JSON values; bytes are hexadecimal."""

    type_name: str  # "unknown" for a type that isn't.
    key: Any
    value: Any


def _named(partition: int, entry: Entry) -> _Named:
    """Return *entry* with names for everything that has one."""
    shapes = _NODE_SHAPES if partition == NODE_PARTITION else _GROUP_SHAPES
    shape = shapes.get(entry.type)
    if shape is None:
        return _Named("unknown", _plain(entry.key), _plain(entry.value))
    shown = _without_secrets(entry) if shape.name == "credential" else entry.value
    value = _fields(shape.value, shown)
    if isinstance(value, dict):
        members, late = value.get("members"), value.get("late")
        if shape.name == "group" and isinstance(members, list | tuple):
            value["members"] = [_member(m, value.get("protocol_type")) for m in members]
        elif shape.name == "rebalance" and isinstance(late, list | tuple):
            value["late"] = [_fields(LateMember.__struct_fields__, member) for member in late]
    return _Named(shape.name, _plain(_fields(shape.key, entry.key)), _plain(value))


def _without_secrets(entry: Entry) -> Any:
    """Return what of a credential may be seen: whatever its shape is, no salt and no key."""
    if entry.value is None:
        return None
    last = entry.value[-1:] if isinstance(entry.value, list | tuple) else ()
    return tuple(number for number in last if type(number) is int)


def _plain(value: Any) -> Any:
    """Return *value* as JSON can carry it."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return value


def _text_of(type_name: str, key: Any, value: Any) -> str:
    """Return key and value of `_named` in one line: name=value, "deleted" for a tombstone."""
    if value is None and type_name == _TOMBSTONE.name:
        return ""
    return " ".join(filter(None, (_joined(key), "deleted" if value is None else _joined(value))))


def _joined(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value) if value else ""
    return " ".join(f"{name}={_value_text(name, part)}" for name, part in value.items())


def _time_text(wall_ms: int) -> str:
    """Return a time of day; "-" for the -1 of "never", the number where it is no time."""
    try:
        return time_of(wall_ms) or "-"
    except (OverflowError, ValueError, OSError):
        return str(wall_ms)


def _value_text(name: str, value: Any) -> str:
    if name.endswith("timestamp_ms") and type(value) is int:
        return _time_text(value)
    if isinstance(value, dict):
        return "{" + _joined(value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_value_text("", part) for part in value) + "]"
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
        "owned": by_topic(found.owned_partitions),
        "generation": found.generation_id,
        "rack": found.rack_id,
        "user_data": found.user_data,
    }


def _assignment(data: Any) -> Any:
    found = decode_assignment(data) if isinstance(data, bytes) else None
    if found is None:
        return data
    return {"partitions": by_topic(found.partitions), "user_data": found.user_data}
