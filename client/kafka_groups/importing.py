"""Copies the offsets of a Kafka cluster's groups into the coordinator."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from client.blocking import connect_blocking
from client.exceptions import CommitRefused, CoordinatorError, code_text, refusal
from client.kafka_groups.cluster import KafkaCluster, KafkaGroup, KafkaGroupError
from client.offsets import OffsetAndMetadata, Offsets
from client.operators import PARTITIONS_PER_REQUEST
from client.security import Given
from protocol.errors import ErrorCode
from protocol.messages import DescribedGroup
from protocol.partition import NO_OFFSET, TopicPartition

GroupOffsets = Mapping[TopicPartition, OffsetAndMetadata]

# The coordinator's states of a group to which non-members may commit.
FREE: Final = frozenset({"Empty", "Dead"})

TO_IMPORT: Final = "to import"
IMPORTED: Final = "imported"
UNCHANGED: Final = "unchanged"
KEPT: Final = "kept"
SKIPPED: Final = "skipped"
FAILED: Final = "failed"


class Existing(Enum):
    """Action for an offset that the coordinator has already."""

    FORWARD = "forward"  # Replace the coordinator's offset if Kafka's is higher.
    KEEP = "keep"
    OVERWRITE = "overwrite"


class PartitionImport(NamedTuple):
    """Result of the import of one partition of a group.

    Attributes:
        tp: the partition.
        kafka: the offset committed in the cluster.
        stored: the coordinator's offset; None for none.
        status: "to import", "imported", "unchanged", "kept", or the error of its commit.

    """

    tp: TopicPartition
    kafka: OffsetAndMetadata
    stored: int | None
    status: str


class GroupImport(NamedTuple):
    """Result of the import of one group.

    Attributes:
        group: its name in the cluster.
        into: its name at the coordinator.
        state: its state in the cluster, such as EMPTY or STABLE.
        status: "to import", "imported", "unchanged", "skipped" or "failed".
        reason: why the group was skipped or failed, or another note; may be empty.
        partitions: the result of each partition, sorted.

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


