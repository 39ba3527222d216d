"""What importing a group would do, and what it did. Pure."""

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple

from client.types import OffsetAndMetadata
from protocol.types import TopicPartition

Offsets = Mapping[TopicPartition, OffsetAndMetadata]

# The coordinator's states of a group that a commit from outside reaches.
FREE: Final = frozenset({"Empty", "Dead"})


class Existing(Enum):
    """What to do about an offset that the coordinator has already."""

    FORWARD = "forward"  # Replace it where Kafka's is higher.
    KEEP = "keep"
    OVERWRITE = "overwrite"


class PartitionImport(NamedTuple):
    """One partition of a group.

    Attributes:
        tp: the partition.
        kafka: what is committed in the cluster.
        stored: what the coordinator has; None for nothing.
        status: "to import", "imported", "unchanged", "kept", or why not.

    """

    tp: TopicPartition
    kafka: OffsetAndMetadata
    stored: int | None
    status: str


class GroupImport(NamedTuple):
    """One group.

    Attributes:
        group: its name in the cluster.
        into: its name at the coordinator.
        state: its state in the cluster, such as EMPTY or STABLE.
        status: "to import", "imported", "unchanged", "skipped" or "failed".
        reason: why it was skipped or failed, or what else there is to say; may be empty.
        partitions: what became of each, sorted.

    """

    group: str
    into: str
    state: str
    status: str
    reason: str
    partitions: tuple[PartitionImport, ...]

    @property
    def moving(self) -> tuple[PartitionImport, ...]:
        """The partitions that are to be imported."""
        return tuple(one for one in self.partitions if one.status == TO_IMPORT)


TO_IMPORT: Final = "to import"
IMPORTED: Final = "imported"
UNCHANGED: Final = "unchanged"
KEPT: Final = "kept"
SKIPPED: Final = "skipped"
FAILED: Final = "failed"


class ImportReport(NamedTuple):
    """What became of all groups that were asked for, sorted by name."""

    dry_run: bool
    groups: tuple[GroupImport, ...]

    @property
    def failed(self) -> bool:
        """Say whether some group could not be imported, or not wholly."""
        return any(one.status == FAILED for one in self.groups)

    def count(self, status: str) -> int:
        """Return how many groups have this status."""
        return sum(one.status == status for one in self.groups)

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return {
            "dry_run": self.dry_run,
            "groups": [
                {
                    **one._asdict(),
                    "partitions": [
                        {
                            "topic": part.tp.topic,
                            "partition": part.tp.partition,
                            "offset": part.kafka.offset,
                            "stored": part.stored,
                            "status": part.status,
                        }
                        for part in one.partitions
                    ],
                }
                for one in self.groups
            ],
        }

    def to_lines(self, *, each_partition: bool = True) -> list[str]:
        """Return it as a table for people, and a line that sums it up."""
        rows: list[Sequence[object]] = [
            ("GROUP", "INTO", "STATE", "TOPIC", "PARTITION", "STORED", "KAFKA", "STATUS")
        ]
        for one in self.groups:
            head = (one.group, one.into, one.state)
            note = f"{one.status}: {one.reason}" if one.reason else one.status
            if not (each_partition and one.partitions):
                rows.append((*head, "-", "-", "-", "-", note))
                continue
            if one.reason:
                rows.append((*head, "-", "-", "-", "-", note))
            for tp, kafka, stored, status in one.partitions:
                shown = "-" if stored is None else stored
                rows.append((*head, tp.topic, tp.partition, shown, kafka.offset, status))
        words = (TO_IMPORT, IMPORTED, UNCHANGED, SKIPPED, FAILED)
        counts = [f"{self.count(word)} {word}" for word in words if self.count(word)]
        total = ", ".join(counts) or "no groups"
        return [*_table(rows), f"Groups: {total}."]


def plan_group(
    group: str,
    into: str,
    *,
    kafka_state: str,
    active: bool,
    offsets: Offsets,
    stored: Mapping[TopicPartition, int],
    coordinator_state: str,
    existing: Existing,
    force: bool,
) -> GroupImport:
    """Return what importing one group would do.

    Args:
        group: the group in the cluster.
        into: the group at the coordinator.
        kafka_state: its state in the cluster.
        active: whether that is the state of a group with members.
        offsets: what it has committed there.
        stored: what the coordinator has.
        coordinator_state: the state there.
        existing: what to do about offsets that the coordinator has already.
        force: import an active group, too.

    """

    def result(status: str, reason: str = "", found: Sequence[PartitionImport] = ()) -> GroupImport:
        return GroupImport(group, into, kafka_state, status, reason, tuple(found))

    if active and not force:
        return result(
            SKIPPED, "the group has members in Kafka and goes on moving; stop them, or force it"
        )
    if coordinator_state not in FREE:
        return result(
            SKIPPED, f"group {into!r} has members at the coordinator ({coordinator_state})"
        )
    if not offsets:
        return result(SKIPPED, "it has committed nothing (of these topics)")
    parts = [
        PartitionImport(tp, value, stored.get(tp), _status(value.offset, stored.get(tp), existing))
        for tp, value in sorted(offsets.items())
    ]
    note = "a moment's offsets: the group has members in Kafka" if active else ""
    if any(part.status == TO_IMPORT for part in parts):
        return result(TO_IMPORT, note, parts)
    return result(UNCHANGED, note, parts)


def done(planned: GroupImport, errors: Mapping[TopicPartition, str]) -> GroupImport:
    """Return what became of a plan when its offsets were committed, and *errors* were not."""
    parts = tuple(
        part._replace(status=errors.get(part.tp, IMPORTED)) if part.status == TO_IMPORT else part
        for part in planned.partitions
    )
    if not errors:
        return planned._replace(status=IMPORTED, partitions=parts)
    imported = len(planned.moving) - len(errors)
    reason = f"{len(errors)} partitions were not imported, {imported} were"
    return planned._replace(status=FAILED, reason=reason, partitions=parts)


def _status(offset: int, stored: int | None, existing: Existing) -> str:
    if stored is None:
        return TO_IMPORT
    if stored == offset:
        return UNCHANGED
    if existing is Existing.OVERWRITE or (existing is Existing.FORWARD and offset > stored):
        return TO_IMPORT
    return KEPT


def _table(rows: Sequence[Sequence[object]]) -> list[str]:
    texts = [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in texts) for column in range(len(texts[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in texts
    ]
