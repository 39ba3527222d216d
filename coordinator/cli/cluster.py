"""``group-coordinator cluster``: makes a cluster in ZooKeeper, and looks at it."""

import secrets
import time
from pathlib import Path
from typing import Final

import click

from coordinator.cli.cluster_status import COLUMNS, Status, from_nodes, from_zookeeper, row_of, show
from coordinator.cli.common import (
    AskFailed,
    Change,
    Coordinator,
    asks,
    asks_to_change,
    changes,
    is_given,
)
from coordinator.cli.config import loaded, settings_from
from coordinator.cli.grammar import PROGRAM, Commands
from coordinator.cli.log_dump import complaining
from coordinator.cli.output import Output, end, note
from coordinator.cluster.errors import ClusterRefused
from coordinator.cluster.founding import Place, find_or_found, make_chroot, prepare
from coordinator.cluster.layout import Layout
from coordinator.cluster.move_in import may_begin, move_in, was_moved
from coordinator.cluster.move_out import move_out, thaw as thaw_cluster
from coordinator.cluster.zookeeper import Access, Visit, access_of
from coordinator.config import Address, ConfigError, Settings
from coordinator.log.directory import OsDirectory, ReadOnlyDirectory
from coordinator.log.errors import EXIT_REFUSED, LogIncompatible, LogRefused
from coordinator.log.format import SECRET_BYTES
from coordinator.log.journal import Journal
from coordinator.log.state_files import META_NAME, Meta, decode_meta
from coordinator.server.run import new_cluster_id
from protocol import messages as m

# How long to wait for a connection, and for each answer.
PATIENCE_S: Final = 30.0


