"""``group-coordinator config`` and ``settings``: what a daemon is and can be set to."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from coordinator.cli.common import Coordinator, asks
from coordinator.cli.grammar import PROGRAM, Command, Commands
from coordinator.cli.output import Output, end, prints
from coordinator.config import (
    SETTINGS,
    ConfigError,
    Settings,
    load_settings,
    setting_named,
    settings_in_force,
)
from coordinator.log.errors import EXIT_REFUSED
from coordinator.names import did_you_mean, quoted
from protocol import messages as m

F = TypeVar("F", bound=Callable[..., Any])


def settings_of_start(command: F) -> F:
    """Take what a start is set to as *listen*, *toml_path* and *overrides*; for `loaded`."""
    listen = click.option(
        "--listen",
        multiple=True,
        metavar="HOST:PORT",
        help="Where to listen; may be given several times. Port 0 takes a free one.",
    )
    return listen(settings_from(command))


def settings_from(command: F) -> F:
    """Take settings as *toml_path* and *overrides*; for `loaded`."""
    config_file = click.option(
        "--config",
        "toml_path",
        type=click.Path(path_type=Path),
        metavar="FILE.toml",
        help='Settings as quoted keys, such as "group.max.size" = 500.',
    )
    overrides = click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="NAME=VALUE",
        help="One setting; wins over all.",
    )
    return config_file(overrides(command))


def loaded(listen: tuple[str, ...], toml_path: Path | None, overrides: tuple[str, ...]) -> Settings:
    """Return what a start takes, or end as a start does that is refused."""
    try:
        return load_settings(
            toml_path=toml_path, environ=os.environ, overrides=overrides, listen=listen
        )
    except ConfigError as exc:
        end(f"{PROGRAM}: {exc}", EXIT_REFUSED)


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
        "Only one of them:": "config show group.max.size",
        "What would this file make of a start, with this machine's environment?": "config show "
        "--config coordinator.toml --set group.max.size=500",
    },
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@settings_of_start
@click.option(
    "--start", is_flag=True, help="What a start would take with the environment of this command."
)
@click.option("--changed", is_flag=True, help="Only what was not left at its default.")
@asks
def show(
    coordinator: Coordinator,
    output: Output,
    names: tuple[str, ...],
    toml_path: Path | None,
    overrides: tuple[str, ...],
    listen: tuple[str, ...],
    start: bool,
    changed: bool,
) -> None:
    """Show the settings of the running coordinator, or those named, and where each comes from.

    That is "default", a file, a variable of the environment, or the command line. None of the
    settings is a secret. With --config, --set, --listen or --start nobody is asked: it is what a
    start would take, and nothing is started.
    """
    found: list[tuple[str, ...]]
    if start or toml_path is not None or overrides or listen:
        if click.get_current_context().get_parameter_source("at") is ParameterSource.COMMANDLINE:
            raise click.UsageError("Either --at for a running coordinator, or a start's options.")
        start_settings = loaded(listen, toml_path, overrides)
        found = [tuple(one) for one in settings_in_force(start_settings)]
    else:
        answer: m.DescribeSettingsResponse = coordinator.ask(m.DescribeSettingsRequest())
        found = [(one.name, one.value, one.default, one.origin) for one in answer.settings]
    known = {name for name, *_ in found}
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise click.UsageError(f"there is no setting {quoted(name)}.{hint}")
    rows = [
        (name, value, origin, default)
        for name, value, default, origin in found
        if (not names or name in names) and (not changed or origin != "default")
    ]
    output.show(("NAME", "VALUE", "ORIGIN", "DEFAULT"), rows)


@click.command(
    cls=Command,
    examples={
        "Which settings are there, and what are their defaults?": "settings",
        "What does this one mean?": "settings group.max.size",
    },
)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@prints
def settings(output: Output, names: tuple[str, ...]) -> None:
    """Print every setting with its default and meaning, or those that are named."""
    try:
        wanted = [setting_named(name) for name in names] or SETTINGS
    except ConfigError as exc:
        raise click.UsageError(str(exc)) from exc
    rows = []
    for setting in wanted:
        default = str(setting.default).lower() if setting.default != "" else '""'
        rows.append((setting.name, default, setting.doc))
    output.lines("{} = {}\n    {}", ("NAME", "DEFAULT", "MEANING"), rows)
