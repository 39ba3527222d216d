"""Makes a cluster of what one node's data folder holds.

The folder is compacted, and each journal begins with a snapshot of its share of it: offsets,
generations and positions in the streams of changes stay what they are. The folder is marked, so
that nobody serves it beside the cluster, and then `/cluster/id`, with the folder's own id, makes
it one. Interrupted before that it begins anew, in ZooKeeper from nothing.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from coordinator.cluster.engine import (
    NO_LEADER,
    Code,
    Install,
    Leader,
    Reply,
    SetLeader,
    Snapshot,
)
from coordinator.cluster.errors import ClusterRefused, EnsembleUnreachable
from coordinator.cluster.founding import Place
from coordinator.cluster.layout import Layout
from coordinator.cluster.snapshots import write_chunks
from coordinator.cluster.zookeeper import Visit
from coordinator.log.compaction import batches_of
from coordinator.log.directory import Directory
from coordinator.log.errors import LogFailed
from coordinator.log.format import NODE_PARTITION, encode_batch
from coordinator.log.journal import Journal
from coordinator.log.offline.compact import compact_stopped
from coordinator.log.state_files import MOVED_NAME, write_whole


class Moved(NamedTuple):
    """What a folder came to in ZooKeeper: bytes of all snapshots together."""

    cluster_id: str
    size_bytes: int


def was_moved(place: Place, directory: Directory, cluster_id: str) -> bool:
    """Return whether the folder is the cluster that is there.

    Raises:
        ClusterRefused: There is another cluster, or one that is served beside the folder.
    """
    there = place.cluster_id()
    if there is None:
        return False
    if there == cluster_id and directory.exists(MOVED_NAME):
        return True
    raise ClusterRefused(f"{place} holds the cluster {there} already")


def may_begin(place: Place, directory: Directory, cluster_id: str) -> bool:
    """Return whether the folder is still to be moved; False if that was done before.

    The mark of a move that was interrupted is taken away.

    Raises:
        ClusterRefused: As `was_moved`.
    """
    if was_moved(place, directory, cluster_id):
        return False
    if directory.exists(MOVED_NAME):
        directory.remove(MOVED_NAME)
        directory.sync()
    return True


def move_in(
    journal: Journal,
    visit: Visit,
    place: Place,
    *,
    journals: int,
    drop_before_ms: int,
    segment_bytes: int,
    state_max_bytes: int,
    new_id: Callable[[], str],
) -> Moved:
    """Move the log of *journal*, which this process alone has open, into a new cluster.

    Args:
        journal: Of the folder, just opened; the caller closes it.
        visit: In the chroot.
        place: What is there: no cluster.
        journals: How many the cluster has.
        drop_before_ms: Tombstones of an older timestamp are dropped.
        segment_bytes: About how large a segment of the folder is.
        state_max_bytes: So much all snapshots may take.
        new_id: Makes random ids of 32 hex digits.

    Raises:
        ClusterRefused: It doesn't fit, or somebody else has made a cluster there meanwhile.
        EnsembleUnreachable: The connection broke: begin anew.
        LogCorrupt: The folder is damaged.
        LogFailed: The disk failed.
    """
    meta = journal.meta
    compact_stopped(journal, segment_bytes=segment_bytes, drop_before_ms=drop_before_ms)
    # Users who are none see their salts for ever: one that changes gives them away.
    layout = Layout(meta.num_partitions, journals)
    version = place.begin_anew(layout, journal.key.secret)
    size_bytes = 0
    for number in range(journals):
        snapshot = _write(journal, visit, layout, number, new_id())
        size_bytes += snapshot.size_bytes
        if size_bytes > state_max_bytes:
            raise ClusterRefused(
                f"the folder comes to more than {state_max_bytes} bytes in ZooKeeper: raise "
                "cluster.state.max.bytes, and the heap of its servers"
            )
        leader = Leader(journal.leader_epoch, NO_LEADER, "", 0, new_id())
        _check(visit.ask(Install(number, 0, snapshot, 0)), place)
        _check(visit.ask(SetLeader(number, 0, leader, layout.partitions_of(number), ())), place)
    write_whole(journal.directory, MOVED_NAME, _mark(meta.cluster_id, place))
    there = place.finish(meta.cluster_id, version)
    if there != meta.cluster_id:
        raise ClusterRefused(f"{place} holds the cluster {there}, which somebody else has made")
    return Moved(there, size_bytes)


def _write(journal: Journal, visit: Visit, layout: Layout, number: int, name: str) -> Snapshot:
    """Write what lies in journal *number*."""
    try:
        written = visit.run(write_chunks(number, name, _batches(journal, layout, number)))
    except LogFailed as exc:
        raise EnsembleUnreachable(str(exc)) from exc
    partitions = (*range(layout.num_partitions), NODE_PARTITION)
    ends = {p: journal.end_offset(p) for p in partitions if layout.journal_of(p) == number}
    known = journal.compacted_below.items()
    below = {p: offset for p, offset in known if layout.journal_of(p) == number}
    return replace(written, ends={p: end for p, end in ends.items() if end}, compacted_below=below)


def _batches(journal: Journal, layout: Layout, number: int) -> Iterator[bytes]:
    """Yield the batches of a journal as a cluster keeps them: not found by where they were."""
    # Just compacted: there is nothing in the newest segment.
    for segment in journal.manifest.segments[:-1]:
        for raw, packed in batches_of(journal.directory, segment, layout.num_partitions):
            if layout.journal_of(raw.partition) == number:
                fields = (raw.partition, raw.leader_epoch, raw.base_offset, 0, raw.timestamp_ms, 0)
                yield b"".join(encode_batch(fields, packed))


def _check(reply: Reply, place: Place) -> None:
    if reply.code is Code.LOST:
        raise EnsembleUnreachable("the connection to ZooKeeper was lost")
    if reply.code is not Code.OK:
        raise ClusterRefused(f"{place} changes while we write it: {reply.code.name}")


def _mark(cluster_id: str, place: Place) -> bytes:
    return json.dumps({"cluster_id": cluster_id, "place": str(place)}).encode()
