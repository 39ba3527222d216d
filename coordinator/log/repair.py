"""Make a refused folder one that can be served again, without what can't be read.

Theory of operation
===================

Segments that can be used as they are stay. Of each other one, what can be read is written to a
new, sealed segment of the same stretch of the journal, in the form of a compacted one, which may
have gaps; the original goes to `aside/`. If anything was lost:

- Nobody knows what it said, but how much it can have been: an offset, or a generation, takes
  at least some bytes. All partitions go on beyond every offset that can have been given, and
  streams of changes can't start below that. What the entries mean is the caller's: it says
  which entries put everything else beyond what can have been told (`Fences`). They are
  the last segment but the newest, which is empty.

A crash leaves the folder refused as it was, until the manifest is replaced: the new segments have
temporary names before, and the last one, with the fences, gets its name first. The meta file comes
before the manifest, so that no batch has an epoch that it doesn't know; behind the manifest come
the marker of a clean stop and what goes aside.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgpack

from coordinator.log.aside import move_aside, save
from coordinator.log.directory import Directory
from coordinator.log.footer import Index, encode_footer
from coordinator.log.format import HEADER_BYTES, NODE_PARTITION, Entry, encode_batch
from coordinator.log.repair_plan import Plan
from coordinator.log.salvage import Kept, Salvage
from coordinator.log.state_files import (
    CLEAN_NAME,
    MANIFEST_NAME,
    META_NAME,
    TEMPORARY_SUFFIX,
    CleanStop,
    Manifest,
    Meta,
    SegmentInfo,
    encode_clean_stop,
    encode_manifest,
    encode_meta,
    first_serial,
    segment_name,
    write_whole,
)
from coordinator.log.survey import Source, serial_of

_BUFFER_BYTES: Final = 1024 * 1024

# From the bytes that were lost: what to append to which partition.
Fences = Callable[[int], Iterable[tuple[int, Sequence[Entry]]]]


def repair(
    directory: Directory, plan: Plan, meta: Meta, fences: Fences, wall_clock_ms: int
) -> list[str]:
    """Carry out *plan*; return the names in `aside/` of what was taken out of service.

    Raises:
        OSError: The disk fails; the folder is refused as before, or repaired.
    """
    survey = plan.survey
    segments, ends = _Rewriting(directory, plan, meta, wall_clock_ms).write(fences)
    asides = [
        save(directory, f"{name}.damaged", directory.read(name))
        for name, state in ((META_NAME, survey.meta), (MANIFEST_NAME, survey.manifest))
        if state is None and name in survey.names
    ]
    write_whole(directory, META_NAME, encode_meta(meta))
    if plan.lost_bytes or survey.manifest is None:
        compacted_below = ends
    else:
        compacted_below = survey.manifest.compacted_below
    serial = 1 + max(serial_of(name) for name in (*survey.names, *(s.name for s in segments)))
    old_serial = 0 if survey.manifest is None else survey.manifest.next_serial
    serial = max(serial, old_serial, first_serial(meta.cluster_id) + 1)
    manifest = Manifest(segments, compacted_below, serial, cluster_id=meta.cluster_id)
    write_whole(directory, MANIFEST_NAME, encode_manifest(manifest))
    newest = segments[-1]
    if plan.lost_bytes:
        stop = CleanStop(newest.name, newest.base)
        write_whole(directory, CLEAN_NAME, encode_clean_stop(stop))
    elif survey.stop != CleanStop(newest.name, plan.newest_end):
        # It is of no use; the next start reads the newest segment as after a crash.
        directory.remove(CLEAN_NAME)
        directory.sync()
    listed = frozenset(segment.name for segment in segments)
    return asides + [target for _, target in move_aside(directory, survey.names, listed)]


class _Rewriting:
    """Makes the segments of a repaired folder."""

    def __init__(self, directory: Directory, plan: Plan, meta: Meta, wall_clock_ms: int) -> None:
        manifest = plan.survey.manifest
        self._directory = directory
        self._plan = plan
        self._meta = meta
        self._wall_clock_ms = wall_clock_ms
        self._next_serial = max(
            first_serial(meta.cluster_id),
            0 if manifest is None else manifest.next_serial,
            1 + max((serial_of(name) for name in plan.survey.names), default=0),
        )
        self._made: list[str] = []

    def write(self, fences: Fences) -> tuple[tuple[SegmentInfo, ...], dict[int, int]]:
        """Return the segments, all on disk, and below which offsets nothing can be told."""
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
            # An entry takes more than a byte.
            partitions = (*range(self._meta.num_partitions), NODE_PARTITION)
            ends = {p: ends.get(p, 0) + plan.lost_bytes for p in partitions}
            segments.append(self._fenced(_end_of(segments), dict(ends), fences))
        if not segments or segments[-1].end is not None:
            segments.append(self._newest(_end_of(segments)))
        for name in reversed(self._made):
            # Each behind the one before, also on the disk: no mended segment without the fences.
            self._directory.rename(name + TEMPORARY_SUFFIX, name)
            self._directory.sync()
        return tuple(segments), ends

    def _rewritten(self, reader: Salvage, source: Source, *, is_damaged: bool) -> list[SegmentInfo]:
        old = source.segment
        writer = _Writer(self._directory, self._name(old.base))
        for item in reader.read(source):
            if type(item) is Kept:
                data = item.found.data
                if is_damaged:
                    b = item.batch
                    raw = (b.partition, b.leader_epoch, b.base_offset, 0, b.timestamp_ms)
                    data = b"".join(encode_batch(raw, data[HEADER_BYTES:]))
                writer.add(item.batch.partition, data)
        end = old.end
        if end is None:
            if not self._plan.lost_bytes:
                writer.end()
                return [old._replace(name=writer.name)]
            known = self._plan.survey.known_end(old)
            end = max(old.base + source.data_bytes, old.base + writer.data_bytes, known)
            if end == old.base:
                writer.end()
                self._directory.remove(writer.name + TEMPORARY_SUFFIX)
                self._made.remove(writer.name)
                return []
            if not is_damaged:
                end = old.base + writer.data_bytes
        compacted = old.compacted or is_damaged
        return [writer.seal(old.base, end, reader.ends, self._meta, compacted=compacted)]

    def _fenced(self, base: int, ends: dict[int, int], fences: Fences) -> SegmentInfo:
        writer = _Writer(self._directory, self._name(base))
        for partition, entries in fences(self._plan.lost_bytes):
            packed: bytes = msgpack.packb([(delta, *e) for delta, e in enumerate(entries)])
            raw = (partition, self._meta.leader_epoch, ends[partition], 0, self._wall_clock_ms)
            writer.add(partition, b"".join(encode_batch(raw, packed)))
            ends[partition] += len(entries)
        end = base + writer.data_bytes + 1
        return writer.seal(base, end, ends, self._meta, compacted=True)

    def _newest(self, base: int) -> SegmentInfo:
        writer = _Writer(self._directory, self._name(base))
        writer.end()
        return SegmentInfo(writer.name, base, None, None, compacted=False)

    def _name(self, base: int) -> str:
        name = segment_name(base, self._next_serial)
        self._next_serial += 1
        self._directory.remove(name + TEMPORARY_SUFFIX)
        self._made.append(name)
        return name


class _Writer:
    """Writes one segment, under a temporary name."""

    def __init__(self, directory: Directory, name: str) -> None:
        self.name = name
        self.data_bytes = 0
        self._file = directory.create(name + TEMPORARY_SUFFIX)
        self._buffer = bytearray()
        self._positions: dict[int, array[int]] = {}

    def add(self, partition: int, data: bytes) -> None:
        self._positions.setdefault(partition, array("I")).append(self.data_bytes)
        self._buffer += data
        self.data_bytes += len(data)
        if len(self._buffer) >= _BUFFER_BYTES:
            self._file.append(bytes(self._buffer))
            self._buffer.clear()

    def seal(
        self, base: int, end: int, ends: dict[int, int], meta: Meta, *, compacted: bool
    ) -> SegmentInfo:
        self._buffer += encode_footer(
            Index(base, end, dict(ends), self._positions, meta.cluster_id)
        )
        self.end()
        return SegmentInfo(self.name, base, end, self.data_bytes, compacted=compacted)

    def end(self) -> None:
        try:
            if self._buffer:
                self._file.append(bytes(self._buffer))
            self._file.sync()
        finally:
            self._file.close()


def _end_of(segments: list[SegmentInfo]) -> int:
    end = segments[-1].end if segments else 0
    assert end is not None
    return end
