"""Records as they lie in the log, and offsets as values, the way the next start reads them."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgpack
import msgspec
from msgspec import structs

from coordinator.group import node_records, records, registry
from coordinator.group.records import CommittedOffset
from coordinator.group.shard import GroupShard
from protocol.codec import encode
from protocol.messages import GroupFetch, GroupOffsets, PartitionOffset

ROOM: Final = 16 * 1024 * 1024


def fetched(shard: GroupShard, fetch: GroupFetch) -> GroupOffsets:
    """Return the offsets of one group; where topics are named, both ways show the same."""
    in_slices = fetched_in_slices(shard, fetch)
    assert in_slices is not None
    assert fetch.topics is None or shard.fetch_offsets(fetch, None, ROOM) == in_slices
    return in_slices


def fetched_in_slices(
    shard: GroupShard, fetch: GroupFetch, room_bytes: int = ROOM
) -> GroupOffsets | None:
    """Return the same, made in slices; None if it has no room."""
    steps = shard.fetch_in_slices(fetch, lambda _topic: True, room_bytes)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value and unpacked(end.value)


def unpacked(found: GroupOffsets) -> GroupOffsets:
    """Return *found* with what is packed in it unpacked."""
    return msgspec.msgpack.decode(encode(found), type=GroupOffsets)


def entry_of(record: Any, codec: Any = records) -> tuple[Any, ...]:
    """Return the log's entry of *record*: (type, version, scope, key, value)."""
    count, packed = codec.pack([record])
    ((distance, *entry),) = msgpack.unpackb(packed, use_list=False)
    width = 1
    if isinstance(record, records.OffsetsCommitted):
        width = len(record.offsets)
    elif isinstance(record, registry.EndsRepeated):
        width = len(record.partitions)
    assert (distance, count) == (0, width)
    return tuple(entry)


def node_entry(record: node_records.NodeRecord) -> tuple[Any, ...]:
    """Return the log's entry of *record*."""
    return entry_of(record, node_records)


def singles(found: Iterable[records.Record]) -> Iterator[records.Record]:
    """Iterate over *found* with one record per key of the log."""
    for record in found:
        if isinstance(record, records.OffsetsCommitted):
            for partition, offset in record.offsets.items():
                yield structs.replace(record, offsets={partition: offset})
        else:
            yield record


def offsets_of(*found: PartitionOffset) -> records.Offsets:
    """Return *found* by partition."""
    return {one.partition: one for one in found}


def committed(
    group_id: str, topic: str, partition: int, value: CommittedOffset
) -> records.OffsetsCommitted:
    """Return the record that one offset was committed."""
    offset, leader_epoch, metadata, *times = value
    offsets = offsets_of(PartitionOffset(partition, offset, leader_epoch, metadata, 0))
    return records.OffsetsCommitted(group_id, topic, offsets, *times)
