"""Scans: all committed offsets of a shard, page by page. Read-only.

Theory of operation
===================

A page takes long. It is therefore made in steps, and limited in rows, in bytes, and in the groups
and topics read. Offsets are sent as columns. Each topic costs as much as ten additional rows.

Changes during a page may or may not appear in it. Its position is therefore the end of the log when
the page began: the changes from there on include all of them.

The order of the groups is computed for the first page and kept for the next ones. Groups created
later are missing in it, but not in the changes from the first page's position on.
"""

import bisect
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from coordinator.group.core import Core
from coordinator.group.lag import STEP_LOOKS, Order, in_order, numbers_in_order
from coordinator.group.records import PACKED_NO_EXPIRY, StoredOffsets
from protocol.codec import encode
from protocol.errors import ErrorCode
from protocol.messages import OffsetColumns, ScanOffsetsRequest, ScanOffsetsResponse

SCAN_PAGE_MAX: Final = 20_000
# Maximum groups, and topics of groups, read per page, even if they have nothing to show.
SCAN_LOOKS_MAX: Final = 20_000
_RUN_ROWS: Final = 10
# Maximum bytes of a page, never underestimated; half of the largest answer if that is smaller.
SCAN_PAGE_BYTES: Final = 8 * 1024 * 1024
_NUMBERS_BYTES: Final = 64
_COLUMNS_BYTES: Final = 18  # Bytes per row: its size and two times.

_LENGTHS: Final = struct.Struct(">HHI")  # Bytes of group and topic, and the partition.


class Cursor(NamedTuple):
    """End of a page of a scan: the next page begins after it."""

    group_id: str
    topic: str
    partition: int

    def encode(self) -> bytes:
        """Return the bytes that clients send back for the next page."""
        group_id, topic = self.group_id.encode(), self.topic.encode()
        return _LENGTHS.pack(len(group_id), len(topic), self.partition) + group_id + topic


def decode_cursor(data: bytes) -> Cursor:
    """Return the cursor in *data*.

    Raises:
        ValueError: The bytes are not a cursor.
    """
    try:
        group_bytes, topic_bytes, partition = _LENGTHS.unpack_from(data)
    except struct.error as exc:
        raise ValueError(str(exc)) from exc
    start = _LENGTHS.size
    middle = start + group_bytes
    if len(data) != middle + topic_bytes:
        raise ValueError(f"a cursor of {len(data)} bytes")
    return Cursor(data[start:middle].decode(), data[middle:].decode(), partition)


class _Run(NamedTuple):
    """Partitions of one topic of one group that may be added to a page."""

    group_id: str
    topic: str
    stored: StoredOffsets
    partitions: Sequence[int]


class _Page:
    """A page in the making, its offsets packed. At least one offset fits."""

    def __init__(self, max_offsets: int, room: int) -> None:
        self._left = max_offsets
        self._work_left = SCAN_PAGE_MAX
        self._room = room
        self._names: list[tuple[str, str]] = []  # Pairs of group and topic.
        self._counts: list[int] = []
        self._rows: list[bytes] = []  # Packed, like the following lists.
        self._sizes: list[bytes] = []
        self._committed_ms: list[bytes] = []
        self._expire_ms: list[bytes] = []

    def take(self, run: _Run) -> int:
        """Add the first partitions of *run* that fit; return their number."""
        most = max(0, min(self._left, self._work_left))
        is_new = self._names[-1:] != [(run.group_id, run.topic)]
        room = self._room
        if is_new:
            room -= 4 * (len(run.group_id) + len(run.topic)) + _NUMBERS_BYTES
        rows: list[bytes] = []
        for partition in run.partitions[:most]:
            row = encode(run.stored.offsets[partition])
            left = room - len(row) - _COLUMNS_BYTES
            if left < 0 and (rows or self._rows):
                break
            room = left
            rows.append(row)
        if not rows:
            return 0
        self._left -= len(rows)
        self._work_left -= len(rows)
        self._room = room
        if is_new:
            self._work_left -= _RUN_ROWS
            self._names.append((run.group_id, run.topic))
            self._counts.append(0)
        self._counts[-1] += len(rows)
        self._rows.append(b"".join(rows))
        self._sizes.append(struct.pack(f">{len(rows)}H", *map(len, rows)))
        committed_ms, expire_ms = run.stored.packed_times(run.partitions[: len(rows)])
        self._committed_ms.append(committed_ms)
        self._expire_ms.append(expire_ms)
        return len(rows)

    def answer(self, position: int, cursor: bytes) -> ScanOffsetsResponse:
        expire_ms = b"".join(self._expire_ms)
        columns = OffsetColumns(
            tuple([group_id for group_id, _ in self._names]),
            tuple([topic for _, topic in self._names]),
            struct.pack(f">{len(self._counts)}I", *self._counts),
            b"".join(self._rows),
            b"".join(self._sizes),
            b"".join(self._committed_ms),
            b"" if expire_ms == PACKED_NO_EXPIRY * sum(self._counts) else expire_ms,
        )
        return ScanOffsetsResponse(ErrorCode.NONE.value, position, (), cursor, (columns,))


