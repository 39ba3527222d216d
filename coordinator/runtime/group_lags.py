"""The lag of all groups, for whoever asks, and once a minute for what is told of its change.

Both go over all groups of the node, which may take long. So they are tasks, which pause whenever
they have held up everybody else for half a millisecond. One request is answered after the other.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

import trio

from coordinator.group.core import Now
from coordinator.group.lag import Turn
from coordinator.group.lag_samples import MINUTE_MS
from coordinator.group.scans import Cursor, decode_cursor
from coordinator.group.shard import GroupShard
from coordinator.runtime.calls import Call, CallQueue, gather_lists
from coordinator.runtime.shard import ShardRunner, Status
from protocol.errors import ErrorCode
from protocol.messages import GroupSummary, SummarizeGroupsRequest, SummarizeGroupsResponse

# Packing the answer holds up everybody else.
PAGE_GROUPS_MAX: Final = 2_000
# What a page may take, counted so that it is never less than in the answer; half of the largest
# answer where that is smaller.
PAGE_BYTES: Final = 8 * 1024 * 1024
REQUESTS_WAITING_MAX: Final = 256

_NUMBERS_BYTES: Final = 64
_SAMPLE_BYTES: Final = 9

Shard = ShardRunner[GroupShard]


class GroupLags:
    """Answers SummarizeGroups, and has all lags noted every minute."""

    def __init__(
        self,
        shards: Sequence[Shard],
        now: Callable[[], Now],
        *,
        max_response_bytes: int,
    ) -> None:
        self._shards = shards
        self._now = now
        self._page_bytes = min(PAGE_BYTES, max_response_bytes // 2)
        self._queue: CallQueue[tuple[Cursor | None, Sequence[Shard]]] = CallQueue()

    def submit(self, call: Call, shards: Sequence[Shard]) -> None:
        """Answer *call*, a SummarizeGroups, soon, with the groups of *shards*."""
        request: Any = call.request
        try:
            after = decode_cursor(request.cursor) if request.cursor else None
        except ValueError:
            call.fail(ErrorCode.INVALID_REQUEST, -1)
            return
        if self._queue.is_full_for(call, REQUESTS_WAITING_MAX):
            call.fail(ErrorCode.TOO_MANY_REQUESTS, -1)
        else:
            self._queue.put(call, (after, shards))

    def refuse_all(self, error: int) -> None:
        """Answer what waits with *error*."""
        self._queue.refuse_all(error)

    async def run(self) -> None:
        """Answer until cancelled."""
        await self._queue.run(self._answer)

    async def _answer(self, call: Call, where: tuple[Cursor | None, Sequence[Shard]]) -> None:
        request: Any = call.request
        after, shards = where
        page = _Page(request, self._page_bytes)
        sees_group = call.asker.sees_group

        def answer(groups: tuple[GroupSummary, ...]) -> SummarizeGroupsResponse:
            cursor = b"" if page.end is None else page.end.encode()
            return SummarizeGroupsResponse(ErrorCode.NONE, None, groups, cursor)

        gather = gather_lists(call, answer)
        turn = Turn()
        first, group_id = (0, "") if after is None else (after.partition, after.group_id)
        for shard in shards:
            if shard.partition < first:
                continue
            after_id = group_id if shard.partition == first else ""
            looking = self._fill(page, shard, after_id, sees_group, turn)
            part = gather.part(lambda error: error)
            for _ in shard.read_in_slices(None, part, looking, self._now):
                await trio.lowlevel.checkpoint()
                if call.is_refused():
                    return
            if page.end is not None:
                break
        gather.seal()

    def _fill(
        self,
        page: "_Page",
        shard: Shard,
        after: str,
        sees_group: Callable[[str], bool],
        turn: Turn,
    ) -> Generator[None, None, list[GroupSummary]]:
        """Return the groups of *shard* after *after*, as many as the page has room for."""
        share: list[GroupSummary] = []
        now_ms = self._now().mono_ms
        for group in shard.core.summaries(after, page.request, sees_group, now_ms, turn):
            if group is None:
                yield
                continue
            if page.has_room(group):
                share.append(group)
                after = group.group_id
            if page.is_full:
                page.end = Cursor(after, "", shard.partition)
                break
        return share

    async def run_sampling(self) -> None:
        """Have all lags noted as every minute begins, until cancelled."""
        turn = Turn()
        while True:
            minute = self._now().mono_ms // MINUTE_MS + 1
            # A little more: in floating point, the minute may read as not quite over.
            await trio.sleep_until(minute * MINUTE_MS / 1000 + 0.0005)
            for shard in self._shards:
                if shard.status is Status.FOLLOWING:
                    continue
                for _ in shard.core.sample_lags(minute, turn):
                    await trio.lowlevel.checkpoint()


class _Page:
    """What a page has room for: at least one group.

    Attributes:
        is_full: Whether another one has been refused, or would be.
        end: Where the next page begins: after this group of this offsets partition.
    """

    def __init__(self, request: SummarizeGroupsRequest, room: int) -> None:
        self.request = request
        self.is_full = False
        self.end: Cursor | None = None
        self._groups_left = min(request.max_groups, PAGE_GROUPS_MAX)
        self._room = room
        self._is_empty = True

    def has_room(self, group: GroupSummary) -> bool:
        """Take *group* if it fits, and say so."""
        names = len(group.group_id) + len(group.protocol_type)  # At most 4 bytes a character.
        bytes_ = _NUMBERS_BYTES + 4 * names + _SAMPLE_BYTES * len(group.samples)
        if bytes_ > self._room and not self._is_empty:
            self.is_full = True
            return False
        self._is_empty = False
        self._room -= bytes_
        self._groups_left -= 1
        self.is_full = not self._groups_left
        return True
