"""What a bulk write would do to each group, and why it may not. Pure.

Everything is checked before anything is written, and a group is written as a whole: with one
commit, which stores all of its partitions or none.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from client.offsets import commit_request
from client.spark.offsets import Pin, parse_pin
from client.types import OffsetAndMetadata
from protocol.apis import REQUEST_BYTES_MAX
from protocol.body import pack
from protocol.groups import group_id_error, name_error
from protocol.types import (
    INT32_MAX,
    INT64_MAX,
    NO_GENERATION,
    NO_LEADER_EPOCH,
    TopicPartition,
)

PARTITIONS_MAX: Final = 10_000  # What one commit may name.
TOPIC_BYTES_MAX: Final = 249
REQUIRED: Final = ("group", "topic", "partition", "offset")
COLUMNS: Final = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("leader_epoch", pa.int32()),
        ("metadata", pa.string()),
    ]
)
_EXAMPLES: Final = 5
# Room for the request's header and for what a member id would take.
_HEADER_BYTES: Final = 1_024


class BulkWriteError(ValueError):
    """The rows can't be written as they are, or some groups were not; the message says which."""


class NewOffset(NamedTuple):
    """What a row says; ``metadata`` is None where the row says nothing of it."""

    offset: int
    leader_epoch: int | None
    metadata: str | None


class Change(NamedTuple):
    """What is to become of one partition."""

    tp: TopicPartition
    old: OffsetAndMetadata | None
    new: OffsetAndMetadata


class GroupPlan(NamedTuple):
    """What is to become of one group; with a *refusal*, nothing."""

    group: str
    changes: tuple[Change, ...]
    refusal: str | None = None

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """What to commit."""
        return {change.tp: change.new for change in self.changes}


def normal_columns(table: pa.Table) -> pa.Table:
    """Return the columns of `COLUMNS` that *table* has, in their types; others are dropped.

    Raises:
        BulkWriteError: a required column is missing, or can't be read as its type.

    """
    if missing := [name for name in REQUIRED if name not in table.column_names]:
        raise BulkWriteError(
            f"the rows have no column {', '.join(missing)}; to write group_offsets takes "
            f"{', '.join(REQUIRED)}, and may have leader_epoch and metadata"
        )
    columns = {}
    for field in COLUMNS:
        if field.name not in table.column_names:
            columns[field.name] = pa.nulls(table.num_rows, field.type)
            continue
        try:
            columns[field.name] = table.column(field.name).cast(field.type)
        except pa.ArrowInvalid as error:
            raise BulkWriteError(
                f"column {field.name} can't be read as {field.type}: {error}"
            ) from error
    return pa.table(columns, schema=COLUMNS)


def by_group(table: pa.Table) -> dict[str, dict[TopicPartition, NewOffset]]:
    """Return what the rows say of each group.

    Args:
        table: In the columns of `COLUMNS`.

    Raises:
        BulkWriteError: a row has no value where it needs one, or one that is impossible; or two
            rows are about the same partition of the same group.

    """
    for name in REQUIRED:
        if nulls := table.column(name).null_count:
            raise BulkWriteError(f"column {name} is null in {nulls} rows")
    for name, most in (("partition", INT32_MAX), ("offset", INT64_MAX)):
        _refuse_rows(
            table, pc.less(table.column(name), 0), f"every {name} is a number from 0 to {most}"
        )
    keys = ["group", "topic", "partition"]
    counted = table.group_by(keys).aggregate([([], "count_all")])
    twice = pc.greater(counted.column("count_all"), 1)
    _refuse_rows(counted, twice, "a partition of a group can be written only once")
    groups: dict[str, dict[TopicPartition, NewOffset]] = {}
    columns = [table.column(name).to_pylist() for name in COLUMNS.names]
    for group, topic, partition, *new in zip(*columns, strict=True):
        groups.setdefault(group, {})[TopicPartition(topic, partition)] = NewOffset(*new)
    return groups


