"""Writes the committed offsets of whole groups from a DataFrame: a reset, or a migration.

All rows are collected on the driver, as only there all rows of a group come together. All rows are
checked before the first write. Each group is written with one commit, which stores all of its
partitions or none.
"""

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from client.backoff import backoff
from client.blocking import BlockingClient, connect_blocking
from client.exceptions import CommitRefused, CoordinatorError, FatalError, OutcomeUnknown
from client.offsets import OffsetAndMetadata, commit_request
from client.security import Given, Security
from client.spark.options import OptionError
from client.spark.source.stream_offsets import Pin, parse_pin
from client.spark.tables.options import TableOptions, Target
from client.spark.tables.table_source import CLIENT_ID
from protocol.codec import encode
from protocol.errors import ErrorCode
from protocol.fields import REQUEST_BYTES_MAX, REQUEST_PARTITIONS_MAX, TOPIC_BYTES_MAX
from protocol.group_ids import group_id_error, name_error
from protocol.partition import INT32_MAX, INT64_MAX, NO_GENERATION, NO_LEADER_EPOCH, TopicPartition
from protocol.text import some_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

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
OPTIONS: Final = ("coordinator", "dryRun", "force", "skipRefused", "report", "coordinatorTimeout")
_EXAMPLES: Final = 5  # Most rows, groups or partitions named in a message.
# Bytes reserved in a request for its header and a member id.
_HEADER_BYTES: Final = 1_024
# Groups written at the same time; their commits share a flush of the coordinator's log.
AT_A_TIME: Final = 16
# Attempts to remove a group's members and commit: removed members may join again before the commit.
FORCED_TRIES: Final = 20
# Shortest and longest pause between these attempts, in seconds.
PAUSE_MIN_S: Final = 0.05
PAUSE_MAX_S: Final = 0.25
REASON: Final = "the offsets of the group are written anew"

T = TypeVar("T")
R = TypeVar("R")


class BulkWriteError(ValueError):
    """The rows are invalid, or some groups were not written; the message says which."""


class NewOffset(NamedTuple):
    """Offset from a row; ``metadata`` and ``leader_epoch`` are None if the row has none."""

    offset: int
    leader_epoch: int | None
    metadata: str | None


class Change(NamedTuple):
    """Planned change of one partition's committed offset."""

    tp: TopicPartition
    old: OffsetAndMetadata | None
    new: OffsetAndMetadata


class GroupPlan(NamedTuple):
    """Planned changes of one group; with a *refusal*, the group isn't written."""

    group: str
    changes: tuple[Change, ...]
    refusal: str | None = None

    @property
    def offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The offsets to commit."""
        return {change.tp: change.new for change in self.changes}


def normal_columns(table: pa.Table) -> pa.Table:
    """Return *table* with exactly the columns of `COLUMNS`; other columns are dropped.

    A missing optional column becomes null.

    Raises:
        BulkWriteError: a required column is missing, or a column can't be cast to its type.

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
    """Return the new offsets of each group.

    Args:
        table: Rows with the columns of `COLUMNS`.

    Raises:
        BulkWriteError: a required value is null, or out of range; or two rows name the same
            partition of the same group.

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
    """Plan the changes of one group; offsets that are already stored need none.

    Args:
        group: The group's id.
        wanted: The offsets from the rows.
        stored: The committed offsets.
        state: The group's state, such as "Empty" or "Stable"; "Dead" if it doesn't exist.
        num_partitions: The number of partitions of each registered topic.
        force: Whether to write a group with members as well.

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
    """Return the offset to commit in place of *stored*.

    A coordinated stream stores in the metadata how often the offset was reset. Each move of the
    offset increases that counter, so that a sink that identifies ranges by it accepts a range that
    is read again.
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
        named = parse_pin(metadata)
        if named is not None:
            metadata = Pin(named.end, max(named.resets, pin.resets) + 1).to_metadata()
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
    if len(plan.changes) > REQUEST_PARTITIONS_MAX:
        return (
            f"{len(plan.changes)} partitions are more than one commit stores "
            f"({REQUEST_PARTITIONS_MAX}), and a group is written as a whole: write it in parts, "
            "one after the other"
        )
    request = commit_request(plan.group, NO_GENERATION, "", None, plan.offsets, None)
    if (size := len(encode(request))) > REQUEST_BYTES_MAX - _HEADER_BYTES:
        return (
            f"its commit of {size} bytes is larger than a request may be, and a group is written "
            "as a whole: write it in parts, one after the other, or with less metadata"
        )
    return None


class How(NamedTuple):
    """Options for the execution of the plans.

    Attributes:
        dry_run: Write nothing, only report.
        force: Also write groups that have members; the members are removed from the group.
        skip_refused: If a group can't be written, write the others; without this option none is
            written.

    """

    dry_run: bool = False
    force: bool = False
    skip_refused: bool = False


class GroupResult(NamedTuple):
    """Result of one group.

    Attributes:
        status: ``written``, ``unchanged`` (all offsets were stored already), ``planned`` (in a dry
            run), ``refused`` (the group may not be written), ``not written`` (another group was
            refused), ``failed`` (no offset was stored), or ``unknown`` (the outcome is unknown).
        message: The reason for ``refused``, ``failed`` and ``unknown``.

    """

    plan: GroupPlan
    status: str
    message: str | None = None

    @property
    def group(self) -> str:
        """The group's id."""
        return self.plan.group


