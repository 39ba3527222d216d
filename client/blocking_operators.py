"""The operators' calls for ordinary threads; see `client.operator_calls` for each."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from client.lag import Lag
from client.offset_stream import OFFSETS_PER_PAGE, ColumnScan, OffsetChanges, OffsetScan
from client.operator_calls import REBALANCES_MAX, OperatorCalls
from client.topics import TopicSource
from protocol.messages import (
    DescribedGroup,
    DescribedTopic,
    DrainedMember,
    ListedGroup,
    OffsetColumns,
    Rebalance,
    ScannedOffset,
)
from protocol.types import TopicPartition

T = TypeVar("T")


class BlockingOffsetScan:
    """A `client.offset_stream.OffsetScan` for ordinary threads; use as ``for``, once."""

    def __init__(self, run: Callable[..., tuple[ScannedOffset, ...]], scan: OffsetScan) -> None:
        """Use `client.blocking.BlockingClient.scan_offsets` instead."""
        self._run = run
        self._scan = scan

    @property
    def position(self) -> int:
        """See `client.offset_stream.OffsetScan.position`."""
        return self._scan.position

    def page(self) -> tuple[ScannedOffset, ...]:
        """See `client.offset_stream.OffsetScan.page`."""
        return self._run(self._scan.page)

    def __iter__(self) -> Iterator[ScannedOffset]:
        while page := self.page():
            yield from page


class BlockingColumnScan:
    """A `client.offset_stream.ColumnScan` for ordinary threads."""

    def __init__(self, run: Callable[..., OffsetColumns | None], scan: ColumnScan) -> None:
        """Use `client.blocking.BlockingClient.scan_offset_columns` instead."""
        self._run = run
        self._scan = scan

    @property
    def position(self) -> int:
        """See `client.offset_stream.OffsetScan.position`."""
        return self._scan.position

    def page(self) -> OffsetColumns | None:
        """See `client.offset_stream.ColumnScan.page`."""
        return self._run(self._scan.page)


class BlockingOperators:
    """The part of `client.blocking.BlockingClient` that joins no group."""

    _client: OperatorCalls

    def run(self, call: Callable[[], Awaitable[T]], timeout_s: float | None = None) -> T:
        """Run *call* in the client's thread and return what it returns."""
        raise NotImplementedError

    def describe_groups(self, groups: Iterable[str]) -> list[DescribedGroup]:
        """See `client.Client.describe_groups`."""
        return self.run(partial(self._client.describe_groups, groups))

    def list_groups(
        self, states: Iterable[str] = (), types: Iterable[str] = ()
    ) -> list[ListedGroup]:
        """See `client.Client.list_groups`."""
        return self.run(partial(self._client.list_groups, states, types))

    def delete_groups(self, groups: Iterable[str]) -> dict[str, int]:
        """See `client.Client.delete_groups`."""
        return self.run(partial(self._client.delete_groups, groups))

    def drain_member(
        self, group: str, client_id: str, *, timeout_ms: int | None = None
    ) -> list[DrainedMember]:
        """See `client.Client.drain_member`."""
        return self.run(partial(self._client.drain_member, group, client_id, timeout_ms=timeout_ms))

    def remove_static_members(
        self, group: str, instance_ids: Iterable[str], reason: str | None = None
    ) -> dict[str, int]:
        """See `client.Client.remove_static_members`."""
        return self.run(partial(self._client.remove_static_members, group, instance_ids, reason))

    def remove_members(
        self, group: str, member_ids: Iterable[str], reason: str | None = None
    ) -> dict[str, int]:
        """See `client.Client.remove_members`."""
        return self.run(partial(self._client.remove_members, group, member_ids, reason))

    def rebalances(self, group: str, limit: int = REBALANCES_MAX) -> list[Rebalance]:
        """See `client.Client.rebalances`."""
        return self.run(partial(self._client.rebalances, group, limit))

    def lag(self, group: str) -> dict[TopicPartition, Lag]:
        """See `client.Client.lag`."""
        return self.run(partial(self._client.lag, group))

    def delete_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """See `client.Client.delete_offsets`."""
        return self.run(partial(self._client.delete_offsets, group, partitions))

    def set_offsets_retention(self, group: str, retention_ms: int | None) -> None:
        """See `client.Client.set_offsets_retention`."""
        self.run(partial(self._client.set_offsets_retention, group, retention_ms))

    def offsets_partition(self, group: str) -> int:
        """See `client.Client.offsets_partition`."""
        return self.run(partial(self._client.offsets_partition, group))

    def offsets_partitions(self) -> list[int]:
        """See `client.Client.offsets_partitions`."""
        return self.run(self._client.offsets_partitions)

    def offsets_log_ends(self) -> dict[int, int]:
        """See `client.Client.offsets_log_ends`."""
        return self.run(self._client.offsets_log_ends)

    def scan_offsets(
        self, offsets_partition: int, page_size: int = OFFSETS_PER_PAGE
    ) -> BlockingOffsetScan:
        """See `client.Client.scan_offsets`; for ``for``."""
        return BlockingOffsetScan(self.run, self._client.scan_offsets(offsets_partition, page_size))

    def scan_offset_columns(
        self,
        offsets_partition: int,
        group_ids: Collection[str] | None = None,
        topics: Collection[str] | None = None,
    ) -> BlockingColumnScan:
        """See `client.Client.scan_offset_columns`."""
        scan = self._client.scan_offset_columns(offsets_partition, group_ids, topics)
        return BlockingColumnScan(self.run, scan)

    def offset_changes(
        self, offsets_partition: int, position: int, max_changes: int = OFFSETS_PER_PAGE
    ) -> OffsetChanges:
        """See `client.Client.offset_changes`."""
        return self.run(
            partial(self._client.offset_changes, offsets_partition, position, max_changes)
        )

    def register_topics(self, topics: Mapping[str, int | TopicSource]) -> None:
        """See `client.Client.register_topics`."""
        self.run(partial(self._client.register_topics, topics))

    def delete_topics(self, topics: Iterable[str]) -> dict[str, int]:
        """See `client.Client.delete_topics`."""
        return self.run(partial(self._client.delete_topics, topics))

    def describe_topics(
        self,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        *,
        with_end_offsets: bool = False,
    ) -> list[DescribedTopic]:
        """See `client.Client.describe_topics`."""
        return self.run(
            partial(
                self._client.describe_topics, topics, pattern, with_end_offsets=with_end_offsets
            )
        )

    def report_end_offsets(self, ends: Mapping[TopicPartition, int]) -> None:
        """See `client.Client.report_end_offsets`."""
        self.run(partial(self._client.report_end_offsets, ends))
