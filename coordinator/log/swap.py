"""Plans a compaction of a journal, and puts its outputs in the place of their sources.

`Journal.change_manifest` gives each step the folder and the manifest, and keeps the manifest that
it returns. The steps, in this order:

1. `announce`: the manifest that is written knows the outputs as dispensable.
2. `install`: they are renamed, and the folder synced; then the manifest that lists them is written,
   and knows the sources as dispensable.
3. `remove`, when nobody reads the sources any more; then `forget`.

A crash up to the rename of the second manifest leaves the old state: the outputs, whatever they are
called, are removed by the next start. From then on it leaves the new one, and the start removes
the sources. Nothing is ever taken for a stranger's file and moved aside.
"""

from coordinator.log.compaction import Compacted, Job
from coordinator.log.directory import Directory
from coordinator.log.journal import Journal
from coordinator.log.segments import read_footer
from coordinator.log.state_files import (
    TEMPORARY_SUFFIX,
    Manifest,
    SegmentInfo,
    segment_name,
    write_manifest,
)

_PREFIX = "compaction"


def plan(
    journal: Journal,
    number: int,
    *,
    segment_bytes: int,
    drop_before_ms: int,
    leave_free_bytes: int,
) -> Job | None:
    """Return the compaction of everything that is sealed, None if that is nothing.

    Args:
        journal: Whose segments are the sources.
        number: Of the compaction, in this run: no two have outputs of the same names.
        segment_bytes: About how large an output may be.
        drop_before_ms: Tombstones of an older timestamp are dropped.
        leave_free_bytes: Less room than this on the disk ends the compaction.
    """
    sealed = tuple(segment for segment in journal.manifest.segments if segment.end is not None)
    if not sealed:
        return None
    prefix = f"{_PREFIX}-{journal.leader_epoch}-{number}"
    partitions = journal.meta.num_partitions
    return Job(
        sealed,
        partitions,
        segment_bytes,
        drop_before_ms,
        prefix,
        leave_free_bytes,
        journal.key,
    )


class Swap:
    """One compaction's way into the journal; call the methods in their order.

    `announce` and `install` write and sync: in the thread that writes flushes, between two of
    them. A LogFailed ends the journal; an OSError, for lack of room, only the compaction.
    """

    def __init__(self, journal: Journal, job: Job, compacted: Compacted) -> None:
        self._journal = journal
        self._job = job
        self._compacted = compacted
        self._names: tuple[str, ...] = ()
        self._dispensable = frozenset(segment.name for segment in job.segments)

    def check(self) -> None:
        """Look at the outputs once more before they are trusted.

        Raises:
            LogCorrupt: One is not as long as was said, or its index is damaged.
        """
        for output in self._compacted.outputs:
            read_footer(self._journal.directory, output)

    def announce(self) -> None:
        """Let the manifest know which files will come."""
        self._journal.change_manifest(self._announce)

    def install(self) -> None:
        """Let the outputs be the log."""
        try:
            self._journal.change_manifest(self._install)
        except OSError:
            self._dispensable = frozenset(self._names)
            self.remove()
            self.forget()
            raise

    def remove(self) -> None:
        """Remove the sources, durably. Nobody may be reading them."""
        directory = self._journal.directory
        for name in sorted(self._dispensable):
            directory.remove(name)
        directory.sync()

    def forget(self) -> None:
        """Drop the sources from the manifest that is written next."""
        self._journal.change_manifest(self._forget)

    def _announce(self, directory: Directory, manifest: Manifest) -> Manifest:
        serial = manifest.next_serial
        self._names = tuple(
            segment_name(output.base, serial + number)
            for number, output in enumerate(self._compacted.outputs)
        )
        manifest = manifest._replace(
            next_serial=serial + len(self._names),
            dispensable=(*manifest.dispensable, *self._names),
        )
        write_manifest(directory, manifest)
        return manifest

    def _install(self, directory: Directory, manifest: Manifest) -> Manifest:
        manifest = replaced(manifest, self._job.segments, self._compacted, self._names)
        for output, name in zip(self._compacted.outputs, self._names, strict=True):
            # Or else it was renamed when there was no room.
            if directory.exists(output.name) or not directory.exists(name):
                directory.rename(output.name, name)
        directory.sync()
        write_manifest(directory, manifest)
        return manifest

    def _forget(self, _: Directory, manifest: Manifest) -> Manifest:
        kept = tuple(name for name in manifest.dispensable if name not in self._dispensable)
        return manifest._replace(dispensable=kept)


def replaced(
    manifest: Manifest,
    sources: tuple[SegmentInfo, ...],
    compacted: Compacted,
    names: tuple[str, ...],
) -> Manifest:
    """Return the manifest with the outputs, now called *names*, in place of the sources.

    Raises:
        ValueError: The sources aren't the manifest's first segments, or the outputs don't cover
            exactly what they do.
    """
    if manifest.segments[: len(sources)] != sources:
        raise ValueError("the sources of the compaction are not the journal's first segments")
    position: int | None = sources[0].base
    for output in compacted.outputs:
        if output.base != position:
            raise ValueError(f"a gap at position {position} of the compacted journal")
        position = output.end
    if position != sources[-1].end:
        raise ValueError("the compaction ends in another place than its sources")
    outputs = [o._replace(name=n) for o, n in zip(compacted.outputs, names, strict=True)]
    below = dict(manifest.compacted_below)
    for partition, offset in compacted.dropped_below.items():
        below[partition] = max(offset, below.get(partition, 0))
    kept = [name for name in manifest.dispensable if name not in names]
    return manifest._replace(
        segments=(*outputs, *manifest.segments[len(sources) :]),
        compacted_below=below,
        dispensable=(*kept, *(source.name for source in sources)),
    )


def remove_outputs(directory: Directory) -> None:
    """Remove what a compaction that came to nothing has left."""
    for name in directory.names():
        if name.startswith(_PREFIX) and name.endswith(TEMPORARY_SUFFIX):
            directory.remove(name)
