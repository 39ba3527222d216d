"""Plans a compaction of a journal, and replaces the sources by the outputs.

`Journal.change_manifest` calls each step with the folder and the manifest, and keeps the manifest
that the step returns. The steps, in this order:

1. `announce`: write a manifest that lists the outputs as dispensable.
2. `install`: rename the outputs and sync the folder; then write a manifest that has the outputs as
   its segments and lists the sources as dispensable.
3. `remove`, when the sources aren't read any more; then `forget`.

After a crash before the second manifest is in place, the old state holds: the next start removes
the outputs, under their temporary or final names. After a later crash the new state holds: the
start removes the sources. In no case is one of these files taken for a foreign one and moved
aside.
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
    """Return the compaction of all sealed segments; None if there are none.

    Args:
        journal: The journal with the sources.
        number: Number of the compaction, unique in this run, for the names of the outputs.
        segment_bytes: Approximate limit of an output's size.
        drop_before_ms: Tombstones with an older timestamp are dropped.
        leave_free_bytes: The compaction fails when less than this is free on the disk.
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
    """Installation of one compaction in the journal; call the methods in their order.

    `announce` and `install` write and sync; call them in the thread that writes flushes, between
    two flushes. A LogFailed ends the journal; an OSError, for lack of room, only the compaction.
    """

    def __init__(self, journal: Journal, job: Job, compacted: Compacted) -> None:
        self._journal = journal
        self._job = job
        self._compacted = compacted
        self._names: tuple[str, ...] = ()
        self._dispensable = frozenset(segment.name for segment in job.segments)

    def check(self) -> None:
        """Check size and index of each output before it is installed.

        Raises:
            LogCorrupt: An output has another size than reported, or its index is damaged.
        """
        for output in self._compacted.outputs:
            read_footer(self._journal.directory, output)

    def announce(self) -> None:
        """List the outputs' final names in the manifest as dispensable."""
        self._journal.change_manifest(self._announce)

    def install(self) -> None:
        """Replace the sources by the outputs; after an OSError, remove the outputs again."""
        try:
            self._journal.change_manifest(self._install)
        except OSError:
            self._dispensable = frozenset(self._names)
            self.remove()
            self.forget()
            raise

    def remove(self) -> None:
        """Remove the sources durably. No read may use them any more."""
        directory = self._journal.directory
        for name in sorted(self._dispensable):
            directory.remove(name)
        directory.sync()

    def forget(self) -> None:
        """Drop the sources from the manifest in memory; the next change of it writes that."""
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
            # A first try, which found the disk full, may have renamed the output already.
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
    """Return the manifest with the outputs, renamed to *names*, in place of the sources.

    Raises:
        ValueError: The sources aren't the manifest's first segments, or the outputs don't cover
            exactly the same stretch of the journal.
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
    """Remove the temporary files of a compaction that failed."""
    for name in directory.names():
        if name.startswith(_PREFIX) and name.endswith(TEMPORARY_SUFFIX):
            directory.remove(name)
