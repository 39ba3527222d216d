"""The small files beside the segments: meta, manifest and the marker of a clean stop.

Each is two lines of text, so that an operator can read it: one of JSON, one with the crc32 of
the first. They are replaced whole (write, fsync, rename, fsync the folder), so that a
crash leaves the old one or the new one; anything else is damage.
"""

import json
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, TypeVar

from coordinator.log.directory import Directory, Overwritten
from coordinator.log.errors import LogCorrupt, LogIncompatible
from coordinator.log.format import FORMAT

# ------------------------------------------------------------------------------------------
# The small files beside the segments: meta, manifest and the marker of a clean stop.

META_NAME: Final = "meta"
MANIFEST_NAME: Final = "manifest"
CLEAN_NAME: Final = "clean"
TEMPORARY_SUFFIX: Final = ".tmp"
SEGMENT_SUFFIX: Final = ".segment"

T = TypeVar("T")


class Meta(NamedTuple):
    """Whose data folder this is."""

    format: int
    cluster_id: str
    node_id: int
    num_partitions: int
    leader_epoch: int


class SegmentInfo(NamedTuple):
    """A segment as the manifest lists it; the newest one isn't sealed and has no end yet.

    `base` and `end` are journal positions. In a compacted segment there is less data than
    between them, and every flush_start is 0.
    """

    name: str
    base: int
    end: int | None
    data_bytes: int | None
    compacted: bool


class Manifest(NamedTuple):
    """The live segments, oldest first, and what compaction has forgotten.

    `compacted_below` has for a partition the offset below which tombstones were dropped: a
    stream of changes can't start below it. `next_serial` numbers files, so no name is used twice.
    `dispensable` names files that a crash may leave and nobody needs: what a compaction was about
    to bring in, or has replaced. The start removes them. `cluster_id` is that of the meta file, so
    that the files of two folders can't be mixed; "" in a manifest of before it was kept here.
    """

    segments: tuple[SegmentInfo, ...]
    compacted_below: dict[int, int]
    next_serial: int
    dispensable: tuple[str, ...] = ()
    cluster_id: str = ""


class CleanStop(NamedTuple):
    """Where the journal ended when it was closed in good order."""

    segment: str
    end: int


def first_serial(cluster_id: str) -> int:
    """Return the number of a cluster's first segment.

    Each cluster counts from a number of its own, so that a segment copied from the folder of
    another one has another name than all of ours: it is moved aside and replaces nothing.
    """
    return zlib.crc32(cluster_id.encode())


def segment_name(base: int, serial: int) -> str:
    """Return the file name of a segment; names sort by position."""
    return f"{base:020d}-{serial:06d}{SEGMENT_SUFFIX}"


def encode_meta(meta: Meta) -> bytes:
    """Return the meta file's bytes."""
    return _encode(meta._asdict())


def decode_meta(data: bytes) -> Meta:
    """Read a meta file.

    Raises:
        LogCorrupt: It is damaged.
        LogIncompatible: A newer release wrote it.
    """
    return _decode(META_NAME, data, lambda body: Meta(**body))


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest's bytes."""
    body: dict[str, Any] = {
        "format": FORMAT,
        "segments": [segment._asdict() for segment in manifest.segments],
        "compacted_below": {str(k): v for k, v in sorted(manifest.compacted_below.items())},
        "next_serial": manifest.next_serial,
        "cluster_id": manifest.cluster_id,
    }
    if manifest.dispensable:
        body["dispensable"] = list(manifest.dispensable)
    return _encode(body)


def decode_manifest(data: bytes) -> Manifest:
    """Read a manifest; raises as `decode_meta` does."""
    return _decode(
        MANIFEST_NAME,
        data,
        lambda body: Manifest(
            tuple(SegmentInfo(**segment) for segment in body["segments"]),
            {int(k): v for k, v in body["compacted_below"].items()},
            body["next_serial"],
            tuple(body.get("dispensable", ())),
            body.get("cluster_id", ""),
        ),
    )


def encode_clean_stop(stop: CleanStop) -> bytes:
    """Return the marker's bytes."""
    return _encode({"format": FORMAT, **stop._asdict()})


def decode_clean_stop(data: bytes) -> CleanStop:
    """Read a marker; raises as `decode_meta` does."""
    return _decode(CLEAN_NAME, data, lambda body: CleanStop(body["segment"], body["end"]))


def write_whole(directory: Directory, name: str, data: bytes) -> None:
    """Replace the file *name* so that a crash leaves the old one or the new one, whole."""
    temporary = name + TEMPORARY_SUFFIX
    directory.remove(temporary)
    file = directory.create(temporary)
    try:
        file.append(data)
        file.sync()
    finally:
        file.close()
    directory.rename(temporary, name)
    directory.sync()