GOOD: Final = frozenset({"written", "unchanged", "planned"})


def bulk_write(
    client: BlockingClient,
    wanted: Mapping[str, Mapping[TopicPartition, NewOffset]],
    how: How,
    report: str | None = None,
) -> list[GroupResult]:
    """Write the offsets of some groups, each as a whole; return their results, sorted by group.

    Args:
        client: The coordinator's client.
        wanted: The offsets from the rows, by group.
        how: The options.
        report: The file for `write_report`. The old offsets are written to it before the first
            commit, so that they are kept even if the program ends early.

    Raises:
        CoordinatorUnavailable: no answer while reading the groups; nothing was written.
        OSError: the report can't be written. If this happened before the first commit, no offset
            was written.

    """
    plans = _plans(client, wanted, how)
    if how.dry_run:
        results = [_planned(plan, "planned") for plan in plans]
    elif not how.skip_refused and any(plan.refusal is not None for plan in plans):
        results = [_planned(plan, "not written") for plan in plans]
    else:
        if report is not None:
            write_report([_planned(plan, "planned") for plan in plans], report)
        results = _each(partial(_write, client, force=how.force), plans)
    if report is not None:
        write_report(results, report)
    return results


def check(results: Sequence[GroupResult], how: How) -> None:
    """Check that no group failed; a refused group is no failure if *how* allows it.

    Raises:
        BulkWriteError: a group failed; the message names some, with the reasons.

    """
    excused = {"refused"} if how.skip_refused or how.dry_run else set()
    bad = [result for result in results if result.status not in GOOD | excused]
    if not bad:
        return
    told = [result for result in bad if result.message] or bad
    each = (f"{one.group!r}: {one.message}" for one in told)
    listed = some_of(each, _EXAMPLES, count=len(told), between="; ")
    written = sum(result.status == "written" for result in results)
    raise BulkWriteError(
        f"of {len(results)} groups {len(bad)} were not written and {written} were: {listed}"
    )


def summary(results: Sequence[GroupResult]) -> str:
    """Return a text with the number of groups of each status."""
    counts = Counter(result.status for result in results)
    return ", ".join(f"{counts[status]} {status}" for status in sorted(counts)) or "no groups"


