"""``group-coordinator`` health, ping, reload and compact: the coordinator itself."""

import sys
from functools import partial
from typing import Final, NoReturn

import click
from msgspec import structs

from coordinator.cli.common import EXIT_SOME_FAILED, AskFailed, Coordinator, Unreachable, asks
from coordinator.cli.grammar import PROGRAM, Command
from coordinator.cli.output import JSON, TABLE, Output, end, note
from protocol import messages as m

EXIT_OF_STATUS: Final = {"ready": 0, "unhealthy": 1, "loading": 3}
SERVED_OR_FOLLOWED: Final = frozenset({"active", "following"})
ACTIVE: Final = "active"
# A node that doesn't answer, of those that were to be asked.
AWAY: Final = "away"
# The answer comes when it is done, which for a large log takes a while.
COMPACT_TIMEOUT_S: Final = 600.0
PING_TIMEOUT_S: Final = 3.0


@click.command(
    cls=Command,
    examples={
        "How is the coordinator of this machine?": "health",
        "Is that one ready? The exit status says so:": "health --at coordinator.example:9310",
        "How are all nodes of its cluster?": "health --all --at coordinator.example:9310",
        "Its metrics, for a program:": "health --output json",
    },
)
@click.option("--all", "all_nodes", is_flag=True, help="All nodes of the cluster, a row each.")
@asks
def health(coordinator: Coordinator, output: Output, *, all_nodes: bool) -> None:
    """Say how the coordinator is, with its metrics.

    Exits 0 if it is ready, 1 if something is wrong with it, 3 while it loads, and 69 if it
    can't be reached. With --all it is the worst of all nodes that are there, and of those that
    --at names: one of these that doesn't answer is away, which is wrong.
    """
    if all_nodes:
        _show_all(coordinator, output)
    answer: m.DescribeNodeResponse = coordinator.ask(m.DescribeNodeRequest())
    if output.form == JSON:
        output.json(_everything(answer))
    else:
        _show(answer, output)
    sys.exit(EXIT_OF_STATUS.get(answer.status, 1))


def _show(answer: m.DescribeNodeResponse, output: Output) -> None:
    for one in answer.problems:
        note(f"{one.part}: {one.problem}")
    metrics = [(metric.name, str(metric.value)) for metric in answer.metrics]
    if output.form != TABLE:
        facts = [(name, str(getattr(answer, name))) for name in ("node_id", "leader_epoch")]
        output.show(("METRIC", "VALUE"), [("status", answer.status), *facts, *metrics])
        return
    click.echo(f"node {answer.node_id}, leader epoch {answer.leader_epoch}: {answer.status}")
    waiting = [structs.astuple(p) for p in answer.partitions if p.status not in SERVED_OR_FOLLOWED]
    if waiting:
        click.echo()
        output.show(("PARTITION", "STATUS", "LOADED", "OF"), waiting)
    click.echo()
    output.show(("METRIC", "VALUE"), metrics)


def _show_all(coordinator: Coordinator, output: Output) -> NoReturn:
    rows: list[tuple[object, ...]] = []
    shown: list[dict[str, object]] = []
    for (node_id, address), found in coordinator.ask_nodes(m.DescribeNodeRequest()).items():
        answer = found if isinstance(found, AskFailed) else found[0]
        where = {"node_id": None if node_id < 0 else node_id, "address": str(address)}
        if isinstance(answer, AskFailed):
            note(f"{address}: {answer}")
            rows.append((*where.values(), AWAY, None, None))
            shown.append({**where, "status": AWAY})
            continue
        for one in answer.problems:
            note(f"{address}: {one.part}: {one.problem}")
        leads = sum(partition.status == ACTIVE for partition in answer.partitions)
        rows.append((*where.values(), answer.status, leads, len(answer.partitions)))
        shown.append({**where, **_everything(answer)})
    if output.form == JSON:
        output.json({"nodes": shown})
    else:
        output.show(("NODE", "ADDRESS", "STATUS", "LEADS", "OF"), rows)
    statuses = {EXIT_OF_STATUS.get(str(one["status"]), 1) for one in shown}
    sys.exit(1 if 1 in statuses else max(statuses))


def _everything(answer: m.DescribeNodeResponse) -> dict[str, object]:
    return {
        "node_id": answer.node_id,
        "leader_epoch": answer.leader_epoch,
        "status": answer.status,
        "problems": {one.part: one.problem for one in answer.problems},
        "partitions": [structs.asdict(partition) for partition in answer.partitions],
        "metrics": {metric.name: metric.value for metric in answer.metrics},
    }


@click.command(
    cls=Command,
    examples={"Read one partition of the log again, and see how long it takes:": "reload 7"},
)
@click.argument("partition", type=click.IntRange(0, 0xFFFE))
@asks
def reload(coordinator: Coordinator, output: Output, partition: int) -> None:
    """Load PARTITION of the offsets log again, as another node would that takes it over.

    Its log is read and checked, and its memory made anew of it. Meanwhile its groups are told to
    come back; all others are served.
    """
    answer: m.ReloadPartitionResponse = coordinator.ask(m.ReloadPartitionRequest(partition))
    row = (partition, answer.entries, answer.load_ms)
    output.lines("ok: {1} entries in {2} ms", ("PARTITION", "ENTRIES", "LOAD-MS"), [row])


@click.command(
    cls=Command,
    examples={
        "Make the log as small as it can be:": "compact",
        "Wait for it up to an hour:": "compact --timeout 3600",
    },
)
@partial(asks, timeout_s=COMPACT_TIMEOUT_S)
def compact(coordinator: Coordinator, output: Output) -> None:
    """Compact the offsets log now. It goes on while groups are served.

    Of a cluster, that is the logs of all nodes, one after the other, with a line each.
    """
    answers: list[m.CompactLogResponse] = coordinator.ask_leaders(m.CompactLogRequest())
    output.lines(
        "removed {} bytes in {} ms; the log has {} bytes, of which about {} are live",
        ("REMOVED-BYTES", "DURATION-MS", "LOG-BYTES", "LIVE-BYTES"),
        [(one.removed_bytes, one.duration_ms, one.log_bytes, one.live_bytes) for one in answers],
    )


@click.command(
    cls=Command,
    examples={
        "Does the coordinator of this machine answer?": "ping",
        "Does that one, within a second?": "ping --at coordinator.example:9310 --timeout 1",
    },
)
@partial(asks, timeout_s=PING_TIMEOUT_S)
def ping(coordinator: Coordinator, output: Output) -> None:
    """Exit 0 if a coordinator answers, else 1 (for health checks).

    One that loads answers, too: `health` says how it is.
    """
    try:
        told: m.ApiVersionsResponse = coordinator.ask(m.ApiVersionsRequest("ping", PROGRAM, ""))
    except Unreachable as exc:
        end(str(exc), EXIT_SOME_FAILED)
    row = ("ok", told.node_id, told.cluster_id, told.server_software)
    output.lines("ok", ("STATUS", "NODE-ID", "CLUSTER-ID", "SOFTWARE"), [row])