class ImportReport(NamedTuple):
    """Results of all requested groups, sorted by name."""

    dry_run: bool
    groups: tuple[GroupImport, ...]

    @property
    def failed(self) -> bool:
        """Return whether the import of a group failed, wholly or in part."""
        return any(one.status == FAILED for one in self.groups)

    def count(self, status: str) -> int:
        """Return the number of groups with this status."""
        return sum(one.status == status for one in self.groups)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as a dictionary for JSON."""
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
        """Return the report as a table for people, with a summary as its last line."""
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
        statuses = (TO_IMPORT, IMPORTED, UNCHANGED, SKIPPED, FAILED)
        counts = [f"{self.count(word)} {word}" for word in statuses if self.count(word)]
        total = ", ".join(counts) or "no groups"
        return [*_table(rows), f"Groups: {total}."]


class Cluster(Protocol):
    """The calls to a Kafka cluster that the import needs; `KafkaCluster` has them."""

    def groups(self) -> list[KafkaGroup]:
        """Return the consumer groups."""

    def group(self, name: str) -> KafkaGroup:
        """Return one group."""

    def offsets(self, name: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""


class Coordinator(Protocol):
    """Calls to the coordinator that the import needs; `client.blocking.BlockingClient` has them."""

    def describe_groups(self, groups: Sequence[str]) -> list[DescribedGroup]:
        """Return the state of each group."""

    def fetch_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group."""

    def commit(
        self, group: str, offsets: Offsets, expected: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Store offsets of a group without members."""


def import_groups(
    kafka: str | Mapping[str, Any] | Cluster,
    coordinator: str | Coordinator,
    groups: Collection[str] | None = None,
    *,
    pattern: str | None = None,
    topics: Collection[str] | None = None,
    into: Callable[[str], str] | None = None,
    existing: Existing | str = Existing.FORWARD,
    force: bool = False,
    dry_run: bool = False,
    security: Given = None,
) -> ImportReport:
    """Copy the committed offsets of a cluster's groups into groups of the coordinator.

    Metadata and leader epochs are copied as well. The cluster isn't changed. A repetition is
    harmless: equal offsets aren't written again. An offset that changes at the coordinator
    between the read and the write isn't overwritten, but reported.

    Args:
        kafka: "host:9092", the settings of confluent-kafka, or a `KafkaCluster`.
        coordinator: "host:port", several separated by commas, or a
            `client.blocking.BlockingClient`.
        groups: names of the groups; by default all, or those that match *pattern*.
        pattern: a regular expression that matches the whole name of a group.
        topics: import only offsets of these topics.
        into: returns a group's name at the coordinator, given its name in the cluster.
        existing: action for offsets that the coordinator has already: "forward" replaces one if
            Kafka's is higher, "keep" never, "overwrite" always.
        force: also import groups that have members in Kafka, with the offsets of this moment.
            Offsets of a group that has members at the coordinator are never written.
        dry_run: write nothing, only report.
        security: as for `client.connect`, for the connection to the coordinator.

    Returns:
        The result of each group; the failure of one group doesn't stop the others.

    Raises:
        ValueError: the arguments contradict each other.
        KafkaGroupError: the groups of the cluster can't be listed.
        CoordinatorUnavailable: the coordinator didn't answer.

    """
    existing = Existing(existing)
    cluster = KafkaCluster(kafka) if isinstance(kafka, str | Mapping) else kafka
    with ExitStack() as connection:
        client = coordinator
        if isinstance(client, str):
            connecting = connect_blocking(
                client.split(","), client_id="kafka-groups", security=security
            )
            client = connection.enter_context(connecting)
        wanted = _wanted(cluster, groups, pattern)
        targets = _targets([one.name for one in wanted], into)
        results = []
        for one in wanted:
            target = targets[one.name]
            try:
                offsets = cluster.offsets(one.name)
                if topics is not None:
                    offsets = {tp: value for tp, value in offsets.items() if tp.topic in topics}
                planned = _plan(one, target, offsets, client, existing, force=force)
                if planned.status == TO_IMPORT and not dry_run:
                    planned = _commit(client, planned)
            except (KafkaGroupError, CoordinatorError) as exc:
                planned = GroupImport(one.name, target, one.state, FAILED, str(exc), ())
            results.append(planned)
    return ImportReport(dry_run, tuple(results))


def _wanted(
    cluster: Cluster, groups: Collection[str] | None, pattern: str | None
) -> list[KafkaGroup]:
    if groups is not None and pattern is not None:
        raise ValueError("either groups or a pattern, not both")
    if isinstance(groups, str):
        raise TypeError(f"groups must be several names, not {groups!r}")
    if groups is not None:
        return [cluster.group(name) for name in sorted(set(groups))]
    try:
        fits = re.compile(pattern or ".*", re.DOTALL)
    except re.error as exc:
        raise ValueError(f"pattern {pattern!r} is no regular expression: {exc}") from exc
    # Kafka stores offsets of consumers without a group under the empty name.
    return [one for one in cluster.groups() if one.name and fits.fullmatch(one.name)]


def _targets(names: Sequence[str], into: Callable[[str], str] | None) -> dict[str, str]:
    targets = {name: into(name) if into else name for name in names}
    if len(set(targets.values())) < len(targets):
        twice = sorted({t for t in targets.values() if list(targets.values()).count(t) > 1})
        raise ValueError(f"several groups would be imported into {', '.join(twice)}")
    return targets


def _commit(coordinator: Coordinator, planned: GroupImport) -> GroupImport:
    errors: dict[TopicPartition, str] = {}
    moving = planned.moving
    for at in range(0, len(moving), PARTITIONS_PER_REQUEST):
        chunk = moving[at : at + PARTITIONS_PER_REQUEST]
        # Expected offsets: a commit made since the plan isn't overwritten.
        expected = {p.tp: NO_OFFSET if p.stored is None else p.stored for p in chunk}
        try:
            coordinator.commit(planned.into, {p.tp: p.kafka for p in chunk}, expected)
        except CommitRefused as exc:
            errors |= {tp: code_text(code) for tp, code in exc.errors.items()}
        except CoordinatorError as exc:
            errors |= dict.fromkeys((p.tp for p in moving[at:]), str(exc))
            return _done(planned, errors)._replace(reason=str(exc))
    return _done(planned, errors)


def _plan(
    group: KafkaGroup,
    into: str,
    offsets: GroupOffsets,
    coordinator: Coordinator,
    existing: Existing,
    *,
    force: bool,
) -> GroupImport:
    """Return the planned result for one group, which has *offsets* in the cluster."""
    (described,) = coordinator.describe_groups([into])
    if described.error not in {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}:
        text = code_text(described.error, described.message)
        raise refusal(f"group {into!r}: {text}", described.error)
    stored = {tp: value.offset for tp, value in coordinator.fetch_offsets(into).items()}

    def result(status: str, reason: str = "", found: Sequence[PartitionImport] = ()) -> GroupImport:
        return GroupImport(group.name, into, group.state, status, reason, tuple(found))

    if group.active and not force:
        return result(
            SKIPPED, "the group has members in Kafka and goes on moving; stop them, or force it"
        )
    if described.state not in FREE:
        return result(SKIPPED, f"group {into!r} has members at the coordinator ({described.state})")
    if not offsets:
        return result(SKIPPED, "it has committed nothing (of these topics)")
    parts = [
        PartitionImport(tp, value, stored.get(tp), _status(value.offset, stored.get(tp), existing))
        for tp, value in sorted(offsets.items())
    ]
    note = "a moment's offsets: the group has members in Kafka" if group.active else ""
    if any(part.status == TO_IMPORT for part in parts):
        return result(TO_IMPORT, note, parts)
    return result(UNCHANGED, note, parts)


def _done(planned: GroupImport, errors: Mapping[TopicPartition, str]) -> GroupImport:
    """Return the result of a plan after its commits; *errors* has the failed partitions."""
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
