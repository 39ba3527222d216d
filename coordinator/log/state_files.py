"""The small files beside the segments: meta, manifest and the marker of a clean stop.

Each is two lines of text, so that an operator can read it: one of JSON, one with the crc32 of
the first. They are replaced whole (write, fsync, rename, fsync the folder), so that a
crash leaves the old one or the new one; anything else is damage.
"""

import json
import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from coordinator.log.directory import Directory
from coordinator.log.errors import LogCorrupt, LogIncompatible
from coordinator.log.format import FORMAT

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
