"""Surveys a data folder, damaged or not: finds which file has which stretch of the journal.

The daemon trusts the manifest or refuses to start. The offline tools also handle a segment under
another name, a segment with a damaged index, and a missing manifest. `survey` examines the files,
and `scan` the batches of one file, before and behind damage. The folder is not changed.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, TypeVar

from coordinator.log.directory import Directory
from coordinator.log.errors import LogCorrupt, LogIncompatible
from coordinator.log.format import (
    FORMAT,
    HEADER,
    HEADER_BYTES,
    HEADER_BYTES_OF,
    LENGTH_MAX,
    LENGTH_MIN,
    NODE_PARTITION,
    PREFIX,
    PREFIX_BYTES,
    TRAILER,
    FlushKey,
    Index,
    RawBatch,
    batch_at,
    decode_footer,
    is_own_header,
)
from coordinator.log.segments import WINDOW_BYTES
from coordinator.log.state_files import (
    CLEAN_NAME,
    DURABLE_NAME,
    MANIFEST_NAME,
    META_NAME,
    SEGMENT_SUFFIX,
    TEMPORARY_SUFFIX,
    CleanStop,
    Manifest,
    Meta,
    SegmentInfo,
    decode_clean_stop,
    decode_manifest,
    decode_meta,
    is_state_file,
    read_durable,
)

_SEGMENT_NAME: Final = re.compile(r"([0-9]{20})-([0-9]+)" + re.escape(SEGMENT_SUFFIX))
_PARTITION_FIELD: Final = 3
_FLUSH_START_FIELD: Final = 6
_FORMAT: Final = bytes((FORMAT,))
# Name of a missing segment that a gap in the journal proves, if no manifest lists it.
_NAMELESS: Final = "(a segment)"

T = TypeVar("T")


class Problem(NamedTuple):
    """Deviation of a file from the state in which a daemon leaves it."""

    file: str
    what: str


class Source(NamedTuple):
    """One stretch of the journal, and the file that has its batches."""

    segment: SegmentInfo
    file: str | None  # None: no file has it.
    data_bytes: int  # Byte of the file up to which there may be batches.
    footer: Index | None  # None: no valid one, as always in the newest segment.

    @property
    def is_in_place(self) -> bool:
        """Whether the file has the segment's name, and a valid index if it is sealed."""
        is_sealed = self.segment.end is not None
        return self.file == self.segment.name and is_sealed == (self.footer is not None)


class Survey(NamedTuple):
    """Findings about a folder. A part that is missing, damaged or of another cluster is None."""

    names: list[str]
    meta: Meta | None
    manifest: Manifest | None
    stop: CleanStop | None
    sources: tuple[Source, ...]
    problems: tuple[Problem, ...]
    foreign_ids: frozenset[str]  # Ids of other clusters, whose files were left out.
    durable: int  # Position up to which the journal was on disk, as a lower bound.

    def known_end(self, segment: SegmentInfo) -> int:
        """Return the journal position up to which a segment is known to have reached."""
        if segment.end is not None:
            return segment.end
        is_told = self.stop is not None and self.stop.segment == segment.name
        return max(segment.base, self.durable, self.stop.end if self.stop and is_told else 0)

    @property
    def lacks_end(self) -> bool:
        """Whether a durable position is required, and neither `durable` nor `clean` has it."""
        is_told = self.stop is not None and self.stop.segment == self.sources[-1].segment.name
        return self.lacks_mark and not is_told

    @property
    def lacks_mark(self) -> bool:
        """Whether the file `durable` is damaged, or is missing where it is required."""
        return any(problem.file == DURABLE_NAME for problem in self.problems)

    @property
    def was_closed(self) -> bool:
        """Whether the marker of a clean stop exists, readable or not."""
        return CLEAN_NAME in self.names

    @property
    def key(self) -> FlushKey | None:
        """Secret that authenticates the folder's headers; None in format 1 or without meta."""
        return None if self.meta is None else self.meta.key


