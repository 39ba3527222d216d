"""Makes a cluster from the data folder of a single node.

The folder is compacted, and each journal begins with a snapshot of its part of the folder:
offsets, generations and positions in the streams of changes don't change. The folder is marked, so
that no node serves it beside the cluster. Last, `/cluster/id`, with the folder's own id, makes the
cluster valid. A move interrupted before that begins again, and first removes its znodes.
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
    """Result of a move: the cluster id, and the total size of all snapshots in bytes."""

    cluster_id: str
    size_bytes: int


def was_moved(place: Place, directory: Directory, cluster_id: str) -> bool:
    """Return whether the folder was moved into the cluster at *place*.

    Raises:
        ClusterRefused: *place* holds another cluster, or the folder has no mark of the move.
    """
    there = place.cluster_id()
    if there is None:
        return False
    if there == cluster_id and directory.exists(MOVED_NAME):
        return True
    raise ClusterRefused(f"{place} holds the cluster {there} already")


def may_begin(place: Place, directory: Directory, cluster_id: str) -> bool:
    """Return whether the folder is still to be moved; False if it was moved before.

    The mark of an interrupted move is removed.

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
    """Move the log of *journal*, which only this process has open, into a new cluster.

    Args:
        journal: Journal of the folder, just opened; the caller closes it.
        visit: Session in the chroot.
        place: The chroot, which holds no cluster.
        journals: Number of journals of the cluster.
        drop_before_ms: Tombstones with an older timestamp are dropped.
        segment_bytes: Approximate size of a segment of the folder.
        state_max_bytes: Limit for the total size of all snapshots.
        new_id: Returns random ids of 32 hex digits.

    Raises:
        ClusterRefused: The snapshots are too large, or another process has made a cluster at
            *place* in the meantime.
        EnsembleUnreachable: The connection broke: begin again.
        LogCorrupt: The folder is damaged.
        LogFailed: The disk failed.
    """
    meta = journal.meta
    compact_stopped(journal, segment_bytes=segment_bytes, drop_before_ms=drop_before_ms)
    # Keep the secret: salts for unknown users are derived from it, and a salt that changes would
    # show that its user doesn't exist.
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
    """Write the snapshot of journal *number*."""
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
    """Yield the batches of a journal as a cluster stores them: with flush_start and check 0."""
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
