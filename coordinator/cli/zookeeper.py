"""``group-coordinator zookeeper``: offsets that consumers of old keep in ZooKeeper.

An import reads ``/consumers/GROUP/offsets/TOPIC/PARTITION`` of any ensemble, shows what it would
do, and does it as ``offsets import`` does (`Import`), with one more condition: nothing moves back.
So it may be done again at any time, and after an interruption goes on where that was.

What is read is not one moment's state: old consumers may commit meanwhile. The next import brings
what they have committed.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Final, NamedTuple, TypeVar

import click
import re2

from client.exceptions import CoordinatorError, CoordinatorUnavailable
from client.security import read_properties
from client.zookeeper.ensemble import Ensemble
from client.zookeeper.settings import ZooKeeper
from client.zookeeper.znode_offsets import is_partition
from client.zookeeper.znodes import ROOT, Failed, Found, Status, decoded, offsets_path
from coordinator.cli.common import (
    EXIT_DIFFERENT,
    GROUP,
    AskFailed,
    Change,
    Coordinator,
    Unreachable,
    asks_to_change,
    registered_topics,
)
from coordinator.cli.grammar import Command, Commands, refuses
from coordinator.cli.import_offsets import (
    AHEAD,
    HEAD,
    IMPORTED,
    MISSING,
    TO_IMPORT,
    UNCHANGED,
    Import,
    Planned,
    Terms,
)
from coordinator.cli.offset_files import FileOffset
from coordinator.cli.output import Output, counted, note, tracked
from coordinator.names import quoted, shortened
from protocol.fields import TOPIC_BYTES_MAX
from protocol.group_ids import group_id_error, name_error
from protocol.partition import TopicPartition
from protocol.text import some_of

# Of these many groups everything is read together, by requests for many znodes each.
_GROUPS_AT_ONCE: Final = 50
# A switch to another server loses what was asked; reading it again harms nothing.
_ROUNDS_IN_VAIN_MAX: Final = 3
_SUMMARY: Final = (
    "GROUP",
    "OFFSETS",
    "TO-IMPORT",
    "IMPORTED",
    "UNCHANGED",
    "AHEAD",
    "MISSING",
    "NOT-IMPORTED",
)

_DIFFERENT: Final = (AHEAD, MISSING)
_GOOD: Final = (TO_IMPORT, IMPORTED, UNCHANGED, *_DIFFERENT)
_ANY: Final = 1 << 31
_NO_UTF8: Final = "it is no UTF-8"

T = TypeVar("T")
_Names = tuple[str, ...]


@click.group(
    cls=Commands,
    examples={
        "See what an import would do:": "zookeeper import zk1:2181,zk2:2181/kafka",
        "Are a group's offsets the same in both places?": "zookeeper import zk1:2181 billing",
    },
)
def zookeeper() -> None:
    """Import offsets that consumers of old keep in ZooKeeper."""


@zookeeper.command(
    "import",
    cls=Command,
    examples={
        "See what would be imported, a line a group:": "zookeeper import "
        "zk1:2181,zk2:2181/kafka --summary",
        "Do it, in a script:": "zookeeper import zk1:2181/kafka --yes",
        "Some groups and topics:": "zookeeper import zk1:2181 --pattern 'etl-.*' "
        "--topics 'orders|clicks'",
    },
)
@click.argument("connect", metavar="HOST:PORT,…[/CHROOT]")
@click.argument("group_ids", nargs=-1, metavar="[GROUP]...", type=GROUP)
@click.option("--pattern", default=None, help="Only groups whose name matches this RE2 expression.")
@click.option("--topics", default=None, help="Only topics whose name matches this RE2 expression.")
@click.option("--summary", is_flag=True, help="Show a line for each group, not for each offset.")
@click.option(
    "--remove-owners",
    is_flag=True,
    help="Import what members own, too, and remove those in the same step; they join again.",
)
@click.option("--reason", default=None, help="What to keep in the log lines and the history.")
@click.option(
    "--zookeeper-config",
    metavar="FILE",
    type=click.Path(),
    help="Properties such as zookeeper.ssl.* and zookeeper.sasl.*.",
)
@refuses("--dry-run", "Without --yes it is a dry run.", is_flag=True)
@asks_to_change
def import_offsets(
    coordinator: Coordinator,
    output: Output,
    change: Change,
    connect: str,
    group_ids: tuple[str, ...],
    pattern: str | None,
    topics: str | None,
    summary: bool,
    remove_owners: bool,
    reason: str | None,
    zookeeper_config: str | None,
) -> bool:
    """Commit the offsets that consumers of Kafka 0.8 keep in ZooKeeper, where that is forward.

    Nothing in ZooKeeper changes. What is there and is no offset is told, and left out. Groups may
    have members: a partition that a member owns is left out, too, unless --remove-owners. Where the
    coordinator has a larger offset (ahead), or ZooKeeper none (missing), the exit status is 4.
    """
    if group_ids and pattern is not None:
        raise click.UsageError("Either groups or --pattern.")
    wanted = Wanted(group_ids, _matcher("--pattern", pattern), _matcher("--topics", topics))
    began_s = time.monotonic()
    with _asking(connect, zookeeper_config) as ensemble:
        found = read_all(ensemble, wanted)
    note(f"{counted(found.count, 'offset')} in ZooKeeper, read in {_seconds_since(began_s)}")
    terms = Terms(remove_owners, overwrite=False, reason=reason, is_forward=True, lacks=found.lacks)
    work = Import(coordinator, terms)
    failed = work.plan(found.by_group)
    found.note_empty([one for one in group_ids if one not in work.plans])
    failed = failed or bool(found.bad)
    _tell_unregistered(coordinator, found.by_group)
    report = Report(work, found.bad, is_summary=summary)
    change.confirm(
        work.question(), report.head, report.rows() if work.to_confirm() else [], failed=failed
    )
    began_s = time.monotonic()
    try:
        failed = work.execute() or failed
    finally:
        output.show(report.head, report.rows())
        note(f"{report.counts()}; imported in {_seconds_since(began_s)}")
    if behind := report.behind():
        note(behind)
        if not failed:
            sys.exit(EXIT_DIFFERENT)
    return failed


def _seconds_since(began_s: float) -> str:
    return f"{time.monotonic() - began_s:.1f} s"


def _matcher(name: str, pattern: str | None) -> Callable[[str], bool]:
    """Return what says whether a whole name matches.

    Raises:
        click.BadParameter: The pattern is none.
    """
    if pattern is None:
        return lambda _name: True
    options = re2.Options()
    options.log_errors = False
    try:
        regex = re2.compile(pattern, options)
    except re2.error as exc:
        raise click.BadParameter(f"{quoted(pattern)}: {exc}", param_hint=name) from exc
    return lambda text: regex.fullmatch(text) is not None


@contextmanager
def _asking(connect: str, config: str | None) -> Iterator[Ensemble]:
    """Have an ensemble; what goes wrong with it is told as of a coordinator.

    Raises:
        click.BadParameter: What is said of it makes no sense.
        AskFailed: It can't be used.
        Unreachable: Nobody answers.
    """
    try:
        given = {} if config is None else read_properties(config)
        settings = ZooKeeper.of({**given, "zookeeper.connect": connect})
    except ValueError as exc:
        raise click.BadParameter(str(exc)) from exc
    try:
        with Ensemble(settings) as ensemble:
            yield ensemble
    except CoordinatorUnavailable as exc:
        raise Unreachable(str(exc)) from exc
    except CoordinatorError as exc:
        raise AskFailed(str(exc)) from exc


def _tell_unregistered(
    coordinator: Coordinator, by_group: Mapping[str, Sequence[FileOffset]]
) -> None:
    """Say which topics the coordinator doesn't know, if any: nobody has lag there."""
    topics = {row.topic for rows in by_group.values() for row in rows}
    if topics and (news := sorted(topics - {one.topic for one in registered_topics(coordinator)})):
        named = some_of([quoted(topic) for topic in news])
        note(f"{counted(len(news), 'topic')} not registered here, and so without lag: {named}")


