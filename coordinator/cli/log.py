"""``group-coordinator log``: looks at the data folder of a stopped daemon, and repairs it."""

import json
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgpack

from coordinator.cli.grammar import Commands
from coordinator.cli.log_dump import (
    TYPE_NAMES,
    Filter,
    Line,
    byte_range,
    complaining,
    dump_lines,
    live_of,
    partitions_of,
    stopped,
    verdict_of,
)
from coordinator.cli.output import TABLE, Output, end, note, prints
from coordinator.config import is_cluster_id
from coordinator.group.repair import FenceBuilder
from coordinator.log.compaction import live_items
from coordinator.log.directory import Directory, OsDirectory, ReadOnlyDirectory
from coordinator.log.errors import EXIT_CORRUPT, LogCorrupt, LogIncompatible, LogRefused
from coordinator.log.format import NODE_PARTITION, SECRET_BYTES, Batch, Entry
from coordinator.log.journal import SEGMENT_BYTES_MAX, Journal
from coordinator.log.offline.compact import compact_stopped
from coordinator.log.offline.repair import (
    Plan,
    Wanted,
    known_cluster_id,
    plan_repair,
    repair,
    repaired_meta,
)
from coordinator.log.offline.salvage import Kept, Salvage
from coordinator.log.offline.survey import Survey, survey
from coordinator.log.recovery import LEADER_EPOCH_ASKED_MAX
from coordinator.log.state_files import META_NAME, Meta, decode_meta
from coordinator.names import escaped
from protocol.group_ids import offsets_partition

# So many lines about damage, unless all are wanted.
LINES_MAX: Final = 20


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


@click.group(
    cls=Commands,
    examples={
        "Is anything wrong with this folder, and would the daemon start?": "log verify "
        "--data-dir data",
        "What would a repair lose?": "log repair --data-dir data",
    },
)
def log() -> None:
    """Look at the data folder of a stopped daemon, and repair it."""


@log.command(
    examples={
        "The entries that matter, of one group:": "log dump --data-dir data --group billing "
        "--live-only",
        "Everything, for a program, an object a line:": "log dump --data-dir data --output json",
    }
)
@_DATA_DIR
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
@prints
def dump(
    output: Output,
    data_dir: Path,
    partition: int | None,
    scope: str | None,
    type_name: str | None,
    from_offset: int,
    limit: int | None,
    live: bool,
    live_only: bool,
) -> None:
    """Print the entries, also those in front of damage and behind it, a line each.

    The exit status is 65 if something can't be read.
    """
    if type_name is not None and type_name not in TYPE_NAMES and not type_name.isdecimal():
        raise click.BadParameter(f"{type_name!r} is none of {', '.join(TYPE_NAMES)}")
    wanted = Filter(partition, scope, type_name, from_offset, live or live_only, live_only)
    is_damaged = False
    with stopped(data_dir, read_only=True) as directory:
        for line in _first(dump_lines(directory, wanted, output.form), limit):
            is_damaged |= line.is_damage
            click.echo(line.text)
    if is_damaged:
        sys.exit(EXIT_CORRUPT)


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


@log.command(
    examples={
        "Is anything wrong with this folder, and would the daemon start?": "log verify "
        "--data-dir data",
        "What is in each partition?": "log verify --data-dir data --verbose",
        "The same for a program; what is wrong is on the standard error:": "log verify "
        "--data-dir data --output json",
    }
)
@_DATA_DIR
@click.option("--verbose", is_flag=True, help="Each partition, and all damage.")
@prints
def verify(output: Output, data_dir: Path, *, verbose: bool) -> None:
    """Read everything, and say what is wrong and what is live; change nothing.

    For programs the result is a row for each partition, and all else a note.

    The exit status is the one with which the daemon would refuse to start: 65 for damage, 78 for
    a folder that isn't this release's; else 0.
    """
    with stopped(data_dir, read_only=True) as directory:
        refused = _verify(directory, output, verbose=verbose)
        if refused is not None:
            end(f"the daemon would refuse to start: {refused}", refused.exit_status)


def _verify(directory: Directory, output: Output, *, verbose: bool) -> LogRefused | None:
    """Print what is in a folder and what is wrong; return why the daemon would refuse it."""
    verdict = verdict_of(directory)
    if verdict is None:
        output.say("Nothing was ever kept in this folder; the daemon would begin in it.")
        if output.form != TABLE:
            output.show(_COLUMNS, ())
        return None
    if isinstance(verdict, LogRefused) and not isinstance(verdict, LogCorrupt):
        return verdict
    found = survey(directory)
    num_partitions = partitions_of(found)
    plan = plan_repair(directory, found, num_partitions, lambda _: None)
    _report_damage(plan, output, verbose=verbose)
    _report_state(found, output)
    rows = _rows(directory, found, num_partitions)
    _report_rows(found, rows, output, verbose=verbose)
    if isinstance(verdict, LogRefused):
        return verdict
    if verdict.torn_bytes:
        output.say(
            f"The next start cuts {verdict.torn_bytes} bytes off the newest segment: the end of a "
            "write that was never finished."
        )
    output.say("Nothing is wrong.")
    return None