def survey(directory: Directory, cluster_id: str = "") -> Survey:
    """Examine the files of a folder.

    Args:
        directory: The folder.
        cluster_id: Cluster id of the folder; "" takes the meta file's.

    Raises:
        LogIncompatible: The folder is no data folder, or a newer release wrote it.
        OSError: The disk fails.
    """
    names = directory.names()
    files = [n for n in names if not (is_state_file(n) or n.endswith(TEMPORARY_SUFFIX))]
    if not {META_NAME, MANIFEST_NAME} & set(names) and not any(map(_SEGMENT_NAME.match, files)):
        raise LogIncompatible("it is no data folder: there is no meta file, manifest or segment")
    problems: list[Problem] = []
    foreign_ids = set()
    meta = _state_file(directory, names, META_NAME, decode_meta, problems)
    manifest = _state_file(directory, names, MANIFEST_NAME, decode_manifest, problems)
    stop = None
    if CLEAN_NAME in names:
        stop = _state_file(directory, names, CLEAN_NAME, decode_clean_stop, problems)
    durable = 0
    try:
        durable = read_durable(directory, names, meta)
    except LogCorrupt as exc:
        problems.append(Problem(DURABLE_NAME, str(exc)))
    wanted = cluster_id or ("" if meta is None else meta.cluster_id)
    if meta is not None and meta.cluster_id != wanted:
        problems.append(Problem(META_NAME, f"it belongs to the cluster {meta.cluster_id}"))
        foreign_ids.add(meta.cluster_id)
        meta = None
    if manifest is not None and wanted and manifest.cluster_id not in {"", wanted}:
        what = f"it belongs to the cluster {manifest.cluster_id}, the folder to {wanted}"
        problems.append(Problem(MANIFEST_NAME, what))
        foreign_ids.add(manifest.cluster_id)
        manifest = None
    unfit = "" if manifest is None else _unfit(manifest)
    if unfit:
        problems.append(Problem(MANIFEST_NAME, unfit))
        manifest = None
    indexes = _Indexes(directory, files, wanted, None if meta is None else meta.key)
    if manifest is None:
        sources = _rebuilt(directory, indexes, meta)
    else:
        sources = [_source_of(directory, s, manifest, indexes, meta) for s in manifest.segments]
    problems += [problem for source in sources if (problem := _problem_of(source)) is not None]
    problems += [
        Problem(name, f"this segment belongs to the cluster {foreign_id}")
        for name, foreign_id in indexes.foreign.items()
    ]
    foreign_ids |= set(indexes.foreign.values())
    return Survey(
        names,
        meta,
        manifest,
        stop,
        tuple(sources),
        tuple(problems),
        frozenset(foreign_ids),
        durable,
    )


def _trailing_index(directory: Directory, name: str) -> tuple[Index, int] | None:
    """Return the index at the end of a file, and the byte at which it begins; None without one."""
    size_bytes = directory.size(name)
    if size_bytes < TRAILER.size:
        return None
    length, _, _ = TRAILER.unpack(directory.read(name, size_bytes - TRAILER.size))
    data_bytes = size_bytes - TRAILER.size - length
    if data_bytes < 0:
        return None
    index = decode_footer(directory.read(name, data_bytes))
    return None if index is None else (index, data_bytes)


def serial_of(name: str) -> int:
    """Return the serial number in a segment's name; -1 if it has none."""
    match = _SEGMENT_NAME.match(name)
    return int(match[2]) if match else -1


class _Indexes:
    """Indexes of all segment files, without the files of other clusters.

    Attributes:
        files: Names of the files that may belong to the folder.
        of: Name of a file -> its index, and the byte at which the index begins.
        foreign: Name of a file of another cluster -> the id of that cluster.
    """

    def __init__(
        self, directory: Directory, files: list[str], cluster_id: str, key: FlushKey | None
    ) -> None:
        self.files: list[str] = []
        self.of: dict[str, tuple[Index, int]] = {}
        self.foreign: dict[str, str] = {}
        for name in files:
            found = _trailing_index(directory, name)
            if found is not None:
                index, _ = found
                own_start = _own_flush_start(directory, name, key)
                is_foreign = bool(cluster_id) and index.cluster_id not in {"", cluster_id}
                if own_start is not None and (is_foreign or own_start not in {0, index.base}):
                    # The folder made the file, but not this index: a torn write ends with bytes
                    # that a client sent, and these may look like an index.
                    found = None
                elif is_foreign:
                    self.foreign[name] = index.cluster_id
                    continue
            self.files.append(name)
            if found is not None:
                self.of[name] = found