# --- Reading --------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """What is asked for: groups by name, or those that match; and of which topics."""

    group_ids: Sequence[str]
    has_group: Callable[[str], bool]
    has_topic: Callable[[str], bool]


class Bad(NamedTuple):
    """What stands in ZooKeeper and can't be imported, and why."""

    group_id: str
    topic: str
    partition: str
    why: str

    def shown(self) -> tuple[object, ...]:
        """Return it as a row of the table."""
        names = (shortened(self.group_id), shortened(self.topic), shortened(self.partition))
        return (*names, None, None, self.why)


class Offsets:
    """Offsets by group, and what can't be imported."""

    def __init__(self, wanted: Wanted) -> None:
        self.by_group: dict[str, list[FileOffset]] = {}
        self.bad: list[Bad] = []
        self._bad_places: set[_Names] = set()
        self._wanted = wanted

    @property
    def count(self) -> int:
        """How many offsets there are."""
        return sum(map(len, self.by_group.values()))

    def note(self, where: _Names, why: str) -> None:
        """Note a bad znode by group, topic and partition; less names are those of its parents."""
        group, topic, partition = (*where, "", "")[:3]
        self.bad.append(Bad(group, topic, partition, f"not imported: {why}"))
        self._bad_places.add(where)

    def note_empty(self, groups: Iterable[str]) -> None:
        """Note which of these groups have nothing at all: they may be misspelt."""
        found = {one.group_id for one in self.bad}
        for group in groups:
            if not self.by_group.get(group) and group not in found:
                self.note((group,), "it has no offsets in ZooKeeper (of these topics)")

    def lacks(self, group: str, where: TopicPartition) -> bool:
        """Say whether a partition without an offset here is wanted, and has no bad znode either."""
        names = (group, where.topic, str(where.partition))
        is_bad = any(names[:length] in self._bad_places for length in (1, 2, 3))
        return not is_bad and self._wanted.has_topic(where.topic)


