"""Entries of the log as lines of text or JSON."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

from coordinator.cli.output import clean, end, time_of
from coordinator.group import records, topic_records
from coordinator.log.compaction import Live, PackedBatch, find_live
from coordinator.log.directory import Directory, OsDirectory, ReadOnlyDirectory
from coordinator.log.errors import (
    EXIT_WRITE_FAILED,
    LogCorrupt,
    LogError,
    LogIncompatible,
    LogLocked,
    LogRefused,
)
from coordinator.log.format import HEADER_BYTES, NODE_PARTITION, Batch, Entry
from coordinator.log.offline.salvage import Damage, Kept, Salvage
from coordinator.log.offline.survey import Survey, survey
from coordinator.log.offline.whole import Verdict, inspect
from protocol.consumer import decode_assignment, decode_subscription
from protocol.messages import LateMember, Rebalance

# ------------------------------------------------------------------------------------------
# A stopped data folder for the commands that look at it or repair it.

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


def verdict_of(directory: Directory) -> Verdict | LogRefused | None:
    """Return what the daemon would say of the folder; None of one in which nothing was kept."""
    try:
        return inspect(directory, _check_records)
    except LogRefused as exc:
        return exc


def everything(
    directory: Directory, survey: Survey, num_partitions: int
) -> Iterator[Kept | Damage]:
    """Yield what can be read of the whole journal, and what can't."""
    reader = Salvage(directory, survey, num_partitions)
    return chain.from_iterable(map(reader.read, survey.sources))


def live_of(directory: Directory, survey: Survey, num_partitions: int) -> "LiveOffsets":
    """Find what a compaction would keep."""

    def packed() -> Iterator[PackedBatch]:
        for item in everything(directory, survey, num_partitions):
            if type(item) is Kept:
                batch = item.batch
                data = item.found.data[HEADER_BYTES:]
                yield batch.partition, batch.base_offset, batch.timestamp_ms, data

    return LiveOffsets(find_live(packed, _KEEP_TOMBSTONES_MS))


class LiveOffsets:
    """Says of each entry whether it is live. Ask in the order of the log, once of each."""

    def __init__(self, live: Live) -> None:
        self._left = {partition: iter(offsets) for partition, offsets in live.offsets.items()}
        self._next = {partition: next(offsets, -1) for partition, offsets in self._left.items()}

    def take(self, partition: int, offset: int) -> bool:
        """Return whether the entry is live."""
        if self._next.get(partition) != offset:
            return False
        self._next[partition] = next(self._left[partition], -1)
        return True


def _check_records(batch: Batch) -> None:
    """See that the daemon could load the batch."""
    read = topic_records.read_items if batch.partition == NODE_PARTITION else records.read_items
    place = f"(the batch at offset {batch.base_offset} of partition {batch.partition})"
    try:
        for _ in read(batch.items):
            pass
    except records.UnknownRecord as exc:
        raise LogIncompatible(f"the log is a newer release's: {exc} {place}") from exc
    except records.RecordError as exc:
        raise LogCorrupt(f"the log is damaged: {exc} {place}") from exc


# ------------------------------------------------------------------------------------------
# Entries of the log in words: what their types are called, and what their fields are.
#
# Nothing here can fail: of a type that this release doesn't know, or of another shape, the plain
# values are shown.


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


# ------------------------------------------------------------------------------------------
# Entries of the log as lines of text or JSON.


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


def dump_lines(directory: Directory, wanted: Filter, *, as_json: bool) -> Iterator[Line]:
    """Yield a line for each entry that is wanted, and for all that is wrong."""
    found = survey(directory)
    num_partitions = NODE_PARTITION if found.meta is None else found.meta.num_partitions
    for problem in found.problems:
        yield _problem_line(problem.file, None, problem.what, as_json=as_json)
    live = live_of(directory, found, num_partitions) if wanted.tells_live else None
    for item in everything(directory, found, num_partitions):
        if type(item) is Damage:
            yield _damage_line(item, as_json=as_json)
        elif type(item) is Kept:
            yield from _entry_lines(item, wanted, live, as_json=as_json)


def _entry_lines(
    kept: Kept, wanted: Filter, live: LiveOffsets | None, *, as_json: bool
) -> Iterator[Line]:
    partition = kept.batch.partition
    if wanted.partition not in {None, partition}:
        return
    for offset, entry in kept.batch.entries:
        is_live = None if live is None else live.take(partition, offset)
        if (
            (is_live or not wanted.live_only)
            and offset >= wanted.from_offset
            and wanted.scope in {None, entry.scope}
        ):
            fields = _dumped_fields(kept, offset, entry, is_live)
            if wanted.type_name in {None, fields["type"], str(entry.type)}:
                text = json.dumps(fields) if as_json else _text(fields)
                yield Line(text, is_entry=True)


def _dumped_fields(kept: Kept, offset: int, entry: Entry, is_live: bool | None) -> dict[str, Any]:
    raw, source = kept.found.raw, kept.source
    words = named(raw.partition, entry)
    fields: dict[str, Any] = {
        "segment": source.file,
        "byte": kept.found.start,
        "position": source.segment.base + kept.found.start,
        "flush_start": raw.flush_start,
        "leader_epoch": raw.leader_epoch,
        "timestamp_ms": raw.timestamp_ms,
        "partition": "node" if raw.partition == NODE_PARTITION else raw.partition,
        "offset": offset,
        "type": words.type_name,
        "type_number": entry.type,
        "version": entry.version,
        "scope": entry.scope,
        "key": words.key,
        "value": words.value,
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
    place = f"{fields['segment']}:{fields['byte']}"
    if "position" in fields:
        place += f" position={fields['position']} flush={fields['flush_start']}"
    live = {None: "", True: " live", False: " dead"}[fields.get("live")]
    words = text_of(fields["type"], fields["key"], fields["value"])
    return clean(
        f"{place} epoch={fields['leader_epoch']} {time_word(fields['timestamp_ms'])} "
        f"partition={fields['partition']} offset={fields['offset']}{live} {name} "
        f'"{fields["scope"]}" {words}'.rstrip()
    )


def _damage_line(damage: Damage, *, as_json: bool) -> Line:
    file = damage.source.file or damage.source.segment.name
    what = f"{damage.what}; the next start cuts it off" if damage.is_torn else damage.what
    line = _problem_line(file, (damage.start, damage.end), what, as_json=as_json)
    return line._replace(is_damage=not damage.is_torn)


def _problem_line(file: str, at: tuple[int, int] | None, what: str, *, as_json: bool) -> Line:
    start, stop = at or (None, None)
    if as_json:
        problem = {"file": file, "byte": start, "end": stop, "what": what}
        return Line(json.dumps({"problem": plain(problem)}), is_entry=False, is_damage=True)
    return Line(clean(f"# {place_of(file, start, stop)}: {what}"), is_entry=False, is_damage=True)


def place_of(file: str, start: int | None, stop: int | None) -> str:
    """Return a place in a file in words."""
    if start is None or stop is None:
        return file
    if stop - start <= 1:
        return f"{file}, byte {start}"
    return f"{file}, bytes {start} to {stop - 1}"
