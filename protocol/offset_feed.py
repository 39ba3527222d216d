"""What happens to committed offsets, from now on or with what there is in front: no I/O.

Theory of operation
===================

Each offsets partition has a log. Once a round `OffsetFeed` asks where the logs end, which is one
request, and reads those that have grown. It keeps a position for each partition, so it doesn't
matter whether the coordinator was away meanwhile. A position that the log no longer reaches back
to, after a compaction, can only be followed by a scan of what is there; so can another
coordinator's log.

A generator yields requests, which whoever runs it answers, and events. So the client and the
command line, which speak to the coordinator each in their own way, follow the same rules.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple

from msgspec import structs

from protocol import messages as m
from protocol.codec import scanned_offsets
from protocol.errors import ErrorCode
from protocol.group_ids import NODE_PARTITION

OFFSETS_PER_PAGE: Final = 20_000
CHANGES_PER_PAGE: Final = 2_000

COMMITTED: Final = "committed"
REMOVED: Final = "removed"
GROUP_DELETED: Final = "group deleted"
# Not of the log: what a scan begins, and what it found.
SCAN: Final = "scan"
FOUND: Final = "found"


class OffsetEvent(NamedTuple):
    """Something that happened to committed offsets, or that a scan found. None: it has none.

    Attributes:
        timestamp_ms: When it was written.
        kind: "committed", "removed" (one offset) or "group deleted" (all of them); a "scan" of
            an offsets partition says that everything known of it is void: what is there follows
            as "found".
        group_id: The group.
        topic: The topic.
        partition: The partition of the topic.
        offset: The next offset to read.
        leader_epoch: Of the record before it, -1 if that isn't known.
        metadata: What was committed with it.
        offsets_partition: Which offsets partition keeps the group.
        position: Where in its log the event is.
    """

    timestamp_ms: int | None
    kind: str
    group_id: str | None
    topic: str | None
    partition: int | None
    offset: int | None
    leader_epoch: int | None
    metadata: str | None
    offsets_partition: int
    position: int


# Each request is to be answered, without an error but for POSITION_TOO_OLD; a DescribeNode by a
# list of the answers of all nodes that lead something. Whoever can't do that drops the generator;
# the next one goes on where it was.
Steps = Generator[m.Request | OffsetEvent, Any, None]


class OffsetFeed:
    """What is followed, and how far. Each round is a `connect`, and then `events`."""

    def __init__(
        self,
        group_ids: Sequence[str] | None,
        topics: Collection[str] | None,
        *,
        from_beginning: bool,
        tell: Callable[[str], None],
    ) -> None:
        """Follow these groups and topics, None for all; *tell* is told why there is a scan."""
        self._group_ids = group_ids
        self._topics = topics
        self._from_beginning = from_beginning
        self._tell = tell
        self._cluster_id: str | None = None
        # Which partitions are followed, with their groups, and from where; None must be scanned.
        self._groups: dict[int, list[str] | None] = {}
        self._positions: dict[int, int | None] = {}

    def connect(self, cluster_id: str) -> Steps:
        """Find out where to begin; also where another cluster's coordinator answers by now."""
        if cluster_id == self._cluster_id:
            return
        groups: dict[int, list[str] | None] = {}
        if self._group_ids is None:
            groups = dict.fromkeys(log_ends((yield m.DescribeNodeRequest())))
        for group_id in self._group_ids or ():
            found = (yield m.FindCoordinatorRequest(m.KEY_TYPE_GROUP, (group_id,))).coordinators[0]
            known = groups.get(found.offsets_partition) or []
            groups[found.offsets_partition] = [*known, group_id]
        positions: dict[int, int | None] = dict.fromkeys(groups)
        if self._cluster_id is not None:
            self._tell(
                f"Another coordinator answers, of the cluster {cluster_id}: what it has "
                "is scanned anew."
            )
        elif not self._from_beginning:
            for number in groups:
                # A scan of nothing: it is answered once its position is on disk.
                positions[number] = (yield scan_request(number, (), ())).position
        self._groups, self._positions = groups, positions
        self._cluster_id = cluster_id

    def events(self) -> Steps:
        """Yield what has happened since the last round.

        Raises:
            RemoteProtocolError: A page of a scan can't be read.
        """
        ends = log_ends((yield m.DescribeNodeRequest()))
        for number, position in self._positions.items():
            if position is None:
                yield from self._scan(number)
            elif ends.get(number, position) != position:
                yield from self._changes(number, position)

    def _scan(self, number: int) -> Steps:
        request = scan_request(number, self._groups[number], self._topics)
        start = -1
        while start < 0 or request.cursor:
            answer: m.ScanOffsetsResponse = yield request
            if start < 0:
                start = answer.position
                yield OffsetEvent(None, SCAN, None, None, None, None, None, None, number, start)
            for columns in answer.columns:
                for one in scanned_offsets(columns):
                    yield OffsetEvent(
                        one.commit_timestamp_ms,
                        FOUND,
                        one.group_id,
                        one.topic,
                        one.partition,
                        one.offset,
                        one.leader_epoch,
                        one.metadata,
                        number,
                        start,
                    )
            request = structs.replace(request, cursor=answer.cursor)
        self._positions[number] = start

    def _changes(self, number: int, position: int) -> Steps:
        is_more = True
        while is_more:
            page: m.ReadOffsetChangesResponse = yield m.ReadOffsetChangesRequest(
                number, position, CHANGES_PER_PAGE
            )
            if page.error == ErrorCode.POSITION_TOO_OLD:
                self._tell(
                    f"The log of offsets partition {number} no longer has the changes from "
                    f"{position} on: what is committed is scanned anew."
                )
                yield from self._scan(number)
                return
            for one in page.changes:
                if is_wanted(one, self._groups[number], self._topics):
                    yield _event_of(number, one)
            self._positions[number] = position = page.next_position
            is_more = position < page.end_position