def read_all(ensemble: Ensemble, wanted: Wanted, timeout_s: float = 60) -> Offsets:
    """Return the offsets that are *wanted*.

    Raises:
        CoordinatorUnavailable: The ensemble doesn't answer.
        AskFailed: There are no consumers there at all, or a group that was named isn't.
    """
    ensemble.sync(timeout_s)
    reader = _Reader(ensemble, wanted, timeout_s)
    groups = reader.groups()
    chunks = [groups[at : at + _GROUPS_AT_ONCE] for at in range(0, len(groups), _GROUPS_AT_ONCE)]
    for chunk in tracked(chunks, "Reading"):
        reader.read(chunk)
    return reader.found


class _Reader:
    """Reads some groups after the other."""

    def __init__(self, ensemble: Ensemble, wanted: Wanted, timeout_s: float) -> None:
        self.found = Offsets(wanted)
        self._ensemble = ensemble
        self._wanted = wanted
        self._timeout_s = timeout_s

    def groups(self) -> list[str]:
        """Return the groups that are asked for."""
        wanted = self._wanted
        if wanted.group_ids:
            return list(dict.fromkeys(wanted.group_ids))
        (names,) = self._answered(self._ensemble.children, [ROOT])
        if isinstance(names, Failed | Status):
            why = names.why if isinstance(names, Failed) else "there is none; is the chroot right?"
            raise AskFailed(f"{ROOT} in {self._ensemble.name}: {why}")
        return sorted(filter(wanted.has_group, self._sayable((), names)))

    def read(self, groups: Sequence[str]) -> None:
        """Read all that these have. A group without an offset here may have some elsewhere."""
        for group in groups:
            if group_id_error(group) is None:
                self.found.by_group[group] = []
        topics: list[_Names] = [
            (*where, topic)
            for where, names in self._below([(group,) for group in groups])
            for topic in sorted(filter(self._wanted.has_topic, names))
        ]
        nodes = [
            (*where, partition)
            for where, names in self._below(topics)
            for partition in sorted(names, key=lambda name: (len(name), name))
        ]
        replies = self._answered(self._ensemble.read, [offsets_path(*where) for where in nodes])
        for where, reply in zip(nodes, replies, strict=True):
            self._take(where, reply)

    def _below(self, places: Sequence[_Names]) -> Iterator[tuple[_Names, list[str]]]:
        """Yield for each place what is below it."""
        paths = [offsets_path(*where) for where in places]
        for where, reply in zip(
            places, self._answered(self._ensemble.children, paths), strict=True
        ):
            if isinstance(reply, Failed):
                self.found.note(where, f"it can't be read: {reply.why}")
            elif not isinstance(reply, Status):
                yield where, self._sayable(where, reply)

    def _sayable(self, where: _Names, names: Sequence[str]) -> list[str]:
        """Return those that can be asked for, which what is no UTF-8 can't."""
        good = [name for name in names if name.isprintable() or name_error(name, _ANY) != _NO_UTF8]
        for name in set(names) - set(good):
            self.found.note((*where, ascii(name)), f"it can't be read: {_NO_UTF8}")
        return good

    def _take(self, where: _Names, reply: Found | Failed | Status) -> None:
        group, topic, partition = where
        if isinstance(reply, Failed):
            self.found.note(where, f"it can't be read: {reply.why}")
        elif isinstance(reply, Found):  # Else it was deleted meanwhile.
            if why := _problem(group, topic):
                self.found.note(where, why)
            elif not is_partition(partition):
                self.found.note(where, f"{quoted(partition)} is no partition")
            else:
                self._add(where, reply.data)

    def _add(self, where: _Names, data: bytes) -> None:
        group, topic, partition = where
        try:
            row = FileOffset(group, topic, int(partition), decoded(data))
        except ValueError as exc:
            self.found.note(where, f"it {exc}")
        else:
            self.found.by_group[group].append(row)

    def _answered(
        self, ask: Callable[[Sequence[str], float], list[T]], paths: Sequence[str]
    ) -> list[T]:
        """Return the replies, each of which came."""
        found = ask(paths, self._timeout_s)
        in_vain = 0
        while lost := [at for at, reply in enumerate(found) if reply is Status.LOST]:
            if in_vain == _ROUNDS_IN_VAIN_MAX:
                raise CoordinatorUnavailable(f"{self._ensemble.name}: answers don't come")
            in_vain += 1
            for at, reply in zip(
                lost, ask([paths[at] for at in lost], self._timeout_s), strict=True
            ):
                if reply is not Status.LOST:
                    found[at], in_vain = reply, 0
        return found


