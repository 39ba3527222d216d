"""The node's own shard beside its log: memory is the fold of it, compacted or not."""

from collections.abc import Iterable
from itertools import chain
from typing import Any, TypeVar

import msgspec

from coordinator.group.core import Caller, Event, Now
from coordinator.group.node_records import NodeRecord, read_item
from coordinator.group.node_shard import HardNode, NodeShard
from coordinator.group.registry import EndsRepeated, Registry, TopicForgotten
from protocol.codec import encode
from protocol.messages import (
    DescribeAclsRequest,
    DescribeClientQuotasRequest,
    DescribeUserScramCredentialsRequest,
    Request,
)
from tests.group.context import returned
from tests.packed import node_entry

NOW = Now(1_000, 1_700_000_000_000)

Kept = TypeVar("Kept", bound=NodeRecord)


def roundtrip(record: Kept) -> Kept:
    """Return *record* as it comes back from the log."""
    back = read_item((0, *node_entry(record)))
    assert isinstance(back, type(record))
    return back


def replayed(records: Iterable[NodeRecord]) -> HardNode:
    """Return the hard state that *records* leave."""
    shard = NodeShard(Registry())
    for record in records:
        shard.replay(roundtrip(record))
    return shard.hard_state()


def last_per_key(records: Iterable[Kept]) -> list[Kept]:
    """Return what compaction keeps of *records*: the last of each key, no scope's past."""
    kept: dict[tuple[object, ...], Kept] = {}
    for record in chain.from_iterable(map(singles, records)):
        type_, _, scope, key, _ = node_entry(record)
        if type(record) is TopicForgotten:
            kept = {k: r for k, r in kept.items() if k[0] != scope}
        kept.pop((scope, type_, key), None)
        kept[scope, type_, key] = record
    return list(kept.values())


def singles(record: Kept) -> Iterable[Kept]:
    """Return *record* as one for each key of the log that it stands for."""
    if not isinstance(record, EndsRepeated):
        return (record,)
    pairs = zip(record.partitions, record.reported_ms, strict=True)
    return [record._replace(partitions=(p,), reported_ms=(at_ms,)) for p, at_ms in pairs]


def without_tombstones(records: Iterable[NodeRecord]) -> list[NodeRecord]:
    """Return *records* without those that only say that something is gone."""
    return [record for record in records if node_entry(record)[4] is not None]


class NodeContext:
    """A node's shard, all that it has logged, and its events."""

    def __init__(self) -> None:
        self.shard = NodeShard(Registry())
        self.shard.loaded(NOW)
        self.records: list[NodeRecord] = []
        self.events: list[Event] = []

    def ask(self, request: Request) -> Any:
        """Return the answer to a request that may change something."""
        outcome = self.shard.handle(request, "token", Caller("admin", "10.0.0.1"), NOW)
        self.records += outcome.records
        self.events += outcome.events
        live = self.shard.hard_state()
        compacted = last_per_key(self.records)
        assert live == replayed(self.records) == replayed(compacted)
        assert live == replayed(without_tombstones(compacted))
        ((_, response, _, gated, _),) = outcome.replies
        assert gated
        return response

    def look(self, request: Request) -> Any:
        """Return rules, users or quotas, as whoever asks reads them."""
        shard = self.shard
        describe: dict[type, Any] = {
            DescribeAclsRequest: shard.rules.describe,
            DescribeUserScramCredentialsRequest: shard.users.describe,
            DescribeClientQuotasRequest: shard.quotas.describe,
        }
        answer = returned(describe[type(request)](request, 1 << 30))
        return msgspec.msgpack.decode(encode(answer), type=type(answer))

    def crash(self) -> None:
        """Begin anew with what the log has."""
        self.shard = NodeShard(Registry())
        for record in self.records:
            self.shard.replay(roundtrip(record))
        self.shard.loaded(NOW)

    def told(self, name: str) -> list[dict[str, object]]:
        """Return the events of a name."""
        return [event.fields for event in self.events if event.name == name]
