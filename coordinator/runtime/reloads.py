"""Partitions that an operator wants to be loaded again: one after the other."""

from collections import deque
from typing import TYPE_CHECKING, Any

import trio

from coordinator.group.records import RecordError
from coordinator.log.errors import LogError
from coordinator.runtime.calls import Call
from coordinator.runtime.loading import Abandoned
from coordinator.runtime.shard import Status
from protocol.errors import ErrorCode
from protocol.messages import ReloadPartitionResponse

if TYPE_CHECKING:
    from coordinator.runtime.node import Node


class Reloader:
    """Answers ReloadPartition when it is done."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._waiting: deque[Call] = deque()
        self._at_work = -1
        self._wanted = trio.Event()

    def submit(self, call: Call) -> None:
        """Unload the partition of *call*, a valid ReloadPartition; answer when it is loaded."""
        partition = _partition(call)
        status = self._node.shards[partition].status
        waiting = (self._at_work, *map(_partition, self._waiting))
        if status is Status.LOADING or partition in waiting:
            call.fail(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)
        elif self._node.draining:
            call.fail(ErrorCode.NOT_COORDINATOR, -1)
        else:
            if status is Status.ACTIVE:
                self._node.unload(partition)
            self._waiting.append(call)
            self._wanted.set()

    def refuse_all(self, error: int) -> None:
        """Answer what waits with *error*."""
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            call.fail(error, -1)

    async def run(self) -> None:
        """Load until cancelled."""
        while True:
            if not self._waiting:
                self._wanted = trio.Event()
                await self._wanted.wait()
                continue
            call = self._waiting.popleft()
            self._at_work = _partition(call)
            try:
                progress = await self._node.load_partition(self._at_work)
            except Abandoned:
                call.fail(ErrorCode.NOT_COORDINATOR, -1)
            except (LogError, RecordError) as exc:
                error = ErrorCode.UNKNOWN_SERVER_ERROR
                call.resolve(ReloadPartitionResponse(error, str(exc), -1, -1), -1)
            else:
                done = ReloadPartitionResponse(
                    ErrorCode.NONE, None, progress.entries, progress.load_ms
                )
                call.resolve(done, -1)
            finally:
                self._at_work = -1
            self._node.after_release()


def _partition(call: Call) -> int:
    request: Any = call.request
    partition: int = request.offsets_partition
    return partition
