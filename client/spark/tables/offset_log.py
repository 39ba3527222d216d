# ruff: noqa: N802 - Spark chose the names of these methods.
"""The format ``group_offset_log``: a stream of committed and removed offsets.

The stream begins with a snapshot of all committed offsets (or at the log's end), and continues with
the changes in the coordinator's log. The newest rows of each partition are its current state.

The stream's offset has the position of the next change to read for each offsets partition, or -1
before its snapshot, and the coordinator's cluster id, such as
``{"0": 1712, "1": -1, "@": {"v": 1, "cluster_id": "..."}}``.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from client.blocking import BlockingClient
from client.operators import PositionTooOld
from client.spark.errors import message_alone
from client.spark.options import OptionError
from client.spark.tables.columns import as_batch, page_columns
from client.spark.tables.options import TableOptions, Target, Wanted, name_parts
from client.spark.tables.table_source import MAX_TASKS, TableSource, client_of
from client.spark.worker_memory import settle
from protocol.messages import OffsetChange

OPTIONS: Final = (
    "coordinator",
    "groups",
    "topics",
    "startingOffsets",
    "maxChangesPerBatch",
    "onPositionTooOld",
    "maxTasks",
    "coordinatorTimeout",
)
MAX_CHANGES: Final = 500_000

SCHEMA: Final = (
    StructType()
    .add("offsets_partition", "integer")
    .add("position", "long")
    .add("kind", "string")
    .add("group", "string")
    .add("topic", "string")
    .add("partition", "integer")
    .add("offset", "long")
    .add("leader_epoch", "integer")
    .add("metadata", "string")
    .add("changed_at", "timestamp")
)
ARROW: Final = to_arrow_schema(SCHEMA, timezone="UTC")
SNAPSHOT_BEGINS: Final = "snapshot begins"
SNAPSHOT: Final = "snapshot"

HEAD: Final = "@"
FORMAT_VERSION: Final = 1
BEFORE_SNAPSHOT: Final = -1

# Pause before a planned position is read again, in seconds. Planned positions are durable, so
# waiting is needed only after a coordinator has lost the end of its log.
_POLL_S: Final = 0.05

Positions = dict[int, int]


class LogOffsetError(ValueError):
    """The stream can't continue from the checkpoint; the message says why and what to do."""


class LogRange(NamedTuple):
    """Changes of an offsets partition with ``start <= position < end``, or its snapshot."""

    number: int
    start: int
    end: int

    @property
    def is_snapshot(self) -> bool:
        """Whether to read a snapshot of all committed offsets, not changes."""
        return self.start == BEFORE_SNAPSHOT


class LogOptions(NamedTuple):
    """The checked options of one stream."""

    target: Target
    wanted: Wanted
    starts_with_snapshot: bool
    max_changes: int
    rescans: bool
    max_tasks: int


def parse_options(options: Mapping[str, str]) -> LogOptions:
    """Check all options and fill in the defaults.

    Raises:
        OptionError: an option is invalid; the message names it and its valid values.

    """
    named = TableOptions(options, OPTIONS)
    return LogOptions(
        target=named.target("10m"),
        wanted=Wanted(named.names("groups"), named.names("topics")),
        starts_with_snapshot=named.choice("startingOffsets", "snapshot", "latest") == "snapshot",
        max_changes=named.number("maxChangesPerBatch", MAX_CHANGES),
        rescans=named.choice("onPositionTooOld", "fail", "rescan") == "rescan",
        max_tasks=named.number("maxTasks", MAX_TASKS),
    )


class OffsetLogSource(TableSource):
    """The data source ``group_offset_log``."""

    format_name = "group_offset_log"
    columns = SCHEMA

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        with message_alone(OptionError):
            self._options = parse_options(options)

    def streamReader(self, schema: StructType) -> "OffsetLogReader":  # noqa: ARG002 - Spark's way.
        """Return the reader; it doesn't connect yet."""
        return OffsetLogReader(self._options)


class OffsetLogReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the changes of all offsets partitions."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._targets: Positions | None = None
        self._known: dict[int, tuple[int, int]] = {}  # Hint and durable end, per partition.

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle for executors: only the options."""
        return {"_options": self._options, "_targets": None, "_known": {}}

    def initialOffset(self) -> dict[str, Any]:
        """Return the offset before the snapshot, or at the log's end, by the options."""
        client = client_of(self._options.target)
        if self._options.starts_with_snapshot:
            positions = dict.fromkeys(client.offsets_partitions(), BEFORE_SNAPSHOT)
        else:
            positions = self._ends(client)
        return encode_positions(positions, client.cluster_id)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option ``maxChangesPerBatch``."""
        return ReadMaxRows(self._options.max_changes)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch; *start* itself if nothing has changed."""
        client = client_of(self._options.target)
        at = decode_positions(start, client.cluster_id)
        ends = self._ends(client)
        if at.keys() != ends.keys():
            raise LogOffsetError(
                f"the checkpoint has {len(at)} offsets partitions, the coordinator {len(ends)}: "
                "it was set up anew; use a new checkpoint"
            )
        if self._targets is not None:
            ends = {number: min(end, self._targets[number]) for number, end in ends.items()}
        max_changes = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        following = next_positions(at, ends, max_changes, rescans=self._options.rescans)
        return encode_positions(following, client.cluster_id)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the last known ends of the log, for the query's progress."""
        ends = {number: end for number, (_, end) in self._known.items()}
        return encode_positions(ends, client_of(self._options.target).cluster_id) if ends else None

    def prepareForTriggerAvailableNow(self) -> None:
        """Note the current ends of the log, at which the query has to stop."""
        self._targets = self._ends(client_of(self._options.target))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch."""
        read = ranges(decode_positions(start), decode_positions(end))
        tasks = min(self._options.max_tasks, len(read))
        return [InputPartition(tuple(read[n::tasks])) for n in range(tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read some ranges, on an executor."""
        settle()
        client = client_of(self._options.target)
        for one in partition.value:
            yield from read_range(client, one, self._options)

    def _ends(self, client: BlockingClient) -> Positions:
        """Return the durable end of each log; only logs that have grown are queried."""
        for number, hint in client.offsets_log_ends().items():
            if self._known.get(number, (None,))[0] != hint:
                scan = client.scan_offset_columns(number, group_ids=())
                scan.page()
                self._known[number] = hint, scan.position
        return {number: end for number, (_, end) in self._known.items()}


