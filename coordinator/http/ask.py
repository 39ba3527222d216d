"""Looks at groups and topics as a client's request does: what is shown is on disk.

A look goes through the gate of its shard. So a partition that is loaded just now refuses it, and
what it saw waits until the log is durable up to there.
"""

from collections.abc import Callable, Iterable
from itertools import chain, islice
from typing import Any, Final, Generic, TypeVar

import trio

from coordinator.group.node_shard import NodeShard
from coordinator.group.shard import GroupShard
from coordinator.http.routes import Pause, Refused
from coordinator.http.viewer import Viewer
from coordinator.names import COMPARED_MAX, did_you_mean, shortened
from coordinator.runtime.coordination import Coordination, address_of
from coordinator.runtime.node import Node
from coordinator.runtime.shard import ShardRunner, Status
from protocol.errors import ErrorCode
from protocol.group_ids import group_id_error

T = TypeVar("T")

# Names that one turn looks at, of those that somebody may have meant.
_TURN_NAMES: Final = 1_000
# Comparing letter by letter is slow: only with those that begin alike, and not with many.
_NEAR_CHARS: Final = 3
_NEAR_MAX: Final = 100


class _Waiting(Generic[T]):
    """The token of one look; *elsewhere* names the node that can tell, or why none can, or ""."""

    __slots__ = ("_done", "_elsewhere", "error", "seen")

    def __init__(self, elsewhere: str) -> None:
        self._done = trio.Event()
        self._elsewhere = elsewhere
        self.seen: T | None = None
        self.error = 0

    def prepare(self, answer: T, _leader_epoch: int, _error: int | None = None) -> T:
        """Return what was seen, as it is."""
        return answer

    def renew(self, prepared: T, _leader_epoch: int) -> T:
        """Return the same."""
        return prepared

    def send(self, prepared: T) -> None:
        """It may be shown."""
        self.seen = prepared
        self._done.set()

    def fail(self, error: int, _leader_epoch: int) -> None:
        """It may not."""
        self.error = error
        self._done.set()

    async def wait(self) -> T:
        """Return what was seen. Raises Refused."""
        await self._done.wait()
        if self.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            detail = "its partition of the offsets log is being loaded"
        elif self.error == ErrorCode.OUTCOME_UNKNOWN:
            detail = "what it would show is not on disk yet, which takes long"
        elif self.error:
            detail = self._elsewhere or "its partition of the offsets log is not served"
        else:
            seen: Any = self.seen
            return seen  # type: ignore[no-any-return]  # None is a T where it was seen
        raise Refused(503, detail, retry_after_s=1)


class Asker:
    """Asks the shards of one node."""

    def __init__(self, node: Node, coordination: Coordination, pause: Pause) -> None:
        self._node = node
        self._coordination = coordination
        self._pause = pause

    def shard_of(self, group_id: str) -> ShardRunner[GroupShard]:
        """Return the shard of a group, whether there is such a one or not.

        Raises:
            Refused: There can be none.
        """
        problem = group_id_error(group_id)
        if problem is not None:
            raise Refused(404, f"there is no group {shortened(group_id)}: {problem}")
        return self._node.shard_of(group_id)

    async def group(self, group_id: str, look: Callable[[GroupShard], T], viewer: Viewer) -> T:
        """Return what *look* sees, once what is kept of the group is on disk.

        What *viewer* sees is what he may have meant.

        Raises:
            Refused: There is no such group, or its shard can't be asked now.
        """
        shard = self.shard_of(group_id)
        waiting: _Waiting[tuple[T, ...]] = _Waiting(self._elsewhere(shard))

        def look_if_there() -> tuple[T, ...]:
            return (look(shard.core),) if group_id in shard.core.groups else ()

        # That there is none has to be on disk, too.
        shard.read(group_id, waiting, look_if_there, self._node.now())
        for seen in await waiting.wait():
            return seen
        raise await self.no_group(group_id, viewer)

    async def topics(self, look: Callable[[NodeShard], T]) -> T:
        """Return what *look* sees, once all that is known of topics is on disk."""
        registry = self._node.registry
        waiting: _Waiting[T] = _Waiting(self._elsewhere(registry))
        registry.read(None, waiting, lambda: look(registry.core), self._node.now())
        return await waiting.wait()

    def _elsewhere(self, shard: ShardRunner[Any]) -> str:
        reason = self._coordination.why_unled(shard.partition)
        if shard.status is not Status.FOLLOWING:
            return reason
        leader = self._coordination.leader_of(shard.partition)
        if leader is None:
            no_leader = "no node leads its partition of the offsets log at the moment"
            return f"{no_leader}: {reason}" if reason else no_leader
        return f"node {leader.node_id}, at {address_of(leader.endpoints)}, shows it"

    async def no_group(self, group_id: str, viewer: Viewer) -> Refused:
        """Return what says that there is no such group, and which one may have been meant."""
        names = chain.from_iterable(list(shard.core.groups) for shard in self._node.shards)
        return await self._nothing("group", group_id, names, viewer.lists_group)

    async def no_topic(self, topic: str, viewer: Viewer) -> Refused:
        """Return what says that there is no such topic."""
        names = self._node.registry.core.registry.names()
        return await self._nothing("topic", topic, names, viewer.sees_topic)

    async def _nothing(
        self, kind: str, name: str, names: Iterable[str], is_seen: Callable[[str], bool]
    ) -> Refused:
        beginning = name.casefold()[:_NEAR_CHARS]
        near: list[str] = []
        left = islice(names, COMPARED_MAX)
        while len(near) < _NEAR_MAX and (some := list(islice(left, _TURN_NAMES))):
            begun = (other for other in some if other.casefold().startswith(beginning))
            near += filter(is_seen, begun)
            await self._pause()
        hint = did_you_mean(name, near[:_NEAR_MAX], shortened)
        return Refused(404, f"there is no {kind} {shortened(name)}.{hint}")