def scan_request(
    number: int, group_ids: Collection[str] | None, topics: Collection[str] | None
) -> m.ScanOffsetsRequest:
    """Return what begins a scan of an offsets partition, for some groups and topics or all."""
    return m.ScanOffsetsRequest(
        number,
        b"",
        OFFSETS_PER_PAGE,
        in_columns=True,
        group_ids=None if group_ids is None else tuple(group_ids),
        topics=None if topics is None else tuple(topics),
    )


def log_ends(nodes: Iterable[m.DescribeNodeResponse]) -> dict[int, int]:
    """Return where the log of each offsets partition ends, what isn't on disk yet included.

    Whoever leads a partition, or has seen most of it, knows that best.
    """
    ends: dict[int, int] = {}
    for one in (partition for node in nodes for partition in node.partitions):
        ends[one.offsets_partition] = max(one.end_offset, ends.get(one.offsets_partition, 0))
    return {number: ends[number] for number in sorted(ends) if number != NODE_PARTITION}


def is_wanted(
    change: m.OffsetChange, group_ids: Collection[str] | None, topics: Collection[str] | None
) -> bool:
    """Say whether *change* is about one of the groups, and may be about one of the topics."""
    is_of_group = group_ids is None or change.group_id in group_ids
    return is_of_group and (topics is None or not change.topic or change.topic in topics)


def _event_of(number: int, change: m.OffsetChange) -> OffsetEvent:
    is_group = change.kind == GROUP_DELETED
    is_offset = change.kind == COMMITTED
    return OffsetEvent(
        change.timestamp_ms,
        change.kind,
        change.group_id,
        None if is_group else change.topic,
        None if is_group else change.partition,
        change.offset if is_offset else None,
        change.leader_epoch if is_offset else None,
        change.metadata if is_offset else None,
        number,
        change.position,
    )
