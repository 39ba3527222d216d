"""State files beside the segments: meta, manifest, clean, durable, and the ballast.

`meta`, `manifest` and `clean` (the marker of a clean stop) have two lines of text each, so that an
operator can read them: JSON, and the crc32 of the first line. They are replaced as a whole (write,
fsync, rename, fsync the folder), so that a crash leaves the old file or the new one; any other
content is damage.

`durable` holds a position up to which the journal was on disk, as a lower bound. It detects a
newest segment whose end was cut off, as the rest is a valid log. After a clean stop `clean` holds
the end, after any other stop only `durable` does. It is overwritten in place behind each flush and
not synced: after a kill it has the last value, after a power cut perhaps an older one, and both
are true. A folder of format 2 that wasn't closed always has this file.

    u64 position | u32 crc32 of that | u64 position | u32 crc32 of that

A kill, or the kernel writing the page to disk, can tear a store to mapped memory. Therefore each
store replaces the older of two records, and the highest valid record counts. Older builds wrote
one record.

While a start writes `durable`, or has given up its block on a full disk, the name of an empty file,
`durable-<position>`, holds the position: a name takes no block.

`ballast` has no meaningful content: it reserves room for a start on a full disk.
"""

import json
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from coordinator.log.directory import LOCK_NAME, Directory
from coordinator.log.errors import LogCorrupt, LogIncompatible
from coordinator.log.format import FORMAT, SECRET_BYTES, FlushKey

META_NAME: Final = "meta"
MANIFEST_NAME: Final = "manifest"
CLEAN_NAME: Final = "clean"
DURABLE_NAME: Final = "durable"
BALLAST_NAME: Final = "ballast"
# Marker of a folder whose groups were moved into a cluster; no daemon serves it any more.
MOVED_NAME: Final = "moved"
STATE_NAMES: Final = frozenset(
    {LOCK_NAME, META_NAME, MANIFEST_NAME, CLEAN_NAME, DURABLE_NAME, BALLAST_NAME, MOVED_NAME}
)
TEMPORARY_SUFFIX: Final = ".tmp"
SEGMENT_SUFFIX: Final = ".segment"

_NOTED: Final = re.compile(DURABLE_NAME + "-([0-9]{20})")
_UNKNOWN_END: Final = (
    "how far the log was on disk isn't known, and acknowledged data may be missing at its end; "
    "restore a backup, or see what 'group-coordinator log repair' would lose"
)
_POSITION: Final = struct.Struct(">Q")
_CRC: Final = struct.Struct(">I")

T = TypeVar("T")


class Meta(NamedTuple):
    """Identity of a data folder. `key` is None in format 1, which had no secret."""

    format: int
    cluster_id: str
    node_id: int
    num_partitions: int
    leader_epoch: int
    key: FlushKey | None


class SegmentInfo(NamedTuple):
    """A segment as the manifest lists it; the newest one isn't sealed and has no end yet.

    `base` and `end` are journal positions. A compacted segment may have less data than the
    stretch between them, and every flush_start in it is 0. `format` is the format of its batches.
    """

    name: str
    base: int
    end: int | None
    data_bytes: int | None
    compacted: bool
    format: int = FORMAT


class Sizes(NamedTuple):
    """Bytes of batches in sealed segments, compacted (clean) or not (dirty)."""

    clean_bytes: int
    dirty_bytes: int


class Manifest(NamedTuple):
    """The segments in use, oldest first, and the effects of compactions.

    `compacted_below` maps a partition to the offset below which tombstones were dropped: a stream
    of changes can't start below it. `next_serial` numbers the files, so that no name is used twice.
    `dispensable` lists files that a crash may leave and the next start removes: the outputs that a
    compaction was about to install, or the sources that it has replaced. `cluster_id` is the one
    of the meta file, so that mixed files of two folders are detected; "" in older manifests.
    """

    segments: tuple[SegmentInfo, ...]
    compacted_below: dict[int, int]
    next_serial: int
    dispensable: tuple[str, ...] = ()
    cluster_id: str = ""


class CleanStop(NamedTuple):
    """Newest segment and end of the journal at a clean stop."""

    segment: str
    end: int


def is_state_file(name: str) -> bool:
    """Return whether *name* is the lock, a state file, or a name that holds a durable position."""
    return name in STATE_NAMES or _NOTED.fullmatch(name) is not None


def data_bytes(segments: Iterable[SegmentInfo]) -> int:
    """Return the size of the batches in the sealed ones of *segments*."""
    return sum([segment.data_bytes or 0 for segment in segments])


def sealed_sizes(segments: Sequence[SegmentInfo]) -> Sizes:
    """Return the compacted and the other bytes in the sealed ones of *segments*."""
    clean_bytes = data_bytes(segment for segment in segments if segment.compacted)
    return Sizes(clean_bytes, data_bytes(segments) - clean_bytes)


def first_serial(cluster_id: str) -> int:
    """Return the serial number of a cluster's first segment.

    Each cluster counts from its own number, so that a segment copied from another cluster's folder
    has a different name than all segments here: it is moved aside and replaces none of them.
    """
    return zlib.crc32(cluster_id.encode())


def segment_name(base: int, serial: int) -> str:
    """Return the file name of a segment; names sort by position."""
    return f"{base:020d}-{serial:06d}{SEGMENT_SUFFIX}"


def encode_meta(meta: Meta) -> bytes:
    assert meta.key is not None
    body = meta._asdict()
    del body["key"]
    return _encode({**body, "secret": meta.key.secret.hex()})


