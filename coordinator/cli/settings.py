"""``group-coordinator settings``: every setting of the daemon."""

import click

from coordinator.cli.grammar import Command
from coordinator.cli.output import Output, prints
from coordinator.config import SETTINGS, ConfigError, setting_named


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
