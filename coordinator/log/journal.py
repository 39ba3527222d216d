"""The journal: batches of all partitions in one sequence of segments, one fsync per flush.

Thread safety
=============

`append`, `take_flush` and `end_offset` belong to one thread, the event loop; `write_flush` runs
in a worker thread while the loop appends to the next flush. No state is changed by both:

* `append` and `take_flush` own the batches that are not yet on disk (`_open`, `_ends`, `_taken`).
* A `Flush` is handed over and then belongs to the worker.
* `write_flush` owns the files and the durable ends, and replaces the manifest as a whole.
  `change_manifest` replaces it, too, and therefore runs in the same worker.
* `read` and the sizes read durable data only. Each takes its snapshot of the positions at once,
  and may run in any thread. No file is removed while a read may need it.
"""

from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Final, TypeVar

import msgpack

from coordinator.log.directory import Directory, File
from coordinator.log.errors import (
    NO_ROOM,
    BatchTooLarge,
    FolderLost,
    LogFailed,
    LogRefused,
    SyncFailed,
)
from coordinator.log.format import (
    BATCH_BYTES_MAX,
    FORMAT,
    HEADER_BYTES,
    NODE_PARTITION,
    PARTITIONS_MAX,
    Batch,
    Entry,
    Flush,
    FlushKey,
    Index,
    OpenFlush,
    encode_footer,
    numbered,
)
from coordinator.log.recovery import (
    Expected,
    RecoveryEvent,
    create_segment,
    free_bytes,
    lacks_ballast,
    open_folder,
    take_ballast,
)
from coordinator.log.replay import IndexedSegment, JournalReplay, PartitionReplay, read_from
from coordinator.log.segments import ActiveSegment, read_footer
from coordinator.log.state_files import (
    BALLAST_NAME,
    CleanStop,
    Manifest,
    Meta,
    SegmentInfo,
    data_bytes,
    sealed_sizes,
    write_clean_stop,
    write_manifest,
)

T = TypeVar("T")

# Bytes zeroed ahead at a time, while a flush waits.
ZEROS_BYTES: Final = 1024 * 1024
SEGMENT_BYTES_MIN: Final = 64
# Upper bound of the segment size. The index has 32-bit positions; the last flush of a segment may
# exceed the size, and a compaction may write up to twice the size.
SEGMENT_BYTES_MAX: Final = 1024 * 1024 * 1024


