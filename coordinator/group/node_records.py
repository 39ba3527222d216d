"""How the records of the node's own partition lie in the log: topics, rules, users, quotas.

Each subject has its own types; this is where they come together. A topic is the scope of its
entries. Everything else lies in the scope "", which no tombstone of a scope ever names: a user may
be called as a topic that is forgotten.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgpack

from coordinator.group import acls, quotas, registry, users
from coordinator.group.records import Item, MalformedRecord, Reader, UnknownRecord, Writer

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
    """Return how many entries *records* make, and the msgpack array of them as a batch."""
    items = [(delta, *_WRITERS[type(record)](record)) for delta, record in enumerate(records)]
    packed: bytes = msgpack.packb(items)
    return len(items), packed


def read_item(item: Item) -> NodeRecord:
    """Return the record of an entry as it lies in a batch; arrays may be lists or tuples.

    Raises:
        UnknownRecord: A type or version is none of ours.
        MalformedRecord: A shape is not that of the type. The text shows nothing of the value.
    """
    _, type_, version, scope, key, value = item
    reader = _READERS.get(type_)
    if reader is None:
        raise UnknownRecord(f"record type {type_} of the node is not known to this code")
    if not 0 <= version <= reader.newest:
        raise UnknownRecord(f"record type {type_} has version {version}, newer than this code")
    try:
        record: NodeRecord = reader.read(scope, key, value)
    except (TypeError, ValueError) as exc:
        raise MalformedRecord(f"record type {type_} of the node, scope {scope!r}: {exc}") from exc
    return record
