"""Opens a data folder: at a first start, after a clean stop, or after a crash.

The order of the steps, and why a crash between any two of them is harmless:

* First start: segment, manifest, and the meta file last. Without a meta file no batch was ever
  acknowledged, so the files that exist (empty segments only) are made anew. With it, a manifest
  must exist.
* Nothing is changed before everything was checked; a refusal leaves the folder unchanged.
* After an unclean stop the newest segment's valid part is copied to a new file, which is synced
  before the manifest names it. Until then the old file counts, from then on the new one.
* Files that the manifest doesn't name are put into quarantine, the subfolder `aside`.
* The marker of a clean stop is removed, durably, before the first batch can be written.

A full disk prevents no start. With little free space, a start leaves no files behind, however often
it is killed: the newest segment is overwritten in place instead of copied, a torn tail isn't saved,
and the manifest is written only with its next change. The start then writes only the meta
file and `durable`, which need one block at a time. If no block is free, the ballast is removed, a
file that exists only for this. Without ballast, the block of `durable` is used; until that file is
written again, the name of an empty file holds its position.

Each such try begins anew, as after a crash. At its end a start writes at least as much ballast as
the next start needs (`START_BYTES`); the rest of the ballast is for entries that groups write
without a request. The whole ballast is written when there is room again.
"""

import contextlib
from array import array
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from coordinator.log.directory import Directory, File
from coordinator.log.errors import NO_ROOM, LogCorrupt, LogIncompatible, LogRefused
from coordinator.log.format import (
    FORMAT,
    FlushKey,
    batch_at,
    decode_batch,
    decode_footer,
    find_later_flush,
)
from coordinator.log.segments import ActiveSegment, FlushChain, read_footer
from coordinator.log.state_files import (
    BALLAST_NAME,
    CLEAN_NAME,
    DURABLE_NAME,
    MANIFEST_NAME,
    META_NAME,
    MOVED_NAME,
    SEGMENT_SUFFIX,
    TEMPORARY_SUFFIX,
    CleanStop,
    DurablePosition,
    Manifest,
    Meta,
    SegmentInfo,
    decode_clean_stop,
    decode_durable,
    decode_manifest,
    decode_meta,
    first_serial,
    is_state_file,
    note_durable,
    read_durable,
    segment_name,
    write_manifest,
    write_meta,
)

QUARANTINE: Final = "aside"
# Size of the ballast in bytes: room for the state files, and then for entries that groups write
# without a request, such as the end of a member. New data is refused on a full disk.
BALLAST_BYTES: Final = 256 * 1024
# Ballast that a start needs, in bytes: one block of the file system, 64 KiB at most.
START_BYTES: Final = 64 * 1024
# With less free space than this, in bytes, a start creates no file that a kill would leave behind.
ROOMY_BYTES: Final = 8 * BALLAST_BYTES
LEADER_EPOCH_MAX: Final = 2**31 - 1
# Highest leader epoch that an operator may ask for. Each start takes the next one, and no start is
# possible after LEADER_EPOCH_MAX.
LEADER_EPOCH_ASKED_MAX: Final = 2**30

RecoveryEvent = tuple[str, dict[str, object]]


class Expected(NamedTuple):
    """Properties that the folder must have according to the settings."""

    num_partitions: int
    node_id: int
    new_cluster_id: Callable[[], str]
    new_secret: Callable[[], bytes]
    leader_epoch_at_least: int
    cluster_id: str = ""  # "": any.


class Newest(NamedTuple):
    """Readable part of the newest segment. `data` ends before the zeros that were written ahead.

    Zeros behind the batches are no damage. A write that didn't reach the disk at all also leaves
    zeros; the file `durable` shows whether an acknowledged write was lost.
    """

    data: bytes
    valid_bytes: int
    positions: "dict[int, array[int]]"
    end_offsets: dict[int, int]
    torn: bool


class Checked(NamedTuple):
    """A folder that can be served, and the offsets at which its partitions end."""

    meta: Meta
    manifest: Manifest
    stop: CleanStop | None
    end_offsets: dict[int, int]
    newest: Newest


class Opened(NamedTuple):
    """A folder that is ready to be replayed and appended to."""

    meta: Meta
    manifest: Manifest
    active: ActiveSegment
    durable: DurablePosition
    end_offsets: dict[int, int]
    events: list[RecoveryEvent]


def open_folder(directory: Directory, expected: Expected) -> Opened:
    """Check, recover and open a locked folder, with the leader epoch raised and on disk.

    Raises:
        LogRefused: See the subclasses; the folder is unchanged.
        OSError: The disk fails; the folder can be opened again.
    """
    opened = _open_in_what_room_there_is(directory, expected)
    take_ballast(directory)
    return opened


