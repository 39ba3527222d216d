"""``group-coordinator serve``: the daemon."""

import os
import signal
import sys
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import click
import trio

from coordinator.cli.config import loaded, settings_of_start
from coordinator.cli.grammar import PROGRAM, Command
from coordinator.cli.output import end
from coordinator.config import ConfigError, Settings, load_settings
from coordinator.log.errors import EXIT_REFUSED
from coordinator.log.recovery import LEADER_EPOCH_ASKED_MAX
from coordinator.runtime import stop_signals
from coordinator.server.descriptors import find_room
from coordinator.server.reload import Reload, open_log
from coordinator.server.run import Console, serve as serve_daemon
from coordinator.server.service_manager import ServiceManager
from coordinator.server.supervisor import settings_of_nodes, supervise
from coordinator.server.terminal import Bar, LogOutput, Printer

# How long the end waits for a reader of the log that has stopped reading.
LAST_LINES_TIMEOUT_S: Final = 1.0
NODES_MAX: Final = 64
# systemd's name for the folder that it has made by StateDirectory=.
STATE_DIRECTORY: Final = "STATE_DIRECTORY"


@click.command(
    cls=Command,
    examples={
        "Serve this machine, and keep the offsets in the folder data:": "serve --data-dir data",
        "The same on another port, with sessions of up to an hour:": "serve --data-dir data "
        "--listen 127.0.0.1:9311 --set group.max.session.timeout.ms=3600000",
        "Serve other machines over TLS:": "serve --data-dir data --listen SSL://0.0.0.0:9310 "
        "--set ssl.keystore.location=server.pem "
        "--set advertised.listeners=coordinator.example:9310",
        "Be a node of a cluster, whose log ZooKeeper keeps:": "serve --set node.id=1 "
        "--set cluster.zookeeper=zk1:2181,zk2:2181,zk3:2181/group-coordinator",
        "Be four of them, for four cores, on the ports 9310 to 9313:": "serve --nodes 4 "
        "--config cluster.toml",
        "Serve other machines, which nothing encrypts:": "serve --data-dir data "
        "--listen 0.0.0.0:9310 --set allow.plaintext.remote=true "
        "--set advertised.listeners=coordinator.example:9310",
    },
)
@settings_of_start
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the offsets log; made if it isn't there. A node of a cluster has none. "
    "Under systemd: what StateDirectory= names, unless it is given.",
)
@click.option(
    "--leader-epoch-at-least",
    type=click.IntRange(0, LEADER_EPOCH_ASKED_MAX),
    default=0,
    metavar="N",
    help="Where the clock is or was wrong: above every epoch that clients have seen.",
)
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    metavar="N",
    help="Run N nodes of a cluster, each a process: node.id and all ports count up.",
)
@click.option("--supervised", is_flag=True, hidden=True)  # What `--nodes` starts.
def serve(
    listen: tuple[str, ...],
    data_dir: Path | None,
    toml_path: Path | None,
    overrides: tuple[str, ...],
    leader_epoch_at_least: int,
    nodes: int | None,
    supervised: bool,
) -> None:
    """Run the daemon until SIGTERM; SIGHUP reads again what may change.

    A start that is refused leaves nothing behind.
    """
    if supervised:
        threading.Thread(target=_end_with_the_supervisor, daemon=True).start()
    settings = loaded(listen, toml_path, overrides)
    if data_dir is None and not settings.cluster_zookeeper and STATE_DIRECTORY in os.environ:
        data_dir = Path(os.environ[STATE_DIRECTORY])
    _check_places(settings, data_dir, nodes)
    if leader_epoch_at_least and settings.cluster_zookeeper:
        raise click.UsageError("A cluster's epochs are ZooKeeper's: no --leader-epoch-at-least.")
    printer = Printer()
    bar = Bar(sys.stderr, printer)
    is_node = bool(settings.cluster_zookeeper) and nodes is None
    output = LogOutput(
        around=bar.around, printer=printer, node_id=settings.node_id if is_node else None
    )
    read_settings = partial(
        load_settings, toml_path=toml_path, environ=os.environ, overrides=overrides, listen=listen
    )
    manager = ServiceManager.of(os.environ)
    try:
        open_log(output, settings)
        if nodes is None:
            console = Console(bar, output, read_settings, manager, find_room(settings))
            run = partial(
                serve_daemon,
                *(settings, data_dir, console),
                leader_epoch_at_least=leader_epoch_at_least,
            )
        else:
            run = partial(
                supervise,
                _commands(settings, nodes, toml_path, overrides),
                manager,
                Reload(settings, read_settings, output, lambda: None),
                settings.shutdown_timeout_ms / 1000,
            )
    except ConfigError as exc:
        end(f"{PROGRAM}: {exc}", EXIT_REFUSED)
    if stop_signals.have_come():  # Nothing was touched yet.
        sys.exit(0)
    printer.start()
    try:
        status = trio.run(run)
    finally:
        printer.finish(LAST_LINES_TIMEOUT_S)
    sys.exit(status)


def _check_places(settings: Settings, data_dir: Path | None, nodes: int | None) -> None:
    """Refuse what does not go together: one node has a folder, those of a cluster have none."""
    if settings.cluster_zookeeper and data_dir is not None:
        raise click.UsageError("A node of a cluster (cluster.zookeeper) has no --data-dir.")
    if not settings.cluster_zookeeper and nodes is not None:
        raise click.UsageError(
            "--nodes needs a cluster (cluster.zookeeper): a data folder has one node."
        )
    if not settings.cluster_zookeeper and data_dir is None:
        raise click.UsageError("Missing option '--data-dir'.")


def _commands(
    settings: Settings, nodes: int, toml_path: Path | None, overrides: tuple[str, ...]
) -> dict[int, list[str]]:
    """Return by node id what serves that node. Raises ConfigError."""
    given = [] if toml_path is None else ["--config", str(toml_path)]
    found = {}
    for number, own in enumerate(settings_of_nodes(settings, nodes)):
        sets = [*overrides, *(f"{name}={value}" for name, value in own.items())]
        words = [word for one in sets for word in ("--set", one)]
        found[settings.node_id + number] = ["serve", "--supervised", *given, *words]
    return found


def _end_with_the_supervisor() -> None:
    """Take the end of the standard input, which is that of the supervisor, for SIGTERM."""
    with suppress(OSError):
        while os.read(0, 1):
            pass
    os.kill(os.getpid(), signal.SIGTERM)
