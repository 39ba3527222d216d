"""Entries of the log as lines of text or JSON."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from coordinator.cli.log_entries import named, plain, text_of, time_word
from coordinator.cli.log_folder import LiveOffsets, everything, live_of
from coordinator.cli.output import clean
from coordinator.log.directory import Directory
from coordinator.log.format import NODE_PARTITION, Entry
from coordinator.log.salvage import Damage, Kept
from coordinator.log.survey import survey


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
            fields = _fields(kept, offset, entry, is_live)
            if wanted.type_name in {None, fields["type"], str(entry.type)}:
                text = json.dumps(fields) if as_json else _text(fields)
                yield Line(text, is_entry=True)


def _fields(kept: Kept, offset: int, entry: Entry, is_live: bool | None) -> dict[str, Any]:
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