def _open_in_what_room_there_is(directory: Directory, expected: Expected) -> Opened:
    is_tight = False
    for given_up in (BALLAST_NAME, DURABLE_NAME):
        try:
            return _open(directory, expected, is_tight=is_tight)
        except OSError as exc:
            if exc.errno not in NO_ROOM:
                raise
        if given_up == DURABLE_NAME and directory.exists(given_up):
            note_durable(directory, decode_durable(directory.read(given_up)))
        directory.remove(given_up)
        directory.sync()
        is_tight = True
    return _open(directory, expected, is_tight=True)


def lacks_ballast(directory: Directory) -> bool:
    """Return whether the ballast is incomplete and there is room for all of it."""
    return _ballast_bytes(directory) != BALLAST_BYTES and free_bytes(directory) >= ROOMY_BYTES


def _ballast_bytes(directory: Directory) -> int:
    """Return the size of the ballast; -1 without one, `BALLAST_BYTES` if the disk fails."""
    with contextlib.suppress(OSError):
        return directory.size(BALLAST_NAME) if directory.exists(BALLAST_NAME) else -1
    return BALLAST_BYTES


def free_bytes(directory: Directory) -> int:
    """Return the free space of the disk; 0 if the system call fails."""
    try:
        return directory.free_bytes()
    except OSError:
        return 0


def take_ballast(directory: Directory) -> None:
    """Write all of the ballast, or `START_BYTES` of it if little is free.

    Raises:
        OSError: The disk fails; a full disk is no error.
    """
    is_roomy = free_bytes(directory) >= ROOMY_BYTES
    size_bytes = _ballast_bytes(directory)
    if size_bytes == BALLAST_BYTES or (size_bytes == START_BYTES and not is_roomy):
        return
    if size_bytes >= 0:
        directory.remove(BALLAST_NAME)  # Too small, or incomplete after a crash.
    try:
        file = directory.create(BALLAST_NAME)
        try:
            file.write(bytes(BALLAST_BYTES if is_roomy else START_BYTES), 0)
            file.sync()
        finally:
            file.close()
    except OSError as exc:
        directory.remove(BALLAST_NAME)
        if exc.errno not in NO_ROOM:
            raise


def _open(directory: Directory, expected: Expected, *, is_tight: bool) -> Opened:
    names = directory.names()
    if MOVED_NAME in names:
        raise LogRefused(
            "the groups of this data folder were moved into a cluster, and go on there "
            f"(file {MOVED_NAME!r})"
        )
    if META_NAME not in names:
        return _first_start(directory, names, expected)
    meta, manifest, stop, end_offsets, newest = check_folder(directory, names, expected)

    # The folder is changed only from here on.
    is_old = not manifest.cluster_id
    manifest = manifest._replace(cluster_id=meta.cluster_id)
    listed = frozenset(segment.name for segment in manifest.segments)
    moved = quarantine_unlisted(directory, names, listed, frozenset(manifest.dispensable))
    events: list[RecoveryEvent] = [
        ("log.file_moved_aside", {"file": name, "moved_to": target}) for name, target in moved
    ]
    # `quarantine_unlisted` has synced their removal, so the next manifest need not list them.
    manifest = manifest._replace(dispensable=())
    is_tight |= free_bytes(directory) < ROOMY_BYTES + len(newest.data)
    if stop is None:
        recover = _rewrite_newest if is_tight else _copy_newest
        file, manifest = recover(directory, manifest, newest, events)
        info = manifest.segments[-1]
        fields: dict[str, object] = {"segment": info.name, "valid_bytes": newest.valid_bytes}
        events.append(("log.recovered_after_unclean_stop", fields))
    else:
        if is_old and not is_tight:
            write_manifest(directory, manifest)
        info = manifest.segments[-1]
        file = directory.open_write(info.name)
    end = info.base + newest.valid_bytes
    active = ActiveSegment(info.name, info.base, end, newest.positions, file)
    leader_epoch = max(meta.leader_epoch + 1, expected.leader_epoch_at_least)
    key = meta.key or FlushKey(expected.new_secret())
    try:
        meta = meta._replace(format=FORMAT, leader_epoch=checked_epoch(leader_epoch), key=key)
        if DURABLE_NAME not in names:
            note_durable(directory, active.end)
        write_meta(directory, meta)
        if stop is not None:
            directory.remove(CLEAN_NAME)
            directory.sync()
        durable = DurablePosition(directory, active.end)
    except BaseException:
        active.file.close()
        raise
    return Opened(meta, manifest, active, durable, end_offsets, events)


