"""What ``log verify`` tells."""

from collections.abc import Iterable
from typing import Final, NamedTuple

import click
import msgpack

from coordinator.cli.log_dump import place_of
from coordinator.cli.log_folder import everything, live_of, verdict_of
from coordinator.cli.output import clean, table
from coordinator.log.directory import Directory
from coordinator.log.errors import LogCorrupt, LogRefused
from coordinator.log.format import NODE_PARTITION
from coordinator.log.repair_plan import Plan, plan_repair
from coordinator.log.salvage import Kept
from coordinator.log.survey import Survey, survey

# So many lines about damage, unless all are wanted.
LINES_MAX: Final = 20


class _Row(NamedTuple):
    """What is there of one partition."""

    batches: int = 0
    entries: int = 0
    size_bytes: int = 0
    live_entries: int = 0
    live_bytes: int = 0
    end_offset: int = 0


def verify_folder(directory: Directory, *, verbose: bool) -> LogRefused | None:
    """Print what is in a folder and what is wrong; return why the daemon would refuse it."""
    verdict = verdict_of(directory)
    if verdict is None:
        click.echo("Nothing was ever kept in this folder; the daemon would begin in it.")
        return None
    if isinstance(verdict, LogRefused) and not isinstance(verdict, LogCorrupt):
        return verdict
    found = survey(directory)
    num_partitions = partitions_of(found)
    plan = plan_repair(directory, found, num_partitions, lambda _: None)
    report_damage(plan, verbose=verbose)
    _report_state(found)
    rows = _rows(directory, found, num_partitions)
    _report_rows(found, rows, verbose=verbose)
    if isinstance(verdict, LogRefused):
        return verdict
    if verdict.torn_bytes:
        click.echo(
            f"The next start cuts {verdict.torn_bytes} bytes off the newest segment: the end of a "
            "write that was never finished."
        )
    click.echo("Nothing is wrong.")
    return None


def partitions_of(found: Survey) -> int:
    """Return the number of offsets partitions, if it isn't known as many as there can be."""
    return NODE_PARTITION if found.meta is None else found.meta.num_partitions


def report_damage(plan: Plan, *, verbose: bool) -> None:
    """Print what is wrong and where, a line each."""
    lines = [f"{problem.file}: {problem.what}" for problem in plan.problems]
    for damage in plan.damages:
        file = damage.source.file or damage.source.segment.name
        if damage.source.file is not None or damage.end:
            file = place_of(file, damage.start, damage.end)
        lines.append(f"{file}: {damage.what}")
    told = lines if verbose else lines[:LINES_MAX]
    for line in told:
        click.echo(clean(line))
    if len(lines) > len(told):
        click.echo(f"and {len(lines) - len(told)} more; --verbose tells all")


def _report_state(found: Survey) -> None:
    meta = found.meta
    if meta is not None:
        click.echo(
            f"Cluster {meta.cluster_id}, node {meta.node_id}, {meta.num_partitions} partitions, "
            f"leader epoch {meta.leader_epoch}"
        )
    if found.stop is not None:
        click.echo(f"Closed in good order at position {found.stop.end}")
    elif not found.was_closed:
        click.echo("Not closed in good order")


def _rows(directory: Directory, found: Survey, num_partitions: int) -> dict[int, _Row]:
    live = live_of(directory, found, num_partitions)
    rows: dict[int, _Row] = {}
    for item in everything(directory, found, num_partitions):
        if type(item) is not Kept:
            continue
        batch = item.batch
        alive = [e for offset, e in batch.entries if live.take(batch.partition, offset)]
        old = rows.get(batch.partition, _Row())
        rows[batch.partition] = _Row(
            old.batches + 1,
            old.entries + len(batch.entries),
            old.size_bytes + len(item.found.data),
            old.live_entries + len(alive),
            old.live_bytes + sum(len(msgpack.packb((0, *entry))) for entry in alive),
            batch.entries[-1][0] + 1,
        )
    return rows


def _report_rows(found: Survey, rows: dict[int, _Row], *, verbose: bool) -> None:
    def total(values: Iterable[int]) -> int:
        return sum(values)

    batches = total(row.batches for row in rows.values())
    entries = total(row.entries for row in rows.values())
    size_bytes = total(row.size_bytes for row in rows.values())
    live_entries = total(row.live_entries for row in rows.values())
    live_bytes = total(row.live_bytes for row in rows.values())
    segments = sum(source.file is not None for source in found.sources)
    click.echo(
        f"{segments} segments with {batches} batches in {size_bytes} bytes can be read: "
        f"{entries} entries, of which {live_entries} are live, in {live_bytes} bytes"
    )
    if verbose:
        columns = ("PARTITION", "BATCHES", "ENTRIES", "BYTES", "LIVE", "LIVE-BYTES", "END-OFFSET")
        names = {NODE_PARTITION: "node"}
        table(columns, ((names.get(p, p), *row) for p, row in sorted(rows.items())))
