"""What ``log repair`` tells and does."""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import click

from coordinator.cli.log_verify import partitions_of, report_damage
from coordinator.cli.output import clean
from coordinator.group.after_loss import Survivors
from coordinator.log.directory import Directory
from coordinator.log.errors import LogCorrupt, LogRefused
from coordinator.log.format import NODE_PARTITION, Batch, Entry
from coordinator.log.repair import repair
from coordinator.log.repair_plan import Plan, Wanted, known_cluster_id, plan_repair, repaired_meta
from coordinator.log.state_files import META_NAME, Meta
from coordinator.log.survey import Survey, survey
from protocol.groups import offsets_partition


class Mending(NamedTuple):
    """A repair that is known to be possible."""

    directory: Directory
    plan: Plan
    meta: Meta
    survivors: Survivors

    def report(self, *, verbose: bool) -> None:
        """Print what is wrong, and what would be lost and kept."""
        plan = self.plan
        report_damage(plan, verbose=verbose)
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

    def carry_out(self) -> None:
        """Do it, and print where the damaged files are."""
        now_ms = time.time_ns() // 1_000_000

        def fences(lost_bytes: int) -> Iterator[tuple[int, Sequence[Entry]]]:
            for partition, entries in self.survivors.fences(lost_bytes, now_ms):
                yield partition, [Entry(*fields) for fields in entries]

        for name in repair(self.directory, self.plan, self.meta, fences, now_ms):
            click.echo(clean(f"What it was is kept in {name}"))


def plan_mending(directory: Directory, wanted: Wanted) -> Mending:
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
    survivors = Survivors(NODE_PARTITION)

    def saw(batch: Batch) -> None:
        survivors.saw(batch.partition, (entry for _, entry in batch.entries))

    plan = plan_repair(directory, found, num_partitions, saw)
    if not plan.is_needed:
        raise LogCorrupt("there is no repair for this: restore a backup")
    try:
        meta = repaired_meta(plan, wanted)
    except LogRefused as exc:
        report_damage(plan, verbose=False)
        raise LogRefused(f"{exc}{_meta_hint(directory, found)}") from exc
    if found.meta is None:
        _check_partitions(survivors.groups(), meta.num_partitions)
    return Mending(directory, plan, meta, survivors)


def _check_partitions(groups: Iterable[tuple[int, str]], num_partitions: int) -> None:
    for partition, group_id in groups:
        expected = offsets_partition(group_id, num_partitions)
        if expected != partition:
            message = (
                f"group {group_id!r} lies in partition {partition}, and with {num_partitions} "
                f"partitions it would be looked for in {expected}: --partitions is wrong"
            )
            raise LogRefused(message)


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