def create_segment(
    directory: Directory, base: int, serial: int, content: bytes = b""
) -> tuple[str, File]:
    """Create a segment, durable under its name, that the manifest doesn't list yet."""
    name = segment_name(base, serial)
    file = directory.create(name)
    try:
        if content:
            file.write(content, 0)
        file.sync()
        directory.sync()
    except BaseException:
        file.close()
        # Unlisted yet. On a full disk, each try to start would leave another file.
        with contextlib.suppress(OSError):
            directory.remove(name)
        raise
    return name, file


def _first_start(directory: Directory, names: list[str], expected: Expected) -> Opened:
    check_unused(directory, names)
    # An interrupted first start leaves empty segments, and a manifest of empty segments.
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
        FlushKey(expected.new_secret()),
    )
    try:
        write_manifest(directory, manifest)
        note_durable(directory, 0)
        write_meta(directory, meta)
    except BaseException:
        file.close()
        raise
    events: list[RecoveryEvent] = [("log.created", {"cluster_id": meta.cluster_id})]
    active = ActiveSegment(name, 0, 0, {}, file)
    return Opened(meta, manifest, active, DurablePosition(directory, 0), {}, events)


def _copy_newest(
    directory: Directory, manifest: Manifest, newest: Newest, events: list[RecoveryEvent]
) -> tuple[File, Manifest]:
    info = manifest.segments[-1]
    content = newest.data[: newest.valid_bytes]
    if newest.torn:
        tail = newest.data[newest.valid_bytes :]
        saved_as = quarantine_bytes(directory, f"{info.name}.{newest.valid_bytes}.torn", tail)
        events.append(_torn_tail_cut(info, newest, saved_as))
    name, file = create_segment(directory, info.base, manifest.next_serial, content)
    try:
        segments = (*manifest.segments[:-1], info._replace(name=name))
        manifest = manifest._replace(segments=segments, next_serial=manifest.next_serial + 1)
        write_manifest(directory, manifest)
        directory.remove(info.name)
    except BaseException:
        file.close()
        raise
    return file, manifest


def _rewrite_newest(
    directory: Directory, manifest: Manifest, newest: Newest, events: list[RecoveryEvent]
) -> tuple[File, Manifest]:
    """Overwrite the newest segment with its own valid part, as there is no room for a copy.

    The bytes were read from the medium, so each sector is the same before and after, and a crash
    at any moment is harmless. The bytes that are cut off were never acknowledged.
    """
    info = manifest.segments[-1]
    if newest.torn:
        events.append(_torn_tail_cut(info, newest, ""))
    file = directory.open_write(info.name)
    try:
        file.truncate(newest.valid_bytes)
        file.write(newest.data[: newest.valid_bytes], 0)
        file.sync()
    except BaseException:
        file.close()
        raise
    return file, manifest


def _torn_tail_cut(info: SegmentInfo, newest: Newest, saved_as: str) -> RecoveryEvent:
    torn: dict[str, object] = {
        "segment": info.name,
        "position": info.base + newest.valid_bytes,
        "cut_bytes": len(newest.data) - newest.valid_bytes,
        "saved_as": saved_as,
    }
    return "log.torn_tail_cut", torn


def checked_epoch(leader_epoch: int) -> int:
    """Return *leader_epoch*.

    Raises:
        LogRefused: The epoch is over `LEADER_EPOCH_MAX`.
    """
    if leader_epoch > LEADER_EPOCH_MAX:
        message = f"the leader epoch {leader_epoch} is over the limit of {LEADER_EPOCH_MAX}"
        raise LogRefused(message)
    return leader_epoch


def check_unused(directory: Directory, names: list[str]) -> None:
    """Check that a folder without a meta file was never in use.

    Raises:
        LogRefused: The folder was in use, or is no data folder.
    """
    for name in names:
        if is_state_file(name) or name.endswith(TEMPORARY_SUFFIX) or name.startswith("."):
            continue
        if not name.endswith(SEGMENT_SUFFIX):
            message = (
                f"the data folder has no file {META_NAME!r} and is not empty ({name!r}): "
                "not a data folder; name an empty or a new one"
            )
            raise LogIncompatible(message)
        if directory.size(name):
            message = (
                f"the data folder has no file {META_NAME!r}, but {name} holds data: "
                "restore the meta file"
            )
            raise LogCorrupt(message)
    served = bool({CLEAN_NAME, DURABLE_NAME} & set(names))
    if MANIFEST_NAME in names:
        manifest = decode_manifest(directory.read(MANIFEST_NAME))
        served |= manifest.next_serial > first_serial(manifest.cluster_id) + 1
    if served:
        message = f"the data folder was in use, but has no file {META_NAME!r}: restore it"
        raise LogCorrupt(message)


