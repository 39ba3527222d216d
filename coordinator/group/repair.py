"""Fences: the records that a repair appends after a part of the log was lost.

Only the size of the lost part is known, not its contents. A new generation, or a change of the
registry, takes at least `CHANGE_BYTES_MIN` bytes, which bounds their number. The fences raise all
groups, and the registry, above every number that can have been announced:

- Each group gets a generation above all of its own. Requests with an older one are refused, and its
  members rebalance once.
- The registry gets a version above all, as if topics had been deleted: every group compares its
  topics again.

A group whose records are all lost is like a deleted one: it may begin at generation 1 again, but
none of its old members is known, so none of them can act in it.
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

# Minimum bytes of a batch with only a generation, or only a registry record.
CHANGE_BYTES_MIN: Final = 50
ENTRIES_PER_BATCH: Final = 1_000
# Index of the generation, and of the registry's version, in an entry's value.
_GENERATION_AT: Final = {GROUP_GENERATION: 0, GROUP_METADATA: 1, GROUP_REBALANCED: 9}
_TOPICS_VERSION_AT: Final = 6


class FenceBuilder:
    """Builds the fences: first `add` all readable entries in order, then call `fences`."""

    def __init__(self, registry_partition: int) -> None:
        self._registry_partition = registry_partition
        # Partition -> group -> its highest known generation.
        self._generations: dict[int, dict[str, int]] = {}
        self._version = 0

    def add(self, partition: int, entries: Iterable[EntryFields]) -> None:
        """Read entries; those that can't be interpreted are ignored."""
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
        """Yield the partition and id of each existing group."""
        for partition, generations in sorted(self._generations.items()):
            for group_id in generations:
                yield partition, group_id

    def fences(self, lost_bytes: int, wall_ms: int) -> Iterator[tuple[int, list[EntryFields]]]:
        """Yield the entries to append, in batches, each with its partition."""
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
    """Return an integer in an entry's value, 0 if there is none."""
    if at is None or not isinstance(value, list | tuple) or len(value) <= at:
        return 0
    return value[at] if type(value[at]) is int else 0