_COLUMNS: Final = ("PARTITION", "BATCHES", "ENTRIES", "BYTES", "LIVE", "LIVE-BYTES", "END-OFFSET")


class _Row(NamedTuple):
    """What is there of one partition."""

    batches: int = 0
    entries: int = 0
    size_bytes: int = 0
    live_entries: int = 0
    live_bytes: int = 0
    end_offset: int = 0


def _report_state(found: Survey, output: Output) -> None:
    meta = found.meta
    if meta is not None:
        output.say(
            f"Cluster {meta.cluster_id}, node {meta.node_id}, {meta.num_partitions} partitions, "
            f"leader epoch {meta.leader_epoch}"
        )
    if found.stop is not None:
        output.say(f"Closed in good order at position {found.stop.end}")
    elif not found.was_closed:
        output.say("Not closed in good order")


def _rows(directory: Directory, found: Survey, num_partitions: int) -> dict[int, _Row]:
    live = live_of(directory, found, num_partitions)
    rows: dict[int, _Row] = {}
    for item in Salvage(directory, found, num_partitions).read_all():
        if type(item) is not Kept:
            continue
        batch = item.batch
        alive = live.take(batch.partition, batch.end_offset)
        kept = live_items(batch.items, batch.base_offset, alive)
        old = rows.get(batch.partition, _Row())
        rows[batch.partition] = _Row(
            old.batches + 1,
            old.entries + batch.num_keys,
            old.size_bytes + len(item.found.data),
            old.live_entries + len(alive),
            old.live_bytes + sum(len(msgpack.packb((0, *entry[1:]))) for entry in kept),
            batch.end_offset,
        )
    return rows


def _report_rows(found: Survey, rows: dict[int, _Row], output: Output, *, verbose: bool) -> None:
    total = _Row(*map(sum, zip(_Row(), *rows.values(), strict=True)))
    segments = sum(source.file is not None for source in found.sources)
    output.say(
        f"{segments} segments with {total.batches} batches in {total.size_bytes} bytes can be "
        f"read: {total.entries} entries, of which {total.live_entries} are live, in "
        f"{total.live_bytes} bytes"
    )
    if verbose or output.form != TABLE:
        names = {NODE_PARTITION: "node"}
        output.show(_COLUMNS, [(names.get(p, p), *row) for p, row in sorted(rows.items())])


def _report_damage(plan: Plan, output: Output, *, verbose: bool) -> None:
    """Print what is wrong and where, a line each."""
    lines = [f"{problem.file}: {problem.what}" for problem in plan.problems]
    for damage in plan.damages:
        file = damage.source.file or damage.source.segment.name
        if damage.source.file is not None or damage.end:
            file = byte_range(file, damage.start, damage.end)
        lines.append(f"{file}: {damage.what}")
    told = lines if verbose else lines[:LINES_MAX]
    for line in told:
        output.say(line)
    if len(lines) > len(told):
        output.say(f"and {len(lines) - len(told)} more; --verbose tells all")


@log.command(
    examples={
        "Make the log of a stopped daemon as small as it can be:": "log compact --data-dir data"
    }
)
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
        looked_at = ReadOnlyDirectory(data_dir)
        if not looked_at.exists(META_NAME):
            raise LogIncompatible(f"{data_dir} is no data folder: it has no file {META_NAME!r}")
        meta = decode_meta(looked_at.read(META_NAME))
        journal = Journal(
            OsDirectory(data_dir),
            num_partitions=meta.num_partitions,
            segment_bytes=segment_bytes,
            node_id=meta.node_id,
            new_cluster_id=_no_new_folder,
            new_secret=_new_secret,
        )
        drop_before_ms = time.time_ns() // 1_000_000 - delete_retention_ms
        try:
            saved = compact_stopped(
                journal, segment_bytes=segment_bytes, drop_before_ms=drop_before_ms
            )
        except BaseException:
            journal.close(clean=False)
            raise
        journal.close(clean=True)
        click.echo(
            f"The log had {saved.before_bytes} bytes and has {saved.after_bytes}, "
            f"with {saved.live_entries} entries."
        )


def _new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def _no_new_folder() -> str:
    raise LogRefused("the folder was emptied meanwhile")


