"""What is wrong with a folder as a whole, and what it would take to repair it."""

from collections.abc import Callable
from typing import Final, NamedTuple

from coordinator.log.directory import Directory
from coordinator.log.errors import LogRefused
from coordinator.log.format import FORMAT, Batch
from coordinator.log.limits import SEGMENT_BYTES_MAX
from coordinator.log.recovery import LEADER_EPOCH_MAX
from coordinator.log.salvage import Damage, Kept, Salvage, partition_name
from coordinator.log.state_files import (
    CLEAN_NAME,
    META_NAME,
    CleanStop,
    Meta,
)
from coordinator.log.survey import Problem, Source, Survey

# A run that wrote nothing leaves no trace of its epoch; so many of them are allowed for.
EPOCHS_UNKNOWN: Final = 1_000_000


class Wanted(NamedTuple):
    """What an operator says of the folder, as far as it can't tell it itself; "" or 0: nothing."""

    cluster_id: str = ""
    node_id: int | None = None
    num_partitions: int = 0
    leader_epoch_at_least: int = 0


class Plan(NamedTuple):
    """What a repair would do."""

    survey: Survey
    num_partitions: int
    problems: tuple[Problem, ...]
    damages: tuple[Damage, ...]
    affected: frozenset[int]  # Of the survey's sources: what is written anew,
    damaged: frozenset[int]  # and that because something in it is lost.
    newest_end: int  # The journal position up to which the newest segment can be read.
    batches: int  # That can be read, in all.
    entries: int
    lost_bytes: int  # Of the journal, at most; 0: nothing is lost.
    leader_epoch: int  # The highest of any batch.

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to repair."""
        return bool(self.problems or self.damages)


def plan_repair(
    directory: Directory, survey: Survey, num_partitions: int, saw: Callable[[Batch], None]
) -> Plan:
    """Read everything that can be read, and show it to *saw*.

    Raises:
        LogIncompatible: A newer release wrote a batch.
        OSError: The disk fails.
    """
    reader = Salvage(directory, survey, num_partitions)
    damages: list[Damage] = []
    affected: set[int] = set()
    damaged: set[int] = set()
    batches = entries = lost_bytes = leader_epoch = 0
    newest_end = torn_bytes = 0
    for at, source in enumerate(survey.sources):
        kept_bytes, newest_end = 0, source.segment.base
        for item in reader.read(source):
            if type(item) is Kept:
                saw(item.batch)
                batches += 1
                entries += len(item.batch.entries)
                kept_bytes += len(item.found.data)
                newest_end = source.segment.base + item.found.end
                leader_epoch = max(leader_epoch, item.batch.leader_epoch)
            elif type(item) is Damage and item.is_torn:
                torn_bytes = item.end - item.start
            elif type(item) is Damage:
                damages.append(item)
                damaged.add(at)
        if at in damaged:
            lost_bytes += _lost_bytes(survey, source, kept_bytes)
        if at in damaged or not source.is_in_place:
            affected.add(at)
    at = _last_compacted(survey)
    ends_lost = _ends_lost(survey, at, reader.ends)
    if ends_lost and at not in damaged:
        damages += ends_lost
        damaged.add(at)
        lost_bytes += _lost_bytes(survey, survey.sources[at], 0)
    problems = [
        *survey.problems,
        *([] if damages else _wrong_stop(survey, newest_end)),
        *_old_meta(survey, leader_epoch),
    ]
    if lost_bytes:
        # What puts everything beyond the loss comes behind the newest. And in a folder that was
        # damaged, nobody knows what a torn tail was.
        affected.add(len(survey.sources) - 1)
        lost_bytes += torn_bytes
    return Plan(
        survey,
        num_partitions,
        tuple(problems),
        tuple(damages),
        frozenset(affected),
        frozenset(damaged),
        newest_end,
        batches,
        entries,
        lost_bytes,
        leader_epoch,
    )


def repaired_meta(plan: Plan, wanted: Wanted) -> Meta:
    """Return the meta file that the repaired folder gets.

    Raises:
        LogRefused: Something isn't known; the message says which options say it.
    """
    survey = plan.survey
    old = survey.meta
    cluster_id = wanted.cluster_id or known_cluster_id(survey)
    node_id = wanted.node_id if old is None else old.node_id
    num_partitions = wanted.num_partitions if old is None else old.num_partitions
    unknown = [
        option
        for option, value in (
            ("--cluster-id", cluster_id or None),
            ("--node-id", node_id),
            ("--partitions", num_partitions or None),
        )
        if value is None
    ]
    if unknown:
        message = f"without a good file {META_NAME!r} say what was in it: {', '.join(unknown)}"
        raise LogRefused(message)
    assert node_id is not None
    if old is None or plan.leader_epoch > old.leader_epoch:
        leader_epoch = plan.leader_epoch + EPOCHS_UNKNOWN
    else:
        leader_epoch = old.leader_epoch + 1
    leader_epoch = max(leader_epoch, wanted.leader_epoch_at_least)
    if leader_epoch > LEADER_EPOCH_MAX:
        message = f"the leader epoch {leader_epoch} is over the limit of {LEADER_EPOCH_MAX}"
        raise LogRefused(message)
    return Meta(FORMAT, cluster_id, node_id, num_partitions, leader_epoch)


def known_cluster_id(survey: Survey) -> str:
    """Return whose folder it is, as far as its files know it; "" if none does.

    Raises:
        LogRefused: They don't agree.
    """
    found = {part.cluster_id for part in (survey.meta, survey.manifest) if part is not None}
    found |= {s.footer.cluster_id for s in survey.sources if s.footer is not None}
    found |= survey.foreign_ids
    found -= {""}
    if len(found) > 1:
        message = (
            f"files of several clusters are mixed: {', '.join(sorted(found))}; "
            "say whose folder it is: --cluster-id"
        )
        raise LogRefused(message)
    return found.pop() if found else ""


def _lost_bytes(survey: Survey, source: Source, kept_bytes: int) -> int:
    """Return how much of the journal may be gone in a damaged source: at least 1."""
    segment, stop = source.segment, survey.stop
    known_bytes = survey.known_end(segment) - segment.base
    if segment.end is not None:
        span = known_bytes
    elif source.file is None and (stop is None or stop.segment != segment.name):
        span = max(known_bytes, SEGMENT_BYTES_MAX)
    else:
        span = max(known_bytes, source.data_bytes)
    # In a compacted segment a batch stands for more than its bytes.
    return max(1, span if segment.compacted else span - kept_bytes)


def _last_compacted(survey: Survey) -> int:
    """Return which source is the last that was compacted; -1 if none was."""
    return max((at for at, s in enumerate(survey.sources) if s.segment.compacted), default=-1)


def _ends_lost(survey: Survey, at: int, ends: dict[int, int]) -> list[Damage]:
    """Return which partitions end before what is known of them, after all was read.

    Behind the last entry that a compaction has left, it may have dropped tombstones. Then only the
    segment's index says where the partition ends, and without it offsets would be given again.
    """
    if at < 0 or survey.manifest is None or survey.sources[at].footer is not None:
        return []
    source = survey.sources[at]
    return [
        Damage(
            source,
            source.data_bytes,
            source.data_bytes,
            f"its index alone said where {partition_name(partition)} ends, at {below} or behind it",
        )
        for partition, below in survey.manifest.compacted_below.items()
        if ends.get(partition, 0) < below
    ]


def _wrong_stop(survey: Survey, newest_end: int) -> list[Problem]:
    stop, newest = survey.stop, survey.sources[-1].segment.name
    if stop is None or stop == CleanStop(newest, newest_end):
        return []
    what = f"it says that {stop.segment} ends at {stop.end}, and {newest} ends at {newest_end}"
    return [Problem(CLEAN_NAME, what)]


def _old_meta(survey: Survey, leader_epoch: int) -> list[Problem]:
    if survey.meta is None or leader_epoch <= survey.meta.leader_epoch:
        return []
    what = (
        f"it knows leader epoch {survey.meta.leader_epoch}, and there are batches of "
        f"{leader_epoch}: it is older than the log"
    )
    return [Problem(META_NAME, what)]