def _refuse_rows(table: pa.Table, are_bad: Any, rule: str) -> None:
    bad = table.filter(are_bad)
    if bad.num_rows:
        shown = bad.slice(0, _EXAMPLES).to_pylist()
        listed = "; ".join(
            f"group {row['group']!r}, {row['topic']}-{row['partition']}"
            + (f": offset {row['offset']}" if "offset" in row else "")
            for row in shown
        )
        raise BulkWriteError(f"{rule}; {bad.num_rows} are otherwise, such as {listed}")


def plan_group(
    group: str,
    wanted: Mapping[TopicPartition, NewOffset],
    stored: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    state: str,
    num_partitions: Mapping[str, int],
    force: bool,
) -> GroupPlan:
    """Decide what one group needs; what is stored already needs nothing.

    Args:
        group: Its id.
        wanted: What the rows say.
        stored: What is committed.
        state: The group's state, such as "Empty", "Stable", or "Dead" if there is none.
        num_partitions: How many partitions each registered topic has.
        force: Whether a group with members is written, too.

    """
    changes = []
    for tp in sorted(wanted):
        old = stored.get(tp)
        new = next_offset(wanted[tp], old)
        if new != old:
            changes.append(Change(tp, old, new))
    plan = GroupPlan(group, tuple(changes))
    return plan._replace(refusal=_refusal(plan, wanted, state, num_partitions, force=force))


def next_offset(wanted: NewOffset, stored: OffsetAndMetadata | None) -> OffsetAndMetadata:
    """Return what to commit where *stored* is committed.

    Metadata that a coordinated stream has left there is kept up: the counter in it of how often
    the offset was reset goes up with every move, so that a sink that remembers ranges by it takes
    those that come again.
    """
    epoch = NO_LEADER_EPOCH if wanted.leader_epoch is None else wanted.leader_epoch
    metadata = wanted.metadata
    pin = parse_pin(stored.metadata) if stored is not None else None
    if stored is not None and wanted.offset == stored.offset:
        if metadata is None:
            metadata = stored.metadata
        if wanted.leader_epoch is None:
            epoch = stored.leader_epoch
    elif pin is not None:
        given = parse_pin(metadata)
        if given is not None:
            metadata = Pin(given.end, max(given.resets, pin.resets) + 1).to_metadata()
        elif not metadata:
            metadata = Pin(wanted.offset, pin.resets + 1).to_metadata()
    return OffsetAndMetadata(wanted.offset, metadata or "", epoch)


def _refusal(
    plan: GroupPlan,
    wanted: Mapping[TopicPartition, NewOffset],
    state: str,
    num_partitions: Mapping[str, int],
    *,
    force: bool,
) -> str | None:
    if error := group_id_error(plan.group):
        return f"the group id isn't legal: {error}"
    for topic in {tp.topic for tp in wanted}:
        if error := name_error(topic, TOPIC_BYTES_MAX):
            return f"the topic {topic!r} isn't legal: {error}"
    for tp in wanted:
        count = num_partitions.get(tp.topic)
        if count is not None and tp.partition >= count:
            return f"there is no {tp}: the topic is registered with {count} partitions"
    if state not in {"Empty", "Dead"} and not force:
        return (
            f"it is in use (state {state}): stop its members, or set option 'force' to 'true' to "
            "remove them; they then begin at the new offsets"
        )
    if len(plan.changes) > PARTITIONS_MAX:
        return (
            f"{len(plan.changes)} partitions are more than one commit stores ({PARTITIONS_MAX}), "
            "and a group is written as a whole: write it in parts, one after the other"
        )
    request = commit_request(plan.group, NO_GENERATION, "", None, plan.offsets, None)
    if (size := len(pack(request))) > REQUEST_BYTES_MAX - _HEADER_BYTES:
        return (
            f"its commit of {size} bytes is larger than a request may be, and a group is written "
            "as a whole: write it in parts, one after the other, or with less metadata"
        )
    return None


def refused(plans: Iterable[GroupPlan]) -> list[GroupPlan]:
    """Return those that can't be carried out."""
    return [plan for plan in plans if plan.refusal is not None]