class Readers:
    """The current reads, in any thread, whose files must not be removed.

    A read registers before it looks at the manifest. Therefore `now`, called after the manifest
    was replaced, returns every read that may still need an old file.
    """

    def __init__(self) -> None:
        # A set, because each of its methods is atomic: no lock is needed.
        self._reading: set[int] = set()
        self._numbers = count()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Register a read; a generator stays registered until it ends or is closed."""
        number = next(self._numbers)
        self._reading.add(number)
        try:
            yield
        finally:
            self._reading.discard(number)

    def now(self) -> frozenset[int]:
        """Return the numbers of the current reads."""
        return frozenset(self._reading.copy())

    def any_left(self, of: frozenset[int]) -> bool:
        """Return whether at least one read of *of* is still running."""
        return not of.isdisjoint(self._reading.copy())


class Journal:
    """The log of one data folder. Opening recovers it; `open_folder` lists the refusals.

    Attributes:
        meta: Cluster id, node id, number of partitions; the leader epoch is already raised.
        recovery_events: Findings and changes of the recovery, as (name, fields), for logging.
        directory: The data folder.
        readers: Current reads of sealed segments, which must not be removed.
        live_share: Estimated live share, 0 to 1, of the data that isn't compacted yet.
        used_ballast: Whether the disk was full and the ballast was given up.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        num_partitions: int,
        segment_bytes: int,
        node_id: int,
        new_cluster_id: Callable[[], str],
        new_secret: Callable[[], bytes],
        leader_epoch_at_least: int = 0,
        cluster_id: str = "",
        zeros_bytes: int = ZEROS_BYTES,
    ) -> None:
        """Lock, check, recover and open the folder.

        Args:
            directory: The data folder.
            num_partitions: Offsets partitions; must be the number that the folder was made with.
            segment_bytes: A segment is sealed when the next flush would exceed this size.
            node_id: Must be the id that the folder was made with.
            new_cluster_id: Called once, at the first start.
            new_secret: Called at the first start, or when a folder of format 1 is opened; returns
                16 random bytes.
            leader_epoch_at_least: Lower bound from the clock or an operator.
            cluster_id: Must be the folder's; "" takes any.
            zeros_bytes: Bytes of the newest segment that are zeroed at a time for later flushes.

        Raises:
            LogRefused: The folder can't be served; its files were not changed.
            LogFailed: The disk failed.
            ValueError: An argument is out of its bounds.
        """
        if not 1 <= num_partitions <= PARTITIONS_MAX:
            message = f"num_partitions must be 1 to {PARTITIONS_MAX}, not {num_partitions}"
            raise ValueError(message)
        if not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX:
            bounds = f"{SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
            raise ValueError(f"segment_bytes must be {bounds}, not {segment_bytes}")
        self.directory = directory
        self.readers = Readers()
        self.live_share = 1.0
        self.used_ballast = False
        self._segment_bytes = segment_bytes
        self._zeros_bytes = zeros_bytes
        self._failure: BaseException | None = None
        self._closed = False
        expected = Expected(
            num_partitions, node_id, new_cluster_id, new_secret, leader_epoch_at_least, cluster_id
        )
        try:
            directory.lock()
            opened = open_folder(directory, expected)
        except LogRefused:
            directory.undo()
            raise
        except BaseException as exc:
            directory.unlock()
            if isinstance(exc, OSError):
                raise LogFailed(f"the data folder can't be opened: {exc}") from exc
            raise
        self.meta: Meta = opened.meta
        self.recovery_events: list[RecoveryEvent] = opened.events
        self._manifest: Manifest = opened.manifest
        self._active: ActiveSegment = opened.active
        self._durable = opened.durable
        self._durable_ends = opened.end_offsets
        self._ends = dict(opened.end_offsets)
        self._taken, self._taken_base = opened.active.end, opened.active.base
        self._roll_wanted = False
        self._open = self._next_flush()
        # Sealed segment -> its end offsets, so that `read` opens no index without need.
        self._sealed_ends: dict[str, dict[int, int]] = {}
        # One packer for all batches: making one costs more than packing an ordinary commit.
        self._pack = msgpack.Packer(autoreset=True).pack
        if self._manifest.segments[-1].format != FORMAT:
            try:
                self._roll()
            except OSError as exc:
                self.close(clean=False)
                raise LogFailed(f"the data folder can't be opened: {exc}") from exc

    @property
    def key(self) -> FlushKey:
        """Secret that authenticates the headers of this folder's batches."""
        assert self.meta.key is not None
        return self.meta.key

    @property
    def leader_epoch(self) -> int:
        """Leader epoch of every batch of this run."""
        return self.meta.leader_epoch

    @property
    def compacted_below(self) -> dict[int, int]:
        """Partition -> offset below which a stream of changes can't start."""
        return dict(self._manifest.compacted_below)

    @property
    def open_bytes(self) -> int:
        """Bytes of the batches that were appended and not yet taken by `take_flush`."""
        return self._open.size_bytes

    @property
    def size_bytes(self) -> int:
        """Size of the durable batches in all segments."""
        return data_bytes(self._manifest.segments) + self._active.data_bytes

    @property
    def live_bytes(self) -> int:
        """Estimate of the bytes that a compaction would keep; all, before the first one."""
        clean_bytes, dirty_bytes = sealed_sizes(self._manifest.segments)
        return clean_bytes + int(self.live_share * (dirty_bytes + self._active.data_bytes))

    @property
    def manifest(self) -> Manifest:
        """List of the segments; replaced as a whole, never changed in place."""
        return self._manifest

    def end_offset(self, partition: int) -> int:
        """Return the offset of the partition's next entry."""
        return self._ends.get(partition, 0)

    def load(self) -> JournalReplay:
        """Return one pass over the durable batches, in the order of the journal."""
        newest_bytes = self._active.data_bytes
        return JournalReplay(
            self.directory,
            self._manifest.segments,
            newest_bytes,
            self.meta.num_partitions,
            self._read_index,
        )

    def load_partition(self, partition: int) -> PartitionReplay:
        """Return one pass over the durable batches of one partition."""
        segments = self._segments_with(partition, 0)
        return PartitionReplay(self.directory, partition, segments, self.size_bytes)

    def append(self, partition: int, entries: Sequence[Entry], timestamp_ms: int) -> int:
        """Add one batch to the open flush, in memory only.

        Args:
            partition: An offsets partition or `NODE_PARTITION`.
            entries: At least one; a crash keeps all of them or none.
            timestamp_ms: Wall clock, for retention.

        Returns:
            The partition's end offset with this batch: durable once a flush's `ends` reach it.

        Raises:
            BatchTooLarge: The batch is over `BATCH_BYTES_MAX`; the journal is unchanged.
            LogFailed: The log failed earlier, or is closed.
        """
        items, num_keys = numbered(entries)
        return self.append_packed(partition, num_keys, self._pack(items), timestamp_ms)

    def append_packed(self, partition: int, count: int, packed: bytes, timestamp_ms: int) -> int:
        """Do as `append`, with the entries of *count* keys packed as in a batch."""
        if self._failure is not None:
            raise LogFailed("the log failed earlier") from self._failure
        if not count:
            raise ValueError("a batch needs an entry")
        size_bytes = HEADER_BYTES + len(packed)
        if size_bytes > BATCH_BYTES_MAX:
            raise BatchTooLarge(f"a batch of {size_bytes} bytes is over {BATCH_BYTES_MAX}")
        base_offset = self._ends.get(partition)
        if base_offset is None:
            if not (0 <= partition < self.meta.num_partitions or partition == NODE_PARTITION):
                raise ValueError(f"partition {partition} of {self.meta.num_partitions}")
            base_offset = 0
        self._open.add(partition, base_offset, timestamp_ms, packed)
        self._ends[partition] = end_offset = base_offset + count
        return end_offset

    def want_roll(self) -> int:
        """Let the next flush seal the segment, if it has data; return the position of its end."""
        self._roll_wanted = self._taken > self._taken_base
        return self._taken

    def take_flush(self) -> Flush | None:
        """Return the batches appended since the last call; None if there is nothing to do.

        A flush may be empty if a roll was requested. Every flush must be written, in order.
        """
        roll_wanted, self._roll_wanted = self._roll_wanted, False
        taken = self._open
        if not taken.batches and not roll_wanted:
            return None
        start, data = taken.start, taken.data()
        ends = {partition: self._ends[partition] for partition, _ in taken.batches}
        used = start - self._taken_base
        rolls = roll_wanted or (used > 0 and used + len(data) > self._segment_bytes)
        if rolls:
            self._taken_base = start
        self._taken = start + len(data)
        self._open = self._next_flush()
        return Flush(start, data, rolls, ends, taken.batches)

    def _next_flush(self) -> OpenFlush:
        return OpenFlush(self._taken, self.meta.leader_epoch, self.key)

    def write_flush(self, flush: Flush) -> None:
        """Write and sync *flush*: durable when this returns. Blocks, so not for the event loop.

        Raises:
            LogFailed: A write or fsync failed, now or earlier. The state on disk is unknown. No
                batch of this or a later flush may be acknowledged, and the process must end.
        """
        if self._failure is not None:
            raise LogFailed("the log failed earlier") from self._failure
        if flush.start != self._active.end:
            raise RuntimeError(f"flush of position {flush.start} written at {self._active.end}")
        if flush.rolls:
            self.check_ours()  # As in `change_manifest`.
        try:
            if flush.rolls:
                self._roll()
            self._write(flush.data)
        except BaseException as exc:
            # The kernel may have dropped the dirty pages: a second fsync can succeed without them.
            self._failure = exc
            if isinstance(exc, OSError):
                raise LogFailed(f"a write or fsync of the log failed: {exc}") from exc
            raise
        self._note_durable(flush)

    def check_ours(self) -> None:
        """Check that this process still has the lock. Call it after a sync, before acknowledging.

        Another process opens a folder by locking it first and reading it afterwards. If this
        check finds our own lock, any such process will read all that was synced before the check:
        it may be acknowledged. A check before the sync would prove nothing.

        Raises:
            LogFailed: The lock is lost, or two checks failed. No batch may be acknowledged any
                more; the process must end.
        """
        if self._failure is not None:
            return
        # The second try is for a file system that fails for a moment. No sleep between the tries:
        # the event loop can't wait.
        for _ in range(2):
            try:
                if self.directory.is_ours():
                    return
                lost = "was removed or replaced"
            except OSError as exc:
                lost = f"can't be seen ({exc})"
        self._failure = FolderLost(
            f"the lock file of the data folder {lost}: another process may have opened the folder"
        )
        raise self._failure

    def read(
        self, partition: int, from_offset: int = 0, *, max_bytes: int | None = None
    ) -> Generator[Batch, None, None]:
        """Yield the durable batches of one partition from the one that holds *from_offset*.

        The first batch may begin below *from_offset*. Sealed segments are read through their
        index. With *max_bytes*, the generator ends after the batch with which that many bytes
        were read from disk, batches of other partitions in between included; at least one batch
        is yielded, if there is one.

        Raises:
            LogCorrupt: Damage.
            LogFailed: A file can't be read.
        """
        segments = self._segments_with(partition, from_offset)
        return read_from(self.directory, segments, from_offset, max_bytes)

    def change_manifest(self, change: Callable[[Directory, Manifest], Manifest]) -> None:
        """Replace the manifest by the one that *change* has written and returns.

        Call it in the thread of `write_flush`, between two flushes. *change* may change sealed
        segments only, and is called again, after the ballast was given up, if the disk is full.

        Raises:
            OSError: The disk was full both times; the manifest is unchanged.
            LogFailed: As for `write_flush`.
        """
        if self._failure is not None:
            raise LogFailed("the log failed earlier") from self._failure
        self.check_ours()  # The manifest of another process's log must not be replaced.
        try:
            self._manifest = self._in_room(partial(change, self.directory, self._manifest))
        except OSError as exc:
            if exc.errno in NO_ROOM and not isinstance(exc, SyncFailed):
                raise
            self._failure = exc
            raise LogFailed(f"a write or fsync of the manifest failed: {exc}") from exc
        for name in self._sealed_ends.copy().keys() - {s.name for s in self._manifest.segments}:
            self._sealed_ends.pop(name, None)

    def lacks_ballast(self) -> bool:
        """Return whether the ballast is incomplete and there is room for it."""
        return self._failure is None and lacks_ballast(self.directory)

    def take_ballast(self) -> None:
        """Write the ballast again, the reserve for a start on a full disk.

        Call it in the thread of `write_flush`.

        Raises:
            LogFailed: As for `write_flush`.
        """
        if self._failure is not None:
            return
        self.check_ours()
        try:
            take_ballast(self.directory)
        except OSError as exc:
            self._failure = exc
            raise LogFailed(f"a write or fsync of the ballast failed: {exc}") from exc

    def close(self, *, clean: bool) -> None:
        """Close the files and release the lock; idempotent.

        Args:
            clean: Write the marker of a clean stop; all flushes must have been written. After a
                failure of the log no marker is written in any case.

        Raises:
            RuntimeError: *clean* is set, and an appended batch was never written.
            LogFailed: The marker can't be written; the files are closed all the same.
        """
        if self._closed:
            return
        if (
            clean
            and self._failure is None
            and (self._open.batches or self._taken != self._active.end)
        ):
            raise RuntimeError("a clean stop with batches that were never written")
        self._closed = True
        try:
            if clean and self._failure is None:
                self.check_ours()
                self._active.file.truncate(self._active.data_bytes)
                stop = CleanStop(self._active.name, self._active.end)
                write_clean_stop(self.directory, stop)
        except OSError as exc:
            raise LogFailed(f"the marker of a clean stop can't be written: {exc}") from exc
        finally:
            if self._failure is None:
                self._failure = ValueError("the log is closed")
            self._durable.close()
            self._active.file.close()
            self.directory.unlock()

    def _write(self, data: bytes) -> None:
        """Write and sync *data* behind the batches.

        If the disk is full, all of *data* is written again in the same place. This is safe: none
        of it was acknowledged, and a crash leaves a torn tail or all of it. `write_synced` doesn't
        tell whether its write or its sync found no room; a failed sync may have lost bytes of
        *data* only, as everything before was on disk, and these are written again.
        """
        self._zero_ahead(len(data))
        active = self._active
        self._in_room(partial(active.file.write_synced, data, active.data_bytes))

    def _in_room(self, step: Callable[[], T]) -> T:
        """Call *step*; if the disk is full, remove the ballast and call it again.

        *step* must be repeatable after it failed for lack of room, unless a sync failed.
        """
        try:
            return step()
        except OSError as exc:
            if exc.errno not in NO_ROOM or isinstance(exc, SyncFailed):
                raise
        self.directory.remove(BALLAST_NAME)
        self.directory.sync()
        self.used_ballast = True
        return step()

    def _zero_ahead(self, flush_bytes: int) -> None:
        """Write and sync zeros for this flush and later ones, unless there are enough.

        A flush that overwrites zeros needs no new blocks and doesn't change the file's size, so
        its sync writes data only, no metadata.
        """
        active = self._active
        end_bytes = active.data_bytes + flush_bytes
        if end_bytes <= active.zeroed_bytes or not active.is_zeroed:
            return
        # At most a 64th of the free space: the zeros must not fill the disk.
        ahead_bytes = min(self._zeros_bytes, free_bytes(self.directory) // 64)
        upto_bytes = min(end_bytes + ahead_bytes, self._segment_bytes)
        if upto_bytes <= end_bytes:
            return
        start_bytes = max(active.data_bytes, active.zeroed_bytes)
        try:
            active.file.write_synced(bytes(upto_bytes - start_bytes), start_bytes)
        except OSError as exc:
            if exc.errno not in NO_ROOM or isinstance(exc, SyncFailed):
                raise
            # Free the blocks again, and continue without zeros.
            active.file.truncate(start_bytes)
            active.is_zeroed = False
        else:
            active.zeroed_bytes = upto_bytes

    def _note_durable(self, flush: Flush) -> None:
        active = self._active
        offset = flush.start - active.base
        end = flush.start + len(flush.data)
        # In this order: a reader in another thread reads the positions first, and so finds none
        # that lies beyond `data_bytes`.
        active.end = end
        for partition, position in flush.batches:
            positions = active.positions.get(partition)
            if positions is None:
                positions = active.positions[partition] = array("I")
            positions.append(offset + position)
        self._durable_ends.update(flush.ends)
        self._durable.put(end)

    def _roll(self) -> None:
        """Seal the active segment and begin a new one.

        The order is: seal and sync the old file, create the new file and sync its name, write the
        manifest. After a crash between any two steps the newest segment is the old one, or the
        new one, empty.
        """
        old, manifest, ends = self._active, self._manifest, dict(self._durable_ends)
        info = manifest.segments[-1]
        index = Index(old.base, old.end, ends, old.positions, manifest.cluster_id, info.format)

        def seal_and_create() -> tuple[str, File]:
            # Zeros that are left would follow the index, which must be the end of the file.
            old.file.truncate(old.data_bytes)
            old.file.write(encode_footer(index), old.data_bytes)
            old.file.sync()
            return create_segment(self.directory, old.end, manifest.next_serial)

        name, file = self._in_room(seal_and_create)
        try:
            sealed = info._replace(end=old.end, data_bytes=old.data_bytes)
            newest = SegmentInfo(name, old.end, None, None, compacted=False)
            manifest = manifest._replace(
                segments=(*manifest.segments[:-1], sealed, newest),
                next_serial=manifest.next_serial + 1,
            )
            self._in_room(partial(write_manifest, self.directory, manifest))
        except BaseException:
            file.close()
            raise
        old.file.close()
        self._sealed_ends[old.name] = ends
        # In this order: a reader that finds the new segment also finds the old one sealed.
        self._manifest = manifest
        self._active = ActiveSegment(name, old.end, old.end, {}, file)

    def _segments_with(self, partition: int, from_offset: int) -> Iterator[IndexedSegment]:
        """Yield the segments that have batches of *partition* at or behind *from_offset*."""
        with self.readers.reading():
            # Read the newest segment before the manifest: if it is sealed in between, the manifest
            # lists it, too, and the loop skips it by its name.
            active = self._active
            manifest = self._manifest
            newest = active.positions.get(partition, array("I"))[:]
            newest_bytes = active.data_bytes
            for segment in manifest.segments:
                if segment.data_bytes is None or segment.name == active.name:
                    continue
                ends = self._sealed_ends.get(segment.name)
                if ends is not None and ends.get(partition, 0) <= from_offset:
                    continue
                index = self._read_index(segment)
                positions = index.positions.get(partition)
                if positions and index.end_offsets[partition] > from_offset:
                    yield IndexedSegment(segment.name, segment.data_bytes, positions)
            if newest:
                yield IndexedSegment(active.name, newest_bytes, newest)

    def _read_index(self, segment: SegmentInfo) -> Index:
        index = read_footer(self.directory, segment)
        self._sealed_ends[segment.name] = index.end_offsets
        return index