def read_range(
    client: BlockingClient, one: LogRange, options: LogOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the changes of one range, or a snapshot in their place.

    Raises:
        LogOffsetError: the changes no longer exist and ``onPositionTooOld`` is "fail", or the
            coordinator has lost the end of its log.

    """
    if not one.is_snapshot:
        try:
            yield from _changes(client, one, options)
        except PositionTooOld as error:
            if not options.rescans:
                raise LogOffsetError(
                    f"the changes of offsets partition {one.number} from position {one.start} on "
                    "are no longer there (the coordinator's log was compacted, or restored from a "
                    "backup): set option 'onPositionTooOld' to 'rescan' to go on with a snapshot "
                    f"of that partition, or use a new checkpoint ({error})"
                ) from error
        else:
            return
    yield from _snapshot(client, one, options.wanted)


def _snapshot(client: BlockingClient, one: LogRange, wanted: Wanted) -> Iterator[pa.RecordBatch]:
    """Yield all committed offsets, with the position before the first change that follows."""
    position = one.end - 1
    begins = OffsetChange(position, SNAPSHOT_BEGINS, "", "", -1, -1, -1, "", -1)
    yield change_batch(one.number, [begins])
    for groups, topics in name_parts(wanted):
        scan = client.scan_offset_columns(one.number, groups, topics)
        while page := scan.page():
            columns = page_columns(page, one.number)
            count = len(columns["group"])
            columns["changed_at"] = columns["committed_at"]
            columns["position"] = pa.repeat(pa.scalar(position, pa.int64()), count)
            columns["kind"] = pa.repeat(pa.scalar(SNAPSHOT, pa.string()), count)
            yield as_batch(columns, ARROW)


def _changes(
    client: BlockingClient, one: LogRange, options: LogOptions
) -> Iterator[pa.RecordBatch]:
    position = one.start
    polls_left = options.target.timeout_ms / 1000 / _POLL_S
    while position < one.end:
        found = client.offset_changes(one.number, position)
        if found.next_position == position and polls_left < 1:
            raise LogOffsetError(
                f"offsets partition {one.number} ends at {found.end_position}, before {one.end}, "
                "which it had reached: the coordinator has lost the end of its log"
            )
        if found.next_position == position:
            polls_left -= 1
            time.sleep(_POLL_S)
        rows = [c for c in found.changes if c.position < one.end and _is_wanted(c, options.wanted)]
        if rows:
            yield change_batch(one.number, rows)
        position = found.next_position


def _is_wanted(change: OffsetChange, wanted: Wanted) -> bool:
    if wanted.groups is not None and change.group_id not in wanted.groups:
        return False
    # A change without a topic is the removal of a group, with all of its topics.
    return wanted.topics is None or not change.topic or change.topic in wanted.topics


def change_batch(number: int, changes: Sequence[OffsetChange]) -> pa.RecordBatch:
    """Return *changes* of one offsets partition as columns; absent values are null."""
    columns: dict[str, list[Any]] = {
        "offsets_partition": [number] * len(changes),
        "position": [one.position for one in changes],
        "kind": [one.kind for one in changes],
        "group": [one.group_id or None for one in changes],
        "topic": [one.topic or None for one in changes],
        "partition": [_or_none(one.partition) for one in changes],
        "offset": [_or_none(one.offset) for one in changes],
        "leader_epoch": [_or_none(one.leader_epoch) for one in changes],
        "metadata": [one.metadata if one.offset >= 0 else None for one in changes],
        "changed_at": [
            None if one.timestamp_ms < 0 else 1000 * one.timestamp_ms for one in changes
        ],
    }
    return as_batch({name: pa.array(column) for name, column in columns.items()}, ARROW)


def _or_none(number: int) -> int | None:
    return number if number >= 0 else None


def encode_positions(positions: Mapping[int, int], cluster_id: str) -> dict[str, object]:
    """Return the stream's offset, for JSON."""
    offset: dict[str, object] = {str(number): positions[number] for number in sorted(positions)}
    offset[HEAD] = {"v": FORMAT_VERSION, "cluster_id": cluster_id}
    return offset


def decode_positions(offset: Mapping[str, object], cluster_id: str | None = None) -> Positions:
    """Decode an offset of the stream; with *cluster_id*, check that it is of that coordinator.

    Raises:
        LogOffsetError: the offset is of another source, another coordinator, or a newer format.

    """
    head = offset.get(HEAD)
    if not isinstance(head, Mapping):
        raise _unreadable(offset)
    if head.get("v") != FORMAT_VERSION:
        raise LogOffsetError(
            f"the checkpoint's offset has format version {head.get('v')!r}, this release reads "
            f"version {FORMAT_VERSION}: use the release that wrote it, or a new checkpoint"
        )
    if cluster_id is not None and head.get("cluster_id") != cluster_id:
        raise LogOffsetError(
            f"the checkpoint belongs to the coordinator with the cluster id "
            f"{head.get('cluster_id')!r}, option 'coordinator' names one with {cluster_id!r}: "
            "positions of one mean nothing to the other; use a new checkpoint"
        )
    positions: Positions = {}
    for key, value in offset.items():
        if key == HEAD:
            continue
        if not key.isdecimal() or type(value) is not int or value < BEFORE_SNAPSHOT:
            raise _unreadable(offset)
        positions[int(key)] = value
    return positions


def share(waiting: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Divide *limit* evenly among partitions with *waiting* changes, and return each share.

    A share that a partition doesn't need goes to the others. Each partition gets at least 1, even
    if *limit* is smaller than their number, so that none has to wait without end.
    """
    left = {number: count for number, count in waiting.items() if count > 0}
    if limit is None or sum(left.values()) <= limit:
        return left
    shares: dict[int, int] = {}
    for n, number in enumerate(sorted(left, key=lambda number: (left[number], number))):
        shares[number] = min(left[number], max(1, limit // (len(left) - n)))
        limit -= shares[number]
    return shares


def next_positions(
    start: Mapping[int, int], ends: Mapping[int, int], limit: int | None, *, rescans: bool
) -> Positions:
    """Return the end of the next batch: about *limit* positions on, without those of snapshots.

    Args:
        start: The stream's position in each partition.
        ends: The ends of the logs, of the same partitions.
        limit: Most positions of all partitions together, except that each partition gets at least
            1; None for no limit.
        rescans: Whether to read a new snapshot of a partition whose log ends before its start.

    Raises:
        LogOffsetError: a log ends before its start, and *rescans* is false.

    """
    waiting = {n: ends[n] - at for n, at in start.items() if at != BEFORE_SNAPSHOT}
    shares = share(waiting, limit)
    following = {}
    for number, at in start.items():
        if at == BEFORE_SNAPSHOT:
            following[number] = ends[number]
        elif waiting[number] >= 0:
            following[number] = at + shares.get(number, 0)
        elif rescans:
            following[number] = BEFORE_SNAPSHOT  # The next batch reads the snapshot.
        else:
            raise LogOffsetError(
                f"the log of offsets partition {number} ends at {ends[number]}, before the "
                f"checkpoint's position {at}: was the coordinator restored from a backup? Set "
                "option 'onPositionTooOld' to 'rescan' to go on with a snapshot of that "
                "partition, or use a new checkpoint"
            )
    return following


def ranges(start: Mapping[int, int], end: Mapping[int, int]) -> list[LogRange]:
    """Return the ranges that a batch from *start* to *end* reads."""
    return [
        LogRange(number, start.get(number, BEFORE_SNAPSHOT), end[number])
        for number in sorted(end)
        if start.get(number, BEFORE_SNAPSHOT) < end[number]
    ]


def _unreadable(offset: Mapping[str, object]) -> LogOffsetError:
    return LogOffsetError(
        "the checkpoint holds an offset that a stream of offset changes did not write: "
        f"{json.dumps(offset)[:200]}; each query needs a checkpoint of its own"
    )
