"""The step from one segment to the next."""

from coordinator.log.directory import Directory
from coordinator.log.footer import Index, encode_footer
from coordinator.log.recovery import create_segment
from coordinator.log.segments import ActiveSegment
from coordinator.log.state_files import (
    MANIFEST_NAME,
    Manifest,
    SegmentInfo,
    encode_manifest,
    write_whole,
)


def roll(
    directory: Directory, manifest: Manifest, old: ActiveSegment, end_offsets: dict[int, int]
) -> tuple[Manifest, ActiveSegment]:
    """Seal *old*, which ends with these offsets, and begin a segment behind it.

    Sealed and synced, then the new file and its name, then the manifest: a crash between any two
    of them finds either the old segment as the newest, or the new one, empty.
    """
    index = Index(old.base, old.end, end_offsets, old.positions, manifest.cluster_id)
    old.file.append(encode_footer(index))
    old.file.sync()
    name, file = create_segment(directory, old.end, manifest.next_serial)
    try:
        sealed = SegmentInfo(old.name, old.base, old.end, old.data_bytes, compacted=False)
        newest = SegmentInfo(name, old.end, None, None, compacted=False)
        manifest = manifest._replace(
            segments=(*manifest.segments[:-1], sealed, newest),
            next_serial=manifest.next_serial + 1,
        )
        write_whole(directory, MANIFEST_NAME, encode_manifest(manifest))
    except BaseException:
        file.close()
        raise
    old.file.close()
    return manifest, ActiveSegment(name, old.end, 0, {}, file)