def write_report(results: Sequence[GroupResult], path: str) -> None:
    """Write a line of JSON for each changed partition, and one for each group without a change.

    The values with ``old_`` are those committed before; with them the write can be undone.
    """
    with Path(path).open("w", encoding="utf-8") as file:
        for result in results:
            head = {"group": result.group, "status": result.status, "message": result.message}
            if not result.plan.changes:
                file.write(json.dumps(head) + "\n")
            for tp, old, new in result.plan.changes:
                row = {"topic": tp.topic, "partition": tp.partition}
                row |= {f"old_{name}": value for name, value in _as_json(old).items()}
                row |= {f"new_{name}": value for name, value in _as_json(new).items()}
                file.write(json.dumps(head | row) + "\n")


def _as_json(value: OffsetAndMetadata | None) -> dict[str, int | str | None]:
    if value is None:
        return {"offset": None, "metadata": None, "leader_epoch": None}
    return value._asdict()


def _plans(
    client: BlockingClient, wanted: Mapping[str, Mapping[TopicPartition, NewOffset]], how: How
) -> list[GroupPlan]:
    states = {group.group_id: group.state for group in client.list_groups()}
    topics = sorted({tp.topic for offsets in wanted.values() for tp in offsets})
    counts = {
        topic.topic: topic.partition_count
        for topic in client.describe_topics(topics)
        if topic.error == ErrorCode.NONE
    }

    def plan(group: str) -> GroupPlan:
        named = wanted[group] if len(wanted[group]) <= REQUEST_PARTITIONS_MAX else None
        stored = client.fetch_offsets(group, named) if group in states else {}
        return plan_group(
            group,
            wanted[group],
            stored,
            state=states.get(group, "Dead"),
            num_partitions=counts,
            force=how.force,
        )

    return _each(plan, sorted(wanted))


def _each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call *work* with each of *items*, in parallel threads; return the results in order."""
    with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="bulk-write") as pool:
        return list(pool.map(work, items))


def _planned(plan: GroupPlan, status: str) -> GroupResult:
    if plan.refusal is not None:
        return GroupResult(plan, "refused", plan.refusal)
    return GroupResult(plan, status if plan.changes else "unchanged")


def _write(client: BlockingClient, plan: GroupPlan, *, force: bool) -> GroupResult:
    if plan.refusal is not None or not plan.changes:
        return _planned(plan, "unchanged")
    for attempt in range(FORCED_TRIES if force else 1):
        try:
            if force:
                _remove_members(client, plan.group)
            client.commit(plan.group, plan.offsets)
        except CommitRefused as error:
            return _undone(client, plan, error)
        except OutcomeUnknown as error:
            return GroupResult(plan, "unknown", str(error))
        except FatalError as error:
            if not force or error.code != ErrorCode.UNKNOWN_MEMBER_ID:
                return GroupResult(plan, "failed", str(error))
            failure = GroupResult(plan, "failed", f"its members come back at once: {error}")
            time.sleep(backoff(attempt + 1, PAUSE_MIN_S, PAUSE_MAX_S))
        except CoordinatorError as error:
            return GroupResult(plan, "failed", str(error))
        else:
            return GroupResult(plan, "written")
    return failure


def _remove_members(client: BlockingClient, group: str) -> None:
    (described,) = client.describe_groups([group])
    if described.members:
        client.remove_members(group, [one.member_id for one in described.members], REASON)


def _undone(client: BlockingClient, plan: GroupPlan, refusal: CommitRefused) -> GroupResult:
    """Restore the partitions that were stored though others of the same commit were refused."""
    stored = [change for change in plan.changes if change.tp not in refusal.errors]
    message = str(refusal)
    before = {change.tp: change.old for change in stored if change.old is not None}
    try:
        if before:
            client.commit(plan.group, before)
        if new := [change.tp for change in stored if change.old is None]:
            client.delete_offsets(plan.group, new)
    except CoordinatorError as error:
        listed = ", ".join(str(change.tp) for change in stored[:_EXAMPLES])
        message += f"; {len(stored)} others were stored ({listed}) and can't be put back: {error}"
        return GroupResult(plan, "unknown", message)
    return GroupResult(plan, "failed", message)


class WriteOptions(NamedTuple):
    """The checked options of one write."""

    target: Target
    how: How
    report: str | None


class Rows(WriterCommitMessage):
    """Rows that one task has read, for the driver; *data* is a stream of Arrow."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def parse_options(options: Mapping[str, str]) -> WriteOptions:
    """Check all options and fill in the defaults.

    Raises:
        OptionError: an option is invalid; the message names it and its valid values.

    """
    named = TableOptions(options, OPTIONS)
    how = How(
        dry_run=named.flag("dryRun"),
        force=named.flag("force"),
        skip_refused=named.flag("skipRefused"),
    )
    parsed = WriteOptions(named.target("60s"), how, named.text("report"))
    if parsed.how.dry_run and parsed.report is None:
        raise OptionError(
            "option 'report' is missing: a dry run writes nothing but a report, so name a file "
            "for it (or call write_group_offsets, which returns it)"
        )
    return parsed


