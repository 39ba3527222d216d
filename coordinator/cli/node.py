"""``group-coordinator health`` and ``reload``: the coordinator itself."""

import sys
from typing import Final

import click

from coordinator.cli.asking import Coordinator
from coordinator.cli.options import asks
from coordinator.cli.output import note, show_json, table
from protocol import messages as m

EXIT_OF_STATUS: Final = {"ready": 0, "unhealthy": 1, "loading": 3}
ACTIVE: Final = "active"


@click.command()
@click.option(
    "--format",
    "form",
    type=click.Choice(("text", "json")),
    default="text",
    show_default=True,
    help="For people, or for programs.",
)
@asks
def health(coordinator: Coordinator, form: str) -> None:
    """Say how the coordinator is, with its metrics.

    Exits 0 if it is ready, 1 if something is wrong with it, 3 while it loads, and 69 if it
    can't be reached.
    """
    answer: m.DescribeNodeResponse = coordinator.ask(m.DescribeNodeRequest())
    if form == "json":
        _show_json(answer)
    else:
        _show(answer)
    sys.exit(EXIT_OF_STATUS.get(answer.status, 1))


def _show(answer: m.DescribeNodeResponse) -> None:
    click.echo(f"node {answer.node_id}, leader epoch {answer.leader_epoch}: {answer.status}")
    for part, problem in answer.problems:
        note(f"{part}: {problem}")
    waiting = [p for p in answer.partitions if p.status != ACTIVE]
    if waiting:
        click.echo()
        table(("PARTITION", "STATUS", "LOADED", "OF"), waiting)
    click.echo()
    table(("METRIC", "VALUE"), ((metric.name, str(metric.value)) for metric in answer.metrics))


def _show_json(answer: m.DescribeNodeResponse) -> None:
    show_json(
        {
            "node_id": answer.node_id,
            "leader_epoch": answer.leader_epoch,
            "status": answer.status,
            "problems": dict(answer.problems),
            "partitions": [partition._asdict() for partition in answer.partitions],
            "metrics": dict(answer.metrics),
        }
    )


@click.command()
@click.argument("partition", type=click.IntRange(0, 0xFFFE))
@asks
def reload(coordinator: Coordinator, partition: int) -> None:
    """Load PARTITION of the offsets log again, as another node would that takes it over.

    Its log is read and checked, and its memory made anew of it. Meanwhile its groups are told to
    come back; all others are served.
    """
    answer: m.ReloadPartitionResponse = coordinator.ask(m.ReloadPartitionRequest(partition))
    click.echo(f"ok: {answer.entries} entries in {answer.load_ms} ms")
