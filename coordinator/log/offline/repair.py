"""Repairs a refused folder: afterwards it can be served, without the unreadable entries.

Theory of operation
===================

Intact segments stay. For each other segment, the readable batches are written to a new, sealed
segment of the same stretch of the journal, in the form of a compacted one, which may have gaps;
the original goes to the quarantine.

The content of lost entries is unknown, but their number has an upper bound: each offset and each
generation took at least some bytes. All partitions continue beyond every offset that may have been
assigned, and streams of changes can't start below that. The meaning of entries is the caller's
matter: it returns the entries (`Fences`) that put all other values, such as generations, beyond
those that clients may have received. The fences are in the last segment but one; the newest
segment is empty.

A crash before the manifest is replaced leaves the folder refused as before: the new segments have
temporary names at first, and the one with the fences is renamed first. The meta file is written
before the manifest, so that no batch has a higher epoch than the meta file; after the manifest,
the marker of a clean stop is written, and the originals are moved to the quarantine.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgpack

from coordinator.log.directory import Directory
from coordinator.log.errors import LogRefused
from coordinator.log.format import (
    FORMAT,
    NODE_PARTITION,
    Batch,
    Entry,
    FlushKey,
    encode_batch,
    numbered,
)
from coordinator.log.journal import SEGMENT_BYTES_MAX
from coordinator.log.offline.salvage import Damage, Kept, Salvage, partition_name
from coordinator.log.offline.survey import Problem, Source, Survey, serial_of
from coordinator.log.recovery import checked_epoch, quarantine_bytes, quarantine_unlisted
from coordinator.log.segments import SegmentWriter
from coordinator.log.state_files import (
    CLEAN_NAME,
    DURABLE_NAME,
    MANIFEST_NAME,
    META_NAME,
    TEMPORARY_SUFFIX,
    CleanStop,
    Manifest,
    Meta,
    SegmentInfo,
    first_serial,
    segment_name,
    write_clean_stop,
    write_durable,
    write_manifest,
    write_meta,
)

# Function from the number of lost bytes to the entries to append, with their partitions.
Fences = Callable[[int], Iterable[tuple[int, Sequence[Entry]]]]


class Wanted(NamedTuple):
    """An operator's values for facts that the folder lacks; "", None and 0 mean no value."""

    cluster_id: str = ""
    node_id: int | None = None
    num_partitions: int = 0
    leader_epoch_at_least: int = 0


class Plan(NamedTuple):
    """Findings of a repair's dry run, from which the repair is carried out."""

    survey: Survey
    num_partitions: int
    problems: tuple[Problem, ...]
    damages: tuple[Damage, ...]
    affected: frozenset[int]  # Indexes of the survey's sources that are written anew.
    damaged: frozenset[int]  # Affected sources that have lost entries.
    newest_end: int  # Journal position up to which the newest segment can be read.
    batches: int  # Readable batches in all segments.
    entries: int  # Their entries; a wide one counts once for each key.
    lost_bytes: int  # Upper bound, in bytes of the journal; 0: nothing is lost.
    leader_epoch: int  # Highest one of any batch.

    @property
    def is_needed(self) -> bool:
        """Whether there is anything to repair."""
        return bool(self.problems or self.damages)


def plan_repair(
    directory: Directory, survey: Survey, num_partitions: int, on_batch: Callable[[Batch], None]
) -> Plan:
    """Read the whole journal, and call *on_batch* with each readable batch.

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
                on_batch(item.batch)
                batches += 1
                entries += item.batch.num_keys
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
    # The last compacted segment.
    at = max((at for at, s in enumerate(survey.sources) if s.segment.compacted), default=-1)
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
        # The fences follow the newest segment, so it has to be sealed. And as the folder is
        # damaged, its torn tail may be a loss, too.
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


def repaired_meta(plan: Plan, wanted: Wanted, new_secret: Callable[[], bytes]) -> Meta:
    """Return the meta file of the repaired folder.

    Args:
        plan: Result of `plan_repair`.
        wanted: Values of an operator.
        new_secret: Called if no meta file has a secret; returns 16 random bytes.

    Raises:
        LogRefused: A value is unknown; the message names the options for it.
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
    # A run that wrote no batch leaves no trace of its epoch if the meta file is lost; the next
    # start is above it all the same, by the clock.
    known = max(plan.leader_epoch, 0 if old is None else old.leader_epoch)
    leader_epoch = checked_epoch(max(known + 1, wanted.leader_epoch_at_least))
    key = survey.key or FlushKey(new_secret())
    return Meta(FORMAT, cluster_id, node_id, num_partitions, leader_epoch, key)


