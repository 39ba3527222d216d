"""Where a reset would put the offsets of a group: no input or output, only what is known."""

import csv
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from coordinator.cli.output import some, time_of
from protocol.messages import EndOffset
from protocol.types import INT32_MAX, INT64_MAX, TopicPartition

Offsets = dict[TopicPartition, int]

NO_END: Final = "no end offset is registered (ReportEndOffsets), so name one by --to-offset"
NO_COMMIT: Final = "no offset is committed"


class CannotReset(Exception):
    """For some partition there is no offset to reset to; the message says which and why."""


class Known(NamedTuple):
    """What is known of one partition; None is what isn't. The count is its topic's."""

    committed: int | None
    end: EndOffset | None
    partition_count: int | None


class Reset(NamedTuple):
    """Where one partition is, and where it is to go."""

    topic: str
    partition: int
    committed: int | None
    offset: int


class Spec(NamedTuple):
    """How the new offset is found, and whether it must lie between 0 and the end."""

    find: Callable[[TopicPartition, Known], int]
    is_clamped: bool


def to_offset(offset: int) -> Spec:
    """Put every partition to *offset*."""
    return Spec(lambda _, __: offset, is_clamped=True)


def to_offsets(offsets: Offsets) -> Spec:
    """Put each partition to its own offset."""
    return Spec(lambda partition, _: offsets[partition], is_clamped=True)


def shift_by(count: int) -> Spec:
    """Move every partition on, or back where *count* is negative."""

    def find(_: TopicPartition, known: Known) -> int:
        if known.committed is None:
            raise CannotReset(NO_COMMIT)
        return known.committed + count

    return Spec(find, is_clamped=True)


def _latest(_: TopicPartition, known: Known) -> int:
    if known.end is None:
        raise CannotReset(NO_END)
    return known.end.end_offset


def _current(partition: TopicPartition, known: Known) -> int:
    return _latest(partition, known) if known.committed is None else known.committed


TO_LATEST: Final = Spec(_latest, is_clamped=False)
# What is committed stays: the end may have been reported long ago.
TO_CURRENT: Final = Spec(_current, is_clamped=False)


def plan(known: Mapping[TopicPartition, Known], spec: Spec) -> tuple[list[Reset], list[str]]:
    """Return the resets in the order of topics and partitions, and warnings.

    Raises:
        CannotReset: Some partition has no offset to go to, so that none is reset.
    """
    resets: list[Reset] = []
    warnings: list[str] = []
    troubles: dict[str, list[TopicPartition]] = {}
    for partition in sorted(known):
        facts = known[partition]
        try:
            offset = _find(partition, facts, spec)
        except CannotReset as exc:
            troubles.setdefault(str(exc), []).append(partition)
            continue
        if spec.is_clamped:
            offset, warning = _clamp(partition, offset, facts.end)
            warnings += [warning] if warning else []
        resets.append(Reset(*partition, facts.committed, offset))
    if troubles:
        raise CannotReset("; ".join(f"{some(where)}: {why}" for why, where in troubles.items()))
    return resets, warnings


def _find(partition: TopicPartition, known: Known, spec: Spec) -> int:
    if known.partition_count is not None and partition.partition >= known.partition_count:
        raise CannotReset(f"the topic has {known.partition_count} partitions")
    return spec.find(partition, known)


def _clamp(partition: TopicPartition, offset: int, end: EndOffset | None) -> tuple[int, str]:
    if offset < 0:
        return 0, f"{partition}: {offset} is below 0, so 0"
    if end is not None and offset > end.end_offset:
        reported = time_of(end.reported_ms)
        why = f"beyond the end {end.end_offset} (reported {reported})"
        return end.end_offset, f"{partition}: {offset} is {why}, so {end.end_offset}"
    if offset > INT64_MAX:
        return INT64_MAX, f"{partition}: {offset} is no offset, so {INT64_MAX}"
    return offset, ""


def read_csv(lines: Iterable[str], group_ids: list[str], only: str | None) -> dict[str, Offsets]:
    """Return the offsets by group in a file of lines ``[group,]topic,partition,offset``.

    The group may be left out where *only* says which one is meant.

    Raises:
        ValueError: The file is wrong; the message names the line.
    """
    found: dict[str, Offsets] = {group_id: {} for group_id in group_ids}
    reader = csv.reader(lines, strict=True)
    try:
        for row in reader:
            if row:
                _add(found, *_line(row, only))
    except (csv.Error, ValueError) as exc:
        raise ValueError(f"line {reader.line_num}: {exc}") from exc
    return found


def _add(found: dict[str, Offsets], group_id: str, partition: TopicPartition, offset: int) -> None:
    if group_id not in found:
        raise ValueError(f"group {group_id!r} is none of those to reset")
    if partition in found[group_id]:
        raise ValueError(f"{partition} is there twice")
    found[group_id][partition] = offset


def _line(row: list[str], only: str | None) -> tuple[str, TopicPartition, int]:
    columns = [column.strip() for column in row]
    if len(columns) == 3 and only is not None:
        columns.insert(0, only)
    if len(columns) != 4:
        wanted = "topic,partition,offset" if only else "group,topic,partition,offset"
        raise ValueError(f"{len(columns)} columns; {wanted} is wanted")
    group_id, topic, partition, offset = columns
    where = TopicPartition(topic, _number(partition, INT32_MAX, "partition"))
    return group_id, where, _number(offset, INT64_MAX, "offset")


def _number(text: str, limit: int, what: str) -> int:
    # isdecimal alone would also take digits of other scripts.
    if not (text.isascii() and text.isdecimal()) or len(text) > 19 or int(text) > limit:
        raise ValueError(f"{text!r} is no {what}")
    return int(text)
