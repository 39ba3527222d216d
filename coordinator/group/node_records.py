"""Log form of the records of the node's own partition: topics, rules, users, quotas.

Each subject has its own record types; this module combines them. A topic is the scope of its
entries. All other entries have the scope "", which no tombstone of a scope ever names: a user may
have the name of a topic that is forgotten.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgpack

from coordinator.group import acls, quotas, registry, users
from coordinator.group.records import EntryFields, Item, Reader, Writer, read_by

NodeRecord = registry.TopicRecord | acls.RuleRecord | users.UserRecord | quotas.QuotaRecord

_WRITERS: Final[Mapping[type, Writer]] = {
    **registry.WRITERS,
    **acls.WRITERS,
    **users.WRITERS,
    **quotas.WRITERS,
}
_READERS: Final[Mapping[int, Reader]] = {
    **registry.READERS,
    **acls.READERS,
    **users.READERS,
    **quotas.READERS,
}


def pack(records: Sequence[NodeRecord]) -> tuple[int, bytes]:
    """Return the number of log offsets of *records*, and the msgpack array of their entries."""
    count = 0
    items: list[tuple[int, *EntryFields]] = []
    for record in records:
        items.append((count, *_WRITERS[type(record)](record)))
        count += len(record.partitions) if isinstance(record, registry.EndsRepeated) else 1
    packed: bytes = msgpack.packb(items)
    return count, packed


def read_item(item: Item) -> NodeRecord:
    """Return the record of a batch element; arrays may be lists or tuples.

    Raises:
        UnknownRecord: The type or version is unknown.
        MalformedRecord: The key or value has a wrong shape for its type. The text shows nothing of
            the value.
    """
    record: NodeRecord = read_by(_READERS, "the node, scope", item)
    return record
