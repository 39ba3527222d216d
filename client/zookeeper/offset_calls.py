"""Offset calls of a client that stores offsets in ZooKeeper, alone or with the coordinator."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

import trio
from msgspec.structs import replace

from client.exceptions import (
    CommitRefused,
    CoordinatorError,
    CoordinatorUnavailable,
    FatalError,
    OutcomeUnknown,
)
from client.offsets import (
    OffsetAndMetadata,
    OffsetCalls,
    Owner,
    commit_refusal,
    commit_request,
    left_ms,
)
from client.router import Router
from client.zookeeper.ensemble import Ensemble
from client.zookeeper.storage import OffsetStorage
from client.zookeeper.znode_offsets import Caller, ZnodeOffsets, check_names
from client.zookeeper.znodes import Merge
from protocol.errors import ErrorCode
from protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetCommitRequest,
    PartitionCommit,
    TopicCommit,
)
from protocol.partition import NO_OFFSET, TopicPartition

T = TypeVar("T")

logger = logging.getLogger("client.commits")  # The same logger as that of `client.member`.


def offset_calls(router: Router, storage: OffsetStorage) -> OffsetCalls:
    """Return the calls for *storage*.

    Raises:
        FatalError: ZooKeeper is used, but kazoo isn't installed.
    """
    if storage.zookeeper is None or not storage.uses_zookeeper:
        return OffsetCalls(router)
    nodes = Nodes(ZnodeOffsets(Ensemble(storage.zookeeper)), router.request_timeout_ms / 1000)
    kind = DualCalls if storage.is_dual else ZooKeeperCalls
    return kind(router, storage, nodes)


class Nodes:
    """Reads and writes znodes for tasks of trio, in threads, as `ZnodeOffsets` blocks.

    A call waits at most *most_s* seconds for ZooKeeper, even if its own deadline is later or
    infinite; without an answer by then it raises.
    """

    def __init__(self, znodes: ZnodeOffsets, most_s: float) -> None:
        self._znodes = znodes
        self._most_s = most_s

    async def read(
        self, group_id: str, partitions: list[TopicPartition] | None, deadline_s: float
    ) -> dict[TopicPartition, int]:
        """See `ZnodeOffsets.fetch`."""
        left_s = self._left_s(deadline_s)
        return await _in_thread(partial(self._znodes.fetch, group_id, partitions, left_s))

    async def write(
        self,
        request: OffsetCommitRequest,
        offsets: dict[TopicPartition, int],
        deadline_s: float,
    ) -> None:
        """Write *offsets* of *request*; see `ZnodeOffsets.commit`."""
        caller = Caller()
        work = partial(
            self._znodes.commit,
            request.group_id,
            offsets,
            self._left_s(deadline_s),
            caller,
            is_reset=not request.member_id,
        )
        try:
            await _in_thread(work)
        finally:
            caller.is_gone = True

    def _left_s(self, deadline_s: float) -> float:
        return min(left_ms(deadline_s) / 1000, self._most_s)

    async def close(self) -> None:
        """End the session with ZooKeeper."""
        await _in_thread(self._znodes.close)


class _NodeCalls(OffsetCalls):
    """Offset calls of a client that uses ZooKeeper."""

    def __init__(self, router: Router, storage: OffsetStorage, nodes: Nodes) -> None:
        super().__init__(router)
        self._storage = storage
        self._nodes = nodes

    async def close(self) -> None:
        """End the session with ZooKeeper."""
        await self._nodes.close()


class ZooKeeperCalls(_NodeCalls):
    """Commits offsets to znodes only, and fetches them from there.

    A znode stores no generation. A member therefore sends a heartbeat before each commit, to check
    that it still belongs to the group. A change between that check and the write is detected by the
    znode's version. Metadata and leader epochs aren't stored, as in Kafka 0.8.
    """

    async def _store(self, request: OffsetCommitRequest, deadline_s: float) -> None:
        if not self._storage.keeps(request.group_id):
            await super()._store(request, deadline_s)
            return
        if any(one.expected_offset is not None for t in request.topics for one in t.partitions):
            raise FatalError(
                "expected offsets can't be checked in ZooKeeper (offsets.storage=coordinator)"
            )
        if request.member_id:
            await self._check_membership(request, deadline_s)
        await self._nodes.write(request, _offsets_of(request), deadline_s)

    async def _check_membership(self, request: OffsetCommitRequest, deadline_s: float) -> None:
        asked = HeartbeatRequest(
            request.group_id, request.generation_id, request.member_id, request.group_instance_id
        )
        answer = await self._router.ask(asked, HeartbeatResponse, timeout_ms=left_ms(deadline_s))
        # While a group rebalances, members that have partitions may commit.
        if answer.error not in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}:
            raise commit_refusal(request, answer.error, answer.message)

    async def _fetch(
        self,
        group_id: str,
        partitions: list[TopicPartition] | None,
        deadline_s: float,
        owner: Owner | None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        if not self._storage.keeps(group_id):
            return await super()._fetch(group_id, partitions, deadline_s, owner)
        found = await self._nodes.read(group_id, partitions, deadline_s)
        return {tp: OffsetAndMetadata(offset) for tp, offset in found.items()}


class DualCalls(_NodeCalls):
    """Commits offsets to the coordinator first, then to the znodes of the accepted partitions.

    If the client dies between the two writes, the commit is valid: the coordinator has the larger
    offset, and a fetch returns the larger one. A consumer that reads only ZooKeeper then begins at
    the older offset of the znode, and reads rows again.
    """

    def __init__(self, router: Router, storage: OffsetStorage, nodes: Nodes) -> None:
        super().__init__(router, storage, nodes)
        self._merge = Merge()

    async def _store(self, request: OffsetCommitRequest, deadline_s: float) -> None:
        if not self._storage.keeps(request.group_id):
            await super()._store(request, deadline_s)
            return
        taken = _offsets_of(request)
        try:
            check_names({request.group_id, *(tp.topic for tp in taken)})
        except FatalError as exc:
            raise FatalError(f"{exc}; nothing was stored") from None
        refusal: CommitRefused | None = None
        try:
            await super()._store(self._as_it_has_them(request), deadline_s)
        except CommitRefused as exc:
            refusal = exc
            taken = {tp: offset for tp, offset in taken.items() if tp not in exc.errors}
        for tp in taken:
            self._merge.committed((request.group_id, tp))
        try:
            await self._nodes.write(request, taken, deadline_s)
        except CoordinatorError as exc:
            raise _stored_in_one(exc, refusal) from exc
        if refusal is not None:
            raise refusal

    def _as_it_has_them(self, request: OffsetCommitRequest) -> OffsetCommitRequest:
        """Return *request*; an expected offset of a znode is replaced by the coordinator's."""

        def as_it_has_it(topic: str, one: PartitionCommit) -> PartitionCommit:
            if one.expected_offset is None:
                return one
            key = request.group_id, TopicPartition(topic, one.partition)
            return replace(one, expected_offset=self._merge.expected(key, one.expected_offset))

        topics = tuple(
            TopicCommit(t.topic, tuple(as_it_has_it(t.topic, one) for one in t.partitions))
            for t in request.topics
        )
        return replace(request, topics=topics)

    async def _fetch(
        self,
        group_id: str,
        partitions: list[TopicPartition] | None,
        deadline_s: float,
        owner: Owner | None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        found = await super()._fetch(group_id, partitions, deadline_s, owner)
        if not self._storage.keeps(group_id):
            return found
        nodes = await self._nodes.read(group_id, partitions, deadline_s)
        uneven: dict[TopicPartition, OffsetAndMetadata] = {}
        ahead: dict[
            TopicPartition, int
        ] = {}  # Offsets of ZooKeeper that are larger than the coordinator's.
        for tp in found.keys() | nodes.keys():
            there = found[tp].offset if tp in found else NO_OFFSET
            node = nodes.get(tp, NO_OFFSET)
            if self._merge.fetched((group_id, tp), there, node):
                found[tp] = OffsetAndMetadata(node)
                ahead[tp] = node
            if node != there:
                uneven[tp] = found[tp]
        if owner is not None and uneven:
            await self._level(group_id, owner, uneven, ahead, deadline_s)
        return found

    async def _level(
        self,
        group_id: str,
        owner: Owner,
        uneven: Mapping[TopicPartition, OffsetAndMetadata],
        ahead: Mapping[TopicPartition, int],
        deadline_s: float,
    ) -> None:
        """Make the offsets of *owner*'s partitions equal in the coordinator and ZooKeeper.

        A consumer may later read only one of them, and a partition without new rows isn't committed
        until then. If this fails, a later commit or the next owner does it.
        """
        mine = {tp: uneven[tp] for tp in owner.partitions if tp in uneven}
        expected = {tp: ahead[tp] for tp in mine if tp in ahead}
        behind = {tp: value.offset for tp, value in mine.items() if tp not in ahead}
        request = partial(
            commit_request, group_id, owner.generation, owner.member_id, owner.group_instance_id
        )
        try:
            if expected:
                await self._store(request({tp: mine[tp] for tp in expected}, expected), deadline_s)
            if behind:
                await self._nodes.write(request(behind, None), behind, deadline_s)
        except CoordinatorError as exc:
            logger.warning(
                "the coordinator and ZooKeeper still have different offsets of group %r, until a "
                "later commit or the next owner makes them the same: %s",
                group_id,
                exc,
            )


def _stored_in_one(failure: CoordinatorError, refusal: CommitRefused | None) -> CoordinatorError:
    """Return the error of a commit stored by the coordinator, but not, or not surely, in ZooKeeper.

    *refusal*: the coordinator's own, if it stored only some partitions.
    """
    who = (
        "the coordinator has it" if refusal is None else f"{refusal}; the coordinator has the rest"
    )
    match failure:
        case FatalError():
            return type(failure)(f"{who}, but not ZooKeeper: {failure}")
        case CoordinatorUnavailable():
            return OutcomeUnknown(f"{who}, but not ZooKeeper: {failure}")
        case _:
            return OutcomeUnknown(f"{who}, and perhaps ZooKeeper: {failure}")


def _offsets_of(request: OffsetCommitRequest) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.topic, one.partition): one.offset
        for topic in request.topics
        for one in topic.partitions
    }


async def _in_thread(work: Callable[[], T]) -> T:
    # A cancelled task doesn't wait for the thread; the work sees `Caller.is_gone`, or times out.
    return await trio.to_thread.run_sync(work, abandon_on_cancel=True)