def check_folder(directory: Directory, names: list[str], expected: Expected | None) -> Checked:
    """Check a folder that has a meta file: everything but the data of the sealed segments.

    Args:
        directory: The folder, locked.
        names: Names of its files.
        expected: None accepts any folder.

    Raises:
        LogRefused: See the subclasses.
        OSError: The disk fails.
    """
    meta = decode_meta(directory.read(META_NAME))
    if expected is not None:
        _check_meta(meta, expected)
    manifest = _read_manifest(directory, names, meta)
    stop = decode_clean_stop(directory.read(CLEAN_NAME)) if CLEAN_NAME in names else None
    end_offsets = _check_sealed(directory, manifest, meta)
    newest = _read_newest(directory, manifest.segments[-1], end_offsets, meta, stop)
    _check_durable(read_durable(directory, names, meta), manifest.segments[-1], newest)
    end_offsets.update(newest.end_offsets)
    return Checked(meta, manifest, stop, end_offsets, newest)


def _check_meta(meta: Meta, expected: Expected) -> None:
    if meta.num_partitions != expected.num_partitions:
        message = (
            f"the data folder was made with {meta.num_partitions} offsets partitions, the settings "
            f"say {expected.num_partitions}: the number can't be changed, it decides which "
            "partition a group is in"
        )
        raise LogIncompatible(message)
    if meta.node_id != expected.node_id:
        message = (
            f"the data folder belongs to node {meta.node_id}, the settings say {expected.node_id}"
        )
        raise LogIncompatible(message)
    if expected.cluster_id not in {"", meta.cluster_id}:
        message = (
            f"the data folder belongs to the cluster {meta.cluster_id}, the setting cluster.id "
            f"says {expected.cluster_id}"
        )
        raise LogIncompatible(message)


def _read_manifest(directory: Directory, names: list[str], meta: Meta) -> Manifest:
    if MANIFEST_NAME not in names:
        message = f"the data folder has no file {MANIFEST_NAME!r}: restore it from a backup"
        raise LogCorrupt(message)
    manifest = decode_manifest(directory.read(MANIFEST_NAME))
    if manifest.cluster_id not in {"", meta.cluster_id}:
        message = (
            f"the file {MANIFEST_NAME!r} belongs to the cluster {manifest.cluster_id}, the file "
            f"{META_NAME!r} to {meta.cluster_id}: files of two data folders are mixed"
        )
        raise LogCorrupt(message)
    if not manifest.segments or manifest.segments[-1].end is not None:
        message = f"the file {MANIFEST_NAME!r} lists no segment to append to"
        raise LogCorrupt(message)
    if any(segment.format > meta.format for segment in manifest.segments):
        message = f"the file {META_NAME!r} is of format {meta.format}: it is older than the log"
        raise LogCorrupt(message)
    position = manifest.segments[0].base
    for segment in manifest.segments:
        if segment.name not in names:
            message = (
                f"segment {segment.name} is missing, which begins at position {segment.base} of "
                "the journal: restore it from a backup"
            )
            raise LogCorrupt(message)
        if segment.base != position or (segment.end is None) != (segment is manifest.segments[-1]):
            message = f"the file {MANIFEST_NAME!r} has a gap before segment {segment.name}"
            raise LogCorrupt(message)
        position = segment.base if segment.end is None else segment.end
    return manifest


def _check_sealed(directory: Directory, manifest: Manifest, meta: Meta) -> dict[int, int]:
    end_offsets: dict[int, int] = {}
    for segment in manifest.segments[:-1]:
        index = read_footer(directory, segment)
        if index.cluster_id not in {"", meta.cluster_id}:
            message = (
                f"segment {segment.name} belongs to the cluster {index.cluster_id}, the data "
                f"folder to {meta.cluster_id}: files of two data folders are mixed"
            )
            raise LogCorrupt(message)
        for partition, end_offset in end_offsets.items():
            if index.end_offsets.get(partition, -1) < end_offset:
                message = f"segment {segment.name} goes back in partition {partition}"
                raise LogCorrupt(message)
        end_offsets = dict(index.end_offsets)
    return end_offsets


