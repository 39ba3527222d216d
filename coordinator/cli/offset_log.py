"""Committed offsets as the coordinator keeps them: what there is, and what changes.

Theory of operation
===================

Each offsets partition has a log. A scan goes through memory page by page while commits go on, so
alone it is no state that ever was. With the changes from its first page's position on, up to its
last page's, it is exactly what was committed at that position: that is `read_all`, for a file that
can be trusted.

`Feed` goes on from there; the rules are those of `protocol.offset_feed`.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

from msgspec import structs

from coordinator.cli.common import AskFailed, Coordinator, describe_error
from coordinator.cli.grammar import PROGRAM
from protocol import messages as m
from protocol.codec import scanned_offsets
from protocol.errors import ERRORS, ErrorCode, ProtocolError, Remedy
from protocol.offset_feed import (
    CHANGES_PER_PAGE,
    COMMITTED,
    REMOVED,
    OffsetEvent,
    OffsetFeed,
    Steps,
    is_wanted,
    log_ends,
    scan_request,
)

# So often a compaction may overtake a scan before it is given up.
SCANS_MAX: Final = 5
_GROUPS_PER_REQUEST: Final = 1_000

_PASSES: Final = frozenset(
    code for code, info in ERRORS.items() if info.remedy in {Remedy.RETRY, Remedy.FIND_COORDINATOR}
)


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
        return dict.fromkeys(log_ends(coordinator.ask_leaders(m.DescribeNodeRequest())))
    found: dict[int, list[str] | None] = {}
    for at in range(0, len(group_ids), _GROUPS_PER_REQUEST):
        some = tuple(group_ids[at : at + _GROUPS_PER_REQUEST])
        request = m.FindCoordinatorRequest(m.KEY_TYPE_GROUP, some)
        for one in _found(coordinator, request).coordinators:
            groups = found.setdefault(one.offsets_partition, [])
            assert groups is not None
            groups.append(one.group_id)
    return dict(sorted(found.items()))


def _found(
    coordinator: Coordinator, request: m.FindCoordinatorRequest
) -> m.FindCoordinatorResponse:
    answer: m.FindCoordinatorResponse = coordinator.ask(request)
    for one in answer.coordinators:
        if one.error:
            raise AskFailed(describe_error(one.error, one.message), one.error)
    return answer


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
        self._request = scan_request(offsets_partition, group_ids, topics)

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


class Feed:
    """What happens to committed offsets, as `protocol.offset_feed.OffsetFeed` knows it.

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
        self._feed = OffsetFeed(group_ids, topics, from_beginning=from_beginning, tell=tell)

    def connect(self, coordinator: Coordinator) -> None:
        """See who is there: where to begin, or whether it is another coordinator by now.

        Raises:
            AskFailed: The coordinator can't be asked, or not at the moment.
        """
        hello = m.ApiVersionsRequest(PROGRAM, PROGRAM, "")
        answer: m.ApiVersionsResponse = coordinator.ask(hello)
        for _ in _answered(self._feed.connect(answer.cluster_id), coordinator):
            raise AssertionError

    def events(self, coordinator: Coordinator) -> Iterator[OffsetEvent]:
        """Yield what has happened since the last round.

        Raises:
            AskFailed: The coordinator can't be asked, or not at the moment.
        """
        return _answered(self._feed.events(), coordinator)


def _answered(steps: Steps, coordinator: Coordinator) -> Iterator[OffsetEvent]:
    answer: Any = None
    with suppress(StopIteration):
        while True:
            try:
                step = steps.send(answer)
            except ProtocolError as exc:
                raise AskFailed(f"a page of offsets can't be read: {exc}") from exc
            answer = None
            if isinstance(step, OffsetEvent):
                yield step
            else:
                answer = _answer(coordinator, step)


def _answer(coordinator: Coordinator, request: m.Request) -> object:
    if isinstance(request, m.FindCoordinatorRequest):
        return _found(coordinator, request)
    if isinstance(request, m.DescribeNodeRequest):
        return coordinator.ask_leaders(request)
    try:
        answer: m.Response = coordinator.ask(request)
    except AskFailed as exc:
        if exc.code != ErrorCode.POSITION_TOO_OLD:
            raise
        return m.ReadOffsetChangesResponse(exc.code, (), -1, -1)
    return answer
