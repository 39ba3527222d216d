"""``group-coordinator`` health, ping, reload and compact: the coordinator itself."""

import socket
import sys
from functools import partial
from typing import Final

import click
from msgspec import structs

from coordinator.cli.common import Coordinator, asks
from coordinator.cli.output import note, show_json, table
from coordinator.config import Address, ConfigError
from protocol import messages as m
from protocol.connection import ClientConnection
from protocol.errors import RemoteProtocolError
from protocol.messages import ApiVersionsRequest

EXIT_OF_STATUS: Final = {"ready": 0, "unhealthy": 1, "loading": 3}
ACTIVE: Final = "active"
# The answer comes when it is done, which for a large log takes a while.
COMPACT_TIMEOUT_MS: Final = 600_000


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
    for one in answer.problems:
        note(f"{one.part}: {one.problem}")
    waiting = [structs.astuple(p) for p in answer.partitions if p.status != ACTIVE]
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
            "problems": {one.part: one.problem for one in answer.problems},
            "partitions": [structs.asdict(partition) for partition in answer.partitions],
            "metrics": {metric.name: metric.value for metric in answer.metrics},
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


@click.command()
@partial(asks, timeout_ms=COMPACT_TIMEOUT_MS)
def compact(coordinator: Coordinator) -> None:
    """Compact the offsets log now. It goes on while groups are served."""
    done: m.CompactLogResponse = coordinator.ask(m.CompactLogRequest())
    click.echo(
        f"removed {done.removed_bytes} bytes in {done.duration_ms} ms; the log has "
        f"{done.log_bytes} bytes, of which about {done.live_bytes} are live"
    )


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option(
    "--timeout",
    type=click.FloatRange(0.001, 3_600),  # Beyond it, and for nan, a socket takes no timeout.
    default=3.0,
    help="Seconds to wait for the answer.",
)
def ping(address: str, timeout: float) -> None:
    """Exit 0 if a coordinator answers at HOST:PORT, else 1 (for health checks)."""
    try:
        host, port = Address.parse("HOST:PORT", address)
    except ConfigError as exc:
        raise click.BadParameter(str(exc)) from exc
    problem = _ping(host, port, timeout_s=timeout)
    click.echo("ok" if problem is None else problem, err=problem is not None)
    sys.exit(0 if problem is None else 1)


def _ping(host: str, port: int, *, timeout_s: float) -> str | None:
    """Return None if a coordinator answers at *host*:*port*, else what is wrong."""
    connection = ClientConnection()
    _, frame = connection.send(ApiVersionsRequest("ping", "group-coordinator", ""))
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as sock:
            sock.sendall(frame)
            while data := sock.recv(65536):
                if connection.receive(data):
                    return None
    except (OSError, ValueError) as exc:  # The latter for a timeout that is none.
        return f"{host}:{port}: {exc}"
    except RemoteProtocolError as exc:
        return f"{host}:{port} is no coordinator: {exc}"
    return f"{host}:{port} closed the connection"
