"""``group-coordinator``, also ``python -m coordinator``."""

import os
import sys
from pathlib import Path

import click
import trio

from coordinator.cli.groups import groups
from coordinator.cli.log import log
from coordinator.cli.node import compact, health, ping, reload
from coordinator.cli.topics import topics
from coordinator.config import SETTINGS, ConfigError, load_settings
from coordinator.log.errors import EXIT_REFUSED
from coordinator.server.dispatch import SERVER_SOFTWARE
from coordinator.server.run import serve as serve_daemon
from coordinator.server.terminal import Bar, configure_logging


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(SERVER_SOFTWARE.partition("/")[2], prog_name="group-coordinator")
def main() -> None:
    """Coordinate consumer groups and keep their offsets, on disk before they are acknowledged."""


for _command in (groups, log, topics, compact, health, ping, reload):
    main.add_command(_command)


@main.command()
@click.option(
    "--listen",
    multiple=True,
    metavar="HOST:PORT",
    help="Where to listen; may be given several times. Port 0 takes a free one.",
)
@click.option(
    "--data-dir",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder of the offsets log; made if it isn't there.",
)
@click.option(
    "--config",
    "toml_path",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help='Settings as quoted keys, such as "group.max.size" = 500.',
)
@click.option(
    "--set", "overrides", multiple=True, metavar="NAME=VALUE", help="One setting; wins over all."
)
@click.option(
    "--leader-epoch-at-least",
    type=click.IntRange(0, 2**31 - 2),
    default=0,
    metavar="N",
    help="For a restored backup: above every epoch that clients have seen.",
)
def serve(
    listen: tuple[str, ...],
    data_dir: Path,
    toml_path: Path | None,
    overrides: tuple[str, ...],
    leader_epoch_at_least: int,
) -> None:
    """Run the daemon until SIGTERM."""
    bar = Bar(sys.stderr)
    configure_logging(around=bar.around)
    try:
        settings = load_settings(
            toml_path=toml_path, environ=os.environ, overrides=overrides, listen=listen
        )
    except ConfigError as exc:
        click.echo(f"group-coordinator: {exc}", err=True)
        sys.exit(EXIT_REFUSED)
    status = trio.run(
        lambda: serve_daemon(settings, data_dir, bar, leader_epoch_at_least=leader_epoch_at_least)
    )
    sys.exit(status)


@main.command()
def settings() -> None:
    """Print every setting with its default and meaning."""
    for setting in SETTINGS:
        default = str(setting.default).lower() if setting.default != "" else '""'
        click.echo(f"{setting.name} = {default}\n    {setting.doc}")
