"""Carries out a bulk write: looks at all groups, decides, and commits group by group."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from client.blocking import BlockingClient
from client.exceptions import CommitRefused, CoordinatorError, FatalError, OutcomeUnknown
from client.spark.tables.bulk_plan import (
    PARTITIONS_MAX,
    BulkWriteError,
    GroupPlan,
    NewOffset,
    plan_group,
    refused,
)
from client.types import OffsetAndMetadata
from protocol.errors import ErrorCode
from protocol.types import TopicPartition

logger = logging.getLogger(__name__)

# The commits of so many groups share a flush of the coordinator's log.
AT_A_TIME: Final = 16
# Members that were removed come back, and may be there before the commit is.
FORCED_TRIES: Final = 20
_PAUSE_S: Final = 0.05
_SHOWN: Final = 5
REASON: Final = "the offsets of the group are written anew"

T = TypeVar("T")
R = TypeVar("R")


class How(NamedTuple):
    """What to do with what was decided.

    Attributes:
        dry_run: Write nothing, only report.
        force: Write groups that have members, too: these are removed from the group.
        skip_refused: Write the others where a group can't be written; else, write none.

    """

    dry_run: bool = False
    force: bool = False
    skip_refused: bool = False


class GroupResult(NamedTuple):
    """What became of one group.

    Attributes:
        status: ``written``, ``unchanged`` (all of it was there already), ``planned`` (in a dry
            run), ``refused`` (it may not be written), ``not written`` (another group was
            refused), ``failed`` (nothing of it was stored), or ``unknown`` (nobody knows).
        message: Why, where it is none of the first three.

    """

    plan: GroupPlan
    status: str
    message: str | None = None

    @property
    def group(self) -> str:
        """The group's id."""
        return self.plan.group


GOOD: Final = frozenset({"written", "unchanged", "planned"})


def bulk_write(
    client: BlockingClient,
    wanted: Mapping[str, Mapping[TopicPartition, NewOffset]],
    how: How,
    planned: Callable[[list[GroupResult]], object] | None = None,
) -> list[GroupResult]:
    """Write the offsets of some groups, each as a whole; return what became of each, by group.

    Args:
        client: Of the coordinator.
        wanted: What the rows say, by group.
        how: What to do.
        planned: Is given what is to be done, before any of it is; nothing is if it raises.

    Raises:
        CoordinatorUnavailable: no answer while looking at the groups; nothing was written.

    """
    plans = _plans(client, wanted, how)
    if how.dry_run:
        return [_planned(plan, "planned") for plan in plans]
    if refused(plans) and not how.skip_refused:
        return [_planned(plan, "not written") for plan in plans]

    if planned is not None:
        planned([_planned(plan, "planned") for plan in plans])

    def write(plan: GroupPlan) -> GroupResult:
        if plan.refusal is not None or not plan.changes:
            return _planned(plan, "unchanged")
        return _write(client, plan, force=how.force)

    return _each(write, plans)


def check(results: Sequence[GroupResult], how: How) -> None:
    """Raise unless all went well; what was skipped because that was asked for is well.

    Raises:
        BulkWriteError: names some groups and says why.

    """
    excused = {"refused"} if how.skip_refused or how.dry_run else set()
    bad = [result for result in results if result.status not in GOOD | excused]
    if not bad:
        return
    told = [result for result in bad if result.message] or bad
    listed = "; ".join(f"{one.group!r}: {one.message}" for one in told[:_SHOWN])
    more = f"; and {len(told) - _SHOWN} more" if len(told) > _SHOWN else ""
    written = sum(result.status == "written" for result in results)
    raise BulkWriteError(
        f"of {len(results)} groups {len(bad)} were not written and {written} were: {listed}{more}"
    )


def summary(results: Sequence[GroupResult]) -> str:
    """Return how many groups have each status, in words."""
    counts: dict[str, int] = {}
    for result in results:
        counts[result.status] = counts.get(result.status, 0) + 1
    return ", ".join(f"{counts[status]} {status}" for status in sorted(counts)) or "no groups"