def decode_meta(data: bytes) -> Meta:
    """Return the content of a meta file.

    Raises:
        LogCorrupt: The file is damaged.
        LogIncompatible: A newer release wrote the file.
    """

    def build(body: dict[str, Any]) -> Meta:
        key = None
        if body["format"] > 1:
            key = FlushKey(bytes.fromhex(body.pop("secret")))
            if len(key.secret) != SECRET_BYTES:
                raise ValueError("its secret is of another length")
        return Meta(**body, key=key)

    return _decode(META_NAME, data, build)


def write_meta(directory: Directory, meta: Meta) -> None:
    """Replace the meta file durably. Raises OSError."""
    write_whole(directory, META_NAME, encode_meta(meta))


def encode_manifest(manifest: Manifest) -> bytes:
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
    """Return the content of a manifest. Raises as `decode_meta`."""
    return _decode(
        MANIFEST_NAME,
        data,
        lambda body: Manifest(
            # A manifest of format 1 doesn't record the format of its segments.
            tuple(SegmentInfo(**{"format": 1, **segment}) for segment in body["segments"]),
            {int(k): v for k, v in body["compacted_below"].items()},
            body["next_serial"],
            tuple(body.get("dispensable", ())),
            body.get("cluster_id", ""),
        ),
    )


def write_manifest(directory: Directory, manifest: Manifest) -> None:
    """Replace the manifest durably. Raises OSError."""
    write_whole(directory, MANIFEST_NAME, encode_manifest(manifest))


def write_clean_stop(directory: Directory, stop: CleanStop) -> None:
    """Write the marker of a clean stop durably. Raises OSError."""
    write_whole(directory, CLEAN_NAME, _encode({"format": FORMAT, **stop._asdict()}))


def decode_clean_stop(data: bytes) -> CleanStop:
    """Return the content of the marker of a clean stop. Raises as `decode_meta`."""
    return _decode(CLEAN_NAME, data, lambda body: CleanStop(body["segment"], body["end"]))


def write_whole(directory: Directory, name: str, data: bytes) -> None:
    """Replace the file *name* durably; a crash leaves the old or the new content, complete."""
    temporary = name + TEMPORARY_SUFFIX
    directory.remove(temporary)
    file = directory.create(temporary)
    try:
        file.write(data, 0)
        file.sync()
    finally:
        file.close()
    directory.rename(temporary, name)
    directory.sync()


def encode_durable(position: int) -> bytes:
    """Return one record of the file `durable`."""
    data = _POSITION.pack(position)
    return data + _CRC.pack(zlib.crc32(data))


def decode_durable(data: bytes) -> int:
    """Return the highest position of a valid record in `durable`. Raises LogCorrupt."""
    size = _POSITION.size + _CRC.size
    records = (data[:size], data[size:]) if len(data) == 2 * size else (data,)
    found: list[int] = []
    for record in records:
        position, crc = record[: _POSITION.size], record[_POSITION.size :]
        if len(crc) == _CRC.size and _CRC.unpack(crc)[0] == zlib.crc32(position):
            found += _POSITION.unpack(position)
    if not found:
        raise LogCorrupt(f"the file {DURABLE_NAME!r} of the data folder is damaged: {_UNKNOWN_END}")
    return max(found)


def read_durable(directory: Directory, names: list[str], meta: Meta | None) -> int:
    """Return the folder's durable position; 0 if there is none and none is required.

    A folder of format 1 may never have had the file, and after a clean stop `clean` is enough.

    Raises:
        LogCorrupt: The file is damaged, or is missing where it is required.
        OSError: The disk fails.
    """
    found = [int(match[1]) for match in map(_NOTED.fullmatch, names) if match]
    if DURABLE_NAME in names:
        found.append(decode_durable(directory.read(DURABLE_NAME)))
    elif not found and CLEAN_NAME not in names and (meta is None or meta.format > 1):
        raise LogCorrupt(f"the data folder has no file {DURABLE_NAME!r}: {_UNKNOWN_END}")
    return max(found, default=0)


def note_durable(directory: Directory, position: int) -> None:
    """Record *position* durably in the name of an empty file. Raises OSError."""
    name = f"{DURABLE_NAME}-{position:020d}"
    if not directory.exists(name):
        directory.create(name).close()
    directory.sync()


def write_durable(directory: Directory, position: int) -> None:
    """Replace the file `durable` durably, then remove the files of `note_durable`.

    Raises:
        OSError: The disk fails.
    """
    write_whole(directory, DURABLE_NAME, 2 * encode_durable(position))
    for name in filter(_NOTED.fullmatch, directory.names()):
        directory.remove(name)
        directory.sync()


class DurablePosition:
    """The file `durable` while the journal is written."""

    def __init__(self, directory: Directory, position: int) -> None:
        """Begin at *position*, which is on disk. Raises OSError."""
        write_durable(directory, position)
        self._file = directory.open_overwrite(DURABLE_NAME)
        self._newest = encode_durable(position)
        self._is_second = False  # Whether the newest record is the second one of the file.

    def put(self, position: int) -> None:
        """Record that the journal is on disk up to *position*; not synced."""
        newest, older = encode_durable(position), self._newest
        self._is_second = not self._is_second
        # The previous record stays in its place: storing the same bytes again can't tear it.
        self._file.overwrite(older + newest if self._is_second else newest + older)
        self._newest = newest

    def close(self) -> None:
        self._file.close()


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
