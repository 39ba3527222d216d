"""``group-coordinator offsets import``: commit what stands in a file, also into active groups.

`Import` is what importing is from anywhere, ``zookeeper import`` too.

First all of the file is read and checked, then a plan is made of what is committed and who owns
what (`Import.plan`), then it is shown, and done (`Import.execute`). The coordinator checks again
what the plan was made of: that the offset is still the one that was shown, and that no member may
commit the partition, or that who may is removed in the same step.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import click

from coordinator.cli.common import (
    GROUP,
    PARTITIONS_PER_REQUEST,
    AskFailed,
    Change,
    Coordinator,
    InDoubt,
    Talk,
    as_topics,
    asks_to_change,
    describe_error,
    or_dead,
    talk_about_each,
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
AHEAD: Final = "ahead"  # What is committed is larger.
MISSING: Final = "missing"  # Committed, but absent from the source.
IMPORTED: Final = "imported"
NOT_TRIED: Final = "not tried"
UNKNOWN: Final = "unknown"
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
    work = Import(coordinator, Terms(remove_owners, overwrite, reason, expected))
    failed = work.plan(by_group)
    change.confirm(work.question(), HEAD, work.to_confirm(), failed=failed)
    try:
        return work.execute() or failed
    finally:
        output.show(HEAD, work.rows(), failed=not work.plans)


class Terms(NamedTuple):
    """How offsets are imported.

    Attributes:
        remove_owners: Also what members own; those are removed.
        overwrite: Also over what was committed since it was looked at.
        reason: Why, for the coordinator.
        expected: What must be committed, by an export; None for whatever is.
        is_forward: Only where it is larger than what is committed.
        lacks: Says of a partition without a row whether the source has no offset of it, so that a
            committed one is told as `MISSING`; None: it may be a part, as a file may.

    """

    remove_owners: bool
    overwrite: bool
    reason: str | None
    expected: Mapping[Key, int] | None = None
    is_forward: bool = False
    lacks: Callable[[str, TopicPartition], bool] | None = None


@dataclass(slots=True)
class Planned:
    """One line of the file, what is committed there (None: nothing), and what becomes of it.

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
        self._missing: set[str] = set()
        self._in_the_way: list[str] = []  # The owner's client id, for each partition left out.

    # --- Planning -----------------------------------------------------------------------------

    def plan(self, by_group: Mapping[str, Sequence[FileOffset]]) -> bool:
        """Plan for these groups, say what is in the way, and return whether anything is."""
        failed = talk_about_each(
            self._coordinator, by_group, lambda group_id: self._plan(group_id, by_group[group_id])
        )
        self.plans = {one: self.plans[one] for one in by_group if self.plans.get(one)}
        self._tell_missing([group_id for group_id in by_group if group_id in self._missing])
        self._tell_owned()
        ends = {UNCHANGED, AHEAD, MISSING}
        return failed or any(x.status not in ends for x in self._all() if not x.is_moving)

    def _all(self) -> Iterator[Planned]:
        for found in self.plans.values():
            yield from found

    def question(self) -> str:
        """Return what a person is asked."""
        moving = [one for one in self._all() if one.is_moving]
        groups = {one.row.group_id for one in moving}
        return f"Import {counted(len(moving), 'offset')} of {counted(len(groups), 'group')}?"

    def to_confirm(self) -> list[tuple[object, ...]]:
        """Return the plan as rows, none if there is nothing to do."""
        return self.rows() if any(one.is_moving for one in self._all()) else []

    def rows(self) -> list[tuple[object, ...]]:
        """Return as rows what is to become of each offset, or what has."""
        return [one.shown() for one in self._all()]

    def _plan(self, group_id: str, rows: Sequence[FileOffset]) -> Talk:
        lacks = self._terms.lacks
        if not rows and lacks is None:
            raise AskFailed("the file has nothing of this group")
        group = or_dead((yield m.DescribeGroupsRequest((group_id,))))
        if group.error and rows:
            self._missing.add(group_id)
        lag = m.DescribeLagResponse(0, None, group_id, ())
        if group.members or (lacks is not None and not group.error):
            lag = yield m.DescribeLagRequest(group_id)
        owners = _owners(group, lag)
        if lacks is not None:
            stored = _committed(lag)
        else:
            stored = {}
            for at in range(0, len(rows), PARTITIONS_PER_REQUEST):
                topics = as_topics(row.where for row in rows[at : at + PARTITIONS_PER_REQUEST])
                answer = yield m.OffsetFetchRequest((m.GroupFetch(group_id, topics),), False)
                stored |= _stored(answer)
        plan = [self._planned(row, stored.get(row.where), owners.get(row.where)) for row in rows]
        if lacks is not None:
            there = {row.where for row in rows}
            plan += [
                _missing(group_id, where, one.offset)
                for where, one in stored.items()
                if where not in there and lacks(group_id, where)
            ]
        self.plans[group_id] = plan

    def _planned(
        self, row: FileOffset, stored: m.PartitionOffset | None, owner: str | None
    ) -> Planned:
        committed = None if stored is None else stored.offset
        if stored is not None and _is_same(row, stored):
            return Planned(row, committed, UNCHANGED, is_moving=False)
        if self._terms.is_forward and committed is not None and committed >= row.offset:
            return Planned(row, committed, AHEAD, is_moving=False)
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

    def _tell_missing(self, missing: Sequence[str]) -> None:
        """Say which groups aren't there yet, if any."""
        if len(missing) == 1:
            note(f"Consumer group {quoted(missing[0])} does not exist; an import makes it.")
        elif missing:
            groups = some_of(map(quoted, missing), count=len(missing))
            note(f"{len(missing)} groups do not exist; an import makes them: {groups}")

    def _tell_owned(self) -> None:
        """Say which members are in the way, if any, and what helps."""
        if self._in_the_way:
            partitions = counted(len(self._in_the_way), "partition")
            owners = some_of(list(dict.fromkeys(self._in_the_way)))
            note(
                f"{partitions} can't be imported while members own them: {owners}. Stop or drain "
                "these, or say --remove-owners."
            )

    # --- Doing it -----------------------------------------------------------------------------

    def execute(self) -> bool:
        """Import what was planned, and return whether some failed; `rows` say what became of it."""
        _mark([one for one in self._all() if one.is_moving], NOT_TRIED)
        return talk_about_each(self._coordinator, self.plans, self._alter, "Importing")

    def _alter(self, group_id: str) -> Talk:
        """Import into one group.

        Raises:
            AskFailed: Some of it failed.
        """
        removed: list[str] = []
        refused: list[str] = []
        for chunk in _chunks(self.plans[group_id]):
            _mark(chunk, UNKNOWN)  # Until there is an answer.
            try:
                answer: m.AlterOffsetsResponse = yield self._request(group_id, chunk)
            except InDoubt:
                raise
            except AskFailed:
                _mark(chunk, "refused")
                raise
            errors = {
                TopicPartition(topic.topic, p.partition): p.error
                for topic in answer.topics
                for p in topic.partitions
            }
            for one in chunk:
                error = errors[one.row.where]
                one.status = describe_error(error) if error else IMPORTED
                if error:
                    refused.append(f"{one.row.where}: {one.status}")
            removed += answer.removed_members
        if removed:
            note(f"{group_id}: removed {some_of(removed)}")
        if refused:
            raise AskFailed(f"not imported: {some_of(refused)}")

    def _request(self, group_id: str, chunk: Iterable[Planned]) -> m.AlterOffsetsRequest:
        topics: dict[str, list[m.AlteredOffset]] = {}
        for one in chunk:
            row = one.row
            epoch = NO_LEADER_EPOCH if row.leader_epoch is None else row.leader_epoch
            expected = NO_OFFSET if one.committed is None else one.committed
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


