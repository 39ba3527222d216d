"""The records that a repair appends when a part of the log was lost: the fences.

Nobody knows what the lost part said, only how many bytes it had. A new generation, or a change of
the registry, takes at least `CHANGE_BYTES_MIN` of them, so it is known how many there can have
been. The fences put all groups, and the registry, beyond every number that can have been told:

- Each group gets a generation above all of its own. Whoever acts in an older one is told so, and
  its members rebalance once.
- The registry gets a version above all, as if topics had been deleted: every group looks anew.

A group of which everything was lost is as one that was deleted: it may begin at generation 1
again, but knows none of its old members, so none of them can do anything in it.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from coordinator.group.records import (
    GROUP_DELETED,
    GROUP_GENERATION,
    GROUP_METADATA,
    GROUP_REBALANCED,
    RECORD_VERSION,
    WRITERS,
    EntryFields,
    GroupGeneration,
)
from coordinator.group.registry import REGISTRY, TOPIC
from protocol.partition import INT32_MAX

# A batch with nothing but a generation, or a registry record, takes more than that.
CHANGE_BYTES_MIN: Final = 50
ENTRIES_PER_BATCH: Final = 1_000
# At which element of its value an entry has a generation, and the registry's version.
_GENERATION_AT: Final = {GROUP_GENERATION: 0, GROUP_METADATA: 1, GROUP_REBALANCED: 9}
_TOPICS_VERSION_AT: Final = 6


class FenceBuilder:
    """Makes the fences. Show it all that can still be read, in order; then ask for them."""

    def __init__(self, registry_partition: int) -> None:
        self._registry_partition = registry_partition
        # Partition -> group -> the highest generation that is known of it.
        self._generations: dict[int, dict[str, int]] = {}
        self._version = 0

    def add(self, partition: int, entries: Iterable[EntryFields]) -> None:
        """Take note of entries; what can't be understood says nothing."""
        if partition == self._registry_partition:
            for type_, _, _, _, value in entries:
                self._version = max(self._version, _version_of(type_, value))
            return
        generations = self._generations.setdefault(partition, {})
        for type_, _, group_id, _, value in entries:
            if type_ == GROUP_DELETED:
                generations.pop(group_id, None)
                continue
            known = generations.get(group_id, 0)
            generations[group_id] = max(known, _number(value, _GENERATION_AT.get(type_)))
            if type_ == GROUP_METADATA:
                self._version = max(self._version, _number(value, _TOPICS_VERSION_AT))

    def groups(self) -> Iterator[tuple[int, str]]:
        """Yield the partition and the name of each group that is there."""
        for partition, generations in sorted(self._generations.items()):
            for group_id in generations:
                yield partition, group_id

    def fences(self, lost_bytes: int, wall_ms: int) -> Iterator[tuple[int, list[EntryFields]]]:
        """Yield the entries to append, with their partition, a batch at a time."""
        changes = lost_bytes // CHANGE_BYTES_MIN + 1
        version = self._version + changes
        yield self._registry_partition, [(REGISTRY, RECORD_VERSION, "", (), (version, version))]
        for partition, generations in sorted(self._generations.items()):
            batch: list[EntryFields] = []
            for group_id, generation in generations.items():
                beyond = min(generation + changes, INT32_MAX)
                record = GroupGeneration(group_id, beyond, wall_ms)
                batch.append(WRITERS[GroupGeneration](record))
                if len(batch) == ENTRIES_PER_BATCH:
                    yield partition, batch
                    batch = []
            if batch:
                yield partition, batch


def _version_of(type_: int, value: Any) -> int:
    if type_ == REGISTRY:
        return max(_number(value, 0), _number(value, 1))
    return _number(value, 3) if type_ == TOPIC else 0


def _number(value: Any, at: int | None) -> int:
    """Return an element of an entry's value, 0 where there is none."""
    if at is None or not isinstance(value, list | tuple) or len(value) <= at:
        return 0
    return value[at] if type(value[at]) is int else 0
