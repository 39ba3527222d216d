"""``group-coordinator cluster``: makes a cluster in ZooKeeper, and looks at it."""

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import click

from coordinator.cli.common import EXIT_DRY_RUN, Change, DryRun
from coordinator.cli.config import loaded, settings_from
from coordinator.cli.grammar import PROGRAM, Commands
from coordinator.cli.log_dump import complaining
from coordinator.cli.output import Output, counted, end, note, prints, time_of
from coordinator.cluster.engine import (
    Code,
    Leader,
    ListLog,
    ListNodes,
    ReadLeader,
    ReadNode,
    ReadSnapshot,
    Registration,
    Request,
    Snapshot,
)
from coordinator.cluster.errors import ClusterRefused, EnsembleUnreachable
from coordinator.cluster.founding import Layout, Place, find_or_found, prepare
from coordinator.cluster.move_in import may_begin, move_in
from coordinator.cluster.move_out import move_out
from coordinator.cluster.zookeeper import Access, Visit, access_of
from coordinator.config import ConfigError, Settings
from coordinator.log.directory import OsDirectory, ReadOnlyDirectory
from coordinator.log.errors import EXIT_REFUSED, LogIncompatible, LogRefused
from coordinator.log.format import SECRET_BYTES
from coordinator.log.journal import Journal
from coordinator.log.state_files import META_NAME, Meta, decode_meta
from coordinator.server.run import new_cluster_id

# How long to wait for a connection, and for each answer.
PATIENCE_S: Final = 30.0


@click.group(
    cls=Commands,
    examples={
        "Make a cluster of what a stopped daemon has in its folder:": "cluster init --from data "
        "--set cluster.zookeeper=zk1:2181,zk2:2181,zk3:2181/group-coordinator",
        "Who leads what?": "cluster status --config cluster.toml",
    },
)
def cluster() -> None:
    """Make a cluster of coordinators, whose log ZooKeeper keeps, and look at it.

    The settings are those of its nodes.
    """


def _access(settings: Settings) -> Access:
    try:
        return access_of(settings)
    except ConfigError as exc:
        end(f"{PROGRAM}: {exc}", EXIT_REFUSED)


@cluster.command(
    examples={
        "An empty one; its first node would make it, too:": "cluster init "
        "--set cluster.zookeeper=zk1:2181,zk2:2181,zk3:2181/group-coordinator",
        "Of what a stopped daemon has in its folder:": "cluster init --from data "
        "--config cluster.toml",
    }
)
@click.option(
    "--from",
    "data_dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of a stopped daemon; it is not served alone any more.",
)
@settings_from
def init(data_dir: Path | None, toml_path: Path | None, overrides: tuple[str, ...]) -> None:
    """Make a cluster, empty or of what one node has.

    Groups keep their offsets, generations and positions. Interrupted, it is run again.
    """
    settings = loaded((), toml_path, overrides)
    access = _access(settings)
    with complaining():
        if data_dir is None:
            found = find_or_found(
                access,
                Layout(settings.offsets_topic_num_partitions, settings.cluster_journals),
                cluster_id=settings.cluster_id,
                new_cluster_id=new_cluster_id,
                patience_s=PATIENCE_S,
            )
            _tell_unknown(found.unknown)
            verb = "Made" if found.is_new else "There is already"
            click.echo(f"{verb} the cluster {found.cluster_id}.")
            return
        meta = _meta_of(data_dir, settings)
        _tell_unknown(prepare(access, patience_s=PATIENCE_S))
        with Visit(access, patience_s=PATIENCE_S) as visit:
            _init_from(data_dir, meta, settings, visit, Place(visit, access))


def _cluster_in(place: Place, layout: Layout) -> str:
    """Return the id of the cluster there."""
    cluster_id = place.cluster_id()
    if cluster_id is None:
        raise ClusterRefused(f"{place} holds no cluster")
    place.check_layout(layout)
    return cluster_id


