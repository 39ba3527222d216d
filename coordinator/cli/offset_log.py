"""Committed offsets as the coordinator keeps them: what there is, and what changes.

Theory of operation
===================

Each offsets partition has a log. A scan goes through memory page by page while commits go on, so
alone it is no state that ever was. With the changes from its first page's position on, up to its
last page's, it is exactly what was committed at that position: that is `read_all`, for a file that
can be trusted.

`Feed` goes on from there. Once a round it asks where the logs end, which is one request, and reads
those that have grown. It keeps a position for each partition, so it doesn't matter whether the
coordinator was away meanwhile. A position that the log no longer reaches back to, after a
compaction, can only be followed by a scan of what is there; so can another coordinator's log.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from coordinator.cli.common import AskFailed, Coordinator, describe_error
from coordinator.cli.grammar import PROGRAM
from protocol import messages as m
from protocol.codec import scanned_offsets
from protocol.errors import ERRORS, ErrorCode, ProtocolError, Remedy
from protocol.group_ids import NODE_PARTITION

OFFSETS_PER_PAGE: Final = 20_000
CHANGES_PER_PAGE: Final = 2_000
# So often a compaction may overtake a scan before it is given up.
SCANS_MAX: Final = 5
_GROUPS_PER_REQUEST: Final = 1_000

COMMITTED: Final = "committed"
REMOVED: Final = "removed"
GROUP_DELETED: Final = "group deleted"
# Not of the log: what a scan begins, and what it found.
SCAN: Final = "scan"
FOUND: Final = "found"

_PASSES: Final = frozenset(
    code for code, info in ERRORS.items() if info.remedy in {Remedy.RETRY, Remedy.FIND_COORDINATOR}
)


class OffsetEvent(NamedTuple):
    """Something that happened to committed offsets, or that a scan found.

    A ``scan`` of an offsets partition says that everything known of it is void: what is there
    follows as ``found``. None is what an event has not.
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


def passes(exc: AskFailed) -> bool:
    """Say whether the coordinator may well answer the same request in a moment."""
    return exc.code in _PASSES


def offsets_partitions(
    coordinator: Coordinator, group_ids: Sequence[str] | None
) -> dict[int, list[str] | None]:
    """Return the offsets partitions that keep these groups, with which of them; None is all.

    Raises:
        AskFailed: A group's name is not legal, or it can't be asked for.
    """
    if group_ids is None:
        return dict.fromkeys(sorted(log_ends(coordinator)))
    found: dict[int, list[str] | None] = {}
    for at in range(0, len(group_ids), _GROUPS_PER_REQUEST):
        request = m.FindCoordinatorRequest(0, tuple(group_ids[at : at + _GROUPS_PER_REQUEST]))
        for one in coordinator.ask(request).coordinators:
            if one.error:
                raise AskFailed(describe_error(one.error, one.message), one.error)
            groups = found.setdefault(one.offsets_partition, [])
            assert groups is not None
            groups.append(one.group_id)
    return dict(sorted(found.items()))


def log_ends(coordinator: Coordinator) -> dict[int, int]:
    """Return where the log of each offsets partition ends, what isn't on disk yet included."""
    answer: m.DescribeNodeResponse = coordinator.ask(m.DescribeNodeRequest())
    return {
        one.offsets_partition: one.end_offset
        for one in answer.partitions
        if one.offsets_partition != NODE_PARTITION
    }


