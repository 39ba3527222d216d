"""Opening a data folder: first start, clean stop, or what a crash left."""

# The order of a run's life, and why a crash between any two steps is harmless:
#
# * First start: segment, manifest, and the meta file last. Without a meta file nothing was ever
#   acknowledged, so what is there (empty segments only) is made anew. With it, a manifest must be
#   there.
# * Nothing is changed before everything was checked; a refusal leaves the folder as it was.
# * After an unclean stop the newest segment's valid part goes to a new file that is synced before
#   the manifest names it. Until then the old file is the truth, and from then on the new one.
#   What the manifest doesn't name is moved aside.
# * The marker of a clean stop is removed, durably, before the first batch can be written.

import contextlib
from typing import Final, NamedTuple

from coordinator.log.aside import move_aside, save
from coordinator.log.checks import Expected, Newest, check_folder, check_unused
from coordinator.log.directory import Directory, File
from coordinator.log.errors import LogRefused
from coordinator.log.format import FORMAT
from coordinator.log.mark import Mark
from coordinator.log.segments import ActiveSegment
from coordinator.log.state_files import (
    CLEAN_NAME,
    MANIFEST_NAME,
    META_NAME,
    SEGMENT_SUFFIX,
    TEMPORARY_SUFFIX,
    Manifest,
    Meta,
    SegmentInfo,
    encode_manifest,
    encode_meta,
    first_serial,
    segment_name,
    write_whole,
)

__all__ = [
    "LEADER_EPOCH_MAX",
    "Expected",
    "Opened",
    "RecoveryEvent",
    "create_segment",
    "open_folder",
]

LEADER_EPOCH_MAX: Final = 2**31 - 1

RecoveryEvent = tuple[str, dict[str, object]]


class Opened(NamedTuple):
    """A folder that is ready to be replayed and appended to."""

    meta: Meta
    manifest: Manifest
    active: ActiveSegment
    mark: Mark
    end_offsets: dict[int, int]
    events: list[RecoveryEvent]


def open_folder(directory: Directory, expected: Expected) -> Opened:
    """Check, recover and open a locked folder, with the leader epoch raised and on disk.

    Raises:
        LogRefused: See the subclasses; the folder is as it was.
        OSError: The disk fails; nothing was acknowledged from this open.
    """
    names = directory.names()
    if META_NAME not in names:
        return _first_start(directory, names, expected)
    meta, manifest, stop, end_offsets, newest = check_folder(directory, names, expected)

    # From here on the folder is changed.
    is_old = not manifest.cluster_id
    manifest = manifest._replace(cluster_id=meta.cluster_id)
    events = _move_aside(directory, names, manifest)
    # The folder is synced before the next manifest, which no longer knows them, is written.
    manifest = manifest._replace(dispensable=())
    if stop is None:
        active, manifest = _copy_newest(directory, manifest, newest, events)
    else:
        if is_old:
            write_whole(directory, MANIFEST_NAME, encode_manifest(manifest))
        info = manifest.segments[-1]
        file = directory.open_append(info.name)
        active = ActiveSegment(info.name, info.base, newest.valid_bytes, newest.positions, file)
    meta = _raise_leader_epoch(directory, meta, expected.leader_epoch_at_least)
    if stop is not None:
        directory.remove(CLEAN_NAME)
        directory.sync()
    mark = Mark(directory, active.end)
    return Opened(meta, manifest, active, mark, end_offsets, events)


def create_segment(directory: Directory, base: int, serial: int) -> tuple[str, File]:
    """Make an empty segment whose name is durable; the manifest doesn't know it yet."""
    return _new_segment(directory, base, serial, b"")


def _new_segment(directory: Directory, base: int, serial: int, content: bytes) -> tuple[str, File]:
    name = segment_name(base, serial)
    file = directory.create(name)
    try:
        if content:
            file.append(content)
        file.sync()
        directory.sync()
    except BaseException:
        file.close()
        # No manifest names it yet. On a full disk, each try to start would leave another one.
        with contextlib.suppress(OSError):
            directory.remove(name)
        raise
    return name, file


def _first_start(directory: Directory, names: list[str], expected: Expected) -> Opened:
    check_unused(directory, names)
    # What an interrupted first start left: empty segments, and a manifest of empty segments.
    for name in names:
        if name.endswith((SEGMENT_SUFFIX, TEMPORARY_SUFFIX)):
            directory.remove(name)
    cluster_id = expected.cluster_id or expected.new_cluster_id()
    serial = first_serial(cluster_id)
    name, file = create_segment(directory, 0, serial)
    segments = (SegmentInfo(name, 0, None, None, compacted=False),)
    manifest = Manifest(segments, {}, serial + 1, cluster_id=cluster_id)
    meta = Meta(
        FORMAT,
        cluster_id,
        expected.node_id,
        expected.num_partitions,
        max(1, expected.leader_epoch_at_least),
    )
    try:
        write_whole(directory, MANIFEST_NAME, encode_manifest(manifest))
        write_whole(directory, META_NAME, encode_meta(meta))
    except BaseException:
        file.close()
        raise
    events: list[RecoveryEvent] = [("log.created", {"cluster_id": meta.cluster_id})]
    mark = Mark(directory, 0)
    return Opened(meta, manifest, ActiveSegment(name, 0, 0, {}, file), mark, {}, events)


def _move_aside(directory: Directory, names: list[str], manifest: Manifest) -> list[RecoveryEvent]:
    listed = frozenset(segment.name for segment in manifest.segments)
    dispensable = frozenset(manifest.dispensable)
    return [
        ("log.file_moved_aside", {"file": name, "moved_to": target})
        for name, target in move_aside(directory, names, listed, dispensable)
    ]


def _copy_newest(
    directory: Directory, manifest: Manifest, newest: Newest, events: list[RecoveryEvent]
) -> tuple[ActiveSegment, Manifest]:
    info = manifest.segments[-1]
    if newest.torn:
        _save_torn(directory, info, newest, events)
    content = newest.data[: newest.valid_bytes]
    name, file = _new_segment(directory, info.base, manifest.next_serial, content)
    try:
        segments = (*manifest.segments[:-1], info._replace(name=name))
        manifest = manifest._replace(segments=segments, next_serial=manifest.next_serial + 1)
        write_whole(directory, MANIFEST_NAME, encode_manifest(manifest))
        directory.remove(info.name)
    except BaseException:
        file.close()
        raise
    fields: dict[str, object] = {"segment": name, "valid_bytes": newest.valid_bytes}
    events.append(("log.recovered_after_unclean_stop", fields))
    return ActiveSegment(name, info.base, newest.valid_bytes, newest.positions, file), manifest


def _save_torn(
    directory: Directory, info: SegmentInfo, newest: Newest, events: list[RecoveryEvent]
) -> None:
    tail = newest.data[newest.valid_bytes :]
    target = save(directory, f"{info.name}.{newest.valid_bytes}.torn", tail)
    fields: dict[str, object] = {
        "segment": info.name,
        "position": info.base + newest.valid_bytes,
        "cut_bytes": len(tail),
        "saved_as": target,
    }
    events.append(("log.torn_tail_cut", fields))


def _raise_leader_epoch(directory: Directory, meta: Meta, at_least: int) -> Meta:
    leader_epoch = max(meta.leader_epoch + 1, at_least)
    if leader_epoch > LEADER_EPOCH_MAX:
        message = f"the leader epoch {leader_epoch} is over the limit of {LEADER_EPOCH_MAX}"
        raise LogRefused(message)
    meta = meta._replace(leader_epoch=leader_epoch)
    write_whole(directory, META_NAME, encode_meta(meta))
    return meta
