"""``group-coordinator log``: the data folder of a stopped daemon."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from coordinator.cli.log_compact import compact_folder
from coordinator.cli.log_dump import Filter, Line, dump_lines
from coordinator.cli.log_entries import TYPE_NAMES
from coordinator.cli.log_folder import complaining, stopped, verdict_of
from coordinator.cli.log_repair import plan_mending
from coordinator.cli.log_verify import verify_folder
from coordinator.cli.output import end, note
from coordinator.config import is_cluster_id
from coordinator.log.errors import EXIT_CORRUPT, LogCorrupt, LogRefused
from coordinator.log.format import NODE_PARTITION
from coordinator.log.limits import SEGMENT_BYTES_MAX
from coordinator.log.repair_plan import Wanted

_DATA_DIR: Final = click.option(
    "--data-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the offsets log; no daemon may be running on it.",
)


def _partition(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    if value == "node":
        return NODE_PARTITION
    if not value.isdecimal():
        raise click.BadParameter(f"{value!r} is neither a number nor 'node'")
    return int(value)


def _cluster_id(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if value and not is_cluster_id(value):
        raise click.BadParameter(f"{value!r} is not 22 characters of URL-safe base64")
    return value


@click.group()
def log() -> None:
    """Look at the data folder of a stopped daemon, and repair it."""


@log.command()
@_DATA_DIR
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text")
@click.option(
    "--partition",
    metavar="N|node",
    callback=_partition,
    help="An offsets partition, or the node's.",
)
@click.option("--group", "--scope", "scope", help="A group; in the node's partition a topic.")
@click.option("--type", "type_name", metavar="NAME", help=f"One of {', '.join(TYPE_NAMES)}.")
@click.option("--from-offset", type=click.IntRange(0), default=0, help="Of each partition.")
@click.option("--limit", type=click.IntRange(0), help="End after so many entries.")
@click.option("--live", is_flag=True, help="Say of each entry whether a compaction keeps it.")
@click.option("--live-only", is_flag=True, help="Only what a compaction keeps.")
def dump(
    data_dir: Path,
    form: str,
    partition: int | None,
    scope: str | None,
    type_name: str | None,
    from_offset: int,
    limit: int | None,
    live: bool,
    live_only: bool,
) -> None:
    """Print the entries, also those in front of damage and behind it.

    The exit status is 65 if something can't be read.
    """
    if type_name is not None and type_name not in TYPE_NAMES and not type_name.isdecimal():
        raise click.BadParameter(f"{type_name!r} is none of {', '.join(TYPE_NAMES)}")
    wanted = Filter(partition, scope, type_name, from_offset, live or live_only, live_only)
    is_damaged = False
    with stopped(data_dir, read_only=True) as directory:
        for line in _first(dump_lines(directory, wanted, as_json=form == "json"), limit):
            is_damaged |= line.is_damage
            click.echo(line.text)
    if is_damaged:
        sys.exit(EXIT_CORRUPT)


@log.command()
@_DATA_DIR
@click.option("--verbose", is_flag=True, help="Each partition, and all damage.")
def verify(data_dir: Path, *, verbose: bool) -> None:
    """Read everything, and say what is wrong and what is live; change nothing.

    The exit status is the one with which the daemon would refuse to start: 65 for damage, 78 for
    a folder that isn't this release's; else 0.
    """
    with stopped(data_dir, read_only=True) as directory:
        refused = verify_folder(directory, verbose=verbose)
        if refused is not None:
            end(f"the daemon would refuse to start: {refused}", refused.exit_status)


@log.command()
@_DATA_DIR
@click.option(
    "--segment-bytes",
    type=click.IntRange(4096, SEGMENT_BYTES_MAX),
    default=100 * 1024 * 1024,
    show_default=True,
    help="About how large a segment becomes.",
)
@click.option(
    "--delete-retention-ms",
    type=click.IntRange(0),
    default=86_400_000,
    show_default=True,
    help="How old what was removed must be to be forgotten.",
)
def compact(data_dir: Path, segment_bytes: int, delete_retention_ms: int) -> None:
    """Keep only the last entry of each key, of the whole log.

    A daemon that runs does that by itself, or when asked: group-coordinator compact.
    """
    with complaining():
        compact_folder(
            data_dir, segment_bytes=segment_bytes, delete_retention_ms=delete_retention_ms
        )


@log.command()
@_DATA_DIR
@click.option("--accept-loss", is_flag=True, help="Do it; what can't be read is lost.")
@click.option(
    "--cluster-id",
    default="",
    callback=_cluster_id,
    help="If the meta file is lost, or files of several clusters are mixed.",
)
@click.option("--node-id", type=click.IntRange(0, 2**31 - 1), help="If the meta file is lost.")
@click.option(
    "--partitions",
    type=click.IntRange(1, NODE_PARTITION - 1),
    help="Offsets partitions, if the meta file is lost.",
)
@click.option(
    "--leader-epoch-at-least",
    type=click.IntRange(0, 2**31 - 2),
    default=0,
    metavar="N",
    help="Above every epoch that clients have seen, if the meta file is lost.",
)
@click.option("--verbose", is_flag=True, help="Tell all damage.")
def repair(
    data_dir: Path,
    accept_loss: bool,
    cluster_id: str,
    node_id: int | None,
    partitions: int | None,
    leader_epoch_at_least: int,
    verbose: bool,
) -> None:
    """Make a folder that is refused with status 65 one that can be served.

    Without --accept-loss it only says what would be lost. Everything that can be read is kept,
    and what is damaged goes to the folder's aside/.
    """
    wanted = Wanted(cluster_id, node_id, partitions or 0, leader_epoch_at_least)
    _repair(data_dir, wanted, accept=accept_loss, verbose=verbose)


def _repair(data_dir: Path, wanted: Wanted, *, accept: bool, verbose: bool) -> None:
    with stopped(data_dir, read_only=not accept) as directory:
        verdict = verdict_of(directory)
        if not isinstance(verdict, LogRefused):
            click.echo("There is nothing to repair.")
            return
        if not isinstance(verdict, LogCorrupt):
            end(f"This is no damage: {verdict}", verdict.exit_status)
        note(str(verdict))
        mending = plan_mending(directory, wanted)
        mending.report(verbose=verbose)
        if not accept:
            end("Nothing was changed; --accept-loss does it.", EXIT_CORRUPT)
        mending.carry_out()
        left = verdict_of(directory)
        if isinstance(left, LogRefused):
            end(f"The daemon would still refuse to start: {left}", left.exit_status)
        click.echo("Repaired: the daemon can start.")


def _first(lines: Iterator[Line], limit: int | None) -> Iterator[Line]:
    """Yield lines up to so many entries."""
    count = 0
    if limit == 0:
        return
    for line in lines:
        yield line
        count += line.is_entry
        if limit is not None and count >= limit:
            return