@lru_cache(maxsize=1_024)  # One after the other has the same names.
def _problem(group: str, topic: str) -> str | None:
    """Return why the coordinator couldn't take these names, None if it can."""
    problems = {"group": group_id_error(group), "topic": name_error(topic, TOPIC_BYTES_MAX)}
    wrong = (f"the {what}'s name is not legal: {why}" for what, why in problems.items() if why)
    return next(wrong, None)


# --- Telling --------------------------------------------------------------------------------------


class Report:
    """What is to become of what was found, or what has: a row for each offset, or each group."""

    def __init__(self, work: Import, bad: Sequence[Bad], *, is_summary: bool) -> None:
        self._work = work
        self._bad = bad
        self._is_summary = is_summary
        self.head = _SUMMARY if is_summary else HEAD

    def rows(self) -> list[tuple[object, ...]]:
        """Return it as a table; in a summary, what is bad is told besides, one by one."""
        if not self._is_summary:
            return [*self._work.rows(), *(one.shown() for one in self._bad)]
        for one in self._bad:
            note(" ".join(str(cell) for cell in one.shown() if cell is not None))
        bad = Counter(one.group_id for one in self._bad)
        plans = self._work.plans
        return [
            self._summed(group_id, plans.get(group_id, ()), bad[group_id])
            for group_id in dict.fromkeys((*plans, *bad))
        ]

    @staticmethod
    def _summed(group_id: str, plan: Sequence[Planned], bad: int) -> tuple[object, ...]:
        said = _statuses(plan)
        others = len(plan) - sum(said[one] for one in _GOOD)
        there = len(plan) - said[MISSING] + bad
        return (shortened(group_id), there, *(said[one] for one in _GOOD), others + bad)

    def counts(self) -> str:
        """Return what became of all of it, in a sentence."""
        said = self._all()
        others = said.total() - sum(said[one] for one in _GOOD) + len(self._bad)
        numbers = [*((one, said[one]) for one in _GOOD), ("not imported", others)]
        return ", ".join(f"{number} {status}" for status, number in numbers if number) or "nothing"

    def behind(self) -> str:
        """Return how ZooKeeper is behind the coordinator, in a sentence; "" if it is not."""
        said = self._all()
        numbers = [f"{said[one]} {one}" for one in _DIFFERENT if said[one]]
        return f"ZooKeeper is behind the coordinator: {', '.join(numbers)}" if numbers else ""

    def _all(self) -> Counter[str]:
        return _statuses(one for found in self._work.plans.values() for one in found)


def _statuses(plan: Iterable[Planned]) -> Counter[str]:
    return Counter(TO_IMPORT if one.status.startswith(TO_IMPORT) else one.status for one in plan)