def _tell_unknown(unknown: dict[str, str]) -> None:
    for server, why in unknown.items():
        note(f"The release of the ZooKeeper server {server} isn't known: {why}")


def _meta_of(data_dir: Path, settings: Settings) -> Meta:
    looked_at = ReadOnlyDirectory(data_dir)
    if not looked_at.exists(META_NAME):
        raise LogIncompatible(f"{data_dir} is no data folder: it has no file {META_NAME!r}")
    meta = decode_meta(looked_at.read(META_NAME))
    if meta.num_partitions != settings.offsets_topic_num_partitions:
        raise ClusterRefused(
            f"{data_dir} has offsets.topic.num.partitions={meta.num_partitions}, and the settings "
            f"say {settings.offsets_topic_num_partitions}: that can't be changed"
        )
    return meta


def _init_from(data_dir: Path, meta: Meta, settings: Settings, visit: Visit, place: Place) -> None:
    if not may_begin(place, OsDirectory(data_dir), meta.cluster_id):
        click.echo(f"{data_dir} was moved into the cluster {meta.cluster_id} before.")
        return
    journal = Journal(
        OsDirectory(data_dir),
        num_partitions=meta.num_partitions,
        segment_bytes=settings.offsets_topic_segment_bytes,
        node_id=meta.node_id,
        new_cluster_id=_no_new_folder,
        new_secret=lambda: secrets.token_bytes(SECRET_BYTES),
    )
    clean = False
    try:
        moved = move_in(
            journal,
            visit,
            place,
            journals=settings.cluster_journals,
            drop_before_ms=time.time_ns() // 1_000_000 - settings.log_cleaner_delete_retention_ms,
            segment_bytes=settings.offsets_topic_segment_bytes,
            state_max_bytes=settings.cluster_state_max_bytes,
            new_id=lambda: secrets.token_hex(16),
        )
        clean = True
    finally:
        journal.close(clean=clean)
    click.echo(
        f"{data_dir} is the cluster {moved.cluster_id} now, {moved.size_bytes} bytes in ZooKeeper. "
        "It is not served alone any more."
    )


def _no_new_folder() -> str:
    raise LogRefused("the folder was emptied meanwhile")


@cluster.command(
    examples={
        "What would be done?": "cluster export --to data --config cluster.toml",
        "Do it, in a script:": "cluster export --to data --config cluster.toml --yes",
    }
)
@click.option(
    "--to",
    "data_dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="An empty folder, or one that isn't there.",
)
@click.option(
    "--yes",
    "-y",
    is_flag=True,
    help="Do it without asking. Without it, and without a terminal, it is a dry run.",
)
@settings_from
@prints
def export(
    output: Output, data_dir: Path, yes: bool, toml_path: Path | None, overrides: tuple[str, ...]
) -> None:
    """Freeze the cluster for good, and write what it has into a folder.

    Nobody leads from then on, whether nodes run or not. A daemon serves the folder as its own:
    groups keep their offsets, generations and positions. Interrupted, it is run again, with an
    empty folder.
    """
    settings = loaded((), toml_path, overrides)
    access = _access(settings)
    layout = Layout(settings.offsets_topic_num_partitions, settings.cluster_journals)
    with complaining(), Visit(access, patience_s=PATIENCE_S) as visit:
        place = Place(visit, access)
        _cluster_in(place, layout)
        nodes = dict(_nodes(visit))
        rows = [_row(_journal(visit, number), nodes) for number in range(layout.journals)]
        try:
            question = f"Freeze the cluster, and write it into {data_dir}?"
            Change(output, yes=yes).confirm(question, _COLUMNS, rows)
        except DryRun as exc:
            end(str(exc), EXIT_DRY_RUN)
        directory = OsDirectory(data_dir)
        directory.lock()
        try:
            moved = move_out(
                visit,
                place,
                directory,
                layout=layout,
                node_id=settings.node_id,
                segment_bytes=settings.offsets_topic_segment_bytes,
                new_id=lambda: secrets.token_hex(16),
            )
        except BaseException:
            directory.undo()
            raise
        directory.unlock()
    click.echo(
        f"{data_dir} has the cluster {moved.cluster_id} now, {moved.size_bytes} bytes. "
        "In ZooKeeper nobody leads it any more."
    )


