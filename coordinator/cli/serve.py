"""``group-coordinator serve``: the daemon."""

import os
import signal
import sys
from pathlib import Path
from typing import Final

import click
import trio

from coordinator.cli.config import loaded, settings_of_start
from coordinator.cli.grammar import PROGRAM, Command
from coordinator.cli.output import end
from coordinator.config import ConfigError, load_settings
from coordinator.log.errors import EXIT_REFUSED
from coordinator.log.recovery import LEADER_EPOCH_ASKED_MAX
from coordinator.server.reload import open_log
from coordinator.server.run import Console, serve as serve_daemon
from coordinator.server.service_manager import ServiceManager
from coordinator.server.terminal import Bar, LogOutput, Printer

# How long the end waits for a reader of the log that has stopped reading.
LAST_LINES_TIMEOUT_S: Final = 1.0


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
        "Serve other machines, which nothing encrypts:": "serve --data-dir data "
        "--listen 0.0.0.0:9310 --set allow.plaintext.remote=true "
        "--set advertised.listeners=coordinator.example:9310",
    },
)
@settings_of_start
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the offsets log; made if it isn't there. A node of a cluster has none.",
)
@click.option(
    "--leader-epoch-at-least",
    type=click.IntRange(0, LEADER_EPOCH_ASKED_MAX),
    default=0,
    metavar="N",
    help="For a restored backup: above every epoch that clients have seen.",
)
def serve(
    listen: tuple[str, ...],
    data_dir: Path | None,
    toml_path: Path | None,
    overrides: tuple[str, ...],
    leader_epoch_at_least: int,
) -> None:
    """Run the daemon until SIGTERM; SIGHUP reads again what may change.

    A start that is refused leaves nothing behind.
    """
    # Until it can be answered: whoever rotates logs must not end a daemon that starts. The others
    # mean something to other daemons; here they would end it without a drain.
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    printer = Printer()
    bar = Bar(sys.stderr, printer)
    settings = loaded(listen, toml_path, overrides)
    if data_dir is None and not settings.cluster_zookeeper:
        raise click.UsageError("Missing option '--data-dir'.")
    if data_dir is not None and settings.cluster_zookeeper:
        raise click.UsageError("A node of a cluster (cluster.zookeeper) has no --data-dir.")
    output = LogOutput(around=bar.around, printer=printer)
    try:
        open_log(output, settings)
    except ConfigError as exc:
        end(f"{PROGRAM}: {exc}", EXIT_REFUSED)
    console = Console(
        bar,
        output,
        lambda: load_settings(
            toml_path=toml_path, environ=os.environ, overrides=overrides, listen=listen
        ),
        ServiceManager.of(os.environ),
    )
    printer.start()
    try:
        status = trio.run(
            lambda: serve_daemon(
                settings, data_dir, console, leader_epoch_at_least=leader_epoch_at_least
            )
        )
    finally:
        printer.finish(LAST_LINES_TIMEOUT_S)
    sys.exit(status)