def _read_newest(
    directory: Directory,
    info: SegmentInfo,
    end_offsets: dict[int, int],
    meta: Meta,
    stop: CleanStop | None,
) -> Newest:
    if stop is None:
        # Writes of a killed process, or before a failed fsync, may be in the page cache only.
        directory.drop_cache(info.name)
    data = directory.read(info.name)
    newest = _scan(data, info, end_offsets, meta)
    if stop is not None:
        found = (info.name, info.base + newest.valid_bytes)
        if (stop.segment, stop.end) != found or newest.valid_bytes < len(newest.data):
            message = (
                f"the log was closed in good order at position {stop.end} in {stop.segment}, but "
                f"{info.name} can be read up to position {info.base + newest.valid_bytes}: "
                "it was damaged, cut or replaced since"
            )
            raise LogCorrupt(message)
    elif newest.torn:
        later = find_later_flush(data, newest.valid_bytes, info.base, info.format, meta.key)
        if later is not None:
            message = (
                f"segment {info.name} is damaged at byte {newest.valid_bytes}, and a later write "
                f"at byte {later} is there: no crash does that; a repair would lose "
                "acknowledged data"
            )
            raise LogCorrupt(message)
    return newest


def _check_durable(durable: int, info: SegmentInfo, newest: Newest) -> None:
    end = info.base + newest.valid_bytes
    if end < durable:
        message = (
            f"the log was on disk up to position {durable}, and segment {info.name} can be read "
            f"up to position {end}: it was damaged, cut or replaced since, and acknowledged data "
            "is missing"
        )
        raise LogCorrupt(message)


def _scan(data: bytes, info: SegmentInfo, end_offsets: dict[int, int], meta: Meta) -> Newest:
    chain = FlushChain(info, meta.num_partitions)
    positions: dict[int, array[int]] = {}
    base_offsets = dict(end_offsets)
    position = 0
    while (raw := batch_at(data, position)) is not None:
        chain.check(position, raw)
        if raw.leader_epoch > meta.leader_epoch:
            message = (
                f"segment {info.name}: the batch at byte {position} was written in leader epoch "
                f"{raw.leader_epoch}, the file {META_NAME!r} knows {meta.leader_epoch} only: it is "
                "older than the log, or another folder's"
            )
            raise LogCorrupt(message)
        if raw.base_offset < base_offsets.get(raw.partition, 0):
            message = (
                f"segment {info.name}: the batch at byte {position} goes back in partition "
                f"{raw.partition}, to offset {raw.base_offset}"
            )
            raise LogCorrupt(message)
        base_offsets[raw.partition] = raw.base_offset + 1
        if raw.partition not in positions:
            positions[raw.partition] = array("I")
        positions[raw.partition].append(position)
        position = raw.end
    ends = {}
    for partition, starts in positions.items():
        last = batch_at(data, starts[-1])
        assert last is not None
        ends[partition] = decode_batch(data, last).end_offset
    rest = data[position:].rstrip(b"\0")
    # A crash between sealing the segment and listing the next one leaves a complete index here.
    torn = bool(rest) and decode_footer(rest) is None
    return Newest(data[: position + len(rest)], position, positions, ends, torn)


def quarantine_unlisted(
    directory: Directory,
    names: Iterable[str],
    listed: frozenset[str],
    dispensable: frozenset[str] = frozenset(),
) -> list[tuple[str, str]]:
    """Move the files of *names* that aren't *listed* in the manifest to the quarantine.

    Temporary and *dispensable* files are removed; state files and hidden files stay.

    Returns:
        Old and new names of the moved files.
    """
    moved = []
    for name in names:
        if name in listed or is_state_file(name) or name.startswith("."):
            continue
        if name.endswith(TEMPORARY_SUFFIX) or name in dispensable:
            directory.remove(name)
            continue
        target = _free_name(directory, name)
        directory.rename(name, target)
        moved.append((name, target))
    if moved:
        directory.sync(QUARANTINE)
    if moved or dispensable:
        # Sync before a manifest is written that doesn't list the dispensable files any more.
        directory.sync()
    return moved


def quarantine_bytes(directory: Directory, name: str, content: bytes) -> str:
    """Write *content* durably to a new file in the quarantine; return the file's name."""
    target = _free_name(directory, name)
    file = directory.create(target)
    try:
        file.write(content, 0)
        file.sync()
    except OSError:
        directory.remove(target)
        raise
    finally:
        file.close()
    directory.sync(QUARANTINE)
    directory.sync()
    return target


def _free_name(directory: Directory, name: str) -> str:
    target = f"{QUARANTINE}/{name}"
    number = 1
    while directory.exists(target):
        number += 1
        target = f"{QUARANTINE}/{name}.{number}"
    return target