def known_cluster_id(survey: Survey) -> str:
    """Return the cluster id that the folder's files have; "" if none of them has one.

    Raises:
        LogRefused: The files have several ids.
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
    """Return the upper bound of the bytes lost in a damaged source: at least 1."""
    segment, stop = source.segment, survey.stop
    known_bytes = survey.known_end(segment) - segment.base
    if segment.end is not None:
        span = known_bytes
    elif survey.lacks_end or (
        source.file is None and (stop is None or stop.segment != segment.name)
    ):
        span = max(known_bytes, SEGMENT_BYTES_MAX)
    else:
        span = max(known_bytes, source.data_bytes)
    # Kept bytes can't be subtracted in a compacted segment: its batches stand for more bytes.
    return max(1, span if segment.compacted else span - kept_bytes)


def _ends_lost(survey: Survey, at: int, ends: dict[int, int]) -> list[Damage]:
    """Return a damage for each partition whose end offset was lost with the index of *at*.

    A compaction may have dropped tombstones behind the last entry that it kept. Then only the
    segment's index holds the partition's end offset. Without it, offsets would be assigned twice.

    Args:
        survey: The survey of the folder.
        at: Index of the last compacted source; -1 if there is none.
        ends: Partition -> end offset, from reading the whole journal.
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


def repair(
    directory: Directory, plan: Plan, meta: Meta, fences: Fences, wall_clock_ms: int
) -> list[str]:
    """Carry out *plan*; return the names of the files in the quarantine that were put there.

    Raises:
        OSError: The disk fails; the folder is refused as before, or repaired.
    """
    survey = plan.survey
    rewriting = _Rewriting(directory, plan, meta, wall_clock_ms)
    segments, ends = rewriting.write(fences)
    quarantined = [
        quarantine_bytes(directory, f"{name}.damaged", directory.read(name))
        for name, is_bad in (
            (META_NAME, survey.meta is None),
            (MANIFEST_NAME, survey.manifest is None),
            (DURABLE_NAME, survey.lacks_mark),
        )
        if is_bad and name in survey.names
    ]
    newest = segments[-1]
    if DURABLE_NAME not in survey.names or survey.lacks_mark:
        # After a loss the old log ends before this position, so that a crash before the new
        # manifest leaves it refused.
        write_durable(directory, newest.base if plan.lost_bytes else plan.newest_end)
    write_meta(directory, meta)
    if plan.lost_bytes or survey.manifest is None:
        compacted_below = ends
    else:
        compacted_below = survey.manifest.compacted_below
    serial = max(rewriting.next_serial, first_serial(meta.cluster_id) + 1)
    manifest = Manifest(segments, compacted_below, serial, cluster_id=meta.cluster_id)
    write_manifest(directory, manifest)
    if plan.lost_bytes:
        write_clean_stop(directory, CleanStop(newest.name, newest.base))
    elif survey.stop != CleanStop(newest.name, plan.newest_end):
        # Remove a wrong marker: the next start then reads the newest segment as after a crash.
        directory.remove(CLEAN_NAME)
        directory.sync()
    listed = frozenset(segment.name for segment in segments)
    moved = quarantine_unlisted(directory, survey.names, listed)
    return quarantined + [target for _, target in moved]