class GroupOffsetsWriter(DataSourceArrowWriter):
    """Collects the rows on the driver, checks all of them, and writes group by group."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Rows:
        """Read the rows of one task, on an executor."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, COLUMNS) as out:
            for batch in iterator:
                out.write_table(normal_columns(pa.Table.from_batches([batch])))
        return Rows(sink.getvalue().to_pybytes())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Write the rows of all tasks, on the driver.

        Raises:
            BulkWriteError: some groups were not written.

        """
        parts = [
            pa.ipc.open_stream(message.data).read_all()
            for message in messages
            if isinstance(message, Rows)
        ]
        rows = pa.concat_tables(parts) if parts else COLUMNS.empty_table()
        results = write_table(rows, self._options)
        check(results, self._options.how)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: no offset is written before all rows have been collected."""


def write_table(rows: pa.Table, options: WriteOptions) -> list[GroupResult]:
    """Write the offsets in *rows*, and the report; return the result of each group.

    Raises:
        BulkWriteError: the rows are invalid; nothing was written.
        CoordinatorUnavailable: no answer; nothing was written.
        OSError: the report can't be written. If this happened before the first commit, no offset
            was written.

    """
    groups = by_group(rows)
    with connect_blocking(
        options.target.addresses,
        client_id=CLIENT_ID,
        request_timeout_ms=options.target.timeout_ms,
        security=options.target.security,
    ) as client:
        results = bulk_write(client, groups, options.how, options.report)
    logger.info("wrote offsets from a DataFrame: %s", summary(results))
    return results


def write_group_offsets(
    df: "DataFrame",
    coordinator: str,
    *,
    dry_run: bool = False,
    force: bool = False,
    skip_refused: bool = False,
    timeout: str = "60s",
    security: Given = None,
) -> list[GroupResult]:
    """Write the committed offsets of whole groups, from this process; return their results.

    The same as ``df.write.format("group_offsets")``, for programs that evaluate the results
    themselves: a refused or failed group doesn't raise an error.

    Args:
        df: Rows with the columns group, topic, partition and offset, and optionally leader_epoch
            and metadata. All rows are collected in this process.
        coordinator: The coordinator's host:port.
        dry_run: Write nothing, only report.
        force: Also write groups that have members; the members are removed, and join again.
        skip_refused: If a group can't be written, write the others; without this option none is
            written.
        timeout: How long to try to reach the coordinator, such as "60s".
        security: As for `client.connect`.

    Raises:
        OptionError: an argument is invalid.
        BulkWriteError: the rows are invalid; nothing was written.
        CoordinatorUnavailable: no answer; nothing was written.

    """
    arguments = {"coordinator": coordinator, "timeout": timeout}
    named = TableOptions(arguments, tuple(arguments))
    how = How(dry_run=dry_run, force=force, skip_refused=skip_refused)
    target = named.target(timeout, "timeout")._replace(security=Security.of(security))
    options = WriteOptions(target, how, None)
    return write_table(normal_columns(df.toArrow()), options)