@log.command(
    "repair",
    examples={
        "What would be lost?": "log repair --data-dir data",
        "Do it, after a copy of the folder was made:": "log repair --data-dir data --accept-loss",
    },
)
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
    type=click.IntRange(0, LEADER_EPOCH_ASKED_MAX),
    default=0,
    metavar="N",
    help="Above every epoch that clients have seen, if meta is lost and the clock is wrong.",
)
@click.option("--verbose", is_flag=True, help="Tell all damage.")
def repair_command(
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
    with stopped(data_dir, read_only=not accept_loss) as directory:
        verdict = verdict_of(directory)
        if not isinstance(verdict, LogRefused):
            click.echo("There is nothing to repair.")
            return
        if not isinstance(verdict, LogCorrupt):
            end(f"This is no damage: {verdict}", verdict.exit_status)
        note(str(verdict))
        planned = _plan_repair(directory, wanted)
        _report_repair(planned.plan, verbose=verbose)
        if not accept_loss:
            end("Nothing was changed; --accept-loss does it.", EXIT_CORRUPT)
        _carry_out(directory, planned)
        left = verdict_of(directory)
        if isinstance(left, LogRefused):
            end(f"The daemon would still refuse to start: {left}", left.exit_status)
        click.echo("Repaired: the daemon can start.")


class _Repair(NamedTuple):
    """A repair that is known to be possible."""

    plan: Plan
    meta: Meta
    fence_builder: FenceBuilder


def _plan_repair(directory: Directory, wanted: Wanted) -> _Repair:
    """Read the whole folder, and see what a repair takes.

    Raises:
        LogRefused: It can't be repaired, or not without more options; the message says which.
    """
    found = survey(directory, wanted.cluster_id)
    if not wanted.cluster_id:
        known_cluster_id(found)
    num_partitions = partitions_of(found)
    if found.meta is None and wanted.num_partitions:
        num_partitions = wanted.num_partitions
    fence_builder = FenceBuilder(NODE_PARTITION)

    def on_batch(batch: Batch) -> None:
        fence_builder.add(batch.partition, (item[1:] for item in batch.items))

    plan = plan_repair(directory, found, num_partitions, on_batch)
    if not plan.is_needed:
        raise LogCorrupt("there is no repair for this: restore a backup")
    try:
        meta = repaired_meta(plan, wanted, _new_secret)
    except LogRefused as exc:
        _report_damage(plan, Output(), verbose=False)
        raise LogRefused(f"{exc}{_meta_hint(directory, found)}") from exc
    if found.meta is None:
        for partition, group_id in fence_builder.groups():
            expected = offsets_partition(group_id, meta.num_partitions)
            if expected != partition:
                message = (
                    f"group {group_id!r} lies in partition {partition}, and with "
                    f"{meta.num_partitions} partitions it would be looked for in {expected}: "
                    "--partitions is wrong"
                )
                raise LogRefused(message)
    return _Repair(plan, meta, fence_builder)


def _report_repair(plan: Plan, *, verbose: bool) -> None:
    """Print what is wrong, and what would be lost and kept."""
    _report_damage(plan, Output(), verbose=verbose)
    click.echo(f"Kept: {plan.entries} entries in {plan.batches} batches.")
    if not plan.lost_bytes:
        click.echo("Lost: nothing that the files tell of.")
        return
    click.echo(f"Lost: up to {plan.lost_bytes} bytes of the log, see above.")
    click.echo(
        "What was lost is as if it had never been: commits go back to the ones before, what "
        "was deleted may be there again, and groups of which everything was lost are gone. "
        "All other groups rebalance once, in a generation above all that can have been told; "
        "streams of offset changes begin anew."
    )


def _carry_out(directory: Directory, planned: _Repair) -> None:
    """Repair the folder, and print where the damaged files are."""
    now_ms = time.time_ns() // 1_000_000

    def fences(lost_bytes: int) -> Iterator[tuple[int, Sequence[Entry]]]:
        for partition, entries in planned.fence_builder.fences(lost_bytes, now_ms):
            yield partition, [Entry(*fields) for fields in entries]

    for name in repair(directory, planned.plan, planned.meta, fences, now_ms):
        click.echo(escaped(f"What it was is kept in {name}"))


def _meta_hint(directory: Directory, found: Survey) -> str:
    """Return what a damaged meta file seems to say; it can't be trusted, but may remind."""
    if META_NAME not in found.names:
        return ""
    try:
        body = json.loads(directory.read(META_NAME).partition(b"\n")[0])
        said = [f"{name} {body[name]!r}" for name in ("cluster_id", "node_id", "num_partitions")]
    except (ValueError, KeyError, TypeError):
        return ""
    return f" (the damaged file seems to say {', '.join(said)})"