class _Rewriting:
    """Writes the segments of a repaired folder.

    Attributes:
        next_serial: Number above the serial of every segment.
    """

    def __init__(self, directory: Directory, plan: Plan, meta: Meta, wall_clock_ms: int) -> None:
        manifest = plan.survey.manifest
        self.next_serial = max(
            first_serial(meta.cluster_id),
            0 if manifest is None else manifest.next_serial,
            1 + max((serial_of(name) for name in plan.survey.names), default=0),
        )
        self._directory = directory
        self._plan = plan
        self._meta = meta
        self._wall_clock_ms = wall_clock_ms
        self._made: list[str] = []

    def write(self, fences: Fences) -> tuple[tuple[SegmentInfo, ...], dict[int, int]]:
        """Return the segments, all on disk, and the offsets below which changes may be missing."""
        plan = self._plan
        reader = Salvage(self._directory, plan.survey, plan.num_partitions)
        segments: list[SegmentInfo] = []
        for at, source in enumerate(plan.survey.sources):
            if at in plan.affected:
                segments += self._rewritten(reader, source, is_damaged=at in plan.damaged)
            else:
                for _ in reader.read(source):
                    pass
                segments.append(source.segment)
        ends = reader.ends
        if plan.lost_bytes:
            # An entry takes more than one byte, so at most this many offsets were assigned.
            partitions = (*range(self._meta.num_partitions), NODE_PARTITION)
            ends = {p: ends.get(p, 0) + plan.lost_bytes for p in partitions}
            segments.append(self._fenced(_end_of(segments), dict(ends), fences))
        if not segments or segments[-1].end is not None:
            name, writer = self._new_segment(_end_of(segments))
            writer.finish()
            segments.append(SegmentInfo(name, _end_of(segments), None, None, compacted=False))
        for name in reversed(self._made):
            # In this order, each rename synced before the next one: no repaired segment without
            # the fences.
            self._directory.rename(name + TEMPORARY_SUFFIX, name)
            self._directory.sync()
        return tuple(segments), ends

    def _rewritten(self, reader: Salvage, source: Source, *, is_damaged: bool) -> list[SegmentInfo]:
        old = source.segment
        name, writer = self._new_segment(old.base)
        for item in reader.read(source):
            if type(item) is Kept:
                pieces: Sequence[bytes] = (item.found.data,)
                if is_damaged:
                    b = item.batch
                    packed = item.found.data[item.found.raw.entries_at :]
                    pieces = self._encoded(
                        b.partition, b.leader_epoch, b.base_offset, b.timestamp_ms, packed
                    )
                writer.add(item.batch.partition, pieces)
        end = old.end
        if end is None:
            if not self._plan.lost_bytes:
                writer.finish()
                return [old._replace(name=name)]
            known = self._plan.survey.known_end(old)
            end = max(old.base + source.data_bytes, old.base + writer.data_bytes, known)
            if end == old.base:
                writer.finish()
                self._directory.remove(name + TEMPORARY_SUFFIX)
                self._made.remove(name)
                return []
            if not is_damaged:
                end = old.base + writer.data_bytes
        format_ = FORMAT if is_damaged else old.format
        writer.seal(old.base, end, reader.ends, self._meta.cluster_id, format_)
        compacted = old.compacted or is_damaged
        return [SegmentInfo(name, old.base, end, writer.data_bytes, compacted, format_)]

    def _fenced(self, base: int, ends: dict[int, int], fences: Fences) -> SegmentInfo:
        name, writer = self._new_segment(base)
        for partition, entries in fences(self._plan.lost_bytes):
            items, num_keys = numbered(entries)
            packed: bytes = msgpack.packb(items)
            epoch, base_offset = self._meta.leader_epoch, ends[partition]
            pieces = self._encoded(partition, epoch, base_offset, self._wall_clock_ms, packed)
            writer.add(partition, pieces)
            ends[partition] += num_keys
        end = base + writer.data_bytes + 1
        writer.seal(base, end, ends, self._meta.cluster_id)
        return SegmentInfo(name, base, end, writer.data_bytes, compacted=True)

    def _encoded(
        self, partition: int, leader_epoch: int, base_offset: int, timestamp_ms: int, packed: bytes
    ) -> Sequence[bytes]:
        """Return the pieces of a batch in the form of a compacted segment (flush_start is 0)."""
        assert self._meta.key is not None
        check = self._meta.key.check(leader_epoch, 0)
        raw = (partition, leader_epoch, base_offset, 0, timestamp_ms, check)
        return encode_batch(raw, packed)

    def _new_segment(self, base: int) -> tuple[str, SegmentWriter]:
        """Return the final name of a new segment, and a writer that uses a temporary name."""
        name = segment_name(base, self.next_serial)
        self.next_serial += 1
        self._directory.remove(name + TEMPORARY_SUFFIX)
        self._made.append(name)
        return name, SegmentWriter(self._directory, name + TEMPORARY_SUFFIX)


def _end_of(segments: list[SegmentInfo]) -> int:
    end = segments[-1].end if segments else 0
    assert end is not None
    return end
