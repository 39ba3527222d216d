"""``group-coordinator groups reset-offsets``: put a group without members elsewhere.

First a plan is made of what is known of each partition (`plan`), then it is shown, written to a
file, or done (`Plans`).
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from coordinator.cli.common import (
    PARTITIONS_PER_REQUEST,
    AskFailed,
    Change,
    Coordinator,
    InDoubt,
    Scope,
    Unreachable,
    asks_to_change,
    by_topic,
    committed_offsets,
    describe_error,
    described_or_dead,
    described_topic,
    for_each,
    groups_asked_for,
    has_members,
    hint_for,
    missing_group,
    registered_topics,
    several_groups,
    topic_scope,
)
from coordinator.cli.grammar import Command, refuses
from coordinator.cli.offset_files import csv_line, read_offsets
from coordinator.cli.output import Output, counted, note, time_of
from coordinator.names import escaped, quoted
from protocol import messages as m
from protocol.errors import ErrorCode
from protocol.messages import EndOffset
from protocol.partition import INT64_MAX, NO_LEADER_EPOCH, NO_OFFSET, TopicPartition
from protocol.text import some_of

Offsets = dict[TopicPartition, int]

NO_END: Final = (
    "nobody has reported the end (topics report-end does), so name an offset by --to-offset"
)
NO_COMMIT: Final = "no offset is committed"
NO_START: Final = (
    "The coordinator does not know where the partitions of a source begin. If that is offset 0, "
    "say --to-offset 0; if older records are gone already, name the first offset that is left."
)
HEAD: Final = ("GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET")
NO_TIMES: Final = (
    "The coordinator keeps no timestamps of the source's records. Find the offsets of that time at "
    "the source, and name them by --to-offset or --from-file."
)

EXECUTE_IS_YES: Final = (
    "Without --yes nothing is changed: on a terminal it asks first, elsewhere it is a dry run."
)


class CannotReset(Exception):
    """For some partition there is no offset to reset to; the message says which and why."""


class Known(NamedTuple):
    """What is known of one partition; None is what isn't. The count is its topic's."""

    committed: int | None
    end: EndOffset | None
    partition_count: int | None


class Reset(NamedTuple):
    """Where one partition is, and where it is to go."""

    topic: str
    partition: int
    committed: int | None
    offset: int


class Spec(NamedTuple):
    """How the new offset is found, and whether it must lie between 0 and the end."""

    find: Callable[[TopicPartition, Known], int]
    is_clamped: bool


def at_offset(offset: int) -> Spec:
    """Put every partition to *offset*."""
    return Spec(lambda _, __: offset, is_clamped=True)


def to_offsets(offsets: Offsets) -> Spec:
    """Put each partition to its own offset."""
    return Spec(lambda partition, _: offsets[partition], is_clamped=True)


def shifted_by(count: int) -> Spec:
    """Move every partition on, or back where *count* is negative."""

    def find(_: TopicPartition, known: Known) -> int:
        if known.committed is None:
            raise CannotReset(NO_COMMIT)
        return known.committed + count

    return Spec(find, is_clamped=True)


def _latest(_: TopicPartition, known: Known) -> int:
    if known.end is None:
        raise CannotReset(NO_END)
    return known.end.end_offset


def _current(partition: TopicPartition, known: Known) -> int:
    return _latest(partition, known) if known.committed is None else known.committed


TO_LATEST: Final = Spec(_latest, is_clamped=False)
# What is committed stays: the end may have been reported long ago.
TO_CURRENT: Final = Spec(_current, is_clamped=False)


def plan(known: Mapping[TopicPartition, Known], spec: Spec) -> tuple[list[Reset], list[str]]:
    """Return the resets in the order of topics and partitions, and warnings.

    Raises:
        CannotReset: Some partition has no offset to go to, so that none is reset.
    """
    resets: list[Reset] = []
    warnings: list[str] = []
    troubles: dict[str, list[TopicPartition]] = {}
    for partition in sorted(known):
        facts = known[partition]
        try:
            offset = _find(partition, facts, spec)
        except CannotReset as exc:
            troubles.setdefault(str(exc), []).append(partition)
            continue
        if spec.is_clamped:
            offset, warning = _clamp(partition, offset, facts.end)
            warnings += [warning] if warning else []
        resets.append(Reset(*partition, facts.committed, offset))
    if troubles:
        raise CannotReset("; ".join(f"{some_of(where)}: {why}" for why, where in troubles.items()))
    return resets, warnings


def _find(partition: TopicPartition, known: Known, spec: Spec) -> int:
    if known.partition_count is not None and partition.partition >= known.partition_count:
        raise CannotReset(f"the topic has {known.partition_count} partitions")
    return spec.find(partition, known)


def _clamp(partition: TopicPartition, offset: int, end: EndOffset | None) -> tuple[int, str]:
    if offset < 0:
        return 0, f"{partition}: {offset} is below 0, so 0"
    if end is not None and offset > end.end_offset:
        reported = time_of(end.reported_ms)
        return end.end_offset, (
            f"{partition}: {offset} is beyond the end {end.end_offset} (reported {reported}), "
            f"so {end.end_offset}"
        )
    if offset > INT64_MAX:
        return INT64_MAX, f"{partition}: {offset} is no offset, so {INT64_MAX}"
    return offset, ""


def _as_kafkas_tool(command: Any) -> Any:
    """Take what Kafka's tool has and this one hasn't, to say why, and what to do instead."""
    command = refuses("--to-datetime", NO_TIMES)(command)
    command = refuses("--by-duration", NO_TIMES)(command)
    command = refuses("--to-earliest", NO_START, is_flag=True)(command)
    command = refuses("--execute", EXECUTE_IS_YES, is_flag=True)(command)
    return refuses("--dry-run", EXECUTE_IS_YES, is_flag=True)(command)


@click.command(
    "reset-offsets",
    cls=Command,
    examples={
        "See where a group would begin anew, and be asked:": "groups reset-offsets billing "
        "--all-topics --to-latest",
        "Have two partitions read again from a certain offset, in a script:": "groups "
        "reset-offsets billing --topic orders:0,1 --to-offset 1000 --yes",
        "Have the last 500 records of each partition read again:": "groups reset-offsets billing "
        "--topic orders --shift-by -500",
        "Put it where a file says:": "groups reset-offsets billing --from-file backup.csv",
    },
)
@several_groups
@click.option("--all-topics", is_flag=True, help="All partitions that the group has committed.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="T[:P,P]",
    help="All partitions of a topic, or these; may be given several times.",
)
@click.option(
    "--from-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="CSV",
    help="Lines topic,partition,offset (one GROUP) or group,topic,partition,offset.",
)
@click.option("--to-offset", type=click.IntRange(0), metavar="N", help="This offset.")
@click.option("--shift-by", type=int, metavar="N", help="So many on; back if negative.")
@click.option("--to-current", is_flag=True, help="What is committed; else the end.")
@click.option("--to-latest", is_flag=True, help="The registered end.")
@_as_kafkas_tool
@click.option(
    "--export",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="CSV",
    help="Write the new offsets to a file for --from-file, whether they are made or not.",
)
@asks_to_change
def reset_offsets(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    group_ids: tuple[str, ...],
    all_groups: bool,
    all_topics: bool,
    topics: tuple[str, ...],
    from_file: Path | None,
    to_offset: int | None,
    shift_by: int | None,
    to_current: bool,
    to_latest: bool,
    export: Path | None,
) -> bool:
    """Put groups without members to other offsets, unless they moved meanwhile.

    New offsets are kept between 0 and the registered end, where there is one.
    """
    if all_topics + bool(topics) + (from_file is not None) != 1:
        raise click.UsageError("Say exactly one of --all-topics, --topic and --from-file.")
    specs = {
        "--to-offset": None if to_offset is None else at_offset(to_offset),
        "--shift-by": None if shift_by is None else shifted_by(shift_by),
        "--to-current": TO_CURRENT if to_current else None,
        "--to-latest": TO_LATEST if to_latest else None,
    }
    given = [spec for spec in specs.values() if spec is not None]
    if len(given) + (from_file is not None) != 1:
        names = ", ".join(specs)
        raise click.UsageError(f"Say exactly one of {names} and --from-file.")
    scope = topic_scope(topics) if topics else None
    wanted_groups = groups_asked_for(coordinator, group_ids, all_groups=all_groups)
    only = wanted_groups[0] if len(wanted_groups) == 1 and not all_groups else None
    by_group = None if from_file is None else _read(from_file, wanted_groups, only)
    plans = Plans(coordinator, Wanted(given[0] if given else None, scope, by_group))
    failed = for_each(wanted_groups, plans.add)
    if export is not None:
        _export(export, plans.resets, with_group=only is None)
    rows = [(group_id, *reset) for group_id, found in plans.resets.items() for reset in found]
    moved = sum(r.offset != r.committed for found in plans.resets.values() for r in found)
    if moved:
        question = f"Reset {counted(moved, 'offset')} of {counted(len(plans.resets), 'group')}?"
        change.confirm(question, HEAD, rows, failed=failed)
    return plans.execute(output) or failed


class Wanted(NamedTuple):
    """What is to be reset, and how: with a file, ``by_group``; all topics have no scope."""

    spec: Spec | None
    scope: Scope | None
    by_group: dict[str, Offsets] | None


class Plans:
    """What will be reset in each group, looked up group by group and then done."""

    def __init__(self, coordinator: Coordinator, wanted: Wanted) -> None:
        self._coordinator = coordinator
        self._wanted = wanted
        self._facts = Facts(coordinator)
        self.resets: dict[str, list[Reset]] = {}
        self._rows: list[tuple[object, ...]] = []

    def add(self, group_id: str) -> None:
        """Plan for one group.

        Raises:
            GroupRefused: It has members, or isn't there and nothing names partitions.
            AskFailed: For some partition there is no offset to go to.
        """
        group = self._inactive(group_id)
        committed = committed_offsets(self._coordinator, group_id)
        partitions, spec = self._partitions(group_id, committed)
        is_missing = group.error == ErrorCode.GROUP_ID_NOT_FOUND
        if not partitions:
            if is_missing:
                raise missing_group(self._coordinator, group_id)
            note(f"{group_id}: there is nothing to reset")
        known = {}
        for partition in partitions:
            count, ends = self._facts.of(partition.topic)
            end = ends.get(partition.partition)
            known[partition] = Known(committed.get(partition), end, count)
        try:
            self.resets[group_id], warnings = plan(known, spec)
        except CannotReset as exc:
            raise AskFailed(str(exc)) from exc
        if is_missing:
            note(f"Consumer group {quoted(group_id)} does not exist; a reset makes it.")
        for warning in warnings:
            note(f"Warning: {group_id}: {warning}")

    def _inactive(self, group_id: str) -> m.DescribedGroup:
        group = described_or_dead(self._coordinator, group_id)
        if group.state not in {"Empty", "Dead"}:
            raise has_members(group)
        return group

    def _partitions(self, group_id: str, committed: Offsets) -> tuple[set[TopicPartition], Spec]:
        spec, scope, by_group = self._wanted
        if by_group is not None:
            return set(by_group[group_id]), to_offsets(by_group[group_id])
        assert spec is not None
        if scope is None:
            return set(committed), spec
        found = set()
        committed_by_topic = by_topic(committed)
        for topic, named in scope.items():
            numbers = named
            if numbers is None:
                count = self._facts.of(topic)[0] or 0
                numbers = {*range(count), *committed_by_topic.get(topic, ())}
            if not numbers:
                raise self._unknown_topic(topic, committed_by_topic)
            found |= {TopicPartition(topic, number) for number in numbers}
        return found, spec

    def _unknown_topic(self, topic: str, committed: Iterable[str]) -> AskFailed:
        known = registered_topics(self._coordinator)
        hint = hint_for(topic, lambda: chain(committed, (one.topic for one in known)))
        partitions = f"name its partitions, as in --topic {escaped(topic)[:100]}:0,1"
        unknown = f"Topic {quoted(topic)} is neither registered nor committed"
        return AskFailed(f"{unknown}.{hint}" if hint else f"{unknown}; {partitions}")

    def execute(self, output: Output) -> bool:
        """Commit what was planned, show what became of it, and return whether some failed."""
        try:
            failed = for_each(self.resets, self._commit, "Resetting")
        finally:
            if self._rows:
                output.show((*HEAD, "STATUS"), self._rows)
        return failed

    def _commit(self, group_id: str) -> None:
        resets = self.resets[group_id]
        moved = [reset for reset in resets if reset.offset != reset.committed]
        status = {reset[:2]: "unchanged" for reset in resets if reset.offset == reset.committed}
        try:
            for at in range(0, len(moved), PARTITIONS_PER_REQUEST):
                chunk = moved[at : at + PARTITIONS_PER_REQUEST]
                status |= dict.fromkeys([reset[:2] for reset in chunk], "unknown")
                status |= self._commit_some(group_id, chunk)
        except (InDoubt, Unreachable):
            raise
        except AskFailed:
            status = {key: "refused" if s == "unknown" else s for key, s in status.items()}
            self._inactive(group_id)  # That it has members again says more than the error.
            raise
        finally:
            self._rows += [(group_id, *r, status.get(r[:2], "not tried")) for r in resets]
        refused = [
            f"{topic}-{partition} was not reset: {text}"
            for (topic, partition), text in status.items()
            if text not in {"reset", "unchanged"}
        ]
        if refused:
            self._inactive(group_id)  # As above.
            raise AskFailed(some_of(refused))

    def _commit_some(self, group_id: str, resets: list[Reset]) -> dict[tuple[str, int], str]:
        topics: dict[str, list[m.AlteredOffset]] = {}
        for topic, partition, committed, offset in resets:
            expected = NO_OFFSET if committed is None else committed
            altered = m.AlteredOffset(partition, offset, NO_LEADER_EPOCH, None, expected)
            topics.setdefault(topic, []).append(altered)
        wanted = tuple(m.AlteredTopic(topic, tuple(found)) for topic, found in topics.items())
        # Not a commit, which leaves no line in the coordinator's log.
        answer: m.AlterOffsetsResponse = self._coordinator.ask(
            m.AlterOffsetsRequest(group_id, wanted, False, "reset")
        )
        return {
            (topic.topic, one.partition): describe_error(one.error) if one.error else "reset"
            for topic in answer.topics
            for one in topic.partitions
        }


def _read(path: Path, group_ids: list[str], only: str | None) -> dict[str, Offsets]:
    found: dict[str, Offsets] = {group_id: {} for group_id in group_ids}
    for one in read_offsets(str(path), "--from-file", only, found):
        found[one.group_id][one.where] = one.offset
    return found


def _export(path: Path, resets: dict[str, list[Reset]], *, with_group: bool) -> None:
    lines = [
        csv_line((*((group_id,) if with_group else ()), topic, partition, offset))
        for group_id, found in resets.items()
        for topic, partition, _, offset in found
    ]
    try:
        path.write_text("".join(lines), encoding="utf-8")
    except OSError as exc:
        raise AskFailed(f"--export {path}: {exc.strerror}; nothing was changed") from exc


class Facts:
    """What the registry knows of topics, each asked for once."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._topics: dict[str, tuple[int | None, dict[int, EndOffset]]] = {}

    def of(self, topic: str) -> tuple[int | None, dict[int, EndOffset]]:
        """Return how many partitions there are, None if that isn't known, and their ends."""
        if topic not in self._topics:
            found = described_topic(self._coordinator, topic, with_ends=True)
            if found.error not in {ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
                raise AskFailed(f"topic {quoted(topic)}: {describe_error(found.error)}")
            count = None if found.error else found.partition_count
            self._topics[topic] = count, {end.partition: end for end in found.end_offsets}
        return self._topics[topic]
