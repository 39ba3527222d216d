"""Hard state of the topic registry as a sequence of facts, and how each lies in the log.

A topic is the scope of its entries, so that forgetting it is one entry. What belongs to no
topic lies in the scope "".
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from coordinator.group.records import (
    GROUP_DELETED,
    EntryFields,
    Item,
    MalformedRecord,
    UnknownRecord,
)
from protocol.messages import PartitionHosts

TOPIC: Final = 1010
TOPIC_END: Final = 1011
REGISTRY: Final = 1012
# The tombstone of a scope, as for groups: everything of the topic that is older is gone.
TOPIC_FORGOTTEN: Final = GROUP_DELETED

RECORD_VERSION: Final = 0


class TopicRegistered(NamedTuple):
    """A topic as it is from here on."""

    topic: str
    partition_count: int
    hosts: tuple[PartitionHosts, ...]  # By partition.
    is_deleted: bool  # Nobody sees it any more, but offsets of it may still be there.
    version: int  # Of the registry, when the topic's structure last changed.


class EndReported(NamedTuple):
    """How far one partition reaches."""

    topic: str
    partition: int
    end_offset: int
    reported_ms: int


class RegistryChanged(NamedTuple):
    """The registry as a whole."""

    version: int
    last_deletion_version: int  # The version that the latest deletion of a topic made.


class TopicForgotten(NamedTuple):
    """The topic, and everything that was known of it, is gone."""

    topic: str


TopicRecord = TopicRegistered | EndReported | RegistryChanged | TopicForgotten


def pack(records: Sequence[TopicRecord]) -> tuple[int, bytes]:
    """Return how many entries *records* make, and the msgpack array of them as a batch."""
    items = [(delta, *_entry_fields(record)) for delta, record in enumerate(records)]
    packed: bytes = msgpack.packb(items)
    return len(items), packed


def _entry_fields(record: TopicRecord) -> EntryFields:
    if type(record) is EndReported:
        value = (record.end_offset, record.reported_ms)
        return TOPIC_END, RECORD_VERSION, record.topic, (record.partition,), value
    if type(record) is TopicRegistered:
        hosts = [(one.partition, one.hosts) for one in record.hosts]
        described = (record.partition_count, hosts, record.is_deleted, record.version)
        return TOPIC, RECORD_VERSION, record.topic, (), described
    if type(record) is RegistryChanged:
        return REGISTRY, RECORD_VERSION, "", (), tuple(record)
    assert type(record) is TopicForgotten
    return TOPIC_FORGOTTEN, RECORD_VERSION, record.topic, (), None


def read_items(items: Iterable[Item]) -> Iterator[TopicRecord]:
    """Yield the records of entries as they lie in a batch; arrays may be lists or tuples.

    Raises:
        UnknownRecord: A type or version is none of ours.
        MalformedRecord: A shape is not that of the type.
    """
    for _, type_, version, scope, key, value in items:
        yield _read(type_, version, scope, key, value)


def _read(type_: int, version: int, scope: str, key: Any, value: Any) -> TopicRecord:
    reader = _READERS.get(type_)
    if reader is None:
        raise UnknownRecord(f"record type {type_} of the registry is not known to this code")
    if version != RECORD_VERSION:
        raise UnknownRecord(f"record type {type_} has version {version}, newer than this code")
    try:
        return reader(scope, key, value)
    except (TypeError, ValueError) as exc:
        raise MalformedRecord(f"record type {type_} of topic {scope!r}: {exc}") from exc


def _read_topic(topic: str, _key: Any, value: Any) -> TopicRecord:
    partition_count, hosts, is_deleted, version = value
    listed = tuple(PartitionHosts(partition, tuple(names)) for partition, names in hosts)
    return TopicRegistered(topic, partition_count, listed, is_deleted, version)


def _read_end(topic: str, key: Any, value: Any) -> TopicRecord:
    (partition,) = key
    return EndReported(topic, partition, *value)


_READERS: Final[Mapping[int, Callable[[str, Any, Any], TopicRecord]]] = {
    TOPIC: _read_topic,
    TOPIC_END: _read_end,
    REGISTRY: lambda _scope, _key, value: RegistryChanged(*value),
    TOPIC_FORGOTTEN: lambda topic, _key, _value: TopicForgotten(topic),
}