# --- status --------------------------------------------------------------------------------

_COLUMNS: Final = (
    "JOURNAL",
    "LEADER",
    "EPOCH",
    "LAST ENTRY",
    "TAIL ENTRIES",
    "SNAPSHOT ENTRY",
    "SNAPSHOT BYTES",
)


class _Journal(NamedTuple):
    """What stands in ZooKeeper of one journal."""

    number: int
    leader: Leader | None
    snapshot: Snapshot
    entries: tuple[int, ...]


@cluster.command(examples={"Who leads what?": "cluster status --config cluster.toml"})
@settings_from
@prints
def status(output: Output, toml_path: Path | None, overrides: tuple[str, ...]) -> None:
    """Show the nodes of the cluster, and who leads what, as it stands in ZooKeeper.

    No node is asked. A leader in brackets is not registered: somebody else is about to lead.
    """
    settings = loaded((), toml_path, overrides)
    access = _access(settings)
    with complaining(), Visit(access, patience_s=PATIENCE_S) as visit:
        layout = Layout(settings.offsets_topic_num_partitions, settings.cluster_journals)
        cluster_id = _cluster_in(Place(visit, access), layout)
        nodes = dict(_nodes(visit))
        journals = [_journal(visit, number) for number in range(settings.cluster_journals)]
    output.say(f"The cluster {cluster_id} has {counted(len(nodes), 'node')}.")
    for node, (registration, _) in sorted(nodes.items()):
        endpoints, since = ", ".join(registration.endpoints), time_of(registration.timestamp_ms)
        readiness = "ready" if registration.is_ready else "not ready"
        output.say(f"Node {node} at {endpoints}, {readiness}, since {since}")
    output.show(_COLUMNS, [_row(journal, nodes) for journal in journals])


def _asked(visit: Visit, request: Request) -> object:
    """Return what *request* reads, None if it isn't there."""
    reply = visit.ask(request)
    if reply.code is Code.MISSING:
        return None
    if reply.code is not Code.OK:
        raise EnsembleUnreachable(f"ZooKeeper doesn't answer: {reply.code.name} {reply.value}")
    value: object = reply.value
    return value


def _nodes(visit: Visit) -> Iterator[tuple[int, tuple[Registration, int]]]:
    listed = _asked(visit, ListNodes())
    assert isinstance(listed, tuple)
    for node in listed:
        reply = visit.ask(ReadNode(node))
        if reply.code is Code.OK:
            yield node, (reply.value, reply.owner)


def _journal(visit: Visit, number: int) -> _Journal:
    leader, snapshot = _asked(visit, ReadLeader(number)), _asked(visit, ReadSnapshot(number))
    firsts = _asked(visit, ListLog(number, None))
    assert leader is None or isinstance(leader, Leader)
    assert isinstance(snapshot, Snapshot)
    assert isinstance(firsts, tuple)
    entries: list[int] = []
    for first in firsts:
        found = _asked(visit, ListLog(number, first))
        entries += found if isinstance(found, tuple) else ()
    return _Journal(number, leader, snapshot, tuple(entries))


def _row(journal: _Journal, nodes: dict[int, tuple[Registration, int]]) -> tuple[object, ...]:
    number, leader, snapshot, entries = journal
    name: str | None = None
    if leader is not None and leader.is_frozen:
        name = "frozen"
    elif leader is not None and leader.session:
        _, session = nodes.get(leader.node, (None, 0))
        name = str(leader.node) if session == leader.session else f"[{leader.node}]"
    last = max(entries, default=0)
    return (
        number,
        name,
        None if leader is None else leader.epoch,
        last,
        sum(entry > snapshot.index for entry in entries),
        snapshot.index,
        snapshot.size_bytes,
    )
