"""``group-coordinator offsets import``: commit what stands in a file, also into active groups.

First all of the file is read and checked, then a plan is made of what is committed and who owns
what (`Import.plan`), then it is shown, and done (`Import.execute`). The coordinator checks again
what the plan was made of: that the offset is still the one that was shown, and that no member may
commit the partition, or that who may is removed in the same step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import click

from coordinator.cli.common import (
    GROUP,
    PARTITIONS_PER_REQUEST,
    AskFailed,
    Change,
    Coordinator,
    InDoubt,
    Unreachable,
    as_topics,
    asks_to_change,
    describe_error,
    described_or_dead,
    for_each,
)
from coordinator.cli.grammar import Command
from coordinator.cli.offset_files import FileOffset, read_offsets
from coordinator.cli.output import Output, counted, note
from coordinator.names import quoted
from protocol import messages as m
from protocol.partition import NO_LEADER_EPOCH, NO_OFFSET, TopicPartition
from protocol.text import some_of

UNCHANGED: Final = "unchanged"
TO_IMPORT: Final = "to import"
IMPORTED: Final = "imported"
HEAD: Final = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET", "STATUS")
# Of one request; with as many names as it may have it stays below the largest request.
METADATA_BYTES_PER_REQUEST: Final = 256 * 1024

Key = tuple[str, TopicPartition]


@click.command(
    "import",
    cls=Command,
    examples={
        "See what a file would change, and do it if you agree:": "offsets import offsets.csv",
        "Only one group of it, in a script:": "offsets import offsets.csv billing --yes",
        "Only where nothing has changed since an export:": "offsets import new.csv "
        "--unless-changed-since before.csv --yes",
        "Also what members own; they join again, and begin there:": "offsets import offsets.csv "
        "--remove-owners",
    },
)
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True))
@click.argument("group_ids", nargs=-1, metavar="[GROUP]...", type=GROUP)
@click.option(
    "--remove-owners",
    is_flag=True,
    help="Import what members own, too, and remove those in the same step; they join again.",
)
@click.option(
    "--unless-changed-since",
    "before",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="An export: import only where that is still what is committed.",
)
@click.option(
    "--overwrite", is_flag=True, help="Also over what was committed since it was looked at."
)
@click.option("--reason", default=None, help="What to keep in the log lines and the history.")
@asks_to_change
def import_offsets(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    path: str,
    group_ids: tuple[str, ...],
    remove_owners: bool,
    before: str | None,
    overwrite: bool,
    reason: str | None,
) -> bool:
    """Commit the offsets in FILE, which offsets export or kafka-consumer-groups.sh has written.

    The whole file is checked first. Groups may have members: a partition that a member owns is
    left out, and told, unless --remove-owners. What was committed after it was looked at is not
    overwritten, unless --overwrite.
    """
    if overwrite and before is not None:
        raise click.UsageError("Either --overwrite or --unless-changed-since.")
    only = group_ids[0] if len(group_ids) == 1 else None
    by_group: dict[str, list[FileOffset]] = {group_id: [] for group_id in group_ids}
    for row in read_offsets(path, "FILE", only):
        if not group_ids or row.group_id in by_group:
            by_group.setdefault(row.group_id, []).append(row)
    if not by_group:
        note(f"{path}: there are no offsets in it")
    expected = None
    if before is not None:
        found = read_offsets(before, "--unless-changed-since", only)
        expected = {(row.group_id, row.where): row.offset for row in found}
    terms = Terms(remove_owners, overwrite, reason, expected)
    work = Import(coordinator, terms)
    failed = for_each(by_group, lambda group_id: work.plan(group_id, by_group[group_id]))
    work.tell_missing()
    work.tell_owned()
    planned = [one for found in work.plans.values() for one in found]
    moving = [one for one in planned if one.is_moving]
    failed |= any(not one.is_moving and one.status != UNCHANGED for one in planned)
    groups = {one.row.group_id for one in moving}
    question = f"Import {counted(len(moving), 'offset')} of {counted(len(groups), 'group')}?"
    rows = [one.shown() for one in planned] if moving else []
    change.confirm(question, HEAD, rows, failed=failed)
    return work.execute(output) or failed


class Terms(NamedTuple):
    """How a file is imported; ``expected`` is what must be committed, by an export."""

    remove_owners: bool
    overwrite: bool
    reason: str | None
    expected: Mapping[Key, int] | None


class Planned(NamedTuple):
    """One line of the file, what is committed there (None: nothing), and what is to become of it.

    ``is_moving`` says that it is to be imported.
    """

    row: FileOffset
    committed: int | None
    status: str
    is_moving: bool

    def shown(self) -> tuple[object, ...]:
        """Return it as a row of the table."""
        row = self.row
        return (*row[:3], self.committed, row.offset, self.status)


class Import:
    """What will be imported into each group, looked up group by group, and then done."""

    def __init__(self, coordinator: Coordinator, terms: Terms) -> None:
        self._coordinator = coordinator
        self._terms = terms
        self.plans: dict[str, list[Planned]] = {}
        self._missing: list[str] = []
        self._in_the_way: list[str] = []  # The owner's client id, for each partition left out.

    def plan(self, group_id: str, rows: Sequence[FileOffset]) -> None:
        """Plan for one group.

        Raises:
            AskFailed: It can't be looked at, or the file has nothing of it.
        """
        if not rows:
            raise AskFailed("the file has nothing of this group")
        group = described_or_dead(self._coordinator, group_id)
        if group.error:
            self._missing.append(group_id)
        owners = self._owners_of(group)
        stored = self._stored(group_id, rows)
        self.plans[group_id] = [
            self._planned(row, stored.get(row.where), owners.get(row.where)) for row in rows
        ]

    def _owners_of(self, group: m.DescribedGroup) -> dict[TopicPartition, str]:
        """Return the client id of each partition's owner."""
        if not group.members:
            return {}
        clients = {x.member_id: x.client_id for x in group.members}
        answer: m.DescribeLagResponse = self._coordinator.ask(m.DescribeLagRequest(group.group_id))
        return {
            TopicPartition(topic.topic, one.partition): clients.get(one.member_id, one.member_id)
            for topic in answer.topics
            for one in topic.partitions
            if one.member_id
        }

    def _stored(
        self, group_id: str, rows: Sequence[FileOffset]
    ) -> dict[TopicPartition, m.PartitionOffset]:
        """Return what the group has committed of the partitions of *rows*."""
        found: dict[TopicPartition, m.PartitionOffset] = {}
        for at in range(0, len(rows), PARTITIONS_PER_REQUEST):
            topics = as_topics(row.where for row in rows[at : at + PARTITIONS_PER_REQUEST])
            request = m.OffsetFetchRequest((m.GroupFetch(group_id, topics),), False)
            (answer,) = self._coordinator.ask(request).groups
            if answer.error:
                raise AskFailed(describe_error(answer.error), answer.error)
            for topic in answer.topics:
                for one in topic.partitions:
                    if one.offset != NO_OFFSET:
                        found[TopicPartition(topic.topic, one.partition)] = one
        return found

    def _planned(
        self, row: FileOffset, stored: m.PartitionOffset | None, owner: str | None
    ) -> Planned:
        committed = None if stored is None else stored.offset
        if stored is not None and _is_same(row, stored):
            return Planned(row, committed, UNCHANGED, is_moving=False)
        expected = self._terms.expected
        if expected is not None:
            before = expected.get((row.group_id, row.where))
            if before != committed:
                was = "nothing" if before is None else before
                return Planned(row, committed, f"changed: {was} before", is_moving=False)
        if owner is None:
            return Planned(row, committed, TO_IMPORT, is_moving=True)
        if self._terms.remove_owners:
            return Planned(row, committed, f"{TO_IMPORT}, removes {owner}", is_moving=True)
        self._in_the_way.append(owner)
        return Planned(row, committed, f"owned by {owner}", is_moving=False)

    def tell_missing(self) -> None:
        """Say which groups aren't there yet, if any."""
        if len(self._missing) == 1:
            note(f"Consumer group {quoted(self._missing[0])} does not exist; an import makes it.")
        elif self._missing:
            groups = some_of(map(quoted, self._missing), count=len(self._missing))
            note(f"{len(self._missing)} groups do not exist; an import makes them: {groups}")

    def tell_owned(self) -> None:
        """Say which members are in the way, if any, and what helps."""
        if self._in_the_way:
            partitions = counted(len(self._in_the_way), "partition")
            owners = some_of(list(dict.fromkeys(self._in_the_way)))
            note(
                f"{partitions} can't be imported while members own them: {owners}. Stop or drain "
                "these, or say --remove-owners."
            )

    def execute(self, output: Output) -> bool:
        """Import what was planned, show what became of it, and return whether some failed."""
        rows: list[tuple[object, ...]] = []

        def one(group_id: str) -> None:
            status: dict[TopicPartition, str] = {}
            try:
                self._alter(group_id, status)
            finally:
                for planned in self.plans[group_id]:
                    said = status.get(planned.row.where, planned.status)
                    if planned.is_moving and planned.row.where not in status:
                        said = "not tried"
                    rows.append(planned._replace(status=said).shown())

        try:
            failed = for_each(self.plans, one, "Importing")
        finally:
            output.show(HEAD, rows, failed=not self.plans)
        return failed

    def _alter(self, group_id: str, status: dict[TopicPartition, str]) -> None:
        """Import into one group, and note in *status* what became of each partition.

        Raises:
            AskFailed: Some of it failed.
        """
        removed: list[str] = []
        for chunk in _chunks([one for one in self.plans[group_id] if one.is_moving]):
            status |= dict.fromkeys([one.row.where for one in chunk], "unknown")
            try:
                answer: m.AlterOffsetsResponse = self._coordinator.ask(
                    self._request(group_id, chunk)
                )
            except (InDoubt, Unreachable):
                raise
            except AskFailed:
                status |= dict.fromkeys([one.row.where for one in chunk], "refused")
                raise
            status |= {
                TopicPartition(topic.topic, p.partition): (
                    describe_error(p.error) if p.error else IMPORTED
                )
                for topic in answer.topics
                for p in topic.partitions
            }
            removed += answer.removed_members
        if removed:
            note(f"{group_id}: removed {some_of(removed)}")
        refused = [f"{where}: {text}" for where, text in status.items() if text != IMPORTED]
        if refused:
            raise AskFailed(f"not imported: {some_of(refused)}")

    def _request(self, group_id: str, chunk: Iterable[Planned]) -> m.AlterOffsetsRequest:
        topics: dict[str, list[m.AlteredOffset]] = {}
        for row, committed, _, _ in chunk:
            epoch = NO_LEADER_EPOCH if row.leader_epoch is None else row.leader_epoch
            expected = NO_OFFSET if committed is None else committed
            altered = m.AlteredOffset(
                row.partition,
                row.offset,
                epoch,
                row.metadata,
                None if self._terms.overwrite else expected,
            )
            topics.setdefault(row.topic, []).append(altered)
        return m.AlterOffsetsRequest(
            group_id,
            tuple(m.AlteredTopic(topic, tuple(found)) for topic, found in topics.items()),
            self._terms.remove_owners,
            self._terms.reason,
        )


def _is_same(row: FileOffset, stored: m.PartitionOffset) -> bool:
    """Say whether what is committed is all that the file says."""
    return (
        row.offset == stored.offset
        and row.leader_epoch in (None, stored.leader_epoch)
        and row.metadata in (None, stored.metadata)
    )


def _chunks(planned: Sequence[Planned]) -> Iterator[list[Planned]]:
    """Cut what is to be imported into requests."""
    chunk: list[Planned] = []
    room = METADATA_BYTES_PER_REQUEST
    for one in planned:
        size = len((one.row.metadata or "").encode())
        if chunk and (size > room or len(chunk) >= PARTITIONS_PER_REQUEST):
            yield chunk
            chunk, room = [], METADATA_BYTES_PER_REQUEST
        chunk.append(one)
        room -= size
    if chunk:
        yield chunk
