"""Reads the changes of committed offsets back from the log, beside everything else.

A position may lie far back, so reading blocks, and runs in a thread of its own: one read after
the other, each bounded, so that any number of readers costs the flusher next to nothing.
"""

from collections.abc import Generator, Iterable
from contextlib import closing
from functools import partial
from typing import Final

from coordinator.group.admin import offset_change
from coordinator.group.records import GROUP_DELETED, OFFSET_COMMITTED, from_entry
from coordinator.log.errors import LogError
from coordinator.log.format import Batch, Entry
from coordinator.runtime.calls import Call, CallQueue
from coordinator.runtime.environment import Environment
from coordinator.runtime.logs import ChangesLog, OutOfReach
from protocol.errors import ErrorCode
from protocol.messages import OffsetChange, ReadOffsetChangesRequest, ReadOffsetChangesResponse

# Packing the answer holds up everybody else.
CHANGES_MAX: Final = 2_000
# What one request may look at: entries that are no change of an offset count too.
ENTRIES_PER_READ: Final = 10_000
BYTES_PER_READ: Final = 8 * 1024 * 1024
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
READS_WAITING_MAX: Final = 256

_TYPES: Final = frozenset({OFFSET_COMMITTED, GROUP_DELETED})
_CHANGE_BYTES: Final = 64


class ChangesRead:
    """One request for changes, from a position up to what is durable now."""

    __slots__ = ("_bytes_left", "changes", "end", "log", "next_position", "request")

    def __init__(self, call: Call, log: ChangesLog, end: int, answer_bytes: int) -> None:
        assert type(call.request) is ReadOffsetChangesRequest
        self.request = call.request
        self.end = end
        self.changes: list[OffsetChange] = []
        self.next_position = end
        self.log = log
        self._bytes_left = answer_bytes

    def run(self, batches: Generator[Batch, None, None]) -> None:
        """Look at *batches*, and close them. Blocks: not for the event loop.

        Raises:
            LogError: A file can't be read, or is damaged.
        """
        with closing(batches):
            self._look_at(batches)

    def _look_at(self, batches: Iterable[Batch]) -> None:
        request = self.request
        most = min(request.max_changes, CHANGES_MAX)
        looked_at = 0
        for batch in batches:
            for offset, entry in batch.entries:
                if offset < request.position:
                    continue
                if offset >= self.end:
                    # Durable here since, but the answer's end was taken before.
                    self.next_position = self.end
                    return
                full = len(self.changes) >= most or self._bytes_left < 0
                if full or looked_at >= ENTRIES_PER_READ:
                    self.next_position = offset
                    return
                looked_at += 1
                if entry.type in _TYPES:
                    self._take(offset, batch.timestamp_ms, entry)
            self.next_position = batch.end_offset

    def _take(self, offset: int, timestamp_ms: int, entry: Entry) -> None:
        change = offset_change(offset, timestamp_ms, from_entry(*entry))
        if change is not None:
            self.changes.append(change)
            texts = len(change.group_id) + len(change.topic) + len(change.metadata)
            self._bytes_left -= _CHANGE_BYTES + 4 * texts  # A character takes at most 4 bytes.

    def answer(self) -> ReadOffsetChangesResponse:
        """Return what was read."""
        return ReadOffsetChangesResponse(
            ErrorCode.NONE, tuple(self.changes), self.next_position, self.end
        )


class ChangesReader:
    """Does one read after the other and answers it; what waits is bounded, too."""

    def __init__(self, environment: Environment, *, max_response_bytes: int) -> None:
        self._answer_bytes = min(ANSWER_BYTES_MAX, max_response_bytes // 2)
        self._run_reading = environment.run_reading
        self._emit_event = environment.emit_event
        self._queue: CallQueue[ChangesRead] = CallQueue()

    def submit(self, call: Call, log: ChangesLog, end: int) -> None:
        """Answer *call*, a valid ReadOffsetChanges, with changes in *log* before offset *end*."""
        if len(self._queue) >= READS_WAITING_MAX:
            call.fail(ErrorCode.TOO_MANY_REQUESTS, -1)
            return
        self._queue.put(call, ChangesRead(call, log, end, self._answer_bytes))

    def refuse_all(self, error: int) -> None:
        """Answer what waits with *error*."""
        self._queue.refuse_all(error)

    async def run(self) -> None:
        """Read until cancelled."""
        await self._queue.run(self._answer)

    async def _answer(self, call: Call, read: ChangesRead) -> None:
        partition, position = read.request.offsets_partition, read.request.position
        try:
            batches = await read.log.fetch(partition, position, BYTES_PER_READ)
            await self._run_reading(partial(read.run, batches))
        except OutOfReach:
            call.fail(ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
        except LogError as exc:
            # Memory is whole, so groups are served on; a start will refuse this log.
            self._emit_event("log.unreadable", {"reason": str(exc)})
            call.fail(ErrorCode.UNKNOWN_SERVER_ERROR, -1)
        else:
            if position < read.log.compacted_below.get(partition, 0):
                # A compaction has come between, and what was read may lack tombstones.
                call.fail(ErrorCode.POSITION_TOO_OLD, -1)
            else:
                call.resolve(read.answer(), -1)