def _encode(body: dict[str, Any]) -> bytes:
    line = json.dumps(body, separators=(", ", ": ")).encode() + b"\n"
    return line + f"{zlib.crc32(line):08x}\n".encode()


def _decode(name: str, data: bytes, build: Callable[[dict[str, Any]], T]) -> T:
    line, newline, rest = data.partition(b"\n")
    line += newline
    if rest != f"{zlib.crc32(line):08x}\n".encode():
        message = f"the file {name!r} of the data folder is damaged: its checksum is wrong"
        raise LogCorrupt(message)
    try:
        body = json.loads(line)
        if body["format"] > FORMAT:
            message = (
                f"the file {name!r} has format {body['format']}, and this release reads up to "
                f"{FORMAT}: a newer release wrote it, a downgrade is not possible"
            )
            raise LogIncompatible(message)
        return build(body)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        message = f"the file {name!r} of the data folder can't be understood: {exc!r}"
        raise LogCorrupt(message) from exc


# ------------------------------------------------------------------------------------------
# Up to where the journal was on disk at least: a lower bound, noted after each flush.
#
# The end of the newest segment can be cut off, and what is left is a valid log. After a clean stop
# its marker tells; after any other stop this does. It is overwritten in place and not synced, so
# a process that is killed leaves the last one, and a power cut perhaps an older one: what it says
# was
# true, whichever of them is found. One that can't be read says nothing.
#
#     u64 position | u32 crc32 of that

MARK_NAME: Final = "durable"
_POSITION: Final = struct.Struct(">Q")
_CRC: Final = struct.Struct(">I")


def encode_mark(position: int) -> bytes:
    """Return the file's bytes."""
    data = _POSITION.pack(position)
    return data + _CRC.pack(zlib.crc32(data))


def decode_mark(data: bytes) -> int:
    """Return the position that *data* vouches for; 0 if it doesn't for any."""
    position, crc = data[: _POSITION.size], data[_POSITION.size :]
    if len(crc) != _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(position):
        return 0
    value: int = _POSITION.unpack(position)[0]
    return value


def read_mark(directory: Directory, names: list[str]) -> int:
    """Return the folder's mark, 0 if there is none. Raises OSError."""
    return decode_mark(directory.read(MARK_NAME)) if MARK_NAME in names else 0


class Mark:
    """The mark of a folder that is being written to."""

    def __init__(self, directory: Directory, position: int) -> None:
        """Begin at *position*, which is on disk. Raises OSError."""
        write_whole(directory, MARK_NAME, encode_mark(position))
        self._file: Overwritten = directory.open_overwrite(MARK_NAME)

    def put(self, position: int) -> None:
        """Note that the journal is on disk up to *position*."""
        self._file.overwrite(encode_mark(position))

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


# ------------------------------------------------------------------------------------------
# What isn't replayed is kept: files and bytes that are put into the folder's `aside/`.

ASIDE: Final = "aside"
LOCK_NAME: Final = "lock"
STATE_NAMES: Final = frozenset({LOCK_NAME, META_NAME, MANIFEST_NAME, CLEAN_NAME, MARK_NAME})


def move_aside(
    directory: Directory,
    names: Iterable[str],
    listed: frozenset[str],
    dispensable: frozenset[str] = frozenset(),
) -> list[tuple[str, str]]:
    """Move what of *names* isn't *listed* in the manifest; return old and new names.

    What was only being written, or is *dispensable*, is removed; hidden files are left alone.
    """
    moved = []
    for name in names:
        if name in listed or name in STATE_NAMES or name.startswith("."):
            continue
        if name.endswith(TEMPORARY_SUFFIX) or name in dispensable:
            directory.remove(name)
            continue
        target = _free_name(directory, name)
        directory.rename(name, target)
        moved.append((name, target))
    if moved:
        directory.sync(ASIDE)
    if moved or dispensable:
        # Before a manifest is written that no longer knows the dispensable ones.
        directory.sync()
    return moved


def save(directory: Directory, name: str, content: bytes) -> str:
    """Write *content* to a new file in `aside/`, durably; return its name."""
    target = _free_name(directory, name)
    file = directory.create(target)
    try:
        file.append(content)
        file.sync()
    finally:
        file.close()
    directory.sync(ASIDE)
    directory.sync()
    return target


def _free_name(directory: Directory, name: str) -> str:
    target = f"{ASIDE}/{name}"
    number = 1
    while directory.exists(target):
        number += 1
        target = f"{ASIDE}/{name}.{number}"
    return target