class Scans:
    """Reads all offsets of a shard, page by page, in the order of group, topic, partition."""

    __slots__ = ("_core", "_order")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._order = Order(core)

    def stop(self) -> None:
        """Drop the order kept for running scans."""
        self._order.forget()

    def page(
        self, request: ScanOffsetsRequest, position: Callable[[], int]
    ) -> Generator[None, None, ScanOffsetsResponse]:
        """Return the next page; *position* returns the end offset of the log state in memory.

        Error 42: max_offsets is 0, or the cursor is invalid.
        """
        try:
            after = decode_cursor(request.cursor) if request.cursor else None
        except ValueError:
            after = None
            is_valid = False
        else:
            is_valid = request.max_offsets > 0
        if not is_valid:
            return ScanOffsetsResponse(ErrorCode.INVALID_REQUEST.value, -1, (), b"")
        begun_at = position()
        room = min(SCAN_PAGE_BYTES, self._core.config.max_response_bytes // 2)
        page = _Page(min(request.max_offsets, SCAN_PAGE_MAX), room)
        cursor = yield from self._fill(page, request, after)
        return page.answer(begun_at, b"" if cursor is None else cursor.encode())

    def _fill(
        self, page: _Page, request: ScanOffsetsRequest, after: Cursor | None
    ) -> Generator[None, None, Cursor | None]:
        """Fill *page*; return the cursor for the next one, None if nothing is left."""
        last = after
        for found in self._runs(request, after):
            if isinstance(found, Cursor):
                return found
            if found is not None:
                taken = page.take(found)
                if taken:
                    last = Cursor(found.group_id, found.topic, found.partitions[taken - 1])
                if taken < len(found.partitions):
                    return last
            yield
        if request.group_ids is None:
            self._order.forget()
        return None

    def _runs(
        self, request: ScanOffsetsRequest, after: Cursor | None
    ) -> Iterator[_Run | Cursor | None]:
        """Yield the runs after *after*, then a cursor if there may be more; None is a pause."""
        if request.group_ids is None:
            group_ids = yield from self._order.group_ids(is_first_page=after is None)
        else:
            group_ids = yield from in_order(request.group_ids)
        topics = None if request.topics is None else frozenset(request.topics)
        start = 0 if after is None else bisect.bisect_left(group_ids, after.group_id)
        looks = 0
        for n in range(start, len(group_ids)):
            group_id = group_ids[n]
            if looks >= SCAN_LOOKS_MAX:
                yield Cursor(group_id, "", 0)  # No topic has an empty name.
                return
            looks += 1
            yield None
            group = self._core.groups.get(group_id)
            if group is None:
                continue
            offsets = group.offsets
            if topics is not None:
                looks += min(len(offsets), len(topics))
            for topic in (
                yield from in_order(offsets if topics is None else _both(offsets, topics))
            ):
                stored = offsets.get(topic)
                if stored is not None:  # Otherwise removed since the names were sorted.
                    yield from _runs_of(group_id, topic, stored, after)


def _runs_of(
    group_id: str, topic: str, stored: StoredOffsets, after: Cursor | None
) -> Iterator[_Run | None]:
    if after is not None and (group_id, topic) < after[:2]:
        return
    partitions = yield from numbers_in_order(stored)
    if after is not None and (group_id, topic) == after[:2]:
        partitions = partitions[bisect.bisect_right(partitions, after.partition) :]
    for at in range(0, len(partitions), STEP_LOOKS):
        some = [partition for partition in partitions[at : at + STEP_LOOKS] if partition in stored]
        yield _Run(group_id, topic, stored, some)


def _both(offsets: Mapping[str, StoredOffsets], topics: frozenset[str]) -> list[str]:
    """Return the topics in both, in the time of the smaller one."""
    if len(offsets) < len(topics):
        return [topic for topic in offsets if topic in topics]
    return [topic for topic in topics if topic in offsets]
