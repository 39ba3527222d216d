"""Reading one partition of the log back into memory, through the index of each segment."""

from array import array
from collections.abc import Iterable, Iterator

from coordinator.log.directory import Directory
from coordinator.log.errors import LogCorrupt, LogFailed
from coordinator.log.format import (
    HEADER_BYTES,
    Batch,
    RawBatch,
    end_offset_of,
    unpack_in_parts,
    unpack_items,
    unpacked_batch,
)
from coordinator.log.replay import PART_ITEMS
from coordinator.log.segments import WINDOW_BYTES, SegmentReader


class PartitionReplay:
    """Reads what is durable of one partition, through the index of each segment."""

    def __init__(
        self,
        directory: Directory,
        partition: int,
        places: Iterable[tuple[str, int, "array[int]"]],
        total_bytes: int,
        *,
        part_bytes: int,
    ) -> None:
        """Begin with the first of *places*: name, bytes of batches, and where ours begin."""
        self.total_bytes = total_bytes  # Of all partitions: the index knows no sizes.
        self.done_bytes = 0
        self.at_end = False
        self._directory = directory
        self._partition = partition
        self._places = iter(places)
        self._part_bytes = part_bytes
        self._reader: SegmentReader | None = None
        self._positions: Iterator[int] = iter(())
        self._fetched: list[tuple[RawBatch, bytes]] = []
        self.ends = {partition: 0}

    def fetch(self) -> None:
        """Read about a window's worth of batches; their checksums are right."""
        self._fetched = []
        try:
            while not self._fetched:
                if self._reader is None and not self._open_next():
                    self.at_end = True
                    return
                self._fetch_some()
        except OSError as exc:
            raise LogFailed(f"the log can't be read: {exc}") from exc

    def _open_next(self) -> bool:
        following = next(self._places, None)
        if following is None:
            return False
        name, data_bytes, positions = following
        self._reader = SegmentReader(self._directory, name, data_bytes)
        self._positions = iter(positions)
        return True

    def _fetch_some(self) -> None:
        reader = self._reader
        assert reader is not None
        before_bytes = reader.read_bytes
        for position in self._positions:
            self._fetched.append(reader.at(position))
            if reader.read_bytes - before_bytes >= WINDOW_BYTES:
                break
        else:
            self._reader = None
        self.done_bytes += reader.read_bytes - before_bytes

    def batches(self) -> Iterator[Batch]:
        """Yield what was fetched."""
        for raw, window in self._fetched:
            end = self.ends[self._partition]
            if raw.partition != self._partition or raw.base_offset < end:
                raise LogCorrupt(
                    f"the index of partition {self._partition} leads to offset {raw.base_offset} "
                    f"of partition {raw.partition}, behind offset {end}"
                )
            for batch in _parts(raw, window, self._part_bytes):
                self.ends[self._partition] = end_offset_of(batch)
                yield batch


def _parts(raw: RawBatch, window: bytes, part_bytes: int) -> Iterator[Batch]:
    packed = memoryview(window)[raw.start + HEADER_BYTES : raw.end]
    try:
        if len(packed) <= part_bytes:
            yield unpacked_batch(raw, unpack_items(bytes(packed)))
            return
        for items in unpack_in_parts(packed, PART_ITEMS):
            yield unpacked_batch(raw, items)
    except ValueError as exc:
        where = f"the entries at offset {raw.base_offset} of partition {raw.partition}"
        raise LogCorrupt(f"{where} can't be read: {exc}") from exc
