"""Packed answers and records as values again, the way a client or the next start reads them."""

from collections.abc import Iterable
from typing import Any, Final

import msgpack

from coordinator.group import records, registry
from coordinator.group.records import CommittedOffset, pack_row
from coordinator.group.shard import GroupShard
from protocol.codec import RESPONSE_CODECS
from protocol.messages import (
    APIS,
    Answer,
    GroupFetch,
    GroupOffsets,
    OffsetFetchRequest,
    PackedResponse,
    Request,
    Response,
    api_of,
)

ROOM: Final = 16 * 1024 * 1024


def typed(request: Request, response: Answer) -> Response:
    """Return the answer to *request* in the newest version, unpacked if it was packed."""
    if not isinstance(response, PackedResponse):
        return response
    key = api_of(request)
    codec = RESPONSE_CODECS[key, APIS[key].max_version]
    answer: Response = codec.decode(codec.encode(response))
    return answer


def fetched(shard: GroupShard, fetch: GroupFetch) -> GroupOffsets:
    """Return the offsets of one group."""
    packed = shard.fetch_offsets(fetch, ROOM)
    assert packed is not None
    request = OffsetFetchRequest((fetch,), require_stable=False)
    response: Any = typed(request, PackedResponse((b"\x91" + packed,)))
    (group,) = response.groups
    return group  # type: ignore[no-any-return]


def entries_of(record: Any, codec: Any = records) -> list[tuple[Any, ...]]:
    """Return the log's entries of *record*: (type, version, scope, key, value) each."""
    count, packed = codec.pack([record])
    items = msgpack.unpackb(packed, use_list=False)
    assert [item[0] for item in items] == list(range(count))
    return [item[1:] for item in items]


def topic_entry(record: registry.TopicRecord) -> tuple[Any, ...]:
    """Return the log's entry of *record*."""
    (entry,) = entries_of(record, registry)
    return entry


def singles(found: Iterable[records.Record]) -> list[records.Record]:
    """Return *found* with one record per entry of the log."""
    return [records.from_entry(*entry) for record in found for entry in entries_of(record)]


def committed(
    group_id: str, topic: str, partition: int, value: CommittedOffset
) -> records.OffsetsCommitted:
    """Return the record that one offset was committed."""
    offset, leader_epoch, metadata, *times = value
    rows = {partition: pack_row(partition, offset, leader_epoch, metadata)}
    return records.OffsetsCommitted(group_id, topic, rows, *times)
