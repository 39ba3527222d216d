"""A scripted server with the real group core behind it: no log, no sockets, virtual time."""

import itertools
import math
from typing import Final

import trio

from coordinator.group.core import Caller, GroupConfig, Now, Outcome
from coordinator.group.shard import GroupShard
from protocol import messages as m
from protocol.connection import RequestEvent, encode_response
from tests.fakes.scripted_server import ScriptedServer, Step
from tests.packed import fetched

WALL_MS: Final = 1_700_000_000_000
_OF_THE_CORE: Final = (
    m.JoinGroupRequest,
    m.SyncGroupRequest,
    m.HeartbeatRequest,
    m.LeaveGroupRequest,
    m.OffsetCommitRequest,
)


class GroupServer(ScriptedServer):
    """Requests of members are answered by the core; `run` lets its timers fire.

    Attributes:
        events: What operators would see.

    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[tuple[str, dict[str, object]]] = []
        config = GroupConfig(group_initial_rebalance_delay_ms=500)
        ids = itertools.count(1)
        self.shard = GroupShard(config=config, new_uuid=lambda: f"{next(ids):032x}")
        self.shard.loaded(_now())
        self._tokens = itertools.count()
        self._answers: dict[object, m.Response] = {}
        self._changed = trio.Event()

    async def run(self) -> None:
        """Act on deadlines, for ever."""
        while True:
            for outcome in self.shard.expire(_now()):
                self._take(outcome)
            deadline_ms = self.shard.next_deadline_ms()
            changed = self._changed
            with trio.move_on_at(math.inf if deadline_ms is None else deadline_ms / 1000):
                await changed.wait()

    def expire_in(self, ms: int) -> None:
        """Let *ms* pass for the core at once, with nobody heard meanwhile."""
        self.shard.shift_deadlines(-ms)
        for outcome in self.shard.expire(_now()):
            self._take(outcome)

    async def _perform(
        self,
        event: RequestEvent,
        step: Step | None,
        stream: trio.abc.Stream,
        sending: trio.Lock,
    ) -> None:
        request = event.request
        if step is not None or not isinstance(request, _OF_THE_CORE):
            await super()._perform(event, step, stream, sending)
            return
        token = next(self._tokens)
        self._take(self.shard.handle(request, token, Caller("client", "192.0.2.1"), _now()))
        while token not in self._answers:
            await self._changed.wait()
        answer = self._answers.pop(token)
        data = encode_response(event.dialect, event.correlation_id, answer)
        async with sending:
            await stream.send_all(data)

    def _fetch(self, fetch: m.GroupFetch) -> m.GroupOffsets:
        return fetched(self.shard, fetch)

    def _take(self, outcome: Outcome) -> None:
        self.events += outcome.events
        for token, response, _, gated, member in outcome.replies:
            self._answers[token] = response
            if gated and member is not None:
                self.shard.released(member, _now())
        changed, self._changed = self._changed, trio.Event()
        changed.set()


def _now() -> Now:
    now_ms = math.ceil(trio.current_time() * 1000)
    return Now(now_ms, WALL_MS + now_ms)
