"""Stream of changes of committed offsets, for ``async for``."""

import logging
from collections import deque
from collections.abc import Collection, Sequence
from typing import Final, Self

import trio

from client.exceptions import FatalError, RetriableError, code_text, refusal
from client.router import Router, error_of
from protocol import messages as m
from protocol.errors import ErrorCode, RemoteProtocolError
from protocol.offset_feed import OffsetEvent, OffsetFeed, Steps

PAUSE_S: Final = 0.5
_FINE: Final = frozenset((ErrorCode.NONE, ErrorCode.POSITION_TOO_OLD))

logger = logging.getLogger("client.offsets")


class Paged:
    """An iterator over pages without end; a loop that is left may be gone on with by another one.

    No generator: a loop that is left would leave it behind, which trio warns of.
    """

    def __init__(self) -> None:
        self._rest: deque[OffsetEvent] = deque()

    async def page(self) -> list[OffsetEvent]:
        """Return the next ones, at least one."""
        raise NotImplementedError

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> OffsetEvent:
        if not self._rest:
            self._rest.extend(await self.page())
        return self._rest.popleft()


class OffsetWatch(Paged):
    """Changes of committed offsets: ``async for`` yields single events, `page` several.

    It has no end. While the coordinator is away it waits, and then goes on where it was. For one
    task at a time, which uses the one or the other.
    """

    def __init__(
        self,
        router: Router,
        group_ids: Sequence[str] | None,
        topics: Collection[str] | None,
        *,
        from_beginning: bool,
    ) -> None:
        """Use `client.Client.watch_offsets` instead."""
        super().__init__()
        self._router = router
        self._feed = OffsetFeed(
            group_ids, topics, from_beginning=from_beginning, tell=logger.warning
        )
        self._pause_s = 0.0
        # The round under way, if a request of it is to be answered.
        self._steps: Steps = self._round("")
        self._request: m.Request | None = None
        self._cluster_id = ""

    async def page(self) -> list[OffsetEvent]:
        """Wait until something has happened; return it, in its order. Cancelling loses nothing.

        Raises:
            FatalError: Code 24: a group's name is not legal; 35: the coordinator is too old.
        """
        found: list[OffsetEvent] = []
        while not found:
            if self._request is None:
                await trio.sleep(self._pause_s)
                self._pause_s = PAUSE_S
                self._cluster_id = self._router.cluster_id
                self._steps = self._round(self._cluster_id)
                found = self._go_on(None)
                continue
            try:
                answer = await self._ask(self._request)
            except RetriableError:
                self._request = None  # The next round goes on where this one was.
            else:
                found = self._go_on(answer)
        return found

    def _round(self, cluster_id: str) -> Steps:
        yield from self._feed.connect(cluster_id)
        yield from self._feed.events()

    async def _ask(self, request: m.Request) -> object:
        answers: Sequence[m.Response]
        if isinstance(request, m.DescribeNodeRequest):
            answers = await self._router.ask_leaders(request, m.DescribeNodeResponse)
            answer: object = answers
        else:
            answers = [(await self._router.call(request)).response]
            answer = answers[0]
        if self._router.cluster_id != self._cluster_id:
            raise RetriableError("another cluster's coordinator answers")
        for one in answers:
            code = error_of(request, one)
            if code is not None and code not in _FINE:
                raise refusal(f"offsets can't be watched: {code_text(code)}", code)
        return answer

    def _go_on(self, answer: object) -> list[OffsetEvent]:
        """Return the events that come before the next request, which is kept."""
        self._request = None
        found: list[OffsetEvent] = []
        try:
            step = self._steps.send(answer)
            while isinstance(step, OffsetEvent):
                found.append(step)
                step = next(self._steps)
            self._request = step
        except StopIteration:
            pass  # The round is over.
        except RemoteProtocolError as exc:
            raise FatalError(f"a page of a scan can't be read: {exc}") from exc
        return found
