"""``group-coordinator config``: what a daemon is set to, and where it has that from."""

import os
from pathlib import Path

import click
from click.core import ParameterSource

from coordinator.cli.common import Coordinator, asks
from coordinator.cli.grammar import PROGRAM, Commands
from coordinator.cli.output import Output, end
from coordinator.config import ConfigError, load_settings, settings_in_force
from coordinator.log.errors import EXIT_REFUSED
from protocol import messages as m


@click.group(
    cls=Commands,
    examples={
        "What is the running coordinator set to, and why?": "config show",
        "What would a start here be set to?": "config show --start",
    },
)
def config() -> None:
    """See what a daemon is set to."""


@config.command(
    "show",
    examples={
        "What is the running coordinator set to, and why?": "config show",
        "Only what somebody has changed:": "config show --changed",
        "What would this file make of a start, with this machine's environment?": "config show "
        "--config coordinator.toml --set group.max.size=500",
    },
)
@click.option(
    "--config",
    "toml_path",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="What a start with this file would take.",
)
@click.option(
    "--set", "overrides", multiple=True, metavar="NAME=VALUE", help="The same with this setting."
)
@click.option("--listen", multiple=True, metavar="HOST:PORT", help="The same with this address.")
@click.option(
    "--start", is_flag=True, help="What a start would take with the environment of this command."
)
@click.option("--changed", is_flag=True, help="Only what was not left at its default.")
@asks
def show(
    coordinator: Coordinator,
    output: Output,
    toml_path: Path | None,
    overrides: tuple[str, ...],
    listen: tuple[str, ...],
    start: bool,
    changed: bool,
) -> None:
    """Show the settings of the running coordinator, and where each comes from.

    That is "default", a file, a variable of the environment, or the command line. None of the
    settings is a secret. With --config, --set, --listen or --start nobody is asked: it is what a
    start would take, and nothing is started.
    """
    found: list[tuple[str, ...]]
    if start or toml_path is not None or overrides or listen:
        if click.get_current_context().get_parameter_source("at") is ParameterSource.COMMANDLINE:
            raise click.UsageError("Either --at for a running coordinator, or a start's options.")
        try:
            settings = load_settings(
                toml_path=toml_path, environ=os.environ, overrides=overrides, listen=listen
            )
        except ConfigError as exc:
            end(f"{PROGRAM}: {exc}", EXIT_REFUSED)
        found = [tuple(one) for one in settings_in_force(settings)]
    else:
        answer: m.DescribeSettingsResponse = coordinator.ask(m.DescribeSettingsRequest())
        found = [(one.name, one.value, one.default, one.origin) for one in answer.settings]
    rows = [
        (name, value, origin, default)
        for name, value, default, origin in found
        if not changed or origin != "default"
    ]
    output.show(("NAME", "VALUE", "ORIGIN", "DEFAULT"), rows)