def write_report(results: Sequence[GroupResult], path: str) -> None:
    """Write a line of JSON for each partition, and one for each group that has none to change.

    The values with ``old_`` are what was committed before: enough to undo it.
    """
    with Path(path).open("w", encoding="utf-8") as file:
        for result in results:
            head = {"group": result.group, "status": result.status, "message": result.message}
            if not result.plan.changes:
                file.write(json.dumps(head) + "\n")
            for tp, old, new in result.plan.changes:
                row = {"topic": tp.topic, "partition": tp.partition}
                row |= {f"old_{name}": value for name, value in _as_json(old).items()}
                row |= {f"new_{name}": value for name, value in _as_json(new).items()}
                file.write(json.dumps(head | row) + "\n")


def _as_json(value: OffsetAndMetadata | None) -> dict[str, int | str | None]:
    if value is None:
        return {"offset": None, "metadata": None, "leader_epoch": None}
    return value._asdict()


def _plans(
    client: BlockingClient, wanted: Mapping[str, Mapping[TopicPartition, NewOffset]], how: How
) -> list[GroupPlan]:
    states = {group.group_id: group.state for group in client.list_groups()}
    topics = sorted({tp.topic for offsets in wanted.values() for tp in offsets})
    counts = {
        topic.topic: topic.partition_count
        for topic in client.describe_topics(topics)
        if topic.error == ErrorCode.NONE
    }

    def plan(group: str) -> GroupPlan:
        named = wanted[group] if len(wanted[group]) <= PARTITIONS_MAX else None
        stored = client.fetch_offsets(group, named) if group in states else {}
        return plan_group(
            group,
            wanted[group],
            stored,
            state=states.get(group, "Dead"),
            num_partitions=counts,
            force=how.force,
        )

    return _each(plan, sorted(wanted))


def _each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return what *work* makes of *items*, of some at a time, in their order."""
    with ThreadPoolExecutor(AT_A_TIME, thread_name_prefix="bulk-write") as pool:
        return list(pool.map(work, items))


def _planned(plan: GroupPlan, status: str) -> GroupResult:
    if plan.refusal is not None:
        return GroupResult(plan, "refused", plan.refusal)
    return GroupResult(plan, status if plan.changes else "unchanged")


def _write(client: BlockingClient, plan: GroupPlan, *, force: bool) -> GroupResult:
    for attempt in range(FORCED_TRIES if force else 1):
        try:
            if force:
                _remove_members(client, plan.group)
            client.commit(plan.group, plan.offsets)
        except CommitRefused as error:
            return _undone(client, plan, error)
        except OutcomeUnknown as error:
            return GroupResult(plan, "unknown", str(error))
        except FatalError as error:
            if not force or error.code != ErrorCode.UNKNOWN_MEMBER_ID:
                return GroupResult(plan, "failed", str(error))
            failure = GroupResult(plan, "failed", f"its members come back at once: {error}")
            time.sleep(_PAUSE_S * min(attempt, 5))
        except CoordinatorError as error:
            return GroupResult(plan, "failed", str(error))
        else:
            return GroupResult(plan, "written")
    return failure


def _remove_members(client: BlockingClient, group: str) -> None:
    (described,) = client.describe_groups([group])
    if described.members:
        client.remove_members(group, [one.member_id for one in described.members], REASON)


def _undone(client: BlockingClient, plan: GroupPlan, refusal: CommitRefused) -> GroupResult:
    """Put back those partitions that were stored although others of the commit were refused."""
    stored = [change for change in plan.changes if change.tp not in refusal.errors]
    message = str(refusal)
    before = {change.tp: change.old for change in stored if change.old is not None}
    try:
        if before:
            client.commit(plan.group, before)
        if new := [change.tp for change in stored if change.old is None]:
            client.delete_offsets(plan.group, new)
    except CoordinatorError as error:
        listed = ", ".join(str(change.tp) for change in stored[:_SHOWN])
        message += f"; {len(stored)} others were stored ({listed}) and can't be put back: {error}"
        return GroupResult(plan, "unknown", message)
    return GroupResult(plan, "failed", message)