def _mark(planned: Iterable[Planned], status: str) -> None:
    for one in planned:
        one.status = status


def _chunks(plan: Iterable[Planned]) -> Iterator[list[Planned]]:
    """Cut what is to be imported into requests."""
    chunk: list[Planned] = []
    room = METADATA_BYTES_PER_REQUEST
    for one in plan:
        if not one.is_moving:
            continue
        size = len((one.row.metadata or "").encode())
        if chunk and (size > room or len(chunk) >= PARTITIONS_PER_REQUEST):
            yield chunk
            chunk, room = [], METADATA_BYTES_PER_REQUEST
        chunk.append(one)
        room -= size
    if chunk:
        yield chunk


def _owners(group: m.DescribedGroup, lag: m.DescribeLagResponse) -> dict[TopicPartition, str]:
    """Return the client id of each partition's owner."""
    clients = {x.member_id: x.client_id for x in group.members}
    return {
        TopicPartition(topic.topic, one.partition): clients.get(one.member_id, one.member_id)
        for topic in lag.topics
        for one in topic.partitions
        if one.member_id
    }


def _missing(group_id: str, where: TopicPartition, committed: int) -> Planned:
    row = FileOffset(group_id, *where, NO_OFFSET)
    return Planned(row, committed, MISSING, is_moving=False)


def _committed(lag: m.DescribeLagResponse) -> dict[TopicPartition, m.PartitionOffset]:
    """Return all that a group has committed, without epochs and metadata."""
    return {
        TopicPartition(topic.topic, one.partition): m.PartitionOffset(
            one.partition, one.committed_offset, NO_LEADER_EPOCH, "", 0
        )
        for topic in lag.topics
        for one in topic.partitions
        if one.committed_offset != NO_OFFSET
    }


def _stored(answer: m.OffsetFetchResponse) -> dict[TopicPartition, m.PartitionOffset]:
    """Return what a group has committed of the partitions that were asked for.

    Raises:
        AskFailed: It can't be read.
    """
    (group,) = answer.groups
    if group.error:
        raise AskFailed(describe_error(group.error), group.error)
    return {
        TopicPartition(topic.topic, one.partition): one
        for topic in group.topics
        for one in topic.partitions
        if one.offset != NO_OFFSET
    }
