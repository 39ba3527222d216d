"""Copies the offsets of a Kafka cluster's groups into the coordinator."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from client.blocking import connect_blocking
from client.exceptions import CommitRefused, CoordinatorError, FatalError, code_text
from client.kafka_groups.cluster import KafkaCluster, KafkaGroup, KafkaGroupError
from client.kafka_groups.plan import (
    FAILED,
    TO_IMPORT,
    Existing,
    GroupImport,
    ImportReport,
    done,
    plan_group,
)
from client.types import OffsetAndMetadata, Offsets
from protocol.errors import ErrorCode
from protocol.messages import DescribedGroup
from protocol.types import NO_OFFSET, TopicPartition

PARTITIONS_PER_COMMIT: Final = 10_000  # What one request may hold.


class Cluster(Protocol):
    """What is needed of a Kafka cluster; `KafkaCluster` has it."""

    def groups(self) -> list[KafkaGroup]:
        """Return the consumer groups."""

    def group(self, name: str) -> KafkaGroup:
        """Return one group."""

    def offsets(self, name: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what a group has committed."""


class Coordinator(Protocol):
    """What is needed of the coordinator; `client.blocking.BlockingClient` has it."""

    def describe_groups(self, groups: Sequence[str]) -> list[DescribedGroup]:
        """Return the state of each group."""

    def fetch_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return what a group has committed."""

    def commit(
        self, group: str, offsets: Offsets, expected: Mapping[TopicPartition, int] | None = None
    ) -> None:
        """Store offsets of a group without members."""


def import_groups(
    kafka: str | Mapping[str, Any],
    coordinator: str,
    groups: Collection[str] | None = None,
    *,
    pattern: str | None = None,
    topics: Collection[str] | None = None,
    into: Callable[[str], str] | None = None,
    existing: Existing | str = Existing.FORWARD,
    force: bool = False,
    dry_run: bool = False,
) -> ImportReport:
    """Copy the committed offsets of a cluster's groups into groups of the coordinator.

    Metadata and leader epochs are copied as well. Nothing in the cluster is changed. Repeating
    it is harmless: what is there already isn't written again, and an offset that changed
    between looking and writing is left alone and reported.

    Args:
        kafka: "host:9092", or the settings of confluent-kafka.
        coordinator: "host:port", or several separated by commas.
        groups: these; by default all, or those that match *pattern*.
        pattern: a regular expression for the whole name.
        topics: only what is committed of these topics.
        into: gives a group another name at the coordinator.
        existing: what to do about offsets that the coordinator has: "forward" replaces them
            where Kafka's is higher, "keep" never, "overwrite" always.
        force: import groups that have members in Kafka, too: the offsets of a moment. A group
            that has members at the coordinator is never written to.
        dry_run: only say what would be done.

    Returns:
        What became of each group; a group that failed doesn't stop the others.

    Raises:
        ValueError: the arguments contradict each other.
        KafkaGroupError: the cluster can't be asked for its groups.
        CoordinatorUnavailable: nobody answered at the coordinator.

    """
    cluster = KafkaCluster(kafka)
    with _connected(coordinator) as client:
        return import_from(
            cluster,
            client,
            groups,
            pattern=pattern,
            topics=topics,
            into=into,
            existing=Existing(existing),
            force=force,
            dry_run=dry_run,
        )


def import_from(
    cluster: Cluster,
    coordinator: Coordinator,
    groups: Collection[str] | None,
    *,
    pattern: str | None,
    topics: Collection[str] | None,
    into: Callable[[str], str] | None,
    existing: Existing,
    force: bool,
    dry_run: bool,
) -> ImportReport:
    """Do what `import_groups` says, with these two."""
    wanted = _wanted(cluster, groups, pattern)
    targets = _targets([one.name for one in wanted], into)

    def plan(one: KafkaGroup) -> GroupImport:
        target = targets[one.name]
        offsets = cluster.offsets(one.name)
        if topics is not None:
            offsets = {tp: value for tp, value in offsets.items() if tp.topic in topics}
        (described,) = coordinator.describe_groups([target])
        if described.error not in {ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND}:
            words = code_text(described.error, described.message)
            raise FatalError(f"group {target!r}: {words}", code=described.error)
        stored = {tp: value.offset for tp, value in coordinator.fetch_offsets(target).items()}
        return plan_group(
            one.name,
            target,
            kafka_state=one.state,
            active=one.active,
            offsets=offsets,
            stored=stored,
            coordinator_state=described.state,
            existing=existing,
            force=force,
        )

    results = []
    for one in wanted:
        try:
            planned = plan(one)
            if planned.status == TO_IMPORT and not dry_run:
                planned = _commit(coordinator, planned)
        except (KafkaGroupError, CoordinatorError) as exc:
            planned = GroupImport(one.name, targets[one.name], one.state, FAILED, str(exc), ())
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
    # A group without a name is Kafka's way to keep offsets of consumers that have none.
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
    for at in range(0, len(moving), PARTITIONS_PER_COMMIT):
        chunk = moving[at : at + PARTITIONS_PER_COMMIT]
        # Nothing is overwritten that this plan has not seen.
        expected = {p.tp: NO_OFFSET if p.stored is None else p.stored for p in chunk}
        try:
            coordinator.commit(planned.into, {p.tp: p.kafka for p in chunk}, expected)
        except CommitRefused as exc:
            errors |= {tp: code_text(code) for tp, code in exc.errors.items()}
        except CoordinatorError as exc:
            errors |= dict.fromkeys((p.tp for p in moving[at:]), str(exc))
            return done(planned, errors)._replace(reason=str(exc))
    return done(planned, errors)


@contextmanager
def _connected(coordinator: str) -> Iterator[Coordinator]:
    with connect_blocking(coordinator.split(","), client_id="kafka-groups") as client:
        yield client
