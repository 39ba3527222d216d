"""All offsets of an offsets partition, and the stream of their changes."""

import struct
from collections.abc import AsyncIterator, Collection
from typing import Final, NamedTuple

import msgpack
from msgspec import structs

from client.exceptions import FatalError, code_text
from client.router import Router
from protocol.errors import ErrorCode
from protocol.messages import (
    OffsetChange,
    OffsetColumns,
    ReadOffsetChangesRequest,
    ReadOffsetChangesResponse,
    ScannedOffset,
    ScanOffsetsRequest,
    ScanOffsetsResponse,
)

CHANGES_PER_PAGE: Final = 5_000
OFFSETS_PER_PAGE: Final = 20_000
NO_POSITION: Final = -1
NO_EXPIRY: Final = -1


class PositionTooOld(FatalError):
    """The changes from this position on are no longer there, or never were: scan anew."""


class OffsetChanges(NamedTuple):
    """Some changes in their order, and where to go on.

    ``next_position`` may have moved although nothing changed. It is ``end_position`` if there is
    nothing more to read at the moment.
    """

    changes: tuple[OffsetChange, ...]
    next_position: int
    end_position: int


class ColumnScan:
    """One pass over an offsets partition: ``async for`` yields offsets, `page` their columns.

    Attributes:
        position: Where the changes begin that belong to this scan; -1 before the first page
            was read. What the scan returned, with all changes from here on applied, is exactly
            what is committed at the end of those changes. Without them it is not a state that
            ever was: commits go on between two pages.

    """

    def __init__(
        self,
        router: Router,
        offsets_partition: int,
        timeout_ms: int,
        group_ids: Collection[str] | None,
        topics: Collection[str] | None,
    ) -> None:
        """Use `client.Client.scan_offset_columns` instead."""
        self.position = NO_POSITION
        self._router = router
        self._timeout_ms = timeout_ms
        self._request: ScanOffsetsRequest | None = ScanOffsetsRequest(
            offsets_partition,
            b"",
            OFFSETS_PER_PAGE,
            in_columns=True,
            group_ids=None if group_ids is None else tuple(group_ids),
            topics=None if topics is None else tuple(topics),
        )

    async def __aiter__(self) -> AsyncIterator[ScannedOffset]:
        while page := await self.page():
            for offset in offsets_of_page(page):
                yield offset

    async def page(self) -> OffsetColumns | None:
        """Return the next offsets, in the order of (group, topic, partition); None at the end."""
        while self._request is not None:
            response = await self._ask(self._request)
            if self.position == NO_POSITION:
                self.position = response.position
            following = structs.replace(self._request, cursor=response.cursor)
            self._request = following if response.cursor else None
            for columns in response.columns:
                if columns.counts:
                    return columns
        return None

    async def _ask(self, request: ScanOffsetsRequest) -> ScanOffsetsResponse:
        reply = await self._router.call(
            request, group_id=None, timeout_ms=self._timeout_ms, changes_state=False
        )
        response = reply.response
        assert isinstance(response, ScanOffsetsResponse)
        if response.error != ErrorCode.NONE:
            text = f"no scan of offsets partition {request.offsets_partition}"
            raise FatalError(f"{text}: {code_text(response.error)}", code=response.error)
        return response


def offsets_of_page(page: OffsetColumns) -> list[ScannedOffset]:
    """Return the offsets of a page one by one.

    Raises:
        FatalError: The page is not what the protocol says.
    """
    try:
        rows = msgpack.Unpacker(max_buffer_size=0)
        rows.feed(page.rows)
        counts = struct.unpack(f">{len(page.topics)}I", page.counts)
        runs = zip(page.group_ids, page.topics, counts, strict=True)
        names = [(group, topic) for group, topic, count in runs for _ in range(count)]
        committed_ms = struct.unpack(f">{len(names)}q", page.committed_ms)
        expire_ms: tuple[int, ...] = (NO_EXPIRY,) * len(names)
        if page.expire_ms:
            expire_ms = struct.unpack(f">{len(names)}q", page.expire_ms)
        return [
            ScannedOffset(*name, partition, offset, leader_epoch, metadata, committed, expires)
            for name, (partition, offset, leader_epoch, metadata, _), committed, expires in zip(
                names, rows, committed_ms, expire_ms, strict=True
            )
        ]
    except (ValueError, TypeError, struct.error) as exc:
        raise FatalError(f"a page of a scan can't be read: {exc}") from exc


async def read_changes(
    router: Router, offsets_partition: int, position: int, max_changes: int, timeout_ms: int
) -> OffsetChanges:
    """Return changes from *position* on; see `client.Client.offset_changes`."""
    reply = await router.call(
        ReadOffsetChangesRequest(offsets_partition, position, max_changes),
        group_id=None,
        timeout_ms=timeout_ms,
        changes_state=False,
    )
    response = reply.response
    assert isinstance(response, ReadOffsetChangesResponse)
    if response.error == ErrorCode.NONE:
        return OffsetChanges(response.changes, response.next_position, response.end_position)
    text = f"no changes of offsets partition {offsets_partition} from {position} on"
    kind = PositionTooOld if response.error == ErrorCode.POSITION_TOO_OLD else FatalError
    raise kind(f"{text}: {code_text(response.error)}", code=response.error)