def _state_file(
    directory: Directory,
    names: list[str],
    name: str,
    decode: Callable[[bytes], T],
    problems: list[Problem],
) -> T | None:
    if name not in names:
        problems.append(Problem(name, "it is missing"))
        return None
    try:
        return decode(directory.read(name))
    except LogCorrupt as exc:
        problems.append(Problem(name, str(exc)))
        return None


def _unfit(manifest: Manifest) -> str:
    """Return why a readable manifest can't be used; "" if it can."""
    segments = manifest.segments
    if not segments or segments[-1].end is not None:
        return "it lists no segment to append to"
    if [segment.end for segment in segments[:-1]] != [segment.base for segment in segments[1:]]:
        return "it has a gap"
    return ""


def _source_of(
    directory: Directory,
    segment: SegmentInfo,
    manifest: Manifest,
    indexes: _Indexes,
    meta: Meta | None,
) -> Source:
    name = segment.name
    is_here = name in indexes.files
    if segment.data_bytes is None:
        if is_here:
            return Source(
                segment, name, _written_bytes(directory, name, segment.format, meta), None
            )
        listed = {s.name for s in manifest.segments}
        for other in indexes.files:
            if other not in listed and _begins_at(directory, other, segment.base):
                return Source(
                    segment, other, _written_bytes(directory, other, segment.format, meta), None
                )
        return Source(segment, None, 0, None)
    # The file of that name first; the index of a renamed or swapped file identifies it.
    for other in sorted(indexes.of, key=lambda other: other != name):
        index, data_bytes = indexes.of[other]
        if (index.base, index.end, data_bytes) == (segment.base, segment.end, segment.data_bytes):
            return Source(segment, other, data_bytes, index)
    if not is_here:
        return Source(segment, None, 0, None)
    return Source(segment, name, min(directory.size(name), segment.data_bytes), None)


def _problem_of(source: Source) -> Problem | None:
    segment = source.segment
    if source.is_in_place:
        return None
    if source.file is None:
        reach = "on" if segment.end is None else f"to {segment.end}"
        what = f"this segment is missing, from position {segment.base} of the journal {reach}"
    elif source.file != segment.name:
        what = f"what should be in this segment is in {source.file}"
    else:
        what = "its index is damaged, or it was cut or replaced"
    return Problem(segment.name, what)


def _own_flush_start(directory: Directory, name: str, key: FlushKey | None) -> int | None:
    """Return the flush_start of a file's first batch; None if its header isn't authentic."""
    header = directory.read(name, 0, HEADER_BYTES)
    if key is None or header[PREFIX_BYTES : PREFIX_BYTES + 1] != _FORMAT or not key.made(header, 0):
        return None
    flush_start: int = HEADER.unpack_from(header)[_FLUSH_START_FIELD]
    return flush_start


def _begins_at(directory: Directory, name: str, position: int) -> bool:
    """Return whether a file begins with the flush at *position* of the journal."""
    header = directory.read(name, 0, HEADER.size)
    if len(header) < HEADER.size:
        return False
    flush_start: int = HEADER.unpack(header)[_FLUSH_START_FIELD]
    return flush_start == position


class _Candidate(NamedTuple):
    base: int
    serial: int
    name: str
    data_bytes: int
    footer: Index | None
    format: int

    @property
    def rank(self) -> tuple[int, bool, int, int]:
        """Sort key: by position; then sealed before unsealed, longer first, newer first."""
        reach = self.data_bytes if self.footer is None else self.footer.end - self.base
        return self.base, self.footer is None, -reach, -self.serial