class Scan:
    """One pass over what is committed in an offsets partition.

    Attributes:
        start: Where the changes begin that belong to it; known after the first page.
        end: Where the log ended when the last page was made; known after that.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        offsets_partition: int,
        group_ids: Collection[str] | None,
        topics: Collection[str] | None,
    ) -> None:
        self.start = self.end = -1
        self._coordinator = coordinator
        self._request = m.ScanOffsetsRequest(
            offsets_partition,
            b"",
            OFFSETS_PER_PAGE,
            in_columns=True,
            group_ids=None if group_ids is None else tuple(group_ids),
            topics=None if topics is None else tuple(topics),
        )

    def __iter__(self) -> Iterator[m.ScannedOffset]:
        """Read it.

        Raises:
            AskFailed: It can't be read.
        """
        request = self._request
        while True:
            answer: m.ScanOffsetsResponse = self._coordinator.ask(request)
            self.start = answer.position if self.start < 0 else self.start
            self.end = answer.position
            for columns in answer.columns:
                try:
                    yield from scanned_offsets(columns)
                except ProtocolError as exc:
                    raise AskFailed(f"a page of offsets can't be read: {exc}") from exc
            if not answer.cursor:
                return
            request = structs.replace(request, cursor=answer.cursor)


def read_changes(
    coordinator: Coordinator, offsets_partition: int, position: int
) -> m.ReadOffsetChangesResponse:
    """Return the changes from *position* on that are on disk, a page of them.

    Raises:
        AskFailed: With code 1008, the log doesn't reach back so far.
    """
    request = m.ReadOffsetChangesRequest(offsets_partition, position, CHANGES_PER_PAGE)
    answer: m.ReadOffsetChangesResponse = coordinator.ask(request)
    return answer


def read_all(
    coordinator: Coordinator,
    offsets_partition: int,
    group_ids: Collection[str] | None,
    topics: Collection[str] | None,
) -> list[m.ScannedOffset]:
    """Return what was committed in an offsets partition at one moment, sorted.

    Raises:
        AskFailed: It can't be read.
    """
    for _ in range(SCANS_MAX):
        try:
            return _read_once(coordinator, offsets_partition, group_ids, topics)
        except AskFailed as exc:
            if exc.code != ErrorCode.POSITION_TOO_OLD:
                raise
    raise AskFailed(
        f"offsets partition {offsets_partition} was compacted {SCANS_MAX} times while it was read"
    )


def _read_once(
    coordinator: Coordinator,
    offsets_partition: int,
    group_ids: Collection[str] | None,
    topics: Collection[str] | None,
) -> list[m.ScannedOffset]:
    scan = Scan(coordinator, offsets_partition, group_ids, topics)
    found = {(one.group_id, one.topic, one.partition): one for one in scan}
    position = scan.start
    while position < scan.end:
        page = read_changes(coordinator, offsets_partition, position)
        for change in page.changes:
            if change.position >= scan.end:
                break
            if not is_wanted(change, group_ids, topics):
                continue
            if change.kind == COMMITTED:
                key = (change.group_id, change.topic, change.partition)
                found[key] = m.ScannedOffset(
                    *key,
                    change.offset,
                    change.leader_epoch,
                    change.metadata,
                    change.timestamp_ms,
                    -1,
                )
            elif change.kind == REMOVED:
                found.pop((change.group_id, change.topic, change.partition), None)
            else:
                for key in [key for key in found if key[0] == change.group_id]:
                    del found[key]
        if page.next_position <= position:
            raise AskFailed(f"offsets partition {offsets_partition} ends before {scan.end}")
        position = page.next_position
    return [found[key] for key in sorted(found)]


def is_wanted(
    change: m.OffsetChange, group_ids: Collection[str] | None, topics: Collection[str] | None
) -> bool:
    """Say whether *change* is about one of the groups, and may be about one of the topics."""
    is_of_group = group_ids is None or change.group_id in group_ids
    return is_of_group and (topics is None or not change.topic or change.topic in topics)


class Feed:
    """What happens to committed offsets, from now on or with what there is in front.

    Each round is a `connect`, and then `events`, which yields what is new. A round may end with an
    error: the next one goes on where it was.
    """

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

    def connect(self, coordinator: Coordinator) -> None:
        """See who is there: where to begin, or whether it is another coordinator by now.

        Raises:
            AskFailed: The coordinator can't be asked, or not at the moment.
        """
        answer: m.ApiVersionsResponse = coordinator.ask(m.ApiVersionsRequest(PROGRAM, PROGRAM, ""))
        if answer.cluster_id == self._cluster_id:
            return
        groups = offsets_partitions(coordinator, self._group_ids)
        positions: dict[int, int | None] = dict.fromkeys(groups)
        if self._cluster_id is not None:
            self._tell(
                f"Another coordinator answers, of the cluster {answer.cluster_id}: what it has "
                "is scanned anew."
            )
        elif not self._from_beginning:
            for number in groups:
                # A scan of nothing: it is answered once its position is on disk.
                scan = Scan(coordinator, number, (), ())
                list(scan)
                positions[number] = scan.start
        self._groups, self._positions = groups, positions
        self._cluster_id = answer.cluster_id

    def events(self, coordinator: Coordinator) -> Iterator[OffsetEvent]:
        """Yield what has happened since the last round.

        Raises:
            AskFailed: The coordinator can't be asked, or not at the moment.
        """
        ends = log_ends(coordinator)
        for number, position in self._positions.items():
            if position is None:
                yield from self._scan(coordinator, number)
            elif ends.get(number, position) != position:
                yield from self._changes(coordinator, number, position)

    def _scan(self, coordinator: Coordinator, number: int) -> Iterator[OffsetEvent]:
        scan = Scan(coordinator, number, self._groups[number], self._topics)
        is_begun = False
        for one in scan:
            if not is_begun:
                yield _scan_begins(number, scan.start)
                is_begun = True
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
                scan.start,
            )
        if not is_begun:
            yield _scan_begins(number, scan.start)
        self._positions[number] = scan.start

    def _changes(
        self, coordinator: Coordinator, number: int, position: int
    ) -> Iterator[OffsetEvent]:
        is_more = True
        while is_more:
            try:
                page = read_changes(coordinator, number, position)
            except AskFailed as exc:
                if exc.code != ErrorCode.POSITION_TOO_OLD:
                    raise
                self._tell(
                    f"The log of offsets partition {number} no longer has the changes from "
                    f"{position} on: what is committed is scanned anew."
                )
                yield from self._scan(coordinator, number)
                return
            for one in page.changes:
                if is_wanted(one, self._groups[number], self._topics):
                    yield _event_of(number, one)
            self._positions[number] = position = page.next_position
            is_more = position < page.end_position


def _scan_begins(number: int, position: int) -> OffsetEvent:
    return OffsetEvent(None, SCAN, None, None, None, None, None, None, number, position)


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
