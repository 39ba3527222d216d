"""The offsets partitions of a coordinator in memory, which change between two requests."""

from ast import literal_eval
from collections.abc import Callable
from typing import Any, Final

from protocol import messages as m
from protocol.partition import NO_LEADER_EPOCH, NO_OFFSET
from tests.fakes.scan_pages import page_of

Key = tuple[str, str, int]
CLUSTER: Final = "c0FmZS1hbmQtc291bmQhIQ"


class OffsetsLog:
    """Answers what the command line asks of offsets partitions.

    Attributes:
        floor: Below this position the log was compacted.
        between: Called before each request is answered: others commit meanwhile.
        page_size: So many offsets are in a page of a scan.
    """

    def __init__(self, partition_of: Callable[[str], int] = lambda _: 0, count: int = 1) -> None:
        self.cluster_id = CLUSTER
        self.floor = 0
        self.page_size = 20_000
        self.between: Callable[[], None] = lambda: None
        self.state: dict[Key, m.ScannedOffset] = {}
        self.states = [dict[Key, m.ScannedOffset]()]  # At each position.
        self._changes: list[m.OffsetChange] = []
        self._partition_of = partition_of
        self._count = count
        self.answers: dict[type, Callable[[Any], Any]] = {
            m.ApiVersionsRequest: self._api_versions,
            m.FindCoordinatorRequest: self._find,
            m.DescribeNodeRequest: self._describe,
            m.ScanOffsetsRequest: self._scan,
            m.ReadOffsetChangesRequest: self._read,
        }

    @property
    def end(self) -> int:
        """Where the log ends; all partitions share it."""
        return len(self._changes)

    def commit(
        self, group: str, topic: str, partition: int, offset: int, metadata: str = ""
    ) -> None:
        """Commit an offset."""
        at = self.end
        key = (group, topic, partition)
        self.state[key] = m.ScannedOffset(*key, offset, NO_LEADER_EPOCH, metadata, 1_000 + at, -1)
        self._append("committed", *key, offset, metadata)

    def remove(self, group: str, topic: str, partition: int) -> None:
        """Remove an offset."""
        self.state.pop((group, topic, partition), None)
        self._append("removed", group, topic, partition, NO_OFFSET, "")

    def delete(self, group: str) -> None:
        """Delete a group."""
        for key in [key for key in self.state if key[0] == group]:
            del self.state[key]
        self._append("group deleted", group, "", -1, NO_OFFSET, "")

    def _append(
        self, kind: str, group: str, topic: str, partition: int, offset: int, metadata: str
    ) -> None:
        at = self.end
        self._changes.append(
            m.OffsetChange(at, kind, group, topic, partition, offset, -1, metadata, 1_000 + at)
        )
        self.states.append(dict(self.state))

    def _api_versions(self, _request: m.ApiVersionsRequest) -> m.ApiVersionsResponse:
        return m.ApiVersionsResponse(0, (), "s", self.cluster_id, 1, 1)

    def _find(self, request: m.FindCoordinatorRequest) -> m.FindCoordinatorResponse:
        return m.FindCoordinatorResponse(
            tuple(
                m.CoordinatorOfGroup(g, 0, None, 1, "h", 1, self._partition_of(g), 1)
                for g in request.group_ids
            )
        )

    def _describe(self, _request: m.DescribeNodeRequest) -> m.DescribeNodeResponse:
        self.between()
        numbers = (*range(self._count), 65_535)
        parts = tuple(m.NodePartition(n, "active", self.end, self.end) for n in numbers)
        return m.DescribeNodeResponse(0, 1, 1, "ready", (), parts, ())

    def _scan(self, request: m.ScanOffsetsRequest) -> m.ScanOffsetsResponse:
        self.between()
        after = literal_eval(request.cursor.decode()) if request.cursor else ()
        keys = [
            key
            for key in sorted(self.state)
            if key > after
            and self._partition_of(key[0]) == request.offsets_partition
            and (request.group_ids is None or key[0] in request.group_ids)
            and (request.topics is None or key[1] in request.topics)
        ]
        page, rest = keys[: self.page_size], keys[self.page_size :]
        cursor = repr(page[-1]).encode() if rest else b""
        columns = page_of([self.state[key] for key in page])
        return m.ScanOffsetsResponse(0, self.end, (), cursor, (columns,))

    def _read(self, request: m.ReadOffsetChangesRequest) -> m.ReadOffsetChangesResponse:
        self.between()
        if not self.floor <= request.position <= self.end:
            return m.ReadOffsetChangesResponse(1008, (), -1, -1)
        until = min(request.position + self.page_size, self.end)
        changes = tuple(
            change
            for change in self._changes[request.position : until]
            if self._partition_of(change.group_id) == request.offsets_partition
        )
        return m.ReadOffsetChangesResponse(0, changes, until, self.end)