def _rebuilt(directory: Directory, indexes: _Indexes, meta: Meta | None) -> list[Source]:
    """Return the sources that the lost manifest must have listed, derived from the files."""
    chosen: list[_Candidate] = []
    for candidate in sorted(_candidates(directory, indexes, meta), key=lambda c: c.rank):
        last = chosen[-1] if chosen else None
        if last is not None:
            reached = last.base + 1 if last.footer is None else last.footer.end
            # Covered: a second file of the same position, or a source of a compacted segment.
            if candidate.base < reached:
                continue
        chosen.append(candidate)
    sources: list[Source] = []
    if not chosen:
        return [_missing(0, None)]
    if chosen[0].base > 0:
        sources.append(_missing(0, chosen[0].base))
    for at, candidate in enumerate(chosen):
        following = chosen[at + 1].base if at + 1 < len(chosen) else None
        end = following if candidate.footer is None else candidate.footer.end
        compacted = end is not None and _is_compacted(directory, candidate, meta)
        data_bytes, readable = candidate.data_bytes, candidate.data_bytes
        if candidate.footer is None and end is not None:
            # Without an index, the position of the next segment gives the size.
            data_bytes = end - candidate.base
            # A compacted segment may have more bytes than its stretch of the journal. The lost
            # index counts as at least one missing byte.
            if compacted:
                data_bytes = max(data_bytes, readable + 1)
            else:
                readable = min(readable, data_bytes)
        segment = SegmentInfo(
            candidate.name,
            candidate.base,
            end,
            None if end is None else data_bytes,
            compacted=compacted,
            format=candidate.format,
        )
        sources.append(Source(segment, candidate.name, readable, candidate.footer))
        if end is not None and end != following:
            # A missing segment between two existing ones, or the newest one behind the last.
            sources.append(_missing(end, following))
    return sources


def _missing(base: int, end: int | None) -> Source:
    data_bytes = None if end is None else end - base
    return Source(SegmentInfo(_NAMELESS, base, end, data_bytes, compacted=False), None, 0, None)


def _candidates(directory: Directory, indexes: _Indexes, meta: Meta | None) -> Iterable[_Candidate]:
    for name in indexes.files:
        match = _SEGMENT_NAME.fullmatch(name)
        serial = int(match[2]) if match else -1
        index, data_bytes = indexes.of.get(name, (None, 0))
        if index is not None and not _is_sent(directory, name, index, data_bytes, meta):
            yield _Candidate(index.base, serial, name, data_bytes, index, index.format)
        elif match:
            format_ = _format_of(directory, name, meta)
            size_bytes = _written_bytes(directory, name, format_, meta)
            yield _Candidate(int(match[1]), serial, name, size_bytes, None, format_)


def _is_sent(
    directory: Directory, name: str, index: Index, index_at: int, meta: Meta | None
) -> bool:
    """Return whether an index lies within a torn batch: then a client sent its bytes."""
    if meta is None or meta.key is None or index.format != FORMAT:
        return False
    stretch = Stretch(name, index_at, 0, None, NODE_PARTITION, FORMAT, meta.key)
    last: Found | Gap | None = None
    for item in scan(directory, stretch):
        last = item
    if type(last) is not Gap:
        return False
    header = directory.read(name, last.start, HEADER_BYTES)
    if header[PREFIX_BYTES : PREFIX_BYTES + 1] != _FORMAT or not meta.key.made(header, 0):
        return False
    length, _ = PREFIX.unpack_from(header)
    reach: int = last.start + PREFIX_BYTES + length
    return reach > index_at


def _format_of(directory: Directory, name: str, meta: Meta | None) -> int:
    """Return the format of a segment's batches, from the meta file or its first batch."""
    if meta is not None and meta.format == 1:
        return 1
    first = _Window(directory, name, directory.size(name)).batch_at(0)
    return FORMAT if first is None else first.raw.format


class Stretch(NamedTuple):
    """Range to scan: the first `data_bytes` of a file, and the properties of its batches."""

    file: str
    data_bytes: int
    base: int  # Journal position of the first byte.
    end: int | None  # Journal position behind the last byte; None: not known.
    num_partitions: int
    format: int  # Format of the batches.
    # None: behind damage, a batch of format 2 can't be told from a forged one.
    key: FlushKey | None


class Found(NamedTuple):
    """A batch with a valid checksum. Positions in `raw` refer to `data`, the bytes of the batch."""

    start: int  # Byte in the file.
    raw: RawBatch
    data: bytes

    @property
    def end(self) -> int:
        """Byte of the file behind the batch."""
        return self.start + len(self.data)


class Gap(NamedTuple):
    """Bytes of a file that are no valid batch."""

    start: int
    end: int


def scan(directory: Directory, stretch: Stretch, start: int = 0) -> Iterator[Found | Gap]:
    """Yield all batches and gaps from byte *start* on, contiguously, in bounded memory.

    Raises:
        OSError: The disk fails.
    """
    window = _Window(directory, stretch.file, stretch.data_bytes)
    while start < stretch.data_bytes:
        found = window.batch_at(start)
        if found is None:
            found = _next(window, stretch, start + 1)
            gap_end = stretch.data_bytes if found is None else found.start
            yield Gap(start, gap_end)
            if found is None:
                return
        yield found
        start = found.end