@click.group(
    cls=Commands,
    examples={
        "Make a cluster of what a stopped daemon has in its folder:": "cluster init --from data "
        "--set cluster.zookeeper=zk1:2181,zk2:2181,zk3:2181/group-coordinator",
        "Who leads what?": "cluster status --at coordinator1.example:9310",
        "Have node 2 lead journal 4:": "cluster move 4 2 --at coordinator1.example:9310",
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


def _layout(settings: Settings) -> Layout:
    return Layout(settings.offsets_topic_num_partitions, settings.cluster_journals)


def _new_id() -> str:
    return secrets.token_hex(16)


@cluster.command(
    examples={
        "An empty one, before its first node starts:": "cluster init "
        "--set cluster.zookeeper=zk1:2181,zk2:2181,zk3:2181/group-coordinator",
        "Of what a stopped daemon has in its folder, which is asked for first:": "cluster init "
        "--from data --config cluster.toml",
        "The same in a script:": "cluster init --from data --config cluster.toml --yes",
    }
)
@click.option(
    "--from",
    "data_dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of a stopped daemon; it is not served alone any more.",
)
@settings_from
@changes
def init(
    _output: Output,
    change: Change,
    data_dir: Path | None,
    toml_path: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Make a cluster, empty or of what one node has.

    Groups keep their offsets, generations and positions. Interrupted, it is run again. A cluster
    that is there already stays as it is. An empty cluster is made without a question.
    """
    settings = loaded((), toml_path, overrides)
    access = _access(settings)
    with complaining():
        if data_dir is None:
            found = find_or_found(
                access,
                _layout(settings),
                cluster_id=settings.cluster_id,
                new_cluster_id=new_cluster_id,
                patience_s=PATIENCE_S,
            )
            _tell_unknown(found.unknown)
            verb = "Made" if found.is_new else "There is already"
            click.echo(f"{verb} the cluster {found.cluster_id}.")
            return
        meta = _meta_of(data_dir, settings)
        _tell_unknown(prepare(access, patience_s=PATIENCE_S, makes_chroot=False))
        with Visit(access, patience_s=PATIENCE_S) as visit:
            place = Place(visit, access)
            moved_before = f"{data_dir} was moved into the cluster {meta.cluster_id} before."
            if was_moved(place, OsDirectory(data_dir), meta.cluster_id):
                click.echo(moved_before)
                return
            place.check_empty()
            row = (data_dir, meta.cluster_id, place)
            question = f"Move {data_dir} into {place}? Then it is not served alone any more."
            change.confirm(question, ("FOLDER", "CLUSTER-ID", "TO"), [row])
            make_chroot(access, patience_s=PATIENCE_S)
            # The question may have stood there for long.
            if may_begin(place, OsDirectory(data_dir), meta.cluster_id):
                _init_from(data_dir, meta, settings, visit, place)
            else:
                click.echo(moved_before)


def _tell_unknown(unknown: dict[str, str]) -> None:
    for server, why in unknown.items():
        note(f"The release of the ZooKeeper server {server} isn't known: {why}")


def _meta_of(data_dir: Path, settings: Settings) -> Meta:
    """Return what a folder is, if no daemon serves it. Raises LogRefused."""
    looked_at = ReadOnlyDirectory(data_dir)
    if not looked_at.exists(META_NAME):
        raise LogIncompatible(f"{data_dir} is no data folder: it has no file {META_NAME!r}")
    looked_at.lock()
    looked_at.unlock()
    meta = decode_meta(looked_at.read(META_NAME))
    if meta.num_partitions != settings.offsets_topic_num_partitions:
        raise ClusterRefused(
            f"{data_dir} has offsets.topic.num.partitions={meta.num_partitions}, and the settings "
            f"say {settings.offsets_topic_num_partitions}: that can't be changed"
        )
    return meta


def _init_from(data_dir: Path, meta: Meta, settings: Settings, visit: Visit, place: Place) -> None:
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
            new_id=_new_id,
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
@settings_from
@changes
def export(
    _output: Output,
    change: Change,
    data_dir: Path,
    toml_path: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Freeze the cluster for good, and write what it has into a folder.

    Nobody leads from then on, whether nodes run or not. A daemon serves the folder as its own:
    groups keep their offsets, generations and positions. Interrupted, it is run again, with an
    empty folder.
    """
    settings = loaded((), toml_path, overrides)
    access = _access(settings)
    with complaining(), Visit(access, patience_s=PATIENCE_S) as visit:
        place = Place(visit, access)
        seen = _read(visit, place, settings)
        question = f"Freeze the cluster, and write it into {data_dir}?"
        change.confirm(question, COLUMNS, list(map(row_of, seen.journals)))
        directory = OsDirectory(data_dir)
        directory.lock()
        try:
            moved = move_out(
                visit,
                place,
                directory,
                layout=_layout(settings),
                node_id=settings.node_id,
                segment_bytes=settings.offsets_topic_segment_bytes,
                new_id=_new_id,
            )
        except BaseException:
            directory.undo()
            raise
        directory.unlock()
    click.echo(
        f"{data_dir} has the cluster {moved.cluster_id} now, {moved.size_bytes} bytes. "
        "In ZooKeeper nobody leads it any more."
    )


@cluster.command(
    examples={
        "What would be done?": "cluster thaw --config cluster.toml",
        "Do it, in a script:": "cluster thaw --config cluster.toml --yes",
    }
)
@settings_from
@changes
def thaw(
    _output: Output, change: Change, toml_path: Path | None, overrides: tuple[str, ...]
) -> None:
    """Undo the freeze of an export: nodes lead the cluster again.

    It goes on from what it had then. Whatever a daemon has acknowledged that served the exported
    folder would be lost, and nobody can see here whether one has: make sure of it, and remove the
    folder.
    """
    settings = loaded((), toml_path, overrides)
    access = _access(settings)
    with complaining(), Visit(access, patience_s=PATIENCE_S) as visit:
        place = Place(visit, access)
        seen = _read(visit, place, settings)
        frozen = [row_of(journal) for journal in seen.journals if journal.frozen]
        if not frozen:
            click.echo(f"The cluster {seen.cluster_id} isn't frozen.")
            return
        question = "Has no daemon served the exported folder, and shall nodes lead again?"
        change.confirm(question, COLUMNS, frozen)
        thaw_cluster(visit, place, layout=_layout(settings), new_id=_new_id)
    click.echo(f"Nodes may lead the cluster {seen.cluster_id} again. Remove the exported folder.")


# --- what it is like -----------------------------------------------------------------------


@cluster.command(
    examples={
        "Who leads what, and how far does everybody follow?": "cluster status "
        "--at coordinator1.example:9310",
        "As it stands in ZooKeeper, where no node can be asked:": "cluster status "
        "--config cluster.toml",
        "For a program:": "cluster status --at coordinator1.example:9310 --output json",
    }
)
@settings_from
@asks
def status(
    coordinator: Coordinator,
    output: Output,
    toml_path: Path | None,
    overrides: tuple[str, ...],
) -> bool:
    """Show the nodes of the cluster, and who leads what since when.

    With cluster.zookeeper, by --config, --set or the environment, it is read in ZooKeeper, and no
    node is asked. Otherwise the node --at is asked, and all the others that it knows of: BEHIND is
    how many entries of the log each of them has yet to read.

    Exits 0 if every journal is led, every node is ready, and as many are registered as
    cluster.nodes says, 1 with what is wrong.
    """
    settings = loaded((), toml_path, overrides)
    if is_given("at") or not settings.cluster_zookeeper:
        return show(from_nodes(coordinator), output)
    access = _access(settings)
    with complaining(), Visit(access, patience_s=PATIENCE_S) as visit:
        found = _read(visit, Place(visit, access), settings)
    return show(found, output)


def _read(visit: Visit, place: Place, settings: Settings) -> Status:
    """Return the cluster as it stands in ZooKeeper. Raises ClusterRefused, EnsembleUnreachable."""
    cluster_id = place.cluster_id()
    if cluster_id is None:
        raise ClusterRefused(f"{place} holds no cluster")
    place.check_layout(_layout(settings))
    return from_zookeeper(visit, cluster_id, settings)


@cluster.command(
    examples={
        "Have node 2 lead journal 4; any node says who leads it now:": "cluster move 4 2 "
        "--at coordinator1.example:9310",
        "In a script:": "cluster move 4 2 --yes --at coordinator1.example:9310",
    }
)
@click.argument("journal", type=click.IntRange(0))
@click.argument("node", type=click.IntRange(0))
@asks_to_change
def move(coordinator: Coordinator, output: Output, change: Change, journal: int, node: int) -> None:
    """Have NODE lead JOURNAL from now on.

    Its groups keep members, generations and offsets, and pause for as long as a hand-over takes. If
    the node has more journals then than its share, another one leaves it.
    """
    told: m.DescribeClusterResponse = coordinator.ask(m.DescribeClusterRequest())
    seen: m.DescribeJournalsResponse = coordinator.ask(m.DescribeJournalsRequest())
    if journal >= len(seen.journals):
        raise AskFailed(f"there is no journal {journal} of {len(seen.journals)}")
    leader = seen.journals[journal].leader
    where = {one.node_id: Address(one.host, one.port) for one in told.nodes}
    if node not in where:
        nodes = ", ".join(map(str, sorted(where)))
        raise AskFailed(f"there is no node {node}: there are the nodes {nodes}")
    if leader not in where:
        raise AskFailed(f"nobody leads journal {journal}")
    if leader == node:
        output.say(f"Node {node} leads journal {journal} already.")
        return
    row = (journal, leader, node)
    change.confirm(f"Move journal {journal}?", ("JOURNAL", "FROM", "TO"), [row])
    with coordinator.elsewhere(where[leader]) as asked:
        asked.ask(m.MoveJournalRequest(journal, node))
    output.lines("journal {}: node {} has handed it to node {}", ("JOURNAL", "FROM", "TO"), [row])
