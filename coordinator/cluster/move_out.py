"""Makes a data folder from a cluster: the way back to a single node.

First every journal is frozen, in the znode `leader`: its leader is fenced, and no node claims it.
Reads in the same session after that return the journals' final contents. The folder gets them as
one log, in the state after a compaction: offsets, generations and positions in the streams of
changes don't change, and the folder's epoch is higher than that of any leader.

`thaw` undoes the freezing, so that nodes can lead again. It can't know whether the folder was
served since; making sure that it wasn't is the caller's task.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from coordinator.cluster.engine import NO_LEADER, Code, Leader, ReadLeader, Reply, SetLeader
from coordinator.cluster.errors import ClusterRefused, EnsembleUnreachable
from coordinator.cluster.founding import Place
from coordinator.cluster.layout import Layout
from coordinator.cluster.snapshots import Fold, Source, read_all
from coordinator.cluster.zookeeper import Visit
from coordinator.log.directory import Directory
from coordinator.log.errors import LogError, LogFailed
from coordinator.log.format import FORMAT, FlushKey
from coordinator.log.offline.make import NewFolder, check_is_new
from coordinator.log.state_files import Meta


class MovedOut(NamedTuple):
    """Result of an export: the size of the written batches in bytes, and the folder's epoch."""

    cluster_id: str
    size_bytes: int
    leader_epoch: int


def move_out(
    visit: Visit,
    place: Place,
    directory: Directory,
    *,
    layout: Layout,
    node_id: int,
    segment_bytes: int,
    new_id: Callable[[], str],
) -> MovedOut:
    """Freeze a cluster, and write its contents into an empty folder.

    An interrupted export can be repeated: the cluster stays frozen.

    Args:
        visit: Session in the chroot.
        place: The chroot.
        directory: The folder, which only this process has open.
        layout: Layout of the cluster.
        node_id: Id of the node that will serve the folder.
        segment_bytes: Approximate size of a segment.
        new_id: Returns random ids of 32 hex digits.

    Raises:
        ClusterRefused: There is no cluster with this layout, or it can't be written.
        EnsembleUnreachable: The connection broke.
        LogRefused: The folder isn't empty. Nothing was changed.
        LogCorrupt: A journal is damaged.
        OSError: The disk fails.
    """
    cluster_id = place.cluster_id()
    if cluster_id is None:
        raise ClusterRefused(f"{place} holds no cluster")
    place.check_layout(layout)
    key = FlushKey(place.secret())
    check_is_new(directory)
    journals = range(layout.journals)
    epochs = [_set_frozen(visit, place, layout, n, new_id(), is_frozen=True) for n in journals]
    epoch = max(epochs)
    meta = Meta(FORMAT, cluster_id, node_id, layout.num_partitions, epoch, key)
    folder = NewFolder(directory, meta, segment_bytes=segment_bytes)
    try:
        size_bytes = _write(visit, journals, key, folder)
    except BaseException:
        folder.undo()
        raise
    return MovedOut(cluster_id, size_bytes, epoch)


def thaw(visit: Visit, place: Place, *, layout: Layout, new_id: Callable[[], str]) -> None:
    """Unfreeze a cluster, so that nodes can claim its journals again.

    An interrupted call can be repeated: journals that aren't frozen don't change.

    Raises:
        ClusterRefused: The cluster can't be written.
        EnsembleUnreachable: The connection broke.
    """
    for number in range(layout.journals):
        _set_frozen(visit, place, layout, number, new_id(), is_frozen=False)


def _set_frozen(
    visit: Visit, place: Place, layout: Layout, number: int, claim: str, *, is_frozen: bool
) -> int:
    """Freeze a journal, or unfreeze it; return its new epoch."""
    while True:
        read = visit.ask(ReadLeader(number))
        if read.code is not Code.OK:
            raise _refused(read, place)
        leader: Leader | None = read.value
        before = 0 if leader is None else leader.epoch
        if (leader is not None and leader.is_frozen) == is_frozen:
            return before
        nobody = Leader(before + 1, NO_LEADER, "", 0, claim, is_frozen=is_frozen)
        partitions = layout.partitions_of(number)
        reply = visit.ask(SetLeader(number, read.version, nobody, partitions, ()))
        if reply.code not in {Code.OK, Code.FENCED}:
            raise _refused(reply, place)


def _refused(reply: Reply, place: Place) -> LogError:
    if reply.code is Code.LOST:
        return EnsembleUnreachable("the connection to ZooKeeper was lost")
    return ClusterRefused(f"{place} can't be written: {reply.code.name} {reply.value or ''}")


def _write(visit: Visit, journals: Iterable[int], key: FlushKey, folder: NewFolder) -> int:
    """Write all journals, one after the other; return the size of the batches in bytes."""
    ends: dict[int, int] = {}
    below: dict[int, int] = {}
    size_bytes = 0
    for number in journals:
        source = Source()
        try:
            visit.run(read_all(number, source))
        except LogFailed as exc:
            raise EnsembleUnreachable(str(exc)) from exc
        fold = Fold(source)
        for partition, end_offset, pieces in fold.batches(lambda epoch: key.check(epoch, 0)):
            folder.add(partition, end_offset, pieces)
            size_bytes += sum(map(len, pieces))
        ends |= source.ends
        below |= fold.compacted_below
    folder.finish(ends, below)
    return size_bytes