def _written_bytes(directory: Directory, name: str, format_: int, meta: Meta | None) -> int:
    """Return the size of a segment without the zeros that were written ahead."""
    size_bytes = end = directory.size(name)
    while end > 0:
        start = max(0, end - WINDOW_BYTES)
        written = directory.read(name, start, end - start).rstrip(b"\0")
        if written:
            end = start + len(written)
            break
        end = start
    if end == size_bytes:
        return end
    # The last batch may itself end with zeros, which belong to it.
    stretch = Stretch(
        name, size_bytes, 0, None, NODE_PARTITION, format_, None if meta is None else meta.key
    )
    return max([end, *(i.end for i in scan(directory, stretch) if type(i) is Found)])


def _is_compacted(directory: Directory, candidate: _Candidate, meta: Meta | None) -> bool:
    """Return whether a segment was compacted: in all of its batches flush_start is 0."""
    key = None if meta is None else meta.key
    file, data_bytes, format_ = candidate.name, candidate.data_bytes, candidate.format
    stretch = Stretch(file, data_bytes, 0, None, NODE_PARTITION, format_, key)
    starts = (item.raw.flush_start for item in scan(directory, stretch) if type(item) is Found)
    first = next(starts, None)
    # The journal's first flush also begins at 0: then a later flush in the segment decides.
    return first == 0 and not any(starts)


class _Window:
    """Part of a file that is held in memory."""

    def __init__(self, directory: Directory, file: str, data_bytes: int) -> None:
        self._directory = directory
        self._file = file
        self._data_bytes = data_bytes
        self._start = 0
        self._data = b""

    def read(self, start: int, size_bytes: int) -> bytes:
        """Return *size_bytes* from byte *start*; fewer at the end of the data."""
        size_bytes = min(size_bytes, self._data_bytes - start)
        offset = start - self._start
        if offset < 0 or offset + size_bytes > len(self._data):
            wanted = min(max(size_bytes, WINDOW_BYTES), self._data_bytes - start)
            self._data = self._directory.read(self._file, start, wanted)
            self._start, offset = start, 0
        return self._data[offset : offset + size_bytes]

    def batch_at(self, start: int) -> Found | None:
        """Return the valid batch that begins at byte *start*; None if there is none."""
        header = self.read(start, HEADER.size)
        if len(header) < HEADER.size:
            return None
        length, _ = PREFIX.unpack_from(header)
        if not LENGTH_MIN <= length <= LENGTH_MAX:
            return None
        data = self.read(start, PREFIX_BYTES + length)
        raw = batch_at(data, 0)
        return None if raw is None else Found(start, raw, data)


def _next(window: _Window, stretch: Stretch, start: int) -> Found | None:
    """Return the first batch that begins at or behind *start*.

    As in `find_later_flush`, the header is tested first; a crc is computed only if it is authentic.
    """
    marker = bytes((stretch.format,))
    header_bytes = HEADER_BYTES_OF[stretch.format]
    while start + header_bytes <= stretch.data_bytes:
        data = window.read(start, WINDOW_BYTES)
        if len(data) < header_bytes:
            return None
        at = data.find(marker, PREFIX_BYTES)
        while at >= 0 and at - PREFIX_BYTES + header_bytes <= len(data):
            if _may_be(stretch, data, at - PREFIX_BYTES):
                found = window.batch_at(start + at - PREFIX_BYTES)
                if found is not None:
                    return found
            at = data.find(marker, at + 1)
        # The next window begins with the first header that is incomplete in this one.
        start += len(data) - header_bytes + 1
    return None


def _may_be(stretch: Stretch, data: bytes, at: int) -> bool:
    fields = HEADER.unpack_from(data, at)
    partition, flush_start = fields[_PARTITION_FIELD], fields[_FLUSH_START_FIELD]
    if partition >= stretch.num_partitions and partition != NODE_PARTITION:
        return False
    # flush_start is 0 in a compacted segment. Otherwise any position of the segment is possible:
    # if bytes were removed, a batch lies before its place.
    is_in_reach = stretch.base <= flush_start and (stretch.end is None or flush_start < stretch.end)
    return (flush_start == 0 or is_in_reach) and is_own_header(data, at, stretch.key)
